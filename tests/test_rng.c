/* tests/test_rng.c - published vectors of Philox4x32-10, and the shape of what is built on it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "core/rng.h"

#include <math.h>
#include <string.h>

/* Known answers that Random123 publishes for philox4x32 with 10 rounds. */
static const struct {
    uint32_t counter[4], key[2], out[4];
} known[] = {
    {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
    {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
     {0xffffffff, 0xffffffff},
     {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
    {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
     {0xa4093822, 0x299f31d0},
     {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
};

static uint64_t join(const uint32_t w[2])
{
    return (uint64_t)w[1] << 32 | w[0];
}

static void published_vectors(void **state)
{
    uint32_t out[4];

    (void)state;
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        ek_rng_block(out, join(known[i].key), join(known[i].counter + 2), join(known[i].counter));
        assert_memory_equal(out, known[i].out, sizeof out);
        ek_rng_block(out, join(known[i].key) ^ 1, join(known[i].counter + 2),
                     join(known[i].counter));
        assert_memory_not_equal(out, known[i].out, sizeof out); /* negative control */
    }
}

static void unit_is_uniform(void **state)
{
    enum { N = 100000, BINS = 20 };
    int bin[BINS] = {0};
    double chi = 0;

    (void)state;
    for (uint64_t i = 0; i < N; i++) {
        const double u = ek_rng_unit(7, 3, i);

        assert_true(u >= 0 && u < 1);
        bin[(int)(u * BINS)]++;
    }
    for (int b = 0; b < BINS; b++)
        chi += pow(bin[b] - (double)N / BINS, 2) / ((double)N / BINS);
    assert_true(chi < 43.8); /* 99.9 % of 19 degrees of freedom */
    assert_true(chi > 5.4);  /* and not suspiciously even */
}

static void normal_has_its_moments(void **state)
{
    enum { N = 200000 };
    double m1 = 0, m2 = 0, m4 = 0;

    (void)state;
    for (uint64_t i = 0; i < N; i++) {
        const double x = ek_rng_normal(1, 2, i);

        assert_true(isfinite(x));
        m1 += x / N;
        m2 += x * x / N;
        m4 += x * x * x * x / N;
    }
    /* Four standard errors: sqrt(1/N), sqrt(2/N), sqrt(96/N). */
    assert_true(fabs(m1) < 4 * sqrt(1.0 / N));
    assert_true(fabs(m2 - 1) < 4 * sqrt(2.0 / N));
    assert_true(fabs(m4 - 3) < 4 * sqrt(96.0 / N));
}

static void below_stays_below(void **state)
{
    int seen[7] = {0};

    (void)state;
    for (uint64_t i = 0; i < 7000; i++) {
        const uint64_t x = ek_rng_below(7, 11, 0, i);

        assert_true(x < 7);
        seen[x]++;
        assert_int_equal(ek_rng_below(1, 11, 0, i), 0);
        assert_true(ek_rng_below(UINT64_MAX, 11, 0, i) < UINT64_MAX);
    }
    for (int k = 0; k < 7; k++)
        assert_in_range(seen[k], 880, 1120);
}

static void streams_do_not_collide(void **state)
{
    uint64_t s[4 * 50 * 50];
    static const char *const names[] = {"random", "sample", "randon", ""};
    int n = 0;

    (void)state;
    for (int k = 0; k < 4; k++)
        for (uint64_t a = 0; a < 50; a++)
            for (uint64_t b = 0; b < 50; b++)
                s[n++] = ek_rng_stream(names[k], a, b);
    for (int i = 0; i < n; i++)
        for (int j = i + 1; j < n; j++)
            if (s[i] == s[j])
                fail_msg("streams %d and %d are equal", i, j);
    /* Recorded: a stored run must draw the same numbers for ever. */
    assert_int_equal(ek_rng_stream("random", 3, 1), ek_rng_stream("random", 3, 1));
    assert_int_not_equal(ek_rng_stream("random", 3, 1), ek_rng_stream("random", 1, 3));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(published_vectors),      cmocka_unit_test(unit_is_uniform),
        cmocka_unit_test(normal_has_its_moments), cmocka_unit_test(below_stays_below),
        cmocka_unit_test(streams_do_not_collide),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
