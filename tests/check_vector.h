/* tests/check_vector.h - what the tests of lost values stand on: a tiny model, every method that
 * cuts, maps, and rebuilt values in double, from the formula. */
#ifndef EK_TESTS_CHECK_VECTOR_H
#define EK_TESTS_CHECK_VECTOR_H

#include "tests/check_model.h"

#include "infer/engine.h"
#include "infer/vector.h"

enum {
    EK_RIG_PROMPT = 130,
    EK_RIG_QUESTION = 9,
    EK_RIG_STEPS = 12,
    EK_RIG_GROW = EK_RIG_QUESTION + EK_RIG_STEPS,
    EK_RIG_METHODS = 40
};

/* Every method with its scorer, and three more: Foresight whose heads share a layer's budget, and
 * with carried columns; KVpop with its memory.  Never moves. */
typedef struct ek_rig {
    ek_check_model m;
    ek_engine *e;
    int n; /* methods */
    ek_method method[EK_RIG_METHODS];
    ek_scorer scorer[EK_RIG_METHODS];
    ek_real *params[EK_RIG_METHODS];
    const ek_measure *lane[EK_RIG_METHODS];
    int n_lanes;
    ek_maps maps[2];                          /* of heads; joint */
    int32_t tok[EK_RIG_PROMPT + EK_RIG_GROW]; /* of the prompt and of what is decoded */
} ek_rig;

void ek_rig_open(ek_rig *g, ek_dtype storage);
void ek_rig_close(ek_rig *g);
ek_method ek_rig_method(const ek_rig *g, const char *name);
/* A cache that holds the prompt, with every method's lane. */
void ek_rig_prompt(ek_rig *g, ek_cache *c);

/* v (head_dim, at most 64): v^ of slot s of a list. */
void ek_rebuilt_value(const ek_rig *g, const ek_maps *maps, const ek_cache *c, int list, int32_t s,
                      double *v);
/* eps of slot s of a list; square: ||v||^2. */
double ek_rebuilt_error(const ek_rig *g, const ek_maps *maps, const ek_cache *c, int list,
                        int32_t s, double *square);

/* A method that cuts once to so many entries; maps: NULL for the host alone. */
ek_policy ek_with_vector(const ek_method *m, const ek_maps *maps, int32_t entries);

#endif
