/* Kernels for AVX-512: panels of 32 outputs are processed in the L1 cache. 32 units of their inputs at a time are
   transposed there, so that one register holds one input's weights of 16 outputs, and multiplied by all rows of x. Sums
   run over the inputs in order, so that a row's result does not depend on the number of rows. In bfloat16 every FOLD
   units have a separate sum, which is oneDNN's order, bit by bit. */

#include "linear.h"

#if HAS_KERNELS

#include <immintrin.h>
#include <string.h>

#define STEP 32  /* 32-bit units of a panel's weights processed at a time */
#define BLOCK 8  /* rows of x kept in registers */
#define FOLD 256 /* bfloat16 units per separate sum, a multiple of STEP */

#define FAST __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,fma")))
#define FAST_BF16 __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,fma")))

static int
is_supported(Kind kind)
{
    __builtin_cpu_init();
    int floats = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                 __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
    return floats && (kind == FLOAT32 || __builtin_cpu_supports("avx512bf16"));
}

/* Transpose 16 units of 16 outputs, `stride` bytes apart, to 16 outputs of 16 units, PANEL numbers apart. */
FAST static inline void
transpose(const char *weight, Py_ssize_t stride, float *panel)
{
    __m512i r[16], t[16];
    for (int i = 0; i < 16; i++) {
        r[i] = _mm512_loadu_si512(weight + i * stride);
    }
    for (int i = 0; i < 8; i++) {
        t[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
        t[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
    }
    for (int i = 0; i < 4; i++) {
        r[4 * i] = _mm512_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
        r[4 * i + 1] = _mm512_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
        r[4 * i + 2] = _mm512_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
        r[4 * i + 3] = _mm512_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
    }
    for (int i = 0; i < 4; i++) {
        t[i] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88);
        t[i + 4] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xdd);
        t[i + 8] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
        t[i + 12] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xdd);
    }
    for (int i = 0; i < 4; i++) {
        _mm512_store_si512(panel + i * PANEL, _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88));
        _mm512_store_si512(panel + (i + 8) * PANEL, _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd));
        _mm512_store_si512(panel + (i + 4) * PANEL, _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0x88));
        _mm512_store_si512(panel + (i + 12) * PANEL, _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0xdd));
    }
}

/* Add `count` units of ROWS rows of x, `stride` units apart, times the panel to the sums. A unit is one float32, or two
   adjacent bfloat16. Prefetches 128 bytes at `ahead` per unit. */
#define ADD_FLOAT32(sum, unit, weights) sum = _mm512_fmadd_ps(_mm512_set1_ps(*(unit)), weights, sum)
#define ADD_BFLOAT16(sum, unit, weights)                                                                               \
    sum = _mm512_dpbf16_ps(sum, (__m512bh)_mm512_castps_si512(_mm512_set1_ps(*(unit))),                                \
                           (__m512bh)_mm512_castps_si512(weights))

#define DEFINE_ADD(NAME, ROWS, TARGET, ADD)                                                                            \
    TARGET static void NAME##_##ROWS(float *sums, const float *panel, const float *x, Py_ssize_t stride, int count,    \
                                     const char *ahead)                                                                \
    {                                                                                                                  \
        __m512 low[ROWS], high[ROWS];                                                                                  \
        _Pragma("GCC unroll 8") for (int row = 0; row < ROWS; row++)                                                   \
        {                                                                                                              \
            low[row] = _mm512_load_ps(sums + PANEL * row);                                                             \
            high[row] = _mm512_load_ps(sums + PANEL * row + 16);                                                       \
        }                                                                                                              \
        for (int i = 0; i < count; i++) {                                                                              \
            _mm_prefetch(ahead + 128 * i, _MM_HINT_T1);                                                                \
            _mm_prefetch(ahead + 128 * i + 64, _MM_HINT_T1);                                                           \
            __m512 first = _mm512_load_ps(panel + PANEL * i), second = _mm512_load_ps(panel + PANEL * i + 16);         \
            _Pragma("GCC unroll 8") for (int row = 0; row < ROWS; row++)                                               \
            {                                                                                                          \
                ADD(low[row], x + row * stride + i, first);                                                            \
                ADD(high[row], x + row * stride + i, second);                                                          \
            }                                                                                                          \
        }                                                                                                              \
        _Pragma("GCC unroll 8") for (int row = 0; row < ROWS; row++)                                                   \
        {                                                                                                              \
            _mm512_store_ps(sums + PANEL * row, low[row]);                                                             \
            _mm512_store_ps(sums + PANEL * row + 16, high[row]);                                                       \
        }                                                                                                              \
    }
#define DEFINE_ADDS(NAME, TARGET, ADD)                                                                                 \
    DEFINE_ADD(NAME, 1, TARGET, ADD)                                                                                   \
    DEFINE_ADD(NAME, 2, TARGET, ADD)                                                                                   \
    DEFINE_ADD(NAME, 3, TARGET, ADD)                                                                                   \
    DEFINE_ADD(NAME, 4, TARGET, ADD)                                                                                   \
    DEFINE_ADD(NAME, 5, TARGET, ADD)                                                                                   \
    DEFINE_ADD(NAME, 6, TARGET, ADD)                                                                                   \
    DEFINE_ADD(NAME, 7, TARGET, ADD)                                                                                   \
    DEFINE_ADD(NAME, 8, TARGET, ADD)
DEFINE_ADDS(floats, FAST, ADD_FLOAT32)
DEFINE_ADDS(brains, FAST_BF16, ADD_BFLOAT16)

typedef void (*Add)(float *, const float *, const float *, Py_ssize_t, int, const char *);
static const Add ADDS[2][BLOCK] = {
    {floats_1, floats_2, floats_3, floats_4, floats_5, floats_6, floats_7, floats_8},
    {brains_1, brains_2, brains_3, brains_4, brains_5, brains_6, brains_7, brains_8},
};

FAST static void
finish_floats(const Product *p, const float *sums, Py_ssize_t first)
{
    for (Py_ssize_t row = 0; row < p->rows; row++) {
        for (int at = 0; at < PANEL; at += 16) {
            __m512 sum = _mm512_load_ps(sums + PANEL * row + at);
            if (p->bias != NULL) {
                sum = _mm512_add_ps(sum, _mm512_loadu_ps((const float *)p->bias + first + at));
            }
            _mm512_storeu_ps((float *)p->y + row * p->out + first + at, sum);
        }
    }
}

FAST_BF16 static void
finish_brains(const Product *p, const float *sums, Py_ssize_t first)
{
    for (Py_ssize_t row = 0; row < p->rows; row++) {
        for (int at = 0; at < PANEL; at += 16) {
            __m512 sum = _mm512_load_ps(sums + PANEL * row + at);
            if (p->bias != NULL) {
                __m256i bias = _mm256_loadu_si256((const __m256i *)((const uint16_t *)p->bias + first + at));
                __m512i wide = _mm512_slli_epi32(_mm512_cvtepu16_epi32(bias), 16);
                sum = _mm512_add_ps(sum, _mm512_castsi512_ps(wide));
            }
            __m256i rounded = (__m256i)_mm512_cvtneps_pbh(sum);
            _mm256_storeu_si256((__m256i *)((uint16_t *)p->y + row * p->out + first + at), rounded);
        }
    }
}

/* Add the sums to the folded ones, or store them if they are the first, and reset them. */
static void
fold(float *folded, float *sums, size_t count, int is_first)
{
    for (size_t i = 0; i < count; i++) {
        folded[i] = is_first ? sums[i] : folded[i] + sums[i];
        sums[i] = 0.0f;
    }
}

/* Compute outputs first .. last - 1; both are multiples of PANEL. */
static void
multiply(const Product *p, Py_ssize_t first, Py_ssize_t last)
{
    float panel[STEP * PANEL] __attribute__((aligned(64)));
    float sums[MOST_ROWS * PANEL] __attribute__((aligned(64)));
    float folded[MOST_ROWS * PANEL] __attribute__((aligned(64)));
    const Py_ssize_t units = p->kind == BFLOAT16 ? p->in / 2 : p->in;
    const float *x = (const float *)p->x;
    for (; first < last; first += PANEL) {
        memset(sums, 0, sizeof(float) * PANEL * (size_t)p->rows);
        int folds = 0;
        const char *next = p->weight + 4 * (first + PANEL) * units; /* contiguous, like this panel */
        for (Py_ssize_t unit = 0; unit < units; unit += STEP) {
            if (p->kind == BFLOAT16 && unit > 0 && unit % FOLD == 0) {
                fold(folded, sums, PANEL * (size_t)p->rows, folds++ == 0);
            }
            int count = (int)(units - unit < STEP ? units - unit : STEP);
            for (int i = 0; i < count; i += 16) {
                for (int half = 0; half < PANEL; half += 16) {
                    transpose(p->weight + 4 * ((first + half) * units + unit + i), 4 * units, panel + PANEL * i + half);
                }
            }
            for (Py_ssize_t row = 0; row < p->rows; row += BLOCK) {
                Py_ssize_t rows = p->rows - row < BLOCK ? p->rows - row : BLOCK;
                ADDS[p->kind][rows - 1](sums + PANEL * row, panel, x + row * units + unit, units, count,
                                        next + 4 * unit * PANEL);
            }
        }
        if (folds > 0) {
            fold(folded, sums, PANEL * (size_t)p->rows, 0);
            memcpy(sums, folded, sizeof(float) * PANEL * (size_t)p->rows);
        }
        (p->kind == BFLOAT16 ? finish_brains : finish_floats)(p, sums, first);
    }
}
const Kernel AVX512_KERNEL = {"avx512", is_supported, NULL, NULL, multiply};

#endif
