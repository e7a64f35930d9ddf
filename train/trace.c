/* train/trace.c - records in memory, or in a file that is mapped once it is complete. */
#include "train/trace.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

const char *const ek_trace_names[] = {"memory", "disk", "none", NULL};

#define MAGIC "EKTRACE2" /* 2: one record per sequence, several cuts in it */
enum { HEAD = 4096 };

typedef struct file_head {
    char magic[8];
    char model[33], tokenizer[33], text[33], target[33];
    char pad[4];
    int32_t n_layers, n_heads, group, head_dim, dtype, zero;
    int64_t n, index, size; /* records; where their offsets begin; bytes of the file */
} file_head;

struct ek_trace {
    ek_trace_key key;
    char *path;
    ek_writer writer;
    int writing, finished;
    int64_t n, room, size; /* records; of at; bytes so far */
    int64_t *at;           /* (n) disk: offsets */
    ek_example *record;    /* (n) memory */
    ek_map map;
};

static file_head head_of(const ek_trace *t)
{
    file_head h = {.n_layers = t->key.dims.n_layers,
                   .n_heads = t->key.dims.n_heads,
                   .group = t->key.dims.group,
                   .head_dim = t->key.dims.head_dim,
                   .dtype = (int32_t)t->key.dtype,
                   .n = t->n,
                   .index = t->size,
                   .size = t->size + t->n * 8};

    memcpy(h.magic, MAGIC, sizeof h.magic);
    memcpy(h.model, t->key.model, sizeof h.model);
    memcpy(h.tokenizer, t->key.tokenizer, sizeof h.tokenizer);
    memcpy(h.text, t->key.text, sizeof h.text);
    memcpy(h.target, t->key.target, sizeof h.target);
    return h;
}

static ek_code new_trace(ek_trace **out, const ek_trace_key *key, const char *path, ek_err *err)
{
    ek_trace *t = calloc(1, sizeof *t);

    if (t == NULL || (path != NULL && (t->path = strdup(path)) == NULL)) {
        free(t);
        return EK_FAIL(err, EK_ENOMEM, "a trace");
    }
    t->key = *key;
    *out = t;
    return EK_OK;
}

ek_code ek_trace_fits(const char *path, int64_t bytes, ek_err *err)
{
    const char *advice = "take fewer data.entries or data.sequences, or trace: none, which makes "
                         "records when they are asked for";
    struct statvfs fs;
    char *dir, *slash;

    if (path == NULL) {
        const double all = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);

        if (all > 0 && (double)bytes > 0.9 * all)
            return EK_FAIL(err, EK_EASKED,
                           "the records need up to %.1f GB, the machine has %.1f GB of memory: %s",
                           (double)bytes / 1e9, all / 1e9, advice);
        return EK_OK;
    }
    dir = strdup(path);
    if (dir == NULL)
        return EK_FAIL(err, EK_ENOMEM, "a trace");
    slash = strrchr(dir, '/');
    if (slash != NULL)
        slash[slash == dir] = '\0';
    const int known = statvfs(slash != NULL ? dir : ".", &fs) == 0;
    free(dir);
    const double rest = known ? (double)fs.f_bavail * (double)fs.f_frsize : INFINITY;
    if ((double)bytes > rest)
        return EK_FAIL(err, EK_EASKED, "%s: the records need up to %.1f GB, %.1f GB are free: %s",
                       path, (double)bytes / 1e9, rest / 1e9, advice);
    return EK_OK;
}

ek_code ek_trace_create(ek_trace **out, const ek_trace_key *key, const char *path, ek_err *err)
{
    static const char zero[HEAD];
    ek_trace *t;

    EK_TRY(new_trace(&t, key, path, err));
    t->room = key->n > 0 ? key->n : 1;
    t->at = calloc((size_t)t->room, sizeof *t->at);
    t->record = calloc((size_t)t->room, sizeof *t->record);
    if (t->at == NULL || t->record == NULL) {
        ek_trace_close(t);
        return EK_FAIL(err, EK_ENOMEM, "a trace of %lld records", (long long)key->n);
    }
    if (path != NULL) {
        if (ek_writer_open(&t->writer, path, err) != EK_OK) {
            ek_trace_close(t);
            return err->code;
        }
        t->writing = 1;
        fwrite(zero, 1, HEAD, t->writer.file); /* errors are found at commit */
        t->size = HEAD;
    }
    *out = t;
    return EK_OK;
}

ek_code ek_trace_add(ek_trace *t, ek_example *r, ek_err *err)
{
    if (t->n == t->room || t->finished) {
        ek_example_close(r);
        return EK_FAIL(err, EK_EBROKEN, "more records than the %lld announced", (long long)t->room);
    }
    t->at[t->n] = t->size;
    t->size += r->head->bytes;
    if (t->path == NULL) {
        t->record[t->n++] = *r; /* taken over */
        *r = (ek_example){0};
        return EK_OK;
    }
    const size_t bytes = (size_t)r->head->bytes;
    const size_t written = fwrite(r->head, 1, bytes, t->writer.file);
    ek_example_close(r);
    t->n++;
    if (written != bytes)
        return EK_FAIL(err, EK_EIO, "%s: record %lld could not be written; is the disk full?",
                       t->path, (long long)t->n - 1);
    return EK_OK;
}

/* Everything a reader relies on: the head fits its file, the offsets their records. */
static ek_code check(ek_trace *t, const file_head *h, ek_err *err)
{
    const uint8_t *index = t->map.data + h->index;

    for (int64_t i = 0; i < h->n; i++) {
        ek_example r;
        int64_t at;

        memcpy(&at, index + i * 8, 8);
        if (at < HEAD || at % 64 != 0 || at > h->index)
            return EK_FAIL(err, EK_EINPUT,
                           "%s: record %lld: found offset %lld, expected %d .. %lld", t->path,
                           (long long)i, (long long)at, HEAD, (long long)h->index);
        if (ek_example_view(&r, &t->key.dims, t->key.dtype, t->map.data + at, h->index - at, err) !=
                EK_OK ||
            ek_example_check(&r, err) != EK_OK)
            return ek_err_in(err, "%s: record %lld", t->path, (long long)i);
        t->at[i] = at;
    }
    return EK_OK;
}

static ek_code read_file(ek_trace *t, ek_err *err)
{
    const file_head want = head_of(t);
    file_head h;

    EK_TRY(ek_map_open(&t->map, t->path, err));
    if (t->map.size < HEAD)
        return EK_FAIL(err, EK_EINPUT, "%s: found %zu bytes, expected a trace's head of %d",
                       t->path, t->map.size, HEAD);
    memcpy(&h, t->map.data, sizeof h);
    if (memcmp(h.magic, MAGIC, sizeof h.magic) != 0)
        return EK_FAIL(err, EK_EINPUT, "%s: not a trace of this version of evictkit", t->path);
    const struct {
        const char *what, *found, *want;
    } hash[] = {{"model", h.model, want.model},
                {"tokenizer", h.tokenizer, want.tokenizer},
                {"text and data settings", h.text, want.text},
                {"target settings", h.target, want.target}};
    for (size_t i = 0; i < EK_COUNT(hash); i++)
        if (memcmp(hash[i].found, hash[i].want, 33) != 0)
            return EK_FAIL(err, EK_EASKED,
                           "%s: the trace was made with another %s (hash %.32s, now %.32s); remove "
                           "the file or name another",
                           t->path, hash[i].what, hash[i].found, hash[i].want);
    if (h.n_layers != want.n_layers || h.n_heads != want.n_heads || h.group != want.group ||
        h.head_dim != want.head_dim || h.dtype != want.dtype)
        return EK_FAIL(err, EK_EASKED, "%s: the trace was made with another model or storage type",
                       t->path);
    if (h.size != (int64_t)t->map.size || h.n < 1 || h.n > h.size / 64 || h.index < HEAD ||
        h.index > h.size - h.n * 8 || h.n != t->key.n)
        return EK_FAIL(err, EK_EINPUT,
                       "%s: found %zu bytes and %lld records, expected %lld bytes and %lld records",
                       t->path, t->map.size, (long long)h.n, (long long)h.size,
                       (long long)t->key.n);
    t->n = h.n;
    t->size = h.index;
    if (t->at == NULL && (t->at = calloc((size_t)h.n, sizeof *t->at)) == NULL)
        return EK_FAIL(err, EK_ENOMEM, "%s: offsets", t->path);
    EK_TRY(check(t, &h, err));
    t->finished = 1;
    return EK_OK;
}

ek_code ek_trace_finish(ek_trace *t, ek_err *err)
{
    if (t->path == NULL) {
        t->finished = 1;
        return EK_OK;
    }
    const file_head h = head_of(t);
    FILE *f = t->writer.file;

    fwrite(t->at, 8, (size_t)t->n, f);
    if (fseek(f, 0, SEEK_SET) != 0)
        return EK_FAIL(err, EK_EIO, "%s: cannot go back to the head", t->path);
    fwrite(&h, sizeof h, 1, f);
    EK_TRY(ek_writer_commit(&t->writer, err));
    ek_writer_close(&t->writer);
    t->writing = 0;
    t->key.n = t->n;
    return read_file(t, err);
}

ek_code ek_trace_open(ek_trace **out, const ek_trace_key *key, const char *path, ek_err *err)
{
    ek_trace *t;

    EK_TRY(new_trace(&t, key, path, err));
    if (read_file(t, err) != EK_OK) {
        ek_trace_close(t);
        return err->code;
    }
    *out = t;
    return EK_OK;
}

void ek_trace_close(ek_trace *t)
{
    if (t == NULL)
        return;
    if (t->writing)
        ek_writer_close(&t->writer);
    if (t->record != NULL)
        for (int64_t i = 0; i < t->n; i++)
            ek_example_close(&t->record[i]);
    if (t->map.data != NULL)
        ek_map_close(&t->map);
    free(t->record);
    free(t->at);
    free(t->path);
    free(t);
}

int64_t ek_trace_count(const ek_trace *t)
{
    return t->n;
}

int64_t ek_trace_bytes(const ek_trace *t)
{
    return t->size;
}

ek_code ek_trace_get(const ek_trace *t, int64_t i, ek_example *out, ek_err *err)
{
    if (!t->finished || i < 0 || i >= t->n)
        return EK_FAIL(err, EK_EBROKEN, "record %lld of %lld", (long long)i, (long long)t->n);
    if (t->path == NULL) {
        *out = t->record[i];
        out->owned = 0;
        return EK_OK;
    }
    return ek_example_view(out, &t->key.dims, t->key.dtype, t->map.data + t->at[i],
                           t->size - t->at[i], err);
}
