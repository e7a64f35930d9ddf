/* scorers/recency.c - the younger, the better: a sliding window. */
#include "scorers/method.h"

static ek_code score(const ek_scorer *s, const ek_view *in, float *out, ek_err *err)
{
    (void)s;
    (void)err;
    for (int h = 0; h < in->n_heads; h++)
        for (int32_t e = in->first[h]; e < in->first[h] + in->n[h]; e++)
            out[e] = (float)in->pos[e]; /* exact below 2^24 */
    return EK_OK;
}

const ek_scorer_class ek_scorer_recency = {
    .name = "recency", .brief = "the position", .source = EK_FROM_ENTRIES, .score = score};

const ek_method ek_method_recency = {
    .name = "recency",
    .brief = "the latest entries: a sliding window",
    .paper = "-",
    .measure = {.signal = &ek_scorer_recency, .carry = {.kind = EK_CARRY_LAST, .every = 1}},
    .budget = EK_SHARE_UNIFORM,
    .granularity = EK_SET_PER_HEAD,
    .when = {.prefill_end = 1, .every = 1}};
