/* core/rng.h - counter-based random numbers: the same number for the same (seed, stream, counter)
 * on every machine, in any order, on any number of threads.  Philox 4x32-10 (Salmon et al. 2011).
 */
#ifndef EK_CORE_RNG_H
#define EK_CORE_RNG_H

#include <stdint.h>

/* 128 random bits for a key (seed) and a counter (stream, counter). */
void ek_rng_block(uint32_t out[4], uint64_t seed, uint64_t stream, uint64_t counter);

uint64_t ek_rng_u64(uint64_t seed, uint64_t stream, uint64_t counter);
double ek_rng_unit(uint64_t seed, uint64_t stream, uint64_t counter);   /* [0, 1), 53 bits */
double ek_rng_normal(uint64_t seed, uint64_t stream, uint64_t counter); /* mean 0, variance 1 */
/* Uniform in [0, n), n >= 1, without modulo bias worth the name (64-bit multiply-shift). */
uint64_t ek_rng_below(uint64_t n, uint64_t seed, uint64_t stream, uint64_t counter);
/* A stream number from words, so that users of the generator do not collide ("random/layer 3"). */
uint64_t ek_rng_stream(const char *name, uint64_t a, uint64_t b);

#endif
