/* scorers/carried.h - attention an entry has received so far, as inputs of a learned scorer.
 *
 * What is carried is a few running numbers per entry, made by the prompt's queries through column
 * sums and by decode steps through their probabilities; a training record holds the very same
 * numbers as of its cut.  So features of training and of use cannot differ.  Every carried byte
 * counts as the method's.
 *
 * p_g(i, j): probability of query head g of the entry's kv head.  t queries have been seen in all,
 * query i - 1 being the newest; age = next_pos - pos is how many of them could see the entry.
 *   sum_g    = sum_i p_g(i, j)
 *   slow_g   = EMA at rate .99:  e = .99 e + .01 p_g(i, j)
 *   fast_g   = EMA at rate .97 (the published column is a mean over the last 64 queries, which
 *              would have to remember 64 numbers)
 *   birth_g  = sum over the first 64 queries that see the entry, itself included
 *   last     = mean over g of p_g(newest, j)
 * none:  nothing.
 * ema:   mean over g of slow_g: 1 float, 1 feature.
 * full:  all of them, laid out sum[G] slow[G] fast[G] birth[G] last: 4 G + 1 floats, 8 features:
 *        mean and max over g of sum_g / age, of slow_g, of fast_g; max over g of
 *        birth_g / min(age, 64); last.
 * A feature is log(1e-6 + x). */
#ifndef EK_SCORERS_CARRIED_H
#define EK_SCORERS_CARRIED_H

#include "core/ops.h"
#include "core/real.h"
#include "core/view.h"

typedef enum ek_carried { EK_CARRIED_NONE, EK_CARRIED_EMA, EK_CARRIED_FULL } ek_carried;
extern const char *const ek_carried_names[]; /* "none" "ema" "full", NULL */

enum { EK_CARRIED_BIRTH = 64 };

int ek_carried_floats(int kind, int group); /* per entry */
int ek_carried_features(int kind);          /* inputs of the network */

/* Fold queries of one layer, the first n_q of those chunk describes (view, n_q, q_pos, q, ldq,
 * lse); the view may hold entries younger than the last of them, which stay 0.  Queries must come
 * in order, in chunks of any size.  carry (entries, floats) as in the view; scratch: room for (4,
 * entries, group) floats. */
void ek_carried_fold(int kind, ek_device *dev, const ek_colsum *chunk, float scale, float *carry,
                     float *scratch);
/* Fold one decode query: prob (entries, group); the newest entry of each head is the newborn. */
void ek_carried_step(int kind, ek_device *dev, const ek_view *view, const float *prob,
                     float *carry);
/* The features of one entry: x (features) from its carried floats. */
void ek_carried_read(int kind, int group, const float *carry, int32_t age, ek_real *x);

#endif
