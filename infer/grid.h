/* infer/grid.h - the cells of an evaluation: methods x budgets, the full cache first.
 *
 * A grid owns its methods, their scorers and the weights of the learned ones; cells borrow.  Equal
 * measures share one lane of the prompt's cache, so a prefill measures each only once. */
#ifndef EK_INFER_GRID_H
#define EK_INFER_GRID_H

#include "infer/model.h"
#include "infer/policy.h"
#include "infer/weights.h"

typedef struct ek_budget_set { /* one entry of `budgets`; exactly one of keep, entries, bytes */
    char *keep;                /* decimal fraction, as text so that it stays exact */
    int of;                    /* 0: prompt, 1: seen */
    int64_t entries, bytes;    /* 0: not asked */
} ek_budget_set;
extern const ek_field ek_budget_fields[];

typedef struct ek_cell {
    ek_policy policy;
    int full;          /* the baseline: everything stays */
    int method;        /* index into the grid's methods */
    const char *label; /* what tables call the method; borrowed, or the following */
    char own_label[64];
    char spec[512]; /* canonical text of all that was set: "snapkv:window=32@keep=0.25" */
    double keep;    /* asked, or NAN */
    int64_t id;     /* in the database, set by the evaluator */
} ek_cell;

typedef struct ek_grid {
    ek_cell *cell; /* (n_cells) cell 0 is the full cache */
    int n_cells;
    const ek_measure **measure; /* (n_measures) the distinct ones with a carry: lanes of a prompt */
    int n_measures;
    ek_method *method;    /* (n_methods) */
    ek_scorer *scorer;    /* (n_methods) of those that are not learned */
    ek_weights **weights; /* (n_methods) NULL unless learned */
    ek_maps *maps;        /* (n_methods) all zero unless `rest: vector` */
    int n_methods;
} ek_grid;

/* methods need not name `full`: it is always cell 0.  EK_EASKED: an unknown method, a learned one
 * without weights, a budget that says nothing or two things, two cells with the same spec. */
ek_code ek_grid_open(ek_grid *g, const ek_method_set *methods, int n_methods,
                     const ek_budget_set *budgets, int n_budgets, ek_decode decode, int64_t seed,
                     ek_model *model, const char *tokenizer_hash, ek_device *dev, ek_err *err);
void ek_grid_close(ek_grid *g);

/* Of all weights, with their settings, and maps in the grid; part of what identifies a run. */
void ek_grid_hash(const ek_grid *g, char out[33]);

/* A method ready to measure: `set` applied to its row, weights opened if it is learned, maps if it
 * has `rest: vector`, the scorer filled in.  *weights is NULL and *maps zero for others; the caller
 * closes both. */
ek_code ek_grid_method(ek_method *method, ek_scorer *scorer, ek_weights **weights, ek_maps *maps,
                       const ek_method_set *set, ek_decode decode, int64_t seed, ek_model *model,
                       const char *tokenizer_hash, ek_device *dev, ek_err *err);

#endif
