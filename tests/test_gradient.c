/* tests/test_gradient.c - gradients of every learned scorer x age x loss, in double.
 *
 * This program compiles the learned scorers and train/loss.c itself with EK_REAL=double
 * (CMakeLists.txt), so what is checked is the program's own source.  Along random directions u of
 * the whole parameter buffer, (L(w + e u) - L(w - e u)) / 2e must equal grad . u to 1e-6. */
#include "core/rng.h"
#include "scorers/age.h"
#include "scorers/carried.h"
#include "scorers/scorer.h"
#include "train/loss.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { LAYERS = 2, HEADS = 2, DIM = 6, SEQ = 120, SINKS = 2, RECENT = 7, KEEP = 15 };
enum { N = SEQ - RECENT - SINKS, AT = 24 };

typedef struct problem {
    ek_scorer scorer;
    ek_loss_set set;
    ek_view view;
    int32_t first[HEADS], n[HEADS], pos[HEADS * N], at[AT];
    float k[HEADS * N * DIM], v[HEADS * N * DIM], mass[HEADS * N], log_weight[N];
    float scratch[SEQ];
    ek_rank rank;
    double log_gamma; /* of the target's side: a constant */
    int at_cut;       /* not over time */
    size_t size;      /* of the scorer's numbers; behind them the loss's threshold */
    ek_real *params, *grad, *act;
} problem;

static void open_carried(problem *p, const ek_scorer_class *cls, int age, bool rms, int loss,
                         int carried)
{
    ek_err err;

    memset(p, 0, sizeof *p);
    p->scorer =
        (ek_scorer){.cls = cls,
                    .dims = {.n_layers = LAYERS, .n_heads = HEADS, .group = 1, .head_dim = DIM},
                    .set = {.hidden = 5,
                            .age = age,
                            .rms = rms,
                            .carried = carried,
                            .recent = RECENT,
                            .delay = RECENT - 1}};
    p->set = ek_loss_defaults;
    p->set.kind = loss;
    p->set.smooth = 0.02;
    p->set.hinge = 0.5;
    p->set.members = 20; /* fewer than are eligible at most positions, more than at the first */
    for (int i = 0; i < HEADS * N * DIM; i++) {
        p->k[i] = (float)ek_rng_normal(3, 1, (uint64_t)i);
        p->v[i] = (float)ek_rng_normal(3, 2, (uint64_t)i);
    }
    for (int i = 0; i < HEADS * N; i++) {
        p->pos[i] = SINKS + i % N;
        p->mass[i] = (float)exp(2 * ek_rng_normal(3, 3, (uint64_t)i) - 5);
    }
    for (int i = 0; i < N; i++)
        p->log_weight[i] = i % 3 == 0 ? 0.7f : 0;
    for (int h = 0; h < HEADS; h++) {
        p->first[h] = h * N;
        p->n[h] = N;
    }
    p->view = (ek_view){.layer = 1,
                        .n_heads = HEADS,
                        .group = 1,
                        .head_dim = DIM,
                        .dtype = EK_F32,
                        .next_pos = SEQ,
                        .first = p->first,
                        .n = p->n,
                        .pos = p->pos,
                        .k = p->k,
                        .v = p->v};
    assert_int_equal(ek_loss_sample(p->at, AT, SEQ, SINKS, RECENT, KEEP, 5, 6), AT);
    assert_int_equal(ek_rank_open(&p->rank, SEQ, &err), EK_OK);
    p->size = ek_params_size(&p->scorer);
    p->params = calloc(p->size + 1, sizeof(ek_real));
    p->grad = calloc(p->size + 1, sizeof(ek_real));
    p->act = calloc(cls->learner->scratch(&p->scorer, N), sizeof(ek_real));
    p->scorer.params = p->params;
    cls->learner->init(&p->scorer, p->params, 9);
    /* Away from the start, where half of the gradients are 0. */
    for (size_t i = 0; i <= p->size; i++)
        p->params[i] += 0.3 * ek_rng_normal(4, 4, i);
    p->log_gamma = (double)ek_age_log_gamma(&p->scorer, 1, 1);
}

static void open_problem(problem *p, const ek_scorer_class *cls, int age, bool rms, int loss)
{
    open_carried(p, cls, age, rms, loss, EK_CARRIED_NONE);
}

static void close_problem(problem *p)
{
    ek_rank_close(&p->rank);
    free(p->params);
    free(p->grad);
    free(p->act);
}

/* Loss of layer 1, head 1 at the present parameters; with its gradient if grad is not NULL. */
static double loss_of(problem *p, ek_real *grad)
{
    const ek_learner *l = p->scorer.cls->learner;
    static ek_real r[N], pr[N], dr[N], dp[N];
    ek_loss_sum sum = {0};
    ek_loss_item x = {.n = N,
                      .pos = p->pos + N,
                      .mass = p->mass + N,
                      .log_weight = p->log_weight,
                      .eps = 1e-6,
                      .n_seq = p->at_cut ? 0 : SEQ,
                      .sinks = SINKS,
                      .recent = RECENT,
                      .keep = KEEP,
                      .at = p->at,
                      .n_at = AT,
                      .log_gamma = p->log_gamma,
                      .seed = 5,
                      .stream = 6,
                      .threshold = p->params[p->size],
                      .rank = &p->rank,
                      .scratch = p->scratch,
                      .r = r,
                      .p = pr,
                      .dr = dr,
                      .dp = dp};

    l->forward(&p->scorer, &p->view, 1, p->act, r);
    ek_age_add(&p->scorer, &p->view, 1, r, pr);
    ek_losses[p->set.kind].count(&p->set, &x, &sum);
    if (grad != NULL) {
        memset(grad, 0, (p->size + 1) * sizeof *grad);
        x.d_threshold = grad + p->size;
    }
    ek_losses[p->set.kind].run(&p->set, &x, &sum);
    if (grad != NULL) {
        ek_age_back(&p->scorer, &p->view, 1, dp, grad);
        for (int i = 0; i < N; i++)
            dr[i] += dp[i];
        l->backward(&p->scorer, &p->view, 1, p->act, dr, grad);
    }
    return sum.loss / sum.weight;
}

/* Greatest relative error over some directions. */
static double error_of(problem *p, uint64_t seed)
{
    const double e = 1e-6;
    double worst = 0;
    const size_t all = p->size + 1;
    ek_real *start = malloc(all * sizeof *start), *u = malloc(all * sizeof *u);
    ek_param d[EK_MAX_PARAMS];
    const int n = p->scorer.cls->learner->describe(&p->scorer, d);

    memcpy(start, p->params, all * sizeof *start);
    for (int t = 0; t < 4; t++) {
        double dot = 0;

        for (size_t i = 0; i < all; i++)
            u[i] = ek_rng_normal(seed, 8 + (uint64_t)t, i);
        for (int i = 0; i < n; i++) { /* constants are not trained */
            const size_t size = (size_t)LAYERS * HEADS * (size_t)d[i].rows * (size_t)d[i].cols;

            if (!d[i].trained)
                memset(u + ek_params_at(&p->scorer, i, 0, 0), 0, size * sizeof *u);
        }
        for (size_t i = 0; i < all; i++)
            dot += p->grad[i] * u[i];
        for (size_t i = 0; i < all; i++)
            p->params[i] = start[i] + e * u[i];
        const double up = loss_of(p, NULL);
        for (size_t i = 0; i < all; i++)
            p->params[i] = start[i] - e * u[i];
        const double slope = (up - loss_of(p, NULL)) / (2 * e);
        const double wrong = fabs(slope - dot) / (fabs(slope) > 1e-3 ? fabs(slope) : 1e-3);
        worst = wrong > worst ? wrong : worst;
    }
    memcpy(p->params, start, all * sizeof *start);
    free(start);
    free(u);
    return worst;
}

static void test_all(void **state)
{
    problem *p = malloc(sizeof *p);

    (void)state;
    for (int s = 0; ek_learned[s] != NULL; s++)
        for (int age = EK_AGE_NONE; age <= EK_AGE_INPUT; age++)
            for (int loss = 0; loss < EK_N_LOSSES; loss++)
                for (int way = 0; way < (ek_losses[loss].whole ? 2 : 3); way++) {
                    ek_err err;

                    open_problem(p, ek_learned[s], age, age % 2 == 1, loss);
                    if (ek_scorer_check(&p->scorer, &err) != EK_OK) {
                        close_problem(p);
                        continue;
                    }
                    p->set.compare = way % 2;
                    p->at_cut = way == 2;
                    loss_of(p, p->grad);
                    const double wrong = error_of(p, 21);
                    if (!(wrong <= 1e-6))
                        fail_msg("%s, age %s, loss %s: relative error %g", ek_learned[s]->name,
                                 ek_age_names[age], ek_losses[loss].name, wrong);
                    close_problem(p);
                }
    free(p);
}

/* Negative control: each tensor's gradient, put off by a tenth of a per cent, is found out. */
static void test_control(void **state)
{
    problem *p = malloc(sizeof *p);

    (void)state;
    for (int s = 0; ek_learned[s] != NULL; s++) {
        ek_param d[EK_MAX_PARAMS];

        open_problem(p, ek_learned[s], EK_AGE_EXP, false, EK_LOSS_LISTWISE);
        const int n = p->scorer.cls->learner->describe(&p->scorer, d);
        for (int i = 0; i < n; i++) {
            const size_t at = ek_params_at(&p->scorer, i, 1, 1);
            const size_t size = (size_t)d[i].rows * (size_t)d[i].cols;

            loss_of(p, p->grad);
            for (size_t j = at; j < at + size; j++)
                p->grad[j] *= 1.001;
            /* Added to all scores alike, the last bias changes no listwise loss. */
            if (d[i].trained && strcmp(d[i].name, "out.bias") != 0 && error_of(p, 22) <= 1e-6)
                fail_msg("%s: %s: a wrong gradient was not noticed", ek_learned[s]->name,
                         d[i].name);
        }
        close_problem(p);
    }
    open_problem(p, &ek_scorer_mlp, EK_AGE_EXP, false, EK_LOSS_BCE);
    loss_of(p, p->grad);
    assert_true(fabs(p->grad[p->size]) > 1e-3); /* the threshold is learned */
    p->grad[p->size] *= 1.001;
    assert_true(error_of(p, 22) > 1e-6);
    close_problem(p);
    free(p);
}

/* An untrained scorer with an age ranks by recency. */
static void test_untrained(void **state)
{
    problem *p = malloc(sizeof *p);

    (void)state;
    for (int s = 0; ek_learned[s] != NULL; s++)
        for (int age = EK_AGE_EXP; age <= EK_AGE_INPUT; age++) {
            const ek_learner *l = ek_learned[s]->learner;
            static ek_real r[N], pr[N];
            ek_err err;

            open_problem(p, ek_learned[s], age, false, EK_LOSS_LISTWISE);
            if (ek_scorer_check(&p->scorer, &err) == EK_OK) {
                l->init(&p->scorer, p->params, 1);
                l->forward(&p->scorer, &p->view, 0, p->act, r);
                ek_age_add(&p->scorer, &p->view, 0, r, pr);
                for (int i = 1; i < N; i++)
                    assert_true(pr[i] > pr[i - 1]);
                if (age == EK_AGE_EXP)
                    assert_true(fabs(exp(ek_age_log_gamma(&p->scorer, 0, 0)) - 0.999) < 1e-9);
            }
            close_problem(p);
        }
    free(p);
}

/* What is read of carried attention is a constant: the rest is right with it among the inputs. */
static void test_carried(void **state)
{
    enum { FLOATS = 5 }; /* of EK_CARRIED_FULL and a group of one */
    static float carry[HEADS * N * FLOATS];
    problem *p = malloc(sizeof *p);

    (void)state;
    assert_int_equal(ek_carried_floats(EK_CARRIED_FULL, 1), FLOATS);
    for (int i = 0; i < HEADS * N * FLOATS; i++)
        carry[i] = (float)ek_rng_unit(5, 5, (uint64_t)i);
    for (int kind = EK_CARRIED_EMA; kind <= EK_CARRIED_FULL; kind++)
        for (int s = 0; ek_learned[s] != NULL; s++) {
            ek_err err;

            open_carried(p, ek_learned[s], EK_AGE_INPUT, false, EK_LOSS_LISTWISE, kind);
            p->view.carry = carry;
            p->view.n_carry = FLOATS;
            if (ek_scorer_check(&p->scorer, &err) == EK_OK) {
                loss_of(p, p->grad);
                assert_true(error_of(p, 23) <= 1e-6);
            }
            close_problem(p);
        }
    free(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_all), cmocka_unit_test(test_control),
                                       cmocka_unit_test(test_untrained),
                                       cmocka_unit_test(test_carried)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
