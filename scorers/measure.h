/* scorers/measure.h - how signals are combined over heads, neighbours, layers and time.
 *
 * A measure's memory of a sequence is its lane: n_carry floats per entry (0 if the score is found
 * afresh whenever it is asked for), and n_state numbers per head where a learned scorer remembers
 * what it has read.  Three moments:
 *   prefill   new entries are scored once (learned, key norm) or taken into the scorer's memory, or
 *             column sums of the prompt's queries are folded into the carry, chunk by chunk
 *   step      one decode query's probabilities are folded in, layer by layer, in layer order;
 *             a measure of entries scores the newborn, or its memory takes it in
 *   score     the carry (or the entry) becomes one number per entry, pooled over neighbours
 * A lane must see every entry: after each forward over prompt or question tokens the caller calls
 * prefill for each layer, after each decode step it calls step. */
#ifndef EK_SCORERS_MEASURE_H
#define EK_SCORERS_MEASURE_H

#include "scorers/method.h"

/* One layer of a lane, as the measure writes it. */
typedef struct ek_memory {
    float *carry;  /* (entries, n_carry) as in the view; NULL if the lane is shared, or none */
    float *shared; /* (entries of head 0) of a measure with one state; NULL if not shared */
    float *state;  /* (n_heads, n_state); NULL if n_state is 0 */
} ek_memory;

/* Floats of carry per entry: 0, 1, or group (combine by max, and max pooling before any combining,
 * must remember each query head).  Of entries: 1 if carry is EK_CARRY_ONCE and the score of an
 * entry never changes (ek_scorer_is_static), what scorers/carried.h says of a learned scorer with
 * carried columns, else 0. */
int ek_measure_n_carry(const ek_measure *m, int group);

/* Numbers of a learned scorer's memory per (layer, kv head); 0: it has none. */
size_t ek_measure_n_state(const ek_measure *m);

/* Floats of scratch per entry that prefill wants. */
int ek_measure_n_scratch(const ek_measure *m, int group);

/* 1 if all layers and heads share one state, kept in the carry of layer 0, kv head 0. */
int ek_measure_is_shared(const ek_measure *m);

/* 1 if decode steps must hand over probabilities at step t (t counts generated tokens from 1). */
int ek_measure_wants_prob(const ek_measure *m, int64_t t);

/* 1 if two measures remember the same, so that one lane serves both. */
int ek_measure_same(const ek_measure *a, const ek_measure *b);

/* Fold one chunk of prompt queries of one layer.  chunk: view, n_q, q_pos, q, ldq, lse filled in
 * (view, n_q and q_pos suffice for measures of entries), its queries being the newest n_q entries
 * of each head; scale: of the model's logits; n_prompt: the prompt's whole length, known from the
 * start; mem: this layer.  Measures with one state take in the prompt's last query, as a cut before
 * the first decode step needs it (a cut at that step starts from a cleared state).  scratch: room
 * for (entries, n_scratch) floats. */
void ek_measure_prefill(const ek_measure *m, ek_device *dev, const ek_colsum *chunk, float scale,
                        int64_t n_prompt, const ek_memory *mem, float *scratch);

/* Fold one decode step of one layer.  prob (entries, group); the newest entry of each head is the
 * newborn, whose carry starts at 0.  prob NULL: a step without update (Lazy), newborns only.
 * The score of an entry that a memory reads later than its birth stays 0 until then; protection
 * covers it (ek_method.protect.recent is at least the delay). */
void ek_measure_step(const ek_measure *m, ek_device *dev, const ek_view *view, const float *prob,
                     const ek_memory *mem);

/* One number per entry of one layer; view->carry is this layer's carry (shared: the one state), or
 * NULL: a measure of entries then reads the entries, with the same result; EK_EBROKEN if the score
 * needs what only a lane holds.  Window measures (carry once) pool over what is older than the
 * window only.  EK_ENAN naming layer, head and position if a score is NaN or +inf. */
ek_code ek_measure_score(const ek_measure *m, ek_device *dev, const ek_view *view, float *out,
                         ek_err *err);

#endif
