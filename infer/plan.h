/* infer/plan.h - what survives.  It can be printed, compared and thrown away; ek_cache_apply is the
 * only function that carries one out.  Survivors keep key and value, or (mapped) their key alone.
 */
#ifndef EK_INFER_PLAN_H
#define EK_INFER_PLAN_H

#include "core/err.h"
#include "core/view.h"

typedef struct ek_plan {
    int n_layers, n_heads; /* list i belongs to layer i / n_heads, kv head i % n_heads */
    /* (n_layers * n_heads + 1) list i is slot[first[i]] .. slot[first[i + 1] - 1] */
    int32_t *first;
    int32_t *of;           /* (n_layers * n_heads) entries the head had when the plan was made */
    int32_t *slot;         /* slots that stay, ascending within a list; not listed: dropped */
    int64_t room;          /* of slot, and of mapped */
    int32_t *mapped_first; /* (n_layers * n_heads + 1) the same of those that lose their value, */
    int32_t *mapped;       /* in `mapped` alone and not in `slot`; ascending within a list */
} ek_plan;

/* Room for `entries` survivors in all, 0 .. INT32_MAX.  The plan is empty: nothing survives. */
ek_code ek_plan_open(ek_plan *p, const ek_dims *dims, int64_t entries, ek_err *err);
void ek_plan_close(ek_plan *p); /* also of a zeroed or closed one */
/* 1 if both keep the same slots in the same forms of the same numbers of entries. */
int ek_plan_same(const ek_plan *a, const ek_plan *b);
int64_t ek_plan_kept(const ek_plan *p); /* with their values */

#endif
