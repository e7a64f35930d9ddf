/* core/cpu/norm.c - root-mean-square normalisation of rows. */
#include "core/cpu/cpu.h"

#include <math.h>

static void norm_row_scalar(float *out, const float *x, const float *w, int d, float eps)
{
    float sum = 0.0f, r;

    for (int i = 0; i < d; i++)
        sum += x[i] * x[i];
    r = 1.0f / sqrtf(sum / (float)d + eps);
    for (int i = 0; i < d; i++)
        out[i] = x[i] * r * w[i];
}

static void rms_norm_scalar(ek_device *dev, float *out, const float *x, const float *w, int m,
                            int d, float eps)
{
    (void)dev;
#pragma omp parallel for schedule(static) if ((int64_t)m * d > 16384)
    for (int i = 0; i < m; i++)
        norm_row_scalar(out + (size_t)i * (size_t)d, x + (size_t)i * (size_t)d, w, d, eps);
}

void ek_cpu_norm_pick(ek_ops *ops, ek_isa isa)
{
    (void)isa;
    ops->rms_norm = rms_norm_scalar;
}
