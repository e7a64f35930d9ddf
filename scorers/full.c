/* scorers/full.c - nothing leaves.  Its row is the ceiling that every table compares with. */
#include "scorers/method.h"

static ek_code score(const ek_scorer *s, const ek_view *in, float *out, ek_err *err)
{
    (void)s;
    (void)err;
    for (int h = 0; h < in->n_heads; h++)
        for (int32_t e = in->first[h]; e < in->first[h] + in->n[h]; e++)
            out[e] = 0;
    return EK_OK;
}

const ek_scorer_class ek_scorer_full = {
    .name = "full", .brief = "0 for every entry", .source = EK_FROM_ENTRIES, .score = score};

const ek_method ek_method_full = {
    .name = "full",
    .brief = "the whole cache, nothing is evicted",
    .paper = "-",
    .measure = {.signal = &ek_scorer_full, .carry = {.kind = EK_CARRY_LAST, .every = 1}},
    .budget = EK_SHARE_UNIFORM,
    .granularity = EK_SET_PER_HEAD};
