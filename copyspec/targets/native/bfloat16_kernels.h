/* The parts of a decoder layer in bfloat16, bitwise equal to PyTorch's, of both instruction sets. The file that includes
   this includes avx512.h or avx2.h. The compiler makes vectors of the loops. */

#include <math.h>

#include "bfloat16.h"

/* Of PyTorch's sums, which are computed with AVX2: numbers in a register, registers that take turns, and levels of the
   cascade. */
#define WIDTH 8
#define RUNS 4
#define LEVELS 4

/* The sum of squares in the order of PyTorch's sum over adjacent numbers: RUNS registers in turn, each in a cascade of
   sums of 16, then the registers, then their lanes. */
INLINED float
sum_of_squares(const uint16_t *x, Py_ssize_t size)
{
    float sums[LEVELS][RUNS][WIDTH] = {{{0}}};
    const Py_ssize_t registers = size / WIDTH, turns = registers / RUNS;
    int power = 0;
    while (((Py_ssize_t)1 << power) < turns) {
        power++;
    }
    power = power / LEVELS > 4 ? power / LEVELS : 4;
    const Py_ssize_t step = (Py_ssize_t)1 << power;
    Py_ssize_t turn = 0;
    while (turn < turns) {
        const Py_ssize_t end = turn + step <= turns ? turn + step : turns;
        const int is_whole = turn + step <= turns;
        for (; turn < end; turn++) {
            for (int run = 0; run < RUNS; run++) {
                for (int lane = 0; lane < WIDTH; lane++) {
                    float number = widened_one(x[(turn * RUNS + run) * WIDTH + lane]);
                    sums[0][run][lane] += number * number;
                }
            }
        }
        for (int level = 1; is_whole && level < LEVELS; level++) {
            for (int run = 0; run < RUNS; run++) {
                for (int lane = 0; lane < WIDTH; lane++) {
                    sums[level][run][lane] += sums[level - 1][run][lane];
                    sums[level - 1][run][lane] = 0.0f;
                }
            }
            if ((turn & ((step - 1) << (level * power))) != 0) {
                break;
            }
        }
    }
    for (int level = 1; level < LEVELS; level++) {
        for (int run = 0; run < RUNS; run++) {
            for (int lane = 0; lane < WIDTH; lane++) {
                sums[0][run][lane] += sums[level][run][lane];
            }
        }
    }
    for (Py_ssize_t at = turns * RUNS; at < registers; at++) {
        for (int lane = 0; lane < WIDTH; lane++) {
            float number = widened_one(x[at * WIDTH + lane]);
            sums[0][0][lane] += number * number;
        }
    }
    for (int run = 1; run < RUNS; run++) {
        for (int lane = 0; lane < WIDTH; lane++) {
            sums[0][0][lane] += sums[0][run][lane];
        }
    }
    float sum = 0.0f;
    for (Py_ssize_t at = registers * WIDTH; at < size; at++) {
        sum += widened_one(x[at]) * widened_one(x[at]);
    }
    for (int lane = 0; lane < WIDTH; lane++) {
        sum += sums[0][0][lane];
    }
    return sum;
}

TARGET static void
normalise(uint16_t *y, const uint16_t *x, const uint16_t *weight, float epsilon, Py_ssize_t size)
{
    float factor = 1.0f / sqrtf(sum_of_squares(x, size) / (float)size + epsilon);
    for (Py_ssize_t i = 0; i < size; i++) {
        y[i] = narrowed_one(widened_one(weight[i]) * rounded_one(widened_one(x[i]) * factor));
    }
}

TARGET static void
turn(uint16_t *head, const uint16_t *cosines, const uint16_t *sines, Py_ssize_t turned)
{
    const Py_ssize_t half = turned / 2;
    for (Py_ssize_t i = 0; i < half; i++) {
        float first = widened_one(head[i]), second = widened_one(head[half + i]);
        float here = rounded_one(first * widened_one(cosines[i])), there = rounded_one(-second * widened_one(sines[i]));
        float after = rounded_one(second * widened_one(cosines[half + i]));
        float before = rounded_one(first * widened_one(sines[half + i]));
        head[i] = narrowed_one(here + there);
        head[half + i] = narrowed_one(after + before);
    }
}

TARGET static void
activate(uint16_t *gate, const uint16_t *up, const uint16_t *silu, Py_ssize_t size)
{
    for (Py_ssize_t i = 0; i < size; i++) {
        gate[i] = narrowed_one(widened_one(silu[gate[i]]) * widened_one(up[i]));
    }
}

TARGET static void
add(uint16_t *y, const uint16_t *x, const uint16_t *z, Py_ssize_t size)
{
    for (Py_ssize_t i = 0; i < size; i++) {
        y[i] = narrowed_one(widened_one(x[i]) + widened_one(z[i]));
    }
}
