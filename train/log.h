/* train/log.h - a training run in the results database; without a database nothing happens. */
#ifndef EK_TRAIN_LOG_H
#define EK_TRAIN_LOG_H

#include "results/store.h"
#include "train/session.h"
#include "train/trainer.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ek_log {
    ek_store *store;       /* NULL: no database */
    const char *id;        /* borrowed: the run's */
    const char *text_hash; /* borrowed, set before opening; NULL: not stored */
    int restart;           /* set before opening: forget what the database has of this run */
    int open;              /* 1: the run is marked running and waits for its end */
    int fresh;             /* 1: it was new, and no step is stored yet */
} ek_log;

/* Begin or resume the run.  *done: this very run was finished before and its files (paths) are all
 * there as it made them; nothing more to do.  If one is gone, the run begins anew.  EK_EASKED: one
 * is something else by now; or the run was begun, and resume is not asked. */
ek_code ek_log_open(ek_log *log, const ek_train_set *set, const ek_run_row *row, int resume,
                    const char *const *paths, int n_paths, int *done, ek_err *err);
/* Would it be refused for what the database knows of it?  Nothing is begun. */
ek_code ek_log_look(const ek_train_set *set, const char *id, const ek_train_options *options,
                    const char *const *paths, int n_paths, ek_err *err);
ek_code ek_log_begin(ek_log *log, const ek_train_row *row, ek_err *err);
ek_code ek_log_step(ek_log *log, int64_t step, const char *split, const ek_train_stats *x,
                    double seconds, ek_err *err);
/* A number for each layer and head: values (n_layers, n_heads). */
ek_code ek_log_heads(ek_log *log, const char *name, int n_layers, int n_heads, const double *values,
                     ek_err *err);
ek_code ek_log_flush(ek_log *log, ek_err *err); /* steps that wait are written now */
ek_code ek_log_file(ek_log *log, const char *path, ek_err *err); /* the run made it */
/* Mark how it ended: done, interrupted or failed; returns code, or what marking gave.  A new run
 * that failed before its first step is forgotten: it has nothing to go on with. */
ek_code ek_log_close(ek_log *log, ek_code code, ek_err *err);

#ifdef __cplusplus
}
#endif
#endif
