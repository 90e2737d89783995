/* The parts of a decoder layer beside its products, of both instruction sets. The file that includes this includes
   avx512.h or avx2.h and defines QUERIES, the queries whose sums stay in registers.

   Sums are taken over the numbers of a head, or over the keys, in order; they do not depend on the other queries. */

#include <float.h>
#include <math.h>

/* e^x, within 2 units of the last place; 0 below the normal numbers. From Cephes' expf: a polynomial on
   [-ln(2) / 2, ln(2) / 2]. */
INLINED Floats
exponential(Floats x)
{
    const Floats least = ALL(-87.336f), most = ALL(88.376f);
    Floats bounded = MAXIMUM(least, MINIMUM(most, x)); /* NaN stays NaN */
    Floats power = ROUND(MULTIPLY(bounded, ALL(1.44269504088896341f)));
    Floats rest = FMA(power, ALL(-0.693359375f), bounded);
    rest = FMA(power, ALL(2.12194440e-4f), rest);
    Floats sum = ALL(1.9875691500e-4f);
    sum = FMA(sum, rest, ALL(1.3981999507e-3f));
    sum = FMA(sum, rest, ALL(8.3334519073e-3f));
    sum = FMA(sum, rest, ALL(4.1665795894e-2f));
    sum = FMA(sum, rest, ALL(1.6666665459e-1f));
    sum = FMA(sum, rest, ALL(5.0000001201e-1f));
    sum = ADD(FMA(MULTIPLY(rest, rest), sum, rest), ALL(1.0f));
    return ZERO_BELOW(SCALE(sum, power), x, least);
}

TARGET static void
normalise(float *y, const float *x, const float *weight, float epsilon, Py_ssize_t size)
{
    Floats squares = ALL(0.0f);
    for (Py_ssize_t at = 0; at < size; at += LANES) {
        Floats numbers = LOAD(x + at);
        squares = FMA(numbers, numbers, squares);
    }
    Floats factor = ALL(1.0f / sqrtf(SUM(squares) / (float)size + epsilon));
    for (Py_ssize_t at = 0; at < size; at += LANES) {
        STORE(y + at, MULTIPLY(LOAD(weight + at), MULTIPLY(LOAD(x + at), factor)));
    }
}

TARGET static void
activate(float *gate, const float *up, Py_ssize_t size)
{
    for (Py_ssize_t at = 0; at < size; at += LANES) {
        Floats x = LOAD(gate + at);
        Floats silu = DIVIDE(x, ADD(ALL(1.0f), exponential(SUBTRACT(ALL(0.0f), x))));
        STORE(gate + at, MULTIPLY(silu, LOAD(up + at)));
    }
}

/* Inner products of `count` queries with `keys` keys, a multiple of 4, to scores, [count, stride]. */
INLINED void
score(const int count, const float *const *queries, const float *key, Py_ssize_t size, Py_ssize_t keys, float *scores,
      Py_ssize_t stride)
{
    for (Py_ssize_t at = 0; at < keys; at += 4, key += 4 * size) {
        Floats sums[QUERIES][4];
        for (int query = 0; query < count; query++) {
            for (int i = 0; i < 4; i++) {
                sums[query][i] = ALL(0.0f);
            }
        }
        for (Py_ssize_t part = 0; part < size; part += LANES) {
            Floats four[4];
            for (int i = 0; i < 4; i++) {
                four[i] = LOAD(key + i * size + part);
            }
            for (int query = 0; query < count; query++) {
                Floats own = LOAD(queries[query] + part);
                for (int i = 0; i < 4; i++) {
                    sums[query][i] = FMA(own, four[i], sums[query][i]);
                }
            }
        }
        for (int query = 0; query < count; query++) {
            _mm_storeu_ps(scores + query * stride + at, horizontal_sums(sums[query]));
        }
    }
}

/* Sums of `width` registers of each value, weighted by the scores, to out. */
INLINED void
mix(const int count, const int width, const float *value, Py_ssize_t size, Py_ssize_t keys, const float *scores,
    Py_ssize_t stride, float *const *out, const float *factors)
{
    Floats sums[QUERIES][4];
    for (int query = 0; query < count; query++) {
        for (int i = 0; i < width; i++) {
            sums[query][i] = ALL(0.0f);
        }
    }
    for (Py_ssize_t at = 0; at < keys; at++, value += size) {
        Floats parts[4];
        for (int i = 0; i < width; i++) {
            parts[i] = LOAD(value + i * LANES);
        }
        for (int query = 0; query < count; query++) {
            Floats weight = BROADCAST(scores + query * stride + at);
            for (int i = 0; i < width; i++) {
                sums[query][i] = FMA(weight, parts[i], sums[query][i]);
            }
        }
    }
    for (int query = 0; query < count; query++) {
        for (int i = 0; i < width; i++) {
            STORE(out[query] + i * LANES, MULTIPLY(sums[query][i], ALL(factors[query])));
        }
    }
}

/* Turn the scores of `keys` keys into weights; returns their sum. `visible`: keys in front of later ones. */
INLINED float
weigh(float *scores, const float *mask, float scaling, Py_ssize_t visible, Py_ssize_t keys)
{
    const Py_ssize_t whole = (keys + LANES - 1) / LANES * LANES;
    for (Py_ssize_t at = visible; at < whole; at++) {
        scores[at] = -INFINITY;
    }
    Floats largest = ALL(-INFINITY);
    for (Py_ssize_t at = 0; at < whole; at += LANES) {
        Floats scaled = MULTIPLY(LOAD(scores + at), ALL(scaling));
        if (mask != NULL && at + LANES <= visible) {
            scaled = ADD(scaled, LOAD(mask + at));
        }
        else if (mask != NULL) {
            float last[LANES] = {0};
            for (Py_ssize_t i = at; i < visible; i++) {
                last[i - at] = mask[i];
            }
            scaled = ADD(scaled, LOAD(last));
        }
        STORE(scores + at, scaled);
        largest = MAXIMUM(scaled, largest);
    }
    const float most = LARGEST(largest);
    Floats sums = ALL(0.0f);
    for (Py_ssize_t at = 0; at < whole; at += LANES) {
        Floats weights = exponential(SUBTRACT(LOAD(scores + at), ALL(most)));
        STORE(scores + at, weights);
        sums = ADD(sums, weights);
    }
    return SUM(sums);
}

INLINED void
attend_some(const int count, const Layer *l, const Row *row, Py_ssize_t key_head, Py_ssize_t first, float *scores)
{
    const Py_ssize_t group = l->heads / l->key_heads, size = l->head_size, used = (Py_ssize_t)row->used;
    const Py_ssize_t begin = first_in(l, row), before = begin - (Py_ssize_t)row->first; /* of the row's tokens */
    const float *masks = (const float *)(uintptr_t)row->mask;
    const Py_ssize_t causal = (Py_ssize_t)row->start + before + (first + count - 1) / group + 1;
    const Py_ssize_t keys = masks != NULL ? used : causal, head = key_head * (Py_ssize_t)row->capacity * size;
    const float *queries[QUERIES];
    float *out[QUERIES], factors[QUERIES];
    for (int i = 0; i < count; i++) {
        Py_ssize_t token = begin - l->chunk_start + (first + i) / group;
        Py_ssize_t at = (token * l->heads + key_head * group + (first + i) % group) * size;
        queries[i] = l->queries + at, out[i] = l->attended + at;
    }
    score(count, queries, (const float *)(uintptr_t)row->keys + head, size, (keys + 3) / 4 * 4, scores, l->stride);
    for (int i = 0; i < count; i++) {
        Py_ssize_t token = before + (first + i) / group;
        const float *mask = masks != NULL ? masks + token * used : NULL;
        Py_ssize_t visible = mask != NULL ? keys : (Py_ssize_t)row->start + token + 1;
        factors[i] = 1.0f / weigh(scores + i * l->stride, mask, l->scaling, visible, keys);
    }
    for (Py_ssize_t part = 0; part < size;) {
        const float *value = (const float *)(uintptr_t)row->values + head + part;
        if (size - part >= 4 * LANES) {
            mix(count, 4, value, size, keys, scores, l->stride, out, factors);
            part += 4 * LANES;
            for (int i = 0; i < count; i++) {
                out[i] += 4 * LANES;
            }
        }
        else {
            mix(count, 1, value, size, keys, scores, l->stride, out, factors);
            part += LANES;
            for (int i = 0; i < count; i++) {
                out[i] += LANES;
            }
        }
    }
}

TARGET static void
attend(const Layer *l, const Row *row, Py_ssize_t key_head, Py_ssize_t first, int count, float *scores)
{
    for (; count >= QUERIES; count -= QUERIES, first += QUERIES) {
        attend_some(QUERIES, l, row, key_head, first, scores);
    }
#if QUERIES > 2
    if (count == 3) {
        attend_some(3, l, row, key_head, first, scores);
    }
    if (count == 2) {
        attend_some(2, l, row, key_head, first, scores);
    }
#endif
    if (count == 1) {
        attend_some(1, l, row, key_head, first, scores);
    }
}
