/* train/session.c - training runs: those that share a reading step together, each with its own
 * weights, log, checkpoint and folder. */
#include "train/session.h"

#include "core/file.h"
#include "core/progress.h"
#include "results/store.h"
#include "train/cohort.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void close_variant(ek_variant *v)
{
    ek_trainer_close(v->trainer);
    free(v->text);
    free(v->checkpoint);
    free(v->weights_json);
    free(v->weights_bin);
}

void ek_train_say(const ek_train_options *options, const char *fmt, ...)
{
    char line[512];
    va_list args;

    if (options->say == NULL)
        return;
    va_start(args, fmt);
    vsnprintf(line, sizeof line, fmt, args);
    va_end(args);
    options->say(options->ctx, line);
}

char *ek_train_path(const ek_train_set *set, const char *name)
{
    const size_t room = strlen(set->out) + strlen(name) + 2;
    char *path = malloc(room);

    if (path != NULL)
        snprintf(path, room, "%s/%s", set->out, name);
    return path;
}

enum { LOOKS = 4 }; /* sequences made to see whether the text gives any */

/* What this scorer does not read must not be set: its weights would say it had been. */
static ek_code check_scorer(const ek_train_scorer *s, ek_err *err)
{
    const ek_scorer_class *cls = ek_learned[s->kind];
    const int memory = cls->learner->advance != NULL;
    const struct {
        const char *key;
        int set;
    } key[] = {{"hidden", s->hidden != 0 && cls != &ek_scorer_mlp},
               {"delay", s->delay > 0 && !memory},
               {"norm", s->norm != 0 && !memory},
               {"skip", s->skip && !memory}};

    for (size_t i = 0; i < EK_COUNT(key); i++)
        if (key[i].set)
            return EK_FAIL(err, EK_EASKED,
                           "scorer.%s: the %s scorer has none; leave it out, or take kind %s",
                           key[i].key, cls->name, i == 0 ? "mlp" : "recurrent");
    return EK_OK;
}

static ek_code check_set(const ek_train_set *set, ek_err *err)
{
    if (set->model == NULL)
        return EK_FAIL(err, EK_EASKED, "model: expected a GGUF file");
    if (set->out == NULL)
        return EK_FAIL(err, EK_EASKED, "out: expected a folder for the weights");
    if (set->results != NULL)
        EK_TRY(ek_store_name(set->results, err));
    if (set->method == EK_TRAIN_VECTOR)
        return EK_OK;
    EK_TRY(check_scorer(&set->scorer, err));
    if (set->data.cut > 0 && ek_losses[set->loss.kind].whole)
        return EK_FAIL(err, EK_EASKED,
                       "loss.kind %s ranks over time: data.cut: found %lld, "
                       "expected 0 (whole sequences)",
                       ek_losses[set->loss.kind].name, (long long)set->data.cut);
    if (set->data.cut > 0 && set->data.cut < set->sinks + set->recent + 64)
        return EK_FAIL(err, EK_EASKED, "data.cut: found %lld, expected at least %lld",
                       (long long)set->data.cut, (long long)(set->sinks + set->recent + 64));
    if (set->data.cut > 0 && set->target.reduce == EK_REDUCE_BLOCK)
        return EK_FAIL(err, EK_EASKED,
                       "target.reduce: block goes with whole sequences: data.cut: found %lld, "
                       "expected 0",
                       (long long)set->data.cut);
    if (set->data.cut > 0 && set->target.horizon != ek_target_defaults.horizon)
        return EK_FAIL(err, EK_EASKED,
                       "target.horizon is for whole sequences; at cuts data.horizon says how much "
                       "text follows");
    if (ek_losses[set->loss.kind].whole &&
        ek_data_shortest(&set->data) < set->sinks + set->recent + set->keep + 128)
        return EK_FAIL(err, EK_EASKED,
                       "data.length: the shortest sequences have %lld tokens; %lld sinks, %lld "
                       "recent and %lld kept leave no position to train on, expected at least %lld",
                       (long long)ek_data_shortest(&set->data), (long long)set->sinks,
                       (long long)set->recent, (long long)set->keep,
                       (long long)(set->sinks + set->recent + set->keep + 128));
    return EK_OK;
}

static ek_scorer scorer_of(const ek_cohort *g, const ek_variant *v)
{
    const ek_train_set *set = v->set;
    const ek_scorer_class *cls = ek_learned[set->scorer.kind];
    const int64_t delay = set->scorer.delay < 0 ? set->recent : set->scorer.delay;

    return (ek_scorer){.cls = cls,
                       .dev = g->reading.dev,
                       .dims = *ek_model_dims(g->reading.model),
                       .set = {.hidden = set->scorer.hidden,
                               .age = set->scorer.age,
                               .rms = set->scorer.input == 1,
                               .sinks = set->sinks,
                               .recent = set->recent,
                               .delay = cls->learner->advance != NULL ? delay : 0,
                               .norm = set->scorer.norm == 1,
                               .skip = set->scorer.skip,
                               .carried = set->scorer.carried,
                               .absolute = ek_losses[set->loss.kind].absolute}};
}

/* The settings name text and model by their paths alone. */
static ek_code identify(const ek_reading *s, ek_variant *v, ek_err *err)
{
    ek_hasher *h = ek_hasher_open();

    if (h == NULL)
        return EK_FAIL(err, EK_ENOMEM, "the hash of a training run");
    ek_hasher_add(h, v->id, 32);
    ek_hasher_add(h, ek_data_hash(s->data), 32);
    ek_hasher_add(h, ek_data_template_hash(s->data), 32);
    ek_hasher_add(h, ek_model_hash(s->model), 32);
    ek_hasher_add(h, ek_tokenizer_hash(s->tok), 32);
    ek_hasher_close(h, v->identity);
    return EK_OK;
}

static ek_code open_variant(const ek_cohort *g, ek_variant *v, const ek_train_set *set, ek_err *err)
{
    *v = (ek_variant){.set = set, .valid = {.loss = NAN, .acc = NAN}};
    v->text = ek_config_text(set, ek_train_fields);
    v->checkpoint = ek_train_path(set, "checkpoint.safetensors");
    v->weights_json = ek_train_path(set, "config.json");
    v->weights_bin = ek_train_path(set, "model.safetensors");
    if (v->text == NULL || v->checkpoint == NULL || v->weights_json == NULL ||
        v->weights_bin == NULL)
        return EK_FAIL(err, EK_ENOMEM, "a training run");
    ek_hash128(v->id, v->text, strlen(v->text));
    ek_reading_target_hash(&g->reading, set, v->target_hash);
    EK_TRY(identify(&g->reading, v, err));
    const ek_scorer scorer = scorer_of(g, v);
    return ek_scorer_check(&scorer, err) == EK_OK ? EK_OK : ek_err_in(err, "scorer");
}

static void say_plan(const ek_cohort *g)
{
    const ek_reading *s = &g->reading;
    const ek_train_set *set = s->set;
    const int entries = ek_collect_entries(&s->collect.need);
    const double record = (double)ek_collect_bytes(&s->collect.need);
    const int64_t n = s->n_train + s->n_valid;

    ek_train_say(
        g->options,
        "data        %lld sequences of up to %lld tokens, %.0f %% retrieval text; %lld held out",
        (long long)set->data.sequences, (long long)set->data.length, 100 * set->data.mix,
        (long long)set->data.valid);
    if (set->trace == EK_TRACE_NONE)
        ek_train_say(g->options,
                     "records     of up to %d entries per head, %.1f MB each, made when asked for; "
                     "those held out stay in memory (%.2f GB)",
                     entries, record / 1e6, record * (double)s->n_valid / 1e9);
    else
        ek_train_say(
            g->options,
            "records     %lld of up to %d entries per head, %.1f MB each, %.2f GB in all (%s)",
            (long long)n, entries, record / 1e6, record * (double)n / 1e9,
            ek_trace_names[set->trace]);
    if (g->n > 1)
        ek_train_say(g->options, "sweep       %d scorers take their steps from one reading", g->n);
    for (int i = 0; i < g->n; i++) {
        const ek_variant *v = &g->v[i];
        const ek_scorer scorer = scorer_of(g, v);

        ek_train_say(g->options, "scorer      %s%s%s, %zu parameters over %d layers x %d heads",
                     ek_variant_name(g, v), ek_variant_gap(g), scorer.cls->name,
                     ek_params_size(&scorer), scorer.dims.n_layers, scorer.dims.n_heads);
        ek_train_say(g->options,
                     "training    %s%s%lld steps of %lld records (%.1f epochs), loss %s, age %s",
                     ek_variant_name(g, v), ek_variant_gap(g), (long long)v->set->steps,
                     (long long)v->set->batch,
                     (double)v->set->steps * (double)v->set->batch / (double)s->n_train,
                     ek_losses[v->set->loss.kind].name, ek_age_names[v->set->scorer.age]);
    }
}

static ek_code open_trainer(ek_cohort *g, ek_variant *v, ek_err *err)
{
    const ek_train_set *set = v->set;
    const ek_trainer_need need = {.scorer = scorer_of(g, v),
                                  .loss = set->loss,
                                  .optim = set->optimiser,
                                  .eps = set->target.eps,
                                  .sinks = (int)set->sinks,
                                  .recent = (int)set->recent,
                                  .keep = (int)set->keep,
                                  .seed = set->seed,
                                  .steps = set->steps,
                                  .batch = (int)set->batch,
                                  .records = ek_reading_examples(&g->reading)};

    return ek_trainer_open(&v->trainer, &need, err);
}

/* ---- --plan ---- */

/* Of a step: its memory, and what the scorer costs beside the model that reads for it. */
static void say_step(const ek_cohort *g, const ek_variant *v, double step, double model)
{
    const ek_trainer_memory m = ek_trainer_bytes(v->trainer);
    const double share = step / (double)v->set->batch;

    ek_train_say(g->options,
                 "memory      %s%sof a step: %.1f MB of weights and moments, %.1f of activations, "
                 "%.1f of records",
                 ek_variant_name(g, v), ek_variant_gap(g), (double)m.params / 1e6,
                 (double)m.activations / 1e6, (double)m.records / 1e6);
    ek_train_say(
        g->options,
        "cost        %s%sscorer %.2f of the model's forward (%.2f s forward and backward, %.2f s)",
        ek_variant_name(g, v), ek_variant_gap(g), share / model, share, model);
}

/* Two steps of a run over the source as it is, the second one timed: the first touches new
 * memory. */
static ek_code time_step(ek_cohort *g, ek_variant *v, double *seconds, ek_err *err)
{
    ek_train_stats stats;

    EK_TRY(open_trainer(g, v, err));
    EK_TRY(ek_trainer_fit(v->trainer, err));
    EK_TRY(ek_trainer_step(v->trainer, &stats, err));
    const double start = ek_now();
    EK_TRY(ek_trainer_step(v->trainer, &stats, err));
    *seconds = ek_now() - start;
    return EK_OK;
}

/* One real sequence, and one real step of every run over it alone, timed. */
static ek_code say_time(ek_cohort *g, ek_err *err)
{
    ek_reading *s = &g->reading;
    const ek_train_set *set = s->set;
    const int64_t n_train = s->n_train, n_valid = s->n_valid;
    ek_trace_key key = {
        .dims = *ek_model_dims(s->model), .dtype = ek_model_storage(s->model), .n = 1};
    double total = 0, read = (double)(n_train + n_valid), all_steps = 0;
    ek_example r = {0};
    ek_code code = EK_OK;

    const double start = ek_now();
    EK_TRY(ek_collect_example(&s->collect, 0, &r, err));
    const double collect = ek_now() - start, model = s->collect.model_seconds;
    code = ek_trace_create(&s->trace, &key, NULL, err);
    if (code != EK_OK) {
        ek_example_close(&r);
        return code;
    }
    EK_TRY(ek_trace_add(s->trace, &r, err));
    EK_TRY(ek_trace_finish(s->trace, err));
    s->n_train = 1;
    s->n_valid = 0;
    for (int i = 0; i < g->n && code == EK_OK; i++) {
        double step = 0;

        code = time_step(g, &g->v[i], &step, err);
        if (code == EK_OK)
            say_step(g, &g->v[i], step, model);
        total += step * (double)g->v[i].set->steps;
        all_steps += step;
        if (set->trace == EK_TRACE_NONE) /* the longest run reads for all */
            read = fmax(i > 0 ? read : 0,
                        (double)(g->v[i].set->steps * g->v[i].set->batch) +
                            (double)(n_train < EK_FIT_RECORDS ? n_train : EK_FIT_RECORDS) +
                            (double)n_valid);
    }
    s->n_train = n_train;
    s->n_valid = n_valid;
    EK_TRY(code);
    ek_train_say(g->options,
                 "time        %.2f s to read a sequence, %.2f s per step: about %.1f minutes",
                 collect, all_steps, (total + collect * read) / 60);
    return EK_OK;
}

/* ---- runs ---- */

/* A trace that a killed run was writing may have gigabytes, and this run may write none. */
static void drop_temps(const ek_reading *s, const ek_variant *v)
{
    char *trace = ek_train_path(v->set, "records.trace");

    ek_drop_temps(v->checkpoint);
    ek_drop_temps(v->weights_json);
    ek_drop_temps(v->weights_bin);
    ek_drop_temps(s->trace_path);
    if (trace != NULL)
        ek_drop_temps(trace);
    free(trace);
}

static ek_code open_log(ek_cohort *g, ek_variant *v, ek_err *err)
{
    const ek_reading *s = &g->reading;
    const char *const paths[] = {v->weights_json, v->weights_bin};
    const ek_run_row row = {.id = v->id,
                            .kind = "train",
                            .revision = g->options->revision ? g->options->revision : "unknown",
                            .device = s->dev->ops.name,
                            .kernel = ek_model_storage(s->model) == EK_BF16 ? "bf16" : "f32",
                            .model = v->set->model,
                            .model_hash = ek_model_hash(s->model),
                            .tokenizer_hash = ek_tokenizer_hash(s->tok),
                            .template_hash = ek_data_template_hash(s->data),
                            .config = v->text};
    int done = 0;

    v->log.text_hash = ek_data_hash(s->data);
    v->log.restart = g->options->restart;
    v->there = ek_folder_there(v->set->out) + 1;
    EK_TRY(ek_make_folder(v->set->out, err));
    drop_temps(s, v);
    EK_TRY(ek_log_open(&v->log, v->set, &row, g->options->resume, paths, (int)EK_COUNT(paths),
                       &done, err));
    v->open = !done;
    if (done)
        ek_train_say(g->options, "done        this very run was finished before; weights in %s",
                     v->set->out);
    return EK_OK;
}

/* Trainers go on from their checkpoints, or begin with constants from the records. */
static ek_code begin_trainers(ek_cohort *g, ek_err *err)
{
    ek_trainer **fresh = calloc((size_t)g->n, sizeof(ek_trainer *));
    int n = 0;
    int64_t batch = 1;

    if (fresh == NULL)
        return EK_FAIL(err, EK_ENOMEM, "%d trainers", g->n);
    err->code = EK_OK;
    for (int i = 0; i < g->n; i++) {
        ek_variant *v = &g->v[i];

        if (!v->open)
            continue;
        batch = v->set->batch > batch ? v->set->batch : batch;
        if (g->options->resume && ek_file_exists(v->checkpoint)) {
            EK_CHECK(ek_trainer_load(v->trainer, v->checkpoint, v->identity, err));
            ek_train_say(g->options, "resumed     %s%sat step %lld", ek_variant_name(g, v),
                         ek_variant_gap(g), (long long)v->trainer->step);
        } else {
            fresh[n++] = v->trainer;
        }
        v->begun = v->trainer->step;
    }
    if (n > 0)
        EK_CHECK(ek_trainer_fit_all(fresh, n, g->options->quiet, err));
    if (g->n > 1 && g->reading.trace == NULL)
        EK_CHECK(ek_reading_keep(&g->reading, (int)batch, err));
fail:
    free(fresh);
    return err->code;
}

static ek_code train(ek_cohort *g, ek_err *err)
{
    const double start = ek_now();
    int open = 0;

    for (int i = 0; i < g->n; i++) {
        EK_TRY(open_log(g, &g->v[i], err));
        open += g->v[i].open;
    }
    if (open == 0)
        return EK_OK;
    for (int i = 0; i < g->n; i++) /* what does not go together is found before anything is read */
        if (g->v[i].open)
            EK_TRY(open_trainer(g, &g->v[i], err));
    EK_TRY(ek_reading_records(&g->reading, err));
    EK_TRY(begin_trainers(g, err));
    for (int i = 0; i < g->n; i++) {
        const ek_variant *v = &g->v[i];
        const ek_train_row row = {.run = v->id,
                                  .scorer = ek_learned[v->set->scorer.kind]->name,
                                  .loss = ek_losses[v->set->loss.kind].name,
                                  .params = v->open ? (int64_t)v->trainer->n : 0,
                                  .text_hash = ek_data_hash(g->reading.data),
                                  .target_hash = v->target_hash,
                                  .steps_asked = v->set->steps};

        if (v->open)
            EK_TRY(ek_log_begin(&g->v[i].log, &row, err));
    }
    EK_TRY(ek_cohort_train(g, err));
    if (g->reading.trace == NULL)
        ek_reading_say(&g->reading, ek_now() - start);
    return EK_OK;
}

/* What only opening and a look at the text can find; nothing is trained or written. */
static ek_code look_at(ek_cohort *g, ek_err *err)
{
    const ek_reading *s = &g->reading;

    for (int i = 0; i < g->n; i++) {
        const ek_variant *v = &g->v[i];
        const char *const paths[] = {v->weights_json, v->weights_bin};

        EK_TRY(ek_log_look(v->set, v->id, g->options, paths, (int)EK_COUNT(paths), err));
        EK_TRY(open_trainer(g, &g->v[i], err));
    }
    for (int64_t i = 0; i < s->n_train && i < LOOKS; i++) {
        ek_sequence text;

        EK_TRY(ek_data_sequence(s->data, i, &text, err));
        ek_sequence_clear(&text);
    }
    return EK_OK;
}

/* look: as far as can be seen before anything is trained. */
static ek_code run_group(const ek_train_set *const *set, int n, int look,
                         const ek_train_options *options, ek_device *dev, ek_err *err)
{
    ek_cohort g = {.options = options, .v = calloc((size_t)n, sizeof *g.v)};
    ek_code code;

    if (g.v == NULL)
        return EK_FAIL(err, EK_ENOMEM, "%d training runs", n);
    err->code = EK_OK;
    EK_CHECK(ek_reading_open(&g.reading, set, n, options, dev, err));
    for (; g.n < n; g.n++)
        EK_CHECK(open_variant(&g, &g.v[g.n], set[g.n], err));
    if (look) {
        code = look_at(&g, err);
    } else {
        say_plan(&g);
        code = options->plan ? say_time(&g, err) : train(&g, err);
    }
    err->code = code;
fail:
    for (int i = 0; i < n; i++) { /* those still open end as the group does */
        ek_err ended = *err;

        if (ek_log_close(&g.v[i].log, err->code, &ended) != EK_OK && err->code == EK_OK)
            *err = ended;
        if (err->code == EK_OK && g.v[i].failed.code != EK_OK)
            *err = g.v[i].failed;
    }
    ek_reading_close(&g.reading);
    for (int i = n - 1; i >= 0; i--) {
        if (err->code != EK_OK && g.v[i].there > 0)
            ek_drop_folders(g.v[i].set->out, g.v[i].there - 1);
        close_variant(&g.v[i]);
    }
    free(g.v);
    return err->code;
}

static ek_code refuse_twins(const ek_train_set *set, int n, ek_err *err)
{
    char mine[EK_PATH_ROOM], other[EK_PATH_ROOM];

    for (int i = 0; i < n; i++) {
        EK_TRY(check_set(&set[i], err));
        EK_TRY(ek_real_path(set[i].out, mine, err));
        for (int j = 0; j < i; j++) {
            EK_TRY(ek_real_path(set[j].out, other, err));
            if (strcmp(mine, other) == 0)
                return EK_FAIL(err, EK_EASKED, "out: two runs would write to %s", set[i].out);
        }
    }
    return EK_OK;
}

/* The next runs that read together, from the first that is not taken on; returns how many. */
static int next_group(const ek_train_set *set, int n, char *taken, const ek_train_set **together)
{
    int m = 0;

    for (int j = 0; j < n; j++) {
        int joins = !taken[j] && (m == 0 || (set[j].method != EK_TRAIN_VECTOR &&
                                             together[0]->method != EK_TRAIN_VECTOR));

        for (int k = 0; k < m && joins; k++) /* with each: what they carry may differ */
            joins = ek_reading_shares(together[k], &set[j]);
        if (joins) {
            together[m++] = &set[j];
            taken[j] = 1;
        }
    }
    return m;
}

/* All groups, one after the other; look: as far as can be seen before anything is trained.  The
 * first error, but a wrong request or a stop ends it. */
static ek_code run_groups(const ek_train_set *set, int n, int look, const ek_train_options *options,
                          ek_device *dev, ek_err *err)
{
    const ek_train_set **together = calloc((size_t)n, sizeof *together);
    char *taken = calloc((size_t)n, 1);
    ek_err first = {.code = EK_OK};
    int m = 0;

    if (together == NULL || taken == NULL) {
        free(together);
        free(taken);
        return EK_FAIL(err, EK_ENOMEM, "%d training runs", n);
    }
    while (first.code != EK_ESTOPPED && first.code != EK_EASKED &&
           (m = next_group(set, n, taken, together)) > 0) {
        if (look && m == n) /* one group refuses by itself before it trains */
            break;
        const ek_code code =
            together[0]->method == EK_TRAIN_VECTOR
                ? (look ? ek_vector_look : ek_vector_run)(together[0], options, dev, err)
                : run_group(together, m, look, options, dev, err);
        if (code != EK_OK && (first.code == EK_OK || code == EK_ESTOPPED))
            first = *err;
    }
    free(together);
    free(taken);
    *err = first;
    return first.code;
}

ek_code ek_train_runs(const ek_train_set *set, int n, const ek_train_options *options,
                      ek_device *dev, ek_err *err)
{
    EK_TRY(refuse_twins(set, n, err));
    if (!options->plan)
        EK_TRY(run_groups(set, n, 1, options, dev, err));
    return run_groups(set, n, 0, options, dev, err);
}

ek_code ek_train_run(const ek_train_set *set, const ek_train_options *options, ek_device *dev,
                     ek_err *err)
{
    return ek_train_runs(set, 1, options, dev, err);
}
