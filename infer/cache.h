/* infer/cache.h - the KV cache of one sequence.
 *
 * Each (layer, kv head) keeps its own entries.  A key stays rotated for the position it was born
 * with, so removing its neighbour never touches it.  Only four functions write here:
 * ek_cache_append and ek_cache_advance (the model), ek_cache_apply (a plan), ek_cache_rewind.
 * Lanes are written by measures through ek_cache_memory.
 *
 * Entries that keep their key and have lost their value (VECTOR) live apart, in the annex: it is
 * filled once, when a plan is carried out by a fork, and never written again.  A map rebuilds what
 * their values add to attention; no room is held for values there.
 *
 * Invariants, checked by ek_cache_check in the tests after each of them:
 *     0 <= n[l][h] <= cap[l][h];  pos ascending, distinct, < next_pos within a head;
 *     the same of the annex, and no position is in both.
 *
 * Bytes: an entry costs 2 x head_dim x element size (key and value) plus 4 (its position) plus
 * 4 x n_carry for each lane; one of the annex costs a key and a position.  A lane's state costs 4 x
 * n_state per (layer, kv head) whatever is held. */
#ifndef EK_INFER_CACHE_H
#define EK_INFER_CACHE_H

#include "infer/maps.h"
#include "infer/plan.h"
#include "scorers/measure.h"

/* One measure's memory of this sequence.  A sequence that decodes has at most one lane; the prompt
 * that serves a whole grid has one per distinct measure, and a fork takes its own along. */
typedef struct ek_lane {
    const ek_measure *measure; /* borrowed */
    int n_carry;
    int shared;     /* ek_measure_is_shared(measure) */
    size_t n_state; /* ek_measure_n_state(measure) */
    float *carry;   /* (entries, n_carry) over all layers; shared: layer 0 head 0 only */
    float *state;   /* (n_layers, n_heads, n_state): what a learned scorer has read; NULL if none */
} ek_lane;

/* Keys without values; columns as the cache's own.  infer/annex.c alone writes here. */
typedef struct ek_annex {
    const ek_maps *maps; /* borrowed; NULL: there is no annex */
    int64_t *layer_at;
    int32_t *first, *n, *cap, *pos;
    void *k;
} ek_annex;

typedef struct ek_cache_need {
    ek_dims dims;
    ek_dtype dtype;
    int32_t cap;         /* entries per (layer, head), */
    const int32_t *caps; /* or (n_layers, n_heads) of them; NULL: cap */
    int n_lanes;
    const ek_measure *const *measures; /* (n_lanes) with n_carry > 0 each */
    const int32_t *mapped;             /* (n_layers, n_heads) room of the annex; NULL: none */
    const ek_maps *maps;               /* what rebuilds its values; borrowed */
} ek_cache_need;

typedef struct ek_cache {
    ek_dims dims;
    ek_dtype dtype;
    ek_device *dev;   /* borrowed */
    int32_t next_pos; /* of the next token; evicting never moves it back */
    int n_lanes;
    int64_t *layer_at; /* (n_layers + 1) index of a layer's first entry in the columns below */
    int32_t *first, *n, *cap; /* (n_layers, n_heads); first counts from the layer's beginning */
    int32_t *pos;             /* (entries) */
    ek_form *form;            /* NULL: all exact */
    float *bias;              /* NULL: all 0 */
    void *k, *v;              /* (entries, head_dim) of dtype */
    ek_lane *lane;            /* (n_lanes) */
    ek_annex annex;
    void *block; /* the one block all of the above point into; owned */
    size_t block_bytes;
} ek_cache;

typedef struct ek_cache_bytes {
    int64_t kv;    /* keys and values of living entries */
    int64_t pos;   /* their positions */
    int64_t state; /* lanes: carries of living entries, states of heads */
    int64_t block; /* what is really allocated, unused capacity included */
} ek_cache_bytes;

/* All sizes are settled here; nothing is allocated later.  On failure c is as if closed. */
ek_code ek_cache_open(ek_cache *c, const ek_cache_need *need, ek_device *dev, ek_err *err);
void ek_cache_close(ek_cache *c); /* also of a zeroed or closed one */

/* One layer, with the carry of a lane (lane < 0: none).  Of the annex: see infer/annex.h. */
void ek_cache_view(const ek_cache *c, int layer, int lane, ek_view *out);
/* A layer of a lane, to be written by its measure; lane < 0: nothing. */
ek_memory ek_cache_memory(ek_cache *c, int layer, int lane);
/* All that a lane remembers becomes 0. */
void ek_cache_clear(ek_cache *c, int lane);

/* Put n_new tokens' keys and values (n_new, n_heads, head_dim), row strides ldk and ldv, behind the
 * entries of one layer; carry of the new entries is 0.  The caller has made sure of room
 * (ek_cache_room).  After the last layer, advance moves next_pos. */
void ek_cache_append(ek_cache *c, int layer, const float *k, size_t ldk, const float *v, size_t ldv,
                     int n_new);
void ek_cache_advance(ek_cache *c, int n_new);
int32_t ek_cache_room(const ek_cache *c); /* tokens that still fit in every head */

/* Forget the newest n tokens of every head, which must all still be there; next_pos moves back.
 * Lanes are not undone: only for tokens that no measure has looked at. */
void ek_cache_rewind(ek_cache *c, int n);

/* Carry out a plan: `to` becomes what the plan says of `from`.  to == from evicts in place; another
 * `to` (open, with room) is a fork that copies only what is kept, with lane `lane` of `from` as its
 * lane 0 (if `to` has one), its state included, and `from` stays whole.  In place all lanes move
 * along, and states stay what they are.  Entries lose their values in a fork only, of a cache
 * without annex.  EK_EBROKEN if the plan does not fit: other sizes, made for another number of
 * entries, slots out of order, no room, a lane that remembers something else, or a shared lane
 * under lists that differ; then both caches are as before. */
ek_code ek_cache_apply(ek_cache *to, const ek_cache *from, int lane, const ek_plan *plan,
                       ek_err *err);

ek_code ek_cache_check(const ek_cache *c, ek_err *err);
ek_cache_bytes ek_cache_count(const ek_cache *c);
int64_t ek_cache_entries(const ek_cache *c); /* living, with values, over layers and heads */
int64_t ek_cache_mapped(const ek_cache *c);  /* those of the annex */

#endif
