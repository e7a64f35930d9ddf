/* core/config_text.c - a struct as YAML, as leaves and as help; words, numbers and near names. */
#include "core/config_node.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

size_t ek_path_push(ek_path *p, const char *key)
{
    const size_t before = p->n, room = sizeof p->text - p->n;
    const int n = snprintf(p->text + p->n, room, "%s%s", p->n ? "." : "", key);

    p->n += n < 0 ? 0 : (size_t)n < room ? (size_t)n : room - 1;
    return before;
}

size_t ek_path_push_number(ek_path *p, int i)
{
    char word[16];

    snprintf(word, sizeof word, "%d", i);
    return ek_path_push(p, word);
}

void ek_path_pop(ek_path *p, size_t n)
{
    p->n = n;
    p->text[n] = '\0';
}

void ek_number_text(char out[32], double x)
{
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(out, 32, "%.*g", digits, x);
        if (strtod(out, NULL) == x)
            return;
    }
}

/* ---- words ---- */

/* Bytes of the UTF-8 character at s and its number; 1 and -1 if it is none. */
static int utf8_at(const unsigned char *s, long *out)
{
    const int n = s[0] < 0x80                   ? 1
                  : s[0] >= 0xc2 && s[0] < 0xe0 ? 2
                  : s[0] >= 0xe0 && s[0] < 0xf0 ? 3
                  : s[0] >= 0xf0 && s[0] < 0xf5 ? 4
                                                : 0;
    long c = n <= 1 ? s[0] : s[0] & (0xff >> (n + 1));

    *out = -1;
    for (int i = 1; i < n; i++) {
        if ((s[i] & 0xc0) != 0x80)
            return 1;
        c = c << 6 | (s[i] & 0x3f);
    }
    if (n == 0 || (n == 3 && (c < 0x800 || (c >= 0xd800 && c < 0xe000))) ||
        (n == 4 && (c < 0x10000 || c > 0x10ffff)))
        return 1;
    *out = c;
    return n;
}

/* Whether a character may stand in quotes as it is: printable and no line break. */
static int is_plain(long c)
{
    return (c >= 0x20 && c <= 0x7e) || (c >= 0xa0 && c <= 0xd7ff && c != 0x2028 && c != 0x2029) ||
           (c >= 0xe000 && c <= 0xfffd && c != 0xfeff) || c >= 0x10000;
}

void ek_text_quoted(ek_text *t, const char *s)
{
    const unsigned char *p = (const unsigned char *)s;

    ek_text_add(t, "\"");
    while (*p) {
        long c;
        const int n = utf8_at(p, &c);

        if (c == '"' || c == '\\')
            ek_text_add(t, "\\%c", (int)c);
        else if (c == '\n')
            ek_text_add(t, "\\n");
        else if (c == '\t')
            ek_text_add(t, "\\t");
        else if (c < 0) /* not UTF-8: the nearest thing that YAML can hold */
            ek_text_add(t, "\\x%02x", *p);
        else if (is_plain(c))
            ek_text_add(t, "%.*s", n, (const char *)p);
        else
            ek_text_add(t, "\\u%04lx", (unsigned long)c);
        p += n;
    }
    ek_text_add(t, "\"");
}

/* Words that mean nothing but themselves need no quotes. */
static int is_bare(const char *s)
{
    static const char *const taken[] = {"null", "true", "false", "yes", "no", "on",
                                        "off",  "y",    "n",     "nan", "inf"};
    static const char first[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_/";
    static const char rest[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_/"
                               "0123456789.+-";

    if (!*s || !strchr(first, *s) || s[strspn(s, rest)] != '\0')
        return 0;
    for (size_t i = 0; i < EK_COUNT(taken); i++)
        if (strcasecmp(s, taken[i]) == 0)
            return 0;
    return 1;
}

void ek_text_word(ek_text *t, const char *s)
{
    if (is_bare(s))
        ek_text_add(t, "%s", s);
    else
        ek_text_quoted(t, s);
}

/* ---- struct -> text ---- */

static const void *at(const void *config, size_t offset)
{
    return (const char *)config + offset;
}

static int length_of(const void *config, const ek_field *f)
{
    return *(const int *)at(config, f->offset_n);
}

static const void *items_of(const void *config, const ek_field *f)
{
    return *(void *const *)at(config, f->offset);
}

/* A value outside its range means "not given" and is written as null, which leaves it so. */
static int is_given(const void *config, const ek_field *f)
{
    const void *p = at(config, f->offset);
    double d;

    switch (f->kind) {
    case EK_FIELD_INT:
        return ek_field_in_range(f, (double)*(const int64_t *)p);
    case EK_FIELD_FLOAT:
        d = *(const double *)p;
        return isfinite(d) && ek_field_in_range(f, d);
    case EK_FIELD_ENUM:
        return *(const int *)p >= 0 && *(const int *)p < ek_field_n_names(f);
    case EK_FIELD_STRING:
        return *(char *const *)p != NULL;
    case EK_FIELD_LIST:
        return ek_field_in_range(f, length_of(config, f));
    default:
        return 1;
    }
}

/* A field that is one word; bare: not as YAML but as it is. */
static void add_word(ek_text *t, const void *config, const ek_field *f, int bare)
{
    const void *p = at(config, f->offset);
    char number[32];

    if (!is_given(config, f)) {
        ek_text_add(t, "null");
    } else if (f->kind == EK_FIELD_INT) {
        ek_text_add(t, "%lld", (long long)*(const int64_t *)p);
    } else if (f->kind == EK_FIELD_FLOAT) {
        ek_number_text(number, *(const double *)p);
        ek_text_add(t, "%s", number);
    } else if (f->kind == EK_FIELD_BOOL) {
        ek_text_add(t, "%s", *(const bool *)p ? "true" : "false");
    } else {
        const char *s = f->kind == EK_FIELD_ENUM ? f->names[*(const int *)p] : *(char *const *)p;

        if (bare)
            ek_text_add(t, "%s", s);
        else
            ek_text_word(t, s);
    }
}

static void add_element(ek_text *t, const void *config, const ek_field *f, int i, int bare)
{
    const void *items = items_of(config, f);

    if (f->kind == EK_FIELD_INTS)
        ek_text_add(t, "%lld", (long long)((const int64_t *)items)[i]);
    else if (bare)
        ek_text_add(t, "%s", ((char *const *)items)[i]);
    else
        ek_text_word(t, ((char *const *)items)[i]);
}

static void add_map(ek_text *t, const void *config, const ek_field *fields, int indent, int dash);

static void add_field(ek_text *t, const void *config, const ek_field *f, int indent)
{
    const int n = f->kind >= EK_FIELD_LIST ? length_of(config, f) : 0;

    ek_text_add(t, "%s:", f->key);
    if (f->kind == EK_FIELD_MAP && f->fields[0].key) {
        ek_text_add(t, "\n");
        add_map(t, at(config, f->offset), f->fields, indent + 2, 0);
    } else if (f->kind == EK_FIELD_MAP) {
        ek_text_add(t, " {}\n");
    } else if (f->kind == EK_FIELD_LIST && n > 0 && is_given(config, f)) {
        ek_text_add(t, "\n");
        for (int i = 0; i < n; i++)
            add_map(t, at(items_of(config, f), (size_t)i * f->size), f->fields, indent + 2, 1);
    } else if (f->kind == EK_FIELD_LIST) {
        ek_text_add(t, is_given(config, f) ? " []\n" : " null\n");
    } else if (f->kind == EK_FIELD_INTS || f->kind == EK_FIELD_STRINGS) {
        ek_text_add(t, " [");
        for (int i = 0; i < n; i++) {
            ek_text_add(t, "%s", i ? ", " : "");
            add_element(t, config, f, i, 0);
        }
        ek_text_add(t, "]\n");
    } else {
        ek_text_add(t, " ");
        add_word(t, config, f, 0);
        ek_text_add(t, "\n");
    }
}

/* dash: the mapping is a list's element, so "- " takes two of the first line's columns. */
static void add_map(ek_text *t, const void *config, const ek_field *fields, int indent, int dash)
{
    if (dash && !fields[0].key)
        ek_text_add(t, "%*s- {}\n", indent, "");
    for (const ek_field *f = fields; f->key; f++) {
        const int opens = dash && f == fields;

        ek_text_add(t, "%*s%s", indent + (dash && !opens ? 2 : 0), "", opens ? "- " : "");
        add_field(t, config, f, indent + (dash ? 2 : 0));
    }
}

char *ek_config_text(const void *config, const ek_field *fields)
{
    ek_text t = {0};

    ek_text_add(&t, "%s", "");
    add_map(&t, config, fields, 0, 0);
    if (t.failed) {
        ek_text_clear(&t);
        return NULL;
    }
    return t.data;
}

/* ---- leaves ---- */

typedef struct walk {
    ek_path path;
    ek_text value;
    void (*leaf)(void *ctx, const char *key, const char *value);
    void *ctx;
} walk;

static void say(walk *w)
{
    if (!w->value.failed && w->value.data)
        w->leaf(w->ctx, w->path.text, w->value.data);
    w->value.size = 0;
}

static void walk_map(walk *w, const void *config, const ek_field *fields);

static void walk_list(walk *w, const void *config, const ek_field *f)
{
    const int n = length_of(config, f);

    if (n == 0) {
        ek_text_add(&w->value, "[]");
        say(w);
    }
    for (int i = 0; i < n; i++) {
        const size_t before = ek_path_push_number(&w->path, i);

        if (f->kind == EK_FIELD_LIST) {
            walk_map(w, at(items_of(config, f), (size_t)i * f->size), f->fields);
        } else {
            add_element(&w->value, config, f, i, 1);
            say(w);
        }
        ek_path_pop(&w->path, before);
    }
}

static void walk_map(walk *w, const void *config, const ek_field *fields)
{
    for (const ek_field *f = fields; f->key; f++) {
        const size_t before = ek_path_push(&w->path, f->key);

        if (f->kind == EK_FIELD_MAP) {
            walk_map(w, at(config, f->offset), f->fields);
        } else if (f->kind >= EK_FIELD_LIST) {
            walk_list(w, config, f);
        } else {
            add_word(&w->value, config, f, 1);
            say(w);
        }
        ek_path_pop(&w->path, before);
    }
}

void ek_config_leaves(const void *config, const ek_field *fields,
                      void (*leaf)(void *ctx, const char *key, const char *value), void *ctx)
{
    walk w = {.leaf = leaf, .ctx = ctx};

    walk_map(&w, config, fields);
    ek_text_clear(&w.value);
}

/* ---- help ---- */

static void help_map(ek_text *t, const ek_field *fields, ek_path *path)
{
    char kind[200];

    for (const ek_field *f = fields; f->key; f++) {
        const size_t before = ek_path_push(path, f->key);

        ek_field_expected(f, kind, sizeof kind);
        ek_text_add(t, "%-28s  %-32s  %s\n", path->text, kind, f->help ? f->help : "");
        if (f->kind == EK_FIELD_LIST)
            ek_path_push(path, "N");
        if (f->fields)
            help_map(t, f->fields, path);
        ek_path_pop(path, before);
    }
}

char *ek_config_help(const ek_field *fields)
{
    ek_text t = {0};
    ek_path path = {.n = 0};

    ek_text_add(&t, "%s", "");
    help_map(&t, fields, &path);
    if (t.failed) {
        ek_text_clear(&t);
        return NULL;
    }
    return t.data;
}

/* ---- near names ---- */

/* Edits between two words: insert, drop, change, swap neighbours (optimal string alignment). */
static int edits(const char *a, int n, const char *b, int m)
{
    enum { MOST = 64 };
    int row[3][MOST + 1], *before = row[0], *last = row[1], *now = row[2];

    if (n > MOST || m > MOST)
        return 2 * MOST;
    for (int j = 0; j <= m; j++)
        last[j] = j;
    for (int i = 1; i <= n; i++) {
        int *spare = before;

        now[0] = i;
        for (int j = 1; j <= m; j++) {
            int d = last[j - 1] + (a[i - 1] != b[j - 1]);

            d = last[j] + 1 < d ? last[j] + 1 : d;
            d = now[j - 1] + 1 < d ? now[j - 1] + 1 : d;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] &&
                before[j - 2] + 1 < d)
                d = before[j - 2] + 1;
            now[j] = d;
        }
        before = last;
        last = now;
        now = spare;
    }
    return last[m];
}

const char *ek_nearest(const char *word, const char *const *names, int n)
{
    const int length = (int)strnlen(word, 1000);
    const char *best = NULL;
    int least = 1 + length / 3 + 1;

    for (int i = 0; i < n; i++) {
        const int d = edits(word, length, names[i], (int)strnlen(names[i], 1000));

        if (d < least && d < length) { /* as many edits as letters: nothing in common */
            least = d;
            best = names[i];
        }
    }
    return best;
}
