/* core/cpu/store.c - between fp32 and the storage types. */
#include "core/cpu/panel.h"

#include "core/bf16.h"

#include <immintrin.h>
#include <string.h>

static void store_rows(ek_device *dev, void *out, ek_dtype type, const float *x, size_t ldx, int n,
                       int d)
{
    const ek_panel_kit *kit = ek_panel_kit_of(dev->isa);

#pragma omp parallel for schedule(static) if ((int64_t)n * d > 65536)
    for (int i = 0; i < n; i++) {
        const float *from = x + (size_t)i * ldx;

        if (type == EK_F32)
            memcpy((float *)out + (size_t)i * (size_t)d, from, (size_t)d * sizeof(float));
        else
            kit->to_bf16((ek_bf16 *)out + (size_t)i * (size_t)d, from, d);
    }
}

static void load_run_scalar(float *out, const ek_bf16 *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        out[i] = ek_from_bf16(x[i]);
}

EK_AVX2 static void load_run_avx2(float *out, const ek_bf16 *x, size_t n)
{
    size_t i = 0;

    for (; i + 8 <= n; i += 8) {
        const __m128i v = _mm_loadu_si128((const __m128i *)(x + i));

        _mm256_storeu_si256((__m256i *)(out + i), _mm256_slli_epi32(_mm256_cvtepu16_epi32(v), 16));
    }
    load_run_scalar(out + i, x + i, n - i);
}

static void load_runs(ek_device *dev, float *out, const void *x, ek_dtype type, size_t n)
{
    const size_t run = 8192;

    if (type == EK_F32) {
        memcpy(out, x, n * sizeof(float));
        return;
    }
#pragma omp parallel for schedule(static) if (n > 65536)
    for (size_t i = 0; i < n; i += run) {
        const size_t left = n - i < run ? n - i : run;

        if (dev->isa >= EK_ISA_AVX2)
            load_run_avx2(out + i, (const ek_bf16 *)x + i, left);
        else
            load_run_scalar(out + i, (const ek_bf16 *)x + i, left);
    }
}

void ek_cpu_store_pick(ek_ops *ops, ek_isa isa)
{
    (void)isa; /* the forms differ in their conversions alone */
    ops->store = store_rows;
    ops->load = load_runs;
}
