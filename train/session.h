/* train/session.h - training runs from their settings to their weights. */
#ifndef EK_TRAIN_SESSION_H
#define EK_TRAIN_SESSION_H

#include "train/data.h"
#include "train/loss.h"
#include "train/optim.h"
#include "train/target.h"
#include "train/vector.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ek_train_scorer {
    int kind;  /* of ek_learned: 0 mlp, 1 linear, 2 recurrent */
    int age;   /* ek_age */
    int input; /* 0 raw, 1 rms */
    int64_t hidden;
    int64_t delay; /* of a recurrent scorer; -1: recent */
    int carried;   /* ek_carried */
    int norm;      /* recurrent: 0 none, 1 rms */
    bool skip;     /* recurrent: beside a linear score */
} ek_train_scorer;

enum { EK_TRAIN_FORESIGHT, EK_TRAIN_KVPOP, EK_TRAIN_VECTOR }; /* ek_train_set.method */
extern const char *const ek_train_methods[];                  /* their names, NULL-terminated */

typedef struct ek_train_set { /* one YAML file */
    char *model, *out;
    char *results; /* database; NULL: none */
    char *trace_file;
    int64_t seed;
    int method; /* EK_TRAIN_FORESIGHT and so on */
    int64_t sinks, recent, keep;
    ek_train_scorer scorer;
    ek_target_set target;
    ek_loss_set loss;
    ek_data_set data;
    ek_vector_set vector; /* method vector: in place of scorer, target, loss and steps */
    int trace;            /* ek_trace_kind */
    int64_t steps, batch;
    ek_optim_set optimiser;
    int64_t save_every, valid_every;
} ek_train_set;

void ek_train_set_defaults(ek_train_set *s);
extern const ek_field ek_train_fields[];

typedef struct ek_train_options {
    int plan;           /* say sizes and time, then stop */
    int resume;         /* go on from the checkpoint, if there is one */
    int restart;        /* forget what this very run has stored; not together with resume */
    int quiet;          /* no progress bar */
    int64_t stop_after; /* steps after which to stop as if asked to; 0: never (tests) */
    void (*say)(void *ctx, const char *line); /* NULL: nothing is said */
    void *ctx;
    const char *revision;
} ek_train_options;

/* EK_ESTOPPED: stopped on request, checkpoint written; the same settings with `resume` go on. */
ek_code ek_train_run(const ek_train_set *set, const ek_train_options *options, ek_device *dev,
                     ek_err *err);

/* Several runs: those that agree in all that records depend on take their steps together, from one
 * reading.  Each has its own folder, log and checkpoint, and the bits it has alone.  A run whose
 * loss is no number ends by itself; the others go on.  The first error is returned. */
ek_code ek_train_runs(const ek_train_set *set, int n, const ek_train_options *options,
                      ek_device *dev, ek_err *err);

/* For those who carry runs out: a line to the user; a file in a run's folder (owned by the caller;
 * NULL: no memory). */
void ek_train_say(const ek_train_options *options, const char *fmt, ...) EK_PRINTF(2, 3);
char *ek_train_path(const ek_train_set *set, const char *name);

#ifdef __cplusplus
}
#endif
#endif
