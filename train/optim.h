/* train/optim.h - AdamW over one flat buffer, global clipping, warm-up and cosine.
 *
 * Sums run in double in an order that depends on the buffer's size alone, so a step has the same
 * bits on any number of threads. */
#ifndef EK_TRAIN_OPTIM_H
#define EK_TRAIN_OPTIM_H

#include "core/config.h"
#include "scorers/scorer.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ek_optim_set {
    double lr, lr_end; /* at the end of the warm-up; at the last step */
    int64_t warmup;    /* steps of linear rise */
    double beta1, beta2, eps;
    double weight_decay; /* on tensors described with `decay` */
    double clip;         /* largest global gradient norm; 0: no clipping */
} ek_optim_set;
extern const ek_optim_set ek_optim_defaults;
extern const ek_field ek_optim_fields[];

typedef struct ek_optim {
    ek_optim_set set;
    const ek_scorer *scorer; /* borrowed: describes the buffer */
    size_t n,
        extra;    /* numbers in all; how many of them, at the end, the scorer does not describe */
    float *m, *v; /* (n) moments; in one block with m first */
} ek_optim;

/* extra: trained numbers behind the scorer's own, without decay (a loss's thresholds). */
ek_code ek_optim_open(ek_optim *o, const ek_scorer *s, size_t extra, const ek_optim_set *set,
                      ek_err *err);
void ek_optim_close(ek_optim *o);

/* Learning rate of step 1 .. steps. */
double ek_optim_lr(const ek_optim_set *set, int64_t step, int64_t steps);
/* One step (counted from 1) of params (n) along grad (n); *norm, if not NULL, before clipping.
 * EK_ENAN naming the tensor if the norm is not finite; nothing is changed then. */
ek_code ek_optim_step(ek_optim *o, float *params, const float *grad, int64_t step, int64_t steps,
                      double *norm, ek_err *err);

#ifdef __cplusplus
}
#endif
#endif
