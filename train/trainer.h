/* train/trainer.h - parameters, moments, batches, step; no line about any particular scorer.
 *
 * A step takes `batch` records, runs every (layer, head) over all their cuts, and moves all
 * parameters at once; how the loss counts its samples says what a cut weighs (listwise: all the
 * same; regress: by its entries).  Which records depends on (seed, step) alone; a head's gradient
 * is one thread's work and sums have a fixed order, so a step has the same bits on any number of
 * threads, and a trainer that was saved and loaded goes on as if it had never stopped. */
#ifndef EK_TRAIN_TRAINER_H
#define EK_TRAIN_TRAINER_H

#include "scorers/scorer.h"
#include "train/loss.h"
#include "train/optim.h"
#include "train/example.h"
#include "train/watch.h"

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
    double loss, lr, norm;
    double acc; /* recall of the target's best quarter; ranking losses: boundary accuracy */
    double recall, chance; /* of the keep best, and what a guess recalls; NAN: nothing to choose */
    double boundary;       /* accuracy of boundary decisions (watch.h); NAN: nothing to decide */
    int64_t tokens;        /* of the sequences the records came from */
} ek_train_stats;

typedef struct ek_thread_room ek_thread_room;

typedef struct ek_trainer {
    ek_trainer_need need;
    ek_scorer scorer; /* its params are these: */
    size_t n;
    float *params, *grad; /* (n) */
    ek_optim optim;
    int64_t step;         /* done */
    double smooth;        /* the loss, smoothed over all steps done; NAN before the first */
    ek_example *record;   /* (batch) of this step */
    int32_t *at;          /* (batch, samples) positions sampled in each */
    int *n_at;            /* (batch) */
    uint64_t *stream;     /* (batch) of what is drawn for each in this step */
    ek_loss_sum *sum;     /* (n_layers, n_heads) */
    ek_watch *watch;      /* (n_layers, n_heads) */
    ek_thread_room *room; /* (threads) */
    int64_t record_bytes; /* of the largest batch so far */
    int64_t *order;       /* (n records) of epoch `epoch` */
    int64_t epoch;
} ek_trainer;

/* EK_EASKED if loss, age, carried columns and delay do not go together. */
ek_code ek_trainer_open(ek_trainer **out, const ek_trainer_need *need, ek_err *err);
void ek_trainer_close(ek_trainer *t); /* NULL is fine */

enum { EK_FIT_RECORDS = 32 };

/* Set the constants of a fresh trainer: standardisation of inputs, mass of heads; from the first
 * EK_FIT_RECORDS at most, so that records made on demand are not all made twice. */
ek_code ek_trainer_fit(ek_trainer *t, ek_err *err);
/* Of several that share their records, each of which is asked for once; with a progress bar unless
 * quiet.  EK_ESTOPPED if the user asks to stop. */
ek_code ek_trainer_fit_all(ek_trainer *const *t, int n, int quiet, ek_err *err);

ek_code ek_trainer_step(ek_trainer *t, ek_train_stats *out, ek_err *err);
/* Loss over the records held out; parameters stay. */
ek_code ek_trainer_valid(ek_trainer *t, ek_train_stats *out, ek_err *err);

/* Parameters, moments, step and smoothed loss, in one safetensors file that appears whole. identity
 * names the run (its settings' hash); loading another's is EK_EASKED, a damaged one EK_EINPUT,
 * after which the trainer can only be closed. */
ek_code ek_trainer_save(const ek_trainer *t, const char *path, const char *identity, ek_err *err);
ek_code ek_trainer_load(ek_trainer *t, const char *path, const char *identity, ek_err *err);

typedef struct ek_trainer_memory { /* bytes a step needs, as of the largest so far */
    int64_t params;                /* weights, gradient, moments */
    int64_t activations;           /* of all threads */
    int64_t records;               /* of a batch; those of a trace are its own memory */
} ek_trainer_memory;
ek_trainer_memory ek_trainer_bytes(const ek_trainer *t);

/* EK_EASKED if record i does not hold what scorer and loss read. */
ek_code ek_trainer_check(const ek_trainer *t, int64_t i, const ek_example_head *head, ek_err *err);

/* Slots of a head that the network reads at cut c of a record, or for all its cuts at once (-1). */
void ek_trainer_slots(const ek_trainer *t, const ek_example *r, int layer, int h, int c,
                      int32_t *first, int32_t *n);

/* Which record is element b of step `step` (counted from 1). */
int64_t ek_trainer_pick(ek_trainer *t, int64_t step, int b);

#ifdef __cplusplus
}
#endif
#endif
