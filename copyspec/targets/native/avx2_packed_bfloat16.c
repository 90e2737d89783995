/* The kernel for AVX2 and packed weights in bfloat16, bitwise equal to PyTorch's product for one token: 64 sums over
   every 64th input, added in halves. Of a last 32 inputs, it adds 8 sums over every 8th at the end.

   The sums of a register belong to different outputs. Of each output the 64 sums are computed one by one in the order
   in which they can be added soonest: sum 0 and 32, 16 and 48, then those two pairs, and so on, even sums before odd
   ones. Packed weights are in that order of their units, so they are read from beginning to end, twice: even inputs are
   the first of a unit, odd ones the second. x is arranged in the same way. */

#include "linear.h"

#if HAS_KERNELS

#include "avx2.h"
#include "bfloat16.h"

#define SUMS 64 /* per output */
#define LEVELS 6 /* in which they are added */
#define CHUNK (SUMS / 2) /* units */
#define REST 32 /* inputs */
#define REST_SUMS 8
#define BLOCK 6 /* rows of x multiplied at a time */
#define MAX_WIDTH (PANEL / LANES) /* registers of outputs */
#define FEW 2 /* rows up to which the sums of a whole panel stay in registers */
#define UNROLL _Pragma("GCC unroll 8") /* arrays of registers stay in registers */

/* The units of a chunk in the order in which their sums are computed: their numbers with the bits in reverse. */
static const uint8_t REVERSED[CHUNK] = {0, 16, 8,  24, 4, 20, 12, 28, 2, 18, 10, 26, 6, 22, 14, 30,
                                        1, 17, 9,  25, 5, 21, 13, 29, 3, 19, 11, 27, 7, 23, 15, 31};

Py_ssize_t
avx2_bfloat16_place(Py_ssize_t unit, Py_ssize_t units)
{
    const Py_ssize_t chunks = units / CHUNK;
    return unit < CHUNK * chunks ? REVERSED[unit % CHUNK] * chunks + unit / CHUNK : unit;
}

TARGET void
avx2_bfloat16_arrange(float *y, const uint16_t *x, Py_ssize_t first, Py_ssize_t last, Py_ssize_t in)
{
    const Py_ssize_t whole = in - in % SUMS;
    for (Py_ssize_t at = first; at < last && at < whole; at += 2) {
        const Py_ssize_t place = avx2_bfloat16_place(at / 2, in / 2);
        y[place] = widened_one(x[at]);
        y[whole / 2 + place] = widened_one(x[at + 1]);
    }
    for (Py_ssize_t at = first > whole ? first : whole; at < last; at++) {
        y[at] = widened_one(x[at]);
    }
}

typedef struct {
    Floats sums[BLOCK * MAX_WIDTH];
} Sums;

/* Compute the even sums or the odd ones of `rows` rows of x, `in` apart, and `width` registers of outputs, and add them
   up to `kept[LEVELS - 1]` or, with that, to `kept[LEVELS]`. */
INLINED void
add_sums(const int rows, const int width, const int is_odd, Sums *kept, const uint32_t *panel, const float *x,
         Py_ssize_t in, const char *ahead, Py_ssize_t step)
{
    for (int pair = 0; pair < CHUNK; pair++) {
        Floats sums[BLOCK][MAX_WIDTH];
        UNROLL
        for (int row = 0; row < rows; row++) {
            UNROLL
            for (int i = 0; i < width; i++) {
                sums[row][i] = _mm256_setzero_ps();
            }
        }
        for (Py_ssize_t chunk = in / SUMS; chunk > 0; chunk--) {
            __builtin_prefetch(ahead, 0, 2);
            ahead += step;
            Floats weights[MAX_WIDTH];
            UNROLL
            for (int i = 0; i < width; i++) {
                weights[i] = halves(panel + LANES * i, is_odd);
            }
            UNROLL
            for (int row = 0; row < rows; row++) {
                Floats given = BROADCAST(x + row * in);
                UNROLL
                for (int i = 0; i < width; i++) {
                    sums[row][i] = FMA(given, weights[i], sums[row][i]);
                }
            }
            panel += PANEL;
            x++;
        }
        int level = 0;
        for (const int done = pair + CHUNK * is_odd; done >> level & 1; level++) {
            UNROLL
            for (int row = 0; row < rows; row++) {
                UNROLL
                for (int i = 0; i < width; i++) {
                    sums[row][i] = ADD(kept[level].sums[row * width + i], sums[row][i]);
                }
            }
        }
        UNROLL
        for (int row = 0; row < rows; row++) {
            UNROLL
            for (int i = 0; i < width; i++) {
                kept[level].sums[row * width + i] = sums[row][i];
            }
        }
    }
}

typedef void (*AddSums)(Sums *, const uint32_t *, const float *, Py_ssize_t, const char *, Py_ssize_t);

#define DEFINE_ADD_SUMS(ROWS, WIDTH)                                                                                   \
    TARGET static void even_sums_##ROWS(Sums *kept, const uint32_t *panel, const float *x, Py_ssize_t in,              \
                                        const char *ahead, Py_ssize_t step)                                            \
    {                                                                                                                  \
        add_sums(ROWS, WIDTH, 0, kept, panel, x, in, ahead, step);                                                     \
    }                                                                                                                  \
    TARGET static void odd_sums_##ROWS(Sums *kept, const uint32_t *panel, const float *x, Py_ssize_t in,               \
                                       const char *ahead, Py_ssize_t step)                                             \
    {                                                                                                                  \
        add_sums(ROWS, WIDTH, 1, kept, panel, x, in, ahead, step);                                                     \
    }
DEFINE_ADD_SUMS(1, MAX_WIDTH)
DEFINE_ADD_SUMS(2, MAX_WIDTH)
DEFINE_ADD_SUMS(3, MAX_WIDTH / 2)
DEFINE_ADD_SUMS(4, MAX_WIDTH / 2)
DEFINE_ADD_SUMS(5, MAX_WIDTH / 2)
DEFINE_ADD_SUMS(6, MAX_WIDTH / 2)

static const AddSums EVEN_SUMS[BLOCK] = {even_sums_1, even_sums_2, even_sums_3, even_sums_4, even_sums_5, even_sums_6};
static const AddSums ODD_SUMS[BLOCK] = {odd_sums_1, odd_sums_2, odd_sums_3, odd_sums_4, odd_sums_5, odd_sums_6};

/* The sums of one row and 8 outputs over the last REST inputs, which start at x and `panel`. */
INLINED Floats
rest_sums(const uint32_t *panel, const float *x)
{
    Floats sums[REST_SUMS];
    UNROLL
    for (int i = 0; i < REST_SUMS; i++) {
        sums[i] = _mm256_setzero_ps();
        for (int at = i; at < REST; at += REST_SUMS) {
            sums[i] = FMA(BROADCAST(x + at), halves(panel + PANEL * (at / 2), at % 2), sums[i]);
        }
    }
    Floats even = ADD(ADD(sums[0], sums[4]), ADD(sums[2], sums[6]));
    return ADD(even, ADD(ADD(sums[1], sums[5]), ADD(sums[3], sums[7])));
}

/* Store 8 outputs of one row, rounded to the nearest bfloat16, ties to even; NaN stays NaN. */
INLINED void
finish(const Product *p, Py_ssize_t row, Py_ssize_t output, Floats sum)
{
    if (p->bias != NULL) {
        __m128i bias = _mm_loadu_si128((const __m128i *)((const uint16_t *)p->bias + output));
        sum = ADD(sum, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bias), 16)));
    }
    _mm_storeu_si128((__m128i *)((uint16_t *)p->y + row * p->out + output), narrowed(sum));
}

TARGET void
avx2_multiply_packed_bfloat16(const Product *p, Py_ssize_t first, Py_ssize_t last)
{
    const float *x = p->scratch;
    const Py_ssize_t whole = p->in - p->in % SUMS;
    const Py_ssize_t blocks = (p->rows + BLOCK - 1) / BLOCK, most = (p->rows + blocks - 1) / blocks;
    const Py_ssize_t width = most <= FEW ? MAX_WIDTH : MAX_WIDTH / 2;
    /* The next panel is prefetched evenly. */
    const Py_ssize_t step = (Py_ssize_t)sizeof(uint32_t) * PANEL / 2 / (blocks * (MAX_WIDTH / width));
    Sums kept[LEVELS + 1];
    for (; first < last; first += PANEL) {
        const uint32_t *panel = (const uint32_t *)p->weight + first * p->in / 2;
        const char *ahead = (const char *)(panel + PANEL * p->in / 2);
        for (Py_ssize_t i = 0; i < PANEL; i += LANES * width) {
            for (Py_ssize_t row = 0; row < p->rows; row += most) {
                const Py_ssize_t rows = p->rows - row < most ? p->rows - row : most;
                /* The last rows may be few, and are multiplied as many. */
                const Py_ssize_t begin = rows <= FEW && most > FEW ? p->rows - most : row;
                const Py_ssize_t count = begin < row ? most : rows;
                const float *even = x + begin * p->in, *odd = even + whole / 2;
                EVEN_SUMS[count - 1](kept, panel + i, even, p->in, ahead, step);
                ODD_SUMS[count - 1](kept, panel + i, odd, p->in, ahead + step * (p->in / 2), step);
                ahead += step * p->in;
                for (Py_ssize_t at = 0; at < count * width; at++) {
                    const Py_ssize_t output = i + LANES * (at % width), own = begin + at / width;
                    Floats sum = kept[LEVELS].sums[at];
                    if (whole < p->in) {
                        sum = ADD(sum, rest_sums(panel + PANEL * whole / 2 + output, x + own * p->in + whole));
                    }
                    finish(p, own, first + output, sum);
                }
            }
        }
    }
}

#endif
