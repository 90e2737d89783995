/* Registers of AVX-512, under the names that packed.h and layer_kernels.h use. */

#ifndef COPYSPEC_AVX512_H
#define COPYSPEC_AVX512_H

#include <immintrin.h>

#define LANES 16
#define TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,fma")))
#define INLINED static inline __attribute__((always_inline, target("avx512f,avx512bw,avx512vl,avx512dq,fma")))

#define Floats __m512
#define LOAD _mm512_loadu_ps
#define STORE _mm512_storeu_ps
#define ADD _mm512_add_ps
#define SUBTRACT _mm512_sub_ps
#define MULTIPLY _mm512_mul_ps
#define DIVIDE _mm512_div_ps
#define FMA _mm512_fmadd_ps
#define MAXIMUM _mm512_max_ps
#define MINIMUM _mm512_min_ps
#define BROADCAST(at) _mm512_set1_ps(*(at))
#define ALL _mm512_set1_ps
#define ROUND(x) _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)
/* x * 2^power for a whole `power` that leaves x a normal number */
#define SCALE(x, power)                                                                                                \
    _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(x), _mm512_slli_epi32(_mm512_cvtps_epi32(power), 23)))
/* x, but 0 where `at` is below `bound` */
#define ZERO_BELOW(x, at, bound) _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(at, bound, _CMP_NLT_UQ), x)
#define SUM _mm512_reduce_add_ps
#define LARGEST _mm512_reduce_max_ps

/* The totals of four registers: those of pairs of numbers first, at last those of the four quarters. */
INLINED __m128
horizontal_sums(const __m512 *sums)
{
    __m512 low = _mm512_add_ps(_mm512_unpacklo_ps(sums[0], sums[1]), _mm512_unpackhi_ps(sums[0], sums[1]));
    __m512 high = _mm512_add_ps(_mm512_unpacklo_ps(sums[2], sums[3]), _mm512_unpackhi_ps(sums[2], sums[3]));
    __m512 even = _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(low), _mm512_castps_pd(high)));
    __m512 odd = _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(low), _mm512_castps_pd(high)));
    __m512 quarters = _mm512_add_ps(even, odd);
    __m256 half = _mm256_add_ps(_mm512_castps512_ps256(quarters), _mm512_extractf32x8_ps(quarters, 1));
    return _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
}

#endif
