/* train/trainer.h - parameters, moments, batches, step; no line about any particular scorer.
 *
 * A step takes `batch` records, runs every (layer, head) over them, and moves all parameters at
 * once.  Which records depends on (seed, step) alone; a head's gradient is one thread's work and
 * sums have a fixed order, so a step has the same bits on any number of threads, and a trainer that
 * was saved and loaded goes on as if it had never stopped. */
#ifndef EK_TRAIN_TRAINER_H
#define EK_TRAIN_TRAINER_H

#include "scorers/scorer.h"
#include "train/loss.h"
#include "train/optim.h"
#include "train/example.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ek_examples { /* where records come from: a trace, or made on demand */
    /* Record i, which `out` views or owns; closed by the trainer after the step. */
    ek_code (*get)(void *ctx, int64_t i, ek_example *out, ek_err *err);
    void *ctx;
    int64_t n, n_valid; /* records 0 .. n-1 train, n .. n + n_valid - 1 watch */
} ek_examples;

typedef struct ek_trainer_need {
    ek_scorer scorer; /* class, device, dims, settings; params are the trainer's */
    ek_loss_set loss;
    ek_optim_set optim;
    double eps; /* of the target */
    int sinks, recent, keep;
    int64_t seed, steps;
    int batch;
    ek_examples records;
} ek_trainer_need;

typedef struct ek_train_stats {
    double loss, acc, lr, norm;
    int64_t tokens; /* of the sequences the records came from */
} ek_train_stats;

typedef struct ek_thread_room ek_thread_room;

typedef struct ek_trainer {
    ek_trainer_need need;
    ek_scorer scorer; /* its params are these: */
    size_t n;
    float *params, *grad; /* (n) */
    ek_optim optim;
    int64_t step;         /* done */
    ek_example *record;   /* (batch) of this step */
    int32_t *at;          /* (batch, samples) positions sampled in each */
    int *n_at;            /* (batch) */
    ek_loss_sum *sum;     /* (n_layers, n_heads) */
    ek_thread_room *room; /* (threads) */
    int64_t *order;       /* (n records) of epoch `epoch` */
    int64_t epoch;
} ek_trainer;

/* EK_EASKED if loss and age do not go together. */
ek_code ek_trainer_open(ek_trainer **out, const ek_trainer_need *need, ek_err *err);
void ek_trainer_close(ek_trainer *t); /* NULL is fine */

/* Set the constants of a fresh trainer from its records: standardisation of inputs, mass of heads.
 */
ek_code ek_trainer_fit(ek_trainer *t, ek_err *err);

ek_code ek_trainer_step(ek_trainer *t, ek_train_stats *out, ek_err *err);
/* Loss over the records held out; parameters stay. */
ek_code ek_trainer_valid(ek_trainer *t, ek_train_stats *out, ek_err *err);

/* Parameters, moments and step, in one safetensors file that appears whole.  identity names the
 * run (its settings' hash); loading another's is EK_EASKED. */
ek_code ek_trainer_save(const ek_trainer *t, const char *path, const char *identity, ek_err *err);
ek_code ek_trainer_load(ek_trainer *t, const char *path, const char *identity, ek_err *err);

/* Which record is element b of step `step` (counted from 1). */
int64_t ek_trainer_pick(ek_trainer *t, int64_t step, int b);

#ifdef __cplusplus
}
#endif
#endif
