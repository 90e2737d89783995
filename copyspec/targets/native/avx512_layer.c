/* The parts of a decoder layer for AVX-512. */

#include "layer.h"

#if HAS_KERNELS

#include "avx512.h"

#define QUERIES 4

#include "layer_kernels.h"

const Float32LayerKernel AVX512_FLOAT32_LAYER = {normalise, attend, activate};

#endif
