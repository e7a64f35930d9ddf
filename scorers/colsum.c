/* scorers/colsum.c - see colsum.h. */
#include "scorers/colsum.h"

#include <string.h>

ek_colsum ek_colsum_part(const ek_colsum *c, int from, int to)
{
    ek_colsum part = *c;

    part.n_q = to - from;
    part.q_pos = c->q_pos + from;
    part.q = c->q + (size_t)from * c->ldq;
    part.lse = c->lse + (size_t)from * (size_t)(c->view.n_heads * c->view.group);
    part.n_sets = 1;
    part.weight = NULL;
    part.delay = 0;
    part.horizon = -1;
    return part;
}

void ek_colsum_clear(const ek_view *v, float *sum)
{
    for (int h = 0; h < v->n_heads; h++)
        memset(sum + (size_t)v->first[h] * (size_t)v->group, 0,
               (size_t)v->n[h] * (size_t)v->group * sizeof *sum);
}

void ek_colsum_set(ek_device *dev, ek_colsum *part, float scale, float *sum)
{
    part->sum = &sum;
    ek_colsum_clear(&part->view, sum);
    dev->ops.colsum(dev, part, scale);
    part->sum = NULL;
}
