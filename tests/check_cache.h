/* tests/check_cache.h - a pretend model for the tests of cache, policy and measures.
 *
 * Keys, values and queries are functions of (seed, layer, head, position), so any two ways to feed
 * the same tokens must agree; attention is the device's own.  Values of a query head do not depend
 * on what the cache holds. */
#ifndef EK_TESTS_CHECK_CACHE_H
#define EK_TESTS_CHECK_CACHE_H

#include "infer/policy.h"

typedef struct ek_toy {
    ek_device *dev; /* owned */
    ek_dims dims;
    ek_dtype dtype;
    uint64_t seed;
} ek_toy;

void ek_toy_open(ek_toy *t, int n_layers, int n_heads, int group, int head_dim, ek_dtype dtype);
void ek_toy_close(ek_toy *t);

/* A method's row with its scorer; parameters of a learned one are random.  Never moves: the method
 * points into it. */
typedef struct ek_toy_cell {
    ek_policy policy;
    ek_scorer scorer;
    ek_real *params; /* owned */
} ek_toy_cell;

void ek_toy_cell_open(ek_toy_cell *cell, const ek_toy *t, const ek_method_set *set, int age);
/* The row of a learned method under another learned class and settings. */
void ek_toy_cell_learned(ek_toy_cell *cell, const ek_toy *t, const ek_method_set *set,
                         const ek_scorer_class *cls, ek_scorer_set scorer);
void ek_toy_cell_close(ek_toy_cell *cell);

/* Room for `room` entries and, with gaps, some more that differ from list to list; a lane if the
 * measure (or NULL) remembers anything. */
void ek_toy_cache(ek_cache *c, const ek_toy *t, int room, int gaps, const ek_measure *m);

/* Feed n tokens.  step 0: they belong to a prompt of n_prompt tokens and lanes take their prefill;
 * else they are decode step number `step` (n is 1) and lanes take that. */
void ek_toy_feed(const ek_toy *t, ek_cache *c, int n, int64_t n_prompt, int64_t step);

/* What layer `layer` asks with, as ek_toy_feed has it: q (n, n_heads * group, head_dim) of
 * positions pos .. pos + n - 1. */
void ek_toy_queries(const ek_toy *t, int layer, int32_t pos, int n, float *q);

/* 1 if both hold the same positions, keys, values and numbers of lane 0, its state included, to the
 * bit. */
int ek_toy_same(const ek_cache *a, const ek_cache *b);

/* A view by hand: one layer of n entries in each of at most 4 heads, lists one behind the other,
 * positions 0 .. n - 1, everything else 0.  k serves as v too. */
typedef struct ek_hand {
    int32_t first[4], n[4], pos[256];
    float carry[1024], prob[1024], k[1024];
    ek_view view;
} ek_hand;

void ek_hand_make(ek_hand *a, int n_heads, int group, int head_dim, int n);
void ek_hand_resize(ek_hand *a, int n); /* fewer entries in each head, or more again */

ek_device *ek_toy_device(void);
ek_measure ek_row_of(const char *method);
void ek_ok(ek_code code, const ek_err *err); /* fails the test with the message */
int ek_near_by(double a, double b, double bound);

/* A plan with room for all that c holds. */
void ek_toy_plan(ek_plan *p, const ek_cache *c);

#endif
