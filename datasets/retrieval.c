/* datasets/retrieval.c - see retrieval.h. */
#include "datasets/retrieval.h"

#include "datasets/hidden.h"
#include "datasets/values.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MIN_PROSE = 128, REPEAT_TOKENS = 40, ATTEMPTS = 8, MAX_PASSAGES = 4, MAX_QUOTES = 3 };

const char *const ek_retrieval_kind_names[] = {"facts", "pairs",  "list", "passage",
                                               "mixed", "quotes", NULL};

/* The passages to be repeated, and the words that name them: bytes of the prose. */
typedef struct passages {
    ek_span all[MAX_PASSAGES], opening[MAX_PASSAGES];
    int n;
} passages;

static int is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

static int is_inside(const passages *p, size_t at)
{
    for (int i = 0; i < p->n; i++)
        if (at > p->all[i].begin && at < p->all[i].end)
            return 1;
    return 0;
}

static int overlaps(const passages *p, ek_span s)
{
    for (int i = 0; i < p->n; i++)
        if (s.begin < p->all[i].end && p->all[i].begin < s.end)
            return 1;
    return 0;
}

/* One more passage, which begins with a sentence and is named by its first words.  Where no
 * sentence of the prose has such words the last one tried is taken if it is the first passage, and
 * none if it is a further one. */
static ek_code draw_passage(passages *out, const char *text, size_t size, const ek_counter *counter,
                            int tokens, ek_draw *draw, ek_err *err)
{
    ek_span all = {0, 0};

    for (int attempt = 0; attempt < 32; attempt++) {
        size_t begin = ek_text_sentence_end(text, size, ek_draw_below(draw, size));
        size_t length, opening;

        while (begin < size && is_space(text[begin]))
            begin++;
        EK_TRY(ek_text_cut(&length, text + begin, size - begin, counter, tokens, err));
        if (begin + length >= size && attempt < 31)
            continue; /* cut short by the end */
        all = (ek_span){begin, begin + length};
        if (overlaps(out, all))
            continue;
        opening = ek_hidden_opening(text + begin, length, text, size, begin);
        if (opening > 0) {
            out->all[out->n] = all;
            out->opening[out->n++] = (ek_span){begin, begin + opening};
            return EK_OK;
        }
    }
    if (out->n == 0) {
        out->all[0] = out->opening[0] = all;
        out->n = 1;
    }
    return EK_OK;
}

/* The end of the last paragraph before `at`, or 0. */
static size_t paragraph_end(const char *text, size_t at)
{
    for (; at >= 2; at--)
        if (text[at - 1] == '\n' && text[at - 2] == '\n') {
            while (at > 0 && is_space(text[at - 1]))
                at--;
            return at;
        }
    return 0;
}

/* Places for the pieces, ascending, none of them inside a passage; order[k] is the piece that goes
 * into the k-th. */
static void draw_places(ek_insert *piece, int *order, const ek_hidden *h, const char *text,
                        size_t size, const passages *p, ek_draw *draw)
{
    for (int i = 0; i < h->n_pieces; i++) {
        size_t at = 0;
        int k = i;

        for (int attempt = 0; attempt < 32; attempt++) {
            const size_t near = ek_draw_below(draw, size + 1);

            at = h->piece[i].block ? paragraph_end(text, near)
                                   : ek_text_sentence_end(text, size, near);
            if (!is_inside(p, at))
                break;
            at = 0;
        }
        const int apart = ek_draw_below(draw, 4) == 0 || h->piece[i].block;
        const ek_insert mine = {
            .at = at, .before = apart ? "\n\n" : " ", .piece = h->piece[i].text};
        for (; k > 0 && piece[k - 1].at > at; k--) {
            piece[k] = piece[k - 1];
            order[k] = order[k - 1];
        }
        piece[k] = mine;
        order[k] = i;
    }
}

static int by_fact(const void *a, const void *b)
{
    const ek_turn *x = a, *y = b;

    if (x->fact.begin != y->fact.begin)
        return x->fact.begin < y->fact.begin ? -1 : 1;
    return strcmp(x->question, y->question); /* fields of one record */
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

/* The context, and where each piece begins in it. */
static ek_code write_context(ek_retrieval *out, const ek_hidden *h, const passages *p,
                             const char *text, size_t size, ek_insert *piece, size_t *where,
                             ek_draw *draw, ek_err *err)
{
    const size_t intro = strlen(h->intro), head = intro > 0 ? intro + 2 : 0;
    int order[EK_HIDDEN_MAX];
    char *body;
    size_t room;

    draw_places(piece, order, h, text, size, p, draw);
    body = ek_text_insert(text, size, piece, h->n_pieces);
    room = body ? head + strlen(body) + 1 : 0;
    out->context = body ? malloc(room) : NULL;
    if (out->context == NULL) {
        free(body);
        return EK_FAIL(err, EK_ENOMEM, "retrieval text of %zu bytes", size);
    }
    snprintf(out->context, room, "%s%s%s", h->intro, intro > 0 ? "\n\n" : "", body);
    free(body);
    for (int k = 0; k < h->n_pieces; k++)
        where[order[k]] = head + piece[k].where;
    return EK_OK;
}

static ek_code assemble(ek_retrieval *out, const ek_hidden *h, const char *text, size_t size,
                        const ek_counter *counter, int passage_tokens, ek_draw *draw, ek_err *err)
{
    const size_t head = strlen(h->intro) + (h->intro[0] ? 2 : 0);
    ek_insert piece[EK_HIDDEN_MAX];
    size_t where[EK_HIDDEN_MAX];
    passages p = {.n = 0};
    int n = 0;

    for (int i = 0; i < h->passages; i++)
        EK_TRY(draw_passage(&p, text, size, counter, passage_tokens, draw, err));
    EK_TRY(write_context(out, h, &p, text, size, piece, where, draw, err));
    for (; n < h->n_asks; n++) {
        const ek_ask *a = &h->ask[n];

        out->n_turns = n + 1;
        out->turn[n] = (ek_turn){.question = strdup(a->question),
                                 .answer = strdup(a->answer),
                                 .value = {a->value_begin, a->value_end},
                                 .fact = {where[a->piece] + a->begin, where[a->piece] + a->end}};
        if (out->turn[n].question == NULL || out->turn[n].answer == NULL)
            return EK_FAIL(err, EK_ENOMEM, "retrieval text");
    }
    qsort(out->turn, (size_t)n, sizeof out->turn[0], by_fact);
    shuffle(out->turn, n, draw);
    for (int i = 0; i < p.n && n < EK_RETRIEVAL_TURNS; i++, n++) {
        const size_t length = p.all[i].end - p.all[i].begin;
        const size_t at = head + moved(p.all[i].begin, piece, h->n_pieces);

        out->n_turns = n + 1;
        out->turn[n] =
            (ek_turn){.question = ek_hidden_repeat(text + p.opening[i].begin,
                                                   p.opening[i].end - p.opening[i].begin, draw),
                      .answer = strndup(text + p.all[i].begin, length),
                      .value = {0, length},
                      .fact = {at, at + length}};
        if (out->turn[n].question == NULL || out->turn[n].answer == NULL)
            return EK_FAIL(err, EK_ENOMEM, "retrieval text");
    }
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

/* What pieces, turns and template take, before any prose. */
static ek_code fixed_tokens(int *out, const ek_hidden *h, const ek_counter *c,
                            const ek_retrieval_config *config, ek_err *err)
{
    const int turns = h->n_asks + h->passages;
    int sum = c->wrap + c->turn * (turns > 0 ? turns - 1 : 0) +
              h->passages * (REPEAT_TOKENS + config->passage_tokens);

    EK_TRY(count(&sum, c, h->intro, err));
    for (int i = 0; i < h->n_pieces; i++)
        EK_TRY(count(&sum, c, h->piece[i].text, err));
    for (int i = 0; i < h->n_asks; i++) {
        EK_TRY(count(&sum, c, h->ask[i].question, err));
        EK_TRY(count(&sum, c, h->ask[i].answer, err));
    }
    *out = sum;
    return EK_OK;
}

/* Quotes, and passages of the prose, that an item of the passage kind has room for. */
static int quotes_for(const ek_retrieval_config *c)
{
    const int n = c->min_tokens / 3 / (2 * c->passage_tokens + REPEAT_TOKENS);

    return n < 1 ? 1 : n < 4 ? n : 4;
}

static int passages_for(const ek_retrieval_config *c)
{
    const int n = c->min_tokens / 6 / (c->passage_tokens + REPEAT_TOKENS);

    return n < 1 ? 1 : n < MAX_PASSAGES ? n : MAX_PASSAGES;
}

int ek_retrieval_kind_of(const ek_retrieval_config *c, uint64_t seed, int64_t i)
{
    const double u = ek_rng_unit(seed, ek_rng_stream("retrieval/kind", (uint64_t)i, 0), 0);
    double all = 0, sum = 0;

    for (int k = 0; k < EK_RETRIEVAL_KINDS; k++)
        all += c->weight[k];
    for (int k = 0; k < EK_RETRIEVAL_KINDS && all > 0; k++) {
        sum += c->weight[k] / all;
        if (u < sum && c->weight[k] > 0)
            return k;
    }
    for (int k = EK_RETRIEVAL_KINDS - 1; k > 0; k--)
        if (c->weight[k] > 0)
            return k;
    return EK_RETRIEVAL_FACTS;
}

/* What an item of this kind hides, but for what it takes from the texts. */
static ek_code draw_hidden(ek_hidden *h, const ek_retrieval_config *c, int kind, ek_draw *draw,
                           ek_err *err)
{
    h->intro = "";
    if (kind == EK_RETRIEVAL_FACTS) {
        h->passages = 1;
        return ek_hidden_facts(h, c->facts, draw, err);
    }
    if (ek_draw_below(draw, 2) == 0)
        ek_hidden_intro(h, kind == EK_RETRIEVAL_QUOTES, draw);
    h->passages = kind == EK_RETRIEVAL_PASSAGE  ? passages_for(c)
                  : kind == EK_RETRIEVAL_QUOTES ? 0
                                                : (int)ek_draw_below(draw, 2);
    if (kind == EK_RETRIEVAL_PAIRS)
        return ek_hidden_pairs(h, c->facts, draw, err);
    if (kind == EK_RETRIEVAL_LIST)
        return ek_hidden_list(h, c->facts, draw, err);
    if (kind == EK_RETRIEVAL_MIXED) {
        const int half = (c->facts + 1) / 2;

        EK_TRY(ek_hidden_facts(h, half, draw, err));
        return ek_hidden_pairs(h, c->facts - half, draw, err);
    }
    return EK_OK;
}

/* Asks for one thing less where a short item has no room; 0: only one is left.  What is hidden
 * stays, unless it was a sentence for that question alone. */
static int drop_one(ek_hidden *h)
{
    if (h->n_asks + h->passages < 2)
        return 0;
    if (h->passages > 0) {
        h->passages--;
        return 1;
    }
    ek_ask *a = &h->ask[--h->n_asks];
    int used = a->piece < h->n_pieces - 1;

    for (int i = 0; i < h->n_asks; i++)
        used |= h->ask[i].piece == a->piece;
    if (!used) {
        free(h->piece[--h->n_pieces].text);
        h->piece[h->n_pieces].text = NULL;
    }
    free(a->question);
    free(a->answer);
    *a = (ek_ask){.question = NULL};
    return 1;
}

static ek_code draw_quotes(ek_hidden *h, const ek_retrieval_config *c, int kind,
                           const ek_texts *prose, const ek_window *source,
                           const ek_counter *counter, ek_draw *draw, ek_err *err)
{
    const int n = kind == EK_RETRIEVAL_PASSAGE  ? quotes_for(c)
                  : kind == EK_RETRIEVAL_QUOTES ? 1 + (int)ek_draw_below(draw, MAX_QUOTES)
                                                : kind == EK_RETRIEVAL_MIXED;

    return ek_hidden_quotes(h, n, prose, source, counter, c->passage_tokens, draw, err);
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
    for (int k = 0; k < EK_RETRIEVAL_KINDS; k++)
        if (!(c->weight[k] >= 0))
            return EK_FAIL(err, EK_EASKED, "retrieval text: found weight %g of %s, expected >= 0",
                           c->weight[k], ek_retrieval_kind_names[k]);
    return EK_OK;
}

ek_code ek_retrieval_make(ek_retrieval *out, const ek_texts *prose, const ek_counter *counter,
                          const ek_retrieval_config *config, uint64_t seed, int64_t i, ek_err *err)
{
    ek_draw draw = ek_draw_of(seed, "retrieval", (uint64_t)i, 0);
    ek_hidden hidden = {.intro = ""};
    ek_retrieval r = {0};
    const ek_doc *d;
    int target, budget, fixed, kind;

    EK_TRY(check(config, err));
    target = config->min_tokens +
             (int)ek_draw_below(&draw, (uint64_t)(config->max_tokens - config->min_tokens) + 1);
    kind = ek_retrieval_kind_of(config, seed, i);
    EK_CHECK(draw_hidden(&hidden, config, kind, &draw, err));
    EK_CHECK(ek_texts_window(&r.source, prose, (size_t)target * 5, ek_draw_below(&draw, UINT64_MAX),
                             i, err));
    EK_CHECK(draw_quotes(&hidden, config, kind, prose, &r.source, counter, &draw, err));
    if (hidden.n_asks + hidden.passages == 0) /* the texts have no such sentence */
        hidden.passages = 1;
    EK_CHECK(fixed_tokens(&fixed, &hidden, counter, config, err));
    while (target - fixed < MIN_PROSE && kind != EK_RETRIEVAL_FACTS && drop_one(&hidden))
        EK_CHECK(fixed_tokens(&fixed, &hidden, counter, config, err));
    budget = target - fixed;
    d = &prose->doc[r.source.doc];
    for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
        ek_draw places = draw;
        size_t size;

        if (budget < MIN_PROSE)
            EK_CHECK(EK_FAIL(err, EK_EASKED,
                             "retrieval text of %d tokens leaves %d for the prose, expected %d",
                             target, budget, MIN_PROSE));
        EK_CHECK(ek_text_cut(&size, d->text + r.source.begin, d->size - r.source.begin, counter,
                             budget, err));
        r.source.end = r.source.begin + size;
        r.kind = kind;
        EK_CHECK(assemble(&r, &hidden, d->text + r.source.begin, size, counter,
                          config->passage_tokens, &places, err));
        EK_CHECK(measure(&r, counter, err));
        if (r.tokens <= target) {
            *out = r;
            ek_hidden_clear(&hidden);
            return EK_OK;
        }
        budget -= r.tokens - target;
        const ek_window source = r.source;
        ek_retrieval_clear(&r);
        r.source = source;
    }
    err->code = EK_FAIL(err, EK_EBROKEN, "retrieval text: item %lld: found no text of %d tokens",
                        (long long)i, target);
fail:
    ek_hidden_clear(&hidden);
    ek_retrieval_clear(&r);
    return err->code;
}

void ek_retrieval_clear(ek_retrieval *r)
{
    free(r->context);
    for (int i = 0; i < EK_RETRIEVAL_TURNS; i++) {
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
    ek_values_words(add_word, h);
    for (int i = 0; ek_hidden_wording(i) != NULL; i++)
        add_word(h, ek_hidden_wording(i));
    ek_hasher_close(h, out);
}

const char *ek_retrieval_wording(int i)
{
    return ek_hidden_wording(i);
}
