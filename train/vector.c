/* train/vector.c - a fit of VECTOR's maps from its settings to its folder. */
#include "train/vector.h"

#include "core/file.h"
#include "core/progress.h"
#include "infer/maps.h"
#include "infer/model.h"
#include "train/log.h"
#include "train/prose.h"
#include "train/session.h"
#include "train/sums.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CHUNK = 512, ROOM = 64 }; /* tokens per pass of the model; room for small names */

const ek_vector_set ek_vector_defaults = {.tokens = 1000000, .held_out = 0.01, .bias = true};

static const char *const modes[] = {"head", "layer", NULL};

const ek_field ek_vector_fields[] = {
    EK_ENUM(ek_vector_set, mode, modes, "a map per KV head, or per layer with heads joined"),
    EK_INT(ek_vector_set, tokens, 64, 1000000000000.0, "tokens to read in all"),
    EK_FLOAT(ek_vector_set, held_out, 0.0001, 0.5, "share of them to judge by"),
    EK_BOOL(ek_vector_set, bias, "maps with an intercept"), EK_FIELD_END};

typedef struct session {
    const ek_train_set *set;
    const ek_train_options *options;
    ek_device *dev;
    ek_model *model;
    ek_tokenizer *tok;
    ek_prose prose;
    ek_tokens window;
    ek_cache cache;
    ek_sums sums;
    ek_log log;
    char *text;                       /* the resolved config */
    char id[33];                      /* its hash: names the run */
    char data_hash[33], identity[33]; /* text and windows; all that a checkpoint goes with */
    char *checkpoint, *weights_json, *weights_bin;
    int64_t n_held, n; /* windows held out, which are read first; in all */
} session;

static void close_session(session *s)
{
    ek_sums_close(&s->sums);
    ek_cache_close(&s->cache);
    ek_tokens_clear(&s->window);
    ek_prose_close(&s->prose);
    ek_tokenizer_close(s->tok);
    ek_model_close(s->model);
    free(s->text);
    free(s->checkpoint);
    free(s->weights_json);
    free(s->weights_bin);
}

static ek_code check_set(const ek_train_set *set, ek_err *err)
{
    if (set->data.texts == NULL)
        return EK_FAIL(err, EK_EASKED, "data.texts: expected a folder of .txt files");
    if (set->vector.tokens < 2 * set->data.length)
        return EK_FAIL(err, EK_EASKED,
                       "vector.tokens: found %lld, expected at least %lld: a window of data.length "
                       "to fit on and one to judge by",
                       (long long)set->vector.tokens, (long long)(2 * set->data.length));
    return EK_OK;
}

/* Text, settings and seed: what a fit's numbers depend on beside model and mode. */
static ek_code hash_data(session *s, ek_err *err)
{
    const ek_train_set *set = s->set;
    const int64_t numbers[] = {set->data.length, s->n, s->n_held, set->seed};
    ek_hasher *h = ek_hasher_open();

    if (h == NULL)
        return EK_FAIL(err, EK_ENOMEM, "the hash of a text");
    ek_hasher_add(h, s->prose.all.hash, 32);
    ek_hasher_add(h, numbers, sizeof numbers);
    ek_hasher_add(h, &set->vector.held_out, sizeof set->vector.held_out);
    ek_hasher_close(h, s->data_hash);
    h = ek_hasher_open();
    if (h == NULL)
        return EK_FAIL(err, EK_ENOMEM, "the hash of a fit");
    ek_hasher_add(h, s->id, 32);
    ek_hasher_add(h, s->data_hash, 32);
    ek_hasher_add(h, ek_model_hash(s->model), 32);
    ek_hasher_close(h, s->identity);
    return EK_OK;
}

static ek_code open_session(session *s, ek_err *err)
{
    const ek_train_set *set = s->set;

    EK_TRY(check_set(set, err));
    s->text = ek_config_text(set, ek_train_fields);
    s->checkpoint = ek_train_path(set, "checkpoint.safetensors");
    s->weights_json = ek_train_path(set, "config.json");
    s->weights_bin = ek_train_path(set, "model.safetensors");
    if (s->text == NULL || s->checkpoint == NULL || s->weights_json == NULL ||
        s->weights_bin == NULL)
        return EK_FAIL(err, EK_ENOMEM, "a fit of maps");
    ek_hash128(s->id, s->text, strlen(s->text));
    EK_TRY(ek_model_open(&s->model, set->model, s->dev, EK_BF16, err));
    EK_TRY(ek_tokenizer_open(&s->tok, ek_model_gguf(s->model), err));
    const ek_dims *d = ek_model_dims(s->model);
    const ek_cache_need cache = {
        .dims = *d, .dtype = ek_model_storage(s->model), .cap = (int32_t)set->data.length};
    if (set->data.length > d->n_ctx)
        return EK_FAIL(err, EK_EASKED, "data.length: found %lld, the model's context is %d",
                       (long long)set->data.length, d->n_ctx);
    s->n = (set->vector.tokens + set->data.length - 1) / set->data.length;
    s->n_held = (int64_t)llround((double)s->n * set->vector.held_out);
    s->n_held = s->n_held < 1 ? 1 : s->n_held;
    EK_TRY(ek_prose_open(&s->prose, set->data.texts, (int)set->data.length, set->vector.held_out,
                         (uint64_t)set->seed, err));
    EK_TRY(hash_data(s, err));
    EK_TRY(ek_cache_open(&s->cache, &cache, s->dev, err));
    return ek_sums_open(&s->sums, d, set->vector.mode == 1, (int)set->data.length, s->dev, err);
}

static void say_plan(const session *s)
{
    const ek_train_set *set = s->set;
    const ek_dims *d = ek_model_dims(s->model);
    const ek_sums *sums = &s->sums;
    const int width = sums->fit.width;
    const double weights = (double)ek_model_weight_bytes(s->model);

    ek_train_say(s->options, "maps        %d of %d x %d (%s), %lld numbers, intercept %s",
                 sums->fit.n, width, width, modes[set->vector.mode],
                 (long long)sums->fit.n * width * (width + 1), set->vector.bias ? "on" : "off");
    ek_train_say(
        s->options,
        "data        %lld windows of %lld tokens, %lld of them held out; %d documents, %d held out",
        (long long)s->n, (long long)set->data.length, (long long)s->n_held, s->prose.all.n,
        s->prose.group[EK_PROSE_HELD].n);
    ek_train_say(
        s->options,
        "memory      %.0f MB of weights, %.0f MB of cache, %.0f MB of sums for %d layers x %d "
        "heads",
        weights / 1e6, (double)s->cache.block_bytes / 1e6, (double)ek_sums_bytes(sums) / 1e6,
        d->n_layers, d->n_heads);
}

/* ---- reading ---- */

/* Window number i, held-out ones first, through the model and into the sums. */
static ek_code read_window(session *s, int64_t i, ek_err *err)
{
    const ek_prose_group group = i < s->n_held ? EK_PROSE_HELD : EK_PROSE_FIT;
    const int n = (int)s->set->data.length;

    EK_TRY(ek_prose_window(&s->prose, group, i - (group == EK_PROSE_FIT ? s->n_held : 0), s->tok,
                           &s->window, err));
    for (int at = 0; at < n; at += CHUNK) {
        const ek_feed feed = {
            .cache = &s->cache, .tok = s->window.id + at, .n = n - at < CHUNK ? n - at : CHUNK};

        EK_TRY(ek_model_step(s->model, &feed, 1, NULL, err));
    }
    ek_sums_add(&s->sums, &s->cache, group == EK_PROSE_HELD);
    ek_cache_rewind(&s->cache, n);
    return EK_OK;
}

static ek_code say_time(session *s, ek_err *err)
{
    const double start = ek_now();

    EK_TRY(read_window(s, 0, err));
    const double seconds = ek_now() - start;
    ek_train_say(s->options,
                 "time        %.2f s to read a window (sums %.0f %% of it): about %.1f minutes",
                 seconds, 100 * s->sums.seconds / seconds, seconds * (double)s->n / 60);
    return EK_OK;
}

static ek_code read_all(session *s, int64_t *at, ek_err *err)
{
    const ek_train_set *set = s->set;
    const int64_t begun = *at;
    ek_progress p;
    ek_code code = EK_OK;

    ek_progress_open(&p, "fit", "tokens", (s->n - begun) * set->data.length);
    p.quiet = s->options->quiet;
    while (*at < s->n && code == EK_OK) {
        if ((code = read_window(s, *at, err)) != EK_OK)
            break;
        ++*at;
        ek_progress_at(&p, (*at - begun) * set->data.length, NULL);
        const int stop = ek_stop_asked() ||
                         (s->options->stop_after > 0 && *at - begun >= s->options->stop_after);
        if ((*at % set->save_every == 0 || stop) && *at < s->n)
            code = ek_sums_save(&s->sums, s->checkpoint, s->identity, *at, err);
        if (code == EK_OK && stop && *at < s->n)
            code = EK_FAIL(err, EK_ESTOPPED,
                           "stopped after window %lld of %lld; --resume goes on from there",
                           (long long)*at, (long long)s->n);
    }
    ek_progress_close(&p);
    return code;
}

/* ---- the end ---- */

static double mean_of(const double *x, int n)
{
    double sum = 0;

    for (int i = 0; i < n; i++)
        sum += x[i];
    return sum / n;
}

/* A fit is one step; its loss is the share of the values' variance that the maps leave. */
static ek_code log_fit(session *s, const ek_sums_fit *fit, double seconds, ek_err *err)
{
    const int layers = s->sums.dims.n_layers, heads = s->sums.dims.n_heads;
    ek_train_stats x = {
        .acc = NAN, .recall = NAN, .chance = NAN, .boundary = NAN, .lr = NAN, .norm = NAN};

    x.loss = 1 - mean_of(fit->r2_fit, layers * heads);
    x.tokens = ek_regress_count(&s->sums.fit, 0);
    EK_TRY(ek_log_step(&s->log, 1, NULL, &x, seconds, err));
    x.loss = 1 - mean_of(fit->r2, layers * heads);
    x.tokens = ek_regress_count(&s->sums.held, 0);
    EK_TRY(ek_log_step(&s->log, 1, "valid", &x, 0, err));
    EK_TRY(ek_log_flush(&s->log, err));
    EK_TRY(ek_log_heads(&s->log, "r2", layers, heads, fit->r2, err));
    EK_TRY(ek_log_heads(&s->log, "r2_fit", layers, heads, fit->r2_fit, err));
    return ek_log_heads(&s->log, "lambda", layers, heads, fit->lambda, err);
}

static void say_r2(const session *s, const ek_sums_fit *fit)
{
    const int heads = s->sums.dims.n_heads, all = s->sums.dims.n_layers * heads;
    int low = 0, high = 0;

    for (int i = 0; i < all; i++) {
        low = fit->r2[i] < fit->r2[low] ? i : low;
        high = fit->r2[i] > fit->r2[high] ? i : high;
    }
    ek_train_say(s->options, "held out    R2 %.3f in the mean (%.3f on the fit's own tokens)",
                 mean_of(fit->r2, all), mean_of(fit->r2_fit, all));
    ek_train_say(s->options,
                 "            least %.3f (layer %d, head %d), most %.3f (layer %d, head %d)",
                 fit->r2[low], low / heads, low % heads, fit->r2[high], high / heads, high % heads);
}

static ek_code export_maps(session *s, double seconds, ek_err *err)
{
    const ek_maps_origin from = {.model = ek_model_hash(s->model),
                                 .tokenizer = ek_tokenizer_hash(s->tok),
                                 .data = s->data_hash,
                                 .settings = s->text,
                                 .tokens = ek_regress_count(&s->sums.fit, 0),
                                 .held_out = ek_regress_count(&s->sums.held, 0)};
    ek_maps maps;
    ek_sums_fit fit;

    EK_TRY(ek_sums_solve(&s->sums, s->set->vector.bias, &maps, &fit, err));
    say_r2(s, &fit);
    EK_CHECK(ek_maps_write(s->set->out, &maps, &from, err));
    EK_CHECK(log_fit(s, &fit, seconds, err));
    EK_CHECK(ek_log_file(&s->log, s->weights_json, err));
    EK_CHECK(ek_log_file(&s->log, s->weights_bin, err));
    unlink(s->checkpoint); /* its run is done; a leftover would only mislead */
    ek_train_say(s->options, "maps        %s", s->set->out);
    err->code = EK_OK;
fail:
    ek_maps_close(&maps);
    ek_sums_fit_close(&fit);
    return err->code;
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
                            .template_hash = "none: prose alone",
                            .config = s->text};

    ek_drop_temps(s->checkpoint);
    ek_drop_temps(s->weights_json);
    ek_drop_temps(s->weights_bin);
    s->log.text_hash = s->data_hash;
    s->log.restart = s->options->restart;
    return ek_log_open(&s->log, s->set, &row, s->options->resume, paths, (int)EK_COUNT(paths), done,
                       err);
}

static ek_code fit(session *s, ek_err *err)
{
    const ek_regress *r = &s->sums.fit;
    char scorer[ROOM];
    int64_t at = 0;

    snprintf(scorer, sizeof scorer, "map per %s", modes[s->set->vector.mode]);
    const ek_train_row row = {.run = s->id,
                              .scorer = scorer,
                              .loss = "ridge",
                              .params = (int64_t)r->n * r->width * (r->width + 1),
                              .text_hash = s->data_hash,
                              .target_hash = "values",
                              .steps_asked = 1};
    if (s->options->resume && ek_file_exists(s->checkpoint)) {
        EK_TRY(ek_sums_load(&s->sums, s->checkpoint, s->identity, s->n, &at, err));
        ek_train_say(s->options, "resumed     at window %lld", (long long)at);
    }
    EK_TRY(ek_log_begin(&s->log, &row, err));
    const double start = ek_now();
    const int64_t begun = at;
    EK_TRY(read_all(s, &at, err));
    const double seconds = ek_now() - start;
    ek_train_say(
        s->options, "read        %lld windows in %.0f s (%.0f tokens/s; sums %.0f %% of it)",
        (long long)(at - begun), seconds, (double)((at - begun) * s->set->data.length) / seconds,
        100 * s->sums.seconds / seconds);
    return export_maps(s, begun == 0 ? seconds : 0, err); /* 0: not known as a whole */
}

ek_code ek_vector_run(const ek_train_set *set, const ek_train_options *options, ek_device *dev,
                      ek_err *err)
{
    session s = {.set = set, .options = options, .dev = dev};
    const size_t there = ek_folder_there(set->out);
    ek_code code = open_session(&s, err);
    int done = 0;

    if (code == EK_OK)
        say_plan(&s);
    if (code == EK_OK && options->plan)
        code = say_time(&s, err);
    else if (code == EK_OK && (code = ek_make_folder(set->out, err)) == EK_OK &&
             (code = open_log(&s, &done, err)) == EK_OK && !done)
        code = fit(&s, err);
    if (done)
        ek_train_say(options, "done        this very run was finished before; maps in %s",
                     set->out);
    code = ek_log_close(&s.log, code, err);
    close_session(&s);
    if (code != EK_OK && !options->plan)
        ek_drop_folders(set->out, there);
    return code;
}

ek_code ek_vector_look(const ek_train_set *set, const ek_train_options *options, ek_device *dev,
                       ek_err *err)
{
    session s = {.set = set, .options = options, .dev = dev};
    ek_code code = open_session(&s, err);
    const char *const paths[] = {s.weights_json, s.weights_bin};

    if (code == EK_OK)
        code = ek_log_look(set, s.id, options, paths, (int)EK_COUNT(paths), err);
    close_session(&s);
    return code;
}
