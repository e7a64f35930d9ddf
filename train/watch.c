/* train/watch.c - see the header. */
#include "train/watch.h"

#include <math.h>

enum { EVERY = 256 };

static void swap(ek_watch_pair *a, ek_watch_pair *b)
{
    const ek_watch_pair held = *a;

    *a = *b;
    *b = held;
}

/* Greatest t such that pairs with value >= t weigh at least k, by halving.  *share: what part of
 * those at t itself belongs to the k best.  Reorders a (n); k is at most the weight of all. */
static float threshold(ek_watch_pair *a, int n, double k, double *share)
{
    int lo = 0, hi = n;

    for (;;) {
        const float pivot = a[lo + (hi - lo) / 2].value;
        double above = 0, at = 0;
        int above_end = lo, i = lo, below = hi;

        while (i < below) {
            if (a[i].value > pivot) {
                above += (double)a[i].weight;
                swap(&a[i++], &a[above_end++]);
            } else if (a[i].value < pivot) {
                swap(&a[i], &a[--below]);
            } else {
                at += (double)a[i++].weight;
            }
        }
        if (above >= k && above_end > lo) {
            hi = above_end;
        } else if (above + at >= k || below == hi) {
            *share = at > 0 ? fmin(1, (k - above) / at) : 1;
            return pivot;
        } else {
            k -= above + at;
            lo = below;
        }
    }
}

static double weight_of(const ek_loss_item *x, int e)
{
    return x->log_weight != NULL ? exp((double)x->log_weight[e]) : 1;
}

/* Part of the weight k that is among the k best by target and by priority alike; *target: what the
 * k-th best has by target. */
static double both_best(const ek_loss_item *x, double k, ek_watch_pair *room, float *target)
{
    double share[2], both = 0;
    float at[2];

    for (int side = 0; side < 2; side++) {
        for (int e = 0; e < x->n; e++)
            room[e] =
                (ek_watch_pair){side == 0 ? x->mass[e] : (float)x->p[e], (float)weight_of(x, e)};
        at[side] = threshold(room, x->n, k, &share[side]);
    }
    for (int e = 0; e < x->n; e++) {
        const float p = (float)x->p[e];
        const double want = x->mass[e] > at[0] ? 1 : x->mass[e] < at[0] ? 0 : share[0];
        const double says = p > at[1] ? 1 : p < at[1] ? 0 : share[1];

        both += weight_of(x, e) * fmin(want, says);
    }
    *target = at[0];
    return both / k;
}

/* The youngest of the entries with the greatest target below `at`; -1: none is below. */
static int best_below(const ek_loss_item *x, float at)
{
    int best = -1;

    for (int e = 0; e < x->n; e++)
        if (x->mass[e] < at && (best < 0 || x->mass[e] >= x->mass[best]))
            best = e;
    return best;
}

/* The entry that the youngest is compared with, where the k-th best has the target `at`; -1: there
 * is none, as where one entry stands for all that is kept and all that goes. */
static int partner_of(const ek_loss_item *x, float at, double k)
{
    const int newborn = x->n - 1;
    double above = 0;
    int boundary = -1;

    for (int e = 0; e < x->n; e++)
        if (x->mass[e] > at)
            above += weight_of(x, e);
    for (int e = newborn; e >= 0; e--) { /* from the better to the worse of equals */
        if (x->mass[e] != at)
            continue;
        if (boundary == newborn && above >= k)
            return e;
        boundary = e;
        above += weight_of(x, e);
        if (above >= k && boundary != newborn)
            return boundary;
    }
    return boundary == newborn ? best_below(x, at) : boundary;
}

/* The decision at a cut. */
static void decide(const ek_loss_item *x, float at, ek_watch *sum)
{
    const int newborn = x->n - 1, partner = partner_of(x, at, x->keep);

    if (partner < 0)
        return;
    const double by = (double)x->p[newborn] - (double)x->p[partner];
    sum->right += x->mass[newborn] >= at ? by > 0 : by < 0;
    sum->decided += 1;
}

void ek_watch_cut(const ek_loss_item *x, ek_watch_pair *room, ek_watch *sum)
{
    double all = 0;
    float at;

    for (int e = 0; e < x->n; e++)
        all += weight_of(x, e);
    sum->quarter += both_best(x, fmax(1, floor(all / 4)), room, &at);
    sum->n_quarter += 1;
    if (all <= x->keep)
        return;
    sum->recall += both_best(x, x->keep, room, &at);
    decide(x, at, sum);
    sum->chance += x->keep / all;
    sum->n += 1;
}

/* At query i: the first n entries are eligible. */
static void recall_at(const ek_loss_item *x, int i, ek_watch_pair *room, ek_watch *sum)
{
    const int n = i - x->recent - x->sinks + 1;
    double share, both = 0;

    if (n <= x->keep || n > x->n)
        return;
    for (int e = 0; e < n; e++)
        room[e] = (ek_watch_pair){(float)x->p[e], 1};
    const float at = threshold(room, n, x->keep, &share);
    for (int e = 0; e < n; e++) {
        const float p = (float)x->p[e];

        if (x->rank->rank[x->sinks + e] <= x->rank->tau[i])
            both += p > at ? 1 : p < at ? 0 : share;
    }
    sum->recall += both / x->keep;
    sum->chance += (double)x->keep / n;
    sum->n += 1;
}

void ek_watch_whole(const ek_loss_item *x, ek_watch_pair *room, ek_watch *sum)
{
    const int first = x->sinks + x->recent + x->keep, last = x->n_seq - 1;

    for (int i = first; i < last; i += EVERY)
        recall_at(x, i, room, sum);
    recall_at(x, last, room, sum);
    for (int i = 0; i < x->n_at; i++) {
        const ek_decision d = ek_rank_decide(x->rank, x->at[i]);
        const double by = (double)x->p[d.newborn - x->sinks] - (double)x->p[d.partner - x->sinks];

        sum->right += d.y * by > 0;
        sum->decided += 1;
    }
}

void ek_watch_add(ek_watch *to, const ek_watch *x)
{
    to->quarter += x->quarter;
    to->n_quarter += x->n_quarter;
    to->recall += x->recall;
    to->chance += x->chance;
    to->n += x->n;
    to->right += x->right;
    to->decided += x->decided;
}

ek_watched ek_watch_mean(const ek_watch *s)
{
    return (ek_watched){.quarter = s->n_quarter > 0 ? s->quarter / s->n_quarter : NAN,
                        .recall = s->n > 0 ? s->recall / s->n : NAN,
                        .chance = s->n > 0 ? s->chance / s->n : NAN,
                        .boundary = s->decided > 0 ? s->right / s->decided : NAN};
}
