/* scorers/learned.c - the table of learned scorers, and where their parameters lie. */
#include "scorers/carried.h"
#include "scorers/scorer.h"

#include <assert.h>
#include <string.h>

const char *const ek_age_names[] = {"none", "exp", "power", "input", NULL};

const ek_scorer_class *const ek_learned[] = {&ek_scorer_mlp, &ek_scorer_linear,
                                             &ek_scorer_recurrent, NULL};

const ek_scorer_class *ek_learned_find(const char *name)
{
    for (int i = 0; ek_learned[i] != NULL; i++)
        if (strcmp(ek_learned[i]->name, name) == 0)
            return ek_learned[i];
    return NULL;
}

static size_t tensor_size(const ek_scorer *s, const ek_param *p)
{
    return (size_t)s->dims.n_layers * (size_t)s->dims.n_heads * (size_t)p->rows * (size_t)p->cols;
}

size_t ek_params_size(const ek_scorer *s)
{
    ek_param p[EK_MAX_PARAMS];
    const int n = s->cls->learner->describe(s, p);
    size_t size = 0;

    for (int i = 0; i < n; i++)
        size += tensor_size(s, &p[i]);
    return size;
}

size_t ek_params_at(const ek_scorer *s, int tensor, int layer, int h)
{
    ek_param p[EK_MAX_PARAMS];
    const int n = s->cls->learner->describe(s, p);
    size_t at = 0;

    assert(tensor >= 0 && tensor < n);
    (void)n;
    for (int i = 0; i < tensor; i++)
        at += tensor_size(s, &p[i]);
    return at + ((size_t)layer * (size_t)s->dims.n_heads + (size_t)h) * (size_t)p[tensor].rows *
                    (size_t)p[tensor].cols;
}

ek_code ek_scorer_check(const ek_scorer *s, ek_err *err)
{
    const ek_scorer_set *set = &s->set;

    if (set->delay < 0 || set->delay > set->recent)
        return EK_FAIL(err, EK_EASKED,
                       "%s: delay: found %lld, expected 0 .. %lld, the recent window", s->cls->name,
                       (long long)set->delay, (long long)set->recent);
    if (s->cls->learner->advance == NULL)
        return EK_OK;
    if (s->dims.head_dim < 2 || s->dims.head_dim % 2 != 0)
        return EK_FAIL(err, EK_EASKED,
                       "%s: the model's keys have %d numbers, expected an even number",
                       s->cls->name, s->dims.head_dim);
    if (!ek_scorer_is_static(set))
        return EK_FAIL(err, EK_EASKED,
                       "%s: a memory reads an entry once, so its inputs must not change "
                       "with time: found age %s, carried %s, expected age none, exp or power, and "
                       "carried none",
                       s->cls->name, ek_age_names[set->age], ek_carried_names[set->carried]);
    return EK_OK;
}
