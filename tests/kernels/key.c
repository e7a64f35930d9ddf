/* Norms of keys, and their distance from the mean direction. */
#include "tests/check_kernels.h"
#include "tests/naive.h"

#include "core/bf16.h"

#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const ek_shape shapes[] = {
    {EK_BF16, 3, 3, 64, {130, 0, 57}, 5, 0},
    {EK_F32, 2, 2, 64, {1, 31}, 0, 0},
    {EK_F32, 1, 1, 20, {33}, 3, 0},
    {EK_BF16, 1, 1, 80, {12}, 2, 0},
};

static void near_the_reference(void **state)
{
    ek_device *dev = *state;

    for (size_t i = 0; i < EK_COUNT(shapes); i++) {
        const ek_shape *s = &shapes[i];
        float *norm, *diff;
        ek_made m;
        int far = 0, control = 0;

        ek_made_open(&m, s, 3);
        norm = ek_guarded((size_t)m.n_entries);
        diff = ek_guarded((size_t)m.n_entries);
        dev->ops.key_norm(dev, norm, &m.view);
        dev->ops.key_diff(dev, diff, &m.view);
        for (int h = 0; h < s->n_heads; h++)
            for (int j = 0; j < s->n[h]; j++) {
                const int e = m.first[h] + j;
                const double n = ek_naive_key_norm(&m.view, e);
                const double d = ek_naive_key_diff(&m.view, h, e);

                far += !ek_near((double)norm[e], n, n * (s->head_dim + 4) * EK_HALF_ULP);
                far += !ek_near((double)diff[e], d, (s->head_dim + 8) * EK_HALF_ULP);
                control += !ek_near((double)norm[e], n * 1.0001, n * 70 * EK_HALF_ULP);
                control += !ek_near((double)diff[e], d + 1e-4, 70 * EK_HALF_ULP);
            }
        assert_int_equal(far, 0);
        assert_true(control > 0);
        ek_guarded_free(norm);
        ek_guarded_free(diff);
        ek_made_close(&m);
    }
}

/* Keys of 3 and 4 have norm 5; one key alone has cosine 1; a zero key has cosine 0. */
static void exact_cases(void **state)
{
    ek_device *dev = *state;
    const ek_shape s = {EK_BF16, 2, 1, 64, {1, 5}, 1, 0};
    float norm[16], diff[16];
    ek_made m;

    ek_made_open(&m, &s, 3);
    memset(m.k, 0, (size_t)m.n_entries * 128);
    for (int h = 0; h < 2; h++)
        for (int j = 0; j < s.n[h] - h; j++) { /* the last of head 1 stays zero */
            ((ek_bf16 *)m.k)[(m.first[h] + j) * 64 + 3] = ek_to_bf16(3.0f);
            ((ek_bf16 *)m.k)[(m.first[h] + j) * 64 + 60] = ek_to_bf16(4.0f);
        }
    dev->ops.key_norm(dev, norm, &m.view);
    dev->ops.key_diff(dev, diff, &m.view);
    assert_true(norm[m.first[0]] == 5.0f && norm[m.first[1] + 3] == 5.0f);
    assert_true(norm[m.first[1] + 4] == 0.0f && diff[m.first[1] + 4] == 0.0f);
    assert_true(diff[m.first[0]] == -1.0f && diff[m.first[1]] == -1.0f);
    ek_made_close(&m);
}

static void layout_and_threads_change_nothing(void **state)
{
    ek_device *dev = *state;
    const int threads = omp_get_max_threads();
    ek_shape loose = shapes[0];
    float *a, *b;
    ek_made m, l;

    loose.gap = 40;
    ek_made_open(&m, &shapes[0], 3);
    ek_made_open(&l, &loose, 3);
    a = ek_guarded((size_t)m.n_entries);
    b = ek_guarded((size_t)l.n_entries);
    for (int op = 0; op < 2; op++) {
        (op ? dev->ops.key_diff : dev->ops.key_norm)(dev, a, &m.view);
        for (int t = 1; t <= 3; t++) {
            omp_set_num_threads(t);
            (op ? dev->ops.key_diff : dev->ops.key_norm)(dev, b, &l.view);
            for (int h = 0; h < 3; h++)
                assert_memory_equal(a + m.first[h], b + l.first[h], sizeof *a * (size_t)m.n[h]);
        }
    }
    omp_set_num_threads(threads);
    ((ek_bf16 *)m.k)[(m.first[0] + 5) * 64] =
        0x7fc0; /* a NaN spreads over its head's cosines only */
    dev->ops.key_norm(dev, a, &m.view);
    assert_true(isnan(a[m.first[0] + 5]) && isfinite(a[m.first[0] + 6]));
    dev->ops.key_diff(dev, a, &m.view);
    assert_true(isnan(a[m.first[0] + 6]) && isfinite(a[m.first[2]]));
    ek_guarded_free(a);
    ek_guarded_free(b);
    ek_made_close(&m);
    ek_made_close(&l);
}

static void bench(ek_device *dev)
{
    const ek_shape s = {EK_BF16, 3, 3, 64, {4096, 4096, 4096}, 0, 0};
    double best[2] = {INFINITY, INFINITY}, stream = ek_bench_stream();
    float *out;
    ek_made m;

    ek_made_open(&m, &s, 3);
    out = ek_guarded((size_t)m.n_entries);
    for (int r = 0; r < 40; r++) {
        double start = ek_seconds();

        dev->ops.key_norm(dev, out, &m.view);
        best[0] = fmin(best[0], ek_seconds() - start);
        start = ek_seconds();
        dev->ops.key_diff(dev, out, &m.view);
        best[1] = fmin(best[1], ek_seconds() - start);
    }
    for (int i = 0; i < 2; i++)
        printf("%s: %s %.2f of streaming the keys\n", dev->ops.name, i ? "key_diff" : "key_norm",
               3.0 * 4096 * 128 / best[i] / stream);
    ek_guarded_free(out);
    ek_made_close(&m);
}

static const struct CMUnitTest key_tests[] = {
    cmocka_unit_test(near_the_reference),
    cmocka_unit_test(exact_cases),
    cmocka_unit_test(layout_and_threads_change_nothing),
};
EK_KERNEL_MAIN(key_tests, bench)
