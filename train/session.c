/* train/session.c - open everything, collect or map the records, step, log, save, export. */
#include "train/session.h"

#include "core/file.h"
#include "core/progress.h"
#include "train/collect.h"
#include "train/export.h"
#include "train/log.h"
#include "train/trace.h"
#include "train/trainer.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ANSWERS = 12 }; /* retrieval texts whose answers' loss is measured */

static const char *const method_names[] = {"foresight", "kvpop"};

typedef struct session {
    const ek_train_set *set;
    const ek_train_options *options;
    ek_device *dev;
    ek_model *model;
    ek_tokenizer *tok;
    ek_data *data;
    ek_collect collect;
    ek_trace *trace;
    ek_trainer *trainer;
    ek_log log;
    char *text;  /* the resolved config */
    char id[33]; /* its hash: names the run */
    char target_hash[33];
    char *checkpoint, *weights_json, *weights_bin, *trace_path;
    ek_example *held;         /* (data.valid) trace: none: records held out, read once */
    int64_t n_train, n_valid; /* records */
} session;

static void say(const session *s, const char *fmt, ...) EK_PRINTF(2, 3);
static void say(const session *s, const char *fmt, ...)
{
    char line[512];
    va_list args;

    if (s->options->say == NULL)
        return;
    va_start(args, fmt);
    vsnprintf(line, sizeof line, fmt, args);
    va_end(args);
    s->options->say(s->options->ctx, line);
}

static void close_session(session *s)
{
    ek_trainer_close(s->trainer);
    ek_trace_close(s->trace);
    for (int64_t i = 0; s->held != NULL && i < s->set->data.valid; i++)
        ek_example_close(&s->held[i]);
    free(s->held);
    ek_collect_close(&s->collect);
    ek_data_close(s->data);
    ek_tokenizer_close(s->tok);
    ek_model_close(s->model);
    free(s->text);
    free(s->checkpoint);
    free(s->weights_json);
    free(s->weights_bin);
    free(s->trace_path);
}

static char *path_in(const char *dir, const char *name)
{
    const size_t room = strlen(dir) + strlen(name) + 2;
    char *path = malloc(room);

    if (path != NULL)
        snprintf(path, room, "%s/%s", dir, name);
    return path;
}

static ek_code check_set(const ek_train_set *set, ek_err *err)
{
    if (set->model == NULL)
        return EK_FAIL(err, EK_EASKED, "model: expected a GGUF file");
    if (set->out == NULL)
        return EK_FAIL(err, EK_EASKED, "out: expected a folder for the weights");
    if (set->data.cut > 0 && ek_losses[set->loss.kind].whole)
        return EK_FAIL(err, EK_EASKED,
                       "loss.kind %s ranks over time: data.cut: found %lld, "
                       "expected 0 (whole sequences)",
                       ek_losses[set->loss.kind].name, (long long)set->data.cut);
    if (set->data.cut > 0 && set->data.cut < set->sinks + set->recent + 64)
        return EK_FAIL(err, EK_EASKED, "data.cut: found %lld, expected at least %lld",
                       (long long)set->data.cut, (long long)(set->sinks + set->recent + 64));
    if (ek_losses[set->loss.kind].whole &&
        set->data.length < set->sinks + set->recent + set->keep + 128)
        return EK_FAIL(err, EK_EASKED,
                       "data.length: found %lld; %lld sinks, %lld recent and %lld kept leave no "
                       "position to train on, expected at least %lld",
                       (long long)set->data.length, (long long)set->sinks, (long long)set->recent,
                       (long long)set->keep,
                       (long long)(set->sinks + set->recent + set->keep + 128));
    return EK_OK;
}

static ek_scorer scorer_of(const session *s)
{
    const ek_train_set *set = s->set;
    const ek_scorer_class *cls = ek_learned[set->scorer.kind];
    const int64_t delay = set->scorer.delay < 0 ? set->recent : set->scorer.delay;

    return (ek_scorer){.cls = cls,
                       .dev = s->dev,
                       .dims = *ek_model_dims(s->model),
                       .set = {.hidden = set->scorer.hidden,
                               .age = set->scorer.age,
                               .rms = set->scorer.input == 1,
                               .sinks = set->sinks,
                               .recent = set->recent,
                               .delay = cls->learner->advance != NULL ? delay : 0,
                               .skip = set->scorer.skip,
                               .carried = set->scorer.carried}};
}

static ek_code open_session(session *s, ek_err *err)
{
    const ek_train_set *set = s->set;
    ek_collect_need need = {.dev = s->dev,
                            .set = set->data,
                            .target = set->target,
                            .sinks = (int)set->sinks,
                            .recent = (int)set->recent,
                            .whole = ek_learned[set->scorer.kind]->learner->n_state != NULL,
                            .carried = set->scorer.carried,
                            .seed = set->seed,
                            .answers = set->data.cut > 0 ? ANSWERS : 0};

    EK_TRY(check_set(set, err));
    s->text = ek_config_text(set, ek_train_fields);
    s->checkpoint = path_in(set->out, "checkpoint.safetensors");
    s->weights_json = path_in(set->out, "config.json");
    s->weights_bin = path_in(set->out, "model.safetensors");
    s->trace_path =
        set->trace_file != NULL ? strdup(set->trace_file) : path_in(set->out, "records.trace");
    if (s->text == NULL || s->checkpoint == NULL || s->weights_json == NULL ||
        s->weights_bin == NULL || s->trace_path == NULL)
        return EK_FAIL(err, EK_ENOMEM, "a training run");
    ek_hash128(s->id, s->text, strlen(s->text));
    EK_TRY(ek_model_open(&s->model, set->model, s->dev, EK_BF16, err));
    const ek_scorer scorer = scorer_of(s);
    if (ek_scorer_check(&scorer, err) != EK_OK)
        return ek_err_in(err, "scorer");
    EK_TRY(ek_tokenizer_open(&s->tok, ek_model_gguf(s->model), err));
    EK_TRY(ek_data_open(&s->data, &set->data, set->seed, ek_model_gguf(s->model), s->tok, err));
    s->n_train = set->data.sequences;
    s->n_valid = set->data.valid;
    s->held = calloc((size_t)set->data.valid + 1, sizeof *s->held);
    if (s->held == NULL)
        return EK_FAIL(err, EK_ENOMEM, "a training run");
    need.model = s->model;
    need.data = s->data;
    ek_collect_target_hash(&need, s->target_hash);
    return ek_collect_open(&s->collect, &need, err);
}

static void say_plan(const session *s)
{
    const ek_train_set *set = s->set;
    const int entries = ek_collect_entries(&s->collect.need);
    const double record = (double)ek_collect_bytes(&s->collect.need);
    const ek_scorer scorer = scorer_of(s);
    const int64_t n = s->n_train + s->n_valid;

    say(s, "scorer      %s, %zu parameters over %d layers x %d heads", scorer.cls->name,
        ek_params_size(&scorer), scorer.dims.n_layers, scorer.dims.n_heads);
    say(s, "data        %lld sequences of up to %lld tokens, %.0f %% retrieval text; %lld held out",
        (long long)set->data.sequences, (long long)set->data.length, 100 * set->data.mix,
        (long long)set->data.valid);
    if (set->trace == EK_TRACE_NONE)
        say(s, "records     of up to %d entries per head, %.1f MB each, made when asked for",
            entries, record / 1e6);
    else
        say(s, "records     %lld of up to %d entries per head, %.1f MB each, %.2f GB in all (%s)",
            (long long)n, entries, record / 1e6, record * (double)n / 1e9,
            ek_trace_names[set->trace]);
    say(s, "training    %lld steps of %lld records (%.1f epochs), loss %s, age %s",
        (long long)set->steps, (long long)set->batch,
        (double)set->steps * (double)set->batch / (double)s->n_train,
        ek_losses[set->loss.kind].name, ek_age_names[set->scorer.age]);
}

/* ---- records ---- */

static ek_code from_trace(void *ctx, int64_t i, ek_example *out, ek_err *err)
{
    return ek_trace_get(((session *)ctx)->trace, i, out, err);
}

/* Steps in one epoch read every sequence once; those held out are looked at again and again. */
static ek_code made_now(void *ctx, int64_t i, ek_example *out, ek_err *err)
{
    session *s = ctx;
    ek_example *held = i >= s->n_train ? &s->held[i - s->n_train] : NULL;

    if (held == NULL)
        return ek_collect_example(&s->collect, i, out, err);
    if (held->head == NULL)
        EK_TRY(ek_collect_example(&s->collect, i, held, err));
    *out = *held;
    out->owned = 0;
    return EK_OK;
}

static void say_answers(const session *s)
{
    const ek_collect *c = &s->collect;

    if (c->answer_tokens < 1)
        return;
    const double loss = c->answer_loss / c->answer_tokens;
    say(s, "retrieval   the model's own loss on %0.f answer tokens of %lld texts: %.2f nats%s",
        c->answer_tokens, (long long)c->measured, loss,
        loss > 2.5 ? "; WARNING: above 2.5 the text is beyond the model and teaches noise" : "");
}

static ek_code collect_all(session *s, ek_err *err)
{
    const int64_t all = s->set->data.sequences + s->set->data.valid;
    const double start = ek_now();
    ek_progress p;
    ek_code code = EK_OK;

    ek_progress_open(&p, "collect", "sequences", all);
    p.quiet = s->options->quiet;
    for (int64_t i = 0; i < all && code == EK_OK; i++) {
        ek_example r = {0};

        if (ek_stop_asked())
            code = EK_FAIL(err, EK_ESTOPPED,
                           "stopped while reading sequence %lld of %lld; nothing was kept",
                           (long long)i, (long long)all);
        else if ((code = ek_collect_example(&s->collect, i, &r, err)) == EK_OK)
            code = ek_trace_add(s->trace, &r, err);
        ek_progress_at(&p, i + 1, NULL);
    }
    ek_progress_close(&p);
    EK_TRY(code);
    EK_TRY(ek_trace_finish(s->trace, err));
    const double seconds = ek_now() - start;
    say(s, "collected   %lld records, %.2f GB, %.0f s (%.0f tokens/s; targets %.0f %% of it)",
        (long long)ek_trace_count(s->trace), (double)ek_trace_bytes(s->trace) / 1e9, seconds,
        (double)s->collect.tokens / seconds, 100 * s->collect.target_seconds / seconds);
    say_answers(s);
    return EK_OK;
}

static ek_code open_records(session *s, ek_err *err)
{
    ek_trace_key key = {.dims = *ek_model_dims(s->model),
                        .dtype = ek_model_storage(s->model),
                        .n = s->n_train + s->n_valid};
    const char *path = s->set->trace == EK_TRACE_DISK ? s->trace_path : NULL;

    if (s->set->trace == EK_TRACE_NONE)
        return EK_OK;
    memcpy(key.model, ek_model_hash(s->model), 33);
    memcpy(key.tokenizer, ek_tokenizer_hash(s->tok), 33);
    memcpy(key.text, ek_data_hash(s->data), 33);
    memcpy(key.target, s->target_hash, 33);
    if (path != NULL && ek_file_exists(path)) {
        EK_TRY(ek_trace_open(&s->trace, &key, path, err));
        say(s, "records     from %s", path);
        return EK_OK;
    }
    EK_TRY(ek_trace_create(&s->trace, &key, path, err));
    return collect_all(s, err);
}

static ek_code open_trainer(session *s, ek_err *err)
{
    const ek_train_set *set = s->set;
    const ek_trainer_need need = {
        .scorer = scorer_of(s),
        .loss = set->loss,
        .optim = set->optimiser,
        .eps = set->target.eps,
        .sinks = (int)set->sinks,
        .recent = (int)set->recent,
        .keep = (int)set->keep,
        .seed = set->seed,
        .steps = set->steps,
        .batch = (int)set->batch,
        .records = {.get = set->trace == EK_TRACE_NONE ? made_now : from_trace,
                    .ctx = s,
                    .n = s->n_train,
                    .n_valid = s->n_valid}};

    return ek_trainer_open(&s->trainer, &need, err);
}

/* ---- --plan ---- */

/* Of a step: its memory, and what the scorer costs beside the model that reads for it. */
static void say_step(const session *s, double step, double model)
{
    const ek_trainer_memory m = ek_trainer_bytes(s->trainer);
    const double share = step / (double)s->set->batch;

    say(s,
        "memory      of a step: %.1f MB of weights and moments, %.1f of activations, %.1f of "
        "records",
        (double)m.params / 1e6, (double)m.activations / 1e6, (double)m.records / 1e6);
    say(s, "cost        scorer %.2f of the model's forward (%.2f s forward and backward, %.2f s)",
        share / model, share, model);
}

/* One real sequence and one real step of it alone, timed. */
static ek_code say_time(session *s, ek_err *err)
{
    const ek_train_set *set = s->set;
    const int64_t all = set->data.sequences + set->data.valid;
    const int64_t n_train = s->n_train, n_valid = s->n_valid;
    ek_train_set once = *set;
    ek_train_stats stats;
    ek_trace_key key = {
        .dims = *ek_model_dims(s->model), .dtype = ek_model_storage(s->model), .n = 1};
    ek_example r = {0};

    double start = ek_now();
    EK_TRY(ek_collect_example(&s->collect, 0, &r, err));
    const double collect = ek_now() - start, model = s->collect.model_seconds;
    EK_TRY(ek_trace_create(&s->trace, &key, NULL, err));
    EK_TRY(ek_trace_add(s->trace, &r, err));
    EK_TRY(ek_trace_finish(s->trace, err));
    once.trace = EK_TRACE_MEMORY;
    once.data.valid = 0;
    s->set = &once;
    s->n_train = 1;
    s->n_valid = 0;
    ek_code code = open_trainer(s, err);
    if (code == EK_OK)
        code = ek_trainer_fit(s->trainer, err);
    if (code == EK_OK)
        code = ek_trainer_step(s->trainer, &stats, err); /* the first touches new memory */
    start = ek_now();
    if (code == EK_OK)
        code = ek_trainer_step(s->trainer, &stats, err);
    const double step = ek_now() - start;
    s->set = set;
    s->n_train = n_train;
    s->n_valid = n_valid;
    EK_TRY(code);
    say_step(s, step, model);
    const double read = set->trace == EK_TRACE_NONE
                            ? (double)(set->steps * set->batch) +
                                  (double)(n_train < 64 ? n_train : 64) + (double)n_valid
                            : (double)all;
    const double total = collect * read + step * (double)set->steps;
    say(s, "time        %.2f s to read a sequence, %.2f s per step: about %.1f minutes", collect,
        step, total / 60);
    return EK_OK;
}

/* ---- the loop ---- */

static ek_code look(session *s, ek_train_stats *out, ek_err *err)
{
    const double start = ek_now();

    if (s->n_valid == 0)
        return EK_OK;
    EK_TRY(ek_trainer_valid(s->trainer, out, err));
    return ek_log_step(&s->log, s->trainer->step, "valid", out, ek_now() - start, err);
}

static ek_code save(session *s, ek_err *err)
{
    /* A resumed run goes on behind the checkpoint: the steps up to it must be stored by then. */
    EK_TRY(ek_log_flush(&s->log, err));
    return ek_trainer_save(s->trainer, s->checkpoint, s->id, err);
}

static ek_code loop(session *s, double *last, ek_err *err)
{
    const ek_train_set *set = s->set;
    ek_trainer *t = s->trainer;
    ek_train_stats valid = {.loss = NAN, .acc = NAN};
    ek_progress p;
    /* What a loss counts as right: the target's best quarter found, or decisions. */
    const char *right = ek_losses[set->loss.kind].whole ? "decisions right" : "overlap";
    double smooth = NAN;
    int64_t begun = t->step;
    ek_code code = EK_OK;

    ek_progress_open(&p, "train", "steps", set->steps);
    p.quiet = s->options->quiet;
    while (t->step < set->steps && code == EK_OK) {
        const double start = ek_now();
        ek_train_stats x;
        char note[96];

        if ((code = ek_trainer_step(t, &x, err)) != EK_OK ||
            (code = ek_log_step(&s->log, t->step, NULL, &x, ek_now() - start, err)) != EK_OK)
            break;
        smooth = isnan(smooth) ? x.loss : 0.95 * smooth + 0.05 * x.loss;
        if (t->step % set->valid_every == 0 || t->step == set->steps)
            code = look(s, &valid, err);
        if (set->data.valid > 0 && isfinite(valid.loss))
            snprintf(note, sizeof note, "loss %.4f  held out %.4f  %s %.3f", smooth, valid.loss,
                     right, valid.acc);
        else
            snprintf(note, sizeof note, "loss %.4f  %s %.3f", smooth, right, x.acc);
        ek_progress_at(&p, t->step, note);
        const int stop = ek_stop_asked() ||
                         (s->options->stop_after > 0 && t->step - begun >= s->options->stop_after);
        if (code == EK_OK && (t->step % set->save_every == 0 || stop) && t->step < set->steps)
            code = save(s, err);
        if (code == EK_OK && stop && t->step < set->steps)
            code = EK_FAIL(err, EK_ESTOPPED,
                           "stopped after step %lld of %lld; --resume goes on from there",
                           (long long)t->step, (long long)set->steps);
    }
    ek_progress_close(&p);
    *last = smooth;
    if (code == EK_OK && set->data.valid > 0)
        say(s, "held out    loss %.4f, %s %.3f", valid.loss, right, valid.acc);
    return code;
}

static ek_code export_all(session *s, double last, ek_err *err)
{
    const ek_scorer_export x = {.scorer = &s->trainer->scorer,
                                .method = method_names[s->set->method],
                                .loss = ek_losses[s->set->loss.kind].name,
                                .model = ek_model_hash(s->model),
                                .tokenizer = ek_tokenizer_hash(s->tok),
                                .data = ek_data_hash(s->data),
                                .target = s->target_hash,
                                .settings = s->text,
                                .steps = s->trainer->step,
                                .loss_last = last};

    EK_TRY(ek_scorer_write(s->set->out, &x, err));
    EK_TRY(ek_log_file(&s->log, s->weights_json, err));
    EK_TRY(ek_log_file(&s->log, s->weights_bin, err));
    unlink(s->checkpoint); /* its run is done; a leftover would only mislead */
    say(s, "weights     %s", s->set->out);
    return EK_OK;
}

static ek_code open_log(session *s, int *done, ek_err *err)
{
    const char *const paths[] = {s->weights_json, s->weights_bin};
    const ek_run_row row = {.id = s->id,
                            .kind = "train",
                            .revision = s->options->revision ? s->options->revision : "unknown",
                            .device = s->dev->ops.name,
                            .kernel = ek_model_storage(s->model) == EK_BF16 ? "bf16" : "f32",
                            .model = s->set->model,
                            .model_hash = ek_model_hash(s->model),
                            .tokenizer_hash = ek_tokenizer_hash(s->tok),
                            .template_hash = ek_data_template_hash(s->data),
                            .config = s->text};

    s->log.text_hash = ek_data_hash(s->data);
    s->log.restart = s->options->restart;
    return ek_log_open(&s->log, s->set, &row, s->options->resume, paths, (int)EK_COUNT(paths), done,
                       err);
}

static ek_code train(session *s, ek_err *err)
{
    double last;

    EK_TRY(open_records(s, err));
    EK_TRY(open_trainer(s, err));
    if (s->options->resume && ek_file_exists(s->checkpoint)) {
        EK_TRY(ek_trainer_load(s->trainer, s->checkpoint, s->id, err));
        say(s, "resumed     at step %lld", (long long)s->trainer->step);
    } else {
        EK_TRY(ek_trainer_fit(s->trainer, err));
    }
    const ek_train_row row = {.run = s->id,
                              .scorer = ek_learned[s->set->scorer.kind]->name,
                              .loss = ek_losses[s->set->loss.kind].name,
                              .params = (int64_t)s->trainer->n,
                              .text_hash = ek_data_hash(s->data),
                              .target_hash = s->target_hash,
                              .steps_asked = s->set->steps};
    EK_TRY(ek_log_begin(&s->log, &row, err));
    const double start = ek_now();
    const int64_t begun = s->trainer->step;
    EK_TRY(loop(s, &last, err));
    const double seconds = ek_now() - start;
    const int64_t n = s->trainer->step - begun;
    say(s, "trained     %lld steps in %.0f s (%.2f s per step), loss %.4f", (long long)n, seconds,
        seconds / (double)(n > 0 ? n : 1), last);
    return export_all(s, last, err);
}

ek_code ek_train_run(const ek_train_set *set, const ek_train_options *options, ek_device *dev,
                     ek_err *err)
{
    session s = {.set = set, .options = options, .dev = dev};

    if (set->method == EK_TRAIN_VECTOR)
        return ek_vector_run(set, options, dev, err);
    ek_code code = open_session(&s, err);
    int done = 0;

    if (code == EK_OK)
        say_plan(&s);
    if (code == EK_OK && options->plan)
        code = say_time(&s, err);
    else if (code == EK_OK && (code = ek_make_folder(set->out, err)) == EK_OK &&
             (code = open_log(&s, &done, err)) == EK_OK && !done)
        code = train(&s, err);
    if (done)
        say(&s, "done        this very run was finished before; weights in %s", set->out);
    code = ek_log_close(&s.log, code, err);
    close_session(&s);
    return code;
}
