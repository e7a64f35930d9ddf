/* core/cpu/attn.c - attention of new queries over ragged rows of cached entries. */
#include "core/cpu/cpu.h"

#include "core/bf16.h"

#include <math.h>
#include <string.h>

static float item(const void *x, ek_dtype type, size_t i)
{
    return type == EK_F32 ? ((const float *)x)[i] : ek_from_bf16(((const ek_bf16 *)x)[i]);
}

static float meet(float x, ek_dtype type)
{
    return type == EK_F32 ? x : ek_from_bf16(ek_to_bf16(x));
}

/* scale * q . k + bias of slot s of head h. */
static float logit(const ek_view *in, const float *q, int h, int s, float scale)
{
    const size_t e = (size_t)(in->first[h] + s), dim = (size_t)in->head_dim;
    float sum = 0.0f;

    for (size_t d = 0; d < dim; d++)
        sum += meet(q[d], in->dtype) * item(in->k, in->dtype, e * dim + d);
    return in->bias ? sum * scale + in->bias[e] : sum * scale;
}

/* One query of one head over its first n slots: the plain form, two passes over the keys. */
static void attend_scalar(const ek_view *in, const float *q, int h, int n, float scale, float *out,
                          float *lse)
{
    const size_t dim = (size_t)in->head_dim;
    float max = -INFINITY, sum = 0.0f;

    memset(out, 0, dim * sizeof *out);
    for (int s = 0; s < n; s++)
        max = fmaxf(max, logit(in, q, h, s, scale));
    for (int s = 0; s < n && max > -INFINITY; s++) {
        const size_t e = (size_t)(in->first[h] + s);
        const float p = expf(logit(in, q, h, s, scale) - max), met = meet(p, in->dtype);

        sum += p;
        for (size_t d = 0; d < dim; d++)
            out[d] += met * item(in->v, in->dtype, e * dim + d);
    }
    for (size_t d = 0; d < dim && sum != 0.0f; d++)
        out[d] /= sum;
    *lse = sum != 0.0f ? max + logf(sum) : -INFINITY;
}

static void attn_scalar(ek_device *dev, const ek_attn_row *rows, int n_rows, float scale,
                        size_t ldq, size_t ldo)
{
    (void)dev;
    for (int r = 0; r < n_rows; r++) {
        const ek_attn_row *row = &rows[r];
        const ek_view *in = &row->view;
        const int heads = in->n_heads * in->group;

#pragma omp parallel for schedule(dynamic) collapse(2)
        for (int t = 0; t < row->n_new; t++)
            for (int x = 0; x < heads; x++) {
                const int h = x / in->group, n = in->n[h] - row->n_new + t + 1;
                const size_t at = (size_t)x * (size_t)in->head_dim;
                const float *q = row->q + (size_t)t * ldq + at;
                float *lse = row->lse + (size_t)t * (size_t)heads + x;

                attend_scalar(in, q, h, n, scale, row->out + (size_t)t * ldo + at, lse);
                for (int s = 0; row->prob && t == row->n_new - 1 && s < n; s++)
                    row->prob[(size_t)(in->first[h] + s) * (size_t)in->group +
                              (size_t)(x % in->group)] = expf(logit(in, q, h, s, scale) - *lse);
            }
    }
}

void ek_cpu_attn_pick(ek_ops *ops, ek_isa isa)
{
    (void)isa;
    ops->attn = attn_scalar;
}
