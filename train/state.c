/* train/state.c - see the header. */
#include "train/state.h"

#include "core/file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void add_text(ek_hasher *h, const char *text)
{
    ek_hasher_add(h, text, strlen(text) + 1); /* with its end: "ab", "c" is not "a", "bc" */
}

static void add_tensor(ek_hasher *h, const ek_st_tensor *t)
{
    const int64_t what[] = {t->type, t->n_dims};

    add_text(h, t->name);
    ek_hasher_add(h, what, sizeof what);
    ek_hasher_add(h, t->dim, (size_t)t->n_dims * sizeof *t->dim);
    ek_hasher_add(h, t->data, t->bytes);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const ek_st_tensor *)a)->name, ((const ek_st_tensor *)b)->name);
}

ek_code ek_state_write(const char *path, const ek_st_tensor *tensors, int n, const ek_st_pair *meta,
                       int n_meta, ek_err *err)
{
    ek_st_tensor t[EK_STATE_TENSORS];
    ek_st_pair *all = calloc((size_t)n_meta + 1, sizeof *all);
    ek_hasher *h = ek_hasher_open();
    char hash[33];

    if (all == NULL || h == NULL || n > EK_STATE_TENSORS) {
        free(all);
        if (h != NULL)
            ek_hasher_close(h, hash);
        return EK_FAIL(err, EK_ENOMEM, "%s: the hash of a checkpoint", path);
    }
    for (int i = 0; i < n; i++)
        t[i] = tensors[i];
    qsort(t, (size_t)n, sizeof *t, by_name); /* as they are read */
    for (int i = 0; i < n_meta; i++) {
        all[i] = meta[i];
        add_text(h, meta[i].key);
        add_text(h, meta[i].value);
    }
    for (int i = 0; i < n; i++)
        add_tensor(h, &t[i]);
    ek_hasher_close(h, hash);
    all[n_meta] = (ek_st_pair){"hash", hash};
    const ek_code code = ek_st_write(path, t, n, all, n_meta + 1, err);
    free(all);
    return code;
}

static ek_code check(const ek_st *st, const char *path, const ek_st_pair *meta, int n_meta,
                     ek_err *err)
{
    const char *format = ek_st_meta(st, meta[EK_STATE_FORMAT].key);
    const char *stored = ek_st_meta(st, "hash");
    char now[33];

    if (format == NULL || strcmp(format, meta[EK_STATE_FORMAT].value) != 0)
        return EK_FAIL(err, EK_EINPUT,
                       "%s: format: found %.40s, expected %s, a checkpoint of this evictkit; "
                       "--restart begins again",
                       path, format != NULL ? format : "none", meta[EK_STATE_FORMAT].value);
    for (int i = 0; i < n_meta || stored == NULL; i++)
        if (stored == NULL || ek_st_meta(st, meta[i].key) == NULL)
            return EK_FAIL(err, EK_EINPUT,
                           "%s: damaged checkpoint: it has no %s; --restart begins again", path,
                           stored == NULL ? "hash" : meta[i].key);
    ek_hasher *h = ek_hasher_open();
    if (h == NULL)
        return EK_FAIL(err, EK_ENOMEM, "%s: the hash of a checkpoint", path);
    for (int i = 0; i < n_meta; i++) {
        add_text(h, meta[i].key);
        add_text(h, ek_st_meta(st, meta[i].key));
    }
    for (int i = 0; i < ek_st_count(st); i++)
        add_tensor(h, ek_st_at(st, i));
    ek_hasher_close(h, now);
    if (strcmp(stored, now) != 0)
        return EK_FAIL(err, EK_EINPUT,
                       "%s: damaged checkpoint: it has hash %s, expected %.32s; --restart begins "
                       "again",
                       path, now, stored);
    const char *found = ek_st_meta(st, meta[EK_STATE_IDENTITY].key);
    if (strcmp(found, meta[EK_STATE_IDENTITY].value) != 0)
        return EK_FAIL(err, EK_EASKED,
                       "%s: the checkpoint belongs to a run with other settings, another text or "
                       "another model (found %.32s, expected %.32s); --restart begins anew in its "
                       "place",
                       path, found, meta[EK_STATE_IDENTITY].value);
    return EK_OK;
}

ek_code ek_state_open(ek_st **out, const char *path, const ek_st_pair *meta, int n_meta,
                      ek_err *err)
{
    ek_st *st;

    EK_TRY(ek_st_open(&st, path, err));
    if (check(st, path, meta, n_meta, err) != EK_OK) {
        ek_st_close(st);
        return err->code;
    }
    *out = st;
    return EK_OK;
}

ek_code ek_state_int(const ek_st *st, const char *path, const char *key, int64_t most, int64_t *out,
                     ek_err *err)
{
    const char *text = ek_st_meta(st, key);
    const size_t n = text != NULL ? strspn(text, "0123456789") : 0;
    const int plain = n > 0 && n <= 18 && text[n] == '\0' && (text[0] != '0' || n == 1);
    const long long x = plain ? strtoll(text, NULL, 10) : -1;

    if (x < 0 || x > most)
        return EK_FAIL(err, EK_EINPUT, "%s: %s: found '%.20s', expected 0 .. %lld", path, key,
                       text != NULL ? text : "", (long long)most);
    *out = x;
    return EK_OK;
}
