/* tests/test_metrics.c - the fidelity vector of the specification, and attention diagnostics. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "infer/metrics.h"

#include <math.h>
#include <string.h>

enum { V = 7, T = 240 };

static double number(const ek_number *all, int n, const char *name, int se)
{
    for (int i = 0; i < n; i++)
        if (strcmp(all[i].name, name) == 0)
            return se ? all[i].se : all[i].value;
    fail_msg("no number '%s'", name);
    return NAN;
}

/* V = 7, 240 predictions with logits from sines: every number of the published table. */
static void fidelity_vector(void **state)
{
    static const struct {
        const char *name;
        double value, se, within;
    } want[] = {
        {"PPL", 15.826985, 1.416266, 1e-5},
        {"PPL(base)", 15.603159, 1.400192, 1e-5},
        {"Cor(ln PPL)", .99080, NAN, 1e-5},
        {"ln(PPL ratio)", .014243, .012157, 1e-6},
        {"Mean PPL ratio", 1.014345, .012331, 1e-6},
        {"PPL difference", .223826, .191675, 1e-5},
        {"Mean KLD", .012781, .000665, 1e-6},
        {"Maximum KLD", .035885, NAN, 1e-6},
        {"99% KLD", .035068, NAN, 1e-6},
        {"90% KLD", .030421, NAN, 1e-6},
        {"Median KLD", .008660, NAN, 1e-6},
        {"Minimum KLD", .001741, NAN, 1e-6},
        {"Mean \xce\x94p", -.00088084, .00198839, 1e-7},
        {"RMS \xce\x94p", .03075240, .00228325, 1e-7},
        {"Same top p", .76666667, .02735853, 1e-7},
    };
    ek_fidelity f;
    ek_err err;
    ek_number all[EK_FIDELITY_NUMBERS];

    (void)state;
    assert_int_equal(ek_fidelity_open(&f, T, &err), EK_OK);
    for (int t = 0; t < T; t++) {
        double base[V], q[V], zb = 0, zq = 0;
        ek_kl kl = {0};
        const int token = (5 * t + t / 3) % V;

        for (int v = 0; v < V; v++) {
            base[v] = 2 * sin(.7 * t + 1.3 * v);
            q[v] = base[v] + .3 * cos(1.1 * t + .5 * v);
            zb += exp(base[v]);
            zq += exp(q[v]);
            kl.top_base = base[v] > base[kl.top_base] ? v : kl.top_base;
            kl.top = q[v] > q[kl.top] ? v : kl.top;
        }
        kl.lse_base = log(zb);
        kl.lse = log(zq);
        for (int v = 0; v < V; v++)
            kl.kl += exp(base[v]) / zb * (base[v] - kl.lse_base - q[v] + kl.lse);
        ek_fidelity_add(&f, &kl, (float)base[token], (float)q[token]);
    }
    const int n = ek_fidelity_numbers(&f, all);

    for (size_t i = 0; i < EK_COUNT(want); i++) {
        assert_true(fabs(number(all, n, want[i].name, 0) - want[i].value) < want[i].within);
        if (!isnan(want[i].se))
            assert_true(fabs(number(all, n, want[i].name, 1) - want[i].se) < want[i].within);
    }
    f.kl[3] += 1e-3; /* negative control: one prediction of 240 moves the mean by 4e-6 */
    ek_fidelity_numbers(&f, all);
    assert_false(fabs(number(all, n, "Mean KLD", 0) - .012781) < 1e-6);
    ek_fidelity_close(&f);
}

/* 4 entries, {0, 3} stay, two later queries: mass lost is .7 of 1.6. */
static void future_missed_mass(void **state)
{
    const float rows[2][4] = {{.4f, .1f, .2f, .1f}, {.3f, .3f, .1f, .1f}};
    const int32_t kept[] = {0, 3};
    float future[4];
    int32_t order[4];

    (void)state;
    for (int j = 0; j < 4; j++)
        future[j] = rows[0][j] + rows[1][j];
    const ek_future_loss loss = ek_future_head(future, 1, 4, kept, 2, order);

    assert_true(fabs(loss.missed - .4375) < 1e-6);
    assert_true(fabs(loss.recall - .5) < 1e-12);
}

/* Two query heads: missed takes their mean, recall their maximum. */
static void groups_combine(void **state)
{
    const float future[] = {.9f, .0f, .5f, .5f, .1f, .0f};
    const int32_t first[] = {0}, second[] = {1};
    int32_t order[3];

    (void)state;
    assert_true(ek_future_head(future, 2, 3, first, 1, order).recall == 1);
    assert_true(ek_future_head(future, 2, 3, second, 1, order).recall == 0);
    assert_true(fabs(ek_future_head(future, 2, 3, second, 1, order).missed - .5) < 1e-6);
}

static void few_predictions_have_no_error(void **state)
{
    ek_number all[EK_FIDELITY_NUMBERS];
    ek_fidelity f;
    ek_err err;

    (void)state;
    assert_int_equal(ek_fidelity_open(&f, 10, &err), EK_OK);
    assert_int_equal(ek_fidelity_numbers(&f, all), 0);
    for (int i = 0; i < 11; i++)
        ek_fidelity_add(&f, &(ek_kl){.lse_base = 1, .lse = 1, .kl = .5}, 0, 0);
    assert_int_equal(f.n, 10); /* no room for the 11th */
    const int n = ek_fidelity_numbers(&f, all);

    assert_true(isnan(number(all, n, "Mean KLD", 1)));
    assert_true(number(all, n, "Mean KLD", 0) == .5);
    ek_fidelity_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fidelity_vector),
        cmocka_unit_test(future_missed_mass),
        cmocka_unit_test(groups_combine),
        cmocka_unit_test(few_predictions_have_no_error),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
