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

/* A row's ledger counts decode steps, each after its plan (so a method that cuts at the first
 * decode step is counted as cut); bytes_peak alone is taken before the plan, newborn included.
 * Bytes are those of living entries: keys, values, positions and the measure's state.  An entry
 * without value counts as half a one wherever entries are counted. */
typedef struct ek_row {
    const ek_policy *policy; /* borrowed; NULL: full cache */
    ek_cache cache;          /* at most one lane, and only while plans may come */
    int32_t entries;         /* budget per head, as integers; 0: full */
    int64_t n_prompt;        /* tokens for budgets `of: prompt` */
    int64_t step;            /* decode steps done */
    int planned;             /* plans made */
    int later;               /* 1: more plans may come */
    int flags;               /* as opened */
    int32_t end_pos;         /* there is room up to this position */
    /* the ledger */
    int32_t kept_asked, kept_min, kept_max; /* entries per head at the last plan (or at open) */
    double kept_sum, seen_sum; /* mean entries per head, and tokens seen, summed over steps */
    int64_t steps_counted, bytes_sum, bytes_peak, state_bytes;
    int64_t score_ns;     /* spent on measuring and planning, the plan at open included */
    const int32_t *feed;  /* what to feed next, */
    int n_feed, n_logits; /* set by the caller before each step; n_feed 0: the row rests */
    float *logits;        /* (n_logits, n_vocab) caller's */
    int counts;           /* 1: this feed is a decode step; 0: prompt (question) tokens */
} ek_row;

enum {
    EK_ROW_TAKE = 1, /* the row takes over the prompt's cache, which is closed on success */
    /* The question is fed later, with counts = 0, and nothing behind the context may be seen: a
     * method that would cut at the first decode step cuts here, from the last context token's
     * attention.  Without this flag a row may hold no room for such feeds. */
    EK_ROW_QUESTION_LATER = 2
};

/* Make a row from the prompt's cache under a policy: plan (if due at the end of prefill), fork only
 * what is kept, with room for `grow` more tokens, check kept == asked.  Policies whose first cut
 * comes at the first decode step take the whole prompt along and really shrink there.  n_prompt:
 * tokens for budgets.  EK_EBROKEN: the prompt's cache has no lane for the policy's measure. */
ek_code ek_row_open(ek_row *r, ek_engine *e, ek_cache *prompt, const ek_policy *policy,
                    int64_t n_prompt, int grow, int flags, ek_err *err);
void ek_row_close(ek_row *r);

/* One lockstep over the rows that have something to feed.  A row that still expects plans is fed
 * one token per decode step; others may be fed many (teacher forcing), each counted as a step. */
ek_code ek_engine_step(ek_engine *e, ek_row *const *rows, int n_rows, ek_err *err);

/* The last plan of the engine (of the row opened or stepped last), for --save-plan and tests. */
const ek_plan *ek_engine_plan(const ek_engine *e);
/* How often the engine's own buffers grew: stands still in a steady loop. */
int64_t ek_engine_grown(const ek_engine *e);

#endif
