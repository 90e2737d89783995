/* The parts of a decoder layer for AVX-512. */

#include "layer.h"

#if HAS_KERNELS

#include "avx512.h"

#define QUERIES 4

#include "layer_kernels.h"

const LayerKernel AVX512_LAYER = {normalise, attend, activate};

#endif
