/* core/cpu/key.c - what can be said of keys alone: norms, and distance from the mean direction. */
#include "core/cpu/exp.h"

#include "core/bf16.h"

#include <assert.h>
#include <immintrin.h>
#include <math.h>
#include <string.h>

enum { dim_most = 1024 };

/* ---- scalar: one key as floats, its squared norm, and sums in double ---- */

static void widen_scalar(float *to, const ek_view *in, int e)
{
    const size_t at = (size_t)e * (size_t)in->head_dim;

    if (in->dtype == EK_F32)
        memcpy(to, (const float *)in->k + at, (size_t)in->head_dim * sizeof *to);
    else
        for (int d = 0; d < in->head_dim; d++)
            to[d] = ek_from_bf16(((const ek_bf16 *)in->k)[at + (size_t)d]);
}

static float square_scalar(const float *k, int dim)
{
    float sum = 0.0f;

    for (int d = 0; d < dim; d++)
        sum += k[d] * k[d];
    return sum;
}

static void gather_scalar(double *mean, const float *k, double f, int dim)
{
    for (int d = 0; d < dim; d++)
        mean[d] += f * (double)k[d];
}

static double dot_scalar(const double *mean, const float *k, int dim)
{
    double sum = 0.0;

    for (int d = 0; d < dim; d++)
        sum += mean[d] * (double)k[d];
    return sum;
}

/* ---- AVX2: for dims that are whole registers ---- */

EK_AVX2 static void widen_avx2(float *to, const ek_view *in, int e)
{
    const ek_bf16 *k = (const ek_bf16 *)in->k + (size_t)e * (size_t)in->head_dim;

    if (in->dtype == EK_F32) {
        widen_scalar(to, in, e);
        return;
    }
    for (int d = 0; d < in->head_dim; d += 8)
        _mm256_storeu_si256(
            (__m256i *)(to + d),
            _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(k + d))),
                              16));
}

EK_AVX2 static float square_avx2(const float *k, int dim)
{
    __m256 sum = _mm256_setzero_ps();

    for (int d = 0; d < dim; d += 8)
        sum = _mm256_fmadd_ps(_mm256_loadu_ps(k + d), _mm256_loadu_ps(k + d), sum);
    return ek_sum_avx2(sum);
}

EK_AVX2 static void gather_avx2(double *mean, const float *k, double f, int dim)
{
    for (int d = 0; d < dim; d += 4)
        _mm256_storeu_pd(mean + d,
                         _mm256_fmadd_pd(_mm256_set1_pd(f), _mm256_cvtps_pd(_mm_loadu_ps(k + d)),
                                         _mm256_loadu_pd(mean + d)));
}

EK_AVX2 static double dot_avx2(const double *mean, const float *k, int dim)
{
    __m256d sum = _mm256_setzero_pd();
    double part[4];

    for (int d = 0; d < dim; d += 4)
        sum = _mm256_fmadd_pd(_mm256_loadu_pd(mean + d), _mm256_cvtps_pd(_mm_loadu_ps(k + d)), sum);
    _mm256_storeu_pd(part, sum);
    return (part[0] + part[1]) + (part[2] + part[3]);
}

/* ---- heads over threads ---- */

typedef struct key_kit {
    void (*widen)(float *to, const ek_view *in, int e);
    float (*square)(const float *k, int dim);
    void (*gather)(double *mean, const float *k, double f, int dim);
    double (*dot)(const double *mean, const float *k, int dim);
} key_kit;

static const key_kit *kit_of(ek_isa isa, int dim)
{
    static const key_kit scalar = {widen_scalar, square_scalar, gather_scalar, dot_scalar};
    static const key_kit avx2 = {widen_avx2, square_avx2, gather_avx2, dot_avx2};

    assert(dim <= dim_most);
    return isa >= EK_ISA_AVX2 && dim % 8 == 0 ? &avx2 : &scalar;
}

static void key_norm_heads(ek_device *dev, float *out, const ek_view *in)
{
    const key_kit *kit = kit_of(dev->isa, in->head_dim);

#pragma omp parallel
    for (int h = 0; h < in->n_heads; h++) {
#pragma omp for schedule(static) nowait
        for (int s = 0; s < in->n[h]; s++) {
            float k[dim_most];

            kit->widen(k, in, in->first[h] + s);
            out[in->first[h] + s] = sqrtf(kit->square(k, in->head_dim));
        }
    }
}

/* The head's mean direction is taken in double and in the order of the slots.  Between the two
 * passes out holds the norms. */
static void key_diff_head(const key_kit *kit, float *out, const ek_view *in, int h)
{
    const int dim = in->head_dim;
    double mean[dim_most] = {0}, length = 0.0;
    float k[dim_most];

    for (int e = in->first[h]; e < in->first[h] + in->n[h]; e++) {
        kit->widen(k, in, e);
        out[e] = sqrtf(kit->square(k, dim));
        if (out[e] != 0.0f) /* else it has no direction; a NaN passes and spreads */
            kit->gather(mean, k, 1.0 / (double)out[e], dim);
    }
    for (int d = 0; d < dim; d++)
        length += mean[d] * mean[d];
    length = sqrt(length);
    for (int e = in->first[h]; e < in->first[h] + in->n[h]; e++) {
        const double norm = (double)out[e];

        kit->widen(k, in, e);
        out[e] = norm == 0.0 || length == 0.0 ? 0.0f
                                              : (float)(-kit->dot(mean, k, dim) / (norm * length));
    }
}

static void key_diff_heads(ek_device *dev, float *out, const ek_view *in)
{
    const key_kit *kit = kit_of(dev->isa, in->head_dim);

#pragma omp parallel for schedule(dynamic)
    for (int h = 0; h < in->n_heads; h++)
        key_diff_head(kit, out, in, h);
}

void ek_cpu_key_pick(ek_ops *ops, ek_isa isa)
{
    (void)isa; /* the forms differ in their kit alone */
    ops->key_norm = key_norm_heads;
    ops->key_diff = key_diff_heads;
}
