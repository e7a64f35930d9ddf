/* train/target.h - how much attention each token receives after it leaves the recent window.
 *
 * Computed layer by layer while the model reads, from queries, keys and their log-sum-exp, by sums
 * over columns: no buffer grows with the square of the length.
 *
 *     m_g[j] = 1/N_j sum over queries i in [j + w, last_j] of p_g(i, j)
 *     last_j = min(S - 1, j + w + horizon)      N_j = last_j - (j + w) + 1
 *     M[j]   = max or mean over g of m_g[j]                 the target is log(eps + M[j])
 *
 * At a cut t only queries t .. t + horizon - 1 count, and only entries j < t - w:
 * then N_j is their number, the same for all entries.
 *
 * Memory: (n_layers, n_heads, entries, group) floats once; max and block twice or three times. */
#ifndef EK_TRAIN_TARGET_H
#define EK_TRAIN_TARGET_H

#include "core/config.h"
#include "core/device.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum ek_reduce { EK_REDUCE_MEAN, EK_REDUCE_SUM, EK_REDUCE_MAX, EK_REDUCE_BLOCK } ek_reduce;
typedef enum ek_normaliser { EK_NORM_DENSE, EK_NORM_SPARSE } ek_normaliser;

typedef struct ek_target_set {
    int reduce;      /* ek_reduce */
    int64_t horizon; /* -1: to the end of the sequence; a cut needs one >= 1 */
    int group;       /* 0 max, 1 mean over the query heads of a kv head */
    int normaliser;  /* dense: lse of the full causal row; sparse: lse over what a policy keeps */
    double eps;
} ek_target_set;
extern const ek_target_set ek_target_defaults;
extern const ek_field ek_target_fields[];

/* What is measured of one sequence. */
typedef struct ek_target_need {
    ek_dims dims;
    ek_target_set set;
    int recent; /* w */
    int n_seq;  /* S */
    int cut;    /* t > 0: at a cut; 0: over the whole sequence */
    int column; /* entries of a view's columns of one layer, unused room included */
} ek_target_need;

typedef struct ek_target {
    ek_target_need need;
    ek_device *dev;     /* borrowed */
    float *sum;         /* (n_layers, column, group) of p; or the greatest logarithm */
    float *more;        /* sparse: sums below that greatest logarithm; block: the running block */
    float *rest;        /* block: best of the blocks with too few queries, if no other has more */
    int32_t *first, *n; /* (n_heads) the narrowed view's */
    double seconds;     /* spent here */
} ek_target;

/* EK_EASKED if the settings do not go together. */
ek_code ek_target_open(ek_target *t, const ek_target_need *need, ek_device *dev, ek_err *err);
void ek_target_close(ek_target *t); /* also of a zeroed one */

/* Queries q_pos .. q_pos + n_q - 1 of one layer, in ascending order over calls.  view holds all
 * entries up to the last of them.  q (n_q, n_heads * group, head_dim), row stride ldq; lse (n_q,
 * n_heads * group). */
void ek_target_add(ek_target *t, const ek_view *view, int64_t q_pos, int n_q, const float *q,
                   size_t ldq, const float *lse);

/* Entries of a head that have a target: tokens 0 .. n - 1; call after the last query. */
int ek_target_count(const ek_target *t);
/* M of the n tokens from slot 0 of one head; view as in the last add. */
void ek_target_mass(const ek_target *t, const ek_view *view, int h, float *mass);

#ifdef __cplusplus
}
#endif
#endif
