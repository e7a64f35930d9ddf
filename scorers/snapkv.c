/* scorers/snapkv.c - keep what the last queries of the prompt looked at, smoothed over neighbours.
 * Li et al. 2024 (SnapKV).  Difference: the query heads of a group are averaged, so that a kv head
 * keeps one set. */
#include "scorers/method.h"

const ek_method ek_method_snapkv = {
    .name = "snapkv",
    .brief = "attention of the prompt's last queries, pooled over neighbours",
    .paper = "Li et al. 2024, arXiv 2404.14469",
    .measure = {.signal = &ek_scorer_attention,
                .queries = 64,
                .group = {.by = EK_MEAN},
                .pool = {.kind = EK_POOL_AVG, .size = 5},
                .carry = {.kind = EK_CARRY_ONCE, .every = 1}},
    .protect = {.recent_window = 1}, /* a mask: the window's own scores are not touched */
    .budget = EK_SHARE_UNIFORM,
    .granularity = EK_SET_PER_HEAD,
    .when = {.prefill_end = 1}};
