/* core/bf16.h - the storage type: the upper half of an IEEE float.
 * Rounding is to nearest even; a NaN stays a NaN. */
#ifndef EK_CORE_BF16_H
#define EK_CORE_BF16_H

#include "core/view.h"

#include <string.h>

static inline float ek_from_bf16(ek_bf16 b)
{
    const uint32_t bits = (uint32_t)b << 16;
    float x;

    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline ek_bf16 ek_to_bf16(float x)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof bits);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (ek_bf16)((bits >> 16) | 0x40u);
    return (ek_bf16)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

#endif
