#include "tests/check_kernels.h"

#include "core/bf16.h"

#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

ek_device *ek_kernel_device(void)
{
    ek_device *dev = NULL;
    ek_err err;

    if (ek_device_open(&dev, "cpu", getenv("EVICTKIT_ISA"), &err) != EK_OK) {
        printf("skip: %s\n", err.msg);
        exit(77);
    }
    return dev;
}

int ek_is_bench(const char *arg)
{
    return strcmp(arg, "--bench") == 0;
}

int ek_run_kernel_tests(ek_device *dev, const char *name, const struct CMUnitTest *tests, size_t n)
{
    struct CMUnitTest *with = calloc(n, sizeof *with);
    int failed;

    for (size_t i = 0; i < n; i++) {
        with[i] = tests[i];
        with[i].initial_state = dev;
    }
    failed = _cmocka_run_group_tests(name, with, n, NULL, NULL);
    free(with);
    return failed;
}

float ek_number(uint64_t seed, uint64_t i)
{
    uint64_t x = (seed + 1) * 0x9e3779b97f4a7c15u + i * 0xd1342543de82ef95u;

    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    x ^= x >> 31;
    return (float)((double)(x >> 40) / (1 << 23) - 1.0);
}

float *ek_numbers(uint64_t seed, size_t n, float scale)
{
    float *x = malloc((n ? n : 1) * sizeof *x);

    assert_non_null(x);
    for (size_t i = 0; i < n; i++)
        x[i] = scale * ek_number(seed, i);
    return x;
}

/* [n][guards] n floats [guards] */
enum { guards = 64 };
static const uint32_t guard_word = 0x7fa5c3e1; /* a NaN nobody computes */

float *ek_guarded(size_t n)
{
    uint32_t *p = malloc(sizeof(size_t) + (n + 2 * guards) * sizeof *p);

    assert_non_null(p);
    memcpy(p, &n, sizeof n);
    p += sizeof n / sizeof *p;
    for (size_t i = 0; i < n + 2 * guards; i++)
        p[i] = guard_word;
    return (float *)(p + guards);
}

static uint32_t *guarded_start(const float *p, size_t *n)
{
    uint32_t *start = (uint32_t *)(uintptr_t)p - guards - sizeof *n / sizeof *start;

    memcpy(n, start, sizeof *n);
    return start;
}

void ek_guarded_check(const float *p)
{
    size_t n;
    const uint32_t *w = guarded_start(p, &n) + sizeof n / sizeof *w;

    for (size_t i = 0; i < guards; i++) {
        assert_int_equal(w[i], guard_word);
        assert_int_equal(w[guards + n + i], guard_word);
    }
}

void ek_guarded_free(float *p)
{
    size_t n;

    ek_guarded_check(p);
    free(guarded_start(p, &n));
}

int ek_near(double got, double want, double bound)
{
    if (isnan(want) || isinf(want))
        return (isnan(want) && isnan(got)) || got == want;
    return fabs(got - want) <= bound;
}

static void put(void *column, ek_dtype type, size_t i, float x)
{
    if (type == EK_F32)
        ((float *)column)[i] = x;
    else
        ((ek_bf16 *)column)[i] = ek_to_bf16(x);
}

void ek_made_open(ek_made *m, const ek_shape *s, uint64_t seed)
{
    const size_t dim = (size_t)s->head_dim, size = (size_t)ek_dtype_size(s->dtype);
    size_t n;

    *m = (ek_made){0};
    for (int h = 0; h < s->n_heads; h++) {
        m->n_entries += s->gap * (h + 1);
        m->first[h] = m->n_entries;
        m->n[h] = s->n[h];
        m->n_entries += s->n[h];
    }
    m->n_entries += s->gap;
    n = (size_t)m->n_entries + 1;
    m->k = malloc(n * dim * size);
    m->v = malloc(n * dim * size);
    m->bias = malloc(n * sizeof(float));
    m->pos = malloc(n * sizeof(int32_t));
    assert_true(m->k && m->v && m->bias && m->pos);
    memset(m->k, 0xff, n * dim * size); /* NaN in either type */
    memset(m->v, 0xff, n * dim * size);
    memset(m->bias, 0xff, n * sizeof(float));
    memset(m->pos, 0x7f, n * sizeof(int32_t));
    for (int h = 0; h < s->n_heads; h++)
        for (int j = 0; j < s->n[h]; j++) {
            const size_t e = (size_t)(m->first[h] + j);
            const uint64_t at = ((uint64_t)h << 32 | (uint64_t)j) * 4096;

            m->pos[e] = j;
            m->bias[e] = ek_number(seed + 2, at);
            for (size_t d = 0; d < dim; d++) {
                put(m->k, s->dtype, e * dim + d, 2.0f * ek_number(seed, at + d));
                put(m->v, s->dtype, e * dim + d, ek_number(seed + 1, at + d));
            }
        }
    m->view = (ek_view){.n_heads = s->n_heads,
                        .group = s->group,
                        .head_dim = s->head_dim,
                        .dtype = s->dtype,
                        .first = m->first,
                        .n = m->n,
                        .pos = m->pos,
                        .bias = s->bias ? m->bias : NULL,
                        .k = m->k,
                        .v = m->v};
}

void ek_made_close(ek_made *m)
{
    free(m->k);
    free(m->v);
    free(m->bias);
    free(m->pos);
    *m = (ek_made){0};
}

float ek_made_item(const ek_made *m, const void *column, int entry, int d)
{
    const size_t i = (size_t)entry * (size_t)m->view.head_dim + (size_t)d;

    return m->view.dtype == EK_F32 ? ((const float *)column)[i]
                                   : ek_from_bf16(((const ek_bf16 *)column)[i]);
}

double ek_seconds(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

double ek_bench_gemm(ek_device *dev, ek_dtype type)
{
    const int m = 512, n = 1536, k = 576;
    float *x = ek_numbers(1, (size_t)m * (size_t)k, 1.0f);
    float *out = ek_numbers(2, (size_t)m * (size_t)n, 1.0f);
    double best = INFINITY;
    ek_weight w;
    ek_err err;

    assert_int_equal(ek_weight_open(&w, dev, type, n, k, &err), EK_OK);
    for (int i = 0; i < 30; i++) {
        const double start = ek_seconds();

        dev->ops.matmul(dev, out, (size_t)n, x, (size_t)k, &w, m, EK_SET);
        best = fmin(best, ek_seconds() - start);
    }
    ek_weight_close(&w, dev);
    free(x);
    free(out);
    return 2.0 * m * n * k / best;
}

double ek_bench_stream(void)
{
    const size_t page = (size_t)2 << 20, bytes = 130 * page, words = bytes / 8, line = 8;
    uint64_t *p = aligned_alloc(page, bytes), sink = 0;
    double best = INFINITY;

    assert_non_null(p);
    (void)madvise(p, bytes, MADV_HUGEPAGE); /* as weights are: see core/device.c */
    memset(p, 1, bytes);
    for (int i = 0; i < 8; i++) {
        const double start = ek_seconds();

#pragma omp parallel for schedule(static) reduction(+ : sink)
        for (size_t at = 0; at < words; at += line)
            sink += p[at] ^ p[at + 4];
        best = fmin(best, ek_seconds() - start);
    }
    if (sink == 42) /* keeps the loop alive */
        puts("");
    free(p);
    return (double)bytes / best;
}
