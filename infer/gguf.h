/* infer/gguf.h - metadata and tensors of a GGUF file, hostile until checked.
 *
 * Open maps the file and checks everything that has a size or a place: after it, every key, every
 * string and every tensor's bytes lie inside the mapping.  Versions 2 and 3, little-endian, one
 * file per model.  Strings and tensor data are borrowed from the mapping and live until close.
 * An open file is read-only: any number of threads may use it.
 *
 * What a model loader reads (A is general.architecture):
 *     A.block_count, A.embedding_length, A.feed_forward_length, A.context_length,
 *     A.attention.head_count, A.attention.head_count_kv (absent: head_count; maybe one per layer),
 *     A.attention.key_length, A.attention.value_length (absent: embedding_length / head_count),
 *     A.attention.layer_norm_rms_epsilon, A.rope.freq_base (absent: 10000),
 *     A.rope.dimension_count (absent: the head size), A.vocab_size (absent: the tokens counted)
 * and the tensors token_embd, output_norm, output (absent: the head is token_embd), and per layer
 * blk.N.{attn_norm, attn_q, attn_k, attn_v, attn_output, ffn_norm, ffn_gate, ffn_up, ffn_down},
 * each with ".weight".  A matrix of n outputs and k inputs has dim {k, n}. */
#ifndef EK_INFER_GGUF_H
#define EK_INFER_GGUF_H

#include "core/err.h"
#include "infer/dequant.h"

#include <stddef.h>
#include <stdint.h>

typedef struct ek_gguf ek_gguf;

enum { EK_GGUF_MAX_DIMS = 4 };

typedef struct ek_gguf_tensor {
    const char *name;              /* NUL-terminated */
    int n_dims;                    /* as in the file, 1 .. 4 */
    int64_t dim[EK_GGUF_MAX_DIMS]; /* innermost first: dim[0] numbers per row; unused ones are 1 */
    int64_t rows;                  /* dim[1] * dim[2] * dim[3] */
    ek_qtype type;
    size_t row_bytes, bytes;
    const uint8_t *data; /* borrowed; rows contiguous; aligned to nothing in particular */
} ek_gguf_tensor;

typedef struct ek_gguf_str {
    const char *data; /* borrowed; not NUL-terminated */
    size_t size;
} ek_gguf_str;

/* EK_EINPUT: not a GGUF file, or a damaged one; EK_ENOTSUP: version 1, big-endian, split, or a
 * tensor type we do not read (named). */
ek_code ek_gguf_open(ek_gguf **out, const char *path, ek_err *err);
void ek_gguf_close(ek_gguf *g); /* NULL is fine */

const char *ek_gguf_path(const ek_gguf *g);
/* XXH3-128 of the whole file, 32 hex digits; computed by the first call, which must not race. */
const char *ek_gguf_hash(ek_gguf *g);
/* general.architecture, NUL-terminated; "" if the file has none. */
const char *ek_gguf_arch(const ek_gguf *g);

/* Tensors, in the order of the file. */
int ek_gguf_n_tensors(const ek_gguf *g);
const ek_gguf_tensor *ek_gguf_tensor_at(const ek_gguf *g, int i);
const ek_gguf_tensor *ek_gguf_find(const ek_gguf *g, const char *name); /* NULL if absent */
/* The same, but it must be there, with rows x width numbers: EK_EINPUT otherwise.  A vector of n
 * numbers is 1 x n. */
ek_code ek_gguf_need(const ek_gguf_tensor **out, const ek_gguf *g, const char *name, int64_t rows,
                     int64_t width, ek_err *err);

/* Rows [first, first + n) as fp32, dense, n * dim[0] numbers.  EK_EINPUT, naming the row: a scale
 * or a number that is NaN or infinite.  On failure out is partly written. */
ek_code ek_gguf_rows_f32(const ek_gguf *g, const ek_gguf_tensor *t, int64_t first, int64_t n,
                         float *out, ek_err *err);

/* Architecture "llama" stores the rows of q and k for rotary embedding of adjacent pairs; we rotate
 * (i, i + head_dim/2), as Hugging Face does, so they are put back in order at load. */
int ek_gguf_permuted(const ek_gguf *g);
/* Row of the file that holds row r (of all heads) of the Hugging Face layout. */
static inline int64_t ek_gguf_qk_row(int64_t r, int head_dim)
{
    const int64_t j = r % head_dim, half = head_dim / 2;

    return r - j + 2 * (j % half) + j / half;
}
/* ek_gguf_rows_f32 in the Hugging Face layout of q and k: row r of out is row ek_gguf_qk_row(r) of
 * the file if it is permuted, else row r. */
ek_code ek_gguf_qk_rows_f32(const ek_gguf *g, const ek_gguf_tensor *t, int head_dim, int64_t first,
                            int64_t n, float *out, ek_err *err);

/* Metadata.  In keys a leading "A." (capital) stands for the architecture: "A.block_count".
 * A key that is absent: EK_EINPUT if EK_GGUF_NEEDED; otherwise EK_OK, and *out stays as it was.
 * A wrong type or a number out of range is EK_EINPUT either way. */
typedef enum ek_gguf_want { EK_GGUF_NEEDED, EK_GGUF_OPTIONAL } ek_gguf_want;

int ek_gguf_has(const ek_gguf *g, const char *key);
int ek_gguf_is_array(const ek_gguf *g, const char *key);
/* Any integer type; lo <= *out <= hi. */
ek_code ek_gguf_int(const ek_gguf *g, const char *key, ek_gguf_want want, int64_t lo, int64_t hi,
                    int64_t *out, ek_err *err);
/* f32 or f64; finite and within [lo, hi]. */
ek_code ek_gguf_float(const ek_gguf *g, const char *key, ek_gguf_want want, double lo, double hi,
                      double *out, ek_err *err);
ek_code ek_gguf_bool(const ek_gguf *g, const char *key, ek_gguf_want want, int *out, ek_err *err);
ek_code ek_gguf_string(const ek_gguf *g, const char *key, ek_gguf_want want, ek_gguf_str *out,
                       ek_err *err);
/* Arrays; *out is malloc'd and the caller's; absent and optional: NULL and *n = 0. */
ek_code ek_gguf_strings(const ek_gguf *g, const char *key, ek_gguf_want want, ek_gguf_str **out,
                        size_t *n, ek_err *err);
ek_code ek_gguf_ints(const ek_gguf *g, const char *key, ek_gguf_want want, int64_t lo, int64_t hi,
                     int64_t **out, size_t *n, ek_err *err);

#endif
