/* Single numbers in bfloat16, as their bits. */

#ifndef COPYSPEC_BFLOAT16_H
#define COPYSPEC_BFLOAT16_H

#include <stdint.h>
#include <string.h>

#define ALWAYS static inline __attribute__((always_inline))

ALWAYS float
widened_one(uint16_t x)
{
    uint32_t bits = (uint32_t)x << 16;
    float number;
    memcpy(&number, &bits, sizeof number);
    return number;
}

/* To the nearest, ties to even; NaN stays NaN. */
ALWAYS uint16_t
narrowed_one(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    return (uint16_t)((bits & 0x7fffffff) > 0x7f800000 ? 0x7fc0 : rounded);
}

ALWAYS float
rounded_one(float x)
{
    return widened_one(narrowed_one(x));
}

#endif
