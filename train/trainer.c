/* train/trainer.c - the step: heads are spread over threads, records are walked in order. */
#include "train/trainer.h"

#include "core/rng.h"

#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

struct ek_thread_room { /* one thread's; grows to the largest record seen */
    size_t n;           /* entries it has room for */
    int n_seq;
    float *act, *r, *p, *dr, *dp, *scratch;
    int32_t *first, *count; /* (n_heads) */
    ek_rank *rank;          /* (batch) */
    int n_ranks;
};

static void free_room(ek_thread_room *m)
{
    free(m->act);
    free(m->r);
    free(m->first);
    for (int b = 0; b < m->n_ranks; b++)
        ek_rank_close(&m->rank[b]);
    free(m->rank);
    *m = (ek_thread_room){0};
}

static int is_whole(const ek_trainer *t)
{
    return ek_losses[t->need.loss.kind].whole;
}

/* Make room before the parallel part, so that nothing is allocated, or fails, inside it. */
static ek_code reserve(ek_trainer *t, int batch, ek_err *err)
{
    const int most_records = t->need.batch, heads = t->scorer.dims.n_heads;
    size_t n = 0;
    int n_seq = 0;

    for (int b = 0; b < batch; b++) {
        n = (size_t)t->record[b].head->n > n ? (size_t)t->record[b].head->n : n;
        n_seq = t->record[b].head->n_seq > n_seq ? t->record[b].head->n_seq : n_seq;
    }
    for (int i = 0; i < t->scorer.dev->threads; i++) {
        ek_thread_room *m = &t->room[i];

        if (n <= m->n && (n_seq <= m->n_seq || !is_whole(t)))
            continue;
        free_room(m);
        const size_t most = (size_t)n_seq > n ? (size_t)n_seq : n;
        m->act = malloc(t->scorer.cls->learner->scratch(&t->scorer, (int)n) * sizeof *m->act);
        m->r = malloc((4 * n + most) * sizeof *m->r);
        m->first = malloc(2 * (size_t)heads * sizeof *m->first);
        m->rank = calloc((size_t)most_records, sizeof *m->rank);
        if (m->act == NULL || m->r == NULL || m->first == NULL || m->rank == NULL)
            return EK_FAIL(err, EK_ENOMEM, "activations of %zu entries", n);
        m->p = m->r + n;
        m->dr = m->p + n;
        m->dp = m->dr + n;
        m->scratch = m->dp + n;
        m->count = m->first + heads;
        for (int b = 0; b < most_records && is_whole(t); b++) {
            EK_TRY(ek_rank_open(&m->rank[b], n_seq, err));
            m->n_ranks = b + 1;
        }
        m->n = n;
        m->n_seq = n_seq;
    }
    return EK_OK;
}

/* Numbers that the loss learns beside the scorer: one threshold per head, or none. */
static size_t extra_of(const ek_trainer_need *need)
{
    const ek_dims *d = &need->scorer.dims;

    return ek_losses[need->loss.kind].threshold ? (size_t)d->n_layers * (size_t)d->n_heads : 0;
}

ek_code ek_trainer_open(ek_trainer **out, const ek_trainer_need *need, ek_err *err)
{
    const int age = need->scorer.set.age;
    ek_trainer *t;

    if (ek_losses[need->loss.kind].whole && age != EK_AGE_NONE && age != EK_AGE_EXP)
        return EK_FAIL(err, EK_EASKED,
                       "loss.kind %s ranks static priorities: scorer.age: found %s, expected none "
                       "or exp",
                       ek_losses[need->loss.kind].name, ek_age_names[age]);
    if (need->records.n < 1 || need->batch < 1 || need->keep < 1)
        return EK_FAIL(err, EK_EASKED, "found %lld records, batch %d, keep %d, expected 1 or more",
                       (long long)need->records.n, need->batch, need->keep);
    t = calloc(1, sizeof *t);
    if (t == NULL)
        return EK_FAIL(err, EK_ENOMEM, "a trainer");
    t->need = *need;
    t->scorer = need->scorer;
    const size_t extra = extra_of(need); /* behind the scorer's own numbers */
    t->n = ek_params_size(&t->scorer) + extra;
    t->params = aligned_alloc(64, (t->n * sizeof(float) + 63) / 64 * 64);
    t->grad = aligned_alloc(64, (t->n * sizeof(float) + 63) / 64 * 64);
    t->record = calloc((size_t)need->batch, sizeof *t->record);
    t->at = calloc((size_t)need->batch * (size_t)need->loss.samples, sizeof *t->at);
    t->n_at = calloc((size_t)need->batch, sizeof *t->n_at);
    t->sum =
        calloc((size_t)t->scorer.dims.n_layers * (size_t)t->scorer.dims.n_heads, sizeof *t->sum);
    t->room = calloc((size_t)t->scorer.dev->threads, sizeof *t->room);
    t->order = calloc((size_t)need->records.n, sizeof *t->order);
    t->epoch = -1;
    if (t->params == NULL || t->grad == NULL || t->record == NULL || t->at == NULL ||
        t->n_at == NULL || t->sum == NULL || t->room == NULL || t->order == NULL)
        EK_CHECK(EK_FAIL(err, EK_ENOMEM, "a trainer of %zu parameters", t->n));
    t->scorer.params = t->params;
    memset(t->params + t->n - extra, 0, extra * sizeof *t->params);
    t->scorer.cls->learner->init(&t->scorer, t->params, (uint64_t)need->seed);
    EK_CHECK(ek_optim_open(&t->optim, &t->scorer, extra, &need->optim, err));
    *out = t;
    return EK_OK;
fail:
    ek_trainer_close(t);
    return err->code;
}

void ek_trainer_close(ek_trainer *t)
{
    if (t == NULL)
        return;
    for (int b = 0; t->record != NULL && b < t->need.batch; b++)
        ek_example_close(&t->record[b]);
    for (int i = 0; t->room != NULL && i < t->scorer.dev->threads; i++)
        free_room(&t->room[i]);
    ek_optim_close(&t->optim);
    free(t->params);
    free(t->grad);
    free(t->record);
    free(t->at);
    free(t->n_at);
    free(t->sum);
    free(t->room);
    free(t->order);
    free(t);
}

int64_t ek_trainer_pick(ek_trainer *t, int64_t step, int b)
{
    const int64_t n = t->need.records.n, i = (step - 1) * t->need.batch + b, epoch = i / n;

    if (epoch != t->epoch) { /* Fisher and Yates, from the epoch's own numbers */
        const uint64_t stream = ek_rng_stream("order", (uint64_t)epoch, 0);

        for (int64_t j = 0; j < n; j++)
            t->order[j] = j;
        for (int64_t j = n - 1; j > 0; j--) {
            const int64_t k =
                (int64_t)ek_rng_below((uint64_t)j + 1, (uint64_t)t->need.seed, stream, (uint64_t)j);
            const int64_t held = t->order[j];

            t->order[j] = t->order[k];
            t->order[k] = held;
        }
        t->epoch = epoch;
    }
    return t->order[i % n];
}

/* What the loss sees of record b under head h of the view. */
static ek_loss_item item_of(const ek_trainer *t, ek_thread_room *m, int b, int layer, int h)
{
    const ek_example *r = &t->record[b];
    const size_t at = ek_example_at(r, layer, h);

    return (ek_loss_item){.n = r->head->n,
                          .pos = r->pos + at,
                          .mass = r->mass + at,
                          .log_weight = r->log_weight + at,
                          .eps = t->need.eps,
                          .n_seq = r->head->whole ? r->head->n_seq : 0,
                          .sinks = t->need.sinks,
                          .recent = t->need.recent,
                          .keep = t->need.keep,
                          .at = t->at + (size_t)b * (size_t)t->need.loss.samples,
                          .n_at = t->n_at[b],
                          .log_gamma =
                              (double)t->scorer.cls->learner->log_gamma(&t->scorer, layer, h),
                          .rank = m->n_ranks > b ? &m->rank[b] : NULL,
                          .scratch = m->scratch,
                          .r = m->r,
                          .p = m->p,
                          .dr = m->dr,
                          .dp = m->dp};
}

/* One head over `batch` records; with its gradient if dparams is not NULL. */
static void run_head(ek_trainer *t, ek_thread_room *m, int batch, int layer, int h, float *dparams)
{
    const ek_learner *learner = t->scorer.cls->learner;
    const ek_loss *loss = &ek_losses[t->need.loss.kind];
    const int heads = t->scorer.dims.n_heads;
    const float share = 1 / (float)(t->scorer.dims.n_layers * heads);
    ek_loss_sum *sum = &t->sum[layer * heads + h];

    *sum = (ek_loss_sum){0};
    for (int b = 0; b < batch; b++) {
        ek_loss_item x = item_of(t, m, b, layer, h);
        loss->count(&t->need.loss, &x, sum);
    }
    for (int b = 0; b < batch; b++) {
        const ek_loss_item x = item_of(t, m, b, layer, h);
        ek_view view;

        ek_example_layer(&t->record[b], layer, m->first, m->count, &view);
        learner->forward(&t->scorer, &view, h, m->act, m->r);
        learner->age(&t->scorer, &view, h, m->r, m->p);
        loss->run(&t->need.loss, &x, sum);
        if (dparams == NULL)
            continue;
        for (int e = 0; e < x.n; e++) {
            m->dp[e] *= share;
            m->dr[e] = m->dr[e] * share + m->dp[e];
        }
        learner->age_back(&t->scorer, &view, h, m->dp, dparams);
        learner->backward(&t->scorer, &view, h, m->act, m->dr, dparams);
    }
}

static ek_code load_record(ek_trainer *t, int64_t i, int b, uint64_t stream, ek_err *err)
{
    const ek_trainer_need *n = &t->need;
    const ek_example_head *head;

    EK_TRY(n->records.get(n->records.ctx, i, &t->record[b], err));
    head = t->record[b].head;
    t->n_at[b] = 0;
    if (!is_whole(t))
        return EK_OK;
    if (!head->whole || head->n != head->n_seq - n->recent - n->sinks)
        return EK_FAIL(err, EK_EASKED,
                       "loss.kind %s needs whole sequences: set data.cut to 0 (record %lld has %d "
                       "entries of %d tokens)",
                       ek_losses[n->loss.kind].name, (long long)i, head->n, head->n_seq);
    t->n_at[b] =
        ek_loss_sample(t->at + (size_t)b * (size_t)n->loss.samples, (int)n->loss.samples,
                       head->n_seq, n->sinks, n->recent, n->keep, (uint64_t)n->seed, stream);
    if (t->n_at[b] == 0)
        return EK_FAIL(err, EK_EASKED,
                       "a sequence of %d tokens has no position to train on: with %d sinks, %d "
                       "recent and %d kept it needs at least %d",
                       head->n_seq, n->sinks, n->recent, n->keep,
                       n->sinks + n->recent + n->keep + 65);
    return EK_OK;
}

/* All heads over the records loaded; fills stats but for lr and norm. */
static ek_code run_batch(ek_trainer *t, int batch, float *dparams, ek_train_stats *out, ek_err *err)
{
    const int heads = t->scorer.dims.n_heads, all = t->scorer.dims.n_layers * heads;

    EK_TRY(reserve(t, batch, err));
#pragma omp parallel for num_threads(t->scorer.dev->threads) schedule(dynamic, 1)
    for (int i = 0; i < all; i++)
        run_head(t, &t->room[omp_get_thread_num()], batch, i / heads, i % heads, dparams);
    *out = (ek_train_stats){0};
    for (int i = 0; i < all; i++) {
        out->loss += t->sum[i].loss / (t->sum[i].weight > 0 ? t->sum[i].weight : 1) / all;
        out->acc += t->sum[i].right / (t->sum[i].decided > 0 ? t->sum[i].decided : 1) / all;
    }
    for (int b = 0; b < batch; b++)
        out->tokens += t->record[b].head->n_seq;
    return EK_OK;
}

static void drop_records(ek_trainer *t)
{
    for (int b = 0; b < t->need.batch; b++)
        ek_example_close(&t->record[b]);
}

ek_code ek_trainer_step(ek_trainer *t, ek_train_stats *out, ek_err *err)
{
    const int64_t step = t->step + 1;
    ek_train_stats stats;

    for (int b = 0; b < t->need.batch; b++)
        EK_CHECK(load_record(t, ek_trainer_pick(t, step, b), b,
                             ek_rng_stream("positions", (uint64_t)step, (uint64_t)b), err));
    memset(t->grad, 0, t->n * sizeof *t->grad);
    EK_CHECK(run_batch(t, t->need.batch, t->grad, &stats, err));
    stats.lr = ek_optim_lr(&t->need.optim, step, t->need.steps);
    if (!isfinite(stats.loss))
        EK_CHECK(EK_FAIL(err, EK_ENAN, "step %lld: the loss is not finite", (long long)step));
    EK_CHECK(ek_optim_step(&t->optim, t->params, t->grad, step, t->need.steps, &stats.norm, err));
    drop_records(t);
    t->step = step;
    *out = stats;
    return EK_OK;
fail:
    drop_records(t);
    return err->code;
}

ek_code ek_trainer_valid(ek_trainer *t, ek_train_stats *out, ek_err *err)
{
    const int64_t n = t->need.records.n_valid;
    ek_train_stats all = {0};

    for (int64_t i = 0; i < n; i++) {
        ek_train_stats one;

        if (load_record(t, t->need.records.n + i, 0, ek_rng_stream("valid", (uint64_t)i, 0), err) !=
            EK_OK)
            return err->code;
        const ek_code code = run_batch(t, 1, NULL, &one, err);

        ek_example_close(&t->record[0]);
        EK_TRY(code);
        all.loss += one.loss / (double)n;
        all.acc += one.acc / (double)n;
        all.tokens += one.tokens;
    }
    *out = all;
    return EK_OK;
}
