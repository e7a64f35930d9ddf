/* scorers/learned.c - the table of learned scorers, and where their parameters lie. */
#include "scorers/scorer.h"

#include <assert.h>
#include <string.h>

const char *const ek_age_names[] = {"none", "exp", "power", "input", NULL};

const ek_scorer_class *const ek_learned[] = {&ek_scorer_mlp, NULL};

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
