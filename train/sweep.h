/* train/sweep.h - the runs of a command line: files of settings times lists of values.
 *
 * `--sweep loss.kind=pair,bce --sweep seed=1,2` makes four runs of one file, each with `out` set to
 * a folder of its own below the file's: OUT/loss.kind-pair_seed-1 and so on.  A run of a sweep is
 * the run that `-s` with the same values and the same `out` names. */
#ifndef EK_TRAIN_SWEEP_H
#define EK_TRAIN_SWEEP_H

#include "train/session.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { EK_SWEEP_RUNS = 64, EK_SWEEP_KEYS = 8, EK_SWEEP_SETS = 64 };

typedef struct ek_sweep {
    const char *const *path; /* (n_paths) */
    int n_paths;
    const char *const *set; /* (n_sets) overrides of all, "key=value" */
    int n_sets;
    const char *const *list; /* (n_lists) "key=value,value"; commas within [], {} or quotes belong
                                to a value */
    int n_lists;
} ek_sweep;

/* All runs, in the order of files, then of values, the last list's first.  ek_sweep_close frees
 * them.  EK_EASKED: too many, a list without values, a value twice. */
ek_code ek_sweep_open(ek_train_set **out, int *n, const ek_sweep *sweep, ek_err *err);
void ek_sweep_close(ek_train_set *set, int n);

#ifdef __cplusplus
}
#endif
#endif
