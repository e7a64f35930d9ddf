/* core/device.h - a backend: memory, workspace and table of kernels.
 *
 * One device is opened by the command and passed down.  It is used by one thread at a time; its
 * ops spread their work over OpenMP threads themselves.  Only the CPU exists so far; an accelerator
 * plugin would be opened here, and nothing else would know. */
#ifndef EK_CORE_DEVICE_H
#define EK_CORE_DEVICE_H

#include "core/err.h"
#include "core/ops.h"

typedef enum ek_isa {
    EK_ISA_SCALAR,
    EK_ISA_AVX2,
    EK_ISA_AVX512,
    EK_ISA_AVX512VNNI,
    EK_ISA_AVX512BF16
} ek_isa;

struct ek_device {
    ek_ops ops; /* a copy: the call is dev->ops.matmul(dev, ...) */
    ek_isa isa;
    int threads; /* OpenMP's, at open */
    void *work;  /* workspace, grown by ek_device_work; owned */
    size_t work_bytes;
    int64_t work_grown;         /* how often it grew: tests see it stand still in a steady loop */
    struct ek_rope_table *rope; /* sines and cosines already taken; owned */
    struct ek_chunk *chunk;     /* where the next weights are carved; they own it together */
    int64_t bytes, peak;        /* held now through ek_device_alloc, and the most ever held */
};

/* name: "cpu" or "auto".  isa_cap: NULL, or the name of a level ("scalar", "avx2", "avx512",
 * "avx512vnni", "avx512bf16"): EK_EASKED with the list of levels that work here if unknown or not
 * had by the processor.  Owned by the caller on success. */
ek_code ek_device_open(ek_device **out, const char *name, const char *isa_cap, ek_err *err);
void ek_device_close(ek_device *dev); /* NULL is fine */

/* 64-byte aligned, counted in bytes and peak; large blocks are advised to use huge pages.  Contents
 * are zero.  NULL when out of memory. */
void *ek_device_alloc(ek_device *dev, size_t bytes);
void ek_device_free(ek_device *dev, void *p);

/* The workspace, at least bytes long, 64-byte aligned, contents undefined; valid until the next op
 * or call.  For ops, and for scorers while they call no op that takes it (gemm, silu, exp_sum and
 * unrope do not).  Running out of memory here ends the program. */
void *ek_device_work(ek_device *dev, size_t bytes);

/* A packed weight matrix of n outputs and k inputs, zero until packed. */
ek_code ek_weight_open(ek_weight *w, ek_device *dev, ek_dtype type, int n, int k, ek_err *err);
void ek_weight_close(ek_weight *w, ek_device *dev);

const char *ek_isa_name(ek_isa isa);
ek_isa ek_isa_of_cpu(void);

#endif
