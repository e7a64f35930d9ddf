/* results/stats.c - see stats.h.
 *
 * Errors of means, differences and ratios share one formula: the statistic's first-order change
 * z_i when cluster i is left in twice, and se = sqrt(P/(P-1) sum z_i^2)/n.  With clusters of equal
 * size it is the textbook error of the mean of cluster means. */
#include "results/stats.h"

#include "core/rng.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define Z95 1.959964

enum { DRAWS_HELD = 1 << 25 }; /* 128 MiB of draws are kept, more are drawn again each time */

ek_estimate ek_stat_mean(const double *x, int n)
{
    ek_estimate e = {NAN, NAN, NAN, NAN};
    double sum = 0, square = 0;

    if (n < 1)
        return e;
    for (int i = 0; i < n; i++)
        sum += x[i];
    e.value = sum / n;
    if (n < 2)
        return e;
    for (int i = 0; i < n; i++)
        square += (x[i] - e.value) * (x[i] - e.value);
    e.se = sqrt(square / (n - 1) / n);
    return e;
}

ek_estimate ek_stat_wilson(double k, double n)
{
    const double z2 = Z95 * Z95, p = k / n;
    const double centre = (p + z2 / (2 * n)) / (1 + z2 / n);
    const double half = Z95 * sqrt(p * (1 - p) / n + z2 / (4 * n * n)) / (1 + z2 / n);
    /* None right leaves 0 in, all right leaves 1 in, whatever the rounding. */
    const ek_estimate e = {p, NAN, k > 0 ? centre - half : 0, k < n ? centre + half : 1};

    return e;
}

typedef struct totals {
    double n, mean, base;     /* means as shown: exponentiated for logs */
    double raw, raw_base;     /* means of what was summed */
    double slope, slope_base; /* d shown / d raw */
} totals;

static totals total_of(const ek_clusters *c)
{
    totals t = {0};

    for (int i = 0; i < c->n; i++) {
        t.n += c->count[i];
        t.raw += c->sum[i];
        t.raw_base += c->base ? c->base[i] : 0;
    }
    t.raw /= t.n;
    t.raw_base /= t.n;
    t.mean = c->log ? exp(t.raw) : t.raw;
    t.base = c->log ? exp(t.raw_base) : t.raw_base;
    t.slope = c->log ? t.mean : 1;
    t.slope_base = c->log ? t.base : 1;
    return t;
}

/* Error of a statistic that changes by a per unit of the method's mean and by b of the base's. */
static double error_of(const ek_clusters *c, const totals *t, double a, double b)
{
    double square = 0;

    if (c->n < 2)
        return NAN;
    for (int i = 0; i < c->n; i++) {
        double z = a * (c->sum[i] - c->count[i] * t->raw);

        if (c->base)
            z += b * (c->base[i] - c->count[i] * t->raw_base);
        square += z * z;
    }
    return sqrt(square * c->n / (c->n - 1)) / t->n;
}

ek_estimate ek_stat_clustered(const ek_clusters *c)
{
    ek_estimate e = {NAN, NAN, NAN, NAN};

    if (c->n > 0) {
        const totals t = total_of(c);

        e.value = t.mean;
        e.se = error_of(c, &t, t.slope, 0);
    }
    return e;
}

ek_estimate ek_stat_difference(const ek_clusters *c)
{
    ek_estimate e = {NAN, NAN, NAN, NAN};

    if (c->n > 0 && c->base) {
        const totals t = total_of(c);

        e.value = t.mean - t.base;
        e.se = error_of(c, &t, t.slope, -t.slope_base);
    }
    return e;
}

ek_estimate ek_stat_percent(const ek_clusters *c)
{
    ek_estimate e = {NAN, NAN, NAN, NAN};

    if (c->n > 0 && c->base) {
        const totals t = total_of(c);
        const double r = t.mean / t.base;

        if (t.base == 0)
            return e;
        e.value = 100 * r;
        e.se = 100 / fabs(t.base) * error_of(c, &t, t.slope, -r * t.slope_base);
    }
    return e;
}

double ek_stat_sampling_part(const double *x, const int *count, int n_clusters)
{
    double sum = 0;

    for (int i = 0; i < n_clusters; i++) {
        const double se = ek_stat_mean(x, count[i]).se;

        if (count[i] < 2)
            return NAN;
        sum += se * se; /* v_i / k_i */
        x += count[i];
    }
    return sqrt(sum) / n_clusters;
}

ek_estimate ek_stat_macro(const ek_estimate *task, int n)
{
    ek_estimate e = {0, 0, NAN, NAN};

    for (int i = 0; i < n; i++) {
        e.value += task[i].value / n;
        e.se += task[i].se * task[i].se;
    }
    e.se = sqrt(e.se) / n;
    return e;
}

/* ---- bootstrap ---- */

void ek_stat_draw(const ek_clusters *c, const int32_t *draw, double *mean, double *difference,
                  double *percent)
{
    double n = 0, sum = 0, base = 0;

    for (int j = 0; j < c->n; j++) {
        n += c->count[draw[j]];
        sum += c->sum[draw[j]];
    }
    if (c->base)
        for (int j = 0; j < c->n; j++)
            base += c->base[draw[j]];
    sum = c->log ? exp(sum / n) : sum / n;
    base = c->log ? exp(base / n) : base / n;
    *mean = sum;
    *difference = c->base ? sum - base : NAN;
    *percent = c->base && base != 0 ? 100 * sum / base : NAN;
}

static void fill_draw(int32_t *out, int n, uint64_t seed, int b)
{
    for (int j = 0; j < n; j++)
        out[j] = (int32_t)ek_rng_below((uint64_t)n, seed, (uint64_t)b, (uint64_t)j);
}

ek_code ek_draws_open(ek_draws *d, int n, int n_draws, uint64_t seed, ek_err *err)
{
    ek_draws made = {.n = n, .n_draws = n_draws, .seed = seed};

    if ((int64_t)n * n_draws <= DRAWS_HELD) {
        made.draw = malloc(sizeof *made.draw * (size_t)n * (size_t)n_draws);
        if (!made.draw)
            return EK_FAIL(err, EK_ENOMEM, "bootstrap: out of memory");
        for (int b = 0; b < n_draws; b++)
            fill_draw(made.draw + (size_t)b * (size_t)n, n, seed, b);
    }
    *d = made;
    return EK_OK;
}

void ek_draws_close(ek_draws *d)
{
    free(d->draw);
    memset(d, 0, sizeof *d);
}

static double spread(const double *x, int n)
{
    double mean = 0, square = 0;

    for (int i = 0; i < n; i++)
        mean += x[i] / n;
    for (int i = 0; i < n; i++)
        square += (x[i] - mean) * (x[i] - mean);
    return sqrt(square / n);
}

static void summarise(ek_bootstrap *out, const ek_clusters *c, double *mean, double *difference,
                      double *percent, int n)
{
    int below = 0, above = 0, undefined = 0;

    out->mean_lo = ek_stat_quantile(mean, n, 0.025);
    out->mean_hi = ek_stat_quantile(mean, n, 0.975);
    out->difference_lo = out->difference_hi = out->percent_lo = out->percent_hi = NAN;
    out->difference_se = out->p = NAN;
    if (!c->base)
        return;
    for (int b = 0; b < n; b++) {
        below += difference[b] <= 0;
        above += difference[b] >= 0;
        undefined += isnan(percent[b]) != 0;
    }
    out->p = fmin(1, 2.0 * (1 + (below < above ? below : above)) / (n + 1));
    out->difference_se = spread(difference, n); /* before the quantiles reorder it */
    out->difference_lo = ek_stat_quantile(difference, n, 0.025);
    out->difference_hi = ek_stat_quantile(difference, n, 0.975);
    if (undefined == 0) {
        out->percent_lo = ek_stat_quantile(percent, n, 0.025);
        out->percent_hi = ek_stat_quantile(percent, n, 0.975);
    }
}

ek_code ek_stat_bootstrap(ek_bootstrap *out, const ek_clusters *c, const ek_draws *d, ek_err *err)
{
    const int n = d->n_draws;
    double *mean = malloc(sizeof *mean * 3 * (size_t)n);
    int32_t *row = malloc(sizeof *row * (size_t)c->n);

    if (!mean || !row) {
        free(mean);
        free(row);
        return EK_FAIL(err, EK_ENOMEM, "bootstrap: out of memory");
    }
    for (int b = 0; b < n; b++) {
        const int32_t *draw = row;

        if (d->draw)
            draw = d->draw + (size_t)b * (size_t)d->n;
        else
            fill_draw(row, c->n, d->seed, b);
        ek_stat_draw(c, draw, &mean[b], &mean[n + b], &mean[2 * n + b]);
    }
    summarise(out, c, mean, mean + n, mean + 2 * n, n);
    free(mean);
    free(row);
    return EK_OK;
}

/* ---- order ---- */

/* Put the k-th smallest (from 0) at x[k], nothing larger before it, nothing smaller after. */
static void select_nth(double *x, int n, int k)
{
    int lo = 0, hi = n - 1;

    while (lo < hi) {
        const double pivot = x[lo + (hi - lo) / 2];
        int i = lo, j = hi;

        while (i <= j) {
            while (x[i] < pivot)
                i++;
            while (x[j] > pivot)
                j--;
            if (i <= j) {
                const double t = x[i];

                x[i++] = x[j];
                x[j--] = t;
            }
        }
        if (k <= j)
            hi = j;
        else if (k >= i)
            lo = i;
        else
            return;
    }
}

double ek_stat_quantile(double *x, int n, double f)
{
    const double at = f * (n - 1);
    const int k = (int)floor(at);
    double next;

    if (n < 1)
        return NAN;
    select_nth(x, n, k);
    if (k + 1 >= n)
        return x[k];
    next = x[k + 1];
    for (int i = k + 2; i < n; i++)
        next = fmin(next, x[i]);
    return x[k] + (at - k) * (next - x[k]);
}

void ek_stat_holm(double *p, int n)
{
    double floor_p = 0;
    int left = 0;
    char *done = calloc((size_t)(n > 0 ? n : 1), 1);

    for (int i = 0; i < n; i++)
        left += !isnan(p[i]);
    /* Out of memory: every p is multiplied by the full count, which is Bonferroni and only more
     * careful. */
    for (int i = 0; !done && i < n; i++)
        p[i] = fmin(1, p[i] * left);
    while (done && left > 0) {
        int best = -1;

        for (int i = 0; i < n; i++)
            if (!done[i] && !isnan(p[i]) && (best < 0 || p[i] < p[best]))
                best = i;
        floor_p = fmin(1, fmax(floor_p, p[best] * left--));
        p[best] = floor_p;
        done[best] = 1;
    }
    free(done);
}

const char *ek_stat_mark(double lo, double hi, double p, double close)
{
    if (isnan(lo) || isnan(hi))
        return "";
    if (lo > -close && hi < close)
        return "=";
    if ((lo <= 0 && hi >= 0) || p >= 0.05)
        return "\xe2\x89\x88";
    return "*";
}
