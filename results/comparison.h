/* results/comparison.h - one comparison under way: what compare.c decides and compare_tables.c
 * prints.
 *
 * A group is what may be compared at all: cells of one task, variant, length, query setting and
 * seed.  Differences are paired over the samples both cells have; Holm's correction runs over all
 * rows of a group for a metric, as in table metric. */
#ifndef EK_RESULTS_COMPARISON_H
#define EK_RESULTS_COMPARISON_H

#include "results/frame.h"
#include "results/report.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { EK_COMPARE_METRICS = 16, EK_COMPARE_DRAWS = 8 };

typedef struct ek_difference {
    ek_estimate value; /* se by the formula, lo and hi by bootstrap; NAN: no base or no samples */
    double percent, p;
    int n, clusters; /* samples, clusters */
    int better;      /* clusters in which the cell is better than the base */
    int lost, gained;
} ek_difference;

typedef struct ek_comparison {
    const ek_compare *how;
    ek_text *out;
    ek_frame frame;
    ek_pairing pair;
    ek_draws draws[EK_COMPARE_DRAWS]; /* by number of clusters, oldest replaced */
    int next_draws;
    int several_seeds;
    /* The group at hand. */
    const ek_frame_cell **cell; /* (n) sorted: full, then budgets falling */
    int n;
    int metric[EK_COMPARE_METRICS], n_metrics; /* names in the frame; the first orders the rows */
    ek_difference *to_base;                    /* (n, n_metrics) */
} ek_comparison;

const ek_metric *ek_comparison_metric(const ek_comparison *c, int k);
int ek_cell_is_full(const ek_frame_cell *c);
/* Order of budgets: full first, then falling; 0: the same budget. */
int ek_cell_compare_budget(const ek_frame_cell *a, const ek_frame_cell *b);
void ek_cell_budget_text(const ek_frame_cell *c, char out[64]); /* "keep 0.25 of prompt" */

/* The k-th metric of cell against base (NULL: all NAN). */
ek_code ek_comparison_differ(ek_comparison *c, const ek_frame_cell *cell, const ek_frame_cell *base,
                             int k, ek_difference *out, ek_err *err);

/* compare_tables.c.  Cells first .. last - 1 of the group share a budget. */
ek_code ek_comparison_print_budget(ek_comparison *c, int first, int last, ek_err *err);
/* Learned methods against others, or the second run against the first. */
ek_code ek_comparison_print_duels(ek_comparison *c, ek_err *err);

#ifdef __cplusplus
}
#endif
#endif
