/* core/cpu/kl.c - rows of logits against base rows.
 *
 * With d = base - x:  kl = (sum exp(base - max) d) / (sum exp(base - max)) - lse_base + lse.  The
 * same exponentials stand above and below, so equal rows give exactly 0. */
#include "core/cpu/cpu.h"

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

static void kl_scalar(ek_device *dev, ek_kl *out, const float *const *base,
                      const float *const *logits, int m, int n_vocab)
{
    (void)dev;
#pragma omp parallel for schedule(static) if (m > 1)
    for (int i = 0; i < m; i++)
        kl_row_scalar(&out[i], base[i], logits[i], n_vocab);
}

void ek_cpu_kl_pick(ek_ops *ops, ek_isa isa)
{
    (void)isa;
    ops->kl = kl_scalar;
}
