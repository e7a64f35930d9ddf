/* Between fp32 and storage. */
#include "tests/check_kernels.h"
#include "tests/naive.h"

#include "core/bf16.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Every way to round: up, down, ties to even, carries, infinities, denormals, NaN. */
static void fill(float *x, int n)
{
    static const uint32_t edges[] = {0x3f808000, 0x3f818000, 0x3f807fff, 0x3f808001, 0x7f7fffff,
                                     0x7f800000, 0xff800000, 0x00000001, 0x807fffff, 0x80000000};

    for (int i = 0; i < n; i++)
        x[i] = 100.0f * ek_number(1, (uint64_t)i);
    for (size_t i = 0; i < EK_COUNT(edges) && i < (size_t)n; i++)
        memcpy(&x[n - 1 - (int)i], &edges[i], 4);
}

static void store_and_load_bit_by_bit(void **state)
{
    ek_device *dev = *state;
    static const int dims[] = {1, 7, 16, 33, 64, 575};

    for (size_t k = 0; k < EK_COUNT(dims); k++) {
        const int d = dims[k], n = 9;
        const size_t ld = (size_t)d + 4, count = (size_t)(n * d);
        float *x = ek_numbers(1, (size_t)n * ld, 1.0f), *back = ek_guarded(count);
        ek_bf16 *out = (ek_bf16 *)ek_guarded((count + 1) / 2);
        float *wide = ek_guarded(count);

        fill(x, (int)((size_t)n * ld));
        dev->ops.store(dev, out, EK_BF16, x, ld, n, d);
        dev->ops.load(dev, back, out, EK_BF16, count);
        dev->ops.store(dev, wide, EK_F32, x, ld, n, d);
        for (int i = 0; i < n; i++)
            for (int j = 0; j < d; j++) {
                const float from = x[(size_t)i * ld + (size_t)j];
                const size_t at = (size_t)(i * d + j);
                const double want = ek_naive_meet(from, EK_BF16);

                assert_int_equal(out[at], ek_to_bf16(from));
                if (fabsf(from) > 1e-37f && fabsf(from) < 3.3e38f)
                    assert_true((double)back[at] == want);
                assert_memory_equal(&wide[at], &from, sizeof from);
            }
        dev->ops.load(dev, back, wide, EK_F32, count);
        assert_memory_equal(back, wide, count * sizeof *back);
        ek_guarded_free(back);
        ek_guarded_free(wide);
        ek_guarded_free((float *)out);
        free(x);
    }
}

static void a_nan_stays_one(void **state)
{
    ek_device *dev = *state;
    const uint32_t bits[2] = {0x7f800001,
                              0xffffffff}; /* rounding up would make the first infinite */
    float x[16], back[16];
    ek_bf16 out[16];

    for (int i = 0; i < 16; i++)
        memcpy(&x[i], &bits[i % 2], 4);
    dev->ops.store(dev, out, EK_BF16, x, 16, 1, 16);
    dev->ops.load(dev, back, out, EK_BF16, 16);
    for (int i = 0; i < 16; i++)
        assert_true(isnan(back[i]));
}

static void large_ones(void **state)
{
    ek_device *dev = *state;
    const size_t n = 100003;
    float *x = ek_numbers(1, n, 1.0f), *back = ek_guarded(n);
    ek_bf16 *out = malloc(n * sizeof *out);

    dev->ops.store(dev, out, EK_BF16, x, n, 1, (int)n);
    dev->ops.load(dev, back, out, EK_BF16, n);
    for (size_t i = 0; i < n; i++)
        assert_true(back[i] == ek_from_bf16(ek_to_bf16(x[i])));
    assert_true(memcmp(back, x, n * sizeof *x) != 0); /* negative control: it did round */
    ek_guarded_free(back);
    free(out);
    free(x);
}

static void bench(ek_device *dev)
{
    const size_t n = (size_t)1 << 20;
    float *x = ek_numbers(1, n, 1.0f);
    ek_bf16 *out = malloc(n * sizeof *out);
    double best = INFINITY;

    for (int r = 0; r < 50; r++) {
        const double start = ek_seconds();

        dev->ops.store(dev, out, EK_BF16, x, 1024, 1024, 1024);
        best = fmin(best, ek_seconds() - start);
    }
    printf("%s: store %.2f of streaming\n", dev->ops.name,
           6.0 * (double)n / best / ek_bench_stream());
    free(x);
    free(out);
}

static const struct CMUnitTest store_tests[] = {
    cmocka_unit_test(store_and_load_bit_by_bit),
    cmocka_unit_test(a_nan_stays_one),
    cmocka_unit_test(large_ones),
};
EK_KERNEL_MAIN(store_tests, bench)
