/* train/collect.h - from text to records: read a sequence with the frozen model once, sum up what
 * the queries behind each of its cuts pay and what entries had received by then, and keep keys,
 * values, masses and carried columns: one record.
 *
 * Record i depends on (settings, seed, i) alone, so that a trace on disk, one in memory and none at
 * all (made anew each time) train the same scorer. */
#ifndef EK_TRAIN_COLLECT_H
#define EK_TRAIN_COLLECT_H

#include "infer/model.h"
#include "train/data.h"
#include "train/example.h"
#include "train/target.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ek_collect_need {
    ek_model *model; /* borrowed, as all here */
    ek_device *dev;
    ek_data *data;
    ek_data_set set;
    ek_target_set target;
    int sinks, recent;
    int whole;   /* 1: records hold every token, whatever data.entries says */
    int carried; /* ek_carried of the columns that records hold */
    int64_t seed;
    int answers; /* measure the model's own loss on answers in the first so many of each kind */
} ek_collect_need;

typedef struct ek_answers { /* over the measured texts of one kind */
    double loss, tokens;    /* sum of -log p, and how many */
    int64_t texts;
} ek_answers;

typedef struct ek_collect {
    ek_collect_need need;
    ek_cache cache; /* reused over sequences */
    float *logits;
    float *mass;    /* (EK_DATA_CUTS, length) of one head */
    float *score;   /* (length) what entries are sampled by */
    float *scratch; /* (length) */
    int32_t *pick;  /* (length) entries chosen */
    float *carry;   /* (n_layers, column, floats) so far; NULL: none carried */
    float *fold;    /* (4, column, group) */
    ek_answers answers[EK_DATA_KINDS];
    int64_t sequences, tokens;            /* read so far */
    double model_seconds, target_seconds; /* in the model; in targets and carried columns */
} ek_collect;

ek_code ek_collect_open(ek_collect *c, const ek_collect_need *need, ek_err *err);
void ek_collect_close(ek_collect *c);
/* The record of sequence i, from one reading; the caller closes it. */
ek_code ek_collect_example(ek_collect *c, int64_t i, ek_example *out, ek_err *err);

/* Entries per head of a record at most, and bytes of a record at most. */
int ek_collect_entries(const ek_collect_need *need);
int64_t ek_collect_bytes(const ek_collect_need *need);
/* Of target settings, protection and what records hold: part of a trace's identity. */
void ek_collect_target_hash(const ek_collect_need *need, char out[33]);

#ifdef __cplusplus
}
#endif
#endif
