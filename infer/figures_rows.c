/* infer/figures_rows.c - figures of rows under policies: what measuring costs and evicting saves.
 */
#include "infer/bench_parts.h"

#include "core/progress.h"
#include "core/rng.h"
#include "scorers/carried.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_ROWS = 16 };

typedef struct rows {
    ek_cache prompt;
    ek_policy policy[MAX_ROWS];
    ek_row row[MAX_ROWS], *each[MAX_ROWS];
    const ek_measure *lane[MAX_ROWS];
    int n, n_lanes;
} rows;

/* scorer: NULL, or a learned one. */
static void add_policy(rows *r, const char *method, ek_budget budget, ek_decode decode,
                       const ek_scorer *scorer, int group)
{
    ek_policy *p = &r->policy[r->n++];

    *p = (ek_policy){.method = *ek_method_find(method), .budget = budget, .decode = decode};
    p->method.measure.scorer = scorer;
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
ek_code ek_bench_scoring_overhead(ek_bencher *b, ek_bench_figure *f, ek_err *err)
{
    static const char *const names[] = {"tova", "h2o", "inertiakv", "full"};
    const int steps = b->quick ? 4 : 8, grow = steps * (EK_BENCH_SAMPLES + 1);
    const int n = ek_bench_at_most(b, b->quick ? 256 : 2048, grow);
    double on[3][EK_BENCH_SAMPLES] = {{0}}, warm = 0.0, off, most = 0.0;
    int worst = 0;
    rows r = {0};

    if (n < 16) {
        snprintf(f->detail, sizeof f->detail, "the model's context is too short");
        return EK_OK;
    }
    for (int i = 0; i < 4; i++)
        add_policy(&r, names[i], (ek_budget){.entries = 1 << 30}, EK_DECODE_ROW, NULL,
                   b->dims->group);
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

/* Foresight with parameters out of the air, which cost what trained ones do. */
typedef struct learned {
    ek_scorer scorer;
    float *params; /* owned */
} learned;

static ek_code learned_open(ek_bencher *b, learned *l, int carried, ek_err *err)
{
    l->scorer = (ek_scorer){.cls = ek_method_find("foresight")->measure.signal,
                            .dev = b->dev,
                            .dims = *b->dims,
                            .set = {.age = EK_AGE_INPUT, .carried = carried}};
    const size_t n = ek_params_size(&l->scorer);

    l->params = malloc(n * sizeof *l->params);
    if (!l->params)
        return EK_FAIL(err, EK_ENOMEM, "no memory for a scorer of %zu parameters", n);
    l->scorer.cls->learner->init(&l->scorer, l->params, 1);
    for (size_t i = 0; i < n; i++)
        l->params[i] += (float)(0.1 * (2 * ek_rng_unit(2, 2, i) - 1));
    l->scorer.params = l->params;
    return EK_OK;
}

enum { LEARNED = EK_CARRIED_FULL + 1 }; /* without carried columns, with an EMA, with all */

/* A cycle is the steps from one refresh to the next; the row without scoring holds as many entries
 * in each of them, and forgets them when the cycle is over. */
static ek_code learned_cycles(ek_bencher *b, rows *r, int cycle,
                              double on[LEARNED][EK_BENCH_SAMPLES], ek_bench_figure *f, ek_err *err)
{
    for (int k = -1; k < b->reps; k++) { /* the first one warms up */
        double each[LEARNED + 1] = {0};

        for (int s = 0; s < cycle; s++)
            for (int i = 0; i <= LEARNED; i++)
                EK_TRY(rows_step(b, &r->each[i], 1, &each[i], err));
        ek_cache_rewind(&r->row[LEARNED].cache, cycle);
        for (int i = 0; i < LEARNED && k >= 0; i++)
            on[i][k] = each[i] / each[LEARNED];
        f->samples = k + 1;
    }
    return EK_OK;
}

ek_code ek_bench_learned_scoring(ek_bencher *b, ek_bench_figure *f, ek_err *err)
{
    const int cycle = ek_method_find("foresight")->when.every, grow = cycle * (b->reps + 2);
    const int n = ek_bench_at_most(b, 1024 + cycle, grow), kept = n - cycle;
    double on[LEARNED][EK_BENCH_SAMPLES], sum[LEARNED] = {0};
    learned l[LEARNED] = {{.params = NULL}};
    int worst = 0;
    rows r = {0};

    if (kept < 2 * cycle) {
        snprintf(f->detail, sizeof f->detail, "the model's context is too short");
        return EK_OK;
    }
    err->code = EK_OK;
    for (int i = 0; i < LEARNED; i++) {
        EK_CHECK(learned_open(b, &l[i], i, err));
        add_policy(&r, "foresight", (ek_budget){.entries = kept}, EK_DECODE_HOLD, &l[i].scorer,
                   b->dims->group);
    }
    add_policy(&r, "snapkv", (ek_budget){.entries = kept - cycle}, EK_DECODE_GROW, NULL,
               b->dims->group);
    EK_CHECK(rows_open(b, &r, n, grow, err));
    if (learned_cycles(b, &r, cycle, on, f, err) == EK_OK) {
        for (int i = 0; i < LEARNED; i++) {
            for (int s = 0; s < f->samples; s++)
                sum[i] += on[i][s] / f->samples;
            worst = sum[i] > sum[worst] ? i : worst;
        }
        memcpy(f->sample, on[worst], sizeof f->sample);
        snprintf(f->detail, sizeof f->detail,
                 "the bytes of %d entries held, refresh every %d steps; means by carried columns: "
                 "none %.3f, ema %.3f, full %.3f",
                 kept, cycle, sum[EK_CARRIED_NONE], sum[EK_CARRIED_EMA], sum[EK_CARRIED_FULL]);
    }
    rows_close(&r);
fail:
    for (int i = 0; i < LEARNED; i++)
        free(l[i].params);
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
                   EK_DECODE_ROW, NULL, b->dims->group);
    add_policy(r, "full", (ek_budget){0}, EK_DECODE_ROW, NULL, b->dims->group);
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

ek_code ek_bench_lockstep(ek_bencher *b, ek_bench_figure *f, ek_err *err)
{
    const int steps = b->quick ? 16 : 64, n = ek_bench_at_most(b, b->quick ? 256 : 1024, steps);
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

ek_code ek_bench_eviction_pays(ek_bencher *b, ek_bench_figure *f, ek_err *err)
{
    const int steps = 4, grow = steps * (EK_BENCH_SAMPLES + 1);
    const int n = ek_bench_at_most(b, b->quick ? 1024 : 8192, grow),
              kept = n / 8 < 1024 ? n / 8 : 1024;
    double warm = 0.0;
    rows r = {0};

    if (n < 64) {
        snprintf(f->detail, sizeof f->detail, "the model's context is too short");
        return EK_OK;
    }
    add_policy(&r, "snapkv", (ek_budget){.entries = kept}, EK_DECODE_ROW, NULL, b->dims->group);
    add_policy(&r, "full", (ek_budget){0}, EK_DECODE_ROW, NULL, b->dims->group);
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
