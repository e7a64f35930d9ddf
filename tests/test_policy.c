/* tests/test_policy.c - plans: when they come, that protection is a mask, and that what is kept is
 * what was asked. */
#include "tests/check_given.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* All scores equal, or the protected ones worst: sinks and recent stay; ties go to the younger. */
static void protection_is_a_mask(void **state)
{
    ek_given b;
    ek_err err;

    (void)state;
    for (int worst = 0; worst < 2; worst++) {
        ek_given_open(&b, 2, 2, 50);
        b.p.method.protect = (ek_protect){.sinks = 4, .recent = 6};
        for (int h = 0; h < 2; h++)
            for (int j = 0; j < 50; j++)
                ek_given_score[h * 512 + j] = ek_given_score[h * 512 + 128 + j] =
                    worst && (j < 4 || j >= 44) ? -1e30f : 3;
        ek_ok(ek_given_plan(&b, 15, &err), &err);
        for (int i = 0; i < 4; i++)
            for (int j = 0; j < 15; j++)
                assert_int_equal(b.plan.slot[b.plan.first[i] + j], j < 4 ? j : 35 + j);
        ek_given_close(&b);
    }
}

/* 12 tokens under 4 sinks and 8 entries keep 0-3 and 8-11; four more, cut again: 0-3 and 12-15.
 * A "first B-w and last w" rule would differ, as B-w is not the number of sinks here. */
static void streaming_survives_repeated_cuts(void **state)
{
    static const int32_t after[2][8] = {{0, 1, 2, 3, 8, 9, 10, 11}, {0, 1, 2, 3, 12, 13, 14, 15}};

    (void)state;
    /* Rules of position alone keep the same at every granularity. */
    for (int g = EK_SET_PER_HEAD; g <= EK_SET_PER_MODEL; g++) {
        ek_policy p = {.method = *ek_method_find("streaming")};
        ek_policy_scratch scratch = {0};
        ek_plan plan;
        ek_cache c;
        ek_toy t;
        ek_err err;

        p.method.granularity = (ek_granularity)g;
        ek_toy_open(&t, 3, 3, 1, 4, EK_BF16);
        ek_toy_cache(&c, &t, 12, 1, NULL);
        ek_toy_feed(&t, &c, 12, 12, 0);
        ek_toy_plan(&plan, &c);
        for (int round = 0; round < 2; round++) {
            ek_ok(ek_policy_plan(&p, &c, -1, 8, &scratch, &plan, &err), &err);
            ek_ok(ek_cache_apply(&c, &c, -1, &plan, &err), &err);
            for (int i = 0; i < 9; i++) {
                assert_int_equal(c.n[i], 8);
                assert_memory_equal(c.pos + c.layer_at[i / 3] + c.first[i], after[round],
                                    sizeof after[round]);
            }
            for (int64_t s = 1; round == 0 && s <= 4; s++)
                ek_toy_feed(&t, &c, 1, 12, s);
        }
        ek_policy_scratch_close(&scratch);
        ek_plan_close(&plan);
        ek_cache_close(&c);
        ek_toy_close(&t);
    }
}

/* No recent window, 8 entries of 100: exactly 8, the best of them. */
static void a_window_of_zero_is_legal(void **state)
{
    ek_given b;
    ek_err err;

    (void)state;
    ek_given_open(&b, 1, 1, 100);
    for (int j = 0; j < 100; j++)
        ek_given_score[j] = (float)((j * 37) % 100);
    ek_ok(ek_given_plan(&b, 8, &err), &err);
    assert_int_equal(ek_plan_kept(&b.plan), 8);
    for (int j = 0; j < 8; j++)
        assert_true(ek_given_score[b.plan.slot[j]] >= 92);
    ek_given_close(&b);
}

/* One set for a layer or the model ranks the mean over its lists. */
static void one_set_ranks_the_mean(void **state)
{
    ek_given b;
    ek_err err;

    (void)state;
    ek_given_open(&b, 2, 2, 10);
    for (int h = 0; h < 2; h++)
        for (int l = 0; l < 2; l++) {
            ek_given_score[h * 512 + l * 128 + 3] = h == 0 ? 9 : -2; /* 3.5 on average */
            ek_given_score[h * 512 + l * 128 + 5] =
                l == 0 ? -7 : 16; /* -7 in layer 0, 4.5 on average */
            ek_given_score[h * 512 + l * 128 + 7] = 4;
        }
    for (int g = EK_SET_PER_HEAD; g <= EK_SET_PER_MODEL; g++) {
        static const int32_t best[3][4] = {{3, 7, 5, 5}, {7, 7, 5, 5}, {5, 5, 5, 5}};

        b.p.method.granularity = (ek_granularity)g;
        ek_ok(ek_given_plan(&b, 1, &err), &err);
        for (int i = 0; i < 4; i++)
            assert_int_equal(b.plan.slot[i], best[g][i]);
    }
    ek_given_close(&b);
}

/* A cache or a plan that does not hold what was asked is named by layer and head. */
static void lies_are_found(void **state)
{
    ek_given b;
    ek_cache fork;
    ek_err err;

    (void)state;
    ek_given_open(&b, 2, 2, 40);
    ek_ok(ek_given_plan(&b, 10, &err), &err);
    ek_toy_cache(&fork, &b.t, 40, 0, NULL);
    ek_ok(ek_cache_apply(&fork, &b.c, -1, &b.plan, &err), &err);
    ek_ok(ek_policy_check(&b.p, &b.plan, &b.c, &fork, 10, &err), &err);
    assert_int_equal(ek_policy_check(&b.p, &b.plan, &b.c, &fork, 11, &err), EK_EBROKEN);
    assert_int_equal(ek_policy_check(&b.p, &b.plan, &b.c, &b.c, 10, &err), EK_EBROKEN);
    fork.n[3]--;
    assert_int_equal(ek_policy_check(&b.p, &b.plan, &b.c, &fork, 10, &err), EK_EBROKEN);
    assert_non_null(strstr(err.msg, "layer 1, head 1"));
    fork.n[3]++;
    fork.pos[2]--;
    assert_int_equal(ek_policy_check(&b.p, &b.plan, &b.c, &fork, 10, &err), EK_EBROKEN);
    assert_non_null(strstr(err.msg, "layer 0, head 0"));
    ek_cache_close(&fork);

    /* Lists that differ cannot share one set. */
    b.plan.slot[b.plan.first[1] - 1]--;
    ek_ok(ek_given_plan(&b, 20, &err), &err);
    b.plan.slot[0]--;
    ek_ok(ek_cache_apply(&b.c, &b.c, -1, &b.plan, &err), &err);
    b.p.method.granularity = EK_SET_PER_LAYER;
    assert_int_equal(ek_given_plan(&b, 10, &err), EK_EBROKEN);
    b.p.method.granularity = EK_SET_PER_HEAD;
    ek_given_score[512 + 30] = NAN;
    assert_int_equal(ek_given_plan(&b, 10, &err), EK_ENAN);
    assert_non_null(strstr(err.msg, "layer 0, head 1, position 30"));
    ek_given_score[512 + 30] = -INFINITY;
    ek_ok(ek_given_plan(&b, 10, &err), &err);
    for (int j = 0; j < 10; j++)
        assert_int_not_equal(b.c.pos[b.c.first[1] + b.plan.slot[b.plan.first[1] + j]], 30);
    b.plan.room = 30;
    assert_int_equal(ek_given_plan(&b, 10, &err), EK_EBROKEN);
    ek_given_close(&b);
}

/* When plans are due, for each kind of method and each way to decode. */
static void plans_come_when_due(void **state)
{
    enum { OVER = 40, ENTRIES = 30 };
    ek_given b;

    (void)state;
    ek_given_open(&b, 1, 2, OVER);
    for (int d = EK_DECODE_ROW; d <= EK_DECODE_HOLD; d++) {
        ek_policy p = {.method = *ek_method_find("snapkv"), .decode = (ek_decode)d};
        const int hold = d == EK_DECODE_HOLD;

        assert_int_equal(ek_policy_due(&p, EK_AT_PREFILL_END, 0, 1, &b.c, ENTRIES), 1);
        assert_int_equal(ek_policy_due(&p, EK_AT_STEP, 1, 0, &b.c, ENTRIES), hold);
        assert_int_equal(ek_policy_due(&p, EK_AT_STEP, 7, 0, &b.c, OVER), 0);
        assert_int_equal(ek_policy_watches(&p, 0), hold);
        p.method = *ek_method_find("h2o");
        assert_int_equal(ek_policy_due(&p, EK_AT_STEP, 5, 0, &b.c, ENTRIES), d != EK_DECODE_GROW);
        p.method.when.every = 4;
        assert_int_equal(ek_policy_due(&p, EK_AT_STEP, 5, 0, &b.c, ENTRIES), hold);
        assert_int_equal(ek_policy_due(&p, EK_AT_STEP, 8, 0, &b.c, ENTRIES), d != EK_DECODE_GROW);
        assert_int_equal(ek_policy_due(&p, EK_AT_STEP, 5, 1, &b.c, ENTRIES), d != EK_DECODE_ROW);
        p.method = *ek_method_find("inertiakv");
        assert_int_equal(ek_policy_due(&p, EK_AT_PREFILL_END, 0, 1, &b.c, ENTRIES), 0);
        assert_int_equal(ek_policy_due(&p, EK_AT_STEP, 1, 1, &b.c, ENTRIES), 1);
        assert_int_equal(ek_policy_due(&p, EK_AT_STEP, 2, 0, &b.c, ENTRIES), d != EK_DECODE_GROW);
        assert_int_equal(ek_policy_watches(&p, 1), 1);
        p.method = *ek_method_find("full");
        assert_int_equal(ek_policy_due(&p, EK_AT_PREFILL_END, 0, 1, &b.c, ENTRIES), 0);
        assert_int_equal(ek_policy_due(&p, EK_AT_STEP, 1, 1, &b.c, ENTRIES), 0);
        assert_int_equal(ek_policy_watches(&p, 1), 0);
    }
    ek_given_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(protection_is_a_mask),
        cmocka_unit_test(streaming_survives_repeated_cuts),
        cmocka_unit_test(a_window_of_zero_is_legal),
        cmocka_unit_test(one_set_ranks_the_mean),
        cmocka_unit_test(lies_are_found),
        cmocka_unit_test(plans_come_when_due),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
