/* tests/check_given.h - plans over scores that a test puts in, and the plain sort to check them by.
 *
 * The "given" scorer counts as learned: heads that share a budget are ranked by the scores and
 * their mass. */
#ifndef EK_TESTS_CHECK_GIVEN_H
#define EK_TESTS_CHECK_GIVEN_H

#include "tests/check_cache.h"

extern float ek_given_score[4096]; /* of kv head h, at 512 h + 128 layer + position */
extern float ek_given_mass[32];    /* log mass of a head, at 8 layer + h */

typedef struct ek_given { /* one cache of n entries under a policy over given scores */
    ek_toy t;
    ek_cache c;
    ek_plan plan;
    ek_scorer scorer;
    ek_policy p;
    ek_policy_scratch scratch;
} ek_given;

/* Scores and masses become 0; nothing is protected, nobody shares.  Never moves. */
void ek_given_open(ek_given *g, int n_layers, int n_heads, int n);
void ek_given_close(ek_given *g);
/* Plan g->c into g->plan. */
ek_code ek_given_plan(ek_given *g, int32_t entries, ek_err *err);

typedef struct ek_ranked {
    float x;
    int range; /* list */
    int32_t e; /* entry */
} ek_ranked;

/* For qsort: the larger x, then the lower range, then the younger entry comes first. */
int ek_ranked_better(const void *a, const void *b);

#endif
