/* tests/test_rank.c - order within a head: tables worked by hand, and brute force. */
#include "core/rng.h"
#include "train/rank.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const float example[8] = {0, 0.3f, 0.9f, 0.1f, 0.7f, 0.5f, 0, 0};

static void open_example(ek_rank *r)
{
    ek_err err;
    float a[8];

    memcpy(a, example, sizeof a);
    a[6] = a[7] = -1e30f; /* tokens that never leave the window */
    assert_int_equal(ek_rank_open(r, 8, &err), EK_OK);
    ek_rank_run(r, a, 8, 1, 2, 2);
}

static void test_table(void **state)
{
    static const int evict[8] = {8, 6, 8, 5, 8, 7, 8, 8};
    static const int tau[8] = {-1, -1, -1, -1, 3, 3, 1, 1};
    static const struct {
        int i, newborn, y, boundary, partner;
    } row[] = {{5, 3, -1, 1, 1}, {6, 4, 1, 4, 1}, {7, 5, -1, 4, 4}};
    static const char *const visible[8] = {"10000000", "11000000", "11100000", "11110000",
                                           "11111000", "11101100", "10101110", "10101011"};
    ek_rank r;

    (void)state;
    open_example(&r);
    for (int j = 0; j < 8; j++) {
        assert_int_equal(r.evict[j], evict[j]);
        assert_int_equal(r.tau[j], tau[j]);
    }
    for (int i = 0; i < 3; i++) {
        const ek_decision d = ek_rank_decide(&r, row[i].i);

        assert_int_equal(d.newborn, row[i].newborn);
        assert_int_equal(d.y, row[i].y);
        assert_int_equal(d.boundary, row[i].boundary);
        assert_int_equal(d.partner, row[i].partner);
    }
    for (int i = 0; i < 8; i++)
        for (int j = 0; j < 8; j++)
            assert_int_equal(ek_rank_visible(&r, i, j), visible[i][j] == '1');
    ek_rank_close(&r);
}

/* The scan, the heap and brute force agree on random priorities with ties; the mask is
 * what a cache holds that drops the worst of its k + 1 at every step. */
static void test_three_ways(void **state)
{
    enum { MOST = 200 };
    ek_rank r;
    ek_err err;

    (void)state;
    assert_int_equal(ek_rank_open(&r, MOST, &err), EK_OK);
    for (uint64_t t = 0; t < 60; t++) {
        const int n = 1 + (int)ek_rng_below(MOST, 7, 1, t), sinks = (int)ek_rng_below(6, 7, 2, t);
        const int recent = 1 + (int)ek_rng_below(20, 7, 3, t);
        const int keep = 1 + (int)ek_rng_below(30, 7, 4, t);
        float a[MOST];
        int32_t evict[MOST], heap[MOST];
        char held[MOST] = {0};

        for (int j = 0; j < n; j++)
            a[j] = (float)ek_rng_below(t % 3 == 0 ? 5 : 1000000, 7, 5 + t, (uint64_t)j) - 2;
        ek_rank_run(&r, a, n, sinks, recent, keep);
        ek_rank_heap(evict, a, n, sinks, recent, keep, heap);
        assert_memory_equal(evict, r.evict, (size_t)n * sizeof *evict);
        for (int i = 0; i < n; i++) {
            int count = 0, worst = -1;

            if (i - recent >= sinks)
                held[i - recent] = 1;
            for (int j = sinks; j <= i - recent; j++) {
                count += held[j];
                if (held[j] && (worst < 0 || a[j] < a[worst])) /* a tie: the older goes */
                    worst = j;
            }
            if (count > keep)
                held[worst] = 0;
            for (int j = 0; j < n; j++) {
                const int want = j <= i && (j < sinks || i - j < recent || held[j]);

                assert_int_equal(ek_rank_visible(&r, i, j), want);
                assert_int_equal(want, j <= i && i < r.evict[j]);
            }
        }
    }
    ek_rank_close(&r);
}

/* A decision at every position: the leaver is who the eviction times name, and the partner is
 * worse than a newborn that stays and better than one that goes. */
static void test_decisions(void **state)
{
    enum { N = 150, SINKS = 3, RECENT = 8, KEEP = 12 };
    ek_rank r;
    ek_err err;
    float a[N];

    (void)state;
    for (int j = 0; j < N; j++)
        a[j] = (float)ek_rng_below(40, 11, 1, (uint64_t)j);
    assert_int_equal(ek_rank_open(&r, N, &err), EK_OK);
    ek_rank_run(&r, a, N, SINKS, RECENT, KEEP);
    for (int i = SINKS + RECENT + KEEP; i < N; i++) {
        const ek_decision d = ek_rank_decide(&r, i);

        assert_int_equal(r.evict[d.leaver], i);
        assert_int_equal(d.y > 0, ek_rank_visible(&r, i, d.newborn));
        assert_int_equal(r.rank[d.newborn]<r.rank[d.partner], d.y> 0);
        assert_int_equal(ek_rank_visible(&r, i, d.boundary), 1);
    }
    ek_rank_close(&r);
}

/* Negative control: one swapped priority changes the eviction times. */
static void test_control(void **state)
{
    ek_rank r;
    float a[8];
    int32_t evict[8], heap[8];

    (void)state;
    open_example(&r);
    memcpy(a, example, sizeof a);
    a[1] = 0.95f;
    ek_rank_heap(evict, a, 8, 1, 2, 2, heap);
    assert_memory_not_equal(evict, r.evict, sizeof evict);
    ek_rank_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table), cmocka_unit_test(test_three_ways),
        cmocka_unit_test(test_decisions), cmocka_unit_test(test_control)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
