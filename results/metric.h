/* results/metric.h - what a number is called, its unit, which way is better; and the aggregates of
 * table metric, rebuilt from sample and sample_value at any time, to the bit.
 *
 * Per-sample numbers: sample.score becomes "score"; the columns kept_mean, keep_mean,
 * kv_bytes_mean, kv_bytes_peak, state_bytes, prefill_ns, ttft_ns, itl_ns, score_ns become metrics
 * under their own names; every sample_value under its name.  Shares (score, "Same top p", "FMM32",
 * "recall") are stored as 0 .. 1 and multiplied by 100 here. */
#ifndef EK_RESULTS_METRIC_H
#define EK_RESULTS_METRIC_H

#include "results/store.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum ek_mean_kind {
    EK_MEAN_PLAIN,
    EK_MEAN_LOG /* exp(mean of logs): per-document perplexities become that of the whole text */
} ek_mean_kind;

typedef struct ek_metric {
    const char *name; /* a final '*' stands for any rest: "FMM*" */
    const char *unit; /* "percent", "nat", "ratio", "bytes", "tok/s", "ns", "count" */
    int better;       /* +1: higher, -1: lower, 0: neither */
    ek_mean_kind mean;
    double scale; /* shown = stored * scale */
    double close; /* differences whose interval lies within +-close are marked `=`; 0: never */
    double floor; /* share of full cache is undefined where full cache is below it (shown units) */
    int main;     /* 1: a column of `results compare`; 2: in its method-against-method table too */
    int digits;   /* decimals shown */
    const char *help;
} ek_metric;

extern const ek_metric ek_metrics[]; /* ends with a NULL name; main ones in the order shown */
/* Never NULL: unknown names get a plain row (unit ratio, no direction). */
const ek_metric *ek_metric_find(const char *name);

enum { EK_BOOTSTRAP = 10000 };
#define EK_STAT_SEED 20260101u

/* Rewrite table metric for the cells of one run (NULL: all runs), in one transaction:
 *   X              value, clustered standard error, 95 % bootstrap interval over clusters
 *   delta:X        paired difference to the base cell over the samples both have, paired standard
 *                  error and bootstrap interval, p adjusted by Holm over the run's cells of the
 *                  same task, length and metric, and the mark
 *   pct_of_full:X  100 x ratio of means over the same samples, for metrics where higher is better;
 *                  value NULL where full cache is 0 or below the floor
 * Draw (b, j) is ek_rng_below(clusters, seed, b, j), the same for method and base. */
ek_code ek_store_rebuild_metrics(ek_store *store, const char *run, ek_err *err);

#ifdef __cplusplus
}
#endif
#endif
