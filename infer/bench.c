/* infer/bench.c - ceilings, medians and the order of measuring. */
#include "infer/bench_parts.h"

#include "core/progress.h"
#include "core/rng.h"

#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { M = 512, N = 1536, K = 576, CEILING_SAMPLES = 5 };

/* 64 bytes at a time whatever the processor: the compiler splits it into what there is. */
typedef uint64_t wide __attribute__((vector_size(64)));

/* ---- ceilings ---- */

static double stream_once(ek_bencher *b)
{
    const wide *data = (const wide *)b->stream;
    const int64_t n = (int64_t)(b->stream_words / 8) / 4 * 4;
    const double start = ek_now();
    uint64_t sum = 0;

#pragma omp parallel for schedule(static) reduction(^ : sum)
    for (int64_t part = 0; part < 64; part++) {
        const int64_t from = n / 4 * part / 64 * 4, to = n / 4 * (part + 1) / 64 * 4;
        wide a = {0}, c = {0}, d = {0}, e = {0};

        for (int64_t i = from; i < to; i += 4) {
            a ^= data[i];
            c ^= data[i + 1];
            d ^= data[i + 2];
            e ^= data[i + 3];
        }
        a ^= c ^ d ^ e;
        for (int i = 0; i < 8; i++)
            sum ^= a[i];
    }
    b->sink ^= sum;
    return (double)n * 64 / (ek_now() - start);
}

static double product_once(ek_bencher *b)
{
    enum { TIMES = 4 };
    const double start = ek_now();

    for (int i = 0; i < TIMES; i++)
        b->dev->ops.matmul(b->dev, b->y, N, b->x, K, &b->weight, M, EK_SET);
    return 2.0 * M * N * K * TIMES / (ek_now() - start);
}

static double best(ek_bencher *b, double (*once)(ek_bencher *))
{
    double most = 0.0;

    for (int i = 0; i < CEILING_SAMPLES; i++) {
        const double x = once(b);

        if (x > most)
            most = x;
    }
    return most;
}

static void ceilings(ek_bencher *b, ek_bench_figure *f, int at)
{
    f->stream[at] = best(b, stream_once);
    f->product[at] = best(b, product_once);
}

static int moved(const double x[2])
{
    return x[0] > 1.1 * x[1] || x[1] > 1.1 * x[0];
}

/* ---- the bencher ---- */

static void bencher_close(ek_bencher *b)
{
    ek_engine_close(b->engine);
    ek_model_close(b->model);
    ek_weight_close(&b->weight, b->dev);
    ek_device_free(b->dev, b->stream);
    free(b->tok);
    free(b->logits);
    free(b->x);
    free(b->y);
}

static ek_code bencher_open(ek_bencher *b, const ek_bench_set *set, ek_device *dev, ek_err *err)
{
    size_t weights;

    *b = (ek_bencher){.dev = dev, .quick = set->quick, .reps = set->quick ? 3 : 9};
    EK_TRY(ek_model_open(&b->model, set->model, dev, set->storage, err));
    EK_TRY(ek_engine_open(&b->engine, b->model, dev, err));
    b->dims = ek_model_dims(b->model);
    weights = (size_t)ek_model_weight_bytes(b->model);
    /* A tiny model's weights fit a processor's cache: streaming means main memory. */
    b->stream_words = (weights > (64u << 20) || set->quick ? weights : 64u << 20) / 8;
    if (b->stream_words < 1u << 17)
        b->stream_words = 1u << 17;
    b->stream = ek_device_alloc(dev, b->stream_words * 8);
    b->tok = malloc(sizeof *b->tok * (size_t)b->dims->n_ctx);
    b->logits = malloc(sizeof *b->logits * 16 * (size_t)b->dims->n_vocab);
    b->x = malloc(sizeof *b->x * M * K);
    b->y = malloc(sizeof *b->y * M * N);
    if (!b->stream || !b->tok || !b->logits || !b->x || !b->y)
        return EK_FAIL(err, EK_ENOMEM, "bench: no memory for its buffers");
    EK_TRY(ek_weight_open(&b->weight, dev, set->storage, N, K, err));
    for (size_t i = 0; i < b->stream_words; i++) /* the pages must exist */
        b->stream[i] = i;
    for (int i = 0; i < M * K; i++)
        b->x[i] = (float)(i % 17) * 0.25f;
    for (int i = 0; i < b->dims->n_ctx; i++)
        b->tok[i] =
            (int32_t)ek_rng_below((uint64_t)b->dims->n_vocab, 1, ek_rng_stream("bench", 0, 0), i);
    return EK_OK;
}

ek_code ek_bench_cache(ek_bencher *b, ek_cache *c, int n, int cap, const ek_measure *const *lanes,
                       int n_lanes, ek_err *err)
{
    const ek_cache_need need = {.dims = *b->dims,
                                .dtype = ek_model_storage(b->model),
                                .cap = cap,
                                .n_lanes = n_lanes,
                                .measures = lanes};

    EK_TRY(ek_cache_open(c, &need, b->dev, err));
    if (n > 0 && ek_engine_read(b->engine, c, b->tok, n, n, NULL, NULL, err) != EK_OK) {
        ek_cache_close(c);
        return err->code;
    }
    return EK_OK;
}

/* ---- one figure ---- */

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static void settle(ek_bench_figure *f, double divide)
{
    for (int i = 0; i < f->samples; i++)
        f->sample[i] /= divide;
    qsort(f->sample, (size_t)f->samples, sizeof f->sample[0], by_value);
    f->low = f->sample[0];
    f->high = f->sample[f->samples - 1];
    f->value = f->samples % 2 ? f->sample[f->samples / 2]
                              : (f->sample[f->samples / 2 - 1] + f->sample[f->samples / 2]) / 2;
}

static ek_code measure(ek_bencher *b, const ek_bench_plan *p, ek_bench_figure *f, ek_err *err)
{
    const int tries = b->quick ? 1 : 2;

    for (int i = 0; i < tries; i++) {
        *f = (ek_bench_figure){.name = p->name,
                               .what = p->what,
                               .unit = p->unit,
                               .goal = p->goal,
                               .at_least = p->at_least};
        ceilings(b, f, 0);
        if (p->run(b, f, err) != EK_OK)
            return ek_err_in(err, "bench: %s", p->name);
        if (f->samples == 0)
            return EK_OK;
        ceilings(b, f, 1);
        f->noisy = moved(f->stream) || moved(f->product);
        if (!f->noisy)
            break;
    }
    const double *c = p->ceiling == EK_BENCH_STREAM ? f->stream : f->product;

    settle(f, p->ceiling == EK_BENCH_NONE ? 1.0 : c[0] > c[1] ? c[0] : c[1]);
    return EK_OK;
}

int ek_bench_misses(const ek_bench_figure *f, double slack)
{
    if (f->samples == 0 || !(f->goal > 0.0))
        return 0;
    return f->at_least ? f->value * slack < f->goal : f->value > f->goal * slack;
}

/* Jiffies of the machine so far, and those stolen by its host. */
static int read_stolen(double *all, double *stolen)
{
    unsigned long long x[8] = {0};
    FILE *f = fopen("/proc/stat", "r");
    int n = 0;

    if (f) {
        n = fscanf(f, "cpu %llu %llu %llu %llu %llu %llu %llu %llu", &x[0], &x[1], &x[2], &x[3],
                   &x[4], &x[5], &x[6], &x[7]);
        fclose(f);
    }
    *all = 0.0;
    for (int i = 0; i < 8; i++)
        *all += (double)x[i];
    *stolen = (double)x[7];
    return n == 8;
}

ek_code ek_bench_run(ek_bench *out, const ek_bench_set *set, ek_device *dev,
                     void (*report)(void *ctx, const ek_bench_figure *f), void *ctx, ek_err *err)
{
    ek_bencher b;
    double all[2], stolen[2];
    int known = read_stolen(&all[0], &stolen[0]);

    *out = (ek_bench){.steal = -1.0};
    EK_CHECK(bencher_open(&b, set, dev, err));
    for (const ek_bench_plan *p = ek_bench_plans; p->name; p++) {
        ek_bench_figure *f = &out->figure[out->n];

        if (set->only && strcmp(set->only, p->name) != 0)
            continue;
        if (ek_stop_asked())
            EK_CHECK(EK_FAIL(err, EK_ESTOPPED, "bench: stopped after %d figures", out->n));
        EK_CHECK(measure(&b, p, f, err));
        for (int i = 0; i < 2; i++) {
            if (f->stream[i] > out->stream)
                out->stream = f->stream[i];
            if (f->product[i] > out->product)
                out->product = f->product[i];
        }
        out->n++;
        if (report)
            report(ctx, f);
    }
    known = known && read_stolen(&all[1], &stolen[1]);
    if (known && all[1] > all[0])
        out->steal = (stolen[1] - stolen[0]) / (all[1] - all[0]);
    bencher_close(&b);
    if (out->n == 0)
        return EK_FAIL(err, EK_EASKED, "bench: found no figure '%s'", set->only);
    return EK_OK;
fail:
    bencher_close(&b);
    return err->code;
}
