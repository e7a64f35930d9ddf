/* tests/test_optim.c - AdamW against its formulas in double, schedule, clipping, refusal of NaN. */
#include "train/optim.h"

#include "core/rng.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const ek_scorer scorer = {.cls = &ek_scorer_mlp,
                                 .dims = {.n_layers = 2, .n_heads = 2, .head_dim = 4},
                                 .set = {.hidden = 3, .age = EK_AGE_EXP}};

static void test_adamw(void **state)
{
    const size_t n = ek_params_size(&scorer);
    ek_param p[EK_MAX_PARAMS];
    const int n_tensors = scorer.cls->learner->describe(&scorer, p);
    ek_optim_set set = ek_optim_defaults;
    ek_optim o;
    ek_err err;
    float *params = calloc(n, sizeof *params), *grad = calloc(n, sizeof *grad);
    double *w = calloc(n, sizeof *w), *m = calloc(n, sizeof *m), *v = calloc(n, sizeof *v);

    (void)state;
    set.warmup = 3;
    set.lr = 0.05;
    set.weight_decay = 0.1;
    set.clip = 2;
    assert_int_equal(ek_optim_open(&o, &scorer, 0, &set, &err), EK_OK);
    for (size_t i = 0; i < n; i++)
        w[i] = params[i] = (float)ek_rng_normal(1, 1, i);
    for (int64_t step = 1; step <= 10; step++) {
        double sum = 0, norm;
        size_t at = 0;

        for (size_t i = 0; i < n; i++)
            grad[i] = (float)ek_rng_normal(1, 1 + (uint64_t)step, i);
        for (int t = 0; t < n_tensors; t++) {
            const size_t size = 4 * (size_t)p[t].rows * (size_t)p[t].cols;

            for (size_t i = at; i < at + size; i++)
                sum += p[t].trained ? (double)grad[i] * (double)grad[i] : 0;
            at += size;
        }
        assert_int_equal(at, n);
        assert_int_equal(ek_optim_step(&o, params, grad, step, 10, &norm, &err), EK_OK);
        assert_true(fabs(norm - sqrt(sum)) < 1e-9);
        const double by = norm > 2 ? 2 / norm : 1, lr = ek_optim_lr(&set, step, 10);
        at = 0;
        for (int t = 0; t < n_tensors; t++) {
            const size_t size = 4 * (size_t)p[t].rows * (size_t)p[t].cols;

            for (size_t i = at; p[t].trained && i < at + size; i++) {
                const double g = (double)grad[i] * by;

                m[i] = .9 * m[i] + .1 * g;
                v[i] = .95 * v[i] + .05 * g * g;
                w[i] -= lr * (p[t].decay ? .1 * w[i] : 0);
                w[i] -= lr * m[i] / (1 - pow(.9, (double)step)) /
                        (sqrt(v[i] / (1 - pow(.95, (double)step))) + 1e-8);
            }
            at += size;
        }
        for (size_t i = 0; i < n; i++)
            assert_true(fabs((double)params[i] - w[i]) < 2e-5);
    }
    /* A NaN is refused, named, and changes nothing. */
    float *before = malloc(n * sizeof *before);
    memcpy(before, params, n * sizeof *before);
    grad[ek_params_at(&scorer, 2, 1, 0)] = NAN;
    assert_int_equal(ek_optim_step(&o, params, grad, 11, 11, NULL, &err), EK_ENAN);
    assert_non_null(strstr(err.msg, "hidden.weight, layer 1, head 0"));
    assert_memory_equal(before, params, n * sizeof *before);
    free(before);
    ek_optim_close(&o);
    free(params);
    free(grad);
    free(w);
    free(m);
    free(v);
}

static void test_schedule(void **state)
{
    ek_optim_set set = ek_optim_defaults;

    (void)state;
    set.warmup = 100;
    assert_true(fabs(ek_optim_lr(&set, 1, 2000) - 1e-5) < 1e-12);
    assert_true(fabs(ek_optim_lr(&set, 100, 2000) - 1e-3) < 1e-12);
    assert_true(fabs(ek_optim_lr(&set, 1050, 2000) - (1e-3 + 8e-5) / 2) < 1e-9);
    assert_true(fabs(ek_optim_lr(&set, 2000, 2000) - 8e-5) < 1e-12);
    for (int64_t i = 101; i <= 2000; i++)
        assert_true(ek_optim_lr(&set, i, 2000) < ek_optim_lr(&set, i - 1, 2000));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_adamw),
                                       cmocka_unit_test(test_schedule)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
