/* tests/test_regress.c - ridge least squares from sums: planted maps are found, ridge, R2 and the
 * choice of lambda agree with naive forms, sums have the same bits however the rows arrive. */
#include "core/rng.h"
#include "tests/check_folder.h"
#include "train/regress.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MAPS = 3, MOST = 24 };

typedef struct rows { /* of all maps */
    int n, width, ld;
    double *x, *v;                              /* (MAPS, n, ld) */
    double w[MAPS][MOST * MOST], b[MAPS][MOST]; /* planted */
} rows;

static double *row_of(const rows *r, double *of, int map, int i)
{
    return of + ((size_t)map * (size_t)r->n + (size_t)i) * (size_t)r->ld;
}

/* x: correlated, off centre; v = W x + b + noise. */
static rows draw(int n, int width, double noise, uint64_t seed)
{
    rows r = {.n = n, .width = width, .ld = (width + 7) / 8 * 8};
    const size_t size = MAPS * (size_t)n * (size_t)r.ld;

    r.x = calloc(size, sizeof *r.x);
    r.v = calloc(size, sizeof *r.v);
    for (int m = 0; m < MAPS; m++) {
        const uint64_t stream = 10 * (uint64_t)m;

        for (int o = 0; o < width; o++) {
            r.b[m][o] = ek_rng_normal(7, stream, (uint64_t)o);
            for (int i = 0; i < width; i++)
                r.w[m][o * width + i] = ek_rng_normal(7, stream + 1, (uint64_t)(o * width + i));
        }
        for (int t = 0; t < n; t++) {
            double *x = row_of(&r, r.x, m, t), *v = row_of(&r, r.v, m, t);

            for (int i = 0; i < width; i++) {
                x[i] = 1.5 + ek_rng_normal(seed, stream + 2, (uint64_t)(t * width + i));
                x[i] += i > 0 ? 0.6 * x[i - 1] : 0;
            }
            for (int o = 0; o < width; o++) {
                v[o] =
                    r.b[m][o] + noise * ek_rng_normal(seed, stream + 3, (uint64_t)(t * width + o));
                for (int i = 0; i < width; i++)
                    v[o] += r.w[m][o * width + i] * x[i];
            }
        }
    }
    return r;
}

static void drop(rows *r)
{
    free(r->x);
    free(r->v);
}

/* In pieces of `piece` rows. */
static ek_regress summed(const rows *r, int piece, ek_isa isa)
{
    ek_regress out;
    ek_err err;

    ek_check_ok(ek_regress_open(&out, MAPS, r->width, isa, &err), &err);
    assert_int_equal(out.ld, r->ld);
    for (int m = 0; m < MAPS; m++)
        for (int t = 0; t < r->n; t += piece)
            ek_regress_add(&out, m, row_of(r, r->x, m, t), row_of(r, r->v, m, t),
                           t + piece < r->n ? piece : r->n - t);
    return out;
}

static double apart(const double *a, const double *b, int n)
{
    double most = 0;

    for (int i = 0; i < n; i++)
        most = fmax(most, fabs(a[i] - b[i]));
    return most;
}

/* A planted W and b are found to 1e-10; without an intercept they are not. */
static void test_planted(void **state)
{
    static const int widths[] = {16, 5, 24};

    (void)state;
    for (size_t i = 0; i < EK_COUNT(widths); i++) {
        const int d = widths[i];
        rows r = draw(1500, d, 0, 1);
        ek_regress sums = summed(&r, 64, ek_isa_of_cpu());
        double w[MOST * MOST], b[MOST];
        ek_err err;

        for (int m = 0; m < MAPS; m++) {
            assert_int_equal(ek_regress_count(&sums, m), 1500);
            ek_check_ok(ek_regress_solve(&sums, m, 0, 1, w, b, &err), &err);
            assert_true(apart(w, r.w[m], d * d) < 1e-10);
            assert_true(apart(b, r.b[m], d) < 1e-10);
            assert_true(fabs(1 - ek_regress_r2(&sums, m, w, b, 0, d)) < 1e-12);
            ek_check_ok(ek_regress_solve(&sums, m, 0, 0, w, b, &err), &err);
            assert_true(apart(w, r.w[m], d * d) > 1e-3);
            for (int o = 0; o < d; o++)
                assert_true(b[o] == 0);
        }
        ek_regress_close(&sums);
        drop(&r);
    }
}

/* ---- naive forms: two passes over the rows, elimination with pivots ---- */

static void naive_solve(const rows *r, int m, double lambda, int bias, double *w, double *b)
{
    const int d = r->width;
    double mx[MOST] = {0}, mv[MOST] = {0}, trace = 0;
    double *a = calloc((size_t)(d * 2 * d), sizeof *a); /* (d, 2 d): Cov_xx, then Cov_xv */

    for (int t = 0; bias && t < r->n; t++)
        for (int i = 0; i < d; i++) {
            mx[i] += row_of(r, r->x, m, t)[i] / r->n;
            mv[i] += row_of(r, r->v, m, t)[i] / r->n;
        }
    for (int t = 0; t < r->n; t++)
        for (int i = 0; i < d; i++)
            for (int j = 0; j < d; j++) {
                const double *x = row_of(r, r->x, m, t), *v = row_of(r, r->v, m, t);

                a[i * 2 * d + j] += (x[i] - mx[i]) * (x[j] - mx[j]) / r->n;
                a[i * 2 * d + d + j] += (x[i] - mx[i]) * (v[j] - mv[j]) / r->n;
            }
    for (int i = 0; i < d; i++)
        trace += a[i * 2 * d + i];
    for (int i = 0; i < d; i++)
        a[i * 2 * d + i] += lambda * trace / d;
    for (int c = 0; c < d; c++) {
        int best = c;

        for (int i = c + 1; i < d; i++)
            best = fabs(a[i * 2 * d + c]) > fabs(a[best * 2 * d + c]) ? i : best;
        for (int j = 0; j < 2 * d; j++) {
            const double swap = a[c * 2 * d + j];

            a[c * 2 * d + j] = a[best * 2 * d + j];
            a[best * 2 * d + j] = swap;
        }
        for (int i = 0; i < d; i++) {
            const double by = i == c ? 0 : a[i * 2 * d + c] / a[c * 2 * d + c];

            for (int j = c; j < 2 * d; j++)
                a[i * 2 * d + j] -= by * a[c * 2 * d + j];
        }
    }
    for (int o = 0; o < d; o++) {
        b[o] = mv[o];
        for (int i = 0; i < d; i++) {
            w[o * d + i] = a[i * 2 * d + d + o] / a[i * 2 * d + i];
            b[o] -= w[o * d + i] * mx[i];
        }
    }
    free(a);
}

static double naive_r2(const rows *r, int m, const double *w, const double *b, int from, int to)
{
    const int d = r->width;
    double mean[MOST] = {0}, error = 0, all = 0;

    for (int t = 0; t < r->n; t++)
        for (int o = 0; o < d; o++)
            mean[o] += row_of(r, r->v, m, t)[o] / r->n;
    for (int t = 0; t < r->n; t++)
        for (int o = from; o < to; o++) {
            const double *x = row_of(r, r->x, m, t), v = row_of(r, r->v, m, t)[o];
            double e = v - b[o];

            for (int i = 0; i < d; i++)
                e -= w[o * d + i] * x[i];
            error += e * e;
            all += (v - mean[o]) * (v - mean[o]);
        }
    return 1 - error / all;
}

static void test_ridge(void **state)
{
    const int d = 12;
    rows r = draw(300, d, 0.8, 2), other = draw(200, d, 0.8, 3);
    ek_regress fit = summed(&r, 7, ek_isa_of_cpu()), held = summed(&other, 200, ek_isa_of_cpu());
    double w[MOST * MOST], b[MOST], w2[MOST * MOST], b2[MOST];
    ek_err err;

    (void)state;
    for (int m = 0; m < MAPS; m++)
        for (int bias = 0; bias < 2; bias++)
            for (int i = 0; i < EK_REGRESS_LAMBDAS; i++) {
                ek_check_ok(ek_regress_solve(&fit, m, ek_regress_lambdas[i], bias, w, b, &err),
                            &err);
                naive_solve(&r, m, ek_regress_lambdas[i], bias, w2, b2);
                assert_true(apart(w, w2, d * d) < 1e-10);
                assert_true(apart(b, b2, d) < 1e-10);
                assert_true(fabs(ek_regress_r2(&held, m, w, b, 0, d) -
                                 naive_r2(&other, m, w, b, 0, d)) < 1e-11);
                assert_true(fabs(ek_regress_r2(&held, m, w, b, 3, 7) -
                                 naive_r2(&other, m, w, b, 3, 7)) < 1e-11);
                naive_solve(&r, m, 2 * ek_regress_lambdas[i] + 1e-4, bias, w2, b2);
                assert_true(apart(w, w2, d * d) > 1e-7); /* another lambda is seen */
            }
    ek_regress_close(&fit);
    ek_regress_close(&held);
    drop(&r);
    drop(&other);
}

/* The best on held-out rows wins, as naive forms find it; where all are equal, the largest. */
static void test_lambda(void **state)
{
    const int d = 16;
    double w[MOST * MOST], b[MOST], w2[MOST * MOST], b2[MOST], lambda;
    int seen[EK_REGRESS_LAMBDAS] = {0};
    ek_err err;

    (void)state;
    for (int n = 0; n < 4; n++) { /* few noisy rows want much ridge, many clean ones little */
        rows r = draw(n < 2 ? 24 : 2000, d, n < 2 ? 40 : 1e-3, 20 + (uint64_t)n);
        rows other = draw(400, d, n < 2 ? 40 : 1e-3, 30 + (uint64_t)n);
        ek_regress fit = summed(&r, 64, ek_isa_of_cpu());
        ek_regress held = summed(&other, 64, ek_isa_of_cpu());

        for (int m = 0; m < MAPS; m++) {
            int best = 0;
            double most = -INFINITY;

            for (int i = 0; i < EK_REGRESS_LAMBDAS; i++) {
                naive_solve(&r, m, ek_regress_lambdas[i], 1, w2, b2);
                const double r2 = naive_r2(&other, m, w2, b2, 0, d);
                if (r2 > most) {
                    most = r2;
                    best = i;
                }
            }
            seen[best]++;
            ek_check_ok(ek_regress_choose(&fit, &held, m, 1, w, b, &lambda, &err), &err);
            assert_true(lambda == ek_regress_lambdas[best]);
            naive_solve(&r, m, lambda, 1, w2, b2);
            assert_true(apart(w, w2, d * d) < 1e-8);
        }
        ek_regress_close(&fit);
        ek_regress_close(&held);
        drop(&r);
        drop(&other);
    }
    assert_true(seen[0] > 0 && seen[EK_REGRESS_LAMBDAS - 1] > 0);
    rows flat = draw(100, d, 0, 5);
    for (size_t i = 0; i < MAPS * 100 * (size_t)flat.ld; i++)
        flat.v[i] = 0.25; /* nothing to explain */
    ek_regress fit = summed(&flat, 100, ek_isa_of_cpu());
    ek_check_ok(ek_regress_choose(&fit, &fit, 1, 1, w, b, &lambda, &err), &err);
    assert_true(lambda == ek_regress_lambdas[0]);
    assert_true(fabs(b[3] - 0.25) < 1e-12);
    ek_regress_close(&fit);
    drop(&flat);
}

/* Pieces and instruction sets do not show in the bits; one more row does. */
static void test_bits(void **state)
{
    static const ek_isa isas[] = {EK_ISA_SCALAR, EK_ISA_AVX2, EK_ISA_AVX512};
    rows r = draw(333, 21, 0.5, 4);
    ek_regress first = summed(&r, 64, EK_ISA_SCALAR);
    const size_t size = MAPS * first.stride * sizeof(double);

    (void)state;
    assert_int_equal(size, ek_regress_bytes(MAPS, 21));
    for (size_t i = 0; i < EK_COUNT(isas); i++) {
        if (isas[i] > ek_isa_of_cpu())
            continue;
        ek_regress again = summed(&r, 1 + 50 * (int)i, isas[i]);
        assert_memory_equal(again.sums, first.sums, size);
        ek_regress_add(&again, 0, row_of(&r, r.x, 0, 0), row_of(&r, r.v, 0, 0), 1);
        assert_int_not_equal(memcmp(again.sums, first.sums, size), 0);
        ek_regress_close(&again);
    }
    ek_regress_close(&first);
    drop(&r);
}

static void test_refused(void **state)
{
    rows r = draw(100, 8, 0, 6);
    double w[MOST * MOST], b[MOST];
    ek_regress sums;
    ek_err err;

    (void)state;
    ek_check_ok(ek_regress_open(&sums, MAPS, 8, EK_ISA_SCALAR, &err), &err);
    assert_int_equal(ek_regress_solve(&sums, 0, 1e-3, 1, w, b, &err), EK_ENAN);
    assert_non_null(strstr(err.msg, "no rows"));
    ek_regress_close(&sums);
    for (int t = 0; t < r.n; t++)
        row_of(&r, r.x, 1, t)[5] = row_of(&r, r.x, 1, t)[2];
    sums = summed(&r, 64, EK_ISA_SCALAR);
    assert_int_equal(ek_regress_solve(&sums, 1, 0, 1, w, b, &err), EK_ENAN);
    assert_non_null(strstr(err.msg, "depend on one another"));
    ek_check_ok(ek_regress_solve(&sums, 1, 1e-6, 1, w, b, &err),
                &err); /* ridge makes it solvable */
    ek_regress_close(&sums);
    row_of(&r, r.v, 2, 7)[1] = NAN;
    sums = summed(&r, 64, EK_ISA_SCALAR);
    double lambda;
    assert_int_equal(ek_regress_choose(&sums, &sums, 2, 1, w, b, &lambda, &err), EK_ENAN);
    ek_regress_close(&sums);
    drop(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_planted), cmocka_unit_test(test_ridge),
        cmocka_unit_test(test_lambda),  cmocka_unit_test(test_bits),
        cmocka_unit_test(test_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
