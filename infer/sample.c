/* infer/sample.c - greedy, temperature, top-k, top-p, min-p. */
#include "infer/sample.h"

#include "core/rng.h"

#include <math.h>
#include <stdlib.h>

typedef struct candidate {
    float logit;
    int32_t id;
} candidate;

const ek_sampling ek_sampling_greedy = {.top_p = 1.0};

ek_code ek_sampler_open(ek_sampler *s, const ek_sampling *set, int n, ek_err *err)
{
    /* Negated comparisons refuse NaN as well. */
    if (!(set->temperature >= 0.0 && set->temperature <= 1e6))
        return EK_FAIL(err, EK_EASKED, "temperature: found %g, expected 0 or more",
                       set->temperature);
    if (set->top_k < 0)
        return EK_FAIL(err, EK_EASKED, "top-k: found %lld, expected 0 or more",
                       (long long)set->top_k);
    if (!(set->top_p > 0.0 && set->top_p <= 1.0))
        return EK_FAIL(err, EK_EASKED, "top-p: found %g, expected more than 0, at most 1",
                       set->top_p);
    if (!(set->min_p >= 0.0 && set->min_p <= 1.0))
        return EK_FAIL(err, EK_EASKED, "min-p: found %g, expected 0 .. 1", set->min_p);
    *s = (ek_sampler){.set = *set, .n = n, .order = malloc(sizeof(candidate) * (size_t)n)};
    if (!s->order)
        return EK_FAIL(err, EK_ENOMEM, "no memory for %d candidates", n);
    return EK_OK;
}

void ek_sampler_close(ek_sampler *s)
{
    free(s->order);
    *s = (ek_sampler){0};
}

int32_t ek_argmax(const float *x, int n)
{
    int32_t best = 0;
    float most = -INFINITY;

    for (int i = 0; i < n; i++)
        if (x[i] > most) {
            most = x[i];
            best = i;
        }
    return best;
}

static int by_logit(const void *a, const void *b)
{
    const candidate *x = a, *y = b;

    if (x->logit != y->logit)
        return x->logit > y->logit ? -1 : 1;
    return x->id < y->id ? -1 : 1;
}

/* The fewest candidates whose probabilities reach top_p; total: their sum before the cut. */
static int cut_top_p(const ek_sampling *set, const candidate *c, int n, double total)
{
    const double most = c[0].logit / set->temperature;
    double sum = 0.0;

    for (int i = 0; i < n; i++) {
        sum += exp(c[i].logit / set->temperature - most);
        if (sum >= set->top_p * total)
            return i + 1;
    }
    return n;
}

ek_code ek_sampler_pick(ek_sampler *s, const float *logits, int64_t step, int32_t *out, ek_err *err)
{
    const ek_sampling *set = &s->set;
    candidate *c = s->order;
    double total = 0.0, most, at;
    int n = 0;

    for (int i = 0; i < s->n; i++) {
        if (isnan(logits[i]) || logits[i] == INFINITY)
            return EK_FAIL(err, EK_ENAN, "logit of token %d: found %g, expected a number", i,
                           (double)logits[i]);
        if (logits[i] > -INFINITY)
            c[n++] = (candidate){logits[i], i};
    }
    if (n == 0)
        return EK_FAIL(err, EK_ENAN, "found no token with a logit above -inf");
    if (set->temperature == 0.0) {
        *out = ek_argmax(logits, s->n);
        return EK_OK;
    }
    qsort(c, (size_t)n, sizeof *c, by_logit);
    if (set->top_k > 0 && set->top_k < n)
        n = (int)set->top_k;
    most = c[0].logit / set->temperature;
    if (set->top_p < 1.0) {
        for (int i = 0; i < n; i++)
            total += exp(c[i].logit / set->temperature - most);
        n = cut_top_p(set, c, n, total);
    }
    /* The highest probability is exp(0) = 1 before normalisation. */
    while (n > 1 && exp(c[n - 1].logit / set->temperature - most) < set->min_p)
        n--;
    total = 0.0;
    for (int i = 0; i < n; i++)
        total += exp(c[i].logit / set->temperature - most);
    at = ek_rng_unit(set->seed, ek_rng_stream("sample", 0, 0), (uint64_t)step) * total;
    for (int i = 0; i < n; i++) {
        at -= exp(c[i].logit / set->temperature - most);
        if (at < 0.0) {
            *out = c[i].id;
            return EK_OK;
        }
    }
    *out = c[n - 1].id;
    return EK_OK;
}
