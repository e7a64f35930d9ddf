/* scorers/knorm.c - keep the keys of small norm.
 * Devoto et al. 2024: keys that receive much attention tend to have a small norm, and a norm needs
 * no query, so this is the cheapest rule that looks at the entries at all. */
#include "scorers/method.h"

static ek_code score(const ek_scorer *s, const ek_view *in, float *out, ek_err *err)
{
    (void)err;
    s->dev->ops.key_norm(s->dev, out, in);
    for (int h = 0; h < in->n_heads; h++)
        for (int32_t e = in->first[h]; e < in->first[h] + in->n[h]; e++)
            out[e] = -out[e];
    return EK_OK;
}

const ek_scorer_class ek_scorer_knorm = {.name = "knorm",
                                         .brief = "minus the norm of the key",
                                         .source = EK_FROM_ENTRIES,
                                         .score = score};

const ek_method ek_method_knorm = {
    .name = "knorm",
    .brief = "small key norms first",
    .paper = "Devoto et al. 2024, arXiv 2406.11430",
    .measure = {.signal = &ek_scorer_knorm, .carry = {.kind = EK_CARRY_ONCE, .every = 1}},
    .budget = EK_SHARE_UNIFORM,
    .granularity = EK_SET_PER_HEAD,
    .when = {.prefill_end = 1, .every = 1}};
