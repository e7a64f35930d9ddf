/* train/loss.h - what a scorer is trained to do; one table.
 *
 * A loss sees one head of one record at a time: the entries, the mass of attention each of them
 * really received later, and what the scorer says of them.  An optimiser step shows all its records
 * of a head twice: `count` (targets only), then `run`, which may use what was counted. */
#ifndef EK_TRAIN_LOSS_H
#define EK_TRAIN_LOSS_H

#include "core/config.h"
#include "core/real.h"
#include "train/rank.h"

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum ek_loss_kind {
    EK_LOSS_PAIR,
    EK_LOSS_REGRESS,
    EK_LOSS_HINGE,
    EK_LOSS_SURVIVAL,
    EK_LOSS_LISTWISE,
    EK_LOSS_BCE,
    EK_LOSS_POISSON,
    EK_N_LOSSES
} ek_loss_kind;

typedef struct ek_loss_set {
    int kind;    /* ek_loss_kind */
    int compare; /* pair, hinge: 0 static priorities, 1 raw scores */
    int margin;  /* pair: 0 sigma, 1 centred (2 sigma - 1), 2 none */
    bool balance;
    double margin_min, margin_tau, tau; /* w_min, tau_w, tau */
    double hinge;                       /* margin of hinge */
    double smooth;                      /* regress: weight of neighbouring differences */
    int64_t samples;                    /* positions sampled per sequence */
    int64_t members;                    /* bce: eligible entries looked at per position */
} ek_loss_set;
extern const ek_loss_set ek_loss_defaults;
extern const ek_field ek_loss_fields[];

typedef struct ek_loss_item {
    int n;                   /* entries */
    const int32_t *pos;      /* (n) ascending */
    const float *mass;       /* (n) future mass M >= 0 */
    const float *log_weight; /* (n) of sampled entries: log of how many each stands for; NULL: 0 */
    double eps;              /* the log target is log(eps + mass) */
    /* whole sequences: the entries are the tokens sinks .. n_seq - recent - 1 */
    int n_seq, sinks, recent, keep;
    const int32_t *at; /* (n_at) sampled query positions */
    int n_at;
    uint64_t seed, stream; /* of this record in this step; numbers 0 .. samples-1 chose `at` */
    double log_gamma;      /* of the head now; a constant on the target's side */
    double log_mass;       /* of the head: its mean mass; a constant */
    ek_rank *rank;         /* filled by count, read by run; NULL unless the loss ranks */
    float *scratch;        /* (n_seq) or (n), whichever is more */
    /* the scorer's side, for run */
    const ek_real *r, *p; /* (n) raw score; priority, of whole sequences at n_seq */
    ek_real *dr, *dp;     /* (n) gradients, written whole */
    ek_real threshold;    /* b_h of the head, if the loss has one; else unused */
    ek_real *d_threshold; /* added to; NULL: not asked for */
} ek_loss_item;

typedef struct ek_loss_sum { /* of one head over the records of a step */
    double weight;           /* samples or records counted: the loss is the mean over them */
    double n_yes;            /* counted: newborns that stay */
    double loss;             /* added up by run, not yet divided by weight */
} ek_loss_sum;

typedef struct ek_loss {
    const char *name, *brief;
    int whole;     /* 1: needs whole sequences, static priorities and so an age of none or exp */
    int threshold; /* 1: one number per head is learned beside the scorer, and not exported */
    int absolute;  /* 1: what is learned is mass, comparable between heads and texts */
    void (*count)(const ek_loss_set *set, ek_loss_item *x, ek_loss_sum *sum);
    /* Gradients are of sum->loss / sum->weight. */
    void (*run)(const ek_loss_set *set, const ek_loss_item *x, ek_loss_sum *sum);
} ek_loss;

extern const ek_loss ek_losses[EK_N_LOSSES]; /* by ek_loss_kind */

/* The two balance weights of a share rho of y = +1, divided by their mean. */
void ek_loss_balance(double rho, double *yes, double *no);
/* Of a decision: Delta >= 0 between newborn and partner in the target. */
double ek_loss_margin(const ek_loss_set *set, double delta);

/* Sampled positions of a sequence: half uniform, half denser towards its end, of
 * [sinks + recent + keep, n_seq - 64]; at (n).  0 if the sequence has no such position. */
int ek_loss_sample(int32_t *at, int n, int n_seq, int sinks, int recent, int keep, uint64_t seed,
                   uint64_t stream);

#ifdef __cplusplus
}
#endif
#endif
