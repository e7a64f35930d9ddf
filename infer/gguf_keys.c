/* infer/gguf_keys.c - metadata of an open GGUF file; see gguf.h. */
#include "infer/gguf_file.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The key's name with "A." resolved, compared piecewise so that no buffer bounds it. */
static const ek_gguf_key *find(const ek_gguf *g, const char *name)
{
    const int of_arch = name[0] == 'A' && name[1] == '.';
    const char *head = of_arch ? ek_gguf_arch(g) : "", *tail = of_arch ? name + 1 : name;
    const size_t n_head = strlen(head), n_tail = strlen(tail);

    for (size_t i = 0; i < g->n_keys; i++) {
        const ek_gguf_str *s = &g->keys[i].name;

        if (s->size == n_head + n_tail && memcmp(s->data, head, n_head) == 0 &&
            memcmp(s->data + n_head, tail, n_tail) == 0)
            return &g->keys[i];
    }
    return NULL;
}

/* *out NULL if the key is absent and may be. */
static ek_code want_key(const ek_gguf *g, const char *name, ek_gguf_want want,
                        const ek_gguf_key **out, ek_err *err)
{
    *out = find(g, name);
    if (!*out && want == EK_GGUF_NEEDED)
        return EK_FAIL(err, EK_EINPUT, "%s: key %s%s is missing", g->path,
                       name[0] == 'A' && name[1] == '.' ? ek_gguf_arch(g) : "",
                       name[0] == 'A' && name[1] == '.' ? name + 1 : name);
    return EK_OK;
}

static ek_code wrong_type(const ek_gguf *g, const ek_gguf_key *k, const char *expected, ek_err *err)
{
    return EK_FAIL(err, EK_EINPUT, "%s: key %.*s: found type %s%s%s, expected %s", g->path,
                   EK_GGUF_SHOW(k->name), ek_gguf_value_names[k->type],
                   k->type == EK_GGUF_ARRAY ? " of " : "",
                   k->type == EK_GGUF_ARRAY ? ek_gguf_value_names[k->element] : "", expected);
}

int ek_gguf_has(const ek_gguf *g, const char *name)
{
    return find(g, name) != NULL;
}

int ek_gguf_is_array(const ek_gguf *g, const char *name)
{
    const ek_gguf_key *k = find(g, name);

    return k && k->type == EK_GGUF_ARRAY;
}

static int is_int(uint32_t type)
{
    return type <= EK_GGUF_I32 || type == EK_GGUF_U64 || type == EK_GGUF_I64;
}

/* A u64 past INT64_MAX is clamped to it; callers that care have a smaller limit. */
static int64_t int_at(uint32_t type, const uint8_t *p)
{
    const uint64_t x = ek_gguf_le(p, ek_gguf_value_sizes[type]);

    switch (type) {
    case EK_GGUF_I8:
        return (int8_t)x;
    case EK_GGUF_I16:
        return (int16_t)x;
    case EK_GGUF_I32:
        return (int32_t)x;
    case EK_GGUF_U64:
        return x > INT64_MAX ? INT64_MAX : (int64_t)x;
    default:
        return (int64_t)x;
    }
}

static ek_code check_int(const ek_gguf *g, const ek_gguf_key *k, int64_t x, int64_t lo, int64_t hi,
                         ek_err *err)
{
    if (x < lo || x > hi)
        return EK_FAIL(err, EK_EINPUT,
                       "%s: key %.*s: found %" PRId64 ", expected %" PRId64 " .. %" PRId64, g->path,
                       EK_GGUF_SHOW(k->name), x, lo, hi);
    return EK_OK;
}

ek_code ek_gguf_int(const ek_gguf *g, const char *name, ek_gguf_want want, int64_t lo, int64_t hi,
                    int64_t *out, ek_err *err)
{
    const ek_gguf_key *k;
    int64_t x;

    EK_TRY(want_key(g, name, want, &k, err));
    if (!k)
        return EK_OK;
    if (!is_int(k->type))
        return wrong_type(g, k, "an integer", err);
    x = int_at(k->type, k->data);
    EK_TRY(check_int(g, k, x, lo, hi, err));
    *out = x;
    return EK_OK;
}

ek_code ek_gguf_float(const ek_gguf *g, const char *name, ek_gguf_want want, double lo, double hi,
                      double *out, ek_err *err)
{
    const ek_gguf_key *k;
    double x;

    EK_TRY(want_key(g, name, want, &k, err));
    if (!k)
        return EK_OK;
    if (k->type == EK_GGUF_F32) {
        float f;

        memcpy(&f, k->data, sizeof f);
        x = (double)f;
    } else if (k->type == EK_GGUF_F64) {
        memcpy(&x, k->data, sizeof x);
    } else {
        return wrong_type(g, k, "f32 or f64", err);
    }
    if (!isfinite(x) || x < lo || x > hi)
        return EK_FAIL(err, EK_EINPUT, "%s: key %.*s: found %g, expected %g .. %g", g->path,
                       EK_GGUF_SHOW(k->name), x, lo, hi);
    *out = x;
    return EK_OK;
}

ek_code ek_gguf_bool(const ek_gguf *g, const char *name, ek_gguf_want want, int *out, ek_err *err)
{
    const ek_gguf_key *k;

    EK_TRY(want_key(g, name, want, &k, err));
    if (k && k->type != EK_GGUF_BOOL)
        return wrong_type(g, k, "bool", err);
    if (k)
        *out = *k->data;
    return EK_OK;
}

static ek_gguf_str str_at(const uint8_t *p)
{
    return (ek_gguf_str){(const char *)p + 8, (size_t)ek_gguf_le(p, 8)};
}

ek_code ek_gguf_string(const ek_gguf *g, const char *name, ek_gguf_want want, ek_gguf_str *out,
                       ek_err *err)
{
    const ek_gguf_key *k;

    EK_TRY(want_key(g, name, want, &k, err));
    if (k && k->type != EK_GGUF_STRING)
        return wrong_type(g, k, "string", err);
    if (k)
        *out = str_at(k->data);
    return EK_OK;
}

ek_code ek_gguf_strings(const ek_gguf *g, const char *name, ek_gguf_want want, ek_gguf_str **out,
                        size_t *n, ek_err *err)
{
    const ek_gguf_key *k;
    const uint8_t *p;
    ek_gguf_str *s;

    EK_TRY(want_key(g, name, want, &k, err));
    if (k && (k->type != EK_GGUF_ARRAY || k->element != EK_GGUF_STRING))
        return wrong_type(g, k, "array of string", err);
    s = k ? calloc(k->count + 1, sizeof *s) : NULL;
    if (k && !s)
        return EK_FAIL(err, EK_ENOMEM, "%s: key %s: no memory for %" PRIu64 " strings", g->path,
                       name, k->count);
    p = k ? k->data : NULL;
    for (uint64_t i = 0; k && i < k->count; i++) {
        s[i] = str_at(p);
        p += 8 + s[i].size;
    }
    *out = s;
    *n = k ? (size_t)k->count : 0;
    return EK_OK;
}

ek_code ek_gguf_ints(const ek_gguf *g, const char *name, ek_gguf_want want, int64_t lo, int64_t hi,
                     int64_t **out, size_t *n, ek_err *err)
{
    const ek_gguf_key *k;
    int64_t *x;

    EK_TRY(want_key(g, name, want, &k, err));
    if (k && (k->type != EK_GGUF_ARRAY || !is_int(k->element)))
        return wrong_type(g, k, "array of integers", err);
    x = k ? calloc(k->count + 1, sizeof *x) : NULL;
    if (k && !x)
        return EK_FAIL(err, EK_ENOMEM, "%s: key %s: no memory for %" PRIu64 " integers", g->path,
                       name, k->count);
    for (uint64_t i = 0; k && i < k->count; i++) {
        x[i] = int_at(k->element, k->data + i * ek_gguf_value_sizes[k->element]);
        if (check_int(g, k, x[i], lo, hi, err) != EK_OK) {
            free(x);
            return err->code;
        }
    }
    *out = x;
    *n = k ? (size_t)k->count : 0;
    return EK_OK;
}
