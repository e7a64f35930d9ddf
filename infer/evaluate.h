/* infer/evaluate.h - samples x cells: one prefill for all methods, lockstep decode of all cells,
 * every sample in the database.
 *
 * For each sample the prompt runs once with full attention; each cell forks what its policy keeps;
 * all rows decode together; the sample's rows are committed in one transaction.  Full cache is
 * always cell 0, and a full cache worse than the task's floor stops the run. */
#ifndef EK_INFER_EVALUATE_H
#define EK_INFER_EVALUATE_H

#include "datasets/dataset.h"
#include "infer/engine.h"
#include "infer/grid.h"
#include "infer/template.h"
#include "results/metric.h"

typedef struct ek_eval_config {
    char *model, *results;
    int64_t seed, limit; /* limit: samples per task; 0: all */
    int storage;         /* ek_dtype of weights and caches */
    int decode;          /* ek_decode: when plans are made after the first */
    ek_method_set *methods;
    ek_budget_set *budgets;
    ek_task_config *tasks;
    int n_methods, n_budgets, n_tasks;
} ek_eval_config;
extern const ek_field ek_eval_fields[];
extern const ek_eval_config ek_eval_defaults;

typedef struct ek_eval_task {
    ek_task *task;
    ek_task_config config; /* a copy, completed by the task */
    int opened;            /* config is set */
    int64_t *cell;         /* (n_cells) ids in the database */
    int64_t n;             /* samples that will run */
    double full_sum;       /* of the full cache, to judge the baseline */
    int64_t full_n;
} ek_eval_task;

typedef struct ek_eval {
    const ek_eval_config *config; /* borrowed */
    ek_device *dev;               /* borrowed */
    ek_model *model;
    ek_tokenizer *tok;
    ek_template chat;
    ek_engine *engine;
    ek_grid grid;
    char run[33];       /* identity: resolved config, model, weights */
    float *logits;      /* (n_cells, n_vocab) */
    ek_row *row;        /* (n_cells) of the sample in hand */
    ek_row **order;     /* (n_cells) pointers to them, for the engine */
    ek_eval_task *task; /* (n_tasks of the config) */
} ek_eval;

/* Opens model, tokenizer, grid and tasks: what can be wrong is found before anything is stored.
 * config_text: the resolved run. */
ek_code ek_eval_open(ek_eval *ev, const ek_eval_config *config, const char *config_text,
                     ek_device *dev, ek_err *err);
void ek_eval_close(ek_eval *ev);

/* What a sample gave in one cell: filled by the two functions below, written by the caller. */
enum { EK_MAX_VALUES = 40 };
typedef struct ek_record {
    ek_sample_row row;
    ek_named value[EK_MAX_VALUES];
    char *prediction; /* owned */
    char parsed[128], prompt_hash[33];
} ek_record;
void ek_record_clear(ek_record *r);

/* One sample through all cells: record (n_cells, zeroed) is filled.  Texts borrow from the sample.
 * timed: each cell also runs a few steps alone, for its time per token. */
ek_code ek_eval_forced(ek_eval *ev, const ek_sample *s, int timed, ek_record *record, ek_err *err);
ek_code ek_eval_answer(ek_eval *ev, const ek_task *task, const ek_sample *s, int timed,
                       ek_record *record, ek_err *err);

typedef struct ek_eval_todo { /* of a run: what --plan prints */
    int64_t cells, samples, tokens_prefill, tokens_decode, steps;
    int64_t bytes_cache; /* most at once, caches of all rows */
    double seconds;      /* predicted from a few steps measured now */
} ek_eval_todo;
ek_code ek_eval_plan(ek_eval *ev, ek_eval_todo *todo, ek_err *err);

/* Run everything that is not yet in the store; EK_ESTOPPED after Ctrl-C with the sample in hand
 * stored.  Metrics are rebuilt at the end, also after a stop. */
ek_code ek_eval_run(ek_eval *ev, ek_store *store, ek_err *err);

#endif
