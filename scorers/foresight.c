/* scorers/foresight.c - keep what a trained scorer expects to receive attention from now on.
 * This program's own.  The scorer learns the mass of future attention, not its logarithm, sees
 * the age of an entry, and is calibrated, so that all heads of the model share one budget: a few
 * look far back and need most of the context, most need little. */
#include "scorers/method.h"

const ek_method ek_method_foresight = {
    .name = "foresight",
    .brief = "a trained scorer of key, value, age and past attention; all heads share one budget",
    .paper = "this program's own",
    .measure = {.signal = &ek_scorer_mlp, .carry = {.kind = EK_CARRY_ONCE, .every = 1}},
    .protect = {.sinks = 4, .recent = 64},
    .budget = EK_SHARE_MODEL,
    .floor = EK_SHARE_FLOOR,
    .granularity = EK_SET_PER_HEAD,
    .when = {.prefill_end = 1, .every = 64},
};
