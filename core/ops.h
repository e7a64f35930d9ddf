/* core/ops.h - the kernel manual: every kernel once, with formula, shapes and contract.
 *
 * A device carries one table, ek_ops.  On the CPU it is filled with scalar forms and overwritten as
 * far as the processor and EVICTKIT_ISA allow.  Forms differ in speed and rounding, never in
 * meaning; an empty entry fails when the device opens, never at a call.
 *
 * Rules for all:
 *  - Sums are fp32 (fp64 where it says so) in an order that depends on the shapes of one row, one
 *    entry or one head alone: not on the number of rows, on other rows or on the thread count.  So
 *    a row has the same bits alone and in company.
 *  - Work is split over OpenMP threads inside the op.  Ops never nest.
 *  - Scratch comes from the device's workspace (core/device.h), which grows at most once per size:
 *    nothing is allocated in a steady token loop.
 *  - Ops cannot fail: shapes are the caller's promise (assert), values are data.  NaN in, NaN out.
 *  - "bf16 meaning": where weights or cached vectors are bf16, the fp32 operand that meets them
 *    (activation, query, probability) is rounded to bf16 first, in every form; products are exact
 *    and accumulate in fp32.  With EK_F32 storage everything is fp32. */
#ifndef EK_CORE_OPS_H
#define EK_CORE_OPS_H

#include "core/view.h"

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

#define EK_ABI 2

typedef struct ek_device ek_device;

/* A matrix of weights, out = x W^T, packed in panels of 32 outputs, each [k/2][32][2] for bf16 and
 * [k][32] for fp32; n and k that do not divide are padded with zeros.  64-byte aligned.
 * Made by ek_weight_open (core/device.h). */
typedef struct ek_weight {
    ek_dtype type;
    int n, k;     /* outputs (rows of W), inputs */
    void *data;   /* owned */
    size_t bytes; /* of data */
} ek_weight;

typedef enum ek_into { EK_SET, EK_ADD } ek_into; /* out = ... or out += ... */

/* Attention of new queries of several sequences over one layer of their caches.  The keys and
 * values of the new tokens are already appended: they are the last n_new entries of every head.
 * Query t (0 .. n_new-1) of a sequence sees slots 0 .. n[h] - n_new + t of kv head h. */
typedef struct ek_attn_row {
    ek_view view;   /* one layer of one sequence */
    int n_new;      /* its queries in this call, >= 1 */
    const float *q; /* (n_new, n_heads * group, head_dim) after rotation, row stride ldq */
    float *out;     /* (n_new, n_heads * group, head_dim), row stride ldo */
    float *lse;     /* (n_new, n_heads * group) natural log-sum-exp of the scaled logits */
    float *prob;    /* NULL, or (entries, group) indexed like the view's columns: probabilities
                       of the LAST query, exp(z - lse), one per query head of the entry's head */
} ek_attn_row;

/* Entries that keep their key and have lost their value: a map fixed once per model rebuilds the
 * value from the key before rotation, v^ = W x + b with x = R_pos^-1 k.  All of them are older than
 * the queries, so every query sees them all.  One softmax runs over them and over what attn has
 * already met; with z_j the scaled logits here,
 *     out = (e^lse out + W sum_j e^z_j x_j + b sum_j e^z_j) / (e^lse + sum_j e^z_j)
 *     lse = ln (e^lse + sum_j e^z_j)
 * x is summed per query head and W applied to the sum: values are never made.
 * joint 0: x is the head's own key (head_dim), w (n_heads, head_dim, head_dim).
 * joint 1: the heads hold the same positions slot by slot, x is all heads' keys of the position one
 *          after the other, w (n_heads, head_dim, n_heads * head_dim). */
typedef struct ek_mapped_row {
    ek_view view;   /* one layer of one sequence: keys and positions alone; v and bias are NULL */
    int n_new;      /* its queries in this call, >= 1 */
    int joint;      /* as above */
    const float *w; /* row-major, this layer's: v^ of head h = w[h] x + b[h] */
    const float *b; /* (n_heads, head_dim) */
    const float *q; /* (n_new, n_heads * group, head_dim) after rotation, row stride ldq */
    float *out;     /* as attn has left it, row stride ldo; updated */
    float *lse;     /* (n_new, n_heads * group) likewise */
} ek_mapped_row;

/* Column sums of attention: how much attention some queries pay to each key of one layer of one
 * sequence, without ever holding a T x T map.  Everything after attention is built on this one
 * kernel: future-attention targets, H2O, SnapKV, TOVA, EMA, oracles.
 *   p_g(i,j)       = exp(scale * q_i,g . k_j - lse_g(i))       (+ the entry's bias inside exp)
 *   sum[s][e][g]  += sum over queries i in [first_i[e], last_i[e]] of weight[s][i] * p_g(i, e)
 * Query i (0 .. n_q-1) stands at position q_pos + i.  It may look at an entry e only if
 *     pos[e] + delay <= q_pos + i    and, with horizon >= 0,
 *     q_pos + i <= pos[e] + delay + horizon
 * (delay 0 is plain causal attention; delay w starts when the key leaves a window of w).
 * Runs of queries whose weights are all 0 in every set are skipped. */
typedef struct ek_colsum {
    ek_view view;
    int n_q;        /* queries */
    int64_t q_pos;  /* position of query 0 */
    const float *q; /* (n_q, n_heads * group, head_dim), row stride ldq */
    size_t ldq;
    const float *lse;    /* (n_q, n_heads * group) */
    int n_sets;          /* 1 .. 4 weightings computed in one pass */
    const float *weight; /* (n_sets, n_q); NULL: all 1, and n_sets = 1 */
    int32_t delay;
    int32_t horizon;   /* -1: no end */
    float *const *sum; /* (n_sets) -> (entries, group), added to */
} ek_colsum;

/* What fidelity metrics need of two rows of logits. */
typedef struct ek_kl {
    double lse_base, lse; /* log-sum-exp of each */
    double kl;            /* sum_v p_base (ln p_base - ln p) */
    int top_base, top;    /* argmax, lowest index on ties */
} ek_kl;

typedef struct ek_ops {
    uint32_t abi;
    const char *name; /* "cpu avx512bf16" */

    /* Rows [first, first + n_rows) of W from fp32 row-major (n_rows, k) into the packed form. */
    void (*pack)(ek_device *dev, ek_weight *w, const float *rows, int first, int n_rows);
    /* out (m, k) fp32 = rows idx[0..m-1] of W, as stored: the embedding lookup of a packed matrix.
     */
    void (*gather)(ek_device *dev, float *out, const ek_weight *w, const int32_t *idx, int m);
    /* out (m, n), row stride ldo  (+)=  x (m, k), row stride ldx, times W^T.  bf16 meaning. */
    void (*matmul)(ek_device *dev, float *out, size_t ldo, const float *x, size_t ldx,
                   const ek_weight *w, int m, ek_into into);
    /* General fp32 product for training: c (m, n) (+)= op(a) op(b); ta: a is stored (k, m); tb: b
     * is stored (n, k).  Runs on the calling thread only, so that heads can be spread over threads.
     */
    void (*gemm)(ek_device *dev, float *c, size_t ldc, const float *a, size_t lda, int ta,
                 const float *b, size_t ldb, int tb, int m, int n, int k, ek_into into);

    /* out[i] = x[i] / sqrt(mean x[i]^2 + eps) * w, rows i < m of d numbers, dense. */
    void (*rms_norm)(ek_device *dev, float *out, const float *x, const float *w, int m, int d,
                     float eps);
    /* Rotate pairs (i, i + head_dim/2) in place: x (m, heads, head_dim), row stride ldx, row r by
     * position pos[r]; inv_freq (head_dim/2).  Angles are taken in double. */
    void (*rope)(ek_device *dev, float *x, size_t ldx, int m, int heads, int head_dim,
                 const int32_t *pos, const double *inv_freq);
    /* The rotation taken back: (a cos + b sin, b cos - a sin). */
    void (*unrope)(ek_device *dev, float *x, size_t ldx, int m, int heads, int head_dim,
                   const int32_t *pos, const double *inv_freq);
    /* out (m, ff) = silu(gate) * up, from x (m, 2 ff): gate first. */
    void (*silu_mul)(ek_device *dev, float *out, const float *x, int m, int ff);
    /* Store n fp32 vectors of d numbers (row stride ldx) as dtype, dense. */
    void (*store)(ek_device *dev, void *out, ek_dtype type, const float *x, size_t ldx, int n,
                  int d);
    /* The reverse. */
    void (*load)(ek_device *dev, float *out, const void *x, ek_dtype type, size_t n);

    /* Attention of ragged rows; see above.  ldq, ldo: floats from one token to the next.  One call
     * may mix rows of one new token (decode) and of many (prefill).  A head without entries: out 0,
     * lse -inf.  The bits of a row depend on its own view and n_new alone. */
    void (*attn)(ek_device *dev, const ek_attn_row *rows, int n_rows, float scale, size_t ldq,
                 size_t ldo);
    /* What entries without values add to it; see above.  Of bf16 keys the query alone has bf16
     * meaning: x, probabilities, W and b are fp32.  inv_freq as in rope.  A head without entries is
     * left as it is, to the bit.  The bits of a row depend on its own view and n_new alone. */
    void (*attn_mapped)(ek_device *dev, const ek_mapped_row *rows, int n_rows, float scale,
                        size_t ldq, size_t ldo, const double *inv_freq);
    void (*colsum)(ek_device *dev, const ek_colsum *c, float scale);

    /* Rows of logits (m, n_vocab) against base rows (m, n_vocab); sums in fp64. */
    void (*kl)(ek_device *dev, ek_kl *out, const float *const *base, const float *const *logits,
               int m, int n_vocab);

    /* out[e] = ||k_e||, over the view's entries (indexed like its columns).  */
    void (*key_norm)(ek_device *dev, float *out, const ek_view *in);
    /* out[e] = -cos(k_e, mean over the head's entries of k/||k||); a zero vector gives cosine 0. */
    void (*key_diff)(ek_device *dev, float *out, const ek_view *in);

    /* Elementwise on n numbers, on the calling thread: y = silu(x); dx = dy * silu'(x). */
    void (*silu)(float *y, const float *x, size_t n);
    void (*silu_back)(float *dx, const float *x, const float *dy, size_t n);
    /* y[i] = exp(x[i] - shift), returns the sum in double; calling thread only.  exp(-inf) = 0. */
    double (*exp_sum)(float *y, const float *x, float shift, size_t n);
} ek_ops;

#ifdef __cplusplus
}
#endif
#endif
