/* infer/figures.c - the figures of the speed contract, one function each. */
#include "infer/bench_parts.h"

#include "core/progress.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Lengths shrink to what the model's context allows. */
static int at_most(const ek_bencher *b, int n, int spare)
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
    const int steps = b->quick ? 4 : 16, n = at_most(b, 512, steps + 1);
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

    EK_TRY(ek_bench_cache(b, &c, at_most(b, 64, 0), n, NULL, 0, err));
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
    const int n = at_most(b, b->quick ? 512 : 2048, 0);
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
    const int n = at_most(b, 512, 0);

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

    EK_TRY(layer_queries_open(b, &k, at_most(b, b->quick ? 1024 : 4096, 0), 1, err));
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

    EK_TRY(layer_queries_open(b, &k, at_most(b, 8192, 0), 0, err));
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

/* ---- rows ---- */

enum { MAX_ROWS = 16 };

typedef struct rows {
    ek_cache prompt;
    ek_policy policy[MAX_ROWS];
    ek_row row[MAX_ROWS], *each[MAX_ROWS];
    const ek_measure *lane[MAX_ROWS];
    int n, n_lanes;
} rows;

static void add_policy(rows *r, const char *method, ek_budget budget, int group)
{
    ek_policy *p = &r->policy[r->n++];

    *p = (ek_policy){.method = *ek_method_find(method), .budget = budget};
    if (ek_measure_n_carry(&p->method.measure, group) == 0)
        return;
    for (int i = 0; i < r->n_lanes; i++)
        if (ek_measure_same(r->lane[i], &p->method.measure))
            return;
    r->lane[r->n_lanes++] = &p->method.measure;
}

static void rows_close(rows *r)
{
    for (int i = 0; i < r->n; i++)
        ek_row_close(&r->row[i]);
    ek_cache_close(&r->prompt);
}

/* Read n tokens, then open every row with room for `grow`; the last takes the prompt's cache. */
static ek_code rows_open(ek_bencher *b, rows *r, int n, int grow, ek_err *err)
{
    ek_code code = ek_bench_cache(b, &r->prompt, n, n + grow, r->lane, r->n_lanes, err);

    for (int i = 0; i < r->n && code == EK_OK; i++) {
        r->each[i] = &r->row[i];
        code = ek_row_open(&r->row[i], b->engine, &r->prompt, &r->policy[i], n, grow,
                           i == r->n - 1 ? EK_ROW_TAKE : 0, err);
    }
    if (code != EK_OK)
        rows_close(r);
    return code;
}

/* One decode step of n rows. */
static ek_code rows_step(ek_bencher *b, ek_row *const *row, int n, double *seconds, ek_err *err)
{
    const double start = ek_now();

    for (int i = 0; i < n; i++) {
        row[i]->feed = b->tok + row[i]->cache.next_pos;
        row[i]->n_feed = row[i]->n_logits = row[i]->counts = 1;
        row[i]->logits = b->logits + (size_t)i * (size_t)b->dims->n_vocab;
    }
    EK_TRY(ek_engine_step(b->engine, row, n, err));
    *seconds += ek_now() - start;
    return EK_OK;
}

/* With nothing to evict the rows do the same work, but for measuring. */
static ek_code scoring_overhead(ek_bencher *b, ek_bench_figure *f, ek_err *err)
{
    static const char *const names[] = {"tova", "h2o", "inertiakv", "full"};
    const int steps = b->quick ? 4 : 8, grow = steps * (EK_BENCH_SAMPLES + 1);
    const int n = at_most(b, b->quick ? 256 : 2048, grow);
    double on[3][EK_BENCH_SAMPLES] = {{0}}, warm = 0.0, off, most = 0.0;
    int worst = 0;
    rows r = {0};

    if (n < 16) {
        snprintf(f->detail, sizeof f->detail, "the model's context is too short");
        return EK_OK;
    }
    for (int i = 0; i < 4; i++)
        add_policy(&r, names[i], (ek_budget){.entries = 1 << 30}, b->dims->group);
    EK_TRY(rows_open(b, &r, n, grow, err));
    for (int i = 0; i < 4; i++)
        EK_CHECK(rows_step(b, &r.each[i], 1, &warm, err));
    for (f->samples = 0; f->samples < b->reps; f->samples++) {
        double each[4] = {0};

        /* Single steps take turns, so that a slow moment hits all. */
        for (int s = 0; s < steps; s++)
            for (int i = 0; i < 4; i++)
                EK_CHECK(rows_step(b, &r.each[i], 1, &each[i], err));
        off = each[3];
        for (int i = 0; i < 3; i++)
            on[i][f->samples] = each[i] / off;
    }
    for (int i = 0; i < 3; i++) {
        double sum = 0.0;

        for (int s = 0; s < f->samples; s++)
            sum += on[i][s];
        if (sum > most) {
            most = sum;
            worst = i;
        }
    }
    memcpy(f->sample, on[worst], sizeof f->sample);
    snprintf(f->detail, sizeof f->detail,
             "decode step behind %d tokens, worst of tova, h2o, inertiakv: %s", n, names[worst]);
    rows_close(&r);
    return EK_OK;
fail:
    rows_close(&r);
    return err->code;
}

/* Prefill and decode of one sample under n cells. */
static ek_code evaluate_once(ek_bencher *b, int cells, int n, int steps, double *seconds,
                             ek_err *err)
{
    static const char *const names[] = {"snapkv",    "h2o",   "tova",    "inertiakv",
                                        "streaming", "knorm", "keydiff", "random"};
    const double start = ek_now();
    double spent = 0.0;
    rows *r = calloc(1, sizeof *r);

    if (!r)
        return EK_FAIL(err, EK_ENOMEM, "no memory for rows");
    for (int i = 0; i < cells - 1; i++)
        add_policy(r, names[i % 8], (ek_budget){.num = i < 8 ? 250 : 125, .den = 1000},
                   b->dims->group);
    add_policy(r, "full", (ek_budget){0}, b->dims->group);
    if (rows_open(b, r, n, steps, err) == EK_OK) {
        ek_code code = EK_OK;

        for (int s = 0; s < steps && code == EK_OK; s++)
            code = rows_step(b, r->each, r->n, &spent, err);
        rows_close(r);
        *seconds = ek_now() - start;
        free(r);
        return code;
    }
    free(r);
    return err->code;
}

static ek_code lockstep(ek_bencher *b, ek_bench_figure *f, ek_err *err)
{
    const int steps = b->quick ? 16 : 64, n = at_most(b, b->quick ? 256 : 1024, steps);
    const int reps = b->quick ? 3 : 7;
    double warm;

    EK_TRY(evaluate_once(b, 16, n, 2, &warm, err));
    for (f->samples = 0; f->samples < reps; f->samples++) {
        double one, many;

        EK_TRY(evaluate_once(b, 1, n, steps, &one, err));
        EK_TRY(evaluate_once(b, 16, n, steps, &many, err));
        f->sample[f->samples] = many / one;
    }
    snprintf(f->detail, sizeof f->detail,
             "16 cells (8 methods at .25 and .125, and full) against 1: %d tokens, %d steps", n,
             steps);
    return EK_OK;
}

static ek_code eviction_pays(ek_bencher *b, ek_bench_figure *f, ek_err *err)
{
    const int steps = 4, grow = steps * (EK_BENCH_SAMPLES + 1);
    const int n = at_most(b, b->quick ? 1024 : 8192, grow), kept = n / 8 < 1024 ? n / 8 : 1024;
    double warm = 0.0;
    rows r = {0};

    if (n < 64) {
        snprintf(f->detail, sizeof f->detail, "the model's context is too short");
        return EK_OK;
    }
    add_policy(&r, "snapkv", (ek_budget){.entries = kept}, b->dims->group);
    add_policy(&r, "full", (ek_budget){0}, b->dims->group);
    EK_TRY(rows_open(b, &r, n, grow, err));
    for (int i = 0; i < 2; i++)
        EK_CHECK(rows_step(b, &r.each[i], 1, &warm, err));
    for (f->samples = 0; f->samples < b->reps; f->samples++) {
        double each[2] = {0};

        for (int s = 0; s < steps; s++)
            for (int i = 0; i < 2; i++)
                EK_CHECK(rows_step(b, &r.each[i], 1, &each[i], err));
        f->sample[f->samples] = each[1] / each[0];
    }
    snprintf(f->detail, sizeof f->detail,
             "decode step keeping %d entries against all, behind %d tokens", kept, n);
    rows_close(&r);
    return EK_OK;
fail:
    rows_close(&r);
    return err->code;
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
     EK_BENCH_NONE, scoring_overhead},
    {"lockstep", "evaluating 16 cells / evaluating 1, same sample", "x", 3.0, 0, EK_BENCH_NONE,
     lockstep},
    {"eviction pays", "decode rate keeping an eighth / full cache", "x", 1.5, 1, EK_BENCH_NONE,
     eviction_pays},
    {"pp512", "prompt tokens per second", "tok/s", 0.0, 1, EK_BENCH_NONE, pp512},
    {"tg128", "generated tokens per second", "tok/s", 0.0, 1, EK_BENCH_NONE, tg128},
    {0}};
