/* Packed weights: pack, gather, matmul. */
#include "tests/check_kernels.h"
#include "tests/naive.h"

#include "core/bf16.h"

#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const int edges[] = {1, 11, 12, 13, 31, 33, 575};

static void open_weight(ek_weight *w, ek_device *dev, ek_dtype type, const float *rows, int n,
                        int k)
{
    ek_err err;

    assert_int_equal(ek_weight_open(w, dev, type, n, k, &err), EK_OK);
    dev->ops.pack(dev, w, rows, 0, n);
}

/* Errors of k roundings of the terms and of one addition; denormals may be flushed. */
static double bound(int k, double terms)
{
    return (k + 3) * EK_HALF_ULP * (terms + 1.0) + 1e-36;
}

/* How many numbers of out are off the reference. */
static int count_far(const float *out, size_t ldo, const double *want, const double *terms, int m,
                     int n, int k, double add)
{
    int far = 0;

    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++) {
            const size_t at = (size_t)i * (size_t)n + (size_t)j;

            far += !ek_near((double)out[(size_t)i * ldo + (size_t)j], want[at] + add,
                            bound(k, terms[at]));
        }
    return far;
}

static void check_shape(ek_device *dev, ek_dtype type, int m, int n, int k, ek_into into)
{
    const size_t ldx = (size_t)k + 5, ldo = (size_t)n + 7;
    float *rows = ek_numbers(1, (size_t)n * (size_t)k, 1.0f);
    float *x = ek_numbers(2, (size_t)m * ldx, 1.0f), *out = ek_guarded((size_t)m * ldo);
    double *want = malloc((size_t)(m * n) * sizeof *want);
    double *terms = malloc((size_t)(m * n) * sizeof *terms);
    ek_weight w;

    open_weight(&w, dev, type, rows, n, k);
    for (size_t i = 0; i < (size_t)m * ldo; i++)
        out[i] = 1.0f;
    dev->ops.matmul(dev, out, ldo, x, ldx, &w, m, into);
    ek_naive_matmul(want, terms, x, ldx, rows, type, m, n, k);
    assert_int_equal(count_far(out, ldo, want, terms, m, n, k, into == EK_ADD), 0);
    for (int i = 0; i < m; i++) /* between rows nothing is written */
        for (size_t j = (size_t)n; j < ldo; j++)
            assert_true(out[(size_t)i * ldo + j] == 1.0f);
    /* Negative control: one weight moves by an eighth, one column is off. */
    rows[(size_t)(n - 1) * (size_t)k] += 0.125f;
    ek_naive_matmul(want, terms, x, ldx, rows, type, m, n, k);
    assert_true(count_far(out, ldo, want, terms, m, n, k, into == EK_ADD) > 0);
    ek_weight_close(&w, dev);
    ek_guarded_free(out);
    free(rows);
    free(x);
    free(want);
    free(terms);
}

static void near_the_reference(void **state)
{
    for (int type = 0; type < 2; type++)
        for (size_t a = 0; a < EK_COUNT(edges); a++)
            for (size_t b = 0; b < EK_COUNT(edges); b++) {
                const int m = edges[a] == 575 ? 64 : edges[a], n = edges[b] == 575 ? 97 : edges[b];

                check_shape(*state, (ek_dtype)type, m, n, edges[(a + b) % EK_COUNT(edges)],
                            (a + b) % 2 ? EK_ADD : EK_SET);
            }
}

static void integers_are_exact(void **state)
{
    ek_device *dev = *state;
    const int m = 29, n = 67, k = 575;

    for (int type = 0; type < 2; type++) {
        float *rows = ek_numbers(1, (size_t)(n * k), 1.0f),
              *x = ek_numbers(2, (size_t)(m * k), 1.0f);
        float *out = ek_guarded((size_t)(m * n)), *want = malloc((size_t)(m * n) * sizeof *want);
        ek_weight w;

        for (int i = 0; i < n * k; i++)
            rows[i] = floorf(rows[i] * 8.0f);
        for (int i = 0; i < m * k; i++)
            x[i] = floorf(x[i] * 8.0f);
        for (int i = 0; i < m; i++)
            for (int j = 0; j < n; j++) {
                float sum = 0.0f;

                for (int l = 0; l < k; l++)
                    sum += x[i * k + l] * rows[j * k + l];
                want[i * n + j] = sum;
            }
        open_weight(&w, dev, (ek_dtype)type, rows, n, k);
        dev->ops.matmul(dev, out, (size_t)n, x, (size_t)k, &w, m, EK_SET);
        assert_memory_equal(out, want, (size_t)(m * n) * sizeof *want);
        ek_weight_close(&w, dev);
        ek_guarded_free(out);
        free(want);
        free(rows);
        free(x);
    }
}

/* A row alone, in company of any size, on any number of threads: the same bits. */
static void company_changes_nothing(void **state)
{
    ek_device *dev = *state;
    const int sizes[] = {2, 5, 7, 12, 25, 130, 700}, n = 130, k = 100, most = 700;
    float *rows = ek_numbers(3, (size_t)(n * k), 1.0f),
          *x = ek_numbers(4, (size_t)(most * k), 1.0f);
    float *alone = ek_numbers(5, (size_t)(most * n), 0.0f);
    float *out = ek_numbers(5, (size_t)(most * n), 0.0f);
    const int threads = omp_get_max_threads();

    for (int type = 0; type < 2; type++) {
        ek_weight w;

        open_weight(&w, dev, (ek_dtype)type, rows, n, k);
        for (int i = 0; i < most; i++)
            dev->ops.matmul(dev, alone + i * n, (size_t)n, x + i * k, (size_t)k, &w, 1, EK_SET);
        for (size_t s = 0; s < EK_COUNT(sizes); s++)
            for (int t = 1; t <= 3; t++) {
                omp_set_num_threads(t);
                dev->ops.matmul(dev, out, (size_t)n, x, (size_t)k, &w, sizes[s], EK_SET);
                assert_memory_equal(out, alone, (size_t)(sizes[s] * n) * sizeof *out);
            }
        x[0] += 0.5f; /* negative control */
        dev->ops.matmul(dev, out, (size_t)n, x, (size_t)k, &w, 2, EK_SET);
        assert_memory_not_equal(out, alone, (size_t)n * sizeof *out);
        assert_memory_equal(out + n, alone + n, (size_t)n * sizeof *out);
        x[0] -= 0.5f;
        ek_weight_close(&w, dev);
    }
    omp_set_num_threads(threads);
    free(rows);
    free(x);
    free(alone);
    free(out);
}

static void adversaries_stay_in_their_row(void **state)
{
    ek_device *dev = *state;
    const int m = 3, n = 40, k = 64;
    const float nasty[] = {NAN, INFINITY, 3e38f, 1e-40f};
    float *rows = ek_numbers(3, (size_t)(n * k), 1.0f), *out = ek_guarded((size_t)(m * n));

    for (int type = 0; type < 2; type++)
        for (size_t a = 0; a < EK_COUNT(nasty); a++) {
            float *x = ek_numbers(4, (size_t)(m * k), 1.0f), alone[40];
            ek_weight w;

            open_weight(&w, dev, (ek_dtype)type, rows, n, k);
            x[k + 7] = nasty[a];
            dev->ops.matmul(dev, out, (size_t)n, x, (size_t)k, &w, m, EK_SET);
            dev->ops.matmul(dev, alone, (size_t)n, x + 2 * k, (size_t)k, &w, 1, EK_SET);
            assert_memory_equal(alone, out + 2 * n, sizeof alone);
            for (int j = 0; j < n; j++) {
                assert_true(isfinite(out[j]));
                if (a == 0)
                    assert_true(isnan(out[n + j]));
                if (a == 3)
                    assert_true(isfinite(out[n + j]));
            }
            ek_weight_close(&w, dev);
            free(x);
        }
    ek_guarded_free(out);
    free(rows);
}

static void pack_in_pieces_and_gather(void **state)
{
    ek_device *dev = *state;
    const int n = 101, k = 75;
    const int32_t idx[] = {100, 0, 31, 32, 100};
    float *rows = ek_numbers(6, (size_t)(n * k), 3.0f), *out = ek_guarded(5 * 75);

    for (int type = 0; type < 2; type++) {
        ek_weight whole, pieces;
        ek_err err;

        open_weight(&whole, dev, (ek_dtype)type, rows, n, k);
        assert_int_equal(ek_weight_open(&pieces, dev, (ek_dtype)type, n, k, &err), EK_OK);
        for (int first = 0; first < n; first += 17) {
            const int count = n - first < 17 ? n - first : 17;

            dev->ops.pack(dev, &pieces, rows + first * k, first, count);
        }
        assert_memory_equal(whole.data, pieces.data, whole.bytes);
        dev->ops.gather(dev, out, &whole, idx, 5);
        for (int i = 0; i < 5; i++)
            for (int x = 0; x < k; x++) {
                const float want = rows[idx[i] * k + x];

                assert_true(out[i * k + x] ==
                            (type == EK_F32 ? want : ek_from_bf16(ek_to_bf16(want))));
            }
        ek_weight_close(&whole, dev);
        ek_weight_close(&pieces, dev);
    }
    ek_guarded_free(out);
    free(rows);
}

static void workspace_stands_still(void **state)
{
    ek_device *dev = *state;
    float *x = ek_numbers(1, 64 * 64, 1.0f), *out = ek_numbers(2, 64 * 64, 1.0f);
    int64_t grown;
    ek_weight w;

    open_weight(&w, dev, EK_BF16, x, 64, 64);
    dev->ops.matmul(dev, out, 64, x, 64, &w, 64, EK_SET);
    grown = dev->work_grown;
    for (int i = 0; i < 10; i++)
        dev->ops.matmul(dev, out, 64, x, 64, &w, 1 + i, EK_SET);
    assert_int_equal(dev->work_grown, grown);
    ek_weight_close(&w, dev);
    free(x);
    free(out);
}

/* Decode reads every weight of the default model once: 30 layers and the head. */
static void bench_decode(ek_device *dev, ek_dtype type)
{
    static const int nk[4][2] = {{960, 576}, {576, 576}, {3072, 576}, {576, 1536}};
    static ek_weight w[30][4], head;
    float *x = ek_numbers(1, 16 * 1536, 1.0f), *out = ek_numbers(2, 16 * 49152, 1.0f);
    double bytes = 0.0;
    ek_err err;

    for (int l = 0; l < 30; l++)
        for (int j = 0; j < 4; j++) {
            assert_int_equal(ek_weight_open(&w[l][j], dev, type, nk[j][0], nk[j][1], &err), EK_OK);
            memset(w[l][j].data, 1, w[l][j].bytes); /* untouched pages would all be one */
            bytes += (double)w[l][j].bytes;
        }
    assert_int_equal(ek_weight_open(&head, dev, type, 49152, 576, &err), EK_OK);
    memset(head.data, 1, head.bytes);
    bytes += (double)head.bytes;
    for (int m = 1; m <= 16; m *= 4) {
        double best = INFINITY, stream;

        for (int i = 0; i < 8; i++) {
            const double start = ek_seconds();

            for (int l = 0; l < 30; l++)
                for (int j = 0; j < 4; j++)
                    dev->ops.matmul(dev, out, (size_t)nk[j][0], x, (size_t)nk[j][1], &w[l][j], m,
                                    EK_SET);
            dev->ops.matmul(dev, out, 49152, x, 576, &head, m, EK_SET);
            best = fmin(best, ek_seconds() - start);
        }
        stream = ek_bench_stream();
        printf("decode %s m %2d: %.2f ms, %.1f GB/s, %.2f of streaming (%.1f)\n",
               type == EK_F32 ? "f32" : "bf16", m, best * 1e3, bytes / best / 1e9,
               bytes / best / stream, stream / 1e9);
    }
    for (int l = 0; l < 30; l++)
        for (int j = 0; j < 4; j++)
            ek_weight_close(&w[l][j], dev);
    ek_weight_close(&head, dev);
    free(x);
    free(out);
}

static void bench(ek_device *dev)
{
    static const int nk[4][2] = {{960, 576}, {576, 576}, {3072, 576}, {576, 1536}};
    const int m = 512;
    ek_err err;

    for (int type = 0; type < 2; type++) {
        const double peak = ek_bench_gemm(dev, (ek_dtype)type);
        float *x = ek_numbers(1, 512 * 1536, 1.0f), *out = ek_numbers(2, 512 * 3072, 1.0f);

        printf("%s %s: peak %.0f GFLOP/s\n", dev->ops.name, type ? "f32" : "bf16", peak / 1e9);
        for (int j = 0; j < 4; j++) {
            double best = INFINITY;
            ek_weight w;

            assert_int_equal(ek_weight_open(&w, dev, (ek_dtype)type, nk[j][0], nk[j][1], &err),
                             EK_OK);
            for (int i = 0; i < 20; i++) {
                const double start = ek_seconds();

                dev->ops.matmul(dev, out, (size_t)nk[j][0], x, (size_t)nk[j][1], &w, m, EK_SET);
                best = fmin(best, ek_seconds() - start);
            }
            printf("prefill %d x %d x %d: %.2f of peak\n", m, nk[j][0], nk[j][1],
                   2.0 * m * nk[j][0] * nk[j][1] / best / peak);
            ek_weight_close(&w, dev);
        }
        bench_decode(dev, (ek_dtype)type);
        free(x);
        free(out);
    }
}

static const struct CMUnitTest matmul_tests[] = {
    cmocka_unit_test(near_the_reference),        cmocka_unit_test(integers_are_exact),
    cmocka_unit_test(company_changes_nothing),   cmocka_unit_test(adversaries_stay_in_their_row),
    cmocka_unit_test(pack_in_pieces_and_gather), cmocka_unit_test(workspace_stands_still),
};
EK_KERNEL_MAIN(matmul_tests, bench)
