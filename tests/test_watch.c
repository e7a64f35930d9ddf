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

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_table), cmocka_unit_test(test_cut),
                                       cmocka_unit_test(test_ties)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
