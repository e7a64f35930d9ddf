/* infer/weights.c - config.json and model.safetensors, checked against what they are used with. */
#include "infer/weights.h"

#include "core/file.h"
#include "core/json.h"
#include "core/safetensors.h"
#include "scorers/carried.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_CONFIG = 1 << 20, MAX_HIDDEN = 65536 };

struct ek_weights {
    ek_scorer scorer;
    float *params;
    char method[32], hash[33], trained[33];
};

typedef struct reader { /* of config.json */
    const char *path;
    const ek_json *root;
} reader;

static ek_code read_int(const reader *r, const ek_json *from, const char *key, int64_t lo,
                        int64_t hi, int64_t *out, ek_err *err)
{
    const ek_json *v = ek_json_get(from, key);

    if (v == NULL || !ek_json_int(v, lo, hi, out))
        return EK_FAIL(err, EK_EINPUT, "%s: %s: %s, expected an integer of %lld .. %lld", r->path,
                       key, v == NULL ? "missing" : "found something else", (long long)lo,
                       (long long)hi);
    return EK_OK;
}

static ek_code read_string(const reader *r, const char *key, const char **out, ek_err *err)
{
    *out = ek_json_string(ek_json_get(r->root, key));
    if (*out == NULL)
        return EK_FAIL(err, EK_EINPUT, "%s: %s: expected a string", r->path, key);
    return EK_OK;
}

/* A string that must equal what the scorer is used with. */
static ek_code must_be(const reader *r, const char *key, const char *want, const char *what,
                       ek_err *err)
{
    const char *found;

    EK_TRY(read_string(r, key, &found, err));
    if (strcmp(found, want) != 0)
        return EK_FAIL(err, EK_EASKED, "%s: trained for another %s: found %.40s, expected %.40s",
                       r->path, what, found, want);
    return EK_OK;
}

static ek_code read_dims(const reader *r, const ek_dims *want, ek_err *err)
{
    const ek_json *dims = ek_json_get(r->root, "dims");
    const struct {
        const char *key;
        int want;
    } field[] = {{"n_layers", want->n_layers},
                 {"n_heads", want->n_heads},
                 {"group", want->group},
                 {"head_dim", want->head_dim}};

    if (dims == NULL || ek_json_kind_of(dims) != EK_JSON_OBJECT)
        return EK_FAIL(err, EK_EINPUT, "%s: dims: expected an object", r->path);
    for (size_t i = 0; i < EK_COUNT(field); i++) {
        int64_t found;

        EK_TRY(read_int(r, dims, field[i].key, 1, 1 << 20, &found, err));
        if (found != field[i].want)
            return EK_FAIL(err, EK_EASKED, "%s: dims.%s: found %lld, the model has %d", r->path,
                           field[i].key, (long long)found, field[i].want);
    }
    return EK_OK;
}

/* The index of a member among NULL-terminated names; a member that is missing is the first. */
static ek_code read_choice(const reader *r, const char *key, const char *const *names, int *out,
                           ek_err *err)
{
    const char *found = names[0];

    if (ek_json_get(r->root, key) != NULL)
        EK_TRY(read_string(r, key, &found, err));
    for (int i = 0; names[i] != NULL; i++)
        if (strcmp(found, names[i]) == 0) {
            *out = i;
            return EK_OK;
        }
    return EK_FAIL(err, EK_EINPUT, "%s: %s: found unknown '%.40s'", r->path, key, found);
}

/* What the scorer remembers beside the entry; files from before there was anything say nothing. */
static ek_code read_memory(ek_scorer_set *set, const reader *r, ek_err *err)
{
    int64_t skip = 0;

    EK_TRY(read_choice(r, "carried", ek_carried_names, &set->carried, err));
    if (ek_json_get(r->root, "skip") != NULL)
        EK_TRY(read_int(r, r->root, "skip", 0, 1, &skip, err));
    set->skip = skip != 0;
    if (ek_json_get(r->root, "delay") != NULL)
        EK_TRY(read_int(r, r->root, "delay", 0, 1 << 20, &set->delay, err));
    return EK_OK;
}

static ek_code read_settings(ek_weights *w, const reader *r, const ek_weights_need *need,
                             ek_err *err)
{
    const char *format, *method, *scorer, *age, *input;
    int64_t version;

    EK_TRY(read_string(r, "format", &format, err));
    if (strcmp(format, "evictkit scorer") != 0)
        return EK_FAIL(err, EK_EINPUT, "%s: format: found '%.40s', expected 'evictkit scorer'",
                       r->path, format);
    EK_TRY(read_int(r, r->root, "version", 1, 1, &version, err));
    EK_TRY(read_string(r, "method", &method, err));
    if (need->method != NULL && strcmp(method, need->method) != 0)
        return EK_FAIL(err, EK_EASKED, "%s: weights of %.40s, but the method is %.40s", r->path,
                       method, need->method);
    if (ek_method_find(method) == NULL)
        return EK_FAIL(err, EK_EINPUT, "%s: method: found unknown '%.40s'", r->path, method);
    snprintf(w->method, sizeof w->method, "%s", method);
    EK_TRY(must_be(r, "model", need->model_hash, "base model", err));
    EK_TRY(must_be(r, "tokenizer", need->tokenizer_hash, "tokenizer", err));
    EK_TRY(read_dims(r, need->dims, err));
    EK_TRY(read_string(r, "scorer", &scorer, err));
    w->scorer.cls = ek_learned_find(scorer);
    if (w->scorer.cls == NULL)
        return EK_FAIL(err, EK_EINPUT, "%s: scorer: found unknown '%.40s'", r->path, scorer);
    EK_TRY(read_string(r, "age", &age, err));
    for (w->scorer.set.age = 0; ek_age_names[w->scorer.set.age] != NULL; w->scorer.set.age++)
        if (strcmp(age, ek_age_names[w->scorer.set.age]) == 0)
            break;
    if (ek_age_names[w->scorer.set.age] == NULL)
        return EK_FAIL(err, EK_EINPUT, "%s: age: found unknown '%.40s'", r->path, age);
    EK_TRY(read_string(r, "input", &input, err));
    if (strcmp(input, "raw") != 0 && strcmp(input, "rms") != 0)
        return EK_FAIL(err, EK_EINPUT, "%s: input: found '%.40s', expected raw or rms", r->path,
                       input);
    w->scorer.set.rms = strcmp(input, "rms") == 0;
    EK_TRY(read_int(r, r->root, "hidden", 1, MAX_HIDDEN, &w->scorer.set.hidden, err));
    EK_TRY(read_int(r, r->root, "sinks", 0, 1 << 20, &w->scorer.set.sinks, err));
    EK_TRY(read_int(r, r->root, "recent", 1, 1 << 20, &w->scorer.set.recent, err));
    if (need->recent > 0 && need->recent != w->scorer.set.recent)
        return EK_FAIL(err, EK_EASKED,
                       "%s: trained for a recent window of %lld, found recent %lld in the method",
                       r->path, (long long)w->scorer.set.recent, (long long)need->recent);
    return read_memory(&w->scorer.set, r, err);
}

/* Do the settings go together? */
static ek_code check_settings(const ek_weights *w, const reader *r, ek_err *err)
{
    return ek_scorer_check(&w->scorer, err) == EK_OK ? EK_OK : ek_err_in(err, "%s", r->path);
}

static ek_code read_config(ek_weights *w, const char *path, const ek_weights_need *need,
                           ek_err *err)
{
    ek_map map = {0};
    ek_json *root = NULL;
    reader r = {.path = path};
    const char *hash, *settings;

    EK_TRY(ek_map_open(&map, path, err));
    if (map.size > MAX_CONFIG)
        EK_CHECK(EK_FAIL(err, EK_EINPUT, "%s: found %zu bytes, expected at most %d", path, map.size,
                         MAX_CONFIG));
    EK_CHECK(ek_json_parse(&root, (const char *)map.data, map.size, path, err));
    r.root = root;
    if (ek_json_kind_of(root) != EK_JSON_OBJECT)
        EK_CHECK(EK_FAIL(err, EK_EINPUT, "%s: expected a JSON object", path));
    EK_CHECK(read_settings(w, &r, need, err));
    EK_CHECK(check_settings(w, &r, err));
    if (ek_json_get(root, "weights") != NULL) {
        EK_CHECK(read_string(&r, "weights", &hash, err));
        if (strlen(hash) != 32)
            EK_CHECK(EK_FAIL(err, EK_EINPUT, "%s: weights: expected 32 hex digits", path));
        memcpy(w->hash, hash, 33);
    }
    /* A training run is named by the hash of its resolved settings, which stand here whole. */
    if ((settings = ek_json_string(ek_json_get(root, "settings"))) != NULL)
        ek_hash128(w->trained, settings, strlen(settings));
    ek_json_close(root);
    ek_map_close(&map);
    return EK_OK;
fail:
    ek_json_close(root);
    ek_map_close(&map);
    return err->code;
}

static ek_code read_params(ek_weights *w, const char *path, ek_err *err)
{
    ek_param p[EK_MAX_PARAMS];
    const int n = w->scorer.cls->learner->describe(&w->scorer, p);
    const ek_dims *d = &w->scorer.dims;
    char hash[33];
    ek_map map;
    ek_st *st;

    EK_TRY(ek_map_open(&map, path, err));
    ek_hash128(hash, map.data, map.size);
    ek_map_close(&map);
    if (w->hash[0] == '\0')
        memcpy(w->hash, hash, 33);
    if (strcmp(hash, w->hash) != 0)
        return EK_FAIL(err, EK_EINPUT,
                       "%s: its hash is %s, config.json says %s: they are not of one training",
                       path, hash, w->hash);
    EK_TRY(ek_st_open(&st, path, err));
    if (ek_st_count(st) != n)
        EK_CHECK(
            EK_FAIL(err, EK_EINPUT, "%s: found %d tensors, expected %d", path, ek_st_count(st), n));
    w->params = malloc(ek_params_size(&w->scorer) * sizeof *w->params);
    if (w->params == NULL)
        EK_CHECK(EK_FAIL(err, EK_ENOMEM, "%s: parameters", path));
    for (int i = 0; i < n; i++) {
        const int64_t shape[4] = {d->n_layers, d->n_heads, p[i].rows, p[i].cols};

        EK_CHECK(ek_st_read_f32(st, p[i].name, 4, shape,
                                w->params + ek_params_at(&w->scorer, i, 0, 0), err));
    }
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
    const size_t room = strlen(dir) + 32;
    char *path = malloc(room);

    if (w == NULL || path == NULL) {
        free(path);
        free(w);
        return EK_FAIL(err, EK_ENOMEM, "%s: weights", dir);
    }
    w->scorer.dev = dev;
    w->scorer.dims = *need->dims;
    snprintf(path, room, "%s/config.json", dir);
    EK_CHECK(read_config(w, path, need, err));
    snprintf(path, room, "%s/model.safetensors", dir);
    EK_CHECK(read_params(w, path, err));
    w->scorer.params = w->params;
    free(path);
    *out = w;
    return EK_OK;
fail:
    free(path);
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

const char *ek_weights_trained(const ek_weights *w)
{
    return w->trained;
}
