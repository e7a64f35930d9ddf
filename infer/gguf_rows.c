/* infer/gguf_rows.c - tensors as numbers; see gguf.h. */
#include "infer/gguf.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>

ek_code ek_gguf_need(const ek_gguf_tensor **out, const ek_gguf *g, const char *name, int64_t rows,
                     int64_t width, ek_err *err)
{
    const ek_gguf_tensor *t = ek_gguf_find(g, name);

    if (!t)
        return EK_FAIL(err, EK_EINPUT, "%s: tensor %s is missing", ek_gguf_path(g), name);
    if (t->rows != rows || t->dim[0] != width)
        return EK_FAIL(err, EK_EINPUT,
                       "%s: tensor %s: found %" PRId64 " rows of %" PRId64
                       " numbers, expected %" PRId64 " of %" PRId64,
                       ek_gguf_path(g), name, t->rows, t->dim[0], rows, width);
    *out = t;
    return EK_OK;
}

static ek_code read_row(const ek_gguf *g, const ek_gguf_tensor *t, int64_t row, float *out,
                        ek_err *err)
{
    assert(row >= 0 && row < t->rows);
    if (!ek_dequant(out, t->type, t->data + (size_t)row * t->row_bytes, (size_t)t->dim[0]))
        return EK_FAIL(err, EK_EINPUT, "%s: tensor %s: row %" PRId64 " holds a NaN or an infinity",
                       ek_gguf_path(g), t->name, row);
    return EK_OK;
}

ek_code ek_gguf_rows_f32(const ek_gguf *g, const ek_gguf_tensor *t, int64_t first, int64_t n,
                         float *out, ek_err *err)
{
    for (int64_t i = 0; i < n; i++)
        EK_TRY(read_row(g, t, first + i, out + i * t->dim[0], err));
    return EK_OK;
}

int ek_gguf_permuted(const ek_gguf *g)
{
    return strcmp(ek_gguf_arch(g), "llama") == 0;
}

ek_code ek_gguf_qk_rows_f32(const ek_gguf *g, const ek_gguf_tensor *t, int head_dim, int64_t first,
                            int64_t n, float *out, ek_err *err)
{
    const int permuted = ek_gguf_permuted(g);

    assert(head_dim > 0 && head_dim % 2 == 0 && t->rows % head_dim == 0);
    for (int64_t i = 0; i < n; i++) {
        const int64_t r = first + i;

        EK_TRY(
            read_row(g, t, permuted ? ek_gguf_qk_row(r, head_dim) : r, out + i * t->dim[0], err));
    }
    return EK_OK;
}
