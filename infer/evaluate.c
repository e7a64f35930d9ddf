/* infer/evaluate.c - see evaluate.h. */
#include "infer/evaluate.h"

#include "core/file.h"
#include "core/progress.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A base perplexity above this is no language: the file, the template or the kernel is wrong. */
#define EK_PPL_CEILING 300.0
enum { FLOOR_AFTER = 4 }; /* samples before the full cache's score is judged */

static const char *const storage_names[] = {"bf16", "f32", NULL};
static const char *const decode_names[] = {"row", "grow", "hold", NULL};

const ek_eval_config ek_eval_defaults = {.seed = 42, .decode = EK_DECODE_GROW};

const ek_field ek_eval_fields[] = {
    EK_STRING(ek_eval_config, model, "the model's GGUF file"),
    EK_STRING(ek_eval_config, results, "the database; made if absent"),
    EK_INT(ek_eval_config, seed, 0, (double)(1LL << 52),
           "of random eviction; samples have their task's own seed"),
    EK_INT(ek_eval_config, limit, 0, 1000000, "samples per task; 0: all"),
    EK_ENUM(ek_eval_config, storage, storage_names, "of weights and cache"),
    EK_ENUM(ek_eval_config, decode, decode_names,
            "plans after the first: as published (row), none (grow), at every step (hold)"),
    EK_LIST(ek_eval_config, methods, n_methods, ek_method_set, ek_method_fields,
            &ek_method_set_defaults, 1, 256, "what is compared; full is always there"),
    EK_LIST(ek_eval_config, budgets, n_budgets, ek_budget_set, ek_budget_fields, NULL, 1, 64,
            "how much stays: 0.25, {entries: 512}, {bytes: 8000000}"),
    EK_LIST(ek_eval_config, tasks, n_tasks, ek_task_config, ek_task_fields, &ek_task_defaults, 1,
            64, "on what"),
    EK_FIELD_END};

static ek_code check_config(const ek_eval_config *c, ek_err *err)
{
    if (!c->model)
        return EK_FAIL(err, EK_EASKED, "model: not given, expected the path of a GGUF file");
    if (!c->results)
        return EK_FAIL(err, EK_EASKED, "results: not given, expected the path of a database");
    EK_TRY(ek_store_name(c->results, err));
    if (c->n_methods == 0 || c->n_budgets == 0 || c->n_tasks == 0)
        return EK_FAIL(err, EK_EASKED, "%s: not given, expected a list",
                       c->n_methods == 0   ? "methods"
                       : c->n_budgets == 0 ? "budgets"
                                           : "tasks");
    return EK_OK;
}

/* ---- tasks ---- */

static int count_tokens(void *ctx, const char *text, size_t n)
{
    ek_eval *ev = ctx;
    ek_tokens tok = {0};
    ek_err err;
    const int64_t count =
        ek_tokenizer_encode(ev->tok, text, n, EK_TOK_LOSSY, &tok, &err) == EK_OK ? tok.n : -1;

    ek_tokens_clear(&tok);
    return count > INT32_MAX ? -1 : (int)count;
}

/* Tokens of the longest sample, with what is fed or answered. */
static int64_t longest(const ek_eval_task *t)
{
    const ek_task_config *c = &t->config;
    int64_t most = t->task->cls->grade ? 0 : c->prompt + c->continuation;

    for (int i = 0; t->task->cls->grade && i < c->n_lengths; i++)
        if (c->lengths[i] > most)
            most = c->lengths[i];
    return most;
}

/* The suite of a task. */
static const char *label_of(const ek_task_config *c)
{
    return c->label != NULL ? c->label : ek_task_names[c->name];
}

/* Samples of two such tasks would have the same names in the same cells. */
static ek_code refuse_twins(const ek_eval *ev, int i, ek_err *err)
{
    const ek_task_config *a = &ev->task[i].config;

    for (int j = 0; j < i; j++) {
        const ek_task_config *b = &ev->task[j].config;
        const int alike = a->name == b->name && a->prompt == b->prompt &&
                          a->query_aware == b->query_aware && a->n_lengths == b->n_lengths &&
                          (a->n_lengths != 1 || a->lengths[0] == b->lengths[0]) &&
                          strcmp(label_of(a), label_of(b)) == 0;

        if (alike)
            return EK_FAIL(err, EK_EASKED,
                           "tasks: numbers %d and %d are both %s of one length and question; give "
                           "one of them a label",
                           j + 1, i + 1, ek_task_names[a->name]);
    }
    return EK_OK;
}

static ek_code open_tasks(ek_eval *ev, ek_err *err)
{
    ek_eval_task *t = calloc((size_t)ev->config->n_tasks, sizeof *t);

    if (!t)
        return EK_FAIL(err, EK_ENOMEM, "no memory for %d tasks", ev->config->n_tasks);
    ev->task = t;
    for (int i = 0; i < ev->config->n_tasks; i++) {
        const ek_prompt empty = {.context = "", .question = ""};
        ek_tokens wrap = {0};
        int64_t at = 0;

        EK_TRY(ek_template_encode(&ev->chat, ev->tok, &empty, 0, &wrap, &at, err));
        const ek_counter counter = {.count = count_tokens, .ctx = ev, .wrap = (int)wrap.n};

        ek_tokens_clear(&wrap);
        t[i].config = ev->config->tasks[i];
        t[i].opened = 1;
        if (t[i].config.seed < 0)
            t[i].config.seed = ev->config->seed;
        EK_TRY(ek_task_open(&t[i].task, &t[i].config, &counter, err));
        EK_TRY(refuse_twins(ev, i, err));
        if (longest(&t[i]) > ek_model_dims(ev->model)->n_ctx)
            return EK_FAIL(err, EK_EASKED,
                           "task %s: found samples of %lld tokens, expected at most %d, the "
                           "model's context",
                           t[i].task->cls->name, (long long)longest(&t[i]),
                           ek_model_dims(ev->model)->n_ctx);
        t[i].n = t[i].task->n;
        if (ev->config->limit > 0 && t[i].n > ev->config->limit)
            t[i].n = ev->config->limit;
    }
    return EK_OK;
}

/* What a task filled in is the copy's own; the rest is borrowed from the config. */
static void free_defaults(ek_task_config *own, const ek_task_config *given)
{
    if (own->text != given->text)
        free(own->text);
    if (own->needle_text != given->needle_text)
        free(own->needle_text);
    if (own->lengths != given->lengths)
        free(own->lengths);
    if (own->depths != given->depths)
        free(own->depths);
}

static void close_tasks(ek_eval *ev)
{
    for (int i = 0; ev->task && i < ev->config->n_tasks; i++) {
        ek_task_close(ev->task[i].task);
        if (ev->task[i].opened)
            free_defaults(&ev->task[i].config, &ev->config->tasks[i]);
        free(ev->task[i].cell);
    }
    free(ev->task);
}

ek_code ek_eval_open(ek_eval *ev, const ek_eval_config *config, const char *config_text,
                     ek_device *dev, ek_err *err)
{
    char weights[33];
    ek_hasher *h;

    memset(ev, 0, sizeof *ev);
    ev->config = config;
    ev->dev = dev;
    EK_CHECK(check_config(config, err));
    EK_CHECK(ek_model_open(&ev->model, config->model, dev, (ek_dtype)config->storage, err));
    EK_CHECK(ek_tokenizer_open(&ev->tok, ek_model_gguf(ev->model), err));
    if (ek_template_open(&ev->chat, ek_model_gguf(ev->model), err) != EK_OK)
        ek_template_none(&ev->chat); /* a base model: tasks with a chat refuse below */
    EK_CHECK(ek_engine_open(&ev->engine, ev->model, dev, err));
    EK_CHECK(ek_grid_open(&ev->grid, config->methods, config->n_methods, config->budgets,
                          config->n_budgets, (ek_decode)config->decode, config->seed, ev->model,
                          ek_tokenizer_hash(ev->tok), dev, err));
    const size_t cells = (size_t)ev->grid.n_cells;

    ev->logits = malloc(sizeof(float) * cells * (size_t)ek_model_dims(ev->model)->n_vocab);
    ev->row = calloc(cells, sizeof *ev->row);
    ev->order = calloc(cells, sizeof *ev->order);
    h = ek_hasher_open();
    if (!ev->logits || !ev->row || !ev->order || !h) {
        if (h)
            ek_hasher_close(h, ev->run);
        EK_CHECK(EK_FAIL(err, EK_ENOMEM, "no memory for %zu cells", cells));
    }
    ek_grid_hash(&ev->grid, weights);
    ek_hasher_add(h, config_text, strlen(config_text));
    ek_hasher_add(h, ek_model_hash(ev->model), 32);
    ek_hasher_add(h, weights, 32);
    ek_hasher_close(h, ev->run);
    EK_CHECK(open_tasks(ev, err));
    return EK_OK;
fail:
    ek_eval_close(ev);
    return err->code;
}

void ek_eval_close(ek_eval *ev)
{
    close_tasks(ev);
    free(ev->logits);
    free(ev->row);
    free(ev->order);
    ek_grid_close(&ev->grid);
    ek_engine_close(ev->engine);
    ek_template_clear(&ev->chat);
    ek_tokenizer_close(ev->tok);
    ek_model_close(ev->model);
    memset(ev, 0, sizeof *ev);
}

/* ---- the database ---- */

static ek_code store_cells(ek_eval *ev, ek_store *store, ek_eval_task *t, ek_err *err)
{
    const int n_cells = ev->grid.n_cells;

    if (!(t->cell = calloc((size_t)n_cells, sizeof *t->cell)))
        return EK_FAIL(err, EK_ENOMEM, "no memory for %d cells", n_cells);
    for (int c = 0; c < n_cells; c++) {
        const ek_cell *cell = &ev->grid.cell[c];
        const ek_budget *b = &cell->policy.budget;
        const ek_weights *weights = ev->grid.weights[cell->method];
        ek_cell_row row = ek_cell_none();

        row.run = ev->run;
        row.suite = label_of(&t->config);
        row.task = t->task->cls->name;
        row.variant = decode_names[ev->config->decode];
        row.length = t->config.prompt > 0       ? t->config.prompt
                     : t->config.n_lengths == 1 ? t->config.lengths[0]
                                                : 0;
        row.method = cell->label;
        row.policy = cell->spec;
        row.learned = weights != NULL || ev->grid.maps[cell->method].block != NULL;
        row.query_aware = t->config.query_aware;
        row.seed = ev->config->seed;
        if (!cell->full) {
            row.keep = cell->keep;
            row.keep_of = isnan(cell->keep) ? NULL : b->of_seen ? "seen" : "prompt";
            row.entries = b->entries > 0 ? b->entries : EK_NONE;
            row.bytes = b->bytes > 0 ? b->bytes : EK_NONE;
            row.base = t->cell[0];
        }
        EK_TRY(ek_store_cell(store, &row, &t->cell[c], err));
        if (weights != NULL)
            EK_TRY(ek_store_cell_weights(store, t->cell[c], ek_weights_hash(weights),
                                         ek_weights_trained(weights), err));
        EK_TRY(ek_store_cell_status(store, t->cell[c], "running", err));
    }
    return EK_OK;
}

static ek_code cells_are(ek_eval *ev, ek_store *store, const ek_eval_task *t, const char *status,
                         ek_err *err)
{
    for (int c = 0; c < ev->grid.n_cells; c++)
        EK_TRY(ek_store_cell_status(store, t->cell[c], status, err));
    return EK_OK;
}

/* ---- samples ---- */

/* Full cache is the first record: is the baseline itself sound? */
static ek_code judge_baseline(ek_eval_task *t, const ek_record *full, ek_err *err)
{
    const ek_task_class *cls = t->task->cls;

    t->full_n++;
    if (!cls->grade) {
        for (int i = 0; i < full->row.n_values; i++)
            if (strcmp(full->value[i].name, "PPL") == 0 && !(full->value[i].value < EK_PPL_CEILING))
                return EK_FAIL(err, EK_EBROKEN,
                               "%s: the baseline itself is broken: full cache has perplexity %.4g, "
                               "expected below %g",
                               cls->name, full->value[i].value, EK_PPL_CEILING);
        return EK_OK;
    }
    t->full_sum += full->row.score;
    if (t->full_n >= FLOOR_AFTER && t->full_sum / (double)t->full_n < cls->floor)
        return EK_FAIL(
            err, EK_EBROKEN,
            "%s: the baseline itself is broken: full cache scores %.3g over %lld samples, "
            "expected at least %g",
            cls->name, t->full_sum / (double)t->full_n, (long long)t->full_n, cls->floor);
    return EK_OK;
}

/* kept == asked in what is about to be stored, whoever made the mistake. */
static ek_code check_record(const ek_eval *ev, const ek_record *record, ek_err *err)
{
    for (int c = 1; c < ev->grid.n_cells; c++)
        if (record[c].row.kept_max > record[c].row.kept_asked)
            return EK_FAIL(err, EK_EBROKEN,
                           "sample %s: %s: kept %lld entries in a head, asked %lld",
                           record[c].row.doc_id, ev->grid.cell[c].spec,
                           (long long)record[c].row.kept_max, (long long)record[c].row.kept_asked);
    return EK_OK;
}

static ek_code run_sample(ek_eval *ev, ek_store *store, ek_eval_task *t, int64_t i,
                          ek_record *record, ek_err *err)
{
    const int n_cells = ev->grid.n_cells;
    ek_sample_row *rows = calloc((size_t)n_cells, sizeof *rows);
    ek_sample s = {0};

    if (!rows)
        return EK_FAIL(err, EK_ENOMEM, "no memory for %d rows", n_cells);
    memset(record, 0, sizeof *record * (size_t)n_cells);
    for (int c = 0; c < n_cells; c++) {
        ev->grid.cell[c].id = t->cell[c];
        record[c].row = ek_sample_none();
    }
    EK_CHECK(ek_task_sample(&s, t->task, i, err));
    EK_CHECK(s.kind == EK_SAMPLE_FORCED ? ek_eval_forced(ev, &s, i == 0, record, err)
                                        : ek_eval_answer(ev, t->task, &s, i == 0, record, err));
    EK_CHECK(check_record(ev, record, err));
    EK_CHECK(judge_baseline(t, &record[0], err));
    for (int c = 0; c < n_cells; c++)
        rows[c] = record[c].row;
    EK_CHECK(ek_store_samples(store, rows, n_cells, err));
    err->code = EK_OK;
fail:
    for (int c = 0; c < n_cells; c++)
        ek_record_clear(&record[c]);
    ek_sample_clear(&s);
    free(rows);
    return err->code;
}

/* A sample counts as done when its last cell is in; all cells of one are written together. */
static ek_code is_done(ek_store *store, const ek_eval *ev, const ek_eval_task *t, int64_t i,
                       int *done, ek_err *err)
{
    ek_sample s = {0};

    EK_TRY(ek_task_sample(&s, t->task, i, err));
    const ek_code code =
        ek_store_has_sample(store, t->cell[ev->grid.n_cells - 1], s.doc_id, 0, done, err);

    ek_sample_clear(&s);
    return code;
}

static ek_code run_task(ek_eval *ev, ek_store *store, ek_eval_task *t, ek_err *err)
{
    ek_record *record = calloc((size_t)ev->grid.n_cells, sizeof *record);
    ek_progress p;
    ek_code code = EK_OK;

    if (!record)
        return EK_FAIL(err, EK_ENOMEM, "no memory for %d records", ev->grid.n_cells);
    ek_progress_open(&p, t->task->cls->name, "samples", t->n);
    for (int64_t i = 0; code == EK_OK && i < t->n; i++) {
        int done = 0;

        code = is_done(store, ev, t, i, &done, err);
        if (code == EK_OK && !done)
            code = run_sample(ev, store, t, i, record, err);
        else if (p.before == i)
            p.before = i + 1; /* stored by an earlier run */
        ek_progress_at(&p, i + 1, NULL);
        if (code == EK_OK && ek_stop_asked() && i + 1 < t->n)
            code = EK_FAIL(err, EK_ESTOPPED, "stopped after sample %lld of %lld of %s",
                           (long long)i + 1, (long long)t->n, t->task->cls->name);
    }
    ek_progress_close(&p);
    free(record);
    return code;
}

ek_code ek_eval_run(ek_eval *ev, ek_store *store, ek_err *err)
{
    const int n = ev->config->n_tasks;
    ek_eval_task *t = ev->task;
    ek_err later = {0};
    ek_code code = EK_OK;

    for (int i = 0; code == EK_OK && i < n; i++)
        code = store_cells(ev, store, &t[i], err);
    for (int i = 0; code == EK_OK && i < n; i++) {
        code = run_task(ev, store, &t[i], err);
        /* Whatever ended the task, its samples are stored: say how it stands. */
        if (code == EK_OK)
            code = cells_are(ev, store, &t[i], "done", err);
        else if (code != EK_ESTOPPED && cells_are(ev, store, &t[i], "failed", &later) != EK_OK)
            later.code = EK_OK;
        if (code == EK_OK && ek_stop_asked() && i + 1 < n)
            code = EK_FAIL(err, EK_ESTOPPED, "stopped after task %s", t[i].task->cls->name);
    }
    if (ek_store_rebuild_metrics(store, ev->run, &later) != EK_OK && code == EK_OK) {
        *err = later;
        code = later.code;
    }
    return code;
}

/* ---- what would run ---- */

/* Seconds per prompt token, and per lockstep of all cells, from a few real passes. */
static ek_code measure_speed(ek_eval *ev, double *per_token, double *per_step, ek_err *err)
{
    enum { N = 256, STEPS = 3 };
    const int n = ev->grid.n_cells, n_vocab = ek_model_dims(ev->model)->n_vocab;
    const ek_cache_need need = {
        .dims = *ek_model_dims(ev->model), .dtype = ek_model_storage(ev->model), .cap = N + 8};
    int32_t tok[N];
    double start;
    ek_cache c = {0};

    for (int i = 0; i < N; i++)
        tok[i] = (int32_t)((i * 37 + 100) % n_vocab);
    EK_CHECK(ek_cache_open(&c, &need, ev->dev, err));
    EK_CHECK(ek_engine_read(ev->engine, &c, tok, N / 2, N, NULL, NULL, err)); /* warm */
    start = ek_now();
    EK_CHECK(ek_engine_read(ev->engine, &c, tok + N / 2, N / 2, N, NULL, NULL, err));
    *per_token = (ek_now() - start) / (N / 2);
    for (int r = 0; r < n; r++) {
        EK_CHECK(ek_row_open(&ev->row[r], ev->engine, &c, NULL, N, 8, 0, err));
        ev->order[r] = &ev->row[r];
        ev->row[r].feed = tok;
        ev->row[r].n_feed = ev->row[r].n_logits = ev->row[r].counts = 1;
        ev->row[r].logits = ev->logits + (size_t)r * (size_t)n_vocab;
    }
    start = ek_now();
    for (int i = 0; i < STEPS; i++)
        EK_CHECK(ek_engine_step(ev->engine, ev->order, n, err));
    *per_step = (ek_now() - start) / STEPS;
    err->code = EK_OK;
fail:
    for (int r = 0; r < n; r++)
        ek_row_close(&ev->row[r]);
    ek_cache_close(&c);
    return err->code;
}

static double kept_share(const ek_eval *ev, int64_t n)
{
    const ek_dims *d = ek_model_dims(ev->model);
    double sum = 0;

    for (int c = 0; c < ev->grid.n_cells; c++) {
        const ek_policy *p = &ev->grid.cell[c].policy;
        const ek_cost cost = ek_policy_cost(p, d, ek_model_storage(ev->model));

        sum += ev->grid.cell[c].full ? (double)n : ek_budget_entries(&p->budget, n, &cost);
    }
    return sum;
}

ek_code ek_eval_plan(ek_eval *ev, ek_eval_todo *todo, ek_err *err)
{
    const ek_dims *d = ek_model_dims(ev->model);
    const double token_bytes = (double)d->n_layers * d->n_heads *
                               (2.0 * d->head_dim * ek_dtype_size(ek_model_storage(ev->model)) + 4);
    const ek_eval_task *t = ev->task;
    double per_token = 0, per_step = 0;

    memset(todo, 0, sizeof *todo);
    EK_TRY(measure_speed(ev, &per_token, &per_step, err));
    for (int i = 0; i < ev->config->n_tasks; i++) {
        ek_sample s = {0};

        EK_TRY(ek_task_sample(&s, t[i].task, 0, err));
        const int forced = s.kind == EK_SAMPLE_FORCED;
        const int64_t prompt = forced ? s.prompt_tokens : s.length;
        const int64_t steps = forced ? s.forced_tokens : s.max_new_tokens;
        const double bytes = token_bytes * ((double)prompt + kept_share(ev, prompt) +
                                            (double)(steps * ev->grid.n_cells));

        todo->cells += ev->grid.n_cells;
        todo->samples += t[i].n;
        todo->tokens_prefill += t[i].n * (prompt + (forced ? steps : 0));
        todo->steps += t[i].n * steps;
        todo->tokens_decode += t[i].n * steps * ev->grid.n_cells;
        if ((int64_t)bytes > todo->bytes_cache)
            todo->bytes_cache = (int64_t)bytes;
        ek_sample_clear(&s);
    }
    todo->seconds = per_token * (double)todo->tokens_prefill + per_step * (double)todo->steps;
    return EK_OK;
}
