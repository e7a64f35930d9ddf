/* core/cpu/colsum.c - column sums of attention. */
#include "core/cpu/cpu.h"

#include "core/bf16.h"

#include <math.h>

/* One entry: the queries that may look at it, in order. */
static void column_scalar(const ek_colsum *c, int h, int e, float scale)
{
    const ek_view *in = &c->view;
    const int dim = in->head_dim, heads = in->n_heads * in->group;
    const int64_t from = (int64_t)in->pos[e] + c->delay - c->q_pos;
    const int64_t to = c->horizon < 0 ? c->n_q - 1 : from + c->horizon;

    for (int64_t i = from < 0 ? 0 : from; i < c->n_q && i <= to; i++) {
        int used = !c->weight;

        for (int s = 0; s < c->n_sets && !used; s++)
            used = c->weight[(size_t)s * (size_t)c->n_q + (size_t)i] != 0.0f;
        for (int g = 0; used && g < in->group; g++) {
            const int x = h * in->group + g;
            const float *q = c->q + (size_t)i * c->ldq + (size_t)x * (size_t)dim;
            float sum = 0.0f, p;

            for (int d = 0; d < dim; d++) {
                const size_t at = (size_t)e * (size_t)dim + (size_t)d;

                sum += in->dtype == EK_F32 ? q[d] * ((const float *)in->k)[at]
                                           : ek_from_bf16(ek_to_bf16(q[d])) *
                                                 ek_from_bf16(((const ek_bf16 *)in->k)[at]);
            }
            p = expf(sum * scale + (in->bias ? in->bias[e] : 0.0f) -
                     c->lse[(size_t)i * (size_t)heads + (size_t)x]);
            for (int s = 0; s < c->n_sets; s++)
                c->sum[s][(size_t)e * (size_t)in->group + (size_t)g] +=
                    c->weight ? c->weight[(size_t)s * (size_t)c->n_q + (size_t)i] * p : p;
        }
    }
}

static void colsum_scalar(ek_device *dev, const ek_colsum *c, float scale)
{
    (void)dev;
    for (int h = 0; h < c->view.n_heads; h++) {
#pragma omp parallel for schedule(dynamic, 16)
        for (int s = 0; s < c->view.n[h]; s++)
            column_scalar(c, h, c->view.first[h] + s, scale);
    }
}

void ek_cpu_colsum_pick(ek_ops *ops, ek_isa isa)
{
    (void)isa;
    ops->colsum = colsum_scalar;
}
