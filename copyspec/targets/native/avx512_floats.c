/* The kernel for AVX-512 and float32: inner products of up to 6 rows of x with the weights of 4 outputs, whose sums stay
   in registers of 16 numbers. The order of a sum does not depend on the number of rows.

   Panels of 8 outputs stay in the L1 cache while all rows are multiplied, and the next panel is prefetched evenly over
   that work: without it, reading the weights and multiplying take turns. Packed weights take half the memory; they are
   split in the registers into the same numbers. */

#include "linear.h"

#if HAS_KERNELS

#include <immintrin.h>

#define OUTPUTS 4 /* of one inner loop */
#define GROUPS 2  /* of OUTPUTS in a panel */
#define ROWS 6    /* rows of x at a time */

#define FAST __attribute__((target("avx512f,avx512dq,fma")))
#define INLINE static inline __attribute__((always_inline, target("avx512f,avx512dq,fma")))

/* The totals of four registers: those of pairs of numbers first, at last those of the four quarters. */
INLINE __m128
add_up(const __m512 *sums)
{
    __m512 low = _mm512_add_ps(_mm512_unpacklo_ps(sums[0], sums[1]), _mm512_unpackhi_ps(sums[0], sums[1]));
    __m512 high = _mm512_add_ps(_mm512_unpacklo_ps(sums[2], sums[3]), _mm512_unpackhi_ps(sums[2], sums[3]));
    __m512 even = _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(low), _mm512_castps_pd(high)));
    __m512 odd = _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(low), _mm512_castps_pd(high)));
    __m512 quarters = _mm512_add_ps(even, odd);
    __m256 half = _mm256_add_ps(_mm512_castps512_ps256(quarters), _mm512_extractf32x8_ps(quarters, 1));
    return _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
}

/* 16 weights from input `at` on, of a row that starts at `row`. */
INLINE __m512
weights_at(const int is_packed, const char *row, Py_ssize_t at)
{
    if (!is_packed) {
        return _mm512_loadu_ps(row + 4 * at);
    }
    __m512i pairs = _mm512_loadu_si512(row + 2 * (at & ~(Py_ssize_t)31));
    return _mm512_castsi512_ps(at & 16 ? _mm512_slli_epi32(pairs, 16)
                                       : _mm512_and_si512(pairs, _mm512_set1_epi32((int)0xffff0000)));
}

/* Multiply `rows` rows of x by the weights of OUTPUTS outputs and write the products to y. `lines` cache lines are
   prefetched per line of weights of one output, from `ahead` on. */
INLINE void
inner_products(const int rows, const int lines, const int is_packed, const Product *p, const float *x,
               const char *weight, const float *bias, float *y, const char *ahead)
{
    const Py_ssize_t in = p->in, stride = is_packed ? 2 * in : 4 * in;
    __m512 sums[ROWS][OUTPUTS];
    for (int row = 0; row < rows; row++) {
        for (int i = 0; i < OUTPUTS; i++) {
            sums[row][i] = _mm512_setzero_ps();
        }
    }
    for (Py_ssize_t line = 0; line < in; line += is_packed ? 32 : 16) {
        for (int i = 0; i < lines; i++) {
            _mm_prefetch(ahead + 64 * i, _MM_HINT_T1);
        }
        ahead += 64 * lines;
        for (Py_ssize_t at = line; at < line + (is_packed ? 32 : 16); at += 16) {
            __m512 weights[OUTPUTS];
            for (int i = 0; i < OUTPUTS; i++) {
                weights[i] = weights_at(is_packed, weight + i * stride, at);
            }
            for (int row = 0; row < rows; row++) {
                __m512 given = _mm512_loadu_ps(x + row * in + at);
                for (int i = 0; i < OUTPUTS; i++) {
                    sums[row][i] = _mm512_fmadd_ps(given, weights[i], sums[row][i]);
                }
            }
        }
    }
    __m128 start = bias != NULL ? _mm_loadu_ps(bias) : _mm_setzero_ps();
    for (int row = 0; row < rows; row++) {
        _mm_storeu_ps(y + row * p->out, _mm_add_ps(add_up(sums[row]), start));
    }
}

typedef void (*Inner)(const Product *, const float *, const char *, const float *, float *, const char *);

#define DEFINE_INNER(ROWS_HERE, LINES, IS_PACKED)                                                                      \
    FAST static void inner_##ROWS_HERE##_##LINES##_##IS_PACKED(const Product *p, const float *x, const char *weight,   \
                                                               const float *bias, float *y, const char *ahead)         \
    {                                                                                                                  \
        inner_products(ROWS_HERE, LINES, IS_PACKED, p, x, weight, bias, y, ahead);                                     \
    }
#define DEFINE_INNERS(LINES, IS_PACKED)                                                                                \
    DEFINE_INNER(1, LINES, IS_PACKED)                                                                                  \
    DEFINE_INNER(2, LINES, IS_PACKED)                                                                                  \
    DEFINE_INNER(3, LINES, IS_PACKED)                                                                                  \
    DEFINE_INNER(4, LINES, IS_PACKED)                                                                                  \
    DEFINE_INNER(5, LINES, IS_PACKED)                                                                                  \
    DEFINE_INNER(6, LINES, IS_PACKED)                                                                                  \
    static const Inner INNERS_##LINES##_##IS_PACKED[ROWS] = {                                                          \
        inner_1_##LINES##_##IS_PACKED, inner_2_##LINES##_##IS_PACKED, inner_3_##LINES##_##IS_PACKED,                   \
        inner_4_##LINES##_##IS_PACKED, inner_5_##LINES##_##IS_PACKED, inner_6_##LINES##_##IS_PACKED};
DEFINE_INNERS(0, 0)
DEFINE_INNERS(1, 0)
DEFINE_INNERS(2, 0)
DEFINE_INNERS(4, 0)
DEFINE_INNERS(0, 1)
DEFINE_INNERS(1, 1)
DEFINE_INNERS(2, 1)
DEFINE_INNERS(4, 1)

/* By the number of cache lines prefetched: 0, 1, 2, and 4 at index 3. */
static const Inner *const INNERS[2][4] = {
    {INNERS_0_0, INNERS_1_0, INNERS_2_0, INNERS_4_0},
    {INNERS_0_1, INNERS_1_1, INNERS_2_1, INNERS_4_1},
};

FAST void
avx512_multiply_floats(const Product *p, Py_ssize_t first, Py_ssize_t last)
{
    const float *x = (const float *)p->x, *bias = (const float *)p->bias;
    float *y = (float *)p->y;
    const Py_ssize_t stride = p->is_packed ? 2 * p->in : 4 * p->in;
    const Py_ssize_t blocks = (p->rows + ROWS - 1) / ROWS, size = (p->rows + blocks - 1) / blocks;
    const int lines = blocks == 1 ? 4 : blocks < 4 ? 2 : 1, parts = 4 / lines; /* of a panel, prefetched per block */
    const Inner *const none = INNERS[p->is_packed][0], *const inners = INNERS[p->is_packed][lines == 4 ? 3 : lines];
    for (; first < last; first += OUTPUTS * GROUPS) {
        const char *next = p->weight + (first + OUTPUTS * GROUPS) * stride;
        for (Py_ssize_t block = 0; block * size < p->rows; block++) {
            Py_ssize_t row = block * size, rows = p->rows - row < size ? p->rows - row : size;
            for (int group = 0; group < GROUPS; group++) {
                Py_ssize_t at = first + OUTPUTS * group;
                const char *ahead = next + (block * GROUPS + group) * OUTPUTS * stride / parts;
                (block < parts ? inners : none)[rows - 1](p, x + row * p->in, p->weight + at * stride,
                                                          bias != NULL ? bias + at : NULL, y + row * p->out + at,
                                                          ahead);
            }
        }
    }
}

#endif
