/* tests/test_budget.c - amounts are integers, protection shrinks with them, and the best of some
 * numbers are the head of a sort. */
#include "tests/check_given.h"

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
        ek_ranked all[MOST];
        int total = 0;

        for (int r = 0; r < ranges; r++) {
            first[r] = at;
            n[r] = (int32_t)ek_rng_below(90, 1, c, 2 + (uint64_t)r);
            for (int32_t e = at; e < at + n[r]; e++) {
                const int v = (int)ek_rng_below((uint64_t)spread, 2, c, (uint64_t)e);

                x[e] = v == 3 ? -INFINITY : v == 4 ? -0.0f : ldexpf((float)(v - spread / 2), v % 9);
                mask[e] = want[e] = ek_rng_below(5, 3, c, (uint64_t)e) == 0;
                if (!mask[e])
                    all[total++] = (ek_ranked){x[e], r, e};
            }
            at += n[r] + 3;
        }
        const int64_t k = (int64_t)ek_rng_below((uint64_t)total + 3, 4, c, 0);
        qsort(all, (size_t)total, sizeof *all, ek_ranked_better);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(budgets_are_exact),
        cmocka_unit_test(protection_shrinks_to_the_budget),
        cmocka_unit_test(selection_is_the_head_of_a_sort),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
