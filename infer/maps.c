/* infer/maps.c - see the header. */
#include "infer/maps.h"

#include "core/file.h"
#include "infer/folder.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char format[] = "evictkit maps";
static const char *const modes[] = {"head", "layer", NULL};
static const char *const known[] = {"format",   "version", "mode",     "dims",       "model",
                                    "data",     "tokens",  "held_out", "parameters", "tokenizer",
                                    "settings", "weights", NULL};

enum { TENSORS = 3 };

/* Name, shape and place of the three tensors. */
static void describe(const ek_maps *m, ek_st_tensor t[TENSORS])
{
    const int64_t layers = m->dims.n_layers, heads = m->dims.n_heads, width = m->width;

    t[0] = (ek_st_tensor){.name = "map.weight", .data = m->w};
    t[1] = (ek_st_tensor){.name = "map.bias", .data = m->b};
    t[2] = (ek_st_tensor){.name = "map.r2", .data = m->r2, .n_dims = 2, .dim = {layers, heads}};
    for (int i = 0; i < 2; i++) {
        t[i].dim[t[i].n_dims++] = layers;
        if (!m->joint)
            t[i].dim[t[i].n_dims++] = heads;
        for (int c = 0; c < 2 - i; c++)
            t[i].dim[t[i].n_dims++] = width;
    }
    for (int i = 0; i < TENSORS; i++) {
        t[i].type = EK_ST_F32;
        t[i].bytes = sizeof(float);
        for (int c = 0; c < t[i].n_dims; c++)
            t[i].bytes *= (size_t)t[i].dim[c];
    }
}

ek_code ek_maps_make(ek_maps *out, const ek_dims *dims, int joint, ek_err *err)
{
    ek_maps m = {.dims = *dims, .joint = joint};

    m.width = joint ? dims->n_heads * dims->head_dim : dims->head_dim;
    m.n = joint ? dims->n_layers : dims->n_layers * dims->n_heads;
    const size_t n_b = (size_t)m.n * (size_t)m.width, n_w = n_b * (size_t)m.width;
    const size_t n_r2 = (size_t)dims->n_layers * (size_t)dims->n_heads;
    float *f = calloc(n_w + n_b + n_r2, sizeof *f);

    if (f == NULL)
        return EK_FAIL(err, EK_ENOMEM, "%d maps of %d x %d", m.n, m.width, m.width);
    m.block = m.w = f;
    m.b = f + n_w;
    m.r2 = m.b + n_b;
    *out = m;
    return EK_OK;
}

void ek_maps_close(ek_maps *m)
{
    free(m->block);
    *m = (ek_maps){0};
}

static size_t number_of(const ek_maps *m, int layer, int head)
{
    return m->joint ? (size_t)layer : (size_t)layer * (size_t)m->dims.n_heads + (size_t)head;
}

const float *ek_maps_weight(const ek_maps *m, int layer, int head)
{
    return m->w + number_of(m, layer, head) * (size_t)m->width * (size_t)m->width;
}

const float *ek_maps_bias(const ek_maps *m, int layer, int head)
{
    return m->b + number_of(m, layer, head) * (size_t)m->width;
}

int64_t ek_maps_bytes(const ek_maps *m)
{
    return (int64_t)m->n * m->width * ((int64_t)m->width + 1) * (int64_t)sizeof(float);
}

static ek_code read_tensors(ek_maps *m, ek_folder *f, ek_err *err)
{
    float *const to[TENSORS] = {m->w, m->b, m->r2};
    ek_st_tensor want[TENSORS];
    ek_st *st;

    EK_TRY(ek_folder_tensors(f, TENSORS, &st, err));
    describe(m, want);
    err->code = EK_OK;
    for (int i = 0; i < TENSORS; i++)
        EK_CHECK(ek_st_read_f32(st, want[i].name, want[i].n_dims, want[i].dim, to[i], err));
    for (int i = 0; i < m->dims.n_layers * m->dims.n_heads; i++)
        if (m->r2[i] > 1)
            EK_CHECK(EK_FAIL(
                err, EK_EINPUT, "%s: map.r2, layer %d, head %d: found %g, expected at most 1",
                f->weights, i / m->dims.n_heads, i % m->dims.n_heads, (double)m->r2[i]));
fail:
    ek_st_close(st);
    return err->code;
}

ek_code ek_maps_open(ek_maps *out, const char *dir, const ek_maps_need *need, ek_err *err)
{
    ek_maps m = {0};
    ek_folder f;
    int joint;

    EK_TRY(ek_folder_open(&f, dir, format, err));
    EK_CHECK(ek_folder_keys(&f, known, err));
    EK_CHECK(ek_folder_must_be(&f, "model", need->model_hash, "base model", err));
    EK_CHECK(ek_folder_must_be(&f, "tokenizer", need->tokenizer_hash, "tokenizer", err));
    EK_CHECK(ek_folder_dims(&f, need->dims, err));
    EK_CHECK(ek_folder_name(&f, "mode", modes, 1, &joint, err));
    EK_CHECK(ek_maps_make(&m, need->dims, joint, err));
    EK_CHECK(read_tensors(&m, &f, err));
    memcpy(m.hash, f.hash, sizeof m.hash);
    ek_folder_close(&f);
    *out = m;
    return EK_OK;
fail:
    ek_maps_close(&m);
    ek_folder_close(&f);
    return err->code;
}

/* ---- writing ---- */

static ek_code refuse_nan(const ek_maps *m, const ek_st_tensor *t, ek_err *err)
{
    for (int i = 0; i < TENSORS; i++) {
        const size_t n = t[i].bytes / sizeof(float), layer = n / (size_t)m->dims.n_layers;

        for (size_t j = 0; j < n; j++)
            if (!isfinite(((const float *)t[i].data)[j]))
                return EK_FAIL(err, EK_ENAN,
                               "%s, layer %zu, number %zu: not finite; nothing was written",
                               t[i].name, j / layer, j % layer);
    }
    return EK_OK;
}

static void add_string(ek_text *t, const char *key, const char *value)
{
    ek_text_add(t, "  \"%s\": ", key);
    ek_text_json(t, value, strlen(value));
    ek_text_add(t, ",\n");
}

static void config_text(ek_text *t, const ek_maps *m, const ek_maps_origin *from, const char *hash)
{
    const ek_dims *d = &m->dims;

    ek_text_add(t, "{\n");
    add_string(t, "format", format);
    ek_text_add(t, "  \"version\": 1,\n");
    add_string(t, "mode", modes[m->joint]);
    ek_text_add(
        t, "  \"dims\": {\"n_layers\": %d, \"n_heads\": %d, \"group\": %d, \"head_dim\": %d},\n",
        d->n_layers, d->n_heads, d->group, d->head_dim);
    add_string(t, "model", from->model);
    add_string(t, "tokenizer", from->tokenizer);
    add_string(t, "data", from->data);
    ek_text_add(t, "  \"tokens\": %lld,\n  \"held_out\": %lld,\n  \"parameters\": %lld,\n",
                (long long)from->tokens, (long long)from->held_out,
                (long long)(ek_maps_bytes(m) / (int64_t)sizeof(float)));
    add_string(t, "settings", from->settings);
    ek_text_add(t, "  \"weights\": \"%s\"\n}\n", hash);
}

ek_code ek_maps_write(const char *dir, const ek_maps *m, const ek_maps_origin *from, ek_err *err)
{
    const ek_st_pair meta[] = {{"format", format}, {"base_model", from->model}};
    ek_writer weights = {0};
    ek_st_tensor t[TENSORS];
    ek_text text = {0};
    char hash[33];

    err->code = EK_OK;
    describe(m, t);
    EK_TRY(refuse_nan(m, t, err));
    EK_CHECK(ek_folder_put(&weights, dir, t, TENSORS, meta, (int)EK_COUNT(meta), hash, err));
    config_text(&text, m, from, hash);
    EK_CHECK(ek_folder_commit(&weights, dir, &text, err));
fail:
    ek_writer_close(&weights);
    ek_text_clear(&text);
    return err->code;
}
