/* datasets/retrieval.c - see retrieval.h. */
#include "datasets/retrieval.h"

#include "datasets/facts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MIN_PROSE = 128, PASSAGE_QUESTION_TOKENS = 40, ATTEMPTS = 8 };

static const char *const repeats[] = {
    "Repeat the passage that begins with \"%s\".",
    "Write out again the part of the text that starts with \"%s\".",
    "Quote the passage beginning \"%s\".",
    "How does the text go on from \"%s\"? Begin with these words.",
};

/* The passage to be repeated, and the words that name it: bytes of the prose. */
typedef struct passage {
    ek_span all, opening;
} passage;

static int is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

static int occurs_once(const char *text, size_t size, ek_span s)
{
    const char *first = memmem(text, size, text + s.begin, s.end - s.begin);

    return first == text + s.begin &&
           memmem(first + 1, size - s.begin - 1, first, s.end - s.begin) == NULL;
}

/* The first words of a passage, as many as it takes to name one place, four to sixteen. */
static int find_opening(passage *p, const char *text, size_t size)
{
    size_t at = p->all.begin;

    for (int words = 1; words <= 16 && at < p->all.end; words++) {
        while (at < p->all.end && !is_space(text[at]))
            at++;
        p->opening = (ek_span){p->all.begin, at};
        if (words >= 4 && memchr(text + p->all.begin, '\n', at - p->all.begin) == NULL &&
            occurs_once(text, size, p->opening))
            return 1;
        while (at < p->all.end && is_space(text[at]))
            at++;
    }
    return 0;
}

/* A passage that begins with a sentence and is named by its first words.  Where no sentence of the
 * prose has such words the last one tried is taken. */
static ek_code draw_passage(passage *out, const char *text, size_t size, const ek_counter *counter,
                            int tokens, ek_draw *draw, ek_err *err)
{
    for (int attempt = 0; attempt < 32; attempt++) {
        size_t begin = ek_text_sentence_end(text, size, ek_draw_below(draw, size));
        size_t length;

        while (begin < size && is_space(text[begin]))
            begin++;
        EK_TRY(ek_text_cut(&length, text + begin, size - begin, counter, tokens, err));
        if (begin + length >= size && attempt < 31)
            continue; /* cut short by the end */
        out->all = (ek_span){begin, begin + length};
        out->opening = out->all;
        if (find_opening(out, text, size))
            return EK_OK;
    }
    return EK_OK;
}

/* Places for the facts, ascending, none of them inside the passage; order[k] is the fact that goes
 * into the k-th. */
static void draw_places(ek_insert *piece, int *order, const ek_fact *fact, int n, const char *text,
                        size_t size, const passage *p, ek_draw *draw)
{
    for (int i = 0; i < n; i++) {
        size_t at = 0;
        int k = i;

        for (int attempt = 0; attempt < 32; attempt++) {
            at = ek_text_sentence_end(text, size, ek_draw_below(draw, size + 1));
            if (at <= p->all.begin || at >= p->all.end)
                break;
            at = 0;
        }
        const ek_insert mine = {
            .at = at, .before = ek_draw_below(draw, 4) == 0 ? "\n\n" : " ", .piece = fact[i].text};
        for (; k > 0 && piece[k - 1].at > at; k--) {
            piece[k] = piece[k - 1];
            order[k] = order[k - 1];
        }
        piece[k] = mine;
        order[k] = i;
    }
}

static void shuffle(ek_turn *turn, int n, ek_draw *draw)
{
    for (int i = n - 1; i > 0; i--) {
        const int k = (int)ek_draw_below(draw, (uint64_t)i + 1);
        const ek_turn held = turn[i];

        turn[i] = turn[k];
        turn[k] = held;
    }
}

/* Where byte `at` of the prose lies once the pieces are in: what is put in at a place comes before
 * the byte that stood there. */
static size_t moved(size_t at, const ek_insert *piece, int n)
{
    size_t to = at;

    for (int i = 0; i < n && piece[i].at <= at; i++)
        to += strlen(piece[i].piece) + (piece[i].at > 0 ? strlen(piece[i].before) : 1);
    return to;
}

static ek_code assemble(ek_retrieval *out, const char *text, size_t size, const ek_fact *fact,
                        int n, const ek_counter *counter, int passage_tokens, ek_draw *draw,
                        ek_err *err)
{
    ek_insert piece[EK_RETRIEVAL_MAX];
    int order[EK_RETRIEVAL_MAX];
    passage p = {{0, 0}, {0, 0}};
    ek_turn *last = &out->turn[n];
    size_t opening, length, room;
    const char *repeat;

    EK_TRY(draw_passage(&p, text, size, counter, passage_tokens, draw, err));
    draw_places(piece, order, fact, n, text, size, &p, draw);
    out->context = ek_text_insert(text, size, piece, n);
    if (out->context == NULL)
        return EK_FAIL(err, EK_ENOMEM, "retrieval text of %zu bytes", size);
    out->n_turns = n + 1;
    for (int k = 0; k < n; k++) {
        const ek_fact *f = &fact[order[k]];

        out->turn[k] = (ek_turn){.question = strdup(f->question),
                                 .answer = strdup(f->answer),
                                 .value = {f->value_begin, f->value_end},
                                 .fact = {piece[k].where, piece[k].where + strlen(f->text)}};
        if (out->turn[k].question == NULL || out->turn[k].answer == NULL)
            return EK_FAIL(err, EK_ENOMEM, "retrieval text");
    }
    shuffle(out->turn, n, draw);
    repeat = repeats[ek_draw_below(draw, EK_COUNT(repeats))];
    opening = p.opening.end - p.opening.begin;
    length = p.all.end - p.all.begin;
    room = strlen(repeat) + opening + 1;
    last->answer = strndup(text + p.all.begin, length);
    last->question = malloc(room);
    if (last->question == NULL || last->answer == NULL)
        return EK_FAIL(err, EK_ENOMEM, "retrieval text");
    const char *slot = strstr(repeat, "%s");
    snprintf(last->question, room, "%.*s%.*s%s", (int)(slot - repeat), repeat, (int)opening,
             text + p.opening.begin, slot + 2);
    last->value = (ek_span){0, length};
    last->fact.begin = moved(p.all.begin, piece, n);
    last->fact.end = last->fact.begin + length;
    return EK_OK;
}

static ek_code count(int *sum, const ek_counter *c, const char *text, ek_err *err)
{
    const int n = c->count(c->ctx, text, strlen(text));

    if (n < 0)
        return EK_FAIL(err, EK_EBROKEN, "the tokenizer could not count %zu bytes", strlen(text));
    *sum += n;
    return EK_OK;
}

/* All tokens of the conversation. */
static ek_code measure(ek_retrieval *r, const ek_counter *c, ek_err *err)
{
    int sum = c->wrap + c->turn * (r->n_turns - 1);

    EK_TRY(count(&sum, c, r->context, err));
    EK_TRY(count(&sum, c, EK_RETRIEVAL_JOIN, err));
    for (int i = 0; i < r->n_turns; i++) {
        EK_TRY(count(&sum, c, r->turn[i].question, err));
        EK_TRY(count(&sum, c, r->turn[i].answer, err));
    }
    r->tokens = sum;
    return EK_OK;
}

/* What facts, turns and template take, before any prose. */
static ek_code fixed_tokens(int *out, const ek_fact *fact, const ek_counter *c,
                            const ek_retrieval_config *config, ek_err *err)
{
    int sum = c->wrap + c->turn * config->facts + PASSAGE_QUESTION_TOKENS + config->passage_tokens;

    for (int i = 0; i < config->facts; i++) {
        EK_TRY(count(&sum, c, fact[i].text, err));
        EK_TRY(count(&sum, c, fact[i].question, err));
        EK_TRY(count(&sum, c, fact[i].answer, err));
    }
    *out = sum;
    return EK_OK;
}

static ek_code check(const ek_retrieval_config *c, ek_err *err)
{
    if (c->facts < 1 || c->facts > EK_RETRIEVAL_MAX)
        return EK_FAIL(err, EK_EASKED, "retrieval text: found %d facts, expected 1 .. %d", c->facts,
                       EK_RETRIEVAL_MAX);
    if (c->min_tokens < 512 || c->max_tokens < c->min_tokens)
        return EK_FAIL(err, EK_EASKED,
                       "retrieval text: found %d .. %d tokens, expected at least 512 and ascending",
                       c->min_tokens, c->max_tokens);
    if (c->passage_tokens < 8 || c->passage_tokens > c->min_tokens / 4)
        return EK_FAIL(err, EK_EASKED,
                       "retrieval text: found a passage of %d tokens, expected 8 .. %d",
                       c->passage_tokens, c->min_tokens / 4);
    return EK_OK;
}

ek_code ek_retrieval_make(ek_retrieval *out, const ek_texts *prose, const ek_counter *counter,
                          const ek_retrieval_config *config, uint64_t seed, int64_t i, ek_err *err)
{
    ek_draw draw = ek_draw_of(seed, "retrieval", (uint64_t)i, 0);
    ek_fact fact[EK_RETRIEVAL_MAX];
    ek_retrieval r = {0};
    const ek_doc *d;
    int target, budget, fixed;

    EK_TRY(check(config, err));
    target = config->min_tokens +
             (int)ek_draw_below(&draw, (uint64_t)(config->max_tokens - config->min_tokens) + 1);
    ek_facts_draw(fact, config->facts, &draw);
    EK_TRY(fixed_tokens(&fixed, fact, counter, config, err));
    budget = target - fixed;
    EK_TRY(ek_texts_window(&r.source, prose, (size_t)target * 5, ek_draw_below(&draw, UINT64_MAX),
                           i, err));
    d = &prose->doc[r.source.doc];
    for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
        ek_draw places = draw;
        size_t size;

        if (budget < MIN_PROSE)
            return EK_FAIL(err, EK_EASKED,
                           "retrieval text of %d tokens leaves %d for the prose, expected %d",
                           target, budget, MIN_PROSE);
        EK_TRY(ek_text_cut(&size, d->text + r.source.begin, d->size - r.source.begin, counter,
                           budget, err));
        r.source.end = r.source.begin + size;
        EK_CHECK(assemble(&r, d->text + r.source.begin, size, fact, config->facts, counter,
                          config->passage_tokens, &places, err));
        EK_CHECK(measure(&r, counter, err));
        if (r.tokens <= target) {
            *out = r;
            return EK_OK;
        }
        budget -= r.tokens - target;
        const ek_window source = r.source;
        ek_retrieval_clear(&r);
        r.source = source;
    }
    return EK_FAIL(err, EK_EBROKEN, "retrieval text: item %lld: found no text of %d tokens",
                   (long long)i, target);
fail:
    ek_retrieval_clear(&r);
    return err->code;
}

void ek_retrieval_clear(ek_retrieval *r)
{
    free(r->context);
    for (int i = 0; i < EK_RETRIEVAL_MAX + 1; i++) {
        free(r->turn[i].question);
        free(r->turn[i].answer);
    }
    memset(r, 0, sizeof *r);
}

static void add_word(void *ctx, const char *text)
{
    ek_hasher_add(ctx, text, strlen(text));
}

void ek_retrieval_hash(char out[33])
{
    ek_hasher *h = ek_hasher_open();

    memset(out, '0', 32);
    out[32] = '\0';
    if (h == NULL)
        return;
    ek_facts_words(add_word, h);
    for (size_t i = 0; i < EK_COUNT(repeats); i++)
        add_word(h, repeats[i]);
    ek_hasher_close(h, out);
}

int ek_retrieval_n_templates(void)
{
    return ek_facts_n_templates();
}

int ek_retrieval_n_kinds(void)
{
    return ek_facts_n_kinds();
}

const char *ek_retrieval_template(int i, int what)
{
    return ek_facts_template(i, what);
}
