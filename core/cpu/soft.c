/* core/cpu/soft.c - rows of softmax, AVX2, AVX-512 and bf16 forms.  (The scalar form of attention
 * needs none: it stands whole in attn.c.) */
#include "core/cpu/soft.h"

#include "core/cpu/exp.h"

#include <assert.h>
#include <math.h>

/* A row without entries so far has max -inf, and -inf - -inf would be NaN: take 0 instead. */
static inline float reference(float max)
{
    return max == -INFINITY ? 0.0f : max;
}

/* ---- AVX2 ---- */

EK_AVX2 static void row_avx2(const ek_soft *b, int i)
{
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const __m256 none = _mm256_set1_ps(-INFINITY);
    float *s = b->s + i * EK_TILE, *p = (float *)b->p + i * EK_TILE;
    __m256 max = none, sum = _mm256_setzero_ps(), ref;
    float top;

    for (int j = 0; j < EK_TILE; j += 8) {
        const __m256 sees =
            _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(b->n[i] - j), lane));
        __m256 z = _mm256_mul_ps(_mm256_loadu_ps(s + j), _mm256_set1_ps(b->scale));

        if (b->bias)
            z = _mm256_add_ps(z, _mm256_loadu_ps(b->bias + j));
        z = _mm256_blendv_ps(none, z, sees);
        _mm256_storeu_ps(s + j, z);
        max = _mm256_max_ps(max, z);
    }
    top = ek_max_avx2(max);
    top = b->max[i] > top ? b->max[i] : top;
    b->keep[i] = b->max[i] - reference(top); /* its exp is taken for all rows at once */
    b->max[i] = top;
    ref = _mm256_set1_ps(reference(top));
    for (int j = 0; j < EK_TILE; j += 8) {
        const __m256 e = ek_exp_avx2(_mm256_sub_ps(_mm256_loadu_ps(s + j), ref));

        sum = _mm256_add_ps(sum, e);
        _mm256_storeu_ps(p + j, b->meet ? ek_meet_avx2(e) : e);
    }
    b->sum[i] += ek_sum_avx2(sum); /* rows_avx2 adds the old part */
}

EK_AVX2 static void exp_keep_avx2(float *keep, int rows)
{
    float padded[16];

    for (int i = 0; i < 16; i++)
        padded[i] = i < rows ? keep[i] : 0.0f;
    _mm256_storeu_ps(padded, ek_exp_avx2(_mm256_loadu_ps(padded)));
    _mm256_storeu_ps(padded + 8, ek_exp_avx2(_mm256_loadu_ps(padded + 8)));
    for (int i = 0; i < rows; i++)
        keep[i] = padded[i];
}

EK_AVX2 static void rows_avx2(const ek_soft *b)
{
    float old[12];

    assert(b->rows <= 12 && b->type == EK_F32);
    for (int i = 0; i < b->rows; i++) {
        old[i] = b->sum[i];
        b->sum[i] = 0.0f;
        row_avx2(b, i);
    }
    exp_keep_avx2(b->keep, b->rows);
    for (int i = 0; i < b->rows; i++)
        b->sum[i] += old[i] * b->keep[i];
}

EK_AVX2 static void prob_avx2(float *x, const float *lse, int group, size_t n)
{
    size_t i = 0;

    if (group <= 64) {
        float turn[8 * 64];

        for (int j = 0; j < 8 * group; j++)
            turn[j] = lse[j % group];
        for (int j = 0; i + 8 <= n; i += 8, j = j + 1 == group ? 0 : j + 1)
            _mm256_storeu_ps(x + i, ek_exp_avx2(_mm256_sub_ps(_mm256_loadu_ps(x + i),
                                                              _mm256_loadu_ps(turn + 8 * j))));
    }
    for (; i < n; i++) {
        const __m256 e = ek_exp_avx2(_mm256_set1_ps(x[i] - lse[i % (size_t)group]));

        x[i] = _mm256_cvtss_f32(e);
    }
}

/* ---- AVX-512 ---- */

/* One row up to its exponentials; what they are stored as differs. */
EK_AVX512 EK_INLINE void row_avx512(const ek_soft *b, int i, __m512 e[4])
{
    float *s = b->s + i * EK_TILE;
    __m512 z[4], ref;
    float top;

    EK_UNROLL
    for (int j = 0; j < 4; j++) {
        z[j] = _mm512_mul_ps(_mm512_loadu_ps(s + 16 * j), _mm512_set1_ps(b->scale));
        if (b->bias)
            z[j] = _mm512_add_ps(z[j], _mm512_loadu_ps(b->bias + 16 * j));
    }
    if (b->n[i] < EK_TILE) {
        const uint64_t sees = ((uint64_t)1 << b->n[i]) - 1;

        EK_UNROLL
        for (int j = 0; j < 4; j++)
            z[j] =
                _mm512_mask_mov_ps(_mm512_set1_ps(-INFINITY), (__mmask16)(sees >> (16 * j)), z[j]);
    }
    EK_UNROLL
    for (int j = 0; j < 4; j++)
        _mm512_storeu_ps(s + 16 * j, z[j]);
    top = ek_max_avx512(_mm512_max_ps(_mm512_max_ps(z[0], z[1]), _mm512_max_ps(z[2], z[3])));
    top = b->max[i] > top ? b->max[i] : top;
    b->keep[i] = b->max[i] - reference(top);
    b->max[i] = top;
    ref = _mm512_set1_ps(reference(top));
    EK_UNROLL
    for (int j = 0; j < 4; j++)
        e[j] = ek_exp_avx512(_mm512_sub_ps(z[j], ref));
    b->sum[i] = ek_sum_avx512(_mm512_add_ps(_mm512_add_ps(e[0], e[1]), _mm512_add_ps(e[2], e[3])));
}

EK_AVX512 EK_INLINE void keep_avx512(const ek_soft *b, const float *old)
{
    const __mmask16 real = (__mmask16)((1u << b->rows) - 1);
    const __m512 keep = ek_exp_avx512(_mm512_maskz_loadu_ps(real, b->keep));
    const __m512 sum = _mm512_fmadd_ps(_mm512_maskz_loadu_ps(real, old), keep,
                                       _mm512_maskz_loadu_ps(real, b->sum));

    _mm512_mask_storeu_ps(b->keep, real, keep);
    _mm512_mask_storeu_ps(b->sum, real, sum);
}

EK_AVX512 static void rows_avx512(const ek_soft *b)
{
    float old[12];

    assert(b->rows <= 12 && b->type == EK_F32);
    for (int i = 0; i < b->rows; i++) {
        float *p = (float *)b->p + i * EK_TILE;
        __m512 e[4];

        old[i] = b->sum[i];
        row_avx512(b, i, e);
        for (int j = 0; j < 4; j++)
            _mm512_storeu_ps(p + 16 * j, b->meet ? ek_meet_avx512(e[j]) : e[j]);
    }
    keep_avx512(b, old);
}

EK_AVX512BF16 static void rows_bf16(const ek_soft *b)
{
    float old[12];

    if (b->type == EK_F32) {
        rows_avx512(b);
        return;
    }
    assert(b->rows <= 12);
    for (int i = 0; i < b->rows; i++) {
        ek_bf16 *p = (ek_bf16 *)b->p + i * EK_TILE;
        __m512 e[4];

        old[i] = b->sum[i];
        row_avx512(b, i, e);
        _mm512_storeu_si512(p, (__m512i)_mm512_cvtne2ps_pbh(e[1], e[0]));
        _mm512_storeu_si512(p + 32, (__m512i)_mm512_cvtne2ps_pbh(e[3], e[2]));
    }
    keep_avx512(b, old);
}

EK_AVX512 static void prob_avx512(float *x, const float *lse, int group, size_t n)
{
    float turn[16 * 64];
    size_t i = 0;

    if (group > 64) {
        prob_avx2(x, lse, group, n);
        return;
    }
    for (int j = 0; j < 16 * group; j++)
        turn[j] = lse[j % group];
    for (int j = 0; i < n; i += 16, j = j + 1 == group ? 0 : j + 1) {
        const __mmask16 real = (__mmask16)(n - i < 16 ? (1u << (n - i)) - 1 : 0xffffu);
        const __m512 z =
            _mm512_sub_ps(_mm512_maskz_loadu_ps(real, x + i), _mm512_loadu_ps(turn + 16 * j));

        _mm512_mask_storeu_ps(x + i, real, ek_exp_avx512(z));
    }
}

const ek_soft_kit *ek_soft_kit_of(ek_isa isa)
{
    static const ek_soft_kit avx2 = {.rows = rows_avx2, .prob = prob_avx2};
    static const ek_soft_kit avx512 = {.rows = rows_avx512, .prob = prob_avx512};
    static const ek_soft_kit bf16 = {.rows = rows_bf16, .prob = prob_avx512};

    return isa == EK_ISA_AVX512BF16 ? &bf16 : isa >= EK_ISA_AVX512 ? &avx512 : &avx2;
}
