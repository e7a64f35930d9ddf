/* core/cpu/gemm.c - the general fp32 product for training, on the calling thread. */
#include "core/cpu/cpu.h"

static void gemm_scalar(ek_device *dev, float *c, size_t ldc, const float *a, size_t lda, int ta,
                        const float *b, size_t ldb, int tb, int m, int n, int k, ek_into into)
{
    const size_t as = ta ? 1 : lda, ak = ta ? lda : 1; /* from row to row, from k to k */

    (void)dev;
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++) {
            const float *x = a + (size_t)i * as;
            const float *y = tb ? b + (size_t)j * ldb : b + j;
            const size_t yk = tb ? 1 : ldb;
            float *o = c + (size_t)i * ldc + (size_t)j;
            float sum = 0.0f;

            for (int l = 0; l < k; l++)
                sum += x[(size_t)l * ak] * y[(size_t)l * yk];
            *o = into == EK_ADD ? *o + sum : sum;
        }
}

void ek_cpu_gemm_pick(ek_ops *ops, ek_isa isa)
{
    (void)isa;
    ops->gemm = gemm_scalar;
}
