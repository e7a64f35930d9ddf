/* core/cpu/panel.c - the micro-kernels: plain forms, and the choice among all. */
#include "core/cpu/panel.h"

#include "core/bf16.h"

#include <string.h>

static void merge_row(float *c, const float *acc, const float *keep, int i)
{
    for (int j = 0; j < EK_PANEL; j++)
        c[j] = keep ? c[j] * keep[i] + acc[j] : acc[j];
}

static void panel_f32_scalar(int k, const void *a, size_t lda, const void *b, float *c, size_t ldc,
                             const float *keep, int rows)
{
    for (int i = 0; i < rows; i++) {
        const float *x = (const float *)a + (size_t)i * lda;
        const float *w = b;
        float acc[EK_PANEL] = {0};

        for (int n = 0; n < k; n++, w += EK_PANEL)
            for (int j = 0; j < EK_PANEL; j++)
                acc[j] += x[n] * w[j];
        merge_row(c + (size_t)i * ldc, acc, keep, i);
    }
}

static void panel_f32t_scalar(int k, const void *a, size_t lda, const void *b, float *c, size_t ldc,
                              const float *keep, int rows)
{
    for (int i = 0; i < rows; i++) {
        const float *x = (const float *)a + i;
        const float *w = b;
        float acc[EK_PANEL] = {0};

        for (int n = 0; n < k; n++, x += lda, w += EK_PANEL)
            for (int j = 0; j < EK_PANEL; j++)
                acc[j] += x[0] * w[j];
        merge_row(c + (size_t)i * ldc, acc, keep, i);
    }
}

static void panel_wide_scalar(int k, const void *a, size_t lda, const void *b, float *c, size_t ldc,
                              const float *keep, int rows)
{
    for (int i = 0; i < rows; i++) {
        const float *x = (const float *)a + (size_t)i * lda;
        const ek_bf16 *w = b;
        float acc[EK_PANEL] = {0};

        for (int n = 0; n < k; n += 2, w += 2 * EK_PANEL)
            for (int j = 0; j < EK_PANEL; j++) {
                acc[j] += x[n] * ek_from_bf16(w[2 * j]);
                acc[j] += x[n + 1] * ek_from_bf16(w[2 * j + 1]);
            }
        merge_row(c + (size_t)i * ldc, acc, keep, i);
    }
}

static void to_bf16_scalar(ek_bf16 *to, const float *x, int n)
{
    for (int i = 0; i < n; i++)
        to[i] = ek_to_bf16(x[i]);
}

static void round_scalar(float *to, const float *x, int n)
{
    for (int i = 0; i < n; i++)
        to[i] = ek_from_bf16(ek_to_bf16(x[i]));
}

static const ek_panel_kit kit_scalar = {
    .f32 = panel_f32_scalar,
    .gemm = {{panel_f32_scalar, panel_f32_scalar}, {panel_f32t_scalar, panel_f32t_scalar}},
    .wide = panel_wide_scalar,
    .to_bf16 = to_bf16_scalar,
    .round = round_scalar,
};
const ek_panel_kit *ek_panel_kit_of(ek_isa isa)
{
    switch (isa) {
    case EK_ISA_SCALAR:
        return &kit_scalar;
    case EK_ISA_AVX2:
        return &ek_panel_avx2;
    case EK_ISA_AVX512:
    case EK_ISA_AVX512VNNI:
        return &ek_panel_avx512;
    case EK_ISA_AVX512BF16:
        break;
    }
    return &ek_panel_avx512bf16;
}
