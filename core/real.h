/* core/real.h - the arithmetic type of learned scorers and losses.
 *
 * float in the program.  tests/test_gradient.c compiles the very same sources with EK_REAL=double,
 * because a gradient can be checked to 1e-6 only in double; it then supplies the functions
 * below itself, in double and written plainly. */
#ifndef EK_CORE_REAL_H
#define EK_CORE_REAL_H

#include "core/device.h"

#ifdef EK_REAL
typedef EK_REAL ek_real;

void ek_real_gemm(ek_device *dev, ek_real *c, size_t ldc, const ek_real *a, size_t lda, int ta,
                  const ek_real *b, size_t ldb, int tb, int m, int n, int k, ek_into into);
void ek_real_silu(ek_device *dev, ek_real *y, const ek_real *x, size_t n);
void ek_real_silu_back(ek_device *dev, ek_real *dx, const ek_real *x, const ek_real *dy, size_t n);
double ek_real_exp_sum(ek_device *dev, ek_real *y, const ek_real *x, ek_real shift, size_t n);
#else
typedef float ek_real;

static inline void ek_real_gemm(ek_device *dev, ek_real *c, size_t ldc, const ek_real *a,
                                size_t lda, int ta, const ek_real *b, size_t ldb, int tb, int m,
                                int n, int k, ek_into into)
{
    dev->ops.gemm(dev, c, ldc, a, lda, ta, b, ldb, tb, m, n, k, into);
}

static inline void ek_real_silu(ek_device *dev, ek_real *y, const ek_real *x, size_t n)
{
    dev->ops.silu(y, x, n);
}

static inline void ek_real_silu_back(ek_device *dev, ek_real *dx, const ek_real *x,
                                     const ek_real *dy, size_t n)
{
    dev->ops.silu_back(dx, x, dy, n);
}

static inline double ek_real_exp_sum(ek_device *dev, ek_real *y, const ek_real *x, ek_real shift,
                                     size_t n)
{
    return dev->ops.exp_sum(y, x, shift, n);
}
#endif
#endif
