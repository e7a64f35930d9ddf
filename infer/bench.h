/* infer/bench.h - the speed contract: each figure beside what the machine did in the same run.
 *
 * Ceilings are measured just before and just after each figure: streaming over a buffer as large as
 * the model's weights, and the matrix product of the same kernels at 512 x 1536 x 576.  A ceiling
 * is the best of its samples, a result the median.  If the two ceilings differ by more than 10 %
 * the figure is measured once more, and marked noisy if they still do.  Bytes and operations come
 * from the shapes that ran.  Ratios are taken of interleaved samples. */
#ifndef EK_INFER_BENCH_H
#define EK_INFER_BENCH_H

#include "infer/engine.h"

enum { EK_BENCH_FIGURES = 12, EK_BENCH_SAMPLES = 15 };

typedef struct ek_bench_figure {
    const char *name, *what;         /* "decode share", one line of definition */
    const char *unit;                /* "of streaming", "x", "tok/s" */
    double value, low, high;         /* median, least, most of the samples */
    int samples;                     /* 0: not measured, detail says why */
    double goal;                     /* 0: none */
    int at_least;                    /* 1: value >= goal, 0: value <= goal */
    double stream[2], product[2];    /* bytes/s and FLOP/s, before and after */
    int noisy;                       /* the ceilings moved by more than 10 % */
    char detail[160];                /* shapes, bytes and operations that ran */
    double sample[EK_BENCH_SAMPLES]; /* as measured, before the ceiling divides */
} ek_bench_figure;

typedef struct ek_bench_set {
    const char *model; /* path */
    ek_dtype storage;
    int quick;        /* shorter lengths, fewer samples: for a first look and for tests */
    const char *only; /* NULL, or the one figure to measure */
} ek_bench_set;

typedef struct ek_bench {
    ek_bench_figure figure[EK_BENCH_FIGURES];
    int n;
    double stream, product; /* the best seen in the run */
    double steal; /* share of processor time taken by other machines meanwhile; -1: unknown */
} ek_bench;

/* report: NULL, or told of each figure when it stands.  Stops between figures when asked to. */
ek_code ek_bench_run(ek_bench *out, const ek_bench_set *set, ek_device *dev,
                     void (*report)(void *ctx, const ek_bench_figure *f), void *ctx, ek_err *err);

/* 1 if the figure has a goal and misses it by more than `slack` (1: at all, 2: by a factor of 2).
 */
int ek_bench_misses(const ek_bench_figure *f, double slack);

#endif
