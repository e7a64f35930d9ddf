/* scorers/tova.c - drop what the current token looks at least.
 * Oren et al. 2024 (TOVA).  At the end of prefill the last prompt row decides the whole cut; the
 * current token is not protected. */
#include "scorers/method.h"

const ek_method ek_method_tova = {.name = "tova",
                                  .brief = "attention of the last query, one set per layer",
                                  .paper = "Oren et al. 2024, arXiv 2401.06104",
                                  .measure = {.signal = &ek_scorer_attention,
                                              .queries = 1,
                                              .group = {.by = EK_MEAN, .heads = EK_ALL_HEADS},
                                              .carry = {.kind = EK_CARRY_LAST, .every = 1}},
                                  .budget = EK_SHARE_UNIFORM,
                                  .granularity = EK_SET_PER_LAYER,
                                  .when = {.prefill_end = 1, .every = 1}};
