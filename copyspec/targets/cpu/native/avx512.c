/* The kernel for AVX-512: inner products of up to 6 rows of x with the weights of 4 outputs, whose sums stay
   in registers of 16 numbers. The order of a sum does not depend on the number of rows.

   Panels of 8 outputs stay in the L1 cache while all rows are multiplied, and the next panel is prefetched evenly over
   that work: without it, reading the weights and multiplying take turns. */

#include "layer.h"

#if HAS_KERNELS

#include <string.h>

#include "avx512.h"

#define BLOCK 12
#define FIRST(at) _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(at), 16))
#define SECOND(at)                                                                                                     \
    _mm512_castsi512_ps(_mm512_and_si512(_mm512_loadu_si512(at), _mm512_set1_epi32((int)0xffff0000)))
#define QUERIES 4

#include "layer_kernels.h"
#include "packed.h"

#define OUTPUTS 4 /* of one inner loop */
#define GROUPS 2  /* of OUTPUTS in a panel */
#define ROWS 6    /* rows of x at a time */

/* Multiply `rows` rows of x by the weights of OUTPUTS outputs and write the products to y. `lines` cache lines are
   prefetched per 16 inputs, from `ahead` on. */
INLINED void
inner_products(const int rows, const int lines, const Product *p, const float *x, const float *weight,
               const float *bias, float *y, const char *ahead)
{
    const Py_ssize_t in = p->in;
    __m512 sums[ROWS][OUTPUTS];
    for (int row = 0; row < rows; row++) {
        for (int i = 0; i < OUTPUTS; i++) {
            sums[row][i] = _mm512_setzero_ps();
        }
    }
    for (Py_ssize_t at = 0; at < in; at += 16) {
        for (int line = 0; line < lines; line++) {
            _mm_prefetch(ahead + 64 * line, _MM_HINT_T1);
        }
        ahead += 64 * lines;
        __m512 weights[OUTPUTS];
        for (int i = 0; i < OUTPUTS; i++) {
            weights[i] = _mm512_loadu_ps(weight + i * in + at);
        }
        for (int row = 0; row < rows; row++) {
            __m512 inputs = _mm512_loadu_ps(x + row * in + at);
            for (int i = 0; i < OUTPUTS; i++) {
                sums[row][i] = _mm512_fmadd_ps(inputs, weights[i], sums[row][i]);
            }
        }
    }
    __m128 start = bias != NULL ? _mm_loadu_ps(bias) : _mm_setzero_ps();
    for (int row = 0; row < rows; row++) {
        _mm_storeu_ps(y + row * p->out, _mm_add_ps(horizontal_sums(sums[row]), start));
    }
}

typedef void (*Inner)(const Product *, const float *, const float *, const float *, float *, const char *);

#define DEFINE_INNER(ROWS_HERE, LINES)                                                                                 \
    TARGET static void inner_##ROWS_HERE##_##LINES(const Product *p, const float *x, const float *weight,                \
                                                 const float *bias, float *y, const char *ahead)                       \
    {                                                                                                                  \
        inner_products(ROWS_HERE, LINES, p, x, weight, bias, y, ahead);                                                \
    }
#define DEFINE_INNERS(LINES)                                                                                           \
    DEFINE_INNER(1, LINES)                                                                                             \
    DEFINE_INNER(2, LINES)                                                                                             \
    DEFINE_INNER(3, LINES)                                                                                             \
    DEFINE_INNER(4, LINES)                                                                                             \
    DEFINE_INNER(5, LINES)                                                                                             \
    DEFINE_INNER(6, LINES)                                                                                             \
    static const Inner INNERS_##LINES[ROWS] = {inner_1_##LINES, inner_2_##LINES, inner_3_##LINES,                      \
                                               inner_4_##LINES, inner_5_##LINES, inner_6_##LINES};
DEFINE_INNERS(0)
DEFINE_INNERS(1)
DEFINE_INNERS(2)
DEFINE_INNERS(4)

TARGET static void
multiply(const Product *p, Py_ssize_t first, Py_ssize_t last)
{
    if (p->is_packed) {
        multiply_packed(p, first, last);
        return;
    }
    const float *x = p->x, *weight = (const float *)p->weight, *bias = p->bias;
    float *y = p->y;
    const Py_ssize_t blocks = (p->rows + ROWS - 1) / ROWS, size = (p->rows + blocks - 1) / blocks;
    const int lines = blocks == 1 ? 4 : blocks < 4 ? 2 : 1, parts = 4 / lines; /* of a panel, prefetched per block */
    const Inner *const inners = lines == 4 ? INNERS_4 : lines == 2 ? INNERS_2 : INNERS_1;
    for (; first < last; first += OUTPUTS * GROUPS) {
        const float *next = weight + (first + OUTPUTS * GROUPS) * p->in;
        for (Py_ssize_t block = 0; block * size < p->rows; block++) {
            Py_ssize_t row = block * size, rows = p->rows - row < size ? p->rows - row : size;
            for (int group = 0; group < GROUPS; group++) {
                Py_ssize_t at = first + OUTPUTS * group;
                const float *ahead = next + (block * GROUPS + group) * OUTPUTS * p->in / parts;
                (block < parts ? inners : INNERS_0)[rows - 1](p, x + row * p->in, weight + at * p->in,
                                                              bias != NULL ? bias + at : NULL, y + row * p->out + at,
                                                              (const char *)ahead);
            }
        }
    }
}

static int
is_supported(void)
{
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}

const Kernel AVX512_KERNEL = {"avx512", is_supported, multiply};
const LayerKernel AVX512_LAYER = {normalise, attend, activate};

#endif
