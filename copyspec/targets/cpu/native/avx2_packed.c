/* The kernel for AVX2 and packed weights. */

#include "linear.h"

#if HAS_KERNELS

#include <string.h>

#include "avx2.h"

#define BLOCK 4
#define FIRST(at) halves(at, 0)
#define SECOND(at) halves(at, 1)

#include "packed.h"

void
avx2_multiply_packed(const Product *p, Py_ssize_t first, Py_ssize_t last)
{
    multiply_packed(p, first, last);
}

#endif
