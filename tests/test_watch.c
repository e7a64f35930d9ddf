/* tests/test_watch.c - recall and boundary decisions, worked by hand and against a sort. */
#include "core/rng.h"
#include "train/watch.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void near(double found, double want, double bound)
{
    if (!(fabs(found - want) <= bound))
        fail_msg("found %.9g, expected %.9g", found, want);
}

/* S 8, s 1, w 2, k 2: recall 1, .5 and .5 at queries 5, 6 and 7; one of three decisions right. */
static void test_table(void **state)
{
    static const double want[3] = {1, 0.5, 0.5};
    static const float target[5] = {0.3f, 0.9f, 0.1f, 0.7f, 0.5f};
    static const float says[5] = {0, 0.5f, -0.2f, -0.1f, 0.1f};
    static const int32_t pos[5] = {1, 2, 3, 4, 5}, at[3] = {5, 6, 7};
    float mass[5], scratch[8];
    ek_watch_pair room[5];
    ek_rank rank;
    ek_err err;
    ek_loss_sum count = {0};
    ek_loss_set set = ek_loss_defaults;

    (void)state;
    for (int j = 0; j < 5; j++)
        mass[j] = expf(target[j]);
    assert_int_equal(ek_rank_open(&rank, 8, &err), EK_OK);
    for (int n_seq = 6; n_seq <= 8; n_seq++) { /* the last query of a shorter sequence */
        ek_loss_item x = {.n = n_seq - 3,
                          .pos = pos,
                          .mass = mass,
                          .eps = 1e-30,
                          .n_seq = n_seq,
                          .sinks = 1,
                          .recent = 2,
                          .keep = 2,
                          .at = at,
                          .n_at = n_seq - 5,
                          .rank = &rank,
                          .scratch = scratch,
                          .r = says,
                          .p = says};
        ek_watch sum = {0};

        ek_losses[EK_LOSS_PAIR].count(&set, &x, &count);
        ek_watch_whole(&x, room, &sum);
        /* The first query that evicts is 5; it and the last are looked at. */
        near(ek_watch_mean(&sum).recall, n_seq == 6 ? want[0] : (want[0] + want[n_seq - 6]) / 2,
             1e-12);
        near(ek_watch_mean(&sum).chance, n_seq == 6 ? 2.0 / 3 : (2.0 / 3 + 2.0 / (n_seq - 3)) / 2,
             1e-12);
        if (n_seq == 8)
            near(ek_watch_mean(&sum).boundary, 1.0 / 3, 1e-12);
        assert_true(isnan(ek_watch_mean(&sum).quarter));
    }
    ek_rank_close(&rank);
}

enum { N = 200 };
static const float *key;

static int by_key(const void *a, const void *b)
{
    const float x = key[*(const int *)a], y = key[*(const int *)b];

    return (x < y) - (x > y);
}

/* The k best of entries without ties, each standing for weight[e]: which, by sorting. */
static void best(const float *value, const double *weight, double k, double *take)
{
    int order[N];

    for (int e = 0; e < N; e++)
        order[e] = e;
    key = value;
    qsort(order, N, sizeof *order, by_key);
    for (int i = 0; i < N; i++) {
        take[order[i]] = fmin(weight[order[i]], fmax(k, 0));
        k -= weight[order[i]];
    }
}

static void test_cut(void **state)
{
    (void)state;
    for (uint64_t c = 0; c < 40; c++) {
        float mass[N], p[N], log_weight[N];
        double weight[N], want[N], says[N], all = 0, both = 0;
        ek_watch_pair room[N];
        ek_watch sum = {0};

        for (int e = 0; e < N; e++) {
            weight[e] = c % 2 == 0 ? 1 : 1 + (double)ek_rng_below(9, 1, c, (uint64_t)e);
            log_weight[e] = (float)log(weight[e]);
            mass[e] = (float)exp(ek_rng_normal(2, c, (uint64_t)e));
            p[e] = logf(mass[e]) + (float)(c % 5) * (float)ek_rng_normal(3, c, (uint64_t)e);
            all += weight[e];
        }
        const ek_loss_item x = {.n = N,
                                .mass = mass,
                                .log_weight = c % 2 == 0 && c % 4 == 0 ? NULL : log_weight,
                                .keep = 30 + (int)c,
                                .r = p,
                                .p = p};
        ek_watch_cut(&x, room, &sum);
        for (int which = 0; which < 2; which++) {
            const double k = which == 0 ? floor(all / 4) : x.keep;

            best(mass, weight, k, want);
            best(p, weight, k, says);
            both = 0;
            for (int e = 0; e < N; e++)
                both += fmin(want[e], says[e]);
            near(which == 0 ? sum.quarter : sum.recall, both / k, 1e-5);
        }
        if (c % 5 == 0) /* the target itself */
            near(sum.recall, 1, 1e-5);
        else
            assert_true(sum.recall < 0.95);
        near(sum.chance, x.keep / all, 1e-6);
    }
}

/* A scorer that says one thing of all entries recalls what chance does; where all fit, nothing is
 * measured. */
static void test_ties(void **state)
{
    float mass[N], p[N] = {0};
    ek_watch_pair room[N];
    ek_watch sum = {0};
    ek_loss_item x = {.n = N, .mass = mass, .keep = 50, .r = p, .p = p};

    (void)state;
    for (int e = 0; e < N; e++)
        mass[e] = (float)((e * 37) % N);
    ek_watch_cut(&x, room, &sum);
    near(ek_watch_mean(&sum).recall, 0.25, 1e-9);
    near(ek_watch_mean(&sum).quarter, 0.25, 1e-9);
    sum = (ek_watch){0};
    x.keep = N;
    ek_watch_cut(&x, room, &sum);
    assert_true(isnan(ek_watch_mean(&sum).recall));
    memset(mass, 0, sizeof mass); /* nothing was looked at */
    ek_watch_cut(&x, room, &sum);
}

/* Decisions at a cut by hand: the last entry against the k-th best, or the best that goes. */
static void test_decisions(void **state)
{
    static const struct {
        float mass[5];
        int keep;
        float weight[5]; /* 0 in the first: of one each */
        int partner, y;
    } row[] = {{{9, 1, 7, 3, 8}, 3, {0}, 2, +1},              /* 9 8 7 | 3 1 */
               {{9, 1, 7, 3, 8}, 2, {0}, 2, +1},              /* the boundary itself: with 7 */
               {{9, 1, 7, 3, 2}, 2, {0}, 2, -1},              /* 9 7 | 3 2 1 */
               {{9, 1, 7, 3, 8}, 1, {0}, 0, -1},              /* 9 | 8 7 3 1 */
               {{5, 5, 5, 5, 5}, 2, {0}, 3, +1},              /* equal: the younger is better */
               {{5, 5, 5, 5, 5}, 1, {0}, 3, +1},              /* the boundary itself */
               {{5, 6, 5, 5, 1}, 3, {0}, 2, -1},              /* 6 5 5 | 5 1 */
               {{9, 1, 7, 3, 8}, 3, {2, 1, 4, 1, 2}, 2, +1},  /* 9 9 8 | 8 7..: itself, by parts */
               {{9, 1, 7, 3, 2}, 4, {2, 1, 4, 1, 2}, 2, -1}}; /* 9 9 7 7 | 7 7 3 */

    (void)state;
    for (size_t i = 0; i < EK_COUNT(row); i++)
        for (int way = 0; way < 3; way++) { /* in the target's order, against it, equal */
            float p[5] = {0}, log_weight[5];
            ek_watch_pair room[5];
            ek_watch sum = {0};

            for (int e = 0; e < 5; e++)
                log_weight[e] = logf(row[i].weight[e]);
            p[4] = way == 0 ? (float)row[i].y : way == 1 ? -(float)row[i].y : 0;
            for (int e = 0; e < 4; e++) /* only the partner's priority counts */
                p[e] = e == row[i].partner ? 0 : 2 * p[4];
            const ek_loss_item x = {.n = 5,
                                    .mass = row[i].mass,
                                    .log_weight = row[i].weight[0] > 0 ? log_weight : NULL,
                                    .keep = row[i].keep,
                                    .p = p};
            ek_watch_cut(&x, room, &sum);
            near(sum.decided, 1, 0);
            if (sum.right != (way == 0))
                fail_msg("row %zu, way %d: found %g right", i, way, sum.right);
        }
}

/* Weight of the entries that are better than e by target. */
static double better_than(const float *mass, const double *weight, int n, int e)
{
    double sum = 0;

    for (int f = 0; f < n; f++)
        if (mass[f] > mass[e] || (mass[f] == mass[e] && f > e))
            sum += weight[f];
    return sum;
}

/* The same of many entries with and without ties and weights, by a double loop. */
static void test_decisions_of_many(void **state)
{
    double all = 0;

    (void)state;
    for (uint64_t c = 0; c < 200; c++) {
        const int n = 2 + (int)ek_rng_below(60, 5, c, 0), weighted = c % 2 == 1;
        float mass[N], p[N], log_weight[N];
        double weight[N], behind = INFINITY, total = 0;
        int boundary = -1, partner = -1;
        ek_watch_pair room[N];
        ek_watch sum = {0};

        for (int e = 0; e < n; e++) {
            log_weight[e] = weighted ? (float)ek_rng_below(1000, 6, c, (uint64_t)e) / 900 : 0;
            weight[e] = exp((double)log_weight[e]);
            mass[e] = (float)ek_rng_below(c % 3 == 0 ? 5 : 1 << 20, 7, c, (uint64_t)e);
            p[e] = (float)ek_rng_normal(8, c, (uint64_t)e);
            total += weight[e];
        }
        const int keep = 1 + (int)ek_rng_below((uint64_t)n - 1, 9, c, 0);
        for (int e = 0; e < n; e++) {
            const double better = better_than(mass, weight, n, e);

            if (better < keep && better + weight[e] >= keep)
                boundary = e;
            else if (better >= keep && better < behind) {
                behind = better;
                partner = e;
            }
        }
        assert_true(boundary >= 0);
        if (boundary != n - 1)
            partner = boundary;
        const int stays = better_than(mass, weight, n, n - 1) < keep;
        const ek_loss_item x = {
            .n = n, .mass = mass, .log_weight = weighted ? log_weight : NULL, .keep = keep, .p = p};
        ek_watch_cut(&x, room, &sum);
        near(sum.decided, partner >= 0, 0);
        if (partner < 0)
            continue;
        near(sum.right, stays == (p[n - 1] > p[partner]), 0);
        all += sum.right;
        for (int e = 0; e < n; e++) /* negative control: the other way round */
            p[e] = -p[e];
        const double right = sum.right;
        sum = (ek_watch){0};
        ek_watch_cut(&x, room, &sum);
        near(sum.right, 1 - right, 0);
        assert_true(total > keep);
    }
    assert_true(all > 60 && all < 140); /* priorities at random: half of them */
}

/* Over time and at a cut it is the same decision. */
static void test_decisions_agree(void **state)
{
    enum { SEQ = 120, SINKS = 1, RECENT = 3, KEEP = 20, FIRST = SINKS + RECENT + KEEP };
    float mass[SEQ], p[SEQ], scratch[SEQ];
    int32_t pos[SEQ], at[SEQ];
    ek_watch_pair room[SEQ];
    ek_watch whole = {0}, cuts = {0};
    ek_loss_sum count = {0};
    ek_loss_set set = ek_loss_defaults;
    ek_rank rank;
    ek_err err;

    (void)state;
    assert_int_equal(ek_rank_open(&rank, SEQ, &err), EK_OK);
    for (int e = 0; e < SEQ; e++) {
        pos[e] = SINKS + e;
        mass[e] = (float)exp(ek_rng_normal(11, 0, (uint64_t)e));
        p[e] = logf(mass[e]) + (float)ek_rng_normal(12, 0, (uint64_t)e);
    }
    for (int i = FIRST; i < SEQ; i++)
        at[i - FIRST] = i;
    ek_loss_item x = {.n = SEQ - SINKS - RECENT,
                      .pos = pos,
                      .mass = mass,
                      .eps = 1e-30,
                      .n_seq = SEQ,
                      .sinks = SINKS,
                      .recent = RECENT,
                      .keep = KEEP,
                      .at = at,
                      .n_at = SEQ - FIRST,
                      .rank = &rank,
                      .scratch = scratch,
                      .r = p,
                      .p = p};
    ek_losses[EK_LOSS_PAIR].count(&set, &x, &count);
    ek_watch_whole(&x, room, &whole);
    for (int i = FIRST; i < SEQ; i++) {
        x.n = i - RECENT - SINKS + 1;
        ek_watch_cut(&x, room, &cuts);
    }
    near(cuts.decided, whole.decided, 0);
    near(cuts.right, whole.right, 0);
    assert_true(whole.right > 0.5 * whole.decided && whole.right < whole.decided);
    ek_rank_close(&rank);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_table),
                                       cmocka_unit_test(test_cut),
                                       cmocka_unit_test(test_ties),
                                       cmocka_unit_test(test_decisions),
                                       cmocka_unit_test(test_decisions_of_many),
                                       cmocka_unit_test(test_decisions_agree)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
