/* core/cpu/table.c - the table of kernels, filled for one level. */
#include "core/cpu/cpu.h"

static const char *const names[] = {
    [EK_ISA_SCALAR] = "cpu scalar",         [EK_ISA_AVX2] = "cpu avx2",
    [EK_ISA_AVX512] = "cpu avx512",         [EK_ISA_AVX512VNNI] = "cpu avx512vnni",
    [EK_ISA_AVX512BF16] = "cpu avx512bf16",
};

void ek_cpu_table(ek_ops *ops, ek_isa isa)
{
    *ops = (ek_ops){.abi = EK_ABI, .name = names[isa]};
    ek_cpu_matmul_pick(ops, isa);
    ek_cpu_gemm_pick(ops, isa);
    ek_cpu_norm_pick(ops, isa);
    ek_cpu_rope_pick(ops, isa);
    ek_cpu_store_pick(ops, isa);
    ek_cpu_silu_pick(ops, isa);
    ek_cpu_attn_pick(ops, isa);
    ek_cpu_mapped_pick(ops, isa);
    ek_cpu_colsum_pick(ops, isa);
    ek_cpu_kl_pick(ops, isa);
    ek_cpu_key_pick(ops, isa);
}

int ek_cpu_table_is_full(const ek_ops *ops)
{
    return ops->pack && ops->gather && ops->matmul && ops->gemm && ops->rms_norm && ops->rope &&
           ops->unrope && ops->silu_mul && ops->store && ops->load && ops->attn &&
           ops->attn_mapped && ops->colsum && ops->kl && ops->key_norm && ops->key_diff &&
           ops->silu && ops->silu_back && ops->exp_sum;
}
