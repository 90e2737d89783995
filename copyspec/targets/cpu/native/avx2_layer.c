/* The parts of a decoder layer for AVX2. */

#include "layer.h"

#if HAS_KERNELS

#include "avx2.h"

#define QUERIES 2

#include "layer_kernels.h"

const LayerKernel AVX2_LAYER = {normalise, attend, activate};

#endif
