/* core/json.c - see json.h.  One pass over the text checks what cJSON leaves open: nesting, control
 * characters and NUL in strings, the form of numbers, how many values there are.  Then cJSON reads
 * it, and objects are checked for equal keys. */
#include "core/json.h"

#include <cJSON.h>

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_BYTES = 100 * 1000 * 1000, MAX_DEPTH = 64, MAX_VALUES = 16 * 1000 * 1000 };

static int line_of(const char *text, const char *at)
{
    int line = 1;

    for (const char *p = text; p < at; p++)
        line += *p == '\n';
    return line;
}

static int is_digit(const char *p, const char *end)
{
    return p < end && *p >= '0' && *p <= '9';
}

/* Behind a number as RFC 8259 has it, or NULL. */
static const char *skip_number(const char *p, const char *end)
{
    if (p < end && *p == '-')
        p++;
    if (!is_digit(p, end))
        return NULL;
    if (*p == '0' && is_digit(p + 1, end))
        return NULL;
    while (is_digit(p, end))
        p++;
    if (p < end && *p == '.') {
        if (!is_digit(++p, end))
            return NULL;
        while (is_digit(p, end))
            p++;
    }
    if (p < end && (*p == 'e' || *p == 'E')) {
        p++;
        if (p < end && (*p == '+' || *p == '-'))
            p++;
        if (!is_digit(p, end))
            return NULL;
        while (is_digit(p, end))
            p++;
    }
    return p;
}

/* Behind the string that opens at *at, or NULL with the reason; *at is then the fault's place. */
static const char *skip_string(const char **at, const char *end, const char **why)
{
    const char *open = *at;

    for (const char *p = open + 1; p < end; p++) {
        *at = p;
        if (*p == '"')
            return p + 1;
        if ((unsigned char)*p < 0x20) {
            *why = "found a control character in a string, expected an escape";
            return NULL;
        }
        if (*p != '\\')
            continue;
        if (end - p >= 6 && memcmp(p, "\\u0000", 6) == 0) {
            *why = "found \\u0000 in a string, which is not accepted";
            return NULL;
        }
        p++;
    }
    *at = open;
    *why = "found the end of the text inside a string";
    return NULL;
}

/* NULL if the text may be given to cJSON; else the reason, and its place at *at. */
static const char *scan(const char *text, size_t size, const char **at)
{
    const char *end = text + size, *why = NULL, *next;
    int depth = 0;
    int64_t values = 0;

    for (const char *p = text; p < end; p = next) {
        *at = p;
        next = p + 1;
        if (*p == '\0')
            return "found a NUL byte";
        if (*p == '{' || *p == '[') {
            if (++depth > MAX_DEPTH)
                return "found values nested deeper than 64";
            values++;
        } else if (*p == '}' || *p == ']') {
            depth--;
        } else if (*p == ',') {
            if (++values > MAX_VALUES)
                return "found more than 16000000 values";
        } else if (*p == '"') {
            next = skip_string(at, end, &why);
            if (!next)
                return why;
        } else if (*p == '-' || is_digit(p, end)) {
            next = skip_number(p, end);
            if (!next)
                return "found a malformed number";
        }
    }
    return NULL;
}

static int by_key(const void *a, const void *b)
{
    return strcmp((*(const cJSON *const *)a)->string, (*(const cJSON *const *)b)->string);
}

/* Looks for equal keys in v and all below it; recursion is as deep as the text is nested. */
static ek_code check_keys(const cJSON *v, const char *name, ek_err *err)
{
    const cJSON **list;
    const char *twice = NULL;
    size_t n = 0, i = 0;

    for (const cJSON *c = v->child; c; c = c->next, n++)
        if (c->child)
            EK_TRY(check_keys(c, name, err));
    if (!cJSON_IsObject(v) || n < 2)
        return EK_OK;
    list = malloc(n * sizeof *list);
    if (!list)
        return EK_FAIL(err, EK_ENOMEM, "%s: no memory for %zu keys", name, n);
    for (const cJSON *c = v->child; c; c = c->next)
        list[i++] = c;
    qsort(list, n, sizeof *list, by_key);
    for (i = 1; i < n && !twice; i++)
        if (strcmp(list[i - 1]->string, list[i]->string) == 0)
            twice = list[i]->string;
    free(list);
    if (twice)
        return EK_FAIL(err, EK_EINPUT, "%s: found key \"%.200s\" twice in an object, expected once",
                       name, twice);
    return EK_OK;
}

ek_code ek_json_parse(ek_json **out, const char *text, size_t size, const char *name, ek_err *err)
{
    const char *at = text, *why;
    cJSON *root;
    ek_code code;

    if (size > MAX_BYTES)
        return EK_FAIL(err, EK_EINPUT, "%s: found %zu bytes of JSON, expected at most %d", name,
                       size, MAX_BYTES);
    if (size == 0)
        return EK_FAIL(err, EK_EINPUT, "%s: found nothing, expected a JSON value", name);
    why = scan(text, size, &at);
    if (why)
        return EK_FAIL(err, EK_EINPUT, "%s: line %d: %s", name, line_of(text, at), why);
    root = cJSON_ParseWithLengthOpts(text, size, &at, 0);
    if (!root) {
        if (!at || at < text || at >= text + size)
            at = text;
        return EK_FAIL(err, EK_EINPUT, "%s: line %d: found \"%.*s\", expected valid JSON", name,
                       line_of(text, at), (int)(text + size - at < 20 ? text + size - at : 20), at);
    }
    while (at < text + size && strchr(" \t\r\n", *at))
        at++;
    if (at < text + size) {
        cJSON_Delete(root);
        return EK_FAIL(err, EK_EINPUT, "%s: line %d: found text behind the JSON value", name,
                       line_of(text, at));
    }
    code = check_keys(root, name, err);
    if (code != EK_OK) {
        cJSON_Delete(root);
        return code;
    }
    *out = (ek_json *)root;
    return EK_OK;
}

void ek_json_close(ek_json *root)
{
    cJSON_Delete((cJSON *)root);
}

static const cJSON *of(const ek_json *v)
{
    return (const cJSON *)v;
}

ek_json_kind ek_json_kind_of(const ek_json *v)
{
    if (cJSON_IsBool(of(v)))
        return EK_JSON_BOOL;
    if (cJSON_IsNumber(of(v)))
        return EK_JSON_NUMBER;
    if (cJSON_IsString(of(v)))
        return EK_JSON_STRING;
    if (cJSON_IsArray(of(v)))
        return EK_JSON_ARRAY;
    if (cJSON_IsObject(of(v)))
        return EK_JSON_OBJECT;
    return EK_JSON_NULL;
}

int ek_json_is_true(const ek_json *v)
{
    return v && cJSON_IsTrue(of(v));
}

const char *ek_json_key(const ek_json *v)
{
    return of(v)->string;
}

const ek_json *ek_json_child(const ek_json *v)
{
    return (const ek_json *)of(v)->child;
}

const ek_json *ek_json_next(const ek_json *v)
{
    return (const ek_json *)of(v)->next;
}

const ek_json *ek_json_get(const ek_json *v, const char *key)
{
    return (const ek_json *)cJSON_GetObjectItemCaseSensitive(of(v), key);
}

const char *ek_json_string(const ek_json *v)
{
    return cJSON_IsString(of(v)) ? of(v)->valuestring : NULL;
}

double ek_json_number(const ek_json *v)
{
    return cJSON_IsNumber(of(v)) ? of(v)->valuedouble : (double)NAN;
}

int ek_json_int(const ek_json *v, int64_t lo, int64_t hi, int64_t *out)
{
    const double x = ek_json_number(v);

    /* Beyond 2^53 a double no longer says which integer was meant. */
    if (!(fabs(x) <= 0x1p53) || x != floor(x) || (int64_t)x < lo || (int64_t)x > hi)
        return 0;
    *out = (int64_t)x;
    return 1;
}

/* Room for n more bytes and the NUL. */
static int reserve(ek_text *t, size_t n)
{
    size_t room = t->room ? t->room : 256;
    char *data;

    if (t->failed)
        return 0;
    while (room - t->size <= n)
        room *= 2;
    if (room != t->room) {
        data = realloc(t->data, room);
        if (!data) {
            t->failed = 1;
            return 0;
        }
        t->data = data;
        t->room = room;
    }
    return 1;
}

void ek_text_add(ek_text *t, const char *fmt, ...)
{
    va_list args, again;
    int n;

    va_start(args, fmt);
    va_copy(again, args);
    n = vsnprintf(NULL, 0, fmt, args);
    va_end(args);
    if (n >= 0 && reserve(t, (size_t)n)) {
        vsnprintf(t->data + t->size, (size_t)n + 1, fmt, again);
        t->size += (size_t)n;
    }
    va_end(again);
}

void ek_text_bytes(ek_text *t, const void *data, size_t size)
{
    if (size >= SIZE_MAX / 4) {
        t->failed = 1;
        return;
    }
    if (!reserve(t, size))
        return;
    if (size > 0)
        memcpy(t->data + t->size, data, size);
    t->size += size;
    t->data[t->size] = '\0';
}

void ek_text_json(ek_text *t, const char *utf8, size_t size)
{
    static const char digit[] = "0123456789abcdef", from[] = "\"\\\b\f\n\r\t", to[] = "\"\\bfnrt";
    char *p;

    if (size > SIZE_MAX / 8 || !reserve(t, 6 * size + 2)) {
        t->failed = 1;
        return;
    }
    p = t->data + t->size;
    *p++ = '"';
    for (size_t i = 0; i < size; i++) {
        const unsigned char c = (unsigned char)utf8[i];
        const char *plain = c ? strchr(from, c) : NULL;

        if (plain) {
            *p++ = '\\';
            *p++ = to[plain - from];
        } else if (c < 0x20) {
            memcpy(p, "\\u00", 4);
            p[4] = digit[c >> 4];
            p[5] = digit[c & 15];
            p += 6;
        } else {
            *p++ = (char)c;
        }
    }
    *p++ = '"';
    *p = '\0';
    t->size = (size_t)(p - t->data);
}

void ek_text_clear(ek_text *t)
{
    free(t->data);
    *t = (ek_text){0};
}
