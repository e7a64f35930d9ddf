/* core/cpu/key.c - what can be said of keys alone: norms, and distance from the mean direction. */
#include "core/cpu/cpu.h"

#include "core/bf16.h"

#include <math.h>
#include <string.h>

static float key_at(const ek_view *in, size_t i)
{
    return in->dtype == EK_F32 ? ((const float *)in->k)[i]
                               : ek_from_bf16(((const ek_bf16 *)in->k)[i]);
}

static float norm_of(const ek_view *in, int e)
{
    float sum = 0.0f;

    for (int d = 0; d < in->head_dim; d++) {
        const float x = key_at(in, (size_t)e * (size_t)in->head_dim + (size_t)d);

        sum += x * x;
    }
    return sqrtf(sum);
}

static void key_norm_scalar(ek_device *dev, float *out, const ek_view *in)
{
    int64_t total = 0; /* a step asks for the newest key of each head alone: not worth a thread */

    (void)dev;
    for (int h = 0; h < in->n_heads; h++)
        total += in->n[h];
#pragma omp parallel if (total > 256)
    for (int h = 0; h < in->n_heads; h++) {
#pragma omp for schedule(static) nowait
        for (int s = 0; s < in->n[h]; s++)
            out[in->first[h] + s] = norm_of(in, in->first[h] + s);
    }
}

/* The head's mean direction is taken in double and in the order of the slots. */
static void key_diff_head(float *out, const ek_view *in, int h, double *mean)
{
    const int dim = in->head_dim;
    double length = 0.0;

    memset(mean, 0, (size_t)dim * sizeof *mean);
    for (int s = 0; s < in->n[h]; s++) {
        const int e = in->first[h] + s;
        const float norm = norm_of(in, e);

        if (norm == 0.0f) /* no direction; a NaN passes and spreads */
            continue;
        for (int d = 0; d < dim; d++)
            mean[d] += (double)key_at(in, (size_t)e * (size_t)dim + (size_t)d) / (double)norm;
    }
    for (int d = 0; d < dim; d++)
        length += mean[d] * mean[d];
    length = sqrt(length);
    for (int s = 0; s < in->n[h]; s++) {
        const int e = in->first[h] + s;
        const double norm = (double)norm_of(in, e);
        double dot = 0.0;

        for (int d = 0; d < dim; d++)
            dot += mean[d] * (double)key_at(in, (size_t)e * (size_t)dim + (size_t)d);
        out[e] = norm == 0.0 || length == 0.0 ? 0.0f : (float)(-dot / (norm * length));
    }
}

static void key_diff_scalar(ek_device *dev, float *out, const ek_view *in)
{
    const size_t row = ek_lines((size_t)in->head_dim * sizeof(double));
    char *work = ek_device_work(dev, row * (size_t)in->n_heads);

#pragma omp parallel for schedule(dynamic)
    for (int h = 0; h < in->n_heads; h++)
        key_diff_head(out, in, h, (double *)(work + row * (size_t)h));
}

void ek_cpu_key_pick(ek_ops *ops, ek_isa isa)
{
    (void)isa;
    ops->key_norm = key_norm_scalar;
    ops->key_diff = key_diff_scalar;
}
