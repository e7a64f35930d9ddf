/* infer/load.c - weights from GGUF: checked, dequantised row block by row block, packed and fused.
 */
#include "infer/arch.h"
#include "infer/model_parts.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    LOAD_ROWS = 1024, /* rows of a matrix that are fp32 at a time while loading */
    LOAD_PIECE = 64   /* of which a thread takes so many at once */
};

typedef struct source {
    const ek_gguf_tensor *t;
    int head_dim; /* 0, or q and k: put the rows in Hugging Face order */
} source;

static ek_code read_rows(const ek_gguf *g, source s, int64_t first, int64_t n, float *out,
                         ek_err *err)
{
    return s.head_dim ? ek_gguf_qk_rows_f32(g, s.t, s.head_dim, first, n, out, err)
                      : ek_gguf_rows_f32(g, s.t, first, n, out, err);
}

/* Rows [first, first + n) on all threads; the error kept is that of the lowest failing piece. */
static ek_code read_block(const ek_gguf *g, source s, int64_t first, int n, float *out, ek_err *err)
{
    const int pieces = (n + LOAD_PIECE - 1) / LOAD_PIECE;
    int failed = pieces;
    ek_code code = EK_OK;

#pragma omp parallel for schedule(dynamic)
    for (int i = 0; i < pieces; i++) {
        const int at = i * LOAD_PIECE, m = n - at < LOAD_PIECE ? n - at : LOAD_PIECE;
        ek_err mine = {0};
        const ek_code c = read_rows(g, s, first + at, m, out + (size_t)at * s.t->dim[0], &mine);

        if (c != EK_OK) {
#pragma omp critical(ek_model_read)
            if (i < failed) {
                failed = i;
                code = c;
                *err = mine;
            }
        }
    }
    return code;
}

/* Rows of tensor blk.<l>.<part> (l < 0: <part>) become rows `at` and on of w. */
static ek_code load_part(ek_model *m, ek_weight *w, int at, int l, const char *part, int rows,
                         int head_dim, float *scratch, ek_err *err)
{
    char name[80];
    source s = {.head_dim = head_dim};

    if (l < 0)
        snprintf(name, sizeof name, "%s.weight", part);
    else
        snprintf(name, sizeof name, "blk.%d.%s.weight", l, part);
    EK_TRY(ek_gguf_need(&s.t, m->gguf, name, rows, w->k, err));
    for (int first = 0; first < rows; first += LOAD_ROWS) {
        const int n = rows - first < LOAD_ROWS ? rows - first : LOAD_ROWS;

        EK_TRY(read_block(m->gguf, s, first, n, scratch, err));
        m->dev->ops.pack(m->dev, w, scratch, at + first, n);
    }
    return EK_OK;
}

static ek_code load_norm(ek_model *m, float *out, int l, const char *part, ek_err *err)
{
    const ek_gguf_tensor *t;
    char name[80];

    if (l < 0)
        snprintf(name, sizeof name, "%s.weight", part);
    else
        snprintf(name, sizeof name, "blk.%d.%s.weight", l, part);
    EK_TRY(ek_gguf_need(&t, m->gguf, name, 1, m->dims.d_model, err));
    return ek_gguf_rows_f32(m->gguf, t, 0, 1, out, err);
}

static ek_code load_layer(ek_model *m, int l, float *scratch, ek_err *err)
{
    const ek_dims *d = &m->dims;
    ek_layer *y = &m->layers[l];
    const int q = ek_n_query(d), kv = ek_n_kv(d);
    float *norm = m->norms + (size_t)2 * l * d->d_model;

    y->attn_norm = norm;
    y->ffn_norm = norm + d->d_model;
    EK_TRY(load_norm(m, norm, l, "attn_norm", err));
    EK_TRY(load_norm(m, norm + d->d_model, l, "ffn_norm", err));
    EK_TRY(ek_weight_open(&y->qkv, m->dev, m->storage, q + 2 * kv, d->d_model, err));
    EK_TRY(load_part(m, &y->qkv, 0, l, "attn_q", q, d->head_dim, scratch, err));
    EK_TRY(load_part(m, &y->qkv, q, l, "attn_k", kv, d->head_dim, scratch, err));
    EK_TRY(load_part(m, &y->qkv, q + kv, l, "attn_v", kv, 0, scratch, err));
    EK_TRY(ek_weight_open(&y->o, m->dev, m->storage, d->d_model, q, err));
    EK_TRY(load_part(m, &y->o, 0, l, "attn_output", d->d_model, 0, scratch, err));
    EK_TRY(ek_weight_open(&y->gate_up, m->dev, m->storage, 2 * d->d_ff, d->d_model, err));
    EK_TRY(load_part(m, &y->gate_up, 0, l, "ffn_gate", d->d_ff, 0, scratch, err));
    EK_TRY(load_part(m, &y->gate_up, d->d_ff, l, "ffn_up", d->d_ff, 0, scratch, err));
    EK_TRY(ek_weight_open(&y->down, m->dev, m->storage, d->d_model, d->d_ff, err));
    return load_part(m, &y->down, 0, l, "ffn_down", d->d_model, 0, scratch, err);
}

/* The file must hold every row before anything of its announced size is allocated. */
static ek_code check_shapes(const ek_model *m, ek_err *err)
{
    const ek_dims *d = &m->dims;
    const struct {
        const char *part;
        int rows, width;
    } parts[] = {{"attn_q", ek_n_query(d), d->d_model},
                 {"attn_k", ek_n_kv(d), d->d_model},
                 {"attn_v", ek_n_kv(d), d->d_model},
                 {"attn_output", d->d_model, ek_n_query(d)},
                 {"ffn_gate", d->d_ff, d->d_model},
                 {"ffn_up", d->d_ff, d->d_model},
                 {"ffn_down", d->d_model, d->d_ff},
                 {"attn_norm", 1, d->d_model},
                 {"ffn_norm", 1, d->d_model}};
    const ek_gguf_tensor *t;
    char name[80];

    for (int l = 0; l < d->n_layers; l++)
        for (size_t i = 0; i < EK_COUNT(parts); i++) {
            snprintf(name, sizeof name, "blk.%d.%s.weight", l, parts[i].part);
            EK_TRY(ek_gguf_need(&t, m->gguf, name, parts[i].rows, parts[i].width, err));
        }
    EK_TRY(ek_gguf_need(&t, m->gguf, "token_embd.weight", d->n_vocab, d->d_model, err));
    return ek_gguf_need(&t, m->gguf, "output_norm.weight", 1, d->d_model, err);
}

static ek_code load(ek_model *m, ek_err *err)
{
    const ek_dims *d = &m->dims;
    const int q = ek_n_query(d);
    int width = d->d_model > d->d_ff ? d->d_model : d->d_ff;
    float *scratch = NULL;

    if (q > width)
        width = q;
    m->layers = calloc((size_t)d->n_layers, sizeof *m->layers);
    m->norms = ek_device_alloc(m->dev, sizeof(float) * (2 * (size_t)d->n_layers + 1) * d->d_model);
    m->inv_freq = malloc(sizeof(double) * (size_t)(d->head_dim / 2));
    scratch = malloc(sizeof(float) * (size_t)LOAD_ROWS * (size_t)width);
    if (!m->layers || !m->norms || !m->inv_freq || !scratch)
        EK_CHECK(EK_FAIL(err, EK_ENOMEM, "no memory for the weights of %d layers", d->n_layers));
    for (int i = 0; i < d->head_dim / 2; i++)
        m->inv_freq[i] = pow((double)d->rope_base, -2.0 * i / d->head_dim);
    for (int l = 0; l < d->n_layers; l++)
        EK_CHECK(load_layer(m, l, scratch, err));
    EK_CHECK(load_norm(m, m->norms + (size_t)2 * d->n_layers * d->d_model, -1, "output_norm", err));
    EK_CHECK(ek_weight_open(&m->embd, m->dev, m->storage, d->n_vocab, d->d_model, err));
    EK_CHECK(load_part(m, &m->embd, 0, -1, "token_embd", d->n_vocab, 0, scratch, err));
    if (ek_gguf_find(m->gguf, "output.weight")) {
        EK_CHECK(ek_weight_open(&m->own_head, m->dev, m->storage, d->n_vocab, d->d_model, err));
        EK_CHECK(load_part(m, &m->own_head, 0, -1, "output", d->n_vocab, 0, scratch, err));
    }
    free(scratch);
    return EK_OK;
fail:
    free(scratch);
    return err->code;
}

ek_code ek_model_open(ek_model **out, const char *path, ek_device *dev, ek_dtype storage,
                      ek_err *err)
{
    ek_model *m = calloc(1, sizeof *m);

    if (!m)
        return EK_FAIL(err, EK_ENOMEM, "%s: no memory", path);
    m->dev = dev;
    m->storage = storage;
    if (ek_gguf_open(&m->gguf, path, err) != EK_OK) {
        ek_model_close(m);
        return err->code; /* the reader names the file itself */
    }
    EK_CHECK(ek_arch_dims(m->gguf, &m->dims, err));
    EK_CHECK(check_shapes(m, err));
    EK_CHECK(load(m, err));
    memcpy(m->hash, ek_gguf_hash(m->gguf), sizeof m->hash);
    *out = m;
    return EK_OK;
fail:
    ek_model_close(m);
    return ek_err_in(err, "%s", path);
}

void ek_model_close(ek_model *m)
{
    if (!m)
        return;
    for (int l = 0; m->layers && l < m->dims.n_layers; l++) {
        ek_weight_close(&m->layers[l].qkv, m->dev);
        ek_weight_close(&m->layers[l].o, m->dev);
        ek_weight_close(&m->layers[l].gate_up, m->dev);
        ek_weight_close(&m->layers[l].down, m->dev);
    }
    ek_weight_close(&m->embd, m->dev);
    ek_weight_close(&m->own_head, m->dev);
    ek_device_free(m->dev, m->norms);
    ek_device_free(m->dev, m->buf.block);
    ek_device_free(m->dev, m->buf.head_x);
    ek_device_free(m->dev, m->buf.copy);
    free(m->buf.row);
    free(m->buf.mapped);
    free(m->layers);
    free(m->inv_freq);
    ek_gguf_close(m->gguf);
    free(m);
}
