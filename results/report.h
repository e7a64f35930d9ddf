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

/* "last", an id, a unique prefix of one, or NULL (last).  kind: NULL or "evaluate" .. */
ek_code ek_report_run(ek_store *store, const char *word, const char *kind, char id[33],
                      ek_err *err);

/* Runs whose caches differ in when they evict answer different questions: EK_EASKED. */
ek_code ek_report_one_decode(ek_store *store, const char (*run)[33], int n, ek_err *err);

ek_code ek_report_list(ek_store *store, ek_text *out, ek_err *err);
ek_code ek_report_show(ek_store *store, const char *run, ek_text *out, ek_err *err);
ek_code ek_report_query(ek_store *store, const char *sql, const char *run, ek_text *out,
                        ek_err *err);

typedef struct ek_compare {
    const char *run, *run2;    /* ids; run2 NULL: one run */
    const char *base;          /* method that differences are taken from; NULL: full */
    const char *against;       /* learned methods against: NULL or "best", "all", or a method */
    const char *method;        /* NULL: the learned ones; else this method is set against others */
    const char *const *metric; /* (n_metrics) columns; none: the main ones of metric.h */
    int n_metrics;
    int force;
    uint64_t seed; /* of the bootstrap */
} ek_compare;
ek_code ek_report_compare(ek_store *store, const ek_compare *how, ek_text *out, ek_err *err);

enum { EK_EXPORT_METRICS = 16 };

/* csv: a row per line of v_score, of one or several runs of one kind of decode.  jsonl: an object
 * per sample.  md: method x budget by task; the metrics named, or each task's first.  These three
 * are appended to out. kvpress: a folder per method and budget under path; lm-eval: a results file
 * and samples files per method and budget under path; out gets the names. */
typedef struct ek_export {
    const char *form, *run, *path;
    const char (*also)[33]; /* (n_also) csv: further runs */
    int n_also;
    const char *metric[EK_EXPORT_METRICS];
    int n_metrics;
} ek_export;
ek_code ek_report_export(ek_store *store, const ek_export *how, ek_text *out, ek_err *err);
/* export_folders.c: the last two. */
ek_code ek_export_kvpress(ek_store *store, const ek_export *how, ek_text *out, ek_err *err);
ek_code ek_export_lm_eval(ek_store *store, const ek_export *how, ek_text *out, ek_err *err);

/* A value as CSV or JSON: numbers in the fewest digits that read back to the same bits. */
void ek_export_csv(ek_text *out, const ek_sql *v);
void ek_export_json(ek_text *out, const ek_sql *v);

#ifdef __cplusplus
}
#endif
#endif
