/* train/data.c - prose windows and retrieval conversations as tokens. */
#include "train/data.h"

#include "core/rng.h"
#include "datasets/retrieval.h"
#include "train/dialog.h"

#include <stdlib.h>
#include <string.h>

_Static_assert((int)EK_DATA_KINDS == (int)EK_RETRIEVAL_KINDS, "one weight for each kind");
_Static_assert(sizeof(ek_data_kinds) == sizeof(double) * EK_RETRIEVAL_KINDS, "weights alone");

const ek_data_set ek_data_defaults = {.mix = 0.5,
                                      .kinds = {.facts = 1},
                                      .sequences = 96,
                                      .valid = 0,
                                      .length = 2048,
                                      .cut = 1024,
                                      .cuts = 1,
                                      .horizon = 512,
                                      .facts = 6,
                                      .passage = 64,
                                      .entries = 0};

static const ek_field kind_fields[] = {
    EK_FLOAT(ek_data_kinds, facts, 0, 1e6, "short facts, then a passage of the text"),
    EK_FLOAT(ek_data_kinds, pairs, 0, 1e6, "keys with values, anywhere or in one block"),
    EK_FLOAT(ek_data_kinds, list, 0, 1e6, "records of a register, asked by field"),
    EK_FLOAT(ek_data_kinds, passage, 0, 1e6, "passages, and sentences of other works"),
    EK_FLOAT(ek_data_kinds, mixed, 0, 1e6, "facts, pairs and a sentence of another work"),
    EK_FLOAT(ek_data_kinds, quotes, 0, 1e6, "sentences of other works"),
    EK_FIELD_END};

const ek_field ek_data_fields[] = {
    EK_STRING(ek_data_set, texts, "folder of .txt files"),
    EK_FLOAT(ek_data_set, mix, 0, 1, "share of retrieval text"),
    EK_MAP(ek_data_set, kinds, kind_fields, "retrieval: how often each kind comes"),
    EK_INT(ek_data_set, sequences, 1, 1 << 24, "sequences to train on"),
    EK_INT(ek_data_set, valid, 0, 1 << 20, "sequences held out to watch the loss"),
    EK_INT(ek_data_set, length, 32, 1 << 20, "tokens of the longest sequence"),
    EK_INT(ek_data_set, cut, 0, 1 << 20, "least tokens before a cut; 0: whole sequences"),
    EK_INT(ek_data_set, cuts, 1, EK_DATA_CUTS, "prose: cuts per sequence"),
    EK_INT(ek_data_set, horizon, 1, 1 << 20, "prose: tokens after the cut"),
    EK_INT(ek_data_set, facts, 1, EK_RETRIEVAL_MAX, "retrieval: facts or pairs hidden in a text"),
    EK_INT(ek_data_set, passage, 8, 4096, "retrieval: tokens of a passage repeated"),
    EK_INT(ek_data_set, entries, 0, 1 << 20, "entries sampled per head of a sequence; 0: all"),
    EK_FIELD_END};

struct ek_data {
    ek_data_set set;
    uint64_t seed;
    ek_tokenizer *tok;
    ek_texts texts;
    ek_dialog dialog;
    ek_counter counter;
    ek_tokens scratch;
    char hash[33];
};

void ek_sequence_clear(ek_sequence *s)
{
    free(s->tok);
    *s = (ek_sequence){0};
}

static int count(void *ctx, const char *text, size_t n)
{
    ek_data *d = ctx;
    ek_err err;

    d->scratch.n = 0;
    d->scratch.bytes = 0;
    if (ek_tokenizer_encode(d->tok, text, n, EK_TOK_LOSSY, &d->scratch, &err) != EK_OK)
        return -1;
    return (int)d->scratch.n;
}

static int count_special(ek_data *d, const char *text)
{
    ek_err err;

    d->scratch.n = 0;
    d->scratch.bytes = 0;
    if (ek_tokenizer_encode(d->tok, text, strlen(text), EK_TOK_SPECIAL, &d->scratch, &err) != EK_OK)
        return 0;
    return (int)d->scratch.n;
}

static void hash_all(ek_data *d, ek_hasher *h)
{
    const ek_data_set *s = &d->set;
    const int64_t numbers[] = {(int64_t)(s->mix * 1e9),
                               s->sequences,
                               s->valid,
                               s->length,
                               s->cut,
                               s->cuts,
                               s->horizon,
                               s->facts,
                               s->passage,
                               s->entries,
                               (int64_t)d->seed};
    char templates[33];

    ek_retrieval_hash(templates);
    ek_hasher_add(h, d->texts.hash, 32);
    ek_hasher_add(h, templates, 32);
    ek_hasher_add(h, numbers, sizeof numbers);
    ek_hasher_add(h, &s->kinds, sizeof s->kinds);
    ek_hasher_add(h, d->dialog.open, strlen(d->dialog.open));
    ek_hasher_add(h, d->dialog.close, strlen(d->dialog.close));
    ek_hasher_add(h, d->dialog.next, strlen(d->dialog.next));
    ek_hasher_close(h, d->hash);
}

int64_t ek_data_shortest(const ek_data_set *set)
{
    const int64_t least = set->cut > 0 ? set->cut + 256 : set->length * 3 / 4;

    if (!(set->mix > 0))
        return set->length;
    return least < set->length - 64 ? least : set->length - 64;
}

ek_code ek_data_open(ek_data **out, const ek_data_set *set, int64_t seed, const ek_gguf *gguf,
                     ek_tokenizer *tok, ek_err *err)
{
    ek_data *d;
    ek_hasher *h;

    if (set->texts == NULL)
        return EK_FAIL(err, EK_EASKED, "data.texts: expected a folder of .txt files");
    if (set->cut > 0 && set->mix < 1 && set->cut + set->horizon + set->cuts - 1 > set->length)
        return EK_FAIL(err, EK_EASKED,
                       "data: %lld cuts from %lld on and a horizon of %lld make more than the "
                       "length of %lld",
                       (long long)set->cuts, (long long)set->cut, (long long)set->horizon,
                       (long long)set->length);
    if (set->mix > 0 && ek_data_shortest(set) < 512)
        return EK_FAIL(err, EK_EASKED,
                       "data.length: found %lld; the shortest retrieval texts would have %lld "
                       "tokens, expected 512",
                       (long long)set->length, (long long)ek_data_shortest(set));
    d = calloc(1, sizeof *d);
    if (d == NULL)
        return EK_FAIL(err, EK_ENOMEM, "training data");
    d->set = *set;
    d->set.texts = NULL; /* the config's */
    d->seed = (uint64_t)seed;
    d->tok = tok;
    EK_CHECK(ek_texts_open(&d->texts, set->texts, err));
    EK_CHECK(ek_dialog_open(&d->dialog, gguf, err));
    d->counter = (ek_counter){.count = count, .ctx = d};
    d->counter.wrap = count_special(d, d->dialog.open) + count_special(d, d->dialog.close) + 2;
    d->counter.turn = count_special(d, d->dialog.next) + count_special(d, d->dialog.close) + 2;
    h = ek_hasher_open();
    if (h == NULL)
        EK_CHECK(EK_FAIL(err, EK_ENOMEM, "training data"));
    hash_all(d, h);
    *out = d;
    return EK_OK;
fail:
    ek_data_close(d);
    return err->code;
}

void ek_data_close(ek_data *d)
{
    if (d == NULL)
        return;
    ek_texts_close(&d->texts);
    ek_dialog_close(&d->dialog);
    ek_tokens_clear(&d->scratch);
    free(d);
}

const char *ek_data_hash(const ek_data *d)
{
    return d->hash;
}

const char *ek_data_template_hash(const ek_data *d)
{
    return d->dialog.hash;
}

const char *ek_data_kind_name(int kind)
{
    return ek_retrieval_kind_names[kind];
}

/* Spread evenly: the whole part of i * mix moves. */
static int is_retrieval(const ek_data *d, int64_t i)
{
    return (int64_t)((double)(i + 1) * d->set.mix) > (int64_t)((double)i * d->set.mix);
}

static int cuts_of(const ek_data *d, int64_t i)
{
    return d->set.cut > 0 && !is_retrieval(d, i) ? (int)d->set.cuts : 1;
}

/* One cut at a random place of each of `cuts` equal stretches; text ends where it last counts. */
static void place_cuts(const ek_data *d, int64_t i, ek_sequence *out)
{
    const int64_t first = d->set.cut, span = d->set.length - d->set.horizon - first + 1;
    const uint64_t stream = ek_rng_stream("cuts", (uint64_t)i, 0);

    out->n_cuts = cuts_of(d, i);
    for (int m = 0; m < out->n_cuts && first > 0; m++) {
        const int64_t lo = span * m / out->n_cuts, hi = span * (m + 1) / out->n_cuts;

        out->cut[m] = (int)(first + lo +
                            (int64_t)ek_rng_below((uint64_t)(hi > lo ? hi - lo : 1), d->seed,
                                                  stream, (uint64_t)m));
        out->end[m] = out->cut[m] + (int)d->set.horizon;
    }
    if (first == 0)
        out->end[0] = (int)d->set.length;
    out->n = out->end[out->n_cuts - 1];
}

static ek_code prose(ek_data *d, int64_t i, ek_sequence *out, ek_err *err)
{
    ek_sequence s = {0};
    ek_window w;
    ek_tokens t = {0};

    place_cuts(d, i, &s);
    const int64_t n = s.n;
    /* English has about 4.3 bytes a token; a window that turns out short is cut out longer. */
    for (int64_t bytes = n * 5;; bytes += bytes / 2) {
        EK_CHECK(ek_texts_window(&w, &d->texts, (size_t)bytes, d->seed, i, err));
        t.n = t.bytes = 0;
        EK_CHECK(ek_tokenizer_encode(d->tok, d->texts.doc[w.doc].text + w.begin, w.end - w.begin,
                                     EK_TOK_LOSSY, &t, err));
        if (t.n >= n)
            break;
    }
    s.tok = t.id;
    *out = s;
    free(t.at);
    return EK_OK;
fail:
    ek_tokens_clear(&t);
    return err->code;
}

static size_t add_part(ek_tok_part *part, int *n, const char *text, int flags)
{
    part[(*n)++] = (ek_tok_part){.text = text, .size = strlen(text), .flags = flags};
    return strlen(text);
}

static ek_code render(ek_data *d, const ek_retrieval *r, ek_sequence *out, ek_err *err)
{
    ek_tok_part part[5 * EK_RETRIEVAL_TURNS + 3];
    size_t at = 0, begin[EK_DATA_ANSWERS], end[EK_DATA_ANSWERS], question = 0;
    ek_tokens t = {0};
    int n = 0, n_answers = 0;

    at += add_part(part, &n, d->dialog.open, EK_TOK_SPECIAL);
    at += add_part(part, &n, r->context, EK_TOK_LOSSY);
    at += add_part(part, &n, EK_RETRIEVAL_JOIN, 0);
    question = at;
    for (int i = 0; i < r->n_turns; i++) {
        if (i > 0)
            at += add_part(part, &n, d->dialog.next, EK_TOK_SPECIAL);
        at += add_part(part, &n, r->turn[i].question, EK_TOK_LOSSY);
        at += add_part(part, &n, d->dialog.close, EK_TOK_SPECIAL);
        if (n_answers < EK_DATA_ANSWERS) {
            begin[n_answers] = at;
            end[n_answers++] = at + strlen(r->turn[i].answer);
        }
        at += add_part(part, &n, r->turn[i].answer, EK_TOK_LOSSY);
    }
    EK_TRY(ek_tokenizer_encode_parts(d->tok, part, n, &t, err));
    *out = (ek_sequence){.retrieval = 1, .kind = r->kind, .n = (int)t.n, .n_answers = n_answers};
    out->n_cuts = 1;
    out->cut[0] = d->set.cut > 0 ? (int)ek_tokens_from(&t, (int64_t)question) : 0;
    out->end[0] = out->n;
    for (int i = 0; i < n_answers; i++) {
        out->answer[i][0] = (int)ek_tokens_from(&t, (int64_t)begin[i]);
        out->answer[i][1] = (int)ek_tokens_from(&t, (int64_t)end[i]);
    }
    out->tok = t.id;
    free(t.at);
    return EK_OK;
}

ek_code ek_data_sequence(ek_data *d, int64_t i, ek_sequence *out, ek_err *err)
{
    ek_retrieval r = {0};

    if (!is_retrieval(d, i))
        return prose(d, i, out, err);
    ek_retrieval_config config = {.facts = (int)d->set.facts,
                                  .min_tokens = (int)ek_data_shortest(&d->set),
                                  .max_tokens = (int)d->set.length,
                                  .passage_tokens = (int)d->set.passage};
    memcpy(config.weight, &d->set.kinds, sizeof config.weight);
    EK_TRY(ek_retrieval_make(&r, &d->texts, &d->counter, &config, d->seed, i, err));
    const ek_code code = render(d, &r, out, err);
    ek_retrieval_clear(&r);
    return code;
}
