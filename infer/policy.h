/* infer/policy.h - a method with its amounts.  Score, allocate, select: a plan comes out, and the
 * cache is not touched. */
#ifndef EK_INFER_POLICY_H
#define EK_INFER_POLICY_H

#include "infer/cache.h"

/* What YAML says: one of keep (an exact fraction), entries, bytes; none: everything (full). */
typedef struct ek_budget {
    int64_t num, den; /* keep = num / den of... */
    int of_seen;      /* 0: the prompt; 1: tokens seen so far */
    int64_t entries;  /* the bytes of so many plain entries per kv head, on average */
    int64_t bytes;    /* of the whole cache, positions and state included */
} ek_budget;

/* What a cache costs, in bytes summed over layers and kv heads.  A measure that may still plan
 * while decoding pays what it remembers out of an amount given as entries or bytes; a fraction
 * counts entries alone, and what is remembered stands beside it in the ledger. */
typedef struct ek_cost {
    int64_t plain; /* an entry of every head: key, value, position */
    int64_t extra; /* what is carried of them */
    int64_t state; /* what the heads remember, whatever they hold */
} ek_cost;

/* "0.25" -> 25/100, exactly; (0, 1], at most nine decimals.  EK_EASKED with a sentence otherwise.
 * The rest of out becomes 0: set of_seen afterwards. */
ek_code ek_budget_keep(ek_budget *out, const char *decimal, ek_err *err);
/* Entries per kv head for n tokens: max(1, num * n / den) in 64-bit integers; or what `entries`
 * plain entries, or `bytes`, buy: (amount - state) / (plain + extra), at least 1; never more than
 * n. */
int32_t ek_budget_entries(const ek_budget *b, int64_t n, const ek_cost *cost);

/* When plans are made during decoding: as the method's row says; never after the first cut, so that
 * every method holds the same entries at every step; or whenever over budget. */
typedef enum ek_decode { EK_DECODE_ROW, EK_DECODE_GROW, EK_DECODE_HOLD } ek_decode;

typedef struct ek_policy {
    ek_method method; /* a copy of the row, with the YAML's changes */
    ek_budget budget;
    ek_decode decode;
} ek_policy;

/* What a row under the policy costs once it has been cut: extra and state are 0 unless plans may
 * still come, since a lane goes when no plan needs it. */
ek_cost ek_policy_cost(const ek_policy *p, const ek_dims *dims, ek_dtype dtype);
/* EK_EASKED if a scorer's memory leaves no entry beyond the protected ones of an amount given as
 * entries or bytes; names the smallest that does. */
ek_code ek_policy_affords(const ek_policy *p, const ek_dims *dims, ek_dtype dtype, ek_err *err);

typedef enum ek_moment { EK_AT_PREFILL_END, EK_AT_STEP } ek_moment;

/* Is a plan due?  step counts generated (or teacher-forced) tokens from 1; 0 at the end of prefill.
 * first_plan: no plan was made yet for this row. */
int ek_policy_due(const ek_policy *p, ek_moment moment, int64_t step, int first_plan,
                  const ek_cache *c, int32_t entries);

/* What a plan at a decode step leaves of a budget of `entries`.  Where a budget is held by a method
 * that refreshes its scores every r steps only, a plan makes room for r - 1 more, and the next one
 * is due when that is used up: entries - r + 1, but at least one more than is protected.  So no
 * step leaves more than `entries`, and the mean is less.  Else it is `entries`. */
int32_t ek_policy_target(const ek_policy *p, int32_t entries);

/* May a plan come later, so that the row needs its lane and the lane this step's attention?
 * first_plan as above. */
int ek_policy_watches(const ek_policy *p, int first_plan);

/* What planning works in; all zero at first, grown as needed and reused. */
typedef struct ek_vector_scratch { /* of infer/vector.c */
    float *worth, *error, *square; /* (entries of a layer, or of the model) each */
    int32_t *slot;
    uint8_t *mask;
    void *block; /* owned */
    int64_t room;
} ek_vector_scratch;

typedef struct ek_policy_scratch {
    double *sum;    /* (entries of a head) */
    float *score;   /* (entries of a layer; of the model, where all heads share) */
    int32_t *first; /* (n_layers, n_heads) where each list starts in score and mask */
    uint8_t *mask;  /* as score */
    void *block;    /* the one block all of the above point into; owned */
    int64_t room;   /* entries that score and mask have room for, */
    int64_t sums;   /* and sum; */
    int lists;      /* and heads */
    int64_t grown;  /* how often it grew: tests see it stand still */
    ek_vector_scratch vector;
} ek_policy_scratch;
void ek_policy_scratch_close(ek_policy_scratch *s);

/* Plan `entries` per head (protected ones included) over the cache's lane (-1: none).  scratch is
 * grown as needed and reused.  Guarantees, checked by ek_policy_check: every head has exactly
 * min(n, quota), protected entries are in, and quotas sum to n_heads * entries per layer or, where
 * all heads share, to n_layers * n_heads * entries over the model.
 * With `rest: vector` 2 a entries of a head count half each, as infer/vector.h says.
 * Equal scores: the younger stays; across heads the lower layer, then the lower head.
 * entries 0 keeps everything.  EK_ENAN as ek_measure_score; EK_EBROKEN if out has no room, or if
 * heads that must share one set hold different positions. */
ek_code ek_policy_plan(const ek_policy *p, const ek_cache *c, int lane, int32_t entries,
                       ek_policy_scratch *scratch, ek_plan *out, ek_err *err);
/* The scores a plan would rank, (entries of the layer): for --save-plan and diagnostics. */
ek_code ek_policy_scores(const ek_policy *p, const ek_cache *c, int lane, int layer, float *out,
                         ek_err *err);
/* kept == asked, per layer and head, and the cache holds what the plan says; EK_EBROKEN naming
 * layer, head, asked and kept otherwise.  before: what the plan was made for, still whole (a fork);
 * NULL or `after` itself after an eviction in place, where positions can not be compared. */
ek_code ek_policy_check(const ek_policy *p, const ek_plan *plan, const ek_cache *before,
                        const ek_cache *after, int32_t entries, ek_err *err);

/* How many sinks and recent entries of n are protected under budget B. */
void ek_policy_protected(const ek_method *m, int32_t n, int32_t entries, int32_t *sinks,
                         int32_t *recent);

#endif
