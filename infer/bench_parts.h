/* infer/bench_parts.h - what the figures of the bench share; for bench.c and figures*.c
 * only. */
#ifndef EK_INFER_BENCH_PARTS_H
#define EK_INFER_BENCH_PARTS_H

#include "infer/bench.h"

/* What a figure's samples are divided by. */
typedef enum ek_bench_ceiling { EK_BENCH_NONE, EK_BENCH_STREAM, EK_BENCH_PRODUCT } ek_bench_ceiling;

typedef struct ek_bencher {
    ek_device *dev;    /* borrowed */
    ek_model *model;   /* owned */
    ek_engine *engine; /* owned */
    const ek_dims *dims;
    int quick, reps; /* samples of each figure */
    int32_t *tok;    /* (n_ctx) pseudo-random ids */
    float *logits;   /* (16, n_vocab) */
    /* the ceilings' own data */
    uint64_t *stream; /* stream_words numbers, as many bytes as the weights */
    size_t stream_words;
    ek_weight weight; /* 1536 x 576 */
    float *x, *y;     /* (512, 576), (512, 1536) */
    uint64_t sink;    /* so that no sum is optimised away */
} ek_bencher;

typedef struct ek_bench_plan {
    const char *name, *what, *unit;
    double goal;
    int at_least;
    ek_bench_ceiling ceiling;
    /* Fills sample, samples and detail; samples 0 with a detail: cannot be measured here. */
    ek_code (*run)(ek_bencher *b, ek_bench_figure *f, ek_err *err);
} ek_bench_plan;

extern const ek_bench_plan ek_bench_plans[]; /* NULL name at the end */

/* Lengths shrink to what the model's context allows beside `spare` tokens. */
int ek_bench_at_most(const ek_bencher *b, int n, int spare);

/* Figures of rows under policies. */
ek_code ek_bench_scoring_overhead(ek_bencher *b, ek_bench_figure *f, ek_err *err);
ek_code ek_bench_learned_scoring(ek_bencher *b, ek_bench_figure *f, ek_err *err);
ek_code ek_bench_scorer_training(ek_bencher *b, ek_bench_figure *f, ek_err *err);
ek_code ek_bench_lockstep(ek_bencher *b, ek_bench_figure *f, ek_err *err);
ek_code ek_bench_eviction_pays(ek_bencher *b, ek_bench_figure *f, ek_err *err);

/* A cache for the model with room for cap tokens, holding the first n of the ids. */
ek_code ek_bench_cache(ek_bencher *b, ek_cache *c, int n, int cap, const ek_measure *const *lanes,
                       int n_lanes, ek_err *err);

#endif
