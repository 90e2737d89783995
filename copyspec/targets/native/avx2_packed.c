/* The kernel for AVX2 and packed weights, in float32. */

#include "linear.h"

#if HAS_KERNELS

#include <string.h>

#include "avx2.h"

#define BLOCK 4
#define FIRST(at) halves(at, 0)
#define SECOND(at) halves(at, 1)

#include "packed.h"

TARGET static void
finish(const Product *p, Py_ssize_t row, Py_ssize_t output, const float *sums)
{
    for (int at = 0; at < HALF; at += LANES) {
        __m256 sum = _mm256_load_ps(sums + at);
        if (p->bias != NULL) {
            sum = _mm256_add_ps(sum, _mm256_loadu_ps((const float *)p->bias + output + at));
        }
        _mm256_storeu_ps((float *)p->y + row * p->out + output + at, sum);
    }
}

void
avx2_multiply_packed(const Product *p, Py_ssize_t first, Py_ssize_t last)
{
    multiply_packed(p, (const float *)p->x, first, last, finish);
}

#endif
