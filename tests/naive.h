/* tests/naive.h - every operation in double, from the formulas of core/ops.h.
 *
 * Nothing here was written by looking at a kernel, and nothing is fast.  Inputs are what the
 * kernels get; where storage is bf16, the operand that meets it is rounded first ("bf16 meaning"),
 * so that the difference to a kernel is summation and exp alone.  `terms`, where a function has it,
 * receives the sum of the absolute terms: the scale of the rounding error that a sum may have. */
#ifndef EK_TESTS_NAIVE_H
#define EK_TESTS_NAIVE_H

#include "core/ops.h"

/* x as an operand that meets storage of a type: rounded to bf16, or as it is. */
double ek_naive_meet(float x, ek_dtype type);
/* Number i of stored vectors. */
double ek_naive_item(const void *x, ek_dtype type, size_t i);

/* out (m, n) = x (m, k) times W^T, W (n, k) row-major fp32; type: the storage W was packed to. */
void ek_naive_matmul(double *out, double *terms, const float *x, size_t ldx, const float *w,
                     ek_dtype type, int m, int n, int k);
/* out (m, n) = op(a) op(b), as ek_ops.gemm. */
void ek_naive_gemm(double *out, double *terms, const float *a, size_t lda, int ta, const float *b,
                   size_t ldb, int tb, int m, int n, int k);
void ek_naive_rms_norm(double *out, const float *x, const float *w, int d, double eps);
void ek_naive_rope(double *out, const float *x, int head_dim, int32_t pos, const double *inv_freq);
double ek_naive_silu(double x);
double ek_naive_silu_back(double x, double dy);

/* One query of query head x (0 .. n_heads * group - 1) over the first n slots of its kv head.
 * out (head_dim); prob (n) or NULL; returns the log-sum-exp, -inf when n <= 0. */
double ek_naive_attend(double *out, double *prob, const ek_view *in, const float *q, int x, int n,
                       double scale);
/* One query of query head x over entries whose values a map rebuilds, all of them made: out
 * (head_dim) holds what attention has found elsewhere, of log-sum-exp lse, and is updated; terms
 * (head_dim) or NULL as above.  Returns the new log-sum-exp. */
double ek_naive_mapped(double *out, double *terms, const ek_mapped_row *row, const float *q, int x,
                       double scale, const double *inv_freq, double lse);
/* What colsum adds to sum[set][e][g]. */
double ek_naive_colsum(const ek_colsum *c, int set, int h, int e, int g, double scale);
void ek_naive_kl(ek_kl *out, const float *base, const float *x, int n);
double ek_naive_key_norm(const ek_view *in, int e);
double ek_naive_key_diff(const ek_view *in, int h, int e);

#endif
