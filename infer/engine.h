/* infer/engine.h - rows in lockstep: one prefill serves many cells, then all rows decode together.
 *
 * A row is a sequence under a policy.  Every step feeds each live row its next tokens in one pass
 * over the weights; then each row looks after its own cache: measure, plan if due, apply. */
#ifndef EK_INFER_ENGINE_H
#define EK_INFER_ENGINE_H

#include "infer/model.h"
#include "infer/policy.h"

typedef struct ek_engine ek_engine;

ek_code ek_engine_open(ek_engine **out, ek_model *model, ek_device *dev, ek_err *err);
void ek_engine_close(ek_engine *e);

enum { EK_CHUNK = 512 }; /* prompt tokens per forward pass; part of what fixes a prefill's bits */

/* Read tokens into the cache in chunks.  Every lane of the cache measures, as if the prompt were
 * n_prompt tokens long in all (the cache already holds the first of them if next_pos > 0).
 * logits: NULL or (n_vocab) of the last token.  tap: NULL or one more observer. */
ek_code ek_engine_read(ek_engine *e, ek_cache *c, const int32_t *tok, int n, int64_t n_prompt,
                       float *logits, const ek_tap *tap, ek_err *err);

/* The true future: feed tokens tok[0..n-1] after what c holds, add up their attention on the
 * entries c holds now, then forget them again.  For each set s < n_sets, queries first[s] ..
 * last[s] (0-based, inclusive, clipped to n) are summed into sum[s] (entries over all layers,
 * group), indexed like the cache's columns; zeroed here. */
typedef struct ek_future {
    int n_sets; /* 1 .. 4 */
    int first[4], last[4];
    float *sum[4];
} ek_future;
ek_code ek_engine_future(ek_engine *e, ek_cache *c, const int32_t *tok, int n, const ek_future *f,
                         ek_err *err);

typedef struct ek_row {
    const ek_policy *policy; /* borrowed; NULL: full cache */
    ek_cache cache;          /* at most one lane */
    int32_t entries;         /* budget per head, as integers; 0: full */
    int64_t step;            /* decode steps done */
    int planned;             /* plans made */
    /* the ledger, kept by the engine over steps after the first plan */
    int32_t kept_asked, kept_min, kept_max;
    double kept_sum, seen_sum; /* entries per head, and tokens seen, summed over steps */
    int64_t steps_counted, bytes_sum, bytes_peak, state_bytes;
    int64_t score_ns;
    const int32_t *feed;  /* what to feed next, */
    int n_feed, n_logits; /* set by the caller before each step; n_feed 0: the row rests */
    float *logits;        /* (n_logits, n_vocab) caller's */
    int counts;           /* 1: this feed is a decode step; 0: prompt (question) tokens */
} ek_row;

/* Make a row from the prompt's cache under a policy: plan (if due at the end of prefill), fork only
 * what is kept, with room for `grow` more tokens, check kept == asked.  Policies whose first cut
 * comes at the first decode step take the whole prompt along.  n_prompt: tokens for budgets.
 * take: 1 lets the row take over the prompt's cache itself, which is then empty (full cache). */
ek_code ek_row_open(ek_row *r, ek_engine *e, ek_cache *prompt, const ek_policy *policy,
                    int64_t n_prompt, int grow, int take, ek_err *err);
void ek_row_close(ek_row *r);

/* One lockstep over the rows that have something to feed. */
ek_code ek_engine_step(ek_engine *e, ek_row *const *rows, int n_rows, ek_err *err);

/* The last plan of the engine (of the row opened or stepped last), for --save-plan and tests. */
const ek_plan *ek_engine_plan(const ek_engine *e);

#endif
