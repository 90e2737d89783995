/* The kernel for AVX-512 and bfloat16; float32 is in avx512_floats.c, packed weights in avx512_packed.c.

   The order of a sum is oneDNN's, bit by bit: over the inputs, with a partial sum for every `apart` of them. So the
   numbers of a register belong to 16 outputs. Panels of 32 outputs are transposed in the L1 cache, 32 units of their
   inputs at a time, and multiplied by all rows of x. A unit is two adjacent inputs. */

#include "linear.h"

#if HAS_KERNELS

#include <immintrin.h>
#include <string.h>

#define STEP 32  /* units of a panel's weights processed at a time */
#define BLOCK 8  /* rows of x kept in registers */
#define FEW 4    /* up to this many rows, splitting the pairs takes longer than it saves */

#define FAST __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,fma")))
#define FAST_BF16 __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,fma")))
#define INLINE static inline __attribute__((always_inline, target("avx512f,avx512bw,avx512vl,avx512dq,fma")))
#define INLINE_BF16                                                                                                    \
    static inline __attribute__((always_inline, target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,fma")))

static int
is_supported(Kind kind)
{
    __builtin_cpu_init();
    int floats = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                 __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
    return floats && (kind == FLOAT32 || __builtin_cpu_supports("avx512bf16"));
}

/* Transpose 16 units of 16 outputs, `stride` bytes apart, to r: one unit of all outputs each. */
FAST static inline void
transpose(const char *weight, Py_ssize_t stride, __m512i *out)
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
        out[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
        out[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
        out[i + 4] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0x88);
        out[i + 12] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0xdd);
    }
}

/* The two inputs of each unit as float32. */
INLINE __m512
first_of(__m512i units)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(units, 16));
}

INLINE __m512
second_of(__m512i units)
{
    return _mm512_castsi512_ps(_mm512_and_si512(units, _mm512_set1_epi32((int)0xffff0000)));
}

/* Transpose `count` units of a panel. In a split one the second inputs of a unit follow all first ones. */
FAST static void
fill(float *panel, const char *weight, Py_ssize_t units, int count, int is_split)
{
    __m512i out[16];
    for (int i = 0; i < count; i += 16) {
        for (int half = 0; half < PANEL; half += 16) {
            transpose(weight + 4 * (half * units + i), 4 * units, out);
            for (int unit = 0; unit < 16; unit++) {
                float *to = panel + PANEL * (i + unit) + half;
                if (is_split) {
                    _mm512_store_ps(to, first_of(out[unit]));
                    _mm512_store_ps(to + STEP * PANEL, second_of(out[unit]));
                }
                else {
                    _mm512_store_si512(to, out[unit]);
                }
            }
        }
    }
}

/* Add `count` units of `rows` rows of x, `units` a row, times the panel to the sums. Prefetches 128 bytes at `ahead`
   per unit. */
INLINE_BF16 void
add_pairs(const int rows, float *sums, const float *panel, const float *x, Py_ssize_t units, int count,
          const char *ahead)
{
    __m512 low[BLOCK], high[BLOCK];
    for (int row = 0; row < rows; row++) {
        low[row] = _mm512_load_ps(sums + PANEL * row);
        high[row] = _mm512_load_ps(sums + PANEL * row + 16);
    }
    for (int i = 0; i < count; i++) {
        _mm_prefetch(ahead + 128 * i, _MM_HINT_T1);
        _mm_prefetch(ahead + 128 * i + 64, _MM_HINT_T1);
        __m512bh lower = (__m512bh)_mm512_load_ps(panel + PANEL * i);
        __m512bh upper = (__m512bh)_mm512_load_ps(panel + PANEL * i + 16);
        for (int row = 0; row < rows; row++) {
            __m512bh unit = (__m512bh)_mm512_set1_ps(x[row * units + i]);
            low[row] = _mm512_dpbf16_ps(low[row], unit, lower);
            high[row] = _mm512_dpbf16_ps(high[row], unit, upper);
        }
    }
    for (int row = 0; row < rows; row++) {
        _mm512_store_ps(sums + PANEL * row, low[row]);
        _mm512_store_ps(sums + PANEL * row + 16, high[row]);
    }
}

/* The same with a split panel and x in float32, in the order of VDPBF16PS: the second input of a unit comes first. On
   Intel's processors that instruction takes as long as four of these, which do the work of two. */
INLINE void
add_split(const int rows, float *sums, const float *panel, const float *x, Py_ssize_t units, int count,
          const char *ahead)
{
    __m512 low[BLOCK], high[BLOCK];
    for (int row = 0; row < rows; row++) {
        low[row] = _mm512_load_ps(sums + PANEL * row);
        high[row] = _mm512_load_ps(sums + PANEL * row + 16);
    }
    for (int i = 0; i < count; i++) {
        _mm_prefetch(ahead + 128 * i, _MM_HINT_T1);
        _mm_prefetch(ahead + 128 * i + 64, _MM_HINT_T1);
        const float *at = panel + PANEL * i;
        __m512 lower[2] = {_mm512_load_ps(at), _mm512_load_ps(at + STEP * PANEL)};
        __m512 upper[2] = {_mm512_load_ps(at + 16), _mm512_load_ps(at + STEP * PANEL + 16)};
        for (int row = 0; row < rows; row++) {
            const float *unit = x + 2 * (row * units + i);
            __m512 first = _mm512_set1_ps(unit[0]), second = _mm512_set1_ps(unit[1]);
            low[row] = _mm512_fmadd_ps(first, lower[0], _mm512_fmadd_ps(second, lower[1], low[row]));
            high[row] = _mm512_fmadd_ps(first, upper[0], _mm512_fmadd_ps(second, upper[1], high[row]));
        }
    }
    for (int row = 0; row < rows; row++) {
        _mm512_store_ps(sums + PANEL * row, low[row]);
        _mm512_store_ps(sums + PANEL * row + 16, high[row]);
    }
}

typedef void (*Add)(float *, const float *, const float *, Py_ssize_t, int, const char *);

#define DEFINE_ADD(ROWS_HERE)                                                                                          \
    FAST_BF16 static void pairs_##ROWS_HERE(float *sums, const float *panel, const float *x, Py_ssize_t units,         \
                                            int count, const char *ahead)                                              \
    {                                                                                                                  \
        add_pairs(ROWS_HERE, sums, panel, x, units, count, ahead);                                                     \
    }                                                                                                                  \
    FAST static void split_##ROWS_HERE(float *sums, const float *panel, const float *x, Py_ssize_t units, int count,   \
                                       const char *ahead)                                                              \
    {                                                                                                                  \
        add_split(ROWS_HERE, sums, panel, x, units, count, ahead);                                                     \
    }
DEFINE_ADD(1)
DEFINE_ADD(2)
DEFINE_ADD(3)
DEFINE_ADD(4)
DEFINE_ADD(5)
DEFINE_ADD(6)
DEFINE_ADD(7)
DEFINE_ADD(8)
static const Add ADDS[2][BLOCK] = {
    {pairs_1, pairs_2, pairs_3, pairs_4, pairs_5, pairs_6, pairs_7, pairs_8},
    {split_1, split_2, split_3, split_4, split_5, split_6, split_7, split_8},
};

/* Whether splitting the pairs saves time. */
static int
splits(const Product *p)
{
    __builtin_cpu_init();
    return p->kind == BFLOAT16 && (p->is_packed || (p->rows > FEW && __builtin_cpu_is("intel")));
}

static int
packs(Kind kind)
{
    __builtin_cpu_init();
    return kind == FLOAT32 || __builtin_cpu_is("intel"); /* others multiply pairs fast */
}

static Py_ssize_t
place(Kind kind, Py_ssize_t unit, Py_ssize_t units)
{
    (void)kind, (void)units;
    return unit; /* sums are taken over the inputs in order */
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

FAST static void
multiply_brains(const Product *p, Py_ssize_t first, Py_ssize_t last)
{
    float panel[2 * STEP * PANEL] __attribute__((aligned(64)));
    float sums[MAX_ROWS * PANEL] __attribute__((aligned(64)));
    float folded[MAX_ROWS * PANEL] __attribute__((aligned(64)));
    const Py_ssize_t units = p->in / 2;
    const int is_split = p->scratch != NULL, width = 1 + is_split;
    const float *x = is_split ? p->scratch : (const float *)p->x;
    const unsigned before = _mm_getcsr();
    if (is_split) {
        _mm_setcsr(before | 0x8040); /* numbers below 2^-126 are zeros, as they are to VDPBF16PS */
    }
    for (; first < last; first += PANEL) {
        memset(sums, 0, sizeof(float) * PANEL * (size_t)p->rows);
        int folds = 0;
        const char *weight = p->weight + 4 * first * units;
        const char *next = weight + 4 * PANEL * units; /* contiguous, like this panel */
        for (Py_ssize_t unit = 0; unit < units; unit += STEP) {
            if (unit > 0 && unit % (p->apart / 2) == 0) {
                fold(folded, sums, PANEL * (size_t)p->rows, folds++ == 0);
            }
            int count = (int)(units - unit < STEP ? units - unit : STEP);
            fill(panel, weight + 4 * unit, units, count, is_split);
            for (Py_ssize_t row = 0; row < p->rows; row += BLOCK) {
                Py_ssize_t rows = p->rows - row < BLOCK ? p->rows - row : BLOCK;
                ADDS[is_split][rows - 1](sums + PANEL * row, panel, x + width * (row * units + unit), units, count,
                                         next + 4 * unit * PANEL);
            }
        }
        if (folds > 0) {
            fold(folded, sums, PANEL * (size_t)p->rows, 0);
            memcpy(sums, folded, sizeof(float) * PANEL * (size_t)p->rows);
        }
        finish_brains(p, sums, first);
    }
    _mm_setcsr(before);
}

static void
multiply(const Product *p, Py_ssize_t first, Py_ssize_t last)
{
    (p->is_packed ? avx512_multiply_packed : p->kind == BFLOAT16 ? multiply_brains : avx512_multiply_floats)(
        p, first, last);
}

static size_t
scratch_size(const Product *p)
{
    return splits(p) ? sizeof(float) * (size_t)(p->rows * p->in) : 0;
}

/* Convert x to float32. */
FAST static void
prepare(Product *p)
{
    const uint16_t *x = (const uint16_t *)p->x;
    for (Py_ssize_t at = 0; p->scratch != NULL && at < p->rows * p->in; at += 16) {
        __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(x + at)));
        _mm512_storeu_ps((float *)p->scratch + at, first_of(wide));
    }
}

const Kernel AVX512_KERNEL = {"avx512", is_supported, packs, place, scratch_size, prepare, multiply};

#endif
