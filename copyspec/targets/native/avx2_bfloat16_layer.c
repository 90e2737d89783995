/* The parts of a decoder layer in bfloat16 for AVX2. */

#include "layer.h"

#if HAS_KERNELS

#include "avx2.h"

#include "bfloat16_kernels.h"

const Bfloat16LayerKernel AVX2_BFLOAT16_LAYER = {normalise, turn, activate, add, avx2_bfloat16_arrange, avx2_attend};

#endif
