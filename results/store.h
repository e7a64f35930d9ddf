/* results/store.h - the database of runs: one SQLite file, written sample by sample.
 *
 * schema.sql has the tables.  The order of calls of an evaluation:
 *     ek_store_open, ek_store_run_begin, ek_store_cell for each cell, then per sample index one
 *     ek_store_samples with the rows of all its cells (one transaction: whole or not at all),
 *     ek_store_rebuild_metrics (metric.h), ek_store_run_end, ek_store_close.
 * Every insert is idempotent, so a resumed run may repeat what it is not sure of.
 *
 * A store is used by one thread; several processes may share the file (WAL, 10 s of patience).
 * The file is hostile until opened: foreign files, damaged files and files of a newer program are
 * refused with one sentence (EK_EINPUT).  store.c is the only user of sqlite3.h. */
#ifndef EK_RESULTS_STORE_H
#define EK_RESULTS_STORE_H

#include "core/err.h"

#include <math.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define EK_NONE INT64_MIN /* an integer column without a value (NULL); a double uses NAN */

typedef struct ek_store ek_store;

typedef enum ek_store_mode {
    EK_STORE_READ,  /* must exist; writes are refused by the connection */
    EK_STORE_WRITE, /* must exist */
    EK_STORE_CREATE /* made, with its folders, if absent or empty */
} ek_store_mode;

/* EK_EASKED unless the name is that of a plain file: "", ":memory:" and URIs ("file:x") mean
 * databases to SQLite that keep nothing. */
ek_code ek_store_name(const char *path, ek_err *err);

/* EK_EASKED: not there, or no name of a file; EK_EINPUT: not one of ours, damaged, or of a newer
 * version. */
ek_code ek_store_open(ek_store **out, const char *path, ek_store_mode mode, ek_err *err);
void ek_store_close(ek_store *store); /* writes buffered training steps; NULL is fine */

/* Is `path` the database, or a file that SQLite keeps beside it, under whatever name or link?  Then
 * nothing else may be written there. */
int ek_store_owns(const char *db, const char *path);

/* ---- runs ---- */

typedef struct ek_run_row {
    const char *id;       /* 32 hex digits: xxh3-128 of the resolved config */
    const char *kind;     /* "evaluate", "train", "bench" */
    const char *revision; /* program version and source revision */
    const char *device;   /* "cpu avx512 16 threads" */
    const char *kernel;   /* attention kernel and KV dtype */
    const char *model, *model_hash, *tokenizer_hash, *template_hash;
    const char *config; /* the resolved YAML, whole */
} ek_run_row;

typedef struct ek_leaf { /* of the config: "methods.1.window", "32" */
    const char *key, *value;
} ek_leaf;

typedef enum ek_run_found {
    EK_RUN_NEW,        /* inserted, status running */
    EK_RUN_RESUMED,    /* was there unfinished, resume asked: running again */
    EK_RUN_UNFINISHED, /* was there unfinished, resume not asked: nothing changed */
    EK_RUN_DONE        /* was there and finished: nothing changed */
} ek_run_found;

/* Resuming with another model, tokenizer, template or kernel is refused (EK_EASKED), and so is
 * finding a run done that had another model, tokenizer or template. */
ek_code ek_store_run_begin(ek_store *store, const ek_run_row *row, const ek_leaf *leaves,
                           int n_leaves, int resume, ek_run_found *found, ek_err *err);
/* status: "done", "failed" or "interrupted". */
ek_code ek_store_run_end(ek_store *store, const char *id, const char *status, ek_err *err);
ek_code ek_store_run_delete(ek_store *store, const char *id, ek_err *err); /* and all it owns */

/* ---- cells and samples ---- */

typedef struct ek_cell_row {
    const char *run, *suite, *task;
    const char *variant; /* NULL: "" */
    int64_t length;      /* target tokens; 0: the text's own */
    const char *method;  /* "full" is the baseline and has no budget */
    const char *policy;  /* canonical text of method and budget */
    int learned;         /* 1: its scorer was trained, or its maps were fitted */
    double keep;         /* one of keep, entries, bytes; NAN, EK_NONE, EK_NONE if not asked */
    const char *keep_of; /* "prompt" or "seen" with keep, else NULL */
    int64_t entries, bytes;
    int query_aware;
    int64_t seed;
    int64_t base; /* id of the full-cache cell with the same samples; EK_NONE: this is it */
} ek_cell_row;

static inline ek_cell_row ek_cell_none(void) /* nothing asked yet */
{
    ek_cell_row c = {0};

    c.keep = NAN;
    c.entries = c.bytes = c.base = EK_NONE;
    return c;
}

/* Insert (status pending) or find; an existing cell keeps its status. */
ek_code ek_store_cell(ek_store *store, const ek_cell_row *row, int64_t *id, ek_err *err);
/* A learned cell's weights: hash of the parameters' file, and the id of the training run that made
 * them ("" if unknown).  Again: replaced. */
ek_code ek_store_cell_weights(ek_store *store, int64_t cell, const char *hash, const char *trained,
                              ek_err *err);
/* status: "pending", "running", "done", "failed". */
ek_code ek_store_cell_status(ek_store *store, int64_t cell, const char *status, ek_err *err);

typedef struct ek_named { /* metric.h has the known names; shares are stored as 0 .. 1 */
    const char *name;
    double value; /* NAN: no value, not stored; infinite: EK_ENAN */
} ek_named;

/* One answer of one cell.  Start from ek_sample_none; NULL, EK_NONE and NAN mean no value. */
typedef struct ek_sample_row {
    int64_t cell;
    const char *doc_id;
    int64_t rep;         /* 0 .. k-1 under repeated sampling */
    const char *cluster; /* NULL: the doc_id */
    const char *prompt_hash;
    int64_t n_original, n_prompt, n_gen; /* tokens before and after truncation; answered */
    const char *stop_reason;             /* "eos", "stop", "length", "forced", "error" */
    const char *prediction, *parsed, *reference, *flag;
    double score; /* 0 .. 1 */
    int64_t kept_asked, kept_min;
    double kept_mean;
    int64_t kept_max;
    double keep_mean;
    int64_t kv_bytes_mean, kv_bytes_peak, state_bytes;
    int64_t prefill_ns, ttft_ns, itl_ns, score_ns;
    const char *error;
    const ek_named *values; /* (n_values) */
    int n_values;
} ek_sample_row;

static inline ek_sample_row ek_sample_none(void)
{
    ek_sample_row s = {0};

    s.n_gen = s.kept_asked = s.kept_min = s.kept_max = EK_NONE;
    s.kv_bytes_mean = s.kv_bytes_peak = s.state_bytes = EK_NONE;
    s.prefill_ns = s.ttft_ns = s.itl_ns = s.score_ns = EK_NONE;
    s.score = s.kept_mean = s.keep_mean = NAN;
    return s;
}

/* All rows with all their values in one transaction.  A row that is already there (cell, doc_id,
 * rep) stays as it is.  Text that is not UTF-8 is stored with U+FFFD in place of bad bytes. */
ek_code ek_store_samples(ek_store *store, const ek_sample_row *rows, int n, ek_err *err);
ek_code ek_store_has_sample(ek_store *store, int64_t cell, const char *doc_id, int64_t rep,
                            int *has, ek_err *err);

/* ---- training ---- */

typedef struct ek_train_row {
    const char *run, *scorer, *loss;
    int64_t params;
    const char *text_hash, *target_hash;
    int64_t steps_asked;
} ek_train_row;

enum { EK_STEP_VALUES = 4 };
typedef struct ek_step_row {
    const char *run;
    int64_t step;
    const char *split; /* NULL: "train"; or "valid" */
    double loss, lr, grad_norm, acc;
    int64_t tokens, ns;
    /* Further numbers, up to the first whose name (a string constant) is NULL; NAN: not stored. */
    ek_named value[EK_STEP_VALUES];
} ek_step_row;

ek_code ek_store_train_begin(ek_store *store, const ek_train_row *row, ek_err *err);
/* Buffered: written together every 64 rows or 2 seconds, at ek_store_flush, run_end and close.  A
 * repeated (step, split) replaces the old row, as after a resume from a checkpoint. */
ek_code ek_store_step(ek_store *store, const ek_step_row *row, ek_err *err);
ek_code ek_store_flush(ek_store *store, ek_err *err);
/* What a run found for each layer and head, such as "r2": values (n_layers, n_heads), in one
 * transaction; the same name again replaces them.  EK_ENAN: one is not finite. */
ek_code ek_store_train_heads(ek_store *store, const char *run, const char *name, int n_layers,
                             int n_heads, const double *values, ek_err *err);
/* A file the run made, such as weights; the same path again replaces it.  sha256: 64 hex digits. */
ek_code ek_store_artifact(ek_store *store, const char *run, const char *kind, const char *path,
                          int64_t bytes, const char *sha256, ek_err *err);

/* ---- SQL, for the reports: values in, rows out ---- */

typedef enum ek_sql_kind {
    EK_SQL_NULL,
    EK_SQL_INT,
    EK_SQL_REAL,
    EK_SQL_TEXT,
    EK_SQL_BLOB
} ek_sql_kind;

typedef struct ek_sql {
    ek_sql_kind kind;
    int64_t i;
    double r;         /* INT too */
    const char *text; /* TEXT: NUL-terminated, borrowed until the next row; BLOB: bytes */
    size_t size;
} ek_sql;

ek_sql ek_sql_int(int64_t i);         /* EK_NONE: NULL */
ek_sql ek_sql_real(double r);         /* NAN: NULL */
ek_sql ek_sql_text(const char *text); /* NULL: NULL; borrowed */

typedef ek_code (*ek_row_fn)(void *ctx, int n, const char *const *name, const ek_sql *value,
                             ek_err *err);

/* One statement of the program's own, cached by its address: sql must be a string constant.
 * row NULL: none expected. */
ek_code ek_store_sql(ek_store *store, const char *sql, const ek_sql *params, int n_params,
                     ek_row_fn row, void *ctx, ek_err *err);
/* A user's text: one statement that only reads; anything else is refused (EK_EASKED), and so are
 * ATTACH and PRAGMA that set something.  ?1 may be used for param (NULL kind: unused). */
ek_code ek_store_query(ek_store *store, const char *sql, const ek_sql *params, int n_params,
                       ek_row_fn row, void *ctx, ek_err *err);
int64_t ek_store_last_id(const ek_store *store); /* of the last insert */
/* EK_EIO if the file was moved or deleted while it was open: what is written then is lost. */
ek_code ek_store_in_place(ek_store *store, ek_err *err);
int ek_store_changes(const ek_store *store);          /* rows the last statement wrote */
ek_code ek_store_begin(ek_store *store, ek_err *err); /* BEGIN IMMEDIATE */
ek_code ek_store_commit(ek_store *store, ek_err *err);
void ek_store_rollback(ek_store *store); /* nothing open: does nothing */
const char *ek_store_path(const ek_store *store);

#ifdef __cplusplus
}
#endif
#endif
