/* datasets/hidden.c - see hidden.h.  The wordings are our own and share none with any evaluation
 * task. */
#include "datasets/hidden.h"

#include "datasets/facts.h"
#include "datasets/values.h"

#include <stdlib.h>
#include <string.h>

typedef struct theme { /* of pairs */
    ek_value_kind key, value[4];
    const char *part[3]; /* pair, question, answer */
    int line;            /* a line of a block rather than a sentence */
} theme;

#define NUMBERS EK_VALUE_NUMBER, EK_VALUE_SMALL, EK_VALUE_WIRE, EK_VALUE_NUMBER
#define WORDS   EK_VALUE_DOUBLE, EK_VALUE_MADE, EK_VALUE_WORD, EK_VALUE_DOUBLE
#define MARKS   EK_VALUE_CODE, EK_VALUE_WIRE, EK_VALUE_NUMBER, EK_VALUE_DOUBLE
#define ANY     EK_VALUE_CODE, EK_VALUE_NUMBER, EK_VALUE_MADE, EK_VALUE_DOUBLE

static const theme themes[] = {
    {EK_VALUE_NAME,
     {WORDS},
     {"The badge of %K opens the gate with '%V'.", "How does the badge of %K open the gate?",
      "The badge of %K opens the gate with '%V'."},
     0},
    {EK_VALUE_NAME,
     {NUMBERS},
     {"%K keeps box %V.", "Which box does %K keep?", "%K keeps box %V."},
     0},
    {EK_VALUE_NAME,
     {MARKS},
     {"Parcels for %K bear the label %V.", "Which label do parcels for %K bear?",
      "Parcels for %K bear the label %V."},
     0},
    {EK_VALUE_PLACE,
     {NUMBERS},
     {"The train to %K is number %V.", "Which number has the train to %K?",
      "The train to %K is number %V."},
     0},
    {EK_VALUE_PLACE,
     {WORDS},
     {"In %K they greet strangers with \"%V\".", "How do they greet strangers in %K?",
      "In %K they greet strangers with \"%V\"."},
     0},
    {EK_VALUE_PLACE,
     {MARKS},
     {"On the map %K is drawn as %V.", "As what is %K drawn on the map?",
      "On the map %K is drawn as %V."},
     0},
    {EK_VALUE_THING,
     {MARKS},
     {"The %K lies in drawer %V.", "In which drawer does the %K lie?", "The %K lies in drawer %V."},
     0},
    {EK_VALUE_THING,
     {EK_VALUE_NAME, EK_VALUE_PLACE, EK_VALUE_DATE, EK_VALUE_MADE},
     {"Beside the %K the clerk wrote: %V.", "What did the clerk write beside the %K?",
      "Beside the %K the clerk wrote: %V."},
     0},
    {EK_VALUE_DOUBLE,
     {ANY},
     {"When they say '%K', reply '%V'.", "Somebody says '%K'. What is to be replied?",
      "When they say '%K', reply '%V'."},
     0},
    {EK_VALUE_MADE,
     {ANY},
     {"%K stands for %V, and %V for %K.", "For what does %K stand?", "%K stands for %V."},
     0},
    {EK_VALUE_SMALL,
     {ANY},
     {"Card %K reads %V.", "What does card %K read?", "Card %K reads %V."},
     0},
    {EK_VALUE_CODE,
     {EK_VALUE_MADE, EK_VALUE_DOUBLE, EK_VALUE_NAME, EK_VALUE_NUMBER},
     {"Under %K one finds %V.", "What does one find under %K?", "Under %K one finds %V."},
     0},
    {EK_VALUE_NAME, {ANY}, {"%K: %V", "What is listed next to %K?", "%K: %V"}, 1},
    {EK_VALUE_PLACE, {ANY}, {"%K = %V", "Look up %K.", "%K = %V"}, 1},
    {EK_VALUE_THING, {ANY}, {"- %K -> %V", "Follow the arrow from %K.", "%K -> %V"}, 1},
    {EK_VALUE_DOUBLE, {ANY}, {"%K | %V", "Which entry shares a row with %K?", "%K | %V"}, 1},
    {EK_VALUE_MADE, {ANY}, {"\"%K\": \"%V\",", "Give the entry for \"%K\".", "\"%K\": \"%V\""}, 1},
    {EK_VALUE_SMALL, {ANY}, {"No. %K, %V", "Read out line No. %K.", "No. %K, %V"}, 1},
};

typedef struct record { /* of a register */
    ek_value_kind key, field[3];
    const char *title, *line, *sentence;
    const char *part[3][2]; /* question, answer for each field */
} record;

static const record records[] = {
    {EK_VALUE_NAME,
     {EK_VALUE_NUMBER, EK_VALUE_PLACE, EK_VALUE_DATE},
     "Guests of the house:",
     "%K; room %1; from %2; came on %3",
     "%K was put into room %1, having come from %2 on %3.",
     {{"Into which room was %K put?", "%K was put into room %1."},
      {"From where had %K come?", "%K had come from %2."},
      {"On which day did %K come?", "%K came on %3."}}},
    {EK_VALUE_THING,
     {EK_VALUE_CODE, EK_VALUE_NUMBER, EK_VALUE_NAME},
     "For sale:",
     "%K, shelf %1, %2 shillings, owner %3",
     "The %K on shelf %1 would cost %2 shillings and belonged to %3.",
     {{"On which shelf was the %K?", "The %K was on shelf %1."},
      {"How many shillings would the %K cost?", "The %K would cost %2 shillings."},
      {"To whom did the %K belong?", "The %K belonged to %3."}}},
    {EK_VALUE_PLACE,
     {EK_VALUE_NAME, EK_VALUE_NUMBER, EK_VALUE_COLOUR},
     "Towns along the road:",
     "%K: mayor %1, houses %2, flag %3",
     "Of %K they said that %1 was mayor, that it had %2 houses, and that its flag was %3.",
     {{"Who was mayor of %K?", "The mayor of %K was %1."},
      {"How many houses had %K?", "%K had %2 houses."},
      {"What colour was the flag of %K?", "The flag of %K was %3."}}},
    {EK_VALUE_MADE,
     {EK_VALUE_NAME, EK_VALUE_THING, EK_VALUE_WIRE},
     "Ships in harbour",
     "%K (master %1, cargo: %2, berth %3)",
     "The %K under %1 brought a %2 and went to berth %3.",
     {{"Who was master of the %K?", "The master of the %K was %1."},
      {"What did the %K bring?", "The %K brought a %2."},
      {"To which berth went the %K?", "The %K went to berth %3."}}},
    {EK_VALUE_NAME,
     {EK_VALUE_SMALL, EK_VALUE_WORD, EK_VALUE_DOUBLE},
     "Pupils of the school",
     "%K - desk %1 - prize word: %2 - verse: %3",
     "%K sits at desk %1, won with the word %2 and must learn the verse about %3.",
     {{"At which desk does %K sit?", "%K sits at desk %1."},
      {"With which word did %K win?", "%K won with the word %2."},
      {"About what is the verse that %K must learn?", "It is about %3."}}},
};

static const char *const intros[] = {
    "Please read what follows with care. A few lines in it are meant for you and will be needed.",
    "Some notes stand among these pages. Keep every one of them.",
    "You will be examined on small details of this reading, so do not lose them.",
    "Here is a story with several odd remarks in it; the remarks are what counts.",
};

static const char *const quote_intros[] = {
    "Somebody has slipped a stranger's lines into these pages, and wants them back from you later.",
    "Not all of what follows is by one hand: watch for what does not belong, and remember it.",
    ("The printer mixed up his sheets, and now a line of some other work stands in this chapter. "
     "Keep it in mind exactly as it is."),
};

static const char *const repeats[] = {
    "Repeat the passage that begins with \"%s\".",
    "Write out again the part of the text that starts with \"%s\".",
    "Quote the passage beginning \"%s\".",
    "How does the text go on from \"%s\"? Begin with these words.",
};

static ek_code no_memory(ek_err *err)
{
    return EK_FAIL(err, EK_ENOMEM, "retrieval text");
}

ek_code ek_hidden_facts(ek_hidden *h, int n, ek_draw *draw, ek_err *err)
{
    ek_fact fact[EK_HIDDEN_MAX];

    n = n < EK_HIDDEN_MAX - h->n_asks ? n : EK_HIDDEN_MAX - h->n_asks;
    ek_facts_draw(fact, n, draw);
    for (int i = 0; i < n; i++) {
        const ek_fact *f = &fact[i];
        ek_piece *p = &h->piece[h->n_pieces];
        ek_ask *a = &h->ask[h->n_asks++];

        *a = (ek_ask){.question = strdup(f->question),
                      .answer = strdup(f->answer),
                      .value_begin = f->value_begin,
                      .value_end = f->value_end,
                      .piece = h->n_pieces++,
                      .end = strlen(f->text)};
        p->text = strdup(f->text);
        if (a->question == NULL || a->answer == NULL || p->text == NULL)
            return no_memory(err);
    }
    return EK_OK;
}

/* A value that no earlier one is equal to or part of; drawn lies at old[0 .. n). */
static void draw_new(char (*old)[EK_VALUE_ROOM], int n, ek_value_kind kind, ek_draw *draw)
{
    int fresh;

    do {
        ek_value_draw(old[n], EK_VALUE_ROOM, kind, draw);
        fresh = 1;
        for (int i = 0; i < n; i++)
            fresh &= strstr(old[i], old[n]) == NULL && strstr(old[n], old[i]) == NULL;
    } while (!fresh);
}

/* Adds line `text` to the block piece p; where it begins in it, or -1: no memory. */
static long add_line(ek_piece *p, const char *text)
{
    const size_t had = p->text ? strlen(p->text) : 0, more = strlen(text);
    const size_t at = had > 0 ? had + 1 : 0;
    char *grown = realloc(p->text, at + more + 1);

    if (grown == NULL)
        return -1;
    p->text = grown;
    if (had > 0)
        grown[had] = '\n';
    memcpy(grown + at, text, more + 1);
    return (long)at;
}

/* Where the text of a pair or record goes: a piece of its own, or a line of the block. */
static ek_code put(ek_hidden *h, int block, char *text, int *piece, size_t *begin, size_t *end,
                   ek_err *err)
{
    long at = 0;

    if (text == NULL)
        return no_memory(err);
    *end = strlen(text);
    if (block >= 0) {
        *piece = block;
        at = add_line(&h->piece[block], text);
        free(text);
    } else {
        *piece = h->n_pieces;
        h->piece[h->n_pieces++].text = text;
    }
    *begin = at < 0 ? 0 : (size_t)at;
    *end += *begin;
    return at < 0 ? no_memory(err) : EK_OK;
}

ek_code ek_hidden_pairs(ek_hidden *h, int n, ek_draw *draw, ek_err *err)
{
    const theme *t = &themes[ek_draw_below(draw, EK_COUNT(themes))];
    char word[2 * EK_HIDDEN_MAX][EK_VALUE_ROOM];
    const int kind = (int)ek_draw_below(draw, EK_COUNT(t->value)), in_block = t->line;
    const int block = in_block ? h->n_pieces : -1;

    n = n < EK_HIDDEN_MAX - h->n_asks ? n : EK_HIDDEN_MAX - h->n_asks;
    if (in_block && n > 0)
        h->piece[h->n_pieces++].block = 1;
    for (int i = 0; i < n; i++) {
        const char *slot[EK_N_SLOTS] = {0};
        ek_ask *a = &h->ask[h->n_asks++];
        size_t unused;

        draw_new(word, 2 * i, t->key, draw);
        draw_new(word, 2 * i + 1, t->value[kind], draw);
        slot[EK_SLOT_KEY] = word[2 * i];
        slot[EK_SLOT_VALUE] = word[2 * i + 1];
        EK_TRY(put(h, block, ek_slots_fill(t->part[0], slot, -1, &unused, &unused), &a->piece,
                   &a->begin, &a->end, err));
        a->question = ek_slots_fill(t->part[1], slot, -1, &unused, &unused);
        a->answer = ek_slots_fill(t->part[2], slot, EK_SLOT_VALUE, &a->value_begin, &a->value_end);
        if (a->question == NULL || a->answer == NULL)
            return no_memory(err);
    }
    return EK_OK;
}

/* Which fields of which records are asked for: n of 3 * n_records, in a random order. */
static void choose_fields(int *out, int n, int n_records, ek_draw *draw)
{
    for (int i = 0; i < 3 * n_records; i++)
        out[i] = i;
    for (int i = 0; i < n; i++) {
        const int k = i + (int)ek_draw_below(draw, (uint64_t)(3 * n_records - i));
        const int held = out[i];

        out[i] = out[k];
        out[k] = held;
    }
}

ek_code ek_hidden_list(ek_hidden *h, int n, ek_draw *draw, ek_err *err)
{
    const record *r = &records[ek_draw_below(draw, EK_COUNT(records))];
    const int in_block = ek_draw_below(draw, 2) == 0;
    char word[4 * EK_HIDDEN_MAX][EK_VALUE_ROOM];
    int chosen[3 * EK_HIDDEN_MAX], piece[EK_HIDDEN_MAX], block = -1;
    size_t begin[EK_HIDDEN_MAX], end[EK_HIDDEN_MAX], unused;

    n = n < EK_HIDDEN_MAX - h->n_asks ? n : EK_HIDDEN_MAX - h->n_asks;
    const int n_records = n / 2 < 3 ? 3 : n / 2;
    n = n < 3 * n_records ? n : 3 * n_records;
    if (h->n_pieces + (in_block ? 1 : n_records) > EK_HIDDEN_MAX)
        return EK_OK;
    if (in_block) {
        block = h->n_pieces++;
        h->piece[block].block = 1;
        if (add_line(&h->piece[block], r->title) < 0)
            return no_memory(err);
    }
    for (int i = 0; i < n_records; i++) {
        const char *slot[EK_N_SLOTS] = {[EK_SLOT_KEY] = word[4 * i]};

        draw_new(word, 4 * i, r->key, draw);
        for (int f = 0; f < 3; f++) {
            draw_new(word, 4 * i + 1 + f, r->field[f], draw);
            slot[EK_SLOT_FIELD + f] = word[4 * i + 1 + f];
        }
        EK_TRY(put(h, block,
                   ek_slots_fill(in_block ? r->line : r->sentence, slot, -1, &unused, &unused),
                   &piece[i], &begin[i], &end[i], err));
    }
    choose_fields(chosen, n, n_records, draw);
    for (int k = 0; k < n; k++) {
        const int i = chosen[k] / 3, f = chosen[k] % 3;
        const char *slot[EK_N_SLOTS] = {[EK_SLOT_KEY] = word[4 * i]};
        ek_ask *a = &h->ask[h->n_asks++];

        slot[EK_SLOT_FIELD + f] = word[4 * i + 1 + f];
        *a = (ek_ask){.piece = piece[i], .begin = begin[i], .end = end[i]};
        a->question = ek_slots_fill(r->part[f][0], slot, -1, &unused, &unused);
        a->answer =
            ek_slots_fill(r->part[f][1], slot, EK_SLOT_FIELD + f, &a->value_begin, &a->value_end);
        if (a->question == NULL || a->answer == NULL)
            return no_memory(err);
    }
    return EK_OK;
}

static int is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

static int occurs_once(const char *text, size_t size, size_t at, size_t n)
{
    const char *first = memmem(text, size, text + at, n);

    return first == text + at && memmem(first + 1, size - at - 1, first, n) == NULL;
}

size_t ek_hidden_opening(const char *text, size_t size, const char *in, size_t in_size, size_t at)
{
    size_t end = 0;

    for (int words = 1; words <= 16 && end < size; words++) {
        while (end < size && !is_space(text[end]))
            end++;
        if (words >= 4 && memchr(text, '\n', end) == NULL &&
            (in == NULL || occurs_once(in, in_size, at, end)))
            return end;
        while (end < size && is_space(text[end]))
            end++;
    }
    return 0;
}

char *ek_hidden_repeat(const char *text, size_t size, ek_draw *draw)
{
    const char *pattern = repeats[ek_draw_below(draw, EK_COUNT(repeats))];
    const char *slot = strstr(pattern, "%s");
    const size_t head = (size_t)(slot - pattern), tail = strlen(slot + 2);
    char *out = malloc(head + size + tail + 1);

    if (out != NULL) {
        memcpy(out, pattern, head);
        memcpy(out + head, text, size);
        memcpy(out + head + size, slot + 2, tail + 1);
    }
    return out;
}

/* Whole sentences on one line of a document, longer than their opening; size 0: none here. */
static ek_code find_quote(const ek_doc *d, size_t from, const ek_counter *counter, int tokens,
                          size_t *begin, size_t *size, ek_err *err)
{
    size_t length, line;

    *size = 0;
    *begin = ek_text_sentence_end(d->text, d->size, from);
    while (*begin < d->size && is_space(d->text[*begin]))
        ++*begin;
    if (*begin == d->size)
        return EK_OK;
    const char *text = d->text + *begin, *end = memchr(text, '\n', d->size - *begin);
    line = end ? (size_t)(end - text) : d->size - *begin;
    EK_TRY(ek_text_cut(&length, text, line, counter, tokens, err));
    length = ek_text_sentence_end(text, line, length);
    const size_t opening = ek_hidden_opening(text, length, NULL, 0, 0);
    *size = opening > 0 && opening + 16 <= length ? length : 0; /* the question names the opening */
    return EK_OK;
}

/* Files of one work, or by one hand, are named alike up to the first '-'. */
static int same_work(const ek_doc *a, const ek_doc *b)
{
    const size_t n = strcspn(a->id, "-");

    return n == strcspn(b->id, "-") && memcmp(a->id, b->id, n) == 0;
}

/* What can be told from `own` at a glance, if anything can: 2 another work, 1 another document. */
static int strangeness(const ek_texts *prose, const ek_doc *own)
{
    for (int k = 0; k < prose->n; k++)
        if (!same_work(&prose->doc[k], own))
            return 2;
    return prose->n > 1;
}

/* Document and place of a byte of all of them. */
static int place_of(const ek_texts *prose, size_t byte, size_t *at)
{
    int k = 0;

    for (; k < prose->n - 1 && byte >= prose->doc[k].size; k++)
        byte -= prose->doc[k].size;
    *at = byte;
    return k;
}

ek_code ek_hidden_quotes(ek_hidden *h, int n, const ek_texts *prose, const ek_window *source,
                         const ek_counter *counter, int tokens, ek_draw *draw, ek_err *err)
{
    const ek_doc *own = &prose->doc[source->doc];
    const int strange = strangeness(prose, own);

    for (int i = 0; i < n && h->n_asks < EK_HIDDEN_MAX && h->n_pieces < EK_HIDDEN_MAX; i++)
        for (int attempt = 0; attempt < 64; attempt++) {
            size_t at, size;
            const int k = place_of(prose, ek_draw_below(draw, prose->bytes), &at);
            const ek_doc *d = &prose->doc[k];

            if (strange == 2
                    ? same_work(d, own)
                    : d == own && (strange == 1 || (at >= source->begin && at < source->end)))
                continue;
            EK_TRY(find_quote(d, at, counter, tokens, &at, &size, err));
            if (size == 0)
                continue;
            const char *text = d->text + at;
            const size_t opening = ek_hidden_opening(text, size, NULL, 0, 0);

            if (memmem(own->text + source->begin, source->end - source->begin, text, opening))
                continue;
            ek_ask *a = &h->ask[h->n_asks++];
            *a = (ek_ask){.question = ek_hidden_repeat(text, opening, draw),
                          .answer = strndup(text, size),
                          .value_end = size,
                          .piece = h->n_pieces,
                          .end = size};
            h->piece[h->n_pieces++].text = strndup(text, size);
            if (a->question == NULL || a->answer == NULL || !h->piece[a->piece].text)
                return no_memory(err);
            break;
        }
    return EK_OK;
}

void ek_hidden_intro(ek_hidden *h, int of_quotes, ek_draw *draw)
{
    h->intro = of_quotes ? quote_intros[ek_draw_below(draw, EK_COUNT(quote_intros))]
                         : intros[ek_draw_below(draw, EK_COUNT(intros))];
}

void ek_hidden_clear(ek_hidden *h)
{
    for (int i = 0; i < EK_HIDDEN_MAX; i++) {
        free(h->piece[i].text);
        free(h->ask[i].question);
        free(h->ask[i].answer);
    }
    memset(h, 0, sizeof *h);
}

const char *ek_hidden_wording(int i)
{
    const int n_facts = 3 * ek_facts_n_templates(), n_pairs = 3 * (int)EK_COUNT(themes);
    const int n_records = 9 * (int)EK_COUNT(records), n_intros = (int)EK_COUNT(intros);

    if (i < n_facts)
        return ek_facts_template(i / 3, i % 3);
    i -= n_facts;
    if (i < n_pairs)
        return themes[i / 3].part[i % 3];
    i -= n_pairs;
    if (i < n_records) {
        const record *r = &records[i / 9];
        const char *const all[9] = {r->title,      r->line,       r->sentence,
                                    r->part[0][0], r->part[0][1], r->part[1][0],
                                    r->part[1][1], r->part[2][0], r->part[2][1]};

        return all[i % 9];
    }
    i -= n_records;
    if (i < n_intros)
        return intros[i];
    i -= n_intros;
    if (i < (int)EK_COUNT(quote_intros))
        return quote_intros[i];
    i -= (int)EK_COUNT(quote_intros);
    return i < (int)EK_COUNT(repeats) ? repeats[i] : NULL;
}
