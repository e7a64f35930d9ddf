/* tests/test_online.c - learned scorers in a running cache: what prefill and decode steps carry is
 * what training sees, and the sets they keep are those of the training mask. */
#include "core/rng.h"
#include "scorers/age.h"
#include "scorers/carried.h"
#include "scorers/inputs.h"
#include "tests/check_cache.h"
#include "train/rank.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { LAYERS = 2, HEADS = 3, GROUP = 2, DIM = 8, SEQ = 180, PROMPT = 70 };
enum { SINKS = 3, RECENT = 16, KEEP = 25, BUDGET = SINKS + RECENT + KEEP };

static void open_toy(ek_toy *t)
{
    ek_toy_open(t, LAYERS, HEADS, GROUP, DIM, EK_BF16);
}

static void open_cell(ek_toy_cell *cell, const ek_toy *t, const ek_scorer_class *cls, int age,
                      int delay, int carried)
{
    static char name[] = "kvpop";
    ek_method_set set = ek_method_set_defaults;

    set.name = name;
    set.sinks = SINKS;
    set.recent = RECENT;
    ek_toy_cell_learned(cell, t, &set, cls,
                        (ek_scorer_set){.hidden = 5,
                                        .age = age,
                                        .sinks = SINKS,
                                        .recent = RECENT,
                                        .delay = delay,
                                        .carried = carried});
}

/* A prompt in chunks of sizes that `seed` chooses. */
static void read_prompt(const ek_toy *t, ek_cache *c, int n, uint64_t seed)
{
    for (int at = 0, x = 0; at < n; x++) {
        int m = 1 + (int)ek_rng_below(50, seed, 1, (uint64_t)x);

        if (at + m > n)
            m = n - at;
        ek_toy_feed(t, c, m, n, 0);
        at += m;
    }
}

/* All of the sequence in one cache, and r of training for each head. */
static void train_scores(const ek_toy *t, const ek_toy_cell *cell, float r[LAYERS][HEADS][SEQ])
{
    const ek_learner *l = cell->scorer.cls->learner;
    ek_real *act = aligned_alloc(64, (l->scratch(&cell->scorer, SEQ) * sizeof *act / 64 + 1) * 64);
    ek_cache whole;

    assert_non_null(act);
    ek_toy_cache(&whole, t, SEQ, 0, NULL);
    ek_toy_feed(t, &whole, SEQ, SEQ, 0);
    for (int x = 0; x < LAYERS; x++) {
        ek_view view;

        ek_cache_view(&whole, x, -1, &view);
        for (int h = 0; h < HEADS; h++)
            l->forward(&cell->scorer, &view, h, act, r[x][h]);
    }
    ek_cache_close(&whole);
    free(act);
}

/* Largest difference between training's scores and those carried, over what was read by then. */
static double worst_score(const ek_toy *t, const ek_toy_cell *cell, int delay, int skip)
{
    static float r[LAYERS][HEADS][SEQ];
    double worst = 0;
    ek_cache c;

    train_scores(t, cell, r);
    ek_toy_cache(&c, t, SEQ, 1, &cell->policy.method.measure);
    read_prompt(t, &c, PROMPT, (uint64_t)delay);
    if (skip) /* a memory that starts anew has another past */
        ek_cache_clear(&c, 0);
    for (int i = PROMPT; i < SEQ; i++)
        ek_toy_feed(t, &c, 1, PROMPT, i - PROMPT + 1);
    for (int l = 0; l < LAYERS; l++) {
        ek_view v;

        ek_cache_view(&c, l, 0, &v);
        for (int h = 0; h < HEADS; h++)
            for (int j = 0; j < SEQ; j++) {
                const double found = (double)v.carry[v.first[h] + j];

                if (j >= SEQ - delay)
                    assert_true(v.carry[v.first[h] + j] == 0.0f); /* not read yet */
                else
                    worst = fmax(worst,
                                 fabs(found - (double)r[l][h][j]) / (1 + fabs((double)r[l][h][j])));
            }
    }
    ek_cache_close(&c);
    return worst;
}

static int delay_of(const ek_toy_cell *cell, int delay)
{
    return cell->scorer.cls->learner->advance != NULL ? delay : 0;
}

/* Prefill chunks, then steps, against one forward over the whole sequence. */
static void carried_scores_are_those_of_training(void **state)
{
    static const int delays[] = {0, RECENT / 4, RECENT};
    ek_toy t;

    (void)state;
    open_toy(&t);
    for (int c = 0; ek_learned[c] != NULL; c++)
        for (size_t i = 0; i < EK_COUNT(delays); i++) {
            ek_toy_cell cell;

            open_cell(&cell, &t, ek_learned[c], EK_AGE_EXP, delays[i], EK_CARRIED_NONE);
            const int delay = delay_of(&cell, delays[i]);
            const double worst = worst_score(&t, &cell, delay, 0);
            if (!(worst <= 1e-5))
                fail_msg("%s, delay %d: a score is off by %g", ek_learned[c]->name, delays[i],
                         worst);
            assert_true(i > 0 || worst_score(&t, &cell, delay, 1) > 1e-3); /* negative control */
            ek_toy_cell_close(&cell);
        }
    ek_toy_close(&t);
}

/* Heads and steps at which the running cache holds something else than the mask, whose eligible
 * entries are `late` tokens older. */
static int differences(const ek_toy *t, const ek_toy_cell *cell, int late)
{
    static float r[LAYERS][HEADS][SEQ];
    static char held[SEQ][LAYERS][HEADS][SEQ];
    ek_policy p = cell->policy;
    ek_policy_scratch scratch = {0};
    ek_cache c;
    ek_plan plan;
    ek_rank rank;
    ek_err err;
    float a[SEQ];
    int wrong = 0;

    p.decode = EK_DECODE_HOLD;
    memset(held, 0, sizeof held);
    train_scores(t, cell, r);
    ek_toy_cache(&c, t, SEQ, 1, &p.method.measure);
    ek_ok(ek_plan_open(&plan, &c.dims, LAYERS * HEADS * SEQ, &err), &err);
    read_prompt(t, &c, PROMPT, 9);
    for (int i = PROMPT - 1; i < SEQ; i++) {
        const ek_moment moment = i < PROMPT ? EK_AT_PREFILL_END : EK_AT_STEP;

        if (i >= PROMPT)
            ek_toy_feed(t, &c, 1, PROMPT, i - PROMPT + 1);
        if (ek_policy_due(&p, moment, i - PROMPT + 1, i < PROMPT, &c, BUDGET)) {
            ek_ok(ek_policy_plan(&p, &c, 0, BUDGET, &scratch, &plan, &err), &err);
            ek_ok(ek_cache_apply(&c, &c, 0, &plan, &err), &err);
        }
        for (int l = 0; l < LAYERS; l++) {
            ek_view v;

            ek_cache_view(&c, l, 0, &v);
            for (int h = 0; h < HEADS; h++)
                for (int e = 0; e < v.n[h]; e++)
                    held[i][l][h][v.pos[v.first[h] + e]] = 1;
        }
    }
    ek_ok(ek_rank_open(&rank, SEQ, &err), &err);
    for (int l = 0; l < LAYERS; l++)
        for (int h = 0; h < HEADS; h++) {
            for (int j = 0; j < SEQ; j++)
                a[j] = r[l][h][j] - (float)j * ek_age_log_gamma(&cell->scorer, l, h);
            ek_rank_run(&rank, a, SEQ, SINKS, RECENT + late, KEEP - late);
            for (int i = PROMPT - 1; i < SEQ; i++)
                for (int j = 0; j < SEQ; j++)
                    if (held[i][l][h][j] != ek_rank_visible(&rank, i, j)) {
                        wrong++;
                        break;
                    }
        }
    ek_rank_close(&rank);
    ek_plan_close(&plan);
    ek_policy_scratch_close(&scratch);
    ek_cache_close(&c);
    return wrong;
}

static void kept_sets_are_those_of_the_training_mask(void **state)
{
    static const int delays[] = {0, RECENT / 4, RECENT};
    ek_toy t;

    (void)state;
    open_toy(&t);
    for (int c = 0; ek_learned[c] != NULL; c++)
        for (size_t i = 0; i < EK_COUNT(delays); i++) {
            ek_toy_cell cell;

            open_cell(&cell, &t, ek_learned[c], EK_AGE_EXP, delays[i], EK_CARRIED_NONE);
            const int wrong = differences(&t, &cell, 0);
            if (wrong != 0)
                fail_msg("%s, delay %d: %d sets differ from the mask", ek_learned[c]->name,
                         delays[i], wrong);
            assert_true(i > 0 || differences(&t, &cell, 1) > SEQ); /* negative control */
            ek_toy_cell_close(&cell);
        }
    ek_toy_close(&t);
}

/* ---- carried attention ---- */

/* Weights that rank by the logarithm of the EMA column alone. */
static void pick_ema(ek_toy_cell *cell)
{
    const ek_scorer *s = &cell->scorer;
    const int mlp = s->cls == &ek_scorer_mlp, in = ek_inputs_n(s);
    ek_param p[EK_MAX_PARAMS];
    const int n = s->cls->learner->describe(s, p);

    memset(cell->params, 0, ek_params_size(s) * sizeof *cell->params);
    for (int i = 0; i < n; i++)
        for (int l = 0; l < LAYERS; l++)
            for (int h = 0; h < HEADS; h++) {
                ek_real *x = cell->params + ek_params_at(s, i, l, h);

                if (strcmp(p[i].name, "input.scale") == 0)
                    for (int c = 0; c < in; c++)
                        x[c] = 1;
                else if (strcmp(p[i].name, "hidden.weight") == 0)
                    x[in - 1] = 1;
                else if (strcmp(p[i].name, "hidden.bias") == 0)
                    x[0] = 20; /* silu rises there */
                else if (strcmp(p[i].name, "out.weight") == 0)
                    x[mlp ? 0 : in - 1] = 1;
            }
}

/* Steps at which two policies hold different sets over the same tokens. */
static int unlike(const ek_toy *t, const ek_policy *a, const ek_policy *b)
{
    const ek_policy *p[2] = {a, b};
    ek_policy_scratch scratch = {0};
    ek_plan plan[2];
    ek_cache c[2];
    ek_err err;
    int wrong = 0;

    for (int x = 0; x < 2; x++) {
        ek_toy_cache(&c[x], t, SEQ, x, &p[x]->method.measure);
        ek_ok(ek_plan_open(&plan[x], &c[x].dims, LAYERS * HEADS * SEQ, &err), &err);
        read_prompt(t, &c[x], PROMPT, 3 + (uint64_t)x);
    }
    for (int i = PROMPT - 1; i < SEQ; i++) {
        const ek_moment moment = i < PROMPT ? EK_AT_PREFILL_END : EK_AT_STEP;
        int same = 1, due = 0;

        for (int x = 0; x < 2; x++) {
            const int32_t asked = i < PROMPT ? BUDGET : ek_policy_target(p[x], BUDGET);

            if (i >= PROMPT)
                ek_toy_feed(t, &c[x], 1, PROMPT, i - PROMPT + 1);
            if (!ek_policy_due(p[x], moment, i - PROMPT + 1, i < PROMPT, &c[x], BUDGET))
                continue;
            ek_ok(ek_policy_plan(p[x], &c[x], 0, asked, &scratch, &plan[x], &err), &err);
            ek_ok(ek_cache_apply(&c[x], &c[x], 0, &plan[x], &err), &err);
            due++;
        }
        assert_true(due != 1);
        assert_true(c[0].n[0] <= BUDGET);
        for (int l = 0; l < LAYERS * HEADS; l++)
            same = same && c[0].n[l] == c[1].n[l] &&
                   memcmp(c[0].pos + c[0].layer_at[l / HEADS] + c[0].first[l],
                          c[1].pos + c[1].layer_at[l / HEADS] + c[1].first[l],
                          (size_t)c[0].n[l] * sizeof *c[0].pos) == 0;
        wrong += !same;
    }
    for (int x = 0; x < 2; x++) {
        ek_plan_close(&plan[x]);
        ek_cache_close(&c[x]);
    }
    ek_policy_scratch_close(&scratch);
    return wrong;
}

/* Per head: at every step and with a refresh at every eighth. */
static void the_ema_column_alone_is_the_ema_method(void **state)
{
    static char name[] = "h2o";
    ek_toy t;

    (void)state;
    open_toy(&t);
    for (int every = 1; every <= 8; every += 7)
        for (int c = 0; c < 2; c++) {
            ek_method_set set = ek_method_set_defaults;
            ek_policy ema = {.decode = EK_DECODE_HOLD};
            ek_toy_cell cell;
            ek_err err;

            open_cell(&cell, &t, c ? &ek_scorer_mlp : &ek_scorer_linear, EK_AGE_NONE, 0,
                      EK_CARRIED_EMA);
            pick_ema(&cell);
            cell.policy.method.when.every = every;
            cell.policy.decode = EK_DECODE_HOLD;
            set.name = name;
            set.sinks = SINKS;
            set.recent = RECENT;
            set.refresh = every;
            set.carry = EK_CARRY_EMA + 1;
            set.rate = .99;
            ek_ok(ek_method_open(&ema.method, &set, &err), &err);
            assert_int_equal(unlike(&t, &cell.policy, &ema), 0);
            ema.method.measure.carry.rate = .9; /* negative control */
            assert_true(unlike(&t, &cell.policy, &ema) > 5);
            ek_toy_cell_close(&cell);
        }
    ek_toy_close(&t);
}

/* ---- lanes ---- */

/* Several measures read one prompt; each lane is its own, forks take the state along, cuts in place
 * leave it, and every byte of it counts. */
static void lanes_keep_their_states(void **state)
{
    static const int delays[] = {0, RECENT};
    ek_toy_cell cell[2];
    const ek_measure *m[2];
    ek_cache many, one, fork;
    ek_policy_scratch scratch = {0};
    ek_plan plan;
    ek_toy t;
    ek_err err;

    (void)state;
    open_toy(&t);
    for (int i = 0; i < 2; i++) {
        open_cell(&cell[i], &t, &ek_scorer_recurrent, EK_AGE_EXP, delays[i], EK_CARRIED_NONE);
        m[i] = &cell[i].policy.method.measure;
    }
    cell[1].scorer.params = cell[0].params; /* they differ in their delay alone */
    assert_false(ek_measure_same(m[0], m[1]));
    assert_true(ek_measure_same(m[0], m[0]));
    const ek_cache_need need = {
        .dims = t.dims, .dtype = t.dtype, .cap = SEQ, .n_lanes = 2, .measures = m};
    ek_ok(ek_cache_open(&many, &need, t.dev, &err), &err);
    ek_toy_cache(&one, &t, SEQ, 1, m[1]);
    ek_toy_cache(&fork, &t, SEQ, 0, m[1]);
    read_prompt(&t, &many, PROMPT, 5);
    read_prompt(&t, &one, PROMPT, 5);
    const size_t state_floats = LAYERS * HEADS * many.lane[0].n_state;
    assert_int_equal(ek_cache_count(&many).state,
                     2 * (4 * ek_cache_entries(&many) + 4 * (int64_t)state_floats));
    ek_toy_plan(&plan, &many);
    ek_ok(ek_policy_plan(&cell[1].policy, &many, 1, BUDGET, &scratch, &plan, &err), &err);
    ek_ok(ek_cache_apply(&fork, &many, 1, &plan, &err), &err);
    assert_memory_equal(fork.lane[0].state, many.lane[1].state, state_floats * sizeof(float));
    ek_ok(ek_cache_apply(&one, &one, 0, &plan, &err), &err);
    assert_true(ek_toy_same(&one, &fork)); /* a lane in company, forked; a lane alone, in place */
    for (int i = PROMPT; i < SEQ; i++) {
        ek_toy_feed(&t, &one, 1, PROMPT, i - PROMPT + 1);
        ek_toy_feed(&t, &fork, 1, PROMPT, i - PROMPT + 1);
    }
    assert_true(ek_toy_same(&one, &fork));
    ek_cache_clear(&fork, 0);
    assert_false(ek_toy_same(&one, &fork)); /* negative control */
    for (size_t x = 0; x < state_floats; x++)
        assert_true(fork.lane[0].state[x] == 0.0f);
    ek_plan_close(&plan);
    ek_policy_scratch_close(&scratch);
    ek_cache_close(&many);
    ek_cache_close(&one);
    ek_cache_close(&fork);
    for (int i = 0; i < 2; i++)
        ek_toy_cell_close(&cell[i]);
    ek_toy_close(&t);
}

/* What is remembered is paid for where plans come later; too little is refused with what would do.
 */
static void memories_are_paid_from_the_budget(void **state)
{
    ek_toy_cell cell;
    ek_policy p;
    ek_toy t;
    ek_err err;

    (void)state;
    open_toy(&t);
    open_cell(&cell, &t, &ek_scorer_recurrent, EK_AGE_EXP, RECENT, EK_CARRIED_NONE);
    p = cell.policy;
    const int64_t heads = LAYERS * HEADS, plain = 2 * DIM * 2 + 4;
    const int64_t state_bytes = 4 * (int64_t)ek_measure_n_state(&p.method.measure);
    const int64_t least = SINKS + RECENT + 1;
    const int64_t enough = (least * (plain + 4) + state_bytes + plain - 1) / plain;
    p.decode = EK_DECODE_HOLD;
    ek_cost cost = ek_policy_cost(&p, &t.dims, EK_BF16);
    assert_int_equal(cost.plain, heads * plain);
    assert_int_equal(cost.extra, heads * 4);
    assert_int_equal(cost.state, heads * state_bytes);
    p.budget = (ek_budget){.entries = enough};
    assert_int_equal(ek_budget_entries(&p.budget, 10000, &cost), least);
    ek_ok(ek_policy_affords(&p, &t.dims, EK_BF16, &err), &err);
    p.budget.entries--;
    assert_int_equal(ek_policy_affords(&p, &t.dims, EK_BF16, &err), EK_EASKED);
    char number[32];
    snprintf(number, sizeof number, "at least %d:", (int)enough);
    assert_non_null(strstr(err.msg, number));
    p.budget = (ek_budget){.bytes = heads * (least * (plain + 4) + state_bytes)};
    ek_ok(ek_policy_affords(&p, &t.dims, EK_BF16, &err), &err);
    p.budget.bytes--;
    assert_int_equal(ek_policy_affords(&p, &t.dims, EK_BF16, &err), EK_EASKED);
    p.decode = EK_DECODE_GROW; /* the lane goes after the cut */
    p.budget = (ek_budget){.entries = 1};
    cost = ek_policy_cost(&p, &t.dims, EK_BF16);
    assert_int_equal(cost.extra + cost.state, 0);
    ek_ok(ek_policy_affords(&p, &t.dims, EK_BF16, &err), &err);
    p.decode = EK_DECODE_HOLD; /* a held budget with rare refreshes makes room for them */
    assert_int_equal(ek_policy_target(&p, 100), 100);
    p.method.when.every = 8;
    assert_int_equal(ek_policy_target(&p, 100), 93);
    assert_int_equal(ek_policy_target(&p, SINKS + RECENT + 3), least);
    assert_int_equal(ek_policy_target(&p, 5), 5);
    p.decode = EK_DECODE_ROW;
    assert_int_equal(ek_policy_target(&p, 100), 100);
    ek_toy_cell_close(&cell);
    ek_toy_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(carried_scores_are_those_of_training),
                                       cmocka_unit_test(kept_sets_are_those_of_the_training_mask),
                                       cmocka_unit_test(the_ema_column_alone_is_the_ema_method),
                                       cmocka_unit_test(lanes_keep_their_states),
                                       cmocka_unit_test(memories_are_paid_from_the_budget)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
