/* Statistics against numbers worked out by hand, and against every draw where they can be listed.
 */
#include "core/rng.h"
#include "results/stats.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define NEAR(a, b, tol) near_(a, b, tol, #a, __LINE__)

static void near_(double a, double b, double tol, const char *what, int line)
{
    if (!(fabs(a - b) <= tol))
        fail_msg("line %d: %s: found %.9g, expected %.9g", line, what, a, b);
}

static const double one[64] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
                               1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
                               1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};

/* "110 01": one group per cluster, one digit per sample. */
typedef struct digits {
    double x[64], count[16], sum[16];
    int n, size[16], n_clusters;
} digits;

static digits parse(const char *text)
{
    digits d = {0};

    d.n_clusters = 1;
    for (; *text; text++) {
        if (*text == ' ') {
            d.n_clusters++;
            continue;
        }
        d.x[d.n++] = *text - '0';
        d.size[d.n_clusters - 1]++;
        d.count[d.n_clusters - 1] += 1;
        d.sum[d.n_clusters - 1] += *text - '0';
    }
    return d;
}

static void means_and_wilson(void **state)
{
    const digits seven = parse("1111111000");
    ek_estimate e = ek_stat_mean(seven.x, seven.n);

    (void)state;
    NEAR(e.value, 0.7, 1e-6);
    NEAR(e.se, 0.152753, 1e-6);
    assert_true(isnan(ek_stat_mean(seven.x, 1).se));
    assert_true(isnan(ek_stat_mean(seven.x, 0).value));
    {
        const digits aime = parse("111111111111111111111000000000");

        NEAR(100 * ek_stat_mean(aime.x, 30).se, 8.51, 0.005);
    }
    e = ek_stat_wilson(21, 30);
    NEAR(100 * e.lo, 52.12, 0.005);
    NEAR(100 * e.hi, 83.34, 0.005);
    e = ek_stat_wilson(30, 30);
    NEAR(100 * e.lo, 88.65, 0.005);
    NEAR(100 * e.hi, 100, 1e-9);
    e = ek_stat_wilson(0, 30);
    NEAR(100 * e.lo, 0, 1e-9);
    NEAR(100 * e.hi, 11.35, 0.005);
    e = ek_stat_wilson(350, 500);
    NEAR(100 * e.lo, 65.84, 0.005);
    NEAR(100 * e.hi, 73.85, 0.005);
}

static void clusters_of_equal_and_unequal_size(void **state)
{
    const digits even = parse("1101 0001 1111 0000 1010"), odd = parse("110 01 1111 0");
    ek_clusters c = {.n = 5, .count = even.count, .sum = even.sum};
    ek_estimate e = ek_stat_clustered(&c);

    (void)state;
    NEAR(e.value, 0.5, 1e-6);
    NEAR(e.se, 0.176777, 1e-6);
    NEAR(ek_stat_mean(even.x, even.n).se, 0.114708, 1e-6);
    NEAR(ek_stat_sampling_part(even.x, even.size, 5), 0.091287, 1e-6);
    c = (ek_clusters){.n = 4, .count = odd.count, .sum = odd.sum};
    e = ek_stat_clustered(&c);
    NEAR(e.value, 0.7, 1e-6);
    NEAR(e.se, 0.167332, 1e-6);
    c.n = 1;
    assert_true(isnan(ek_stat_clustered(&c).se));
}

static void pairs(void **state)
{
    const digits f = parse("1110110111"), m = parse("1010111100");
    const ek_clusters c = {.n = 10, .count = one, .sum = m.x, .base = f.x};
    const double a = ek_stat_mean(f.x, 10).se, b = ek_stat_mean(m.x, 10).se;
    ek_estimate e = ek_stat_difference(&c);
    ek_bootstrap boot;
    ek_draws d;
    ek_err err;

    (void)state;
    NEAR(e.value, -0.2, 1e-6);
    NEAR(e.se, 0.2, 1e-6);
    NEAR(sqrt(a * a + b * b), 0.210819, 1e-6);
    e = ek_stat_percent(&c);
    NEAR(e.value, 75.0, 1e-6);
    NEAR(e.se, 22.8218, 1e-4);
    assert_int_equal(ek_draws_open(&d, 10, 100000, 7, &err), EK_OK);
    assert_int_equal(ek_stat_bootstrap(&boot, &c, &d, &err), EK_OK);
    NEAR(boot.difference_se, 0.189737, 0.002);
    ek_draws_close(&d);
}

/* All n^n draws, in the order of counting. */
static int next_draw(int32_t *draw, int n)
{
    for (int j = 0; j < n; j++) {
        if (++draw[j] < n)
            return 1;
        draw[j] = 0;
    }
    return 0;
}

static void every_draw_of_four(void **state)
{
    static const int expected[5] = {1, 12, 54, 108, 81};
    const digits f = parse("1101"), m = parse("1001");
    const ek_clusters c = {.n = 4, .count = one, .sum = m.x, .base = f.x};
    int32_t draw[4] = {0};
    int count[5] = {0};

    (void)state;
    do {
        double mean, difference, percent;

        ek_stat_draw(&c, draw, &mean, &difference, &percent);
        count[(int)lround((difference + 1) * 4)]++;
    } while (next_draw(draw, 4));
    assert_memory_equal(count, expected, sizeof count);
}

static void every_draw_of_five(void **state)
{
    static const double f[5] = {40, 60, 80, 20, 50}, m[5] = {38, 61, 70, 20, 45};
    const ek_clusters c = {.n = 5, .count = one, .sum = m, .base = f};
    double *difference = malloc(3125 * sizeof(double)), *percent = malloc(3125 * sizeof(double));
    ek_estimate e = ek_stat_difference(&c);
    int32_t draw[5] = {0};
    int n = 0, above = 0;
    ek_bootstrap boot;
    ek_draws d;
    ek_err err;

    (void)state;
    NEAR(e.value, -3.2, 1e-6);
    NEAR(e.se, 1.984943, 1e-6);
    NEAR(ek_stat_percent(&c).value, 93.6, 1e-6);
    do {
        double mean;

        ek_stat_draw(&c, draw, &mean, &difference[n], &percent[n]);
        above += difference[n++] >= 0;
    } while (next_draw(draw, 5));
    assert_int_equal(n, 3125);
    NEAR(above / 3125.0, 0.02784, 1e-9);
    NEAR(ek_stat_quantile(difference, n, 0.025), -7.0, 1e-9);
    NEAR(ek_stat_quantile(difference, n, 0.975), 0.0, 1e-9);
    NEAR(ek_stat_quantile(percent, n, 0.025), 89.2857, 1e-4);
    NEAR(ek_stat_quantile(percent, n, 0.975), 100.0, 1e-9);
    free(difference);
    free(percent);
    /* Drawn instead of listed: close to the same, and marked not distinguishable. */
    assert_int_equal(ek_draws_open(&d, 5, 10000, 1, &err), EK_OK);
    assert_int_equal(ek_stat_bootstrap(&boot, &c, &d, &err), EK_OK);
    NEAR(boot.difference_lo, -7.0, 0.21);
    NEAR(boot.difference_hi, 0.0, 0.21);
    NEAR(boot.p, 2 * 0.02784, 0.01);
    assert_string_equal(ek_stat_mark(boot.difference_lo, boot.difference_hi, boot.p, 1),
                        "\xe2\x89\x88");
    ek_draws_close(&d);
}

static void the_draw_is_the_generators(void **state)
{
    const digits f = parse("110111"), m = parse("101110");
    const ek_clusters c = {.n = 6, .count = one, .sum = m.x, .base = f.x};
    ek_draws held = {0}, drawn = {.n = 6, .n_draws = 500, .seed = 42};
    ek_bootstrap a, b, other;
    ek_err err;

    (void)state;
    assert_int_equal(ek_draws_open(&held, 6, 500, 42, &err), EK_OK);
    for (int i = 0; i < 500; i++)
        for (int j = 0; j < 6; j++)
            assert_int_equal(held.draw[i * 6 + j], ek_rng_below(6, 42, (uint64_t)i, (uint64_t)j));
    assert_int_equal(ek_stat_bootstrap(&a, &c, &held, &err), EK_OK);
    assert_int_equal(ek_stat_bootstrap(&b, &c, &drawn, &err), EK_OK);
    assert_memory_equal(&a, &b, sizeof a);
    drawn.seed = 43; /* negative control */
    assert_int_equal(ek_stat_bootstrap(&other, &c, &drawn, &err), EK_OK);
    assert_memory_not_equal(&a, &other, sizeof a);
    ek_draws_close(&held);
}

static void macro_and_holm(void **state)
{
    const ek_estimate task[] = {{80, 2, 0, 0}, {60, 3, 0, 0}, {40, 1, 0, 0}};
    double p[] = {.01, .04, NAN, .03, .005}, big[] = {.6, .5};
    ek_estimate e = ek_stat_macro(task, 3);

    (void)state;
    NEAR(e.value, 60, 1e-9);
    NEAR(e.se, 1.247219, 1e-6);
    ek_stat_holm(p, 5);
    NEAR(p[0], .03, 1e-12);
    NEAR(p[1], .06, 1e-12);
    assert_true(isnan(p[2]));
    NEAR(p[3], .06, 1e-12);
    NEAR(p[4], .02, 1e-12);
    ek_stat_holm(big, 2);
    NEAR(big[0], 1, 1e-12);
    NEAR(big[1], 1, 1e-12);
}

static void marks(void **state)
{
    (void)state;
    assert_string_equal(ek_stat_mark(-0.4, 0.5, 0.9, 1), "=");
    assert_string_equal(ek_stat_mark(0.2, 0.5, 0.001, 1), "=");
    assert_string_equal(ek_stat_mark(-2, 0.5, 0.3, 1), "\xe2\x89\x88");
    assert_string_equal(ek_stat_mark(-3, -1, 0.06, 1), "\xe2\x89\x88");
    assert_string_equal(ek_stat_mark(-3, -1, 0.01, 1), "*");
    assert_string_equal(ek_stat_mark(0.1, 0.5, 0.01, 0), "*");
    assert_string_equal(ek_stat_mark(NAN, NAN, NAN, 1), "");
}

static void logs_are_exponentiated(void **state)
{
    /* Perplexities 10 and 1000 of two texts of the same length are a perplexity of 100. */
    const double m[] = {log(10), log(1000)}, f[] = {log(10), log(10)};
    const ek_clusters c = {.n = 2, .count = one, .sum = m, .base = f, .log = 1};
    const double step = 1e-6;
    double moved[] = {m[0] + step, m[1]};
    ek_clusters d = c;

    (void)state;
    NEAR(ek_stat_clustered(&c).value, 100, 1e-9);
    NEAR(ek_stat_difference(&c).value, 90, 1e-9);
    NEAR(ek_stat_percent(&c).value, 1000, 1e-6);
    NEAR(ek_stat_clustered(&c).se, 100 * fabs(m[0] - m[1]) / 2, 1e-6);
    d.sum = moved; /* the slope used in the error is the derivative */
    NEAR((ek_stat_clustered(&d).value - 100) / step, 50, 1e-3);
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static void quantiles_equal_sorting(void **state)
{
    (void)state;
    for (int n = 1; n < 200; n += 7) {
        double x[200], y[200];

        for (int i = 0; i < n; i++)
            x[i] = y[i] = (double)ek_rng_below(20, 5, (uint64_t)n, (uint64_t)i);
        qsort(y, (size_t)n, sizeof *y, by_value);
        for (double f = 0; f <= 1; f += 0.125) {
            const double at = f * (n - 1);
            const int k = (int)at;
            const double next = k + 1 < n ? y[k + 1] : y[k];

            NEAR(ek_stat_quantile(x, n, f), y[k] + (at - k) * (next - y[k]), 1e-12);
        }
    }
}

/* The clustered errors of the fidelity vector: 240 predictions in 12 documents of 20. */
static void fidelity_vector(void **state)
{
    double kl[12] = {0}, ratio[12] = {0}, count[12];
    ek_clusters c = {.n = 12, .count = count, .sum = kl};

    (void)state;
    for (int t = 0; t < 240; t++) {
        double base[7], row[7], zb = 0, zr = 0;
        const int token = (5 * t + t / 3) % 7;

        for (int v = 0; v < 7; v++) {
            base[v] = 2 * sin(0.7 * t + 1.3 * v);
            row[v] = base[v] + 0.3 * cos(1.1 * t + 0.5 * v);
            zb += exp(base[v]);
            zr += exp(row[v]);
        }
        for (int v = 0; v < 7; v++)
            kl[t / 20] += exp(base[v]) / zb * (base[v] - log(zb) - row[v] + log(zr));
        ratio[t / 20] += (base[token] - log(zb)) - (row[token] - log(zr));
        count[t / 20] = 20;
    }
    NEAR(ek_stat_clustered(&c).value, 0.012781, 1e-6);
    NEAR(ek_stat_clustered(&c).se, 0.000201, 1e-6);
    c.sum = ratio;
    NEAR(ek_stat_clustered(&c).value, 0.014243, 1e-6);
    NEAR(ek_stat_clustered(&c).se, 0.010501, 1e-6);
    c.log = 1;
    NEAR(ek_stat_clustered(&c).value, 1.014345, 1e-6);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(means_and_wilson),
        cmocka_unit_test(clusters_of_equal_and_unequal_size),
        cmocka_unit_test(pairs),
        cmocka_unit_test(every_draw_of_four),
        cmocka_unit_test(every_draw_of_five),
        cmocka_unit_test(the_draw_is_the_generators),
        cmocka_unit_test(macro_and_holm),
        cmocka_unit_test(marks),
        cmocka_unit_test(logs_are_exponentiated),
        cmocka_unit_test(quantiles_equal_sorting),
        cmocka_unit_test(fidelity_vector),
    };

    return cmocka_run_group_tests_name("stats", tests, NULL, NULL);
}
