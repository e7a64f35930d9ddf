/* infer/plan.c - see plan.h. */
#include "infer/plan.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

ek_code ek_plan_open(ek_plan *p, const ek_dims *dims, int64_t entries, ek_err *err)
{
    const size_t lists = (size_t)dims->n_layers * (size_t)dims->n_heads;
    const size_t head = 3 * lists + 2; /* first, of, mapped_first */
    int32_t *block;

    if (entries < 0 || entries > INT32_MAX)
        return EK_FAIL(err, EK_EASKED, "plan: found %" PRId64 " survivors, expected 0 .. %d",
                       entries, INT32_MAX);
    block = calloc(head + 2 * (size_t)entries, sizeof *block);
    if (block == NULL)
        return EK_FAIL(err, EK_ENOMEM, "plan of %" PRId64 " survivors", entries);
    *p = (ek_plan){.n_layers = dims->n_layers,
                   .n_heads = dims->n_heads,
                   .first = block,
                   .of = block + lists + 1,
                   .mapped_first = block + 2 * lists + 1,
                   .slot = block + head,
                   .mapped = block + head + entries,
                   .room = entries};
    return EK_OK;
}

void ek_plan_close(ek_plan *p)
{
    free(p->first);
    *p = (ek_plan){0};
}

int ek_plan_same(const ek_plan *a, const ek_plan *b)
{
    const size_t lists = (size_t)a->n_layers * (size_t)a->n_heads;

    return a->n_layers == b->n_layers && a->n_heads == b->n_heads &&
           memcmp(a->first, b->first, (lists + 1) * sizeof *a->first) == 0 &&
           memcmp(a->of, b->of, lists * sizeof *a->of) == 0 &&
           memcmp(a->slot, b->slot, (size_t)a->first[lists] * sizeof *a->slot) == 0 &&
           memcmp(a->mapped_first, b->mapped_first, (lists + 1) * sizeof *a->mapped_first) == 0 &&
           memcmp(a->mapped, b->mapped, (size_t)a->mapped_first[lists] * sizeof *a->mapped) == 0;
}

int64_t ek_plan_kept(const ek_plan *p)
{
    return p->first[p->n_layers * p->n_heads];
}
