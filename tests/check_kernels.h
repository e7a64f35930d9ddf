/* tests/check_kernels.h - what the kernel suites share: a device of the level asked for, numbers,
 * guarded buffers, made views, bounds, and the peaks that --bench divides by. */
#ifndef EK_TESTS_CHECK_KERNELS_H
#define EK_TESTS_CHECK_KERNELS_H

#include "core/device.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

/* Half a unit in the last place of a float near 1: one rounding. */
#define EK_HALF_ULP 0x1p-24

/* The device of level $EVICTKIT_ISA; ends the program with 77 where the processor lacks it. */
ek_device *ek_kernel_device(void);

/* main of a suite: "--bench" runs bench, anything else the tests. */
#define EK_KERNEL_MAIN(tests, bench)                                           \
    int main(int argc, char **argv)                                            \
    {                                                                          \
        ek_device *dev = ek_kernel_device();                                   \
        int status = 0;                                                        \
                                                                               \
        if (argc > 1 && ek_is_bench(argv[1]))                                  \
            bench(dev);                                                        \
        else                                                                   \
            status = ek_run_kernel_tests(dev, #tests, tests, EK_COUNT(tests)); \
        ek_device_close(dev);                                                  \
        return status;                                                         \
    }
int ek_is_bench(const char *arg);
int ek_run_kernel_tests(ek_device *dev, const char *name, const struct CMUnitTest *tests, size_t n);

/* A number in [-1, 1) that depends on (seed, i) alone. */
float ek_number(uint64_t seed, uint64_t i);
/* n of them, times scale; free() it. */
float *ek_numbers(uint64_t seed, size_t n, float scale);

/* n floats between guard words, filled with a pattern; ek_guarded_check fails the test if a guard
 * was touched; ek_guarded_free checks too. */
float *ek_guarded(size_t n);
void ek_guarded_check(const float *p);
void ek_guarded_free(float *p);

/* 1 if |got - want| <= bound or both are NaN or the same infinity. */
int ek_near(double got, double want, double bound);

/* A layer's entries by hand.  What an entry holds depends on (seed, head, slot) alone, so two
 * layouts of the same shape hold the same entries; unused room is NaN. */
enum { EK_MADE_HEADS = 8 };
typedef struct ek_made {
    ek_view view;
    int32_t first[EK_MADE_HEADS], n[EK_MADE_HEADS];
    int n_entries; /* length of the columns */
    void *k, *v;
    float *bias;
    int32_t *pos;
} ek_made;
typedef struct ek_shape {
    ek_dtype dtype;
    int n_heads, group, head_dim;
    int n[EK_MADE_HEADS];
    int gap;  /* unused entries in front of head h: gap * (h + 1) */
    int bias; /* 1: a bias per entry */
} ek_shape;
void ek_made_open(ek_made *m, const ek_shape *s, uint64_t seed);
void ek_made_close(ek_made *m);
/* A stored vector's number as float. */
float ek_made_item(const ek_made *m, const void *column, int entry, int d);

/* --bench. */
double ek_seconds(void);
double ek_bench_gemm(ek_device *dev, ek_dtype type); /* FLOP/s, best of many, 512 x 1536 x 576 */
double ek_bench_stream(void);                        /* bytes/s, read of 270 MB, all threads */

#endif
