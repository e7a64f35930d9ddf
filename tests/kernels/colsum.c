/* Column sums of attention. */
#include "tests/check_kernels.h"
#include "tests/naive.h"

#include "core/bf16.h"

#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const float scale = 0.2f;

/* A layer, its queries, and one guarded sum per weighting, each starting at 1. */
typedef struct sums {
    ek_made made;
    ek_colsum c;
    float *q, *lse, *weight, *sum[4];
} sums;

static void sums_clear(sums *s)
{
    for (int k = 0; k < 4; k++)
        for (int i = 0; i < s->made.n_entries * s->made.view.group; i++)
            s->sum[k][i] = 1.0f;
}

static void sums_open(sums *s, const ek_shape *shape, int n_q, int n_sets, uint64_t seed)
{
    const size_t heads = (size_t)(shape->n_heads * shape->group);
    const size_t ldq = heads * (size_t)shape->head_dim + 3;

    ek_made_open(&s->made, shape, seed);
    s->q = ek_numbers(seed + 5, (size_t)n_q * ldq, 2.0f);
    s->lse = ek_numbers(seed + 6, (size_t)n_q * heads, 1.0f);
    s->weight = ek_numbers(seed + 7, 4 * (size_t)n_q, 1.0f);
    for (size_t i = 0; i < (size_t)n_q * heads; i++)
        s->lse[i] += 4.0f;
    for (int k = 0; k < 4; k++)
        s->sum[k] = ek_guarded((size_t)(s->made.n_entries * shape->group));
    sums_clear(s);
    s->c = (ek_colsum){.view = s->made.view,
                       .n_q = n_q,
                       .q = s->q,
                       .ldq = ldq,
                       .lse = s->lse,
                       .n_sets = n_sets ? n_sets : 1,
                       .weight = n_sets ? s->weight : NULL,
                       .horizon = -1,
                       .sum = s->sum};
}

static void sums_close(sums *s)
{
    ek_made_close(&s->made);
    free(s->q);
    free(s->lse);
    free(s->weight);
    for (int k = 0; k < 4; k++)
        ek_guarded_free(s->sum[k]);
}

/* Sums off the reference.  A logit errs by its dot product's roundings, a term by twice that and by
 * exp; n_q terms are added.  Weights may cancel, so the scale is the sum of absolute terms. */
static int count_far(const sums *s)
{
    const ek_view *in = &s->made.view;
    float *plain = malloc(4 * (size_t)s->c.n_q * sizeof *plain);
    ek_colsum abs = s->c;
    int far = 0;

    for (int i = 0; i < 4 * s->c.n_q; i++)
        plain[i] = fabsf(s->weight[i]);
    abs.weight = s->c.weight ? plain : NULL;
    for (int k = 0; k < s->c.n_sets; k++)
        for (int h = 0; h < in->n_heads; h++)
            for (int j = 0; j < in->n[h]; j++)
                for (int g = 0; g < in->group; g++) {
                    const int e = in->first[h] + j;
                    const double want = ek_naive_colsum(&s->c, k, h, e, g, (double)scale);
                    const double terms = ek_naive_colsum(&abs, k, h, e, g, (double)scale);
                    const double z = in->head_dim * 4.0 * (double)scale + 16.0;
                    const double each = (2.0 * z * 8.0 + s->c.n_q + 16.0) * EK_HALF_ULP + 5e-7;

                    far += !ek_near((double)s->sum[k][e * in->group + g], 1.0 + want,
                                    terms * each + 3 * EK_HALF_ULP);
                }
    free(plain);
    return far;
}

static const ek_shape shapes[] = {
    {EK_BF16, 3, 3, 64, {130, 0, 257}, 5, 0}, {EK_F32, 2, 2, 64, {64, 31}, 0, 1},
    {EK_BF16, 1, 5, 80, {100}, 3, 1},         {EK_F32, 2, 1, 8, {1, 200}, 1, 0},
    {EK_BF16, 1, 2, 128, {65}, 2, 0},
};

typedef struct sight {
    int64_t q_pos;
    int32_t delay, horizon;
    int n_q;
} sight;
static const sight sights[] = {
    {0, 0, -1, 130},  {40, 0, -1, 33},  {0, 20, 30, 200},
    {100, 32, 0, 75}, {0, 500, -1, 40}, {-3, 2, 64, 1},
};

static void near_the_reference(void **state)
{
    ek_device *dev = *state;

    for (size_t i = 0; i < EK_COUNT(shapes); i++)
        for (size_t j = 0; j < EK_COUNT(sights); j++) {
            const int n_sets = (int)(i + j) % 5;
            sums s;

            sums_open(&s, &shapes[i], sights[j].n_q, n_sets, 3);
            s.c.q_pos = sights[j].q_pos;
            s.c.delay = sights[j].delay;
            s.c.horizon = sights[j].horizon;
            for (int k = 0; k < 4 * s.c.n_q; k++)
                if (k % s.c.n_q % 16 < 7) /* runs of queries that count in no set */
                    s.weight[k] = 0.0f;
            dev->ops.colsum(dev, &s.c, scale);
            assert_int_equal(count_far(&s), 0);
            sums_close(&s);
        }
}

static void the_reference_sees_masks_and_weights(void **state)
{
    ek_device *dev = *state;
    sums s;

    sums_open(&s, &shapes[0], 130, 2, 3);
    s.c.delay = 10;
    s.c.horizon = 50;
    dev->ops.colsum(dev, &s.c, scale);
    assert_int_equal(count_far(&s), 0);
    s.c.delay = 11;
    assert_true(count_far(&s) > 0);
    s.c.delay = 10;
    s.c.horizon = 49;
    assert_true(count_far(&s) > 0);
    s.c.horizon = 50;
    s.weight[77] += 0.5f;
    assert_true(count_far(&s) > 0);
    s.weight[77] -= 0.5f;
    s.c.q_pos = 1;
    assert_true(count_far(&s) > 0);
    sums_close(&s);
}

/* Zero keys and a log-sum-exp of 0: every term is 1, a sum counts the queries that may look. */
static void counting_is_exact(void **state)
{
    ek_device *dev = *state;
    sums s;

    sums_open(&s, &shapes[0], 200, 0, 3);
    memset(s.made.k, 0, (size_t)s.made.n_entries * 64 * 2);
    memset(s.lse, 0, 200 * 9 * sizeof(float));
    s.c.delay = 7;
    s.c.horizon = 90;
    dev->ops.colsum(dev, &s.c, scale);
    for (int h = 0; h < 3; h++)
        for (int j = 0; j < s.made.n[h]; j++)
            for (int g = 0; g < 3; g++) {
                const int from = j + 7, to = from + 90 < 199 ? from + 90 : 199;
                const float want = 1.0f + (float)(to >= from ? to - from + 1 : 0);

                assert_true(s.sum[0][(s.made.first[h] + j) * 3 + g] == want);
            }
    for (int i = 0; i < s.made.first[0] * 3; i++) /* nothing outside the lists */
        assert_true(s.sum[0][i] == 1.0f);
    sums_close(&s);
}

/* Law: what T causal queries pay, with their own log-sum-exp, is T in all. */
static void mass_is_conserved(void **state)
{
    ek_device *dev = *state;
    const ek_shape shape = {EK_BF16, 2, 3, 64, {150, 150}, 4, 1};
    sums s;
    float *out;
    ek_attn_row row;

    sums_open(&s, &shape, 150, 0, 3);
    out = ek_numbers(1, 150 * s.c.ldq, 0.0f);
    row = (ek_attn_row){
        .view = s.made.view, .n_new = 150, .q = s.q, .out = out, .lse = s.lse, .prob = NULL};
    dev->ops.attn(dev, &row, 1, scale, s.c.ldq, s.c.ldq);
    sums_clear(&s);
    dev->ops.colsum(dev, &s.c, scale);
    for (int h = 0; h < 2; h++)
        for (int g = 0; g < 3; g++) {
            double total = 0.0;

            for (int j = 0; j < 150; j++)
                total += (double)s.sum[0][(s.made.first[h] + j) * 3 + g] - 1.0;
            assert_true(fabs(total - 150.0) < 1e-3);
        }
    sums_close(&s);
    free(out);
}

/* A query of no weight may hold anything. */
static void unused_queries_are_not_looked_at(void **state)
{
    ek_device *dev = *state;
    sums a, b;

    sums_open(&a, &shapes[0], 100, 1, 3);
    sums_open(&b, &shapes[0], 100, 1, 3);
    for (int i = 0; i < 100; i += 3) {
        a.weight[i] = b.weight[i] = 0.0f;
        for (int x = 0; x < 9; x++)
            b.lse[i * 9 + x] = x % 2 ? NAN : -INFINITY;
        for (int d = 0; d < 64; d++)
            b.q[(size_t)i * b.c.ldq + (size_t)d] = NAN;
    }
    dev->ops.colsum(dev, &a.c, scale);
    dev->ops.colsum(dev, &b.c, scale);
    assert_memory_equal(a.sum[0], b.sum[0], sizeof(float) * (size_t)(a.made.n_entries * 3));
    b.lse[9] = NAN; /* negative control: query 1 counts */
    dev->ops.colsum(dev, &b.c, scale);
    assert_true(isnan(b.sum[0][b.made.first[0] * 3]));
    sums_close(&a);
    sums_close(&b);
}

/* An entry among others or after they were evicted, with gaps or without, on 1, 2, 3 threads. */
static void an_entry_keeps_its_bits(void **state)
{
    ek_device *dev = *state;
    const int threads = omp_get_max_threads();
    ek_shape few = shapes[0];
    sums all, some;

    few.n[0] = 41;
    few.n[2] = 90;
    few.gap = 31;
    sums_open(&all, &shapes[0], 150, 3, 3);
    sums_open(&some, &few, 150, 3, 3);
    for (int h = 0; h < 3; h++) /* keep every third entry */
        for (int j = 0; j < few.n[h] && 3 * j < shapes[0].n[h]; j++) {
            const int to = some.made.first[h] + j, from = all.made.first[h] + 3 * j;

            some.made.pos[to] = all.made.pos[from];
            memcpy((char *)some.made.k + to * 128, (char *)all.made.k + from * 128, 128);
        }
    for (int h = 0; h < 3; h++)
        some.made.n[h] = (shapes[0].n[h] + 2) / 3 < few.n[h] ? (shapes[0].n[h] + 2) / 3 : few.n[h];
    dev->ops.colsum(dev, &all.c, scale);
    for (int t = 1; t <= 3; t++) {
        omp_set_num_threads(t);
        sums_clear(&some);
        dev->ops.colsum(dev, &some.c, scale);
        for (int k = 0; k < 3; k++)
            for (int h = 0; h < 3; h++)
                for (int j = 0; j < some.made.n[h]; j++)
                    assert_memory_equal(&some.sum[k][(some.made.first[h] + j) * 3],
                                        &all.sum[k][(all.made.first[h] + 3 * j) * 3],
                                        3 * sizeof(float));
    }
    omp_set_num_threads(threads);
    sums_close(&all);
    sums_close(&some);
}

static void bench(ek_device *dev)
{
    const double peak = ek_bench_gemm(dev, EK_BF16);

    printf("%s: peak %.0f GFLOP/s\n", dev->ops.name, peak / 1e9);
    for (int n = 1024; n <= 4096; n *= 2) {
        const ek_shape shape = {EK_BF16, 3, 3, 64, {n, n, n}, 0, 0};
        double attn = INFINITY, best[2] = {INFINITY, INFINITY};
        ek_attn_row row;
        float *out;
        sums s;

        sums_open(&s, &shape, n, 0, 3);
        out = ek_numbers(1, (size_t)n * s.c.ldq, 0.0f);
        row = (ek_attn_row){.view = s.made.view, .n_new = n, .q = s.q, .out = out, .lse = s.lse};
        for (int i = 0; i < 6; i++) {
            double start = ek_seconds();

            dev->ops.attn(dev, &row, 1, scale, s.c.ldq, s.c.ldq);
            attn = fmin(attn, ek_seconds() - start);
            for (int k = 0; k < 2; k++) {
                s.c.weight = k ? s.weight : NULL;
                s.c.n_sets = k ? 4 : 1;
                start = ek_seconds();
                dev->ops.colsum(dev, &s.c, scale);
                best[k] = fmin(best[k], ek_seconds() - start);
            }
        }
        printf("T %4d: attention %.2f ms, sums %.2f ms = %.2f of it, 4 weightings %.2f\n", n,
               attn * 1e3, best[0] * 1e3, best[0] / attn, best[1] / attn);
        sums_close(&s);
        free(out);
    }
}

static const struct CMUnitTest colsum_tests[] = {
    cmocka_unit_test(near_the_reference),
    cmocka_unit_test(the_reference_sees_masks_and_weights),
    cmocka_unit_test(counting_is_exact),
    cmocka_unit_test(mass_is_conserved),
    cmocka_unit_test(unused_queries_are_not_looked_at),
    cmocka_unit_test(an_entry_keeps_its_bits),
};
EK_KERNEL_MAIN(colsum_tests, bench)
