/* tests/test_methods.c - laws over the registry, with no line about any particular method. */
#include "tests/check_cache.h"

#include "core/file.h"
#include "scorers/carried.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { PROMPT = 61, ENTRIES = 24, STEPS = 6 };

/* A cell of method number i, every second learned one with another age. */
static void open_cell(ek_toy_cell *cell, const ek_toy *t, int i)
{
    ek_method_set set = ek_method_set_defaults;
    char name[64];

    snprintf(name, sizeof name, "%s", ek_methods[i]->name);
    set.name = name;
    set.seed = 11;
    ek_toy_cell_open(cell, t, &set, i % 2 ? EK_AGE_POWER : EK_AGE_EXP);
}

/* The prompt in chunks; what only an evaluator knows is put into the lane by hand. */
static void read_prompt(const ek_toy *t, ek_cache *c, int n)
{
    for (int at = 0; at < n; at += 25)
        ek_toy_feed(t, c, n - at < 25 ? n - at : 25, n, 0);
    if (c->n_lanes == 0 || c->lane[0].measure->signal->source != EK_FROM_FUTURE)
        return;
    for (int l = 0; l < c->dims.n_layers; l++)
        for (int h = 0; h < c->dims.n_heads; h++) {
            float *carry = ek_cache_memory(c, l, 0).carry +
                           c->first[l * c->dims.n_heads + h] * c->lane[0].n_carry;

            for (int x = 0; x < n * c->lane[0].n_carry; x++)
                carry[x] = (float)((x * 37 + l + h) % 101) / 101;
        }
}

static int lane_of(const ek_cache *c)
{
    return c->n_lanes > 0 ? 0 : -1;
}

/* Learned scorers as they may be set, in turn; 0 when there is no number v. */
static int open_learned(ek_toy_cell *cell, const ek_toy *t, const char *method, int v)
{
    for (int c = 0; ek_learned[c] != NULL; c++)
        for (int carried = EK_CARRIED_NONE; carried <= EK_CARRIED_FULL; carried++)
            for (int delay = 0;
                 delay <= 7 && (delay == 0 || ek_learned[c]->learner->advance != NULL);
                 delay += 7) {
                const ek_scorer_set set = {.hidden = 5,
                                           .age = carried ? EK_AGE_INPUT : EK_AGE_EXP,
                                           .sinks = 4,
                                           .recent = 64,
                                           .delay = delay,
                                           .carried = carried};
                const ek_scorer s = {
                    .cls = ek_learned[c], .dev = t->dev, .dims = t->dims, .set = set};
                ek_method_set row = ek_method_set_defaults;
                char name[64];
                ek_err err;

                if (ek_scorer_check(&s, &err) != EK_OK || v-- > 0)
                    continue;
                snprintf(name, sizeof name, "%s", method);
                row.name = name;
                ek_toy_cell_learned(cell, t, &row, ek_learned[c], set);
                return 1;
            }
    return 0;
}

typedef void law(const ek_toy *t, const ek_toy_cell *cell);

/* Every law over every method, in both storage types. */
static void over_methods(law *f)
{
    for (int type = 0; type < 2; type++) {
        ek_toy t;

        ek_toy_open(&t, 2, 3, 2, 8, type ? EK_F32 : EK_BF16);
        for (int i = 0; ek_methods[i] != NULL; i++) {
            ek_toy_cell cell;

            open_cell(&cell, &t, i);
            f(&t, &cell);
            ek_toy_cell_close(&cell);
        }
        for (int v = 0; type == 0 && v < 100; v++) {
            ek_toy_cell cell;

            if (!open_learned(&cell, &t, v % 2 ? "foresight" : "kvpop", v))
                break;
            f(&t, &cell);
            ek_toy_cell_close(&cell);
        }
        ek_toy_close(&t);
    }
}

/* Scores are finite, the same twice, and the same when the lists lie elsewhere. */
static void law_scores(const ek_toy *t, const ek_toy_cell *cell)
{
    const ek_policy *p = &cell->policy;
    ek_cache a, b;
    float x[1000], y[1000], z[1000];
    ek_err err;

    ek_toy_cache(&a, t, PROMPT + 9, 0, &p->method.measure);
    ek_toy_cache(&b, t, PROMPT + 9, 1, &p->method.measure);
    read_prompt(t, &a, PROMPT);
    read_prompt(t, &b, PROMPT);
    for (int l = 0; l < t->dims.n_layers; l++) {
        ek_ok(ek_policy_scores(p, &a, lane_of(&a), l, x, &err), &err);
        ek_ok(ek_policy_scores(p, &a, lane_of(&a), l, y, &err), &err);
        ek_ok(ek_policy_scores(p, &b, lane_of(&b), l, z, &err), &err);
        for (int h = 0; h < t->dims.n_heads; h++) {
            const int i = l * t->dims.n_heads + h;

            for (int32_t j = 0; j < a.n[i]; j++)
                assert_true(isfinite(x[a.first[i] + j]));
            assert_memory_equal(x + a.first[i], y + a.first[i], PROMPT * sizeof *x);
            assert_memory_equal(x + a.first[i], z + b.first[i], PROMPT * sizeof *x);
        }
    }
    assert_true(ek_toy_same(&a, &b));
    a.next_pos++; /* the comparison can fail */
    assert_false(ek_toy_same(&a, &b));
    ek_cache_close(&a);
    ek_cache_close(&b);
}

static void check_protected(const ek_policy *p, const ek_plan *plan, int32_t entries)
{
    for (int i = 0; i < plan->n_layers * plan->n_heads; i++) {
        const int32_t n = plan->of[i], kept = plan->first[i + 1] - plan->first[i];
        const int32_t *slot = plan->slot + plan->first[i];
        int32_t sinks, recent;

        ek_policy_protected(&p->method, n, entries, &sinks, &recent);
        for (int32_t j = 0; j < sinks; j++)
            assert_int_equal(slot[j], j);
        for (int32_t j = 0; j < recent; j++)
            assert_int_equal(slot[kept - 1 - j], n - 1 - j);
    }
}

/* A plan is the same twice, touches no byte of the cache, keeps what was asked; a fork is what an
 * eviction in place would leave, and copies nothing else. */
static void law_plan(const ek_toy *t, const ek_toy_cell *cell)
{
    const ek_policy *p = &cell->policy;
    ek_policy_scratch scratch = {0};
    char before[33], after[33];
    ek_plan plan, again;
    ek_cache c, fork;
    ek_err err;

    ek_toy_cache(&c, t, PROMPT + 3, 1, &p->method.measure);
    read_prompt(t, &c, PROMPT);
    ek_ok(ek_cache_check(&c, &err), &err);
    ek_toy_plan(&plan, &c);
    ek_toy_plan(&again, &c);
    ek_hash128(before, c.block, c.block_bytes);
    ek_ok(ek_policy_plan(p, &c, lane_of(&c), ENTRIES, &scratch, &plan, &err), &err);
    ek_ok(ek_policy_plan(p, &c, lane_of(&c), ENTRIES, &scratch, &again, &err), &err);
    ek_hash128(after, c.block, c.block_bytes);
    assert_string_equal(before, after);
    assert_true(ek_plan_same(&plan, &again));
    assert_int_equal(ek_plan_kept(&plan), ENTRIES * t->dims.n_layers * t->dims.n_heads);
    check_protected(p, &plan, ENTRIES);

    ek_toy_cache(&fork, t, PROMPT, 0, &p->method.measure);
    ek_ok(ek_cache_apply(&fork, &c, lane_of(&c), &plan, &err), &err);
    ek_hash128(after, c.block, c.block_bytes);
    assert_string_equal(before, after);
    ek_ok(ek_cache_check(&fork, &err), &err);
    ek_ok(ek_policy_check(p, &plan, &c, &fork, ENTRIES, &err), &err);
    ek_ok(ek_cache_apply(&c, &c, 0, &plan, &err), &err);
    ek_ok(ek_cache_check(&c, &err), &err);
    ek_ok(ek_policy_check(p, &plan, NULL, &c, ENTRIES, &err), &err);
    assert_true(ek_toy_same(&c, &fork));
    assert_int_equal(ek_cache_entries(&c), ek_plan_kept(&plan));

    /* A stale plan does not fit what is left. */
    assert_int_equal(ek_cache_apply(&c, &c, 0, &plan, &err), EK_EBROKEN);
    again.slot[0] = again.slot[1]; /* negative control of the comparison */
    assert_false(ek_plan_same(&plan, &again));
    ek_policy_scratch_close(&scratch);
    ek_plan_close(&plan);
    ek_plan_close(&again);
    ek_cache_close(&c);
    ek_cache_close(&fork);
}

/* A budget that covers everything leaves everything, at the end of prefill and while decoding. */
static void law_all(const ek_toy *t, const ek_toy_cell *cell)
{
    ek_policy p = cell->policy;
    ek_policy_scratch scratch = {0};
    ek_plan plan;
    ek_cache c;
    ek_err err;

    p.decode = EK_DECODE_HOLD;
    ek_toy_cache(&c, t, PROMPT + STEPS, 0, &p.method.measure);
    read_prompt(t, &c, PROMPT);
    ek_toy_plan(&plan, &c);
    for (int32_t entries = PROMPT; entries <= PROMPT + 1; entries++) {
        ek_ok(ek_policy_plan(&p, &c, lane_of(&c), entries, &scratch, &plan, &err), &err);
        assert_int_equal(ek_plan_kept(&plan), ek_cache_entries(&c));
    }
    for (int64_t s = 1; s <= STEPS; s++) {
        ek_toy_feed(t, &c, 1, PROMPT, s);
        assert_false(ek_policy_due(&p, EK_AT_STEP, s, 1, &c, PROMPT + STEPS));
    }
    assert_int_equal(c.n[0], PROMPT + STEPS);
    ek_policy_scratch_close(&scratch);
    ek_plan_close(&plan);
    ek_cache_close(&c);
}

/* Decode under a held budget; what is held at each step goes into `held`. */
static void decode(const ek_toy *t, const ek_policy *p, int gaps, int32_t *held)
{
    ek_policy_scratch scratch = {0};
    int first_plan = 1;
    ek_plan plan;
    ek_cache c;
    ek_err err;

    ek_toy_cache(&c, t, PROMPT + STEPS, gaps, &p->method.measure);
    read_prompt(t, &c, PROMPT);
    ek_toy_plan(&plan, &c);
    for (int64_t s = 0; s <= STEPS; s++) {
        if (s > 0) {
            const int room = (int)(plan.room - ek_cache_entries(&c));

            if (room < 100) {
                ek_plan_close(&plan);
                ek_ok(ek_plan_open(&plan, &c.dims, ek_cache_entries(&c) + 1000, &err), &err);
            }
            ek_toy_feed(t, &c, 1, PROMPT, s);
        }
        if (ek_policy_due(p, s == 0 ? EK_AT_PREFILL_END : EK_AT_STEP, s, first_plan, &c, ENTRIES)) {
            const int32_t asked = s == 0 ? ENTRIES : ek_policy_target(p, ENTRIES);

            ek_ok(ek_policy_plan(p, &c, lane_of(&c), asked, &scratch, &plan, &err), &err);
            ek_ok(ek_cache_apply(&c, &c, 0, &plan, &err), &err);
            ek_ok(ek_cache_check(&c, &err), &err);
            ek_ok(ek_policy_check(p, &plan, NULL, &c, asked, &err), &err);
            check_protected(p, &plan, asked);
            first_plan = 0;
        }
        for (int i = 0; i < t->dims.n_layers * t->dims.n_heads; i++)
            for (int32_t j = 0; j < c.n[i]; j++)
                *held++ = c.pos[c.layer_at[i / t->dims.n_heads] + c.first[i] + j];
        *held++ = -1;
        if (s > 0 && !first_plan && p->decode == EK_DECODE_HOLD) {
            const int64_t now = ek_cache_entries(&c);
            const int64_t full = ENTRIES * t->dims.n_layers * t->dims.n_heads;

            assert_true(p->method.when.every > 1 ? now <= full : now == full);
        }
    }
    ek_policy_scratch_close(&scratch);
    ek_plan_close(&plan);
    ek_cache_close(&c);
}

/* Two runs keep the same sets at every step, wherever the lists lie; held budgets are held, and
 * under grow nothing leaves after the first cut. */
static void law_decode(const ek_toy *t, const ek_toy_cell *cell)
{
    static int32_t a[20000], b[20000];
    ek_policy p = cell->policy;

    for (int d = EK_DECODE_ROW; d <= EK_DECODE_HOLD; d++) {
        p.decode = (ek_decode)d;
        memset(a, 0, sizeof a);
        memset(b, 0, sizeof b);
        decode(t, &p, 0, a);
        decode(t, &p, 1, b);
        assert_memory_equal(a, b, sizeof a);
    }
}

/* Bytes of living entries, of their positions and of what is remembered of them. */
static int64_t held_bytes(const ek_cache *c)
{
    const ek_cache_bytes b = ek_cache_count(c);

    return b.kv + b.pos + b.state;
}

/* Decode under a held budget of so many bytes. */
static void decode_bytes(const ek_toy *t, const ek_policy *p, int64_t asked, const ek_cost *cost)
{
    const int32_t entries = ek_budget_entries(&(ek_budget){.bytes = asked}, PROMPT, cost);
    const int64_t each = cost->plain + cost->extra;
    ek_policy_scratch scratch = {0};
    int first_plan = 1, exact = 0;
    ek_plan plan;
    ek_cache c;
    ek_err err;

    ek_toy_cache(&c, t, PROMPT + STEPS, 1, &p->method.measure);
    read_prompt(t, &c, PROMPT);
    ek_ok(ek_plan_open(&plan, &c.dims, ek_cache_entries(&c) + 1000, &err), &err);
    assert_true(held_bytes(&c) > asked); /* something must go */
    for (int64_t s = 0; s <= STEPS; s++) {
        if (s > 0)
            ek_toy_feed(t, &c, 1, PROMPT, s);
        if (ek_policy_due(p, s == 0 ? EK_AT_PREFILL_END : EK_AT_STEP, s, first_plan, &c, entries)) {
            const int32_t target = s == 0 ? entries : ek_policy_target(p, entries);

            ek_ok(ek_policy_plan(p, &c, lane_of(&c), target, &scratch, &plan, &err), &err);
            ek_ok(ek_cache_apply(&c, &c, 0, &plan, &err), &err);
            first_plan = 0;
        }
        if (first_plan)
            continue;
        if (held_bytes(&c) > asked)
            fail_msg("%s, step %d: %lld bytes held, %lld asked", p->method.name, (int)s,
                     (long long)held_bytes(&c), (long long)asked);
        if (ek_cache_entries(&c) < (int64_t)entries * t->dims.n_layers * t->dims.n_heads)
            continue;
        exact++;
        /* No entry more had room; and the same check, of a budget one smaller, would fail. */
        assert_true(held_bytes(&c) > asked - each);
    }
    assert_true(exact > 0);
    ek_policy_scratch_close(&scratch);
    ek_plan_close(&plan);
    ek_cache_close(&c);
}

/* What a cache that holds its budget takes, counted, is within the bytes that were asked for. */
static void law_bytes(const ek_toy *t, const ek_toy_cell *cell)
{
    ek_policy p = cell->policy;

    p.decode = EK_DECODE_HOLD;
    if (!ek_policy_watches(&p, 1))
        return; /* never cuts */
    const ek_cost cost = ek_policy_cost(&p, &t->dims, t->dtype);
    const int64_t each = cost.plain + cost.extra;
    const int64_t least = ENTRIES * each + cost.state;
    const ek_budget budgets[] = {{.bytes = least},
                                 {.bytes = least + each - 1},
                                 {.entries = (least + cost.plain - 1) / cost.plain}};

    for (size_t i = 0; i < EK_COUNT(budgets); i++)
        assert_int_equal(ek_budget_entries(&budgets[i], PROMPT, &cost), ENTRIES);
    decode_bytes(t, &p, least, &cost); /* the least of them */
}

/* A carried score is the fresh one: with and without the lane, the same bits. */
static void law_carried(const ek_toy *t, const ek_toy_cell *cell)
{
    const ek_policy *p = &cell->policy;
    const ek_measure *m = &p->method.measure;
    float x[1000], y[1000];
    ek_cache c;
    ek_err err;

    if (p->method.measure.signal->source != EK_FROM_ENTRIES)
        return;
    ek_toy_cache(&c, t, PROMPT + STEPS, 1, &p->method.measure);
    read_prompt(t, &c, PROMPT);
    for (int64_t s = 1; s <= STEPS; s++)
        ek_toy_feed(t, &c, 1, PROMPT, s);
    for (int l = 0; l < t->dims.n_layers; l++) {
        ek_ok(ek_policy_scores(p, &c, lane_of(&c), l, x, &err), &err);
        if (cell->scorer.set.carried != EK_CARRIED_NONE || ek_measure_n_state(m) > 0) {
            assert_int_equal(ek_policy_scores(p, &c, -1, l, y, &err), EK_EBROKEN);
            continue;
        }
        ek_ok(ek_policy_scores(p, &c, -1, l, y, &err), &err);
        for (int h = 0; h < t->dims.n_heads; h++) {
            const int i = l * t->dims.n_heads + h;

            assert_memory_equal(x + c.first[i], y + c.first[i], (size_t)c.n[i] * sizeof *x);
        }
    }
    if (c.n_lanes > 0 && cell->scorer.set.carried == EK_CARRIED_NONE &&
        ek_measure_n_state(m) == 0) { /* the lane is what was read */
        c.lane[0].carry[0] += 100;
        ek_ok(ek_policy_scores(p, &c, 0, 0, x, &err), &err);
        ek_ok(ek_policy_scores(p, &c, -1, 0, y, &err), &err);
        assert_memory_not_equal(x, y, sizeof *x);
    }
    ek_cache_close(&c);
}

static void scores_are_finite_and_repeatable(void **state)
{
    (void)state;
    over_methods(law_scores);
}

static void plans_keep_what_was_asked(void **state)
{
    (void)state;
    over_methods(law_plan);
}

static void enough_room_keeps_everything(void **state)
{
    (void)state;
    over_methods(law_all);
}

static void decoding_is_repeatable_and_holds_budgets(void **state)
{
    (void)state;
    over_methods(law_decode);
}

static void held_bytes_stay_within_those_asked(void **state)
{
    (void)state;
    over_methods(law_bytes);
}

static void carried_scores_are_fresh_ones(void **state)
{
    (void)state;
    over_methods(law_carried);
}

/* Prompts of 1, 2, 3 tokens at keep 0.1: at least one entry, and a plan that applies. */
static void tiny_prompts_keep_one(void **state)
{
    ek_toy t;

    (void)state;
    ek_toy_open(&t, 2, 3, 2, 8, EK_BF16);
    for (int i = 0; ek_methods[i] != NULL; i++)
        for (int n = 1; n <= 3; n++) {
            const ek_budget b = {.num = 1, .den = 10};
            const int32_t entries = ek_budget_entries(&b, n, &(ek_cost){.plain = 1});
            ek_policy_scratch scratch = {0};
            ek_toy_cell cell;
            ek_plan plan;
            ek_cache c;
            ek_err err;

            assert_int_equal(entries, 1);
            open_cell(&cell, &t, i);
            ek_toy_cache(&c, &t, n, 0, &cell.policy.method.measure);
            read_prompt(&t, &c, n);
            ek_toy_plan(&plan, &c);
            ek_ok(ek_policy_plan(&cell.policy, &c, lane_of(&c), entries, &scratch, &plan, &err),
                  &err);
            ek_ok(ek_cache_apply(&c, &c, 0, &plan, &err), &err);
            ek_ok(ek_policy_check(&cell.policy, &plan, NULL, &c, entries, &err), &err);
            assert_int_equal(ek_cache_entries(&c), t.dims.n_layers * t.dims.n_heads);
            ek_policy_scratch_close(&scratch);
            ek_plan_close(&plan);
            ek_cache_close(&c);
            ek_toy_cell_close(&cell);
        }
    ek_toy_close(&t);
}

static void names_are_found_and_rows_are_whole(void **state)
{
    ek_method_set set = ek_method_set_defaults;
    ek_method m;
    ek_err err;

    (void)state;
    for (int i = 0; ek_methods[i] != NULL; i++) {
        const ek_method *row = ek_methods[i];

        assert_ptr_equal(ek_method_find(row->name), row);
        assert_non_null(row->brief);
        assert_non_null(row->paper);
        assert_non_null(row->measure.signal);
        assert_null(row->measure.scorer);
        for (int j = 0; j < i; j++)
            assert_string_not_equal(row->name, ek_methods[j]->name);
    }
    assert_null(ek_method_find("snapvk"));
    set.name = (char[]){"snapvk"};
    assert_int_equal(ek_method_open(&m, &set, &err), EK_EASKED);
    assert_non_null(strstr(err.msg, "snapvk"));
    assert_non_null(strstr(err.msg, "snapkv"));
}

/* Choices of YAML reach the row, and those that mean nothing together are refused. */
static void sets_change_rows(void **state)
{
    const ek_method_set none = ek_method_set_defaults;
    ek_method_set set = none;
    ek_method m;
    ek_err err;

    (void)state;
    set.name = (char[]){"snapkv"};
    ek_ok(ek_method_open(&m, &set, &err), &err);
    assert_int_equal(m.protect.recent_window, 1);
    set.window = 32;
    set.pool = 3;
    set.pool_size = 7;
    set.recent = 16;
    set.group = 2;
    ek_ok(ek_method_open(&m, &set, &err), &err);
    assert_int_equal(m.measure.queries, 32);
    assert_int_equal(m.measure.pool.kind, EK_POOL_MAX);
    assert_int_equal(m.measure.pool.size, 7);
    assert_int_equal(m.measure.group.by, EK_MAX);
    assert_int_equal(m.protect.recent, 16);
    assert_int_equal(m.protect.recent_window, 0);
    set.pool_size = 4;
    assert_int_equal(ek_method_open(&m, &set, &err), EK_EASKED);
    set = none;
    set.name = (char[]){"knorm"};
    set.window = 3;
    assert_int_equal(ek_method_open(&m, &set, &err), EK_EASKED);
    set = none;
    set.name = (char[]){"inertiakv"};
    set.granularity = 1;
    assert_int_equal(ek_method_open(&m, &set, &err), EK_EASKED);
    set = none;
    set.name = (char[]){"tova"};
    for (set.share = 2; set.share <= 3; set.share++) /* one set for all heads of a layer */
        assert_int_equal(ek_method_open(&m, &set, &err), EK_EASKED);
    set.name = (char[]){"keydiff"};
    for (set.share = 2; set.share <= 3; set.share++) /* scores that do not compare */
        assert_int_equal(ek_method_open(&m, &set, &err), EK_EASKED);
    set.name = (char[]){"h2o"};
    for (set.share = 2; set.share <= 3; set.share++) /* attention does */
        ek_ok(ek_method_open(&m, &set, &err), &err);
    set.name = (char[]){"tova"};
    set.share = 0;
    set.floor = 0.1;
    assert_int_equal(ek_method_open(&m, &set, &err), EK_EASKED);
    set.floor = -1;
    set.carry = 4;
    assert_int_equal(ek_method_open(&m, &set, &err), EK_EASKED); /* an EMA without rate */
    set.rate = .9;
    ek_ok(ek_method_open(&m, &set, &err), &err);
    assert_int_equal(m.measure.carry.kind, EK_CARRY_EMA);
    set = none;
    set.name = (char[]){"kvpop"};
    ek_ok(ek_method_open(&m, &set, &err), &err);
    assert_int_equal(m.budget, EK_SHARE_UNIFORM);
    set.share = 3;
    ek_ok(ek_method_open(&m, &set, &err), &err);
    assert_int_equal(m.budget, EK_SHARE_MODEL);
    assert_true(fabs(m.floor - EK_SHARE_FLOOR) < 1e-12);
    set.floor = 0;
    ek_ok(ek_method_open(&m, &set, &err), &err);
    assert_false(m.floor > 0);
    set.granularity = 2;
    assert_int_equal(ek_method_open(&m, &set, &err), EK_EASKED);
    set.name = NULL;
    assert_int_equal(ek_method_open(&m, &set, &err), EK_EASKED);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_are_found_and_rows_are_whole),
        cmocka_unit_test(sets_change_rows),
        cmocka_unit_test(scores_are_finite_and_repeatable),
        cmocka_unit_test(plans_keep_what_was_asked),
        cmocka_unit_test(enough_room_keeps_everything),
        cmocka_unit_test(decoding_is_repeatable_and_holds_budgets),
        cmocka_unit_test(held_bytes_stay_within_those_asked),
        cmocka_unit_test(carried_scores_are_fresh_ones),
        cmocka_unit_test(tiny_prompts_keep_one),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
