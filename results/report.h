/* results/report.h - texts made from the database: tables on a terminal, files for other programs.
 *
 * Everything is appended to an ek_text; the command prints or writes it. */
#ifndef EK_RESULTS_REPORT_H
#define EK_RESULTS_REPORT_H

#include "core/json.h"
#include "results/store.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A table whose columns align on a terminal, by display width of UTF-8. */
typedef struct ek_grid {
    char **cell; /* (rows, n_cols) owned; NULL: empty */
    int n_cols, n_cells, room;
    int failed; /* out of memory */
} ek_grid;
void ek_grid_add(ek_grid *g, const char *fmt, ...) EK_PRINTF(2, 3); /* next cell, row by row */
/* Text columns (not a number in any row but the first) stand left, numbers right. */
void ek_grid_print(const ek_grid *g, ek_text *out);
void ek_grid_clear(ek_grid *g);

/* "last", an id, a unique prefix of one, or NULL (last).  kind: NULL or "evaluate" .. */
ek_code ek_report_run(ek_store *store, const char *word, const char *kind, char id[33],
                      ek_err *err);

ek_code ek_report_list(ek_store *store, ek_text *out, ek_err *err);
ek_code ek_report_show(ek_store *store, const char *run, ek_text *out, ek_err *err);
ek_code ek_report_query(ek_store *store, const char *sql, const char *run, ek_text *out,
                        ek_err *err);

typedef struct ek_compare {
    const char *run, *run2; /* ids; run2 NULL: one run */
    const char *base;       /* method that differences are taken from; NULL: full */
    const char *against;    /* learned methods against: NULL or "best", "all", or a method */
    const char *method;     /* NULL: the learned ones; else this method is set against others */
    int force;
    uint64_t seed; /* of the bootstrap */
} ek_compare;
ek_code ek_report_compare(ek_store *store, const ek_compare *how, ek_text *out, ek_err *err);

/* form: csv, jsonl, md, kvpress, lm-eval.  The last two write folders under path; the others go
 * to out. */
typedef struct ek_export {
    const char *form, *run, *path;
    int prompts;
} ek_export;
ek_code ek_report_export(ek_store *store, const ek_export *how, ek_text *out, ek_err *err);

#ifdef __cplusplus
}
#endif
#endif
