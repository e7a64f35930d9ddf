/* infer/vector.h - which values are lost: VECTOR, an add-on for methods that cut once.
 *
 * Of n entries under a budget of B the host keeps a pool of B + a,
 *     a = min(B - P, floor(min(n - B, B) / 2))
 * where P counts what is protected, position 0 always among it.  Of the pool's unprotected entries
 * the 2 a whose value is best rebuilt by the model's map lose it: keys and values together are 2 B
 * vectors, as of B whole entries; positions are a more.  a = 0: the host's own plan.  A method may
 * use a part of a only (`approximate`, rounded down): where much is protected, all others would
 * lose their values.
 *     eps_j = || v_j - W x_j - b ||^2      x_j = R_pos^-1 k_j
 * `select` says whose value goes first:
 *     error      least eps
 *     relative   least eps / ||v||^2
 *     weighted   least (score eps), for scores that are attention or (learned) its logarithm
 *     score      least score, whatever eps: those at the border of eviction
 * Equal ones: the older loses its value.  Joint maps need every head's key, so there the heads of a
 * layer keep one set and lose the same values, by the sum of their eps.  Where n heads share a
 * budget, the 2 a n least of them all lose theirs, whatever head they are of. */
#ifndef EK_INFER_VECTOR_H
#define EK_INFER_VECTOR_H

#include "infer/policy.h"

/* Open the maps that a set asks for with `rest: vector` and hang them into the method; nothing is
 * done for other sets.  EK_EASKED too where maps and method, or the regime, do not go together. */
ek_code ek_vector_open(ek_maps *maps, ek_method *method, const ek_method_set *set, ek_decode decode,
                       const ek_maps_need *need, ek_err *err);

/* a of one head of n entries, and of several: the least of them.  0 without maps. */
int32_t ek_vector_a(const ek_method *m, int32_t n, int32_t entries);
int32_t ek_vector_more(const ek_method *m, const int32_t *n, int n_lists, int32_t entries);

typedef struct ek_vector_pool { /* what the host's plan left of a layer, or of all */
    int layer, n_layers;
    const uint8_t *mask;  /* 1: in the pool; (entries), */
    const int32_t *first; /* (n_layers, n_heads) where each head's marks start */
    const float *score;   /* likewise, as they were ranked */
    const int32_t *own;   /* (n_layers, n_heads) where each head may have its own: no two overlap */
    int32_t entries, more; /* B and a */
} ek_vector_pool;

/* Close the lists of these layers of a plan for c: which of the pool keep their values and which do
 * not.  EK_ENAN naming layer, head and position of an eps that is no number. */
ek_code ek_vector_split(const ek_method *m, const ek_cache *c, const ek_vector_pool *pool,
                        ek_vector_scratch *s, ek_plan *out, ek_err *err);
void ek_vector_scratch_close(ek_vector_scratch *s);

/* eps of the given slots of one head (joint: of all heads together, head is ignored), out (n).
 * square: NULL, or room for ||v||^2 (n). */
ek_code ek_vector_errors(const ek_maps *maps, ek_device *dev, const ek_dims *dims,
                         const ek_view *view, int head, const int32_t *slot, int32_t n, float *out,
                         float *square, ek_err *err);

#endif
