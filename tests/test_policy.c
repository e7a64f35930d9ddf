/* tests/test_policy.c - amounts are integers, protection is a mask, and what is kept is what was
 * asked. */
#include "tests/check_cache.h"

#include "core/rng.h"
#include "infer/select.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Asking for n entries of S gives n, for every pair up to 4096; a removed
 * fraction in floating point misses 3,575 of the 20,100 pairs up to 200. */
static void budgets_are_exact(void **state)
{
    static const struct {
        const char *keep;
        int64_t n;
        int32_t entries;
    } cases[] = {{".29", 100, 29},      {"0.57", 100, 57},
                 {"0.875", 4096, 3584}, {"0.25", 10, 2},
                 {"1", 7, 7},           {"1.0", 7, 7},
                 {"0.1", 3, 1},         {"0.1", 1, 1},
                 {"0.000000001", 5, 1}, {"0.999999999", 1000000000, 999999999}};
    static const char *const wrong[] = {
        "",     ".",    "0",    "0.0",    "1.1", "-0.5", "25%",          "1/4",
        "0.5x", " 0.5", "1e-1", "0.25.5", "2",   "nan",  "0.1234567891", "99999999999999999999"};
    const ek_cost one = {.plain = 1}, cost = {.plain = 6 * 260, .extra = 6 * 4, .state = 6 * 1000};
    ek_budget b = {0};
    int misses = 0;
    ek_err err;

    (void)state;
    for (int64_t s = 1; s <= 4096; s++)
        for (int64_t n = 1; n <= s; n++) {
            const ek_budget share = {.num = n, .den = s}, count = {.entries = n};

            if (ek_budget_entries(&share, s, &one) != n || ek_budget_entries(&count, s, &one) != n)
                fail_msg("%d of %d", (int)n, (int)s);
            misses += s <= 200 && (int64_t)((double)s * (1 - (1 - (double)n / (double)s))) != n;
        }
    assert_int_equal(misses, 3575); /* the mistake this guards against is real */
    for (size_t i = 0; i < EK_COUNT(cases); i++) {
        ek_ok(ek_budget_keep(&b, cases[i].keep, &err), &err);
        assert_int_equal(ek_budget_entries(&b, cases[i].n, &one), cases[i].entries);
    }
    for (size_t i = 0; i < EK_COUNT(wrong); i++)
        assert_int_equal(ek_budget_keep(&b, wrong[i], &err), EK_EASKED);
    for (int64_t t = 1; t <= 64; t++) { /* keep .5 of what was seen */
        b = (ek_budget){.num = 5, .den = 10, .of_seen = 1};
        assert_int_equal(ek_budget_entries(&b, t, &one), t / 2 > 1 ? t / 2 : 1);
    }
    b = (ek_budget){.entries = 512};
    assert_int_equal(ek_budget_entries(&b, 2000, &one), 512);
    assert_int_equal(ek_budget_entries(&b, 100, &one), 100);
    b = (ek_budget){.bytes = 2 * 3 * 260 * 17 + 259};
    assert_int_equal(ek_budget_entries(&b, 2000, &(ek_cost){.plain = 6 * 260}), 17);
    /* What a method remembers is paid out of entries and bytes, not out of a fraction. */
    b = (ek_budget){.entries = 512};
    assert_int_equal(ek_budget_entries(&b, 2000, &cost), (512 * 260 - 1000) / 264);
    b = (ek_budget){.bytes = 6 * (264 * 17 + 1000)};
    assert_int_equal(ek_budget_entries(&b, 2000, &cost), 17);
    b.bytes--;
    assert_int_equal(ek_budget_entries(&b, 2000, &cost), 16);
    b = (ek_budget){.num = 1, .den = 4};
    assert_int_equal(ek_budget_entries(&b, 2000, &cost), 500);
    b = (ek_budget){.bytes = 10};
    assert_int_equal(ek_budget_entries(&b, 2000, &cost), 1);
    b = (ek_budget){0};
    assert_int_equal(ek_budget_entries(&b, 123, &one), 123);
}

/* sinks 4, recent 64: B 128 -> 4, 64; 32 -> 4, 28; 2 -> 1, 1; 1 -> 0, 1. */
static void protection_shrinks_to_the_budget(void **state)
{
    static const int32_t cases[][3] = {{128, 4, 64}, {66, 4, 62}, {32, 4, 28},
                                       {2, 1, 1},    {1, 0, 1},   {5, 4, 1}};
    ek_method m = *ek_method_find("recency");
    int32_t sinks, recent;

    (void)state;
    m.protect = (ek_protect){.sinks = 4, .recent = 64};
    for (size_t i = 0; i < EK_COUNT(cases); i++) {
        ek_policy_protected(&m, 1000, cases[i][0], &sinks, &recent);
        assert_int_equal(sinks, cases[i][1]);
        assert_int_equal(recent, cases[i][2]);
    }
    m = *ek_method_find("h2o");
    ek_policy_protected(&m, 1000, 9, &sinks, &recent);
    assert_int_equal(recent, 5);
    m = *ek_method_find("snapkv");
    ek_policy_protected(&m, 1000, 200, &sinks, &recent);
    assert_int_equal(recent, 64);
    ek_policy_protected(&m, 50, 40, &sinks, &recent);
    assert_int_equal(recent, 25);
    ek_policy_protected(&m, 0, 40, &sinks, &recent);
    assert_int_equal(sinks + recent, 0);
}

typedef struct item {
    float x;
    int range;
    int32_t e;
} item;

static int better(const void *a, const void *b)
{
    const item *p = a, *q = b;

    if (p->x > q->x || p->x < q->x)
        return p->x > q->x ? -1 : 1;
    if (p->range != q->range)
        return p->range - q->range;
    return q->e - p->e;
}

/* Against a sort, over sizes, ties, infinities, zeros of both signs, ranges and marks. */
static void selection_is_the_head_of_a_sort(void **state)
{
    enum { MOST = 400 };
    int differ = 0;

    (void)state;
    for (uint64_t c = 0; c < 400; c++) {
        const int ranges = 1 + (int)ek_rng_below(4, 1, c, 0);
        const int spread = 1 + (int)ek_rng_below(c % 2 ? 5 : 1000, 1, c, 1);
        int32_t first[4], n[4], at = 0;
        uint8_t mask[MOST] = {0}, want[MOST] = {0};
        float x[MOST];
        item all[MOST];
        int total = 0;

        for (int r = 0; r < ranges; r++) {
            first[r] = at;
            n[r] = (int32_t)ek_rng_below(90, 1, c, 2 + (uint64_t)r);
            for (int32_t e = at; e < at + n[r]; e++) {
                const int v = (int)ek_rng_below((uint64_t)spread, 2, c, (uint64_t)e);

                x[e] = v == 3 ? -INFINITY : v == 4 ? -0.0f : ldexpf((float)(v - spread / 2), v % 9);
                mask[e] = want[e] = ek_rng_below(5, 3, c, (uint64_t)e) == 0;
                if (!mask[e])
                    all[total++] = (item){x[e], r, e};
            }
            at += n[r] + 3;
        }
        const int64_t k = (int64_t)ek_rng_below((uint64_t)total + 3, 4, c, 0);
        qsort(all, (size_t)total, sizeof *all, better);
        for (int i = 0; i < total && i < k; i++)
            want[all[i].e] = 1;
        ek_select(x, first, n, ranges, k, mask);
        for (int r = 0; r < ranges; r++)
            assert_memory_equal(mask + first[r], want + first[r], (size_t)n[r]);
        if (k > 0 && k < total) { /* the comparison can fail: one more is another choice */
            ek_select(x, first, n, ranges, 1, mask);
            differ += memcmp(mask, want, sizeof mask) != 0;
        }
    }
    assert_true(differ > 300);
}

/* A scorer whose scores are the numbers put here by a test, at 512 h + 128 layer + position. */
static float given[4096];
static float given_mass[32]; /* at 8 layer + h */

static ek_code given_score(const ek_scorer *s, const ek_view *in, float *out, ek_err *err)
{
    (void)s;
    (void)err;
    for (int h = 0; h < in->n_heads; h++)
        for (int32_t j = 0; j < in->n[h]; j++)
            out[in->first[h] + j] = given[h * 512 + in->pos[in->first[h] + j] + 128 * in->layer];
    return EK_OK;
}

static void given_age(const ek_scorer *s, const ek_view *in, int h, const ek_real *r, ek_real *p)
{
    (void)s;
    memmove(p, r, (size_t)in->n[h] * sizeof *p);
}

static ek_real given_log_mass(const ek_scorer *s, int layer, int h)
{
    (void)s;
    return given_mass[8 * layer + h];
}

static const ek_learner given_learner = {.age = given_age, .log_mass = given_log_mass};
static const ek_scorer_class given_class = {
    .name = "given", .source = EK_FROM_ENTRIES, .learner = &given_learner, .score = given_score};

typedef struct bench { /* one cache of n entries under a policy over given scores */
    ek_toy t;
    ek_cache c;
    ek_plan plan;
    ek_scorer scorer;
    ek_policy p;
    ek_policy_scratch scratch;
} bench;

static void open_bench(bench *b, int n_layers, int n_heads, int n)
{
    static const ek_real none[1];

    memset(b, 0, sizeof *b);
    ek_toy_open(&b->t, n_layers, n_heads, 1, 4, EK_F32);
    ek_toy_cache(&b->c, &b->t, n + 8, 1, NULL);
    ek_toy_feed(&b->t, &b->c, n, n, 0);
    ek_toy_plan(&b->plan, &b->c);
    b->scorer = (ek_scorer){.cls = &given_class, .dev = b->t.dev, .params = none};
    b->p.method = (ek_method){.name = "given",
                              .measure = {.signal = &given_class,
                                          .scorer = &b->scorer,
                                          .carry = {.kind = EK_CARRY_LAST, .every = 1}},
                              .floor = EK_SHARE_FLOOR,
                              .when = {.prefill_end = 1, .every = 1}};
    memset(given, 0, sizeof given);
    memset(given_mass, 0, sizeof given_mass);
}

static ek_code plan_bench(bench *b, int32_t entries, ek_err *err)
{
    return ek_policy_plan(&b->p, &b->c, -1, entries, &b->scratch, &b->plan, err);
}

static void close_bench(bench *b)
{
    ek_policy_scratch_close(&b->scratch);
    ek_plan_close(&b->plan);
    ek_cache_close(&b->c);
    ek_toy_close(&b->t);
}

/* All scores equal, or the protected ones worst: sinks and recent stay; ties go to the younger. */
static void protection_is_a_mask(void **state)
{
    bench b;
    ek_err err;

    (void)state;
    for (int worst = 0; worst < 2; worst++) {
        open_bench(&b, 2, 2, 50);
        b.p.method.protect = (ek_protect){.sinks = 4, .recent = 6};
        for (int h = 0; h < 2; h++)
            for (int j = 0; j < 50; j++)
                given[h * 512 + j] = given[h * 512 + 128 + j] =
                    worst && (j < 4 || j >= 44) ? -1e30f : 3;
        ek_ok(plan_bench(&b, 15, &err), &err);
        for (int i = 0; i < 4; i++)
            for (int j = 0; j < 15; j++)
                assert_int_equal(b.plan.slot[b.plan.first[i] + j], j < 4 ? j : 35 + j);
        close_bench(&b);
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
    bench b;
    ek_err err;

    (void)state;
    open_bench(&b, 1, 1, 100);
    for (int j = 0; j < 100; j++)
        given[j] = (float)((j * 37) % 100);
    ek_ok(plan_bench(&b, 8, &err), &err);
    assert_int_equal(ek_plan_kept(&b.plan), 8);
    for (int j = 0; j < 8; j++)
        assert_true(given[b.plan.slot[j]] >= 92);
    close_bench(&b);
}

enum { SHARE_H = 3, SHARE_N = 60, SHARE_B = 20, SHARE_LISTS = 3 * SHARE_H };

/* What heads keep that share SHARE_B each, from list `first` on, by a plain sort. */
static void sort_shares(int first, int lists, int recent, int least, int8_t want[][SHARE_N])
{
    static item all[SHARE_LISTS * SHARE_N];
    const int end = SHARE_N - recent, protected = 1 + recent;
    int total = 0;

    for (int i = first; i < first + lists; i++) {
        const int l = i / SHARE_H, h = i % SHARE_H;
        item own[SHARE_N];
        double sum = 0;
        int n = 0;

        for (int j = 1; j < end; j++) {
            const float x = given[h * 512 + l * 128 + j];

            sum += exp((double)x);
            own[n++] = (item){x, i, j};
        }
        qsort(own, (size_t)n, sizeof *own, better);
        for (int j = 0; j < SHARE_N; j++)
            want[i][j] = j < 1 || j >= end;
        for (int k = 0; k < n; k++) {
            if (k < least - protected)
                want[i][own[k].e] = 1;
            else
                all[total++] =
                    (item){(float)((double)own[k].x - log(sum) + (double)given_mass[8 * l + h]), i,
                           own[k].e};
        }
    }
    qsort(all, (size_t)total, sizeof *all, better);
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
    bench b;
    ek_err err;

    open_bench(&b, n_layers, SHARE_H, SHARE_N);
    b.p.method.budget = share;
    b.p.method.floor = floor;
    b.p.method.protect = (ek_protect){.sinks = 1, .recent = recent};
    for (int i = 0; i < lists; i++) {
        const int l = i / SHARE_H, h = i % SHARE_H;

        given_mass[8 * l + h] = (float)(h * 2) - 3 + (float)l;
        for (int j = 0; j < SHARE_N; j++)
            given[h * 512 + l * 128 + j] =
                (float)(2 * ek_rng_normal(9, c, (uint64_t)(i * SHARE_N + j)));
    }
    ek_ok(plan_bench(&b, SHARE_B, &err), &err);
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
    close_bench(&b);
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
    bench b;
    ek_err err;

    (void)state;
    open_bench(&b, L, H, N);
    b.p.method.protect = (ek_protect){.sinks = 2, .recent = 4};
    b.p.method.floor = 0.5;
    given_mass[8 * 1 + 1] = 80;
    for (int share = EK_SHARE_UNIFORM; share <= EK_SHARE_MODEL; share++) {
        static const int one[] = {B, 2 * B - FLOOR, N};

        b.p.method.budget = (ek_share)share;
        ek_ok(plan_bench(&b, B, &err), &err);
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
    close_bench(&b);
}

/* All that is asked for is all there is; floor 1 is the uniform budget; the same comes twice, and
 * whatever the room between the lists. */
static void laws_of_the_shared_model(void **state)
{
    enum { L = 3, H = 2, N = 70, B = 25 };
    bench b;
    ek_plan again;
    ek_cache fork;
    ek_policy_scratch scratch = {0};
    ek_err err;
    int64_t grown;

    (void)state;
    open_bench(&b, L, H, N);
    ek_toy_plan(&again, &b.c);
    b.p.method.protect = (ek_protect){.sinks = 2, .recent = 4};
    b.p.method.budget = EK_SHARE_MODEL;
    for (int i = 0; i < 4096; i++)
        given[i] = (float)(i * 37 % 101) / 20;
    for (int i = 0; i < 32; i++)
        given_mass[i] = (float)(i * 5 % 7);

    for (int32_t all = 0; all <= N; all += N) {
        ek_ok(plan_bench(&b, all, &err), &err);
        assert_int_equal(ek_plan_kept(&b.plan), L * H * N);
        ek_ok(ek_policy_check(&b.p, &b.plan, &b.c, &b.c, all, &err), &err);
    }
    ek_ok(plan_bench(&b, B, &err), &err);
    ek_ok(ek_policy_plan(&b.p, &b.c, -1, B, &scratch, &again, &err), &err);
    assert_true(ek_plan_same(&b.plan, &again));
    grown = b.scratch.grown;
    for (int k = 0; k < 3; k++) /* a policy that needs less does not make it smaller */
        for (int share = EK_SHARE_UNIFORM; share <= EK_SHARE_MODEL; share++) {
            b.p.method.budget = (ek_share)share;
            ek_ok(plan_bench(&b, B, &err), &err);
        }
    assert_int_equal(b.scratch.grown, grown);
    assert_true(ek_plan_same(&b.plan, &again));

    /* Cut in two steps, the second time from a fork whose lists lie elsewhere. */
    ek_ok(plan_bench(&b, B + 20, &err), &err);
    ek_toy_cache(&fork, &b.t, N + 31, 0, NULL);
    ek_ok(ek_cache_apply(&fork, &b.c, -1, &b.plan, &err), &err);
    ek_ok(ek_policy_check(&b.p, &b.plan, &b.c, &fork, B + 20, &err), &err);
    ek_ok(ek_cache_apply(&b.c, &b.c, -1, &b.plan, &err), &err);
    ek_ok(plan_bench(&b, B, &err), &err);
    ek_ok(ek_policy_plan(&b.p, &fork, -1, B, &scratch, &again, &err), &err);
    assert_true(ek_plan_same(&b.plan, &again));

    /* Two layers that hold more than others are no reason to cut; the sum is. */
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

    b.p.method.floor = 1;
    ek_ok(plan_bench(&b, 5, &err), &err);
    for (int i = 0; i < L * H; i++)
        assert_int_equal(b.plan.first[i + 1] - b.plan.first[i], 5);
    ek_policy_scratch_close(&scratch);
    ek_plan_close(&again);
    close_bench(&b);
}

/* One set for a layer or the model ranks the mean over its lists. */
static void one_set_ranks_the_mean(void **state)
{
    bench b;
    ek_err err;

    (void)state;
    open_bench(&b, 2, 2, 10);
    for (int h = 0; h < 2; h++)
        for (int l = 0; l < 2; l++) {
            given[h * 512 + l * 128 + 3] = h == 0 ? 9 : -2;  /* 3.5 on average */
            given[h * 512 + l * 128 + 5] = l == 0 ? -7 : 16; /* -7 in layer 0, 4.5 on average */
            given[h * 512 + l * 128 + 7] = 4;
        }
    for (int g = EK_SET_PER_HEAD; g <= EK_SET_PER_MODEL; g++) {
        static const int32_t best[3][4] = {{3, 7, 5, 5}, {7, 7, 5, 5}, {5, 5, 5, 5}};

        b.p.method.granularity = (ek_granularity)g;
        ek_ok(plan_bench(&b, 1, &err), &err);
        for (int i = 0; i < 4; i++)
            assert_int_equal(b.plan.slot[i], best[g][i]);
    }
    close_bench(&b);
}

/* A head that holds less than its floor keeps all of it, and the others take its share. */
static void a_short_head_leaves_room_to_others(void **state)
{
    bench b;
    ek_err err;

    (void)state;
    open_bench(&b, 1, 2, 40);
    ek_ok(plan_bench(&b, 40, &err), &err);
    memmove(b.plan.slot + 1, b.plan.slot + 40, 40 * sizeof *b.plan.slot);
    b.plan.first[1] = 1;
    b.plan.first[2] = 41;
    ek_ok(ek_cache_apply(&b.c, &b.c, -1, &b.plan, &err), &err);
    b.p.method.budget = EK_SHARE_LAYER;
    b.p.method.protect.recent = 2;
    ek_ok(plan_bench(&b, 15, &err), &err);
    assert_int_equal(b.plan.first[1], 1);
    assert_int_equal(b.plan.first[2], 30);
    ek_ok(ek_cache_apply(&b.c, &b.c, -1, &b.plan, &err), &err);
    ek_ok(ek_policy_check(&b.p, &b.plan, NULL, &b.c, 15, &err), &err);
    close_bench(&b);
}

/* Ties across heads go to the lower layer, then the lower head, within a head to the younger. */
static void shared_ties_go_to_the_lower_head(void **state)
{
    bench b;
    ek_err err;

    (void)state;
    for (int model = 0; model < 2; model++) {
        open_bench(&b, 1 + model, 2 - model, 30);
        b.p.method.budget = model ? EK_SHARE_MODEL : EK_SHARE_LAYER;
        ek_ok(plan_bench(&b, 10, &err), &err); /* floor 2 each, 16 left, all equal */
        assert_int_equal(b.plan.first[1], 18);
        assert_int_equal(b.plan.slot[0], 12);
        assert_int_equal(b.plan.slot[18], 28);
        close_bench(&b);
    }
}

/* A cache or a plan that does not hold what was asked is named by layer and head. */
static void lies_are_found(void **state)
{
    bench b;
    ek_cache fork;
    ek_err err;

    (void)state;
    open_bench(&b, 2, 2, 40);
    ek_ok(plan_bench(&b, 10, &err), &err);
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
    ek_ok(plan_bench(&b, 20, &err), &err);
    b.plan.slot[0]--;
    ek_ok(ek_cache_apply(&b.c, &b.c, -1, &b.plan, &err), &err);
    b.p.method.granularity = EK_SET_PER_LAYER;
    assert_int_equal(plan_bench(&b, 10, &err), EK_EBROKEN);
    b.p.method.granularity = EK_SET_PER_HEAD;
    given[512 + 30] = NAN;
    assert_int_equal(plan_bench(&b, 10, &err), EK_ENAN);
    assert_non_null(strstr(err.msg, "layer 0, head 1, position 30"));
    given[512 + 30] = -INFINITY;
    ek_ok(plan_bench(&b, 10, &err), &err);
    for (int j = 0; j < 10; j++)
        assert_int_not_equal(b.c.pos[b.c.first[1] + b.plan.slot[b.plan.first[1] + j]], 30);
    b.plan.room = 30;
    assert_int_equal(plan_bench(&b, 10, &err), EK_EBROKEN);
    close_bench(&b);
}

/* When plans are due, for each kind of method and each way to decode. */
static void plans_come_when_due(void **state)
{
    enum { OVER = 40, ENTRIES = 30 };
    bench b;

    (void)state;
    open_bench(&b, 1, 2, OVER);
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
    close_bench(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(budgets_are_exact),
        cmocka_unit_test(protection_shrinks_to_the_budget),
        cmocka_unit_test(selection_is_the_head_of_a_sort),
        cmocka_unit_test(protection_is_a_mask),
        cmocka_unit_test(streaming_survives_repeated_cuts),
        cmocka_unit_test(a_window_of_zero_is_legal),
        cmocka_unit_test(heads_share_a_layer),
        cmocka_unit_test(heads_share_the_model),
        cmocka_unit_test(one_head_deserves_everything),
        cmocka_unit_test(laws_of_the_shared_model),
        cmocka_unit_test(one_set_ranks_the_mean),
        cmocka_unit_test(a_short_head_leaves_room_to_others),
        cmocka_unit_test(shared_ties_go_to_the_lower_head),
        cmocka_unit_test(lies_are_found),
        cmocka_unit_test(plans_come_when_due),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
