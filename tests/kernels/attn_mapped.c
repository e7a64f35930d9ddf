/* Attention over entries whose values a fixed map rebuilds. */
#include "tests/check_kernels.h"
#include "tests/naive.h"

#include "core/bf16.h"

#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const float scale = 0.3f;

/* One row with its queries, its maps, what attention has left and what comes of it. */
typedef struct run {
    ek_made made;
    ek_mapped_row row;
    float *q, *out, *lse, *out_before, *lse_before, *w, *b;
    double inv[64];
    size_t ld;
} run;

static void run_open(run *r, const ek_shape *s, int n_new, int joint, uint64_t seed)
{
    const size_t heads = (size_t)(s->n_heads * s->group), dim = (size_t)s->head_dim;
    const size_t inputs = joint ? dim * (size_t)s->n_heads : dim;

    ek_made_open(&r->made, s, seed);
    for (int h = 0; h < s->n_heads; h++)
        for (int j = 0; j < s->n[h]; j++) /* with holes, and the same for all heads where joint */
            r->made.pos[r->made.first[h] + j] = 3 * j + (joint ? 1 : h);
    for (int i = 0; i < s->head_dim / 2; i++)
        r->inv[i] = pow(1e4, -2.0 * i / s->head_dim);
    r->ld = heads * dim + 5;
    r->q = ek_numbers(seed + 9, (size_t)n_new * r->ld, 2.0f);
    r->w = ek_numbers(seed + 10, (size_t)s->n_heads * dim * inputs, 1.0f / sqrtf((float)inputs));
    r->b = ek_numbers(seed + 11, (size_t)s->n_heads * dim, 0.5f);
    r->out_before = ek_numbers(seed + 12, (size_t)n_new * r->ld, 1.0f);
    r->lse_before = ek_numbers(seed + 13, (size_t)n_new * heads, 6.0f);
    r->out = ek_guarded((size_t)n_new * r->ld);
    r->lse = ek_guarded((size_t)n_new * heads);
    r->row = (ek_mapped_row){.view = r->made.view,
                             .n_new = n_new,
                             .joint = joint,
                             .w = r->w,
                             .b = r->b,
                             .q = r->q,
                             .out = r->out,
                             .lse = r->lse};
    r->row.view.v = NULL;
}

static void run_close(run *r)
{
    ek_made_close(&r->made);
    free(r->q);
    free(r->w);
    free(r->b);
    free(r->out_before);
    free(r->lse_before);
    ek_guarded_free(r->out);
    ek_guarded_free(r->lse);
}

/* out and lse as attention has left them. */
static void run_reset(run *r)
{
    const size_t heads = (size_t)(r->row.view.n_heads * r->row.view.group);

    memcpy(r->out, r->out_before, (size_t)r->row.n_new * r->ld * sizeof(float));
    memcpy(r->lse, r->lse_before, (size_t)r->row.n_new * heads * sizeof(float));
}

static void run_go(ek_device *dev, run *r)
{
    run_reset(r);
    dev->ops.attn_mapped(dev, &r->row, 1, scale, r->ld, r->ld, r->inv);
}

/* Numbers that are off the reference, which makes every value.  A logit errs by its sum, a
 * probability by twice that, by exp and by the sum of all; the map adds the errors of its own. */
static int count_far(const run *r)
{
    const ek_view *in = &r->row.view;
    const int heads = in->n_heads * in->group, dim = in->head_dim;
    const int inputs = r->row.joint ? in->n_heads * dim : dim;
    double *out = malloc(2 * (size_t)dim * sizeof *out), *terms = out + dim;
    int far = 0;

    for (int t = 0; t < r->row.n_new; t++)
        for (int x = 0; x < heads; x++) {
            const int h = x / in->group, n = in->n[h];
            const size_t at = (size_t)t * r->ld + (size_t)(x * dim);
            double worst = 0.0, z_err, p_err, lse = (double)r->lse_before[t * heads + x];

            for (int s = 0; s < n; s++) {
                double sum = 0.0;

                for (int d = 0; d < dim; d++)
                    sum += fabs((double)r->q[at + (size_t)d] *
                                (double)ek_made_item(&r->made, in->k, in->first[h] + s, d));
                worst = fmax(worst, sum);
            }
            for (int d = 0; d < dim; d++)
                out[d] = (double)r->out_before[at + (size_t)d];
            z_err = EK_HALF_ULP * ((dim + 4) * worst * (double)scale + fabs(lse) + 16.0);
            lse = ek_naive_mapped(out, terms, &r->row, r->q + at, x, (double)scale, r->inv, lse);
            p_err = 2.0 * z_err + (n + inputs + 16) * EK_HALF_ULP + 1e-6;
            far += !ek_near((double)r->lse[t * heads + x], lse, z_err + p_err);
            for (int d = 0; d < dim; d++)
                far += !ek_near((double)r->out[at + (size_t)d], out[d], terms[d] * p_err + 1e-30);
        }
    free(out);
    return far;
}

static const ek_shape shapes[] = {
    {EK_BF16, 1, 1, 64, {1}, 0, 0},           {EK_BF16, 3, 3, 64, {130, 257, 140}, 0, 0},
    {EK_BF16, 3, 3, 64, {130, 0, 575}, 7, 0}, {EK_F32, 3, 3, 64, {130, 0, 575}, 7, 0},
    {EK_F32, 2, 4, 16, {31, 33}, 3, 0},       {EK_BF16, 2, 1, 8, {12, 300}, 1, 0},
    {EK_BF16, 2, 5, 80, {64, 65}, 0, 0},      {EK_F32, 1, 7, 24, {129}, 2, 0},
    {EK_BF16, 1, 2, 128, {513}, 2, 0},
};

static void near_the_reference(void **state)
{
    static const int news[] = {1, 2, 16, 17, 70};

    for (size_t i = 0; i < EK_COUNT(shapes); i++)
        for (size_t j = 0; j < EK_COUNT(news); j++) {
            run r;

            run_open(&r, &shapes[i], news[j], 0, 3);
            run_go(*state, &r);
            assert_int_equal(count_far(&r), 0);
            r.b[shapes[i].head_dim - 1] += 0.01f; /* negative control: another map */
            assert_true(count_far(&r) > 0);
            r.b[shapes[i].head_dim - 1] -= 0.01f;
            for (int s = 0; s < shapes[i].n[0]; s++)
                r.made.pos[r.made.first[0] + s]++; /* another rotation to undo */
            assert_true(count_far(&r) > 0);
            run_close(&r);
        }
}

/* A map over all heads' keys of a position. */
static void joint_maps_are_near_too(void **state)
{
    static const ek_shape same[] = {{EK_BF16, 3, 3, 64, {130, 130, 130}, 5, 0},
                                    {EK_F32, 2, 1, 24, {70, 70}, 1, 0},
                                    {EK_BF16, 1, 2, 64, {20}, 0, 0}};

    for (size_t i = 0; i < EK_COUNT(same); i++)
        for (int n_new = 1; n_new <= 35; n_new += 34) {
            run r;

            run_open(&r, &same[i], n_new, 1, 5);
            run_go(*state, &r);
            assert_int_equal(count_far(&r), 0);
            r.w[1] += 0.1f;
            assert_true(count_far(&r) > 0);
            run_close(&r);
        }
}

/* Zero keys, a log-sum-exp of as many entries: half of what was there and half of b, exactly; and
 * x of position 0 is the key: W that swaps its halves gives the swapped mean. */
static void small_integers_are_exact(void **state)
{
    const ek_shape s = {EK_BF16, 1, 3, 64, {256}, 4, 0};

    for (int n_new = 1; n_new <= 18; n_new += 17) {
        run r;

        run_open(&r, &s, n_new, 0, 5);
        memset(r.made.k, 0, (size_t)r.made.n_entries * 128);
        memset(r.w, 0, 64 * 64 * sizeof *r.w);
        for (int d = 0; d < 64; d++) {
            r.b[d] = (float)(d % 5);
            r.w[d * 64 + (d + 32) % 64] = 1.0f;
        }
        for (int i = 0; i < 3 * n_new; i++)
            r.lse_before[i] = -INFINITY;
        for (size_t i = 0; i < (size_t)n_new * r.ld; i++)
            r.out_before[i] = 0.0f;
        run_go(*state, &r);
        for (int g = 0; g < 3 * n_new; g++)
            for (int d = 0; d < 64; d++)
                assert_true(r.out[(size_t)(g / 3) * r.ld + (size_t)(g % 3 * 64 + d)] == r.b[d]);
        memset(r.made.pos, 0, (size_t)r.made.n_entries * sizeof *r.made.pos);
        memset(r.q, 0, (size_t)n_new * r.ld * sizeof *r.q);
        for (int e = 0; e < 256; e++)
            for (int d = 0; d < 64; d++)
                ((ek_bf16 *)r.made.k)[(r.made.first[0] + e) * 64 + d] =
                    ek_to_bf16((float)((e * 7 + d) % 16));
        run_go(*state, &r);
        for (int d = 0; d < 64; d++) {
            float sum = 0.0f;

            for (int e = 0; e < 256; e++)
                sum += (float)((e * 7 + (d + 32) % 64) % 16);
            assert_true(r.out[d] == sum / 256.0f + r.b[d]);
            assert_false(r.out[d] == sum / 256.0f + r.b[d] + 0.25f);
        }
        run_close(&r);
    }
}

/* Law: attention over all entries with their values made is attention over some of them, and then
 * these. */
static void it_completes_attention(void **state)
{
    ek_device *dev = *state;
    const ek_shape s = {EK_F32, 2, 3, 64, {300, 300}, 0, 0};
    const size_t ld = 6 * 64 + 5;
    const int n = 300, exact = 120, n_new = 5;
    int32_t few[2] = {exact, exact}, rest[2] = {n - exact - n_new, n - exact - n_new};
    int32_t few_first[2], rest_first[2];
    float *whole = ek_guarded(ld * 5), *lse = ek_guarded(6 * 5);
    ek_attn_row row;
    run r;

    run_open(&r, &s, n_new, 0, 3);
    for (int h = 0; h < 2; h++) {
        few_first[h] = r.made.first[h] + n - exact; /* queries are the last of these */
        rest_first[h] = r.made.first[h];
        few[h] = exact;
        rest[h] = n - exact;
        for (int j = 0; j < n - exact; j++) {
            const size_t e = (size_t)(r.made.first[h] + j);
            double v[64];

            for (int d = 0; d < 64; d++)
                v[d] = (double)r.b[h * 64 + d];
            for (int i = 0; i < 32; i++) {
                const double angle = (double)r.made.pos[e] * r.inv[i];
                const double a = (double)((float *)r.made.k)[e * 64 + (size_t)i];
                const double b = (double)((float *)r.made.k)[e * 64 + (size_t)i + 32];

                for (int d = 0; d < 64; d++)
                    v[d] +=
                        (double)r.w[(h * 64 + d) * 64 + i] * (a * cos(angle) + b * sin(angle)) +
                        (double)r.w[(h * 64 + d) * 64 + i + 32] * (b * cos(angle) - a * sin(angle));
            }
            for (int d = 0; d < 64; d++)
                ((float *)r.made.v)[e * 64 + (size_t)d] = (float)v[d];
        }
    }
    row = (ek_attn_row){
        .view = r.made.view, .n_new = n_new, .q = r.q, .out = whole, .lse = lse, .prob = NULL};
    dev->ops.attn(dev, &row, 1, scale, ld, ld);
    row.view.first = few_first;
    row.view.n = few;
    row.out = r.out;
    row.lse = r.lse;
    dev->ops.attn(dev, &row, 1, scale, ld, ld);
    assert_false(ek_near((double)r.lse[0], (double)lse[0], 1e-3)); /* something is missing */
    r.row.view.first = rest_first;
    r.row.view.n = rest;
    dev->ops.attn_mapped(dev, &r.row, 1, scale, ld, ld, r.inv);
    for (int t = 0; t < n_new; t++)
        for (int x = 0; x < 6; x++) {
            assert_true(ek_near((double)r.lse[t * 6 + x], (double)lse[t * 6 + x], 1e-5));
            for (int d = 0; d < 64; d++) {
                const size_t at = (size_t)t * ld + (size_t)(x * 64 + d);

                assert_true(ek_near((double)r.out[at], (double)whole[at], 2e-5));
            }
        }
    run_close(&r);
    ek_guarded_free(whole);
    ek_guarded_free(lse);
}

static void layout_and_company_change_nothing(void **state)
{
    ek_device *dev = *state;
    const int news[] = {1, 5, 16, 40, 130}, threads = omp_get_max_threads();

    for (int type = 0; type < 2; type++)
        for (size_t i = 0; i < EK_COUNT(news); i++) {
            const ek_shape tight = {(ek_dtype)type, 3, 3, 64, {700, 200, 257}, 0, 0};
            const ek_shape loose = {(ek_dtype)type, 3, 3, 64, {700, 200, 257}, 37, 0};
            const ek_shape other = {(ek_dtype)type, 3, 3, 64, {30, 30, 30}, 2, 0};
            ek_mapped_row rows[3];
            run a, b, c[2];

            run_open(&a, &tight, news[i], 0, 3);
            run_open(&b, &loose, news[i], 0, 3);
            run_go(dev, &a);
            for (int k = 0; k < 2; k++) {
                run_open(&c[k], &other, 1 + 50 * k, k, (uint64_t)(20 + k));
                rows[2 * k] = c[k].row;
            }
            rows[1] = b.row;
            for (int t = 1; t <= 3; t++) {
                omp_set_num_threads(t);
                run_reset(&b);
                run_reset(&c[0]);
                run_reset(&c[1]);
                dev->ops.attn_mapped(dev, rows, 3, scale, a.ld, a.ld, a.inv);
                assert_memory_equal(a.lse, b.lse, sizeof(float) * (size_t)news[i] * 9);
                assert_memory_equal(a.out, b.out, sizeof(float) * (size_t)news[i] * a.ld);
            }
            omp_set_num_threads(threads);
            b.q[3] += 0.5f; /* negative control */
            run_go(dev, &b);
            assert_memory_not_equal(a.out, b.out, sizeof(float) * 64);
            run_close(&a);
            run_close(&b);
            run_close(&c[0]);
            run_close(&c[1]);
        }
}

/* A head without entries keeps its bits; a NaN in a key reaches its own head alone; huge logits
 * lose neither the winner nor the past. */
static void edges(void **state)
{
    const ek_shape s = {EK_F32, 2, 3, 64, {0, 50}, 6, 0};

    for (int n_new = 1; n_new <= 20; n_new += 19) {
        run r;
        float *k;

        run_open(&r, &s, n_new, 0, 8);
        run_go(*state, &r);
        assert_memory_equal(r.out, r.out_before, 3 * 64 * sizeof(float));
        assert_memory_equal(r.lse, r.lse_before, 3 * sizeof(float));
        assert_memory_not_equal(r.out + 3 * 64, r.out_before + 3 * 64, 64 * sizeof(float));
        r.lse_before[3] = 1e6f; /* the past outweighs all of it */
        run_go(*state, &r);
        assert_memory_equal(r.out + 3 * 64, r.out_before + 3 * 64, 64 * sizeof(float));
        k = (float *)r.made.k + r.made.first[1] * 64;
        k[17] = NAN;
        run_go(*state, &r);
        assert_true(isnan(r.lse[4]) && isnan(r.out[4 * 64]) && isfinite(r.out[0]));
        run_close(&r);
    }
}

static void workspace_stands_still(void **state)
{
    ek_device *dev = *state;
    const ek_shape s = {EK_BF16, 3, 3, 64, {700, 600, 500}, 0, 0};
    int64_t grown;
    run r;

    run_open(&r, &s, 1, 0, 3);
    run_go(dev, &r);
    grown = dev->work_grown;
    for (int i = 0; i < 5; i++)
        run_go(dev, &r);
    assert_int_equal(dev->work_grown, grown);
    run_close(&r);
}

static void bench(ek_device *dev)
{
    const double stream = ek_bench_stream();

    for (int n = 256; n <= 2048; n *= 2) {
        const ek_shape s = {EK_BF16, 3, 3, 64, {n, n, n}, 0, 0};
        double best[2] = {INFINITY, INFINITY};
        run r;

        run_open(&r, &s, 1, 0, 3);
        for (int i = 0; i < 400; i++) {
            const ek_attn_row row = {
                .view = r.made.view, .n_new = 1, .q = r.q, .out = r.out, .lse = r.lse};
            double start = ek_seconds();

            dev->ops.attn(dev, &row, 1, scale, r.ld, r.ld);
            best[0] = fmin(best[0], ek_seconds() - start);
            start = ek_seconds();
            dev->ops.attn_mapped(dev, &r.row, 1, scale, r.ld, r.ld, r.inv);
            best[1] = fmin(best[1], ek_seconds() - start);
        }
        printf("%s: entries %4d: %.1f us, %.2f of streaming the keys; with values, attn: %.1f us\n",
               dev->ops.name, n, best[1] * 1e6, 3.0 * n * 128 / best[1] / stream, best[0] * 1e6);
        run_close(&r);
    }
}

static const struct CMUnitTest mapped_tests[] = {
    cmocka_unit_test(near_the_reference),
    cmocka_unit_test(joint_maps_are_near_too),
    cmocka_unit_test(small_integers_are_exact),
    cmocka_unit_test(it_completes_attention),
    cmocka_unit_test(layout_and_company_change_nothing),
    cmocka_unit_test(edges),
    cmocka_unit_test(workspace_stands_still),
};
EK_KERNEL_MAIN(mapped_tests, bench)
