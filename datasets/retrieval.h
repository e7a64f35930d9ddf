/* datasets/retrieval.h - training text that must be remembered: facts hidden in prose, then asked.
 *
 * Prose alone teaches a scorer nothing about retrieval.  An item is a stretch of prose with short
 * facts (numbers, codes, names, places, times, things) behind random sentences, then questions
 * about them in random order with their answers, then "repeat the passage that begins with ...".
 * As a conversation:
 *     user: context turn[0].question   assistant: turn[0].answer
 *     user: turn[1].question           assistant: turn[1].answer   ...
 * where a context and its first question are joined by "\n\n" (EK_RETRIEVAL_JOIN).
 * Wordings and kinds of answer are disjoint from every evaluation task's: no pass keys, and no
 * number of five digits. */
#ifndef EK_DATASETS_RETRIEVAL_H
#define EK_DATASETS_RETRIEVAL_H

#include "core/err.h"
#include "datasets/text.h"

#include <stddef.h>
#include <stdint.h>

#define EK_RETRIEVAL_JOIN "\n\n"
#define EK_RETRIEVAL_MAX  16

typedef struct ek_span {
    size_t begin, end; /* bytes begin .. end-1 */
} ek_span;

typedef struct ek_turn {
    char *question, *answer;
    ek_span value; /* in answer: what had to be remembered (all of it for the passage) */
    ek_span fact;  /* in context: where it stands */
} ek_turn;

typedef struct ek_retrieval {
    char *context; /* NUL-terminated; owned, as the turns' texts are */
    int n_turns;   /* facts + 1: the last repeats a passage */
    ek_turn turn[EK_RETRIEVAL_MAX + 1];
    ek_window source; /* the prose it was made of */
    int tokens;       /* by the counter: context, turns, and the template's share */
} ek_retrieval;

typedef struct ek_retrieval_config {
    int facts;          /* 1 .. EK_RETRIEVAL_MAX; 6 in the published recipe */
    int min_tokens;     /* the whole item has a random length in min .. max tokens, */
    int max_tokens;     /* template included, and never more; at least 512 */
    int passage_tokens; /* about so many are repeated at the end; 64 */
} ek_retrieval_config;

/* Item i of a seeded sequence.  EK_EASKED: max_tokens leave no room, or the prose has no document
 * long enough.  out need not be initialised. */
ek_code ek_retrieval_make(ek_retrieval *out, const ek_texts *prose, const ek_counter *counter,
                          const ek_retrieval_config *config, uint64_t seed, int64_t i, ek_err *err);
void ek_retrieval_clear(ek_retrieval *r); /* zeroed or cleared is fine */

/* Of the templates and word lists: part of the identity of training data. */
void ek_retrieval_hash(char out[33]);

/* For tests and `list`: the templates' raw texts, n in all; what: 0 fact, 1 question, 2 answer. */
int ek_retrieval_n_templates(void);
int ek_retrieval_n_kinds(void);
const char *ek_retrieval_template(int i, int what);

#endif
