/* tests/test_vector.c - what attention makes of entries that have lost their value.  Laws over all
 * methods that cut. */
#include "tests/check_vector.h"

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

static size_t record_size(const ek_rig *g)
{
    return (size_t)(EK_RIG_QUESTION + EK_RIG_STEPS) * (size_t)g->m.dims->n_vocab;
}

/* A question of several tokens in one step, then single ones. */
static void decode(ek_rig *g, ek_row *r, float *record)
{
    const size_t nv = (size_t)g->m.dims->n_vocab;

    r->feed = g->tok + EK_RIG_PROMPT;
    r->n_feed = r->n_logits = EK_RIG_QUESTION;
    r->logits = record;
    r->counts = 0;
    ok(ek_engine_step(g->e, &r, 1, &err));
    for (int s = 0; s < EK_RIG_STEPS; s++) {
        r->feed = g->tok + EK_RIG_PROMPT + EK_RIG_QUESTION + s;
        r->n_feed = r->n_logits = 1;
        r->logits = record + (size_t)(EK_RIG_QUESTION + s) * nv;
        r->counts = 1;
        ok(ek_engine_step(g->e, &r, 1, &err));
        ok(ek_cache_check(&r->cache, &err));
    }
}

/* Open a row under a policy, check its books, and decode; the plan stays the engine's last. */
static void run(ek_rig *g, const ek_policy *p, ek_cache *prompt, ek_row *row, float *record)
{
    ok(ek_row_open(row, g->e, prompt, p, EK_RIG_PROMPT, EK_RIG_GROW, EK_ROW_QUESTION_LATER, &err));
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
static void materialised(ek_rig *g, const ek_maps *maps, const ek_cache *prompt,
                         const ek_plan *plan, float *record)
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

            ek_rebuilt_value(g, maps, prompt, i, plan->mapped[j], v);
            for (int k = 0; k < d->head_dim; k++)
                ((float *)prompt
                     ->v)[(prompt->layer_at[i / d->n_heads] + prompt->first[i] + plan->mapped[j]) *
                              d->head_dim +
                          k] = (float)v[k];
        }
    whole_pool(plan, &all, d);
    ek_check_cache_open(&pool, &g->m, EK_RIG_PROMPT + EK_RIG_GROW, NULL, 0);
    ok(ek_cache_apply(&pool, prompt, -1, &all, &err));
    memcpy(prompt->v, values, bytes);
    ok(ek_row_open(&row, g->e, &pool, NULL, EK_RIG_PROMPT, EK_RIG_GROW, EK_ROW_TAKE, &err));
    decode(g, &row, record);
    ek_row_close(&row);
    ek_plan_close(&all);
    free(values);
}

/* Of the unprotected pool those lose their value whose eps is least; ends that are protected and
 * position 0 never do. */
static void check_choice(const ek_rig *g, const ek_policy *p, const ek_cache *prompt,
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
        ek_policy_protected(&p->method, EK_RIG_PROMPT, entries, &sinks, &recent);
        for (int form = 0; form < 2; form++) {
            const int32_t *first = form ? plan->mapped_first : plan->first;
            const int32_t *slot = form ? plan->mapped : plan->slot;

            for (int32_t j = first[i]; j < first[i + 1]; j++) {
                double eps = 0, square;

                for (int h = 0; maps->joint && h < H; h++)
                    eps += ek_rebuilt_error(g, maps, prompt, i / H * H + h, slot[j], &square);
                if (!maps->joint)
                    eps = ek_rebuilt_error(g, maps, prompt, i, slot[j], &square);
                if (form) {
                    assert_true(slot[j] > 0 && slot[j] >= sinks &&
                                slot[j] < EK_RIG_PROMPT - recent);
                    worst = fmax(worst, eps);
                } else if (slot[j] > 0 && slot[j] >= sinks && slot[j] < EK_RIG_PROMPT - recent) {
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
    ek_rig g;
    float *a, *b;
    ek_cache prompt;
    double control = 0;
    int with = 0;

    ek_rig_open(&g, storage);
    a = malloc(record_size(&g) * sizeof *a);
    b = malloc(record_size(&g) * sizeof *b);
    ek_rig_prompt(&g, &prompt);
    for (int i = 0; i < g.n; i++) {
        const ek_policy host = ek_with_vector(&g.method[i], NULL, B);
        const ek_policy p = ek_with_vector(&g.method[i], &g.maps[joint], B);
        const int lists = g.m.dims->n_layers * g.m.dims->n_heads;
        int32_t more;
        ek_cache_bytes x, y;
        ek_row row, plain;

        if (joint && p.method.budget != EK_SHARE_UNIFORM)
            continue; /* heads of joint maps keep one set */
        run(&g, &host, &prompt, &plain, a);
        run(&g, &p, &prompt, &row, b);
        more = ek_vector_a(&p.method, EK_RIG_PROMPT, row.kept_asked);
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
    ek_rig_close(&g);
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
    ek_rig g;
    float *a, *b;

    (void)state;
    ek_rig_open(&g, EK_F32);
    a = malloc(record_size(&g) * sizeof *a);
    b = malloc(record_size(&g) * sizeof *b);
    for (int joint = 0; joint < 2; joint++)
        for (int planted = 0; planted < 2; planted++) {
            const ek_method m = ek_rig_method(&g, "keydiff");
            const ek_policy p = ek_with_vector(&m, &g.maps[joint], B);
            ek_policy pool = ek_with_vector(&m, NULL, B + ek_vector_a(&p.method, EK_RIG_PROMPT, B));
            ek_cache prompt;
            ek_row row;

            pool.method.granularity = p.method.granularity;
            ek_rig_prompt(&g, &prompt);
            for (int i = 0; planted && i < g.m.dims->n_layers * g.m.dims->n_heads; i++)
                for (int32_t s = 0; s < EK_RIG_PROMPT; s++) {
                    const int64_t e = prompt.layer_at[i / g.m.dims->n_heads] + prompt.first[i] + s;
                    double v[64];

                    ek_rebuilt_value(&g, &g.maps[joint], &prompt, i, s, v);
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
    ek_rig_close(&g);
    free(a);
    free(b);
}

/* Nothing to approximate, or nothing asked to be (`approximate: 0`): the host, to the bit. */
static void nothing_lost_is_the_host_to_the_bit(void **state)
{
    static const int32_t entries[] = {EK_RIG_PROMPT, EK_RIG_PROMPT - 1, 1, 40, 40};
    enum { NONE_ASKED = 3, CONTROL }; /* places */
    ek_rig g;
    float *a, *b;
    ek_cache prompt;
    int with = 0;

    (void)state;
    ek_rig_open(&g, EK_BF16);
    a = malloc(record_size(&g) * sizeof *a);
    b = malloc(record_size(&g) * sizeof *b);
    ek_rig_prompt(&g, &prompt);
    for (int i = 0; i < g.n; i++)
        for (size_t k = 0; k < EK_COUNT(entries); k++) {
            const ek_policy host = ek_with_vector(&g.method[i], NULL, entries[k]);
            ek_policy p = ek_with_vector(&g.method[i], &g.maps[0], entries[k]);
            ek_row row;
            int64_t mapped;

            if (k == NONE_ASKED)
                p.method.spare = 1;
            memset(b, 0, record_size(&g) * sizeof *b);
            if (k < CONTROL) { /* whose host is the one before */
                memset(a, 0, record_size(&g) * sizeof *a);
                run(&g, &host, &prompt, &row, a);
                ek_row_close(&row);
            }
            run(&g, &p, &prompt, &row, b);
            mapped = ek_cache_mapped(&row.cache);
            ek_row_close(&row);
            if (k < CONTROL)
                assert_int_equal(mapped, 0);
            with += mapped > 0;
            if (mapped == 0)
                assert_memory_equal(a, b, record_size(&g) * sizeof *a);
            else /* negative control */
                assert_memory_not_equal(a, b, record_size(&g) * sizeof *a);
        }
    assert_true(with > 3);
    ek_cache_close(&prompt);
    ek_rig_close(&g);
    free(a);
    free(b);
}

/* Steps over an annex allocate nothing, and a row's bits do not depend on its company. */
static void company_and_steady_steps(void **state)
{
    ek_rig g;
    ek_cache prompt;
    ek_row row[3], *rows[3];
    float *logits, *alone;
    int64_t grown, engine;
    size_t nv;

    (void)state;
    ek_rig_open(&g, EK_BF16);
    nv = (size_t)g.m.dims->n_vocab;
    logits = calloc(3 * nv, sizeof *logits);
    alone = malloc((size_t)EK_RIG_STEPS * nv * sizeof *alone);
    ek_rig_prompt(&g, &prompt);
    for (int together = 0; together < 2; together++) {
        const ek_method m = ek_rig_method(&g, "keydiff"), r = ek_rig_method(&g, "recency");
        const ek_policy p[3] = {ek_with_vector(&r, &g.maps[0], 50),
                                ek_with_vector(&m, &g.maps[0], 30), ek_with_vector(&r, NULL, 20)};

        for (int i = 0; i < 3; i++) {
            rows[i] = &row[i];
            ok(ek_row_open(rows[i], g.e, &prompt, &p[i], EK_RIG_PROMPT, EK_RIG_GROW, 0, &err));
        }
        grown = engine = 0;
        for (int s = 0; s < EK_RIG_STEPS; s++) {
            for (int i = 0; i < 3; i++) {
                rows[i]->feed = g.tok + EK_RIG_PROMPT + s;
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
    ek_rig_close(&g);
    free(logits);
    free(alone);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_are_as_good_as_made),
        cmocka_unit_test(joint_maps_too),
        cmocka_unit_test(stored_as_bf16),
        cmocka_unit_test(exact_maps_lose_nothing),
        cmocka_unit_test(nothing_lost_is_the_host_to_the_bit),
        cmocka_unit_test(company_and_steady_steps),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
