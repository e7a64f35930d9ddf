/* tests/test_vector_plan.c - how many entries lose their value, and which; what is refused. */
#include "tests/check_vector.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static ek_err err;

static void ok(ek_code code)
{
    if (code != EK_OK)
        fail_msg("%s", err.msg);
}

/* n, B -> a, pool, approximated, exact, evicted; keys and values are always 2 B vectors. */
static void counts_are_those_of_the_definition(void **state)
{
    static const int32_t cases[][7] = {{8, 4, 2, 6, 4, 2, 2},
                                       {8, 6, 1, 7, 2, 5, 1},
                                       {8, 2, 1, 3, 2, 1, 5},
                                       {1000, 750, 125, 875, 250, 625, 125},
                                       {101, 25, 12, 37, 24, 13, 64}};
    const ek_maps maps = {0};
    ek_method m = {.maps = &maps};
    int with = 0;

    (void)state;
    for (size_t i = 0; i < EK_COUNT(cases); i++) {
        const int32_t n = cases[i][0], B = cases[i][1], a = ek_vector_a(&m, n, B);

        assert_int_equal(a, cases[i][2]);
        assert_int_equal(B + a, cases[i][3]);
        assert_int_equal(2 * a, cases[i][4]);
        assert_int_equal(B - a, cases[i][5]);
        assert_int_equal(n - B - a, cases[i][6]);
    }
    for (int32_t n = 1; n < 200; n++)
        for (int32_t B = 1; B <= n + 1; B++)
            for (int32_t sinks = 0; sinks < 5; sinks += 4) {
                int32_t first, recent, a;

                m.protect = (ek_protect){.sinks = sinks, .recent = 3 * sinks};
                a = ek_vector_a(&m, n, B);
                ek_policy_protected(&m, n, B, &first, &recent);
                with += a > 0;
                assert_true(a >= 0 && (B >= n ? a == 0 : B + a <= n));
                assert_true(a == 0 || B - a >= (first ? first : 1) + recent - a);
                assert_true(a == 0 || B + a - first - recent >= 2 * a);
            }
    assert_true(with > 0);
    m.protect = (ek_protect){0};
    m.spare = 1 - .29; /* of 100 */
    assert_int_equal(ek_vector_a(&m, 1000, 200), 29);
    m.spare = 1;
    assert_int_equal(ek_vector_a(&m, 1000, 200), 0);
    m.spare = 0;
    assert_int_equal(ek_vector_a(&m, 1000, 200), 100);
    m.maps = NULL;
    assert_int_equal(ek_vector_a(&m, 8, 4), 0);
}

/* Of the values of one list that may go, those go that are worth least by `select`; 1 if eps alone
 * would have let others go.  score: of its layer. */
static int check_order(const ek_rig *g, const ek_policy *p, const ek_cache *prompt, int list,
                       int32_t entries, const float *score)
{
    const ek_plan *plan = ek_engine_plan(g->e);
    const ek_lose select = p->method.select;
    const int learned = p->method.measure.signal->learner != NULL;
    double worst[2] = {-INFINITY, 0}, best[2] = {INFINITY, INFINITY};
    int32_t sinks, recent;

    ek_policy_protected(&p->method, EK_RIG_PROMPT, entries, &sinks, &recent);
    for (int form = 0; form < 2; form++) {
        const int32_t *first = form ? plan->mapped_first : plan->first;
        const int32_t *slot = form ? plan->mapped : plan->slot;

        for (int32_t j = first[list]; j < first[list + 1]; j++) {
            double square, eps = ek_rebuilt_error(g, &g->maps[0], prompt, list, slot[j], &square);
            const double x = (double)score[prompt->first[list] + slot[j]];
            const double by = select == EK_LOSE_RELATIVE ? eps / square
                              : select == EK_LOSE_SCORE  ? x
                                                         : eps * (learned ? exp(x) : x);

            if (form) {
                worst[0] = fmax(worst[0], by);
                worst[1] = fmax(worst[1], eps);
            } else if (slot[j] > 0 && slot[j] >= sinks && slot[j] < EK_RIG_PROMPT - recent) {
                best[0] = fmin(best[0], by);
                best[1] = fmin(best[1], eps);
            }
        }
    }
    assert_true(worst[0] <= best[0] + 1e-4 * fabs(best[0]));
    return worst[1] > best[1] * (1 + 1e-4);
}

/* The other orders of losing values. */
static void other_orders(void **state)
{
    static const struct {
        const char *method;
        ek_lose select;
        int32_t entries; /* more than is protected */
    } orders[] = {{"keydiff", EK_LOSE_RELATIVE, 40},
                  {"snapkv", EK_LOSE_WEIGHTED, 90},
                  {"kvpop", EK_LOSE_WEIGHTED, 100},
                  {"keydiff", EK_LOSE_SCORE, 40}};
    ek_rig g;
    ek_cache prompt;

    (void)state;
    ek_rig_open(&g, EK_F32);
    ek_rig_prompt(&g, &prompt);
    for (size_t o = 0; o < EK_COUNT(orders); o++) {
        const ek_method m = ek_rig_method(&g, orders[o].method);
        ek_policy p = ek_with_vector(&m, &g.maps[0], orders[o].entries);
        float *score = malloc((size_t)prompt.layer_at[1] * sizeof *score);
        int lane = -1, swapped = 0;
        ek_row row;

        p.method.select = orders[o].select;
        for (int i = 0; i < prompt.n_lanes; i++)
            if (ek_measure_same(prompt.lane[i].measure, &p.method.measure))
                lane = i;
        ok(ek_row_open(&row, g.e, &prompt, &p, EK_RIG_PROMPT, EK_RIG_GROW, 0, &err));
        for (int i = 0; i < g.m.dims->n_layers * g.m.dims->n_heads; i++) {
            ok(ek_policy_scores(&p, &prompt, lane, i / g.m.dims->n_heads, score, &err));
            swapped += check_order(&g, &p, &prompt, i, orders[o].entries, score);
        }
        assert_true(swapped > 0); /* it is not the order by error */
        ek_row_close(&row);
        free(score);
    }
    ek_cache_close(&prompt);
    ek_rig_close(&g);
}

/* ---- refusals ---- */

static void refused(const ek_method_set *set, const char *says)
{
    ek_method m;

    assert_int_equal(ek_method_open(&m, set, &err), EK_EASKED);
    assert_non_null(strstr(err.msg, says));
}

static void what_means_nothing_is_refused(void **state)
{
    ek_method_set set = ek_method_set_defaults;
    const ek_maps_need need = {0};
    ek_maps maps = {0};
    ek_method m;

    (void)state;
    set.name = (char[]){"keydiff"};
    set.maps = (char[]){"nowhere"};
    refused(&set, "rest: vector");
    set.maps = NULL;
    set.select = 1;
    refused(&set, "rest: vector");
    set.select = 0;
    set.approximate = .5;
    refused(&set, "approximate");
    set.rest = EK_REST_VECTOR;
    refused(&set, "maps");
    set.maps = (char[]){"nowhere"};
    set.select = EK_LOSE_WEIGHTED;
    refused(&set, "attention");
    set.select = 0;
    ok(ek_method_open(&m, &set, &err));
    assert_int_equal(ek_vector_open(&maps, &m, &set, EK_DECODE_HOLD, &need, &err), EK_EASKED);
    assert_non_null(strstr(err.msg, "hold"));
    assert_int_equal(ek_vector_open(&maps, &m, &set, EK_DECODE_ROW, &need, &err), EK_EASKED);
    assert_non_null(strstr(err.msg, "grow"));
    assert_int_equal(ek_vector_open(&maps, &m, &set, EK_DECODE_GROW, &need, &err), EK_EASKED);
    assert_non_null(strstr(err.msg, "nowhere"));
    assert_null(m.maps);
    set.name = (char[]){"full"};
    refused(&set, "cuts once");
}

/* A plan that cannot be carried out leaves both caches as they were. */
static void wrong_plans_are_refused(void **state)
{
    ek_rig g;
    ek_cache prompt, to;
    ek_plan plan;

    (void)state;
    ek_rig_open(&g, EK_F32);
    ek_rig_prompt(&g, &prompt);
    const int lists = g.m.dims->n_layers * g.m.dims->n_heads;
    int32_t room[64];
    ek_cache_need need = {.dims = *g.m.dims,
                          .dtype = EK_F32,
                          .cap = EK_RIG_PROMPT + EK_RIG_GROW,
                          .mapped = room,
                          .maps = &g.maps[0]};

    for (int i = 0; i < lists; i++)
        room[i] = 2;
    ok(ek_cache_open(&to, &need, g.m.dev, &err));
    need.maps = NULL;
    ek_cache none;
    assert_int_equal(ek_cache_open(&none, &need, g.m.dev, &err), EK_EBROKEN);
    for (int wrong = 0; wrong < 6; wrong++) {
        ok(ek_plan_open(&plan, g.m.dims, 10 * lists, &err));
        for (int i = 0; i < lists; i++) {
            plan.of[i] = EK_RIG_PROMPT;
            plan.first[i + 1] = 2 * (i + 1);
            plan.slot[2 * i] = 0;
            plan.slot[2 * i + 1] = 7;
            plan.mapped_first[i + 1] = 2 * (i + 1);
            plan.mapped[2 * i] = 5;
            plan.mapped[2 * i + 1] = 9;
        }
        if (wrong == 1)
            plan.mapped[3] = 7; /* kept with its value too */
        if (wrong == 2)
            plan.mapped[3] = 5; /* not ascending */
        if (wrong == 3)
            plan.mapped[3] = EK_RIG_PROMPT;
        if (wrong == 4)
            plan.mapped_first[lists] = 2 * lists + 1; /* no room */
        if (wrong == 0) {
            ok(ek_cache_apply(&to, &prompt, -1, &plan, &err));
            ok(ek_cache_check(&to, &err));
            assert_int_equal(ek_cache_mapped(&to), 2 * lists);
            assert_int_equal(to.annex.pos[1], 9);
        } else if (wrong == 5) { /* in place */
            assert_int_equal(ek_cache_apply(&prompt, &prompt, -1, &plan, &err), EK_EBROKEN);
        } else {
            assert_int_equal(ek_cache_apply(&to, &prompt, -1, &plan, &err), EK_EBROKEN);
            assert_int_equal(to.annex.pos[1], 9);
        }
        ek_plan_close(&plan);
    }
    to.annex.pos[0] = 7; /* where an entry with value stands */
    assert_int_equal(ek_cache_check(&to, &err), EK_EBROKEN);
    ek_cache_close(&to);
    ek_cache_close(&prompt);
    ek_rig_close(&g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(counts_are_those_of_the_definition),
        cmocka_unit_test(other_orders),
        cmocka_unit_test(what_means_nothing_is_refused),
        cmocka_unit_test(wrong_plans_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
