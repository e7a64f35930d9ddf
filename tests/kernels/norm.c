/* Root-mean-square normalisation. */
#include "tests/check_kernels.h"
#include "tests/naive.h"

#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const int sizes[] = {1, 7, 8, 33, 64, 575, 576};

static void near_the_reference(void **state)
{
    ek_device *dev = *state;

    for (size_t i = 0; i < EK_COUNT(sizes); i++) {
        const int d = sizes[i], m = 5;
        float *x = ek_numbers(1, (size_t)(m * d), 3.0f), *w = ek_numbers(2, (size_t)d, 1.0f);
        float *out = ek_guarded((size_t)(m * d));
        double *want = malloc((size_t)d * sizeof *want);
        int far = 0, control = 0;

        dev->ops.rms_norm(dev, out, x, w, m, d, 1e-5f);
        for (int r = 0; r < m; r++) {
            ek_naive_rms_norm(want, x + r * d, w, d, (double)1e-5f);
            for (int j = 0; j < d; j++) { /* half of the sum's roundings, and five of its own */
                const double bound = fabs(want[j]) * (0.5 * d + 6.0) * EK_HALF_ULP;

                far += !ek_near((double)out[r * d + j], want[j], bound);
                control += !ek_near((double)out[r * d + j] * 1.001, want[j], bound);
            }
        }
        assert_int_equal(far, 0);
        assert_true(control > 0);
        ek_guarded_free(out);
        free(x);
        free(w);
        free(want);
    }
}

/* Ones: the mean square is 1, and 1 + 3 is a square. */
static void ones_are_exact(void **state)
{
    ek_device *dev = *state;
    float x[64], w[64], out[64];

    for (int i = 0; i < 64; i++) {
        x[i] = i % 2 ? 1.0f : -1.0f;
        w[i] = (float)i;
    }
    dev->ops.rms_norm(dev, out, x, w, 1, 64, 3.0f);
    for (int i = 0; i < 64; i++)
        assert_true(out[i] == x[i] * 0.5f * (float)i);
}

static void company_in_place_and_adversaries(void **state)
{
    ek_device *dev = *state;
    const int m = 200, d = 575, threads = omp_get_max_threads();
    float *x = ek_numbers(1, (size_t)(m * d), 3.0f), *w = ek_numbers(2, (size_t)d, 1.0f);
    float *alone = malloc((size_t)(m * d) * sizeof *alone), *out = ek_guarded((size_t)(m * d));

    x[3 * d + 5] = NAN;
    for (int j = 0; j < d; j++)
        x[4 * d + j] = 0.0f;
    for (int i = 0; i < m; i++)
        dev->ops.rms_norm(dev, alone + i * d, x + i * d, w, 1, d, 1e-6f);
    for (int t = 1; t <= 3; t++) {
        omp_set_num_threads(t);
        memcpy(out, x, (size_t)(m * d) * sizeof *x);
        dev->ops.rms_norm(dev, out, out, w, m, d, 1e-6f); /* in place */
        assert_memory_equal(out, alone, (size_t)(m * d) * sizeof *out);
    }
    omp_set_num_threads(threads);
    assert_true(isnan(out[3 * d]) && out[4 * d] == 0.0f && isfinite(out[5 * d]));
    ek_guarded_free(out);
    free(alone);
    free(x);
    free(w);
}

static void bench(ek_device *dev)
{
    const int m = 512, d = 576;
    float *x = ek_numbers(1, (size_t)(m * d), 3.0f), *w = ek_numbers(2, (size_t)d, 1.0f);
    float *out = ek_numbers(3, (size_t)(m * d), 3.0f);
    double best = INFINITY;

    for (int r = 0; r < 50; r++) {
        const double start = ek_seconds();

        dev->ops.rms_norm(dev, out, x, w, m, d, 1e-5f);
        best = fmin(best, ek_seconds() - start);
    }
    printf("%s: %.2f us per row of %d, %.2f of streaming\n", dev->ops.name, best / m * 1e6, d,
           8.0 * m * d / best / ek_bench_stream());
    free(x);
    free(w);
    free(out);
}

static const struct CMUnitTest norm_tests[] = {
    cmocka_unit_test(near_the_reference),
    cmocka_unit_test(ones_are_exact),
    cmocka_unit_test(company_in_place_and_adversaries),
};
EK_KERNEL_MAIN(norm_tests, bench)
