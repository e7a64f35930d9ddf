/* train/collect.h - from text to records: read a sequence with the frozen model, sum up what its
 * later queries pay, and keep keys, values and masses.
 *
 * Record r depends on (settings, seed, r) alone, so that a trace on disk, one in memory and none at
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
    int64_t seed;
    int answers; /* measure the model's own loss on answers in the first so many retrieval texts */
} ek_collect_need;

typedef struct ek_collect {
    ek_collect_need need;
    ek_cache cache; /* reused over sequences */
    float *logits;
    float *mass;                       /* (length) */
    double answer_loss, answer_tokens; /* sum of -log p, and how many; over the measured texts */
    int64_t tokens, measured;          /* read so far; texts measured */
    double target_seconds;
} ek_collect;

ek_code ek_collect_open(ek_collect *c, const ek_collect_need *need, ek_err *err);
void ek_collect_close(ek_collect *c);
/* All records of sequence i, room for EK_DATA_CUTS of them; the caller closes them. */
ek_code ek_collect_sequence(ek_collect *c, int64_t i, ek_example *out, int *n, ek_err *err);
/* Record r, counted over the records of all sequences; reads the sequence for it alone. */
ek_code ek_collect_example(ek_collect *c, int64_t r, ek_example *out, ek_err *err);

/* Entries per head of a record at most, and so its bytes at most. */
int ek_collect_entries(const ek_collect_need *need);
/* Of target settings and protection: part of a trace's identity. */
void ek_collect_target_hash(const ek_collect_need *need, char out[33]);

#ifdef __cplusplus
}
#endif
#endif
