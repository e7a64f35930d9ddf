/* tests/check_cache.c - see check_cache.h. */
#include "tests/check_cache.h"

#include "core/rng.h"

#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <setjmp.h>
#include <string.h>

#include <cmocka.h>

void ek_ok(ek_code code, const ek_err *err)
{
    if (code != EK_OK)
        fail_msg("%s", err->msg);
}

int ek_near_by(double a, double b, double bound)
{
    return fabs(a - b) <= bound;
}

ek_measure ek_row_of(const char *method)
{
    return ek_method_find(method)->measure;
}

ek_device *ek_toy_device(void)
{
    ek_device *dev;
    ek_err err;

    ek_ok(ek_device_open(&dev, "cpu", getenv("EVICTKIT_ISA"), &err), &err);
    return dev;
}

void ek_hand_make(ek_hand *a, int n_heads, int group, int head_dim, int n)
{
    memset(a, 0, sizeof *a);
    for (int h = 0; h < n_heads; h++) {
        a->first[h] = h * n;
        a->n[h] = n;
        for (int j = 0; j < n; j++)
            a->pos[h * n + j] = j;
    }
    a->view = (ek_view){.n_heads = n_heads,
                        .group = group,
                        .head_dim = head_dim,
                        .dtype = EK_F32,
                        .next_pos = n,
                        .first = a->first,
                        .n = a->n,
                        .pos = a->pos,
                        .k = a->k,
                        .v = a->k,
                        .carry = a->carry};
}

void ek_hand_resize(ek_hand *a, int n)
{
    for (int h = 0; h < a->view.n_heads; h++)
        a->n[h] = n;
    a->view.next_pos = n;
}

void ek_toy_open(ek_toy *t, int n_layers, int n_heads, int group, int head_dim, ek_dtype dtype)
{
    *t = (ek_toy){.dtype = dtype,
                  .seed = 7,
                  .dims = {.n_layers = n_layers,
                           .n_heads = n_heads,
                           .group = group,
                           .head_dim = head_dim,
                           .scale = 1 / sqrtf((float)head_dim)}};
    t->dev = ek_toy_device();
}

void ek_toy_close(ek_toy *t)
{
    ek_device_close(t->dev);
    *t = (ek_toy){0};
}

void ek_toy_cell_learned(ek_toy_cell *cell, const ek_toy *t, const ek_method_set *set,
                         const ek_scorer_class *cls, ek_scorer_set scorer)
{
    ek_method *m = &cell->policy.method;
    ek_err err;

    *cell = (ek_toy_cell){0};
    ek_ok(ek_method_open(m, set, &err), &err);
    m->measure.signal = cls;
    cell->scorer = (ek_scorer){.cls = cls, .dev = t->dev, .dims = t->dims, .set = scorer};
    if (cls->learner != NULL) {
        const size_t n = ek_params_size(&cell->scorer);

        cell->params = malloc(n * sizeof *cell->params);
        assert_non_null(cell->params);
        cls->learner->init(&cell->scorer, cell->params, 3);
        for (size_t i = 0; i < n; i++)
            cell->params[i] += (ek_real)(.3 * ek_rng_normal(5, 6, i));
        cell->scorer.params = cell->params;
    }
    m->measure.scorer = &cell->scorer;
}

void ek_toy_cell_open(ek_toy_cell *cell, const ek_toy *t, const ek_method_set *set, int age)
{
    const ek_method *row = ek_method_find(set->name);

    assert_non_null(row);
    ek_toy_cell_learned(cell, t, set, row->measure.signal,
                        (ek_scorer_set){.seed = set->seed, .hidden = 5, .age = age});
}

void ek_toy_cell_close(ek_toy_cell *cell)
{
    free(cell->params);
    *cell = (ek_toy_cell){0};
}

void ek_toy_cache(ek_cache *c, const ek_toy *t, int room, int gaps, const ek_measure *m)
{
    const int lists = t->dims.n_layers * t->dims.n_heads;
    int32_t *caps = malloc((size_t)lists * sizeof *caps);
    const ek_cache_need need = {.dims = t->dims,
                                .dtype = t->dtype,
                                .caps = caps,
                                .n_lanes =
                                    m != NULL && ek_measure_n_carry(m, t->dims.group) > 0 ? 1 : 0,
                                .measures = &m};
    ek_err err;

    assert_non_null(caps);
    for (int i = 0; i < lists; i++)
        caps[i] = room + (gaps ? (i * 7 + 3) % 5 : 0);
    ek_ok(ek_cache_open(c, &need, t->dev, &err), &err);
    free(caps);
}

/* (n, heads, head_dim) of normal numbers for positions from `pos` on. */
static void fill(const ek_toy *t, const char *name, int layer, int heads, int32_t pos, int n,
                 float *out)
{
    for (int i = 0; i < n; i++)
        for (int x = 0; x < heads; x++) {
            const uint64_t stream =
                ek_rng_stream(name, (uint64_t)(layer * heads + x), (uint64_t)(pos + i));

            for (int d = 0; d < t->dims.head_dim; d++)
                *out++ = (float)(1.5 * ek_rng_normal(t->seed, stream, (uint64_t)d));
        }
}

void ek_toy_queries(const ek_toy *t, int layer, int32_t pos, int n, float *q)
{
    fill(t, "toy.q", layer, t->dims.n_heads * t->dims.group, pos, n, q);
}

static void feed_layer(const ek_toy *t, ek_cache *c, int layer, int n, int64_t n_prompt,
                       int64_t step)
{
    const ek_dims *d = &t->dims;
    const size_t heads = (size_t)(d->n_heads * d->group), dim = (size_t)d->head_dim;
    const size_t kv = (size_t)n * (size_t)d->n_heads * dim, qs = (size_t)n * heads * dim;
    const size_t entries = (size_t)(c->layer_at[layer + 1] - c->layer_at[layer]);
    float *k = malloc(kv * sizeof *k), *v = malloc(kv * sizeof *v), *q = malloc(qs * sizeof *q);
    float *out = malloc(qs * sizeof *out), *lse = malloc((size_t)n * heads * sizeof *lse);
    float *prob = malloc(entries * (size_t)d->group * sizeof *prob);
    float *scratch = malloc(4 * entries * (size_t)d->group * sizeof *scratch);
    ek_attn_row row = {.n_new = n, .q = q, .out = out, .lse = lse, .prob = prob};

    fill(t, "toy.k", layer, d->n_heads, c->next_pos, n, k);
    fill(t, "toy.v", layer, d->n_heads, c->next_pos, n, v);
    ek_toy_queries(t, layer, c->next_pos, n, q);
    ek_cache_append(c, layer, k, (size_t)d->n_heads * dim, v, (size_t)d->n_heads * dim, n);
    ek_cache_view(c, layer, -1, &row.view);
    t->dev->ops.attn(t->dev, &row, 1, d->scale, heads * dim, heads * dim);
    for (int i = 0; i < c->n_lanes; i++) {
        const ek_measure *m = c->lane[i].measure;
        const ek_colsum chunk = {.view = row.view,
                                 .n_q = n,
                                 .q_pos = c->next_pos,
                                 .q = q,
                                 .ldq = heads * dim,
                                 .lse = lse,
                                 .horizon = -1};

        const ek_memory mem = ek_cache_memory(c, layer, i);

        if (step == 0)
            ek_measure_prefill(m, t->dev, &chunk, d->scale, n_prompt, &mem, scratch);
        else
            ek_measure_step(m, t->dev, &row.view, ek_measure_wants_prob(m, step) ? prob : NULL,
                            &mem);
    }
    free(k);
    free(v);
    free(q);
    free(out);
    free(lse);
    free(prob);
    free(scratch);
}

void ek_toy_feed(const ek_toy *t, ek_cache *c, int n, int64_t n_prompt, int64_t step)
{
    for (int l = 0; l < t->dims.n_layers; l++)
        feed_layer(t, c, l, n, n_prompt, step);
    ek_cache_advance(c, n);
}

int ek_toy_same(const ek_cache *a, const ek_cache *b)
{
    const size_t vector = (size_t)a->dims.head_dim * (size_t)ek_dtype_size(a->dtype);

    if (a->next_pos != b->next_pos || a->n_lanes != b->n_lanes)
        return 0;
    for (int i = 0; i < a->dims.n_layers * a->dims.n_heads; i++) {
        const int l = i / a->dims.n_heads, h = i % a->dims.n_heads;
        const int lane = a->n_lanes > 0 ? 0 : -1;
        ek_view x, y;

        ek_cache_view(a, l, lane, &x);
        ek_cache_view(b, l, lane, &y);
        const size_t n = (size_t)x.n[h], p = (size_t)x.first[h], q = (size_t)y.first[h];
        const size_t carry = (size_t)x.n_carry * sizeof(float);

        if (x.n[h] != y.n[h] || memcmp(x.pos + p, y.pos + q, n * sizeof *x.pos) != 0 ||
            memcmp((const char *)x.k + p * vector, (const char *)y.k + q * vector, n * vector) !=
                0 ||
            memcmp((const char *)x.v + p * vector, (const char *)y.v + q * vector, n * vector) != 0)
            return 0;
        if (lane < 0 || x.n_carry != y.n_carry)
            continue;
        if (a->lane[0].shared && i > 0)
            continue;
        if (memcmp((const char *)x.carry + p * carry, (const char *)y.carry + q * carry,
                   n * carry) != 0)
            return 0;
    }
    if (a->n_lanes > 0 && a->lane[0].n_state > 0)
        return a->lane[0].n_state == b->lane[0].n_state &&
               memcmp(a->lane[0].state, b->lane[0].state,
                      (size_t)(a->dims.n_layers * a->dims.n_heads) * a->lane[0].n_state *
                          sizeof(float)) == 0;
    return 1;
}

void ek_toy_plan(ek_plan *p, const ek_cache *c)
{
    ek_err err;

    ek_ok(ek_plan_open(p, &c->dims, ek_cache_entries(c) + 1, &err), &err);
}
