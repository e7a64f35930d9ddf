/* scorers/scorer.h - give each entry a number; higher means keep.
 *
 * A scorer never moves data and never learns the budget.  It is const in use: what it remembers of
 * a sequence lives in the cache (a lane's carry), arrives through the view, and goes when the
 * sequence goes.  Training and inference call the same functions on the same view. */
#ifndef EK_SCORERS_SCORER_H
#define EK_SCORERS_SCORER_H

#include "core/device.h"
#include "core/real.h"
#include "core/view.h"

#include <stdbool.h>

typedef struct ek_scorer_class ek_scorer_class;

/* How a learned score depends on age.  age = next_pos - pos >= 1. */
typedef enum ek_age {
    EK_AGE_NONE,  /* not at all */
    EK_AGE_EXP,   /* + age log gamma_h: static priorities, nested in time */
    EK_AGE_POWER, /* - beta_h log age, beta_h = softplus(b_h) */
    EK_AGE_INPUT  /* log age is one more input of the network, beside a -beta_h log age term */
} ek_age;
extern const char *const ek_age_names[]; /* "none" "exp" "power" "input", NULL */

/* Settings of all scorers; each reads what concerns it.  Stored with weights, set by YAML. */
typedef struct ek_scorer_set {
    int64_t seed;   /* random */
    int64_t hidden; /* mlp: width of the hidden layer; 0: nearest to the recurrent scorer's size */
    int age;        /* ek_age */
    bool rms;       /* divide k and v each by its root mean square before the network */
    int64_t sinks, recent; /* the protection it was trained for */
    int64_t delay; /* recurrent: entries of the future its memory has seen when it is read */
    bool norm;     /* recurrent: divide what was read by its root mean square */
    bool skip;     /* recurrent: add a linear score of the entry itself */
    bool absolute; /* exp of (priority + log_mass) is the mass itself, not a share of the head's */
    int carried;   /* ek_carried: columns of attention among the inputs (scorers/carried.h) */
} ek_scorer_set;

typedef struct ek_scorer {
    const ek_scorer_class *cls;
    ek_device *dev; /* borrowed */
    ek_dims dims;
    ek_scorer_set set;
    const ek_real
        *params; /* flat, as the learner describes; lent by trainer or weights; else NULL */
} ek_scorer;

/* One tensor of the flat parameter buffer: (n_layers, n_heads, rows, cols), row-major, one after
 * the other in the order described. */
typedef struct ek_param {
    const char *name; /* "mlp.hidden.weight" */
    int rows, cols;
    int trained; /* 0: a constant (standardisation, log mass of a head) */
    int decay;   /* 1: weight decay applies (matrices) */
} ek_param;

enum { EK_MAX_PARAMS = 16 };

/* The trainable half.  Optimiser, initialiser, gradient check and weights file see only the flat
 * buffer that `describe` lays out, so none of them has a line about any particular scorer.
 *
 * All read the inputs of scorers/inputs.h, whose tensors come first, and end with those of
 * scorers/age.h: how the score falls with age, and the mass by which heads compare. */
typedef struct ek_learner {
    int (*describe)(const ek_scorer *s, ek_param *out); /* returns the number, <= EK_MAX_PARAMS */
    void (*init)(const ek_scorer *s, ek_real *params, uint64_t seed);
    /* Numbers of activations that forward keeps for one head of n entries. */
    size_t (*scratch)(const ek_scorer *s, int n);
    /* One kv head h of the view: raw score r (n[h]), without exp or power age. */
    void (*forward)(const ek_scorer *s, const ek_view *in, int h, ek_real *act, ek_real *r);
    /* Adds to dparams (the whole flat buffer; only this layer's and head's part is touched).
     * Overwrites act. */
    void (*backward)(const ek_scorer *s, const ek_view *in, int h, ek_real *act, const ek_real *dr,
                     ek_real *dparams);
    /* Scorers that remember what they have read; all three NULL: the score of an entry depends on
     * the entry alone.  A memory takes in every token once, in order, and survives evictions.
     * n_state: numbers of one (layer, head); all zero is the memory of nothing.
     * advance: slots first_row .. first_row + rows - 1 of head h are the newest, not taken in yet.
     * Takes them into `state` and, for each of them, writes r[slot] of the entry whose position is
     * set.delay earlier, if the head still holds it (r: n[h] numbers, indexed by slot; others are
     * left alone).  work: advance_work(s, rows) numbers, 64-byte aligned.  Forward, which reads a
     * whole sequence from an empty memory, and advance, in calls of any size, agree to rounding;
     * forward writes r = 0 where the sequence ends before the delay does. */
    size_t (*n_state)(const ek_scorer *s);
    size_t (*advance_work)(const ek_scorer *s, int rows);
    void (*advance)(const ek_scorer *s, const ek_view *in, int h, int first_row, int rows,
                    ek_real *state, ek_real *work, ek_real *r);
} ek_learner;

/* 1 if r of an entry does not change with time: then one forward serves every cut of a sequence,
 * and a running cache carries r instead of asking again. */
static inline int ek_scorer_is_static(const ek_scorer_set *set)
{
    return set->age != EK_AGE_INPUT && set->carried == 0;
}

typedef enum ek_source {
    EK_FROM_ENTRIES,   /* score() reads the view */
    EK_FROM_ATTENTION, /* carried column sums of attention; measure.c */
    EK_FROM_FUTURE     /* the true future attention, put into the carry by the evaluator */
} ek_source;

struct ek_scorer_class {
    const char *name, *brief;
    ek_source source;
    const ek_learner *learner; /* NULL unless learned */
    /* out (entries), indexed like the view's columns; only entries that exist are written.
     * Learned: the raw score r of forward, whatever its age form; measure.c adds ek_age_add. */
    ek_code (*score)(const ek_scorer *s, const ek_view *in, float *out, ek_err *err);
};

/* Total floats of the parameter buffer, and where tensor i of (layer, head) begins. */
size_t ek_params_size(const ek_scorer *s);
size_t ek_params_at(const ek_scorer *s, int tensor, int layer, int h);

/* Signals and learned scorers. */
extern const ek_scorer_class ek_scorer_full, ek_scorer_recency, ek_scorer_random, ek_scorer_knorm,
    ek_scorer_keydiff, ek_scorer_attention, ek_scorer_oracle, ek_scorer_mlp, ek_scorer_linear,
    ek_scorer_recurrent;
/* The learned ones, NULL-terminated: gradient checks, training and weights go over this table. */
extern const ek_scorer_class *const ek_learned[];
const ek_scorer_class *ek_learned_find(const char *name); /* NULL if unknown */
/* EK_EASKED with a sentence if a learned scorer's settings do not go together, or not with its
 * dimensions.  Asked once, where the settings come from; its functions then take them as they are.
 */
ek_code ek_scorer_check(const ek_scorer *s, ek_err *err);

#endif
