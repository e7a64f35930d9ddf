/* core/cpu/kl.c - rows of logits against base rows.
 *
 * With d = base - x:  kl = (sum exp(base - max) d) / (sum exp(base - max)) - lse_base + lse.  The
 * same exponentials stand above and below, so equal rows give exactly 0. */
#include "core/cpu/exp.h"

#include <math.h>

static int top_of(const float *x, int n)
{
    int top = 0;

    for (int i = 1; i < n; i++)
        if (x[i] > x[top])
            top = i;
    return top;
}

static void kl_row_scalar(ek_kl *out, const float *base, const float *x, int n)
{
    double sum_base = 0.0, sum = 0.0, diff = 0.0;

    out->top_base = top_of(base, n);
    out->top = top_of(x, n);
    for (int i = 0; i < n; i++) {
        const double p = (double)expf(base[i] - base[out->top_base]);

        sum_base += p;
        sum += (double)expf(x[i] - x[out->top]);
        if (p != 0.0) /* 0 ln 0 is 0, also where both are -inf */
            diff += p * ((double)base[i] - (double)x[i]);
    }
    out->lse_base = (double)base[out->top_base] + log(sum_base);
    out->lse = (double)x[out->top] + log(sum);
    out->kl = diff / sum_base - out->lse_base + out->lse;
}

/* ---- wide forms: runs of 1024 are summed in fp32, runs in double ---- */

enum { run_most = 1024 };

typedef struct sums {
    double base, x, diff;
} sums;

EK_AVX2 static float max_avx2(const float *x, int n)
{
    __m256 max = _mm256_set1_ps(-INFINITY);
    float top;
    int i = 0;

    for (; i + 8 <= n; i += 8)
        max = _mm256_max_ps(max, _mm256_loadu_ps(x + i));
    top = ek_max_avx2(max);
    for (; i < n; i++)
        top = x[i] > top ? x[i] : top;
    return top;
}

/* A NaN is never the top; it shows in the sums. */
static int first_of(const float *x, int n, float value)
{
    for (int i = 0; i < n; i++)
        if (x[i] == value)
            return i;
    return 0;
}

EK_AVX2 static void sum_run_avx2(sums *s, const float *base, const float *x, int n, float top_base,
                                 float top)
{
    __m256 sum_base = _mm256_setzero_ps(), sum = sum_base, diff = sum_base;
    const __m256 zero = sum_base;
    int i = 0;

    for (; i + 8 <= n; i += 8) {
        const __m256 b = _mm256_loadu_ps(base + i), v = _mm256_loadu_ps(x + i);
        const __m256 p = ek_exp_avx2(_mm256_sub_ps(b, _mm256_set1_ps(top_base)));
        const __m256 term = _mm256_mul_ps(p, _mm256_sub_ps(b, v));

        sum_base = _mm256_add_ps(sum_base, p);
        sum = _mm256_add_ps(sum, ek_exp_avx2(_mm256_sub_ps(v, _mm256_set1_ps(top))));
        diff = _mm256_add_ps(diff, _mm256_and_ps(term, _mm256_cmp_ps(p, zero, _CMP_NEQ_UQ)));
    }
    s->base += (double)ek_sum_avx2(sum_base);
    s->x += (double)ek_sum_avx2(sum);
    s->diff += (double)ek_sum_avx2(diff);
    for (; i < n; i++) {
        const float p = expf(base[i] - top_base);

        s->base += (double)p;
        s->x += (double)expf(x[i] - top);
        s->diff += p != 0.0f ? (double)p * (double)(base[i] - x[i]) : 0.0;
    }
}

EK_AVX512 static void sum_run_avx512(sums *s, const float *base, const float *x, int n,
                                     float top_base, float top)
{
    __m512 sum_base = _mm512_setzero_ps(), sum = sum_base, diff = sum_base;

    for (int i = 0; i < n; i += 16) {
        const __mmask16 real = (__mmask16)(n - i < 16 ? (1u << (n - i)) - 1 : 0xffffu);
        const __m512 none = _mm512_set1_ps(-INFINITY);
        const __m512 b = _mm512_mask_loadu_ps(none, real, base + i);
        const __m512 v = _mm512_mask_loadu_ps(none, real, x + i);
        const __m512 p = ek_exp_avx512(_mm512_sub_ps(b, _mm512_set1_ps(top_base)));
        const __mmask16 some = _mm512_cmp_ps_mask(p, _mm512_setzero_ps(), _CMP_NEQ_UQ);

        sum_base = _mm512_add_ps(sum_base, p);
        sum = _mm512_add_ps(sum, ek_exp_avx512(_mm512_sub_ps(v, _mm512_set1_ps(top))));
        diff = _mm512_mask3_fmadd_ps(p, _mm512_sub_ps(b, v), diff, some);
    }
    s->base += (double)ek_sum_avx512(sum_base);
    s->x += (double)ek_sum_avx512(sum);
    s->diff += (double)ek_sum_avx512(diff);
}

typedef void run_fn(sums *s, const float *base, const float *x, int n, float top_base, float top);

static void kl_row_wide(run_fn *run, ek_kl *out, const float *base, const float *x, int n)
{
    const float top_base = max_avx2(base, n), top = max_avx2(x, n);
    sums s = {0};

    out->top_base = first_of(base, n, top_base);
    out->top = first_of(x, n, top);
    for (int i = 0; i < n; i += run_most)
        run(&s, base + i, x + i, n - i < run_most ? n - i : run_most, top_base, top);
    out->lse_base = (double)top_base + log(s.base);
    out->lse = (double)top + log(s.x);
    out->kl = s.diff / s.base - out->lse_base + out->lse;
}

/* ---- rows over threads ---- */

static void kl_rows(ek_device *dev, ek_kl *out, const float *const *base,
                    const float *const *logits, int m, int n_vocab)
{
    run_fn *run = dev->isa >= EK_ISA_AVX512 ? sum_run_avx512 : sum_run_avx2;

#pragma omp parallel for schedule(static) if (m > 1)
    for (int i = 0; i < m; i++)
        if (dev->isa >= EK_ISA_AVX2)
            kl_row_wide(run, &out[i], base[i], logits[i], n_vocab);
        else
            kl_row_scalar(&out[i], base[i], logits[i], n_vocab);
}

void ek_cpu_kl_pick(ek_ops *ops, ek_isa isa)
{
    (void)isa; /* kl_rows asks the device which row it takes */
    ops->kl = kl_rows;
}
