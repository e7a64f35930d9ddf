/* datasets/kv_needle.c - several keys with their values hidden in prose, one value asked for.
 *
 * The asked pair lies at the sample's depth; the others are spread over the text, one at a random
 * place of each of pairs - 1 equal stretches.  A value is two words with a stroke between them
 * ("tiger/pencil"), a form that no other text has.  Right is an answer whose first word of this
 * form is the value; case is not looked at. */
#include "datasets/haystack.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { VALUE_ROOM = 20 };

typedef struct wording {
    const char *needle, *question, *prefix; /* %k the key, %v its value */
} wording;

/* Said twice, and the answer begun up to the quote: a small model otherwise names another key's
 * value, or explains what a call sign is. */
static const wording wordings[] = {
    {"The call sign of %k is \"%v\". Do not forget that the call sign of %k is \"%v\".",
     "Tell me the call sign of %k.", "The call sign of %k is \""},
    {"Remember that the call sign of %k is \"%v\". Once more, the call sign of %k is \"%v\".",
     "What is the call sign of %k?", "The call sign of %k is \""},
};
static const char intro[] = "Some radio stations and their call signs are hidden in the text "
                            "below. Remember each station's "
                            "call sign, for you will be asked about them.\n\n";
static const char *const keys[] = {"Egypt",  "Brazil", "Canada", "Japan",   "Norway",  "Kenya",
                                   "Italy",  "Mexico", "India",  "Sweden",  "Greece",  "Poland",
                                   "France", "China",  "Spain",  "Ireland", "Turkey",  "Chile",
                                   "Cuba",   "Peru",   "Russia", "Germany", "Austria", "Iceland"};
static const char *const words[] = {"tiger",  "banana", "rocket", "pencil", "dragon", "island",
                                    "butter", "camera", "doctor", "engine", "finger", "guitar",
                                    "hammer", "jacket", "lemon",  "monkey", "needle", "ocean",
                                    "pepper", "rabbit", "spider", "ticket", "turtle", "violin",
                                    "wagon",  "zebra",  "candle", "desert", "forest", "basket"};

typedef struct pairs {
    int n; /* the first is asked for */
    char value[EK_NEEDLES][VALUE_ROOM];
    char text[EK_NEEDLES][160];
    char question[120], prefix[120];
} pairs;

static void draw_value(char *out, ek_draw *draw)
{
    const size_t first = ek_draw_below(draw, EK_COUNT(words));
    const size_t step = 1 + ek_draw_below(draw, EK_COUNT(words) - 1);

    snprintf(out, VALUE_ROOM, "%s/%s", words[first], words[(first + step) % EK_COUNT(words)]);
}

static int is_new(const pairs *p, int i)
{
    for (int k = 0; k < i; k++)
        if (strcmp(p->value[k], p->value[i]) == 0)
            return 0;
    return 1;
}

/* A wording with key and value in its slots. */
static void fill(char *out, size_t room, const char *pattern, const char *key, const char *value)
{
    size_t n = 0;

    for (const char *p = pattern; *p != '\0' && n + 1 < room; p++) {
        const char *word = p[0] != '%' ? NULL : p[1] == 'k' ? key : value;

        if (word == NULL) {
            out[n++] = *p;
            continue;
        }
        n += (size_t)snprintf(out + n, room - n, "%s", word);
        p++;
    }
    out[n < room ? n : room - 1] = '\0';
}

static void draw_pairs(pairs *out, int n, ek_draw *draw)
{
    const wording *w = &wordings[ek_draw_below(draw, EK_COUNT(wordings))];
    const char *key[EK_COUNT(keys)];

    *out = (pairs){.n = n};
    memcpy(key, keys, sizeof keys);
    for (int i = 0; i < n; i++) {
        const size_t k = (size_t)i + ek_draw_below(draw, EK_COUNT(keys) - (uint64_t)i);
        const char *mine = key[k];

        key[k] = key[i];
        key[i] = mine;
        do
            draw_value(out->value[i], draw);
        while (!is_new(out, i));
        fill(out->text[i], sizeof out->text[i], w->needle, mine, out->value[i]);
    }
    fill(out->question, sizeof out->question, w->question, key[0], "");
    fill(out->prefix, sizeof out->prefix, w->prefix, key[0], "");
}

static void defaults(ek_task_config *c)
{
    ek_haystack_defaults(c, 30);
    c->pairs = c->pairs ? c->pairs : 3;
}

static ek_code open_task(ek_task *t, ek_err *err)
{
    if (t->config->pairs < 2)
        return EK_FAIL(err, EK_EASKED, "pairs: found %lld, expected 2 .. %d",
                       (long long)t->config->pairs, EK_NEEDLES);
    return ek_haystack_open(t, err);
}

static char **list_of(const pairs *p, int from, int to, int *n)
{
    char **list = calloc(EK_NEEDLES, sizeof *list);

    for (*n = 0; list != NULL && from + *n < to; ++*n)
        if ((list[*n] = strdup(p->value[from + *n])) == NULL)
            break;
    return list;
}

static ek_code sample(ek_sample *s, const ek_task *t, int64_t i, ek_err *err)
{
    ek_haystack_cell cell = ek_haystack_cell_of(t, i);
    const int n = (int)t->config->pairs;
    pairs in;
    ek_window w;

    draw_pairs(&in, n, &cell.draw);
    EK_TRY(ek_haystack_window(&w, t, &cell, i, err));
    ek_haystack hay = {.intro = intro, .question = in.question, .prefix = in.prefix, .n = n};
    for (int k = 0; k < n; k++) {
        const int lo = 101 * (k - 1) / (n - 1), hi = 101 * k / (n - 1);

        hay.needle[k] = (ek_needle){.text = in.text[k], .depth = cell.depth};
        if (k > 0)
            hay.needle[k].depth = lo + (int)ek_draw_below(&cell.draw, (uint64_t)(hi - lo));
    }
    EK_TRY(ek_haystack_build(&s->context, &hay, t, &w, cell.length, err));
    EK_TRY(ek_haystack_sample(s, "kv", &hay, t, &cell, &w, err));
    s->references = list_of(&in, 0, 1, &s->n_references);
    s->distractors = list_of(&in, 1, n, &s->n_distractors);
    if (!s->references || !s->distractors || s->n_references + s->n_distractors != n)
        return EK_FAIL(err, EK_ENOMEM, "%s", s->doc_id);
    return EK_OK;
}

/* The first word of the form of a value. */
static void find_value(char *out, size_t room, const char *text)
{
    for (const char *p = text; *p != '\0'; p++) {
        int head = 0, tail = 0;

        if (p > text && isalpha((unsigned char)p[-1]))
            continue;
        while (isalpha((unsigned char)p[head]))
            head++;
        while (p[head] == '/' && isalpha((unsigned char)p[head + 1 + tail]))
            tail++;
        if (head > 0 && tail > 0) {
            snprintf(out, room, "%.*s", head + 1 + tail, p);
            return;
        }
    }
}

/* What counts is the first value that is named: a model may go on and list them all. */
static void grade(ek_grade *out, const ek_sample *s, const char *prediction)
{
    find_value(out->parsed, sizeof out->parsed, prediction);
    if (out->parsed[0] == '\0')
        out->flag = "unparsed";
    for (int i = 0; i < s->n_distractors; i++)
        if (strcasecmp(out->parsed, s->distractors[i]) == 0)
            out->flag = "distractor";
    for (int i = 0; i < s->n_references; i++)
        if (strcasecmp(out->parsed, s->references[i]) == 0)
            out->score = 1.0;
}

static const char *wording_at(int i)
{
    const int n = 3 * (int)EK_COUNT(wordings);
    const wording *w = &wordings[i < n ? i / 3 : 0];

    if (i >= n)
        return i == n ? intro : NULL;
    return i % 3 == 0 ? w->needle : i % 3 == 1 ? w->question : w->prefix;
}

const ek_task_class ek_task_kv_needle = {
    .name = "kv_needle",
    .brief = "several keys and values hidden in prose at spread depths, one value asked for",
    .keys = "pairs lengths depths repeats max_new_tokens",
    .metric = "score",
    .floor = 0.25,
    .size = sizeof(ek_task),
    .defaults = defaults,
    .open = open_task,
    .sample = sample,
    .grade = grade,
    .wording = wording_at,
};
