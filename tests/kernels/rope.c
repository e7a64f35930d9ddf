/* Rotary positions. */
#include "tests/check_kernels.h"
#include "tests/naive.h"

#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { rows = 7 };
static const int32_t positions[rows] = {0, 1, 5, 1023, 1024, 8191, 200000};

static void frequencies(double *inv, int half, double base)
{
    for (int i = 0; i < half; i++)
        inv[i] = pow(base, -(double)i / half);
}

static void near_the_reference(void **state)
{
    ek_device *dev = *state;
    static const int dims[] = {64, 8, 24, 128, 2};

    for (size_t k = 0; k < EK_COUNT(dims); k++) {
        const int dim = dims[k], heads = 3;
        const size_t ld = (size_t)(heads * dim) + 3;
        float *x = ek_numbers(1, rows * ld, 1.0f), *out = ek_guarded(rows * ld);
        double inv[64], want[128];
        int far = 0, control = 0;

        frequencies(inv, dim / 2, 1e5);
        memcpy(out, x, rows * ld * sizeof *x);
        dev->ops.rope(dev, out, ld, rows, heads, dim, positions, inv);
        for (int r = 0; r < rows; r++)
            for (int h = 0; h < heads; h++) {
                const size_t at = (size_t)r * ld + (size_t)(h * dim);

                for (int shift = 0; shift < 2; shift++) {
                    ek_naive_rope(want, x + at, dim, positions[r] + shift, inv);
                    for (int d = 0; d < dim; d++) /* two products and a sum, from rounded tables */
                        *(shift ? &control : &far) +=
                            !ek_near((double)out[at + (size_t)d], want[d], 8 * EK_HALF_ULP);
                }
            }
        assert_int_equal(far, 0);
        assert_true(control > 0);
        for (int r = 0; r < rows; r++)
            assert_memory_equal(out + (size_t)r * ld + (size_t)(heads * dim),
                                x + (size_t)r * ld + (size_t)(heads * dim), 3 * sizeof *x);
        ek_guarded_free(out);
        free(x);
    }
}

/* Taken back, a rotation leaves what was there; another position does not. */
static void back_again(void **state)
{
    ek_device *dev = *state;
    static const int dims[] = {64, 24, 2};

    for (size_t k = 0; k < EK_COUNT(dims); k++) {
        const int dim = dims[k], heads = 3;
        const size_t ld = (size_t)(heads * dim) + 3;
        float *x = ek_numbers(1, rows * ld, 1.0f), *out = ek_guarded(rows * ld);
        int32_t other[rows];
        double inv[64];

        frequencies(inv, dim / 2, 1e5);
        for (int shift = 0; shift < 2; shift++) {
            int far = 0;

            for (int r = 0; r < rows; r++)
                other[r] = positions[r] + shift;
            memcpy(out, x, rows * ld * sizeof *x);
            dev->ops.rope(dev, out, ld, rows, heads, dim, positions, inv);
            dev->ops.unrope(dev, out, ld, rows, heads, dim, other, inv);
            for (size_t i = 0; i < rows * ld; i++)
                far += !ek_near((double)out[i], (double)x[i], 16 * EK_HALF_ULP);
            assert_true(shift ? far > 0 : far == 0);
        }
        ek_guarded_free(out);
        free(x);
    }
}

/* Two models in one process: the table follows the frequencies. */
static void the_table_follows_the_frequencies(void **state)
{
    ek_device *dev = *state;
    const int32_t pos[1] = {77};
    double inv[2][32];
    float x[2][2][64];

    frequencies(inv[0], 32, 1e4);
    frequencies(inv[1], 32, 1e5);
    for (int i = 0; i < 4; i++) {
        for (int d = 0; d < 64; d++)
            x[i / 2][i % 2][d] = ek_number(1, (uint64_t)d);
        dev->ops.rope(dev, x[i / 2][i % 2], 64, 1, 1, 64, pos, inv[i % 2]);
    }
    assert_memory_equal(x[0], x[1], sizeof x[0]);
    assert_memory_not_equal(x[0][0], x[0][1], sizeof x[0][0]);
}

static void company_position_zero_and_nan(void **state)
{
    ek_device *dev = *state;
    const int m = 400, threads = omp_get_max_threads();
    float *x = ek_numbers(1, (size_t)m * 576, 1.0f), *alone = malloc((size_t)m * 576 * sizeof *x);
    float *out = malloc((size_t)m * 576 * sizeof *x);
    int32_t pos[400];
    double inv[32];
    int64_t held;

    x[3 * 576] = NAN;
    frequencies(inv, 32, 1e5);
    memcpy(alone, x, (size_t)m * 576 * sizeof *x);
    for (int i = 0; i < m; i++) {
        pos[i] = 3 * i;
        dev->ops.rope(dev, alone + i * 576, 576, 1, 9, 64, &pos[i], inv);
    }
    held = dev->bytes;
    for (int t = 1; t <= 3; t++) {
        omp_set_num_threads(t);
        memcpy(out, x, (size_t)m * 576 * sizeof *x);
        dev->ops.rope(dev, out, 576, m, 9, 64, pos, inv);
        assert_memory_equal(out, alone, (size_t)m * 576 * sizeof *x);
    }
    omp_set_num_threads(threads);
    assert_memory_equal(out, x, 576 * sizeof *x); /* position 0 turns nothing */
    assert_true(isnan(out[3 * 576]) && isfinite(out[3 * 576 + 1]));
    assert_true(dev->bytes == held); /* the table stands still */
    free(x);
    free(alone);
    free(out);
}

static void bench(ek_device *dev)
{
    const int m = 2048;
    float *x = ek_numbers(1, (size_t)m * 576, 1.0f);
    int32_t *pos = malloc((size_t)m * sizeof *pos);
    double inv[32], best = INFINITY;

    frequencies(inv, 32, 1e5);
    for (int i = 0; i < m; i++)
        pos[i] = i;
    for (int r = 0; r < 30; r++) {
        const double start = ek_seconds();

        dev->ops.rope(dev, x, 576, m, 9, 64, pos, inv);
        best = fmin(best, ek_seconds() - start);
    }
    printf("%s: %.3f us per token of 9 heads, %.2f of streaming\n", dev->ops.name, best / m * 1e6,
           8.0 * 576 * m / best / ek_bench_stream());
    free(x);
    free(pos);
}

static const struct CMUnitTest rope_tests[] = {
    cmocka_unit_test(near_the_reference),
    cmocka_unit_test(back_again),
    cmocka_unit_test(the_table_follows_the_frequencies),
    cmocka_unit_test(company_position_zero_and_nan),
};
EK_KERNEL_MAIN(rope_tests, bench)
