/* scorers/keydiff.c - keep the keys that point away from the others.
 * Park et al. 2025 (KeyDiff).  The anchor is the mean of the present keys' directions, so a score
 * changes with its neighbours and is found afresh at every plan. */
#include "scorers/method.h"

static ek_code score(const ek_scorer *s, const ek_view *in, float *out, ek_err *err)
{
    (void)err;
    s->dev->ops.key_diff(s->dev, out, in);
    return EK_OK;
}

const ek_scorer_class ek_scorer_keydiff = {.name = "keydiff",
                                           .brief =
                                               "minus the cosine to the mean direction of the keys",
                                           .source = EK_FROM_ENTRIES,
                                           .score = score};

const ek_method ek_method_keydiff = {
    .name = "keydiff",
    .brief = "keys unlike the others first",
    .paper = "Park et al. 2025, arXiv 2504.15364",
    .measure = {.signal = &ek_scorer_keydiff, .carry = {.kind = EK_CARRY_LAST, .every = 1}},
    .budget = EK_SHARE_UNIFORM,
    .granularity = EK_SET_PER_HEAD,
    .when = {.prefill_end = 1, .every = 1}};
