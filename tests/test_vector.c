/* tests/test_vector.c - entries that keep their key and lose their value: how many, which, and what
 * attention makes of them.  Laws over all methods that cut. */
#include "tests/check_model.h"

#include "core/bf16.h"
#include "core/rng.h"
#include "infer/annex.h"
#include "infer/engine.h"
#include "infer/vector.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { PROMPT = 130, QUESTION = 9, STEPS = 12, GROW = QUESTION + STEPS, METHODS = 40 };

static ek_err err;

static void ok(ek_code code)
{
    if (code != EK_OK)
        fail_msg("%s", err.msg);
}

/* A tiny model, every method with its scorer and one more, whose heads share one budget over the
 * model; a prompt's tokens, and maps. */
typedef struct grid {
    ek_check_model m;
    ek_engine *e;
    int n;
    ek_method method[METHODS];
    ek_scorer scorer[METHODS];
    ek_real *params[METHODS];
    const ek_measure *lane[METHODS];
    int n_lanes;
    ek_maps maps[2]; /* of heads; joint */
    int32_t tok[PROMPT + GROW];
} grid;

static void add_lane(grid *g, const ek_measure *m)
{
    if (ek_measure_n_carry(m, g->m.dims->group) == 0)
        return;
    for (int i = 0; i < g->n_lanes; i++)
        if (ek_measure_same(g->lane[i], m))
            return;
    g->lane[g->n_lanes++] = m;
}

static void grid_open(grid *g, ek_dtype storage)
{
    memset(g, 0, sizeof *g);
    ek_check_model_open(&g->m, NULL, storage, 0);
    ok(ek_engine_open(&g->e, g->m.model, g->m.dev, &err));
    for (int i = 0, last = 0; !last; i++) {
        ek_method *m = &g->method[g->n];
        ek_scorer *s = &g->scorer[g->n];

        *m = ek_methods[i] ? *ek_methods[i] : *ek_method_find("foresight");
        if (!ek_methods[i]) {
            m->budget = EK_SHARE_MODEL;
            last = 1;
        }
        if ((!m->when.prefill_end && !m->when.first_step) ||
            m->measure.signal->source == EK_FROM_FUTURE)
            continue;
        *s = (ek_scorer){.cls = m->measure.signal,
                         .dev = g->m.dev,
                         .dims = *g->m.dims,
                         .set = {.seed = 3, .hidden = 8, .age = EK_AGE_EXP}};
        if (s->cls->learner) {
            g->params[g->n] = malloc(sizeof(ek_real) * ek_params_size(s));
            s->cls->learner->init(s, g->params[g->n], 77);
            for (size_t k = 0; k < ek_params_size(s); k++) /* else all score alike */
                g->params[g->n][k] += (ek_real)(.5 * ek_rng_normal(5, 6, k));
            s->params = g->params[g->n];
        }
        m->measure.scorer = s;
        add_lane(g, &m->measure);
        g->n++;
        assert_true(g->n < METHODS);
    }
    for (int j = 0; j < 2; j++) {
        ek_maps *maps = &g->maps[j];

        ok(ek_maps_make(maps, g->m.dims, j, &err));
        for (int i = 0; i < maps->n * maps->width * maps->width; i++)
            maps->w[i] = (float)(.3 * ek_rng_normal(9, (uint64_t)j, (uint64_t)i));
        for (int i = 0; i < maps->n * maps->width; i++)
            maps->b[i] = (float)(.3 * ek_rng_normal(10, (uint64_t)j, (uint64_t)i));
    }
    ek_check_tokens(g->tok, PROMPT + GROW, g->m.dims->n_vocab, 42);
}

static void grid_close(grid *g)
{
    for (int i = 0; i < g->n; i++)
        free(g->params[i]);
    ek_maps_close(&g->maps[0]);
    ek_maps_close(&g->maps[1]);
    ek_engine_close(g->e);
    ek_check_model_close(&g->m);
}

static ek_method named(const grid *g, const char *name)
{
    for (int i = 0; i < g->n; i++)
        if (strcmp(g->method[i].name, name) == 0)
            return g->method[i];
    fail_msg("no method %s", name);
    return (ek_method){0};
}

static void prompt_open(grid *g, ek_cache *c)
{
    ek_check_cache_open(c, &g->m, PROMPT + GROW, g->lane, g->n_lanes);
    ok(ek_engine_read(g->e, c, g->tok, PROMPT, PROMPT, NULL, NULL, &err));
}

static double item(const void *x, ek_dtype type, int64_t i)
{
    return type == EK_F32 ? (double)((const float *)x)[i]
                          : (double)ek_from_bf16(((const ek_bf16 *)x)[i]);
}

/* v^ of slot s of a list, in double, from the formula. */
static void rebuild(const grid *g, const ek_maps *maps, const ek_cache *c, int list, int32_t s,
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

/* eps of a slot of a list. */
static double error_of(const grid *g, const ek_maps *maps, const ek_cache *c, int list, int32_t s,
                       double *square)
{
    const int dim = c->dims.head_dim, H = c->dims.n_heads;
    const int64_t e = c->layer_at[list / H] + c->first[list] + s;
    double v[64], sum = 0;

    *square = 0;
    rebuild(g, maps, c, list, s, v);
    for (int d = 0; d < dim; d++) {
        const double real = item(c->v, c->dtype, e * dim + d);

        sum += (real - v[d]) * (real - v[d]);
        *square += real * real;
    }
    return sum;
}

/* ---- counts ---- */

/* n, B -> a, pool, approximated, exact, evicted; keys and values are always 2 B vectors. */
static void counts_are_those_of_the_definition(void **state)
{
    static const int32_t cases[][7] = {{8, 4, 2, 6, 4, 2, 2},
                                       {8, 6, 1, 7, 2, 5, 1},
                                       {8, 2, 1, 3, 2, 1, 5},
                                       {1000, 750, 125, 875, 250, 625, 125},
                                       {101, 25, 12, 37, 24, 13, 64}};
    const ek_maps maps = {0};
    ek_method m = {.maps = &maps};
    int with = 0;

    (void)state;
    for (size_t i = 0; i < EK_COUNT(cases); i++) {
        const int32_t n = cases[i][0], B = cases[i][1], a = ek_vector_a(&m, n, B);

        assert_int_equal(a, cases[i][2]);
        assert_int_equal(B + a, cases[i][3]);
        assert_int_equal(2 * a, cases[i][4]);
        assert_int_equal(B - a, cases[i][5]);
        assert_int_equal(n - B - a, cases[i][6]);
    }
    for (int32_t n = 1; n < 200; n++)
        for (int32_t B = 1; B <= n + 1; B++)
            for (int32_t sinks = 0; sinks < 5; sinks += 4) {
                int32_t first, recent, a;

                m.protect = (ek_protect){.sinks = sinks, .recent = 3 * sinks};
                a = ek_vector_a(&m, n, B);
                ek_policy_protected(&m, n, B, &first, &recent);
                with += a > 0;
                assert_true(a >= 0 && (B >= n ? a == 0 : B + a <= n));
                assert_true(a == 0 || B - a >= (first ? first : 1) + recent - a);
                assert_true(a == 0 || B + a - first - recent >= 2 * a);
            }
    assert_true(with > 0);
    m.protect = (ek_protect){0};
    m.spare = 1 - .29; /* of 100 */
    assert_int_equal(ek_vector_a(&m, 1000, 200), 29);
    m.spare = 1;
    assert_int_equal(ek_vector_a(&m, 1000, 200), 0);
    m.spare = 0;
    assert_int_equal(ek_vector_a(&m, 1000, 200), 100);
    m.maps = NULL;
    assert_int_equal(ek_vector_a(&m, 8, 4), 0);
}

/* ---- laws over all methods ---- */

static ek_policy with_vector(const ek_method *m, const ek_maps *maps, int32_t entries)
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

static size_t record_size(const grid *g)
{
    return (size_t)(QUESTION + STEPS) * (size_t)g->m.dims->n_vocab;
}

/* A question of several tokens in one step, then single ones. */
static void decode(grid *g, ek_row *r, float *record)
{
    const size_t nv = (size_t)g->m.dims->n_vocab;

    r->feed = g->tok + PROMPT;
    r->n_feed = r->n_logits = QUESTION;
    r->logits = record;
    r->counts = 0;
    ok(ek_engine_step(g->e, &r, 1, &err));
    for (int s = 0; s < STEPS; s++) {
        r->feed = g->tok + PROMPT + QUESTION + s;
        r->n_feed = r->n_logits = 1;
        r->logits = record + (size_t)(QUESTION + s) * nv;
        r->counts = 1;
        ok(ek_engine_step(g->e, &r, 1, &err));
        ok(ek_cache_check(&r->cache, &err));
    }
}

/* Open a row under a policy, check its books, and decode; the plan stays the engine's last. */
static void run(grid *g, const ek_policy *p, ek_cache *prompt, ek_row *row, float *record)
{
    ok(ek_row_open(row, g->e, prompt, p, PROMPT, GROW, EK_ROW_QUESTION_LATER, &err));
    ok(ek_cache_check(&row->cache, &err));
    decode(g, row, record);
}

static double furthest(const float *a, const float *b, size_t n)
{
    double most = 0;

    for (size_t i = 0; i < n; i++)
        most = fmax(most, fabs((double)a[i] - (double)b[i]));
    return most;
}

/* Copy of the last plan's lists in one list each: the pool, with all values there. */
static void whole_pool(const ek_plan *plan, ek_plan *pool, const ek_dims *dims)
{
    ok(ek_plan_open(pool, dims, plan->room, &err));
    for (int i = 0; i < dims->n_layers * dims->n_heads; i++) {
        int32_t a = plan->first[i], b = plan->mapped_first[i], at = pool->first[i];

        pool->of[i] = plan->of[i];
        while (a < plan->first[i + 1] || b < plan->mapped_first[i + 1])
            if (b == plan->mapped_first[i + 1] ||
                (a < plan->first[i + 1] && plan->slot[a] < plan->mapped[b]))
                pool->slot[at++] = plan->slot[a++];
            else
                pool->slot[at++] = plan->mapped[b++];
        pool->first[i + 1] = at;
    }
}

/* What a cache would give that had the rebuilt values of the plan's mapped entries in place. */
static void materialised(grid *g, const ek_maps *maps, const ek_cache *prompt, const ek_plan *plan,
                         float *record)
{
    const ek_dims *d = g->m.dims;
    const size_t bytes = (size_t)prompt->layer_at[d->n_layers] * (size_t)d->head_dim *
                         (size_t)ek_dtype_size(prompt->dtype);
    void *values = malloc(bytes);
    ek_cache pool;
    ek_plan all;
    ek_row row;

    assert_int_equal(prompt->dtype, EK_F32);
    memcpy(values, prompt->v, bytes);
    for (int i = 0; i < d->n_layers * d->n_heads; i++)
        for (int32_t j = plan->mapped_first[i]; j < plan->mapped_first[i + 1]; j++) {
            double v[64];

            rebuild(g, maps, prompt, i, plan->mapped[j], v);
            for (int k = 0; k < d->head_dim; k++)
                ((float *)prompt
                     ->v)[(prompt->layer_at[i / d->n_heads] + prompt->first[i] + plan->mapped[j]) *
                              d->head_dim +
                          k] = (float)v[k];
        }
    whole_pool(plan, &all, d);
    ek_check_cache_open(&pool, &g->m, PROMPT + GROW, NULL, 0);
    ok(ek_cache_apply(&pool, prompt, -1, &all, &err));
    memcpy(prompt->v, values, bytes);
    ok(ek_row_open(&row, g->e, &pool, NULL, PROMPT, GROW, EK_ROW_TAKE, &err));
    decode(g, &row, record);
    ek_row_close(&row);
    ek_plan_close(&all);
    free(values);
}

/* Of the unprotected pool those lose their value whose eps is least; ends that are protected and
 * position 0 never do. */
static void check_choice(const grid *g, const ek_policy *p, const ek_cache *prompt,
                         const ek_plan *plan, int32_t entries)
{
    const ek_maps *maps = p->method.maps;
    const int H = prompt->dims.n_heads, lists = prompt->dims.n_layers * H;
    const int share = p->method.budget == EK_SHARE_LAYER   ? H
                      : p->method.budget == EK_SHARE_MODEL ? lists
                                                           : 1;
    double worst = 0, best = INFINITY;

    for (int i = 0; i < lists; i++) {
        int32_t sinks, recent;

        if (i % share == 0) {
            worst = 0;
            best = INFINITY;
        }
        ek_policy_protected(&p->method, PROMPT, entries, &sinks, &recent);
        for (int form = 0; form < 2; form++) {
            const int32_t *first = form ? plan->mapped_first : plan->first;
            const int32_t *slot = form ? plan->mapped : plan->slot;

            for (int32_t j = first[i]; j < first[i + 1]; j++) {
                double eps = 0, square;

                for (int h = 0; maps->joint && h < H; h++)
                    eps += error_of(g, maps, prompt, i / H * H + h, slot[j], &square);
                if (!maps->joint)
                    eps = error_of(g, maps, prompt, i, slot[j], &square);
                if (form) {
                    assert_true(slot[j] > 0 && slot[j] >= sinks && slot[j] < PROMPT - recent);
                    worst = fmax(worst, eps);
                } else if (slot[j] > 0 && slot[j] >= sinks && slot[j] < PROMPT - recent) {
                    best = fmin(best, eps);
                }
            }
        }
        if (i % share == share - 1)
            assert_true(worst <= best * (1 + 1e-4));
    }
}

/* For every method: bytes are the host's but for positions, kept == asked, the right ones lose
 * their values, and what comes out equals attention with the rebuilt values in place. */
static void over_methods(ek_dtype storage, int joint)
{
    enum { B = 40 };
    grid g;
    float *a, *b;
    ek_cache prompt;
    double control = 0;
    int with = 0;

    grid_open(&g, storage);
    a = malloc(record_size(&g) * sizeof *a);
    b = malloc(record_size(&g) * sizeof *b);
    prompt_open(&g, &prompt);
    for (int i = 0; i < g.n; i++) {
        const ek_policy host = with_vector(&g.method[i], NULL, B);
        const ek_policy p = with_vector(&g.method[i], &g.maps[joint], B);
        const int lists = g.m.dims->n_layers * g.m.dims->n_heads;
        int32_t more;
        ek_cache_bytes x, y;
        ek_row row, plain;

        if (joint && p.method.budget != EK_SHARE_UNIFORM)
            continue; /* heads of joint maps keep one set */
        run(&g, &host, &prompt, &plain, a);
        run(&g, &p, &prompt, &row, b);
        more = ek_vector_a(&p.method, PROMPT, row.kept_asked);
        with += more > 0;
        x = ek_cache_count(&plain.cache);
        y = ek_cache_count(&row.cache);
        assert_int_equal(x.kv, y.kv);
        assert_int_equal(y.pos - x.pos, 4 * (int64_t)more * lists);
        assert_int_equal(ek_cache_mapped(&row.cache), 2 * (int64_t)more * lists);
        assert_int_equal(row.kept_asked, plain.kept_asked);
        assert_int_equal(llround(row.kept_sum), llround(plain.kept_sum));
        if (p.method.budget == EK_SHARE_UNIFORM) {
            assert_int_equal(row.kept_min, row.kept_asked);
            assert_int_equal(row.kept_max, row.kept_asked);
        }
        check_choice(&g, &p, &prompt, ek_engine_plan(g.e), row.kept_asked);
        if (storage == EK_F32) {
            control = fmax(control, furthest(a, b, record_size(&g)));
            materialised(&g, p.method.maps, &prompt, ek_engine_plan(g.e), a);
            assert_true(furthest(a, b, record_size(&g)) < 2e-4);
        }
        ek_row_close(&row);
        ek_row_close(&plain);
    }
    assert_true(with > 3);
    assert_true(storage != EK_F32 || control > 1e-2); /* the host's own output is another */
    ek_cache_close(&prompt);
    grid_close(&g);
    free(a);
    free(b);
}

static void values_are_as_good_as_made(void **state)
{
    (void)state;
    over_methods(EK_F32, 0);
}

static void joint_maps_too(void **state)
{
    (void)state;
    over_methods(EK_F32, 1);
}

static void stored_as_bf16(void **state)
{
    (void)state;
    over_methods(EK_BF16, 0);
}

/* Values that are W x + b of their keys: losing them loses nothing of the whole pool. */
static void exact_maps_lose_nothing(void **state)
{
    enum { B = 40 };
    grid g;
    float *a, *b;

    (void)state;
    grid_open(&g, EK_F32);
    a = malloc(record_size(&g) * sizeof *a);
    b = malloc(record_size(&g) * sizeof *b);
    for (int joint = 0; joint < 2; joint++)
        for (int planted = 0; planted < 2; planted++) {
            const ek_method m = named(&g, "keydiff");
            const ek_policy p = with_vector(&m, &g.maps[joint], B);
            ek_policy pool = with_vector(&m, NULL, B + ek_vector_a(&p.method, PROMPT, B));
            ek_cache prompt;
            ek_row row;

            pool.method.granularity = p.method.granularity;
            prompt_open(&g, &prompt);
            for (int i = 0; planted && i < g.m.dims->n_layers * g.m.dims->n_heads; i++)
                for (int32_t s = 0; s < PROMPT; s++) {
                    const int64_t e = prompt.layer_at[i / g.m.dims->n_heads] + prompt.first[i] + s;
                    double v[64];

                    rebuild(&g, &g.maps[joint], &prompt, i, s, v);
                    for (int d = 0; d < g.m.dims->head_dim; d++)
                        ((float *)prompt.v)[e * g.m.dims->head_dim + d] = (float)v[d];
                }
            run(&g, &pool, &prompt, &row, a);
            assert_int_equal(ek_cache_mapped(&row.cache), 0);
            ek_row_close(&row);
            run(&g, &p, &prompt, &row, b);
            assert_true(ek_cache_mapped(&row.cache) > 0);
            ek_row_close(&row);
            if (planted)
                assert_true(furthest(a, b, record_size(&g)) < 2e-4);
            else /* negative control: a map of other values */
                assert_true(furthest(a, b, record_size(&g)) > 1e-2);
            ek_cache_close(&prompt);
        }
    grid_close(&g);
    free(a);
    free(b);
}

/* Nothing to approximate: the host, to the bit. */
static void nothing_lost_is_the_host_to_the_bit(void **state)
{
    static const int32_t entries[] = {PROMPT, PROMPT - 1, 1, 40};
    grid g;
    float *a, *b;
    ek_cache prompt;

    (void)state;
    grid_open(&g, EK_BF16);
    a = malloc(record_size(&g) * sizeof *a);
    b = malloc(record_size(&g) * sizeof *b);
    prompt_open(&g, &prompt);
    for (int i = 0; i < g.n; i++)
        for (size_t k = 0; k < EK_COUNT(entries); k++) {
            const ek_policy host = with_vector(&g.method[i], NULL, entries[k]);
            const ek_policy p = with_vector(&g.method[i], &g.maps[0], entries[k]);
            ek_row row;
            int64_t mapped;

            memset(a, 0, record_size(&g) * sizeof *a);
            memset(b, 0, record_size(&g) * sizeof *b);
            run(&g, &host, &prompt, &row, a);
            ek_row_close(&row);
            run(&g, &p, &prompt, &row, b);
            mapped = ek_cache_mapped(&row.cache);
            ek_row_close(&row);
            if (k < 3)
                assert_int_equal(mapped, 0);
            if (mapped == 0)
                assert_memory_equal(a, b, record_size(&g) * sizeof *a);
            else /* negative control */
                assert_memory_not_equal(a, b, record_size(&g) * sizeof *a);
        }
    ek_cache_close(&prompt);
    grid_close(&g);
    free(a);
    free(b);
}

/* The other orders of losing values. */
static void other_orders(void **state)
{
    static const struct {
        const char *method;
        ek_lose select;
        int32_t entries;
    } orders[] = {{"keydiff", EK_LOSE_RELATIVE, 40},
                  {"snapkv", EK_LOSE_WEIGHTED, 90},
                  {"kvpop", EK_LOSE_WEIGHTED, 100},
                  {"keydiff", EK_LOSE_SCORE, 40}};
    grid g;
    ek_cache prompt;

    (void)state;
    grid_open(&g, EK_F32);
    prompt_open(&g, &prompt);
    for (size_t o = 0; o < EK_COUNT(orders); o++) {
        const ek_lose select = orders[o].select;
        const int32_t B = orders[o].entries; /* more than is protected */
        const ek_method m = named(&g, orders[o].method);
        const int learned = m.measure.signal->learner != NULL;
        ek_policy p = with_vector(&m, &g.maps[0], B);
        float *score = malloc((size_t)prompt.layer_at[1] * sizeof *score);
        const ek_plan *plan;
        int lane = -1, swapped = 0;
        ek_row row;

        p.method.select = select;
        for (int i = 0; i < prompt.n_lanes; i++)
            if (ek_measure_same(prompt.lane[i].measure, &p.method.measure))
                lane = i;
        ok(ek_row_open(&row, g.e, &prompt, &p, PROMPT, GROW, 0, &err));
        plan = ek_engine_plan(g.e);
        for (int i = 0; i < g.m.dims->n_layers * g.m.dims->n_heads; i++) {
            const int l = i / g.m.dims->n_heads;
            double worst[2] = {-INFINITY, 0}, best[2] = {INFINITY, INFINITY};
            int32_t sinks, recent;

            ok(ek_policy_scores(&p, &prompt, lane, l, score, &err));
            ek_policy_protected(&p.method, PROMPT, B, &sinks, &recent);
            for (int form = 0; form < 2; form++) {
                const int32_t *first = form ? plan->mapped_first : plan->first;
                const int32_t *slot = form ? plan->mapped : plan->slot;

                for (int32_t j = first[i]; j < first[i + 1]; j++) {
                    double square, eps = error_of(&g, &g.maps[0], &prompt, i, slot[j], &square);
                    const double x = (double)score[prompt.first[i] + slot[j]];
                    const double by = select == EK_LOSE_RELATIVE ? eps / square
                                      : select == EK_LOSE_SCORE  ? x
                                                                 : eps * (learned ? exp(x) : x);

                    if (form) {
                        worst[0] = fmax(worst[0], by);
                        worst[1] = fmax(worst[1], eps);
                    } else if (slot[j] > 0 && slot[j] >= sinks && slot[j] < PROMPT - recent) {
                        best[0] = fmin(best[0], by);
                        best[1] = fmin(best[1], eps);
                    }
                }
            }
            assert_true(worst[0] <= best[0] + 1e-4 * fabs(best[0]));
            swapped += worst[1] > best[1] * (1 + 1e-4);
        }
        assert_true(swapped > 0); /* it is not the order by error */
        ek_row_close(&row);
        free(score);
    }
    ek_cache_close(&prompt);
    grid_close(&g);
}

/* Steps over an annex allocate nothing, and a row's bits do not depend on its company. */
static void company_and_steady_steps(void **state)
{
    grid g;
    ek_cache prompt;
    ek_row row[3], *rows[3];
    float *logits, *alone;
    int64_t grown, engine;
    size_t nv;

    (void)state;
    grid_open(&g, EK_BF16);
    nv = (size_t)g.m.dims->n_vocab;
    logits = calloc(3 * nv, sizeof *logits);
    alone = malloc((size_t)STEPS * nv * sizeof *alone);
    prompt_open(&g, &prompt);
    for (int together = 0; together < 2; together++) {
        const ek_method m = named(&g, "keydiff"), r = named(&g, "recency");
        const ek_policy p[3] = {with_vector(&r, &g.maps[0], 50), with_vector(&m, &g.maps[0], 30),
                                with_vector(&r, NULL, 20)};

        for (int i = 0; i < 3; i++) {
            rows[i] = &row[i];
            ok(ek_row_open(rows[i], g.e, &prompt, &p[i], PROMPT, GROW, 0, &err));
        }
        grown = engine = 0;
        for (int s = 0; s < STEPS; s++) {
            for (int i = 0; i < 3; i++) {
                rows[i]->feed = g.tok + PROMPT + s;
                rows[i]->n_feed = rows[i]->n_logits = together || i == 1 ? 1 : 0;
                rows[i]->logits = logits + (size_t)i * nv;
                rows[i]->counts = 1;
            }
            ok(ek_engine_step(g.e, rows, 3, &err));
            if (together)
                assert_memory_equal(logits + nv, alone + (size_t)s * nv, nv * sizeof *alone);
            else
                memcpy(alone + (size_t)s * nv, logits + nv, nv * sizeof *alone);
            if (s == 1) {
                grown = g.m.dev->work_grown;
                engine = ek_engine_grown(g.e);
            }
        }
        assert_int_equal(g.m.dev->work_grown, grown);
        assert_int_equal(ek_engine_grown(g.e), engine);
        assert_memory_not_equal(logits, logits + nv, nv * sizeof *logits);
        for (int i = 0; i < 3; i++)
            ek_row_close(rows[i]);
    }
    ek_cache_close(&prompt);
    grid_close(&g);
    free(logits);
    free(alone);
}

/* ---- refusals ---- */

static void refused(const ek_method_set *set, const char *says)
{
    ek_method m;

    assert_int_equal(ek_method_open(&m, set, &err), EK_EASKED);
    assert_non_null(strstr(err.msg, says));
}

static void what_means_nothing_is_refused(void **state)
{
    ek_method_set set = ek_method_set_defaults;
    const ek_maps_need need = {0};
    ek_maps maps = {0};
    ek_method m;

    (void)state;
    set.name = (char[]){"keydiff"};
    set.maps = (char[]){"nowhere"};
    refused(&set, "rest: vector");
    set.maps = NULL;
    set.select = 1;
    refused(&set, "rest: vector");
    set.select = 0;
    set.approximate = .5;
    refused(&set, "approximate");
    set.rest = EK_REST_VECTOR;
    refused(&set, "maps");
    set.maps = (char[]){"nowhere"};
    set.select = EK_LOSE_WEIGHTED;
    refused(&set, "attention");
    set.select = 0;
    ok(ek_method_open(&m, &set, &err));
    assert_int_equal(ek_vector_open(&maps, &m, &set, EK_DECODE_HOLD, &need, &err), EK_EASKED);
    assert_non_null(strstr(err.msg, "hold"));
    assert_int_equal(ek_vector_open(&maps, &m, &set, EK_DECODE_ROW, &need, &err), EK_EASKED);
    assert_non_null(strstr(err.msg, "grow"));
    assert_int_equal(ek_vector_open(&maps, &m, &set, EK_DECODE_GROW, &need, &err), EK_EASKED);
    assert_non_null(strstr(err.msg, "nowhere"));
    assert_null(m.maps);
    set.name = (char[]){"full"};
    refused(&set, "cuts once");
}

/* A plan that cannot be carried out leaves both caches as they were. */
static void wrong_plans_are_refused(void **state)
{
    grid g;
    ek_cache prompt, to;
    ek_plan plan;

    (void)state;
    grid_open(&g, EK_F32);
    prompt_open(&g, &prompt);
    const int lists = g.m.dims->n_layers * g.m.dims->n_heads;
    int32_t room[64];
    ek_cache_need need = {.dims = *g.m.dims,
                          .dtype = EK_F32,
                          .cap = PROMPT + GROW,
                          .mapped = room,
                          .maps = &g.maps[0]};

    for (int i = 0; i < lists; i++)
        room[i] = 2;
    ok(ek_cache_open(&to, &need, g.m.dev, &err));
    need.maps = NULL;
    ek_cache none;
    assert_int_equal(ek_cache_open(&none, &need, g.m.dev, &err), EK_EBROKEN);
    for (int wrong = 0; wrong < 6; wrong++) {
        ok(ek_plan_open(&plan, g.m.dims, 10 * lists, &err));
        for (int i = 0; i < lists; i++) {
            plan.of[i] = PROMPT;
            plan.first[i + 1] = 2 * (i + 1);
            plan.slot[2 * i] = 0;
            plan.slot[2 * i + 1] = 7;
            plan.mapped_first[i + 1] = 2 * (i + 1);
            plan.mapped[2 * i] = 5;
            plan.mapped[2 * i + 1] = 9;
        }
        if (wrong == 1)
            plan.mapped[3] = 7; /* kept with its value too */
        if (wrong == 2)
            plan.mapped[3] = 5; /* not ascending */
        if (wrong == 3)
            plan.mapped[3] = PROMPT;
        if (wrong == 4)
            plan.mapped_first[lists] = 2 * lists + 1; /* no room */
        if (wrong == 0) {
            ok(ek_cache_apply(&to, &prompt, -1, &plan, &err));
            ok(ek_cache_check(&to, &err));
            assert_int_equal(ek_cache_mapped(&to), 2 * lists);
            assert_int_equal(to.annex.pos[1], 9);
        } else if (wrong == 5) { /* in place */
            assert_int_equal(ek_cache_apply(&prompt, &prompt, -1, &plan, &err), EK_EBROKEN);
        } else {
            assert_int_equal(ek_cache_apply(&to, &prompt, -1, &plan, &err), EK_EBROKEN);
            assert_int_equal(to.annex.pos[1], 9);
        }
        ek_plan_close(&plan);
    }
    to.annex.pos[0] = 7; /* where an entry with value stands */
    assert_int_equal(ek_cache_check(&to, &err), EK_EBROKEN);
    ek_cache_close(&to);
    ek_cache_close(&prompt);
    grid_close(&g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(counts_are_those_of_the_definition),
        cmocka_unit_test(values_are_as_good_as_made),
        cmocka_unit_test(joint_maps_too),
        cmocka_unit_test(stored_as_bf16),
        cmocka_unit_test(exact_maps_lose_nothing),
        cmocka_unit_test(nothing_lost_is_the_host_to_the_bit),
        cmocka_unit_test(other_orders),
        cmocka_unit_test(company_and_steady_steps),
        cmocka_unit_test(what_means_nothing_is_refused),
        cmocka_unit_test(wrong_plans_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
