/* train/trace.h - training records in memory or in a file, with the hashes of all they came from.
 *
 * The file (.trace): a head of 4096 bytes, records one after the other, then their offsets.  It is
 * written under a temporary name and appears when complete, so a trace is whole or not there.  A
 * trace made from something else is refused, naming what differs.  Files are hostile until checked.
 */
#ifndef EK_TRAIN_TRACE_H
#define EK_TRAIN_TRACE_H

#include "core/file.h"
#include "train/example.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum ek_trace_kind { EK_TRACE_MEMORY, EK_TRACE_DISK, EK_TRACE_NONE } ek_trace_kind;
extern const char *const ek_trace_names[]; /* "memory" "disk" "none", NULL */

typedef struct ek_trace_key { /* what the records were made from */
    char model[33], tokenizer[33], text[33], target[33];
    ek_dims dims;
    ek_dtype dtype;
    int64_t n; /* records: one per sequence */
} ek_trace_key;

typedef struct ek_trace ek_trace;

/* EK_EASKED if `bytes` are more than the file's disk has free, or (path NULL) than the machine's
 * memory. */
ek_code ek_trace_fits(const char *path, int64_t bytes, ek_err *err);

/* Make one: add the records in order, then finish.  path: NULL for memory. */
ek_code ek_trace_create(ek_trace **out, const ek_trace_key *key, const char *path, ek_err *err);
/* Takes the record over (memory) or writes it and closes it (disk); closed either way. */
ek_code ek_trace_add(ek_trace *t, ek_example *r, ek_err *err);
ek_code ek_trace_finish(ek_trace *t, ek_err *err); /* then it can be read */

/* Open a finished one.  EK_EASKED if it was made from something else, EK_EINPUT if damaged. */
ek_code ek_trace_open(ek_trace **out, const ek_trace_key *key, const char *path, ek_err *err);
void ek_trace_close(ek_trace *t); /* also an unfinished one, whose file is then removed */

int64_t ek_trace_count(const ek_trace *t);
int64_t ek_trace_bytes(const ek_trace *t);
/* Record i, viewing the trace's memory: valid until the trace closes. */
ek_code ek_trace_get(const ek_trace *t, int64_t i, ek_example *out, ek_err *err);

#ifdef __cplusplus
}
#endif
#endif
