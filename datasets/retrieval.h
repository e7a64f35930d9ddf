/* datasets/retrieval.h - training text that must be remembered: things hidden in prose, then asked.
 *
 * Prose alone teaches a scorer nothing about retrieval.  An item is a stretch of prose with things
 * hidden behind random sentences, then questions about them in random order with their answers.
 * Its kind says what is hidden:
 *   facts    short facts (numbers, codes, names, places, times, things), then one passage of the
 *            prose to be repeated: the published recipe
 *   pairs    keys with values, one sentence each or lines of one block
 *   list     records of a register, with questions about their fields
 *   passage  sentences of other works and passages of the prose, to be repeated
 *   mixed    half facts, half pairs, and a sentence of another work
 *   quotes   one to three sentences of other works alone: what does not belong may be asked for.
 *            Few, because they share the attention of what is asked
 * All but facts may open with a line that says that something will matter, and pairs, list and
 * mixed may end with a passage too.
 * As a conversation:
 *     user: context turn[0].question   assistant: turn[0].answer
 *     user: turn[1].question           assistant: turn[1].answer   ...
 * where a context and its first question are joined by "\n\n" (EK_RETRIEVAL_JOIN).
 * Wordings and kinds of answer are disjoint from every evaluation task's: no pass keys, no number
 * of five digits, no call signs, and no question for a sentence whose first words it does not
 * name. */
#ifndef EK_DATASETS_RETRIEVAL_H
#define EK_DATASETS_RETRIEVAL_H

#include "core/err.h"
#include "datasets/text.h"

#include <stddef.h>
#include <stdint.h>

#define EK_RETRIEVAL_JOIN "\n\n"
#define EK_RETRIEVAL_MAX  16

enum {
    EK_RETRIEVAL_FACTS,
    EK_RETRIEVAL_PAIRS,
    EK_RETRIEVAL_LIST,
    EK_RETRIEVAL_PASSAGE,
    EK_RETRIEVAL_MIXED,
    EK_RETRIEVAL_QUOTES,
    EK_RETRIEVAL_KINDS
};
extern const char *const ek_retrieval_kind_names[]; /* NULL-terminated */

enum { EK_RETRIEVAL_TURNS = EK_RETRIEVAL_MAX + 4 };

typedef struct ek_span {
    size_t begin, end; /* bytes begin .. end-1 */
} ek_span;

typedef struct ek_turn {
    char *question, *answer;
    ek_span value; /* in answer: what had to be remembered (all of it for a passage) */
    ek_span fact;  /* in context: where it stands */
} ek_turn;

typedef struct ek_retrieval {
    char *context; /* NUL-terminated; owned, as the turns' texts are */
    int kind;
    int n_turns; /* passages of the prose itself come last */
    ek_turn turn[EK_RETRIEVAL_TURNS];
    ek_window source; /* the prose it was made of */
    int tokens;       /* by the counter: context, turns, and the template's share */
} ek_retrieval;

typedef struct ek_retrieval_config {
    double weight[EK_RETRIEVAL_KINDS]; /* >= 0: how often a kind comes; all 0: facts alone */
    int facts; /* or pairs, or fields asked: 1 .. EK_RETRIEVAL_MAX; 6 in the published recipe */
    int min_tokens;     /* the whole item has a random length in min .. max tokens, */
    int max_tokens;     /* template included, and never more; at least 512 */
    int passage_tokens; /* a passage or quote has about so many; 64 */
} ek_retrieval_config;

/* Item i of a seeded sequence.  EK_EASKED: max_tokens leave no room, or the prose has no document
 * long enough.  out need not be initialised. */
ek_code ek_retrieval_make(ek_retrieval *out, const ek_texts *prose, const ek_counter *counter,
                          const ek_retrieval_config *config, uint64_t seed, int64_t i, ek_err *err);
void ek_retrieval_clear(ek_retrieval *r); /* zeroed or cleared is fine */

/* Of the templates and word lists: part of the identity of training data. */
void ek_retrieval_hash(char out[33]);

/* Item i's kind. */
int ek_retrieval_kind_of(const ek_retrieval_config *config, uint64_t seed, int64_t i);

/* Sentence i of all that are written here, with their slots; NULL behind the last. */
const char *ek_retrieval_wording(int i);

#endif
