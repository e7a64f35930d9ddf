/* core/cpu/silu.c - the activation, its derivative, and exponentials with their sum. */
#include "core/cpu/exp.h"

#include <math.h>
#include <string.h>

/* Numbers whose sum is taken in fp32 before it goes to double. */
enum { run_most = 1024 };

/* ---- scalar ---- */

static void silu_scalar(float *y, const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] = x[i] / (1.0f + expf(-x[i]));
}

static void silu_back_scalar(float *dx, const float *x, const float *dy, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const float s = 1.0f / (1.0f + expf(-x[i]));

        dx[i] = dy[i] * s * (1.0f + x[i] * (1.0f - s));
    }
}

static double exp_sum_scalar(float *y, const float *x, float shift, size_t n)
{
    double sum = 0.0;

    for (size_t i = 0; i < n; i++) {
        y[i] = expf(x[i] - shift);
        sum += (double)y[i];
    }
    return sum;
}

static void silu_mul_row_scalar(float *out, const float *gate, const float *up, size_t n)
{
    for (size_t i = 0; i < n; i++)
        out[i] = gate[i] / (1.0f + expf(-gate[i])) * up[i];
}

/* ---- AVX2: whole registers, then what is left in padded ones ---- */

EK_AVX2 EK_INLINE __m256 sigmoid_avx2(__m256 x)
{
    const __m256 one = _mm256_set1_ps(1.0f);

    return _mm256_div_ps(one,
                         _mm256_add_ps(one, ek_exp_avx2(_mm256_sub_ps(_mm256_setzero_ps(), x))));
}

/* The first n < 8 numbers; others are 0. */
EK_AVX2 EK_INLINE __m256 load_part_avx2(const float *x, size_t n)
{
    float part[8] = {0};

    memcpy(part, x, n * sizeof *x);
    return _mm256_loadu_ps(part);
}

EK_AVX2 EK_INLINE void store_part_avx2(float *y, __m256 v, size_t n)
{
    float part[8];

    _mm256_storeu_ps(part, v);
    memcpy(y, part, n * sizeof *y);
}

EK_AVX2 static void silu_avx2(float *y, const float *x, size_t n)
{
    size_t i = 0;

    for (; i + 8 <= n; i += 8) {
        const __m256 v = _mm256_loadu_ps(x + i);

        _mm256_storeu_ps(y + i, _mm256_mul_ps(v, sigmoid_avx2(v)));
    }
    if (i < n) {
        const __m256 v = load_part_avx2(x + i, n - i);

        store_part_avx2(y + i, _mm256_mul_ps(v, sigmoid_avx2(v)), n - i);
    }
}

EK_AVX2 EK_INLINE __m256 back_avx2(__m256 x, __m256 dy)
{
    const __m256 one = _mm256_set1_ps(1.0f), s = sigmoid_avx2(x);

    return _mm256_mul_ps(_mm256_mul_ps(dy, s), _mm256_fmadd_ps(x, _mm256_sub_ps(one, s), one));
}

EK_AVX2 static void silu_back_avx2(float *dx, const float *x, const float *dy, size_t n)
{
    size_t i = 0;

    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(dx + i, back_avx2(_mm256_loadu_ps(x + i), _mm256_loadu_ps(dy + i)));
    if (i < n)
        store_part_avx2(
            dx + i, back_avx2(load_part_avx2(x + i, n - i), load_part_avx2(dy + i, n - i)), n - i);
}

EK_AVX2 static void silu_mul_row_avx2(float *out, const float *gate, const float *up, size_t n)
{
    size_t i = 0;

    for (; i + 8 <= n; i += 8) {
        const __m256 g = _mm256_loadu_ps(gate + i);

        _mm256_storeu_ps(out + i,
                         _mm256_mul_ps(_mm256_mul_ps(g, sigmoid_avx2(g)), _mm256_loadu_ps(up + i)));
    }
    if (i < n) {
        const __m256 g = load_part_avx2(gate + i, n - i), u = load_part_avx2(up + i, n - i);

        store_part_avx2(out + i, _mm256_mul_ps(_mm256_mul_ps(g, sigmoid_avx2(g)), u), n - i);
    }
}

EK_AVX2 static double exp_sum_avx2(float *y, const float *x, float shift, size_t n)
{
    const __m256 s = _mm256_set1_ps(shift);
    double total = 0.0;

    for (size_t i = 0; i < n;) {
        const size_t end = n - i < run_most ? n : i + run_most;
        __m256 sum = _mm256_setzero_ps();

        for (; i + 8 <= end; i += 8) {
            const __m256 e = ek_exp_avx2(_mm256_sub_ps(_mm256_loadu_ps(x + i), s));

            _mm256_storeu_ps(y + i, e);
            sum = _mm256_add_ps(sum, e);
        }
        total += (double)ek_sum_avx2(sum);
        for (; i < end; i++) {
            y[i] = _mm256_cvtss_f32(ek_exp_avx2(_mm256_set1_ps(x[i] - shift)));
            total += (double)y[i];
        }
    }
    return total;
}

/* ---- AVX-512: the last register masked ---- */

EK_AVX512 EK_INLINE __mmask16 part_avx512(size_t left)
{
    return (__mmask16)(left < 16 ? (1u << left) - 1 : 0xffffu);
}

EK_AVX512 EK_INLINE __m512 sigmoid_avx512(__m512 x)
{
    const __m512 one = _mm512_set1_ps(1.0f);

    return _mm512_div_ps(one,
                         _mm512_add_ps(one, ek_exp_avx512(_mm512_sub_ps(_mm512_setzero_ps(), x))));
}

EK_AVX512 static void silu_avx512(float *y, const float *x, size_t n)
{
    for (size_t i = 0; i < n; i += 16) {
        const __mmask16 real = part_avx512(n - i);
        const __m512 v = _mm512_maskz_loadu_ps(real, x + i);

        _mm512_mask_storeu_ps(y + i, real, _mm512_mul_ps(v, sigmoid_avx512(v)));
    }
}

EK_AVX512 static void silu_back_avx512(float *dx, const float *x, const float *dy, size_t n)
{
    const __m512 one = _mm512_set1_ps(1.0f);

    for (size_t i = 0; i < n; i += 16) {
        const __mmask16 real = part_avx512(n - i);
        const __m512 v = _mm512_maskz_loadu_ps(real, x + i), s = sigmoid_avx512(v);
        const __m512 d = _mm512_mul_ps(_mm512_maskz_loadu_ps(real, dy + i), s);

        _mm512_mask_storeu_ps(dx + i, real,
                              _mm512_mul_ps(d, _mm512_fmadd_ps(v, _mm512_sub_ps(one, s), one)));
    }
}

EK_AVX512 static void silu_mul_row_avx512(float *out, const float *gate, const float *up, size_t n)
{
    for (size_t i = 0; i < n; i += 16) {
        const __mmask16 real = part_avx512(n - i);
        const __m512 g = _mm512_maskz_loadu_ps(real, gate + i);

        _mm512_mask_storeu_ps(out + i, real,
                              _mm512_mul_ps(_mm512_mul_ps(g, sigmoid_avx512(g)),
                                            _mm512_maskz_loadu_ps(real, up + i)));
    }
}

EK_AVX512 static double exp_sum_avx512(float *y, const float *x, float shift, size_t n)
{
    const __m512 s = _mm512_set1_ps(shift);
    double total = 0.0;

    for (size_t i = 0; i < n;) {
        const size_t end = n - i < run_most ? n : i + run_most;
        __m512 sum = _mm512_setzero_ps();

        for (; i < end; i += 16) {
            const __mmask16 real = part_avx512(end - i);
            const __m512 e = _mm512_maskz_mov_ps(
                real, ek_exp_avx512(_mm512_sub_ps(_mm512_maskz_loadu_ps(real, x + i), s)));

            _mm512_mask_storeu_ps(y + i, real, e);
            sum = _mm512_add_ps(sum, e);
        }
        i = end;
        total += (double)ek_sum_avx512(sum);
    }
    return total;
}

/* ---- rows over threads ---- */

typedef void row_fn(float *out, const float *gate, const float *up, size_t n);

static void mul_rows(row_fn *row, float *out, const float *x, int m, int ff)
{
#pragma omp parallel for schedule(static) if ((int64_t)m * ff > 8192)
    for (int i = 0; i < m; i++) {
        const float *gate = x + (size_t)i * 2 * (size_t)ff;

        row(out + (size_t)i * (size_t)ff, gate, gate + ff, (size_t)ff);
    }
}

static void silu_mul_scalar(ek_device *dev, float *out, const float *x, int m, int ff)
{
    (void)dev;
    mul_rows(silu_mul_row_scalar, out, x, m, ff);
}

static void silu_mul_avx2(ek_device *dev, float *out, const float *x, int m, int ff)
{
    (void)dev;
    mul_rows(silu_mul_row_avx2, out, x, m, ff);
}

static void silu_mul_avx512(ek_device *dev, float *out, const float *x, int m, int ff)
{
    (void)dev;
    mul_rows(silu_mul_row_avx512, out, x, m, ff);
}

void ek_cpu_silu_pick(ek_ops *ops, ek_isa isa)
{
    ops->silu = silu_scalar;
    ops->silu_back = silu_back_scalar;
    ops->exp_sum = exp_sum_scalar;
    ops->silu_mul = silu_mul_scalar;
    if (isa >= EK_ISA_AVX2) {
        ops->silu = silu_avx2;
        ops->silu_back = silu_back_avx2;
        ops->exp_sum = exp_sum_avx2;
        ops->silu_mul = silu_mul_avx2;
    }
    if (isa >= EK_ISA_AVX512) {
        ops->silu = silu_avx512;
        ops->silu_back = silu_back_avx512;
        ops->exp_sum = exp_sum_avx512;
        ops->silu_mul = silu_mul_avx512;
    }
}
