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

void
avx512_multiply_packed(const Product *p, Py_ssize_t first, Py_ssize_t last)
{
    multiply_packed(p, first, last);
}

#endif
