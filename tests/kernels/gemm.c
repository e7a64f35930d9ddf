/* The general fp32 product of training. */
#include "tests/check_kernels.h"
#include "tests/naive.h"

#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct gemm_shape {
    int m, n, k;
} gemm_shape;
static const gemm_shape shapes[] = {
    {1, 1, 1},      {11, 12, 13},  {12, 32, 256}, {13, 33, 257}, {97, 128, 575},
    {200, 97, 128}, {31, 131, 31}, {5, 16, 600},  {100, 48, 3},
};

/* Operands with room behind each row, c full of ones. */
typedef struct product {
    const gemm_shape *s;
    int ta, tb;
    size_t lda, ldb, ldc;
    float *a, *b, *c;
    double *want, *terms;
} product;

static void product_open(product *p, const gemm_shape *s, int ta, int tb)
{
    *p = (product){.s = s, .ta = ta, .tb = tb};
    p->lda = (size_t)(ta ? s->m : s->k) + 3;
    p->ldb = (size_t)(tb ? s->k : s->n) + 2;
    p->ldc = (size_t)s->n + 5;
    p->a = ek_numbers(1, p->lda * (size_t)(ta ? s->k : s->m), 1.0f);
    p->b = ek_numbers(2, p->ldb * (size_t)(tb ? s->n : s->k), 1.0f);
    p->c = ek_guarded(p->ldc * (size_t)s->m);
    p->want = malloc((size_t)(s->m * s->n) * sizeof *p->want);
    p->terms = malloc((size_t)(s->m * s->n) * sizeof *p->terms);
    for (size_t i = 0; i < p->ldc * (size_t)s->m; i++)
        p->c[i] = 1.0f;
}

static void product_go(ek_device *dev, product *p, ek_into into)
{
    dev->ops.gemm(dev, p->c, p->ldc, p->a, p->lda, p->ta, p->b, p->ldb, p->tb, p->s->m, p->s->n,
                  p->s->k, into);
}

static int count_far(product *p, ek_into into)
{
    int far = 0;

    ek_naive_gemm(p->want, p->terms, p->a, p->lda, p->ta, p->b, p->ldb, p->tb, p->s->m, p->s->n,
                  p->s->k);
    for (int i = 0; i < p->s->m; i++)
        for (int j = 0; j < p->s->n; j++) {
            const double terms = p->terms[i * p->s->n + j] + 1.0;

            far += !ek_near((double)p->c[(size_t)i * p->ldc + (size_t)j],
                            p->want[i * p->s->n + j] + (into == EK_ADD ? 1.0 : 0.0),
                            (p->s->k + 3) * EK_HALF_ULP * terms);
        }
    return far;
}

static void product_close(product *p)
{
    free(p->a);
    free(p->b);
    ek_guarded_free(p->c);
    free(p->want);
    free(p->terms);
}

static void near_the_reference(void **state)
{
    for (size_t i = 0; i < EK_COUNT(shapes); i++)
        for (int way = 0; way < 8; way++) {
            const ek_into into = way & 4 ? EK_ADD : EK_SET;
            product p;

            product_open(&p, &shapes[i], way & 1, (way >> 1) & 1);
            product_go(*state, &p, into);
            assert_int_equal(count_far(&p, into), 0);
            for (int r = 0; r < p.s->m; r++)
                for (size_t j = (size_t)p.s->n; j < p.ldc; j++)
                    assert_true(p.c[(size_t)r * p.ldc + j] == 1.0f);
            p.a[0] += 0.25f; /* negative control */
            assert_true(count_far(&p, into) > 0);
            product_close(&p);
        }
}

static void integers_are_exact(void **state)
{
    const gemm_shape s = {37, 83, 575};

    for (int way = 0; way < 4; way++) {
        product p;

        product_open(&p, &s, way & 1, way >> 1);
        for (size_t i = 0; i < p.lda * (size_t)(p.ta ? s.k : s.m); i++)
            p.a[i] = floorf(8.0f * p.a[i]);
        for (size_t i = 0; i < p.ldb * (size_t)(p.tb ? s.n : s.k); i++)
            p.b[i] = floorf(8.0f * p.b[i]);
        product_go(*state, &p, EK_SET);
        count_far(&p, EK_SET);
        for (int i = 0; i < s.m; i++)
            for (int j = 0; j < s.n; j++) {
                const float want = (float)p.want[i * s.n + j];

                assert_memory_equal(&p.c[(size_t)i * p.ldc + (size_t)j], &want, sizeof want);
            }
        product_close(&p);
    }
}

/* Rows of a bigger product are the rows of a smaller one; threads may call at once. */
static void rows_and_callers_change_nothing(void **state)
{
    ek_device *dev = *state;
    const gemm_shape big = {150, 70, 300};
    int same = 1;

    for (int way = 0; way < 4; way++) {
        product p;

        product_open(&p, &big, way & 1, way >> 1);
        product_go(dev, &p, EK_SET);
#pragma omp parallel for num_threads(3) reduction(& : same)
        for (int i = 0; i < big.m; i++) {
            float row[70];

            dev->ops.gemm(dev, row, 70, p.ta ? p.a + i : p.a + (size_t)i * p.lda, p.lda, p.ta, p.b,
                          p.ldb, p.tb, 1, 70, 300, EK_SET);
            same &= memcmp(row, p.c + (size_t)i * p.ldc, sizeof row) == 0;
        }
        assert_true(same);
        product_close(&p);
    }
}

static void nothing_to_sum_and_nan(void **state)
{
    ek_device *dev = *state;
    float c[6] = {1, 1, 1, 1, 1, 1}, a[4] = {1, NAN, 2, 3}, b[4] = {1, 2, 3, 4};

    dev->ops.gemm(dev, c, 3, a, 1, 0, b, 3, 0, 2, 3, 0, EK_ADD);
    assert_true(c[0] == 1.0f && c[5] == 1.0f);
    dev->ops.gemm(dev, c, 3, a, 1, 0, b, 3, 0, 2, 3, 0, EK_SET);
    assert_true(c[0] == 0.0f && c[5] == 0.0f);
    dev->ops.gemm(dev, c, 2, a, 2, 0, b, 2, 0, 2, 2, 2, EK_SET);
    assert_true(isnan(c[0]) && isnan(c[1]) && c[2] == 11.0f && c[3] == 16.0f);
}

static void bench(ek_device *dev)
{
    static const struct {
        int m, n, k, ta, tb;
    } made[] = {{512, 512, 512, 0, 0}, {2000, 97, 128, 0, 0}, {2000, 97, 128, 0, 1},
                {97, 128, 2000, 1, 0}, {2000, 128, 97, 0, 0}, {64, 129, 2000, 1, 0}};
    float *a = ek_numbers(1, 2000 * 600, 1.0f), *b = ek_numbers(2, 2000 * 600, 1.0f);
    float *c = ek_numbers(3, 2000 * 600, 1.0f);
    const int threads = omp_get_max_threads();
    double peak;

    omp_set_num_threads(1);
    peak = ek_bench_gemm(dev, EK_F32);
    omp_set_num_threads(threads);
    printf("%s: fp32 peak of one thread %.0f GFLOP/s\n", dev->ops.name, peak / 1e9);
    for (size_t i = 0; i < EK_COUNT(made); i++) {
        const int m = made[i].m, n = made[i].n, k = made[i].k;
        double best = INFINITY;

        for (int r = 0; r < 30; r++) {
            const double start = ek_seconds();

            dev->ops.gemm(dev, c, (size_t)n, a, (size_t)(made[i].ta ? m : k), made[i].ta, b,
                          (size_t)(made[i].tb ? k : n), made[i].tb, m, n, k, EK_SET);
            best = fmin(best, ek_seconds() - start);
        }
        printf("%4d x %3d x %4d%s%s: %.2f of peak\n", m, n, k, made[i].ta ? ", a turned" : "",
               made[i].tb ? ", b turned" : "", 2.0 * m * n * k / best / peak);
    }
    free(a);
    free(b);
    free(c);
}

static const struct CMUnitTest gemm_tests[] = {
    cmocka_unit_test(near_the_reference),
    cmocka_unit_test(integers_are_exact),
    cmocka_unit_test(rows_and_callers_change_nothing),
    cmocka_unit_test(nothing_to_sum_and_nan),
};
EK_KERNEL_MAIN(gemm_tests, bench)
