#include "tests/naive.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Nearest bf16, ties to even, by arithmetic on the value and not on its bits. */
static double nearest_bf16(double x)
{
    int e;
    double scaled;

    if (x == 0.0 || !isfinite(x))
        return x;
    (void)frexp(x, &e);
    scaled = ldexp(x, 8 - e); /* eight significant bits in front of the point */
    return ldexp(nearbyint(scaled), e - 8);
}

double ek_naive_meet(float x, ek_dtype type)
{
    return type == EK_F32 ? (double)x : nearest_bf16((double)x);
}

double ek_naive_item(const void *x, ek_dtype type, size_t i)
{
    uint32_t bits;
    float f;

    if (type == EK_F32)
        return (double)((const float *)x)[i];
    bits = (uint32_t)((const ek_bf16 *)x)[i] << 16;
    memcpy(&f, &bits, sizeof f);
    return (double)f;
}

void ek_naive_matmul(double *out, double *terms, const float *x, size_t ldx, const float *w,
                     ek_dtype type, int m, int n, int k)
{
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++) {
            double sum = 0.0, abs = 0.0;

            for (int l = 0; l < k; l++) {
                const double term = ek_naive_meet(x[(size_t)i * ldx + (size_t)l], type) *
                                    ek_naive_meet(w[(size_t)j * (size_t)k + (size_t)l], type);

                sum += term;
                abs += fabs(term);
            }
            out[(size_t)i * (size_t)n + (size_t)j] = sum;
            terms[(size_t)i * (size_t)n + (size_t)j] = abs;
        }
}

void ek_naive_gemm(double *out, double *terms, const float *a, size_t lda, int ta, const float *b,
                   size_t ldb, int tb, int m, int n, int k)
{
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++) {
            double sum = 0.0, abs = 0.0;

            for (int l = 0; l < k; l++) {
                const float x =
                    ta ? a[(size_t)l * lda + (size_t)i] : a[(size_t)i * lda + (size_t)l];
                const float y =
                    tb ? b[(size_t)j * ldb + (size_t)l] : b[(size_t)l * ldb + (size_t)j];

                sum += (double)x * (double)y;
                abs += fabs((double)x * (double)y);
            }
            out[(size_t)i * (size_t)n + (size_t)j] = sum;
            terms[(size_t)i * (size_t)n + (size_t)j] = abs;
        }
}

void ek_naive_rms_norm(double *out, const float *x, const float *w, int d, double eps)
{
    double sum = 0.0;

    for (int i = 0; i < d; i++)
        sum += (double)x[i] * (double)x[i];
    for (int i = 0; i < d; i++)
        out[i] = (double)x[i] / sqrt(sum / d + eps) * (double)w[i];
}

void ek_naive_rope(double *out, const float *x, int head_dim, int32_t pos, const double *inv_freq)
{
    const int half = head_dim / 2;

    for (int i = 0; i < half; i++) {
        const double angle = pos * inv_freq[i], a = (double)x[i], b = (double)x[i + half];

        out[i] = a * cos(angle) - b * sin(angle);
        out[i + half] = a * sin(angle) + b * cos(angle);
    }
}

double ek_naive_silu(double x)
{
    return x / (1.0 + exp(-x));
}

double ek_naive_silu_back(double x, double dy)
{
    const double s = 1.0 / (1.0 + exp(-x));

    return dy * (s + x * s * (1.0 - s));
}

/* scale q . k_e + bias_e, the query rounded as the keys' storage asks. */
static double logit(const ek_view *in, const float *q, int e, double scale)
{
    double dot = 0.0;

    for (int d = 0; d < in->head_dim; d++)
        dot += ek_naive_meet(q[d], in->dtype) *
               ek_naive_item(in->k, in->dtype, (size_t)e * (size_t)in->head_dim + (size_t)d);
    return dot * scale + (in->bias ? (double)in->bias[e] : 0.0);
}

double ek_naive_attend(double *out, double *prob, const ek_view *in, const float *q, int x, int n,
                       double scale)
{
    const int first = in->first[x / in->group], dim = in->head_dim;
    double *met = malloc(sizeof *met * (size_t)(dim + n)), *z = met + dim;
    double max = -INFINITY, sum = 0.0;

    for (int d = 0; d < dim; d++) {
        met[d] = ek_naive_meet(q[d], in->dtype);
        out[d] = 0.0;
    }
    for (int s = 0; s < n; s++) {
        z[s] = 0.0;
        for (int d = 0; d < dim; d++)
            z[s] += met[d] *
                    ek_naive_item(in->k, in->dtype, (size_t)(first + s) * (size_t)dim + (size_t)d);
        z[s] = z[s] * scale + (in->bias ? (double)in->bias[first + s] : 0.0);
        max = fmax(max, z[s]);
    }
    for (int s = 0; s < n; s++)
        sum += exp(z[s] - max);
    for (int s = 0; s < n; s++) {
        const double p = exp(z[s] - max) / sum;

        if (prob)
            prob[s] = p;
        for (int d = 0; d < dim; d++)
            out[d] +=
                p * ek_naive_item(in->v, in->dtype, (size_t)(first + s) * (size_t)dim + (size_t)d);
    }
    free(met);
    return n > 0 ? max + log(sum) : -INFINITY;
}

/* v^ of slot s of head h, and the sum of its absolute terms. */
static void mapped_value(double *v, double *terms, const ek_mapped_row *row, int h, int s,
                         const double *inv_freq)
{
    const ek_view *in = &row->view;
    const int dim = in->head_dim, n = row->joint ? in->n_heads * dim : dim, half = dim / 2;

    for (int d = 0; d < dim; d++) {
        v[d] = (double)row->b[h * dim + d];
        terms[d] = fabs(v[d]);
    }
    for (int g = row->joint ? 0 : h, from = 0; from < n; g++, from += dim) {
        const size_t e = (size_t)(in->first[g] + s);

        for (int i = 0; i < half; i++) {
            const double angle = (double)in->pos[e] * inv_freq[i];
            const double a = ek_naive_item(in->k, in->dtype, e * (size_t)dim + (size_t)i);
            const double b = ek_naive_item(in->k, in->dtype, e * (size_t)dim + (size_t)(half + i));
            const double x[2] = {a * cos(angle) + b * sin(angle), b * cos(angle) - a * sin(angle)};

            for (int d = 0; d < dim; d++)
                for (int p = 0; p < 2; p++) {
                    const size_t at =
                        (size_t)(h * dim + d) * (size_t)n + (size_t)(from + i + p * half);

                    v[d] += (double)row->w[at] * x[p];
                    terms[d] += fabs((double)row->w[at]) * (fabs(a) + fabs(b));
                }
        }
    }
}

double ek_naive_mapped(double *out, double *terms, const ek_mapped_row *row, const float *q, int x,
                       double scale, const double *inv_freq, double lse)
{
    const ek_view *in = &row->view;
    const int h = x / in->group, n = in->n[h], dim = in->head_dim;
    double *z = malloc((size_t)(n + 1) * sizeof *z), max = lse, sum;
    double *v = malloc(2 * (size_t)dim * sizeof *v);

    for (int s = 0; s < n; s++) {
        z[s] = logit(in, q, in->first[h] + s, scale);
        max = fmax(max, z[s]);
    }
    sum = exp(lse - max);
    for (int s = 0; s < n; s++)
        sum += exp(z[s] - max);
    for (int d = 0; d < dim && max > -INFINITY; d++) {
        out[d] *= exp(lse - max) / sum;
        if (terms)
            terms[d] = fabs(out[d]);
    }
    for (int s = 0; s < n; s++) {
        mapped_value(v, v + dim, row, h, s, inv_freq);
        for (int d = 0; d < dim; d++) {
            out[d] += exp(z[s] - max) / sum * v[d];
            if (terms)
                terms[d] += exp(z[s] - max) / sum * v[dim + d];
        }
    }
    free(z);
    free(v);
    return max > -INFINITY ? max + log(sum) : max;
}

double ek_naive_colsum(const ek_colsum *c, int set, int h, int e, int g, double scale)
{
    const ek_view *in = &c->view;
    const int heads = in->n_heads * in->group, x = h * in->group + g;
    double sum = 0.0;

    for (int i = 0; i < c->n_q; i++) {
        const int64_t at = c->q_pos + i, from = (int64_t)in->pos[e] + c->delay;
        const double w =
            c->weight ? (double)c->weight[(size_t)set * (size_t)c->n_q + (size_t)i] : 1.0;
        const float *q = c->q + (size_t)i * c->ldq + (size_t)x * (size_t)in->head_dim;

        if (from > at || (c->horizon >= 0 && at > from + c->horizon) || w == 0.0)
            continue;
        sum +=
            w * exp(logit(in, q, e, scale) - (double)c->lse[(size_t)i * (size_t)heads + (size_t)x]);
    }
    return sum;
}

void ek_naive_kl(ek_kl *out, const float *base, const float *x, int n)
{
    double max_base = -INFINITY, max = -INFINITY, sum_base = 0.0, sum = 0.0, kl = 0.0;

    *out = (ek_kl){0};
    for (int i = 0; i < n; i++) {
        if ((double)base[i] > max_base) {
            max_base = (double)base[i];
            out->top_base = i;
        }
        if ((double)x[i] > max) {
            max = (double)x[i];
            out->top = i;
        }
    }
    for (int i = 0; i < n; i++) {
        sum_base += exp((double)base[i] - max_base);
        sum += exp((double)x[i] - max);
    }
    out->lse_base = max_base + log(sum_base);
    out->lse = max + log(sum);
    for (int i = 0; i < n; i++) {
        const double ln_p = (double)base[i] - out->lse_base, ln_q = (double)x[i] - out->lse;

        if (exp(ln_p) != 0.0)
            kl += exp(ln_p) * (ln_p - ln_q);
    }
    out->kl = kl;
}

double ek_naive_key_norm(const ek_view *in, int e)
{
    double sum = 0.0;

    for (int d = 0; d < in->head_dim; d++) {
        const double x =
            ek_naive_item(in->k, in->dtype, (size_t)e * (size_t)in->head_dim + (size_t)d);

        sum += x * x;
    }
    return sqrt(sum);
}

double ek_naive_key_diff(const ek_view *in, int h, int e)
{
    double dot = 0.0, length = 0.0;

    for (int d = 0; d < in->head_dim; d++) {
        double mean = 0.0;

        for (int s = 0; s < in->n[h]; s++) {
            const int j = in->first[h] + s;
            const double norm = ek_naive_key_norm(in, j);

            if (norm > 0.0)
                mean +=
                    ek_naive_item(in->k, in->dtype, (size_t)j * (size_t)in->head_dim + (size_t)d) /
                    norm / in->n[h];
        }
        length += mean * mean;
        dot += mean * ek_naive_item(in->k, in->dtype, (size_t)e * (size_t)in->head_dim + (size_t)d);
    }
    if (length == 0.0 || ek_naive_key_norm(in, e) == 0.0)
        return 0.0;
    return -dot / (sqrt(length) * ek_naive_key_norm(in, e));
}
