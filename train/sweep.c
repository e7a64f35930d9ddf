/* train/sweep.c - see the header. */
#include "train/sweep.h"

#include "core/json.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

typedef struct list { /* one --sweep: borrowed pieces of its text */
    const char *text;
    int key;                                    /* length */
    int at[EK_SWEEP_RUNS], n_of[EK_SWEEP_RUNS]; /* where values begin, their lengths */
    int n;
} list;

/* Length of the value at text: up to a comma that is not within brackets or quotes. */
static int value_length(const char *text)
{
    int depth = 0, n = 0;
    char quote = 0;

    for (; text[n]; n++) {
        const char c = text[n];

        if (quote)
            quote = c == quote ? 0 : quote;
        else if (c == '"' || c == '\'')
            quote = c;
        else if (c == '[' || c == '{')
            depth++;
        else if (c == ']' || c == '}')
            depth--;
        else if (c == ',' && depth <= 0)
            break;
    }
    return n;
}

static ek_code split(list *l, const char *text, ek_err *err)
{
    const char *equals = strchr(text, '=');

    *l = (list){.text = text};
    if (equals == NULL || equals == text)
        return EK_FAIL(err, EK_EASKED, "--sweep %.80s: expected key=value,value", text);
    l->key = (int)(equals - text);
    if (l->key == 3 && strncmp(text, "out", 3) == 0)
        return EK_FAIL(err, EK_EASKED, "--sweep out: every run has a folder of its own anyway");
    for (int at = l->key + 1;; at++) {
        const int n = value_length(text + at);

        if (n == 0)
            return EK_FAIL(err, EK_EASKED, "--sweep %.80s: found an empty value", text);
        if (l->n == EK_SWEEP_RUNS)
            return EK_FAIL(err, EK_EASKED, "--sweep %.*s: found more than %d values", l->key, text,
                           EK_SWEEP_RUNS);
        for (int i = 0; i < l->n; i++)
            if (l->n_of[i] == n && memcmp(text + l->at[i], text + at, (size_t)n) == 0)
                return EK_FAIL(err, EK_EASKED, "--sweep %.*s: found %.*s twice", l->key, text, n,
                               text + at);
        l->at[l->n] = at;
        l->n_of[l->n++] = n;
        at += n;
        if (text[at] == '\0')
            return EK_OK;
    }
}

/* Letters, digits and a few signs stay, for a folder's name. */
static void add_name(ek_text *out, const char *text, int n)
{
    for (int i = 0; i < n; i++)
        ek_text_add(out, "%c",
                    isalnum((unsigned char)text[i]) || strchr("._", text[i]) ? text[i] : '-');
}

/* Load a file with the values of one combination, pick (n lists). */
static ek_code load(ek_train_set *set, const ek_sweep *s, const char *path, const char *out,
                    const list *l, const int *pick, ek_err *err)
{
    const char *sets[EK_SWEEP_SETS + EK_SWEEP_KEYS + 1];
    ek_text own[EK_SWEEP_KEYS + 1] = {{0}};
    int n = 0, failed = 0;
    ek_code code;

    for (int i = 0; i < s->n_sets; i++)
        sets[n++] = s->set[i];
    for (int i = 0; i < s->n_lists; i++) {
        ek_text_add(&own[i], "%.*s=%.*s", l[i].key, l[i].text, l[i].n_of[pick[i]],
                    l[i].text + l[i].at[pick[i]]);
        sets[n++] = own[i].data;
    }
    if (out != NULL) {
        ek_text *name = &own[s->n_lists];

        ek_text_add(name, "out=\"%s/", out);
        for (int i = 0; i < s->n_lists; i++) {
            ek_text_add(name, "%s", i > 0 ? "_" : "");
            add_name(name, l[i].text, l[i].key);
            ek_text_add(name, "-");
            add_name(name, l[i].text + l[i].at[pick[i]], l[i].n_of[pick[i]]);
        }
        ek_text_add(name, "\"");
        sets[n++] = name->data;
    }
    for (int i = 0; i <= s->n_lists; i++)
        failed |= own[i].failed;
    ek_train_set_defaults(set);
    code = failed ? EK_FAIL(err, EK_ENOMEM, "settings of a sweep")
                  : ek_config_load(set, ek_train_fields, path, sets, n, err);
    for (int i = 0; i <= s->n_lists; i++)
        ek_text_clear(&own[i]);
    return code;
}

/* All combinations of one file. */
static ek_code load_file(ek_train_set *set, int *n, const ek_sweep *s, const char *path,
                         const list *l, int total, ek_err *err)
{
    ek_train_set base;
    ek_code code;

    if (s->n_lists == 0)
        return load(&set[(*n)++], s, path, NULL, l, NULL, err);
    ek_train_set_defaults(&base);
    code = ek_config_load(&base, ek_train_fields, path, s->set, s->n_sets, err);
    if (code == EK_OK && base.out == NULL)
        code = EK_FAIL(err, EK_EASKED, "%s: out: expected a folder for the weights", path);
    for (int c = 0; code == EK_OK && c < total; c++) {
        int pick[EK_SWEEP_KEYS], rest = c;

        for (int i = s->n_lists - 1; i >= 0; i--) {
            pick[i] = rest % l[i].n;
            rest /= l[i].n;
        }
        code = load(&set[(*n)++], s, path, base.out, l, pick, err);
    }
    ek_config_clear(&base, ek_train_fields);
    return code;
}

ek_code ek_sweep_open(ek_train_set **out, int *n, const ek_sweep *s, ek_err *err)
{
    list l[EK_SWEEP_KEYS];
    int total = 1;
    ek_train_set *set;

    if (s->n_lists > EK_SWEEP_KEYS || s->n_sets > EK_SWEEP_SETS)
        return EK_FAIL(err, EK_EASKED, "train: expected --sweep at most %d times, -s at most %d",
                       EK_SWEEP_KEYS, EK_SWEEP_SETS);
    for (int i = 0; i < s->n_lists; i++) {
        EK_TRY(split(&l[i], s->list[i], err));
        for (int j = 0; j < i; j++)
            if (l[i].key == l[j].key && strncmp(l[i].text, l[j].text, (size_t)l[i].key) == 0)
                return EK_FAIL(err, EK_EASKED, "--sweep %.*s: found twice", l[i].key, l[i].text);
        total = total * l[i].n > EK_SWEEP_RUNS ? EK_SWEEP_RUNS + 1 : total * l[i].n;
    }
    if (total * s->n_paths > EK_SWEEP_RUNS)
        return EK_FAIL(err, EK_EASKED, "train: these are more than %d runs", EK_SWEEP_RUNS);
    set = calloc((size_t)total * (size_t)s->n_paths, sizeof *set);
    if (set == NULL)
        return EK_FAIL(err, EK_ENOMEM, "%d training runs", total * s->n_paths);
    *n = 0;
    for (int i = 0; i < s->n_paths; i++)
        if (load_file(set, n, s, s->path[i], l, total, err) != EK_OK) {
            ek_sweep_close(set, *n);
            return err->code;
        }
    *out = set;
    return EK_OK;
}

void ek_sweep_close(ek_train_set *set, int n)
{
    for (int i = 0; set != NULL && i < n; i++)
        ek_config_clear(&set[i], ek_train_fields);
    free(set);
}
