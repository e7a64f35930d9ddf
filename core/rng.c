/* core/rng.c - see rng.h.  The key is the seed; the counter is (counter, stream), low word first.
 */
#include "core/rng.h"

#include <math.h>

enum { ROUNDS = 10 };

void ek_rng_block(uint32_t out[4], uint64_t seed, uint64_t stream, uint64_t counter)
{
    uint32_t c0 = (uint32_t)counter, c1 = (uint32_t)(counter >> 32);
    uint32_t c2 = (uint32_t)stream, c3 = (uint32_t)(stream >> 32);
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);

    for (int r = 0; r < ROUNDS; r++) {
        const uint64_t p0 = (uint64_t)0xD2511F53u * c0;
        const uint64_t p1 = (uint64_t)0xCD9E8D57u * c2;
        const uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        const uint32_t n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;

        c0 = n0;
        c1 = (uint32_t)p1;
        c2 = n2;
        c3 = (uint32_t)p0;
        k0 += 0x9E3779B9u; /* the golden ratio */
        k1 += 0xBB67AE85u; /* sqrt(3) - 1 */
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

uint64_t ek_rng_u64(uint64_t seed, uint64_t stream, uint64_t counter)
{
    uint32_t b[4];

    ek_rng_block(b, seed, stream, counter);
    return (uint64_t)b[1] << 32 | b[0];
}

static double unit_of(uint64_t bits)
{
    return (double)(bits >> 11) * 0x1p-53;
}

double ek_rng_unit(uint64_t seed, uint64_t stream, uint64_t counter)
{
    return unit_of(ek_rng_u64(seed, stream, counter));
}

double ek_rng_normal(uint64_t seed, uint64_t stream, uint64_t counter)
{
    uint32_t b[4];

    ek_rng_block(b, seed, stream, counter);
    /* Box and Muller.  1 - u lies in (0, 1], so the logarithm is finite. */
    const double u = 1.0 - unit_of((uint64_t)b[1] << 32 | b[0]);
    const double v = unit_of((uint64_t)b[3] << 32 | b[2]);

    return sqrt(-2.0 * log(u)) * cos(6.283185307179586476925 * v);
}

uint64_t ek_rng_below(uint64_t n, uint64_t seed, uint64_t stream, uint64_t counter)
{
    return (uint64_t)(((unsigned __int128)ek_rng_u64(seed, stream, counter) * n) >> 64);
}

/* The finaliser of MurmurHash3: every input bit reaches every output bit. */
static uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 33)) * 0xff51afd7ed558ccdull;
    x = (x ^ (x >> 33)) * 0xc4ceb9fe1a85ec53ull;
    return x ^ (x >> 33);
}

uint64_t ek_rng_stream(const char *name, uint64_t a, uint64_t b)
{
    uint64_t h = 0xcbf29ce484222325ull; /* FNV-1a over the name */

    for (; *name; name++)
        h = (h ^ (unsigned char)*name) * 0x100000001b3ull;
    h = mix(h ^ mix(a + 0x9e3779b97f4a7c15ull));
    return mix(h ^ mix(b + 0x3c6ef372fe94f82bull));
}
