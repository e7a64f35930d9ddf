/* datasets/draw.h - a run of random numbers for one sample: the n-th draw of (seed, stream). */
#ifndef EK_DATASETS_DRAW_H
#define EK_DATASETS_DRAW_H

#include "core/rng.h"

typedef struct ek_draw {
    uint64_t seed, stream, at;
} ek_draw;

/* what names the user of the numbers; a and b number its samples. */
static inline ek_draw ek_draw_of(uint64_t seed, const char *what, uint64_t a, uint64_t b)
{
    const ek_draw d = {seed, ek_rng_stream(what, a, b), 0};

    return d;
}

/* Uniform in 0 .. n-1. */
static inline uint64_t ek_draw_below(ek_draw *d, uint64_t n)
{
    return ek_rng_below(n, d->seed, d->stream, d->at++);
}

#endif
