/* tests/test_measure.c - how attention is combined: worked examples and the mistakes others
 * made. */
#include "tests/check_cache.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* [.1 .2 .3 .1] with 5: average [.12 .14 .14 .12], maximum .3 everywhere. */
static void pooling_pads_with_zeros_and_divides_by_size(void **state)
{
    static const float x[] = {.1f, .2f, .3f, .1f}, avg[] = {.12f, .14f, .14f, .12f};
    ek_device *dev = ek_toy_device();
    ek_measure m = ek_row_of("snapkv");
    float out[8];
    ek_err err;
    ek_hand a;

    (void)state;
    ek_hand_make(&a, 1, 1, 2, 4);
    memcpy(a.carry, x, sizeof x);
    m.queries = 0; /* no window: all columns are pooled */
    ek_ok(ek_measure_score(&m, dev, &a.view, out, &err), &err);
    for (int j = 0; j < 4; j++)
        assert_true(ek_near_by(out[j], avg[j], 1e-7));
    m.pool.kind = EK_POOL_MAX;
    ek_ok(ek_measure_score(&m, dev, &a.view, out, &err), &err);
    for (int j = 0; j < 4; j++)
        assert_true(ek_near_by(out[j], .3, 1e-7));
    /* Columns of the window are not neighbours: 2 of 8 queries' columns do not leak in. */
    ek_hand_make(&a, 1, 1, 2, 6);
    memcpy(a.carry, x, sizeof x);
    a.carry[4] = a.carry[5] = 9;
    m.queries = 2;
    m.pool.kind = EK_POOL_AVG;
    ek_ok(ek_measure_score(&m, dev, &a.view, out, &err), &err);
    for (int j = 0; j < 4; j++)
        assert_true(ek_near_by(out[j], avg[j], 1e-7));
    ek_device_close(dev);
}

/* Query head x looks at entry x alone, so kv head h's entries are hG .. hG+G-1.  Heads taken as
 * (G, H) would give {h, h + H, ...}. */
static void query_heads_belong_to_their_group(void **state)
{
    enum { H = 3, G = 3, D = 16, N = 2 * H * G };
    ek_device *dev = ek_toy_device();
    static float q[N * H * G * D], out[N * H * G * D], lse[N * H * G], scratch[H * N * G];
    static ek_hand a;
    float score[H * N];
    ek_measure m = ek_row_of("snapkv");
    ek_err err;

    (void)state;
    ek_hand_make(&a, H, G, D, N);
    for (int h = 0; h < H; h++)
        for (int j = 0; j < H * G; j++)
            a.k[(h * N + j) * D + j] = 1;
    for (int i = 0; i < N; i++)
        for (int x = 0; x < H * G; x++)
            q[(i * H * G + x) * D + x] = 60;
    ek_attn_row r = {.view = a.view, .n_new = N, .q = q, .out = out, .lse = lse};
    dev->ops.attn(dev, &r, 1, 1, H * G * D, H * G * D);
    const ek_colsum chunk = {
        .view = a.view, .n_q = N, .q = q, .ldq = H * G * D, .lse = lse, .horizon = -1};
    m.pool.kind = EK_POOL_NONE;
    ek_measure_prefill(&m, dev, &chunk, 1, N, &(ek_memory){.carry = a.carry}, scratch);
    ek_ok(ek_measure_score(&m, dev, &a.view, score, &err), &err);
    for (int h = 0; h < H; h++)
        for (int j = 0; j < H * G; j++)
            assert_true(ek_near_by(score[h * N + j], j / G == h ? 1.0 / G : 0, 1e-4));
    /* and one decode step, from the probabilities of the attention kernel */
    m = ek_row_of("tova");
    m.group.heads = EK_OWN_GROUP;
    r = (ek_attn_row){.view = a.view, .n_new = 1, .q = q, .out = out, .lse = lse, .prob = a.prob};
    dev->ops.attn(dev, &r, 1, 1, H * G * D, H * G * D);
    ek_measure_step(&m, dev, &a.view, a.prob, &(ek_memory){.carry = a.carry});
    ek_ok(ek_measure_score(&m, dev, &a.view, score, &err), &err);
    for (int h = 0; h < H; h++)
        for (int j = 0; j < H * G; j++)
            assert_true(ek_near_by(score[h * N + j], j / G == h ? 1.0 / G : 0, 1e-4));
    ek_device_close(dev);
}

/* A (.9, 0), B (.5, .5): mean and sum keep B, max keeps A. */
static void group_says_how_query_heads_fold(void **state)
{
    static const float prob[] = {.9f, 0, .5f, .5f};
    ek_device *dev = ek_toy_device();
    ek_measure m = ek_row_of("h2o");
    ek_err err;
    ek_hand a;

    (void)state;
    for (int by = EK_MEAN; by <= EK_SUM; by++) {
        float out[2];

        ek_hand_make(&a, 1, 2, 2, 2);
        m.group.by = (ek_combine)by;
        ek_measure_step(&m, dev, &a.view, prob, &(ek_memory){.carry = a.carry});
        ek_ok(ek_measure_score(&m, dev, &a.view, out, &err), &err);
        assert_int_equal(out[0] > out[1], by == EK_MAX);
        assert_true(ek_near_by(out[1], by == EK_SUM ? 1 : .5, 1e-7));
        assert_int_equal(ek_measure_n_carry(&m, 2), by == EK_MAX ? 2 : 1);
    }
    ek_device_close(dev);
}

/* Query rows (1) (.6 .4) (.5 .2 .3) (.4 .1 .2 .3), fed as decode steps. */
static void feed_rows(const ek_measure *m, ek_device *dev, ek_hand *a)
{
    static const float rows[4][4] = {{1}, {.6f, .4f}, {.5f, .2f, .3f}, {.4f, .1f, .2f, .3f}};

    ek_hand_make(a, 1, 1, 2, 4);
    for (int i = 0; i < 4; i++) {
        ek_hand_resize(a, i + 1);
        ek_measure_step(m, dev, &a->view, rows[i], &(ek_memory){.carry = a->carry});
    }
}

/* A = 2.5 .7 .5 .3; per age .625 .2333 .25 .3.  An H2O that looked at the last query only
 * would give .4 .1 .2 .3. */
static void h2o_adds_up_all_queries(void **state)
{
    static const double sum[] = {2.5, .7, .5, .3}, age[] = {.625, .7 / 3, .25, .3};
    ek_device *dev = ek_toy_device();
    ek_measure m = ek_row_of("h2o");
    float out[4];
    ek_err err;
    ek_hand a;

    (void)state;
    feed_rows(&m, dev, &a);
    ek_ok(ek_measure_score(&m, dev, &a.view, out, &err), &err);
    for (int j = 0; j < 4; j++)
        assert_true(ek_near_by(out[j], sum[j], 1e-6));
    m.carry.kind = EK_CARRY_AGE;
    ek_ok(ek_measure_score(&m, dev, &a.view, out, &err), &err);
    for (int j = 0; j < 4; j++)
        assert_true(ek_near_by(out[j], age[j], 1e-6));
    ek_device_close(dev);
}

/* Hot for 100 steps then cold, against one newly hot: stays under the plain sum, goes
 * under the sum per age and the EMA. */
static void sums_freeze_on_early_tokens(void **state)
{
    static const ek_carry_kind kinds[] = {EK_CARRY_SUM, EK_CARRY_AGE, EK_CARRY_EMA};
    ek_device *dev = ek_toy_device();
    ek_measure m = ek_row_of("h2o");
    ek_err err;
    ek_hand a;

    (void)state;
    for (int i = 0; i < 3; i++) {
        float out[130];

        m.carry.kind = kinds[i];
        m.carry.rate = .9;
        ek_hand_make(&a, 1, 1, 2, 120);
        for (int t = 0; t < 120; t++) {
            ek_hand_resize(&a, t + 1);
            memset(a.prob, 0, sizeof a.prob);
            a.prob[t < 100 ? 0 : 100] = 1;
            ek_measure_step(&m, dev, &a.view, a.prob, &(ek_memory){.carry = a.carry});
        }
        ek_ok(ek_measure_score(&m, dev, &a.view, out, &err), &err);
        assert_int_equal(out[0] > out[100], kinds[i] == EK_CARRY_SUM);
    }
    ek_device_close(dev);
}

/* While nothing was evicted, a head's sums add up to the number of queries; and the prompt in
 * one chunk, in many, or as decode steps is the same to rounding. */
static void sums_do_not_depend_on_chunks(void **state)
{
    static const char *const names[] = {"h2o", "tova", "snapkv"};
    enum { N = 40 };
    ek_toy t;

    (void)state;
    ek_toy_open(&t, 2, 2, 3, 8, EK_F32);
    for (int i = 0; i < 4; i++) {
        ek_measure m = ek_row_of(names[i % 3]);
        ek_cache a, b, c;
        float x[200], y[200], z[200];
        ek_err err;

        if (i == 3) { /* an EMA of the whole prompt */
            m.carry.kind = EK_CARRY_EMA;
            m.queries = 0;
            m.pool.kind = EK_POOL_NONE;
            m.carry.rate = .9;
        }
        ek_toy_cache(&a, &t, N, 0, &m);
        ek_toy_cache(&b, &t, N, 0, &m);
        ek_toy_cache(&c, &t, N, 0, &m);
        ek_toy_feed(&t, &a, N, N, 0);
        for (int at = 0; at < N; at += 7)
            ek_toy_feed(&t, &b, N - at < 7 ? N - at : 7, N, 0);
        for (int at = 0; at < N; at++)
            ek_toy_feed(&t, &c, 1, N, at + 1);
        for (int l = 0; l < 2; l++) {
            ek_view u, v, w;

            ek_cache_view(&a, l, 0, &u);
            ek_cache_view(&b, l, 0, &v);
            ek_cache_view(&c, l, 0, &w);
            ek_ok(ek_measure_score(&m, t.dev, &u, x, &err), &err);
            ek_ok(ek_measure_score(&m, t.dev, &v, y, &err), &err);
            ek_ok(ek_measure_score(&m, t.dev, &w, z, &err), &err);
            for (int h = 0; h < 2; h++) {
                double sum = 0;

                for (int j = 0; j < N; j++) {
                    assert_true(ek_near_by(x[u.first[h] + j], y[u.first[h] + j], 1e-5));
                    assert_true(i == 2 || ek_near_by(x[u.first[h] + j], z[u.first[h] + j], 1e-5));
                    sum += (double)x[u.first[h] + j];
                }
                assert_true(i != 0 || ek_near_by(sum, N, 1e-3));
                assert_true(i != 1 || ek_near_by(sum, 1, 1e-5));
            }
        }
        ek_cache_close(&a);
        ek_cache_close(&b);
        ek_cache_close(&c);
    }
    ek_toy_close(&t);
}

/* The dropped entry is the argmin of the mean row over all query heads, the same in all heads
 * of a layer. */
static void tova_drops_the_argmin_of_the_mean_row(void **state)
{
    enum { N = 12 };
    ek_toy t;
    ek_toy_cell cell;
    ek_method_set set = ek_method_set_defaults;
    ek_policy_scratch scratch = {0};
    ek_plan plan;
    ek_cache c;
    ek_err err;

    (void)state;
    set.name = (char[]){"tova"};
    ek_toy_open(&t, 3, 2, 3, 8, EK_F32);
    ek_toy_cell_open(&cell, &t, &set, EK_AGE_NONE);
    ek_toy_cache(&c, &t, N, 0, &cell.policy.method.measure);
    ek_toy_feed(&t, &c, N, N, 0);
    ek_toy_plan(&plan, &c);
    ek_ok(ek_policy_plan(&cell.policy, &c, 0, N - 1, &scratch, &plan, &err), &err);
    for (int l = 0; l < 3; l++) {
        const float *carry = ek_cache_memory(&c, l, 0).carry;
        int least = 0;

        for (int j = 1; j < N; j++)
            if (carry[j] + carry[N + j] < carry[least] + carry[N + least])
                least = j;
        for (int h = 0; h < 2; h++) {
            const int32_t *slot = plan.slot + plan.first[l * 2 + h];

            for (int j = 0; j < N - 1; j++)
                assert_int_equal(slot[j], j + (j >= least));
        }
    }
    ek_policy_scratch_close(&scratch);
    ek_plan_close(&plan);
    ek_cache_close(&c);
    ek_toy_cell_close(&cell);
    ek_toy_close(&t);
}

/* and the score itself is the mean over all query heads, in every head. */
static void tova_scores_all_heads_alike(void **state)
{
    static const float prob[] = {.9f, .1f, .3f, .3f, .2f, .4f, .6f, .1f};
    ek_device *dev = ek_toy_device();
    const ek_measure m = ek_row_of("tova");
    float out[4];
    ek_err err;
    ek_hand a;

    (void)state;
    ek_hand_make(&a, 2, 2, 2, 2);
    ek_measure_step(&m, dev, &a.view, prob, &(ek_memory){.carry = a.carry});
    ek_ok(ek_measure_score(&m, dev, &a.view, out, &err), &err);
    for (int h = 0; h < 2; h++) {
        assert_true(ek_near_by(out[2 * h], (.9 + .1 + .2 + .4) / 4, 1e-6));
        assert_true(ek_near_by(out[2 * h + 1], (.3 + .3 + .6 + .1) / 4, 1e-6));
    }
    a.n[1] = 1; /* heads that hold different numbers have no mean */
    assert_int_equal(ek_measure_score(&m, dev, &a.view, out, &err), EK_EBROKEN);
    ek_device_close(dev);
}

/* A sum over the window selects what the mean selects.  The window is min(64, n / 2). */
static void snapkv_window_sum_and_mean_select_the_same(void **state)
{
    enum { N = 50 };
    ek_toy t;
    ek_toy_cell cell;
    ek_method_set set = ek_method_set_defaults;
    ek_policy_scratch scratch = {0};
    ek_plan a, b;
    ek_cache c;
    ek_err err;
    double sum = 0;

    (void)state;
    set.name = (char[]){"snapkv"};
    ek_toy_open(&t, 1, 2, 2, 8, EK_F32);
    ek_toy_cell_open(&cell, &t, &set, EK_AGE_NONE);
    ek_toy_cache(&c, &t, N, 0, &cell.policy.method.measure);
    ek_toy_feed(&t, &c, N, N, 0);
    for (int j = 0; j < N; j++)
        sum += (double)c.lane[0].carry[j];
    assert_true(ek_near_by(sum, 1, 1e-5)); /* a mean of rows that add up to 1 */
    ek_toy_plan(&a, &c);
    ek_toy_plan(&b, &c);
    ek_ok(ek_policy_plan(&cell.policy, &c, 0, 30, &scratch, &a, &err), &err);
    for (int j = 0; j < 2 * N; j++)
        c.lane[0].carry[j] *= N / 2;
    ek_ok(ek_policy_plan(&cell.policy, &c, 0, 30, &scratch, &b, &err), &err);
    assert_true(ek_plan_same(&a, &b));
    for (int j = 0; j < N / 2; j++) /* the window stays */
        assert_int_equal(a.slot[30 - 1 - j], N - 1 - j);
    for (int j = 0; j < 2 * N; j++) /* the comparison can fail */
        c.lane[0].carry[j] *= -1;
    ek_ok(ek_policy_plan(&cell.policy, &c, 0, 30, &scratch, &b, &err), &err);
    assert_false(ek_plan_same(&a, &b));
    ek_policy_scratch_close(&scratch);
    ek_plan_close(&a);
    ek_plan_close(&b);
    ek_cache_close(&c);
    ek_toy_cell_close(&cell);
    ek_toy_close(&t);
}

/* NaN and +inf are refused with layer, head and position; -inf is a score like any other. */
static void nan_is_refused_by_place(void **state)
{
    ek_device *dev = ek_toy_device();
    const ek_measure m = ek_row_of("h2o");
    float out[8];
    ek_err err;
    ek_hand a;

    (void)state;
    ek_hand_make(&a, 2, 1, 2, 4);
    a.view.layer = 5;
    for (int j = 0; j < 8; j++)
        a.pos[j] = 10 + j % 4;
    a.carry[6] = -INFINITY;
    ek_ok(ek_measure_score(&m, dev, &a.view, out, &err), &err);
    a.carry[6] = NAN;
    assert_int_equal(ek_measure_score(&m, dev, &a.view, out, &err), EK_ENAN);
    assert_non_null(strstr(err.msg, "layer 5, head 1, position 12"));
    a.carry[6] = INFINITY;
    assert_int_equal(ek_measure_score(&m, dev, &a.view, out, &err), EK_ENAN);
    a.view.carry = NULL;
    assert_int_equal(ek_measure_score(&m, dev, &a.view, out, &err), EK_EBROKEN);
    ek_device_close(dev);
}

/* One lane serves two measures exactly if they remember the same. */
static void lanes_are_shared_by_what_they_remember(void **state)
{
    ek_scorer one = {.set = {.seed = 1}}, two = {.set = {.seed = 2}};
    ek_measure a = ek_row_of("h2o"), b = ek_row_of("h2o");

    (void)state;
    assert_true(ek_measure_same(&a, &b));
    b.group.by = EK_MAX;
    assert_false(ek_measure_same(&a, &b));
    b = ek_row_of("tova");
    assert_false(ek_measure_same(&a, &b));
    a = ek_row_of("snapkv");
    b = ek_row_of("snapkv");
    b.pool.size = 7; /* pooled when scored, not when carried */
    assert_true(ek_measure_same(&a, &b));
    b.pool.kind = EK_POOL_MAX; /* before any combining: every query head is remembered */
    assert_false(ek_measure_same(&a, &b));
    a = ek_row_of("random");
    b = ek_row_of("random");
    a.scorer = &one;
    b.scorer = &two;
    assert_false(ek_measure_same(&a, &b));
    two.set.seed = 1;
    assert_true(ek_measure_same(&a, &b));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pooling_pads_with_zeros_and_divides_by_size),
        cmocka_unit_test(query_heads_belong_to_their_group),
        cmocka_unit_test(group_says_how_query_heads_fold),
        cmocka_unit_test(h2o_adds_up_all_queries),
        cmocka_unit_test(sums_freeze_on_early_tokens),
        cmocka_unit_test(sums_do_not_depend_on_chunks),
        cmocka_unit_test(tova_drops_the_argmin_of_the_mean_row),
        cmocka_unit_test(tova_scores_all_heads_alike),
        cmocka_unit_test(snapkv_window_sum_and_mean_select_the_same),
        cmocka_unit_test(nan_is_refused_by_place),
        cmocka_unit_test(lanes_are_shared_by_what_they_remember),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
