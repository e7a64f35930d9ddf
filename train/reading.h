/* train/reading.h - where the records of a training run come from, for one scorer or several.
 *
 * Runs that agree in all that records depend on (model, text, seed, target, protection, what a
 * record holds) share one reading: a sequence is read once by the frozen model, and every scorer of
 * the group takes its step from that reading.  Which record a step asks for depends on seed, batch
 * and step alone, so a scorer trained in a group has the bits of one trained by itself. */
#ifndef EK_TRAIN_READING_H
#define EK_TRAIN_READING_H

#include "train/collect.h"
#include "train/session.h"
#include "train/trace.h"
#include "train/trainer.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ek_reading_record {
    int64_t i;
    ek_example record;
} ek_reading_record;

typedef struct ek_reading {
    const ek_train_set *set;         /* of the first run of the group; borrowed, as the next two */
    const ek_train_options *options; /* say, quiet */
    ek_device *dev;
    ek_model *model;
    ek_tokenizer *tok;
    ek_data *data;
    ek_collect collect;
    ek_trace *trace;          /* NULL: records are made when asked for */
    char *trace_path;         /* of trace: disk */
    ek_example *held;         /* (data.valid) trace: none: records held out, read once */
    ek_reading_record *now;   /* (n_now) trace: none: records of the step in hand */
    int n_now, room;          /* room 0: none are kept */
    double seconds;           /* spent in making records when asked */
    int64_t n_train, n_valid; /* records */
} ek_reading;

/* 1 if two runs can share a reading. */
int ek_reading_shares(const ek_train_set *a, const ek_train_set *b);

/* For n runs that share (pointers): opens the model, the text and the room to read in. */
ek_code ek_reading_open(ek_reading *s, const ek_train_set *const *set, int n,
                        const ek_train_options *options, ek_device *dev, ek_err *err);
void ek_reading_close(ek_reading *s); /* of a zeroed one too */

/* Maps the trace, or reads all sequences into one; with trace: none does nothing. */
ek_code ek_reading_records(ek_reading *s, ek_err *err);
ek_examples ek_reading_examples(ek_reading *s); /* valid while the reading is */
/* From now on records of a step, up to `most` of them, are kept for the next who asks. */
ek_code ek_reading_keep(ek_reading *s, int most, ek_err *err);
void ek_reading_next(ek_reading *s); /* the step is done: its records go */

/* Says what was read, over so many seconds, and how the model does on answers. */
void ek_reading_say(const ek_reading *s, double seconds);

/* Of what a run's records hold if it trains by itself. */
void ek_reading_target_hash(const ek_reading *s, const ek_train_set *set, char out[33]);

#ifdef __cplusplus
}
#endif
#endif
