/* core/cpu/store.c - between fp32 and the storage types. */
#include "core/cpu/cpu.h"

#include "core/bf16.h"

#include <string.h>

static void store_scalar(ek_device *dev, void *out, ek_dtype type, const float *x, size_t ldx,
                         int n, int d)
{
    (void)dev;
#pragma omp parallel for schedule(static) if ((int64_t)n * d > 65536)
    for (int i = 0; i < n; i++) {
        const float *from = x + (size_t)i * ldx;

        if (type == EK_F32) {
            memcpy((float *)out + (size_t)i * (size_t)d, from, (size_t)d * sizeof(float));
        } else {
            ek_bf16 *to = (ek_bf16 *)out + (size_t)i * (size_t)d;

            for (int j = 0; j < d; j++)
                to[j] = ek_to_bf16(from[j]);
        }
    }
}

static void load_scalar(ek_device *dev, float *out, const void *x, ek_dtype type, size_t n)
{
    (void)dev;
    if (type == EK_F32) {
        memcpy(out, x, n * sizeof(float));
        return;
    }
#pragma omp parallel for schedule(static) if (n > 65536)
    for (size_t i = 0; i < n; i++)
        out[i] = ek_from_bf16(((const ek_bf16 *)x)[i]);
}

void ek_cpu_store_pick(ek_ops *ops, ek_isa isa)
{
    (void)isa;
    ops->store = store_scalar;
    ops->load = load_scalar;
}
