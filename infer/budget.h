/* infer/budget.h - sharing a budget among the heads of a layer or of the model; for infer/policy.c
 * alone. */
#ifndef EK_INFER_BUDGET_H
#define EK_INFER_BUDGET_H

#include "infer/policy.h"
#include "infer/select.h"

/* Lists are numbered layer by layer: list i is of layer i / n_heads, kv head i % n_heads. */
typedef struct ek_share_pool {
    int list, n_lists;    /* from `list` on: those of a layer, or all */
    int n_heads;          /* of a layer */
    const int32_t *first; /* (n_lists) where each starts in score and mask */
    const int32_t *n;     /* (n_lists) */
    float *score;         /* (entries) overwritten */
    uint8_t *mask;        /* (entries) 1 for what is protected or stays, else 0 */
} ek_share_pool;

/* How many lists share one budget: 1, a layer's, or all. */
int ek_share_lists(const ek_method *m, int n_layers, int n_heads);

/* The least of n entries a head keeps: what is protected, or its floor times `entries` (rounded
 * down; a floor has nine decimals); never above n. */
int32_t ek_share_floor(const ek_method *m, int32_t n, int32_t entries);

/* Mark what stays of a pool that holds more than n_lists * entries: so many in all, each head's
 * floor first, then the best of all heads by
 *     score - log sum exp of the head's unprotected scores + log mass of the head;
 * without the second term if the scorer is absolute; of measures of attention, by the score itself.
 * Equal ones: the lower list, then the younger. */
void ek_share_out(const ek_method *m, const ek_share_pool *pool, int32_t entries);

#endif
