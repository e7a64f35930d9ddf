/* infer/metrics.c - see metrics.h. */
#include "infer/metrics.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

ek_code ek_fidelity_open(ek_fidelity *f, int room, ek_err *err)
{
    double *all = malloc(sizeof(double) * 4 * (size_t)(room > 0 ? room : 1));

    if (!all)
        return EK_FAIL(err, EK_ENOMEM, "no memory for %d predictions", room);
    *f = (ek_fidelity){.room = room,
                       .nll = all,
                       .nll_base = all + room,
                       .kl = all + 2 * (size_t)room,
                       .dp = all + 3 * (size_t)room};
    return EK_OK;
}

void ek_fidelity_close(ek_fidelity *f)
{
    free(f->nll);
    memset(f, 0, sizeof *f);
}

void ek_fidelity_add(ek_fidelity *f, const ek_kl *kl, float base_logit, float logit)
{
    const double lp_base = (double)base_logit - kl->lse_base, lp = (double)logit - kl->lse;

    if (f->n == f->room)
        return;
    f->nll[f->n] = -lp;
    f->nll_base[f->n] = -lp_base;
    f->kl[f->n] = kl->kl;
    f->dp[f->n] = exp(lp) - exp(lp_base);
    f->same += kl->top == kl->top_base;
    f->n++;
}

static double mean(const double *x, int n)
{
    double sum = 0;

    for (int i = 0; i < n; i++)
        sum += x[i];
    return sum / n;
}

/* Covariance of two means: (mean of products - product of means) / (n - 1). */
static double cov_of_means(const double *x, const double *y, int n)
{
    const double mx = mean(x, n), my = mean(y, n);
    double sum = 0;

    for (int i = 0; i < n; i++)
        sum += (x[i] - mx) * (y[i] - my);
    return sum / n / (n - 1);
}

static double se_of_mean(const double *x, int n)
{
    return sqrt(fmax(0, cov_of_means(x, x, n)));
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* Position f (n - 1) of sorted numbers, linear between neighbours. */
static double quantile(const double *sorted, int n, double f)
{
    const double at = f * (n - 1);
    const int i = (int)at;

    return i + 1 < n ? sorted[i] + (at - i) * (sorted[i + 1] - sorted[i]) : sorted[n - 1];
}

int ek_fidelity_numbers(const ek_fidelity *f, ek_number out[EK_FIDELITY_NUMBERS])
{
    static const struct {
        const char *name;
        double at;
    } points[] = {{"Maximum KLD", 1}, {"99.9% KLD", .999}, {"99% KLD", .99},
                  {"95% KLD", .95},   {"90% KLD", .9},     {"Median KLD", .5},
                  {"10% KLD", .1},    {"1% KLD", .01},     {"Minimum KLD", 0}};
    const int n = f->n;
    double *sorted;
    int k = 0;

    if (n < 2 || !(sorted = malloc(sizeof(double) * 2 * (size_t)n)))
        return 0;
    double *squares = sorted + n;
    const double m = mean(f->nll, n), mb = mean(f->nll_base, n), same = (double)f->same / n;
    const double s = se_of_mean(f->nll, n), sb = se_of_mean(f->nll_base, n);
    const double cov = cov_of_means(f->nll, f->nll_base, n);
    const double log_se = sqrt(fmax(0, s * s + sb * sb - 2 * cov)), ppl = exp(m),
                 ppl_base = exp(mb);

    for (int i = 0; i < n; i++)
        squares[i] = f->dp[i] * f->dp[i];
    const double rms = sqrt(mean(squares, n));

    out[k++] = (ek_number){"PPL", ppl, ppl * s};
    out[k++] = (ek_number){"PPL(base)", ppl_base, ppl_base * sb};
    out[k++] = (ek_number){"Cor(ln PPL)", s > 0 && sb > 0 ? cov / (s * sb) : NAN, NAN};
    out[k++] = (ek_number){"ln(PPL ratio)", m - mb, log_se};
    out[k++] = (ek_number){"Mean PPL ratio", exp(m - mb), exp(m - mb) * log_se};
    out[k++] = (ek_number){"PPL difference", ppl - ppl_base,
                           sqrt(fmax(0, ppl * ppl * s * s + ppl_base * ppl_base * sb * sb -
                                            2 * ppl * ppl_base * cov))};
    out[k++] = (ek_number){"Mean KLD", mean(f->kl, n), se_of_mean(f->kl, n)};
    memcpy(sorted, f->kl, sizeof(double) * (size_t)n);
    qsort(sorted, (size_t)n, sizeof *sorted, ascending);
    for (size_t i = 0; i < EK_COUNT(points); i++)
        out[k++] = (ek_number){points[i].name, quantile(sorted, n, points[i].at), NAN};
    out[k++] = (ek_number){"Mean \xce\x94p", mean(f->dp, n), se_of_mean(f->dp, n)};
    out[k++] = (ek_number){"RMS \xce\x94p", rms, rms > 0 ? se_of_mean(squares, n) / (2 * rms) : 0};
    out[k++] = (ek_number){"Same top p", same, sqrt(same * (1 - same) / (n - 1))};
    free(sorted);
    for (int i = 0; i < k; i++)
        if (n <= 10)
            out[i].se = NAN;
    return k;
}

/* Move the k best of order (by score falling, then the younger) to its front. */
static void best_first(int32_t *order, int n, int k, const float *score)
{
    int lo = 0, hi = n - 1;

    while (lo < hi) {
        const int32_t pivot = order[lo + (hi - lo) / 2];
        int i = lo, j = hi;

        while (i <= j) {
            while (score[order[i]] > score[pivot] ||
                   (score[order[i]] == score[pivot] && order[i] > pivot))
                i++;
            while (score[order[j]] < score[pivot] ||
                   (score[order[j]] == score[pivot] && order[j] < pivot))
                j--;
            if (i <= j) {
                const int32_t t = order[i];

                order[i++] = order[j];
                order[j--] = t;
            }
        }
        if (k - 1 <= j)
            hi = j;
        else if (k - 1 >= i)
            lo = i;
        else
            return;
    }
}

ek_future_loss ek_future_head(const float *future, int group, int n, const int32_t *kept,
                              int n_kept, int32_t *order)
{
    ek_future_loss loss = {0, 0};
    double mass = 0, stays = 0;
    float *peak = malloc(sizeof(float) * (size_t)(n > 0 ? n : 1));
    int common = 0;

    if (!peak || n == 0 || n_kept == 0) {
        free(peak);
        return (ek_future_loss){NAN, NAN};
    }
    for (int j = 0; j < n; j++) {
        peak[j] = future[(size_t)j * group];
        for (int g = 0; g < group; g++) {
            mass += future[(size_t)j * group + g];
            peak[j] = fmaxf(peak[j], future[(size_t)j * group + g]);
        }
        order[j] = j;
    }
    for (int i = 0; i < n_kept; i++)
        for (int g = 0; g < group; g++)
            stays += future[(size_t)kept[i] * group + g];
    best_first(order, n, n_kept, peak);
    for (int i = 0; i < n_kept; i++)
        peak[order[i]] = -1; /* marks the best; masses are >= 0 */
    for (int i = 0; i < n_kept; i++)
        common += peak[kept[i]] < 0;
    free(peak);
    loss.missed = mass > 0 ? 1 - stays / mass : 0;
    loss.recall = (double)common / n_kept;
    return loss;
}
