/* infer/bpe.h - byte pair encoding of one piece: the inner half of the tokenizer.
 *
 * Tokens are written in a printable alphabet of 256 characters, one per byte: 0x21-0x7e, 0xa1-0xac
 * and 0xae-0xff stand for themselves, the other 68 bytes for U+0100 and up.  "Raw" is a token as
 * the file writes it.
 * A piece starts as one token per byte; the adjacent pair of lowest rank, leftmost on ties, becomes
 * one token until no pair has a rank.  A heap does it in n log n, since a piece can be a megabyte
 * of the same letter; short pieces are remembered. */
#ifndef EK_INFER_BPE_H
#define EK_INFER_BPE_H

#include "infer/tokenizer.h"

typedef struct ek_bpe ek_bpe;

/* tokens and merges ("left right") are copied.  EK_EINPUT: two tokens or merges alike, a merge of
 * or into something that is no token.  path is for messages. */
ek_code ek_bpe_open(ek_bpe **out, const ek_gguf_str *tokens, size_t n, const ek_gguf_str *merges,
                    size_t n_merges, const char *path, ek_err *err);
void ek_bpe_close(ek_bpe *b); /* NULL is fine */

/* The id of a raw token, or -1; the raw token of an id. */
int32_t ek_bpe_find(const ek_bpe *b, const char *raw, size_t size);
ek_gguf_str ek_bpe_raw(const ek_bpe *b, int32_t id);
/* The token of a single byte, or -1. */
int32_t ek_bpe_byte(const ek_bpe *b, uint8_t byte);

/* Append the ids of a piece of n >= 1 bytes; its first byte has offset at.  A byte without a token
 * is left out if lossy, else EK_EINPUT. */
ek_code ek_bpe_encode(ek_bpe *b, const uint8_t *piece, size_t n, int64_t at, int lossy,
                      ek_tokens *out, ek_err *err);

/* Room for n more tokens. */
ek_code ek_tokens_reserve(ek_tokens *t, int64_t n, ek_err *err);

/* Bytes of a raw token into out (raw.size bytes suffice); characters outside the alphabet keep
 * their UTF-8.  Returns how many. */
size_t ek_alphabet_bytes(uint8_t *out, ek_gguf_str raw);
/* The reverse into out (2 * n bytes suffice). */
size_t ek_alphabet_raw(char *out, const uint8_t *bytes, size_t n);

#endif
