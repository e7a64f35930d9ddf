/* scorers/kvpop.c - keep what a trained scorer expects to be looked at after it leaves the window.
 * KVpop, arXiv 2607.05061.  Difference: the base model is frozen, prompts run with
 * full attention and are cut once at their end. */
#include "scorers/method.h"

const ek_method ek_method_kvpop = {
    .name = "kvpop",
    .brief = "a trained scorer per head, static priorities that fade",
    .paper = "KVpop, arXiv 2607.05061",
    .measure = {.signal = &ek_scorer_mlp, .carry = {.kind = EK_CARRY_ONCE, .every = 1}},
    .protect = {.sinks = 4, .recent = 64},
    .budget = EK_SHARE_UNIFORM,
    .granularity = EK_SET_PER_HEAD,
    .when = {.prefill_end = 1, .every = 1},
};
