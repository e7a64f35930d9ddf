/* infer/vector.c - see vector.h. */
#include "infer/vector.h"

#include "core/bf16.h"
#include "infer/select.h"

#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 256 }; /* vectors that pass through the buffers at a time */

ek_code ek_vector_open(ek_maps *maps, ek_method *method, const ek_method_set *set, ek_decode decode,
                       const ek_maps_need *need, ek_err *err)
{
    if (method->rest != EK_REST_VECTOR)
        return EK_OK;
    if (decode == EK_DECODE_HOLD || (decode == EK_DECODE_ROW && method->when.every > 0))
        return EK_FAIL(err, EK_EASKED,
                       "methods: %s: rest: vector with decode: %s would plan again while decoding, "
                       "expected one cut at the end of the prompt (decode: grow): a lost value "
                       "does not come back",
                       method->name, decode == EK_DECODE_HOLD ? "hold" : "row");
    EK_TRY(ek_maps_open(maps, set->maps, need, err));
    if (maps->joint && method->granularity == EK_SET_PER_HEAD) {
        ek_maps_close(maps);
        return EK_FAIL(err, EK_EASKED,
                       "methods: %s: %s holds joint maps, which need every head's key of a "
                       "position: expected granularity: layer",
                       method->name, set->maps);
    }
    method->maps = maps;
    return EK_OK;
}

/* ---- counts ---- */

int32_t ek_vector_a(const ek_method *m, int32_t n, int32_t entries)
{
    const int64_t billion = 1000000000;
    int32_t sinks, recent, a;

    if (m->maps == NULL || entries <= 0 || entries >= n)
        return 0;
    ek_policy_protected(m, n, entries, &sinks, &recent);
    a = (n - entries < entries ? n - entries : entries) / 2;
    if (sinks == 0)
        sinks = 1; /* position 0 */
    if (a > entries - sinks - recent)
        a = entries - sinks - recent;
    /* In integers, so that 0.29 of 100 is 29. */
    return a > 0 ? (int32_t)((billion - llround(m->spare * (double)billion)) * a / billion) : 0;
}

int32_t ek_vector_more(const ek_method *m, const int32_t *n, int n_lists, int32_t entries)
{
    int32_t least = INT32_MAX;

    for (int i = 0; i < n_lists; i++) {
        const int32_t a = ek_vector_a(m, n[i], entries);

        least = a < least ? a : least;
    }
    return least;
}

/* ---- errors ---- */

static float item(const void *x, ek_dtype type, size_t i)
{
    return type == EK_F32 ? ((const float *)x)[i] : ek_from_bf16(((const ek_bf16 *)x)[i]);
}

typedef struct buffers {
    float *x, *v, *y; /* (ROWS, inputs) keys; (ROWS, width) values, and what the map makes */
    double *inv_freq; /* (head_dim / 2) */
    int32_t *pos;     /* (ROWS) */
} buffers;

/* Keys (rotation taken back) and values of n slots, of the heads from h on as many as the map
 * joins, side by side. */
static void gather(const ek_maps *maps, ek_device *dev, const ek_view *in, int h,
                   const int32_t *slot, int n, const buffers *b)
{
    const int joined = maps->joint ? in->n_heads : 1, dim = in->head_dim;

    for (int i = 0; i < n; i++)
        for (int g = 0; g < joined; g++) {
            const size_t e = (size_t)(in->first[h + g] + slot[i]);
            const size_t to = ((size_t)i * (size_t)joined + (size_t)g) * (size_t)dim;

            b->pos[i] = in->pos[e];
            for (size_t d = 0; d < (size_t)dim; d++) {
                b->x[to + d] = item(in->k, in->dtype, e * (size_t)dim + d);
                b->v[to + d] = item(in->v, in->dtype, e * (size_t)dim + d);
            }
        }
    dev->ops.unrope(dev, b->x, (size_t)maps->width, n, joined, dim, b->pos, b->inv_freq);
}

ek_code ek_vector_errors(const ek_maps *maps, ek_device *dev, const ek_dims *dims,
                         const ek_view *view, int head, const int32_t *slot, int32_t n, float *out,
                         float *square, ek_err *err)
{
    const int h = maps->joint ? 0 : head, width = maps->width;
    const size_t floats = (size_t)ROWS * (size_t)width, half = (size_t)dims->head_dim / 2;
    const float *w = ek_maps_weight(maps, view->layer, h), *bias;
    double *block =
        malloc(half * sizeof *block + 3 * floats * sizeof(float) + ROWS * sizeof(int32_t));
    buffers b;

    if (block == NULL)
        return EK_FAIL(err, EK_ENOMEM, "no memory for the errors of a map");
    bias = ek_maps_bias(maps, view->layer, h);
    b = (buffers){.inv_freq = block, .x = (float *)(block + half)};
    b.v = b.x + floats;
    b.y = b.v + floats;
    b.pos = (int32_t *)(b.y + floats);
    for (size_t i = 0; i < half; i++)
        block[i] = pow((double)dims->rope_base, -2.0 * (double)i / dims->head_dim);
    for (int32_t at = 0; at < n; at += ROWS) {
        const int m = n - at < ROWS ? n - at : ROWS;

        gather(maps, dev, view, h, slot + at, m, &b);
        dev->ops.gemm(dev, b.y, (size_t)width, b.x, (size_t)width, 0, w, (size_t)width, 1, m, width,
                      width, EK_SET);
        for (int i = 0; i < m; i++) {
            double sum = 0, length = 0;

            for (int d = 0; d < width; d++) {
                const size_t k = (size_t)i * (size_t)width + (size_t)d;
                const double v = (double)b.v[k], off = v - (double)b.y[k] - (double)bias[d];

                sum += off * off;
                length += v * v;
            }
            out[at + i] = (float)sum;
            if (square != NULL)
                square[at + i] = (float)length;
        }
    }
    free(block);
    return EK_OK;
}

/* ---- who loses its value ---- */

void ek_vector_scratch_close(ek_vector_scratch *s)
{
    free(s->block);
    *s = (ek_vector_scratch){0};
}

static ek_code make_room(ek_vector_scratch *s, int64_t entries, ek_err *err)
{
    const size_t n = (size_t)entries;
    char *block;

    if (entries <= s->room)
        return EK_OK;
    block = malloc(n * (3 * sizeof(float) + sizeof(int32_t) + sizeof(uint8_t)));
    if (block == NULL)
        return EK_FAIL(err, EK_ENOMEM, "plan: errors of %" PRId64 " entries", entries);
    free(s->block);
    s->block = block;
    s->worth = (float *)block;
    s->error = s->worth + n;
    s->square = s->error + n;
    s->slot = (int32_t *)(s->square + n);
    s->mask = (uint8_t *)(s->slot + n);
    s->room = entries;
    return EK_OK;
}

/* A score as a weight: attention is one; learned scores are logarithms of it, taken from `top`. */
static float weight_of(const ek_method *m, float score, float top)
{
    return m->measure.signal->learner != NULL ? expf(score - top) : score;
}

/* How badly an entry's value would be missed. */
static float worth(const ek_method *m, float error, float square, float score, float top)
{
    switch (m->select) {
    case EK_LOSE_RELATIVE:
        return square > 0 ? error / square : error > 0 ? FLT_MAX : 0.0f;
    case EK_LOSE_WEIGHTED:
        return weight_of(m, score, top) * error;
    case EK_LOSE_SCORE:
        return score;
    case EK_LOSE_ERROR:
        break;
    }
    return error;
}

/* The best score of the pool's lists from .. to - 1, of len entries each. */
static float best_of(const ek_vector_pool *pool, const int32_t *len, int from, int to)
{
    float best = -INFINITY;

    for (int i = from; i < to; i++)
        for (int32_t j = 0; j < len[i]; j++)
            if (pool->mask[pool->first[i] + j] && pool->score[pool->first[i] + j] > best)
                best = pool->score[pool->first[i] + j];
    return isinf(best) ? 0.0f : best;
}

/* The slots of a list (head h of the view, the pool's list i) that may lose their value, into
 * s->slot; their marks in s->mask become 0, all others 1.  Returns how many. */
static int32_t find_candidates(const ek_method *m, const ek_view *view, const ek_vector_pool *pool,
                               int h, int i, ek_vector_scratch *s)
{
    const uint8_t *in_pool = pool->mask + pool->first[i];
    uint8_t *mask = s->mask + pool->own[i];
    const int32_t *pos = view->pos + view->first[h];
    int32_t sinks, recent, n = 0;

    ek_policy_protected(m, view->n[h], pool->entries, &sinks, &recent);
    memset(mask, 1, (size_t)view->n[h]);
    for (int32_t j = sinks; j < view->n[h] - recent; j++)
        if (in_pool[j] && pos[j] != 0) {
            mask[j] = 0;
            s->slot[n++] = j;
        }
    return n;
}

/* What the values of a list's candidates are worth, into s->worth; *n of them. */
static ek_code weigh_head(const ek_method *m, const ek_cache *c, const ek_view *view,
                          const ek_vector_pool *pool, int h, int i, float top, ek_vector_scratch *s,
                          int32_t *n, ek_err *err)
{
    float *out = s->worth + pool->own[i];
    const float *score = pool->score + pool->first[i];

    *n = find_candidates(m, view, pool, h, i, s);
    memset(out, 0, (size_t)view->n[h] * sizeof *out); /* selecting looks at all, marked or not */
    if (*n == 0)
        return EK_OK;
    EK_TRY(ek_vector_errors(m->maps, c->dev, &c->dims, view, h, s->slot, *n, s->error, s->square,
                            err));
    for (int32_t k = 0; k < *n; k++) {
        const int32_t j = s->slot[k];

        out[j] = worth(m, s->error[k], s->square[k], score[j], top);
        if (isnan(out[j]) || out[j] == INFINITY)
            return EK_FAIL(err, EK_ENAN,
                           "rest: vector: layer %d, head %d, position %d: the error of the rebuilt "
                           "value is no number",
                           view->layer, h, view->pos[view->first[h] + j]);
    }
    return EK_OK;
}

/* Marks 1 in s->mask, of all that may lose their value, what does not. */
static ek_code choose(const ek_method *m, const ek_cache *c, const ek_vector_pool *pool,
                      ek_vector_scratch *s, ek_err *err)
{
    const int H = c->dims.n_heads, n_lists = pool->n_layers * H;
    const int32_t *len = c->n + pool->layer * H;
    const int64_t lose = 2 * (int64_t)pool->more;
    const int share = m->budget != EK_SHARE_UNIFORM;
    float top = share ? best_of(pool, len, 0, n_lists) : 0.0f;
    int64_t all = 0;
    ek_view view;

    for (int i = 0; i < n_lists; i++) {
        int32_t n;

        if (m->maps->joint && i % H > 0) { /* all heads lose what the first one does */
            memcpy(s->mask + pool->own[i], s->mask + pool->own[i - 1], (size_t)len[i]);
            continue;
        }
        ek_cache_view(c, pool->layer + i / H, -1, &view);
        top = share ? top : best_of(pool, len, i, i + 1);
        EK_TRY(weigh_head(m, c, &view, pool, i % H, i, top, s, &n, err));
        all += n;
        if (!share)
            ek_select(s->worth, pool->own + i, len + i, 1, n - lose, s->mask);
    }
    if (share)
        ek_select(s->worth, pool->own, len, n_lists, all - lose * n_lists, s->mask);
    return EK_OK;
}

/* Close list `at` of the plan, the pool's list i. */
static ek_code split_list(const ek_vector_pool *pool, const ek_vector_scratch *s, int i, int at,
                          int32_t n, ek_plan *out, ek_err *err)
{
    const uint8_t *in_pool = pool->mask + pool->first[i], *keeps = s->mask + pool->own[i];
    int32_t exact = out->first[at], mapped = out->mapped_first[at];

    out->of[at] = n;
    for (int32_t j = 0; j < n; j++) {
        if (!in_pool[j])
            continue;
        if ((keeps[j] ? exact : mapped) >= out->room)
            return EK_FAIL(err, EK_EBROKEN,
                           "plan: layer %d, head %d: no room behind %" PRId64 " survivors",
                           at / out->n_heads, at % out->n_heads, out->room);
        if (keeps[j])
            out->slot[exact++] = j;
        else
            out->mapped[mapped++] = j;
    }
    out->first[at + 1] = exact;
    out->mapped_first[at + 1] = mapped;
    return EK_OK;
}

ek_code ek_vector_split(const ek_method *m, const ek_cache *c, const ek_vector_pool *pool,
                        ek_vector_scratch *s, ek_plan *out, ek_err *err)
{
    const int H = c->dims.n_heads;

    EK_TRY(make_room(s, c->layer_at[pool->layer + pool->n_layers] - c->layer_at[pool->layer], err));
    EK_TRY(choose(m, c, pool, s, err));
    for (int i = 0; i < pool->n_layers * H; i++)
        EK_TRY(split_list(pool, s, i, pool->layer * H + i, c->n[pool->layer * H + i], out, err));
    return EK_OK;
}
