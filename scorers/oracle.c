/* scorers/oracle.c - what the future will really look at.
 * The evaluator runs the true continuation over the full cache and puts the mean attention of its
 * queries into the carry, one number per query head; the largest of a group decides.
 * An upper reference: not selectable outside `evaluate`. */
#include "scorers/method.h"

const ek_scorer_class ek_scorer_oracle = {
    .name = "oracle", .brief = "mean attention of the true future", .source = EK_FROM_FUTURE};

const ek_method ek_method_oracle = {.name = "oracle",
                                    .brief = "the true future attention: a ceiling, not a method",
                                    .paper = "-",
                                    .measure = {.signal = &ek_scorer_oracle,
                                                .group = {.by = EK_MAX},
                                                .carry = {.kind = EK_CARRY_ONCE, .every = 1}},
                                    .budget = EK_SHARE_UNIFORM,
                                    .granularity = EK_SET_PER_HEAD,
                                    .when = {.prefill_end = 1}};
