/* tests/test_signals.c - signals of entries, chance and the future. */
#include "tests/check_cache.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Keys (1,0) (1,0) (0,1): anchor (2/3, 1/3), scores -.8944 -.8944 -.4472. */
static void keydiff_keeps_the_odd_one(void **state)
{
    ek_device *dev = ek_toy_device();
    const ek_measure m = ek_row_of("keydiff");
    float out[3];
    ek_err err;
    ek_hand a;

    (void)state;
    ek_hand_make(&a, 1, 1, 2, 3);
    a.k[0] = a.k[2] = a.k[5] = 1;
    ek_ok(ek_measure_score(&m, dev, &a.view, out, &err), &err);
    assert_true(ek_near_by(out[0], -.8944, 1e-4) && ek_near_by(out[1], -.8944, 1e-4));
    assert_true(ek_near_by(out[2], -.4472, 1e-4));
    ek_device_close(dev);
}

/* Key norms do not change when all keys are rotated to other positions; KeyDiff does. */
static void norms_survive_rotation(void **state)
{
    static const double inv_freq[] = {1, .3, .1, .01};
    enum { N = 9, D = 8 };
    ek_device *dev = ek_toy_device();
    const ek_measure norm = ek_row_of("knorm"), diff = ek_row_of("keydiff");
    float a_norm[N], b_norm[N], a_diff[N], b_diff[N];
    int32_t pos[N];
    ek_err err;
    ek_hand a;
    int moved = 0;

    (void)state;
    ek_hand_make(&a, 1, 1, D, N);
    a.view.carry = NULL;
    for (int i = 0; i < N * D; i++)
        a.k[i] = (float)((i * 29) % 17) / 8 - 1;
    for (int i = 0; i < N; i++)
        pos[i] = 5 * i + 3;
    ek_ok(ek_measure_score(&norm, dev, &a.view, a_norm, &err), &err);
    ek_ok(ek_measure_score(&diff, dev, &a.view, a_diff, &err), &err);
    dev->ops.rope(dev, a.k, D, N, 1, D, pos, inv_freq);
    ek_ok(ek_measure_score(&norm, dev, &a.view, b_norm, &err), &err);
    ek_ok(ek_measure_score(&diff, dev, &a.view, b_diff, &err), &err);
    for (int i = 0; i < N; i++) {
        assert_true(ek_near_by(a_norm[i], b_norm[i], 1e-5));
        moved += !ek_near_by(a_diff[i], b_diff[i], 1e-3);
    }
    assert_true(moved > 0);
    ek_device_close(dev);
}

/* The set of a small budget lies in that of a larger; over 10,000 seeds an entry stays with
 * frequency B / n within four standard errors. */
static void random_sets_are_nested_and_even(void **state)
{
    enum { N = 20, B = 7, SEEDS = 10000 };
    ek_toy t;
    ek_toy_cell cell;
    ek_method_set set = ek_method_set_defaults;
    ek_policy_scratch scratch = {0};
    ek_plan small, large;
    int count[N] = {0};
    ek_cache c;
    ek_err err;

    (void)state;
    set.name = (char[]){"random"};
    ek_toy_open(&t, 1, 1, 1, 2, EK_F32);
    ek_toy_cell_open(&cell, &t, &set, EK_AGE_NONE);
    ek_toy_cache(&c, &t, N, 0, NULL);
    ek_toy_feed(&t, &c, N, N, 0);
    ek_toy_plan(&small, &c);
    ek_toy_plan(&large, &c);
    for (int s = 0; s < SEEDS; s++) {
        cell.scorer.set.seed = s;
        ek_ok(ek_policy_plan(&cell.policy, &c, -1, B, &scratch, &small, &err), &err);
        for (int j = 0; j < B; j++)
            count[small.slot[j]]++;
        if (s >= 100)
            continue;
        for (int b = B + 1; b < N; b++) {
            int at = 0;

            ek_ok(ek_policy_plan(&cell.policy, &c, -1, b, &scratch, &large, &err), &err);
            for (int j = 0; j < b && at < B; j++)
                at += large.slot[j] == small.slot[at];
            assert_int_equal(at, B);
        }
    }
    const double rate = (double)B / N, error = sqrt(rate * (1 - rate) / SEEDS);
    for (int j = 0; j < N; j++)
        assert_true(ek_near_by((double)count[j] / SEEDS, rate, 4 * error));
    ek_policy_scratch_close(&scratch);
    ek_plan_close(&small);
    ek_plan_close(&large);
    ek_cache_close(&c);
    ek_toy_cell_close(&cell);
    ek_toy_close(&t);
}

/* With the group's mean, no set of equal size holds more of the future's group-mean mass. */
static void oracle_keeps_most_mass(void **state)
{
    enum { N = 40, B = 11, G = 2 };
    static const char *const others[] = {"random",  "streaming", "knorm",
                                         "keydiff", "h2o",       "snapkv"};
    ek_toy t;
    float mass[2 * N * G];
    double best = 0;

    (void)state;
    ek_toy_open(&t, 1, 2, G, 8, EK_F32);
    for (int i = 0; i < 2 * N * G; i++)
        mass[i] = (float)((i * 53 + 7) % 97) / 97;
    for (int i = -1; i < (int)EK_COUNT(others); i++) {
        char name[32];
        ek_method_set set = ek_method_set_defaults;
        ek_policy_scratch scratch = {0};
        ek_toy_cell cell;
        ek_plan plan;
        ek_cache c;
        ek_err err;
        double held = 0;

        snprintf(name, sizeof name, "%s", i < 0 ? "oracle" : others[i]);
        set.name = name;
        ek_toy_cell_open(&cell, &t, &set, EK_AGE_NONE);
        if (i < 0)
            cell.policy.method.measure.group.by = EK_MEAN;
        ek_toy_cache(&c, &t, N, 0, &cell.policy.method.measure);
        ek_toy_feed(&t, &c, N, N, 0);
        if (i < 0)
            memcpy(c.lane[0].carry, mass, sizeof mass);
        ek_toy_plan(&plan, &c);
        ek_ok(ek_policy_plan(&cell.policy, &c, c.n_lanes ? 0 : -1, B, &scratch, &plan, &err), &err);
        for (int h = 0; h < 2; h++)
            for (int j = 0; j < B; j++)
                for (int g = 0; g < G; g++)
                    held += (double)mass[(h * N + plan.slot[plan.first[h] + j]) * G + g] / G;
        if (i < 0)
            best = held;
        assert_true(i < 0 || held < best);
        ek_policy_scratch_close(&scratch);
        ek_plan_close(&plan);
        ek_cache_close(&c);
        ek_toy_cell_close(&cell);
    }
    ek_toy_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keydiff_keeps_the_odd_one),
        cmocka_unit_test(norms_survive_rotation),
        cmocka_unit_test(random_sets_are_nested_and_even),
        cmocka_unit_test(oracle_keeps_most_mass),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
