/* The parts of a decoder layer for AVX2. */

#include "layer.h"

#if HAS_KERNELS

#include "avx2.h"

#define QUERIES 2

#include "layer_kernels.h"

const Float32LayerKernel AVX2_FLOAT32_LAYER = {normalise, attend, activate};

#endif
