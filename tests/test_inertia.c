/* tests/test_inertia.c - one state for the model: InertiaKV, Lazy, Score-Free. */
#include "tests/check_cache.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* The worked example: L = 2, alpha = .5; step 1 gives .225 .175 .35, step 2 .20625 .11875 .3125 .3,
 * and three entries leave out position 1. */
static void inertia_worked_example(void **state)
{
    static const float s[2][2][4] = {{{.5f, .3f, .2f}, {.2f, .2f, .6f}},
                                     {{.4f, .1f, .3f, .2f}, {.1f, .1f, .3f, .5f}}};
    static const double one[] = {.225, .175, .35}, two[] = {.20625, .11875, .3125, .3};
    ek_device *dev = ek_toy_device();
    ek_measure m = ek_row_of("inertiakv");
    float out[4];
    ek_err err;
    ek_hand a;

    (void)state;
    m.carry.rate = .5;
    ek_hand_make(&a, 1, 1, 2, 4);
    for (int t = 0; t < 2; t++) {
        ek_hand_resize(&a, 3 + t);
        for (int l = 0; l < 2; l++) {
            a.view.layer = l;
            ek_measure_step(&m, dev, &a.view, s[t][l], &(ek_memory){.shared = a.carry});
        }
        ek_ok(ek_measure_score(&m, dev, &a.view, out, &err), &err);
        for (int j = 0; j < 3 + t; j++)
            assert_true(ek_near_by(out[j], t ? two[j] : one[j], 1e-6));
    }
    ek_device_close(dev);
}

/* Layer l of a step weighs (1 - alpha) alpha^(L-1-l), the past alpha^L, together 1 - alpha^L.
 * Alpha 0 keeps the last layer only. */
static void inertia_weights_layers_geometrically(void **state)
{
    enum { L = 6 };
    ek_device *dev = ek_toy_device();
    static const double alphas[] = {.8, .5, 0};
    ek_hand a;

    (void)state;
    for (int i = 0; i < 3; i++) {
        ek_measure m = ek_row_of("inertiakv");
        double sum = 0;

        m.carry.rate = alphas[i];
        for (int probe = -1; probe < L;
             probe++) { /* one layer looks at entry 0, the others do not */
            ek_hand_make(&a, 2, 2, 2, 2);
            a.carry[0] = probe < 0;
            for (int l = 0; l < L; l++) {
                a.view.layer = l;
                memset(a.prob, 0, sizeof a.prob);
                for (int x = 0; x < 4; x++)
                    a.prob[x / 2 * 4 + x % 2] = l == probe;
                ek_measure_step(&m, dev, &a.view, a.prob, &(ek_memory){.shared = a.carry});
            }
            const double expected =
                probe < 0 ? pow(alphas[i], L) : (1 - alphas[i]) * pow(alphas[i], L - 1 - probe);
            assert_true(ek_near_by(a.carry[0], expected, 1e-6));
            sum += probe < 0 ? 0 : (double)a.carry[0];
        }
        assert_true(ek_near_by(sum, 1 - pow(alphas[i], L), 1e-6));
    }
    ek_device_close(dev);
}

/* The decoupled form with w_l = beta^(L-1-l) (1-beta) / (1-beta^L) and a = alpha^L, written
 * out here in double, is the coupled form. */
static void inertia_decoupled_equals_coupled(void **state)
{
    enum { L = 5, N = 7, STEPS = 4 };
    const double alpha = .8, past = pow(alpha, L);
    ek_device *dev = ek_toy_device();
    ek_measure m = ek_row_of("inertiakv");
    double m2[N] = {0};
    ek_hand a;

    (void)state;
    ek_hand_make(&a, 1, 1, 2, N);
    for (int t = 0; t < STEPS; t++) {
        double u[N] = {0};

        for (int l = 0; l < L; l++) {
            const double w = pow(alpha, L - 1 - l) * (1 - alpha) / (1 - past);
            double sum = 0;

            for (int j = 0; j < N; j++) {
                a.prob[j] = (float)((j * 7 + t * 3 + l * 5) % 11 + 1);
                sum += (double)a.prob[j];
            }
            for (int j = 0; j < N; j++) {
                a.prob[j] /= (float)sum;
                u[j] += w * (double)a.prob[j];
            }
            a.view.layer = l;
            ek_measure_step(&m, dev, &a.view, a.prob, &(ek_memory){.shared = a.carry});
        }
        for (int j = 0; j < N; j++)
            m2[j] = past * m2[j] + (1 - past) * u[j];
    }
    for (int j = 0; j < N; j++)
        assert_true(ek_near_by(a.carry[j], m2[j], 1e-6));
    assert_false(ek_near_by(a.carry[0], m2[1], 1e-6));
    ek_device_close(dev);
}

/* Lazy(r) looks at steps 1, 1 + r, ...; in between a newborn gets the mean of the living.
 * Lazy(1) is the full form, Lazy(infinity) is Score-Free. */
static void lazy_looks_at_every_fourth_step(void **state)
{
    const ek_measure full = ek_row_of("inertiakv"), lazy = ek_row_of("inertiakv_lazy"),
                     f = ek_row_of("scorefree");
    ek_measure often = lazy, never = lazy;
    ek_device *dev = ek_toy_device();
    ek_toy t;
    ek_hand a;

    (void)state;
    for (int64_t s = 1; s <= 13; s++) {
        assert_int_equal(ek_measure_wants_prob(&full, s), 1);
        assert_int_equal(ek_measure_wants_prob(&lazy, s), s % 4 == 1);
        assert_int_equal(ek_measure_wants_prob(&f, s), s == 1);
    }
    ek_hand_make(&a, 1, 1, 2, 4);
    a.carry[0] = .1f;
    a.carry[1] = .2f;
    a.carry[2] = .6f;
    ek_measure_step(&lazy, dev, &a.view, NULL, &(ek_memory){.shared = a.carry});
    assert_true(ek_near_by(a.carry[3], .3, 1e-7));
    assert_true(ek_near_by(a.carry[2], .6, 1e-7));
    a.view.layer = 1; /* once a step, not once a layer */
    a.carry[3] = 5;
    ek_measure_step(&lazy, dev, &a.view, NULL, &(ek_memory){.shared = a.carry});
    assert_true(ek_near_by(a.carry[3], 5, 0));
    ek_device_close(dev);

    often.carry.every = 1;
    never.carry.every = 1000000;
    ek_toy_open(&t, 3, 2, 2, 8, EK_BF16);
    const ek_measure *pairs[][2] = {{&full, &often}, {&f, &never}, {&full, &lazy}};
    for (int i = 0; i < 3; i++) {
        ek_cache x, y;

        ek_toy_cache(&x, &t, 40, 0, pairs[i][0]);
        ek_toy_cache(&y, &t, 40, 0, pairs[i][1]);
        ek_toy_feed(&t, &x, 20, 1000, 0);
        ek_toy_feed(&t, &y, 20, 1000, 0);
        for (int64_t s = 1; s <= 10; s++) {
            ek_toy_feed(&t, &x, 1, 20, s);
            ek_toy_feed(&t, &y, 1, 20, s);
        }
        assert_int_equal(ek_toy_same(&x, &y), i < 2);
        ek_cache_close(&x);
        ek_cache_close(&y);
    }
    ek_toy_close(&t);
}

/* All layers and heads hold equal position lists, step after step, and nothing leaves before
 * the first step. */
static void inertia_keeps_one_set(void **state)
{
    enum { N = 30, B = 12 };
    ek_toy t;
    ek_toy_cell cell;
    ek_method_set set = ek_method_set_defaults;
    ek_policy_scratch scratch = {0};
    ek_plan plan;
    ek_cache c;
    ek_err err;

    (void)state;
    set.name = (char[]){"inertiakv"};
    ek_toy_open(&t, 3, 2, 2, 8, EK_BF16);
    ek_toy_cell_open(&cell, &t, &set, EK_AGE_NONE);
    ek_toy_cache(&c, &t, N + 10, 1, &cell.policy.method.measure);
    ek_toy_feed(&t, &c, N, N, 0);
    assert_false(ek_policy_due(&cell.policy, EK_AT_PREFILL_END, 0, 1, &c, B));
    ek_ok(ek_plan_open(&plan, &c.dims, 6 * N, &err), &err);
    for (int64_t s = 1; s <= 10; s++) {
        ek_toy_feed(&t, &c, 1, N, s);
        assert_true(ek_policy_due(&cell.policy, EK_AT_STEP, s, s == 1, &c, B));
        if (s == 1) {
            ek_plan_close(&plan);
            ek_toy_plan(&plan, &c);
        }
        ek_ok(ek_policy_plan(&cell.policy, &c, 0, B, &scratch, &plan, &err), &err);
        ek_ok(ek_cache_apply(&c, &c, 0, &plan, &err), &err);
        for (int i = 0; i < 6; i++) {
            assert_int_equal(c.n[i], B);
            assert_memory_equal(c.pos + c.layer_at[i / 2] + c.first[i], c.pos, B * sizeof *c.pos);
        }
    }
    ek_policy_scratch_close(&scratch);
    ek_plan_close(&plan);
    ek_cache_close(&c);
    ek_toy_cell_close(&cell);
    ek_toy_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(inertia_worked_example),
        cmocka_unit_test(inertia_weights_layers_geometrically),
        cmocka_unit_test(inertia_decoupled_equals_coupled),
        cmocka_unit_test(lazy_looks_at_every_fourth_step),
        cmocka_unit_test(inertia_keeps_one_set),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
