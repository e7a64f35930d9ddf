/* infer/folder.h - a trained thing's folder: config.json, which says what it is and what it was
 * made for, and model.safetensors, which holds its numbers.
 *
 * Both are hostile until checked.  Every message begins with the file's path.  EK_EASKED: not
 * there, or made for something else; EK_EINPUT: damaged. */
#ifndef EK_INFER_FOLDER_H
#define EK_INFER_FOLDER_H

#include "core/json.h"
#include "core/safetensors.h"
#include "core/view.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ek_folder {
    char *config, *weights; /* paths; owned */
    ek_json *root;          /* of config.json: an object */
    char hash[33];          /* of model.safetensors, as config.json has it; "": it does not say */
} ek_folder;

/* Parse config.json and check `format`, `version` 1 and the form of `weights` (the hash), which
 * files made elsewhere may leave out. */
ek_code ek_folder_open(ek_folder *f, const char *dir, const char *format, ek_err *err);
void ek_folder_close(ek_folder *f); /* of a zeroed one too */

/* Refuse a member of config.json that is not in the NULL-terminated list: a key that nobody reads
 * is a damaged or misspelt one. */
ek_code ek_folder_keys(const ek_folder *f, const char *const *known, ek_err *err);

/* Members of config.json: an integer of lo .. hi, a string (borrowed; NULL after a failure), */
ek_code ek_folder_int(const ek_folder *f, const char *key, int64_t lo, int64_t hi, int64_t *out,
                      ek_err *err);
ek_code ek_folder_string(const ek_folder *f, const char *key, const char **out, ek_err *err);
/* a name out of a NULL-terminated list, as its index (a member that is missing: 0, or EK_EINPUT if
 * `must`), */
ek_code ek_folder_name(const ek_folder *f, const char *key, const char *const *names, int must,
                       int *out, ek_err *err);
/* a string that must equal `want` (`what` says what it names: "base model"), */
ek_code ek_folder_must_be(const ek_folder *f, const char *key, const char *want, const char *what,
                          ek_err *err);
/* and `dims`: n_layers, n_heads, group and head_dim as the model has them. */
ek_code ek_folder_dims(const ek_folder *f, const ek_dims *want, ek_err *err);

/* Open model.safetensors after checking its hash and its number of tensors; f->hash is its hash
 * then in any case. */
ek_code ek_folder_tensors(ek_folder *f, int n, ek_st **out, ek_err *err);

/* Writing: both files are whole on the disk before either gets its name, so that a full one leaves
 * what was there.  First the weights into an unopened writer, which tells their hash; then the
 * config with that hash, and both appear.  The caller closes the writer in any case.  The folder is
 * made. */
ek_code ek_folder_put(ek_writer *weights, const char *dir, const ek_st_tensor *tensors, int n,
                      const ek_st_pair *meta, int n_meta, char hash[33], ek_err *err);
ek_code ek_folder_commit(ek_writer *weights, const char *dir, const ek_text *config, ek_err *err);

#ifdef __cplusplus
}
#endif
#endif
