/* train/target.c - column sums of future attention; see the header.
 *
 * mean and sum are the colsum kernel with its delay and horizon.  block is the same kernel per
 * block of query positions, folded when a block is complete.  max, and every reduction under a
 * sparse normaliser (whose "probabilities" may exceed 1), walk the logits plainly: they are for
 * studies, not for the main road. */
#include "train/target.h"

#include "core/bf16.h"
#include "core/progress.h"

#include <math.h>
#include <string.h>

enum { BLOCK = 256, BLOCK_MIN = 64 };

const ek_target_set ek_target_defaults = {
    .reduce = EK_REDUCE_MEAN, .horizon = -1, .group = 0, .normaliser = EK_NORM_DENSE, .eps = 1e-6};

static const char *const reduces[] = {"mean", "sum", "max", "block", NULL};
static const char *const groups[] = {"max", "mean", NULL};
static const char *const normalisers[] = {"dense", "sparse", NULL};

const ek_field ek_target_fields[] = {
    EK_ENUM(ek_target_set, reduce, reduces, "over later queries"),
    EK_INT(ek_target_set, horizon, -1, 1 << 24, "later queries that count; -1: all"),
    EK_ENUM(ek_target_set, group, groups, "over the query heads of a kv head"),
    EK_ENUM(ek_target_set, normaliser, normalisers, "softmax over all entries or those kept"),
    EK_FLOAT(ek_target_set, eps, 1e-30, 1, "added before the logarithm"),
    EK_FIELD_END};

/* 1 if logits are walked plainly, 0 if by the colsum kernel. */
static int is_plain(const ek_target_set *s)
{
    return s->reduce == EK_REDUCE_MAX || s->normaliser == EK_NORM_SPARSE;
}

static size_t numbers(const ek_target *t)
{
    const ek_dims *d = &t->need.dims;

    return (size_t)d->n_layers * (size_t)t->need.column * (size_t)d->group;
}

static void clear(ek_target *t)
{
    const size_t n = numbers(t);
    const float start = is_plain(&t->need.set) ? -INFINITY : 0;

    for (size_t i = 0; i < n; i++)
        t->sum[i] = start;
    if (t->more != NULL)
        memset(t->more, 0, n * sizeof *t->more);
    if (t->rest != NULL)
        memset(t->rest, 0, n * sizeof *t->rest);
}

ek_code ek_target_open(ek_target *t, const ek_target_need *need, ek_device *dev, ek_err *err)
{
    const ek_target_set *s = &need->set;

    if (need->recent < 1)
        return EK_FAIL(err, EK_EASKED, "target: a recent window of %d, expected at least 1",
                       need->recent);
    if (need->cut > 0 && s->horizon < 1)
        return EK_FAIL(err, EK_EASKED, "target.horizon: found %lld, expected at least 1 at cuts",
                       (long long)s->horizon);
    if (s->reduce == EK_REDUCE_BLOCK && (need->cut > 0 || s->normaliser == EK_NORM_SPARSE))
        return EK_FAIL(err, EK_EASKED,
                       "target.reduce: block goes with whole sequences and a dense normaliser");
    *t = (ek_target){.need = *need, .dev = dev};
    const size_t n = numbers(t), heads = (size_t)need->dims.n_heads;
    const int block = s->reduce == EK_REDUCE_BLOCK, sparse = s->normaliser == EK_NORM_SPARSE;
    const size_t copies = block ? 3 : sparse ? 2 : 1;

    t->sum = ek_device_alloc(dev, n * copies * sizeof *t->sum + 2 * heads * sizeof *t->n);
    if (t->sum == NULL)
        return EK_FAIL(err, EK_ENOMEM, "target of %d tokens", need->n_seq);
    t->more = copies > 1 ? t->sum + n : NULL;
    t->rest = copies > 2 ? t->sum + 2 * n : NULL;
    t->first = (int32_t *)(void *)(t->sum + n * copies);
    t->n = t->first + heads;
    clear(t);
    return EK_OK;
}

void ek_target_close(ek_target *t)
{
    if (t->sum != NULL)
        ek_device_free(t->dev, t->sum);
    *t = (ek_target){0};
}

int ek_target_count(const ek_target *t)
{
    const int at = t->need.cut > 0 ? t->need.cut : t->need.n_seq;

    return at > t->need.recent ? at - t->need.recent : 0;
}

/* First and last query that count for token j, inclusive; empty if last < first. */
static void span_of(const ek_target *t, int64_t j, int64_t *first, int64_t *last)
{
    const ek_target_need *n = &t->need;

    *first = n->cut > 0 ? n->cut : j + n->recent;
    *last = n->n_seq - 1;
    if (n->cut > 0 && n->cut + n->set.horizon - 1 < *last)
        *last = n->cut + n->set.horizon - 1;
    else if (n->cut == 0 && n->set.horizon >= 0 && *first + n->set.horizon < *last)
        *last = *first + n->set.horizon;
}

static void by_kernel(ek_target *t, const ek_view *view, int64_t q_pos, int n_q, const float *q,
                      size_t ldq, const float *lse, float *sum)
{
    const ek_target_need *n = &t->need;
    float *const sums[1] = {sum};
    const ek_colsum c = {.view = *view,
                         .n_q = n_q,
                         .q_pos = q_pos,
                         .q = q,
                         .ldq = ldq,
                         .lse = lse,
                         .n_sets = 1,
                         .weight = NULL,
                         .delay = n->recent,
                         .horizon = n->cut > 0 ? -1 : (int32_t)n->set.horizon,
                         .sum = sums};

    t->dev->ops.colsum(t->dev, &c, n->dims.scale);
}

/* Queries that count for token j within positions a .. b. */
static int64_t counted(const ek_target *t, int64_t j, int64_t a, int64_t b)
{
    int64_t first, last;

    span_of(t, j, &first, &last);
    first = first > a ? first : a;
    last = last < b ? last : b;
    return last >= first ? last - first + 1 : 0;
}

/* The block of positions from `from` on is complete at `end`: take it into the maximum.  Until a
 * block with enough queries is met, `sum` of a token is 0 and `rest` holds the best of the others.
 */
static void fold_block(ek_target *t, const ek_view *view, int64_t from, int64_t end)
{
    const int g_n = view->group;
    const size_t at = (size_t)view->layer * (size_t)t->need.column * (size_t)g_n;
    float *best = t->sum + at, *now = t->more + at, *rest = t->rest + at;

    for (int h = 0; h < view->n_heads; h++) {
        for (int e = view->first[h]; e < view->first[h] + view->n[h]; e++) {
            const int64_t c = counted(t, view->pos[e], from, end);

            for (int g = 0; g < g_n; g++) {
                const size_t i = (size_t)e * (size_t)g_n + (size_t)g;
                float *into = c >= BLOCK_MIN ? &best[i] : &rest[i];
                const float mean = c > 0 ? now[i] / (float)c : 0;

                *into = mean > *into ? mean : *into;
                now[i] = 0;
            }
        }
    }
}

static void add_blocks(ek_target *t, const ek_view *view, int64_t q_pos, int n_q, const float *q,
                       size_t ldq, const float *lse)
{
    const size_t heads = (size_t)view->n_heads * (size_t)view->group;
    float *now =
        t->more + (size_t)view->layer * (size_t)t->need.column * (size_t)t->need.dims.group;

    for (int i = 0; i < n_q;) {
        const int64_t p = q_pos + i, end = p / BLOCK * BLOCK + BLOCK - 1;
        const int m = end - p + 1 < n_q - i ? (int)(end - p + 1) : n_q - i;

        by_kernel(t, view, p, m, q + (size_t)i * ldq, ldq, lse + (size_t)i * heads, now);
        i += m;
        if (p + m - 1 == end || p + m == t->need.n_seq)
            fold_block(t, view, p / BLOCK * BLOCK, p + m - 1);
    }
}

static float dot(const ek_view *view, const float *q, int64_t entry)
{
    const int d = view->head_dim;
    float sum = 0;

    if (view->dtype == EK_F32) {
        const float *k = (const float *)view->k + entry * d;
        for (int i = 0; i < d; i++)
            sum += q[i] * k[i];
    } else { /* the meaning of bf16 storage: the query is rounded too */
        const ek_bf16 *k = (const ek_bf16 *)view->k + entry * d;
        for (int i = 0; i < d; i++)
            sum += ek_from_bf16(ek_to_bf16(q[i])) * ek_from_bf16(k[i]);
    }
    return sum;
}

/* A running (greatest, sum of exponentials below it) per entry and query head; max keeps the first
 * only. */
static void plainly(ek_target *t, const ek_view *view, int64_t q_pos, int n_q, const float *q,
                    size_t ldq, const float *lse)
{
    const int g_n = view->group, d = view->head_dim;
    const size_t at = (size_t)view->layer * (size_t)t->need.column * (size_t)g_n;
    const int heads = view->n_heads * g_n;
    const float scale = t->need.dims.scale;

#pragma omp parallel for schedule(static)
    for (int x = 0; x < heads; x++) {
        const int h = x / g_n;

        for (int e = view->first[h]; e < view->first[h] + view->n[h]; e++) {
            float *most = t->sum + at + (size_t)e * (size_t)g_n + (size_t)(x % g_n);
            float *more = t->more == NULL ? NULL : t->more + (most - t->sum);
            int64_t first, last;

            span_of(t, view->pos[e], &first, &last);
            for (int i = 0; i < n_q; i++) {
                if (q_pos + i < first || q_pos + i > last)
                    continue;
                const float z = scale * dot(view, q + (size_t)i * ldq + (size_t)x * d, e) -
                                lse[(size_t)i * (size_t)heads + (size_t)x];
                if (z > *most) {
                    if (more != NULL)
                        *more = *more * expf(*most - z) + 1;
                    *most = z;
                } else if (more != NULL) {
                    *more += expf(z - *most);
                }
            }
        }
    }
}

void ek_target_add(ek_target *t, const ek_view *view, int64_t q_pos, int n_q, const float *q,
                   size_t ldq, const float *lse)
{
    const ek_target_need *n = &t->need;
    const size_t layer = (size_t)view->layer * (size_t)n->column * (size_t)n->dims.group;
    const size_t heads = (size_t)view->n_heads * (size_t)view->group;
    const double start = ek_now();
    ek_view narrow = *view;

    if (n->cut > 0) { /* queries of [cut, cut + horizon) only */
        const int64_t end =
            q_pos + n_q < n->cut + n->set.horizon ? q_pos + n_q : n->cut + n->set.horizon;
        const int64_t skip = q_pos < n->cut ? n->cut - q_pos : 0;

        if (q_pos + skip >= end)
            return;
        q += (size_t)skip * ldq;
        lse += (size_t)skip * heads;
        q_pos += skip;
        n_q = (int)(end - q_pos);
    }
    for (int h = 0; h < view->n_heads; h++) {
        const int most = ek_target_count(t);
        t->first[h] = view->first[h];
        t->n[h] = view->n[h] < most ? view->n[h] : most;
    }
    narrow.first = t->first;
    narrow.n = t->n;
    if (is_plain(&n->set))
        plainly(t, &narrow, q_pos, n_q, q, ldq, lse);
    else if (n->set.reduce == EK_REDUCE_BLOCK)
        add_blocks(t, &narrow, q_pos, n_q, q, ldq, lse);
    else
        by_kernel(t, &narrow, q_pos, n_q, q, ldq, lse, t->sum + layer);
    t->seconds += ek_now() - start;
}

/* m_g of one token from what was summed. */
static float finish(const ek_target *t, size_t i, int64_t j)
{
    const ek_target_set *s = &t->need.set;
    const int64_t later = counted(t, j, 0, t->need.n_seq);
    float sum = t->sum[i];

    if (s->reduce == EK_REDUCE_BLOCK)
        return sum > 0 ? sum : t->rest[i];
    if (s->reduce == EK_REDUCE_MAX)
        return expf(sum);
    if (s->normaliser == EK_NORM_SPARSE)
        sum = t->more[i] > 0 ? t->more[i] * expf(sum) : 0;
    return s->reduce == EK_REDUCE_MEAN ? sum / (float)(later > 0 ? later : 1) : sum;
}

void ek_target_mass(const ek_target *t, const ek_view *view, int h, float *mass)
{
    const int g_n = view->group, n = ek_target_count(t);
    const size_t layer = (size_t)view->layer * (size_t)t->need.column * (size_t)g_n;

    for (int j = 0; j < n; j++) {
        const size_t at = layer + (size_t)(view->first[h] + j) * (size_t)g_n;
        float out = 0;

        for (int g = 0; g < g_n; g++) {
            const float m = finish(t, at + (size_t)g, view->pos[view->first[h] + j]);
            out = t->need.set.group == 1 ? out + m / (float)g_n : m > out ? m : out;
        }
        mass[j] = out;
    }
}
