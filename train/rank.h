/* train/rank.h - order within a head: which tokens the k best are, at every position at once.
 *
 * With static priorities a token that falls out of the k best never returns, so a
 * sequence needs one sort and one scan.  Positions count from 0 to n-1; sinks s, window w (the
 * current token included), k older tokens kept.  Eligible at query i: s <= j <= i - w.  Equal
 * priorities: the younger token is better. */
#ifndef EK_TRAIN_RANK_H
#define EK_TRAIN_RANK_H

#include "core/err.h"

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ek_rank {
    int n, sinks, recent, keep;
    int32_t *rank;  /* (n) place of a token among sinks .. n-1, 0 is best; -1 for sinks */
    int32_t *order; /* (n) the token at a place */
    int32_t *tau;   /* (n) place of the k-th best eligible token at query i; -1: all are kept */
    int32_t *next;  /* (n) place of the (k+1)-th best; -1: there is none */
    int32_t *evict; /* (n) first query that no longer sees the token; n: never */
    int32_t *tree;  /* (n + 1) Fenwick counts */
    void *block;    /* owned */
} ek_rank;

/* Room for sequences of up to n tokens. */
ek_code ek_rank_open(ek_rank *r, int n, ek_err *err);
void ek_rank_close(ek_rank *r);

/* Rank n tokens (at most as many as opened for) by static priority a (n); NaN counts as -inf. */
void ek_rank_run(ek_rank *r, const float *a, int n, int sinks, int recent, int keep);

/* 1 if query i sees token j under the rule. */
int ek_rank_visible(const ek_rank *r, int i, int j);

/* The decision at query i: does the token that has just become eligible stay?  Needs at least
 * keep + 1 eligible tokens, so i >= sinks + recent + keep. */
typedef struct ek_decision {
    int newborn;  /* i - recent */
    int y;        /* +1: among the k best; -1 */
    int boundary; /* the k-th best */
    int partner;  /* the boundary; the best dropped token if the newborn is the boundary */
    int leaver;   /* of those kept before and the newborn, the one that goes now */
} ek_decision;
ek_decision ek_rank_decide(const ek_rank *r, int i);

/* The same eviction times by a heap of the k best, as the running cache does it: evict (n).  heap:
 * room for keep numbers. */
void ek_rank_heap(int32_t *evict, const float *a, int n, int sinks, int recent, int keep,
                  int32_t *heap);

#ifdef __cplusplus
}
#endif
#endif
