/* train/state.h - the state of a run that is not finished, as one .safetensors file: numbers, the
 * run that they belong to, and a hash of all of it.
 *
 * A damaged state must not become another run without a word, so the hash covers every name, word
 * and number of the file, and a file without it is refused. */
#ifndef EK_TRAIN_STATE_H
#define EK_TRAIN_STATE_H

#include "core/safetensors.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { EK_STATE_TENSORS = 8, EK_STATE_FORMAT = 0, EK_STATE_IDENTITY = 1 };

/* meta: format, identity, then what else there is to say; at most EK_STATE_TENSORS tensors. */
ek_code ek_state_write(const char *path, const ek_st_tensor *tensors, int n, const ek_st_pair *meta,
                       int n_meta, ek_err *err);

/* meta as it was written, format and identity with the values expected, of the others only keys.
 * EK_EASKED if it is another run's, EK_EINPUT if it is damaged or of another format. */
ek_code ek_state_open(ek_st **out, const char *path, const ek_st_pair *meta, int n_meta,
                      ek_err *err);

/* A whole number 0 .. most among the words of an open state, as this program writes it. */
ek_code ek_state_int(const ek_st *st, const char *path, const char *key, int64_t most, int64_t *out,
                     ek_err *err);

#ifdef __cplusplus
}
#endif
#endif
