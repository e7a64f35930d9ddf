/* scorers/attention.c - the signal of attention itself.
 * Nothing to compute here: scorers/measure.c folds probabilities into the carry as they come. */
#include "scorers/scorer.h"

const ek_scorer_class ek_scorer_attention = {
    .name = "attention", .brief = "what queries paid to the entry", .source = EK_FROM_ATTENTION};
