/* tests/test_share.c - heads that share the budget of a layer or of the model. */
#include "tests/check_given.h"

#include "core/rng.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { SHARE_H = 3, SHARE_N = 60, SHARE_B = 20, SHARE_LISTS = 3 * SHARE_H };

/* What heads keep that share SHARE_B each, from list `first` on, by a plain sort. */
static void sort_shares(int first, int lists, int recent, int least, int8_t want[][SHARE_N])
{
    static ek_ranked all[SHARE_LISTS * SHARE_N];
    const int end = SHARE_N - recent, protected = 1 + recent;
    int total = 0;

    for (int i = first; i < first + lists; i++) {
        const int l = i / SHARE_H, h = i % SHARE_H;
        ek_ranked own[SHARE_N];
        double sum = 0;
        int n = 0;

        for (int j = 1; j < end; j++) {
            const float x = ek_given_score[h * 512 + l * 128 + j];

            sum += exp((double)x);
            own[n++] = (ek_ranked){x, i, j};
        }
        qsort(own, (size_t)n, sizeof *own, ek_ranked_better);
        for (int j = 0; j < SHARE_N; j++)
            want[i][j] = j < 1 || j >= end;
        for (int k = 0; k < n; k++) {
            if (k < least - protected)
                want[i][own[k].e] = 1;
            else
                all[total++] = (ek_ranked){
                    (float)((double)own[k].x - log(sum) + (double)ek_given_mass[8 * l + h]), i,
                    own[k].e};
        }
    }
    qsort(all, (size_t)total, sizeof *all, ek_ranked_better);
    for (int k = 0; k < lists * (SHARE_B - least); k++)
        want[all[k].range][all[k].e] = 1;
}

/* Sums exact, floors kept, the calibrated best over all heads; checked against a plain sort. */
static void check_shares(uint64_t c, int n_layers, ek_share share, double floor)
{
    const int recent = c % 2 ? 2 : 6, lists = n_layers * SHARE_H;
    const int together = share == EK_SHARE_MODEL ? lists : SHARE_H;
    const int part = (int)(floor * SHARE_B + 1e-9), least = part > 1 + recent ? part : 1 + recent;
    int8_t want[SHARE_LISTS][SHARE_N];
    float scores[SHARE_LISTS * (SHARE_N + 20)];
    ek_given b;
    ek_err err;

    ek_given_open(&b, n_layers, SHARE_H, SHARE_N);
    b.p.method.budget = share;
    b.p.method.floor = floor;
    b.p.method.protect = (ek_protect){.sinks = 1, .recent = recent};
    for (int i = 0; i < lists; i++) {
        const int l = i / SHARE_H, h = i % SHARE_H;

        ek_given_mass[8 * l + h] = (float)(h * 2) - 3 + (float)l;
        for (int j = 0; j < SHARE_N; j++)
            ek_given_score[h * 512 + l * 128 + j] =
                (float)(2 * ek_rng_normal(9, c, (uint64_t)(i * SHARE_N + j)));
    }
    ek_ok(ek_given_plan(&b, SHARE_B, &err), &err);
    ek_ok(ek_policy_scores(&b.p, &b.c, -1, n_layers - 1, scores, &err), &err);
    for (int i = 0; i < lists; i += together) {
        int sum = 0;

        sort_shares(i, together, recent, least, want);
        for (int k = i; k < i + together; k++) {
            const int32_t *slot = b.plan.slot + b.plan.first[k];
            const int kept = b.plan.first[k + 1] - b.plan.first[k];
            int at = 0;

            assert_true(kept >= least);
            for (int j = 0; j < SHARE_N; j++)
                if (want[k][j]) {
                    assert_true(at < kept);
                    assert_int_equal(slot[at++], j);
                }
            assert_int_equal(at, kept);
            sum += kept;
        }
        assert_int_equal(sum, together * SHARE_B);
    }
    if (floor < 1) { /* the mass is heard */
        const int last = lists - 1;

        assert_true(b.plan.first[last + 1] - b.plan.first[last] > b.plan.first[1]);
    }
    ek_ok(ek_cache_apply(&b.c, &b.c, -1, &b.plan, &err), &err);
    ek_ok(ek_policy_check(&b.p, &b.plan, NULL, &b.c, SHARE_B, &err), &err);
    assert_int_equal(ek_policy_check(&b.p, &b.plan, NULL, &b.c, SHARE_B - 1, &err), EK_EBROKEN);
    assert_false(ek_policy_due(&b.p, EK_AT_STEP, 1, 0, &b.c, SHARE_B));
    assert_true(ek_policy_due(&b.p, EK_AT_STEP, 1, 0, &b.c, SHARE_B - 1));
    ek_given_close(&b);
}

static void heads_share_a_layer(void **state)
{
    (void)state;
    for (uint64_t c = 0; c < 30; c++)
        check_shares(c, 1 + (int)(c % 3), EK_SHARE_LAYER, EK_SHARE_FLOOR);
}

static void heads_share_the_model(void **state)
{
    static const double floors[] = {0, EK_SHARE_FLOOR, 0.55, 1};

    (void)state;
    for (uint64_t c = 0; c < 40; c++)
        check_shares(c, 3, EK_SHARE_MODEL, floors[c % 4]);
}

/* One head deserves everything: it keeps all it has, and every other head its floor. */
static void one_head_deserves_everything(void **state)
{
    enum { L = 3, H = 2, N = 100, B = 30, FLOOR = 15, ALL = L * H * B - (L * H - 1) * FLOOR };
    ek_given b;
    ek_err err;

    (void)state;
    ek_given_open(&b, L, H, N);
    b.p.method.protect = (ek_protect){.sinks = 2, .recent = 4};
    b.p.method.floor = 0.5;
    ek_given_mass[8 * 1 + 1] = 80;
    for (int share = EK_SHARE_UNIFORM; share <= EK_SHARE_MODEL; share++) {
        static const int one[] = {B, 2 * B - FLOOR, N};

        b.p.method.budget = (ek_share)share;
        ek_ok(ek_given_plan(&b, B, &err), &err);
        assert_int_equal(ek_plan_kept(&b.plan), L * H * B);
        for (int i = 0; i < L * H; i++) {
            const int kept = b.plan.first[i + 1] - b.plan.first[i];
            const int32_t *slot = b.plan.slot + b.plan.first[i];

            if (i == 3)
                assert_int_equal(kept, one[share]);
            else if (share == EK_SHARE_MODEL) /* 5 left, to the lowest list: all are equal */
                assert_int_equal(kept, i == 0 ? FLOOR + ALL - N : FLOOR);
            assert_int_equal(slot[0], 0); /* what is protected stays everywhere */
            assert_int_equal(slot[1], 1);
            for (int j = 1; j <= 4; j++)
                assert_int_equal(slot[kept - j], N - j);
        }
    }
    assert_true(ALL > N);
    ek_given_close(&b);
}

static void open_shared(ek_given *b, int n_layers, int n_heads, int n)
{
    ek_given_open(b, n_layers, n_heads, n);
    b->p.method.protect = (ek_protect){.sinks = 2, .recent = 4};
    b->p.method.budget = EK_SHARE_MODEL;
    for (size_t i = 0; i < EK_COUNT(ek_given_score); i++)
        ek_given_score[i] = (float)(i * 37 % 101) / 20;
    for (size_t i = 0; i < EK_COUNT(ek_given_mass); i++)
        ek_given_mass[i] = (float)(i * 5 % 7);
}

/* All that is asked for is all there is; floor 1 is the uniform budget; the same comes twice. */
static void laws_of_the_shared_model(void **state)
{
    enum { L = 3, H = 2, N = 70, B = 25 };
    ek_policy_scratch scratch = {0};
    ek_given b;
    ek_plan again;
    ek_err err;
    int64_t grown;

    (void)state;
    open_shared(&b, L, H, N);
    ek_toy_plan(&again, &b.c);
    for (int32_t all = 0; all <= N; all += N) {
        ek_ok(ek_given_plan(&b, all, &err), &err);
        assert_int_equal(ek_plan_kept(&b.plan), L * H * N);
        ek_ok(ek_policy_check(&b.p, &b.plan, &b.c, &b.c, all, &err), &err);
    }
    ek_ok(ek_given_plan(&b, B, &err), &err);
    ek_ok(ek_policy_plan(&b.p, &b.c, -1, B, &scratch, &again, &err), &err);
    assert_true(ek_plan_same(&b.plan, &again));
    grown = b.scratch.grown;
    for (int k = 0; k < 3; k++) /* a policy that needs less does not make it smaller */
        for (int share = EK_SHARE_UNIFORM; share <= EK_SHARE_MODEL; share++) {
            b.p.method.budget = (ek_share)share;
            ek_ok(ek_given_plan(&b, B, &err), &err);
        }
    assert_int_equal(b.scratch.grown, grown);
    assert_true(ek_plan_same(&b.plan, &again));
    b.p.method.floor = 1;
    ek_ok(ek_given_plan(&b, 5, &err), &err);
    for (int i = 0; i < L * H; i++)
        assert_int_equal(b.plan.first[i + 1] - b.plan.first[i], 5);
    ek_policy_scratch_close(&scratch);
    ek_plan_close(&again);
    ek_given_close(&b);
}

/* Cut in two steps, the second time from a fork whose lists lie elsewhere: the room between lists
 * does not matter.  Two layers that then hold more than others are no reason to cut; the sum is. */
static void a_shared_model_is_cut_twice(void **state)
{
    enum { L = 3, H = 2, N = 70, B = 25 };
    ek_policy_scratch scratch = {0};
    ek_given b;
    ek_plan again;
    ek_cache fork;
    ek_err err;

    (void)state;
    open_shared(&b, L, H, N);
    ek_toy_plan(&again, &b.c);
    ek_ok(ek_given_plan(&b, B + 20, &err), &err);
    ek_toy_cache(&fork, &b.t, N + 31, 0, NULL);
    ek_ok(ek_cache_apply(&fork, &b.c, -1, &b.plan, &err), &err);
    ek_ok(ek_policy_check(&b.p, &b.plan, &b.c, &fork, B + 20, &err), &err);
    ek_ok(ek_cache_apply(&b.c, &b.c, -1, &b.plan, &err), &err);
    ek_ok(ek_given_plan(&b, B, &err), &err);
    ek_ok(ek_policy_plan(&b.p, &fork, -1, B, &scratch, &again, &err), &err);
    assert_true(ek_plan_same(&b.plan, &again));

    ek_ok(ek_cache_apply(&fork, &fork, -1, &again, &err), &err);
    assert_false(ek_policy_due(&b.p, EK_AT_STEP, 1, 0, &fork, B));
    b.p.method.budget = EK_SHARE_LAYER;
    assert_true(ek_policy_due(&b.p, EK_AT_STEP, 1, 0, &fork, B));
    assert_int_equal(ek_policy_check(&b.p, &again, NULL, &fork, B, &err), EK_EBROKEN);
    assert_non_null(strstr(err.msg, "layer"));
    b.p.method.budget = EK_SHARE_MODEL;
    ek_ok(ek_policy_check(&b.p, &again, NULL, &fork, B, &err), &err);
    again.first[L * H]--; /* one too few, of the last list */
    fork.n[L * H - 1]--;
    assert_int_equal(ek_policy_check(&b.p, &again, NULL, &fork, B, &err), EK_EBROKEN);
    ek_cache_close(&fork);
    ek_policy_scratch_close(&scratch);
    ek_plan_close(&again);
    ek_given_close(&b);
}

/* A head that holds less than its floor keeps all of it, and the others take its share. */
static void a_short_head_leaves_room_to_others(void **state)
{
    ek_given b;
    ek_err err;

    (void)state;
    ek_given_open(&b, 1, 2, 40);
    ek_ok(ek_given_plan(&b, 40, &err), &err);
    memmove(b.plan.slot + 1, b.plan.slot + 40, 40 * sizeof *b.plan.slot);
    b.plan.first[1] = 1;
    b.plan.first[2] = 41;
    ek_ok(ek_cache_apply(&b.c, &b.c, -1, &b.plan, &err), &err);
    b.p.method.budget = EK_SHARE_LAYER;
    b.p.method.protect.recent = 2;
    ek_ok(ek_given_plan(&b, 15, &err), &err);
    assert_int_equal(b.plan.first[1], 1);
    assert_int_equal(b.plan.first[2], 30);
    ek_ok(ek_cache_apply(&b.c, &b.c, -1, &b.plan, &err), &err);
    ek_ok(ek_policy_check(&b.p, &b.plan, NULL, &b.c, 15, &err), &err);
    ek_given_close(&b);
}

/* Ties across heads go to the lower layer, then the lower head, within a head to the younger. */
static void shared_ties_go_to_the_lower_head(void **state)
{
    ek_given b;
    ek_err err;

    (void)state;
    for (int model = 0; model < 2; model++) {
        ek_given_open(&b, 1 + model, 2 - model, 30);
        b.p.method.budget = model ? EK_SHARE_MODEL : EK_SHARE_LAYER;
        ek_ok(ek_given_plan(&b, 10, &err), &err); /* floor 2 each, 16 left, all equal */
        assert_int_equal(b.plan.first[1], 18);
        assert_int_equal(b.plan.slot[0], 12);
        assert_int_equal(b.plan.slot[18], 28);
        ek_given_close(&b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(heads_share_a_layer),
        cmocka_unit_test(heads_share_the_model),
        cmocka_unit_test(one_head_deserves_everything),
        cmocka_unit_test(laws_of_the_shared_model),
        cmocka_unit_test(a_shared_model_is_cut_twice),
        cmocka_unit_test(a_short_head_leaves_room_to_others),
        cmocka_unit_test(shared_ties_go_to_the_lower_head),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
