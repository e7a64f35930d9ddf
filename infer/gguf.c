#include "infer/gguf.h"

#include "infer/gguf_file.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

const char *const ek_gguf_value_names[EK_GGUF_COUNT] = {
    "u8", "i8", "u16", "i16", "u32", "i32", "f32", "bool", "string", "array", "u64", "i64", "f64"};
const uint8_t ek_gguf_value_sizes[EK_GGUF_COUNT] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};

/* The least a string, a key and a tensor can take: what bounds counts by the bytes left. */
enum { MIN_STRING = 8, MIN_ARRAY = 12, MIN_KEY = 13, MIN_TENSOR = 32 };
enum { MAX_KEY_NAME = 65535, MAX_TENSOR_NAME = 64, MAX_NESTING = 2, DEFAULT_ALIGNMENT = 32 };

/* Reading front to back; every access goes through need(). */
typedef struct cursor {
    const char *path;
    const uint8_t *begin, *p, *end;
} cursor;

static size_t left(const cursor *c)
{
    return (size_t)(c->end - c->p);
}

static ek_code need(const cursor *c, uint64_t bytes, const char *what, ek_err *err)
{
    if (bytes > left(c))
        return EK_FAIL(err, EK_EINPUT,
                       "%s: byte %zu: %s needs %" PRIu64 " bytes, found %zu before the end",
                       c->path, (size_t)(c->p - c->begin), what, bytes, left(c));
    return EK_OK;
}

static ek_code get(cursor *c, int size, uint64_t *out, const char *what, ek_err *err)
{
    EK_TRY(need(c, (uint64_t)size, what, err));
    *out = ek_gguf_le(c->p, size);
    c->p += size;
    return EK_OK;
}

static ek_code get_string(cursor *c, ek_gguf_str *out, const char *what, ek_err *err)
{
    uint64_t size;

    EK_TRY(get(c, 8, &size, what, err));
    EK_TRY(need(c, size, what, err));
    out->data = (const char *)c->p;
    out->size = (size_t)size;
    c->p += size;
    return EK_OK;
}

/* A count of things of at least `least` bytes each. */
static ek_code get_count(cursor *c, uint64_t least, uint64_t *out, const char *what, ek_err *err)
{
    const size_t at = (size_t)(c->p - c->begin);

    EK_TRY(get(c, 8, out, what, err));
    if (*out > left(c) / least)
        return EK_FAIL(err, EK_EINPUT,
                       "%s: byte %zu: %s: found %" PRIu64 ", but the %zu bytes left hold at most "
                       "%" PRIu64,
                       c->path, at, what, *out, left(c), left(c) / least);
    return EK_OK;
}

static ek_code skip_bools(cursor *c, uint64_t n, ek_err *err)
{
    for (uint64_t i = 0; i < n; i++, c->p++)
        if (*c->p > 1)
            return EK_FAIL(err, EK_EINPUT, "%s: byte %zu: found %d, expected a bool (0 or 1)",
                           c->path, (size_t)(c->p - c->begin), *c->p);
    return EK_OK;
}

/* Step over n values of a type, checking them. */
static ek_code skip_values(cursor *c, uint32_t type, uint64_t n, int depth, ek_err *err)
{
    ek_gguf_str s;

    if (type == EK_GGUF_STRING) {
        for (uint64_t i = 0; i < n; i++)
            EK_TRY(get_string(c, &s, "a string", err));
        return EK_OK;
    }
    if (type == EK_GGUF_ARRAY) {
        if (depth >= MAX_NESTING)
            return EK_FAIL(err, EK_EINPUT, "%s: byte %zu: arrays nested deeper than %d", c->path,
                           (size_t)(c->p - c->begin), MAX_NESTING);
        for (uint64_t i = 0; i < n; i++) {
            uint64_t element, count;

            EK_TRY(get(c, 4, &element, "an array", err));
            if (element >= EK_GGUF_COUNT)
                return EK_FAIL(err, EK_EINPUT,
                               "%s: byte %zu: found value type %" PRIu64 ", expected 0 .. %d",
                               c->path, (size_t)(c->p - c->begin) - 4, element, EK_GGUF_COUNT - 1);
            EK_TRY(get_count(c,
                             element == EK_GGUF_STRING  ? MIN_STRING
                             : element == EK_GGUF_ARRAY ? MIN_ARRAY
                                                        : ek_gguf_value_sizes[element],
                             &count, "elements of an array", err));
            EK_TRY(skip_values(c, (uint32_t)element, count, depth + 1, err));
        }
        return EK_OK;
    }
    EK_TRY(need(c, n * ek_gguf_value_sizes[type], ek_gguf_value_names[type], err));
    if (type == EK_GGUF_BOOL)
        return skip_bools(c, n, err);
    c->p += n * ek_gguf_value_sizes[type];
    return EK_OK;
}

static ek_code read_key(cursor *c, ek_gguf_key *k, ek_err *err)
{
    uint64_t type;
    const uint8_t *value;

    EK_TRY(get_string(c, &k->name, "the name of a key", err));
    if (k->name.size == 0 || k->name.size > MAX_KEY_NAME || memchr(k->name.data, 0, k->name.size))
        return EK_FAIL(err, EK_EINPUT,
                       "%s: byte %zu: a key's name has %zu bytes, expected 1 .. %d without NUL",
                       c->path, (size_t)((const uint8_t *)k->name.data - c->begin), k->name.size,
                       MAX_KEY_NAME);
    EK_TRY(get(c, 4, &type, "the type of a key", err));
    if (type >= EK_GGUF_COUNT)
        return EK_FAIL(err, EK_EINPUT,
                       "%s: key %.*s: found value type %" PRIu64 ", expected 0 .. %d", c->path,
                       EK_GGUF_SHOW(k->name), type, EK_GGUF_COUNT - 1);
    value = c->p;
    k->type = (uint32_t)type;
    k->count = 1;
    k->data = value;
    if (skip_values(c, k->type, 1, 0, err) != EK_OK)
        return ek_err_in(err, "key %.*s", EK_GGUF_SHOW(k->name));
    if (type == EK_GGUF_ARRAY) {
        k->element = (uint32_t)ek_gguf_le(value, 4);
        k->count = ek_gguf_le(value + 4, 8);
        k->data = value + 12;
    }
    return EK_OK;
}

static int str_order(const char *a, size_t na, const char *b, size_t nb)
{
    const int c = memcmp(a, b, na < nb ? na : nb);

    return c ? c : (na > nb) - (na < nb);
}

static int key_order(const void *a, const void *b)
{
    const ek_gguf_key *x = *(const ek_gguf_key *const *)a, *y = *(const ek_gguf_key *const *)b;

    return str_order(x->name.data, x->name.size, y->name.data, y->name.size);
}

static ek_code read_keys(ek_gguf *g, cursor *c, ek_err *err)
{
    /* The count was bounded by the file's size; one more avoids an allocation of nothing. */
    g->keys = calloc(g->n_keys + 1, sizeof *g->keys);
    g->by_key = calloc(g->n_keys + 1, sizeof *g->by_key);
    if (!g->keys || !g->by_key)
        return EK_FAIL(err, EK_ENOMEM, "%s: no memory for %zu keys", g->path, g->n_keys);
    for (size_t i = 0; i < g->n_keys; i++) {
        EK_TRY(read_key(c, &g->keys[i], err));
        g->by_key[i] = &g->keys[i];
    }
    qsort(g->by_key, g->n_keys, sizeof *g->by_key, key_order);
    for (size_t i = 1; i < g->n_keys; i++)
        if (key_order(&g->by_key[i - 1], &g->by_key[i]) == 0)
            return EK_FAIL(err, EK_EINPUT, "%s: key %.*s is there twice", g->path,
                           EK_GGUF_SHOW(g->by_key[i]->name));
    return EK_OK;
}

/* Dimensions, and from them rows and bytes, without overflow. */
static ek_code read_shape(cursor *c, ek_gguf_tensor *t, uint64_t type, ek_err *err)
{
    const char *name = ek_qtype_name(type > 1000 ? 1000u : (uint32_t)type);
    int64_t block, bytes;

    if (!ek_qtype_known(type > 1000 ? 1000u : (uint32_t)type))
        return name ? EK_FAIL(err, EK_ENOTSUP,
                              "%s: tensor %s: type %s is not supported; supported are F32, F16, "
                              "BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0",
                              c->path, t->name, name)
                    : EK_FAIL(err, EK_EINPUT, "%s: tensor %s: there is no type %" PRIu64, c->path,
                              t->name, type);
    t->type = (ek_qtype)type;
    block = ek_qtype_block(t->type);
    if (t->dim[0] % block != 0)
        return EK_FAIL(err, EK_EINPUT,
                       "%s: tensor %s: rows of %" PRId64 " numbers, expected a multiple of %" PRId64
                       " for type %s",
                       c->path, t->name, t->dim[0], block, name);
    t->rows = 1;
    if (__builtin_mul_overflow(t->dim[0] / block, ek_qtype_block_bytes(t->type), &bytes))
        goto huge;
    t->row_bytes = (size_t)bytes;
    for (int i = 1; i < EK_GGUF_MAX_DIMS; i++)
        if (__builtin_mul_overflow(t->rows, t->dim[i], &t->rows))
            goto huge;
    if (__builtin_mul_overflow(bytes, t->rows, &bytes) || bytes > PTRDIFF_MAX)
        goto huge;
    t->bytes = (size_t)bytes;
    return EK_OK;
huge:
    return EK_FAIL(err, EK_EINPUT,
                   "%s: tensor %s: %" PRId64 " x %" PRId64 " x %" PRId64 " x %" PRId64
                   " numbers are more than any file holds",
                   c->path, t->name, t->dim[0], t->dim[1], t->dim[2], t->dim[3]);
}

/* One row of the table.  Its offset goes to *offset: where data begins is known only after the
 * last row.  name: room for the name and its NUL. */
static ek_code read_tensor(cursor *c, ek_gguf_tensor *t, char *name, uint64_t *offset, ek_err *err)
{
    ek_gguf_str s;
    uint64_t x;

    EK_TRY(get_string(c, &s, "the name of a tensor", err));
    if (s.size == 0 || s.size > MAX_TENSOR_NAME || memchr(s.data, 0, s.size))
        return EK_FAIL(err, EK_EINPUT,
                       "%s: byte %zu: a tensor's name has %zu bytes, expected 1 .. %d without NUL",
                       c->path, (size_t)((const uint8_t *)s.data - c->begin), s.size,
                       MAX_TENSOR_NAME);
    memcpy(name, s.data, s.size);
    name[s.size] = '\0';
    t->name = name;
    EK_TRY(get(c, 4, &x, name, err));
    if (x < 1 || x > EK_GGUF_MAX_DIMS)
        return EK_FAIL(err, EK_EINPUT,
                       "%s: tensor %s: found %" PRIu64 " dimensions, expected 1 .. "
                       "%d",
                       c->path, name, x, EK_GGUF_MAX_DIMS);
    t->n_dims = (int)x;
    for (int i = 0; i < EK_GGUF_MAX_DIMS; i++) {
        x = 1;
        if (i < t->n_dims)
            EK_TRY(get(c, 8, &x, name, err));
        if (x < 1 || x > INT64_MAX)
            return EK_FAIL(err, EK_EINPUT, "%s: tensor %s: dimension %d is %" PRIu64, c->path, name,
                           i, x);
        t->dim[i] = (int64_t)x;
    }
    EK_TRY(get(c, 4, &x, name, err));
    EK_TRY(read_shape(c, t, x, err));
    return get(c, 8, offset, name, err);
}

static int tensor_order(const void *a, const void *b)
{
    const ek_gguf_tensor *x = *(const ek_gguf_tensor *const *)a;
    const ek_gguf_tensor *y = *(const ek_gguf_tensor *const *)b;

    return strcmp(x->name, y->name);
}

static ek_code place_tensors(ek_gguf *g, const cursor *c, const uint64_t *offset, ek_err *err)
{
    int64_t alignment = DEFAULT_ALIGNMENT;
    size_t head, room;

    EK_TRY(ek_gguf_int(g, "general.alignment", EK_GGUF_OPTIONAL, 8, 1 << 24, &alignment, err));
    if (alignment % 8 != 0)
        return EK_FAIL(err, EK_EINPUT,
                       "%s: key general.alignment: found %" PRId64 ", expected a multiple of 8",
                       g->path, alignment);
    head = (size_t)(c->p - c->begin);
    head += (size_t)(((int64_t)alignment - (int64_t)(head % (size_t)alignment)) % alignment);
    room = head > g->map.size ? 0 : g->map.size - head;
    for (size_t i = 0; i < g->n_tensors; i++) {
        ek_gguf_tensor *t = &g->tensors[i];

        if (offset[i] % (uint64_t)alignment != 0)
            return EK_FAIL(err, EK_EINPUT,
                           "%s: tensor %s: offset %" PRIu64 " is no multiple of %" PRId64, g->path,
                           t->name, offset[i], alignment);
        if (offset[i] > room || t->bytes > room - offset[i])
            return EK_FAIL(err, EK_EINPUT,
                           "%s: tensor %s: %zu bytes at offset %" PRIu64
                           " reach past the %zu bytes of data",
                           g->path, t->name, t->bytes, offset[i], room);
        t->data = g->map.data + head + offset[i];
    }
    return EK_OK;
}

static ek_code read_tensors(ek_gguf *g, cursor *c, ek_err *err)
{
    const size_t n = g->n_tensors;
    uint64_t *offset = calloc(n + 1, sizeof *offset);
    ek_code code = EK_OK;

    g->tensors = calloc(n + 1, sizeof *g->tensors);
    g->by_name = calloc(n + 1, sizeof *g->by_name);
    g->names = calloc(n + 1, MAX_TENSOR_NAME + 1);
    if (!offset || !g->tensors || !g->by_name || !g->names) {
        free(offset);
        return EK_FAIL(err, EK_ENOMEM, "%s: no memory for %zu tensors", g->path, n);
    }
    for (size_t i = 0; i < n && code == EK_OK; i++) {
        code =
            read_tensor(c, &g->tensors[i], g->names + i * (MAX_TENSOR_NAME + 1), &offset[i], err);
        g->by_name[i] = &g->tensors[i];
    }
    if (code == EK_OK)
        code = place_tensors(g, c, offset, err);
    free(offset);
    EK_TRY(code);
    qsort(g->by_name, n, sizeof *g->by_name, tensor_order);
    for (size_t i = 1; i < n; i++)
        if (strcmp(g->by_name[i - 1]->name, g->by_name[i]->name) == 0)
            return EK_FAIL(err, EK_EINPUT, "%s: tensor %s is there twice", g->path,
                           g->by_name[i]->name);
    return EK_OK;
}

static ek_code read_header(ek_gguf *g, cursor *c, ek_err *err)
{
    uint64_t version, n_tensors, n_keys;

    if (left(c) < 4 || memcmp(c->p, "GGUF", 4) != 0)
        return EK_FAIL(err, EK_EINPUT, "%s: not a GGUF file: it does not begin with \"GGUF\"",
                       c->path);
    c->p += 4;
    EK_TRY(get(c, 4, &version, "the version", err));
    if (version == 1)
        return EK_FAIL(err, EK_ENOTSUP, "%s: GGUF version 1, expected 2 or 3", c->path);
    if (version != 0 && (version & 0xffff) == 0)
        return EK_FAIL(err, EK_ENOTSUP,
                       "%s: GGUF version %#" PRIx64 ": a big-endian file, expected little-endian",
                       c->path, version);
    if (version < 2 || version > 3)
        return EK_FAIL(err, EK_EINPUT, "%s: GGUF version %" PRIu64 ", expected 2 or 3", c->path,
                       version);
    EK_TRY(get_count(c, MIN_TENSOR, &n_tensors, "number of tensors", err));
    EK_TRY(get_count(c, MIN_KEY, &n_keys, "number of keys", err));
    if (n_tensors > INT32_MAX)
        return EK_FAIL(err, EK_EINPUT, "%s: %" PRIu64 " tensors are too many", c->path, n_tensors);
    g->n_tensors = (size_t)n_tensors;
    g->n_keys = (size_t)n_keys;
    return EK_OK;
}

static ek_code read_all(ek_gguf *g, ek_err *err)
{
    /* An empty file has no mapping. */
    const uint8_t *begin = g->map.data ? g->map.data : (const uint8_t *)"";
    cursor c = {g->path, begin, begin, begin + g->map.size};
    ek_gguf_str arch = {"", 0};
    int64_t split = 1;

    EK_TRY(read_header(g, &c, err));
    EK_TRY(read_keys(g, &c, err));
    EK_TRY(ek_gguf_string(g, "general.architecture", EK_GGUF_OPTIONAL, &arch, err));
    if (memchr(arch.data, 0, arch.size) || arch.size > 64)
        return EK_FAIL(err, EK_EINPUT, "%s: key general.architecture is not a name", g->path);
    g->arch = strndup(arch.data, arch.size);
    if (!g->arch)
        return EK_FAIL(err, EK_ENOMEM, "%s: no memory for its name", g->path);
    EK_TRY(ek_gguf_int(g, "split.count", EK_GGUF_OPTIONAL, 0, 65535, &split, err));
    if (split > 1)
        return EK_FAIL(err, EK_ENOTSUP,
                       "%s: one of %" PRId64 " parts of a model, expected the whole in one file",
                       g->path, split);
    return read_tensors(g, &c, err);
}

ek_code ek_gguf_open(ek_gguf **out, const char *path, ek_err *err)
{
    ek_gguf *g = calloc(1, sizeof *g);

    if (!g || !(g->path = strdup(path))) {
        free(g);
        return EK_FAIL(err, EK_ENOMEM, "%s: no memory to open it", path);
    }
    EK_CHECK(ek_map_open(&g->map, path, err));
    EK_CHECK(read_all(g, err));
    *out = g;
    return EK_OK;
fail:
    ek_gguf_close(g);
    return err->code;
}

void ek_gguf_close(ek_gguf *g)
{
    if (!g)
        return;
    ek_map_close(&g->map);
    free(g->keys);
    free(g->by_key);
    free(g->tensors);
    free(g->by_name);
    free(g->names);
    free(g->arch);
    free(g->path);
    free(g);
}

const char *ek_gguf_path(const ek_gguf *g)
{
    return g->path;
}

const char *ek_gguf_hash(ek_gguf *g)
{
    if (!g->hash[0])
        ek_hash128(g->hash, g->map.data, g->map.size);
    return g->hash;
}

const char *ek_gguf_arch(const ek_gguf *g)
{
    return g->arch ? g->arch : "";
}

int ek_gguf_n_tensors(const ek_gguf *g)
{
    return (int)g->n_tensors;
}

const ek_gguf_tensor *ek_gguf_tensor_at(const ek_gguf *g, int i)
{
    return &g->tensors[i];
}

const ek_gguf_tensor *ek_gguf_find(const ek_gguf *g, const char *name)
{
    size_t lo = 0, hi = g->n_tensors;

    while (lo < hi) {
        const size_t mid = lo + (hi - lo) / 2;
        const int c = strcmp(g->by_name[mid]->name, name);

        if (c == 0)
            return g->by_name[mid];
        if (c < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    return NULL;
}
