/* tests/test_loss.c - losses worked by hand, on a few entries each. */
#include "train/loss.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void near(double found, double want, double bound)
{
    if (!(fabs(found - want) <= bound))
        fail_msg("found %.9g, expected %.9g", found, want);
}

/* S 8, s 1, w 2, k 2; target priorities .3 .9 .1 .7 .5 of tokens 1 .. 5, without decay. */
typedef struct example {
    ek_rank rank;
    float mass[5], scratch[8];
    float r[5], dr[5], dp[5];
    int32_t pos[5], at[3];
    ek_loss_item x;
} example;

static void open_example(example *e)
{
    static const float target[5] = {0.3f, 0.9f, 0.1f, 0.7f, 0.5f};
    static const float says[5] = {0, 0.5f, -0.2f, -0.1f, 0.1f};
    ek_err err;

    memset(e, 0, sizeof *e);
    for (int j = 0; j < 5; j++) {
        e->mass[j] = expf(target[j]);
        e->r[j] = says[j];
        e->pos[j] = j + 1;
    }
    for (int i = 0; i < 3; i++)
        e->at[i] = 5 + i;
    assert_int_equal(ek_rank_open(&e->rank, 8, &err), EK_OK);
    e->x = (ek_loss_item){.n = 5,
                          .pos = e->pos,
                          .mass = e->mass,
                          .eps = 1e-30,
                          .n_seq = 8,
                          .sinks = 1,
                          .recent = 2,
                          .keep = 2,
                          .at = e->at,
                          .n_at = 3,
                          .rank = &e->rank,
                          .scratch = e->scratch,
                          .r = e->r,
                          .p = e->r,
                          .dr = e->dr,
                          .dp = e->dp};
}

static double run(example *e, ek_loss_kind kind, const ek_loss_set *with, ek_loss_sum *sum)
{
    ek_loss_set set = *with;

    set.kind = kind;
    *sum = (ek_loss_sum){0};
    ek_losses[kind].count(&set, &e->x, sum);
    ek_losses[kind].run(&set, &e->x, sum);
    return sum->loss / sum->weight;
}

static void test_pair(void **state)
{
    static const double term[3] = {0.266852, 0.713302, 0.356080};
    ek_loss_set set = ek_loss_defaults;
    ek_loss_sum sum;
    example e;

    (void)state;
    open_example(&e);
    near(run(&e, EK_LOSS_PAIR, &set, &sum), 0.445411, 2e-6);
    near(sum.n_yes, 1, 0);
    for (int i = 0; i < 3; i++) { /* the terms one by one, under the weights of all three */
        ek_loss_sum one = {.weight = 3, .n_yes = 1};

        e.x.at = e.at + i;
        e.x.n_at = 1;
        set.kind = EK_LOSS_PAIR;
        ek_losses[EK_LOSS_PAIR].run(&set, &e.x, &one);
        near(one.loss, term[i], 2e-6);
    }
    near(ek_loss_margin(&set, 0.2), 0.594851, 2e-6);
    set.margin = 1;
    near(ek_loss_margin(&set, 0), 0.1, 1e-12);
    ek_rank_close(&e.rank);
}

static void test_hinge(void **state)
{
    static const double want[3] = {0.21, 0.11, 0};
    ek_loss_sum sum;
    example e;
    double total = 0;

    (void)state;
    open_example(&e);
    for (int i = 0; i < 3; i++)
        total += want[i] / 3;
    /* Differences y (a_new - a_partner): -.2, -.1 and +.2 as in the pair table's signs. */
    const double found = run(&e, EK_LOSS_HINGE, &ek_loss_defaults, &sum);
    near(found, total, 1e-6);
    ek_rank_close(&e.rank);
}

static void test_survival(void **state)
{
    ek_loss_sum sum;
    example e;

    (void)state;
    open_example(&e);
    near(run(&e, EK_LOSS_SURVIVAL, &ek_loss_defaults, &sum), (0.839546 + 0.997576 + 1.061852) / 3,
         2e-6);
    ek_rank_close(&e.rank);
}

/* All five eligible tokens at query 7: 2 and 4 are of the two best. */
static void test_bce(void **state)
{
    ek_loss_set set = ek_loss_defaults;
    ek_loss_sum sum;
    example e;
    double by_hand = 0;
    float d = 0;

    (void)state;
    open_example(&e);
    e.x.at = e.at + 2;
    e.x.n_at = 1;
    near(run(&e, EK_LOSS_BCE, &set, &sum), 0.650831, 2e-6);
    near(sum.weight, 5, 0);
    /* Under a threshold, by its definition, and the slope along it. */
    e.x.threshold = 0.3f;
    e.x.d_threshold = &d;
    for (int j = 0; j < 5; j++) {
        const double z = (double)e.r[j] - (double)0.3f;
        by_hand += log1p(exp(j == 1 || j == 3 ? -z : z)) / 5;
    }
    const double at = run(&e, EK_LOSS_BCE, &set, &sum), slope = (double)d;
    near(at, by_hand, 1e-6);
    e.x.threshold += 1e-2f;
    near((run(&e, EK_LOSS_BCE, &set, &sum) - at) / 1e-2, slope, 2e-3);
    e.x.threshold = 0;
    /* Drawn with replacement: other numbers, other tokens; the same numbers, the same. */
    set.members = 2;
    const double some = run(&e, EK_LOSS_BCE, &set, &sum);
    near(sum.weight, 2, 0);
    near(run(&e, EK_LOSS_BCE, &set, &sum), some, 0);
    int differs = 0;
    for (uint64_t stream = 1; stream < 9; stream++) {
        e.x.stream = stream;
        differs += run(&e, EK_LOSS_BCE, &set, &sum) != some;
    }
    assert_true(differs > 3);
    ek_rank_close(&e.rank);
}

static void test_regress(void **state)
{
    ek_loss_sum sum;
    example e;

    (void)state;
    open_example(&e);
    e.x.n_seq = 0; /* no tail is cut off in five tokens */
    near(run(&e, EK_LOSS_REGRESS, &ek_loss_defaults, &sum), 0.114, 1e-6);
    /* At a cut the priority is fitted, over time the raw score. */
    static const float aged[5] = {-1, -1, -1, -1, -1};
    e.x.p = aged;
    const double at_cut = run(&e, EK_LOSS_REGRESS, &ek_loss_defaults, &sum);
    near(at_cut, (0.8 + 1.4 + 0.6 + 1.2 + 1.0) / 5, 1e-6); /* 1.3 - .5, 1.9 - .5, ... */
    near((double)e.dp[0], -0.2, 1e-6);
    near((double)e.dr[0], 0, 0);
    /* An entry that stands for three counts like three, and is no neighbour of a far one. */
    static const float weight[5] = {0, 1.0986123f, 0, 0, 0};
    e.x.log_weight = weight;
    near(run(&e, EK_LOSS_REGRESS, &ek_loss_defaults, &sum), (5 * at_cut + 2 * 1.4) / 7, 1e-6);
    e.x.log_weight = NULL;
    e.x.p = e.r;
    ek_loss_set smooth = ek_loss_defaults;
    smooth.smooth = 1;
    const double near_by = run(&e, EK_LOSS_REGRESS, &smooth, &sum);
    for (int i = 1; i < 5; i++)
        e.pos[i] += 10 * i;
    near(run(&e, EK_LOSS_REGRESS, &smooth, &sum), 0.114, 1e-6);
    assert_true(near_by > 0.2);
    ek_rank_close(&e.rank);
}

static void test_listwise(void **state)
{
    static const float mass[5] = {1, 2, 1, 0, 0};
    ek_loss_sum sum;
    example e;

    (void)state;
    open_example(&e);
    memcpy(e.mass, mass, sizeof mass);
    e.x.n = 3;
    e.r[0] = e.r[2] = 0;
    e.r[1] = logf(2);
    near(run(&e, EK_LOSS_LISTWISE, &ek_loss_defaults, &sum), 1.0397, 5e-5);
    for (int i = 0; i < 3; i++)
        near((double)e.dp[i], 0, 1e-6); /* the minimum */
    /* An entry that stands for two counts like two entries. */
    e.x.n = 5;
    e.mass[3] = 1;
    e.mass[4] = 1;
    e.r[3] = e.r[4] = 0.3f;
    const double five = run(&e, EK_LOSS_LISTWISE, &ek_loss_defaults, &sum);
    const float weight[4] = {0, 0, 0, logf(2)};
    e.x.n = 4;
    e.x.log_weight = weight;
    near(run(&e, EK_LOSS_LISTWISE, &ek_loss_defaults, &sum), five, 1e-6);
    e.x.log_weight = NULL; /* and without the weight it does not: negative control */
    assert_true(fabs(run(&e, EK_LOSS_LISTWISE, &ek_loss_defaults, &sum) - five) > 1e-3);
    ek_rank_close(&e.rank);
}

/* Masses 1, 2, 1 of a head whose mean is 4: least at their logarithms, and there 1 - sum m log m.
 */
static void test_poisson(void **state)
{
    static const float mass[3] = {1, 2, 1};
    ek_loss_sum sum;
    example e;

    (void)state;
    open_example(&e);
    memcpy(e.mass, mass, sizeof mass);
    e.x.n = 3;
    e.x.log_mass = log(4);
    for (int i = 0; i < 3; i++)
        e.r[i] = logf(mass[i] / 4);
    near(run(&e, EK_LOSS_POISSON, &ek_loss_defaults, &sum), 1 + 1.0397, 5e-5);
    for (int i = 0; i < 3; i++)
        near((double)e.dp[i], 0, 1e-6);
    /* Unlike shares, masses that are all twice as large are another target. */
    for (int i = 0; i < 3; i++)
        e.mass[i] = 2 * mass[i];
    run(&e, EK_LOSS_POISSON, &ek_loss_defaults, &sum);
    near((double)e.dp[1], -0.5, 1e-6);
    ek_rank_close(&e.rank);
}

static void test_balance(void **state)
{
    double yes, no;

    (void)state;
    ek_loss_balance(1.0 / 3, &yes, &no);
    near(yes, 1.5, 1e-12);
    near(no, 0.75, 1e-12);
    for (double rho = 0; rho <= 1; rho += 0.01) {
        ek_loss_balance(rho, &yes, &no);
        near(rho * yes + (1 - rho) * no, 1, 1e-12); /* the mean weight is 1 */
    }
    ek_loss_balance(0.05, &yes, &no); /* 4 and .526316 before normalising */
    near(yes / no, 4 / 0.526316, 1e-4);
}

static void test_sample(void **state)
{
    enum { N = 4096, S = 1000 };
    static int32_t at[N];
    int late = 0;

    (void)state;
    assert_int_equal(ek_loss_sample(at, N, S, 4, 64, 100, 1, 2), N);
    for (int i = 0; i < N; i++) {
        assert_in_range(at[i], 168, S - 64);
        late += at[i] > (168 + S - 64) / 2;
    }
    near((double)late / N, 0.5 * 0.5 + 0.5 * 0.75, 0.03);
    assert_int_equal(ek_loss_sample(at, N, 200, 4, 64, 100, 1, 2), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pair),     cmocka_unit_test(test_hinge),
        cmocka_unit_test(test_survival), cmocka_unit_test(test_bce),
        cmocka_unit_test(test_regress),  cmocka_unit_test(test_listwise),
        cmocka_unit_test(test_poisson),  cmocka_unit_test(test_balance),
        cmocka_unit_test(test_sample)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
