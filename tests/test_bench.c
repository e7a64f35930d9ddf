/* tests/test_bench.c - the bench on a tiny model: every figure stands; counts, not seconds. */
#include "tests/check_model.h"

#include "infer/bench.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

static int told;

static void count(void *ctx, const ek_bench_figure *f)
{
    (void)ctx;
    assert_non_null(f->name);
    told++;
}

static const ek_bench_figure *find(const ek_bench *b, const char *name)
{
    for (int i = 0; i < b->n; i++)
        if (strcmp(b->figure[i].name, name) == 0)
            return &b->figure[i];
    fail_msg("no figure %s", name);
    return NULL;
}

static void every_figure_stands(void **state)
{
    const ek_tiny tiny = {.n_ctx = 512};
    ek_check_model m;
    ek_bench b;
    ek_err err;

    (void)state;
    ek_check_model_open(&m, &tiny, EK_BF16, 0);
    const ek_bench_set set = {.model = m.path, .quick = 1};
    int64_t bytes;

    if (ek_bench_run(&b, &set, m.dev, count, NULL, &err) != EK_OK)
        fail_msg("%s", err.msg);
    assert_int_equal(b.n, 11);
    assert_int_equal(told, 11);
    for (int i = 0; i < b.n; i++) {
        const ek_bench_figure *f = &b.figure[i];

        assert_true(f->samples >= 1);
        assert_true(isfinite(f->value) && f->value > 0.0);
        assert_true(f->low <= f->value && f->value <= f->high);
        assert_true(f->stream[0] > 0.0 && f->product[1] > 0.0);
        assert_true(strlen(f->detail) > 0);
    }
    assert_true(b.stream > 0.0 && b.product > 0.0);
    /* Nothing is left behind but the device's own workspace and tables. */
    bytes = m.dev->bytes;
    const ek_bench_set again = {.model = m.path, .quick = 1, .only = "lockstep"};

    assert_int_equal(ek_bench_run(&b, &again, m.dev, NULL, NULL, &err), EK_OK);
    assert_int_equal(m.dev->bytes, bytes);
    ek_check_model_close(&m);
}

/* No T x T buffer: the extra memory of the target pass stays the same when T doubles. */
static void target_memory_does_not_grow_with_the_square(void **state)
{
    double extra[2];

    (void)state;
    for (int i = 0; i < 2; i++) {
        const ek_tiny tiny = {.n_ctx = 2048 << i};
        ek_check_model m;
        ek_bench b;
        ek_err err;

        ek_check_model_open(&m, &tiny, EK_BF16, 0);
        const ek_bench_set set = {.model = m.path, .quick = 1, .only = "target memory"};

        assert_int_equal(ek_bench_run(&b, &set, m.dev, NULL, NULL, &err), EK_OK);
        assert_int_equal(b.n, 1);
        /* In units of (query heads x T x 4), one of which are the sums. */
        extra[i] = (find(&b, "target memory")->value - 1.0) * (2048 << i);
        ek_check_model_close(&m);
    }
    assert_true(extra[1] < 1.01 * extra[0]);
    assert_true(extra[0] > 0.0);
}

static void a_missed_goal_is_seen(void **state)
{
    const ek_bench_figure least = {.value = .6, .samples = 1, .goal = .85, .at_least = 1};
    const ek_bench_figure most = {.value = 2.1, .samples = 1, .goal = 1.0};
    const ek_bench_figure none = {.value = 2.1, .samples = 1};

    (void)state;
    assert_true(ek_bench_misses(&least, 1.0));
    assert_false(ek_bench_misses(&least, 2.0));
    assert_true(ek_bench_misses(&most, 1.0));
    assert_true(ek_bench_misses(&most, 2.0));
    assert_false(ek_bench_misses(&none, 1.0));
}

static void an_unknown_figure_is_refused(void **state)
{
    ek_check_model m;
    ek_bench b;
    ek_err err;

    (void)state;
    ek_check_model_open(&m, NULL, EK_BF16, 0);
    const ek_bench_set set = {.model = m.path, .quick = 1, .only = "speed of light"};

    assert_int_equal(ek_bench_run(&b, &set, m.dev, NULL, NULL, &err), EK_EASKED);
    assert_non_null(strstr(err.msg, "speed of light"));
    ek_check_model_close(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_figure_stands),
        cmocka_unit_test(target_memory_does_not_grow_with_the_square),
        cmocka_unit_test(a_missed_goal_is_seen),
        cmocka_unit_test(an_unknown_figure_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
