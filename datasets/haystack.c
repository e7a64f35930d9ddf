/* datasets/haystack.c - see haystack.h. */
#include "datasets/haystack.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
static ek_code hide(char **out, const ek_haystack *h, const ek_task *t, const char *text,
                    size_t size, ek_err *err)
{
    ek_insert piece[EK_NEEDLES];

    for (int i = 0; i < h->n; i++) {
        piece[i] = (ek_insert){.before = " ", .piece = h->needle[i].text};
        EK_TRY(place_at(&piece[i].at, t, text, size, h->needle[i].depth, err));
    }
    qsort(piece, (size_t)h->n, sizeof piece[0], by_place);
    char *hay = ek_text_insert(text, size, piece, h->n);
    const size_t room = hay ? strlen(hay) + strlen(h->intro) + 1 : 0;

    *out = hay ? malloc(room) : NULL;
    if (*out)
        snprintf(*out, room, "%s%s", h->intro, hay);
    free(hay);
    return *out ? EK_OK : EK_FAIL(err, EK_ENOMEM, "a haystack of %zu bytes", size);
}

static int count_prompt(const ek_task *t, const char *context, const ek_haystack *h)
{
    const size_t room = strlen(context) + strlen(h->question) + strlen(h->prefix) + 8;
    char *all = malloc(room);
    int n = -1;

    if (all != NULL) {
        snprintf(all, room, "%s\n\n%s%s", context, h->question, h->prefix);
        n = t->counter.count(t->counter.ctx, all, strlen(all));
        free(all);
    }
    return n;
}

ek_code ek_haystack_build(char **out, const ek_haystack *h, const ek_task *t, const ek_window *w,
                          int length, ek_err *err)
{
    const ek_doc *d = &t->texts.doc[w->doc];
    const char *text = d->text + w->begin;
    const int limit = length - (int)t->config->max_new_tokens - t->counter.wrap;
    const int without = count_prompt(t, h->needle[h->asked].text, h);
    int budget = limit - without, total;

    if (without < 0)
        return EK_FAIL(err, EK_EBROKEN, "the tokenizer could not count the question");
    for (int i = 0; i < h->n; i++)
        budget -= i == h->asked ? 0
                                : t->counter.count(t->counter.ctx, h->needle[i].text,
                                                   strlen(h->needle[i].text));
    for (int attempt = 0; attempt < 8; attempt++) {
        char *context;
        size_t size;

        if (budget < 16)
            return EK_FAIL(err, EK_EASKED,
                           "length %d leaves %d tokens for the text, expected at least 16", length,
                           budget);
        EK_TRY(ek_text_cut(&size, text, d->size - w->begin, &t->counter, budget, err));
        EK_TRY(hide(&context, h, t, text, size, err));
        total = count_prompt(t, context, h);
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

void ek_haystack_defaults(ek_task_config *c, int64_t tokens)
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
    c->max_new_tokens = c->max_new_tokens ? c->max_new_tokens : tokens;
}

/* A length that leaves no room is found now, not when its first sample comes up among others that
 * are stored already.  Needles differ in size, so of a length near the limit many samples are made;
 * of a long one the first, which shows whether the text is long enough. */
static ek_code try_lengths(const ek_task *t, ek_err *err)
{
    enum { NEAR = 1024, MANY = 256 };
    const ek_task_config *c = t->config;
    const int64_t each = c->n_depths * c->repeats;

    for (int l = 0; l < c->n_lengths; l++) {
        const int near = c->lengths[l] - c->max_new_tokens - t->counter.wrap < NEAR;
        const int64_t n = !near ? 1 : each < MANY ? each : MANY;

        for (int64_t k = 0; k < n; k++) {
            const int64_t i =
                k % c->n_depths + c->n_depths * (l + c->n_lengths * (k / c->n_depths));
            ek_sample s = {.depth = -1};
            const ek_code code = t->cls->sample(&s, t, i, err);

            ek_sample_clear(&s);
            if (code != EK_OK)
                return code;
        }
    }
    return EK_OK;
}

ek_code ek_haystack_open(ek_task *t, ek_err *err)
{
    const ek_task_config *c = t->config;

    if (c->n_lengths == 0 || c->n_depths == 0)
        return EK_FAIL(err, EK_ENOMEM, "lengths and depths");
    t->n = c->n_lengths * c->n_depths * c->repeats;
    return try_lengths(t, err);
}

ek_haystack_cell ek_haystack_cell_of(const ek_task *t, int64_t i)
{
    const ek_task_config *c = t->config;
    ek_haystack_cell cell = {.depth = (int)c->depths[i % c->n_depths],
                             .length = (int)c->lengths[i / c->n_depths % c->n_lengths],
                             .repeat = i / c->n_depths / c->n_lengths};

    cell.draw = ek_draw_of((uint64_t)c->seed, t->cls->name,
                           (uint64_t)(cell.length * 101 + cell.depth), (uint64_t)cell.repeat);
    return cell;
}

ek_code ek_haystack_window(ek_window *out, const ek_task *t, ek_haystack_cell *cell, int64_t i,
                           ek_err *err)
{
    return ek_texts_window(out, &t->texts, (size_t)cell->length * 6,
                           ek_draw_below(&cell->draw, UINT64_MAX), i, err);
}

ek_code ek_haystack_sample(ek_sample *s, const char *what, const ek_haystack *h, const ek_task *t,
                           const ek_haystack_cell *cell, const ek_window *w, ek_err *err)
{
    const size_t room = strlen(h->question) + 3;
    char id[256];

    snprintf(id, sizeof id, "%s-%d-%d-%lld-%.150s@%zu", what, cell->length, cell->depth,
             (long long)cell->repeat, t->texts.doc[w->doc].id, w->begin);
    s->kind = EK_SAMPLE_ANSWER;
    s->doc_id = strdup(id);
    s->cluster = strdup(id);
    s->question = malloc(room);
    s->answer_prefix = strdup(h->prefix);
    s->chat = true;
    s->max_new_tokens = (int)t->config->max_new_tokens;
    s->depth = cell->depth;
    s->length = cell->length;
    if (!s->doc_id || !s->cluster || !s->question || !s->answer_prefix)
        return EK_FAIL(err, EK_ENOMEM, "%s", id);
    const char *needle = strstr(s->context, h->needle[h->asked].text);
    if (needle == NULL)
        return EK_FAIL(err, EK_EBROKEN, "%s: the needle is not in the text", id);
    s->needle = (size_t)(needle - s->context);
    s->needle_size = strlen(h->needle[h->asked].text);
    snprintf(s->question, room, "\n\n%s", h->question);
    return EK_OK;
}
