/* datasets/passkey.c - a number of five digits hidden in prose, asked for at the end.
 *
 * The grid is lengths x depths x repeats; each sample has its own haystack and is its own cluster.
 * The needle goes behind the last sentence that ends before `depth` percent of the haystack's
 * tokens.  Right is an answer that has the digits, not inside a longer run of digits, and in the
 * multi kind none of the other keys. */
#include "datasets/dataset.h"

#include "datasets/draw.h"

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

static int by_place(const void *a, const void *b)
{
    const ek_insert *x = a, *y = b;

    return x->at < y->at ? -1 : x->at > y->at;
}

/* Where `depth` percent of the text's tokens end, moved back to a sentence end. */
static ek_code place_at(size_t *at, const ek_task *t, const char *text, size_t size, int depth,
                        ek_err *err)
{
    int n;

    *at = depth == 0 ? 0 : size;
    if (depth == 0 || depth == 100)
        return EK_OK;
    n = t->counter.count(t->counter.ctx, text, size);
    if (n < 0)
        return EK_FAIL(err, EK_EBROKEN, "the tokenizer could not count %zu bytes", size);
    EK_TRY(ek_text_cut(at, text, size, &t->counter, (int)((int64_t)n * depth / 100), err));
    *at = ek_text_sentence_end(text, size, *at);
    return EK_OK;
}

/* The haystack text[0 .. size) with all needles in it. */
static ek_code hide(char **out, const ek_task *t, const char *text, size_t size, const needles *in,
                    int depth, ek_draw draw, ek_err *err)
{
    ek_insert piece[N_KEYS];

    for (int i = 0; i < in->n; i++) {
        const int percent = i == in->asked ? depth : (int)ek_draw_below(&draw, 101);

        piece[i] = (ek_insert){.before = " ", .piece = in->text[i]};
        EK_TRY(place_at(&piece[i].at, t, text, size, percent, err));
    }
    qsort(piece, (size_t)in->n, sizeof piece[0], by_place);
    char *hay = ek_text_insert(text, size, piece, in->n);
    const size_t room = hay ? strlen(hay) + sizeof intro : 0;

    *out = hay ? malloc(room) : NULL;
    if (*out)
        snprintf(*out, room, "%s%s", intro, hay);
    free(hay);
    return *out ? EK_OK : EK_FAIL(err, EK_ENOMEM, "a haystack of %zu bytes", size);
}

static int count_prompt(const ek_task *t, const char *context, const needles *in)
{
    const size_t room = strlen(context) + sizeof in->question + sizeof in->prefix + 8;
    char *all = malloc(room);
    int n = -1;

    if (all != NULL) {
        snprintf(all, room, "%s\n\n%s%s", context, in->question, in->prefix);
        n = t->counter.count(t->counter.ctx, all, strlen(all));
        free(all);
    }
    return n;
}

/* Cuts the haystack so that prompt, template and answer together have at most `length` tokens, and
 * a word more would not fit. */
static ek_code build(char **out, const ek_task *t, const ek_window *w, const needles *in,
                     int length, int depth, ek_draw draw, ek_err *err)
{
    const ek_doc *d = &t->texts.doc[w->doc];
    const char *text = d->text + w->begin;
    const int limit = length - (int)t->config->max_new_tokens - t->counter.wrap;
    const int without = count_prompt(t, in->text[in->asked], in);
    int budget = limit - without, total;

    if (without < 0)
        return EK_FAIL(err, EK_EBROKEN, "the tokenizer could not count the question");
    for (int i = 0; i < in->n; i++)
        if (i != in->asked)
            budget -= t->counter.count(t->counter.ctx, in->text[i], strlen(in->text[i]));
    for (int attempt = 0; attempt < 8; attempt++) {
        char *context;
        size_t size;

        if (budget < 16)
            return EK_FAIL(err, EK_EASKED,
                           "length %d leaves %d tokens for the text, expected at least 16", length,
                           budget);
        EK_TRY(ek_text_cut(&size, text, d->size - w->begin, &t->counter, budget, err));
        EK_TRY(hide(&context, t, text, size, in, depth, draw, err));
        total = count_prompt(t, context, in);
        if (total >= 0 && total <= limit) {
            if (total < limit - limit / 8 - 32) {
                free(context);
                return EK_FAIL(err, EK_EASKED, "%s: found text for %d tokens, expected %d", d->id,
                               total, limit);
            }
            *out = context;
            return EK_OK;
        }
        free(context);
        if (total < 0)
            return EK_FAIL(err, EK_EBROKEN, "the tokenizer could not count the prompt");
        budget -= total - limit;
    }
    return EK_FAIL(err, EK_EBROKEN, "no haystack of %d tokens was found", length);
}

static void defaults(ek_task_config *c)
{
    static const int64_t lengths[] = {1024, 2048, 4096};
    static const int64_t depths[] = {0, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100};

    if (c->n_lengths == 0 && (c->lengths = malloc(sizeof lengths)) != NULL) {
        memcpy(c->lengths, lengths, sizeof lengths);
        c->n_lengths = (int)EK_COUNT(lengths);
    }
    if (c->n_depths == 0 && (c->depths = malloc(sizeof depths)) != NULL) {
        memcpy(c->depths, depths, sizeof depths);
        c->n_depths = (int)EK_COUNT(depths);
    }
    c->repeats = c->repeats ? c->repeats : 3;
    c->max_new_tokens = c->max_new_tokens ? c->max_new_tokens : 30;
}

static ek_code open_task(ek_task *t, ek_err *err)
{
    const ek_task_config *c = t->config;

    if (c->n_lengths == 0 || c->n_depths == 0)
        return EK_FAIL(err, EK_ENOMEM, "lengths and depths");
    t->n = c->n_lengths * c->n_depths * c->repeats;
    return EK_OK;
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

/* Depths change fastest and repeats slowest, so the first samples are a grid of their own. */
static ek_code sample(ek_sample *s, const ek_task *t, int64_t i, ek_err *err)
{
    const ek_task_config *c = t->config;
    const int depth = (int)c->depths[i % c->n_depths];
    const int length = (int)c->lengths[i / c->n_depths % c->n_lengths];
    const int64_t repeat = i / c->n_depths / c->n_lengths;
    const uint64_t cell = (uint64_t)(length * 101 + depth);
    ek_draw draw = ek_draw_of((uint64_t)c->seed, "passkey", cell, (uint64_t)repeat);
    needles in;
    ek_window w;
    char id[256], question[256];
    int n_wrong;

    draw_needles(&in, c->kind, &draw);
    EK_TRY(ek_texts_window(&w, &t->texts, (size_t)length * 6, ek_draw_below(&draw, UINT64_MAX), i,
                           err));
    EK_TRY(build(&s->context, t, &w, &in, length, depth, draw, err));
    snprintf(id, sizeof id, "%s-%d-%d-%lld-%.150s@%zu", c->kind == MULTI ? "multi" : "single",
             length, depth, (long long)repeat, t->texts.doc[w.doc].id, w.begin);
    snprintf(question, sizeof question, "\n\n%s", in.question);
    s->kind = EK_SAMPLE_ANSWER;
    s->doc_id = strdup(id);
    s->cluster = strdup(id);
    s->question = strdup(question);
    s->answer_prefix = strdup(in.prefix);
    s->references = one_each(&in, 1, &s->n_references);
    s->distractors = one_each(&in, 0, &n_wrong);
    s->n_distractors = n_wrong;
    s->chat = true;
    s->max_new_tokens = (int)c->max_new_tokens;
    s->depth = depth;
    s->length = length;
    if (!s->doc_id || !s->cluster || !s->question || !s->answer_prefix || !s->references ||
        !s->distractors || s->n_references + s->n_distractors != in.n)
        return EK_FAIL(err, EK_ENOMEM, "%s", id);
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

const ek_task_class ek_task_passkey = {
    .name = "passkey",
    .brief = "a number of five digits hidden in prose at several depths, asked for at the end",
    .metric = "score",
    .floor = 0.5,
    .size = sizeof(ek_task),
    .defaults = defaults,
    .open = open_task,
    .sample = sample,
    .grade = grade,
};
