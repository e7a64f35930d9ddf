/* datasets/verbatim.c - a sentence of another book hidden in prose, to be completed word for word.
 *
 * The question does not name the sentence: its first OPENING words open the answer, and 8 .. 14
 * more are asked for.  (Named in the question, they would be copied from there with what follows
 * them there.)  The score is the share of these words that come in order before the first wrong
 * one; case and punctuation at a word's ends are not looked at. */
#include "datasets/haystack.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OPENING = 5, LEAST = 8, MOST = 14, MAX_SENTENCE = 200, MAX_SENTENCES = 1 << 20 };

typedef struct place {
    int doc, size;
    size_t begin;
} place;

typedef struct verbatim {
    ek_task base;
    ek_texts other;
    place *sentence; /* (n_sentences) that may be hidden */
    int n_sentences;
} verbatim;

static const char *const questions[] = {
    "One sentence above was taken from another book. Write that sentence word for word.",
    "Which sentence above belongs to a different book? Copy it out exactly.",
};
static const char intro[] =
    "One sentence in the text below was taken from another book. Learn it by heart, for you will "
    "have to complete it word for word.\n\n";

/* The size of a plain sentence that begins at text[0], or 0: a capital, then words of letters,
 * blanks and commas only, a full stop, and as many words as asked. */
static int plain_sentence(const char *text, size_t size)
{
    int words = 1, at = 1;

    if (size < 2 || !isupper((unsigned char)text[0]))
        return 0;
    for (; at < MAX_SENTENCE && (size_t)at < size && text[at] != '.'; at++) {
        const char c = text[at], before = text[at - 1];

        if (c == ' ' && (before == ' ' || before == '-'))
            return 0;
        if (isalpha((unsigned char)c) || (c == '-' && before != ' ') ||
            (c == ',' && isalpha((unsigned char)before)))
            continue;
        if (c != ' ')
            return 0;
        words++;
    }
    if (at >= MAX_SENTENCE || (size_t)at + 1 >= size || !isspace((unsigned char)text[at + 1]) ||
        words < OPENING + LEAST || words > OPENING + MOST)
        return 0;
    at++;
    return ek_text_sentence_end(text, size, (size_t)at) == (size_t)at ? at : 0;
}

static ek_code find_sentences(verbatim *v, ek_err *err)
{
    int room = 0;

    for (int d = 0; d < v->other.n; d++) {
        const ek_doc *doc = &v->other.doc[d];

        for (size_t at = 2; at < doc->size; at++) {
            int size;

            if (doc->text[at - 1] != ' ' || strchr(".!?", doc->text[at - 2]) == NULL)
                if (doc->text[at - 1] != '\n' || doc->text[at - 2] != '\n')
                    continue;
            size = plain_sentence(doc->text + at, doc->size - at);
            if (size == 0 || v->n_sentences == MAX_SENTENCES)
                continue;
            if (v->n_sentences == room) {
                place *more = realloc(v->sentence, (size_t)(room * 2 + 256) * sizeof *more);

                if (more == NULL)
                    return EK_FAIL(err, EK_ENOMEM, "%d sentences", room);
                v->sentence = more;
                room = room * 2 + 256;
            }
            v->sentence[v->n_sentences++] = (place){.doc = d, .begin = at, .size = size};
        }
    }
    return EK_OK;
}

static void defaults(ek_task_config *c)
{
    ek_haystack_defaults(c, 40);
    if (c->needle_text == NULL)
        c->needle_text = strdup("data/text/other");
}

static ek_code open_task(ek_task *t, ek_err *err)
{
    verbatim *v = (verbatim *)t;

    if (t->config->needle_text == NULL)
        return EK_FAIL(err, EK_ENOMEM, "needle_text");
    EK_TRY(ek_texts_open(&v->other, t->config->needle_text, err));
    EK_TRY(find_sentences(v, err));
    if (v->n_sentences == 0)
        return EK_FAIL(err, EK_EASKED,
                       "%s: found no plain sentence of %d to %d words to hide (needle_text)",
                       t->config->needle_text, OPENING + LEAST, OPENING + MOST);
    return ek_haystack_open(t, err);
}

static void close_task(ek_task *t)
{
    verbatim *v = (verbatim *)t;

    free(v->sentence);
    ek_texts_close(&v->other);
}

/* Where the opening words end. */
static size_t opening_of(const char *sentence)
{
    size_t at = 0;

    for (int words = 0; words < OPENING; words++)
        at += strcspn(sentence + at + 1, " ") + 1;
    return at;
}

/* A sentence of another book whose first words the haystack's text does not have. */
static ek_code draw_sentence(char *out, const verbatim *v, const ek_doc *hay, const ek_window *w,
                             ek_draw *draw, ek_err *err)
{
    for (int attempt = 0; attempt < 256; attempt++) {
        const place *p = &v->sentence[ek_draw_below(draw, (uint64_t)v->n_sentences)];
        const ek_doc *doc = &v->other.doc[p->doc];

        snprintf(out, MAX_SENTENCE + 8, "%.*s", p->size, doc->text + p->begin);
        if (strcmp(doc->hash, hay->hash) != 0 &&
            memmem(hay->text + w->begin, w->end - w->begin, out, opening_of(out)) == NULL)
            return EK_OK;
    }
    return EK_FAIL(err, EK_EASKED, "%s: found no sentence of a book other than %s (needle_text)",
                   v->base.config->needle_text, hay->id);
}

static ek_code sample(ek_sample *s, const ek_task *t, int64_t i, ek_err *err)
{
    const verbatim *v = (const verbatim *)t;
    ek_haystack_cell cell = ek_haystack_cell_of(t, i);
    char sentence[MAX_SENTENCE + 8], opening[MAX_SENTENCE];
    ek_window w;

    EK_TRY(ek_haystack_window(&w, t, &cell, i, err));
    EK_TRY(draw_sentence(sentence, v, &t->texts.doc[w.doc], &w, &cell.draw, err));
    const size_t split = opening_of(sentence);
    snprintf(opening, sizeof opening, "%.*s", (int)split, sentence);
    const ek_haystack hay = {.intro = intro,
                             .question = questions[ek_draw_below(&cell.draw, EK_COUNT(questions))],
                             .prefix = opening,
                             .needle = {{.text = sentence, .depth = cell.depth}},
                             .n = 1};
    EK_TRY(ek_haystack_build(&s->context, &hay, t, &w, cell.length, err));
    EK_TRY(ek_haystack_sample(s, "verbatim", &hay, t, &cell, &w, err));
    s->references = calloc(1, sizeof *s->references);
    if (s->references != NULL)
        s->references[0] = strdup(sentence + split + 1);
    if (s->references == NULL || s->references[0] == NULL)
        return EK_FAIL(err, EK_ENOMEM, "%s", s->doc_id);
    s->n_references = 1;
    return EK_OK;
}

/* The next word from *at: its letters and digits without what stands at its ends; 0: no more. */
static int next_word(const char **at, const char **word)
{
    const char *p = *at;
    int n = 0;

    while (*p != '\0' && !isalnum((unsigned char)*p))
        p++;
    *word = p;
    while (p[n] != '\0' && !isspace((unsigned char)p[n]))
        n++;
    *at = p + n;
    while (n > 0 && !isalnum((unsigned char)p[n - 1]))
        n--;
    return n;
}

static int same_word(const char *a, const char *b, int n)
{
    for (int i = 0; i < n; i++)
        if (tolower((unsigned char)a[i]) != tolower((unsigned char)b[i]))
            return 0;
    return 1;
}

static void grade(ek_grade *out, const ek_sample *s, const char *prediction)
{
    const char *right = s->references[0], *said = prediction, *a, *b;
    int words = 0, same = 0, ended = 0;

    for (int n; (n = next_word(&right, &a)) > 0; words++) {
        const int m = ended ? 0 : next_word(&said, &b);

        ended = ended || n != m || !same_word(a, b, n);
        same += !ended;
        if (!ended)
            snprintf(out->parsed, sizeof out->parsed, "%.*s", (int)(right - s->references[0]),
                     s->references[0]);
    }
    out->score = words > 0 ? (double)same / words : 0;
}

static const char *wording_at(int i)
{
    if (i < (int)EK_COUNT(questions))
        return questions[i];
    return i == (int)EK_COUNT(questions) ? intro : NULL;
}

const ek_task_class ek_task_verbatim = {
    .name = "verbatim",
    .brief = "a sentence of another book hidden in prose, to be completed word for word",
    .keys = "needle_text lengths depths repeats max_new_tokens",
    .metric = "score",
    .floor = 0.25,
    .size = sizeof(verbatim),
    .defaults = defaults,
    .open = open_task,
    .close = close_task,
    .sample = sample,
    .grade = grade,
    .wording = wording_at,
};
