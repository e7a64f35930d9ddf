/* core/cpu/rope.c - rotary positions.
 *
 * Angles are taken in double, position times inverse frequency, and a sine costs 40 ns: over a
 * prompt of 2048 tokens and 30 layers that is a tenth of the whole prefill.  So the device keeps a
 * table of (position, pair) -> cosine, sine, grown by doubling and thrown away when the frequencies
 * change.  Positions past table_limit are computed on the spot. */
#include "core/cpu/cpu.h"

#include <assert.h>
#include <immintrin.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { table_limit = 1 << 17 };

typedef struct ek_rope_table {
    int half, n_pos;  /* pairs per head; positions 0 .. n_pos - 1 are filled */
    double *inv_freq; /* (half) what the table was made of */
    float *cs;        /* (n_pos, 2, half) cosines, then sines */
} ek_rope_table;

void ek_cpu_rope_clear(ek_device *dev)
{
    if (!dev->rope)
        return;
    ek_device_free(dev, dev->rope->inv_freq);
    ek_device_free(dev, dev->rope->cs);
    free(dev->rope);
    dev->rope = NULL;
}

static void angles(float *cs, int32_t pos, int half, const double *inv_freq)
{
    for (int i = 0; i < half; i++) {
        const double angle = (double)pos * inv_freq[i];

        cs[i] = (float)cos(angle);
        cs[half + i] = (float)sin(angle);
    }
}

/* A table that covers position `last`, or NULL when there is no memory for one. */
static const ek_rope_table *table_for(ek_device *dev, int32_t last, int half,
                                      const double *inv_freq)
{
    const size_t row = 2 * (size_t)half;
    ek_rope_table *t = dev->rope;
    int n_pos = 1024, old = 0;
    float *cs;

    if (t && (t->half != half || memcmp(t->inv_freq, inv_freq, (size_t)half * sizeof(double)))) {
        ek_cpu_rope_clear(dev);
        t = NULL;
    }
    if (t && last < t->n_pos)
        return t;
    if (!t) {
        t = dev->rope = calloc(1, sizeof *t);
        if (!t)
            return NULL;
        t->inv_freq = ek_device_alloc(dev, (size_t)half * sizeof(double));
        if (!t->inv_freq) {
            ek_cpu_rope_clear(dev);
            return NULL;
        }
        memcpy(t->inv_freq, inv_freq, (size_t)half * sizeof(double));
        t->half = half;
    }
    while (n_pos <= last)
        n_pos *= 2;
    cs = ek_device_alloc(dev, (size_t)n_pos * row * sizeof(float));
    if (!cs)
        return NULL;
    old = t->n_pos;
    if (old)
        memcpy(cs, t->cs, (size_t)old * row * sizeof(float));
    ek_device_free(dev, t->cs);
#pragma omp parallel for schedule(static)
    for (int p = old; p < n_pos; p++)
        angles(cs + (size_t)p * row, p, half, inv_freq);
    t->cs = cs;
    t->n_pos = n_pos;
    return t;
}

/* way: 1 turns, -1 turns back. */
static void rotate_scalar(float *x, int heads, int half, const float *cs, float way)
{
    for (int h = 0; h < heads; h++, x += 2 * half)
        for (int i = 0; i < half; i++) {
            const float a = x[i], b = x[half + i], c = cs[i], s = way * cs[half + i];

            x[i] = a * c - b * s;
            x[half + i] = b * c + a * s;
        }
}

/* The products are rounded as in the scalar form: the same bits. */
EK_AVX2 static void rotate_avx2(float *x, int heads, int half, const float *cs, float way)
{
    const __m256 ways = _mm256_set1_ps(way);

    if (half % 8 != 0) {
        rotate_scalar(x, heads, half, cs, way);
        return;
    }
    for (int h = 0; h < heads; h++, x += 2 * half)
        for (int i = 0; i < half; i += 8) {
            const __m256 a = _mm256_loadu_ps(x + i), b = _mm256_loadu_ps(x + half + i);
            const __m256 c = _mm256_loadu_ps(cs + i);
            const __m256 s = _mm256_mul_ps(ways, _mm256_loadu_ps(cs + half + i));

            _mm256_storeu_ps(x + i, _mm256_sub_ps(_mm256_mul_ps(a, c), _mm256_mul_ps(b, s)));
            _mm256_storeu_ps(x + half + i, _mm256_add_ps(_mm256_mul_ps(b, c), _mm256_mul_ps(a, s)));
        }
}

typedef void rotate_fn(float *x, int heads, int half, const float *cs, float way);

static rotate_fn *rotate_for(const ek_device *dev)
{
    return dev->isa >= EK_ISA_AVX2 ? rotate_avx2 : rotate_scalar;
}

enum { half_max = 512 };

ek_unrope ek_cpu_unrope(ek_device *dev, int32_t last, int head_dim, const double *inv_freq)
{
    const int half = head_dim / 2;
    const ek_rope_table *t =
        table_for(dev, last < table_limit ? last : table_limit - 1, half, inv_freq);

    assert(half <= half_max);
    return (ek_unrope){.rotate = rotate_for(dev),
                       .half = half,
                       .n_pos = t ? t->n_pos : 0,
                       .cs = t ? t->cs : NULL,
                       .inv_freq = inv_freq};
}

void ek_cpu_unrope_one(const ek_unrope *u, float *x, int32_t pos)
{
    if (pos >= 0 && pos < u->n_pos) {
        u->rotate(x, 1, u->half, u->cs + (size_t)pos * 2 * (size_t)u->half, -1);
    } else {
        float cs[2 * half_max];

        angles(cs, pos, u->half, u->inv_freq);
        u->rotate(x, 1, u->half, cs, -1);
    }
}

static void turn_rows(ek_device *dev, float way, float *x, size_t ldx, int m, int heads,
                      int head_dim, const int32_t *pos, const double *inv_freq)
{
    const int half = head_dim / 2;
    rotate_fn *rotate = rotate_for(dev);
    const ek_rope_table *t = NULL;
    int32_t last = 0;

    assert(half <= half_max);
    for (int r = 0; r < m; r++)
        if (pos[r] > last && pos[r] < table_limit)
            last = pos[r];
    t = table_for(dev, last, half, inv_freq);
#pragma omp parallel for schedule(static) if ((int64_t)m * heads * head_dim > 16384)
    for (int r = 0; r < m; r++) {
        float *row = x + (size_t)r * ldx;

        if (t && pos[r] >= 0 && pos[r] < t->n_pos) {
            rotate(row, heads, half, t->cs + (size_t)pos[r] * 2 * (size_t)half, way);
        } else {
            float cs[2 * half_max];

            angles(cs, pos[r], half, inv_freq);
            rotate(row, heads, half, cs, way);
        }
    }
}

static void rope_table(ek_device *dev, float *x, size_t ldx, int m, int heads, int head_dim,
                       const int32_t *pos, const double *inv_freq)
{
    turn_rows(dev, 1, x, ldx, m, heads, head_dim, pos, inv_freq);
}

static void unrope_table(ek_device *dev, float *x, size_t ldx, int m, int heads, int head_dim,
                         const int32_t *pos, const double *inv_freq)
{
    turn_rows(dev, -1, x, ldx, m, heads, head_dim, pos, inv_freq);
}

void ek_cpu_rope_pick(ek_ops *ops, ek_isa isa)
{
    (void)isa;
    ops->rope = rope_table;
    ops->unrope = unrope_table;
}
