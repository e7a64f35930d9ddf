/* scorers/carried.c - see carried.h. */
#include "scorers/carried.h"

#include "scorers/colsum.h"

#include <assert.h>
#include <math.h>
#include <string.h>

/* Queries folded by one pass over the keys; entries a thread takes at a time; floats of carry below
 * which waking threads costs more than the step. */
enum { QUERIES = 512, TILE = 256, WORTH_THREADS = 8192 };
enum { SUM, SLOW, FAST, LAST, SETS }; /* weightings of one pass */

static const double rate_slow = .99, rate_fast = .97;
static const double least = 1e-6; /* below it, attention is no attention */

const char *const ek_carried_names[] = {"none", "ema", "full", NULL};

int ek_carried_floats(int kind, int group)
{
    return kind == EK_CARRIED_FULL ? 4 * group + 1 : kind == EK_CARRIED_EMA;
}

int ek_carried_features(int kind)
{
    return kind == EK_CARRIED_FULL ? 8 : kind == EK_CARRIED_EMA;
}

/* ---- queries of a prompt ---- */

/* Query i of n adds (1 - rate) rate^(n - 1 - i) of itself. */
static void fill_weights(float *weight, int n, double rate)
{
    double w = 1 - rate;

    for (int i = n - 1; i >= 0; i--) {
        weight[i] = (float)w;
        w *= rate;
    }
}

static void fold_ema(ek_device *dev, ek_colsum *block, float scale, float *carry, float *scratch)
{
    const ek_view *v = &block->view;
    const float keep = (float)pow(rate_slow, block->n_q), share = 1 / (float)v->group;
    float weight[QUERIES];

    fill_weights(weight, block->n_q, rate_slow);
    block->weight = weight;
    ek_colsum_set(dev, block, scale, scratch);
    for (int h = 0; h < v->n_heads; h++)
        for (int32_t e = v->first[h]; e < v->first[h] + v->n[h]; e++) {
            float x = 0;

            for (int g = 0; g < v->group; g++)
                x += scratch[(size_t)e * (size_t)v->group + (size_t)g];
            carry[e] = keep * carry[e] + x * share;
        }
}

/* The block's sums of one entry, set after set in scratch, into its floats. */
static void take_sums(int group, const float keep[SETS], const float *const sum[SETS], float *c)
{
    float last = 0;

    for (int g = 0; g < group; g++) {
        c[g] += sum[SUM][g];
        c[group + g] = keep[SLOW] * c[group + g] + sum[SLOW][g];
        c[2 * group + g] = keep[FAST] * c[2 * group + g] + sum[FAST][g];
        last += sum[LAST][g];
    }
    c[4 * group] = last / (float)group;
}

/* The entries that some query of the block sees among its first EK_CARRIED_BIRTH: a tail of each
 * list.  room: first and n of the heads. */
static void narrow(ek_colsum *block, int32_t room[2][EK_MAX_HEADS])
{
    const ek_view *v = &block->view;

    assert(v->n_heads <= EK_MAX_HEADS);
    for (int h = 0; h < v->n_heads; h++) {
        int32_t from = 0, to = v->n[h];

        while (from < to) {
            const int32_t mid = from + (to - from) / 2;

            if ((int64_t)v->pos[v->first[h] + mid] + EK_CARRIED_BIRTH <= block->q_pos)
                from = mid + 1;
            else
                to = mid;
        }
        room[0][h] = v->first[h] + from;
        room[1][h] = v->n[h] - from;
    }
    block->view.first = room[0];
    block->view.n = room[1];
}

static void fold_birth(ek_device *dev, ek_colsum *block, float scale, float *carry, float *scratch)
{
    const int group = block->view.group, floats = ek_carried_floats(EK_CARRIED_FULL, group);
    int32_t room[2][EK_MAX_HEADS];

    narrow(block, room);
    block->n_sets = 1;
    block->weight = NULL;
    block->horizon = EK_CARRIED_BIRTH - 1;
    ek_colsum_set(dev, block, scale, scratch);
    for (int h = 0; h < block->view.n_heads; h++)
        for (int32_t e = room[0][h]; e < room[0][h] + room[1][h]; e++)
            for (int g = 0; g < group; g++)
                carry[(size_t)e * (size_t)floats + (size_t)(3 * group + g)] +=
                    scratch[(size_t)e * (size_t)group + (size_t)g];
}

static void fold_full(ek_device *dev, ek_colsum *block, float scale, float *carry, float *scratch)
{
    const ek_view *v = &block->view;
    const int n = block->n_q, group = v->group, floats = ek_carried_floats(EK_CARRIED_FULL, group);
    const float keep[SETS] = {[SLOW] = (float)pow(rate_slow, n), [FAST] = (float)pow(rate_fast, n)};
    float weight[SETS * QUERIES], *sum[SETS];
    size_t entries = 0;

    for (int h = 0; h < v->n_heads; h++)
        if ((size_t)(v->first[h] + v->n[h]) > entries)
            entries = (size_t)(v->first[h] + v->n[h]);
    for (int s = 0; s < SETS; s++) {
        sum[s] = scratch + (size_t)s * entries * (size_t)group;
        ek_colsum_clear(v, sum[s]);
    }
    for (int i = 0; i < n; i++) {
        weight[SUM * n + i] = 1;
        weight[LAST * n + i] = i == n - 1;
    }
    fill_weights(weight + SLOW * n, n, rate_slow);
    fill_weights(weight + FAST * n, n, rate_fast);
    block->n_sets = SETS;
    block->weight = weight;
    block->sum = sum;
    dev->ops.colsum(dev, block, scale);
    for (int h = 0; h < v->n_heads; h++)
        for (int32_t e = v->first[h]; e < v->first[h] + v->n[h]; e++) {
            const size_t at = (size_t)e * (size_t)group;
            const float *const of[SETS] = {sum[0] + at, sum[1] + at, sum[2] + at, sum[3] + at};

            take_sums(group, keep, of, carry + (size_t)e * (size_t)floats);
        }
    fold_birth(dev, block, scale, carry, scratch);
}

void ek_carried_fold(int kind, ek_device *dev, const ek_colsum *chunk, float scale, float *carry,
                     float *scratch)
{
    for (int at = 0; at < chunk->n_q; at += QUERIES) {
        const int n = chunk->n_q - at < QUERIES ? chunk->n_q - at : QUERIES;
        ek_colsum block = ek_colsum_part(chunk, at, at + n);

        if (kind == EK_CARRIED_EMA)
            fold_ema(dev, &block, scale, carry, scratch);
        else if (kind == EK_CARRIED_FULL)
            fold_full(dev, &block, scale, carry, scratch);
    }
}

/* ---- one decode query ---- */

/* n entries.  The number of query heads is a constant where it is a usual one, so that the inner
 * loops unroll. */
static inline void step_ema(int group, int32_t n, const float *prob, float *carry)
{
    const float keep = (float)rate_slow, add = (float)(1 - rate_slow) / (float)group;

    for (int32_t j = 0; j < n; j++) {
        float x = 0;

        for (int g = 0; g < group; g++)
            x += prob[j * group + g];
        carry[j] = keep * carry[j] + add * x;
    }
}

static inline void step_full(int group, int32_t n, const float *prob, float *carry)
{
    const float slow = (float)rate_slow, fast = (float)rate_fast;
    const float add_slow = (float)(1 - rate_slow), add_fast = (float)(1 - rate_fast);
    const float share = 1 / (float)group;
    const int floats = 4 * group + 1;

    for (int32_t j = 0; j < n; j++) {
        const float *p = prob + (size_t)j * (size_t)group;
        float *c = carry + (size_t)j * (size_t)floats, last = 0;

        for (int g = 0; g < group; g++) {
            c[g] += p[g];
            c[group + g] = slow * c[group + g] + add_slow * p[g];
            c[2 * group + g] = fast * c[2 * group + g] + add_fast * p[g];
            last += p[g];
        }
        c[4 * group] = last * share;
    }
}

static void step_rows(int kind, int group, int32_t n, const float *prob, float *carry)
{
    const int ema = kind == EK_CARRIED_EMA;

    if (ema && group == 1)
        step_ema(1, n, prob, carry);
    else if (ema && group == 3)
        step_ema(3, n, prob, carry);
    else if (ema)
        step_ema(group, n, prob, carry);
    else if (group == 1)
        step_full(1, n, prob, carry);
    else if (group == 3)
        step_full(3, n, prob, carry);
    else if (group == 4)
        step_full(4, n, prob, carry);
    else
        step_full(group, n, prob, carry);
}

/* Entries that the newest query still sees within their birth window: a short tail. */
static void step_birth(const ek_view *v, int h, const float *prob, float *carry)
{
    const int group = v->group, floats = ek_carried_floats(EK_CARRIED_FULL, group);
    const int32_t *pos = v->pos + v->first[h], newest = pos[v->n[h] - 1];

    for (int32_t j = v->n[h] - 1; j >= 0 && newest - pos[j] < EK_CARRIED_BIRTH; j--) {
        const size_t e = (size_t)(v->first[h] + j);

        for (int g = 0; g < group; g++)
            carry[e * (size_t)floats + (size_t)(3 * group + g)] +=
                prob[e * (size_t)group + (size_t)g];
    }
}

void ek_carried_step(int kind, ek_device *dev, const ek_view *view, const float *prob, float *carry)
{
    const int group = view->group, floats = ek_carried_floats(kind, group);
    const int threads = dev->threads > 0 ? dev->threads : 1;
    int32_t most = 0;
    int64_t all = 0;

    if (floats == 0)
        return;
    for (int h = 0; h < view->n_heads; h++) {
        most = view->n[h] > most ? view->n[h] : most;
        all += view->n[h];
    }
    const int tiles = (most + TILE - 1) / TILE;

#pragma omp parallel for num_threads(threads) schedule(static) if (all * floats > WORTH_THREADS)
    for (int t = 0; t < tiles * view->n_heads; t++) {
        const int h = t / tiles;
        const int32_t from = t % tiles * TILE;
        const int32_t n = view->n[h] - from < TILE ? view->n[h] - from : TILE;
        const size_t e = (size_t)(view->first[h] + from);

        if (n > 0)
            step_rows(kind, group, n, prob + e * (size_t)group, carry + e * (size_t)floats);
    }
    for (int h = 0; h < view->n_heads && kind == EK_CARRIED_FULL; h++)
        step_birth(view, h, prob, carry);
}

/* ---- features ---- */

static ek_real feature(double x)
{
    return (ek_real)log(least + x);
}

/* Mean and maximum of a number over the query heads, divided by `by`. */
static void mean_and_max(int group, const float *c, double by, ek_real *x)
{
    double sum = 0, most = (double)c[0];

    for (int g = 0; g < group; g++) {
        sum += (double)c[g];
        most = (double)c[g] > most ? (double)c[g] : most;
    }
    x[0] = feature(sum / group / by);
    x[1] = feature(most / by);
}

void ek_carried_read(int kind, int group, const float *carry, int32_t age, ek_real *x)
{
    const int32_t lived = age > 1 ? age : 1;
    ek_real birth[2];

    if (kind == EK_CARRIED_EMA)
        x[0] = feature((double)carry[0]);
    if (kind != EK_CARRIED_FULL)
        return;
    mean_and_max(group, carry, lived, x);
    mean_and_max(group, carry + group, 1, x + 2);
    mean_and_max(group, carry + 2 * group, 1, x + 4);
    mean_and_max(group, carry + 3 * group, lived < EK_CARRIED_BIRTH ? lived : EK_CARRIED_BIRTH,
                 birth);
    x[6] = birth[1];
    x[7] = feature((double)carry[4 * group]);
}
