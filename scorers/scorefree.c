/* scorers/scorefree.c - InertiaKV whose scores are found at the first step and never again.
 * arXiv 2609.03515: the limit of the lazy form; newborns get the mean of the living. */
#include "scorers/method.h"

const ek_method ek_method_scorefree = {
    .name = "scorefree",
    .brief = "InertiaKV, scored at the first step only",
    .paper = "InertiaKV, arXiv 2609.03515",
    .measure = {.signal = &ek_scorer_attention,
                .queries = 1,
                .group = {.by = EK_MEAN, .heads = EK_ALL_HEADS},
                .layers = EK_LAYERS_GEOMETRIC,
                .carry = {.kind = EK_CARRY_EMA, .rate = .8, .every = 0},
                .newborn = EK_NEWBORN_MEAN},
    .budget = EK_SHARE_UNIFORM,
    .granularity = EK_SET_PER_MODEL,
    .when = {.first_step = 1, .every = 1}};
