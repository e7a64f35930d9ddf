/* scorers/h2o.c - half the budget to the heaviest entries, half to the latest.
 * Zhang et al. 2023 (H2O): attention summed over all queries so far, the prompt's included.
 * Difference: the query heads of a group are averaged, so that a kv head keeps one set. */
#include "scorers/method.h"

const ek_method ek_method_h2o = {
    .name = "h2o",
    .brief = "heavy hitters: attention summed over all queries, and the latest half",
    .paper = "Zhang et al. 2023, arXiv 2306.14048",
    .measure = {.signal = &ek_scorer_attention,
                .group = {.by = EK_MEAN},
                .carry = {.kind = EK_CARRY_SUM, .every = 1}},
    .protect = {.recent_half = 1},
    .budget = EK_SHARE_UNIFORM,
    .granularity = EK_SET_PER_HEAD,
    .when = {.prefill_end = 1, .every = 1}};
