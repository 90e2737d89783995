/* The kernels for packed weights, of both instruction sets. The file that includes this includes
   avx512.h or avx2.h and defines BLOCK, the rows of x multiplied at a time, and FIRST and SECOND, the two inputs of each
   unit as float32. Where registers are few, WIDE_BLOCK is not 0: more than BLOCK rows are multiplied, WIDE_BLOCK at a
   time, by weights that were converted to float32 once for all of them.

   The sums of a register belong to different outputs, and each is taken over the inputs in order, the second input of
   a unit before the first: the order of oneDNN's bfloat16 products, with a separate sum for every `apart` inputs, and a
   good one for float32. It does not depend on the number of rows. */

#define HALF (2 * LANES) /* outputs whose sums stay in registers at a time */
#define CHUNK 128        /* units */
#define MOST_BLOCK (WIDE_BLOCK > BLOCK ? WIDE_BLOCK : BLOCK)
#define UNROLL _Pragma("GCC unroll 12") /* arrays of registers stay in registers */

/* Convert `units` units of HALF outputs of a panel to [units, 2, HALF] numbers, the second input of each unit first. */
TARGET static void
widen_units(float *wide, const uint32_t *panel, Py_ssize_t units)
{
    for (Py_ssize_t unit = 0; unit < units; unit++) {
        STORE(wide, SECOND(panel));
        STORE(wide + LANES, SECOND(panel + LANES));
        STORE(wide + HALF, FIRST(panel));
        STORE(wide + HALF + LANES, FIRST(panel + LANES));
        panel += PANEL;
        wide += 2 * HALF;
    }
}

/* Add `units` units of `rows` rows of x, `in` apart, times HALF outputs of a panel to the sums, [rows, HALF]; `weights`
   are the panel's, or `is_wide` converted ones. `step` bytes per unit are prefetched, from `ahead` on. */
INLINED void
add_units(const int rows, const int is_wide, float *sums, const void *weights, const float *x, Py_ssize_t in,
          Py_ssize_t units, const char *ahead, Py_ssize_t step)
{
    const uint32_t *panel = weights;
    const float *wide = weights;
    Floats low[MOST_BLOCK], high[MOST_BLOCK];
    UNROLL
    for (int row = 0; row < rows; row++) {
        low[row] = LOAD(sums + HALF * row);
        high[row] = LOAD(sums + HALF * row + LANES);
    }
    for (Py_ssize_t unit = 0; unit < units; unit++) {
        __builtin_prefetch(ahead, 0, 2);
        __builtin_prefetch(ahead + step / 2, 0, 2);
        ahead += step;
        UNROLL
        for (int input = 1; input >= 0; input--) {
            Floats weight_low = is_wide ? LOAD(wide) : input ? SECOND(panel) : FIRST(panel);
            Floats weight_high = is_wide ? LOAD(wide + LANES) : input ? SECOND(panel + LANES) : FIRST(panel + LANES);
            wide += HALF;
            UNROLL
            for (int row = 0; row < rows; row++) {
                Floats given = BROADCAST(x + row * in + input);
                low[row] = FMA(given, weight_low, low[row]);
                high[row] = FMA(given, weight_high, high[row]);
            }
        }
        panel += PANEL;
        x += 2;
    }
    UNROLL
    for (int row = 0; row < rows; row++) {
        STORE(sums + HALF * row, low[row]);
        STORE(sums + HALF * row + LANES, high[row]);
    }
}

typedef void (*AddUnits)(float *, const void *, const float *, Py_ssize_t, Py_ssize_t, const char *, Py_ssize_t);

#define DEFINE_ADD_UNITS(ROWS, IS_WIDE)                                                                                \
    TARGET static void add_units_##ROWS##_##IS_WIDE(float *sums, const void *weights, const float *x, Py_ssize_t in,   \
                                                    Py_ssize_t units, const char *ahead, Py_ssize_t step)              \
    {                                                                                                                  \
        add_units(ROWS, IS_WIDE, sums, weights, x, in, units, ahead, step);                                            \
    }
DEFINE_ADD_UNITS(1, 0)
DEFINE_ADD_UNITS(2, 0)
DEFINE_ADD_UNITS(3, 0)
DEFINE_ADD_UNITS(4, 0)
#if WIDE_BLOCK == 6
DEFINE_ADD_UNITS(1, 1)
DEFINE_ADD_UNITS(2, 1)
DEFINE_ADD_UNITS(3, 1)
DEFINE_ADD_UNITS(4, 1)
DEFINE_ADD_UNITS(5, 1)
DEFINE_ADD_UNITS(6, 1)
#else
DEFINE_ADD_UNITS(5, 0)
DEFINE_ADD_UNITS(6, 0)
DEFINE_ADD_UNITS(7, 0)
DEFINE_ADD_UNITS(8, 0)
DEFINE_ADD_UNITS(9, 0)
DEFINE_ADD_UNITS(10, 0)
DEFINE_ADD_UNITS(11, 0)
DEFINE_ADD_UNITS(12, 0)
#endif

static const AddUnits ADD_UNITS[2][MOST_BLOCK] = {
#if WIDE_BLOCK == 6
    {add_units_1_0, add_units_2_0, add_units_3_0, add_units_4_0},
    {add_units_1_1, add_units_2_1, add_units_3_1, add_units_4_1, add_units_5_1, add_units_6_1},
#else
    {add_units_1_0, add_units_2_0, add_units_3_0, add_units_4_0, add_units_5_0, add_units_6_0, add_units_7_0,
     add_units_8_0, add_units_9_0, add_units_10_0, add_units_11_0, add_units_12_0},
#endif
};

/* Add the sums to the folded ones, or store them if they are the first, and reset them. */
TARGET static void
fold(float *folded, float *sums, Py_ssize_t count, int is_first)
{
    for (Py_ssize_t i = 0; i < count; i++) {
        folded[i] = is_first ? sums[i] : folded[i] + sums[i];
        sums[i] = 0.0f;
    }
}

/* Multiply outputs first .. last - 1 by x in float32; `finish` writes the sums of a row and HALF outputs. Of the panel,
   CHUNK units at a time stay in the L1 cache for all rows. */
TARGET static void
multiply_packed(const Product *p, const float *x, Py_ssize_t first, Py_ssize_t last,
                void (*finish)(const Product *, Py_ssize_t row, Py_ssize_t output, const float *sums))
{
    float sums[MOST_ROWS * HALF] __attribute__((aligned(64))), folded[MOST_ROWS * HALF] __attribute__((aligned(64)));
    float wide[WIDE_BLOCK > 0 ? 2 * CHUNK * HALF : 1] __attribute__((aligned(64)));
    const Py_ssize_t units = p->in / 2, apart = p->kind == BFLOAT16 ? p->apart / 2 : units, all = p->rows * HALF;
    const int is_wide = WIDE_BLOCK > 0 && p->rows > BLOCK, most = is_wide ? WIDE_BLOCK : BLOCK;
    const Py_ssize_t blocks = (p->rows + most - 1) / most, size = (p->rows + blocks - 1) / blocks;
    const Py_ssize_t step = (Py_ssize_t)sizeof(uint32_t) * HALF / blocks; /* the next panel is prefetched evenly */
    for (; first < last; first += PANEL) {
        const uint32_t *panel = (const uint32_t *)p->weight + first * units;
        const char *ahead = (const char *)(panel + PANEL * units);
        for (int half = 0; half < PANEL; half += HALF) {
            int folds = 0;
            memset(sums, 0, sizeof(float) * (size_t)all);
            for (Py_ssize_t unit = 0, count; unit < units; unit += count) {
                Py_ssize_t end = unit - unit % apart + apart; /* of this separate sum */
                if (unit > 0 && unit % apart == 0) {
                    fold(folded, sums, all, folds++ == 0);
                }
                end = end < units ? end : units;
                count = end - unit < CHUNK ? end - unit : CHUNK;
                const void *weights = panel + PANEL * unit + half;
                if (is_wide) {
                    widen_units(wide, weights, count);
                    weights = wide;
                }
                for (Py_ssize_t row = 0; row < p->rows; row += size) {
                    Py_ssize_t rows = p->rows - row < size ? p->rows - row : size;
                    ADD_UNITS[is_wide][rows - 1](sums + HALF * row, weights, x + row * p->in + 2 * unit, p->in, count,
                                                 ahead, step);
                    ahead += step * count;
                }
            }
            if (folds > 0) {
                fold(folded, sums, all, 0);
            }
            for (Py_ssize_t row = 0; row < p->rows; row++) {
                finish(p, row, first + half, (folds > 0 ? folded : sums) + HALF * row);
            }
        }
    }
}
