/* infer/figures.c - the figures of the speed contract, one function each. */
#include "infer/bench_parts.h"

#include "core/progress.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int ek_bench_at_most(const ek_bencher *b, int n, int spare)
{
    const int room = b->dims->n_ctx - spare;

    return n < room ? n : room;
}

static ek_code step(ek_bencher *b, ek_cache *c, double *seconds, ek_err *err)
{
    const ek_feed f = {
        .cache = c, .tok = b->tok + c->next_pos, .n = 1, .n_logits = 1, .logits = b->logits};
    const double start = ek_now();

    EK_TRY(ek_model_step(b->model, &f, 1, NULL, err));
    *seconds += ek_now() - start;
    return EK_OK;
}

/* ---- decode ---- */

/* Seconds of a few steps behind n tokens, then the tokens are forgotten again. */
static ek_code decode_times(ek_bencher *b, int n, int steps, ek_bench_figure *f, double *bytes,
                            ek_err *err)
{
    ek_cache c;
    double warm = 0.0;

    EK_TRY(ek_bench_cache(b, &c, n, n + steps + 1, NULL, 0, err));
    EK_CHECK(step(b, &c, &warm, err));
    *bytes = 0.0;
    for (f->samples = 0; f->samples < b->reps; f->samples++) {
        ek_cache_rewind(&c, c.next_pos - n);
        f->sample[f->samples] = 0.0;
        for (int i = 0; i < steps; i++) {
            EK_CHECK(step(b, &c, &f->sample[f->samples], err));
            if (f->samples == 0)
                *bytes += (double)(ek_model_weight_bytes(b->model) + ek_cache_count(&c).kv);
        }
    }
    ek_cache_close(&c);
    return EK_OK;
fail:
    ek_cache_close(&c);
    return err->code;
}

static ek_code decode_share(ek_bencher *b, ek_bench_figure *f, ek_err *err)
{
    const int steps = b->quick ? 4 : 16, n = ek_bench_at_most(b, 512, steps + 1);
    double bytes;

    EK_TRY(decode_times(b, n, steps, f, &bytes, err));
    for (int i = 0; i < f->samples; i++)
        f->sample[i] = bytes / f->sample[i];
    snprintf(f->detail, sizeof f->detail, "one row, %d steps behind %d tokens, %.1f MB a step",
             steps, n, bytes / steps / 1e6);
    return EK_OK;
}

static ek_code tg128(ek_bencher *b, ek_bench_figure *f, ek_err *err)
{
    const int steps = b->quick ? 16 : 128;
    double bytes;

    EK_TRY(decode_times(b, 0, steps, f, &bytes, err));
    for (int i = 0; i < f->samples; i++)
        f->sample[i] = steps / f->sample[i];
    snprintf(f->detail, sizeof f->detail, "%d single steps from an empty cache", steps);
    return EK_OK;
}

/* ---- prefill ---- */

static ek_code prefill_times(ek_bencher *b, int n, ek_bench_figure *f, ek_err *err)
{
    ek_cache c;

    EK_TRY(ek_bench_cache(b, &c, ek_bench_at_most(b, 64, 0), n, NULL, 0, err));
    for (f->samples = 0; f->samples < b->reps; f->samples++) {
        double start;

        ek_cache_rewind(&c, c.next_pos);
        start = ek_now();
        EK_CHECK(ek_engine_read(b->engine, &c, b->tok, n, n, b->logits, NULL, err));
        f->sample[f->samples] = ek_now() - start;
    }
    ek_cache_close(&c);
    return EK_OK;
fail:
    ek_cache_close(&c);
    return err->code;
}

/* Operations of a prompt of n tokens: products of the layers, causal attention (each query over
 * the keys up to itself), and the head for one token. */
static double prefill_flops(const ek_dims *d, int n)
{
    const double q = (double)d->n_heads * d->group * d->head_dim,
                 kv = (double)d->n_heads * d->head_dim;
    const double layer = (q + 2 * kv) * d->d_model + q * d->d_model + 3.0 * d->d_ff * d->d_model;
    const double keys = 0.5 * n * (n + 1.0);

    return d->n_layers * (2.0 * layer * n + 4.0 * q * keys) + 2.0 * d->n_vocab * d->d_model;
}

static ek_code prefill_share(ek_bencher *b, ek_bench_figure *f, ek_err *err)
{
    const int n = ek_bench_at_most(b, b->quick ? 512 : 2048, 0);
    const double flops = prefill_flops(b->dims, n);

    EK_TRY(prefill_times(b, n, f, err));
    for (int i = 0; i < f->samples; i++)
        f->sample[i] = flops / f->sample[i];
    snprintf(f->detail, sizeof f->detail, "%d tokens in chunks of %d, %.0f GFLOP", n, EK_CHUNK,
             flops / 1e9);
    return EK_OK;
}

static ek_code pp512(ek_bencher *b, ek_bench_figure *f, ek_err *err)
{
    const int n = ek_bench_at_most(b, 512, 0);

    EK_TRY(prefill_times(b, n, f, err));
    for (int i = 0; i < f->samples; i++)
        f->sample[i] = n / f->sample[i];
    snprintf(f->detail, sizeof f->detail, "a prompt of %d tokens", n);
    return EK_OK;
}

/* ---- the target ---- */

/* Queries of one layer of the whole sequence, with their log-sum-exp. */
typedef struct layer_queries {
    int layer;
    size_t width, heads; /* of a query row; query heads */
    float *q, *lse, *out;
    float *sum;
    int32_t *count; /* (n_heads) */
    ek_cache c;
    int n;
} layer_queries;

static ek_code keep_queries(void *ctx, const ek_tap_layer *t, ek_err *err)
{
    layer_queries *k = ctx;
    const int at = t->feed[0].cache->next_pos;

    (void)err;
    if (t->layer != k->layer)
        return EK_OK;
    for (int i = 0; i < t->feed[0].n; i++)
        memcpy(k->q + (size_t)(at + i) * k->width, t->row[0].q + (size_t)i * t->ldq,
               k->width * sizeof *k->q);
    memcpy(k->lse + (size_t)at * k->heads, t->row[0].lse,
           (size_t)t->feed[0].n * k->heads * sizeof *k->lse);
    return EK_OK;
}

static void layer_queries_close(layer_queries *k)
{
    free(k->q);
    free(k->lse);
    free(k->out);
    free(k->sum);
    free(k->count);
    ek_cache_close(&k->c);
}

/* Positions without a prompt: enough where only sizes count. */
static void place(layer_queries *k)
{
    const ek_cache *c = &k->c;

    for (int h = 0; h < c->dims.n_heads; h++)
        for (int i = 0; i < k->n; i++)
            c->pos[c->layer_at[k->layer] + c->first[k->layer * c->dims.n_heads + h] + i] = i;
}

/* real: of a prompt of n tokens; else zeros. */
static ek_code layer_queries_open(ek_bencher *b, layer_queries *k, int n, int real, ek_err *err)
{
    const ek_dims *d = b->dims;
    const ek_tap tap = {keep_queries, k};

    *k = (layer_queries){.layer = d->n_layers / 2,
                         .heads = (size_t)(d->n_heads * d->group),
                         .width = (size_t)(d->n_heads * d->group * d->head_dim),
                         .n = n};
    k->q = calloc(k->width * (size_t)n, sizeof *k->q);
    k->out = malloc(sizeof *k->out * k->width * EK_CHUNK);
    k->lse = calloc(k->heads * (size_t)n, sizeof *k->lse);
    k->sum = calloc(k->heads * (size_t)n, sizeof *k->sum);
    k->count = malloc(sizeof *k->count * (size_t)d->n_heads);
    if (!k->q || !k->out || !k->lse || !k->sum || !k->count) {
        layer_queries_close(k);
        return EK_FAIL(err, EK_ENOMEM, "no memory for the queries of %d tokens", n);
    }
    if (ek_bench_cache(b, &k->c, 0, n, NULL, 0, err) != EK_OK ||
        (real && ek_engine_read(b->engine, &k->c, b->tok, n, n, NULL, &tap, err) != EK_OK)) {
        layer_queries_close(k);
        return err->code;
    }
    if (!real)
        place(k);
    return EK_OK;
}

/* The layer as it was when the chunk that ends before token `end` had been appended. */
static ek_view view_until(const layer_queries *k, int end)
{
    ek_view view;

    ek_cache_view(&k->c, k->layer, -1, &view);
    for (int h = 0; h < view.n_heads; h++)
        k->count[h] = end;
    view.n = k->count;
    view.next_pos = end;
    return view;
}

/* Both passes go chunk by chunk, as the model reads a prompt. */
static double attend_once(ek_device *dev, const layer_queries *k, float scale)
{
    double seconds = 0.0;

    for (int at = 0; at < k->n; at += EK_CHUNK) {
        const int n = k->n - at < EK_CHUNK ? k->n - at : EK_CHUNK;
        const ek_attn_row row = {.view = view_until(k, at + n),
                                 .n_new = n,
                                 .q = k->q + (size_t)at * k->width,
                                 .out = k->out,
                                 .lse = k->lse + (size_t)at * k->heads};
        const double start = ek_now();

        dev->ops.attn(dev, &row, 1, scale, k->width, k->width);
        seconds += ek_now() - start;
    }
    return seconds;
}

static double target_once(ek_device *dev, const layer_queries *k, float scale)
{
    float *sums[1] = {k->sum};
    double seconds = 0.0;

    for (int at = 0; at < k->n; at += EK_CHUNK) {
        const int n = k->n - at < EK_CHUNK ? k->n - at : EK_CHUNK;
        const ek_colsum s = {.view = view_until(k, at + n),
                             .n_q = n,
                             .q_pos = at,
                             .q = k->q + (size_t)at * k->width,
                             .ldq = k->width,
                             .lse = k->lse + (size_t)at * k->heads,
                             .n_sets = 1,
                             .delay = 64,
                             .horizon = -1,
                             .sum = sums};
        const double start = ek_now();

        dev->ops.colsum(dev, &s, scale);
        seconds += ek_now() - start;
    }
    return seconds;
}

static ek_code target_cost(ek_bencher *b, ek_bench_figure *f, ek_err *err)
{
    layer_queries k;

    EK_TRY(layer_queries_open(b, &k, ek_bench_at_most(b, b->quick ? 1024 : 4096, 0), 1, err));
    attend_once(b->dev, &k, b->dims->scale);
    target_once(b->dev, &k, b->dims->scale);
    for (f->samples = 0; f->samples < b->reps; f->samples++) {
        const double attend = attend_once(b->dev, &k, b->dims->scale);

        f->sample[f->samples] = target_once(b->dev, &k, b->dims->scale) / attend;
    }
    snprintf(f->detail, sizeof f->detail,
             "column sums with delay 64 against attention, layer %d, %d tokens in chunks of %d",
             k.layer, k.n, EK_CHUNK);
    layer_queries_close(&k);
    return EK_OK;
}

/* Counted on a device of its own, whose workspace nothing else has grown. */
static ek_code target_memory(ek_bencher *b, ek_bench_figure *f, ek_err *err)
{
    layer_queries k;
    ek_device *fresh;
    double extra, unit;

    EK_TRY(layer_queries_open(b, &k, ek_bench_at_most(b, 8192, 0), 0, err));
    if (ek_device_open(&fresh, "cpu", ek_isa_name(b->dev->isa), err) != EK_OK) {
        layer_queries_close(&k);
        return err->code;
    }
    target_once(fresh, &k, b->dims->scale);
    unit = (double)k.heads * k.n * 4;
    extra = (double)fresh->peak + unit; /* the workspace, and the sums themselves */
    f->sample[0] = extra / unit;
    f->samples = 1;
    snprintf(f->detail, sizeof f->detail,
             "%.2f MB for %zu query heads and %d tokens, the sums included", extra / 1e6, k.heads,
             k.n);
    ek_device_close(fresh);
    layer_queries_close(&k);
    return EK_OK;
}

const ek_bench_plan ek_bench_plans[] = {
    {"decode share", "(weight + KV bytes of a step) / time / streaming", "of streaming", 0.85, 1,
     EK_BENCH_STREAM, decode_share},
    {"prefill share", "forward FLOP / time / matrix product", "of product", 0.65, 1,
     EK_BENCH_PRODUCT, prefill_share},
    {"target cost", "future-target pass / attention forward of the layer", "x", 1.0, 0,
     EK_BENCH_NONE, target_cost},
    {"target memory", "extra bytes of the target pass / (query heads x T x 4)", "x", 4.0, 0,
     EK_BENCH_NONE, target_memory},
    {"scoring overhead", "decode step measuring attention / not, nothing to evict", "x", 1.03, 0,
     EK_BENCH_NONE, ek_bench_scoring_overhead},
    {"learned scoring", "decode step of a held budget with a learned scorer / without one", "x",
     1.10, 0, EK_BENCH_NONE, ek_bench_learned_scoring},
    {"scorer training", "scorer's forward and backward of a record / the model's forward", "x", 0.5,
     0, EK_BENCH_NONE, ek_bench_scorer_training},
    {"lockstep", "evaluating 16 cells / evaluating 1, same sample", "x", 3.0, 0, EK_BENCH_NONE,
     ek_bench_lockstep},
    {"eviction pays", "decode rate keeping an eighth / full cache", "x", 1.5, 1, EK_BENCH_NONE,
     ek_bench_eviction_pays},
    {"pp512", "prompt tokens per second", "tok/s", 0.0, 1, EK_BENCH_NONE, pp512},
    {"tg128", "generated tokens per second", "tok/s", 0.0, 1, EK_BENCH_NONE, tg128},
    {0}};
