/* datasets/hidden.h - what a retrieval item hides in its prose and asks for later.
 *
 * pairs: keys with their values, one sentence each anywhere in the text, or all in one block.
 * list: records of a register, each a key with three fields, anywhere or in one block.
 * quotes: a few sentences of another place of the texts, to be repeated. */
#ifndef EK_DATASETS_HIDDEN_H
#define EK_DATASETS_HIDDEN_H

#include "core/err.h"
#include "datasets/draw.h"
#include "datasets/text.h"

#include <stddef.h>

enum { EK_HIDDEN_MAX = 16 };

typedef struct ek_piece { /* put in somewhere, as it is */
    char *text;           /* owned, as all here */
    int block;            /* set off by blank lines */
} ek_piece;

typedef struct ek_ask {
    char *question, *answer;
    size_t value_begin, value_end; /* in answer */
    int piece;                     /* that holds the answer ... */
    size_t begin, end;             /* ... in these bytes of it */
} ek_ask;

typedef struct ek_hidden {
    ek_piece piece[EK_HIDDEN_MAX];
    ek_ask ask[EK_HIDDEN_MAX];
    int n_pieces, n_asks;
    const char *intro; /* opens the context; "" if none */
    int passages;      /* stretches of the prose itself to be repeated at the end */
} ek_hidden;

/* Each adds to h; n: asked for, and what does not fit in EK_HIDDEN_MAX is left out. */
ek_code ek_hidden_facts(ek_hidden *h, int n, ek_draw *draw, ek_err *err);
ek_code ek_hidden_pairs(ek_hidden *h, int n, ek_draw *draw, ek_err *err);
ek_code ek_hidden_list(ek_hidden *h, int n, ek_draw *draw, ek_err *err);
/* From another work than source's where there is one (files of a work are named alike up to the
 * first '-'), else from another document; each at most about `tokens` long. */
ek_code ek_hidden_quotes(ek_hidden *h, int n, const ek_texts *prose, const ek_window *source,
                         const ek_counter *counter, int tokens, ek_draw *draw, ek_err *err);
/* One line that says that something in the text will matter, or that it is not all of one hand. */
void ek_hidden_intro(ek_hidden *h, int of_quotes, ek_draw *draw);
void ek_hidden_clear(ek_hidden *h); /* zeroed or cleared is fine */

/* "repeat what begins with ...", as text to free: the words are text[0 .. size). */
char *ek_hidden_repeat(const char *text, size_t size, ek_draw *draw);
/* The first words of text[0 .. size), 4 to 16 on one line, as many as it takes until `in` has them
 * at `at` alone (in NULL: four).  The bytes they take; 0: none are so. */
size_t ek_hidden_opening(const char *text, size_t size, const char *in, size_t in_size, size_t at);

/* Every sentence written here, in a fixed order; NULL behind the last. */
const char *ek_hidden_wording(int i);

#endif
