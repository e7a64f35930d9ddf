/* train/regress.h - ridge least squares from streamed sums: maps from x to v, many side by side.
 *
 * Of every row (x, v) only sums are kept, in double: the count, x, v, v^2 per output, x x^T and
 * v x^T.  A sum grows row by row in the order in which rows are added, whatever the size of the
 * pieces, the instruction set and the number of threads: the same rows give the same bits.
 *
 *     W = Cov_vx (Cov_xx + lambda tr(Cov_xx) / width I)^-1 by Cholesky,   b = mean_v - W mean_x
 *     R2 = 1 - sum ||v - W x - b||^2 / sum ||v - mean_v||^2
 *
 * Without an intercept the means are taken as 0 in the fit (not in R2), and b is 0. */
#ifndef EK_TRAIN_REGRESS_H
#define EK_TRAIN_REGRESS_H

#include "core/device.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ek_regress {
    int n, width, ld; /* maps; numbers of x and of v; width made up to a multiple of 8 */
    ek_isa isa;
    size_t stride; /* doubles per map */
    double *sums;  /* (n, stride) all there is: store it and it can be gone on with; owned */
} ek_regress;

ek_code ek_regress_open(ek_regress *r, int n, int width, ek_isa isa, ek_err *err);
void ek_regress_close(ek_regress *r);
size_t ek_regress_bytes(int n, int width); /* of the sums of n maps */

/* Add rows to one map: x, v (rows, ld), zeros behind `width`.  Different maps may be added to from
 * different threads at once. */
void ek_regress_add(ek_regress *r, int map, const double *x, const double *v, int rows);
int64_t ek_regress_count(const ek_regress *r, int map);

/* One map: w (width, width) as [output][input], b (width).  Inputs that never vary give W = 0.
 * EK_ENAN: no rows, or the matrix is not positive definite (lambda 0 and dependent inputs). */
ek_code ek_regress_solve(const ek_regress *r, int map, double lambda, int bias, double *w,
                         double *b, ek_err *err);
/* R2 of outputs from .. to - 1 of a map on the rows of r; outputs without variance: 0;
 * NAN: no rows, numbers that are not finite, or no memory. */
double ek_regress_r2(const ek_regress *r, int map, const double *w, const double *b, int from,
                     int to);

enum { EK_REGRESS_LAMBDAS = 4 };
extern const double ek_regress_lambdas[EK_REGRESS_LAMBDAS]; /* descending */
/* Solve on fit with each lambda and take the one with the best R2 on held; ties: the larger. */
ek_code ek_regress_choose(const ek_regress *fit, const ek_regress *held, int map, int bias,
                          double *w, double *b, double *lambda, ek_err *err);

#ifdef __cplusplus
}
#endif
#endif
