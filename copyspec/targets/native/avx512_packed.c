/* The kernel for AVX-512 and packed weights. */

#include "linear.h"

#if HAS_KERNELS

#include <string.h>

#include "avx512.h"

#define BLOCK 12
#define FIRST(at) _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(at), 16))
#define SECOND(at)                                                                                                     \
    _mm512_castsi512_ps(_mm512_and_si512(_mm512_loadu_si512(at), _mm512_set1_epi32((int)0xffff0000)))

#include "packed.h"

TARGET static void
finish_floats(const Product *p, Py_ssize_t row, Py_ssize_t output, const float *sums)
{
    for (int at = 0; at < HALF; at += LANES) {
        __m512 sum = _mm512_load_ps(sums + at);
        if (p->bias != NULL) {
            sum = _mm512_add_ps(sum, _mm512_loadu_ps((const float *)p->bias + output + at));
        }
        _mm512_storeu_ps((float *)p->y + row * p->out + output + at, sum);
    }
}

__attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,fma"))) static void
finish_brains(const Product *p, Py_ssize_t row, Py_ssize_t output, const float *sums)
{
    for (int at = 0; at < HALF; at += LANES) {
        __m512 sum = _mm512_load_ps(sums + at);
        if (p->bias != NULL) {
            __m256i bias = _mm256_loadu_si256((const __m256i *)((const uint16_t *)p->bias + output + at));
            sum = _mm512_add_ps(sum, _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bias), 16)));
        }
        _mm256_storeu_si256((__m256i *)((uint16_t *)p->y + row * p->out + output + at),
                            (__m256i)_mm512_cvtneps_pbh(sum));
    }
}

TARGET void
avx512_multiply_packed(const Product *p, Py_ssize_t first, Py_ssize_t last)
{
    if (p->kind == FLOAT32) {
        multiply_packed(p, (const float *)p->x, first, last, finish_floats);
        return;
    }
    const unsigned before = _mm_getcsr();
    _mm_setcsr(before | 0x8040); /* numbers below 2^-126 are zeros, as they are to VDPBF16PS */
    multiply_packed(p, p->scratch, first, last, finish_brains);
    _mm_setcsr(before);
}

#endif
