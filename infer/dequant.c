#include "infer/dequant.h"

#include "core/bf16.h"

#include <math.h>
#include <string.h>

/* Everything the format has a number for, so that a type we do not read can be refused by name. */
static const char *const names[] = {
    [0] = "F32",     [1] = "F16",      [2] = "Q4_0",    [3] = "Q4_1",     [4] = "Q4_2",
    [5] = "Q4_3",    [6] = "Q5_0",     [7] = "Q5_1",    [8] = "Q8_0",     [9] = "Q8_1",
    [10] = "Q2_K",   [11] = "Q3_K",    [12] = "Q4_K",   [13] = "Q5_K",    [14] = "Q6_K",
    [15] = "Q8_K",   [16] = "IQ2_XXS", [17] = "IQ2_XS", [18] = "IQ3_XXS", [19] = "IQ1_S",
    [20] = "IQ4_NL", [21] = "IQ3_S",   [22] = "IQ2_S",  [23] = "IQ4_XS",  [24] = "I8",
    [25] = "I16",    [26] = "I32",     [27] = "I64",    [28] = "F64",     [29] = "IQ1_M",
    [30] = "BF16",   [34] = "TQ1_0",   [35] = "TQ2_0",  [39] = "MXFP4",
};

static const struct {
    uint8_t block, bytes;
} sizes[] = {
    [EK_Q_F32] = {1, 4},    [EK_Q_F16] = {1, 2},    [EK_Q_Q4_0] = {32, 18}, [EK_Q_Q4_1] = {32, 20},
    [EK_Q_Q5_0] = {32, 22}, [EK_Q_Q5_1] = {32, 24}, [EK_Q_Q8_0] = {32, 34}, [EK_Q_BF16] = {1, 2},
};

int ek_qtype_known(uint32_t type)
{
    return type < sizeof sizes / sizeof sizes[0] && sizes[type].block > 0;
}

int ek_qtype_block(ek_qtype type)
{
    return sizes[type].block;
}

int ek_qtype_block_bytes(ek_qtype type)
{
    return sizes[type].bytes;
}

const char *ek_qtype_name(uint32_t type)
{
    return type < sizeof names / sizeof names[0] ? names[type] : NULL;
}

float ek_from_f16(uint16_t h)
{
    const uint32_t sign = (uint32_t)(h & 0x8000u) << 16, exponent = (h >> 10) & 31u;
    const uint32_t fraction = h & 0x3ffu;
    uint32_t bits;
    float x;

    if (exponent == 0) { /* zero and subnormals: fraction times 2^-24 is exact in fp32 */
        x = (float)fraction * 0x1p-24f;
        return sign ? -x : x;
    }
    bits = sign | (exponent == 31 ? 0x7f800000u : (exponent + 112u) << 23) | fraction << 13;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static uint16_t get16(const uint8_t *p)
{
    return (uint16_t)(p[0] | p[1] << 8);
}

static uint32_t get32(const uint8_t *p)
{
    return (uint32_t)get16(p) | (uint32_t)get16(p + 2) << 16;
}

/* The 4- and 5-bit blocks: x = d * (q - zero) + m, q with a fifth bit from high.  The products are
 * rounded like those of the format's own reader: d * q first, then m added. */
static int nibbles(float *out, float d, float m, int zero, uint32_t high, const uint8_t *qs)
{
    for (int j = 0; j < 16; j++) {
        const int lo = (qs[j] & 15) | (int)(high >> j & 1u) << 4;
        const int hi = (qs[j] >> 4) | (int)(high >> (j + 16) & 1u) << 4;

        out[j] = d * (float)(lo - zero) + m;
        out[j + 16] = d * (float)(hi - zero) + m;
    }
    return isfinite(d) && isfinite(m);
}

static int block32(float *out, ek_qtype type, const uint8_t *p)
{
    const float d = ek_from_f16(get16(p));

    switch (type) {
    case EK_Q_Q4_0:
        return nibbles(out, d, 0.0f, 8, 0, p + 2);
    case EK_Q_Q4_1:
        return nibbles(out, d, ek_from_f16(get16(p + 2)), 0, 0, p + 4);
    case EK_Q_Q5_0:
        return nibbles(out, d, 0.0f, 16, get32(p + 2), p + 6);
    case EK_Q_Q5_1:
        return nibbles(out, d, ek_from_f16(get16(p + 2)), 0, get32(p + 4), p + 8);
    default: /* Q8_0 */
        for (int j = 0; j < 32; j++)
            out[j] = d * (float)(int8_t)p[2 + j];
        return isfinite(d);
    }
}

int ek_dequant(float *out, ek_qtype type, const uint8_t *data, size_t n)
{
    int finite = 1;

    switch (type) {
    case EK_Q_F32:
        memcpy(out, data, n * sizeof *out);
        break;
    case EK_Q_F16:
        for (size_t i = 0; i < n; i++)
            out[i] = ek_from_f16(get16(data + 2 * i));
        break;
    case EK_Q_BF16:
        for (size_t i = 0; i < n; i++)
            out[i] = ek_from_bf16(get16(data + 2 * i));
        break;
    default:
        for (size_t i = 0; i < n / 32; i++)
            finite &= block32(out + 32 * i, type, data + i * sizes[type].bytes);
        return finite;
    }
    for (size_t i = 0; i < n; i++)
        finite &= isfinite(out[i]) != 0;
    return finite;
}
