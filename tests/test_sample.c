/* tests/test_sample.c - sampling: the filters, their order, and the drawn frequencies. */
#include "infer/sample.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

enum { N = 6, DRAWS = 4000 };

/* Probabilities .4 .3 .2 .06 .03 .01, not in order of id. */
static const double wanted[N] = {.03, .4, .06, .3, .01, .2};

static void make_logits(float *out)
{
    for (int i = 0; i < N; i++)
        out[i] = (float)log(wanted[i]);
}

/* How often each token is drawn. */
static void draw(const ek_sampling *set, const float *logits, int *count)
{
    ek_sampler s;
    ek_err err;
    int32_t id;

    memset(count, 0, sizeof(int) * N);
    assert_int_equal(ek_sampler_open(&s, set, N, &err), EK_OK);
    for (int i = 0; i < DRAWS; i++) {
        assert_int_equal(ek_sampler_pick(&s, logits, i, &id, &err), EK_OK);
        assert_in_range(id, 0, N - 1);
        count[id]++;
    }
    ek_sampler_close(&s);
}

/* The tokens of mask, and only they, come up as often as their probabilities say. */
static int matches(const int *count, const int *mask)
{
    double total = 0.0;

    for (int i = 0; i < N; i++)
        total += mask[i] ? wanted[i] : 0.0;
    for (int i = 0; i < N; i++) {
        const double p = mask[i] ? wanted[i] / total : 0.0;

        /* Four standard errors; a token outside must never come up. */
        if (fabs(count[i] - DRAWS * p) > 4.0 * sqrt(DRAWS * p * (1.0 - p)))
            return 0;
    }
    return 1;
}

static void greedy_takes_the_highest_and_the_lower_id(void **state)
{
    const float logits[N] = {1.f, 3.f, -INFINITY, 3.f, 2.f, 0.f};
    ek_sampling set = ek_sampling_greedy;
    ek_sampler s;
    ek_err err;
    int32_t id = -1;

    (void)state;
    set.top_k = 1; /* nothing else counts */
    assert_int_equal(ek_sampler_open(&s, &set, N, &err), EK_OK);
    for (int i = 0; i < 10; i++) {
        assert_int_equal(ek_sampler_pick(&s, logits, i, &id, &err), EK_OK);
        assert_int_equal(id, 1);
    }
    ek_sampler_close(&s);
}

static void plain_sampling_follows_the_softmax(void **state)
{
    const int all[N] = {1, 1, 1, 1, 1, 1}, not_all[N] = {1, 1, 0, 1, 1, 1};
    ek_sampling set = {.temperature = 1.0, .top_p = 1.0, .seed = 7};
    float logits[N];
    int count[N];

    (void)state;
    make_logits(logits);
    draw(&set, logits, count);
    assert_true(matches(count, all));
    assert_false(matches(count, not_all)); /* negative control */
}

static void filters_keep_what_they_say(void **state)
{
    const struct {
        ek_sampling set;
        int mask[N];
    } cases[] = {
        {{.temperature = 1, .top_k = 3, .top_p = 1, .seed = 1}, {0, 1, 0, 1, 0, 1}},
        {{.temperature = 1, .top_k = 1, .top_p = 1, .seed = 1}, {0, 1, 0, 0, 0, 0}},
        {{.temperature = 1, .top_k = 100, .top_p = 1, .seed = 1}, {1, 1, 1, 1, 1, 1}},
        {{.temperature = 1, .top_p = .65, .seed = 1}, {0, 1, 0, 1, 0, 0}},
        {{.temperature = 1, .top_p = .75, .seed = 1}, {0, 1, 0, 1, 0, 1}},
        {{.temperature = 1, .top_p = 1e-9, .seed = 1}, {0, 1, 0, 0, 0, 0}},
        {{.temperature = 1, .top_p = 1, .min_p = .14, .seed = 1}, {0, 1, 1, 1, 0, 1}},
        {{.temperature = 1, .top_p = 1, .min_p = 1, .seed = 1}, {0, 1, 0, 0, 0, 0}},
        /* top-k first: of .4 .3 renormalised, .5 is reached by the first alone. */
        {{.temperature = 1, .top_k = 2, .top_p = .5, .seed = 1}, {0, 1, 0, 0, 0, 0}},
    };
    float logits[N];
    int count[N];

    (void)state;
    make_logits(logits);
    for (size_t i = 0; i < EK_COUNT(cases); i++) {
        draw(&cases[i].set, logits, count);
        assert_true(matches(count, cases[i].mask));
    }
}

static void temperature_comes_before_the_filters(void **state)
{
    /* At temperature 1/2 probabilities are squared: .16 .09 .04 ... of .2946; .54 .31 .14. */
    const ek_sampling cold = {.temperature = .5, .top_p = .5, .seed = 3};
    const ek_sampling warm = {.temperature = 1.0, .top_p = .5, .seed = 3};
    float logits[N];
    int count[N];

    (void)state;
    make_logits(logits);
    draw(&cold, logits, count);
    assert_int_equal(count[1], DRAWS);
    draw(&warm, logits, count);
    assert_true(count[3] > 0);
}

static void seed_and_step_decide(void **state)
{
    const ek_sampling a = {.temperature = 1, .top_p = 1, .seed = 5};
    const ek_sampling b = {.temperature = 1, .top_p = 1, .seed = 6};
    ek_sampler s, t;
    ek_err err;
    float logits[N];
    int differs = 0, moves = 0;
    int32_t first = -1;

    (void)state;
    make_logits(logits);
    assert_int_equal(ek_sampler_open(&s, &a, N, &err), EK_OK);
    assert_int_equal(ek_sampler_open(&t, &b, N, &err), EK_OK);
    for (int i = 0; i < 100; i++) {
        int32_t x, y, z;

        assert_int_equal(ek_sampler_pick(&s, logits, i, &x, &err), EK_OK);
        assert_int_equal(ek_sampler_pick(&s, logits, i, &y, &err), EK_OK);
        assert_int_equal(ek_sampler_pick(&t, logits, i, &z, &err), EK_OK);
        assert_int_equal(x, y);
        differs += x != z;
        if (i == 0)
            first = x;
        moves += x != first;
    }
    assert_true(differs > 10);
    assert_true(moves > 10);
    ek_sampler_close(&s);
    ek_sampler_close(&t);
}

static void bad_settings_and_logits_are_refused(void **state)
{
    const ek_sampling bad[] = {{.temperature = -1, .top_p = 1},
                               {.temperature = NAN, .top_p = 1},
                               {.temperature = 1, .top_p = 0},
                               {.temperature = 1, .top_p = 1.5},
                               {.temperature = 1, .top_p = 1, .min_p = 2},
                               {.temperature = 1, .top_p = 1, .min_p = -.1},
                               {.temperature = 1, .top_p = 1, .top_k = -1}};
    ek_sampling good = {.temperature = 1, .top_p = 1};
    float logits[N];
    ek_sampler s;
    ek_err err;
    int32_t id;

    (void)state;
    for (size_t i = 0; i < EK_COUNT(bad); i++)
        assert_int_equal(ek_sampler_open(&s, &bad[i], N, &err), EK_EASKED);
    assert_int_equal(ek_sampler_open(&s, &good, N, &err), EK_OK);
    make_logits(logits);
    logits[4] = NAN;
    assert_int_equal(ek_sampler_pick(&s, logits, 0, &id, &err), EK_ENAN);
    assert_non_null(strstr(err.msg, "token 4"));
    for (int i = 0; i < N; i++)
        logits[i] = -INFINITY;
    assert_int_equal(ek_sampler_pick(&s, logits, 0, &id, &err), EK_ENAN);
    ek_sampler_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(greedy_takes_the_highest_and_the_lower_id),
        cmocka_unit_test(plain_sampling_follows_the_softmax),
        cmocka_unit_test(filters_keep_what_they_say),
        cmocka_unit_test(temperature_comes_before_the_filters),
        cmocka_unit_test(seed_and_step_decide),
        cmocka_unit_test(bad_settings_and_logits_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
