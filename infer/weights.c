/* infer/weights.c - config.json and model.safetensors, checked against what they are used with. */
#include "infer/weights.h"

#include "core/file.h"
#include "infer/folder.h"
#include "scorers/carried.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_HIDDEN = 65536 };

struct ek_weights {
    ek_scorer scorer;
    float *params;
    char method[32], hash[33], scoring[33], trained[33];
};

static const char *const known[] = {
    "format",   "version", "method",   "scorer",     "hidden",     "age",       "input",
    "carried",  "delay",   "absolute", "norm",       "skip",       "sinks",     "recent",
    "dims",     "model",   "data",     "target",     "loss",       "tokenizer", "steps",
    "settings", "weights", "scoring",  "final_loss", "parameters", NULL};

int64_t ek_weights_width(const ek_scorer *s)
{
    ek_param p[EK_MAX_PARAMS];
    const int n = s->cls->learner->describe(s, p);

    for (int i = 0; i < n; i++)
        if (strcmp(p[i].name, "hidden.weight") == 0)
            return p[i].rows;
    return 1;
}

void ek_weights_scoring(char out[33], const char *method, const ek_scorer *s)
{
    const ek_scorer_set *set = &s->set;
    char text[512];

    snprintf(text, sizeof text,
             "method %.40s scorer %.40s hidden %lld age %s input %s carried %s absolute %d "
             "delay %lld norm %d skip %d sinks %lld recent %lld",
             method, s->cls->name, (long long)ek_weights_width(s), ek_age_names[set->age],
             set->rms ? "rms" : "raw", ek_carried_names[set->carried], set->absolute != 0,
             (long long)set->delay, set->norm != 0, set->skip != 0, (long long)set->sinks,
             (long long)set->recent);
    ek_hash128(out, text, strlen(text));
}

/* What the scorer remembers beside the entry; files from before there was anything say nothing. */
static ek_code read_memory(ek_scorer_set *set, const ek_folder *f, ek_err *err)
{
    int64_t norm = 0, skip = 0, absolute = 0;

    EK_TRY(ek_folder_name(f, "carried", ek_carried_names, 0, &set->carried, err));
    if (ek_json_get(f->root, "norm") != NULL)
        EK_TRY(ek_folder_int(f, "norm", 0, 1, &norm, err));
    if (ek_json_get(f->root, "skip") != NULL)
        EK_TRY(ek_folder_int(f, "skip", 0, 1, &skip, err));
    if (ek_json_get(f->root, "absolute") != NULL)
        EK_TRY(ek_folder_int(f, "absolute", 0, 1, &absolute, err));
    set->absolute = absolute != 0;
    set->norm = norm != 0;
    set->skip = skip != 0;
    if (ek_json_get(f->root, "delay") != NULL)
        EK_TRY(ek_folder_int(f, "delay", 0, 1 << 20, &set->delay, err));
    return EK_OK;
}

static ek_code read_settings(ek_weights *w, const ek_folder *f, const ek_weights_need *need,
                             ek_err *err)
{
    const char *method, *scorer, *input;

    EK_TRY(ek_folder_string(f, "method", &method, err));
    if (need->method != NULL && strcmp(method, need->method) != 0)
        return EK_FAIL(err, EK_EASKED, "%s: weights of %.40s, but the method is %.40s", f->config,
                       method, need->method);
    if (ek_method_find(method) == NULL)
        return EK_FAIL(err, EK_EINPUT, "%s: method: found unknown '%.40s'", f->config, method);
    snprintf(w->method, sizeof w->method, "%s", method);
    EK_TRY(ek_folder_must_be(f, "model", need->model_hash, "base model", err));
    EK_TRY(ek_folder_must_be(f, "tokenizer", need->tokenizer_hash, "tokenizer", err));
    EK_TRY(ek_folder_dims(f, need->dims, err));
    EK_TRY(ek_folder_string(f, "scorer", &scorer, err));
    w->scorer.cls = ek_learned_find(scorer);
    if (w->scorer.cls == NULL)
        return EK_FAIL(err, EK_EINPUT, "%s: scorer: found unknown '%.40s'", f->config, scorer);
    EK_TRY(ek_folder_name(f, "age", ek_age_names, 1, &w->scorer.set.age, err));
    EK_TRY(ek_folder_string(f, "input", &input, err));
    if (strcmp(input, "raw") != 0 && strcmp(input, "rms") != 0)
        return EK_FAIL(err, EK_EINPUT, "%s: input: found '%.40s', expected raw or rms", f->config,
                       input);
    w->scorer.set.rms = strcmp(input, "rms") == 0;
    EK_TRY(ek_folder_int(f, "hidden", 1, MAX_HIDDEN, &w->scorer.set.hidden, err));
    EK_TRY(ek_folder_int(f, "sinks", 0, 1 << 20, &w->scorer.set.sinks, err));
    EK_TRY(ek_folder_int(f, "recent", 1, 1 << 20, &w->scorer.set.recent, err));
    if (need->sinks >= 0 && need->sinks != w->scorer.set.sinks)
        return EK_FAIL(err, EK_EASKED, "%s: trained for %lld sinks, found sinks %lld in the method",
                       f->config, (long long)w->scorer.set.sinks, (long long)need->sinks);
    if (need->recent >= 0 && need->recent != w->scorer.set.recent)
        return EK_FAIL(err, EK_EASKED,
                       "%s: trained for a recent window of %lld, found recent %lld in the method",
                       f->config, (long long)w->scorer.set.recent, (long long)need->recent);
    return read_memory(&w->scorer.set, f, err);
}

/* Do the settings go together? */
static ek_code check_settings(const ek_weights *w, const ek_folder *f, ek_err *err)
{
    return ek_scorer_check(&w->scorer, err) == EK_OK ? EK_OK : ek_err_in(err, "%s", f->config);
}

static ek_code read_config(ek_weights *w, const ek_folder *f, const ek_weights_need *need,
                           ek_err *err)
{
    const char *settings, *scoring;

    EK_TRY(ek_folder_keys(f, known, err));
    EK_TRY(read_settings(w, f, need, err));
    EK_TRY(check_settings(w, f, err));
    ek_weights_scoring(w->scoring, w->method, &w->scorer);
    if (ek_json_get(f->root, "scoring") != NULL) {
        EK_TRY(ek_folder_string(f, "scoring", &scoring, err));
        if (strcmp(scoring, w->scoring) != 0)
            return EK_FAIL(err, EK_EINPUT,
                           "%s: the settings were changed since it was written: their hash is %s, "
                           "scoring says %.40s",
                           f->config, w->scoring, scoring);
    }
    /* A training run is named by the hash of its resolved settings, which stand here whole. */
    if ((settings = ek_json_string(ek_json_get(f->root, "settings"))) != NULL)
        ek_hash128(w->trained, settings, strlen(settings));
    return EK_OK;
}

static ek_code read_params(ek_weights *w, ek_folder *f, ek_err *err)
{
    ek_param p[EK_MAX_PARAMS];
    const int n = w->scorer.cls->learner->describe(&w->scorer, p);
    const ek_dims *d = &w->scorer.dims;
    ek_st *st;

    EK_TRY(ek_folder_tensors(f, n, &st, err));
    w->params = malloc(ek_params_size(&w->scorer) * sizeof *w->params);
    if (w->params == NULL)
        EK_CHECK(EK_FAIL(err, EK_ENOMEM, "%s: parameters", f->weights));
    for (int i = 0; i < n; i++) {
        const int64_t shape[4] = {d->n_layers, d->n_heads, p[i].rows, p[i].cols};

        EK_CHECK(ek_st_read_f32(st, p[i].name, 4, shape,
                                w->params + ek_params_at(&w->scorer, i, 0, 0), err));
    }
    memcpy(w->hash, f->hash, sizeof w->hash);
    ek_st_close(st);
    return EK_OK;
fail:
    ek_st_close(st);
    return err->code;
}

ek_code ek_weights_open(ek_weights **out, const char *dir, const ek_weights_need *need,
                        ek_device *dev, ek_err *err)
{
    ek_weights *w = calloc(1, sizeof *w);
    ek_folder f = {0};

    if (w == NULL)
        return EK_FAIL(err, EK_ENOMEM, "%s: weights", dir);
    w->scorer.dev = dev;
    w->scorer.dims = *need->dims;
    EK_CHECK(ek_folder_open(&f, dir, "evictkit scorer", err));
    EK_CHECK(read_config(w, &f, need, err));
    EK_CHECK(read_params(w, &f, err));
    w->scorer.params = w->params;
    ek_folder_close(&f);
    *out = w;
    return EK_OK;
fail:
    ek_folder_close(&f);
    ek_weights_close(w);
    return err->code;
}

void ek_weights_close(ek_weights *w)
{
    if (w == NULL)
        return;
    free(w->params);
    free(w);
}

void ek_weights_apply(const ek_weights *w, ek_method *method)
{
    method->measure.signal = w->scorer.cls;
    method->measure.scorer = &w->scorer;
    method->protect.sinks = (int)w->scorer.set.sinks;
    method->protect.recent = (int)w->scorer.set.recent;
}

const ek_scorer *ek_weights_scorer(const ek_weights *w)
{
    return &w->scorer;
}

const char *ek_weights_method(const ek_weights *w)
{
    return w->method;
}

const char *ek_weights_hash(const ek_weights *w)
{
    return w->hash;
}

const char *ek_weights_settings(const ek_weights *w)
{
    return w->scoring;
}

const char *ek_weights_trained(const ek_weights *w)
{
    return w->trained;
}
