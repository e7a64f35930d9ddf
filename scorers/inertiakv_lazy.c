/* scorers/inertiakv_lazy.c - InertiaKV whose scores move at every fourth step only.
 * arXiv 2609.03515: in between a newborn gets the mean of the living and eviction goes on. */
#include "scorers/method.h"

const ek_method ek_method_inertiakv_lazy = {
    .name = "inertiakv_lazy",
    .brief = "InertiaKV, scores refreshed at steps 1, 5, 9, ...",
    .paper = "InertiaKV, arXiv 2609.03515",
    .measure = {.signal = &ek_scorer_attention,
                .queries = 1,
                .group = {.by = EK_MEAN, .heads = EK_ALL_HEADS},
                .layers = EK_LAYERS_GEOMETRIC,
                .carry = {.kind = EK_CARRY_EMA, .rate = .8, .every = 4},
                .newborn = EK_NEWBORN_MEAN},
    .budget = EK_SHARE_UNIFORM,
    .granularity = EK_SET_PER_MODEL,
    .when = {.first_step = 1, .every = 1}};
