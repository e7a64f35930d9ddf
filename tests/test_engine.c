/* tests/test_engine.c - rows in lockstep: laws over all methods. */
#include "tests/check_model.h"

#include "core/rng.h"
#include "infer/engine.h"
#include "scorers/carried.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { PROMPT = 130, QUESTION = 9, STEPS = 40, GROW = QUESTION + STEPS, METHODS = 32 };

static ek_err err;
static const char *label[METHODS]; /* of a grid's policies */
static const char *real;           /* NULL, or the real model, which the same laws hold for */

static void ok(ek_code code)
{
    if (code != EK_OK)
        fail_msg("%s", err.msg);
}

/* Every method with its scorer; learned ones with random parameters. */
typedef struct grid {
    ek_check_model m;
    int steps; /* STEPS, or fewer on the real model */
    ek_engine *e;
    int n;
    ek_policy policy[METHODS];
    ek_scorer scorer[METHODS];
    ek_real *params[METHODS];
    const ek_measure *lane[METHODS]; /* (n_lanes) distinct measures that carry something */
    int n_lanes;
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

/* cls: NULL, or another learned class than the row's. */
static void add_policy(grid *g, const ek_method *row, const ek_scorer_class *cls, ek_scorer_set set)
{
    const int i = g->n++;
    ek_policy *p = &g->policy[i];
    ek_scorer *s = &g->scorer[i];

    assert_true(i < METHODS);
    label[i] = row->name;
    p->method = *row;
    if (cls)
        p->method.measure.signal = cls;
    set.seed = 3;
    *s = (ek_scorer){
        .cls = p->method.measure.signal, .dev = g->m.dev, .dims = *g->m.dims, .set = set};
    if (s->cls->learner) {
        const size_t n = ek_params_size(s);

        g->params[i] = malloc(sizeof(ek_real) * n);
        s->cls->learner->init(s, g->params[i], 77);
        for (size_t x = 0; x < n; x++)
            g->params[i][x] += (ek_real)(.1 * ek_rng_normal(4, 4, x));
        s->params = g->params[i];
    }
    p->method.measure.scorer = s;
    add_lane(g, &p->method.measure);
}

static void grid_open(grid *g, int threads)
{
    memset(g, 0, sizeof *g);
    g->steps = real ? 3 : STEPS;
    if (real)
        ek_check_model_real(&g->m, real, EK_BF16, threads);
    else
        ek_check_model_open(&g->m, NULL, EK_BF16, threads);
    ok(ek_engine_open(&g->e, g->m.model, g->m.dev, &err));
    while (ek_methods[g->n])
        add_policy(g, ek_methods[g->n], NULL, (ek_scorer_set){.hidden = 8, .age = EK_AGE_EXP});
    if (!real) {
        add_policy(g, ek_method_find("kvpop"), &ek_scorer_recurrent,
                   (ek_scorer_set){.age = EK_AGE_EXP, .recent = 64, .delay = 20});
        add_policy(g, ek_method_find("foresight"), &ek_scorer_mlp,
                   (ek_scorer_set){.hidden = 8, .age = EK_AGE_INPUT, .carried = EK_CARRIED_EMA});
        add_policy(g, ek_method_find("foresight"), &ek_scorer_linear,
                   (ek_scorer_set){.age = EK_AGE_POWER, .carried = EK_CARRIED_FULL});
        for (int every = 1; every <= 8; every += 7) { /* heads that share over the model */
            add_policy(g, ek_method_find("foresight"), &ek_scorer_mlp,
                       (ek_scorer_set){.hidden = 8, .age = EK_AGE_EXP, .carried = EK_CARRIED_EMA});
            g->policy[g->n - 1].method.budget = EK_SHARE_MODEL;
            g->policy[g->n - 1].method.when.every = every;
        }
        add_policy(g, ek_method_find("h2o"), NULL, (ek_scorer_set){.hidden = 8});
        g->policy[g->n - 1].method.budget = EK_SHARE_MODEL;
        g->policy[g->n - 1].method.floor = EK_SHARE_FLOOR;
    }
    ek_check_tokens(g->tok, PROMPT + GROW, g->m.dims->n_vocab, 42);
}

static void grid_close(grid *g)
{
    for (int i = 0; i < g->n; i++)
        free(g->params[i]);
    ek_engine_close(g->e);
    ek_check_model_close(&g->m);
}

/* The true future attention goes into the oracle's lane, as the evaluator would do it. */
static void fill_future(grid *g, ek_cache *c)
{
    for (int i = 0; i < c->n_lanes; i++)
        if (c->lane[i].measure->signal->source == EK_FROM_FUTURE) {
            ek_future f = {.n_sets = 1, .last = {STEPS}};

            f.sum[0] = c->lane[i].carry;
            ok(ek_engine_future(g->e, c, g->tok + PROMPT, STEPS, &f, &err));
        }
}

static void prompt_open(grid *g, ek_cache *c, float *logits)
{
    ek_check_cache_open(c, &g->m, PROMPT + GROW, g->lane, g->n_lanes);
    ok(ek_engine_read(g->e, c, g->tok, PROMPT, PROMPT, logits, NULL, &err));
    fill_future(g, c);
}

/* Decode all rows together, teacher-forced; record (rows, STEPS, n_vocab). */
static void decode(grid *g, ek_row *const *rows, int n, int at, int steps, float *record)
{
    const size_t nv = (size_t)g->m.dims->n_vocab;

    for (int s = 0; s < steps; s++) {
        for (int i = 0; i < n; i++) {
            rows[i]->feed = g->tok + at + s;
            rows[i]->n_feed = rows[i]->n_logits = 1;
            rows[i]->logits = record + ((size_t)i * steps + s) * nv;
            rows[i]->counts = 1;
        }
        ok(ek_engine_step(g->e, rows, n, &err));
        for (int i = 0; i < n; i++)
            ok(ek_cache_check(&rows[i]->cache, &err));
    }
}

static ek_policy policy_named(const grid *g, const char *name)
{
    for (int k = 0; k < g->n; k++)
        if (strcmp(label[k], name) == 0)
            return g->policy[k];
    fail_msg("no method %s", name);
    return (ek_policy){0};
}

static size_t record_size(const grid *g)
{
    return (size_t)g->steps * (size_t)g->m.dims->n_vocab;
}

/* ---- everything kept is the full cache ---- */

static void an_infinite_budget_is_the_full_cache(void **state)
{
    const ek_decode decodes[] = {EK_DECODE_ROW, EK_DECODE_GROW, EK_DECODE_HOLD};
    grid g;
    ek_cache prompt;
    ek_row full, row, *one = &full;
    float *a, *b;

    (void)state;
    grid_open(&g, 0);
    a = malloc(record_size(&g) * sizeof *a);
    b = malloc(record_size(&g) * sizeof *b);
    prompt_open(&g, &prompt, NULL);
    ok(ek_row_open(&full, g.e, &prompt, NULL, PROMPT, GROW, 0, &err));
    decode(&g, &one, 1, PROMPT, g.steps, a);
    for (int i = 0; i < g.n; i++)
        for (size_t d = 0; d < (real ? 1 : EK_COUNT(decodes)); d++) {
            ek_policy p = g.policy[i];

            p.budget = (ek_budget){.entries = 1 << 30};
            p.decode = decodes[d];
            ok(ek_row_open(&row, g.e, &prompt, &p, PROMPT, GROW, 0, &err));
            one = &row;
            decode(&g, &one, 1, PROMPT, g.steps, b);
            if (memcmp(a, b, record_size(&g) * sizeof *a) != 0)
                fail_msg("%s, decode %d: another record than the full cache's", p.method.name,
                         (int)d);
            assert_int_equal(row.cache.n[0], PROMPT + g.steps);
            ek_row_close(&row);
        }
    /* Negative control: one entry less. */
    ek_policy p = {.method = *ek_method_find("recency"), .budget = {.entries = PROMPT - 1}};

    ok(ek_row_open(&row, g.e, &prompt, &p, PROMPT, GROW, 0, &err));
    one = &row;
    decode(&g, &one, 1, PROMPT, g.steps, b);
    assert_memory_not_equal(a, b, record_size(&g) * sizeof *a);
    ek_row_close(&row);
    ek_row_close(&full);
    ek_cache_close(&prompt);
    free(a);
    free(b);
    grid_close(&g);
}

/* ---- a grid, and each row of it alone ---- */

/* All methods at two budgets; kept sets and logits as one record. */
typedef struct run {
    int n;
    float *logits;
    int32_t *pos; /* (rows, entries of the widest cache) kept positions at the end */
    size_t logits_size, pos_size;
} run;

static void set_policies(const grid *g, ek_policy *p, int n)
{
    static const int64_t keep[2] = {125, 300}; /* thousandths */

    for (int i = 0; i < n; i++) {
        p[i] = g->policy[i / 2];
        p[i].budget = (ek_budget){.num = keep[i % 2], .den = 1000};
        p[i].decode = (ek_decode)(i % 3);
    }
}

static void check_row(const grid *g, const ek_row *r)
{
    const int heads = g->m.dims->n_layers * g->m.dims->n_heads;
    const ek_cache *c = &r->cache;
    const int64_t kv = 2 * ek_cache_entries(c) * g->m.dims->head_dim * 2;
    int32_t most = 0;

    if (!r->policy) {
        assert_int_equal(c->n[0], PROMPT + r->step);
        return;
    }
    for (int i = 0; i < heads; i++)
        if (c->n[i] > most)
            most = c->n[i];
    assert_true(r->planned >= 1);
    assert_int_equal(r->kept_asked,
                     r->planned > 1 ? ek_policy_target(r->policy, r->entries) : r->entries);
    assert_int_equal(ek_cache_count(c).kv, kv);
    if (r->policy->decode == EK_DECODE_HOLD && r->policy->method.when.every > 1) {
        assert_true(ek_cache_entries(c) <= (int64_t)r->entries * heads);
        assert_true(r->kept_sum <= (double)r->entries * (double)r->steps_counted);
    } else if (r->policy->decode == EK_DECODE_HOLD) {
        assert_int_equal(ek_cache_entries(c), (int64_t)r->entries * heads);
        assert_int_equal((int64_t)llround(r->kept_sum), (int64_t)r->entries * r->steps_counted);
    }
    if (r->policy->method.budget == EK_SHARE_UNIFORM) {
        assert_int_equal(r->kept_min, r->kept_asked);
        assert_int_equal(r->kept_max, r->kept_asked);
        if (r->policy->decode == EK_DECODE_GROW && !r->policy->method.when.first_step)
            assert_int_equal(most, r->entries + r->step);
    }
    assert_int_equal(r->steps_counted, g->steps);
    assert_true(r->bytes_peak >= r->bytes_sum / r->steps_counted);
}

/* only < 0: all rows in lockstep; else that row alone.  question: fed after the cut. */
static run run_grid(grid *g, int only, int question)
{
    const int all = 2 * g->n, n = only < 0 ? all : 1;
    const size_t nv = (size_t)g->m.dims->n_vocab;
    run r = {.n = n, .logits_size = (size_t)n * record_size(g)};
    ek_policy p[2 * METHODS];
    ek_row row[2 * METHODS], *rows[2 * METHODS];
    ek_cache prompt;
    float *q = malloc(nv * (size_t)n * sizeof *q);

    set_policies(g, p, all);
    r.logits = malloc(r.logits_size * sizeof *r.logits);
    prompt_open(g, &prompt, NULL);
    r.pos_size = (size_t)n * (size_t)prompt.layer_at[prompt.dims.n_layers];
    r.pos = calloc(r.pos_size, sizeof *r.pos);
    for (int i = 0; i < n; i++) {
        rows[i] = &row[i];
        ok(ek_row_open(rows[i], g->e, &prompt, &p[only < 0 ? i : only], PROMPT, GROW,
                       question ? EK_ROW_QUESTION_LATER : 0, &err));
        if (question) {
            rows[i]->feed = g->tok + PROMPT;
            rows[i]->n_feed = QUESTION;
            rows[i]->n_logits = 1;
            rows[i]->logits = q + nv * (size_t)i;
            rows[i]->counts = 0;
        }
    }
    ek_cache_close(&prompt);
    if (question)
        ok(ek_engine_step(g->e, rows, n, &err));
    decode(g, rows, n, PROMPT + (question ? QUESTION : 0), g->steps, r.logits);
    for (int i = 0; i < n; i++) {
        ek_cache *c = &row[i].cache;
        int32_t *to = r.pos + r.pos_size / (size_t)n * (size_t)i;

        if (!question)
            check_row(g, rows[i]);
        for (int k = 0; k < c->dims.n_layers * c->dims.n_heads; k++) {
            memcpy(to, c->pos + c->layer_at[k / c->dims.n_heads] + c->first[k],
                   sizeof *to * (size_t)c->n[k]);
            to += c->n[k];
        }
        ek_row_close(rows[i]);
    }
    free(q);
    return r;
}

static void run_clear(run *r)
{
    free(r->logits);
    free(r->pos);
}

static void same_row(const run *a, int i, const run *b, int j, const char *name)
{
    const size_t x = a->logits_size / (size_t)a->n, y = a->pos_size / (size_t)a->n;

    if (memcmp(a->logits + x * (size_t)i, b->logits + x * (size_t)j, x * sizeof *a->logits) != 0)
        fail_msg("%s: other logits", name);
    if (memcmp(a->pos + y * (size_t)i, b->pos + y * (size_t)j, y * sizeof *a->pos) != 0)
        fail_msg("%s: other entries kept", name);
}

static void a_row_is_the_same_alone_and_in_company(void **state)
{
    (void)state;
    for (int question = real ? 1 : 0; question < 2; question++) {
        grid g;
        run all, again;

        grid_open(&g, 0);
        all = run_grid(&g, -1, question);
        again = run_grid(&g, -1, question);
        assert_true(all.n > 16);
        assert_memory_equal(all.logits, again.logits, all.logits_size * sizeof *all.logits);
        assert_memory_equal(all.pos, again.pos, all.pos_size * sizeof *all.pos);
        for (int i = 0; i < all.n; i += real ? 9 : 1) {
            run alone = run_grid(&g, i, question);

            same_row(&all, i, &alone, 0, g.policy[i / 2].method.name);
            run_clear(&alone);
        }
        /* Negative control: two methods do differ. */
        assert_memory_not_equal(all.logits + 2 * record_size(&g), all.logits + 4 * record_size(&g),
                                record_size(&g) * sizeof(float));
        run_clear(&all);
        run_clear(&again);
        grid_close(&g);
    }
}

static void the_number_of_threads_changes_nothing(void **state)
{
    run r[3];

    (void)state;
    for (int t = 0; t < 3; t++) {
        grid g;

        grid_open(&g, t + 1);
        r[t] = run_grid(&g, -1, 1);
        grid_close(&g);
    }
    for (int i = 0; i < r[0].n; i++)
        for (int t = 1; t < 3; t++)
            same_row(&r[0], i, &r[t], i, label[i / 2]);
    for (int t = 0; t < 3; t++)
        run_clear(&r[t]);
}

/* ---- memory ---- */

static void kept_memory_is_what_the_formula_says(void **state)
{
    enum { LONG = 800, ROOM = 16 };
    static const char *const names[] = {"snapkv", "inertiakv", "h2o", "foresight"};
    int32_t tok[LONG + ROOM];
    grid g;

    (void)state;
    grid_open(&g, 0);
    ek_check_tokens(tok, LONG + ROOM, g.m.dims->n_vocab, 8);
    for (size_t i = 0; i < EK_COUNT(names); i++) {
        const ek_dims *d = g.m.dims;
        const int64_t heads = (int64_t)d->n_layers * d->n_heads;
        ek_policy p;
        ek_cache prompt;
        ek_row row, *one = &row;
        ek_cache_bytes full, kept;
        int64_t held;

        p = policy_named(&g, names[i]);
        p.budget = (ek_budget){.num = 125, .den = 1000};
        p.decode = EK_DECODE_HOLD;
        ek_check_cache_open(&prompt, &g.m, LONG + ROOM, g.lane, g.n_lanes);
        ok(ek_engine_read(g.e, &prompt, tok, LONG, LONG, NULL, NULL, &err));
        full = ek_cache_count(&prompt);
        held = g.m.dev->bytes;
        ok(ek_row_open(&row, g.e, &prompt, &p, LONG, ROOM, EK_ROW_TAKE, &err));
        assert_null(prompt.block);
        row.feed = tok + LONG;
        row.n_feed = row.counts = 1;
        for (int s = 0; s < 3; s++, row.feed++)
            ok(ek_engine_step(g.e, &one, 1, &err));
        kept = ek_cache_count(&row.cache);
        /* One plan at the first step leaves room where scores are refreshed rarely. */
        const int64_t left = p.method.when.every > 1 ? ek_policy_target(&p, 100) + 2 : 100;
        assert_int_equal(row.entries, 100);
        assert_int_equal(kept.kv, 2 * heads * left * d->head_dim * 2);
        assert_int_equal(kept.pos, heads * left * 4);
        assert_true(kept.state <= heads * 100 * 4 * d->group);
        assert_true(kept.kv * 800 == full.kv * left);
        /* The block itself: the bytes of room for 100 + 16, and its tables. */
        assert_true(kept.block <=
                    heads * (100 + ROOM) * (4 * d->head_dim + 4 + 4 * d->group) + 4096);
        /* What the device holds has shrunk by as much. */
        assert_int_equal(g.m.dev->bytes, held - full.block + kept.block);
        assert_true(kept.block < full.block / 4);
        ek_row_close(&row);
    }
    grid_close(&g);
}

static void steady_decoding_allocates_nothing(void **state)
{
    static const char *const names[] = {"full", "h2o", "tova", "inertiakv", "kvpop", "snapkv"};
    ek_policy p[EK_COUNT(names)];
    ek_row row[EK_COUNT(names)], *rows[EK_COUNT(names)];
    const int n = (int)EK_COUNT(names);
    ek_cache prompt;
    grid g;
    int64_t bytes, grown, work;
    float *record;

    (void)state;
    grid_open(&g, 0);
    prompt_open(&g, &prompt, NULL);
    for (int i = 0; i < n; i++) {
        p[i] = policy_named(&g, names[i]);
        p[i].budget = (ek_budget){.entries = 40};
        rows[i] = &row[i];
        ok(ek_row_open(rows[i], g.e, &prompt, &p[i], PROMPT, GROW, 0, &err));
    }
    record = malloc(record_size(&g) * (size_t)n * sizeof *record);
    decode(&g, rows, n, PROMPT, 4, record);
    bytes = g.m.dev->bytes;
    work = g.m.dev->work_grown;
    grown = ek_engine_grown(g.e);
    decode(&g, rows, n, PROMPT + 4, STEPS - 4, record);
    assert_int_equal(g.m.dev->bytes, bytes);
    assert_int_equal(g.m.dev->work_grown, work);
    assert_int_equal(ek_engine_grown(g.e), grown);
    for (int i = 0; i < n; i++)
        ek_row_close(rows[i]);
    ek_cache_close(&prompt);
    free(record);
    grid_close(&g);
}

/* ---- small promises ---- */

static void inertiakv_cuts_at_the_first_step(void **state)
{
    grid g;
    ek_cache prompt;
    ek_row row, *one = &row;
    ek_policy p;
    float *record;

    (void)state;
    grid_open(&g, 0);
    record = malloc(record_size(&g) * sizeof *record);
    prompt_open(&g, &prompt, NULL);
    p = policy_named(&g, "inertiakv");
    p.budget = (ek_budget){.num = 1, .den = 4};
    ok(ek_row_open(&row, g.e, &prompt, &p, PROMPT, GROW, 0, &err));
    assert_int_equal(row.planned, 0);
    assert_int_equal(row.cache.n[0], PROMPT);
    assert_true(row.cache.cap[0] >= PROMPT + 1);
    decode(&g, &one, 1, PROMPT, 1, record);
    assert_int_equal(row.planned, 1);
    assert_int_equal(row.cache.n[0], PROMPT / 4);
    assert_true(row.cache.cap[0] < PROMPT);
    decode(&g, &one, 1, PROMPT + 1, 5, record);
    assert_int_equal(row.planned, 6);
    assert_int_equal(row.cache.n[0], PROMPT / 4);
    ek_row_close(&row);
    /* The question comes later: cut at once. */
    ok(ek_row_open(&row, g.e, &prompt, &p, PROMPT, GROW, EK_ROW_QUESTION_LATER, &err));
    assert_int_equal(row.planned, 1);
    assert_int_equal(row.cache.n[0], PROMPT / 4);
    ek_row_close(&row);
    ek_cache_close(&prompt);
    free(record);
    grid_close(&g);
}

static void wrong_requests_are_refused(void **state)
{
    grid g;
    ek_cache prompt;
    ek_row row, *one = &row;
    ek_policy p = {.method = *ek_method_find("h2o"), .budget = {.entries = 20}};

    (void)state;
    grid_open(&g, 0);
    ek_check_cache_open(&prompt, &g.m, PROMPT + GROW, NULL, 0);
    assert_int_equal(ek_engine_read(g.e, &prompt, g.tok, 2000, 2000, NULL, NULL, &err), EK_EASKED);
    assert_non_null(strstr(err.msg, "2000"));
    assert_non_null(strstr(err.msg, "1024"));
    ok(ek_engine_read(g.e, &prompt, g.tok, PROMPT, PROMPT, NULL, NULL, &err));
    assert_int_equal(ek_row_open(&row, g.e, &prompt, &p, PROMPT, GROW, 0, &err), EK_EBROKEN);
    assert_non_null(strstr(err.msg, "lane"));
    ek_cache_close(&prompt);
    prompt_open(&g, &prompt, NULL);
    p.method = *ek_method_find("kvpop");
    assert_int_equal(ek_row_open(&row, g.e, &prompt, &p, PROMPT, GROW, 0, &err), EK_EASKED);
    assert_non_null(strstr(err.msg, "weights"));
    p.method = *ek_method_find("h2o");
    ok(ek_row_open(&row, g.e, &prompt, &p, PROMPT, GROW, 0, &err));
    row.feed = g.tok;
    row.n_feed = 2;
    row.counts = 1;
    assert_int_equal(ek_engine_step(g.e, &one, 1, &err), EK_EBROKEN);
    row.n_feed = 0; /* resting rows are no error */
    ok(ek_engine_step(g.e, &one, 1, &err));
    ek_row_close(&row);
    ek_cache_close(&prompt);
    grid_close(&g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_infinite_budget_is_the_full_cache),
        cmocka_unit_test(a_row_is_the_same_alone_and_in_company),
        cmocka_unit_test(the_number_of_threads_changes_nothing),
        cmocka_unit_test(kept_memory_is_what_the_formula_says),
        cmocka_unit_test(steady_decoding_allocates_nothing),
        cmocka_unit_test(inertiakv_cuts_at_the_first_step),
        cmocka_unit_test(wrong_requests_are_refused),
    };

    /* The tiny model always; the real one, for fewer steps, when it is there. */
    const struct CMUnitTest real_tests[] = {
        cmocka_unit_test(an_infinite_budget_is_the_full_cache),
        cmocka_unit_test(a_row_is_the_same_alone_and_in_company),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);

    real = ek_check_real_model();
    if (real)
        failed += cmocka_run_group_tests(real_tests, NULL, NULL);
    return failed;
}
