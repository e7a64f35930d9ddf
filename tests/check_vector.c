/* tests/check_vector.c - see check_vector.h. */
#include "tests/check_vector.h"

#include "core/bf16.h"
#include "core/rng.h"
#include "scorers/carried.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static ek_err err;

static void ok(ek_code code)
{
    if (code != EK_OK)
        fail_msg("%s", err.msg);
}

static void add_lane(ek_rig *g, const ek_measure *m)
{
    if (ek_measure_n_carry(m, g->m.dims->group) == 0)
        return;
    for (int i = 0; i < g->n_lanes; i++)
        if (ek_measure_same(g->lane[i], m))
            return;
    g->lane[g->n_lanes++] = m;
}

/* One method of the rig with a scorer of its own, whose parameters are random. */
static void add_method(ek_rig *g, const ek_method *row, const ek_scorer_class *cls,
                       ek_scorer_set set)
{
    ek_method *m = &g->method[g->n];
    ek_scorer *s = &g->scorer[g->n];

    *m = *row;
    m->measure.signal = cls;
    *s = (ek_scorer){.cls = cls, .dev = g->m.dev, .dims = *g->m.dims, .set = set};
    if (cls->learner) {
        g->params[g->n] = malloc(sizeof(ek_real) * ek_params_size(s));
        cls->learner->init(s, g->params[g->n], 77);
        for (size_t k = 0; k < ek_params_size(s); k++) /* else all score alike */
            g->params[g->n][k] += (ek_real)(.5 * ek_rng_normal(5, 6, k));
        s->params = g->params[g->n];
        ok(ek_scorer_check(s, &err));
    }
    m->measure.scorer = s;
    add_lane(g, &m->measure);
    g->n++;
    assert_true(g->n < EK_RIG_METHODS);
}

static void add_methods(ek_rig *g)
{
    const ek_scorer_set plain = {.seed = 3, .hidden = 8, .age = EK_AGE_EXP};
    const ek_scorer_set memory = {
        .age = EK_AGE_POWER, .sinks = 4, .recent = 8, .delay = 5, .norm = true, .skip = true};
    const ek_scorer_set columns = {
        .hidden = 8, .age = EK_AGE_INPUT, .sinks = 4, .recent = 8, .carried = EK_CARRIED_FULL};
    ek_method layer = *ek_method_find("foresight"), remembers = *ek_method_find("kvpop");
    ek_method carries = *ek_method_find("foresight");

    for (int i = 0; ek_methods[i]; i++) {
        const ek_method *m = ek_methods[i];

        if ((m->when.prefill_end || m->when.first_step) &&
            m->measure.signal->source != EK_FROM_FUTURE)
            add_method(g, m, m->measure.signal, plain);
    }
    layer.budget = EK_SHARE_LAYER;
    add_method(g, &layer, layer.measure.signal, plain);
    remembers.protect.recent = carries.protect.recent = 8; /* their scores decide */
    add_method(g, &remembers, &ek_scorer_recurrent, memory);
    add_method(g, &carries, &ek_scorer_mlp, columns);
}

void ek_rig_open(ek_rig *g, ek_dtype storage)
{
    memset(g, 0, sizeof *g);
    ek_check_model_open(&g->m, NULL, storage, 0);
    ok(ek_engine_open(&g->e, g->m.model, g->m.dev, &err));
    add_methods(g);
    for (int j = 0; j < 2; j++) {
        ek_maps *maps = &g->maps[j];

        ok(ek_maps_make(maps, g->m.dims, j, &err));
        for (int i = 0; i < maps->n * maps->width * maps->width; i++)
            maps->w[i] = (float)(.3 * ek_rng_normal(9, (uint64_t)j, (uint64_t)i));
        for (int i = 0; i < maps->n * maps->width; i++)
            maps->b[i] = (float)(.3 * ek_rng_normal(10, (uint64_t)j, (uint64_t)i));
    }
    ek_check_tokens(g->tok, EK_RIG_PROMPT + EK_RIG_GROW, g->m.dims->n_vocab, 42);
}

void ek_rig_close(ek_rig *g)
{
    for (int i = 0; i < g->n; i++)
        free(g->params[i]);
    ek_maps_close(&g->maps[0]);
    ek_maps_close(&g->maps[1]);
    ek_engine_close(g->e);
    ek_check_model_close(&g->m);
}

ek_method ek_rig_method(const ek_rig *g, const char *name)
{
    for (int i = 0; i < g->n; i++)
        if (strcmp(g->method[i].name, name) == 0)
            return g->method[i];
    fail_msg("no method %s", name);
    return (ek_method){0};
}

void ek_rig_prompt(ek_rig *g, ek_cache *c)
{
    ek_check_cache_open(c, &g->m, EK_RIG_PROMPT + EK_RIG_GROW, g->lane, g->n_lanes);
    ok(ek_engine_read(g->e, c, g->tok, EK_RIG_PROMPT, EK_RIG_PROMPT, NULL, NULL, &err));
}

static double item(const void *x, ek_dtype type, int64_t i)
{
    return type == EK_F32 ? (double)((const float *)x)[i]
                          : (double)ek_from_bf16(((const ek_bf16 *)x)[i]);
}

void ek_rebuilt_value(const ek_rig *g, const ek_maps *maps, const ek_cache *c, int list, int32_t s,
                      double *v)
{
    const int H = c->dims.n_heads, l = list / H, h = list % H, dim = c->dims.head_dim;
    const int half = dim / 2;

    for (int d = 0; d < dim; d++)
        v[d] = (double)ek_maps_bias(maps, l, h)[maps->joint ? h * dim + d : d];
    for (int k = maps->joint ? 0 : h; k < (maps->joint ? H : h + 1); k++) {
        const int64_t e = c->layer_at[l] + c->first[l * H + k] + s;
        const int from = maps->joint ? k * dim : 0;

        for (int i = 0; i < half; i++) {
            const double angle =
                c->pos[e] * pow((double)g->m.dims->rope_base, -2.0 * i / (double)dim);
            const double a = item(c->k, c->dtype, e * dim + i);
            const double b = item(c->k, c->dtype, e * dim + half + i);
            const double x = a * cos(angle) + b * sin(angle), y = b * cos(angle) - a * sin(angle);

            for (int d = 0; d < dim; d++) {
                const float *w = ek_maps_weight(maps, l, h) +
                                 (size_t)(maps->joint ? h * dim + d : d) * (size_t)maps->width;

                v[d] += (double)w[from + i] * x + (double)w[from + half + i] * y;
            }
        }
    }
}

double ek_rebuilt_error(const ek_rig *g, const ek_maps *maps, const ek_cache *c, int list,
                        int32_t s, double *square)
{
    const int dim = c->dims.head_dim, H = c->dims.n_heads;
    const int64_t e = c->layer_at[list / H] + c->first[list] + s;
    double v[64], sum = 0;

    *square = 0;
    ek_rebuilt_value(g, maps, c, list, s, v);
    for (int d = 0; d < dim; d++) {
        const double real = item(c->v, c->dtype, e * dim + d);

        sum += (real - v[d]) * (real - v[d]);
        *square += real * real;
    }
    return sum;
}

ek_policy ek_with_vector(const ek_method *m, const ek_maps *maps, int32_t entries)
{
    ek_policy p = {.method = *m, .budget = {.entries = entries}, .decode = EK_DECODE_GROW};

    if (maps) {
        p.method.rest = EK_REST_VECTOR;
        p.method.maps = maps;
        if (maps->joint && p.method.granularity == EK_SET_PER_HEAD)
            p.method.granularity = EK_SET_PER_LAYER;
    }
    return p;
}
