/* results/stats.h - means with honest errors: clusters, pairs, bootstrap, Holm.
 *
 * A cluster is the unit that repeats (problem, document, haystack); statistics resample clusters.
 * Undefined numbers are NAN (one cluster has no standard error).  Nothing here fails but for
 * memory; nothing here reads a clock or a global, so the same input gives the same bits. */
#ifndef EK_RESULTS_STATS_H
#define EK_RESULTS_STATS_H

#include "core/err.h"

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ek_estimate {
    double value, se, lo, hi; /* lo, hi: NAN where not computed */
} ek_estimate;

/* Mean and s/sqrt(n) of n numbers. */
ek_estimate ek_stat_mean(const double *x, int n);
/* Wilson's 95 % interval of k right of n, as shares. */
ek_estimate ek_stat_wilson(double k, double n);

/* Sums over the samples of each cluster, of a method and, paired with it, of a base. */
typedef struct ek_clusters {
    int n;               /* clusters */
    const double *count; /* (n) samples in each, > 0 */
    const double *sum;   /* (n) of the method */
    const double *base;  /* (n) of the base over the same samples; NULL: none */
    int log;             /* 1: sums are of logs, means are exponentiated */
} ek_clusters;

/* Mean over samples and its clustered standard error, sqrt(P/(P-1) sum (s_i - k_i M)^2)/n; with
 * equal sizes that is the error of the mean of cluster means.  log: by the delta method. */
ek_estimate ek_stat_clustered(const ek_clusters *c);
/* Mean difference to the base and its paired standard error. */
ek_estimate ek_stat_difference(const ek_clusters *c);
/* 100 x ratio of the means and its error by the delta method; NAN where the base is 0. */
ek_estimate ek_stat_percent(const ek_clusters *c);
/* The part of the error due to sampling alone: sqrt(sum v_i/k_i)/P; x holds the clusters' samples
 * one after another, v_i is the variance inside cluster i. */
double ek_stat_sampling_part(const double *x, const int *count, int n_clusters);
/* Mean over n tasks, error sqrt(sum se^2)/n. */
ek_estimate ek_stat_macro(const ek_estimate *task, int n);

/* The statistics of one draw of c->n clusters with replacement: mean, difference, ratio (x 100). */
void ek_stat_draw(const ek_clusters *c, const int32_t *draw, double *mean, double *difference,
                  double *percent);

/* Draws shared by everything with the same number of clusters: entry (b, j) is
 * ek_rng_below(n, seed, b, j). */
typedef struct ek_draws {
    int n, n_draws;
    uint64_t seed;
    int32_t *draw; /* (n_draws, n), owned; NULL when that is too much to hold: drawn each time */
} ek_draws;
ek_code ek_draws_open(ek_draws *d, int n, int n_draws, uint64_t seed, ek_err *err);
void ek_draws_close(ek_draws *d);

typedef struct ek_bootstrap {
    double mean_lo, mean_hi;             /* 2.5 % and 97.5 % points */
    double difference_lo, difference_hi; /* NAN without a base, like the rest */
    double percent_lo, percent_hi;       /* NAN if the base's mean is 0 in any draw */
    double difference_se;                /* standard deviation over the draws */
    double p;                            /* two-sided, of no difference */
} ek_bootstrap;
ek_code ek_stat_bootstrap(ek_bootstrap *out, const ek_clusters *c, const ek_draws *d, ek_err *err);

/* Position f (n-1) of n numbers, linear between neighbours; reorders x. */
double ek_stat_quantile(double *x, int n, double f);
/* p-values in place: sort, times G, G-1, .., running maximum, at most 1.  NANs are left out. */
void ek_stat_holm(double *p, int n);
/* "=": the interval lies inside +-close; "≈": it contains 0 or p >= 0.05; "*" otherwise; "": NAN.
 */
const char *ek_stat_mark(double lo, double hi, double p, double close);

#ifdef __cplusplus
}
#endif
#endif
