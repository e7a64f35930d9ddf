/* scorers/measure.c - see measure.h. */
#include "scorers/measure.h"

#include "scorers/age.h"
#include "scorers/carried.h"
#include "scorers/colsum.h"

#include <assert.h>
#include <math.h>
#include <omp.h>
#include <string.h>

enum { WEIGHTS = 256 }; /* queries folded at once */
/* Floats that a step touches below which waking threads costs more; entries taken at a time. */
enum { WORTH_THREADS = 8192, TILE = 512 };

static int is_attention(const ek_measure *m)
{
    return m->signal->source == EK_FROM_ATTENTION;
}

/* A score of an entry that is found once and carried from then on. */
static int is_static(const ek_measure *m)
{
    return m->signal->source == EK_FROM_ENTRIES && m->carry.kind == EK_CARRY_ONCE &&
           (m->signal->learner == NULL || m->scorer == NULL ||
            ek_scorer_is_static(&m->scorer->set));
}

/* Columns of attention that a learned scorer reads: an ek_carried. */
static int carried(const ek_measure *m)
{
    return m->signal->learner != NULL && m->scorer != NULL ? m->scorer->set.carried
                                                           : EK_CARRIED_NONE;
}

size_t ek_measure_n_state(const ek_measure *m)
{
    const ek_learner *l = m->signal->learner;

    return l != NULL && l->n_state != NULL && m->scorer != NULL ? l->n_state(m->scorer) : 0;
}

int ek_measure_n_scratch(const ek_measure *m, int group)
{
    return carried(m) != EK_CARRIED_NONE ? 4 * group : group;
}

int ek_measure_n_carry(const ek_measure *m, int group)
{
    switch (m->signal->source) {
    case EK_FROM_ENTRIES:
        if (carried(m) != EK_CARRIED_NONE)
            return ek_carried_floats(carried(m), group);
        return is_static(m) || ek_measure_n_state(m) > 0;
    case EK_FROM_FUTURE:
        return group;
    case EK_FROM_ATTENTION:
        break;
    }
    if (ek_measure_is_shared(m))
        return 1;
    return m->group.by == EK_MAX || m->pool.kind == EK_POOL_MAX ? group : 1;
}

int ek_measure_is_shared(const ek_measure *m)
{
    return is_attention(m) && m->layers == EK_LAYERS_GEOMETRIC;
}

/* Are the numbers of decode step t folded in, or does it only bring a newborn? */
static int is_update(const ek_measure *m, int64_t t)
{
    if (m->carry.every <= 0)
        return t == 1;
    return (t - 1) % m->carry.every == 0;
}

int ek_measure_wants_prob(const ek_measure *m, int64_t t)
{
    if (carried(m) != EK_CARRIED_NONE)
        return 1;
    return is_attention(m) && m->carry.kind != EK_CARRY_ONCE && is_update(m, t);
}

/* Weights named twice lie in memory twice and are the same. */
static int same_params(const ek_scorer *a, const ek_scorer *b)
{
    if (a->params == b->params || a->params == NULL || b->params == NULL)
        return a->params == b->params;
    return ek_params_size(a) == ek_params_size(b) &&
           memcmp(a->params, b->params, ek_params_size(a) * sizeof *a->params) == 0;
}

static int same_scorer(const ek_scorer *a, const ek_scorer *b)
{
    if (a == NULL || b == NULL)
        return a == b;
    return a->cls == b->cls && a->set.seed == b->set.seed && a->set.hidden == b->set.hidden &&
           a->set.age == b->set.age && a->set.rms == b->set.rms && a->set.delay == b->set.delay &&
           a->set.norm == b->set.norm && a->set.skip == b->set.skip &&
           a->set.carried == b->set.carried && a->set.absolute == b->set.absolute &&
           same_params(a, b);
}

int ek_measure_same(const ek_measure *a, const ek_measure *b)
{
    if (a->signal != b->signal || is_static(a) != is_static(b))
        return 0;
    if (a->signal->source == EK_FROM_ENTRIES)
        return same_scorer(a->scorer, b->scorer);
    if (a->signal->source == EK_FROM_FUTURE)
        return 1;
    return a->queries == b->queries && a->group.by == b->group.by && a->layers == b->layers &&
           (a->pool.kind == EK_POOL_MAX) == (b->pool.kind == EK_POOL_MAX) &&
           a->carry.kind == b->carry.kind && a->carry.every == b->carry.every &&
           !(a->carry.rate < b->carry.rate) && !(a->carry.rate > b->carry.rate) &&
           a->newborn == b->newborn;
}

/* The query heads of one entry as one number; prob (group). */
static float combine(ek_combine by, const float *prob, int group)
{
    float x = prob[0];

    for (int g = 1; g < group; g++)
        x = by == EK_MAX ? (prob[g] > x || isnan(prob[g]) ? prob[g] : x) : x + prob[g];
    return by == EK_MEAN ? x / (float)group : x;
}

/* What the carry remembers of one entry's probabilities: each, or the combined number. */
static void fold(const ek_measure *m, int n_carry, int group, float keep, float add,
                 const float *prob, float *carry)
{
    if (n_carry == 1) {
        *carry = keep * *carry + add * combine(m->group.by, prob, group);
        return;
    }
    for (int g = 0; g < group; g++)
        carry[g] = keep * carry[g] + add * prob[g];
}

/* Score the newest n_new entries of every head into the carry.  A failure becomes NaN, which the
 * next plan reports with its place. */
static void score_new(const ek_measure *m, ek_device *dev, const ek_view *view, int n_new,
                      float *carry)
{
    const ek_scorer plain = {.cls = m->signal, .dev = dev};
    const ek_scorer *s = m->scorer != NULL ? m->scorer : &plain;
    int32_t first[EK_MAX_HEADS], n[EK_MAX_HEADS];
    ek_view in = *view;
    ek_err err;

    assert(view->n_heads <= EK_MAX_HEADS);
    for (int h = 0; h < view->n_heads; h++) {
        n[h] = n_new < view->n[h] ? n_new : view->n[h];
        first[h] = view->first[h] + view->n[h] - n[h];
    }
    in.first = first;
    in.n = n;
    if (m->signal->score(s, &in, carry, &err) == EK_OK)
        return;
    for (int h = 0; h < view->n_heads; h++)
        for (int32_t j = 0; j < n[h]; j++)
            carry[first[h] + j] = NAN;
}

/* The memory takes in the newest n_new entries of every head and scores those whose delay ends. */
static void advance(const ek_measure *m, ek_device *dev, const ek_view *view, int n_new,
                    const ek_memory *mem)
{
    const ek_learner *l = m->signal->learner;
    const size_t n_state = ek_measure_n_state(m);
    const size_t room = (l->advance_work(m->scorer, n_new) + 15) / 16 * 16;
    const int threads = dev->threads > 0 ? dev->threads : 1;
    float *work = ek_device_work(dev, (size_t)threads * room * sizeof *work);

#pragma omp parallel for num_threads(threads) \
    schedule(static) if ((size_t)n_new * n_state * (size_t)view->n_heads > WORTH_THREADS / 2)
    for (int h = 0; h < view->n_heads; h++) {
        const int rows = n_new < view->n[h] ? n_new : view->n[h];

        l->advance(m->scorer, view, h, view->n[h] - rows, rows, mem->state + (size_t)h * n_state,
                   work + (size_t)omp_get_thread_num() * room, mem->carry + view->first[h]);
    }
}

/* Queries of the prompt that count: the last of them, or all. */
static int64_t window(const ek_measure *m, int64_t n)
{
    if (m->carry.kind == EK_CARRY_LAST)
        return 1;
    if (m->carry.kind != EK_CARRY_ONCE || m->queries <= 0)
        return n;
    return m->queries < n / 2 ? m->queries : n / 2;
}

static void fold_sums(const ek_measure *m, const ek_view *v, float keep, float add,
                      const float *sum, float *carry)
{
    const int n_carry = ek_measure_n_carry(m, v->group);

    for (int h = 0; h < v->n_heads; h++)
        for (int32_t e = v->first[h]; e < v->first[h] + v->n[h]; e++)
            fold(m, n_carry, v->group, keep, add, sum + (size_t)e * (size_t)v->group,
                 carry + (size_t)e * (size_t)n_carry);
}

/* The queries of the part, folded in: carry = keep carry + add (their sum). */
static void fold_part(const ek_measure *m, ek_device *dev, ek_colsum *part, float scale, float keep,
                      float add, float *carry, float *scratch)
{
    ek_colsum_set(dev, part, scale, scratch);
    fold_sums(m, &part->view, keep, add, scratch, carry);
}

/* Query i of n weighs (1 - rate) rate^(n - 1 - i), and what was before rate^n. */
static void prefill_ema(const ek_measure *m, ek_device *dev, const ek_colsum *chunk, float scale,
                        float *carry, float *scratch)
{
    const double rate = m->carry.rate;
    float weight[WEIGHTS];

    for (int at = 0; at < chunk->n_q; at += WEIGHTS) {
        const int n = chunk->n_q - at < WEIGHTS ? chunk->n_q - at : WEIGHTS;
        ek_colsum part = ek_colsum_part(chunk, at, at + n);

        for (int i = 0; i < n; i++)
            weight[i] = (float)((1 - rate) * pow(rate, n - 1 - i));
        part.weight = weight;
        fold_part(m, dev, &part, scale, (float)pow(rate, n), 1, carry, scratch);
    }
}

/* The prompt's last queries, each weighing 1 / their number; those fed after the prompt do not
 * count. */
static void prefill_window(const ek_measure *m, ek_device *dev, const ek_colsum *chunk, float scale,
                           int64_t n_prompt, float *carry, float *scratch)
{
    const int64_t w = window(m, n_prompt);
    int64_t from = n_prompt - w - chunk->q_pos, to = n_prompt - chunk->q_pos;

    if (from < 0)
        from = 0;
    if (to > chunk->n_q)
        to = chunk->n_q;
    if (from >= to)
        return;
    ek_colsum part = ek_colsum_part(chunk, (int)from, (int)to);
    fold_part(m, dev, &part, scale, 1, 1 / (float)w, carry, scratch);
}

/* The newborn, last of n entries, gets the mean of the others. */
static void newborn_mean(float *carry, int32_t n, int n_carry)
{
    for (int g = 0; g < n_carry; g++) {
        double sum = 0;

        for (int32_t j = 0; j < n - 1; j++)
            sum += (double)carry[(size_t)j * (size_t)n_carry + g];
        carry[(size_t)(n - 1) * (size_t)n_carry + g] = n > 1 ? (float)(sum / (n - 1)) : 0;
    }
}

/* A step is carry = keep carry + add (its attention). */
static void weights_of(const ek_measure *m, float *keep, float *add)
{
    *keep = m->carry.kind == EK_CARRY_LAST ? 0 : 1;
    *add = 1;
    if (m->carry.kind == EK_CARRY_EMA) {
        *keep = (float)m->carry.rate;
        *add = 1 - *keep;
    }
}

/* One state for the model: layers fold into it in their order. */
static void step_shared(const ek_measure *m, ek_device *dev, const ek_view *v, const float *prob,
                        float *shared)
{
    const int threads = dev->threads > 0 ? dev->threads : 1;
    float keep, add;
    const int32_t n = v->n[0] - (prob != NULL && m->newborn == EK_NEWBORN_ZERO);

    if (prob == NULL) {
        if (v->layer == 0 && m->newborn == EK_NEWBORN_MEAN && n > 0)
            newborn_mean(shared, n, 1);
        return;
    }
    weights_of(m, &keep, &add);
#pragma omp parallel for num_threads(threads) schedule(static) if (n * v->n_heads > WORTH_THREADS)
    for (int32_t j = 0; j < n; j++) {
        float sum = 0;

        for (int h = 0; h < v->n_heads; h++)
            sum +=
                combine(m->group.by, prob + (size_t)(v->first[h] + j) * (size_t)v->group, v->group);
        shared[j] = keep * shared[j] + add * (sum / (float)v->n_heads);
    }
}

/* What a measure of entries does with the newest n_new entries; 1 if that was all. */
static int take_new(const ek_measure *m, ek_device *dev, const ek_view *view, int n_new,
                    const ek_memory *mem)
{
    if (is_attention(m))
        return 0;
    if (mem->carry != NULL && mem->state != NULL)
        advance(m, dev, view, n_new, mem);
    else if (mem->carry != NULL && is_static(m))
        score_new(m, dev, view, n_new, mem->carry);
    return 1;
}

void ek_measure_prefill(const ek_measure *m, ek_device *dev, const ek_colsum *chunk, float scale,
                        int64_t n_prompt, const ek_memory *mem, float *scratch)
{
    const int ends = chunk->q_pos + chunk->n_q >= n_prompt;
    float *carry = mem->carry, *shared = mem->shared;

    if (chunk->n_q < 1)
        return;
    if (carried(m) != EK_CARRIED_NONE && carry != NULL)
        ek_carried_fold(carried(m), dev, chunk, scale, carry, scratch);
    if (take_new(m, dev, &chunk->view, chunk->n_q, mem))
        return;
    ek_colsum part = ek_colsum_part(chunk, 0, chunk->n_q),
              last = ek_colsum_part(chunk, chunk->n_q - 1, chunk->n_q);
    if (shared != NULL && ends) {
        ek_colsum_set(dev, &last, scale, scratch);
        step_shared(m, dev, &chunk->view, scratch, shared);
    }
    if (carry == NULL)
        return;
    switch (m->carry.kind) {
    case EK_CARRY_ONCE:
        prefill_window(m, dev, chunk, scale, n_prompt, carry, scratch);
        break;
    case EK_CARRY_LAST:
        if (ends)
            fold_part(m, dev, &last, scale, 0, 1, carry, scratch);
        break;
    case EK_CARRY_SUM:
    case EK_CARRY_AGE:
        fold_part(m, dev, &part, scale, 1, 1, carry, scratch);
        break;
    case EK_CARRY_EMA:
        prefill_ema(m, dev, chunk, scale, carry, scratch);
        break;
    }
}

/* The probabilities of a step over the entries of one layer, tile by tile. */
static void step_entries(const ek_measure *m, ek_device *dev, const ek_view *v, const float *prob,
                         float *carry)
{
    const int n_carry = ek_measure_n_carry(m, v->group), zero = m->newborn == EK_NEWBORN_ZERO;
    const int threads = dev->threads > 0 ? dev->threads : 1;
    int32_t most = 0;
    float keep, add;

    for (int h = 0; h < v->n_heads; h++)
        most = v->n[h] > most ? v->n[h] : most;
    weights_of(m, &keep, &add);
    const int tiles = (most + TILE - 1) / TILE;

#pragma omp parallel for num_threads(threads) \
    schedule(static) if (most * v->n_heads * n_carry > WORTH_THREADS)
    for (int t = 0; t < tiles * v->n_heads; t++) {
        const int h = t / tiles;
        const int32_t from = t % tiles * TILE, n = v->n[h] - zero;
        const int32_t to = from + TILE < n ? from + TILE : n;

        for (int32_t e = v->first[h] + from; e < v->first[h] + to; e++)
            fold(m, n_carry, v->group, keep, add, prob + (size_t)e * (size_t)v->group,
                 carry + (size_t)e * (size_t)n_carry);
    }
}

void ek_measure_step(const ek_measure *m, ek_device *dev, const ek_view *view, const float *prob,
                     const ek_memory *mem)
{
    const int n_carry = ek_measure_n_carry(m, view->group);
    float *carry = mem->carry;

    if (mem->shared != NULL) {
        step_shared(m, dev, view, prob, mem->shared);
        return;
    }
    if (carried(m) != EK_CARRIED_NONE && carry != NULL && prob != NULL)
        ek_carried_step(carried(m), dev, view, prob, carry);
    if (take_new(m, dev, view, 1, mem) || carry == NULL || m->carry.kind == EK_CARRY_ONCE)
        return;
    if (prob != NULL) {
        step_entries(m, dev, view, prob, carry);
        return;
    }
    for (int h = 0; h < view->n_heads && m->newborn == EK_NEWBORN_MEAN; h++)
        if (view->n[h] > 0)
            newborn_mean(carry + (size_t)view->first[h] * (size_t)n_carry, view->n[h], n_carry);
}

/* Entry j of n numbers that lie stride apart, pooled over its neighbours. */
static float pooled(ek_pool pool, const float *x, int stride, int32_t n, int32_t j)
{
    const int32_t half = pool.size / 2;
    const int32_t from = j > half ? j - half : 0, to = j + half < n ? j + half : n - 1;
    float y = x[(size_t)from * (size_t)stride];

    if (pool.kind == EK_POOL_NONE)
        return x[(size_t)j * (size_t)stride];
    for (int32_t i = from + 1; i <= to; i++) {
        const float z = x[(size_t)i * (size_t)stride];

        y = pool.kind == EK_POOL_AVG ? y + z : (z > y || isnan(z) ? z : y);
    }
    return pool.kind == EK_POOL_AVG ? y / (float)pool.size : y;
}

/* Numbers of one head from its carry: pool each query head, combine them, divide by age. */
static void score_carry(const ek_measure *m, const ek_view *v, int h, float *out)
{
    const int n_carry = ek_measure_n_carry(m, v->group);
    const float *carry = v->carry + (size_t)v->first[h] * (size_t)n_carry;
    const int once = m->carry.kind == EK_CARRY_ONCE && is_attention(m) && m->queries > 0;
    const int32_t n = v->n[h], old = n - (once ? (int32_t)window(m, n) : 0);
    const ek_pool none = {.kind = EK_POOL_NONE};

    for (int32_t j = 0; j < n; j++) {
        float x = 0;

        for (int g = 0; g < n_carry; g++) {
            const float y = pooled(j < old ? m->pool : none, carry + g, n_carry, old, j);

            if (g == 0)
                x = y;
            else if (m->group.by == EK_MAX)
                x = y > x || isnan(y) ? y : x;
            else
                x += y;
        }
        if (n_carry > 1 && m->group.by == EK_MEAN)
            x /= (float)n_carry;
        if (m->carry.kind == EK_CARRY_AGE)
            x /= (float)(v->next_pos - v->pos[v->first[h] + j]);
        out[v->first[h] + j] = x;
    }
}

static ek_code score_entries(const ek_measure *m, ek_device *dev, const ek_view *v, float *out,
                             ek_err *err)
{
    const ek_scorer plain = {.cls = m->signal, .dev = dev};
    const ek_scorer *s = m->scorer != NULL ? m->scorer : &plain;

    if (v->carry == NULL && (carried(m) != EK_CARRIED_NONE || ek_measure_n_state(m) > 0))
        return EK_FAIL(err, EK_EBROKEN, "%s: nothing was remembered: the cache has no lane for it",
                       m->signal->name);
    if (v->carry != NULL && (is_static(m) || ek_measure_n_state(m) > 0)) {
        for (int h = 0; h < v->n_heads; h++)
            memcpy(out + v->first[h], v->carry + v->first[h], (size_t)v->n[h] * sizeof *out);
    } else {
        EK_TRY(m->signal->score(s, v, out, err));
    }
    if (m->signal->learner == NULL)
        return EK_OK;
    if (s->params == NULL)
        return EK_FAIL(err, EK_EASKED, "%s: a learned scorer without weights", m->signal->name);
    for (int h = 0; h < v->n_heads; h++)
        ek_age_add(s, v, h, out + v->first[h], out + v->first[h]);
    return EK_OK;
}

/* Each slot's mean over the heads, for all of them. */
static ek_code mean_of_heads(const ek_view *v, float *out, ek_err *err)
{
    for (int h = 1; h < v->n_heads; h++)
        if (v->n[h] != v->n[0])
            return EK_FAIL(err, EK_EBROKEN,
                           "layer %d: head %d has %d entries, head 0 has %d, expected the same in "
                           "all heads of a measure over all heads",
                           v->layer, h, v->n[h], v->n[0]);
    for (int32_t j = 0; j < v->n[0]; j++) {
        double sum = 0;

        for (int h = 0; h < v->n_heads; h++)
            sum += (double)out[v->first[h] + j];
        for (int h = 0; h < v->n_heads; h++)
            out[v->first[h] + j] = (float)(sum / v->n_heads);
    }
    return EK_OK;
}

ek_code ek_measure_score(const ek_measure *m, ek_device *dev, const ek_view *view, float *out,
                         ek_err *err)
{
    if (m->signal->source == EK_FROM_ENTRIES) {
        EK_TRY(score_entries(m, dev, view, out, err));
    } else if (view->carry == NULL) {
        return EK_FAIL(err, EK_EBROKEN, "%s: nothing was measured: the cache has no lane for it",
                       m->signal->name);
    } else if (ek_measure_is_shared(m)) {
        for (int h = 0; h < view->n_heads; h++)
            memcpy(out + view->first[h], view->carry, (size_t)view->n[h] * sizeof *out);
    } else {
        for (int h = 0; h < view->n_heads; h++)
            score_carry(m, view, h, out);
        if (m->group.heads == EK_ALL_HEADS)
            EK_TRY(mean_of_heads(view, out, err));
    }
    for (int h = 0; h < view->n_heads; h++)
        for (int32_t e = view->first[h]; e < view->first[h] + view->n[h]; e++)
            if (isnan(out[e]) || out[e] > 3.402823466e38f)
                return EK_FAIL(err, EK_ENAN, "%s: layer %d, head %d, position %d: score is %g",
                               m->signal->name, view->layer, h, view->pos[e], (double)out[e]);
    return EK_OK;
}
