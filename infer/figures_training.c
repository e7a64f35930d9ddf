/* infer/figures_training.c - what training a scorer costs beside the model that reads for it: the
 * forward and backward of the learners that training runs, over one record's entries. */
#include "infer/bench_parts.h"

#include "core/progress.h"
#include "core/rng.h"
#include "scorers/carried.h"

#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CUTS = 4, KINDS = 2 }; /* cuts of a sequence, as configs/ train; scorers */

/* One scorer with parameters out of the air, and what a step over a record works in. */
typedef struct trainee {
    const char *name;
    ek_scorer scorer;
    ek_measure measure; /* of its lane, which carries the columns of the record */
    ek_real *params, *grad;
    ek_real *act;       /* (threads, act_each) */
    ek_real *r;         /* (threads, 2, entries) scores, and the loss's gradient by them */
    size_t n, act_each; /* numbers */
} trainee;

static void trainee_close(trainee *t)
{
    free(t->params);
    free(t->grad);
    free(t->act);
    free(t->r);
}

static ek_code trainee_open(ek_bencher *b, trainee *t, const char *name, const ek_scorer_class *cls,
                            ek_scorer_set set, int entries, ek_err *err)
{
    const size_t threads = (size_t)(b->dev->threads > 0 ? b->dev->threads : 1);

    t->name = name;
    t->scorer = (ek_scorer){.cls = cls, .dev = b->dev, .dims = *b->dims, .set = set};
    EK_TRY(ek_scorer_check(&t->scorer, err));
    t->measure = ek_method_find("foresight")->measure;
    t->measure.signal = cls;
    t->measure.scorer = &t->scorer;
    t->n = ek_params_size(&t->scorer);
    t->act_each = (cls->learner->scratch(&t->scorer, entries) + 15) / 16 * 16;
    t->params = malloc(t->n * sizeof *t->params);
    t->grad = calloc(t->n, sizeof *t->grad);
    t->act = aligned_alloc(64, threads * t->act_each * sizeof *t->act);
    t->r = malloc(threads * 2 * (size_t)entries * sizeof *t->r);
    if (!t->params || !t->grad || !t->act || !t->r)
        return EK_FAIL(err, EK_ENOMEM, "no memory to train a scorer of %zu parameters", t->n);
    cls->learner->init(&t->scorer, t->params, 1);
    for (size_t i = 0; i < t->n; i++)
        t->params[i] += (ek_real)(0.1 * (2 * ek_rng_unit(2, 2, i) - 1));
    t->scorer.params = t->params;
    for (size_t i = 0; i < threads * 2 * (size_t)entries; i++)
        t->r[i] = (ek_real)(1e-3 * (2 * ek_rng_unit(2, 3, i) - 1));
    return EK_OK;
}

/* One head over the cuts of a record: once for all of them if its scores do not change with time,
 * else once for the entries before each. */
static void train_head(trainee *t, const ek_cache *c, int lane, int i, int entries)
{
    const ek_learner *l = t->scorer.cls->learner;
    const int heads = c->dims.n_heads, h = i % heads, thread = omp_get_thread_num();
    const int times = ek_scorer_is_static(&t->scorer.set) ? 1 : CUTS;
    ek_real *act = t->act + (size_t)thread * t->act_each;
    ek_real *r = t->r + (size_t)thread * 2 * (size_t)entries;
    int32_t n[EK_MAX_HEADS];
    ek_view view;

    ek_cache_view(c, i / heads, lane, &view);
    memcpy(n, view.n, (size_t)heads * sizeof *n);
    view.n = n;
    for (int m = 0; m < times; m++) {
        if (times > 1) { /* the middles of equal stretches of the half around the middle */
            n[h] = entries / 4 + entries / 2 * (2 * m + 1) / (2 * CUTS);
            view.next_pos = n[h];
        }
        l->forward(&t->scorer, &view, h, act, r);
        l->backward(&t->scorer, &view, h, act, r + entries, t->grad);
    }
}

static double train_once(ek_bencher *b, trainee *t, const ek_cache *c, int lane, int entries)
{
    const double start = ek_now();
    const int threads = b->dev->threads > 0 ? b->dev->threads : 1;

#pragma omp parallel for num_threads(threads) schedule(dynamic, 1)
    for (int i = 0; i < b->dims->n_layers * b->dims->n_heads; i++)
        train_head(t, c, lane, i, entries);
    return ek_now() - start;
}

/* Seconds of the model's forward over n tokens. */
static ek_code read_once(ek_bencher *b, int n, double *seconds, ek_err *err)
{
    const double start = ek_now();
    ek_cache c;

    EK_TRY(ek_bench_cache(b, &c, n, n, NULL, 0, err));
    *seconds = ek_now() - start;
    ek_cache_close(&c);
    return EK_OK;
}

ek_code ek_bench_scorer_training(ek_bencher *b, ek_bench_figure *f, ek_err *err)
{
    const int n = ek_bench_at_most(b, b->quick ? 256 : 1024, 0);
    const ek_scorer_set columns = {.age = EK_AGE_INPUT, .carried = EK_CARRIED_FULL};
    const ek_scorer_set memory = {
        .age = EK_AGE_POWER, .recent = 64, .delay = 64, .norm = true, .skip = true};
    double on[KINDS][EK_BENCH_SAMPLES], sum[KINDS] = {0};
    trainee t[KINDS] = {{.name = NULL}};
    const ek_measure *lane = &t[0].measure;
    ek_cache record = {0};
    int worst = 0;

    if (n < 128) {
        snprintf(f->detail, sizeof f->detail, "the model's context is too short");
        return EK_OK;
    }
    err->code = EK_OK;
    EK_CHECK(trainee_open(b, &t[0], "mlp", &ek_scorer_mlp, columns, n, err));
    EK_CHECK(trainee_open(b, &t[1], "recurrent", &ek_scorer_recurrent, memory, n, err));
    EK_CHECK(ek_bench_cache(b, &record, n, n, &lane, 1, err));
    for (int k = -1; k < b->reps; k++) { /* the first one warms up */
        double read;

        EK_CHECK(read_once(b, n, &read, err));
        for (int i = 0; i < KINDS; i++) {
            const double each = train_once(b, &t[i], &record, i == 0 ? 0 : -1, n) / read;

            if (k < 0)
                continue;
            on[i][k] = each;
            sum[i] += each / b->reps;
        }
        f->samples = k + 1;
    }
    worst = sum[1] > sum[0];
    memcpy(f->sample, on[worst], sizeof f->sample);
    snprintf(f->detail, sizeof f->detail,
             "forward and backward over %d tokens; mlp with all columns at %d cuts %.3f, "
             "recurrent %.3f",
             n, CUTS, sum[0], sum[1]);
fail:
    ek_cache_close(&record);
    for (int i = 0; i < KINDS; i++)
        trainee_close(&t[i]);
    return err->code;
}
