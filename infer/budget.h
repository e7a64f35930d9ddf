/* infer/budget.h - sharing a layer's budget among its heads; for infer/policy.c alone. */
#ifndef EK_INFER_BUDGET_H
#define EK_INFER_BUDGET_H

#include "infer/policy.h"
#include "infer/select.h"

/* The least of n entries a head keeps: what is protected, or a fifth of `entries`; never above n.
 */
int32_t ek_share_floor(const ek_method *m, int32_t n, int32_t entries);

/* Mark what stays of one layer, n_heads * entries in all (the layer holds more): each head's floor
 * first, then the best of all heads by
 *     score - log sum exp of the head's unprotected scores + log mass of the head.
 * score (entries) is overwritten; mask (entries) holds 1 for what is protected, else 0. */
void ek_share_layer(const ek_method *m, const ek_view *in, int32_t entries, float *score,
                    uint8_t *mask);

#endif
