/* tests/test_nested.c - nested top-k with the real parts: at every step the running cache, under
 * the kvpop policy and a learned scorer, holds what the training mask says is visible. */
#include "core/rng.h"
#include "infer/policy.h"
#include "scorers/age.h"
#include "train/rank.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { HEADS = 3, DIM = 8, SEQ = 300, SINKS = 3, RECENT = 12, KEEP = 25 };
enum { BUDGET = SINKS + RECENT + KEEP };

static ek_device *dev;

typedef struct world {
    ek_scorer scorer;
    ek_policy policy;
    ek_cache running, whole; /* one evicts, one keeps all */
    float *params;
} world;

static void open_world(world *w)
{
    const ek_dims dims = {.n_layers = 1, .n_heads = HEADS, .group = 1, .head_dim = DIM, .scale = 1};
    ek_err err;

    memset(w, 0, sizeof *w);
    w->scorer = (ek_scorer){
        .cls = &ek_scorer_mlp, .dev = dev, .dims = dims, .set = {.hidden = 5, .age = EK_AGE_EXP}};
    const size_t n = ek_params_size(&w->scorer);
    w->params = malloc(n * sizeof *w->params);
    ek_scorer_mlp.learner->init(&w->scorer, w->params, 1);
    for (size_t i = 0; i < n; i++)
        w->params[i] += (float)(0.7 * ek_rng_normal(2, 2, i));
    for (int h = 0; h < HEADS; h++) /* gammas from fast to slow fading */
        w->params[ek_params_at(&w->scorer, 7, 0, h)] = (float)(3 * h - 1);
    w->scorer.params = w->params;
    w->policy.method = ek_method_kvpop;
    w->policy.method.measure.scorer = &w->scorer;
    w->policy.method.protect.sinks = SINKS;
    w->policy.method.protect.recent = RECENT;
    w->policy.decode = EK_DECODE_ROW;
    const ek_measure *measure = &w->policy.method.measure;
    ek_cache_need need = {.dims = dims, .dtype = EK_BF16, .cap = SEQ};
    assert_int_equal(ek_cache_open(&w->whole, &need, dev, &err), EK_OK);
    if (ek_measure_n_carry(measure, 1) > 0) {
        need.n_lanes = 1;
        need.measures = &measure;
    }
    assert_int_equal(ek_cache_open(&w->running, &need, dev, &err), EK_OK);
}

static void close_world(world *w)
{
    ek_cache_close(&w->running);
    ek_cache_close(&w->whole);
    free(w->params);
}

static void append(world *w, int i)
{
    float k[HEADS * DIM], v[HEADS * DIM];

    for (int x = 0; x < HEADS * DIM; x++) {
        k[x] = (float)ek_rng_normal(5, 1, (uint64_t)(i * HEADS * DIM + x));
        v[x] = (float)ek_rng_normal(5, 2, (uint64_t)(i * HEADS * DIM + x));
    }
    ek_cache_append(&w->running, 0, k, HEADS * DIM, v, HEADS * DIM, 1);
    ek_cache_append(&w->whole, 0, k, HEADS * DIM, v, HEADS * DIM, 1);
    ek_cache_advance(&w->running, 1);
    ek_cache_advance(&w->whole, 1);
}

/* The training side: raw scores of the whole sequence, static priorities, one scan. */
static void rank_head(world *w, int h, ek_rank *rank)
{
    const ek_learner *l = ek_scorer_mlp.learner;
    float *act = malloc(l->scratch(&w->scorer, SEQ) * sizeof *act), r[SEQ], a[SEQ];
    ek_view view;

    ek_cache_view(&w->whole, 0, -1, &view);
    l->forward(&w->scorer, &view, h, act, r);
    for (int j = 0; j < SEQ; j++)
        a[j] = r[j] - (float)j * ek_age_log_gamma(&w->scorer, 0, h);
    ek_rank_run(rank, a, SEQ, SINKS, RECENT, KEEP);
    free(act);
}

/* Steps at which some head of the running cache differs from the mask of `keep` older tokens. */
static int differences(int keep)
{
    ek_policy_scratch scratch = {0};
    static char held[SEQ][HEADS][SEQ];
    ek_rank rank;
    ek_plan plan;
    ek_err err;
    world w;
    int wrong = 0, plans = 0;

    open_world(&w);
    memset(held, 0, sizeof held);
    assert_int_equal(ek_plan_open(&plan, &w.running.dims, HEADS * SEQ, &err), EK_OK);
    for (int i = 0; i < SEQ; i++) {
        const int lane = w.running.n_lanes > 0 ? 0 : -1;
        ek_view view;

        append(&w, i);
        const ek_memory mem = ek_cache_memory(&w.running, 0, lane);

        ek_cache_view(&w.running, 0, lane, &view);
        if (lane == 0)
            ek_measure_step(&w.policy.method.measure, dev, &view, NULL, &mem);
        if (ek_policy_due(&w.policy, EK_AT_STEP, i + 1, plans == 0, &w.running, BUDGET)) {
            assert_int_equal(
                ek_policy_plan(&w.policy, &w.running, lane, BUDGET, &scratch, &plan, &err), EK_OK);
            assert_int_equal(ek_cache_apply(&w.running, &w.running, lane, &plan, &err), EK_OK);
            plans++;
        }
        ek_cache_view(&w.running, 0, lane, &view);
        for (int h = 0; h < HEADS; h++)
            for (int e = 0; e < view.n[h]; e++)
                held[i][h][view.pos[view.first[h] + e]] = 1;
    }
    assert_int_equal(plans, SEQ - BUDGET);
    assert_int_equal(ek_rank_open(&rank, SEQ, &err), EK_OK);
    for (int h = 0; h < HEADS; h++) {
        rank_head(&w, h, &rank);
        if (keep != KEEP) /* the control ranks the same priorities for another budget */
            for (int j = 0; j < SEQ; j++)
                rank.evict[j] = j + keep;
        for (int i = 0; i < SEQ; i++) {
            int same = 1;

            for (int j = 0; j < SEQ; j++)
                same = same && held[i][h][j] == (keep == KEEP ? ek_rank_visible(&rank, i, j)
                                                              : j <= i && i < rank.evict[j]);
            wrong += !same;
        }
    }
    ek_rank_close(&rank);
    ek_plan_close(&plan);
    ek_policy_scratch_close(&scratch);
    close_world(&w);
    return wrong;
}

static void test_nested(void **state)
{
    (void)state;
    assert_int_equal(differences(KEEP), 0);
}

/* Negative control: a plain window is not what the cache holds. */
static void test_control(void **state)
{
    (void)state;
    assert_true(differences(KEEP + 1) > SEQ);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_nested),
                                       cmocka_unit_test(test_control)};
    ek_err err;

    if (ek_device_open(&dev, "cpu", getenv("EVICTKIT_ISA"), &err) != EK_OK)
        return 77;
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    ek_device_close(dev);
    return failed;
}
