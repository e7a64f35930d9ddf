/* train/regress.c - see the header. */
#include "train/regress.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { LANES = 8, ROWS = 4 };

/* Sums of one map: count, then vectors, then matrices, each row made up to ld. */
typedef struct sums {
    double *count, *x, *v, *vv; /* count: 1 of LANES; (ld) each */
    double *xx, *vx; /* (ld, ld); of xx only tiles that touch or lie below the diagonal */
} sums;

static size_t stride_of(int ld)
{
    return LANES + 3 * (size_t)ld + 2 * (size_t)ld * (size_t)ld;
}

static int padded(int width)
{
    return (width + LANES - 1) / LANES * LANES;
}

static sums sums_of(const ek_regress *r, int map)
{
    const size_t ld = (size_t)r->ld;
    sums s = {.count = r->sums + (size_t)map * r->stride};

    s.x = s.count + LANES;
    s.v = s.x + ld;
    s.vv = s.v + ld;
    s.xx = s.vv + ld;
    s.vx = s.xx + ld * ld;
    return s;
}

size_t ek_regress_bytes(int n, int width)
{
    return (size_t)n * stride_of(padded(width)) * sizeof(double);
}

ek_code ek_regress_open(ek_regress *r, int n, int width, ek_isa isa, ek_err *err)
{
    *r = (ek_regress){.n = n, .width = width, .ld = padded(width), .isa = isa};
    r->stride = stride_of(r->ld);
    r->sums = aligned_alloc(64, (size_t)n * r->stride * sizeof *r->sums);
    if (r->sums == NULL)
        return EK_FAIL(err, EK_ENOMEM, "the sums of %d maps of %d x %d", n, width, width);
    memset(r->sums, 0, (size_t)n * r->stride * sizeof *r->sums);
    return EK_OK;
}

void ek_regress_close(ek_regress *r)
{
    free(r->sums);
    *r = (ek_regress){0};
}

int64_t ek_regress_count(const ek_regress *r, int map)
{
    return (int64_t)*sums_of(r, map).count;
}

/* ---- adding ---- */

typedef double lanes __attribute__((vector_size(LANES / 2 * sizeof(double))));

/* out (ld, ld) += a^T b over the rows, tile by tile with the running sums in registers: products
 * are rounded before they are added (no fused form), so every instruction set gives the same bits.
 * lower: tiles wholly above the diagonal are left out. */
static inline __attribute__((always_inline)) void
add_product(double *out, const double *a, const double *b, int rows, int ld, int lower)
{
    for (int i = 0; i < ld; i += ROWS)
        for (int j = 0; j < ld && !(lower && j > i + ROWS - 1); j += LANES) {
            double *at = out + (size_t)i * (size_t)ld + j;
            lanes low[ROWS], high[ROWS];

#pragma GCC unroll 4
            for (int c = 0; c < ROWS; c++) {
                memcpy(&low[c], at + (size_t)c * (size_t)ld, sizeof low[c]);
                memcpy(&high[c], at + (size_t)c * (size_t)ld + LANES / 2, sizeof high[c]);
            }
            for (int t = 0; t < rows; t++) {
                const double *from = a + (size_t)t * (size_t)ld + i;
                const double *by = b + (size_t)t * (size_t)ld + j;
                lanes by_low, by_high;

                memcpy(&by_low, by, sizeof by_low);
                memcpy(&by_high, by + LANES / 2, sizeof by_high);
#pragma GCC unroll 4
                for (int c = 0; c < ROWS; c++) {
                    low[c] += from[c] * by_low;
                    high[c] += from[c] * by_high;
                }
            }
#pragma GCC unroll 4
            for (int c = 0; c < ROWS; c++) {
                memcpy(at + (size_t)c * (size_t)ld, &low[c], sizeof low[c]);
                memcpy(at + (size_t)c * (size_t)ld + LANES / 2, &high[c], sizeof high[c]);
            }
        }
}

static inline __attribute__((always_inline)) void add_rows(const sums *s, const double *x,
                                                           const double *v, int rows, int ld)
{
    for (int t = 0; t < rows; t++)
        for (int i = 0; i < ld; i++) {
            const double xi = x[(size_t)t * (size_t)ld + i], vi = v[(size_t)t * (size_t)ld + i];

            s->x[i] += xi;
            s->v[i] += vi;
            s->vv[i] += vi * vi;
        }
    add_product(s->xx, x, x, rows, ld, 1);
    add_product(s->vx, v, x, rows, ld, 0);
    *s->count += rows;
}

static void add_scalar(const sums *s, const double *x, const double *v, int rows, int ld)
{
    add_rows(s, x, v, rows, ld);
}

__attribute__((target("avx2"))) static void add_avx2(const sums *s, const double *x,
                                                     const double *v, int rows, int ld)
{
    add_rows(s, x, v, rows, ld);
}

void ek_regress_add(ek_regress *r, int map, const double *x, const double *v, int rows)
{
    const sums s = sums_of(r, map);

    if (r->isa >= EK_ISA_AVX2)
        add_avx2(&s, x, v, rows, r->ld);
    else
        add_scalar(&s, x, v, rows, r->ld);
}

/* ---- solving ---- */

static double xx_at(const sums *s, int ld, int i, int j)
{
    return i >= j ? s->xx[(size_t)i * (size_t)ld + j] : s->xx[(size_t)j * (size_t)ld + i];
}

/* Centred second moments per row: xx (d, d) whole, vx (d, d), and the variance of each output.
 * centre 0: about 0 rather than about the means.  Any of the outputs may be NULL. */
static void moments(const ek_regress *r, int map, int centre, double *xx, double *vx, double *vv)
{
    const sums s = sums_of(r, map);
    const double n = *s.count;
    const int d = r->width;

    for (int i = 0; i < d; i++) {
        const double mx = centre ? s.x[i] / n : 0, mv = centre ? s.v[i] / n : 0;

        for (int j = 0; j < d; j++) {
            const double mj = centre ? s.x[j] / n : 0;

            if (xx != NULL)
                xx[(size_t)i * (size_t)d + j] = xx_at(&s, r->ld, i, j) / n - mx * mj;
            if (vx != NULL)
                vx[(size_t)i * (size_t)d + j] = s.vx[(size_t)i * (size_t)r->ld + j] / n - mv * mj;
        }
        if (vv != NULL)
            vv[i] = s.vv[i] / n - mv * mv;
    }
}

/* a = L L^T in its lower triangle; 0 if a is not positive definite beyond rounding. */
static int cholesky(double *a, int d)
{
    for (int i = 0; i < d; i++)
        for (int j = 0; j <= i; j++) {
            const double *ri = a + (size_t)i * (size_t)d, *rj = a + (size_t)j * (size_t)d;
            double sum = ri[j];

            for (int c = 0; c < j; c++)
                sum -= ri[c] * rj[c];
            if (i == j && !(sum > 1e-14 * ri[i]))
                return 0;
            a[(size_t)i * (size_t)d + j] = i == j ? sqrt(sum) : sum / rj[j];
        }
    return 1;
}

/* y := (L L^T)^-1 y. */
static void solve_row(const double *l, int d, double *y)
{
    for (int i = 0; i < d; i++) {
        for (int c = 0; c < i; c++)
            y[i] -= l[(size_t)i * (size_t)d + c] * y[c];
        y[i] /= l[(size_t)i * (size_t)d + i];
    }
    for (int i = d - 1; i >= 0; i--) {
        y[i] /= l[(size_t)i * (size_t)d + i];
        for (int c = 0; c < i; c++)
            y[c] -= l[(size_t)i * (size_t)d + c] * y[i];
    }
}

ek_code ek_regress_solve(const ek_regress *r, int map, double lambda, int bias, double *w,
                         double *b, ek_err *err)
{
    const sums s = sums_of(r, map);
    const int d = r->width;
    const size_t square = (size_t)d * (size_t)d;
    double *a, trace = 0;

    if (!(*s.count > 0))
        return EK_FAIL(err, EK_ENAN, "map %d: no rows to fit on", map);
    a = malloc(square * sizeof *a);
    if (a == NULL)
        return EK_FAIL(err, EK_ENOMEM, "fitting %d x %d", d, d);
    moments(r, map, bias, a, w, NULL);
    for (int i = 0; i < d; i++)
        trace += a[(size_t)i * (size_t)d + i];
    for (int i = 0; i < d; i++)
        a[(size_t)i * (size_t)d + i] += lambda * trace / d;
    if (!isfinite(trace) || (trace > 0 && !cholesky(a, d))) {
        free(a);
        return EK_FAIL(err, EK_ENAN,
                       "map %d: its inputs depend on one another or are not finite (lambda %g)",
                       map, lambda);
    }
    if (trace > 0)
        for (int o = 0; o < d; o++)
            solve_row(a, d, w + (size_t)o * (size_t)d);
    else
        memset(w, 0, square * sizeof *w);
    for (int o = 0; o < d; o++) {
        b[o] = bias ? s.v[o] / *s.count : 0;
        for (int i = 0; bias && i < d; i++)
            b[o] -= w[(size_t)o * (size_t)d + i] * (s.x[i] / *s.count);
    }
    free(a);
    return EK_OK;
}

/* Mean squared error of an output about its centred moments, plus the square of its mean error. */
static double error_of(const ek_regress *r, const sums *s, const double *xx, const double *vx,
                       double vv, const double *w, double b, int o)
{
    const double n = *s->count;
    const int d = r->width;
    double mean = s->v[o] / n - b, sum = vv;

    for (int i = 0; i < d; i++) {
        double xw = 0;

        for (int j = 0; j < d; j++)
            xw += xx[(size_t)i * (size_t)d + j] * w[j];
        sum += w[i] * (xw - 2 * vx[i]);
        mean -= w[i] * s->x[i] / n;
    }
    return (sum > 0 ? sum : 0) + mean * mean;
}

double ek_regress_r2(const ek_regress *r, int map, const double *w, const double *b, int from,
                     int to)
{
    const sums s = sums_of(r, map);
    const size_t d = (size_t)r->width;
    double *xx = malloc(d * d * sizeof *xx), *vx = malloc(d * d * sizeof *vx);
    double *vv = malloc(d * sizeof *vv), error = 0, all = 0, raw = 0;

    if (xx == NULL || vx == NULL || vv == NULL || !(*s.count > 0)) {
        free(xx);
        free(vx);
        free(vv);
        return NAN;
    }
    moments(r, map, 1, xx, vx, vv);
    for (int o = from; o < to; o++) {
        error += error_of(r, &s, xx, vx + (size_t)o * d, vv[o], w + (size_t)o * d, b[o], o);
        all += vv[o];
        raw += s.vv[o] / *s.count;
    }
    free(xx);
    free(vx);
    free(vv);
    if (!isfinite(error) || !isfinite(all))
        return NAN;
    return all > 1e-13 * raw ? 1 - error / all : 0; /* less is rounding */
}

const double ek_regress_lambdas[EK_REGRESS_LAMBDAS] = {1e-3, 1e-4, 1e-5, 1e-6};

ek_code ek_regress_choose(const ek_regress *fit, const ek_regress *held, int map, int bias,
                          double *w, double *b, double *lambda, ek_err *err)
{
    const size_t d = (size_t)fit->width;
    double *w2 = malloc(d * d * sizeof *w2), *b2 = malloc(d * sizeof *b2), best = -INFINITY;

    err->code = EK_OK;
    if (w2 == NULL || b2 == NULL)
        EK_CHECK(EK_FAIL(err, EK_ENOMEM, "fitting %zu x %zu", d, d));
    for (int i = 0; i < EK_REGRESS_LAMBDAS; i++) {
        EK_CHECK(ek_regress_solve(fit, map, ek_regress_lambdas[i], bias, w2, b2, err));
        const double r2 = ek_regress_r2(held, map, w2, b2, 0, fit->width);
        if (!isfinite(r2))
            EK_CHECK(EK_FAIL(err, EK_ENAN, "map %d: R2 on held-out rows is not finite", map));
        if (r2 > best) {
            best = r2;
            *lambda = ek_regress_lambdas[i];
            memcpy(w, w2, d * d * sizeof *w);
            memcpy(b, b2, d * sizeof *b);
        }
    }
fail:
    free(w2);
    free(b2);
    return err->code;
}
