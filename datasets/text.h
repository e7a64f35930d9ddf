/* datasets/text.h - plain text: documents, paragraph starts, windows.
 *
 * A text is a folder of .txt files or one file.  Each file is a document: UTF-8, mapped, never
 * copied.  What is cut out of a document (a window) begins at a paragraph and is found from
 * (seed, number) alone, so a run can be resumed or repeated anywhere.
 * Lengths in tokens are asked of the caller's counter: this folder knows no tokenizer. */
#ifndef EK_DATASETS_TEXT_H
#define EK_DATASETS_TEXT_H

#include "core/err.h"
#include "core/file.h"

#include <stddef.h>
#include <stdint.h>

/* How long a text is in tokens.  count returns the tokens of text[0 .. n), or -1 on failure. */
typedef struct ek_counter {
    int (*count)(void *ctx, const char *text, size_t n);
    void *ctx;
    int wrap; /* tokens that the chat template adds around one user turn and an opened answer */
    int turn; /* tokens that it adds for each further turn (question and answer) */
} ek_counter;

typedef struct ek_doc {
    char *id;          /* the file's name without folder and .txt */
    const char *text;  /* (size) UTF-8 without NUL, not terminated; points into map */
    size_t size;       /* bytes, at least 1 */
    size_t *paragraph; /* (n_paragraphs) where paragraphs begin, ascending */
    int n_paragraphs;  /* at least 1 */
    char hash[33];     /* of the bytes */
    ek_map map;
} ek_doc;

typedef struct ek_texts {
    ek_doc *doc;   /* (n) by name */
    int n;         /* at least 1 */
    size_t bytes;  /* of all */
    char hash[33]; /* of all names and bytes: names the data in traces and results */
} ek_texts;

/* Open a folder's *.txt (not those of its sub-folders), or one file.  EK_EASKED: not there, or no
 * .txt inside; EK_EINPUT: empty, not UTF-8, NUL inside, or beyond 1 GiB, with file and byte. */
ek_code ek_texts_open(ek_texts *out, const char *path, ek_err *err);
void ek_texts_close(ek_texts *t);

/* Bytes begin .. end-1 of a document; both lie between characters. */
typedef struct ek_window {
    int doc;
    size_t begin, end;
} ek_window;

/* Window number i of a seeded sequence: begins at a random paragraph that has at least `bytes`
 * behind it in its document, and is the shortest such that ends between words (or at the
 * document's end).  Every byte of the text is about equally likely to be inside.
 * EK_EASKED if no document is that long; the message says how long the longest is. */
ek_code ek_texts_window(ek_window *out, const ek_texts *t, size_t bytes, uint64_t seed, int64_t i,
                        ek_err *err);

/* Consecutive windows that do not overlap, each at least `tokens` tokens long and at most about
 * an eighth longer, beginning at paragraphs, document after document.  *out is malloc'd (*n).
 * EK_EASKED if there is none. */
ek_code ek_texts_consecutive(ek_window **out, int *n, const ek_texts *t, const ek_counter *counter,
                             int tokens, ek_err *err);

/* The longest prefix of text that ends between words and has at most `tokens` tokens, in bytes
 * (trailing space left out).  EK_EBROKEN if the counter fails. */
ek_code ek_text_cut(size_t *end, const char *text, size_t size, const ek_counter *counter,
                    int tokens, ek_err *err);

/* The last sentence end at or before byte `at`: the place behind the sentence's last mark, before
 * the space that follows; 0 if there is none.  Titles ("Mr.") and initials do not end sentences;
 * a paragraph's end does. */
size_t ek_text_sentence_end(const char *text, size_t size, size_t at);

/* Put pieces into a text.  at ascends over the pieces and is 0 or a sentence end; a piece is set
 * off by `before`, or at 0 by a space behind it.  where is filled: the piece's place in the result,
 * which is malloc'd and NUL-terminated; NULL when out of memory. */
typedef struct ek_insert {
    size_t at;
    const char *before, *piece; /* borrowed */
    size_t where;
} ek_insert;
char *ek_text_insert(const char *text, size_t size, ek_insert *pieces, int n);

/* The first byte that is not part of a valid UTF-8 character, or size.  NUL counts as invalid. */
size_t ek_text_check_utf8(const char *text, size_t size);

#endif
