/* core/safetensors.h - reading and writing .safetensors files.
 *
 * u64 header length, JSON header {"name": {dtype, shape, data_offsets}, "__metadata__": {..}}, then
 * the buffer; little-endian, row-major.  A file is hostile until read: header at most 100 MB and
 * inside the file, sizes = shape x type without overflow, ranges inside the buffer, neither
 * overlapping nor leaving holes, no duplicate names, NaN is the reader's caller's concern. */
#ifndef EK_CORE_SAFETENSORS_H
#define EK_CORE_SAFETENSORS_H

#include "core/err.h"
#include "core/file.h"

typedef enum ek_st_type {
    EK_ST_F64,
    EK_ST_F32,
    EK_ST_F16,
    EK_ST_BF16,
    EK_ST_I64,
    EK_ST_I32,
    EK_ST_U8,
    EK_ST_BOOL
} ek_st_type;

enum { EK_ST_MAX_DIMS = 8 };

typedef struct ek_st_tensor {
    const char *name;
    ek_st_type type;
    int n_dims;
    int64_t dim[EK_ST_MAX_DIMS];
    const void *data; /* reading: inside the mapping, maybe unaligned */
    size_t bytes;
} ek_st_tensor;

typedef struct ek_st ek_st; /* an open file */

ek_code ek_st_open(ek_st **out, const char *path, ek_err *err);
void ek_st_close(ek_st *st);
int ek_st_count(const ek_st *st);
const ek_st_tensor *ek_st_at(const ek_st *st, int i); /* by name order */
const ek_st_tensor *ek_st_find(const ek_st *st, const char *name);
const char *ek_st_meta(const ek_st *st, const char *key); /* NULL if absent */
/* Copy a tensor as fp32, after checking name, type (F32, F16, BF16), shape and finiteness.
 * shape: n_dims numbers; out: their product. */
ek_code ek_st_read_f32(const ek_st *st, const char *name, int n_dims, const int64_t *shape,
                       float *out, ek_err *err);

typedef struct ek_st_pair {
    const char *key, *value;
} ek_st_pair;

/* Write n tensors (sorted by name here) and metadata; temporary name, fsync, rename. */
ek_code ek_st_write(const char *path, const ek_st_tensor *tensors, int n, const ek_st_pair *meta,
                    int n_meta, ek_err *err);
/* The same into an open writer, which the caller commits. */
ek_code ek_st_put(ek_writer *w, const ek_st_tensor *tensors, int n, const ek_st_pair *meta,
                  int n_meta, ek_err *err);

int ek_st_type_size(ek_st_type type);
const char *ek_st_type_name(ek_st_type type);

#endif
