/* datasets/passkey.c - a number of five digits hidden in prose, asked for at the end.
 *
 * Right is an answer that has the digits, not inside a longer run of digits, and in the
 * multi kind none of the other keys. */
#include "datasets/haystack.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SINGLE, MULTI };
enum { N_KEYS = 4, DIGITS = 5 };

typedef struct wording {
    const char *needle, *question, *prefix;
} wording;

/* %s is the key; in the multi kind the first %s is its owner. */
static const wording single[] = {
    {"The pass key is %s. Remember it: %s is the pass key.",
     "What is the pass key that the text above mentions?", "The pass key is"},
    {"Keep this in mind: the pass key is %s.", "Which pass key were you told to keep in mind?",
     "The pass key is"},
    {"Here is the pass key you will need later: %s. Do not forget the pass key %s.",
     "Tell me the pass key from the text.", "The pass key from the text is"},
    {"Somebody wrote a pass key between these lines, and the pass key reads %s.",
     "Between the lines somebody wrote a pass key. What does it read?", "The pass key reads"},
};
static const wording multi[] = {
    {"The pass key of the %s is %s.", "What is the pass key of the %s?",
     "The pass key of the %s is"},
    {"For the %s the pass key is %s.", "Which pass key belongs to the %s?",
     "For the %s the pass key is"},
};
/* Says that a key will matter, not what it is: without it a small model takes the question for one
 * about the text. */
static const char intro[] =
    "A pass key is hidden in the text below. Find it and remember it, for you "
    "will be asked about it.\n\n";
static const char *const owners[] = {"red team",   "blue team",   "green team", "white team",
                                     "north wing", "south wing",  "east wing",  "west wing",
                                     "day shift",  "night shift", "front desk", "back office",
                                     "first boat", "second boat"};

typedef struct needles {
    int n, asked; /* asked: index of the key that is asked for */
    char key[N_KEYS][DIGITS + 1];
    char text[N_KEYS][200];
    char question[200], prefix[120];
} needles;

/* Five different numbers would be a coincidence; that no two are equal is made sure of. */
static void draw_keys(needles *out, ek_draw *draw)
{
    for (int i = 0; i < out->n; i++) {
        int fresh;

        do {
            fresh = 1;
            snprintf(out->key[i], sizeof out->key[i], "%u",
                     10000u + (unsigned)ek_draw_below(draw, 90000));
            for (int k = 0; k < i; k++)
                fresh &= strcmp(out->key[k], out->key[i]) != 0;
        } while (!fresh);
    }
}

/* Replaces each %s of a template by the next word; the last word serves all that follow. */
static void fill(char *out, size_t room, const char *template, const char *first, const char *rest)
{
    size_t n = 0;
    const char *word = first;

    for (const char *p = template; *p != '\0' && n + 1 < room; p++) {
        if (p[0] == '%' && p[1] == 's') {
            n += (size_t)snprintf(out + n, room - n, "%s", word);
            word = rest;
            p++;
        } else {
            out[n++] = *p;
        }
    }
    out[n < room ? n : room - 1] = '\0';
}

static void draw_needles(needles *out, int kind, ek_draw *draw)
{
    *out = (needles){.n = kind == MULTI ? N_KEYS : 1};
    draw_keys(out, draw);
    if (kind == SINGLE) {
        const wording *w = &single[ek_draw_below(draw, EK_COUNT(single))];

        fill(out->text[0], sizeof out->text[0], w->needle, out->key[0], out->key[0]);
        fill(out->question, sizeof out->question, w->question, "", "");
        fill(out->prefix, sizeof out->prefix, w->prefix, "", "");
    } else {
        const wording *w = &multi[ek_draw_below(draw, EK_COUNT(multi))];
        const uint64_t first = ek_draw_below(draw, EK_COUNT(owners));

        out->asked = (int)ek_draw_below(draw, N_KEYS);
        for (int i = 0; i < out->n; i++)
            fill(out->text[i], sizeof out->text[i], w->needle,
                 owners[(first + (uint64_t)i) % EK_COUNT(owners)], out->key[i]);
        const char *owner = owners[(first + (uint64_t)out->asked) % EK_COUNT(owners)];
        fill(out->question, sizeof out->question, w->question, owner, owner);
        fill(out->prefix, sizeof out->prefix, w->prefix, owner, owner);
    }
}

static char **one_each(const needles *in, int asked, int *n)
{
    char **list = calloc(N_KEYS, sizeof *list);

    *n = 0;
    for (int i = 0; i < in->n && list != NULL; i++) {
        if ((i == in->asked) != asked)
            continue;
        list[*n] = strdup(in->key[i]);
        if (list[*n] == NULL)
            break;
        ++*n;
    }
    return list;
}

static ek_code sample(ek_sample *s, const ek_task *t, int64_t i, ek_err *err)
{
    ek_haystack_cell cell = ek_haystack_cell_of(t, i);
    needles in;
    ek_window w;
    int n_right, n_wrong;

    draw_needles(&in, t->config->kind, &cell.draw);
    EK_TRY(ek_haystack_window(&w, t, &cell, i, err));
    ek_haystack hay = {
        .intro = intro, .question = in.question, .prefix = in.prefix, .n = in.n, .asked = in.asked};
    for (int k = 0; k < in.n; k++)
        hay.needle[k] =
            (ek_needle){.text = in.text[k],
                        .depth = k == in.asked ? cell.depth : (int)ek_draw_below(&cell.draw, 101)};
    EK_TRY(ek_haystack_build(&s->context, &hay, t, &w, cell.length, err));
    EK_TRY(ek_haystack_sample(s, t->config->kind == MULTI ? "multi" : "single", &hay, t, &cell, &w,
                              err));
    s->references = one_each(&in, 1, &n_right);
    s->distractors = one_each(&in, 0, &n_wrong);
    s->n_references = n_right;
    s->n_distractors = n_wrong;
    if (!s->references || !s->distractors || n_right + n_wrong != in.n)
        return EK_FAIL(err, EK_ENOMEM, "%s", s->doc_id);
    return EK_OK;
}

/* Whether the text has these digits as a whole run. */
static int has_run(const char *text, const char *digits)
{
    const size_t n = strlen(digits);

    for (const char *p = strstr(text, digits); p != NULL; p = strstr(p + 1, digits))
        if ((p == text || !isdigit((unsigned char)p[-1])) && !isdigit((unsigned char)p[n]))
            return 1;
    return 0;
}

static void grade(ek_grade *out, const ek_sample *s, const char *prediction)
{
    const char *p = prediction;
    size_t n;

    while (*p != '\0' && !isdigit((unsigned char)*p))
        p++;
    n = strspn(p, "0123456789");
    snprintf(out->parsed, sizeof out->parsed, "%.*s", (int)(n < 100 ? n : 100), p);
    if (n == 0) {
        out->flag = "unparsed";
        return;
    }
    for (int i = 0; i < s->n_distractors; i++)
        if (has_run(prediction, s->distractors[i])) {
            out->flag = "distractor";
            return;
        }
    for (int i = 0; i < s->n_references; i++)
        if (has_run(prediction, s->references[i])) {
            snprintf(out->parsed, sizeof out->parsed, "%.100s", s->references[i]);
            out->score = 1.0;
        }
}

static void defaults(ek_task_config *c)
{
    ek_haystack_defaults(c, 30);
}

/* Every sentence this task writes, for those who must not share one. */
static const char *wording_at(int i)
{
    const int n = (int)EK_COUNT(single), m = (int)EK_COUNT(multi);
    const wording *w = i / 3 < n ? &single[i / 3] : i / 3 < n + m ? &multi[i / 3 - n] : NULL;

    if (w == NULL)
        return i == 3 * (n + m) ? intro : NULL;
    return i % 3 == 0 ? w->needle : i % 3 == 1 ? w->question : w->prefix;
}

const ek_task_class ek_task_passkey = {
    .name = "passkey",
    .brief = "a number of five digits hidden in prose at several depths, asked for at the end",
    .keys = "kind lengths depths repeats max_new_tokens",
    .metric = "score",
    .floor = 0.5,
    .size = sizeof(ek_task),
    .defaults = defaults,
    .open = ek_haystack_open,
    .sample = sample,
    .grade = grade,
    .wording = wording_at,
};
