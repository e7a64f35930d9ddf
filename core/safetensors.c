/* core/safetensors.c - see safetensors.h. */
#include "core/safetensors.h"
#include "core/bf16.h"
#include "core/json.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_HEADER = 100 * 1000 * 1000, ALIGN = 8 };

struct ek_st {
    char *path;
    ek_map map;
    ek_json *json;        /* owns the names and the metadata */
    ek_st_tensor *tensor; /* (n) by name */
    int n;
    const ek_json *meta; /* the object, or NULL */
};

static const struct {
    const char *name;
    int size;
} types[] = {[EK_ST_F64] = {"F64", 8},   [EK_ST_F32] = {"F32", 4},  [EK_ST_F16] = {"F16", 2},
             [EK_ST_BF16] = {"BF16", 2}, [EK_ST_I64] = {"I64", 8},  [EK_ST_I32] = {"I32", 4},
             [EK_ST_U8] = {"U8", 1},     [EK_ST_BOOL] = {"BOOL", 1}};

int ek_st_type_size(ek_st_type type)
{
    return types[type].size;
}

const char *ek_st_type_name(ek_st_type type)
{
    return types[type].name;
}

/* Product of the shape and the type's size; 0 if it does not fit. */
static int bytes_of(const ek_st_tensor *t, size_t *out)
{
    size_t n = (size_t)types[t->type].size;

    for (int i = 0; i < t->n_dims; i++)
        if (__builtin_mul_overflow(n, (size_t)t->dim[i], &n))
            return 0;
    *out = n;
    return 1;
}

static ek_code read_type(ek_st_tensor *t, const ek_json *v, ek_err *err)
{
    const char *name = ek_json_string(v);

    for (size_t i = 0; name && i < EK_COUNT(types); i++) {
        if (strcmp(name, types[i].name) == 0) {
            t->type = (ek_st_type)i;
            return EK_OK;
        }
    }
    return EK_FAIL(err, EK_EINPUT,
                   "dtype: found %.40s, expected F64, F32, F16, BF16, I64, I32, U8 or BOOL",
                   name ? name : "no text");
}

static ek_code read_shape(ek_st_tensor *t, const ek_json *v, ek_err *err)
{
    if (!v || ek_json_kind_of(v) != EK_JSON_ARRAY)
        return EK_FAIL(err, EK_EINPUT, "shape: found no list, expected a list of dimensions");
    for (const ek_json *d = ek_json_child(v); d; d = ek_json_next(d)) {
        if (t->n_dims == EK_ST_MAX_DIMS)
            return EK_FAIL(err, EK_EINPUT, "shape: found more than %d dimensions", EK_ST_MAX_DIMS);
        if (!ek_json_int(d, 0, (int64_t)1 << 53, &t->dim[t->n_dims]))
            return EK_FAIL(err, EK_EINPUT,
                           "shape: dimension %d: found %g, expected a whole number 0 .. 2^53",
                           t->n_dims, ek_json_number(d));
        t->n_dims++;
    }
    return EK_OK;
}

/* One member of the header; buffer is what follows the header. */
static ek_code read_tensor(ek_st_tensor *t, const ek_json *v, const uint8_t *buffer, size_t size,
                           ek_err *err)
{
    const ek_json *range;
    int64_t begin, end;
    size_t bytes;

    t->name = ek_json_key(v);
    if (ek_json_kind_of(v) != EK_JSON_OBJECT)
        return EK_FAIL(err, EK_EINPUT, "found no object, expected dtype, shape and data_offsets");
    for (const ek_json *c = ek_json_child(v); c; c = ek_json_next(c)) {
        const char *key = ek_json_key(c);

        if (strcmp(key, "dtype") != 0 && strcmp(key, "shape") != 0 &&
            strcmp(key, "data_offsets") != 0)
            return EK_FAIL(err, EK_EINPUT,
                           "found key \"%.60s\", expected dtype, shape and data_offsets", key);
    }
    EK_TRY(read_type(t, ek_json_get(v, "dtype"), err));
    EK_TRY(read_shape(t, ek_json_get(v, "shape"), err));
    range = ek_json_get(v, "data_offsets");
    range = range && ek_json_kind_of(range) == EK_JSON_ARRAY ? ek_json_child(range) : NULL;
    if (!range || !ek_json_next(range) || ek_json_next(ek_json_next(range)) ||
        !ek_json_int(range, 0, (int64_t)1 << 53, &begin) ||
        !ek_json_int(ek_json_next(range), 0, (int64_t)1 << 53, &end))
        return EK_FAIL(err, EK_EINPUT,
                       "data_offsets: expected two whole numbers [begin, end] from 0");
    if (begin > end || (uint64_t)end > size)
        return EK_FAIL(err, EK_EINPUT,
                       "data_offsets: found [%lld, %lld], expected a range inside the buffer of "
                       "%zu bytes",
                       (long long)begin, (long long)end, size);
    if (!bytes_of(t, &bytes))
        return EK_FAIL(err, EK_EINPUT, "shape: its number of bytes does not fit 64 bits");
    if (bytes != (size_t)(end - begin))
        return EK_FAIL(err, EK_EINPUT,
                       "data_offsets: found %lld bytes, expected %zu from dtype and shape",
                       (long long)(end - begin), bytes);
    t->data = buffer + begin;
    t->bytes = bytes;
    return EK_OK;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const ek_st_tensor *)a)->name, ((const ek_st_tensor *)b)->name);
}

static int by_place(const void *a, const void *b)
{
    const ek_st_tensor *x = a, *y = b;
    const uintptr_t p = (uintptr_t)x->data, q = (uintptr_t)y->data;

    if (p != q)
        return p < q ? -1 : 1;
    return x->bytes < y->bytes ? -1 : x->bytes > y->bytes;
}

/* The tensors must tile the buffer: neither overlap nor leave holes. */
static ek_code check_tiling(ek_st *st, const uint8_t *buffer, size_t size, ek_err *err)
{
    size_t at = 0;

    qsort(st->tensor, (size_t)st->n, sizeof *st->tensor, by_place);
    for (int i = 0; i < st->n; i++) {
        const ek_st_tensor *t = &st->tensor[i];
        const size_t begin = (size_t)((const uint8_t *)t->data - buffer);

        if (begin != at)
            return EK_FAIL(err, EK_EINPUT,
                           "tensor \"%.100s\": found begin %zu, expected %zu: tensors may neither "
                           "overlap nor leave holes",
                           t->name, begin, at);
        at = begin + t->bytes;
    }
    if (at != size)
        return EK_FAIL(err, EK_EINPUT,
                       "found a buffer of %zu bytes, expected the %zu that its tensors cover", size,
                       at);
    qsort(st->tensor, (size_t)st->n, sizeof *st->tensor, by_name);
    return EK_OK;
}

static ek_code read_meta(ek_st *st, const ek_json *v, ek_err *err)
{
    if (ek_json_kind_of(v) != EK_JSON_OBJECT)
        return EK_FAIL(err, EK_EINPUT, "__metadata__: found no object, expected texts by name");
    for (const ek_json *c = ek_json_child(v); c; c = ek_json_next(c))
        if (!ek_json_string(c))
            return EK_FAIL(err, EK_EINPUT, "__metadata__: \"%.100s\": found no text, expected text",
                           ek_json_key(c));
    st->meta = v;
    return EK_OK;
}

/* Everything behind the mapping; the file's name is put in front by the caller. */
static ek_code read_header(ek_st *st, ek_err *err)
{
    const ek_map *m = &st->map;
    uint64_t length = 0;
    const uint8_t *buffer;
    size_t size, n = 0;

    if (m->size < 8)
        return EK_FAIL(err, EK_EINPUT, "found %zu bytes, expected at least the 8 of its length",
                       m->size);
    for (int i = 0; i < 8; i++)
        length |= (uint64_t)m->data[i] << (8 * i);
    if (length > MAX_HEADER || length > m->size - 8)
        return EK_FAIL(err, EK_EINPUT,
                       "header length: found %llu, expected at most %zu (the file's rest, and "
                       "100 MB)",
                       (unsigned long long)length,
                       m->size - 8 < MAX_HEADER ? m->size - 8 : (size_t)MAX_HEADER);
    if (length < 2 || m->data[8] != '{')
        return EK_FAIL(err, EK_EINPUT, "header: expected JSON that begins with {");
    EK_TRY(ek_json_parse(&st->json, (const char *)m->data + 8, (size_t)length, "header", err));
    buffer = m->data + 8 + length;
    size = m->size - 8 - (size_t)length;
    for (const ek_json *v = ek_json_child(st->json); v; v = ek_json_next(v))
        n++;
    st->tensor = calloc(n + 1, sizeof *st->tensor);
    if (!st->tensor)
        return EK_FAIL(err, EK_ENOMEM, "no memory for %zu tensors", n);
    for (const ek_json *v = ek_json_child(st->json); v; v = ek_json_next(v)) {
        if (strcmp(ek_json_key(v), "__metadata__") == 0) {
            EK_TRY(read_meta(st, v, err));
        } else if (read_tensor(&st->tensor[st->n], v, buffer, size, err) != EK_OK) {
            return ek_err_in(err, "tensor \"%.100s\"", ek_json_key(v));
        } else {
            st->n++;
        }
    }
    return check_tiling(st, buffer, size, err);
}

ek_code ek_st_open(ek_st **out, const char *path, ek_err *err)
{
    ek_st *st = calloc(1, sizeof *st);
    ek_code code;

    if (!st || !(st->path = strdup(path))) {
        free(st);
        return EK_FAIL(err, EK_ENOMEM, "%s: no memory to open it", path);
    }
    code = ek_map_open(&st->map, path, err);
    if (code == EK_OK) {
        code = read_header(st, err);
        if (code != EK_OK)
            code = ek_err_in(err, "%s", path);
    }
    if (code != EK_OK) {
        ek_st_close(st);
        return code;
    }
    *out = st;
    return EK_OK;
}

void ek_st_close(ek_st *st)
{
    if (!st)
        return;
    ek_json_close(st->json);
    ek_map_close(&st->map);
    free(st->tensor);
    free(st->path);
    free(st);
}

int ek_st_count(const ek_st *st)
{
    return st->n;
}

const ek_st_tensor *ek_st_at(const ek_st *st, int i)
{
    return &st->tensor[i];
}

const ek_st_tensor *ek_st_find(const ek_st *st, const char *name)
{
    const ek_st_tensor key = {.name = name};

    return bsearch(&key, st->tensor, (size_t)st->n, sizeof key, by_name);
}

const char *ek_st_meta(const ek_st *st, const char *key)
{
    const ek_json *v = st->meta ? ek_json_get(st->meta, key) : NULL;

    return v ? ek_json_string(v) : NULL;
}

static float from_f16(uint16_t b)
{
    const uint32_t sign = (uint32_t)(b & 0x8000u) << 16, mant = b & 0x3ffu;
    const int exp = b >> 10 & 31;
    uint32_t bits;
    float x;

    if (exp == 0) { /* zero or a denormal: mant * 2^-24 is exact in fp32 */
        x = (float)mant * 0x1p-24f;
        return sign ? -x : x;
    }
    bits = sign | (exp == 31 ? 0x7f800000u : (uint32_t)(exp + 112) << 23) | mant << 13;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* "[2, 3]", cut where out ends. */
static void shape_text(char *out, size_t room, int n, const int64_t *dim)
{
    size_t at = (size_t)snprintf(out, room, "[");

    for (int i = 0; i < n && at < room; i++)
        at += (size_t)snprintf(out + at, room - at, "%s%lld", i ? ", " : "", (long long)dim[i]);
    if (at < room)
        snprintf(out + at, room - at, "]");
}

static ek_code check_weight(const ek_st *st, const ek_st_tensor *t, int n_dims,
                            const int64_t *shape, ek_err *err)
{
    char found[200], expected[200];

    if (t->type != EK_ST_F32 && t->type != EK_ST_F16 && t->type != EK_ST_BF16)
        return EK_FAIL(err, EK_EINPUT,
                       "%s: tensor \"%s\": found dtype %s, expected F32, F16 or BF16", st->path,
                       t->name, types[t->type].name);
    if (t->n_dims == n_dims &&
        (n_dims == 0 || memcmp(t->dim, shape, (size_t)n_dims * sizeof *shape) == 0))
        return EK_OK;
    shape_text(found, sizeof found, t->n_dims, t->dim);
    shape_text(expected, sizeof expected, n_dims, shape);
    return EK_FAIL(err, EK_EINPUT, "%s: tensor \"%s\": found shape %s, expected %s", st->path,
                   t->name, found, expected);
}

static float number_at(const ek_st_tensor *t, size_t i)
{
    uint16_t half;
    float x;

    if (t->type == EK_ST_F32) {
        memcpy(&x, (const uint8_t *)t->data + 4 * i, 4);
        return x;
    }
    memcpy(&half, (const uint8_t *)t->data + 2 * i, 2);
    return t->type == EK_ST_F16 ? from_f16(half) : ek_from_bf16(half);
}

ek_code ek_st_read_f32(const ek_st *st, const char *name, int n_dims, const int64_t *shape,
                       float *out, ek_err *err)
{
    const ek_st_tensor *t = ek_st_find(st, name);
    size_t n;

    if (!t)
        return EK_FAIL(err, EK_EINPUT, "%s: tensor \"%s\" is missing", st->path, name);
    EK_TRY(check_weight(st, t, n_dims, shape, err));
    n = t->bytes / (size_t)types[t->type].size;
    /* Once to look and once to copy: out is untouched on failure. */
    for (size_t i = 0; i < n; i++)
        if (!isfinite(number_at(t, i)))
            return EK_FAIL(err, EK_EINPUT,
                           "%s: tensor \"%s\": number %zu: found %g, expected a finite number",
                           st->path, name, i, (double)number_at(t, i));
    for (size_t i = 0; i < n; i++)
        out[i] = number_at(t, i);
    return EK_OK;
}

static void add_header(ek_text *h, const ek_st_tensor *t, int n, const ek_st_pair *meta, int n_meta)
{
    size_t at = 0;
    const char *comma = "";

    ek_text_add(h, "{");
    if (n_meta > 0) {
        ek_text_add(h, "\"__metadata__\":{");
        for (int i = 0; i < n_meta; i++) {
            ek_text_add(h, "%s", i ? "," : "");
            ek_text_json(h, meta[i].key, strlen(meta[i].key));
            ek_text_add(h, ":");
            ek_text_json(h, meta[i].value, strlen(meta[i].value));
        }
        ek_text_add(h, "}");
        comma = ",";
    }
    for (int i = 0; i < n; i++) {
        ek_text_add(h, "%s", comma);
        ek_text_json(h, t[i].name, strlen(t[i].name));
        ek_text_add(h, ":{\"dtype\":\"%s\",\"shape\":[", types[t[i].type].name);
        for (int d = 0; d < t[i].n_dims; d++)
            ek_text_add(h, "%s%lld", d ? "," : "", (long long)t[i].dim[d]);
        ek_text_add(h, "],\"data_offsets\":[%zu,%zu]}", at, at + t[i].bytes);
        at += t[i].bytes;
        comma = ",";
    }
    ek_text_add(h, "}");
    while (!h->failed && h->size % ALIGN != 0)
        ek_text_add(h, " ");
}

static void write_all(FILE *to, const ek_text *h, const ek_st_tensor *t, int n)
{
    uint8_t length[8];

    for (int i = 0; i < 8; i++)
        length[i] = (uint8_t)((uint64_t)h->size >> (8 * i));
    fwrite(length, 1, sizeof length, to);
    fwrite(h->data, 1, h->size, to);
    for (int i = 0; i < n; i++)
        if (t[i].bytes > 0)
            fwrite(t[i].data, 1, t[i].bytes, to);
}

ek_code ek_st_put(ek_writer *w, const ek_st_tensor *tensors, int n, const ek_st_pair *meta,
                  int n_meta, ek_err *err)
{
    ek_st_tensor *t = malloc(((size_t)n + 1) * sizeof *t);
    const char *path = w->path;
    ek_text h = {0};
    size_t bytes;
    ek_code code = EK_OK;

    if (!t)
        return EK_FAIL(err, EK_ENOMEM, "%s: no memory for %d tensors", path, n);
    if (n > 0)
        memcpy(t, tensors, (size_t)n * sizeof *t);
    qsort(t, (size_t)n, sizeof *t, by_name);
    for (int i = 0; i < n && code == EK_OK; i++) {
        if (!bytes_of(&t[i], &bytes) || bytes != t[i].bytes)
            code = EK_FAIL(err, EK_EBROKEN, "%s: tensor \"%s\": %zu bytes do not fit its shape",
                           path, t[i].name, t[i].bytes);
        else if (i > 0 && strcmp(t[i - 1].name, t[i].name) == 0)
            code = EK_FAIL(err, EK_EBROKEN, "%s: tensor \"%s\" is given twice", path, t[i].name);
    }
    if (code == EK_OK) {
        add_header(&h, t, n, meta, n_meta);
        if (h.failed)
            code = EK_FAIL(err, EK_ENOMEM, "%s: no memory for its header", path);
        else
            write_all(w->file, &h, t, n);
    }
    ek_text_clear(&h);
    free(t);
    return code;
}

ek_code ek_st_write(const char *path, const ek_st_tensor *tensors, int n, const ek_st_pair *meta,
                    int n_meta, ek_err *err)
{
    ek_writer w = {0};

    EK_TRY(ek_writer_open(&w, path, err));
    ek_code code = ek_st_put(&w, tensors, n, meta, n_meta, err);
    if (code == EK_OK)
        code = ek_writer_commit(&w, err);
    ek_writer_close(&w);
    return code;
}
