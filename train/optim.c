/* train/optim.c - AdamW (Loshchilov and Hutter 2019), decoupled decay on matrices. */
#include "train/optim.h"

#include <math.h>
#include <stdlib.h>

const ek_optim_set ek_optim_defaults = {.lr = 1e-3,
                                        .lr_end = 8e-5,
                                        .warmup = 100,
                                        .beta1 = 0.9,
                                        .beta2 = 0.95,
                                        .eps = 1e-8,
                                        .weight_decay = 1e-4,
                                        .clip = 1.0};

const ek_field ek_optim_fields[] = {
    EK_FLOAT(ek_optim_set, lr, 0, 10, "learning rate after the warm-up"),
    EK_FLOAT(ek_optim_set, lr_end, 0, 10, "learning rate at the last step (cosine)"),
    EK_INT(ek_optim_set, warmup, 0, 1000000, "steps of linear rise"),
    EK_FLOAT(ek_optim_set, beta1, 0, 0.999999, "decay of the first moment"),
    EK_FLOAT(ek_optim_set, beta2, 0, 0.999999, "decay of the second moment"),
    EK_FLOAT(ek_optim_set, eps, 1e-16, 1, "added to the root of the second moment"),
    EK_FLOAT(ek_optim_set, weight_decay, 0, 10, "decoupled decay of matrices"),
    EK_FLOAT(ek_optim_set, clip, 0, 1e9, "largest global gradient norm; 0: no clipping"),
    EK_FIELD_END};

ek_code ek_optim_open(ek_optim *o, const ek_scorer *s, size_t extra, const ek_optim_set *set,
                      ek_err *err)
{
    const size_t n = ek_params_size(s) + extra;
    float *block = calloc(n, 2 * sizeof *block);

    if (block == NULL)
        return EK_FAIL(err, EK_ENOMEM, "moments of %zu parameters", n);
    *o = (ek_optim){.set = *set, .scorer = s, .n = n, .extra = extra, .m = block, .v = block + n};
    return EK_OK;
}

void ek_optim_close(ek_optim *o)
{
    free(o->m);
    *o = (ek_optim){0};
}

double ek_optim_lr(const ek_optim_set *set, int64_t step, int64_t steps)
{
    if (step <= set->warmup)
        return set->lr * (double)step / (double)set->warmup;
    if (steps <= set->warmup)
        return set->lr_end;
    const double done = (double)(step - set->warmup) / (double)(steps - set->warmup);
    return set->lr_end + 0.5 * (set->lr - set->lr_end) * (1 + cos(acos(-1.0) * done));
}

static double norm2(const float *x, size_t n)
{
    double sum = 0;

    for (size_t i = 0; i < n; i++)
        sum += (double)x[i] * (double)x[i];
    return sum;
}

/* Where tensor i begins and how many numbers it has over all layers and heads. */
static size_t tensor(const ek_optim *o, const ek_param *p, int i, size_t *size)
{
    const ek_dims *d = &o->scorer->dims;

    *size = (size_t)d->n_layers * (size_t)d->n_heads * (size_t)p[i].rows * (size_t)p[i].cols;
    return ek_params_at(o->scorer, i, 0, 0);
}

/* Euclidean norm of the trained part of grad (n). */
static double norm_of(const ek_optim *o, const float *grad)
{
    ek_param p[EK_MAX_PARAMS];
    const int n = o->scorer->cls->learner->describe(o->scorer, p);
    double sum = 0;

    for (int i = 0; i < n; i++) {
        size_t size;
        const size_t at = tensor(o, p, i, &size);

        if (p[i].trained)
            sum += norm2(grad + at, size);
    }
    sum += norm2(grad + o->n - o->extra, o->extra);
    return sqrt(sum);
}

static ek_code name_bad(const ek_optim *o, const ek_param *p, int n, const float *grad,
                        int64_t step, ek_err *err)
{
    for (int i = 0; i < n; i++) {
        size_t size;
        const size_t at = tensor(o, p, i, &size);
        const size_t heads = (size_t)o->scorer->dims.n_heads;
        const size_t per = (size_t)p[i].rows * (size_t)p[i].cols;

        for (size_t j = 0; j < size; j++)
            if (!isfinite(grad[at + j]))
                return EK_FAIL(err, EK_ENAN,
                               "step %lld: gradient of %s, layer %zu, head %zu is not finite",
                               (long long)step, p[i].name, j / per / heads, j / per % heads);
    }
    return EK_FAIL(err, EK_ENAN, "step %lld: the gradient's norm is not finite", (long long)step);
}

typedef struct pace { /* of one step */
    float by, b1, b2, eps, rate, root;
} pace;

static void move(ek_optim *o, const pace *w, float shrink, float *params, const float *grad,
                 size_t at, size_t size)
{
#pragma omp parallel for schedule(static)
    for (size_t j = at; j < at + size; j++) {
        const float g = grad[j] * w->by;

        o->m[j] = w->b1 * o->m[j] + (1 - w->b1) * g;
        o->v[j] = w->b2 * o->v[j] + (1 - w->b2) * g * g;
        params[j] = params[j] * shrink - w->rate * o->m[j] / (sqrtf(o->v[j]) * w->root + w->eps);
    }
}

ek_code ek_optim_step(ek_optim *o, float *params, const float *grad, int64_t step, int64_t steps,
                      double *norm, ek_err *err)
{
    const ek_optim_set *set = &o->set;
    ek_param p[EK_MAX_PARAMS];
    const int n = o->scorer->cls->learner->describe(o->scorer, p);
    const double all = norm_of(o, grad), lr = ek_optim_lr(set, step, steps);

    if (!isfinite(all))
        return name_bad(o, p, n, grad, step, err);
    if (norm != NULL)
        *norm = all;
    const pace w = {.by = (float)(set->clip > 0 && all > set->clip ? set->clip / all : 1),
                    .b1 = (float)set->beta1,
                    .b2 = (float)set->beta2,
                    .eps = (float)set->eps,
                    .rate = (float)(lr / (1 - pow(set->beta1, (double)step))),
                    .root = (float)(1 / sqrt(1 - pow(set->beta2, (double)step)))};

    for (int i = 0; i < n; i++) {
        size_t size;
        const size_t at = tensor(o, p, i, &size);

        if (p[i].trained)
            move(o, &w, (float)(p[i].decay ? 1 - lr * set->weight_decay : 1), params, grad, at,
                 size);
    }
    if (o->extra > 0)
        move(o, &w, 1, params, grad, o->n - o->extra, o->extra);
    return EK_OK;
}
