/* train/trainer.c - the step: heads are spread over threads, records are walked in order. */
#include "train/trainer.h"

#include "core/rng.h"
#include "scorers/age.h"
#include "scorers/carried.h"

#include <math.h>
#include <omp.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

struct ek_thread_room { /* one thread's; grows to the largest record seen */
    size_t n;           /* entries it has room for */
    int n_seq;
    int64_t bytes;
    float *act, *all_r, *all_dr;  /* of what the network reads: (scratch), (n), (n) */
    float *p, *dr, *dp, *scratch; /* of what counts at one cut */
    int32_t *first, *count;       /* (n_heads) */
    ek_watch_pair *pair;          /* (n) */
    ek_rank *rank;                /* (batch) */
    int n_ranks;
};

static void free_room(ek_thread_room *m)
{
    free(m->act);
    free(m->all_r);
    free(m->first);
    free(m->pair);
    for (int b = 0; b < m->n_ranks; b++)
        ek_rank_close(&m->rank[b]);
    free(m->rank);
    *m = (ek_thread_room){0};
}

static int is_whole(const ek_trainer *t)
{
    return ek_losses[t->need.loss.kind].whole;
}

static int remembers(const ek_trainer *t)
{
    return t->scorer.cls->learner->n_state != NULL;
}

static ek_code open_room(ek_trainer *t, ek_thread_room *m, size_t n, int n_seq, ek_err *err)
{
    const size_t heads = (size_t)t->scorer.dims.n_heads, batch = (size_t)t->need.batch;
    const size_t most = (size_t)n_seq > n ? (size_t)n_seq : n;
    const size_t act =
        (t->scorer.cls->learner->scratch(&t->scorer, (int)n) * sizeof *m->act + 63) / 64 * 64;

    m->act = aligned_alloc(64, act > 0 ? act : 64);
    m->all_r = malloc((5 * n + most) * sizeof *m->all_r);
    m->first = malloc(2 * heads * sizeof *m->first);
    m->pair = malloc((n > 0 ? n : 1) * sizeof *m->pair);
    m->rank = calloc(batch, sizeof *m->rank);
    if (m->act == NULL || m->all_r == NULL || m->first == NULL || m->pair == NULL ||
        m->rank == NULL)
        return EK_FAIL(err, EK_ENOMEM, "activations of %zu entries", n);
    m->all_dr = m->all_r + n;
    m->p = m->all_dr + n;
    m->dr = m->p + n;
    m->dp = m->dr + n;
    m->scratch = m->dp + n;
    m->count = m->first + heads;
    m->bytes = (int64_t)(act + (5 * n + most) * sizeof *m->all_r + n * sizeof *m->pair);
    for (size_t b = 0; b < batch && is_whole(t); b++) {
        EK_TRY(ek_rank_open(&m->rank[b], n_seq, err));
        m->n_ranks = (int)b + 1;
        m->bytes += 6 * (int64_t)sizeof(int32_t) * n_seq;
    }
    m->n = n;
    m->n_seq = n_seq;
    return EK_OK;
}

/* Make room before the parallel part, so that nothing is allocated, or fails, inside it. */
static ek_code reserve(ek_trainer *t, int batch, ek_err *err)
{
    size_t n = 0;
    int n_seq = 0;
    int64_t bytes = 0;

    for (int b = 0; b < batch; b++) {
        n = (size_t)t->record[b].head->n > n ? (size_t)t->record[b].head->n : n;
        n_seq = t->record[b].head->n_seq > n_seq ? t->record[b].head->n_seq : n_seq;
        bytes += t->record[b].head->bytes;
    }
    t->record_bytes = bytes > t->record_bytes ? bytes : t->record_bytes;
    for (int i = 0; i < t->scorer.dev->threads; i++) {
        ek_thread_room *m = &t->room[i];

        if (n <= m->n && (n_seq <= m->n_seq || !is_whole(t)))
            continue;
        free_room(m);
        EK_TRY(open_room(t, m, n, n_seq, err));
    }
    return EK_OK;
}

/* Numbers that the loss learns beside the scorer: one threshold per head, or none. */
static size_t extra_of(const ek_trainer_need *need)
{
    const ek_dims *d = &need->scorer.dims;

    return ek_losses[need->loss.kind].threshold ? (size_t)d->n_layers * (size_t)d->n_heads : 0;
}

ek_trainer_memory ek_trainer_bytes(const ek_trainer *t)
{
    ek_trainer_memory out = {.params = (int64_t)(4 * t->n * sizeof(float)),
                             .records = t->record_bytes};

    for (int i = 0; i < t->scorer.dev->threads; i++)
        out.activations += t->room[i].bytes;
    return out;
}

/* What does not go together. */
static ek_code check_need(const ek_trainer_need *need, ek_err *err)
{
    const ek_scorer_set *set = &need->scorer.set;
    const ek_loss *loss = &ek_losses[need->loss.kind];

    if (loss->whole && set->age != EK_AGE_NONE && set->age != EK_AGE_EXP)
        return EK_FAIL(err, EK_EASKED,
                       "loss.kind %s ranks static priorities: scorer.age: found %s, expected none "
                       "or exp",
                       loss->name, ek_age_names[set->age]);
    if (loss->whole && set->carried != 0)
        return EK_FAIL(err, EK_EASKED,
                       "loss.kind %s ranks static priorities: scorer.carried: found %s, expected "
                       "none",
                       loss->name, ek_carried_names[set->carried]);
    if (need->scorer.cls->learner->n_state != NULL && set->delay > need->recent)
        return EK_FAIL(err, EK_EASKED,
                       "scorer.delay: found %lld, expected at most the %d recent tokens, whose "
                       "scores nobody asks for",
                       (long long)set->delay, need->recent);
    if (need->records.n < 1 || need->batch < 1 || need->keep < 1)
        return EK_FAIL(err, EK_EASKED, "found %lld records, batch %d, keep %d, expected 1 or more",
                       (long long)need->records.n, need->batch, need->keep);
    return EK_OK;
}

ek_code ek_trainer_open(ek_trainer **out, const ek_trainer_need *need, ek_err *err)
{
    ek_trainer *t;

    EK_TRY(check_need(need, err));
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
    t->stream = calloc((size_t)need->batch, sizeof *t->stream);
    t->sum =
        calloc((size_t)t->scorer.dims.n_layers * (size_t)t->scorer.dims.n_heads, sizeof *t->sum);
    t->watch =
        calloc((size_t)t->scorer.dims.n_layers * (size_t)t->scorer.dims.n_heads, sizeof *t->watch);
    t->room = calloc((size_t)t->scorer.dev->threads, sizeof *t->room);
    t->order = calloc((size_t)need->records.n, sizeof *t->order);
    t->epoch = -1;
    t->smooth = NAN;
    if (t->params == NULL || t->grad == NULL || t->record == NULL || t->at == NULL ||
        t->n_at == NULL || t->stream == NULL || t->sum == NULL || t->watch == NULL ||
        t->room == NULL || t->order == NULL)
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
    free(t->stream);
    free(t->sum);
    free(t->watch);
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

/* The number of a head in a buffer like params that the loss learns; NULL if it learns none. */
static float *threshold_of(const ek_trainer *t, float *params, int layer, int h)
{
    const size_t extra = extra_of(&t->need), heads = (size_t)t->scorer.dims.n_heads;

    if (extra == 0 || params == NULL)
        return NULL;
    return params + t->n - extra + (size_t)layer * heads + (size_t)h;
}

/* What the loss sees of record b at cut c under one head; the network reads from slot `base` on. */
static ek_loss_item item_of(const ek_trainer *t, ek_thread_room *m, int b, int c, int layer, int h,
                            int base)
{
    const ek_example *r = &t->record[b];
    const float *threshold = threshold_of(t, t->params, layer, h);
    int32_t first, n;

    ek_example_slots(r, layer, h, c, t->need.recent, &first, &n);
    const size_t at = ek_example_at(r, layer, h) + (size_t)first;

    return (ek_loss_item){.n = n,
                          .pos = r->pos + at,
                          .mass = r->mass + ek_example_mass_at(r, layer, c, h) + first,
                          .log_weight = r->log_weight + at,
                          .eps = t->need.eps,
                          .n_seq = ek_example_over_time(r->head) ? r->head->n_seq : 0,
                          .sinks = t->need.sinks,
                          .recent = t->need.recent,
                          .keep = t->need.keep,
                          .at = t->at + (size_t)b * (size_t)t->need.loss.samples,
                          .n_at = t->n_at[b],
                          .seed = (uint64_t)t->need.seed,
                          .stream = t->stream[b],
                          .log_gamma = (double)ek_age_log_gamma(&t->scorer, layer, h),
                          .log_mass = (double)ek_age_log_mass(&t->scorer, layer, h),
                          .rank = m->n_ranks > b ? &m->rank[b] : NULL,
                          .scratch = m->scratch,
                          .r = m->all_r + (first - base),
                          .p = m->p,
                          .dr = m->dr,
                          .dp = m->dp,
                          .threshold = threshold != NULL ? *threshold : 0};
}

/* Slots first .. first + n - 1 of head h alone, at cut c or behind the sequence (-1). */
static void see(ek_thread_room *m, const ek_example *r, int layer, int h, int c, int first, int n,
                ek_view *view)
{
    ek_example_layer(r, layer, c, m->first, m->count, view);
    m->first[h] += first;
    m->count[h] = n;
}

void ek_trainer_slots(const ek_trainer *t, const ek_example *r, int layer, int h, int c,
                      int32_t *first, int32_t *n)
{
    if (remembers(t)) { /* whole records: slot and token are the same; no read is behind a cut */
        *first = 0;
        *n = r->head->cut[c >= 0 ? c : r->head->n_cuts - 1];
    } else {
        ek_example_slots(r, layer, h, c >= 0 ? c : r->head->n_cuts - 1, t->need.recent, first, n);
    }
}

/* The loss at one cut; its gradient is added to that of the slots the network has read. */
static void run_cut(ek_trainer *t, ek_thread_room *m, int b, int c, int layer, int h, int base,
                    ek_loss_sum *sum, float *dparams)
{
    const float share = 1 / (float)(t->scorer.dims.n_layers * t->scorer.dims.n_heads);
    float *d_threshold = threshold_of(t, dparams, layer, h), slope = 0;
    ek_loss_item x = item_of(t, m, b, c, layer, h, base);
    const ptrdiff_t off = x.r - m->all_r;
    ek_view view;

    if (x.n == 0)
        return;
    x.d_threshold = d_threshold != NULL ? &slope : NULL;
    see(m, &t->record[b], layer, h, c, base + (int)off, x.n, &view);
    ek_age_add(&t->scorer, &view, h, x.r, m->p);
    ek_losses[t->need.loss.kind].run(&t->need.loss, &x, sum);
    (is_whole(t) ? ek_watch_whole : ek_watch_cut)(&x, m->pair,
                                                  &t->watch[layer * t->scorer.dims.n_heads + h]);
    if (dparams == NULL)
        return;
    if (d_threshold != NULL)
        *d_threshold += share * slope;
    for (int e = 0; e < x.n; e++) {
        m->dp[e] *= share;
        m->all_dr[off + e] += m->dr[e] * share + m->dp[e];
    }
    ek_age_back(&t->scorer, &view, h, m->dp, dparams);
}

/* One head over the cuts of one record.  If raw scores do not change with time, the network reads
 * once for all cuts, and once back. */
static void run_record(ek_trainer *t, ek_thread_room *m, int b, int layer, int h, ek_loss_sum *sum,
                       float *dparams)
{
    const ek_learner *learner = t->scorer.cls->learner;
    const ek_example *r = &t->record[b];
    const int n_cuts = r->head->n_cuts, fixed = ek_scorer_is_static(&t->scorer.set);
    const int at_once = fixed ? n_cuts : 1;

    for (int c = 0; c < n_cuts; c += at_once) {
        const int when = fixed ? -1 : c;
        int32_t base, n;
        ek_view view;

        ek_trainer_slots(t, r, layer, h, when, &base, &n);
        if (n == 0)
            continue;
        see(m, r, layer, h, when, base, n, &view);
        learner->forward(&t->scorer, &view, h, m->act, m->all_r);
        memset(m->all_dr, 0, (size_t)n * sizeof *m->all_dr);
        for (int i = 0; i < at_once; i++)
            run_cut(t, m, b, c + i, layer, h, base, sum, dparams);
        if (dparams == NULL)
            continue;
        see(m, r, layer, h, when, base, n, &view); /* the cuts have narrowed it */
        learner->backward(&t->scorer, &view, h, m->act, m->all_dr, dparams);
    }
}

/* One head over `batch` records; with its gradient if dparams is not NULL. */
static void run_head(ek_trainer *t, ek_thread_room *m, int batch, int layer, int h, float *dparams)
{
    const ek_loss *loss = &ek_losses[t->need.loss.kind];
    ek_loss_sum *sum = &t->sum[layer * t->scorer.dims.n_heads + h];

    *sum = (ek_loss_sum){0};
    t->watch[layer * t->scorer.dims.n_heads + h] = (ek_watch){0};
    for (int b = 0; b < batch; b++)
        for (int c = 0; c < t->record[b].head->n_cuts; c++) {
            ek_loss_item x = item_of(t, m, b, c, layer, h, 0);

            if (x.n > 0)
                loss->count(&t->need.loss, &x, sum);
        }
    for (int b = 0; b < batch; b++)
        run_record(t, m, b, layer, h, sum, dparams);
}

ek_code ek_trainer_check(const ek_trainer *t, int64_t i, const ek_example_head *head, ek_err *err)
{
    const ek_trainer_need *n = &t->need;
    const ek_scorer_set *set = &t->scorer.set;

    const int wider = head->whole && !ek_example_over_time(head) && head->recent < n->recent;

    if (head->sinks != n->sinks || (head->recent != n->recent && !wider))
        return EK_FAIL(err, EK_EASKED,
                       "record %lld was made for %d sinks and %d recent tokens, not for %d and %d",
                       (long long)i, head->sinks, head->recent, n->sinks, n->recent);
    if (is_whole(t) && (!ek_example_over_time(head) || !head->whole))
        return EK_FAIL(err, EK_EASKED,
                       "loss.kind %s needs whole sequences: set data.cut to 0 (record %lld has %d "
                       "cuts, %d entries of %d tokens)",
                       ek_losses[n->loss.kind].name, (long long)i, head->n_cuts, head->n,
                       head->n_seq);
    if (remembers(t) && !head->whole)
        return EK_FAIL(err, EK_EASKED,
                       "scorer %s remembers what it has read and so needs every token: record "
                       "%lld holds %d of %d; set data.entries to 0",
                       t->scorer.cls->name, (long long)i, head->n, head->n_seq);
    if (set->carried != 0 && set->carried != head->carried)
        return EK_FAIL(err, EK_EASKED, "scorer.carried is %s, record %lld carries %s",
                       ek_carried_names[set->carried], (long long)i,
                       ek_carried_names[head->carried]);
    return EK_OK;
}

static ek_code load_record(ek_trainer *t, int64_t i, int b, uint64_t stream, ek_err *err)
{
    const ek_trainer_need *n = &t->need;
    const ek_example_head *head;

    EK_TRY(n->records.get(n->records.ctx, i, &t->record[b], err));
    head = t->record[b].head;
    t->stream[b] = stream;
    t->n_at[b] = 0;
    EK_TRY(ek_trainer_check(t, i, head, err));
    if (!is_whole(t))
        return EK_OK;
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
    ek_watch seen = {0}; /* every head has as many cuts and decisions as another */
    for (int i = 0; i < all; i++) {
        out->loss += t->sum[i].loss / (t->sum[i].weight > 0 ? t->sum[i].weight : 1) / all;
        ek_watch_add(&seen, &t->watch[i]);
    }
    const ek_watched mean = ek_watch_mean(&seen);
    out->acc = is_whole(t) ? mean.boundary : mean.quarter;
    out->recall = mean.recall;
    out->chance = mean.chance;
    out->boundary = mean.boundary;
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
    t->smooth = isnan(t->smooth) ? stats.loss : 0.95 * t->smooth + 0.05 * stats.loss;
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
    int64_t chosen = 0, decided = 0; /* records with more to choose from than is kept */

    for (int64_t i = 0; i < n; i++) {
        ek_train_stats one;

        ek_code code =
            load_record(t, t->need.records.n + i, 0, ek_rng_stream("valid", (uint64_t)i, 0), err);

        if (code == EK_OK)
            code = run_batch(t, 1, NULL, &one, err);
        ek_example_close(&t->record[0]);
        EK_TRY(code);
        all.loss += one.loss / (double)n;
        all.acc += one.acc / (double)n;
        all.tokens += one.tokens;
        if (!isnan(one.recall)) {
            all.recall += one.recall;
            all.chance += one.chance;
            chosen++;
        }
        if (!isnan(one.boundary)) {
            all.boundary += one.boundary;
            decided++;
        }
    }
    all.recall = chosen > 0 ? all.recall / (double)chosen : NAN;
    all.chance = chosen > 0 ? all.chance / (double)chosen : NAN;
    all.boundary = decided > 0 ? all.boundary / (double)decided : NAN;
    *out = all;
    return EK_OK;
}
