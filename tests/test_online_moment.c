/* tests/test_online_moment.c - learned scorers whose ranks change with time, set as the
 * configurations in configs/ set them: at a moment, what a running cache holds against what
 * training reads off a whole sequence at a cut there. */
#include "core/rng.h"
#include "scorers/age.h"
#include "scorers/carried.h"
#include "scorers/inputs.h"
#include "tests/check_cache.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { LAYERS = 2, HEADS = 3, GROUP = 2, DIM = 8, SEQ = 620, PROMPT = 150, STEPS = 40 };
enum { SINKS = 4, BUDGET = 90 };

typedef float priorities[LAYERS][HEADS][SEQ];

static const struct shipped {
    char method[16];
    const ek_scorer_class *cls;
    ek_scorer_set set;
} shipped[] = {
    /* kvpop.yaml, kvpop-mlp.yaml */
    {"kvpop",
     &ek_scorer_recurrent,
     {.age = EK_AGE_POWER, .sinks = SINKS, .recent = 64, .delay = 64, .norm = true, .skip = true}},
    {"kvpop", &ek_scorer_mlp, {.age = EK_AGE_POWER, .sinks = SINKS, .recent = 64}},
    {"kvpop", &ek_scorer_linear, {.age = EK_AGE_INPUT, .sinks = SINKS, .recent = 64}},
    /* foresight.yaml, and with the lighter columns */
    {"foresight",
     &ek_scorer_mlp,
     {.age = EK_AGE_INPUT, .sinks = SINKS, .recent = 16, .carried = EK_CARRIED_FULL}},
    {"foresight",
     &ek_scorer_mlp,
     {.age = EK_AGE_INPUT, .sinks = SINKS, .recent = 16, .carried = EK_CARRIED_EMA}},
};

static void open_cell(ek_toy_cell *cell, const ek_toy *t, const struct shipped *as)
{
    static char name[16];
    ek_method_set set = ek_method_set_defaults;
    ek_err err;

    memcpy(name, as->method, sizeof name);
    set.name = name;
    set.sinks = as->set.sinks;
    set.recent = as->set.recent;
    ek_toy_cell_learned(cell, t, &set, as->cls, as->set);
    ek_ok(ek_scorer_check(&cell->scorer, &err), &err);
}

/* ---- the side of training ---- */

/* Negative controls. */
typedef struct fault {
    int late;    /* added to every age */
    int swapped; /* carried columns change places: sum and slow of an entry; an EMA and the next
                  * entry's */
} fault;
static const fault none;

static void swap_columns(int kind, float *carry, size_t entries)
{
    const size_t floats = (size_t)ek_carried_floats(kind, GROUP);

    for (size_t e = 0; e + 1 < entries; e++)
        for (size_t g = 0; g < (kind == EK_CARRIED_FULL ? GROUP : 1); g++) {
            float *a = carry + e * floats + g;
            float *b = kind == EK_CARRIED_FULL ? a + GROUP : a + 1, x = *a;

            *a = *b;
            *b = x;
        }
}

/* Carried columns of one layer as of a cut at `at`: all queries before it in one fold, in a view
 * that holds the whole sequence.  (entries, floats), to be freed. */
static float *carried_at(const ek_toy *t, const ek_view *whole, int kind, int at)
{
    const size_t heads = HEADS * GROUP, qs = SEQ * heads * DIM;
    const size_t entries = (size_t)whole->first[HEADS - 1] + SEQ;
    const size_t floats = (size_t)ek_carried_floats(kind, GROUP);
    float *q = malloc(qs * sizeof *q), *out = malloc(qs * sizeof *out);
    float *lse = malloc(SEQ * heads * sizeof *lse),
          *carry = calloc(entries * floats, sizeof *carry);
    float *scratch = malloc(4 * entries * GROUP * sizeof *scratch);
    const ek_attn_row row = {.view = *whole, .n_new = SEQ, .q = q, .out = out, .lse = lse};

    assert_true(q && out && lse && carry && scratch);
    ek_toy_queries(t, whole->layer, 0, SEQ, q);
    t->dev->ops.attn(t->dev, &row, 1, t->dims.scale, heads * DIM, heads * DIM);
    const ek_colsum chunk = {
        .view = row.view, .n_q = at, .q = q, .ldq = heads * DIM, .lse = lse, .horizon = -1};
    ek_carried_fold(kind, t->dev, &chunk, t->dims.scale, carry, scratch);
    free(q);
    free(out);
    free(lse);
    free(scratch);
    return carry;
}

/* What training ranks at a cut at `at`, for every token before it; whole: the sequence. */
static void train_side(const ek_toy *t, const ek_cache *whole, const ek_toy_cell *cell, int at,
                       fault f, priorities p)
{
    const ek_scorer *s = &cell->scorer;
    const ek_learner *l = s->cls->learner;
    const int kind = s->set.carried;
    ek_real *act = aligned_alloc(64, (l->scratch(s, SEQ) * sizeof *act / 64 + 1) * 64);

    assert_non_null(act);
    for (int x = 0; x < LAYERS; x++) {
        int32_t n[HEADS];
        float *carry = NULL;
        ek_view v;

        ek_cache_view(whole, x, -1, &v);
        if (kind != EK_CARRIED_NONE)
            v.carry = carry = carried_at(t, &v, kind, at);
        if (f.swapped && carry != NULL)
            swap_columns(kind, carry, (size_t)v.first[HEADS - 1] + SEQ);
        v.n_carry = ek_carried_floats(kind, GROUP);
        v.next_pos = at + f.late;
        v.n = n;
        for (int h = 0; h < HEADS; h++) {
            n[h] = l->advance != NULL ? SEQ : at; /* a memory reads on behind the cut */
            l->forward(s, &v, h, act, p[x][h]);
            n[h] = at;
            ek_age_add(s, &v, h, p[x][h], p[x][h]);
        }
        free(carry);
    }
    free(act);
}

static void open_whole(const ek_toy *t, ek_cache *whole)
{
    ek_toy_cache(whole, t, SEQ, 0, NULL);
    ek_toy_feed(t, whole, SEQ, SEQ, 0);
}

/* ---- the running cache ---- */

/* A prompt in chunks, then steps, until `at` tokens are there. */
static void read_until(const ek_toy *t, ek_cache *c, int at, uint64_t seed)
{
    for (int x = 0; c->next_pos < PROMPT; x++) {
        const int left = PROMPT - c->next_pos, m = 1 + (int)ek_rng_below(50, seed, 1, (uint64_t)x);

        ek_toy_feed(t, c, m < left ? m : left, PROMPT, 0);
    }
    while (c->next_pos < at)
        ek_toy_feed(t, c, 1, PROMPT, c->next_pos - PROMPT + 1);
}

static int lane_of(const ek_cache *c)
{
    return c->n_lanes > 0 ? 0 : -1;
}

static const int moments[] = {PROMPT, 333, SEQ};

/* ---- scores ---- */

/* Largest difference of a priority, over the tokens whose score is known by now. */
static double worst(const ek_toy *t, const ek_cache *whole, const ek_toy_cell *cell,
                    const ek_cache *c, fault f)
{
    static priorities p;
    static float out[HEADS * (SEQ + 8)];
    const int known = c->next_pos - (int)cell->scorer.set.delay;
    double most = 0;
    ek_err err;

    train_side(t, whole, cell, c->next_pos, f, p);
    for (int l = 0; l < LAYERS; l++) {
        ek_ok(ek_policy_scores(&cell->policy, c, lane_of(c), l, out, &err), &err);
        for (int h = 0; h < HEADS; h++)
            for (int j = 0; j < known; j++) {
                const double a = (double)out[c->first[l * HEADS + h] + j], b = (double)p[l][h][j];

                most = fmax(most, fabs(a - b) / (1 + fabs(b)));
            }
    }
    return most;
}

/* Measured: 0 of entries alone, 5e-7 of the memory, 2.4e-6 of carried columns. */
static void scores_of_a_moment_are_those_of_training(void **state)
{
    ek_cache whole;
    ek_toy t;

    (void)state;
    ek_toy_open(&t, LAYERS, HEADS, GROUP, DIM, EK_BF16);
    open_whole(&t, &whole);
    for (size_t i = 0; i < EK_COUNT(shipped); i++) {
        const ek_scorer_set *set = &shipped[i].set;
        ek_toy_cell cell;
        ek_cache c;

        open_cell(&cell, &t, &shipped[i]);
        ek_toy_cache(&c, &t, SEQ, 1, &cell.policy.method.measure);
        for (size_t m = 0; m < EK_COUNT(moments); m++) {
            read_until(&t, &c, moments[m], i);
            const double off = worst(&t, &whole, &cell, &c, none);
            if (!(off <= 1e-5))
                fail_msg("%s, age %s, carried %s, at %d: a score is off by %g",
                         shipped[i].cls->name, ek_age_names[set->age],
                         ek_carried_names[set->carried], moments[m], off);
            assert_true(worst(&t, &whole, &cell, &c, (fault){.late = 1}) > 1e-3);
            assert_true(set->carried == EK_CARRIED_NONE ||
                        worst(&t, &whole, &cell, &c, (fault){.swapped = 1}) > 1e-2);
        }
        ek_cache_close(&c);
        ek_toy_cell_close(&cell);
    }
    ek_cache_close(&whole);
    ek_toy_close(&t);
}

/* ---- sets ---- */

/* Of the tokens held (ascending, n of them, the newest included), those that stay by training's
 * priorities when `kept` may: held again, and their number. */
static int keep_best(const float *p, int32_t *held, int n, int kept, int recent)
{
    char stays[SEQ] = {0};
    int out = 0;

    if (n <= kept)
        return n;
    for (int i = 0; i < n; i++)
        stays[i] = i < SINKS || i >= n - recent;
    for (int k = SINKS + recent; k < kept; k++) {
        int best = -1;

        for (int i = 0; i < n; i++)
            if (!stays[i] && (best < 0 || p[held[i]] >= p[held[best]])) /* equal: the younger */
                best = i;
        stays[best] = 1;
    }
    for (int i = 0; i < n; i++)
        if (stays[i])
            held[out++] = held[i];
    return out;
}

/* Heads whose planned set, of as many entries, is not that of training.  A cut of all there is. */
static int differing(const ek_toy *t, const ek_cache *whole, const ek_toy_cell *cell,
                     const ek_cache *c, const ek_plan *plan, fault f)
{
    static priorities p;
    int wrong = 0;

    train_side(t, whole, cell, c->next_pos, f, p);
    for (int i = 0; i < LAYERS * HEADS; i++) {
        const int32_t *slot = plan->slot + plan->first[i]; /* nothing has gone: slots are tokens */
        const int kept = plan->first[i + 1] - plan->first[i];
        int32_t held[SEQ];

        for (int j = 0; j < c->next_pos; j++)
            held[j] = j;
        assert_int_equal(plan->of[i], c->next_pos);
        assert_int_equal(keep_best(p[i / HEADS][i % HEADS], held, c->next_pos, kept,
                                   (int)cell->scorer.set.recent),
                         kept);
        wrong += memcmp(held, slot, (size_t)kept * sizeof *held) != 0;
    }
    return wrong;
}

static void cuts_keep_what_training_ranks_first(void **state)
{
    ek_policy_scratch scratch = {0};
    ek_cache whole;
    ek_toy t;
    ek_err err;

    (void)state;
    ek_toy_open(&t, LAYERS, HEADS, GROUP, DIM, EK_BF16);
    open_whole(&t, &whole);
    for (size_t i = 0; i < EK_COUNT(shipped); i++) {
        const fault control = {.late = SEQ, .swapped = 1};
        ek_toy_cell cell;
        ek_cache c;
        ek_plan plan;

        open_cell(&cell, &t, &shipped[i]);
        ek_toy_cache(&c, &t, SEQ, 1, &cell.policy.method.measure);
        ek_ok(ek_plan_open(&plan, &c.dims, LAYERS * HEADS * SEQ, &err), &err);
        for (size_t m = 0; m < EK_COUNT(moments); m++) {
            read_until(&t, &c, moments[m], 7 + i);
            ek_ok(ek_policy_plan(&cell.policy, &c, lane_of(&c), BUDGET, &scratch, &plan, &err),
                  &err);
            const int wrong = differing(&t, &whole, &cell, &c, &plan, none);
            if (wrong != 0)
                fail_msg("%s, age %s, carried %s, at %d: %d heads keep other tokens",
                         shipped[i].cls->name, ek_age_names[shipped[i].set.age],
                         ek_carried_names[shipped[i].set.carried], moments[m], wrong);
            assert_true(differing(&t, &whole, &cell, &c, &plan, control) > 0);
        }
        ek_plan_close(&plan);
        ek_cache_close(&c);
        ek_toy_cell_close(&cell);
    }
    ek_policy_scratch_close(&scratch);
    ek_cache_close(&whole);
    ek_toy_close(&t);
}

/* Heads and steps at which a cache that holds its budget differs from training's priorities of that
 * very moment, applied to what was held before. */
static int drift(const ek_toy *t, const ek_cache *whole, const ek_toy_cell *cell, fault f)
{
    static priorities p;
    static int32_t held[LAYERS * HEADS][SEQ];
    ek_policy policy = cell->policy;
    ek_policy_scratch scratch = {0};
    int n = 0, wrong = 0;
    ek_cache c;
    ek_plan plan;
    ek_err err;

    policy.decode = EK_DECODE_HOLD;
    ek_toy_cache(&c, t, SEQ, 1, &policy.method.measure);
    ek_ok(ek_plan_open(&plan, &c.dims, LAYERS * HEADS * SEQ, &err), &err);
    read_until(t, &c, PROMPT, 5);
    for (int i = 0; i < LAYERS * HEADS; i++)
        for (int j = 0; j < PROMPT; j++)
            held[i][j] = j;
    for (n = PROMPT; c.next_pos < PROMPT + STEPS; n = BUDGET + 1) {
        const int32_t at = c.next_pos;

        ek_ok(ek_policy_plan(&policy, &c, lane_of(&c), BUDGET, &scratch, &plan, &err), &err);
        ek_ok(ek_cache_apply(&c, &c, 0, &plan, &err), &err);
        train_side(t, whole, cell, at, f, p);
        for (int i = 0; i < LAYERS * HEADS; i++) {
            const int32_t *pos = c.pos + c.layer_at[i / HEADS] + c.first[i];

            assert_int_equal(keep_best(p[i / HEADS][i % HEADS], held[i], n, BUDGET,
                                       (int)cell->scorer.set.recent),
                             BUDGET);
            assert_int_equal(c.n[i], BUDGET);
            wrong += memcmp(pos, held[i], BUDGET * sizeof *pos) != 0;
            held[i][BUDGET] = at; /* the next step's newborn */
        }
        ek_toy_feed(t, &c, 1, PROMPT, at - PROMPT + 1);
        assert_true(ek_policy_due(&policy, EK_AT_STEP, at - PROMPT + 1, 0, &c, BUDGET));
    }
    ek_policy_scratch_close(&scratch);
    ek_plan_close(&plan);
    ek_cache_close(&c);
    return wrong;
}

/* Carried columns are those of full attention in training, so they end with the first cut; all
 * others rank the same at every step. */
static void held_sets_follow_the_moving_ranks(void **state)
{
    ek_cache whole;
    ek_toy t;

    (void)state;
    ek_toy_open(&t, LAYERS, HEADS, GROUP, DIM, EK_BF16);
    open_whole(&t, &whole);
    for (size_t i = 0; i < EK_COUNT(shipped); i++) {
        ek_toy_cell cell;

        if (shipped[i].set.carried != EK_CARRIED_NONE)
            continue;
        open_cell(&cell, &t, &shipped[i]);
        const int wrong = drift(&t, &whole, &cell, none);
        if (wrong != 0)
            fail_msg("%s, age %s: %d sets differ", shipped[i].cls->name,
                     ek_age_names[shipped[i].set.age], wrong);
        assert_true(drift(&t, &whole, &cell, (fault){.late = SEQ}) > STEPS); /* negative control */
        ek_toy_cell_close(&cell);
    }
    ek_cache_close(&whole);
    ek_toy_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scores_of_a_moment_are_those_of_training),
        cmocka_unit_test(cuts_keep_what_training_ranks_first),
        cmocka_unit_test(held_sets_follow_the_moving_ranks),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
