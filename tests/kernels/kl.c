/* Rows of logits against base rows. */
#include "tests/check_kernels.h"
#include "tests/naive.h"

#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const int widths[] = {1, 7, 31, 33, 575, 1024, 1025, 49152};

/* Logits of a language model: a few high, the rest low; x is base moved by a little. */
static void make_rows(float *base, float *x, int n, uint64_t seed, float move)
{
    for (int i = 0; i < n; i++) {
        base[i] = 8.0f * ek_number(seed, (uint64_t)i);
        x[i] = base[i] + move * ek_number(seed + 1, (uint64_t)i);
    }
    base[n / 2] = 14.0f;
    x[n / 2] = 13.5f;
}

/* exp errs by 3e-7 of each term and the sums by little more; kl by that times how far rows are
 * apart. */
static int is_near(const ek_kl *got, const ek_kl *want, double spread)
{
    return ek_near(got->lse_base, want->lse_base, 1e-6) && ek_near(got->lse, want->lse, 1e-6) &&
           ek_near(got->kl, want->kl, 1e-6 * (1.0 + spread)) && got->top_base == want->top_base &&
           got->top == want->top;
}

static void near_the_reference(void **state)
{
    ek_device *dev = *state;

    for (size_t i = 0; i < EK_COUNT(widths); i++) {
        const int n = widths[i];
        float *base = ek_guarded((size_t)n), *x = ek_guarded((size_t)n);
        const float *bases[1] = {base}, *xs[1] = {x};
        ek_kl got, want;

        make_rows(base, x, n, 3, 2.0f);
        dev->ops.kl(dev, &got, bases, xs, 1, n);
        ek_naive_kl(&want, base, x, n);
        assert_true(is_near(&got, &want, 2.0));
        if (n > 1) { /* negative control */
            x[n / 2] -= 0.5f;
            ek_naive_kl(&want, base, x, n);
            assert_false(is_near(&got, &want, 2.0));
        }
        dev->ops.kl(dev, &got, bases, bases, 1, n);
        assert_true(got.kl == 0.0 && got.top == n / 2);
        ek_guarded_free(base);
        ek_guarded_free(x);
    }
}

static void company_changes_nothing(void **state)
{
    ek_device *dev = *state;
    const int n = 5000, threads = omp_get_max_threads();
    float *base = ek_numbers(1, 7 * 5000, 1.0f), *x = ek_numbers(2, 7 * 5000, 1.0f);
    const float *bases[7], *xs[7];
    ek_kl alone[7], got[7];

    memset(alone, 0, sizeof alone);
    memset(got, 0, sizeof got);
    for (int i = 0; i < 7; i++) {
        make_rows(base + i * n, x + i * n, n, (uint64_t)i, 1.0f);
        bases[i] = base + i * n;
        xs[i] = x + i * n;
        dev->ops.kl(dev, &alone[i], &bases[i], &xs[i], 1, n);
    }
    for (int t = 1; t <= 3; t++) {
        omp_set_num_threads(t);
        dev->ops.kl(dev, got, bases, xs, 7, n);
        assert_memory_equal(got, alone, sizeof got);
    }
    omp_set_num_threads(threads);
    free(base);
    free(x);
}

static void ties_infinities_and_nan(void **state)
{
    ek_device *dev = *state;
    float base[40], x[40];
    const float *bases[1] = {base}, *xs[1] = {x};
    ek_kl got, want;

    for (int i = 0; i < 40; i++)
        base[i] = x[i] = (float)(i % 5);
    dev->ops.kl(dev, &got, bases, xs, 1, 40);
    assert_true(got.top == 4 && got.top_base == 4 && got.kl == 0.0);
    base[3] = x[3] = -INFINITY; /* excluded in both: 0 ln 0 */
    x[30] = 1.0f;
    ek_naive_kl(&want, base, x, 40);
    base[3] = x[3] = -INFINITY;
    dev->ops.kl(dev, &got, bases, xs, 1, 40);
    assert_true(is_near(&got, &want, 1.0) && isfinite(got.kl) && got.kl > 0.0);
    x[4] = -INFINITY; /* base says possible, x says impossible */
    dev->ops.kl(dev, &got, bases, xs, 1, 40);
    assert_true(got.kl == INFINITY);
    x[4] = NAN;
    dev->ops.kl(dev, &got, bases, xs, 1, 40);
    assert_true(isnan(got.kl) && isnan(got.lse) && isfinite(got.lse_base));
    x[4] = 4.0f;
    base[39] = NAN;
    dev->ops.kl(dev, &got, bases, xs, 1, 40);
    assert_true(isnan(got.kl) && isnan(got.lse_base) && isfinite(got.lse));
}

static void bench(ek_device *dev)
{
    const int n = 49152, m = 8;
    float *base = ek_numbers(1, (size_t)(n * m), 8.0f), *x = ek_numbers(2, (size_t)(n * m), 8.0f);
    const float *bases[8], *xs[8];
    const double stream = ek_bench_stream();
    double best = INFINITY;
    ek_kl got[8];

    for (int i = 0; i < m; i++) {
        bases[i] = base + i * n;
        xs[i] = x + i * n;
    }
    for (int r = 0; r < 30; r++) {
        const double start = ek_seconds();

        dev->ops.kl(dev, got, bases, xs, m, n);
        best = fmin(best, ek_seconds() - start);
    }
    printf("%s: %.1f us per row, %.2f of streaming its bytes\n", dev->ops.name, best / m * 1e6,
           8.0 * n * m / best / stream);
    free(base);
    free(x);
}

static const struct CMUnitTest kl_tests[] = {
    cmocka_unit_test(near_the_reference),
    cmocka_unit_test(company_changes_nothing),
    cmocka_unit_test(ties_infinities_and_nan),
};
EK_KERNEL_MAIN(kl_tests, bench)
