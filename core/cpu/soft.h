/* core/cpu/soft.h - the softmax between the two products of attention, on a few rows of a tile. */
#ifndef EK_CORE_CPU_SOFT_H
#define EK_CORE_CPU_SOFT_H

#include "core/cpu/tile.h"

/* Rows of logits of one tile of 64 entries, met online: max and sum are what the row has seen so
 * far.  Updated: max, sum; written: keep = exp(old max - new max), the factor for what the row has
 * gathered, and p = exp(z - new max) as an operand for the values' panels, 0 where masked.  s
 * becomes the logits z = scale * s + bias, -inf where masked. */
typedef struct ek_soft {
    int rows;
    float scale;
    const float *bias;       /* (64) or NULL */
    const int *n;            /* (rows) entries of the tile that the row sees, 0 .. 64 */
    float *s;                /* (rows, 64) */
    void *p;                 /* (rows, 64) of type */
    ek_dtype type;           /* of p */
    int meet;                /* p is fp32 but meets bf16 values: round it */
    float *max, *sum, *keep; /* (rows) */
} ek_soft;

typedef struct ek_soft_kit {
    void (*rows)(const ek_soft *b);
    /* x[i] = exp(x[i] - lse[i % group]) */
    void (*prob)(float *x, const float *lse, int group, size_t n);
} ek_soft_kit;

const ek_soft_kit *ek_soft_kit_of(ek_isa isa); /* AVX2 at least */

#endif
