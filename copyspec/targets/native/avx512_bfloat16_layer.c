/* The parts of a decoder layer in bfloat16 for AVX-512. */

#include "layer.h"

#if HAS_KERNELS

#include "avx512.h"

#include "bfloat16_kernels.h"

TARGET static void
arrange(float *y, const uint16_t *x, Py_ssize_t first, Py_ssize_t last, Py_ssize_t in)
{
    (void)in;
    for (Py_ssize_t i = first; i < last; i++) {
        y[i] = widened_one(x[i]);
    }
}

const Bfloat16LayerKernel AVX512_BFLOAT16_LAYER = {normalise, turn, activate, add, arrange, NULL};

#endif
