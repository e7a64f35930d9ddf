/* scorers/streaming.c - the first entries, which act as attention sinks, and the latest.
 * Xiao et al. 2023 (StreamingLLM).  Difference: positions inside the cache are not re-numbered, so
 * runs past the model's trained length are not comparable to the paper's. */
#include "scorers/method.h"

const ek_method ek_method_streaming = {
    .name = "streaming",
    .brief = "StreamingLLM: 4 sinks and the latest entries",
    .paper = "Xiao et al. 2023, arXiv 2309.17453",
    .measure = {.signal = &ek_scorer_recency, .carry = {.kind = EK_CARRY_LAST, .every = 1}},
    .protect = {.sinks = 4},
    .budget = EK_SHARE_UNIFORM,
    .granularity = EK_SET_PER_HEAD,
    .when = {.prefill_end = 1, .every = 1}};
