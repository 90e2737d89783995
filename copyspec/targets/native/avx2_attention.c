/* Attention in bfloat16, bitwise equal to PyTorch's fused kernel for one query on a processor with AVX2: SPLIT keys at
   a time, an online softmax, and between its parts the products of MKL.

   A score is four sums over every 4th number of the head, added as (0 + 2) + (1 + 3). The exponentials are rounded to
   bfloat16 and multiplied by four values at a time, which are added as (0 + 2) + (1 + 3) to the sum so far; of the last
   one to three values the last comes first. Products of two bfloat16 are exact in float32. */

#include "layer.h"

#if HAS_KERNELS

#include <math.h>

#include "avx2.h"
#include "bfloat16.h"

#define SPLIT MAX_SCORES
#define REGISTERS 2 /* of outputs at a time */

/* 8 numbers in float32. */
INLINED Floats
widened(const uint16_t *x)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)x)), 16));
}

/* 2^x' for x' = x log2(e), with PyTorch's polynomial for the fractional part of x'; it makes the bits of the
   result by arithmetic on the exponent (Malossi et al., "Fast exponential computation on SIMD architectures", 2015). */
INLINED Floats
exponential(Floats x)
{
    Floats scaled = MULTIPLY(x, ALL(0x1.715476p+0f)), part = SUBTRACT(scaled, _mm256_floor_ps(scaled));
    Floats factor = FMA(part, ALL(-0.079204240219773236f), ALL(-0.22433836478672356f));
    factor = FMA(part, FMA(part, factor, ALL(0.30354260500649682f)), ALL(0.00010703434948458272f));
    Floats bits = FMA(ALL(0x1p23f), SUBTRACT(scaled, factor), ALL(127 * 0x1p23f));
    Floats found = _mm256_castsi256_ps(_mm256_cvttps_epi32(bits));
    return _mm256_andnot_ps(_mm256_cmp_ps(x, ALL(-0x1.5d58ap+6f), _CMP_LT_OS), found);
}

static inline const uint16_t *
slot(const Attention *a, const uint16_t *of, Py_ssize_t row, Py_ssize_t at, Py_ssize_t size)
{
    const Py_ssize_t start = a->starts[row];
    return of + (at < start ? at : a->paths[row * a->width + at - start]) * size;
}

/* The scores of `length` slots from `first` on, [count, SPLIT], before they are scaled. queries: [count, 2 * size], of
   which every four numbers are there twice. */
INLINED void
score(const int count, const Attention *a, const uint16_t *keys, Py_ssize_t row, Py_ssize_t first, Py_ssize_t length,
      const float *queries, Py_ssize_t size, float *scores)
{
    for (Py_ssize_t at = 0; at < length; at += 2) {
        const Py_ssize_t next = at + 1 < length ? at + 1 : at;
        const uint16_t *one = slot(a, keys, row, first + at, size), *other = slot(a, keys, row, first + next, size);
        Floats sums[MAX_QUERIES];
        for (int query = 0; query < count; query++) {
            sums[query] = _mm256_setzero_ps();
        }
        for (Py_ssize_t i = 0; i < size; i += 4) {
            __m128i both = _mm_unpacklo_epi64(_mm_loadl_epi64((const __m128i *)(one + i)),
                                              _mm_loadl_epi64((const __m128i *)(other + i)));
            Floats wide = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(both), 16));
            for (int query = 0; query < count; query++) {
                sums[query] = FMA(LOAD(queries + 2 * (query * size + i)), wide, sums[query]);
            }
        }
        for (int query = 0; query < count; query++) {
            Floats sum = ADD(sums[query], _mm256_permute_ps(sums[query], 0x4e));
            sum = ADD(sum, _mm256_permute_ps(sum, 0xb1));
            scores[query * SPLIT + at] = _mm256_cvtss_f32(sum);
            scores[query * SPLIT + next] = _mm_cvtss_f32(_mm256_extractf128_ps(sum, 1));
        }
    }
}

/* Turn the scores of a query into exponentials, rounded to bfloat16. Returns the factor of what was summed so far. */
INLINED float
soften(const Attention *a, float *scores, Py_ssize_t length, float *largest, float *total)
{
    float most = *largest, sum = 0.0f;
    for (Py_ssize_t at = 0; at < length; at++) {
        scores[at] *= a->scaling;
        most = scores[at] > most ? scores[at] : most;
    }
    const Py_ssize_t whole = length - length % LANES;
    Floats sums[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
    for (Py_ssize_t at = 0; at < whole; at += LANES) {
        Floats found = exponential(SUBTRACT(LOAD(scores + at), ALL(most)));
        const Py_ssize_t turn = at / LANES % a->registers;
        sums[turn] = ADD(sums[turn], found);
        STORE(scores + at, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(narrowed(found)), 16)));
    }
    sum = SUM(ADD(sums[0], sums[1]));
    for (Py_ssize_t at = whole; at < length; at++) {
        float found = expf(scores[at] - most);
        sum += found;
        scores[at] = rounded_one(found);
    }
    const float factor = expf(*largest - most);
    *total = fmaf(factor, *total, sum);
    *largest = most;
    return factor;
}

/* Add the values of `length` slots from `first` on, times the exponentials, to outputs, [count, size]. */
INLINED void
add_values(const int count, const Attention *a, const uint16_t *values, Py_ssize_t row, Py_ssize_t first,
           Py_ssize_t length, const float *scores, Py_ssize_t size, float *outputs)
{
    for (Py_ssize_t i = 0; i < size; i += REGISTERS * LANES) {
        Floats sums[MAX_QUERIES][REGISTERS];
        for (int query = 0; query < count; query++) {
            for (int j = 0; j < REGISTERS; j++) {
                sums[query][j] = LOAD(outputs + query * size + i + LANES * j);
            }
        }
        Py_ssize_t at = 0;
        for (; at + 4 <= length; at += 4) {
            const uint16_t *from[4];
            for (int k = 0; k < 4; k++) {
                from[k] = slot(a, values, row, first + at + k, size) + i;
            }
            for (int j = 0; j < REGISTERS; j++) {
                Floats wide[4];
                for (int k = 0; k < 4; k++) {
                    wide[k] = widened(from[k] + LANES * j);
                }
                for (int query = 0; query < count; query++) {
                    const float *factors = scores + query * SPLIT + at;
                    Floats even = FMA(BROADCAST(factors + 2), wide[2], MULTIPLY(BROADCAST(factors), wide[0]));
                    Floats odd = FMA(BROADCAST(factors + 3), wide[3], MULTIPLY(BROADCAST(factors + 1), wide[1]));
                    sums[query][j] = ADD(sums[query][j], ADD(even, odd));
                }
            }
        }
        for (Py_ssize_t last = length - 1; last >= at; last--) {
            const uint16_t *from = slot(a, values, row, first + last, size) + i;
            for (int j = 0; j < REGISTERS; j++) {
                Floats wide = widened(from + LANES * j);
                for (int query = 0; query < count; query++) {
                    sums[query][j] = FMA(BROADCAST(scores + query * SPLIT + last), wide, sums[query][j]);
                }
            }
        }
        for (int query = 0; query < count; query++) {
            for (int j = 0; j < REGISTERS; j++) {
                STORE(outputs + query * size + i + LANES * j, sums[query][j]);
            }
        }
    }
}

INLINED void
attend_queries(const int count, const Attention *a, const uint16_t *queries, uint16_t *outputs, Py_ssize_t row,
               Py_ssize_t key_head, Py_ssize_t size, float *memory)
{
    const Py_ssize_t head = (a->of_batch[row] * a->key_heads + key_head) * a->capacity * size;
    const uint16_t *keys = a->keys + head, *values = a->values + head;
    float *wide = memory, *scores = wide + 2 * count * size, *sums = scores + count * SPLIT;
    float largest[MAX_QUERIES], totals[MAX_QUERIES];
    for (Py_ssize_t i = 0; i < count * size; i += 4) {
        __m128i four = _mm_cvtepu16_epi32(_mm_loadl_epi64((const __m128i *)(queries + i)));
        __m128 number = _mm_castsi128_ps(_mm_slli_epi32(four, 16));
        STORE(wide + 2 * i, _mm256_set_m128(number, number));
        _mm_storeu_ps(sums + i, _mm_setzero_ps());
    }
    for (int query = 0; query < count; query++) {
        largest[query] = -INFINITY, totals[query] = 0.0f;
    }
    for (Py_ssize_t first = 0; first < a->seen[row]; first += SPLIT) {
        const Py_ssize_t length = a->seen[row] - first < SPLIT ? a->seen[row] - first : SPLIT;
        score(count, a, keys, row, first, length, wide, size, scores);
        for (int query = 0; query < count; query++) {
            const float factor = soften(a, scores + query * SPLIT, length, largest + query, totals + query);
            for (Py_ssize_t i = 0; first > 0 && i < size; i++) {
                sums[query * size + i] *= factor;
            }
        }
        add_values(count, a, values, row, first, length, scores, size, sums);
    }
    for (int query = 0; query < count; query++) {
        const Floats factor = ALL(1.0f / totals[query]);
        for (Py_ssize_t i = query * size; i < (query + 1) * size; i += LANES) {
            _mm_storeu_si128((__m128i *)(outputs + i), narrowed(MULTIPLY(LOAD(sums + i), factor)));
        }
    }
}

TARGET void
avx2_attend(const Attention *a, int count, const uint16_t *queries, uint16_t *outputs, Py_ssize_t row,
            Py_ssize_t key_head, Py_ssize_t size, float *memory)
{
    switch (count) {
    case 1: attend_queries(1, a, queries, outputs, row, key_head, size, memory); break;
    case 2: attend_queries(2, a, queries, outputs, row, key_head, size, memory); break;
    case 3: attend_queries(3, a, queries, outputs, row, key_head, size, memory); break;
    default: attend_queries(4, a, queries, outputs, row, key_head, size, memory);
    }
}

#endif
