/* train/cohort.h - runs that share a reading, as session.c opens them and loop.c trains them. */
#ifndef EK_TRAIN_COHORT_H
#define EK_TRAIN_COHORT_H

#include "core/json.h"
#include "train/log.h"
#include "train/reading.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ek_variant { /* one run */
    const ek_train_set *set;
    ek_trainer *trainer;
    ek_log log;
    char *text;  /* the resolved config */
    char id[33]; /* its hash: names the run */
    char target_hash[33];
    char identity[33]; /* of settings, text and model: all that a checkpoint goes with */
    char *checkpoint, *weights_json, *weights_bin;
    ek_train_stats last, valid; /* of the last step and look */
    double seconds;             /* spent in steps */
    int64_t begun;              /* step at which this call took over */
    size_t there;  /* 1 + how much of its folder's name was, before this call made it */
    int open;      /* its log is open and it has steps to do */
    ek_err failed; /* code not EK_OK: it ended early, alone */
} ek_variant;

typedef struct ek_cohort {
    const ek_train_options *options;
    ek_reading reading;
    ek_variant *v; /* (n) */
    int n;
} ek_cohort;

/* What tells the runs of a group apart: the last part of their folder; "" of one alone.  And what
 * stands between it and what is said. */
const char *ek_variant_name(const ek_cohort *g, const ek_variant *v);
const char *ek_variant_gap(const ek_cohort *g);

/* What the progress line says of runs that step together: a loss for each, held out if any was
 * measured in this call; "-" for a run without one, as one that was finished before. */
void ek_cohort_losses(const ek_cohort *g, ek_text *out);

/* Take the steps of all open runs, in lockstep; each is exported and its log closed at its end.
 * EK_ESTOPPED: stopped on request, checkpoints written. */
ek_code ek_cohort_train(ek_cohort *g, ek_err *err);

#ifdef __cplusplus
}
#endif
#endif
