/* infer/tokenizer.h - text to token ids and back: byte-level BPE from a GGUF file.
 *
 * Text is cut at special tokens, each stretch between them into pieces by a pattern, and the bytes
 * of each piece are merged pair by pair, lowest rank first.  Any bytes can be encoded: a byte that
 * is no UTF-8 is a piece of its own, and decoding gives the very bytes back.  A vocabulary may lack
 * a token for some byte (SmolLM2 lacks 21, among them 0x04 and 0xff): such a byte is refused with
 * its place, or left out if the caller says so.
 *
 * A tokenizer holds a cache of pieces: one thread at a time. */
#ifndef EK_INFER_TOKENIZER_H
#define EK_INFER_TOKENIZER_H

#include "core/json.h"
#include "infer/gguf.h"

typedef struct ek_tokenizer ek_tokenizer;

/* Flags of encoding. */
enum {
    EK_TOK_SPECIAL = 1, /* control tokens written in the text become ids ("<|im_end|>"): for text of
                           templates, never for a user's */
    EK_TOK_STRICT = 2,  /* invalid UTF-8 is EK_EINPUT, naming the byte offset: for files */
    EK_TOK_BOS = 4,     /* begin with bos if the file says that prompts do (SmolLM2: no) */
    EK_TOK_LOSSY = 8    /* leave out bytes that the vocabulary has no token for */
};

/* A growing list.  Start from zero: ek_tokens t = {0}.  Encoding appends; `at` counts bytes from
 * the beginning of all text appended so far, so a token spans at[i] .. at[i+1] (or .. bytes). */
typedef struct ek_tokens {
    int32_t *id; /* (n) owned */
    int64_t *at; /* (n) owned: offset of the token's first byte */
    int64_t n, room;
    int64_t bytes; /* of text appended so far */
} ek_tokens;
void ek_tokens_clear(ek_tokens *t); /* frees; the list is empty and usable again */
/* Index of the first token that starts at or after byte offset; n if none. */
int64_t ek_tokens_from(const ek_tokens *t, int64_t offset);

/* EK_ENOTSUP: another kind of tokenizer, or a pre-tokenizer we do not know, by name.  The file may
 * be closed afterwards. */
ek_code ek_tokenizer_open(ek_tokenizer **out, const ek_gguf *g, ek_err *err);
void ek_tokenizer_close(ek_tokenizer *tok); /* NULL is fine */

/* Append the ids of text to out.  On failure out is as it was. */
ek_code ek_tokenizer_encode(ek_tokenizer *tok, const char *text, size_t size, int flags,
                            ek_tokens *out, ek_err *err);

/* The same for a text in parts, each with its own flags, tokenised as one text: a piece may reach
 * over the seam of two parts, special tokens are looked for within a part only.  So a template
 * around a user's text gives the ids of the rendered whole, while "<|im_end|>" in the user's text
 * stays characters.  EK_TOK_BOS counts on the first part. */
typedef struct ek_tok_part {
    const char *text; /* borrowed */
    size_t size;
    int flags;
} ek_tok_part;
ek_code ek_tokenizer_encode_parts(ek_tokenizer *tok, const ek_tok_part *parts, int n_parts,
                                  ek_tokens *out, ek_err *err);

/* Append the bytes of ids to out; may end inside a UTF-8 character (infer/utf8.h).  Control tokens
 * are left out if skip_special.  EK_EASKED: an id outside the vocabulary. */
ek_code ek_tokenizer_decode(const ek_tokenizer *tok, const int32_t *ids, int64_t n,
                            int skip_special, ek_text *out, ek_err *err);

int ek_tokenizer_size(const ek_tokenizer *tok); /* ids are 0 .. size - 1 */
/* Bytes of one token, borrowed, maybe with NULs inside; NULL if id is outside. */
const char *ek_tokenizer_piece(const ek_tokenizer *tok, int32_t id, size_t *size);
int ek_tokenizer_is_special(const ek_tokenizer *tok, int32_t id); /* control or unknown */
/* The token with exactly these bytes, or -1. */
int32_t ek_tokenizer_find(const ek_tokenizer *tok, const char *bytes, size_t size);
int32_t ek_tokenizer_bos(const ek_tokenizer *tok); /* -1: none */
int32_t ek_tokenizer_eos(const ek_tokenizer *tok); /* -1: none */
int ek_tokenizer_adds_bos(const ek_tokenizer *tok);
/* Generation ends at these: eos, eot, and the well-known ends by name ("<|endoftext|>"). */
int ek_tokenizer_is_end(const ek_tokenizer *tok, int32_t id);
const int32_t *ek_tokenizer_ends(const ek_tokenizer *tok, int *n);
/* Of all that decides ids: kind, pattern, tokens, types, merges.  32 hex digits. */
const char *ek_tokenizer_hash(const ek_tokenizer *tok);

#endif
