/* core/cpu/cpu.h - what the files of the CPU backend share.
 *
 * One file per operation: the scalar form first (plain, portable, the yardstick), the wide forms
 * beside it, and at the end a function that puts the forms a level allows into the table.  A form
 * carries its instruction set as a function attribute, so no wide instruction leaks into common
 * code.  OpenMP regions stand in common code and call forms through pointers or the table. */
#ifndef EK_CORE_CPU_CPU_H
#define EK_CORE_CPU_CPU_H

#include "core/device.h"

#include <stdint.h>

#define EK_AVX2   __attribute__((target("avx2,fma,f16c")))
#define EK_AVX512 __attribute__((target("avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq")))
#define EK_AVX512BF16 \
    __attribute__((target("avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")))
#define EK_INLINE static inline __attribute__((always_inline))

/* gcc keeps an array of accumulators in memory unless its loops are unrolled. */
#if defined(__clang__)
#define EK_UNROLL _Pragma("unroll")
#else
#define EK_UNROLL _Pragma("GCC unroll 16")
#endif

/* Shape of packed matrices: see ek_weight in core/ops.h. */
enum { EK_PANEL = 32 };

static inline int ek_panels(int n)
{
    return (n + EK_PANEL - 1) / EK_PANEL;
}

/* Inputs per panel: a bf16 panel holds pairs. */
static inline int ek_panel_inputs(ek_dtype type, int k)
{
    return type == EK_BF16 ? (k + 1) / 2 * 2 : k;
}

static inline size_t ek_panel_bytes(ek_dtype type, int k)
{
    return (size_t)ek_panel_inputs(type, k) * EK_PANEL * (size_t)ek_dtype_size(type);
}

/* Rounded up to whole cache lines, for carving a workspace. */
static inline size_t ek_lines(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

/* Fill the table for a level; every file adds its forms. */
void ek_cpu_table(ek_ops *ops, ek_isa isa);
int ek_cpu_table_is_full(const ek_ops *ops);

void ek_cpu_matmul_pick(ek_ops *ops, ek_isa isa); /* pack, gather, matmul */
void ek_cpu_gemm_pick(ek_ops *ops, ek_isa isa);
void ek_cpu_norm_pick(ek_ops *ops, ek_isa isa); /* rms_norm */
void ek_cpu_rope_pick(ek_ops *ops, ek_isa isa);
void ek_cpu_store_pick(ek_ops *ops, ek_isa isa); /* store, load */
void ek_cpu_silu_pick(ek_ops *ops, ek_isa isa);  /* silu_mul, silu, silu_back, exp_sum */
void ek_cpu_attn_pick(ek_ops *ops, ek_isa isa);
void ek_cpu_colsum_pick(ek_ops *ops, ek_isa isa);
void ek_cpu_kl_pick(ek_ops *ops, ek_isa isa);
void ek_cpu_key_pick(ek_ops *ops, ek_isa isa); /* key_norm, key_diff */

void ek_cpu_mapped_pick(ek_ops *ops, ek_isa isa); /* attn_mapped */

void ek_cpu_rope_clear(ek_device *dev);

/* Rotation taken back one vector at a time, by any thread, for ops that do it on the way.  The
 * first call looks up (or grows) the device's table for positions up to `last`: one thread. */
typedef struct ek_unrope {
    void (*rotate)(float *x, int heads, int half, const float *cs, float way);
    int half, n_pos;
    const float *cs; /* (n_pos, 2, half) */
    const double *inv_freq;
} ek_unrope;
ek_unrope ek_cpu_unrope(ek_device *dev, int32_t last, int head_dim, const double *inv_freq);
void ek_cpu_unrope_one(const ek_unrope *u, float *x, int32_t pos); /* x (head_dim) in place */

#endif
