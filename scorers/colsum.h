/* scorers/colsum.h - attention of a prompt's queries, part by part, through column sums. */
#ifndef EK_SCORERS_COLSUM_H
#define EK_SCORERS_COLSUM_H

#include "core/device.h"

/* Queries from .. to - 1 of a chunk, each weighing 1, with causal attention. */
ek_colsum ek_colsum_part(const ek_colsum *c, int from, int to);
/* sum (entries, group) of the view's entries becomes 0; between two heads nothing is written. */
void ek_colsum_clear(const ek_view *v, float *sum);
/* Set sum (entries, group) to those of a part that has one set of weights. */
void ek_colsum_set(ek_device *dev, ek_colsum *part, float scale, float *sum);

#endif
