/* tests/real_double.c - the products and functions of core/real.h in double, written plainly: for
 * tests that compile the program's sources with EK_REAL=double. */
#include "core/real.h"

#include <math.h>

void ek_real_gemm(ek_device *dev, ek_real *c, size_t ldc, const ek_real *a, size_t lda, int ta,
                  const ek_real *b, size_t ldb, int tb, int m, int n, int k, ek_into into)
{
    (void)dev;
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++) {
            double sum = 0;

            for (int x = 0; x < k; x++)
                sum += a[ta ? (size_t)x * lda + (size_t)i : (size_t)i * lda + (size_t)x] *
                       b[tb ? (size_t)j * ldb + (size_t)x : (size_t)x * ldb + (size_t)j];
            c[(size_t)i * ldc + (size_t)j] =
                into == EK_ADD ? c[(size_t)i * ldc + (size_t)j] + sum : sum;
        }
}

void ek_real_silu(ek_device *dev, ek_real *y, const ek_real *x, size_t n)
{
    (void)dev;
    for (size_t i = 0; i < n; i++)
        y[i] = x[i] / (1 + exp(-x[i]));
}

void ek_real_silu_back(ek_device *dev, ek_real *dx, const ek_real *x, const ek_real *dy, size_t n)
{
    (void)dev;
    for (size_t i = 0; i < n; i++) {
        const double s = 1 / (1 + exp(-x[i]));
        dx[i] = dy[i] * s * (1 + x[i] * (1 - s));
    }
}

double ek_real_exp_sum(ek_device *dev, ek_real *y, const ek_real *x, ek_real shift, size_t n)
{
    double sum = 0;

    (void)dev;
    for (size_t i = 0; i < n; i++)
        sum += y[i] = exp(x[i] - shift);
    return sum;
}
