/* datasets/dataset.h - tasks: where samples come from and how an answer is graded.
 *
 * A sample is text, not tokens.  The whole prompt is the plain concatenation
 *     [chat opening] context question [chat closing] answer_prefix
 * tokenised once; the context ends before the first token that starts at or after its last byte.
 * `query_aware: false` evicts there.  Sample i comes from (seed, i) alone. */
#ifndef EK_DATASETS_DATASET_H
#define EK_DATASETS_DATASET_H

#include "core/config.h"
#include "core/err.h"
#include "datasets/text.h"

#include <stdbool.h>
#include <stdint.h>

typedef enum ek_sample_kind {
    EK_SAMPLE_ANSWER, /* the model writes an answer, which is graded */
    EK_SAMPLE_FORCED  /* a known continuation is fed; what is measured is the model's surprise */
} ek_sample_kind;

typedef struct ek_sample {
    ek_sample_kind kind;
    char *doc_id;        /* names the sample within its task; the same in every run */
    char *cluster;       /* the unit that repeats; statistics resample clusters */
    char *context;       /* FORCED: at least prompt_tokens + forced_tokens tokens of text */
    char *question;      /* begins with its own separator; "" if none */
    char *answer_prefix; /* opens the assistant's turn; "" if none */
    char **references;   /* (n_references) right answers */
    char **distractors;  /* (n_distractors) answers whose presence makes it wrong */
    int n_references, n_distractors;
    bool chat;                  /* wrap with the model's chat template */
    int max_new_tokens;         /* ANSWER */
    int prompt_tokens;          /* FORCED: the first so many tokens of context are the prompt ... */
    int forced_tokens;          /* ... and so many behind them are the continuation */
    int depth;                  /* percent of the context before the needle; -1: has none */
    int length;                 /* tokens, prompt and answer, that the sample was sized for */
    size_t needle, needle_size; /* bytes of context that the answer is in; size 0: unknown */
    char hash[33];              /* of all but the needle's place, which is in the context */
} ek_sample;

void ek_sample_clear(ek_sample *s); /* frees the texts; a zeroed or cleared sample is fine */

typedef struct ek_grade {
    double score;     /* 0 .. 1 */
    char parsed[128]; /* the answer as read out of the prediction; "" if none was found */
    const char *flag; /* "" or one word: "empty", "unparsed", "distractor"; static */
} ek_grade;

/* Three tasks hide something in prose (datasets/haystack.h), all on a grid of lengths, depths and
 * repeats, all with the question behind the text:
 *   passkey    a number of five digits; kind multi: one of four such numbers
 *   kv_needle  several keys and values at spread depths, the value of one key
 *   verbatim   a sentence of another book, to be completed word for word
 * With query_aware: false what is kept is chosen before the question is seen.
 *
 * One task as written in a run's YAML.  Every task has the same keys and reads those it needs;
 * others are refused.  Zero and NULL mean the task's own default, which ek_task_open fills in, so
 * that the resolved run shows it.  `tasks: [fidelity, {name: passkey, lengths: [2048]}]` */
typedef struct ek_task_config {
    int name;          /* index into ek_task_names */
    char *label;       /* its suite in results: tasks of one name are told apart; NULL: the name */
    char *text;        /* folder or file of .txt */
    char *needle_text; /* verbatim: folder or file of .txt that the sentences come from */
    int64_t samples;   /* fidelity: windows, spread over the text; 0: all there are */
    int64_t prompt;    /* fidelity: tokens of the prompt */
    int64_t continuation; /* fidelity: tokens that follow */
    int kind;             /* passkey: index into its kinds: "single", "multi" */
    int64_t pairs;        /* kv_needle: how many are hidden */
    int64_t *lengths;     /* (n_lengths) needles: tokens, prompt and answer */
    int64_t *depths;      /* (n_depths) needles: percent */
    int n_lengths, n_depths;
    int64_t repeats;        /* needles: haystacks for each length and depth */
    int64_t max_new_tokens; /* needles */
    bool query_aware;       /* evict after the question instead of before it */
    int64_t seed;           /* < 0: who opens the task puts the run's there */
} ek_task_config;

extern const char *const ek_task_names[]; /* NULL-terminated, in the order of datasets/list.h */
extern const ek_field ek_task_fields[];
extern const ek_task_config ek_task_defaults; /* the `element` of a list of tasks */

typedef struct ek_task ek_task;

typedef struct ek_task_class {
    const char *name, *brief;
    const char *keys;   /* of ek_task_fields that it reads beside what all read, blanks between */
    const char *metric; /* "score", or "kld" where nothing is graded */
    double floor;       /* a full cache that scores below this is broken; 0: no floor */
    size_t size;        /* of the task's own struct, which begins with an ek_task */
    void (*defaults)(ek_task_config *config); /* numbers that were left 0 */
    ek_code (*open)(ek_task *t, ek_err *err); /* t zeroed but for its base */
    void (*close)(ek_task *t);                /* accepts a half-open one */
    ek_code (*sample)(ek_sample *out, const ek_task *t, int64_t i, ek_err *err);
    /* NULL: nothing to grade (FORCED). */
    void (*grade)(ek_grade *out, const ek_sample *s, const char *prediction);
    /* Sentence i of all that the task itself writes around and into the text, with slots (%s, %k,
     * %v) for what is drawn; NULL behind the last one.  NULL: it writes none.  Training text shares
     * none of them.
     */
    const char *(*wording)(int i);
} ek_task_class;

struct ek_task {
    const ek_task_class *cls;
    const ek_task_config *config; /* borrowed */
    ek_counter counter;
    int64_t n; /* samples */
    ek_texts texts;
};

extern const ek_task_class *const ek_tasks[]; /* NULL-terminated */

/* Opens the text and settles the number of samples.  config is completed, borrowed, and must stay;
 * the counter is copied, its ctx borrowed.  EK_EASKED where settings contradict each other or
 * are another task's. */
ek_code ek_task_open(ek_task **out, ek_task_config *config, const ek_counter *counter, ek_err *err);
void ek_task_close(ek_task *t); /* NULL is fine */

/* Sample i of 0 .. n-1; out need not be initialised, its texts are the caller's to clear. */
ek_code ek_task_sample(ek_sample *out, const ek_task *t, int64_t i, ek_err *err);

/* Grades a prediction: decoded text without special tokens, without the answer prefix. */
void ek_task_grade(ek_grade *out, const ek_task *t, const ek_sample *s, const char *prediction);

#endif
