/* Kernels for AVX2 and FMA: inner products of 3 rows of x with the weights of 4 outputs at a time, whose 12 sums stay
   in registers of 8 numbers. Nothing is transposed: a panel of 4 outputs stays in the L1 cache while all rows of x are
   multiplied. The order of a sum does not depend on the number of rows.

   In float32 each inner product has one register of sums, over the inputs in order. In bfloat16 the order is that of
   PyTorch's product for one token, bit by bit: 64 sums over every 64th input, added in halves. 64 sums for each of 12
   products do not fit into the registers, so 8 are computed at a time: those of a quarter (16) of every 64 inputs,
   first at even, then at odd indices, since a shift and a mask separate two bfloat16 in 32 bits this way. Of a last 32
   inputs, 8 sums over every 8th are added at the end. */

#include "linear.h"

#if HAS_KERNELS

#include "avx2.h"

#define OUTPUTS 4 /* per panel */
#define ROWS 3    /* rows of x at a time */
#define CHUNK 64  /* number of partial sums in bfloat16 */

static int
is_supported(Kind kind)
{
    (void)kind;
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

static int
packs(Kind kind)
{
    (void)kind;
    return 1;
}

static Py_ssize_t
place(Kind kind, Py_ssize_t unit, Py_ssize_t units)
{
    return kind == BFLOAT16 ? avx2_bfloat16_place(unit, units) : unit; /* float32 is added in order */
}

/* Position from which the next panel is prefetched, spread evenly over the work on this one. */
typedef struct {
    const char *at;
    Py_ssize_t step; /* bytes per 8 inputs */
} Ahead;

/* Multiply `rows` rows of x by one panel, and prefetch the next panel. */
INLINED void
float_sums(const int rows, const float *x, const float *weight, Py_ssize_t in, Ahead ahead, __m256 *sums)
{
    __m256 sum[ROWS][OUTPUTS];
    for (int row = 0; row < rows; row++) {
        for (int i = 0; i < OUTPUTS; i++) {
            sum[row][i] = _mm256_setzero_ps();
        }
    }
    for (Py_ssize_t at = 0; at < in; at += 8) {
        _mm_prefetch(ahead.at, _MM_HINT_T0);
        _mm_prefetch(ahead.at + 64, _MM_HINT_T0);
        ahead.at += ahead.step;
        __m256 given[ROWS];
        for (int row = 0; row < rows; row++) {
            given[row] = _mm256_loadu_ps(x + row * in + at);
        }
        for (int i = 0; i < OUTPUTS; i++) {
            __m256 weights = _mm256_loadu_ps(weight + i * in + at);
            for (int row = 0; row < rows; row++) {
                sum[row][i] = _mm256_fmadd_ps(given[row], weights, sum[row][i]);
            }
        }
    }
    for (int row = 0; row < rows; row++) {
        for (int i = 0; i < OUTPUTS; i++) {
            sums[row * OUTPUTS + i] = sum[row][i];
        }
    }
}

/* Sum over 16 inputs of every chunk, starting at x and weight, at even or odd indices; add to or set `sums`. */
INLINED void
quarter_sums(const int rows, const int is_odd, const float *x, const uint16_t *weight, Py_ssize_t in, Py_ssize_t chunks,
             Ahead ahead, int is_added, __m256 *sums)
{
    __m256 sum[ROWS][OUTPUTS];
    for (int row = 0; row < rows; row++) {
        for (int i = 0; i < OUTPUTS; i++) {
            sum[row][i] = _mm256_setzero_ps();
        }
    }
    for (Py_ssize_t chunk = 0; chunk < chunks; chunk++) {
        _mm_prefetch(ahead.at, _MM_HINT_T0);
        ahead.at += ahead.step;
        __m256 given[ROWS];
        for (int row = 0; row < rows; row++) {
            given[row] = _mm256_loadu_ps(x + row * in + 8 * is_odd);
        }
        for (int i = 0; i < OUTPUTS; i++) {
            __m256 weights = halves(weight + i * in, is_odd);
            for (int row = 0; row < rows; row++) {
                sum[row][i] = _mm256_fmadd_ps(given[row], weights, sum[row][i]);
            }
        }
        x += CHUNK;
        weight += CHUNK;
    }
    for (int row = 0; row < rows; row++) {
        for (int i = 0; i < OUTPUTS; i++) {
            __m256 *to = &sums[row * OUTPUTS + i];
            *to = is_added ? _mm256_add_ps(*to, sum[row][i]) : sum[row][i];
        }
    }
}

typedef void (*Quarter)(const float *, const uint16_t *, Py_ssize_t, Py_ssize_t, Ahead, int, __m256 *);

/* Multiply by one panel in bfloat16. x is float32; of every 16 inputs the 8 at even indices come first. */
INLINED void
brain_sums(const int rows, const Quarter *quarters, const float *x, const uint16_t *weight, Py_ssize_t in, Ahead ahead,
           __m256 *sums)
{
    __m256 halves[2][2][ROWS * OUTPUTS]; /* even and odd indices; quarters 0 and 2, 1 and 3 */
    for (int quarter = 0; quarter < 4; quarter++) {
        Py_ssize_t at = 16 * quarter, chunks = in / CHUNK;
        for (int is_odd = 0; is_odd < 2; is_odd++) {
            quarters[is_odd](x + at, weight + at, in, chunks, ahead, quarter > 1, halves[is_odd][quarter % 2]);
            ahead.at += ahead.step * chunks;
        }
    }
    for (int i = 0; i < rows * OUTPUTS; i++) {
        __m256 even = _mm256_add_ps(halves[0][0][i], halves[0][1][i]);
        __m256 odd = _mm256_add_ps(halves[1][0][i], halves[1][1][i]);
        /* Each half holds 8 sums at even or odd indices. Adding the halves gives the even or odd ones of the last 8. */
        __m128 evens = _mm_add_ps(_mm256_castps256_ps128(even), _mm256_extractf128_ps(even, 1));
        __m128 odds = _mm_add_ps(_mm256_castps256_ps128(odd), _mm256_extractf128_ps(odd, 1));
        sums[i] = _mm256_set_m128(_mm_unpackhi_ps(evens, odds), _mm_unpacklo_ps(evens, odds));
    }
}

/* The sums of one row over the last 32 inputs, which start at x and `weight`, for the outputs of a panel. */
INLINED __m128
rest_sums(const float *x, const uint16_t *weight, Py_ssize_t in)
{
    float sums[OUTPUTS];
    for (int i = 0; i < OUTPUTS; i++) {
        __m128 every[2] = {_mm_setzero_ps(), _mm_setzero_ps()}; /* sums 0, 2, 4, 6 and 1, 3, 5, 7 */
        for (int is_odd = 0; is_odd < 2; is_odd++) {
            for (int at = 0; at < 32; at += 16) {
                __m256 given = _mm256_loadu_ps(x + at + 8 * is_odd), weights = halves(weight + i * in + at, is_odd);
                every[is_odd] = _mm_fmadd_ps(_mm256_castps256_ps128(given), _mm256_castps256_ps128(weights),
                                             every[is_odd]);
                every[is_odd] = _mm_fmadd_ps(_mm256_extractf128_ps(given, 1), _mm256_extractf128_ps(weights, 1),
                                             every[is_odd]);
            }
            every[is_odd] = _mm_add_ps(every[is_odd], _mm_movehl_ps(every[is_odd], every[is_odd]));
            every[is_odd] = _mm_add_ss(every[is_odd], _mm_movehdup_ps(every[is_odd]));
        }
        sums[i] = _mm_cvtss_f32(_mm_add_ss(every[0], every[1]));
    }
    return _mm_loadu_ps(sums);
}

#define DEFINE_QUARTER(NAME, ROWS_HERE, IS_ODD)                                                                        \
    TARGET static __attribute__((noinline)) void NAME(const float *x, const uint16_t *weight, Py_ssize_t in,             \
                                                    Py_ssize_t chunks, Ahead ahead, int is_added, __m256 *sums)        \
    {                                                                                                                  \
        quarter_sums(ROWS_HERE, IS_ODD, x, weight, in, chunks, ahead, is_added, sums);                                 \
    }
#define DEFINE_SUMS(ROWS_HERE)                                                                                         \
    DEFINE_QUARTER(even_##ROWS_HERE, ROWS_HERE, 0)                                                                     \
    DEFINE_QUARTER(odd_##ROWS_HERE, ROWS_HERE, 1)                                                                      \
    TARGET static void floats_##ROWS_HERE(const void *x, const void *weight, Py_ssize_t in, Ahead ahead, __m256 *sums)  \
    {                                                                                                                  \
        float_sums(ROWS_HERE, x, weight, in, ahead, sums);                                                          \
    }                                                                                                                  \
    TARGET static void brains_##ROWS_HERE(const void *x, const void *weight, Py_ssize_t in, Ahead ahead, __m256 *sums)  \
    {                                                                                                                  \
        static const Quarter quarters[2] = {even_##ROWS_HERE, odd_##ROWS_HERE};                                        \
        brain_sums(ROWS_HERE, quarters, x, weight, in, ahead, sums);                                                   \
    }
DEFINE_SUMS(1)
DEFINE_SUMS(2)
DEFINE_SUMS(3)

typedef void (*Sums)(const void *, const void *, Py_ssize_t, Ahead, __m256 *);
static const Sums SUMS[2][ROWS] = {{floats_1, floats_2, floats_3}, {brains_1, brains_2, brains_3}};

/* Store four outputs of one row. */
TARGET static void
finish_floats(const Product *p, Py_ssize_t row, Py_ssize_t first, __m128 sum)
{
    if (p->bias != NULL) {
        sum = _mm_add_ps(sum, _mm_loadu_ps((const float *)p->bias + first));
    }
    _mm_storeu_ps((float *)p->y + row * p->out + first, sum);
}

/* The same, rounded to the nearest bfloat16, ties to even; NaN stays NaN. */
TARGET static void
finish_brains(const Product *p, Py_ssize_t row, Py_ssize_t first, __m128 sum)
{
    if (p->bias != NULL) {
        __m128i bias = _mm_loadl_epi64((const __m128i *)((const uint16_t *)p->bias + first));
        sum = _mm_add_ps(sum, _mm_castsi128_ps(_mm_slli_epi32(_mm_cvtepu16_epi32(bias), 16)));
    }
    __m128i narrow = narrowed(_mm256_castps128_ps256(sum));
    _mm_storel_epi64((__m128i *)((uint16_t *)p->y + row * p->out + first), narrow);
}

TARGET static void
multiply(const Product *p, Py_ssize_t first, Py_ssize_t last)
{
    if (p->is_packed) {
        (p->kind == BFLOAT16 ? avx2_multiply_packed_bfloat16 : avx2_multiply_packed)(p, first, last);
        return;
    }
    const Py_ssize_t size = p->kind == BFLOAT16 ? 2 : 4;
    const float *x = p->kind == BFLOAT16 ? p->scratch : (const float *)p->x;
    const Py_ssize_t blocks = (p->rows + ROWS - 1) / ROWS, step = 8 * OUTPUTS * size / blocks;
    const Py_ssize_t whole = p->in - p->in % CHUNK;
    __m256 sums[ROWS * OUTPUTS];
    for (; first < last; first += OUTPUTS) {
        const char *weight = p->weight + first * p->in * size;
        const char *next = weight + OUTPUTS * p->in * size;
        for (Py_ssize_t row = 0; row < p->rows; row += ROWS) {
            Py_ssize_t rows = p->rows - row < ROWS ? p->rows - row : ROWS;
            Ahead ahead = {next + row / ROWS * (p->in / 8) * step, step};
            SUMS[p->kind][rows - 1](x + row * p->in, weight, p->in, ahead, sums);
            for (Py_ssize_t i = 0; i < rows; i++) {
                __m128 sum = add_up(sums + OUTPUTS * i);
                if (p->kind == BFLOAT16 && whole < p->in) {
                    sum = _mm_add_ps(sum, rest_sums(x + (row + i) * p->in + whole,
                                                    (const uint16_t *)weight + whole, p->in));
                }
                (p->kind == BFLOAT16 ? finish_brains : finish_floats)(p, row + i, first, sum);
            }
        }
    }
}

static size_t
scratch_size(const Product *p)
{
    return p->kind == BFLOAT16 ? sizeof(float) * (size_t)(p->rows * p->in) : 0;
}

/* Convert x to float32, arranged for packed weights; for those in place, of every 16 inputs the 8 at even indices come
   first. */
TARGET static void
prepare(Product *p)
{
    const uint16_t *x = (const uint16_t *)p->x;
    float *wide = p->scratch;
    if (p->kind == BFLOAT16 && p->is_packed) {
        for (Py_ssize_t row = 0; row < p->rows; row++) {
            avx2_bfloat16_arrange(wide + row * p->in, x + row * p->in, 0, p->in, p->in);
        }
        return;
    }
    for (Py_ssize_t at = 0; p->kind == BFLOAT16 && at < p->rows * p->in; at += 16) {
        _mm256_storeu_ps(wide + at, halves(x + at, 0));
        _mm256_storeu_ps(wide + at + 8, halves(x + at, 1));
    }
}

const Kernel AVX2_KERNEL = {"avx2", is_supported, packs, place, scratch_size, prepare, multiply};

#endif
