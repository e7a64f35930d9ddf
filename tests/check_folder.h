/* tests/check_folder.h - a test's own folder, what two runs wrote into it, runs that are killed. */
#ifndef EK_TESTS_CHECK_FOLDER_H
#define EK_TESTS_CHECK_FOLDER_H

#include "train/session.h"

extern char ek_check_folder[64];
int ek_check_folder_open(const char *name); /* /tmp/evictkit-NAME-XXXXXX; 0, or -1 */
int ek_check_folder_close(void);            /* with all in it; 0, or what rm says */
char *ek_check_in_folder(const char *name); /* "FOLDER/name"; sixteen stay valid at a time */

void ek_check_ok(ek_code code, const ek_err *err); /* fails the test with the message if not */

/* model.safetensors in two folders: the same bytes (1), or others (0). */
void ek_check_same_weights(const char *a, const char *b, int same);

/* final_loss in config.json in two folders: the same (1), or others (0). */
void ek_check_same_loss(const char *a, const char *b, int same);

/* What two training runs left in their databases (train_step, train_value and train_head, all but
 * clock times): the same rows and some (1), or others (0).  Runs are named by their settings. */
void ek_check_same_log(const ek_train_set *a, const ek_train_set *b, int same);

/* This very program with these arguments, which trains into folder `out`, so many times: killed
 * (SIGKILL) as soon as it has written a checkpoint there.  Fails the test if none comes, or if the
 * run was not in its midst: it ended by itself, or had written its weights. */
void ek_check_kill(const char *const *argv, int times, const char *out);

/* The runs of one YAML file with `sets` and swept over `list`, as ek_sweep_open; and those trained
 * without a word, as ek_train_runs. */
ek_code ek_check_open_runs(const char *yaml, ek_train_set **set, int *n, const char *const *sets,
                           int n_sets, const char *const *list, int n_lists, ek_err *err);
ek_code ek_check_run(ek_device *dev, const ek_train_set *set, int n, int resume, int64_t stop_after,
                     ek_err *err);

#endif
