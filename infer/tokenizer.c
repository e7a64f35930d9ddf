#include "infer/tokenizer.h"

#include "core/file.h"
#include "infer/bpe.h"
#include "infer/utf8.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* Token types of the file. */
enum { NORMAL = 1, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE };

/* White space is spelled out: PCRE2's \s also takes U+180E, which is none since Unicode 6.3. */
#define SPACE "\\p{Z}\\t-\\r\\x{85}"
#define GPT2                                                                          \
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^" SPACE "\\p{L}\\p{N}]+|[" SPACE \
    "]+(?![^" SPACE "])|[" SPACE "]+"

static const struct pre {
    const char *name; /* tokenizer.ggml.pre */
    int digits;       /* characters of class N are cut out singly first */
    const char *pattern;
} pres[] = {
    {"smollm", 1, GPT2},
    {"gpt-2", 0, GPT2},
};

enum { MAX_ENDS = 16 };

struct ek_tokenizer {
    ek_bpe *bpe;
    int32_t n;
    const struct pre *pre;
    pcre2_code *pattern, *digit;
    pcre2_match_data *match;
    uint8_t *bytes;   /* all tokens, decoded, one after another */
    uint32_t *at;     /* (n + 1) */
    uint8_t *type;    /* (n) */
    int32_t *special; /* (n_special) control, unknown and user-defined tokens, longest first */
    int n_special;
    uint8_t begins[256]; /* whether a special token begins with this byte; 2: a user-defined one */
    int32_t bos, eos, ends[MAX_ENDS];
    int n_ends, adds_bos;
    char *joined; /* scratch: parts as one text */
    size_t joined_room;
    char hash[33];
};

static ek_code compile(pcre2_code **out, const char *pattern, ek_err *err)
{
    int number;
    PCRE2_SIZE at;

    *out = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP, &number,
                         &at, NULL);
    if (!*out)
        return EK_FAIL(err, EK_EBROKEN, "pattern: PCRE2 error %d at %zu", number, at);
    /* Where no machine code can be made, matching is slower and the same. */
    (void)pcre2_jit_compile(*out, PCRE2_JIT_COMPLETE);
    return EK_OK;
}

static ek_code find_pre(ek_tokenizer *tok, const ek_gguf *g, ek_err *err)
{
    ek_gguf_str model, pre = {"", 0};

    EK_TRY(ek_gguf_string(g, "tokenizer.ggml.model", EK_GGUF_NEEDED, &model, err));
    if (model.size != 4 || memcmp(model.data, "gpt2", 4) != 0)
        return EK_FAIL(err, EK_ENOTSUP,
                       "%s: tokenizer of kind \"%.*s\", supported is \"gpt2\" (byte-level BPE)",
                       ek_gguf_path(g), (int)(model.size < 40 ? model.size : 40), model.data);
    EK_TRY(ek_gguf_string(g, "tokenizer.ggml.pre", EK_GGUF_OPTIONAL, &pre, err));
    for (size_t i = 0; i < EK_COUNT(pres); i++)
        if (strlen(pres[i].name) == pre.size && memcmp(pres[i].name, pre.data, pre.size) == 0)
            tok->pre = &pres[i];
    if (!tok->pre)
        return EK_FAIL(err, EK_ENOTSUP,
                       "%s: pre-tokenizer \"%.*s\" (tokenizer.ggml.pre), supported are \"smollm\" "
                       "and \"gpt-2\"",
                       ek_gguf_path(g), (int)(pre.size < 40 ? pre.size : 40), pre.data);
    return EK_OK;
}

static int longer_first(const void *a, const void *b, void *ctx)
{
    const uint32_t *at = ctx;
    const int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    const uint32_t nx = at[x + 1] - at[x], ny = at[y + 1] - at[y];

    return nx != ny ? (nx < ny ? 1 : -1) : (x > y) - (x < y);
}

static int is_special_type(int type)
{
    return type == CONTROL || type == UNKNOWN;
}

/* Bytes and type of every token, and the list of special ones. */
static ek_code fill_tokens(ek_tokenizer *tok, const ek_gguf_str *raw, const int64_t *type,
                           ek_err *err)
{
    size_t total = 1;
    uint32_t at = 0;

    for (int32_t i = 0; i < tok->n; i++)
        total += raw[i].size;
    tok->bytes = malloc(total);
    tok->at = calloc((size_t)tok->n + 1, sizeof *tok->at);
    tok->type = calloc((size_t)tok->n + 1, 1);
    tok->special = calloc((size_t)tok->n + 1, sizeof *tok->special);
    if (!tok->bytes || !tok->at || !tok->type || !tok->special)
        return EK_FAIL(err, EK_ENOMEM, "no memory for %d tokens", tok->n);
    for (int32_t i = 0; i < tok->n; i++) {
        const int t = type ? (int)type[i] : NORMAL;
        uint32_t size = (uint32_t)raw[i].size;

        if (t == NORMAL)
            size = (uint32_t)ek_alphabet_bytes(tok->bytes + at, raw[i]);
        else
            memcpy(tok->bytes + at, raw[i].data, size);
        if ((is_special_type(t) || t == USER_DEFINED) && size > 0) {
            tok->special[tok->n_special++] = i;
            tok->begins[tok->bytes[at]] |= t == USER_DEFINED ? 3 : 1;
        }
        tok->type[i] = (uint8_t)t;
        at += size;
        tok->at[i + 1] = at;
    }
    qsort_r(tok->special, (size_t)tok->n_special, sizeof *tok->special, longer_first, tok->at);
    return EK_OK;
}

static void add_end(ek_tokenizer *tok, int32_t id)
{
    if (id >= 0 && !ek_tokenizer_is_end(tok, id) && tok->n_ends < MAX_ENDS)
        tok->ends[tok->n_ends++] = id;
}

static ek_code token_key(const ek_tokenizer *tok, const ek_gguf *g, const char *key, int32_t *out,
                         ek_err *err)
{
    int64_t id = -1;

    EK_TRY(ek_gguf_int(g, key, EK_GGUF_OPTIONAL, 0, tok->n - 1, &id, err));
    *out = (int32_t)id;
    return EK_OK;
}

static ek_code find_ends(ek_tokenizer *tok, const ek_gguf *g, ek_err *err)
{
    static const char *const names[] = {"<|im_end|>", "<|endoftext|>", "<|eot_id|>",
                                        "<|end_of_text|>"};
    int32_t eot;

    EK_TRY(token_key(tok, g, "tokenizer.ggml.bos_token_id", &tok->bos, err));
    EK_TRY(token_key(tok, g, "tokenizer.ggml.eos_token_id", &tok->eos, err));
    EK_TRY(token_key(tok, g, "tokenizer.ggml.eot_token_id", &eot, err));
    EK_TRY(ek_gguf_bool(g, "tokenizer.ggml.add_bos_token", EK_GGUF_OPTIONAL, &tok->adds_bos, err));
    add_end(tok, tok->eos);
    add_end(tok, eot);
    for (size_t i = 0; i < EK_COUNT(names); i++) {
        const int32_t id = ek_bpe_find(tok->bpe, names[i], strlen(names[i]));

        if (id >= 0 && is_special_type(tok->type[id]))
            add_end(tok, id);
    }
    return EK_OK;
}

static ek_code fill_hash(ek_tokenizer *tok, const ek_gguf_str *raw, const ek_gguf_str *merges,
                         size_t n_merges, ek_err *err)
{
    ek_hasher *h = ek_hasher_open();

    if (!h)
        return EK_FAIL(err, EK_ENOMEM, "no memory to hash the tokenizer");
    ek_hasher_add(h, "gpt2", 4);
    ek_hasher_add(h, tok->pre->name, strlen(tok->pre->name));
    for (int32_t i = 0; i < tok->n; i++)
        ek_hasher_add(h, raw[i].data, raw[i].size);
    ek_hasher_add(h, tok->type, (size_t)tok->n);
    for (size_t i = 0; i < n_merges; i++)
        ek_hasher_add(h, merges[i].data, merges[i].size);
    ek_hasher_add(h, tok->adds_bos ? "bos" : "", tok->adds_bos ? 3 : 0);
    ek_hasher_close(h, tok->hash);
    return EK_OK;
}

static ek_code fill(ek_tokenizer *tok, const ek_gguf *g, ek_gguf_str **raw, int64_t **type,
                    ek_gguf_str **merges, ek_err *err)
{
    size_t n, n_merges, n_types;

    EK_TRY(find_pre(tok, g, err));
    EK_TRY(ek_gguf_strings(g, "tokenizer.ggml.tokens", EK_GGUF_NEEDED, raw, &n, err));
    EK_TRY(ek_gguf_strings(g, "tokenizer.ggml.merges", EK_GGUF_NEEDED, merges, &n_merges, err));
    EK_TRY(ek_gguf_ints(g, "tokenizer.ggml.token_type", EK_GGUF_OPTIONAL, NORMAL, BYTE, type,
                        &n_types, err));
    if (*type && n_types != n)
        return EK_FAIL(err, EK_EINPUT, "%s: %zu token types for %zu tokens", ek_gguf_path(g),
                       n_types, n);
    if (n == 0)
        return EK_FAIL(err, EK_EINPUT, "%s: a vocabulary without tokens", ek_gguf_path(g));
    EK_TRY(ek_bpe_open(&tok->bpe, *raw, n, *merges, n_merges, ek_gguf_path(g), err));
    tok->n = (int32_t)n;
    EK_TRY(fill_tokens(tok, *raw, *type, err));
    EK_TRY(find_ends(tok, g, err));
    EK_TRY(fill_hash(tok, *raw, *merges, n_merges, err));
    EK_TRY(compile(&tok->pattern, tok->pre->pattern, err));
    EK_TRY(compile(&tok->digit, "\\p{N}", err));
    tok->match = pcre2_match_data_create(1, NULL);
    return tok->match ? EK_OK : EK_FAIL(err, EK_ENOMEM, "no memory to match");
}

ek_code ek_tokenizer_open(ek_tokenizer **out, const ek_gguf *g, ek_err *err)
{
    ek_tokenizer *tok = calloc(1, sizeof *tok);
    ek_gguf_str *raw = NULL, *merges = NULL;
    int64_t *type = NULL;
    ek_code code;

    if (!tok)
        return EK_FAIL(err, EK_ENOMEM, "no memory for a tokenizer");
    code = fill(tok, g, &raw, &type, &merges, err);
    free(raw);
    free(merges);
    free(type);
    if (code == EK_OK)
        *out = tok;
    else
        ek_tokenizer_close(tok);
    return code;
}

void ek_tokenizer_close(ek_tokenizer *tok)
{
    if (!tok)
        return;
    ek_bpe_close(tok->bpe);
    pcre2_code_free(tok->pattern);
    pcre2_code_free(tok->digit);
    pcre2_match_data_free(tok->match);
    free(tok->bytes);
    free(tok->at);
    free(tok->type);
    free(tok->special);
    free(tok->joined);
    free(tok);
}

/* What encoding carries from step to step. */
typedef struct work {
    ek_tokenizer *tok;
    const char *text; /* the whole, offsets count from here */
    int64_t base;     /* of the text in out->at */
    int lossy;
    ek_tokens *out;
} work;

/* Where the pattern matches in [from, to), which is a subject of its own: *begin, *end.  Returns 0
 * where it does not match any more. */
static ek_code match(const work *w, const pcre2_code *pattern, size_t subject, size_t from,
                     size_t to, size_t *begin, size_t *end, int *found, ek_err *err)
{
    const int n = pcre2_match(pattern, (PCRE2_SPTR)w->text + subject, to - subject, from - subject,
                              PCRE2_NO_UTF_CHECK, w->tok->match, NULL);
    const PCRE2_SIZE *v = pcre2_get_ovector_pointer(w->tok->match);

    *found = n > 0 || n == 0;
    if (n == PCRE2_ERROR_NOMATCH)
        return EK_OK;
    if (n < 0)
        return EK_FAIL(err, EK_EBROKEN, "byte %zu: PCRE2 error %d while cutting text", from, n);
    *begin = subject + v[0];
    *end = subject + v[1];
    return EK_OK;
}

static ek_code piece(const work *w, size_t from, size_t to, ek_err *err)
{
    return ek_bpe_encode(w->tok->bpe, (const uint8_t *)w->text + from, to - from,
                         w->base + (int64_t)from, w->lossy, w->out, err);
}

/* A stretch without special tokens, invalid bytes or (if they are cut out) digits. */
static ek_code stretch(const work *w, size_t from, size_t to, ek_err *err)
{
    size_t at = from;

    while (at < to) {
        size_t begin = to, end = to;
        int found;

        EK_TRY(match(w, w->tok->pattern, from, at, to, &begin, &end, &found, err));
        /* The pattern takes every character; should it ever leave some, they are a piece. */
        if (!found || end == begin)
            begin = end = to;
        if (begin > at)
            EK_TRY(piece(w, at, begin, err));
        if (end > begin)
            EK_TRY(piece(w, begin, end, err));
        at = end;
    }
    return EK_OK;
}

/* Valid UTF-8 without special tokens. */
static ek_code valid_text(const work *w, size_t from, size_t to, ek_err *err)
{
    size_t at = from;

    while (w->tok->pre->digits && at < to) {
        size_t begin = to, end = to;
        int found;

        EK_TRY(match(w, w->tok->digit, from, at, to, &begin, &end, &found, err));
        if (!found)
            break;
        EK_TRY(stretch(w, at, begin, err));
        EK_TRY(piece(w, begin, end, err));
        at = end;
    }
    return stretch(w, at, to, err);
}

/* Any bytes without special tokens: invalid ones are pieces of their own. */
static ek_code any_text(const work *w, size_t from, size_t to, ek_err *err)
{
    while (from < to) {
        const size_t good = ek_utf8_valid(w->text + from, to - from);

        EK_TRY(valid_text(w, from, from + good, err));
        from += good;
        if (from < to) {
            EK_TRY(piece(w, from, from + 1, err));
            from++;
        }
    }
    return EK_OK;
}

/* The longest special token at s, or -1.  Control tokens only if the flag says so. */
static int32_t special_at(const ek_tokenizer *tok, const char *s, size_t size, int flags)
{
    const int wanted = flags & EK_TOK_SPECIAL ? 1 : 2;

    if (!(tok->begins[(uint8_t)*s] & wanted))
        return -1;
    for (int i = 0; i < tok->n_special; i++) {
        const int32_t id = tok->special[i];
        const size_t n = tok->at[id + 1] - tok->at[id];

        if (n <= size && (wanted == 1 || tok->type[id] == USER_DEFINED) &&
            memcmp(tok->bytes + tok->at[id], s, n) == 0)
            return id;
    }
    return -1;
}

static ek_code put(ek_tokens *out, int32_t id, int64_t at, ek_err *err)
{
    EK_TRY(ek_tokens_reserve(out, 1, err));
    out->id[out->n] = id;
    out->at[out->n++] = at;
    return EK_OK;
}

static ek_code encode_all(const work *w, const ek_tok_part *parts, int n_parts, ek_err *err)
{
    const ek_tokenizer *tok = w->tok;
    size_t done = 0, begin = 0; /* begin: of the part */

    if (n_parts > 0 && (parts[0].flags & EK_TOK_BOS) && tok->adds_bos && tok->bos >= 0)
        EK_TRY(put(w->out, tok->bos, w->base, err));
    for (int p = 0; p < n_parts; p++) {
        const size_t end = begin + parts[p].size;
        const int look = tok->n_special > 0 && parts[p].size > 0;

        for (size_t i = begin; look && i < end;) {
            const int32_t id = special_at(tok, w->text + i, end - i, parts[p].flags);

            if (id < 0) {
                i++;
                continue;
            }
            EK_TRY(any_text(w, done, i, err));
            EK_TRY(put(w->out, id, w->base + (int64_t)i, err));
            i += tok->at[id + 1] - tok->at[id];
            done = i;
        }
        begin = end;
    }
    return any_text(w, done, begin, err);
}

/* The parts as one text: borrowed if there is one, else in the tokenizer's scratch. */
static ek_code join(ek_tokenizer *tok, const ek_tok_part *parts, int n_parts, const char **text,
                    size_t *size, ek_err *err)
{
    size_t n = 0;

    for (int i = 0; i < n_parts; i++) {
        if (parts[i].flags & EK_TOK_STRICT) {
            const size_t good = ek_utf8_valid(parts[i].text, parts[i].size);

            if (good < parts[i].size)
                return EK_FAIL(err, EK_EINPUT, "byte offset %zu: 0x%02x is no valid UTF-8", good,
                               (uint8_t)parts[i].text[good]);
        }
        n += parts[i].size;
    }
    *size = n;
    *text = n_parts == 1 ? parts[0].text : "";
    if (n_parts < 2 || n == 0)
        return EK_OK;
    if (n > tok->joined_room) {
        char *p = realloc(tok->joined, n);

        if (!p)
            return EK_FAIL(err, EK_ENOMEM, "no memory for %zu bytes of text", n);
        tok->joined = p;
        tok->joined_room = n;
    }
    n = 0;
    for (int i = 0; i < n_parts; n += parts[i++].size)
        if (parts[i].size > 0)
            memcpy(tok->joined + n, parts[i].text, parts[i].size);
    *text = tok->joined;
    return EK_OK;
}

ek_code ek_tokenizer_encode_parts(ek_tokenizer *tok, const ek_tok_part *parts, int n_parts,
                                  ek_tokens *out, ek_err *err)
{
    const int64_t n = out->n;
    work w = {.tok = tok, .base = out->bytes, .out = out};
    size_t size = 0;
    ek_code code;

    for (int i = 0; i < n_parts; i++)
        w.lossy |= parts[i].flags & EK_TOK_LOSSY;
    EK_TRY(join(tok, parts, n_parts, &w.text, &size, err));
    code = encode_all(&w, parts, n_parts, err);
    if (code == EK_OK)
        out->bytes += (int64_t)size;
    else
        out->n = n;
    return code;
}

ek_code ek_tokenizer_encode(ek_tokenizer *tok, const char *text, size_t size, int flags,
                            ek_tokens *out, ek_err *err)
{
    const ek_tok_part part = {text, size, flags};

    return ek_tokenizer_encode_parts(tok, &part, 1, out, err);
}

int64_t ek_tokens_from(const ek_tokens *t, int64_t offset)
{
    int64_t lo = 0, hi = t->n;

    while (lo < hi) {
        const int64_t mid = lo + (hi - lo) / 2;

        if (t->at[mid] < offset)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

ek_code ek_tokenizer_decode(const ek_tokenizer *tok, const int32_t *ids, int64_t n,
                            int skip_special, ek_text *out, ek_err *err)
{
    for (int64_t i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= tok->n)
            return EK_FAIL(err, EK_EASKED, "token %" PRId64 ": found id %d, expected 0 .. %d", i,
                           ids[i], tok->n - 1);
    for (int64_t i = 0; i < n; i++)
        if (!skip_special || !ek_tokenizer_is_special(tok, ids[i]))
            ek_text_bytes(out, tok->bytes + tok->at[ids[i]], tok->at[ids[i] + 1] - tok->at[ids[i]]);
    return out->failed ? EK_FAIL(err, EK_ENOMEM, "no memory for the decoded text") : EK_OK;
}

int ek_tokenizer_size(const ek_tokenizer *tok)
{
    return tok->n;
}

const char *ek_tokenizer_piece(const ek_tokenizer *tok, int32_t id, size_t *size)
{
    if (id < 0 || id >= tok->n)
        return NULL;
    *size = tok->at[id + 1] - tok->at[id];
    return (const char *)tok->bytes + tok->at[id];
}

int ek_tokenizer_is_special(const ek_tokenizer *tok, int32_t id)
{
    return id >= 0 && id < tok->n && is_special_type(tok->type[id]);
}

int32_t ek_tokenizer_find(const ek_tokenizer *tok, const char *bytes, size_t size)
{
    char *raw = malloc(2 * size + 1);
    int32_t id;

    if (!raw)
        return -1;
    id = ek_bpe_find(tok->bpe, raw, ek_alphabet_raw(raw, (const uint8_t *)bytes, size));
    free(raw);
    if (id >= 0 && tok->type[id] == NORMAL)
        return id;
    /* Other kinds of tokens are written as they are. */
    id = ek_bpe_find(tok->bpe, bytes, size);
    return id >= 0 && tok->type[id] != NORMAL ? id : -1;
}

int32_t ek_tokenizer_bos(const ek_tokenizer *tok)
{
    return tok->bos;
}

int32_t ek_tokenizer_eos(const ek_tokenizer *tok)
{
    return tok->eos;
}

int ek_tokenizer_adds_bos(const ek_tokenizer *tok)
{
    return tok->adds_bos;
}

int ek_tokenizer_is_end(const ek_tokenizer *tok, int32_t id)
{
    for (int i = 0; i < tok->n_ends; i++)
        if (tok->ends[i] == id)
            return 1;
    return 0;
}

const int32_t *ek_tokenizer_ends(const ek_tokenizer *tok, int *n)
{
    *n = tok->n_ends;
    return tok->ends;
}

const char *ek_tokenizer_hash(const ek_tokenizer *tok)
{
    return tok->hash;
}
