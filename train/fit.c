/* train/fit.c - constants measured before training: standardisation of inputs, mass of heads. */
#include "train/trainer.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { RECORDS = 32, TILE = 256 };

static int tensor_named(const ek_scorer *s, const char *name)
{
    ek_param p[EK_MAX_PARAMS];
    const int n = s->cls->learner->describe(s, p);

    for (int i = 0; i < n; i++)
        if (strcmp(p[i].name, name) == 0)
            return i;
    return -1;
}

typedef struct moments {                /* of one head */
    double weight, mass, *sum, *square; /* (n_inputs) */
} moments;

/* Add what head h of one layer of a record shows; every entry counts for as many as it stands. */
static void observe(const ek_scorer *s, const ek_example *r, int layer, int h, moments *m, float *x,
                    int32_t *lists, int with_inputs)
{
    const int width = s->cls->learner->n_inputs(s), heads = r->dims.n_heads;
    const size_t at = ek_example_at(r, layer, h);
    ek_view view;

    ek_example_layer(r, layer, lists, lists + heads, &view);
    for (int e = 0; e < r->head->n; e++)
        m->mass += (double)r->mass[at + (size_t)e] * exp((double)r->log_weight[at + (size_t)e]);
    for (int from = 0; with_inputs && from < r->head->n; from += TILE) {
        const int rows = r->head->n - from < TILE ? r->head->n - from : TILE;

        s->cls->learner->inputs(s, &view, h, from, rows, x);
        for (int i = 0; i < rows; i++) {
            const double w = exp((double)r->log_weight[at + (size_t)(from + i)]);

            m->weight += w;
            for (int c = 0; c < width; c++) {
                const double v = (double)x[(size_t)i * (size_t)width + (size_t)c];
                m->sum[c] += w * v;
                m->square[c] += w * v * v;
            }
        }
    }
}

static void settle(ek_trainer *t, int layer, int h, const moments *m, int64_t n)
{
    const ek_scorer *s = &t->scorer;
    const int mean = tensor_named(s, "input.mean"), scale = tensor_named(s, "input.scale");
    const int mass = tensor_named(s, "log_mass");

    if (mass >= 0)
        t->params[ek_params_at(s, mass, layer, h)] = (float)log(1e-12 + m->mass / (double)n);
    if (mean < 0 || scale < 0)
        return;
    for (int c = 0; c < s->cls->learner->n_inputs(s); c++) {
        const double mu = m->sum[c] / m->weight;
        const double var = m->square[c] / m->weight - mu * mu;

        t->params[ek_params_at(s, mean, layer, h) + (size_t)c] = (float)mu;
        t->params[ek_params_at(s, scale, layer, h) + (size_t)c] =
            (float)(1 / sqrt((var > 0 ? var : 0) + 1e-8));
    }
}

ek_code ek_trainer_fit(ek_trainer *t, ek_err *err)
{
    const ek_dims *d = &t->scorer.dims;
    const int all = d->n_layers * d->n_heads, threads = t->scorer.dev->threads;
    const size_t width = (size_t)t->scorer.cls->learner->n_inputs(&t->scorer);
    const int64_t n = t->need.records.n;
    moments *m = calloc((size_t)all, sizeof *m);
    double *sums = calloc((size_t)all * 2 * width, sizeof *sums);
    float *x = malloc((size_t)all * TILE * width * sizeof *x);
    int32_t *lists = malloc((size_t)all * 2 * (size_t)d->n_heads * sizeof *lists);
    ek_example r = {0};

    err->code = EK_OK;
    if (m == NULL || sums == NULL || x == NULL || lists == NULL)
        EK_CHECK(EK_FAIL(err, EK_ENOMEM, "constants of %d heads", all));
    for (int i = 0; i < all; i++) {
        m[i].sum = sums + (size_t)i * 2 * width;
        m[i].square = m[i].sum + width;
    }
    for (int64_t i = 0; i < n; i++) {
        EK_CHECK(t->need.records.get(t->need.records.ctx, i, &r, err));
#pragma omp parallel for num_threads(threads) schedule(dynamic, 1)
        for (int y = 0; y < all; y++)
            observe(&t->scorer, &r, y / d->n_heads, y % d->n_heads, &m[y],
                    x + (size_t)y * TILE * width, lists + (size_t)y * 2 * (size_t)d->n_heads,
                    i < RECORDS);
        ek_example_close(&r);
    }
    for (int y = 0; y < all; y++)
        settle(t, y / d->n_heads, y % d->n_heads, &m[y], n);
fail:
    ek_example_close(&r);
    free(m);
    free(sums);
    free(x);
    free(lists);
    return err->code;
}
