/* infer/evaluate_sample.c - one sample through all cells: see evaluate.h. */
#include "infer/evaluate.h"

#include "core/file.h"
#include "core/progress.h"
#include "infer/metrics.h"
#include "infer/sample.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SOLO_STEPS = 8 }; /* decode steps of a cell alone, to time them */

typedef struct sample_run {
    ek_eval *ev;
    ek_cache prompt;     /* all cells fork from here; the full row takes it over */
    ek_tokens tok;       /* everything that is fed */
    int64_t n_prompt;    /* tokens before the cut */
    int64_t needle;      /* byte of the prompt where what is asked for begins */
    float *future[2][3]; /* (entries, group) sums over the next 32, the next 128 and all later
                            queries; [1]: counted from the query after the first decode step */
    int64_t prefill_ns;
} sample_run;

void ek_record_clear(ek_record *r)
{
    free(r->prediction);
    memset(r, 0, sizeof *r);
}

static int64_t now_ns(void)
{
    return (int64_t)(ek_now() * 1e9);
}

static void close_run(sample_run *run)
{
    for (int c = 0; c < run->ev->grid.n_cells; c++)
        ek_row_close(&run->ev->row[c]);
    ek_cache_close(&run->prompt);
    ek_tokens_clear(&run->tok);
    for (int s = 0; s < 3; s++) {
        free(run->future[0][s]);
        free(run->future[1][s]);
    }
}

/* Prefill with every measure of the grid, and the room that the full row will need. */
static ek_code read_prompt(sample_run *run, int64_t grow, float *logits, ek_err *err)
{
    ek_eval *ev = run->ev;
    const ek_cache_need need = {.dims = *ek_model_dims(ev->model),
                                .dtype = ek_model_storage(ev->model),
                                .cap = (int32_t)(run->n_prompt + grow + SOLO_STEPS),
                                .n_lanes = ev->grid.n_measures,
                                .measures = ev->grid.measure};
    const int64_t start = now_ns();

    EK_TRY(ek_cache_open(&run->prompt, &need, ev->dev, err));
    EK_TRY(ek_engine_read(ev->engine, &run->prompt, run->tok.id, (int)run->n_prompt, run->n_prompt,
                          logits, NULL, err));
    run->prefill_ns = now_ns() - start;
    return EK_OK;
}

/* The attention that n tokens behind the prompt pay to its entries; late: without the first of
 * them, for policies that cut one step later. */
static ek_code look_ahead(sample_run *run, const int32_t *tok, int n, int late, ek_err *err)
{
    const ek_dims *d = &run->prompt.dims;
    const size_t floats = (size_t)run->prompt.layer_at[d->n_layers] * (size_t)d->group;
    ek_future f = {.n_sets = 3, .first = {late, late, 0}, .last = {late + 31, late + 127, n - 1}};

    for (int s = 0; s < 3; s++) {
        f.sum[s] = run->future[late][s] = malloc(sizeof(float) * floats);
        if (!f.sum[s])
            return EK_FAIL(err, EK_ENOMEM, "no memory for %zu future sums", floats);
    }
    return ek_engine_future(run->ev->engine, &run->prompt, tok, n, &f, err);
}

/* Oracles read the true future: mean attention of all n later queries. */
static void tell_oracles(sample_run *run, const float *sum, int n)
{
    const ek_dims *d = &run->prompt.dims;
    const int64_t entries = run->prompt.layer_at[d->n_layers];

    for (int i = 0; i < run->prompt.n_lanes; i++) {
        ek_lane *lane = &run->prompt.lane[i];

        if (lane->measure->signal->source != EK_FROM_FUTURE)
            continue;
        for (int64_t e = 0; e < entries * d->group; e++)
            lane->carry[e] = sum[e] / (float)n;
    }
}

static ek_code open_rows(sample_run *run, int64_t grow, int flags, ek_err *err)
{
    ek_eval *ev = run->ev;

    /* The full cache comes last: it takes over the prompt's cache instead of copying it. */
    for (int c = ev->grid.n_cells - 1; c >= 0; c--) {
        const ek_cell *cell = &ev->grid.cell[c];
        const ek_policy *policy = cell->full ? NULL : &cell->policy;

        if (ek_row_open(&ev->row[c], ev->engine, &run->prompt, policy, run->n_prompt,
                        (int)grow + SOLO_STEPS, cell->full ? EK_ROW_TAKE : flags, err) != EK_OK)
            return ek_err_in(err, "%s", cell->spec);
        ev->order[c] = &ev->row[c];
    }
    return EK_OK;
}

/* Mean over layers and heads of what the row's cut lost of a future; the row's survivors are known
 * by their positions, which in the prompt's uncut cache are slots. */
static ek_code future_loss(const sample_run *run, const ek_cache *row, const float *future,
                           ek_future_loss *out, ek_err *err)
{
    const ek_cache *full = &run->ev->row[0].cache;
    const ek_dims *d = &full->dims;
    const int32_t n = (int32_t)run->n_prompt;
    int32_t *kept = malloc(sizeof *kept * 2 * (size_t)n);
    double missed = 0, recall = 0;

    if (!kept)
        return EK_FAIL(err, EK_ENOMEM, "no memory for %d slots", n);
    for (int l = 0; l < d->n_layers; l++)
        for (int h = 0; h < d->n_heads; h++) {
            const int i = l * d->n_heads + h;
            const int32_t *pos = row->pos + row->layer_at[l] + row->first[i];
            const int64_t at = (full->layer_at[l] + full->first[i]) * d->group;
            int32_t n_kept = 0;

            for (; n_kept < row->n[i] && pos[n_kept] < n; n_kept++)
                kept[n_kept] = pos[n_kept];
            const ek_future_loss loss =
                ek_future_head(future + at, d->group, n, kept, n_kept, kept + n);

            missed += loss.missed;
            recall += loss.recall;
        }
    out->missed = missed / (d->n_layers * d->n_heads);
    out->recall = recall / (d->n_layers * d->n_heads);
    free(kept);
    return EK_OK;
}

static void add_value(ek_record *r, const char *name, double value)
{
    if (r->row.n_values < EK_MAX_VALUES)
        r->value[r->row.n_values++] = (ek_named){name, value};
}

/* The columns every record has. */
static void fill_record(sample_run *run, const ek_sample *s, int c, ek_record *r)
{
    const ek_row *row = &run->ev->row[c];
    const ek_cell *cell = &run->ev->grid.cell[c];
    const double steps = row->steps_counted > 0 ? (double)row->steps_counted : 1;

    r->row.cell = cell->id;
    r->row.doc_id = s->doc_id;
    r->row.cluster = s->cluster;
    ek_hash128(r->prompt_hash, run->tok.id, sizeof *run->tok.id * (size_t)run->tok.n);
    r->row.prompt_hash = r->prompt_hash;
    r->row.n_original = r->row.n_prompt = run->tok.n;
    /* Heads that share a budget were each asked what their quota says. */
    r->row.kept_asked =
        cell->policy.method.budget == EK_SHARE_UNIFORM ? row->kept_asked : row->kept_max;
    r->row.kept_min = row->kept_min;
    r->row.kept_max = row->kept_max;
    r->row.kept_mean = row->kept_sum / steps;
    r->row.keep_mean = row->seen_sum > 0 ? row->kept_sum / row->seen_sum : NAN;
    r->row.kv_bytes_mean = (int64_t)((double)row->bytes_sum / steps);
    r->row.kv_bytes_peak = row->bytes_peak;
    r->row.state_bytes = row->state_bytes;
    r->row.prefill_ns = run->prefill_ns;
    r->row.score_ns = row->score_ns;
    r->row.values = r->value;
}

/* Time each cell alone for a few steps; what a row does inside a lockstep has no time of its own.
 * A sample that fills the model's context leaves no room for it. */
static ek_code time_alone(sample_run *run, int32_t token, ek_record *record, ek_err *err)
{
    ek_eval *ev = run->ev;
    const int n_vocab = ek_model_dims(ev->model)->n_vocab;

    for (int c = 0; c < ev->grid.n_cells; c++) {
        ek_row *row = &ev->row[c];
        int64_t start = 0;

        if (row->cache.next_pos + SOLO_STEPS > ek_model_dims(ev->model)->n_ctx)
            continue;
        row->feed = &token;
        row->n_feed = row->n_logits = 1;
        row->logits = ev->logits + (size_t)c * (size_t)n_vocab;
        row->counts = 1;
        for (int t = 0; t < SOLO_STEPS; t++) {
            if (t == 1)
                start = now_ns(); /* the first step warms the row's memory */
            EK_TRY(ek_engine_step(ev->engine, &row, 1, err));
        }
        record[c].row.itl_ns = (now_ns() - start) / (SOLO_STEPS - 1);
    }
    return EK_OK;
}

/* ---- a known continuation is fed ---- */

static void score_step(ek_eval *ev, ek_fidelity *f, const float **base, const float **q, ek_kl *kl,
                       int32_t next)
{
    const int n = ev->grid.n_cells, n_vocab = ek_model_dims(ev->model)->n_vocab;

    for (int c = 0; c < n; c++) {
        base[c] = ev->logits;
        q[c] = ev->logits + (size_t)c * (size_t)n_vocab;
    }
    ev->dev->ops.kl(ev->dev, kl, base, q, n, n_vocab);
    for (int c = 0; c < n; c++)
        ek_fidelity_add(&f[c], &kl[c], base[0][next], q[c][next]);
}

static int cuts_at_first_step(const ek_cell *cell)
{
    return !cell->full && cell->policy.method.when.first_step;
}

/* FMM and recall of every cell that was cut at this moment. */
static ek_code diagnose(sample_run *run, ek_record *record, int late, ek_err *err)
{
    static const char *const names[2] = {"FMM32", "FMM128"};

    for (int c = 1; c < run->ev->grid.n_cells; c++) {
        const ek_cache *row = &run->ev->row[c].cache;
        ek_future_loss loss;

        if (cuts_at_first_step(&run->ev->grid.cell[c]) != late)
            continue;
        for (int s = 0; s < 2; s++) {
            EK_TRY(future_loss(run, row, run->future[late][s], &loss, err));
            add_value(&record[c], names[s], loss.missed);
        }
        EK_TRY(future_loss(run, row, run->future[0][2], &loss, err));
        add_value(&record[c], "recall", loss.recall);
    }
    return EK_OK;
}

static ek_code force_tokens(sample_run *run, int n, ek_fidelity *f, ek_record *record, ek_err *err)
{
    ek_eval *ev = run->ev;
    const int n_cells = ev->grid.n_cells, n_vocab = ek_model_dims(ev->model)->n_vocab;
    const float **rows = malloc(sizeof *rows * 2 * (size_t)n_cells);
    ek_kl *kl = malloc(sizeof *kl * (size_t)n_cells);
    const int32_t *next = run->tok.id + run->n_prompt;
    ek_code code = rows && kl ? EK_OK : EK_FAIL(err, EK_ENOMEM, "no memory for %d rows", n_cells);

    for (int t = 0; code == EK_OK && t < n - 1; t++) {
        for (int c = 0; c < n_cells; c++) {
            ev->row[c].feed = next + t;
            ev->row[c].n_feed = ev->row[c].n_logits = 1;
            ev->row[c].logits = ev->logits + (size_t)c * (size_t)n_vocab;
            ev->row[c].counts = 1;
        }
        code = ek_engine_step(ev->engine, ev->order, n_cells, err);
        if (code == EK_OK)
            score_step(ev, f, rows, rows + n_cells, kl, next[t + 1]);
        if (code == EK_OK && t == 0 && run->future[1][0])
            code = diagnose(run, record, 1, err);
    }
    free(rows);
    free(kl);
    return code;
}

static void record_forced(sample_run *run, const ek_sample *s, const ek_fidelity *f,
                          ek_record *record)
{
    ek_number number[EK_FIDELITY_NUMBERS];

    for (int c = 0; c < run->ev->grid.n_cells; c++) {
        const int n = ek_fidelity_numbers(&f[c], number);

        fill_record(run, s, c, &record[c]);
        record[c].row.n_gen = f[c].n;
        record[c].row.stop_reason = "forced";
        for (int i = 0; i < n; i++)
            if (!isnan(number[i].value))
                add_value(&record[c], number[i].name, number[i].value);
    }
}

static ek_code run_forced(sample_run *run, const ek_sample *s, int timed, ek_fidelity *f,
                          ek_record *record, ek_err *err)
{
    ek_eval *ev = run->ev;
    const int n = s->forced_tokens;
    int late = 0;

    for (int c = 0; c < ev->grid.n_cells; c++) {
        EK_TRY(ek_fidelity_open(&f[c], n, err));
        late |= cuts_at_first_step(&ev->grid.cell[c]);
    }
    EK_TRY(
        ek_tokenizer_encode(ev->tok, s->context, strlen(s->context), EK_TOK_LOSSY, &run->tok, err));
    if (run->tok.n < run->n_prompt + n)
        return EK_FAIL(err, EK_EBROKEN, "found %lld tokens, expected at least %lld",
                       (long long)run->tok.n, (long long)(run->n_prompt + n));
    run->tok.n = run->n_prompt + n;
    EK_TRY(read_prompt(run, n, NULL, err));
    EK_TRY(look_ahead(run, run->tok.id + run->n_prompt, n, 0, err));
    tell_oracles(run, run->future[0][2], n);
    if (late)
        EK_TRY(look_ahead(run, run->tok.id + run->n_prompt, n, 1, err));
    EK_TRY(open_rows(run, n, 0, err));
    EK_TRY(diagnose(run, record, 0, err));
    EK_TRY(force_tokens(run, n, f, record, err));
    record_forced(run, s, f, record);
    return timed ? time_alone(run, run->tok.id[run->tok.n - 1], record, err) : EK_OK;
}

ek_code ek_eval_forced(ek_eval *ev, const ek_sample *s, int timed, ek_record *record, ek_err *err)
{
    const int n_cells = ev->grid.n_cells;
    sample_run run = {.ev = ev, .n_prompt = s->prompt_tokens};
    ek_fidelity *f = calloc((size_t)n_cells, sizeof *f);
    ek_code code = f ? run_forced(&run, s, timed, f, record, err)
                     : EK_FAIL(err, EK_ENOMEM, "no memory for %d cells", n_cells);

    for (int c = 0; f && c < n_cells; c++)
        ek_fidelity_close(&f[c]);
    free(f);
    close_run(&run);
    return code == EK_OK ? EK_OK : ek_err_in(err, "sample %s", s->doc_id);
}

/* ---- the model writes an answer ---- */

/* Tokenise the whole prompt; the cut comes before the first token of the question (or, with
 * query_aware, after the last token). */
static ek_code encode_prompt(sample_run *run, const ek_sample *s, int query_aware, ek_err *err)
{
    ek_eval *ev = run->ev;
    ek_template none;
    const ek_prompt prompt = {.context = s->context,
                              .question = s->question,
                              .context_size = strlen(s->context),
                              .question_size = strlen(s->question)};
    int64_t question = 0;

    ek_template_none(&none);
    EK_TRY(ek_template_encode(s->chat ? &ev->chat : &none, ev->tok, &prompt, EK_TOK_LOSSY,
                              &run->tok, &question, err));
    EK_TRY(ek_tokenizer_encode(ev->tok, s->answer_prefix, strlen(s->answer_prefix), EK_TOK_LOSSY,
                               &run->tok, err));
    run->n_prompt = query_aware ? run->tok.n : question;
    /* The context ends where the question's first token begins. */
    if (question < run->tok.n)
        run->needle = run->tok.at[question] - (int64_t)(prompt.context_size - s->needle);
    if (run->n_prompt < 1 || (!query_aware && question >= run->tok.n))
        return EK_FAIL(err, EK_EINPUT, "the prompt has no %s",
                       question < 1 ? "context" : "question");
    return EK_OK;
}

/* What an oracle may know: the rest of the prompt and the right answer. */
static ek_code tell_answer(sample_run *run, const ek_sample *s, ek_err *err)
{
    ek_tokens later = {0};
    ek_code code = EK_OK;
    int wanted = 0;

    for (int i = 0; i < run->prompt.n_lanes; i++)
        wanted |= run->prompt.lane[i].measure->signal->source == EK_FROM_FUTURE;
    if (!wanted || s->n_references == 0)
        return EK_OK;
    code = ek_tokenizer_encode(run->ev->tok, s->references[0], strlen(s->references[0]),
                               EK_TOK_LOSSY, &later, err);
    const int64_t rest = run->tok.n - run->n_prompt, n = rest + later.n;
    int32_t *all = malloc(sizeof *all * (size_t)(n > 0 ? n : 1));

    if (code == EK_OK && !all)
        code = EK_FAIL(err, EK_ENOMEM, "no memory for %lld tokens", (long long)n);
    if (code == EK_OK) {
        memcpy(all, run->tok.id + run->n_prompt, sizeof *all * (size_t)rest);
        memcpy(all + rest, later.id, sizeof *all * (size_t)later.n);
        code = look_ahead(run, all, (int)n, 0, err);
    }
    if (code == EK_OK)
        tell_oracles(run, run->future[0][2], (int)n);
    free(all);
    ek_tokens_clear(&later);
    return code;
}

typedef struct answer {
    int32_t *token; /* (max_new_tokens) */
    int n;
    const char *stop; /* NULL while it goes on */
    ek_text text;
} answer;

/* Take the row's next greedy token; the answer ends at an end token, a newline or its length. */
static ek_code take_token(const ek_eval *ev, answer *a, const float *logits, int max, ek_err *err)
{
    const int32_t next = ek_argmax(logits, ek_model_dims(ev->model)->n_vocab);
    const size_t before = a->text.size;

    if (ek_tokenizer_is_end(ev->tok, next)) {
        a->stop = "eos";
        return EK_OK;
    }
    a->token[a->n++] = next;
    EK_TRY(ek_tokenizer_decode(ev->tok, &next, 1, 1, &a->text, err));
    /* A newline ends the answer once there is one. */
    for (size_t i = before; i < a->text.size; i++)
        if (a->text.data[i] == '\n' && strspn(a->text.data, " \n\t\r") < i) {
            a->stop = "stop";
            return EK_OK;
        }
    if (a->n == max)
        a->stop = "length";
    return EK_OK;
}

static ek_code answer_in_lockstep(sample_run *run, const ek_sample *s, answer *a, ek_err *err)
{
    ek_eval *ev = run->ev;
    const int n_cells = ev->grid.n_cells, n_vocab = ek_model_dims(ev->model)->n_vocab;
    const int n_tail = (int)(run->tok.n - run->n_prompt);

    for (int c = 0; n_tail > 0 && c < n_cells; c++) {
        ev->row[c].feed = run->tok.id + run->n_prompt;
        ev->row[c].n_feed = n_tail;
        ev->row[c].n_logits = 1;
        ev->row[c].logits = ev->logits + (size_t)c * (size_t)n_vocab;
        ev->row[c].counts = 0;
    }
    if (n_tail > 0)
        EK_TRY(ek_engine_step(ev->engine, ev->order, n_cells, err));
    for (;;) {
        int live = 0;

        for (int c = 0; c < n_cells; c++) {
            ek_row *row = &ev->row[c];

            if (!a[c].stop)
                EK_TRY(take_token(ev, &a[c], ev->logits + (size_t)c * (size_t)n_vocab,
                                  s->max_new_tokens, err));
            row->n_feed = a[c].stop ? 0 : 1;
            row->feed = a[c].n > 0 ? &a[c].token[a[c].n - 1] : NULL;
            row->n_logits = 1;
            row->logits = ev->logits + (size_t)c * (size_t)n_vocab;
            row->counts = 1;
            live += row->n_feed;
        }
        if (live == 0)
            return EK_OK;
        EK_TRY(ek_engine_step(ev->engine, ev->order, n_cells, err));
    }
}

/* Of the entries of what is asked for, the share that a row holds: mean over layers and heads.  NAN
 * if the sample does not say where it stands. */
static double needle_kept(const sample_run *run, const ek_sample *s, const ek_cache *row)
{
    const ek_dims *d = &row->dims;
    const int64_t first = ek_tokens_from(&run->tok, run->needle);
    const int64_t last = ek_tokens_from(&run->tok, run->needle + (int64_t)s->needle_size);
    int64_t kept = 0;

    if (s->needle_size == 0 || last <= first)
        return NAN;
    for (int l = 0; l < d->n_layers; l++)
        for (int h = 0; h < d->n_heads; h++) {
            const int i = l * d->n_heads + h;
            const int32_t *pos = row->pos + row->layer_at[l] + row->first[i];

            for (int32_t e = 0; e < row->n[i]; e++)
                kept += pos[e] >= first && pos[e] < last;
        }
    return (double)kept / (double)((last - first) * d->n_layers * d->n_heads);
}

static ek_code run_answer(sample_run *run, const ek_task *task, const ek_sample *s, int timed,
                          answer *a, ek_record *record, ek_err *err)
{
    ek_eval *ev = run->ev;
    const int n_cells = ev->grid.n_cells, aware = task->config->query_aware;
    const int n_vocab = ek_model_dims(ev->model)->n_vocab;

    for (int c = 0; c < n_cells; c++)
        if (!(a[c].token = malloc(sizeof(int32_t) * (size_t)s->max_new_tokens)))
            return EK_FAIL(err, EK_ENOMEM, "no memory for an answer");
    EK_TRY(encode_prompt(run, s, aware, err));
    const int64_t grow = run->tok.n - run->n_prompt + s->max_new_tokens;

    EK_TRY(read_prompt(run, grow + 64, aware ? ev->logits : NULL, err));
    EK_TRY(tell_answer(run, s, err));
    EK_TRY(open_rows(run, grow, aware ? 0 : EK_ROW_QUESTION_LATER, err));
    if (aware) /* the first token comes from the full cache's logits, for every row */
        for (int c = 1; c < n_cells; c++)
            memcpy(ev->logits + (size_t)c * (size_t)n_vocab, ev->logits,
                   sizeof(float) * (size_t)n_vocab);
    EK_TRY(answer_in_lockstep(run, s, a, err));
    for (int c = 0; c < n_cells; c++) {
        ek_record *r = &record[c];
        ek_grade grade = {0};

        fill_record(run, s, c, r);
        r->row.n_gen = a[c].n;
        r->row.stop_reason = a[c].stop;
        r->prediction = a[c].text.data ? a[c].text.data : calloc(1, 1);
        a[c].text.data = NULL;
        if (!r->prediction)
            return EK_FAIL(err, EK_ENOMEM, "no memory for an answer");
        ek_task_grade(&grade, task, s, r->prediction);
        memcpy(r->parsed, grade.parsed, sizeof r->parsed);
        r->row.prediction = r->prediction;
        r->row.parsed = r->parsed[0] ? r->parsed : NULL;
        r->row.reference = s->n_references > 0 ? s->references[0] : NULL;
        r->row.flag = grade.flag && grade.flag[0] ? grade.flag : NULL;
        r->row.score = grade.score;
        if (s->depth >= 0)
            add_value(r, "depth", s->depth);
        const double needle = needle_kept(run, s, &ev->row[c].cache);
        if (!isnan(needle))
            add_value(r, "needle kept", needle);
    }
    return timed ? time_alone(run, run->tok.id[run->tok.n - 1], record, err) : EK_OK;
}

ek_code ek_eval_answer(ek_eval *ev, const ek_task *task, const ek_sample *s, int timed,
                       ek_record *record, ek_err *err)
{
    const int n_cells = ev->grid.n_cells;
    sample_run run = {.ev = ev};
    answer *a = calloc((size_t)n_cells, sizeof *a);
    ek_code code = a ? run_answer(&run, task, s, timed, a, record, err)
                     : EK_FAIL(err, EK_ENOMEM, "no memory for %d cells", n_cells);

    for (int c = 0; a && c < n_cells; c++) {
        free(a[c].token);
        ek_text_clear(&a[c].text);
    }
    free(a);
    close_run(&run);
    return code == EK_OK ? EK_OK : ek_err_in(err, "sample %s", s->doc_id);
}
