/* silu, its derivative, silu times up, and exponentials with their sum. */
#include "tests/check_kernels.h"
#include "tests/naive.h"

#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const int sizes[] = {1, 7, 8, 15, 16, 17, 31, 33, 575, 1025};
enum { most = 1025 };

/* Relative error of exp, of one addition, one division and the products. */
static const double part = 8e-7;

static void near_the_reference(void **state)
{
    ek_device *dev = *state;

    for (size_t k = 0; k < EK_COUNT(sizes); k++) {
        const size_t n = (size_t)sizes[k];
        float *x = ek_numbers(1, n, 20.0f), *dy = ek_numbers(2, n, 2.0f);
        float *y = ek_guarded(n), *dx = ek_guarded(n);
        int far = 0, control = 0;

        x[n - 1] = n % 2 ? -100.0f : 100.0f;
        dev->ops.silu(y, x, n);
        dev->ops.silu_back(dx, x, dy, n);
        for (size_t i = 0; i < n; i++) {
            const double v = (double)x[i], want = ek_naive_silu(v);
            const double back = ek_naive_silu_back(v, (double)dy[i]);
            const double terms = fabs((double)dy[i]) * (1.0 + fabs(v));

            far += !ek_near((double)y[i], want, fabs(want) * part + 1e-36);
            far += !ek_near((double)dx[i], back, terms * part);
            control += !ek_near((double)y[i], ek_naive_silu(v + 1e-3), fabs(want) * part + 1e-36);
        }
        assert_int_equal(far, 0);
        assert_true(control > 0 || n == 1);
        ek_guarded_free(y);
        ek_guarded_free(dx);
        free(x);
        free(dy);
    }
}

static void exp_sum_and_its_edges(void **state)
{
    ek_device *dev = *state;

    for (size_t k = 0; k < EK_COUNT(sizes); k++) {
        const size_t n = (size_t)sizes[k];
        float *x = ek_numbers(3, n, 30.0f), *y = ek_guarded(n);
        const float shift = 29.0f;
        double want = 0.0, got;

        x[0] = 31.0f;
        if (n > 1)
            x[n / 2] = -INFINITY;
        got = dev->ops.exp_sum(y, x, shift, n);
        for (size_t i = 0; i < n; i++) {
            const double e = exp((double)(x[i] - shift));

            want += e;
            assert_true(ek_near((double)y[i], e, 4e-7 * e));
        }
        assert_true(ek_near(got, want, 4e-7 * want));
        assert_false(ek_near(got, want * 1.0001, 4e-7 * want)); /* negative control */
        assert_true(n == 1 || y[n / 2] == 0.0f);
        x[n - 1] = NAN;
        assert_true(isnan(dev->ops.exp_sum(y, x, shift, n)) && isnan(y[n - 1]));
        ek_guarded_free(y);
        free(x);
    }
    for (int i = 0; i < 2; i++) { /* exp(0) is 1, and an ever smaller number is 0 in the end */
        const float x[3] = {2.0f, 2.0f, -1e9f};
        float y[3];

        assert_true(dev->ops.exp_sum(y, x, 2.0f, 3) == 2.0);
        assert_true(y[0] == 1.0f && y[1] == 1.0f && y[2] == 0.0f);
    }
}

static void silu_mul_rows(void **state)
{
    ek_device *dev = *state;
    const int threads = omp_get_max_threads();

    for (size_t k = 0; k < EK_COUNT(sizes); k++) {
        const int ff = sizes[k], m = 21;
        float *x = ek_numbers(1, (size_t)(2 * m * ff), 6.0f), *out = ek_guarded((size_t)(m * ff));
        float *alone = malloc((size_t)(m * ff) * sizeof *alone);
        int far = 0;

        for (int i = 0; i < m; i++)
            dev->ops.silu_mul(dev, alone + i * ff, x + 2 * i * ff, 1, ff);
        for (int t = 1; t <= 3; t++) {
            omp_set_num_threads(t);
            dev->ops.silu_mul(dev, out, x, m, ff);
            assert_memory_equal(out, alone, (size_t)(m * ff) * sizeof *out);
        }
        omp_set_num_threads(threads);
        for (int i = 0; i < m; i++)
            for (int j = 0; j < ff; j++) {
                const double want =
                    ek_naive_silu((double)x[2 * i * ff + j]) * (double)x[2 * i * ff + ff + j];

                far += !ek_near((double)out[i * ff + j], want, fabs(want) * part + 1e-30);
            }
        assert_int_equal(far, 0);
        x[ff] = NAN;
        dev->ops.silu_mul(dev, out, x, m, ff);
        assert_true(isnan(out[0]) && (ff == 1 || isfinite(out[1])));
        ek_guarded_free(out);
        free(alone);
        free(x);
    }
}

static void bench(ek_device *dev)
{
    const size_t n = 8192;
    float *x = ek_numbers(1, n, 4.0f), *y = ek_numbers(2, n, 1.0f);
    double best[2] = {INFINITY, INFINITY};

    for (int r = 0; r < 100; r++) {
        double start = ek_seconds();

        dev->ops.silu(y, x, n);
        best[0] = fmin(best[0], ek_seconds() - start);
        start = ek_seconds();
        dev->ops.exp_sum(y, x, 1.0f, n);
        best[1] = fmin(best[1], ek_seconds() - start);
    }
    printf("%s: silu %.2f, exp_sum %.2f numbers per ns on one thread\n", dev->ops.name,
           (double)n / best[0] * 1e-9, (double)n / best[1] * 1e-9);
    free(x);
    free(y);
}

static const struct CMUnitTest silu_tests[] = {
    cmocka_unit_test(near_the_reference),
    cmocka_unit_test(exp_sum_and_its_edges),
    cmocka_unit_test(silu_mul_rows),
};
EK_KERNEL_MAIN(silu_tests, bench)
