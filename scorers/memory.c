/* scorers/memory.c - see the header. */
#include "scorers/memory.h"

#include <assert.h>
#include <math.h>
#include <string.h>

enum { CHUNK = EK_MEMORY_CHUNK };

static ek_real dot(const ek_real *a, const ek_real *b, int n)
{
    ek_real sum = 0;

#pragma omp simd reduction(+ : sum)
    for (int i = 0; i < n; i++)
        sum += a[i] * b[i];
    return sum;
}

static double log_sigmoid(double x)
{
    return (x < 0 ? x : 0) - log1p(exp(-fabs(x)));
}

static int is_empty(const ek_real *z, int d)
{
    for (int i = 0; i < d; i++)
        if (z[i] > 0 || z[i] < 0)
            return 0;
    return 1;
}

void ek_memory_features(ek_device *dev, ek_real *y, const ek_real *z, size_t ldz, int rows,
                        int parts, int dv)
{
    ek_real *to = y;

    for (int i = 0; i < rows; i++)
        for (int p = 0; p < parts; p++, to += 2 * dv) {
            const ek_real *from = z + (size_t)i * ldz + (size_t)p * (size_t)dv;
            ek_real lo = from[0], hi = from[0];

#pragma omp simd reduction(min : lo) reduction(max : hi)
            for (int c = 0; c < dv; c++) {
                lo = from[c] < lo ? from[c] : lo;
                hi = from[c] > hi ? from[c] : hi;
            }
            for (int c = 0; c < dv; c++) {
                to[c] = from[c] - hi;
                to[dv + c] = lo - from[c];
            }
        }
    ek_real_exp_sum(dev, y, y, 0, (size_t)rows * (size_t)parts * 2 * (size_t)dv);
    for (size_t i = 0; i < (size_t)rows * (size_t)parts * 2; i++, y += dv) {
        ek_real sum = 0;

#pragma omp simd reduction(+ : sum)
        for (int c = 0; c < dv; c++)
            sum += y[c];
        sum = 1 / sum;
        for (int c = 0; c < dv; c++)
            y[c] *= sum;
    }
}

void ek_memory_features_back(ek_real *dz, size_t ldz, const ek_real *y, size_t ldy,
                             const ek_real *dy, int rows, int dv)
{
    for (int i = 0; i < rows; i++, dz += ldz, y += ldy, dy += 2 * dv) {
        const ek_real *minus = y + dv, *dminus = dy + dv;
        ek_real a = 0, b = 0;

#pragma omp simd reduction(+ : a, b)
        for (int c = 0; c < dv; c++) {
            a += y[c] * dy[c];
            b += minus[c] * dminus[c];
        }
        for (int c = 0; c < dv; c++)
            dz[c] = y[c] * (dy[c] - a) - minus[c] * (dminus[c] - b);
    }
}

/* What the gates make of a chunk, in double: log weights grow with the chunk's sum of log f, and
 * only their small differences matter. */
typedef struct weights {
    double in;         /* log weight of the state before the chunk, -inf if empty */
    double b[CHUNK];   /* log weight of token s: log in_s - F_s */
    double top[CHUNK]; /* the greatest of `in` and b_0 .. b_t */
    double fade;       /* F after the last token */
} weights;

static void weigh(const ek_memory_chunk *c, const ek_real *from, weights *w)
{
    const ek_real *z = from + (size_t)c->d * (size_t)c->dv;
    double top;

    w->in = is_empty(z, c->d) ? -INFINITY : (double)z[c->d];
    w->fade = 0;
    top = w->in;
    for (int t = 0; t < c->n; t++) {
        w->fade += log_sigmoid((double)c->gate[2 * t + 1]);
        w->b[t] = (double)c->gate[2 * t] - w->fade;
        top = w->b[t] > top ? w->b[t] : top;
        w->top[t] = top;
    }
}

/* The weights of every token in every read, 0 for those that come later. */
static void weigh_reads(const ek_memory_chunk *c, const weights *w)
{
    for (int i = 0; i < c->n_q; i++) {
        ek_real *row = c->weight + (size_t)i * CHUNK;
        const int t = c->at[i];
        const double top = w->top[t];

        for (int s = 0; s <= t; s++)
            row[s] = (ek_real)(w->b[s] - top);
        for (int s = t + 1; s < CHUNK; s++)
            row[s] = -(ek_real)INFINITY;
        c->carry[i] = (ek_real)exp(w->in - top);
    }
    ek_real_exp_sum(c->dev, c->weight, c->weight, 0, (size_t)c->n_q * CHUNK);
}

static void read_all(const ek_memory_chunk *c, const ek_real *from, const weights *w)
{
    const int d = c->d, dv = c->dv;
    const ek_real *z = from + (size_t)d * (size_t)dv;

    weigh_reads(c, w);
    ek_real_gemm(c->dev, c->product, CHUNK, c->q, c->ldq, 0, c->k, c->ldk, 1, c->n_q, c->n, d,
                 EK_SET);
    ek_real_gemm(c->dev, c->o, (size_t)dv, c->q, c->ldq, 0, from, (size_t)dv, 0, c->n_q, dv, d,
                 EK_SET);
    for (int i = 0; i < c->n_q; i++) {
        ek_real *p = c->product + (size_t)i * CHUNK, *o = c->o + (size_t)i * (size_t)dv;
        const ek_real *weight = c->weight + (size_t)i * CHUNK;
        ek_real sum = 0;

#pragma omp simd reduction(+ : sum)
        for (int s = 0; s < c->n; s++) {
            p[s] *= weight[s];
            sum += p[s];
        }
        c->den[i] = sum + c->carry[i] * dot(c->q + (size_t)i * c->ldq, z, d);
        for (int x = 0; x < dv; x++)
            o[x] *= c->carry[i];
    }
    ek_real_gemm(c->dev, c->o, (size_t)dv, c->product, CHUNK, 0, c->v, c->ldv, 0, c->n_q, dv, c->n,
                 EK_ADD);
    for (int i = 0; i < c->n_q; i++) {
        const ek_real floor = (ek_real)EK_MEMORY_FLOOR;
        const ek_real by = 1 / (c->den[i] > floor ? c->den[i] : floor);
        ek_real *o = c->o + (size_t)i * (size_t)dv;

        for (int x = 0; x < dv; x++)
            o[x] *= by;
    }
}

void ek_memory_forward(const ek_memory_chunk *c, const ek_real *from, ek_real *to, ek_real *work)
{
    const int d = c->d, dv = c->dv;
    const size_t size = (size_t)d * (size_t)dv + (size_t)d;
    ek_real *z = to + (size_t)d * (size_t)dv;
    weights w;

    assert(c->n >= 1 && c->n <= CHUNK && c->n_q <= CHUNK);
    weigh(c, from, &w);
    if (c->n_q > 0)
        read_all(c, from, &w);
    /* m is rounded before anything is divided by its exp, so that rounding never adds up. */
    const ek_real m = (ek_real)(w.fade + w.top[c->n - 1]);
    const double top = (double)m - w.fade;
    for (int s = 0; s < c->n; s++)
        c->last[s] = (ek_real)exp(w.b[s] - top);
    const ek_real keep = (ek_real)exp(w.in - top);
    c->last[c->n] = keep;
    for (size_t i = 0; i < size; i++)
        to[i] = keep * from[i];
    for (int s = 0; s < c->n; s++) {
        const ek_real *k = c->k + (size_t)s * c->ldk;
        ek_real *out = work + (size_t)s * (size_t)d;

        for (int i = 0; i < d; i++) {
            out[i] = c->last[s] * k[i];
            z[i] += out[i];
        }
    }
    ek_real_gemm(c->dev, to, (size_t)dv, work, (size_t)d, 1, c->v, c->ldv, 0, d, dv, c->n, EK_ADD);
    z[d] = m;
}

/* ---- backward ---- */

size_t ek_memory_back_work(int d, int dv)
{
    return (size_t)CHUNK * (size_t)(CHUNK + (d > dv ? d : dv) + dv + 1);
}

/* Gradients of numerators and denominators from those of o; what is left for F of each token, which
 * is nothing unless the floor is active. */
static void divide_back(const ek_memory_chunk *c, const ek_memory_grad *g, ek_real *num,
                        ek_real *den, double *fade)
{
    const int dv = c->dv;

    for (int i = 0; i < c->n_q; i++) {
        const ek_real *o = c->o + (size_t)i * (size_t)dv, *go = g->o + (size_t)i * (size_t)dv;
        const int free = c->den[i] > (ek_real)EK_MEMORY_FLOOR;
        const ek_real by = 1 / (free ? c->den[i] : (ek_real)EK_MEMORY_FLOOR), all = dot(go, o, dv);

        for (int x = 0; x < dv; x++)
            num[(size_t)i * (size_t)dv + x] = go[x] * by;
        den[i] = free ? -by * all : 0;
        fade[c->at[i]] += free ? 0 : (double)all;
    }
}

/* From the reads to q, k, v, the state before the chunk (into `in`) and the log weights b. */
static void reads_back(const ek_memory_chunk *c, const ek_real *from, const ek_memory_grad *g,
                       const ek_real *num, const ek_real *den, ek_real *s, ek_real *rows, double *b)
{
    const int d = c->d, dv = c->dv, n = c->n, n_q = c->n_q;
    const size_t zd = (size_t)d * (size_t)dv;
    const ek_real *z = from + zd;
    ek_real col[CHUNK] = {0}, *in = g->state;

    ek_real_gemm(c->dev, s, CHUNK, num, (size_t)dv, 0, c->v, c->ldv, 1, n_q, n, dv, EK_SET);
    for (int i = 0; i < n_q; i++) {
        ek_real *row = s + (size_t)i * CHUNK;
        const ek_real *p = c->product + (size_t)i * CHUNK, *w = c->weight + (size_t)i * CHUNK;

        for (int x = 0; x < n; x++) {
            row[x] += den[i];
            col[x] += row[x] * p[x];
            row[x] *= w[x];
        }
    }
    for (int x = 0; x < n; x++)
        b[x] += (double)col[x];
    ek_real_gemm(c->dev, g->v, (size_t)dv, c->product, CHUNK, 1, num, (size_t)dv, 0, n, dv, n_q,
                 EK_ADD);
    ek_real_gemm(c->dev, g->k, (size_t)d, s, CHUNK, 1, c->q, c->ldq, 0, n, d, n_q, EK_ADD);
    /* The state's part, before that of the chunk's own tokens is added. */
    ek_real_gemm(c->dev, g->q, (size_t)d, num, (size_t)dv, 0, from, (size_t)dv, 1, n_q, d, dv,
                 EK_SET);
    for (int i = 0; i < n_q; i++) {
        const ek_real *q = c->q + (size_t)i * c->ldq;
        ek_real *gq = g->q + (size_t)i * (size_t)d, *scaled = rows + (size_t)i * (size_t)d;
        const ek_real carry = c->carry[i], of_den = den[i];

        for (int x = 0; x < d; x++) {
            gq[x] = carry * (gq[x] + of_den * z[x]);
            scaled[x] = carry * q[x];
            in[zd + (size_t)x] += of_den * scaled[x];
        }
    }
    ek_real_gemm(c->dev, g->q, (size_t)d, s, CHUNK, 0, c->k, c->ldk, 0, n_q, d, n, EK_ADD);
    ek_real_gemm(c->dev, in, (size_t)dv, rows, (size_t)d, 1, num, (size_t)dv, 0, d, dv, n_q,
                 EK_ADD);
}

/* From the state after the chunk to k, v, the log weights b and the last F; leaves the gradient of
 * the state before it, as far as it went straight through. */
static void state_back(const ek_memory_chunk *c, const ek_real *to, const ek_memory_grad *g,
                       double *b, double *fade)
{
    const int d = c->d, dv = c->dv, n = c->n;
    const size_t zd = (size_t)d * (size_t)dv;
    ek_real *state = g->state;
    const ek_real *z = state + zd, keep = c->last[n];
    double sum = 0;

    ek_real_gemm(c->dev, g->k, (size_t)d, c->v, c->ldv, 0, state, (size_t)dv, 1, n, d, dv, EK_SET);
    ek_real_gemm(c->dev, g->v, (size_t)dv, c->k, c->ldk, 0, state, (size_t)dv, 0, n, dv, d, EK_SET);
    for (int s = 0; s < n; s++) {
        const ek_real w = c->last[s];
        ek_real *gk = g->k + (size_t)s * (size_t)d, *gv = g->v + (size_t)s * (size_t)dv;

        for (int x = 0; x < d; x++)
            gk[x] = w * (gk[x] + z[x]);
        for (int x = 0; x < dv; x++)
            gv[x] *= w;
        b[s] = (double)dot(gk, c->k + (size_t)s * c->ldk, d);
    }
    for (int i = 0; i <= d; i++) /* z is one more row, of d numbers */
        sum += (double)dot(state + (size_t)i * (size_t)dv, to + (size_t)i * (size_t)dv,
                           i < d ? dv : d);
    fade[n - 1] += sum;
    for (size_t i = 0; i < zd + (size_t)d; i++)
        state[i] *= keep;
}

void ek_memory_backward(const ek_memory_chunk *c, const ek_real *from, const ek_real *to,
                        const ek_memory_grad *g, ek_real *work)
{
    const int d = c->d, dv = c->dv;
    ek_real *s = work, *rows = s + CHUNK * CHUNK;
    ek_real *num = rows + (size_t)CHUNK * (size_t)(d > dv ? d : dv), *den = num + CHUNK * dv;
    double b[CHUNK], fade[CHUNK] = {0}, sum = 0;

    state_back(c, to, g, b, fade);
    if (c->n_q > 0) {
        divide_back(c, g, num, den, fade);
        reads_back(c, from, g, num, den, s, rows, b);
    }
    /* b_s = log in_s - F_s, and F_t is the sum of log f up to t. */
    for (int t = c->n - 1; t >= 0; t--) {
        const double x = (double)c->gate[2 * t + 1];

        sum += fade[t] - b[t];
        g->gate[2 * t] = (ek_real)b[t];
        g->gate[2 * t + 1] = (ek_real)(sum / (1 + exp(x))); /* d log sigmoid(x) = sigmoid(-x) */
    }
}
