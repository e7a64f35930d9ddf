#include "infer/bpe.h"

#include "infer/utf8.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* Pieces up to this many bytes and ids are remembered: an entry is a cache line. */
enum { CACHE_BYTES = 22, CACHE_IDS = 10, CACHE_BITS = 15 };

typedef struct cached {
    uint8_t size, n; /* size 0: empty */
    uint8_t bytes[CACHE_BYTES];
    int32_t id[CACHE_IDS];
} cached;
_Static_assert(sizeof(cached) == 64, "one cache line");

typedef struct merge {
    uint64_t pair; /* left id << 32 | right id */
    uint32_t rank; /* UINT32_MAX: an empty place */
    int32_t id;    /* what the pair becomes */
} merge;

/* A symbol of the piece being merged: a doubly linked list, -1 at the ends. */
typedef struct symbol {
    int32_t id; /* -1: swallowed by its left neighbour */
    int32_t prev, next;
    int32_t at; /* of its first byte within the piece */
} symbol;

typedef struct candidate {
    uint32_t rank;
    int32_t pos; /* of the left symbol */
    int32_t id;  /* what the pair becomes, to see whether the pair is still there */
} candidate;

struct ek_bpe {
    char *raw;    /* all raw tokens, one after another */
    uint32_t *at; /* (n + 1) */
    size_t n;
    int32_t *table; /* (mask + 1) ids by hash of the raw token; -1: empty */
    uint64_t mask;
    merge *merges; /* (merge_mask + 1) */
    uint64_t merge_mask;
    int32_t byte_id[256];
    cached *cache;
    symbol *symbol; /* scratch of the piece at hand */
    candidate *heap;
    size_t room, heap_n;
};

static uint64_t mix(uint64_t h)
{
    h ^= h >> 32;
    h *= 0x9fb21c651e98df25u;
    h ^= h >> 29;
    return h;
}

static uint64_t hash_bytes(const void *data, size_t n)
{
    const uint8_t *p = data;
    uint64_t h = n * 0x9e3779b97f4a7c15u, x;

    for (; n >= 8; n -= 8, p += 8) {
        memcpy(&x, p, 8);
        h = mix(h ^ x);
    }
    x = 0;
    memcpy(&x, p, n);
    return mix(mix(h ^ x));
}

/* The character of a byte: itself if printable Latin-1; the other 68, which are 0x00-0x20,
 * 0x7f-0xa0 and 0xad, have U+0100 and up in this order. */
static unsigned letter_of(uint8_t byte)
{
    if (byte <= 0x20)
        return 0x100u + byte;
    if (byte >= 0x7f && byte <= 0xa0)
        return 0x121u + (byte - 0x7fu);
    return byte == 0xad ? 0x143u : byte;
}

size_t ek_alphabet_raw(char *out, const uint8_t *bytes, size_t n)
{
    size_t size = 0;

    for (size_t i = 0; i < n; i++) {
        const unsigned c = letter_of(bytes[i]);

        if (c < 0x80) {
            out[size++] = (char)c;
        } else {
            out[size++] = (char)(0xc0 | c >> 6);
            out[size++] = (char)(0x80 | (c & 63));
        }
    }
    return size;
}

/* The byte of a character of the alphabet, or -1. */
static int byte_of(unsigned c)
{
    if (c < 0x100)
        return letter_of((uint8_t)c) == c ? (int)c : -1;
    if (c <= 0x120)
        return (int)c - 0x100;
    if (c <= 0x142)
        return (int)c - 0x121 + 0x7f;
    return c == 0x143 ? 0xad : -1;
}

size_t ek_alphabet_bytes(uint8_t *out, ek_gguf_str raw)
{
    size_t size = 0;

    for (size_t i = 0; i < raw.size;) {
        const uint8_t *p = (const uint8_t *)raw.data + i;
        int n = ek_utf8_char(raw.data + i, raw.size - i), byte = -1;

        if (n == 1)
            byte = byte_of(p[0]);
        else if (n == 2)
            byte = byte_of((p[0] & 31u) << 6 | (p[1] & 63u));
        n = n ? n : 1;
        if (byte >= 0) {
            out[size++] = (uint8_t)byte;
        } else {
            memcpy(out + size, p, (size_t)n);
            size += (size_t)n;
        }
        i += (size_t)n;
    }
    return size;
}

ek_gguf_str ek_bpe_raw(const ek_bpe *b, int32_t id)
{
    return (ek_gguf_str){b->raw + b->at[id], b->at[id + 1] - b->at[id]};
}

/* The place of a raw token in the table, or the empty place where it would stand. */
static uint64_t place_of(const ek_bpe *b, const char *raw, size_t size)
{
    uint64_t i = hash_bytes(raw, size) & b->mask;

    for (;; i = (i + 1) & b->mask) {
        const int32_t id = b->table[i];

        if (id < 0)
            return i;
        if (b->at[id + 1] - b->at[id] == size && memcmp(b->raw + b->at[id], raw, size) == 0)
            return i;
    }
}

int32_t ek_bpe_find(const ek_bpe *b, const char *raw, size_t size)
{
    return b->table[place_of(b, raw, size)];
}

int32_t ek_bpe_byte(const ek_bpe *b, uint8_t byte)
{
    return b->byte_id[byte];
}

static merge *merge_of(const ek_bpe *b, int32_t left, int32_t right)
{
    const uint64_t pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    uint64_t i = mix(pair * 0x9e3779b97f4a7c15u) & b->merge_mask;

    while (b->merges[i].rank != UINT32_MAX && b->merges[i].pair != pair)
        i = (i + 1) & b->merge_mask;
    return &b->merges[i];
}

static uint64_t table_size(size_t n)
{
    uint64_t size = 64;

    while (size < 2 * (uint64_t)n)
        size *= 2;
    return size;
}

static ek_code fill_tokens(ek_bpe *b, const ek_gguf_str *tokens, const char *path, ek_err *err)
{
    uint32_t at = 0;

    for (size_t i = 0; i < b->n; i++) {
        uint64_t place;

        memcpy(b->raw + at, tokens[i].data, tokens[i].size);
        b->at[i] = at;
        at += (uint32_t)tokens[i].size;
        b->at[i + 1] = at;
        place = place_of(b, tokens[i].data, tokens[i].size);
        if (b->table[place] >= 0)
            return EK_FAIL(err, EK_EINPUT, "%s: tokens %d and %zu are the same", path,
                           b->table[place], i);
        b->table[place] = (int32_t)i;
    }
    for (int i = 0; i < 256; i++) {
        const uint8_t byte = (uint8_t)i;
        char raw[2];

        b->byte_id[i] = ek_bpe_find(b, raw, ek_alphabet_raw(raw, &byte, 1));
    }
    return EK_OK;
}

/* "left right", split at the first space after position 0. */
static ek_code fill_merge(ek_bpe *b, ek_gguf_str s, uint32_t rank, const char *path, ek_err *err)
{
    const char *space = s.size > 1 ? memchr(s.data + 1, ' ', s.size - 1) : NULL;
    const int shown = (int)(s.size < 80 ? s.size : 80);
    size_t n_left, n_right;
    int32_t left, right, both = -1;
    char *joined;
    merge *m;

    if (!space)
        return EK_FAIL(err, EK_EINPUT, "%s: merge %u: found \"%.*s\", expected \"left right\"",
                       path, rank, shown, s.data);
    n_left = (size_t)(space - s.data);
    n_right = s.size - n_left - 1;
    left = ek_bpe_find(b, s.data, n_left);
    right = ek_bpe_find(b, space + 1, n_right);
    joined = malloc(s.size);
    if (!joined)
        return EK_FAIL(err, EK_ENOMEM, "%s: no memory for a merge", path);
    memcpy(joined, s.data, n_left);
    memcpy(joined + n_left, space + 1, n_right);
    both = ek_bpe_find(b, joined, n_left + n_right);
    free(joined);
    if (left < 0 || right < 0 || both < 0)
        return EK_FAIL(err, EK_EINPUT, "%s: merge %u, \"%.*s\": %s is no token", path, rank, shown,
                       s.data,
                       left < 0    ? "the left part"
                       : right < 0 ? "the right part"
                                   : "the result");
    m = merge_of(b, left, right);
    if (m->rank != UINT32_MAX)
        return EK_FAIL(err, EK_EINPUT, "%s: merges %u and %u are the same", path, m->rank, rank);
    *m = (merge){(uint64_t)(uint32_t)left << 32 | (uint32_t)right, rank, both};
    return EK_OK;
}

static ek_code allocate(ek_bpe *b, const ek_gguf_str *tokens, size_t n_merges, const char *path,
                        ek_err *err)
{
    const uint64_t table = table_size(b->n), merges = table_size(n_merges);
    uint64_t bytes = 1;

    for (size_t i = 0; i < b->n; i++)
        bytes += tokens[i].size;
    if (b->n > INT32_MAX / 2 || n_merges > INT32_MAX / 2 || bytes > UINT32_MAX)
        return EK_FAIL(err, EK_EINPUT, "%s: %zu tokens and %zu merges are too many", path, b->n,
                       n_merges);
    b->raw = malloc(bytes);
    b->at = calloc(b->n + 1, sizeof *b->at);
    b->table = malloc(table * sizeof *b->table);
    b->merges = malloc(merges * sizeof *b->merges);
    b->cache = calloc((size_t)1 << CACHE_BITS, sizeof *b->cache);
    if (!b->raw || !b->at || !b->table || !b->merges || !b->cache)
        return EK_FAIL(err, EK_ENOMEM, "%s: no memory for %zu tokens", path, b->n);
    b->mask = table - 1;
    b->merge_mask = merges - 1;
    memset(b->table, 0xff, table * sizeof *b->table);
    for (uint64_t i = 0; i < merges; i++)
        b->merges[i] = (merge){0, UINT32_MAX, -1};
    return EK_OK;
}

ek_code ek_bpe_open(ek_bpe **out, const ek_gguf_str *tokens, size_t n, const ek_gguf_str *merges,
                    size_t n_merges, const char *path, ek_err *err)
{
    ek_bpe *b = calloc(1, sizeof *b);

    if (!b)
        return EK_FAIL(err, EK_ENOMEM, "%s: no memory for a tokenizer", path);
    b->n = n;
    EK_CHECK(allocate(b, tokens, n_merges, path, err));
    EK_CHECK(fill_tokens(b, tokens, path, err));
    for (size_t i = 0; i < n_merges; i++)
        EK_CHECK(fill_merge(b, merges[i], (uint32_t)i, path, err));
    *out = b;
    return EK_OK;
fail:
    ek_bpe_close(b);
    return err->code;
}

void ek_bpe_close(ek_bpe *b)
{
    if (!b)
        return;
    free(b->raw);
    free(b->at);
    free(b->table);
    free(b->merges);
    free(b->cache);
    free(b->symbol);
    free(b->heap);
    free(b);
}

static int before(candidate a, candidate b)
{
    return a.rank != b.rank ? a.rank < b.rank : a.pos < b.pos;
}

static void heap_push(ek_bpe *b, candidate c)
{
    size_t i = b->heap_n++;

    while (i > 0 && before(c, b->heap[(i - 1) / 2])) {
        b->heap[i] = b->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    b->heap[i] = c;
}

static candidate heap_pop(ek_bpe *b)
{
    const candidate top = b->heap[0], last = b->heap[--b->heap_n];
    size_t i = 0, child;

    while ((child = 2 * i + 1) < b->heap_n) {
        if (child + 1 < b->heap_n && before(b->heap[child + 1], b->heap[child]))
            child++;
        if (!before(b->heap[child], last))
            break;
        b->heap[i] = b->heap[child];
        i = child;
    }
    b->heap[i] = last;
    return top;
}

/* Offer the pair that starts at pos, if it has a rank. */
static void offer(ek_bpe *b, int32_t pos)
{
    const symbol *s = &b->symbol[pos];
    const merge *m;

    if (s->next < 0)
        return;
    m = merge_of(b, s->id, b->symbol[s->next].id);
    if (m->rank != UINT32_MAX)
        heap_push(b, (candidate){m->rank, pos, m->id});
}

static void merge_all(ek_bpe *b, int32_t n)
{
    b->heap_n = 0;
    for (int32_t i = 0; i + 1 < n; i++)
        offer(b, i);
    while (b->heap_n > 0) {
        const candidate c = heap_pop(b);
        symbol *s = &b->symbol[c.pos], *right;

        /* The pair may have changed since it was offered: then it was offered anew, or is gone. */
        if (s->id < 0 || s->next < 0)
            continue;
        right = &b->symbol[s->next];
        if (merge_of(b, s->id, right->id)->id != c.id)
            continue;
        s->id = c.id;
        right->id = -1;
        s->next = right->next;
        if (s->next >= 0)
            b->symbol[s->next].prev = c.pos;
        if (s->prev >= 0)
            offer(b, s->prev);
        offer(b, c.pos);
    }
}

static ek_code reserve(ek_bpe *b, size_t n, ek_err *err)
{
    size_t room = b->room ? b->room : 256;
    void *p;

    if (n <= b->room)
        return EK_OK;
    while (room < n)
        room *= 2;
    /* Every pair is offered once, every merge offers at most two more. */
    p = realloc(b->symbol, room * sizeof *b->symbol);
    b->symbol = p ? p : b->symbol;
    if (p && (p = realloc(b->heap, 3 * room * sizeof *b->heap)))
        b->heap = p;
    if (!p)
        return EK_FAIL(err, EK_ENOMEM, "no memory to merge a piece of %zu bytes", n);
    b->room = room;
    return EK_OK;
}

ek_code ek_tokens_reserve(ek_tokens *t, int64_t n, ek_err *err)
{
    int64_t room = t->room ? t->room : 256;
    void *p;

    if (t->n + n <= t->room)
        return EK_OK;
    while (room < t->n + n)
        room *= 2;
    p = realloc(t->id, (size_t)room * sizeof *t->id);
    t->id = p ? p : t->id;
    if (p && (p = realloc(t->at, (size_t)room * sizeof *t->at)))
        t->at = p;
    if (!p)
        return EK_FAIL(err, EK_ENOMEM, "no memory for %" PRId64 " tokens", t->n + n);
    t->room = room;
    return EK_OK;
}

void ek_tokens_clear(ek_tokens *t)
{
    free(t->id);
    free(t->at);
    *t = (ek_tokens){0};
}

static ek_code append(ek_bpe *b, const int32_t *id, int n, int64_t at, ek_tokens *out, ek_err *err)
{
    EK_TRY(ek_tokens_reserve(out, n, err));
    for (int i = 0; i < n; i++) {
        /* A token that the cache gives is as long as its bytes. */
        const ek_gguf_str raw = ek_bpe_raw(b, id[i]);

        out->id[out->n] = id[i];
        out->at[out->n++] = at;
        for (size_t j = 0; j < raw.size; j++)
            at += ((unsigned char)raw.data[j] & 0xc0) != 0x80;
    }
    return EK_OK;
}

ek_code ek_bpe_encode(ek_bpe *b, const uint8_t *piece, size_t n, int64_t at, int lossy,
                      ek_tokens *out, ek_err *err)
{
    cached *c = NULL;
    int32_t m = 0;
    const int64_t first = out->n;

    if (n <= CACHE_BYTES) {
        c = &b->cache[hash_bytes(piece, n) >> (64 - CACHE_BITS)];
        if (c->size == n && memcmp(c->bytes, piece, n) == 0)
            return append(b, c->id, c->n, at, out, err);
    }
    if (n > INT32_MAX / 4)
        return EK_FAIL(err, EK_EINPUT, "a piece of %zu bytes is too long", n);
    EK_TRY(reserve(b, n, err));
    for (size_t i = 0; i < n; i++) {
        const int32_t id = b->byte_id[piece[i]];

        if (id < 0 && !lossy)
            return EK_FAIL(err, EK_EINPUT,
                           "byte 0x%02x at offset %" PRId64 ": the vocabulary has no token for it",
                           piece[i], at + (int64_t)i);
        if (id < 0) {
            c = NULL;
            continue;
        }
        b->symbol[m] = (symbol){id, m - 1, m + 1, (int32_t)i};
        m++;
    }
    if (m == 0)
        return EK_OK;
    b->symbol[m - 1].next = -1;
    merge_all(b, m);
    EK_TRY(ek_tokens_reserve(out, m, err));
    for (int32_t i = 0; i >= 0; i = b->symbol[i].next) {
        out->id[out->n] = b->symbol[i].id;
        out->at[out->n++] = at + b->symbol[i].at;
    }
    if (c && out->n - first <= CACHE_IDS) {
        c->size = (uint8_t)n;
        c->n = (uint8_t)(out->n - first);
        memcpy(c->bytes, piece, n);
        memcpy(c->id, out->id + first, c->n * sizeof *c->id);
    }
    return EK_OK;
}
