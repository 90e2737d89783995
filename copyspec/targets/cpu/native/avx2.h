/* Registers of AVX2, under the names that packed.h and layer_kernels.h use. */

#ifndef COPYSPEC_AVX2_H
#define COPYSPEC_AVX2_H

#include <immintrin.h>

#define LANES 8
#define TARGET __attribute__((target("avx2,fma")))
#define INLINED static inline __attribute__((always_inline, target("avx2,fma")))

#define Floats __m256
#define LOAD _mm256_loadu_ps
#define STORE _mm256_storeu_ps
#define ADD _mm256_add_ps
#define SUBTRACT _mm256_sub_ps
#define MULTIPLY _mm256_mul_ps
#define DIVIDE _mm256_div_ps
#define FMA _mm256_fmadd_ps
#define MAXIMUM _mm256_max_ps
#define MINIMUM _mm256_min_ps
#define BROADCAST(at) _mm256_broadcast_ss(at)
#define ALL _mm256_set1_ps
#define ROUND(x) _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)
/* x * 2^power for a whole `power` that leaves x a normal number */
#define SCALE(x, power)                                                                                                \
    _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(x), _mm256_slli_epi32(_mm256_cvtps_epi32(power), 23)))
/* x, but 0 where `at` is below `bound` */
#define ZERO_BELOW(x, at, bound) _mm256_and_ps(_mm256_cmp_ps(at, bound, _CMP_NLT_UQ), x)

/* Add up each of 4 registers, in the order ((0 + 4) + (2 + 6)) + ((1 + 5) + (3 + 7)). */
INLINED __m128
horizontal_sums(const __m256 *sums)
{
    __m128 r[4];
    for (int i = 0; i < 4; i++) {
        r[i] = _mm_add_ps(_mm256_castps256_ps128(sums[i]), _mm256_extractf128_ps(sums[i], 1));
    }
    _MM_TRANSPOSE4_PS(r[0], r[1], r[2], r[3]);
    return _mm_add_ps(_mm_add_ps(r[0], r[2]), _mm_add_ps(r[1], r[3]));
}

/* Of 8 units, each two adjacent numbers in bfloat16, the first numbers or the second ones, in float32. */
INLINED __m256
halves(const void *units, const int is_second)
{
    __m256i both = _mm256_loadu_si256((const __m256i *)units);
    return _mm256_castsi256_ps(is_second ? _mm256_and_si256(both, _mm256_set1_epi32((int)0xffff0000))
                                         : _mm256_slli_epi32(both, 16));
}

INLINED float
SUM(__m256 x)
{
    __m128 half = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    half = _mm_add_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_add_ss(half, _mm_shuffle_ps(half, half, 1)));
}

INLINED float
LARGEST(__m256 x)
{
    __m128 half = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    half = _mm_max_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_max_ss(half, _mm_shuffle_ps(half, half, 1)));
}

#endif
