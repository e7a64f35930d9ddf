/* infer/select.c - see select.h. */
#include "infer/select.h"

#include <string.h>

enum { BITS = 11, BINS = 1 << BITS };

/* A number whose order as an integer is the order of the floats. */
static uint32_t key_of(float x)
{
    uint32_t bits;

    x += 0.0f; /* -0 becomes 0 */
    memcpy(&bits, &x, sizeof bits);
    return bits ^ (bits >> 31 != 0 ? 0xffffffffu : 0x80000000u);
}

typedef struct threshold {
    uint32_t key;
    int64_t ties; /* of those equal to key, how many belong to the best */
    int all;      /* there are no more than k */
} threshold;

/* The k-th largest key, found digit by digit from the top. */
static threshold find(const float *x, const int32_t *first, const int32_t *n, int n_ranges,
                      int64_t k, const uint8_t *mask)
{
    static const int shifts[] = {21, 10, 0};
    threshold t = {.ties = k};
    uint32_t fixed = 0; /* the digits that are settled */

    for (int pass = 0; pass < 3; pass++) {
        const int shift = shifts[pass];
        int64_t count[BINS] = {0};
        int bin = pass == 2 ? (1 << 10) - 1 : BINS - 1;
        const uint32_t digit = (uint32_t)bin;

        for (int r = 0; r < n_ranges; r++)
            for (int32_t e = first[r]; e < first[r] + n[r]; e++) {
                const uint32_t key = key_of(x[e]);

                count[key >> shift & digit] += mask[e] == 0 && (key & fixed) == t.key;
            }
        for (; bin >= 0 && count[bin] < t.ties; bin--)
            t.ties -= count[bin];
        if (bin < 0) {
            t.all = 1;
            return t;
        }
        t.key |= (uint32_t)bin << shift;
        fixed |= digit << shift;
    }
    return t;
}

void ek_select(const float *x, const int32_t *first, const int32_t *n, int n_ranges, int64_t k,
               uint8_t *mask)
{
    if (k <= 0)
        return;
    threshold t = find(x, first, n, n_ranges, k, mask);

    for (int r = 0; r < n_ranges; r++)
        for (int32_t e = first[r] + n[r] - 1; e >= first[r]; e--) {
            const uint32_t key = key_of(x[e]);

            if (mask[e] != 0)
                continue;
            if (t.all || key > t.key) {
                mask[e] = 1;
            } else if (key == t.key && t.ties > 0) {
                mask[e] = 1;
                t.ties--;
            }
        }
}
