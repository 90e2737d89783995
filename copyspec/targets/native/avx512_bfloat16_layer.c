/* The parts of a decoder layer in bfloat16 for AVX-512. */

#include "layer.h"

#if HAS_KERNELS

#include "avx512.h"

#include "bfloat16_layer.h"

const Bfloat16LayerKernel AVX512_BFLOAT16_LAYER = {normalise, turn, activate, add, widen, narrow, NULL};

#endif
