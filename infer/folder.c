/* infer/folder.c - see the header. */
#include "infer/folder.h"

#include "core/config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_CONFIG = 1 << 20 };

static ek_code int_of(const ek_folder *f, const ek_json *from, const char *key, int64_t lo,
                      int64_t hi, int64_t *out, ek_err *err)
{
    const ek_json *v = ek_json_get(from, key);

    if (v == NULL || !ek_json_int(v, lo, hi, out))
        return EK_FAIL(err, EK_EINPUT, "%s: %s: %s, expected an integer of %lld .. %lld", f->config,
                       key, v == NULL ? "missing" : "found something else", (long long)lo,
                       (long long)hi);
    return EK_OK;
}

ek_code ek_folder_int(const ek_folder *f, const char *key, int64_t lo, int64_t hi, int64_t *out,
                      ek_err *err)
{
    return int_of(f, f->root, key, lo, hi, out, err);
}

ek_code ek_folder_string(const ek_folder *f, const char *key, const char **out, ek_err *err)
{
    *out = ek_json_string(ek_json_get(f->root, key));
    if (*out == NULL)
        return EK_FAIL(err, EK_EINPUT, "%s: %s: expected a string", f->config, key);
    return EK_OK;
}

ek_code ek_folder_name(const ek_folder *f, const char *key, const char *const *names, int must,
                       int *out, ek_err *err)
{
    const char *found = names[0];

    if (must || ek_json_get(f->root, key) != NULL)
        EK_TRY(ek_folder_string(f, key, &found, err));
    for (int i = 0; names[i] != NULL; i++)
        if (strcmp(found, names[i]) == 0) {
            *out = i;
            return EK_OK;
        }
    return EK_FAIL(err, EK_EINPUT, "%s: %s: found unknown '%.40s'", f->config, key, found);
}

ek_code ek_folder_must_be(const ek_folder *f, const char *key, const char *want, const char *what,
                          ek_err *err)
{
    const char *found;

    EK_TRY(ek_folder_string(f, key, &found, err));
    if (strcmp(found, want) != 0)
        return EK_FAIL(err, EK_EASKED, "%s: trained for another %s: found %.40s, expected %.40s",
                       f->config, what, found, want);
    return EK_OK;
}

ek_code ek_folder_dims(const ek_folder *f, const ek_dims *want, ek_err *err)
{
    const ek_json *dims = ek_json_get(f->root, "dims");
    const struct {
        const char *key;
        int want;
    } field[] = {{"n_layers", want->n_layers},
                 {"n_heads", want->n_heads},
                 {"group", want->group},
                 {"head_dim", want->head_dim}};

    if (dims == NULL || ek_json_kind_of(dims) != EK_JSON_OBJECT)
        return EK_FAIL(err, EK_EINPUT, "%s: dims: expected an object", f->config);
    for (size_t i = 0; i < EK_COUNT(field); i++) {
        int64_t found;

        EK_TRY(int_of(f, dims, field[i].key, 1, 1 << 20, &found, err));
        if (found != field[i].want)
            return EK_FAIL(err, EK_EASKED, "%s: dims.%s: found %lld, the model has %d", f->config,
                           field[i].key, (long long)found, field[i].want);
    }
    return EK_OK;
}

ek_code ek_folder_keys(const ek_folder *f, const char *const *known, ek_err *err)
{
    int n = 0;

    while (known[n] != NULL)
        n++;
    for (const ek_json *v = ek_json_child(f->root); v != NULL; v = ek_json_next(v)) {
        const char *key = ek_json_key(v), *near;
        int at = 0;

        while (at < n && strcmp(key, known[at]) != 0)
            at++;
        if (at < n)
            continue;
        near = ek_nearest(key, known, n);
        return EK_FAIL(err, EK_EINPUT, "%s: unknown key \"%.40s\"%s%s%s", f->config, key,
                       near ? ", did you mean \"" : "", near ? near : "", near ? "\"?" : "");
    }
    return EK_OK;
}

static ek_code read_config(ek_folder *f, const char *format, ek_err *err)
{
    const char *found, *hash;
    int64_t version;
    ek_map map;

    EK_TRY(ek_map_open(&map, f->config, err));
    if (map.size > MAX_CONFIG)
        EK_CHECK(EK_FAIL(err, EK_EINPUT, "%s: found %zu bytes, expected at most %d", f->config,
                         map.size, MAX_CONFIG));
    EK_CHECK(ek_json_parse(&f->root, (const char *)map.data, map.size, f->config, err));
    ek_map_close(&map);
    if (ek_json_kind_of(f->root) != EK_JSON_OBJECT)
        return EK_FAIL(err, EK_EINPUT, "%s: expected a JSON object", f->config);
    EK_TRY(ek_folder_string(f, "format", &found, err));
    if (strcmp(found, format) != 0)
        return EK_FAIL(err, EK_EINPUT, "%s: format: found '%.40s', expected '%s'", f->config, found,
                       format);
    EK_TRY(ek_folder_int(f, "version", 1, 1, &version, err));
    if (ek_json_get(f->root, "weights") == NULL)
        return EK_OK;
    EK_TRY(ek_folder_string(f, "weights", &hash, err));
    if (strlen(hash) != 32)
        return EK_FAIL(err, EK_EINPUT, "%s: weights: expected 32 hex digits", f->config);
    memcpy(f->hash, hash, 33);
    return EK_OK;
fail:
    ek_map_close(&map);
    return err->code;
}

ek_code ek_folder_open(ek_folder *f, const char *dir, const char *format, ek_err *err)
{
    const size_t room = strlen(dir) + 32;
    ek_code code;

    *f = (ek_folder){.config = malloc(room), .weights = malloc(room)};
    if (f->config == NULL || f->weights == NULL) {
        ek_folder_close(f);
        return EK_FAIL(err, EK_ENOMEM, "%s: weights", dir);
    }
    snprintf(f->config, room, "%s/config.json", dir);
    snprintf(f->weights, room, "%s/model.safetensors", dir);
    code = read_config(f, format, err);
    if (code != EK_OK)
        ek_folder_close(f);
    return code;
}

void ek_folder_close(ek_folder *f)
{
    ek_json_close(f->root);
    free(f->config);
    free(f->weights);
    *f = (ek_folder){0};
}

ek_code ek_folder_tensors(ek_folder *f, int n, ek_st **out, ek_err *err)
{
    char hash[33];
    ek_map map;
    ek_st *st;

    EK_TRY(ek_map_open(&map, f->weights, err));
    ek_hash128(hash, map.data, map.size);
    ek_map_close(&map);
    if (f->hash[0] != '\0' && strcmp(hash, f->hash) != 0)
        return EK_FAIL(err, EK_EINPUT,
                       "%s: its hash is %s, config.json says %s: they are not of one training",
                       f->weights, hash, f->hash);
    EK_TRY(ek_st_open(&st, f->weights, err));
    if (ek_st_count(st) != n) {
        const ek_code code = EK_FAIL(err, EK_EINPUT, "%s: found %d tensors, expected %d",
                                     f->weights, ek_st_count(st), n);

        ek_st_close(st);
        return code;
    }
    memcpy(f->hash, hash, sizeof hash);
    *out = st;
    return EK_OK;
}

/* ---- writing ---- */

static ek_code open_in(ek_writer *w, const char *dir, const char *name, ek_err *err)
{
    const size_t room = strlen(dir) + strlen(name) + 2;
    char *path = malloc(room);

    if (path == NULL)
        return EK_FAIL(err, EK_ENOMEM, "%s: %s", dir, name);
    snprintf(path, room, "%s/%s", dir, name);
    const ek_code code = ek_writer_open(w, path, err);
    free(path);
    return code;
}

ek_code ek_folder_put(ek_writer *weights, const char *dir, const ek_st_tensor *tensors, int n,
                      const ek_st_pair *meta, int n_meta, char hash[33], ek_err *err)
{
    ek_map map;

    EK_TRY(ek_make_folder(dir, err));
    EK_TRY(open_in(weights, dir, "model.safetensors", err));
    EK_TRY(ek_st_put(weights, tensors, n, meta, n_meta, err));
    EK_TRY(ek_writer_finish(weights, err));
    EK_TRY(ek_map_open(&map, weights->temp, err));
    ek_hash128(hash, map.data, map.size);
    ek_map_close(&map);
    return EK_OK;
}

ek_code ek_folder_commit(ek_writer *weights, const char *dir, const ek_text *config, ek_err *err)
{
    ek_writer w = {0};

    if (config->failed)
        return EK_FAIL(err, EK_ENOMEM, "%s: config.json", dir);
    EK_TRY(open_in(&w, dir, "config.json", err));
    fwrite(config->data, 1, config->size, w.file); /* errors are found when it is finished */
    ek_code code = ek_writer_finish(&w, err);
    if (code == EK_OK)
        code = ek_writer_commit(weights, err);
    if (code == EK_OK)
        code = ek_writer_commit(&w, err);
    ek_writer_close(&w);
    return code;
}
