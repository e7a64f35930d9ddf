/* infer/metrics.h - fidelity to the full cache, and what a plan cost in attention.
 *
 * Fidelity: names as llama.cpp users know them.  base is the full-cache row of
 * the same run, Q the row under a policy; p are next-token probabilities.  Logits are fp32, every
 * sum is fp64. */
#ifndef EK_INFER_METRICS_H
#define EK_INFER_METRICS_H

#include "core/err.h"
#include "core/ops.h"
#include "infer/plan.h"

/* One row's predictions so far. */
typedef struct ek_fidelity {
    int n, room;
    double *nll, *nll_base; /* (n) -ln p(token) */
    double *kl;             /* (n) sum_v p_base (ln p_base - ln p_Q) */
    double *dp;             /* (n) p_Q(token) - p_base(token) */
    int64_t same;           /* predictions with equal argmax */
} ek_fidelity;

ek_code ek_fidelity_open(ek_fidelity *f, int room, ek_err *err);
void ek_fidelity_close(ek_fidelity *f);
/* kl of the two rows; logits of the token that came. */
void ek_fidelity_add(ek_fidelity *f, const ek_kl *kl, float base_logit, float logit);

/* A number and its standard error over predictions (NAN: none; also with 10 or fewer). */
typedef struct ek_number {
    const char *name; /* a constant */
    double value, se;
} ek_number;

enum { EK_FIDELITY_NUMBERS = 24 };
/* All numbers of the table; fewer than 2 predictions: none.  Returns how many. */
int ek_fidelity_numbers(const ek_fidelity *f, ek_number out[EK_FIDELITY_NUMBERS]);

/* What a plan loses of the attention that some later queries paid (full cache).
 * future (entries, group), indexed like the columns of the cache that was cut: sums over those
 * queries.  kept: the slots that stay, of one head of n entries. */
typedef struct ek_future_loss {
    double missed; /* 1 - kept mass / mass, group mean: Future Missed Mass */
    double recall; /* share of the target's best entries that are kept, as many as are kept */
} ek_future_loss;

/* order: room for n numbers.  Mean over group for missed, max over group for recall. */
ek_future_loss ek_future_head(const float *future, int group, int n, const int32_t *kept,
                              int n_kept, int32_t *order);

#endif
