/* tests/test_cache.c - memory that really shrinks, and plans that fit or are refused whole. */
#include "tests/check_cache.h"

#include "core/file.h"
#include "core/rng.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#if defined(__SANITIZE_ADDRESS__)
#define COUNTS 0
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define COUNTS 0
#endif
#endif
#ifndef COUNTS
#define COUNTS 1
#endif

/* Every allocation of this process passes here, so that a test can see none happen.  The
 * sanitizers bring their own allocator, and the count is left out. */
static int64_t allocations;

#if COUNTS
void *__libc_malloc(size_t size);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *p, size_t size);
void *malloc(size_t size);
void *calloc(size_t n, size_t size);
void *realloc(void *p, size_t size);

void *malloc(size_t size)
{
    allocations++;
    return __libc_malloc(size);
}

void *calloc(size_t n, size_t size)
{
    allocations++;
    return __libc_calloc(n, size);
}

void *realloc(void *p, size_t size)
{
    allocations++;
    return __libc_realloc(p, size);
}
#endif

/* Keep about keep/8 of each list, the same slots in all lists if `one`. */
static void choose(ek_plan *plan, const ek_cache *c, uint64_t seed, int keep, int one)
{
    const int lists = c->dims.n_layers * c->dims.n_heads;

    plan->first[0] = 0;
    for (int i = 0; i < lists; i++) {
        int32_t at = plan->first[i];

        plan->of[i] = c->n[i];
        for (int32_t j = 0; j < c->n[i]; j++)
            if (ek_rng_below(8, seed, one ? 0 : (uint64_t)i, (uint64_t)j) < (uint64_t)keep)
                plan->slot[at++] = j;
        plan->first[i + 1] = at;
    }
}

static void hash(const ek_cache *c, char out[33])
{
    ek_hash128(out, c->block, c->block_bytes);
}

/* For both types, with and without gaps, plain and shared lanes: a fork is what an eviction in
 * place leaves; the source of a fork keeps every byte; survivors keep theirs. */
static void a_fork_is_an_eviction_in_place(void **state)
{
    static const char *const names[] = {"h2o", "inertiakv", "recency", "oracle"};

    (void)state;
    for (int k = 0; k < 16; k++) {
        const ek_measure m = ek_row_of(names[k % 4]);
        const int shared = k % 4 == 1;
        char before[33], after[33];
        ek_cache a, b;
        ek_plan plan;
        ek_toy t;
        ek_err err;

        ek_toy_open(&t, 3, 2, 2, 8, k & 4 ? EK_F32 : EK_BF16);
        ek_toy_cache(&a, &t, 40, k & 8, &m);
        ek_toy_feed(&t, &a, 30, 30, 0);
        for (int64_t s = 1; s <= 3; s++)
            ek_toy_feed(&t, &a, 1, 30, s);
        ek_ok(ek_cache_check(&a, &err), &err);
        ek_toy_plan(&plan, &a);
        choose(&plan, &a, (uint64_t)k, 3, shared);
        ek_toy_cache(&b, &t, 33, 1, &m);
        hash(&a, before);
        ek_ok(ek_cache_apply(&b, &a, 0, &plan, &err), &err);
        hash(&a, after);
        assert_string_equal(before, after);
        ek_ok(ek_cache_check(&b, &err), &err);
        for (int i = 0; i < 6; i++)
            for (int32_t j = 0; j < b.n[i]; j++) {
                const size_t vector = (size_t)a.dims.head_dim * (size_t)ek_dtype_size(a.dtype);
                const size_t x =
                    (size_t)(a.layer_at[i / 2] + a.first[i]) + (size_t)plan.slot[plan.first[i] + j];
                const size_t y = (size_t)(b.layer_at[i / 2] + b.first[i] + j);

                assert_int_equal(a.pos[x], b.pos[y]);
                assert_memory_equal((char *)a.k + x * vector, (char *)b.k + y * vector, vector);
                assert_memory_equal((char *)a.v + x * vector, (char *)b.v + y * vector, vector);
            }
        ek_ok(ek_cache_apply(&a, &a, 0, &plan, &err), &err);
        assert_true(ek_toy_same(&a, &b));
        /* and both go on alike */
        ek_toy_feed(&t, &a, 1, 30, 4);
        ek_cache_close(&b);
        ek_toy_cache(&b, &t, 40, 0, &m);
        choose(&plan, &a, (uint64_t)k, 8, shared);
        ek_ok(ek_cache_apply(&b, &a, 0, &plan, &err), &err);
        ek_toy_feed(&t, &a, 1, 30, 5);
        ek_toy_feed(&t, &b, 1, 30, 5);
        assert_true(ek_toy_same(&a, &b));
        *((char *)b.k + (size_t)b.layer_at[1] * 16) ^= 1; /* the comparison can fail */
        assert_false(ek_toy_same(&a, &b));
        ek_plan_close(&plan);
        ek_cache_close(&a);
        ek_cache_close(&b);
        ek_toy_close(&t);
    }
}

/* A prompt with a lane per measure: a fork takes its own along and costs nothing for the others. */
static void a_fork_copies_its_own_lane_only(void **state)
{
    const ek_measure sum = ek_row_of("h2o"), last = ek_row_of("tova"), max = ek_row_of("oracle");
    const ek_measure *all[] = {&sum, &last, &max};
    ek_cache_need need = {.dtype = EK_BF16, .cap = 20, .n_lanes = 3, .measures = all};
    ek_cache prompt, fork;
    ek_plan plan;
    ek_toy t;
    ek_err err;

    (void)state;
    ek_toy_open(&t, 2, 2, 3, 8, EK_BF16);
    need.dims = t.dims;
    ek_ok(ek_cache_open(&prompt, &need, t.dev, &err), &err);
    ek_toy_feed(&t, &prompt, 20, 20, 0);
    ek_toy_plan(&plan, &prompt);
    choose(&plan, &prompt, 5, 4, 0);
    assert_int_equal(ek_cache_count(&prompt).state, 80 * (1 + 1 + 3) * 4);
    for (int lane = 0; lane < 2; lane++) {
        need.n_lanes = 1;
        need.measures = all + lane;
        ek_ok(ek_cache_open(&fork, &need, t.dev, &err), &err);
        ek_ok(ek_cache_apply(&fork, &prompt, lane, &plan, &err), &err);
        assert_int_equal(ek_cache_count(&fork).state, 4 * ek_plan_kept(&plan));
        for (int32_t j = 0; j < fork.n[0]; j++)
            assert_memory_equal(fork.lane[0].carry + j, prompt.lane[lane].carry + plan.slot[j],
                                sizeof(float));
        ek_cache_close(&fork);
    }
    /* A lane that remembers something else, or none, is refused. */
    ek_ok(ek_cache_open(&fork, &need, t.dev, &err), &err);
    assert_int_equal(ek_cache_apply(&fork, &prompt, 2, &plan, &err), EK_EBROKEN);
    assert_int_equal(ek_cache_apply(&fork, &prompt, -1, &plan, &err), EK_EBROKEN);
    ek_cache_close(&fork);
    need.n_lanes = 0;
    ek_ok(ek_cache_open(&fork, &need, t.dev, &err), &err);
    ek_ok(ek_cache_apply(&fork, &prompt, -1, &plan, &err), &err);
    assert_int_equal(ek_cache_count(&fork).state, 0);
    ek_cache_close(&fork);
    ek_plan_close(&plan);
    ek_cache_close(&prompt);
    ek_toy_close(&t);
}

/* A plan that does not fit is refused, and no byte has moved. */
static void wrong_plans_move_nothing(void **state)
{
    const ek_measure m = ek_row_of("inertiakv");
    char before[33], after[33];
    ek_cache c, small;
    ek_plan plan;
    ek_toy t;
    ek_err err;

    (void)state;
    ek_toy_open(&t, 2, 2, 1, 8, EK_BF16);
    ek_toy_cache(&c, &t, 20, 0, &m);
    ek_toy_feed(&t, &c, 20, 20, 0);
    ek_toy_plan(&plan, &c);
    hash(&c, before);
    for (int fault = 0; fault < 6; fault++) {
        choose(&plan, &c, 1, 5, 1);
        if (fault == 0)
            plan.of[3]++; /* made for another number of entries */
        if (fault == 1)
            plan.slot[plan.first[2] + 1] = plan.slot[plan.first[2]]; /* twice the same */
        if (fault == 2)
            plan.slot[plan.first[4] - 1] = 20; /* beyond the list */
        if (fault == 3)
            plan.slot[0] = -1;
        if (fault == 4)
            plan.slot[plan.first[3] - 1]++; /* one state, other slots */
        if (fault == 5)
            plan.n_heads = 1;
        assert_int_equal(ek_cache_apply(&c, &c, 0, &plan, &err), EK_EBROKEN);
        plan.n_heads = 2;
        hash(&c, after);
        assert_string_equal(before, after);
    }
    choose(&plan, &c, 1, 5, 1);
    ek_toy_cache(&small, &t, 3, 0, &m);
    assert_int_equal(ek_cache_apply(&small, &c, 0, &plan, &err), EK_EBROKEN); /* no room */
    assert_non_null(strstr(err.msg, "layer 0, head 0"));
    ek_ok(ek_cache_apply(&c, &c, 0, &plan, &err), &err); /* and the sound plan fits */
    ek_plan_close(&plan);
    ek_cache_close(&c);
    ek_cache_close(&small);
    ek_toy_close(&t);
}

/* Bytes follow KV heads, not query heads, and what is kept: 32 query heads on 8 KV heads. */
static void bytes_are_what_is_kept(void **state)
{
    ek_cache c;
    ek_plan plan;
    ek_toy t;
    ek_err err;

    (void)state;
    ek_toy_open(&t, 2, 8, 4, 16, EK_BF16);
    ek_toy_cache(&c, &t, 24, 0, NULL);
    assert_int_equal(ek_cache_room(&c), 24);
    ek_toy_feed(&t, &c, 24, 24, 0);
    assert_int_equal(ek_cache_room(&c), 0);
    ek_cache_bytes b = ek_cache_count(&c);
    assert_int_equal(b.kv, 2 * 2 * 8 * 24 * 16 * 2);
    assert_int_equal(b.pos, 2 * 8 * 24 * 4);
    assert_int_equal(b.state, 0);
    assert_true(b.block >= b.kv + b.pos && b.block < b.kv + b.pos + 1024);
    ek_toy_plan(&plan, &c);
    choose(&plan, &c, 3, 2, 0);
    ek_ok(ek_cache_apply(&c, &c, -1, &plan, &err), &err);
    b = ek_cache_count(&c);
    assert_int_equal(b.kv, ek_plan_kept(&plan) * 2 * 16 * 2);
    assert_true(ek_plan_kept(&plan) < 2 * 8 * 12);
    ek_plan_close(&plan);
    ek_cache_close(&c);
    ek_toy_close(&t);
}

static void rewinding_forgets_the_newest(void **state)
{
    const ek_measure m = ek_row_of("h2o");
    ek_cache a, b;
    ek_toy t;
    ek_err err;

    (void)state;
    ek_toy_open(&t, 2, 2, 2, 8, EK_BF16);
    ek_toy_cache(&a, &t, 30, 1, &m);
    ek_toy_cache(&b, &t, 30, 0, &m);
    ek_toy_feed(&t, &a, 12, 12, 0);
    ek_toy_feed(&t, &b, 12, 12, 0);
    const ek_lane lane = a.lane[0];
    const int lanes = a.n_lanes;
    a.n_lanes = 0; /* the future is not measured */
    ek_toy_feed(&t, &a, 9, 21, 0);
    a.n_lanes = lanes;
    assert_false(ek_toy_same(&a, &b));
    ek_cache_rewind(&a, 9);
    ek_ok(ek_cache_check(&a, &err), &err);
    assert_true(ek_toy_same(&a, &b));
    assert_ptr_equal(lane.carry, a.lane[0].carry);
    ek_toy_feed(&t, &a, 1, 12, 1);
    ek_toy_feed(&t, &b, 1, 12, 1);
    assert_true(ek_toy_same(&a, &b));
    ek_cache_close(&a);
    ek_cache_close(&b);
    ek_toy_close(&t);
}

static void damage_is_found(void **state)
{
    ek_cache c;
    ek_toy t;
    ek_err err;

    (void)state;
    ek_toy_open(&t, 2, 2, 1, 8, EK_BF16);
    ek_toy_cache(&c, &t, 10, 0, NULL);
    ek_toy_feed(&t, &c, 8, 8, 0);
    ek_ok(ek_cache_check(&c, &err), &err);
    int32_t *pos = c.pos + c.layer_at[1] + c.first[3];
    pos[4] = 3; /* twice */
    assert_int_equal(ek_cache_check(&c, &err), EK_EBROKEN);
    assert_non_null(strstr(err.msg, "layer 1, head 1, slot 4"));
    pos[4] = 4;
    pos[7] = 8; /* not born yet */
    assert_int_equal(ek_cache_check(&c, &err), EK_EBROKEN);
    pos[7] = 7;
    c.n[2] = 11; /* more than fits */
    assert_int_equal(ek_cache_check(&c, &err), EK_EBROKEN);
    ek_cache_close(&c);
    ek_cache_close(&c); /* closed twice is fine */

    const ek_cache_need need = {.dims = t.dims, .cap = -1};
    assert_int_equal(ek_cache_open(&c, &need, t.dev, &err), EK_EASKED);
    assert_null(c.block);
    ek_toy_close(&t);
}

/* Append, plan and apply in a steady loop: no allocation, no growth, no byte of device memory. */
static void steady_loops_allocate_nothing(void **state)
{
    static const char *const names[] = {"snapkv", "h2o", "foresight", "kvpop", "inertiakv_lazy"};
    enum { B = 20, D = 8, H = 2 };
    float kv[H * D], prob[64 * 2];

    (void)state;
    for (int i = 0; i < H * D; i++)
        kv[i] = (float)i / 8;
    for (int i = 0; i < 64 * 2; i++)
        prob[i] = (float)((i * 7) % 13) / 13;
    for (size_t m = 0; m < EK_COUNT(names); m++) {
        char name[32];
        ek_method_set set = ek_method_set_defaults;
        ek_policy_scratch scratch = {0};
        ek_toy_cell cell;
        ek_plan plan;
        ek_cache c;
        ek_toy t;
        ek_err err;
        int64_t count = 0, bytes = 0, grown = 0;

        ek_toy_open(&t, 3, H, 2, D, EK_BF16);
        strcpy(name, names[m]);
        set.name = name;
        ek_toy_cell_open(&cell, &t, &set, EK_AGE_POWER);
        cell.policy.decode = EK_DECODE_HOLD;
        const ek_measure *measure = &cell.policy.method.measure;
        ek_toy_cache(&c, &t, 2 * B, 0, measure);
        ek_ok(ek_plan_open(&plan, &c.dims, 6 * 2 * B, &err), &err);
        ek_toy_feed(&t, &c, B, B, 0);
        for (int64_t s = 1; s <= 120; s++) {
            if (s == 20) { /* warm */
                count = allocations;
                bytes = t.dev->bytes;
                grown = t.dev->work_grown + scratch.grown;
            }
            for (int l = 0; l < 3; l++) {
                ek_view view;

                ek_cache_append(&c, l, kv, H * D, kv, H * D, 1);
                ek_cache_view(&c, l, c.n_lanes > 0 ? 0 : -1, &view);
                if (c.n_lanes > 0) {
                    const ek_memory mem = ek_cache_memory(&c, l, 0);

                    ek_measure_step(measure, t.dev, &view,
                                    ek_measure_wants_prob(measure, s) ? prob : NULL, &mem);
                }
            }
            ek_cache_advance(&c, 1);
            assert_true(ek_policy_due(&cell.policy, EK_AT_STEP, s, s == 1, &c, B));
            ek_ok(
                ek_policy_plan(&cell.policy, &c, c.n_lanes > 0 ? 0 : -1, B, &scratch, &plan, &err),
                &err);
            ek_ok(ek_cache_apply(&c, &c, 0, &plan, &err), &err);
        }
        assert_int_equal(allocations, count);
        assert_int_equal(t.dev->bytes, bytes);
        assert_int_equal(t.dev->work_grown + scratch.grown, grown);
        ek_policy_scratch_close(&scratch);
        ek_plan_close(&plan);
        ek_cache_close(&c);
        ek_toy_cell_close(&cell);
        ek_toy_close(&t);
    }
    free(malloc(1)); /* the count counts */
    assert_true(!COUNTS || allocations > 0);
}

/* Where nothing is cut, rows stay where they are: addresses and bytes over 100 steps. */
static void growing_caches_never_move_rows(void **state)
{
    char before[33], after[33];
    ek_cache c;
    ek_toy t;

    (void)state;
    ek_toy_open(&t, 1, 1, 1, 8, EK_BF16);
    ek_toy_cache(&c, &t, 120, 0, NULL);
    ek_toy_feed(&t, &c, 20, 20, 0);
    const void *k = c.k;
    ek_hash128(before, c.k, 20 * 16);
    for (int64_t s = 1; s <= 100; s++)
        ek_toy_feed(&t, &c, 1, 20, s);
    ek_hash128(after, c.k, 20 * 16);
    assert_ptr_equal(k, c.k);
    assert_string_equal(before, after);
    ek_cache_close(&c);
    ek_toy_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_fork_is_an_eviction_in_place),
        cmocka_unit_test(a_fork_copies_its_own_lane_only),
        cmocka_unit_test(wrong_plans_move_nothing),
        cmocka_unit_test(bytes_are_what_is_kept),
        cmocka_unit_test(rewinding_forgets_the_newest),
        cmocka_unit_test(damage_is_found),
        cmocka_unit_test(steady_loops_allocate_nothing),
        cmocka_unit_test(growing_caches_never_move_rows),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
