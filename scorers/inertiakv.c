/* scorers/inertiakv.c - one slowly moving score per position, for the whole model.
 * InertiaKV, arXiv 2609.03515: the last query's attention, averaged over heads, is folded layer by
 * layer and step by step into one vector, m = .8 m + .2 s.  Nothing leaves before the first decode
 * step, which then drops the whole surplus at once.  All layers take part. */
#include "scorers/method.h"

const ek_method ek_method_inertiakv = {
    .name = "inertiakv",
    .brief = "one moving average over layers and steps, one set for the model",
    .paper = "InertiaKV, arXiv 2609.03515",
    .measure = {.signal = &ek_scorer_attention,
                .queries = 1,
                .group = {.by = EK_MEAN, .heads = EK_ALL_HEADS},
                .layers = EK_LAYERS_GEOMETRIC,
                .carry = {.kind = EK_CARRY_EMA, .rate = .8, .every = 1},
                .newborn = EK_NEWBORN_OWN},
    .budget = EK_SHARE_UNIFORM,
    .granularity = EK_SET_PER_MODEL,
    .when = {.first_step = 1, .every = 1}};
