/* Attention of ragged rows: decode, prefill, and what lies between. */
#include "tests/check_kernels.h"
#include "tests/naive.h"

#include "core/bf16.h"

#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const float scale = 0.3f;

/* One row with its queries and results. */
typedef struct run {
    ek_made made;
    ek_attn_row row;
    float *q, *out, *lse, *prob;
    size_t ld;
} run;

static void run_open(run *r, const ek_shape *s, int n_new, uint64_t seed)
{
    const size_t heads = (size_t)(s->n_heads * s->group);

    ek_made_open(&r->made, s, seed);
    r->ld = heads * (size_t)s->head_dim + 5;
    r->q = ek_numbers(seed + 9, (size_t)n_new * r->ld, 2.0f);
    r->out = ek_guarded((size_t)n_new * r->ld);
    r->lse = ek_guarded((size_t)n_new * heads);
    r->prob = ek_guarded((size_t)(r->made.n_entries * s->group));
    r->row = (ek_attn_row){.view = r->made.view,
                           .n_new = n_new,
                           .q = r->q,
                           .out = r->out,
                           .lse = r->lse,
                           .prob = r->prob};
}

static void run_close(run *r)
{
    ek_made_close(&r->made);
    free(r->q);
    ek_guarded_free(r->out);
    ek_guarded_free(r->lse);
    ek_guarded_free(r->prob);
}

static void run_go(ek_device *dev, run *r)
{
    dev->ops.attn(dev, &r->row, 1, scale, r->ld, r->ld);
}

/* Numbers that are off the reference.  A logit errs by its sum; a probability by twice that, by exp
 * and by the sum of all; where values are bf16, the operand that meets them is rounded by up to
 * 2^-8. */
static int count_far(const run *r)
{
    const ek_view *in = &r->made.view;
    const int heads = in->n_heads * in->group, dim = in->head_dim;
    double *out = malloc((size_t)dim * sizeof *out);
    double *prob = malloc((size_t)r->made.n_entries * sizeof *prob + 8);
    int far = 0;

    for (int t = 0; t < r->row.n_new; t++)
        for (int x = 0; x < heads; x++) {
            const int h = x / in->group, first = in->first[h];
            const int n = in->n[h] - r->row.n_new + t + 1 > 0 ? in->n[h] - r->row.n_new + t + 1 : 0;
            const float *q = r->q + (size_t)t * r->ld + (size_t)(x * dim);
            const double lse = ek_naive_attend(out, prob, in, q, x, n, (double)scale);
            double worst = 0.0, z_err, p_err;

            for (int s = 0; s < n; s++) {
                double terms = 0.0;

                for (int d = 0; d < dim; d++)
                    terms +=
                        fabs((double)q[d] * (double)ek_made_item(&r->made, in->k, first + s, d));
                worst = fmax(worst, terms);
            }
            z_err =
                EK_HALF_ULP * ((dim + 4) * worst * (double)scale + (n > 0 ? fabs(lse) : 0.0) + 8.0);
            p_err = 2.0 * z_err + (n + 8) * EK_HALF_ULP + 1e-6;
            far += !ek_near((double)r->lse[t * heads + x], lse, z_err + p_err);
            for (int d = 0; d < dim; d++) {
                double terms = 0.0;

                for (int s = 0; s < n; s++)
                    terms += prob[s] * fabs((double)ek_made_item(&r->made, in->v, first + s, d));
                far += !ek_near((double)r->out[(size_t)t * r->ld + (size_t)(x * dim + d)], out[d],
                                terms * (p_err + (in->dtype == EK_BF16 ? 0x1p-8 : 0.0)) + 1e-30);
            }
            for (int s = 0; s < n && r->row.prob && t == r->row.n_new - 1; s++)
                far += !ek_near((double)r->prob[(first + s) * in->group + x % in->group], prob[s],
                                prob[s] * p_err + 1e-30);
        }
    free(out);
    free(prob);
    return far;
}

static const ek_shape shapes[] = {
    {EK_BF16, 1, 1, 64, {1}, 0, 0},           {EK_BF16, 3, 3, 64, {130, 257, 140}, 0, 0},
    {EK_BF16, 3, 3, 64, {130, 0, 575}, 7, 1}, {EK_F32, 3, 3, 64, {130, 0, 575}, 7, 1},
    {EK_F32, 2, 4, 16, {31, 33}, 3, 0},       {EK_BF16, 2, 1, 8, {12, 300}, 1, 1},
    {EK_BF16, 2, 5, 80, {64, 65}, 0, 1},      {EK_F32, 1, 7, 24, {129}, 2, 1},
    {EK_BF16, 1, 2, 128, {513}, 2, 0},
};

static void near_the_reference(void **state)
{
    static const int news[] = {1, 2, 13, 16, 17, 70, 129};

    for (size_t i = 0; i < EK_COUNT(shapes); i++)
        for (size_t j = 0; j < EK_COUNT(news); j++) {
            const ek_shape *s = &shapes[i];
            run r;

            if (s->n[0] < news[j] && news[j] > 1)
                continue;
            run_open(&r, s, news[j], 3);
            run_go(*state, &r);
            assert_int_equal(count_far(&r), 0);
            r.q[r.ld - 6] += 1.0f; /* negative control: the reference sees another query */
            assert_true(count_far(&r) > 0 || s->n[s->n_heads - 1] == 1);
            run_close(&r);
        }
}

/* Equal keys: every probability is 2^-k, and sums of small integers are exact in any order. */
static void uniform_attention_is_exact(void **state)
{
    ek_device *dev = *state;
    const int n = 512, group = 3, dim = 64;
    const ek_shape s = {EK_BF16, 1, 3, 64, {512}, 4, 0};

    for (int n_new = 1; n_new <= 2; n_new++) {
        run r;

        run_open(&r, &s, n_new == 2 ? 40 : 1, 5);
        for (int e = 0; e < n; e++)
            for (int d = 0; d < dim; d++) {
                const size_t at = (size_t)((r.made.first[0] + e) * dim + d);

                ((ek_bf16 *)r.made.k)[at] = ek_to_bf16(0.0f);
                ((ek_bf16 *)r.made.v)[at] = ek_to_bf16((float)((e * 7 + d) % 16));
            }
        run_go(dev, &r);
        for (int g = 0; g < group; g++)
            for (int d = 0; d < dim; d++) {
                const size_t last = (size_t)(r.row.n_new - 1) * r.ld;
                float sum = 0.0f;

                for (int e = 0; e < n; e++)
                    sum += (float)((e * 7 + d) % 16);
                sum /= (float)n;
                assert_memory_equal(&r.out[last + (size_t)(g * dim + d)], &sum, sizeof sum);
            }
        run_close(&r);
    }
}

/* Law: where the columns lie in memory, what the room between heads holds, who else is in the call
 * and how many threads there are changes no bit. */
static void layout_and_company_change_nothing(void **state)
{
    ek_device *dev = *state;
    const int news[] = {1, 5, 16, 40, 200}, threads = omp_get_max_threads();

    for (int type = 0; type < 2; type++)
        for (size_t i = 0; i < EK_COUNT(news); i++) {
            const ek_shape tight = {(ek_dtype)type, 3, 3, 64, {700, 200, 257}, 0, 1};
            const ek_shape loose = {(ek_dtype)type, 3, 3, 64, {700, 200, 257}, 37, 1};
            const ek_shape other = {(ek_dtype)type, 3, 3, 64, {300, 310, 320}, 2, 1};
            const size_t heads = 9;
            run a, b, c[3];
            ek_attn_row rows[4];

            run_open(&a, &tight, news[i], 3);
            run_open(&b, &loose, news[i], 3);
            run_go(dev, &a);
            for (int k = 0; k < 3; k++) {
                run_open(&c[k], &other, (int[]){1, 130, 9}[k], (uint64_t)(20 + k));
                rows[k < 2 ? k : 3] = c[k].row;
            }
            rows[2] = b.row;
            for (int t = 1; t <= 3; t++) {
                omp_set_num_threads(t);
                memset(b.out, 0, sizeof(float) * (size_t)news[i] * b.ld);
                dev->ops.attn(dev, rows, 4, scale, a.ld, a.ld);
                assert_memory_equal(a.lse, b.lse, sizeof(float) * (size_t)news[i] * heads);
                for (int q = 0; q < news[i]; q++)
                    assert_memory_equal(a.out + (size_t)q * a.ld, b.out + (size_t)q * b.ld,
                                        sizeof(float) * heads * 64);
                for (int h = 0; h < 3; h++)
                    assert_memory_equal(a.prob + a.made.first[h] * 3, b.prob + b.made.first[h] * 3,
                                        sizeof(float) * (size_t)(3 * tight.n[h]));
            }
            omp_set_num_threads(threads);
            b.q[3] += 0.5f; /* negative control */
            run_go(dev, &b);
            assert_memory_not_equal(a.out, b.out, sizeof(float) * 64);
            run_close(&a);
            run_close(&b);
            for (int k = 0; k < 3; k++)
                run_close(&c[k]);
        }
}

/* Law: an entry of weight two is two entries. */
static void twins_equal_one_entry_of_bias_log_2(void **state)
{
    for (int type = 0; type < 2; type++)
        for (int n_new = 1; n_new <= 33; n_new += 32) {
            const ek_shape s = {(ek_dtype)type, 1, 3, 64, {300}, 3, 1};
            run twin, one;
            int e;
            float kept;

            run_open(&twin, &s, n_new, 11);
            run_open(&one, &s, n_new, 11);
            e = twin.made.first[0];
            for (int d = 0; d < 64; d++) { /* slots 0 and 1 are the twins */
                const size_t size = (size_t)ek_dtype_size(s.dtype);
                char *k = twin.made.k, *v = twin.made.v;

                memcpy(k + (size_t)((e + 1) * 64 + d) * size, k + (size_t)(e * 64 + d) * size,
                       size);
                memcpy(v + (size_t)((e + 1) * 64 + d) * size, v + (size_t)(e * 64 + d) * size,
                       size);
            }
            twin.made.bias[e] = twin.made.bias[e + 1] = 0.25f;
            one.made.bias[e] = 0.25f + logf(2.0f);
            one.made.bias[e + 1] = -INFINITY; /* hidden by its bias */
            run_go(*state, &twin);
            run_go(*state, &one);
            for (int i = 0; i < 3 * n_new; i++)
                assert_true(ek_near((double)twin.lse[i], (double)one.lse[i], 4e-6));
            for (int g = 0; g < 3; g++) {
                const double both =
                    (double)twin.prob[e * 3 + g] + (double)twin.prob[(e + 1) * 3 + g];

                assert_true(ek_near((double)one.prob[e * 3 + g], both, 1e-5 * both));
                assert_true(one.prob[(e + 1) * 3 + g] == 0.0f);
                for (int d = 0; d < 64; d++)
                    assert_true(ek_near((double)twin.out[g * 64 + d], (double)one.out[g * 64 + d],
                                        type == EK_F32 ? 1e-5 : 1e-2));
            }
            kept = one.prob[e * 3];
            one.made.bias[e] = 0.25f; /* negative control */
            run_go(*state, &one);
            assert_false(ek_near((double)one.prob[e * 3], (double)kept, 0.1 * (double)kept));
            run_close(&twin);
            run_close(&one);
        }
}

static void probabilities_sum_to_one(void **state)
{
    for (size_t i = 0; i < EK_COUNT(shapes); i++) {
        const ek_shape *s = &shapes[i];
        run r;

        run_open(&r, s, 1, 8);
        run_go(*state, &r);
        for (int h = 0; h < s->n_heads; h++)
            for (int g = 0; g < s->group && s->n[h] > 0; g++) {
                double sum = 0.0;

                for (int j = 0; j < s->n[h]; j++)
                    sum += (double)r.prob[(r.made.first[h] + j) * s->group + g];
                assert_true(fabs(sum - 1.0) < 1e-5);
            }
        run_close(&r);
    }
}

static void heads_without_entries(void **state)
{
    const ek_shape s = {EK_BF16, 2, 3, 64, {0, 5}, 6, 0};
    run r;

    run_open(&r, &s, 1, 8);
    run_go(*state, &r);
    for (int x = 0; x < 3; x++) {
        assert_true(r.lse[x] == -INFINITY && isfinite(r.lse[3 + x]));
        for (int d = 0; d < 64; d++)
            assert_true(r.out[x * 64 + d] == 0.0f && r.out[(3 + x) * 64 + d] != 0.0f);
    }
    run_close(&r);
}

/* Huge logits neither overflow nor lose the winner; a NaN in a key reaches the output. */
static void adversaries(void **state)
{
    const ek_shape s = {EK_F32, 1, 3, 64, {300}, 6, 0};

    for (int n_new = 1; n_new <= 20; n_new += 19) {
        run r;
        float *k, *v;

        run_open(&r, &s, n_new, 8);
        k = (float *)r.made.k + r.made.first[0] * 64;
        v = (float *)r.made.v + r.made.first[0] * 64;
        for (int d = 0; d < 64; d++)
            k[100 * 64 + d] = 1e4f * r.q[(size_t)(n_new - 1) * r.ld + (size_t)d];
        run_go(*state, &r);
        for (int d = 0; d < 64; d++)
            assert_true(r.out[(size_t)(n_new - 1) * r.ld + (size_t)d] == v[100 * 64 + d]);
        assert_true(r.prob[(r.made.first[0] + 100) * 3] == 1.0f);
        k[17] = NAN;
        run_go(*state, &r);
        assert_true(isnan(r.lse[0]) && isnan(r.out[0]));
        run_close(&r);
    }
}

static void workspace_stands_still(void **state)
{
    ek_device *dev = *state;
    const ek_shape s = {EK_BF16, 3, 3, 64, {700, 600, 500}, 0, 0};
    int64_t grown;
    run r;

    run_open(&r, &s, 1, 3);
    run_go(dev, &r);
    grown = dev->work_grown;
    for (int i = 0; i < 5; i++)
        run_go(dev, &r);
    assert_int_equal(dev->work_grown, grown);
    run_close(&r);
}

static double best_of(ek_device *dev, run *r, int times)
{
    double best = INFINITY;

    for (int i = 0; i < times; i++) {
        const double start = ek_seconds();

        run_go(dev, r);
        best = fmin(best, ek_seconds() - start);
    }
    return best;
}

static void bench(ek_device *dev)
{
    const double peak = ek_bench_gemm(dev, EK_BF16), stream = ek_bench_stream();

    printf("%s: peak %.0f GFLOP/s, streaming %.1f GB/s\n", dev->ops.name, peak / 1e9, stream / 1e9);
    for (int n = 512; n <= 4096; n *= 2) {
        const ek_shape s = {EK_BF16, 3, 3, 64, {n, n, n}, 0, 0};
        const double flops = 4.0 * 64 * 9 * n * (n + 1.0) / 2, bytes = 3.0 * n * 64 * 2 * 2;
        double prefill, decode;
        run r;

        run_open(&r, &s, n, 3);
        r.row.prob = NULL;
        prefill = best_of(dev, &r, 8);
        r.row.n_new = 1;
        r.row.prob = r.prob;
        decode = best_of(dev, &r, 200);
        printf("entries %4d: prefill %.2f ms, %.2f of peak; decode %.1f us, %.1f GB/s\n", n,
               prefill * 1e3, flops / prefill / peak, decode * 1e6, bytes / decode / 1e9);
        run_close(&r);
    }
}

static const struct CMUnitTest attn_tests[] = {
    cmocka_unit_test(near_the_reference),
    cmocka_unit_test(uniform_attention_is_exact),
    cmocka_unit_test(layout_and_company_change_nothing),
    cmocka_unit_test(twins_equal_one_entry_of_bias_log_2),
    cmocka_unit_test(probabilities_sum_to_one),
    cmocka_unit_test(heads_without_entries),
    cmocka_unit_test(adversaries),
    cmocka_unit_test(workspace_stands_still),
};
EK_KERNEL_MAIN(attn_tests, bench)
