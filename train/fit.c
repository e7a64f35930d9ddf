/* train/fit.c - constants measured before training: standardisation of inputs, mass of heads. */
#include "train/trainer.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { RECORDS = 64, TILE = 256 };

static int tensor_named(const ek_scorer *s, const char *name)
{
    ek_param p[EK_MAX_PARAMS];
    const int n = s->cls->learner->describe(s, p);

    for (int i = 0; i < n; i++)
        if (strcmp(p[i].name, name) == 0)
            return i;
    return -1;
}

typedef struct moments { /* of one head */
    double weight, mass, cuts;
    double *sum, *square; /* (n_inputs) */
} moments;

typedef struct room { /* of one head */
    float *x;         /* (TILE, n_inputs) */
    int32_t *lists;   /* (2, n_heads) */
} room;

/* Inputs of the slots that the network reads at cut c (-1: for all cuts at once); every entry
 * counts for as many as it stands. */
static void observe_inputs(const ek_trainer *t, const ek_example *r, int layer, int h, int c,
                           moments *m, const room *own)
{
    const ek_learner *learner = t->scorer.cls->learner;
    const int width = learner->n_inputs(&t->scorer);
    int32_t first, n;
    ek_view view;

    ek_trainer_slots(t, r, layer, h, c, &first, &n);
    const float *log_weight = r->log_weight + ek_example_at(r, layer, h) + first;

    ek_example_layer(r, layer, c, own->lists, own->lists + r->dims.n_heads, &view);
    for (int from = 0; from < n; from += TILE) {
        const int rows = n - from < TILE ? n - from : TILE;

        learner->inputs(&t->scorer, &view, h, first + from, rows, own->x);
        for (int i = 0; i < rows; i++) {
            const double w = exp((double)log_weight[from + i]);

            m->weight += w;
            for (int k = 0; k < width; k++) {
                const double v = (double)own->x[(size_t)i * (size_t)width + (size_t)k];
                m->sum[k] += w * v;
                m->square[k] += w * v * v;
            }
        }
    }
}

static void observe_mass(const ek_example *r, int layer, int h, int c, moments *m)
{
    int32_t first, n;

    ek_example_slots(r, layer, h, c, &first, &n);
    const float *log_weight = r->log_weight + ek_example_at(r, layer, h) + first;
    const float *mass = r->mass + ek_example_mass_at(r, layer, c, h) + first;

    for (int e = 0; e < n; e++)
        m->mass += (double)mass[e] * exp((double)log_weight[e]);
    m->cuts++;
}

/* Add what head h of one layer of a record shows. */
static void observe(const ek_trainer *t, const ek_example *r, int layer, int h, moments *m,
                    const room *own)
{
    const int once = ek_scorer_is_static(&t->scorer.set);

    for (int c = 0; c < r->head->n_cuts; c++) {
        observe_mass(r, layer, h, c, m);
        if (!once || c == 0)
            observe_inputs(t, r, layer, h, once ? -1 : c, m, own);
    }
}

static void settle(ek_trainer *t, int layer, int h, const moments *m)
{
    const ek_scorer *s = &t->scorer;
    const int mean = tensor_named(s, "input.mean"), scale = tensor_named(s, "input.scale");
    const int mass = tensor_named(s, "log_mass");

    if (mass >= 0)
        t->params[ek_params_at(s, mass, layer, h)] = (float)log(1e-12 + m->mass / m->cuts);
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
    const int64_t n = t->need.records.n < RECORDS ? t->need.records.n : RECORDS;
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
        EK_CHECK(ek_trainer_check(t, i, r.head, err));
#pragma omp parallel for num_threads(threads) schedule(dynamic, 1)
        for (int y = 0; y < all; y++) {
            const room own = {.x = x + (size_t)y * TILE * width,
                              .lists = lists + (size_t)y * 2 * (size_t)d->n_heads};

            observe(t, &r, y / d->n_heads, y % d->n_heads, &m[y], &own);
        }
        ek_example_close(&r);
    }
    for (int y = 0; y < all; y++)
        settle(t, y / d->n_heads, y % d->n_heads, &m[y]);
fail:
    ek_example_close(&r);
    free(m);
    free(sums);
    free(x);
    free(lists);
    return err->code;
}
