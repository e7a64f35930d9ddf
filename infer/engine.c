/* infer/engine.c - prompts: read them with every lane measuring, or look into the future. */
#include "infer/engine_parts.h"

#include <stdlib.h>
#include <string.h>

ek_code ek_engine_open(ek_engine **out, ek_model *model, ek_device *dev, ek_err *err)
{
    ek_engine *e = calloc(1, sizeof *e);

    if (!e)
        return EK_FAIL(err, EK_ENOMEM, "no memory for the engine");
    e->model = model;
    e->dev = dev;
    *out = e;
    return EK_OK;
}

void ek_engine_close(ek_engine *e)
{
    if (!e)
        return;
    ek_plan_close(&e->plan);
    ek_policy_scratch_close(&e->policy);
    free(e->measure.data);
    free(e->weight.data);
    free(e->before.data);
    free(e->prob.data);
    free(e->feed.data);
    free(e->live.data);
    free(e);
}

const ek_plan *ek_engine_plan(const ek_engine *e)
{
    return &e->plan;
}

int64_t ek_engine_grown(const ek_engine *e)
{
    return e->grown;
}

ek_code ek_engine_reserve(ek_engine *e, ek_room *r, size_t bytes, ek_err *err)
{
    if (bytes <= r->bytes)
        return EK_OK;
    free(r->data);
    r->bytes = 0;
    r->data = malloc(bytes);
    e->grown++;
    if (!r->data)
        return EK_FAIL(err, EK_ENOMEM, "no memory for %zu bytes of working space", bytes);
    r->bytes = bytes;
    return EK_OK;
}

ek_code ek_engine_plan_room(ek_engine *e, const ek_cache *c, ek_err *err)
{
    const int64_t need = ek_cache_entries(c);

    if (e->plan.room >= need && e->plan.n_layers == c->dims.n_layers &&
        e->plan.n_heads == c->dims.n_heads)
        return EK_OK;
    ek_plan_close(&e->plan);
    e->plan = (ek_plan){0};
    e->grown++;
    /* A quarter more, since the caches of a growing row would otherwise ask again at each step. */
    return ek_plan_open(&e->plan, &c->dims, need + need / 4 + 64, err);
}

int64_t ek_engine_widest(const ek_cache *c)
{
    int64_t most = 0;

    for (int l = 0; l < c->dims.n_layers; l++)
        if (c->layer_at[l + 1] - c->layer_at[l] > most)
            most = c->layer_at[l + 1] - c->layer_at[l];
    return most;
}

ek_code ek_engine_fold(ek_engine *e, const ek_tap_layer *t, int feed, int lane, int64_t n_prompt,
                       ek_err *err)
{
    ek_cache *c = t->feed[feed].cache;
    const ek_measure *m = c->lane[lane].measure;
    const ek_attn_row *row = &t->row[feed];
    const ek_colsum chunk = {.view = row->view,
                             .n_q = t->feed[feed].n,
                             .q_pos = c->next_pos, /* of the first: moves only after the step */
                             .q = row->q,
                             .ldq = t->ldq,
                             .lse = row->lse,
                             .horizon = -1};

    const ek_memory mem = ek_cache_memory(c, t->layer, lane);
    const size_t scratch = (size_t)ek_measure_n_scratch(m, c->dims.group);

    EK_TRY(ek_engine_reserve(e, &e->measure, sizeof(float) * (size_t)ek_engine_widest(c) * scratch,
                             err));
    ek_measure_prefill(m, e->dev, &chunk, ek_model_dims(e->model)->scale, n_prompt, &mem,
                       e->measure.data);
    return EK_OK;
}

ek_code ek_engine_check_measure(const ek_measure *m, ek_err *err)
{
    if (m->signal->learner && (!m->scorer || !m->scorer->params))
        return EK_FAIL(err, EK_EASKED, "a learned scorer (%s) needs trained weights",
                       m->signal->name);
    return EK_OK;
}

/* ---- reading a prompt ---- */

typedef struct reading {
    ek_engine *e;
    int64_t n_prompt;
    const ek_tap *also;
} reading;

static ek_code read_tap(void *ctx, const ek_tap_layer *t, ek_err *err)
{
    const reading *r = ctx;
    const ek_cache *c = t->feed[0].cache;

    for (int i = 0; i < c->n_lanes; i++)
        if (c->lane[i].measure->signal->source != EK_FROM_FUTURE)
            EK_TRY(ek_engine_fold(r->e, t, 0, i, r->n_prompt, err));
    if (r->also && r->also->layer)
        return r->also->layer(r->also->ctx, t, err);
    return EK_OK;
}

ek_code ek_engine_read(ek_engine *e, ek_cache *c, const int32_t *tok, int n, int64_t n_prompt,
                       float *logits, const ek_tap *tap, ek_err *err)
{
    reading r = {.e = e, .n_prompt = n_prompt, .also = tap};
    const ek_tap mine = {.layer = read_tap, .ctx = &r};

    /* Refuse what cannot fit before the first chunk is paid for. */
    if ((int64_t)c->next_pos + n > ek_model_dims(e->model)->n_ctx)
        return EK_FAIL(err, EK_EASKED,
                       "found a prompt of %lld tokens, expected at most the model's context of %d",
                       (long long)c->next_pos + n, ek_model_dims(e->model)->n_ctx);
    for (int i = 0; i < c->n_lanes; i++)
        EK_TRY(ek_engine_check_measure(c->lane[i].measure, err));
    for (int at = 0; at < n; at += EK_CHUNK) {
        const int m = n - at < EK_CHUNK ? n - at : EK_CHUNK;
        const ek_feed feed = {.cache = c,
                              .tok = tok + at,
                              .n = m,
                              .n_logits = logits && at + m == n ? 1 : 0,
                              .logits = logits};

        EK_TRY(ek_model_step(e->model, &feed, 1, &mine, err));
    }
    return EK_OK;
}

/* ---- the true future ---- */

typedef struct looking {
    ek_engine *e;
    const ek_future *f;
    const int32_t *n; /* (n_layers, n_heads) entries held before the future began */
    int at;           /* queries already done */
} looking;

static ek_code look_tap(void *ctx, const ek_tap_layer *t, ek_err *err)
{
    const looking *k = ctx;
    const ek_future *f = k->f;
    const ek_cache *c = t->feed[0].cache;
    const ek_attn_row *row = &t->row[0];
    const int n = t->feed[0].n;
    float *weight = k->e->weight.data, *sum[4];
    ek_colsum s = {.view = row->view,
                   .n_q = n,
                   .q_pos = c->next_pos,
                   .q = row->q,
                   .ldq = t->ldq,
                   .lse = row->lse,
                   .n_sets = f->n_sets,
                   .weight = weight,
                   .horizon = -1,
                   .sum = sum};

    (void)err;
    /* Only the entries held at the start are asked about; the log-sum-exp still knows the rest. */
    s.view.n = k->n + (size_t)t->layer * (size_t)c->dims.n_heads;
    for (int i = 0; i < f->n_sets; i++) {
        sum[i] = f->sum[i] + (size_t)c->layer_at[t->layer] * (size_t)c->dims.group;
        for (int q = 0; q < n; q++)
            weight[(size_t)i * n + q] =
                k->at + q >= f->first[i] && k->at + q <= f->last[i] ? 1.0f : 0.0f;
    }
    k->e->dev->ops.colsum(k->e->dev, &s, ek_model_dims(k->e->model)->scale);
    return EK_OK;
}

ek_code ek_engine_future(ek_engine *e, ek_cache *c, const int32_t *tok, int n, const ek_future *f,
                         ek_err *err)
{
    const size_t heads = (size_t)c->dims.n_layers * (size_t)c->dims.n_heads;
    const size_t sums = (size_t)c->layer_at[c->dims.n_layers] * (size_t)c->dims.group;
    looking k = {.e = e, .f = f};
    const ek_tap tap = {.layer = look_tap, .ctx = &k};
    ek_code code = EK_OK;

    if (ek_cache_room(c) < n)
        return EK_FAIL(err, EK_EBROKEN, "the cache has room for %d tokens, expected %d",
                       ek_cache_room(c), n);
    EK_TRY(ek_engine_reserve(e, &e->weight, sizeof(float) * 4 * EK_CHUNK, err));
    EK_TRY(ek_engine_reserve(e, &e->before, sizeof(int32_t) * heads, err));
    memcpy(e->before.data, c->n, sizeof(int32_t) * heads);
    k.n = e->before.data;
    for (int i = 0; i < f->n_sets; i++)
        memset(f->sum[i], 0, sizeof(float) * sums);
    for (; k.at < n && code == EK_OK; k.at += EK_CHUNK) {
        const ek_feed feed = {
            .cache = c, .tok = tok + k.at, .n = n - k.at < EK_CHUNK ? n - k.at : EK_CHUNK};

        code = ek_model_step(e->model, &feed, 1, &tap, err);
        if (code != EK_OK)
            break;
    }
    ek_cache_rewind(c, k.at < n ? k.at : n);
    return code;
}
