/* train/data.h - training sequences: prose, and retrieval text in which later tokens look back.
 *
 * Sequence i comes from (seed, i) alone.  At a cut everything before it may be
 * forgotten and everything after it is the future that decides what should have been kept: for
 * prose random places with `horizon` tokens behind them, for retrieval text right before the first
 * question.  cut 0: whole sequences of `length` tokens, for losses that rank over time. */
#ifndef EK_TRAIN_DATA_H
#define EK_TRAIN_DATA_H

#include "core/config.h"
#include "infer/tokenizer.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { EK_DATA_ANSWERS = 32, EK_DATA_CUTS = 8, EK_DATA_KINDS = 6 };

/* How often each kind of retrieval text comes (datasets/retrieval.h), in its order. */
typedef struct ek_data_kinds {
    double facts, pairs, list, passage, mixed, quotes;
} ek_data_kinds;

typedef struct ek_data_set {
    char *texts; /* folder of .txt */
    double mix;  /* share of retrieval text, 0 .. 1 */
    ek_data_kinds kinds;
    int64_t sequences; /* to train on */
    int64_t valid;     /* more of them, held out to watch the loss: of the same documents */
    int64_t length;    /* tokens of the longest sequence, future included */
    int64_t cut;       /* least tokens before a cut; 0: whole sequences */
    int64_t cuts;      /* prose: cuts per sequence: one reading serves them all */
    int64_t horizon;   /* prose: tokens after the cut */
    int64_t facts;     /* retrieval: facts, pairs or fields of a list hidden in a text */
    int64_t passage;   /* retrieval: tokens of a passage that is repeated */
    int64_t entries;   /* sampled per head of a sequence; 0: all */
} ek_data_set;
extern const ek_data_set ek_data_defaults;
extern const ek_field ek_data_fields[];

typedef struct ek_sequence {
    int retrieval;
    int kind;     /* of retrieval text, 0 .. EK_DATA_KINDS - 1 */
    int32_t *tok; /* (n) owned */
    int n;
    int n_cuts;                                /* a whole sequence has one cut, at 0 */
    int cut[EK_DATA_CUTS], end[EK_DATA_CUTS];  /* ascending; queries cut .. end - 1 count */
    int n_answers, answer[EK_DATA_ANSWERS][2]; /* first token and one past the last */
} ek_sequence;
void ek_sequence_clear(ek_sequence *s);

typedef struct ek_data ek_data;

/* gguf and tok are borrowed; gguf only during the call. */
ek_code ek_data_open(ek_data **out, const ek_data_set *set, int64_t seed, const ek_gguf *gguf,
                     ek_tokenizer *tok, ek_err *err);
void ek_data_close(ek_data *d);
ek_code ek_data_sequence(ek_data *d, int64_t i, ek_sequence *out, ek_err *err);
const char *ek_data_kind_name(int kind);
/* Tokens that the shortest sequence may have. */
int64_t ek_data_shortest(const ek_data_set *set);
/* Of texts, templates, settings and seed: 32 hex digits. */
const char *ek_data_hash(const ek_data *d);
const char *ek_data_template_hash(const ek_data *d);

#ifdef __cplusplus
}
#endif
#endif
