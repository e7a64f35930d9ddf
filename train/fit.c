/* train/fit.c - constants measured before training: standardisation of inputs, mass of heads. */
#include "train/trainer.h"

#include "core/progress.h"
#include "scorers/age.h"
#include "scorers/inputs.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { TILE = 256 }; /* rows at a time */

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
    double start;         /* sum of exp(p) where all that is known is the age */
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
    const int width = ek_inputs_n(&t->scorer);
    int32_t first, n;
    ek_view view;

    ek_trainer_slots(t, r, layer, h, c, &first, &n);
    const float *log_weight = r->log_weight + ek_example_at(r, layer, h) + first;

    ek_example_layer(r, layer, c, own->lists, own->lists + r->dims.n_heads, &view);
    for (int from = 0; from < n; from += TILE) {
        const int rows = n - from < TILE ? n - from : TILE;

        ek_inputs_read(&t->scorer, &view, h, first + from, rows, own->x);
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

/* Where every entry has score 0: what an untrained scorer says of all of them. */
static double untrained(const ek_trainer *t, const ek_example *r, int layer, int h, int c,
                        const room *own)
{
    int32_t first, n, *begin = own->lists, *rows = own->lists + r->dims.n_heads;
    float *zero = own->x, *p = own->x + TILE;
    double sum = 0;
    ek_view view;

    ek_example_slots(r, layer, h, c, t->need.recent, &first, &n);
    const float *log_weight = r->log_weight + ek_example_at(r, layer, h) + first;
    ek_example_layer(r, layer, c, begin, rows, &view);
    const int32_t base = begin[h] + first;
    memset(zero, 0, TILE * sizeof *zero);
    for (int from = 0; from < n; from += TILE) {
        rows[h] = n - from < TILE ? n - from : TILE;
        begin[h] = base + from;
        ek_age_add(&t->scorer, &view, h, zero, p);
        for (int i = 0; i < rows[h]; i++)
            sum += exp((double)p[i] + (double)log_weight[from + i]);
    }
    return sum;
}

static void observe_mass(const ek_trainer *t, const ek_example *r, int layer, int h, int c,
                         moments *m)
{
    int32_t first, n;

    ek_example_slots(r, layer, h, c, t->need.recent, &first, &n);
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
        observe_mass(t, r, layer, h, c, m);
        if (t->scorer.set.absolute)
            m->start += untrained(t, r, layer, h, c, own);
        if (!once || c == 0)
            observe_inputs(t, r, layer, h, once ? -1 : c, m, own);
    }
}

static void settle(ek_trainer *t, int layer, int h, const moments *m)
{
    const ek_scorer *s = &t->scorer;
    const int mass = tensor_named(s, "log_mass"), bias = tensor_named(s, "out.bias");

    t->params[ek_params_at(s, mass, layer, h)] = (float)log(1e-12 + m->mass / m->cuts);
    if (s->set.absolute && bias >= 0) /* expected masses begin with the right sum */
        t->params[ek_params_at(s, bias, layer, h)] = (float)-log(m->start / m->cuts);
    for (int c = 0; c < ek_inputs_n(s); c++) {
        const double mu = m->sum[c] / m->weight;
        const double var = m->square[c] / m->weight - mu * mu;

        t->params[ek_params_at(s, EK_INPUT_MEAN, layer, h) + (size_t)c] = (float)mu;
        t->params[ek_params_at(s, EK_INPUT_SCALE, layer, h) + (size_t)c] =
            (float)(1 / sqrt((var > 0 ? var : 0) + 1e-8));
    }
}

typedef struct fitting { /* of one trainer */
    ek_trainer *t;
    moments *m;     /* (heads of all layers) */
    double *sums;   /* (heads, 2, n_inputs) */
    float *x;       /* (heads, TILE, n_inputs) */
    int32_t *lists; /* (heads, 2, n_heads) */
} fitting;

static ek_code open_fitting(fitting *f, ek_trainer *t, ek_err *err)
{
    const ek_dims *d = &t->scorer.dims;
    const size_t all = (size_t)d->n_layers * (size_t)d->n_heads;
    const size_t width = (size_t)ek_inputs_n(&t->scorer);

    *f = (fitting){.t = t,
                   .m = calloc(all, sizeof *f->m),
                   .sums = calloc(all * 2 * width, sizeof *f->sums),
                   .x = malloc(all * TILE * width * sizeof *f->x),
                   .lists = malloc(all * 2 * (size_t)d->n_heads * sizeof *f->lists)};
    if (f->m == NULL || f->sums == NULL || f->x == NULL || f->lists == NULL)
        return EK_FAIL(err, EK_ENOMEM, "constants of %zu heads", all);
    for (size_t i = 0; i < all; i++) {
        f->m[i].sum = f->sums + i * 2 * width;
        f->m[i].square = f->m[i].sum + width;
    }
    return EK_OK;
}

static void close_fitting(fitting *f)
{
    free(f->m);
    free(f->sums);
    free(f->x);
    free(f->lists);
}

static void observe_record(const fitting *f, const ek_example *r)
{
    const ek_scorer *s = &f->t->scorer;
    const int heads = s->dims.n_heads, all = s->dims.n_layers * heads, threads = s->dev->threads;
    const size_t width = (size_t)ek_inputs_n(s);

#pragma omp parallel for num_threads(threads) schedule(dynamic, 1)
    for (int y = 0; y < all; y++) {
        const room own = {.x = f->x + (size_t)y * TILE * width,
                          .lists = f->lists + (size_t)y * 2 * (size_t)heads};

        observe(f->t, r, y / heads, y % heads, &f->m[y], &own);
    }
}

ek_code ek_trainer_fit_all(ek_trainer *const *t, int n_trainers, int quiet, ek_err *err)
{
    const ek_examples *records = &t[0]->need.records;
    const int64_t n = records->n < EK_FIT_RECORDS ? records->n : EK_FIT_RECORDS;
    fitting *f = calloc((size_t)n_trainers, sizeof *f);
    ek_example r = {0};
    ek_progress p;

    if (f == NULL)
        return EK_FAIL(err, EK_ENOMEM, "constants of %d scorers", n_trainers);
    err->code = EK_OK;
    ek_progress_open(&p, "constants", "records", n);
    p.quiet = quiet;
    for (int k = 0; k < n_trainers; k++)
        EK_CHECK(open_fitting(&f[k], t[k], err));
    for (int64_t i = 0; i < n; i++) {
        if (ek_stop_asked())
            EK_CHECK(EK_FAIL(err, EK_ESTOPPED, "stopped before the first step; nothing was kept"));
        EK_CHECK(records->get(records->ctx, i, &r, err));
        for (int k = 0; k < n_trainers; k++) {
            EK_CHECK(ek_trainer_check(t[k], i, r.head, err));
            observe_record(&f[k], &r);
        }
        ek_example_close(&r);
        ek_progress_at(&p, i + 1, NULL);
    }
    for (int k = 0; k < n_trainers; k++) {
        const int heads = t[k]->scorer.dims.n_heads, all = t[k]->scorer.dims.n_layers * heads;

        for (int y = 0; y < all; y++)
            settle(t[k], y / heads, y % heads, &f[k].m[y]);
    }
fail:
    ek_progress_close(&p);
    ek_example_close(&r);
    for (int k = 0; k < n_trainers; k++)
        close_fitting(&f[k]);
    free(f);
    return err->code;
}

ek_code ek_trainer_fit(ek_trainer *t, ek_err *err)
{
    return ek_trainer_fit_all(&t, 1, 1, err);
}
