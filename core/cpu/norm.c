/* core/cpu/norm.c - root-mean-square normalisation of rows. */
#include "core/cpu/exp.h"

#include <math.h>

static void row_scalar(float *out, const float *x, const float *w, int d, float eps)
{
    float sum = 0.0f, r;

    for (int i = 0; i < d; i++)
        sum += x[i] * x[i];
    r = 1.0f / sqrtf(sum / (float)d + eps);
    for (int i = 0; i < d; i++)
        out[i] = x[i] * r * w[i];
}

EK_AVX2 static void row_avx2(float *out, const float *x, const float *w, int d, float eps)
{
    __m256 acc = _mm256_setzero_ps(), r8;
    float sum, r;
    int i = 0;

    for (; i + 8 <= d; i += 8)
        acc = _mm256_fmadd_ps(_mm256_loadu_ps(x + i), _mm256_loadu_ps(x + i), acc);
    sum = ek_sum_avx2(acc);
    for (; i < d; i++)
        sum += x[i] * x[i];
    r = 1.0f / sqrtf(sum / (float)d + eps);
    r8 = _mm256_set1_ps(r);
    for (i = 0; i + 8 <= d; i += 8)
        _mm256_storeu_ps(out + i, _mm256_mul_ps(_mm256_mul_ps(_mm256_loadu_ps(x + i), r8),
                                                _mm256_loadu_ps(w + i)));
    for (; i < d; i++)
        out[i] = x[i] * r * w[i];
}

typedef void row_fn(float *out, const float *x, const float *w, int d, float eps);

static void rows(row_fn *row, float *out, const float *x, const float *w, int m, int d, float eps)
{
#pragma omp parallel for schedule(static) if ((int64_t)m * d > 32768)
    for (int i = 0; i < m; i++)
        row(out + (size_t)i * (size_t)d, x + (size_t)i * (size_t)d, w, d, eps);
}

static void rms_norm_scalar(ek_device *dev, float *out, const float *x, const float *w, int m,
                            int d, float eps)
{
    (void)dev;
    rows(row_scalar, out, x, w, m, d, eps);
}

static void rms_norm_avx2(ek_device *dev, float *out, const float *x, const float *w, int m, int d,
                          float eps)
{
    (void)dev;
    rows(row_avx2, out, x, w, m, d, eps);
}

void ek_cpu_norm_pick(ek_ops *ops, ek_isa isa)
{
    ops->rms_norm = isa >= EK_ISA_AVX2 ? rms_norm_avx2 : rms_norm_scalar;
}
