/* scorers/age.h - how a learned score falls with age, and how heads compare.
 *
 *     exp           p = r + age log gamma_h,  log gamma_h = LO + sigmoid(age.alpha) (HI - LO)
 *     power, input  p = r - softplus(age.beta) log age
 * age = next_pos - pos.  gamma lies within [.99, .999999] and starts at .999: a frozen base model
 * needs a faster decay than the published [.9999, 1).  beta starts at 1.
 *
 * Every learned scorer ends its tensors with log_mass and, unless EK_AGE_NONE, one of the above. */
#ifndef EK_SCORERS_AGE_H
#define EK_SCORERS_AGE_H

#include "scorers/scorer.h"

/* log max(age, 1) of an entry. */
double ek_log_age(const ek_view *in, int64_t entry);

/* Writes the last tensors' descriptions and returns their number, 1 or 2. */
int ek_age_describe(const ek_scorer *s, ek_param *out);
/* Start values of all layers and heads; log_mass stays 0. */
void ek_age_init(const ek_scorer *s, ek_real *params);

/* Head h of the view: p[j] = r[j] + the age term at view.next_pos, all (n[h]); p may be r. */
void ek_age_add(const ek_scorer *s, const ek_view *in, int h, const ek_real *r, ek_real *p);
/* Its gradient: adds the age parameter's part of dp (n[h]) to dparams.  dp/dr = 1: the caller's. */
void ek_age_back(const ek_scorer *s, const ek_view *in, int h, const ek_real *dp, ek_real *dparams);
/* Under EK_AGE_EXP, else 0: targets are ranked with it. */
ek_real ek_age_log_gamma(const ek_scorer *s, int layer, int h);
/* log of the mass of attention that a head gives to what may be evicted; makes softmaxed scores of
 * different heads comparable.  The trainer measures it. */
ek_real ek_age_log_mass(const ek_scorer *s, int layer, int h);

#endif
