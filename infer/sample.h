/* infer/sample.h - one token from a row of logits.
 *
 * temperature 0: the highest logit, lowest id on ties; nothing else counts.  Otherwise, in exactly
 * this order:
 *   1. logits are divided by the temperature;
 *   2. top-k: the k highest stay (0: all); equal logits: the lower id first;
 *   3. top-p: of their softmax, in falling order, the fewest that sum to top_p or more stay (1:
 *      all);
 *   4. min-p: those with at least min_p times the highest probability stay (0: all);
 *   5. one is drawn from what is left, in proportion, with the number that (seed, step) gives.
 * The highest logit always stays.  The same logits, settings and step give the same token. */
#ifndef EK_INFER_SAMPLE_H
#define EK_INFER_SAMPLE_H

#include "core/err.h"

#include <stdint.h>

typedef struct ek_sampling {
    double temperature; /* >= 0 */
    int64_t top_k;      /* >= 0 */
    double top_p;       /* (0, 1] */
    double min_p;       /* [0, 1] */
    uint64_t seed;
} ek_sampling;

extern const ek_sampling ek_sampling_greedy; /* temperature 0, nothing cut, seed 0 */

typedef struct ek_sampler {
    ek_sampling set;
    int n;       /* vocabulary */
    void *order; /* (n) candidates; owned */
} ek_sampler;

/* EK_EASKED: a setting out of range, by name. */
ek_code ek_sampler_open(ek_sampler *s, const ek_sampling *set, int n, ek_err *err);
void ek_sampler_close(ek_sampler *s);

/* step: tokens generated before this one.  EK_ENAN: a logit is NaN or +inf, or all are -inf. */
ek_code ek_sampler_pick(ek_sampler *s, const float *logits, int64_t step, int32_t *out,
                        ek_err *err);

/* Index of the highest of n numbers, lowest on ties; NaN never wins. */
int32_t ek_argmax(const float *x, int n);

#endif
