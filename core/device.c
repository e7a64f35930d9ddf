#include "core/device.h"

#include "core/cpu/cpu.h"

#include <assert.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* In front of every block, so that free knows what it gives back.  64 bytes keep the alignment. */
typedef struct block_head {
    size_t bytes;
    struct ek_chunk *chunk; /* where the block was carved; NULL: it is an allocation of its own */
    char pad[64 - sizeof(size_t) - sizeof(void *)];
} block_head;
_Static_assert(sizeof(block_head) == 64, "the head keeps blocks aligned");

/* From here on, huge pages are worth a 2 MiB alignment. */
enum { EK_MOST_THREADS = 1024 };

static const size_t huge_from = (size_t)4 << 20;

/* Weights are carved from big chunks: with 4 KiB pages decode reads them at two thirds of the
 * speed, and a matrix alone is too small for pages of 2 MiB.  A chunk goes when its last block
 * goes. */
typedef struct ek_chunk {
    size_t size, used;
    void *map; /* what munmap wants */
    size_t map_size;
    int live; /* blocks in use */
} ek_chunk;
static const size_t huge_page = (size_t)2 << 20, chunk_size = (size_t)32 << 20,
                    carve_from = (size_t)64 << 10;

static const char *const isa_names[] = {
    [EK_ISA_SCALAR] = "scalar",         [EK_ISA_AVX2] = "avx2",
    [EK_ISA_AVX512] = "avx512",         [EK_ISA_AVX512VNNI] = "avx512vnni",
    [EK_ISA_AVX512BF16] = "avx512bf16",
};

const char *ek_isa_name(ek_isa isa)
{
    return isa_names[isa];
}

ek_isa ek_isa_of_cpu(void)
{
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma"))
        return EK_ISA_SCALAR;
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
        !__builtin_cpu_supports("avx512vl") || !__builtin_cpu_supports("avx512dq"))
        return EK_ISA_AVX2;
    if (!__builtin_cpu_supports("avx512vnni"))
        return EK_ISA_AVX512;
    return __builtin_cpu_supports("avx512bf16") ? EK_ISA_AVX512BF16 : EK_ISA_AVX512VNNI;
}

/* The level asked for, at most what the processor has. */
static ek_code isa_choose(ek_isa *isa, const char *cap, ek_err *err)
{
    const ek_isa have = ek_isa_of_cpu();
    char list[100] = "";

    if (!cap) {
        *isa = have;
        return EK_OK;
    }
    for (size_t i = 0; i <= (size_t)have; i++) {
        if (strcmp(cap, isa_names[i]) == 0) {
            *isa = (ek_isa)i;
            return EK_OK;
        }
        const size_t used = strlen(list);

        snprintf(list + used, sizeof list - used, "%s%s", i ? ", " : "", isa_names[i]);
    }
    for (size_t i = (size_t)have + 1; i < EK_COUNT(isa_names); i++)
        if (strcmp(cap, isa_names[i]) == 0)
            return EK_FAIL(err, EK_EASKED,
                           "instruction set '%s': this processor does not have it; "
                           "levels that work here: %s",
                           cap, list);
    return EK_FAIL(err, EK_EASKED, "instruction set '%s' is unknown; levels that work here: %s",
                   cap, list);
}

ek_code ek_device_open(ek_device **out, const char *name, const char *isa_cap, ek_err *err)
{
    ek_isa isa = EK_ISA_SCALAR;
    ek_device *dev;

    if (strcmp(name, "cpu") != 0 && strcmp(name, "auto") != 0)
        return EK_FAIL(err, EK_EASKED, "device: found '%s', expected one of: auto, cpu", name);
    EK_TRY(isa_choose(&isa, isa_cap, err));
    dev = calloc(1, sizeof *dev);
    if (!dev)
        return EK_FAIL(err, EK_ENOMEM, "device '%s': out of memory", name);
    dev->isa = isa;
    /* A team far beyond the processors only waits, and tens of thousands end the process. */
    dev->threads = omp_get_max_threads();
    if (dev->threads > EK_MOST_THREADS) {
        dev->threads = EK_MOST_THREADS;
        omp_set_num_threads(dev->threads);
    }
    ek_cpu_table(&dev->ops, isa);
    if (!ek_cpu_table_is_full(&dev->ops)) {
        free(dev);
        return EK_FAIL(err, EK_EBROKEN, "device '%s': its table of kernels has an empty entry",
                       name);
    }
    *out = dev;
    return EK_OK;
}

void ek_device_close(ek_device *dev)
{
    if (!dev)
        return;
    ek_cpu_rope_clear(dev);
    ek_device_free(dev, dev->work);
    free(dev);
}

static void count(ek_device *dev, size_t bytes)
{
    dev->bytes += (int64_t)bytes;
    if (dev->bytes > dev->peak)
        dev->peak = dev->bytes;
}

void *ek_device_alloc(ek_device *dev, size_t bytes)
{
    const int huge = bytes >= huge_from;
    const size_t align = huge ? huge_page : 64;
    block_head *head;
    size_t total;

    if (bytes > (size_t)1 << 46) /* more than an address space */
        return NULL;
    total = (bytes + sizeof *head + align - 1) / align * align;
    head = aligned_alloc(align, total);
    if (!head)
        return NULL;
    if (huge)
        (void)madvise(head, total, MADV_HUGEPAGE); /* advice: nothing breaks if it is refused */
    memset(head, 0, total);
    head->bytes = bytes;
    count(dev, bytes);
    return head + 1;
}

static ek_chunk *chunk_open(size_t need)
{
    const size_t want =
        need + sizeof(block_head) > chunk_size ? need + sizeof(block_head) : chunk_size;
    const size_t size = (want + huge_page - 1) / huge_page * huge_page;
    char *map =
        mmap(NULL, size + huge_page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ek_chunk *chunk;

    _Static_assert(sizeof(ek_chunk) <= sizeof(block_head), "a chunk's head takes one line");
    if (map == MAP_FAILED)
        return NULL;
    chunk = (ek_chunk *)(((uintptr_t)map + huge_page - 1) / huge_page * huge_page);
    (void)madvise(chunk, size, MADV_HUGEPAGE);
    *chunk = (ek_chunk){
        .size = size, .used = sizeof(block_head), .map = map, .map_size = size + huge_page};
    return chunk;
}

/* Like ek_device_alloc, for what lives long and is read in one go.  Fresh pages are zero. */
static void *chunk_alloc(ek_device *dev, size_t bytes)
{
    const size_t total = ek_lines(bytes) + sizeof(block_head);
    block_head *head;

    if (bytes < carve_from || bytes > (size_t)1 << 46)
        return ek_device_alloc(dev, bytes);
    if (!dev->chunk || dev->chunk->size - dev->chunk->used < total)
        dev->chunk = chunk_open(total);
    if (!dev->chunk)
        return NULL;
    head = (block_head *)((char *)dev->chunk + dev->chunk->used);
    *head = (block_head){.bytes = bytes, .chunk = dev->chunk};
    dev->chunk->used += total;
    dev->chunk->live++;
    count(dev, bytes);
    return head + 1;
}

void ek_device_free(ek_device *dev, void *p)
{
    block_head *head = p;
    ek_chunk *chunk;

    if (!p)
        return;
    head--;
    dev->bytes -= (int64_t)head->bytes;
    chunk = head->chunk;
    if (!chunk) {
        free(head);
        return;
    }
    if (--chunk->live > 0)
        return;
    if (dev->chunk == chunk)
        dev->chunk = NULL;
    (void)munmap(chunk->map, chunk->map_size);
}

void *ek_device_work(ek_device *dev, size_t bytes)
{
    size_t want = bytes + bytes / 4; /* room, so that a slowly growing need grows seldom */
    void *work;

    if (bytes <= dev->work_bytes && dev->work)
        return dev->work;
    want = (want + 4095) / 4096 * 4096;
    ek_device_free(dev, dev->work);
    work = ek_device_alloc(dev, want);
    assert(work); /* ops cannot fail, and a machine without room for scratch cannot go on */
    dev->work = work;
    dev->work_bytes = want;
    dev->work_grown++;
    return work;
}

ek_code ek_weight_open(ek_weight *w, ek_device *dev, ek_dtype type, int n, int k, ek_err *err)
{
    ek_weight made = {.type = type, .n = n, .k = k};

    assert(n > 0 && k > 0);
    made.bytes = ek_panel_bytes(type, k) * (size_t)ek_panels(n);
    made.data = (double)n * k < 1e12 ? chunk_alloc(dev, made.bytes) : NULL;
    if (!made.data)
        return EK_FAIL(err, EK_ENOMEM, "no memory for a weight matrix of %d x %d (%zu bytes)", n, k,
                       made.bytes);
    *w = made;
    return EK_OK;
}

void ek_weight_close(ek_weight *w, ek_device *dev)
{
    ek_device_free(dev, w->data);
    *w = (ek_weight){0};
}
