/* infer/budget.c - amounts: fractions become integers, once, and integers are shared out. */
#include "infer/budget.h"

#include "scorers/age.h"

#include <inttypes.h>
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

int32_t ek_budget_entries(const ek_budget *b, int64_t n, const ek_cost *cost)
{
    const int64_t each = cost->plain + cost->extra;
    int64_t entries = n;

    if (b->num > 0)
        entries = b->num * n / b->den;
    else if (b->entries > 0)
        entries =
            ((b->entries < INT32_MAX ? b->entries : INT32_MAX) * cost->plain - cost->state) / each;
    else if (b->bytes > 0)
        entries = (b->bytes - cost->state) / each;
    if (entries > n)
        entries = n;
    if (entries > INT32_MAX)
        entries = INT32_MAX;
    return entries > 1 ? (int32_t)entries : 1;
}

ek_cost ek_policy_cost(const ek_policy *p, const ek_dims *dims, ek_dtype dtype)
{
    const ek_measure *m = &p->method.measure;
    const int64_t heads = (int64_t)dims->n_layers * dims->n_heads;
    const int64_t carry = (int64_t)sizeof(float) * ek_measure_n_carry(m, dims->group);
    ek_cost cost = {.plain = heads * (2 * (int64_t)dims->head_dim * ek_dtype_size(dtype) +
                                      (int64_t)sizeof(int32_t))};

    if (!ek_policy_watches(p, 0))
        return cost;
    cost.extra = ek_measure_is_shared(m) ? carry : carry * heads;
    cost.state = heads * (int64_t)(ek_measure_n_state(m) * sizeof(float));
    return cost;
}

ek_code ek_policy_affords(const ek_policy *p, const ek_dims *dims, ek_dtype dtype, ek_err *err)
{
    const ek_cost cost = ek_policy_cost(p, dims, dtype);
    const ek_budget *b = &p->budget;
    const int32_t least = p->method.protect.sinks + p->method.protect.recent + 1;
    const int64_t bytes = (int64_t)least * (cost.plain + cost.extra) + cost.state;

    if (cost.state == 0 || b->num > 0 || (b->entries <= 0 && b->bytes <= 0) ||
        ek_budget_entries(b, INT32_MAX, &cost) >= least)
        return EK_OK;
    return EK_FAIL(err, EK_EASKED,
                   "%s: %s: found %" PRId64 ", expected at least %" PRId64
                   ": its memory of %" PRId64 " bytes, %d protected entries and one more",
                   p->method.name, b->entries > 0 ? "entries" : "bytes",
                   b->entries > 0 ? b->entries : b->bytes,
                   b->entries > 0 ? (bytes + cost.plain - 1) / cost.plain : bytes, cost.state,
                   least - 1);
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

int ek_share_lists(const ek_method *m, int n_layers, int n_heads)
{
    switch (m->budget) {
    case EK_SHARE_LAYER:
        return n_heads;
    case EK_SHARE_MODEL:
        return n_layers * n_heads;
    case EK_SHARE_UNIFORM:
        break;
    }
    return 1;
}

int32_t ek_share_floor(const ek_method *m, int32_t n, int32_t entries)
{
    const int64_t billion = 1000000000; /* in integers: 0.29 of 100 is 29 */
    int32_t least = (int32_t)(llround(m->floor * (double)billion) * entries / billion);
    int32_t sinks, recent;

    ek_policy_protected(m, n, entries, &sinks, &recent);
    if (least < sinks + recent)
        least = sinks + recent;
    return least < n ? least : n;
}

void ek_share_out(const ek_method *m, const ek_share_pool *pool, int32_t entries)
{
    const ek_scorer *s = m->measure.scorer;
    const ek_learner *learner = m->measure.signal->learner;
    float *score = pool->score;
    uint8_t *mask = pool->mask;
    int64_t left = (int64_t)entries * pool->n_lists;

    for (int i = 0; i < pool->n_lists; i++) {
        const int32_t first = pool->first[i], n = pool->n[i];
        const int layer = (pool->list + i) / pool->n_heads, h = (pool->list + i) % pool->n_heads;
        const int32_t least = ek_share_floor(m, n, entries);
        const double own = learner != NULL && !s->set.absolute ? log_sum(score, first, n, mask) : 0;
        const double mass = learner != NULL && s != NULL ? (double)ek_age_log_mass(s, layer, h) : 0;
        int32_t marked = 0;

        for (int32_t e = first; e < first + n; e++)
            marked += mask[e];
        ek_select(score, &first, &n, 1, least - marked, mask);
        /* Attention, measured or true, is a mass already. */
        for (int32_t e = first; learner != NULL && e < first + n && !isinf(own); e++)
            score[e] = (float)((double)score[e] - own + mass);
        left -= least;
    }
    ek_select(score, pool->first, pool->n, pool->n_lists, left, mask);
}
