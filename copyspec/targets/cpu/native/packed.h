/* The kernels for packed weights, of both instruction sets. The file that includes this includes
   avx512.h or avx2.h and defines BLOCK, the rows of x multiplied at a time, and FIRST and SECOND, the two inputs of each
   unit as float32.

   The sums of a register belong to different outputs, and each is taken over the inputs in order, the second input of
   a unit before the first. The order does not depend on the number of rows. */

#define HALF (2 * LANES) /* outputs whose sums stay in registers at a time */
#define CHUNK 128        /* units */
#define UNROLL _Pragma("GCC unroll 12") /* arrays of registers stay in registers */

/* Add `units` units of `rows` rows of x, `in` apart, times HALF outputs of a panel to the sums, [rows, HALF]. `step`
   bytes per unit are prefetched, from `ahead` on. */
INLINED void
add_units(const int rows, float *sums, const uint32_t *panel, const float *x, Py_ssize_t in, Py_ssize_t units,
          const char *ahead, Py_ssize_t step)
{
    Floats low[BLOCK], high[BLOCK];
    UNROLL
    for (int row = 0; row < rows; row++) {
        low[row] = LOAD(sums + HALF * row);
        high[row] = LOAD(sums + HALF * row + LANES);
    }
    for (Py_ssize_t unit = 0; unit < units; unit++) {
        __builtin_prefetch(ahead, 0, 2);
        __builtin_prefetch(ahead + step / 2, 0, 2);
        ahead += step;
        Floats first_low = FIRST(panel), second_low = SECOND(panel);
        Floats first_high = FIRST(panel + LANES), second_high = SECOND(panel + LANES);
        panel += PANEL;
        UNROLL
        for (int row = 0; row < rows; row++) {
            Floats second = BROADCAST(x + row * in + 1), first = BROADCAST(x + row * in);
            low[row] = FMA(first, first_low, FMA(second, second_low, low[row]));
            high[row] = FMA(first, first_high, FMA(second, second_high, high[row]));
        }
        x += 2;
    }
    UNROLL
    for (int row = 0; row < rows; row++) {
        STORE(sums + HALF * row, low[row]);
        STORE(sums + HALF * row + LANES, high[row]);
    }
}

typedef void (*AddUnits)(float *, const uint32_t *, const float *, Py_ssize_t, Py_ssize_t, const char *, Py_ssize_t);

#define DEFINE_ADD_UNITS(ROWS)                                                                                         \
    TARGET static void add_units_##ROWS(float *sums, const uint32_t *panel, const float *x, Py_ssize_t in,             \
                                        Py_ssize_t units, const char *ahead, Py_ssize_t step)                          \
    {                                                                                                                  \
        add_units(ROWS, sums, panel, x, in, units, ahead, step);                                                       \
    }
DEFINE_ADD_UNITS(1)
DEFINE_ADD_UNITS(2)
DEFINE_ADD_UNITS(3)
DEFINE_ADD_UNITS(4)
#if BLOCK > 4
DEFINE_ADD_UNITS(5)
DEFINE_ADD_UNITS(6)
DEFINE_ADD_UNITS(7)
DEFINE_ADD_UNITS(8)
DEFINE_ADD_UNITS(9)
DEFINE_ADD_UNITS(10)
DEFINE_ADD_UNITS(11)
DEFINE_ADD_UNITS(12)
#endif

static const AddUnits ADD_UNITS[BLOCK] = {
    add_units_1, add_units_2, add_units_3, add_units_4,
#if BLOCK > 4
    add_units_5, add_units_6, add_units_7, add_units_8, add_units_9, add_units_10, add_units_11, add_units_12,
#endif
};

/* Write the sums of a row and HALF outputs. */
INLINED void
finish(const Product *p, Py_ssize_t row, Py_ssize_t output, const float *sums)
{
    for (int at = 0; at < HALF; at += LANES) {
        const Floats sum = LOAD(sums + at);
        STORE(p->y + row * p->out + output + at, p->bias != NULL ? ADD(sum, LOAD(p->bias + output + at)) : sum);
    }
}

/* Multiply outputs first .. last - 1. Of the panel, CHUNK units at a time stay in the L1 cache for all rows. */
TARGET static void
multiply_packed(const Product *p, Py_ssize_t first, Py_ssize_t last)
{
    float sums[MAX_ROWS * HALF] __attribute__((aligned(64)));
    const Py_ssize_t units = p->in / 2, all = p->rows * HALF;
    const Py_ssize_t blocks = (p->rows + BLOCK - 1) / BLOCK, size = (p->rows + blocks - 1) / blocks;
    const Py_ssize_t step = (Py_ssize_t)sizeof(uint32_t) * HALF / blocks; /* the next panel is prefetched evenly */
    for (; first < last; first += PANEL) {
        const uint32_t *panel = (const uint32_t *)p->weight + first * units;
        const char *ahead = (const char *)(panel + PANEL * units);
        for (int half = 0; half < PANEL; half += HALF) {
            memset(sums, 0, sizeof(float) * (size_t)all);
            for (Py_ssize_t unit = 0, count; unit < units; unit += count) {
                count = units - unit < CHUNK ? units - unit : CHUNK;
                for (Py_ssize_t row = 0; row < p->rows; row += size) {
                    Py_ssize_t rows = p->rows - row < size ? p->rows - row : size;
                    ADD_UNITS[rows - 1](sums + HALF * row, panel + PANEL * unit + half, p->x + row * p->in + 2 * unit,
                                        p->in, count, ahead, step);
                    ahead += step * count;
                }
            }
            for (Py_ssize_t row = 0; row < p->rows; row++) {
                finish(p, row, first + half, sums + HALF * row);
            }
        }
    }
}
