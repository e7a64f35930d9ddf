/* core/cpu/panel.h - the micro-kernel under matmul, attention and column sums: a few rows times one
 * packed panel of 32 columns.
 *
 * A panel is [k/2][32][2] in bf16 and [k][32] in fp32, 64-byte aligned.  Each number of the result
 * is one chain of additions over k in ascending order, whatever the number of rows. */
#ifndef EK_CORE_CPU_PANEL_H
#define EK_CORE_CPU_PANEL_H

#include "core/cpu/cpu.h"

/* c (rows, 32), row stride ldc, from a (rows, k), row stride lda in elements:
 *     keep NULL: c[i] = a[i] . b        else: c[i] = c[i] * keep[i] + a[i] . b
 * k is even where b is bf16. */
typedef void ek_panel_fn(int k, const void *a, size_t lda, const void *b, float *c, size_t ldc,
                         const float *keep, int rows);

typedef struct ek_panel_kit {
    ek_panel_fn *f32;  /* a fp32, b fp32 */
    ek_panel_fn *wide; /* a fp32, b bf16, widened in registers; for levels without bf16 dots */
    ek_panel_fn *bf16; /* a bf16, b bf16; NULL where the level has no such instruction */
    /* [1][..]: like f32, but a is stored (k, rows); [..][1]: columns 16 .. 31 need not be written.
     */
    ek_panel_fn *gemm[2][2];
    /* A bf16 panel of k inputs as an fp32 one, where that pays before many rows; NULL: it does not.
     */
    void (*unpack)(float *to, const ek_bf16 *panel, int k);
    void (*to_bf16)(ek_bf16 *to, const float *x, int n);
    void (*round)(float *to, const float *x, int n); /* to bf16 and back: the numbers it keeps */
} ek_panel_kit;

const ek_panel_kit *ek_panel_kit_of(ek_isa isa);

extern const ek_panel_kit ek_panel_avx2, ek_panel_avx512, ek_panel_avx512bf16;
void ek_to_bf16_avx2(ek_bf16 *to, const float *x, int n);
void ek_round_avx2(float *to, const float *x, int n);

#endif
