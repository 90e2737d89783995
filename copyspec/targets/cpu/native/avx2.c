/* Kernels for AVX2 and FMA: inner products of 3 rows of x with the weights of 4 outputs at a time, whose 12 sums stay
   in registers of 8 numbers. Nothing is transposed: a tile of 4 outputs stays in the L1 cache while all rows of x are
   multiplied. The order of a sum does not depend on the number of rows. Each inner product has
   one register of sums, over the inputs in order. */

#include "layer.h"

#if HAS_KERNELS

#include <string.h>

#include "avx2.h"

#define BLOCK 4
#define FIRST(at) halves(at, 0)
#define SECOND(at) halves(at, 1)
#define QUERIES 2

#include "layer_kernels.h"
#include "packed.h"

#define OUTPUTS 4 /* per tile */
#define ROWS 3    /* rows of x at a time */

static int
is_supported(void)
{
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

/* Position from which the next tile is prefetched, spread evenly over the work on this one. */
typedef struct {
    const char *at;
    Py_ssize_t step; /* bytes per 8 inputs */
} Ahead;

/* Multiply `rows` rows of x by one tile, and prefetch the next tile. */
INLINED void
float_sums(const int rows, const float *x, const float *weight, Py_ssize_t in, Ahead ahead, __m256 *sums)
{
    __m256 sum[ROWS][OUTPUTS];
    for (int row = 0; row < rows; row++) {
        for (int i = 0; i < OUTPUTS; i++) {
            sum[row][i] = _mm256_setzero_ps();
        }
    }
    for (Py_ssize_t at = 0; at < in; at += 8) {
        _mm_prefetch(ahead.at, _MM_HINT_T0);
        _mm_prefetch(ahead.at + 64, _MM_HINT_T0);
        ahead.at += ahead.step;
        __m256 inputs[ROWS];
        for (int row = 0; row < rows; row++) {
            inputs[row] = _mm256_loadu_ps(x + row * in + at);
        }
        for (int i = 0; i < OUTPUTS; i++) {
            __m256 weights = _mm256_loadu_ps(weight + i * in + at);
            for (int row = 0; row < rows; row++) {
                sum[row][i] = _mm256_fmadd_ps(inputs[row], weights, sum[row][i]);
            }
        }
    }
    for (int row = 0; row < rows; row++) {
        for (int i = 0; i < OUTPUTS; i++) {
            sums[row * OUTPUTS + i] = sum[row][i];
        }
    }
}

#define DEFINE_SUMS(ROWS_HERE)                                                                                         \
    TARGET static void floats_##ROWS_HERE(const float *x, const float *weight, Py_ssize_t in, Ahead ahead,             \
                                          __m256 *sums)                                                                \
    {                                                                                                                  \
        float_sums(ROWS_HERE, x, weight, in, ahead, sums);                                                             \
    }
DEFINE_SUMS(1)
DEFINE_SUMS(2)
DEFINE_SUMS(3)

typedef void (*Sums)(const float *, const float *, Py_ssize_t, Ahead, __m256 *);
static const Sums SUMS[ROWS] = {floats_1, floats_2, floats_3};

/* Store four outputs of one row. */
TARGET static void
store_four(const Product *p, Py_ssize_t row, Py_ssize_t first, __m128 sum)
{
    if (p->bias != NULL) {
        sum = _mm_add_ps(sum, _mm_loadu_ps(p->bias + first));
    }
    _mm_storeu_ps(p->y + row * p->out + first, sum);
}

TARGET static void
multiply(const Product *p, Py_ssize_t first, Py_ssize_t last)
{
    if (p->is_packed) {
        multiply_packed(p, first, last);
        return;
    }
    const Py_ssize_t blocks = (p->rows + ROWS - 1) / ROWS, step = 8 * OUTPUTS * (Py_ssize_t)sizeof(float) / blocks;
    __m256 sums[ROWS * OUTPUTS];
    for (; first < last; first += OUTPUTS) {
        const float *weight = (const float *)p->weight + first * p->in;
        const char *next = (const char *)(weight + OUTPUTS * p->in);
        for (Py_ssize_t row = 0; row < p->rows; row += ROWS) {
            Py_ssize_t rows = p->rows - row < ROWS ? p->rows - row : ROWS;
            Ahead ahead = {next + row / ROWS * (p->in / 8) * step, step};
            SUMS[rows - 1](p->x + row * p->in, weight, p->in, ahead, sums);
            for (Py_ssize_t i = 0; i < rows; i++) {
                store_four(p, row + i, first, horizontal_sums(sums + OUTPUTS * i));
            }
        }
    }
}

const Kernel AVX2_KERNEL = {"avx2", is_supported, multiply};
const LayerKernel AVX2_LAYER = {normalise, attend, activate};

#endif
