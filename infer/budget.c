/* infer/budget.c - amounts: fractions become integers, once, and integers are shared out. */
#include "infer/budget.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { DECIMALS = 9 }; /* numerator times n stays far below 2^63 */

ek_code ek_budget_keep(ek_budget *out, const char *decimal, ek_err *err)
{
    int64_t num = 0, den = 1;
    int digits = 0, decimals = -1;
    const char *s = decimal;

    for (; *s != '\0'; s++) {
        if (*s == '.' && decimals < 0) {
            decimals = 0;
            continue;
        }
        if (*s < '0' || *s > '9' || num > 1000000000 || decimals == DECIMALS)
            break;
        num = num * 10 + (*s - '0');
        digits++;
        if (decimals >= 0) {
            den *= 10;
            decimals++;
        }
    }
    if (*s != '\0' || digits == 0 || num < 1 || num > den)
        return EK_FAIL(err, EK_EASKED,
                       "keep: found \"%s\", expected the fraction that stays, above 0 and up to 1, "
                       "as a decimal of at most %d places",
                       decimal, DECIMALS);
    *out = (ek_budget){.num = num, .den = den};
    return EK_OK;
}

int32_t ek_budget_entries(const ek_budget *b, int64_t n, int64_t entry_bytes, const ek_dims *dims)
{
    int64_t entries = n;

    if (b->num > 0)
        entries = b->num * n / b->den;
    else if (b->entries > 0)
        entries = b->entries;
    else if (b->bytes > 0 && entry_bytes > 0)
        entries = b->bytes / (entry_bytes * dims->n_layers * dims->n_heads);
    if (entries > n)
        entries = n;
    if (entries > INT32_MAX)
        entries = INT32_MAX;
    return entries > 1 ? (int32_t)entries : 1;
}

void ek_policy_protected(const ek_method *m, int32_t n, int32_t entries, int32_t *sinks,
                         int32_t *recent)
{
    const int32_t room = entries < n ? entries : n;
    int32_t first = m->protect.sinks, last = m->protect.recent;

    if (m->protect.recent_half)
        last = entries - entries / 2;
    else if (m->protect.recent_window)
        last = m->measure.queries < n / 2 ? m->measure.queries : n / 2;
    if (first > room - 1)
        first = room > 0 ? room - 1 : 0;
    if (last > room - first)
        last = room - first;
    *sinks = first;
    *recent = last;
}

/* log sum exp of the unmarked numbers of a head; -inf if there are none. */
static double log_sum(const float *x, int32_t first, int32_t n, const uint8_t *mask)
{
    double sum = 0;
    float most = -INFINITY;

    for (int32_t e = first; e < first + n; e++)
        if (mask[e] == 0 && x[e] > most)
            most = x[e];
    if (isinf(most))
        return (double)most;
    for (int32_t e = first; e < first + n; e++)
        if (mask[e] == 0)
            sum += (double)expf(x[e] - most);
    return (double)most + log(sum);
}

int32_t ek_share_floor(const ek_method *m, int32_t n, int32_t entries)
{
    int32_t sinks, recent, least = entries / EK_SHARE_FLOOR;

    ek_policy_protected(m, n, entries, &sinks, &recent);
    if (least < sinks + recent)
        least = sinks + recent;
    return least < n ? least : n;
}

void ek_share_layer(const ek_method *m, const ek_view *in, int32_t entries, float *score,
                    uint8_t *mask)
{
    const ek_scorer *s = m->measure.scorer;
    const ek_learner *learner = m->measure.signal->learner;
    int64_t left = (int64_t)entries * in->n_heads;

    for (int h = 0; h < in->n_heads; h++) {
        const int32_t first = in->first[h], n = in->n[h];
        const int32_t least = ek_share_floor(m, n, entries);
        const double own = log_sum(score, first, n, mask);
        const double mass =
            learner != NULL && s != NULL ? (double)learner->log_mass(s, in->layer, h) : 0;
        int32_t marked = 0;

        for (int32_t e = first; e < first + n; e++)
            marked += mask[e];
        ek_select(score, &first, &n, 1, least - marked, mask);
        for (int32_t e = first; e < first + n && !isinf(own); e++)
            score[e] = (float)((double)score[e] - own + mass);
        left -= least;
    }
    ek_select(score, in->first, in->n, in->n_heads, left, mask);
}
