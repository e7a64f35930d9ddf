/* core/cpu/silu.c - the activation, its derivative, and exponentials with their sum. */
#include "core/cpu/cpu.h"

#include <math.h>

static void silu_scalar(float *y, const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] = x[i] / (1.0f + expf(-x[i]));
}

static void silu_back_scalar(float *dx, const float *x, const float *dy, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const float s = 1.0f / (1.0f + expf(-x[i]));

        dx[i] = dy[i] * s * (1.0f + x[i] * (1.0f - s));
    }
}

static double exp_sum_scalar(float *y, const float *x, float shift, size_t n)
{
    double sum = 0.0;

    for (size_t i = 0; i < n; i++) {
        y[i] = expf(x[i] - shift);
        sum += (double)y[i];
    }
    return sum;
}

static void silu_mul_row_scalar(float *out, const float *gate, const float *up, int n)
{
    for (int i = 0; i < n; i++)
        out[i] = gate[i] / (1.0f + expf(-gate[i])) * up[i];
}

static void silu_mul_scalar(ek_device *dev, float *out, const float *x, int m, int ff)
{
    (void)dev;
#pragma omp parallel for schedule(static) if ((int64_t)m * ff > 8192)
    for (int i = 0; i < m; i++) {
        const float *gate = x + (size_t)i * 2 * (size_t)ff;

        silu_mul_row_scalar(out + (size_t)i * (size_t)ff, gate, gate + ff, ff);
    }
}

void ek_cpu_silu_pick(ek_ops *ops, ek_isa isa)
{
    (void)isa;
    ops->silu = silu_scalar;
    ops->silu_back = silu_back_scalar;
    ops->exp_sum = exp_sum_scalar;
    ops->silu_mul = silu_mul_scalar;
}
