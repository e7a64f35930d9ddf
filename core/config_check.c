/* core/config_check.c - the tree against the table.  First all unknown keys, then kinds and ranges
 * in the document's order; on the way words become numbers. */
#include "core/config_node.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const ek_field *ek_field_find(const ek_field *fields, const char *key)
{
    for (; fields->key; fields++)
        if (strcmp(fields->key, key) == 0)
            return fields;
    return NULL;
}

int ek_field_has_range(const ek_field *f)
{
    return f->min != 0 || f->max != 0;
}

int ek_field_in_range(const ek_field *f, double x)
{
    return !ek_field_has_range(f) || (x >= f->min && x <= f->max);
}

int ek_field_n_names(const ek_field *f)
{
    int n = 0;

    while (f->names[n])
        n++;
    return n;
}

int ek_node_is_null(const ek_node *v)
{
    return v->kind == EK_NODE_WORD && !v->quoted &&
           (strcmp(v->text, "null") == 0 || strcmp(v->text, "~") == 0);
}

static void range_text(const ek_field *f, char *out, size_t room)
{
    char lo[32], hi[32];

    out[0] = '\0';
    if (!ek_field_has_range(f))
        return;
    ek_number_text(lo, f->min);
    ek_number_text(hi, f->max);
    snprintf(out, room, " %s .. %s", lo, hi);
}

static void names_text(const ek_field *f, char *out, size_t room)
{
    size_t n = 0;

    out[0] = '\0';
    for (int i = 0; f->names[i] && n < room; i++)
        n += (size_t)snprintf(out + n, room - n, "%s%s", i ? ", " : "", f->names[i]);
}

void ek_field_expected(const ek_field *f, char *out, size_t room)
{
    char range[80], names[300];

    range_text(f, range, sizeof range);
    switch (f->kind) {
    case EK_FIELD_INT:
        snprintf(out, room, "a whole number%s", range);
        break;
    case EK_FIELD_FLOAT:
        snprintf(out, room, "a number%s", range);
        break;
    case EK_FIELD_BOOL:
        snprintf(out, room, "true or false");
        break;
    case EK_FIELD_STRING:
        snprintf(out, room, "text");
        break;
    case EK_FIELD_ENUM:
        names_text(f, names, sizeof names);
        snprintf(out, room, "one of %s", names);
        break;
    case EK_FIELD_MAP:
        snprintf(out, room, "a mapping");
        break;
    case EK_FIELD_LIST:
        snprintf(out, room, "a list of%s mappings", range);
        break;
    case EK_FIELD_INTS:
        snprintf(out, room, "a list of whole numbers%s", range);
        break;
    case EK_FIELD_STRINGS:
        snprintf(out, room, "a list of texts");
        break;
    }
}

typedef struct check {
    ek_doc *doc;
    const ek_field *root;
    ek_path path;
    ek_err *err;
    ek_text unknown; /* sentences about unknown keys */
    int n_unknown, n_in_file;
} check;

/* ---- unknown keys ---- */

/* Where a key of that very name stands elsewhere in the tables; 1 if found. */
static int find_elsewhere(const ek_field *fields, const char *key, ek_path *path)
{
    for (; fields->key; fields++) {
        const size_t n = ek_path_push(path, fields->key);

        if (strcmp(fields->key, key) == 0)
            return 1;
        if (fields->kind == EK_FIELD_LIST)
            ek_path_push(path, "N");
        if (fields->fields && find_elsewhere(fields->fields, key, path))
            return 1;
        ek_path_pop(path, n);
    }
    return 0;
}

/* A share that is removed and a share that is kept look the same; show both readings. */
static void say_ratio(ek_text *t, const ek_node *v)
{
    char *end, given[32], rest[32];
    const double x = v->kind == EK_NODE_WORD ? strtod(v->text, &end) : NAN;

    ek_text_add(t, "compression_ratio is not a key: ");
    if (!(x >= 0 && x <= 1e6) || *end != '\0' || end == v->text) {
        ek_text_add(t, "write what stays, as in keep: 0.25");
        return;
    }
    ek_number_text(given, x);
    if (x > 1) {
        snprintf(rest, sizeof rest, "%.6g", 1 / x);
        ek_text_add(t, "%s times smaller is keep: %s", given, rest);
        return;
    }
    snprintf(rest, sizeof rest, "%.12g", 1 - x);
    ek_text_add(t, "removed %s is keep: %s, kept %s is keep: %s", given, rest, given, given);
}

static void say_unknown(check *c, const ek_field *fields, const ek_node *v)
{
    enum { MOST = 8, NAMES = 200 };
    const char *names[NAMES], *near;
    char place[400];
    ek_path elsewhere = {.n = 0};
    int n = 0;

    if (c->n_unknown++ >= MOST)
        return;
    c->n_in_file += v->set < 0;
    if (v->set >= 0)
        ek_doc_place(c->doc, v->set, 0, place, sizeof place);
    else
        snprintf(place, sizeof place, "line %d", v->key_line);
    ek_text_add(&c->unknown, "%s%s: ", c->n_unknown > 1 ? "; " : "", place);
    if (strcmp(v->key, "compression_ratio") == 0) {
        say_ratio(&c->unknown, v);
        return;
    }
    ek_text_add(&c->unknown, "unknown key \"%.120s\"", c->path.text);
    for (const ek_field *f = fields; f->key && n < NAMES; f++)
        names[n++] = f->key;
    near = ek_nearest(v->key, names, n);
    if (near) {
        ek_text_add(&c->unknown, ", nearest known: \"%s\"", near);
    } else if (find_elsewhere(c->root, v->key, &elsewhere)) {
        ek_text_add(&c->unknown, ", known as %s", elsewhere.text);
    } else {
        ek_text_add(&c->unknown, ", known here:");
        for (int i = 0; i < n && i < 12; i++)
            ek_text_add(&c->unknown, "%s %s", i ? "," : "", names[i]);
        ek_text_add(&c->unknown, "%s", n > 12 ? ", ..." : "");
    }
}

/* Also turns bare words in lists into mappings.  0: no memory. */
static int find_unknown(check *c, const ek_field *fields, ek_node *map)
{
    for (ek_node *v = map->child; v; v = v->next) {
        const ek_field *f = ek_field_find(fields, v->key);
        const size_t n = ek_path_push(&c->path, v->key);
        int i = 0;

        if (!f)
            say_unknown(c, fields, v);
        else if (f->kind == EK_FIELD_MAP && v->kind == EK_NODE_MAP &&
                 !find_unknown(c, f->fields, v))
            return 0;
        else if (f->kind == EK_FIELD_LIST && v->kind == EK_NODE_LIST)
            for (ek_node *e = v->child; e; e = e->next, i++) {
                const size_t m = ek_path_push_number(&c->path, i);

                if (!ek_doc_wrap(c->doc, e, f->fields) ||
                    (e->kind == EK_NODE_MAP && !find_unknown(c, f->fields, e)))
                    return 0;
                ek_path_pop(&c->path, m);
            }
        ek_path_pop(&c->path, n);
    }
    return 1;
}

/* ---- kinds and ranges ---- */

static void found_text(const ek_node *v, char *out, size_t room)
{
    if (v->kind == EK_NODE_LIST)
        snprintf(out, room, "a list");
    else if (v->kind == EK_NODE_MAP)
        snprintf(out, room, "a mapping");
    else if (v->quoted)
        snprintf(out, room, "the text \"%.60s\"", v->text);
    else if (v->text[0] == '\0')
        snprintf(out, room, "nothing");
    else
        snprintf(out, room, "%.60s", v->text);
}

/* "configs/x.yaml: line 3: scorer.hidden: found 0, expected ...". */
static ek_code refuse(check *c, const ek_node *v, const char *expected)
{
    char place[400], found[100];

    ek_doc_place(c->doc, v->set, v->line, place, sizeof place);
    found_text(v, found, sizeof found);
    return EK_FAIL(c->err, EK_EASKED, "%s: %.150s: found %s, expected %s", place,
                   c->path.n ? c->path.text : "document", found, expected);
}

static ek_code refuse_kind(check *c, const ek_node *v, const ek_field *f)
{
    char expected[400];

    ek_field_expected(f, expected, sizeof expected);
    return refuse(c, v, expected);
}

static int all_digits(const char *s)
{
    return *s && s[strspn(s, "0123456789")] == '\0';
}

/* 1 read, 0 not a whole number, -1 one that does not fit. */
static int read_int(const char *s, int64_t *out)
{
    if (!all_digits(s + (*s == '-' || *s == '+')))
        return 0;
    errno = 0;
    *out = strtoll(s, NULL, 10);
    return errno ? -1 : 1;
}

/* A decimal number without hexadecimal, inf and nan, which strtod would take. */
static int read_float(const char *s, double *out)
{
    char *end;

    if (!strpbrk(s, "0123456789") || s[strspn(s, "+-.0123456789eE")] != '\0')
        return 0;
    errno = 0;
    *out = strtod(s, &end);
    if (*end != '\0')
        return 0;
    return isfinite(*out) && !(errno == ERANGE && *out == 0) ? 1 : -1;
}

static ek_code check_enum(check *c, ek_node *v, const ek_field *f)
{
    const int n = ek_field_n_names(f);
    const char *near;
    char expected[400], more[480];

    for (int i = 0; i < n; i++) {
        if (strcmp(v->text, f->names[i]) == 0) {
            v->i = i;
            return EK_OK;
        }
    }
    near = ek_nearest(v->text, f->names, n);
    ek_field_expected(f, expected, sizeof expected);
    snprintf(more, sizeof more, "%s%s%s%s", expected, near ? " (nearest: \"" : "", near ? near : "",
             near ? "\")" : "");
    return refuse(c, v, more);
}

static ek_code check_number(check *c, ek_node *v, const ek_field *f, int whole)
{
    char expected[200], range[80];
    const int got = v->quoted ? 0 : whole ? read_int(v->text, &v->i) : read_float(v->text, &v->d);

    if (got == 0)
        return refuse_kind(c, v, f);
    range_text(f, range, sizeof range);
    if (got < 0) {
        snprintf(expected, sizeof expected, "a number that fits 64 bits%s%s", range[0] ? "," : "",
                 range);
        return refuse(c, v, expected);
    }
    if (!ek_field_in_range(f, whole ? (double)v->i : v->d))
        return refuse(c, v, range + 1);
    return EK_OK;
}

static ek_code check_word(check *c, ek_node *v, const ek_field *f)
{
    if (ek_node_is_null(v))
        return EK_OK;
    if (v->kind != EK_NODE_WORD || (!v->quoted && v->text[0] == '\0'))
        return refuse_kind(c, v, f);
    switch (f->kind) {
    case EK_FIELD_INT:
        return check_number(c, v, f, 1);
    case EK_FIELD_FLOAT:
        return check_number(c, v, f, 0);
    case EK_FIELD_ENUM:
        return check_enum(c, v, f);
    case EK_FIELD_BOOL:
        v->i = strcmp(v->text, "true") == 0;
        if (v->quoted || (!v->i && strcmp(v->text, "false") != 0))
            return refuse_kind(c, v, f);
        return EK_OK;
    default:
        return EK_OK;
    }
}

static ek_code check_map(check *c, const ek_field *fields, const ek_node *map);

static ek_code check_element(check *c, ek_node *e, const ek_field *f)
{
    char expected[200];

    if (f->kind == EK_FIELD_LIST) {
        if (e->kind == EK_NODE_MAP)
            return check_map(c, f->fields, e);
        snprintf(expected, sizeof expected, "a mapping, or a word for its \"%s\"",
                 f->fields[0].key ? f->fields[0].key : "");
        return refuse(c, e, expected);
    }
    if (e->kind != EK_NODE_WORD || ek_node_is_null(e) || (!e->quoted && e->text[0] == '\0'))
        return refuse(c, e, f->kind == EK_FIELD_INTS ? "a whole number" : "text");
    if (f->kind == EK_FIELD_INTS) {
        const ek_field number = {.kind = EK_FIELD_INT, .min = f->min, .max = f->max};

        return check_number(c, e, &number, 1);
    }
    return EK_OK;
}

static ek_code check_list(check *c, ek_node *v, const ek_field *f)
{
    char place[400], range[80];
    int i = 0;

    if (ek_node_is_null(v))
        return EK_OK;
    if (v->kind != EK_NODE_LIST)
        return refuse_kind(c, v, f);
    if (f->kind == EK_FIELD_LIST && !ek_field_in_range(f, v->n)) {
        ek_doc_place(c->doc, v->set, v->line, place, sizeof place);
        range_text(f, range, sizeof range);
        return EK_FAIL(c->err, EK_EASKED, "%s: %.150s: found a list of %d, expected%s elements",
                       place, c->path.text, v->n, range);
    }
    for (ek_node *e = v->child; e; e = e->next, i++) {
        const size_t n = ek_path_push_number(&c->path, i);

        EK_TRY(check_element(c, e, f));
        ek_path_pop(&c->path, n);
    }
    return EK_OK;
}

/* Its keys are known. */
static ek_code check_map(check *c, const ek_field *fields, const ek_node *map)
{
    for (ek_node *v = map->child; v; v = v->next) {
        const ek_field *f = ek_field_find(fields, v->key);
        const size_t n = ek_path_push(&c->path, v->key);

        if (f->kind == EK_FIELD_MAP) {
            if (v->kind != EK_NODE_MAP)
                return refuse_kind(c, v, f);
            EK_TRY(check_map(c, f->fields, v));
        } else if (f->kind == EK_FIELD_LIST || f->kind == EK_FIELD_INTS ||
                   f->kind == EK_FIELD_STRINGS) {
            EK_TRY(check_list(c, v, f));
        } else {
            EK_TRY(check_word(c, v, f));
        }
        ek_path_pop(&c->path, n);
    }
    return EK_OK;
}

ek_code ek_doc_check(ek_doc *doc, const ek_field *fields, ek_err *err)
{
    check c = {.doc = doc, .root = fields, .err = err};
    ek_code code;

    if (doc->root->kind != EK_NODE_MAP)
        return refuse(&c, doc->root, "a mapping of keys to values");
    if (!find_unknown(&c, fields, doc->root) || c.unknown.failed) {
        ek_text_clear(&c.unknown);
        return EK_FAIL(err, EK_ENOMEM, "%s: no memory to check it", doc->name);
    }
    if (c.n_unknown == 0)
        return check_map(&c, fields, doc->root);
    if (c.n_unknown > 8)
        ek_text_add(&c.unknown, "; and %d more unknown keys", c.n_unknown - 8);
    code = EK_FAIL(err, EK_EASKED, "%s%s%s", c.n_in_file ? doc->name : "", c.n_in_file ? ": " : "",
                   c.unknown.data);
    ek_text_clear(&c.unknown);
    return code;
}
