/* core/cpu/panel.c - the micro-kernels. */
#include "core/cpu/panel.h"

#include "core/bf16.h"

#include <immintrin.h>

#include <string.h>

/* ---- scalar ---- */

static void merge_row(float *c, const float *acc, const float *keep, int i)
{
    for (int j = 0; j < EK_PANEL; j++)
        c[j] = keep ? c[j] * keep[i] + acc[j] : acc[j];
}

static void panel_f32_scalar(int k, const void *a, size_t lda, const void *b, float *c, size_t ldc,
                             const float *keep, int rows)
{
    for (int i = 0; i < rows; i++) {
        const float *x = (const float *)a + (size_t)i * lda;
        const float *w = b;
        float acc[EK_PANEL] = {0};

        for (int n = 0; n < k; n++, w += EK_PANEL)
            for (int j = 0; j < EK_PANEL; j++)
                acc[j] += x[n] * w[j];
        merge_row(c + (size_t)i * ldc, acc, keep, i);
    }
}

static void panel_wide_scalar(int k, const void *a, size_t lda, const void *b, float *c, size_t ldc,
                              const float *keep, int rows)
{
    for (int i = 0; i < rows; i++) {
        const float *x = (const float *)a + (size_t)i * lda;
        const ek_bf16 *w = b;
        float acc[EK_PANEL] = {0};

        for (int n = 0; n < k; n += 2, w += 2 * EK_PANEL)
            for (int j = 0; j < EK_PANEL; j++) {
                acc[j] += x[n] * ek_from_bf16(w[2 * j]);
                acc[j] += x[n + 1] * ek_from_bf16(w[2 * j + 1]);
            }
        merge_row(c + (size_t)i * ldc, acc, keep, i);
    }
}

static void to_bf16_scalar(ek_bf16 *to, const float *x, int n)
{
    for (int i = 0; i < n; i++)
        to[i] = ek_to_bf16(x[i]);
}

static void round_scalar(float *to, const float *x, int n)
{
    for (int i = 0; i < n; i++)
        to[i] = ek_from_bf16(ek_to_bf16(x[i]));
}

/* ---- wide forms ----
 *
 * The accumulators of R rows stay in registers, R a constant after inlining; row_blocks spreads the
 * rows of a call evenly.  AVX-512: 12 rows x 32 columns are 24 accumulators of 32 registers.  AVX2:
 * 6 x 16 are 12 of 16. */

#define ROW_CASES_2_6(call) \
    case 2:                 \
        call(2);            \
        break;              \
    case 3:                 \
        call(3);            \
        break;              \
    case 4:                 \
        call(4);            \
        break;              \
    case 5:                 \
        call(5);            \
        break;              \
    case 6:                 \
        call(6);            \
        break;
#define ROW_CASES_12(call)  \
    case 1:                 \
        call(1);            \
        break;              \
        ROW_CASES_2_6(call) \
    case 7:                 \
        call(7);            \
        break;              \
    case 8:                 \
        call(8);            \
        break;              \
    case 9:                 \
        call(9);            \
        break;              \
    case 10:                \
        call(10);           \
        break;              \
    case 11:                \
        call(11);           \
        break;              \
    case 12:                \
        call(12);           \
        break;

/* Rows of the next block: as even as most rows per block allow. */
static inline int next_rows(int left, int most)
{
    const int blocks = (left + most - 1) / most;

    return (left + blocks - 1) / blocks;
}

EK_AVX512 EK_INLINE void merge_avx512(float *c, __m512 acc0, __m512 acc1, const float *keep, int i)
{
    if (keep) {
        const __m512 f = _mm512_set1_ps(keep[i]);

        acc0 = _mm512_fmadd_ps(_mm512_loadu_ps(c), f, acc0);
        acc1 = _mm512_fmadd_ps(_mm512_loadu_ps(c + 16), f, acc1);
    }
    _mm512_storeu_ps(c, acc0);
    _mm512_storeu_ps(c + 16, acc1);
}

EK_AVX512BF16 EK_INLINE void rows_bf16(const int R, int k, const ek_bf16 *a, size_t lda,
                                       const ek_bf16 *b, float *c, size_t ldc, const float *keep)
{
    __m512 acc[12][2];

    EK_UNROLL
    for (int i = 0; i < R; i++)
        acc[i][0] = acc[i][1] = _mm512_setzero_ps();
    for (int n = 0; n < k; n += 2, b += 2 * EK_PANEL) {
        const __m512bh b0 = (__m512bh)_mm512_load_si512(b);
        const __m512bh b1 = (__m512bh)_mm512_load_si512(b + EK_PANEL);

        if (R <= 2) /* bound by memory: ask for what comes four kilobytes later */
            _mm_prefetch((const char *)b + 4096, _MM_HINT_T0),
                _mm_prefetch((const char *)b + 4160, _MM_HINT_T0);
        EK_UNROLL
        for (int i = 0; i < R; i++) {
            int32_t pair;
            __m512bh x;

            memcpy(&pair, a + (size_t)i * lda + n, 4);
            x = (__m512bh)_mm512_set1_epi32(pair);
            acc[i][0] = _mm512_dpbf16_ps(acc[i][0], x, b0);
            acc[i][1] = _mm512_dpbf16_ps(acc[i][1], x, b1);
        }
    }
    EK_UNROLL
    for (int i = 0; i < R; i++)
        merge_avx512(c + (size_t)i * ldc, acc[i][0], acc[i][1], keep, i);
}

EK_AVX512BF16 static void panel_bf16_avx512(int k, const void *a, size_t lda, const void *b,
                                            float *c, size_t ldc, const float *keep, int rows)
{
    const ek_bf16 *x = a;

    while (rows > 0) {
        const int r = next_rows(rows, 12);

        switch (r) {
#define CALL(R) rows_bf16(R, k, x, lda, b, c, ldc, keep)
            ROW_CASES_12(CALL)
#undef CALL
        }
        rows -= r;
        x += (size_t)r * lda;
        c += (size_t)r * ldc;
        keep = keep ? keep + r : NULL;
    }
}

EK_AVX512 EK_INLINE void rows_f32_avx512(const int R, int k, const float *a, size_t lda,
                                         const float *b, float *c, size_t ldc, const float *keep)
{
    __m512 acc[12][2];

    EK_UNROLL
    for (int i = 0; i < R; i++)
        acc[i][0] = acc[i][1] = _mm512_setzero_ps();
    for (int n = 0; n < k; n++, b += EK_PANEL) {
        const __m512 b0 = _mm512_load_ps(b), b1 = _mm512_load_ps(b + 16);

        if (R <= 2)
            _mm_prefetch((const char *)b + 4096, _MM_HINT_T0),
                _mm_prefetch((const char *)b + 4160, _MM_HINT_T0);
        EK_UNROLL
        for (int i = 0; i < R; i++) {
            const __m512 x = _mm512_set1_ps(a[(size_t)i * lda + (size_t)n]);

            acc[i][0] = _mm512_fmadd_ps(x, b0, acc[i][0]);
            acc[i][1] = _mm512_fmadd_ps(x, b1, acc[i][1]);
        }
    }
    EK_UNROLL
    for (int i = 0; i < R; i++)
        merge_avx512(c + (size_t)i * ldc, acc[i][0], acc[i][1], keep, i);
}

EK_AVX512 static void panel_f32_avx512(int k, const void *a, size_t lda, const void *b, float *c,
                                       size_t ldc, const float *keep, int rows)
{
    const float *x = a;

    while (rows > 0) {
        const int r = next_rows(rows, 12);

        switch (r) {
#define CALL(R) rows_f32_avx512(R, k, x, lda, b, c, ldc, keep)
            ROW_CASES_12(CALL)
#undef CALL
        }
        rows -= r;
        x += (size_t)r * lda;
        c += (size_t)r * ldc;
        keep = keep ? keep + r : NULL;
    }
}

/* A register of pairs holds the even inputs in its lower halves and the odd ones in its upper. */
EK_AVX512 EK_INLINE void rows_wide_avx512(const int R, int k, const float *a, size_t lda,
                                          const ek_bf16 *b, float *c, size_t ldc, const float *keep)
{
    const __m512i upper = _mm512_set1_epi32((int)0xffff0000u);
    __m512 acc[12][2];

    EK_UNROLL
    for (int i = 0; i < R; i++)
        acc[i][0] = acc[i][1] = _mm512_setzero_ps();
    for (int n = 0; n < k; n += 2, b += 2 * EK_PANEL) {
        const __m512i w0 = _mm512_load_si512(b), w1 = _mm512_load_si512(b + EK_PANEL);
        const __m512 e0 = _mm512_castsi512_ps(_mm512_slli_epi32(w0, 16));
        const __m512 e1 = _mm512_castsi512_ps(_mm512_slli_epi32(w1, 16));
        const __m512 o0 = _mm512_castsi512_ps(_mm512_and_si512(w0, upper));
        const __m512 o1 = _mm512_castsi512_ps(_mm512_and_si512(w1, upper));

        if (R <= 2)
            _mm_prefetch((const char *)b + 4096, _MM_HINT_T0),
                _mm_prefetch((const char *)b + 4160, _MM_HINT_T0);
        EK_UNROLL
        for (int i = 0; i < R; i++) {
            const float *x = a + (size_t)i * lda + n;
            const __m512 even = _mm512_set1_ps(x[0]), odd = _mm512_set1_ps(x[1]);

            acc[i][0] = _mm512_fmadd_ps(even, e0, acc[i][0]);
            acc[i][1] = _mm512_fmadd_ps(even, e1, acc[i][1]);
            acc[i][0] = _mm512_fmadd_ps(odd, o0, acc[i][0]);
            acc[i][1] = _mm512_fmadd_ps(odd, o1, acc[i][1]);
        }
    }
    EK_UNROLL
    for (int i = 0; i < R; i++)
        merge_avx512(c + (size_t)i * ldc, acc[i][0], acc[i][1], keep, i);
}

EK_AVX512 static void panel_wide_avx512(int k, const void *a, size_t lda, const void *b, float *c,
                                        size_t ldc, const float *keep, int rows)
{
    const float *x = a;

    while (rows > 0) {
        const int r = next_rows(rows, 12);

        switch (r) {
#define CALL(R) rows_wide_avx512(R, k, x, lda, b, c, ldc, keep)
            ROW_CASES_12(CALL)
#undef CALL
        }
        rows -= r;
        x += (size_t)r * lda;
        c += (size_t)r * ldc;
        keep = keep ? keep + r : NULL;
    }
}

EK_AVX2 EK_INLINE void merge_avx2(float *c, __m256 acc0, __m256 acc1, const float *keep, int i)
{
    if (keep) {
        const __m256 f = _mm256_set1_ps(keep[i]);

        acc0 = _mm256_fmadd_ps(_mm256_loadu_ps(c), f, acc0);
        acc1 = _mm256_fmadd_ps(_mm256_loadu_ps(c + 8), f, acc1);
    }
    _mm256_storeu_ps(c, acc0);
    _mm256_storeu_ps(c + 8, acc1);
}

/* Half a panel: 16 of its 32 columns. */
EK_AVX2 EK_INLINE void rows_f32_avx2(const int R, int k, const float *a, size_t lda, const float *b,
                                     float *c, size_t ldc, const float *keep)
{
    __m256 acc[6][2];

    EK_UNROLL
    for (int i = 0; i < R; i++)
        acc[i][0] = acc[i][1] = _mm256_setzero_ps();
    for (int n = 0; n < k; n++, b += EK_PANEL) {
        const __m256 b0 = _mm256_load_ps(b), b1 = _mm256_load_ps(b + 8);

        EK_UNROLL
        for (int i = 0; i < R; i++) {
            const __m256 x = _mm256_set1_ps(a[(size_t)i * lda + (size_t)n]);

            acc[i][0] = _mm256_fmadd_ps(x, b0, acc[i][0]);
            acc[i][1] = _mm256_fmadd_ps(x, b1, acc[i][1]);
        }
    }
    EK_UNROLL
    for (int i = 0; i < R; i++)
        merge_avx2(c + (size_t)i * ldc, acc[i][0], acc[i][1], keep, i);
}

/* One row over a whole panel: read in one stream, as memory likes it. */
EK_AVX2 static void row_f32_avx2(int k, const float *a, const float *b, float *c, const float *keep)
{
    __m256 acc[4];

    EK_UNROLL
    for (int j = 0; j < 4; j++)
        acc[j] = _mm256_setzero_ps();
    for (int n = 0; n < k; n++, b += EK_PANEL) {
        const __m256 x = _mm256_set1_ps(a[n]);

        _mm_prefetch((const char *)b + 4096, _MM_HINT_T0);
        _mm_prefetch((const char *)b + 4160, _MM_HINT_T0);
        EK_UNROLL
        for (int j = 0; j < 4; j++)
            acc[j] = _mm256_fmadd_ps(x, _mm256_load_ps(b + 8 * j), acc[j]);
    }
    merge_avx2(c, acc[0], acc[1], keep, 0);
    merge_avx2(c + 16, acc[2], acc[3], keep, 0);
}

EK_AVX2 static void panel_f32_avx2(int k, const void *a, size_t lda, const void *b, float *c,
                                   size_t ldc, const float *keep, int rows)
{
    const float *x = a, *w = b;

    while (rows > 0) {
        const int r = next_rows(rows, 6);

        switch (r) {
        case 1:
            row_f32_avx2(k, x, w, c, keep);
            break;
#define CALL(R)                                   \
    rows_f32_avx2(R, k, x, lda, w, c, ldc, keep), \
        rows_f32_avx2(R, k, x, lda, w + 16, c + 16, ldc, keep)
            ROW_CASES_2_6(CALL)
#undef CALL
        }
        rows -= r;
        x += (size_t)r * lda;
        c += (size_t)r * ldc;
        keep = keep ? keep + r : NULL;
    }
}

EK_AVX2 EK_INLINE __m256 even_avx2(const ek_bf16 *b)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_load_si256((const __m256i *)b), 16));
}

EK_AVX2 EK_INLINE __m256 odd_avx2(const ek_bf16 *b)
{
    const __m256i upper = _mm256_set1_epi32((int)0xffff0000u);

    return _mm256_castsi256_ps(_mm256_and_si256(_mm256_load_si256((const __m256i *)b), upper));
}

EK_AVX2 EK_INLINE void rows_wide_avx2(const int R, int k, const float *a, size_t lda,
                                      const ek_bf16 *b, float *c, size_t ldc, const float *keep)
{
    __m256 acc[6][2];

    EK_UNROLL
    for (int i = 0; i < R; i++)
        acc[i][0] = acc[i][1] = _mm256_setzero_ps();
    for (int n = 0; n < k; n += 2, b += 2 * EK_PANEL) {
        __m256 b0 = even_avx2(b), b1 = even_avx2(b + 16);

        EK_UNROLL
        for (int i = 0; i < R; i++) {
            const __m256 x = _mm256_set1_ps(a[(size_t)i * lda + (size_t)n]);

            acc[i][0] = _mm256_fmadd_ps(x, b0, acc[i][0]);
            acc[i][1] = _mm256_fmadd_ps(x, b1, acc[i][1]);
        }
        b0 = odd_avx2(b);
        b1 = odd_avx2(b + 16);
        EK_UNROLL
        for (int i = 0; i < R; i++) {
            const __m256 x = _mm256_set1_ps(a[(size_t)i * lda + (size_t)n + 1]);

            acc[i][0] = _mm256_fmadd_ps(x, b0, acc[i][0]);
            acc[i][1] = _mm256_fmadd_ps(x, b1, acc[i][1]);
        }
    }
    EK_UNROLL
    for (int i = 0; i < R; i++)
        merge_avx2(c + (size_t)i * ldc, acc[i][0], acc[i][1], keep, i);
}

EK_AVX2 static void row_wide_avx2(int k, const float *a, const ek_bf16 *b, float *c,
                                  const float *keep)
{
    __m256 acc[4];

    EK_UNROLL
    for (int j = 0; j < 4; j++)
        acc[j] = _mm256_setzero_ps();
    for (int n = 0; n < k; n += 2, b += 2 * EK_PANEL) {
        const __m256 even = _mm256_set1_ps(a[n]), odd = _mm256_set1_ps(a[n + 1]);

        _mm_prefetch((const char *)b + 4096, _MM_HINT_T0);
        _mm_prefetch((const char *)b + 4160, _MM_HINT_T0);
        EK_UNROLL
        for (int j = 0; j < 4; j++) {
            acc[j] = _mm256_fmadd_ps(even, even_avx2(b + 16 * j), acc[j]);
            acc[j] = _mm256_fmadd_ps(odd, odd_avx2(b + 16 * j), acc[j]);
        }
    }
    merge_avx2(c, acc[0], acc[1], keep, 0);
    merge_avx2(c + 16, acc[2], acc[3], keep, 0);
}

EK_AVX2 static void panel_wide_avx2(int k, const void *a, size_t lda, const void *b, float *c,
                                    size_t ldc, const float *keep, int rows)
{
    const float *x = a;
    const ek_bf16 *w = b;

    while (rows > 0) {
        const int r = next_rows(rows, 6);

        switch (r) {
        case 1:
            row_wide_avx2(k, x, w, c, keep);
            break;
#define CALL(R)                                    \
    rows_wide_avx2(R, k, x, lda, w, c, ldc, keep), \
        rows_wide_avx2(R, k, x, lda, w + 32, c + 16, ldc, keep)
            ROW_CASES_2_6(CALL)
#undef CALL
        }
        rows -= r;
        x += (size_t)r * lda;
        c += (size_t)r * ldc;
        keep = keep ? keep + r : NULL;
    }
}

/* Rounding to nearest even on integers; a NaN keeps its upper half, made quiet. */
EK_AVX2 EK_INLINE __m256i nearest_avx2(__m256 x)
{
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i up = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    const __m256i nan = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    const __m256 is_nan = _mm256_cmp_ps(x, x, _CMP_UNORD_Q);

    return _mm256_blendv_epi8(up, nan,
                              _mm256_castps_si256(is_nan)); /* upper halves are the result */
}

EK_AVX2 static void round_avx2(float *to, const float *x, int n)
{
    const __m256i upper = _mm256_set1_epi32((int)0xffff0000u);
    int i = 0;

    for (; i + 8 <= n; i += 8)
        _mm256_storeu_si256((__m256i *)(to + i),
                            _mm256_and_si256(nearest_avx2(_mm256_loadu_ps(x + i)), upper));
    for (; i < n; i++)
        to[i] = ek_from_bf16(ek_to_bf16(x[i]));
}

EK_AVX2 static void to_bf16_avx2(ek_bf16 *to, const float *x, int n)
{
    int i = 0;

    for (; i + 16 <= n; i += 16) {
        const __m256i a = _mm256_srli_epi32(nearest_avx2(_mm256_loadu_ps(x + i)), 16);
        const __m256i b = _mm256_srli_epi32(nearest_avx2(_mm256_loadu_ps(x + i + 8)), 16);

        _mm256_storeu_si256((__m256i *)(to + i),
                            _mm256_permute4x64_epi64(_mm256_packus_epi32(a, b), 0xd8));
    }
    for (; i < n; i++)
        to[i] = ek_to_bf16(x[i]);
}

/* ---- the kits ---- */

static const ek_panel_kit kit_scalar = {
    .f32 = panel_f32_scalar,
    .wide = panel_wide_scalar,
    .to_bf16 = to_bf16_scalar,
    .round = round_scalar,
};
static const ek_panel_kit kit_avx2 = {
    .f32 = panel_f32_avx2,
    .wide = panel_wide_avx2,
    .to_bf16 = to_bf16_avx2,
    .round = round_avx2,
};
static const ek_panel_kit kit_avx512 = {
    .f32 = panel_f32_avx512,
    .wide = panel_wide_avx512,
    .to_bf16 = to_bf16_avx2,
    .round = round_avx2,
};
static const ek_panel_kit kit_avx512bf16 = {
    .f32 = panel_f32_avx512,
    .wide = panel_wide_avx512,
    .bf16 = panel_bf16_avx512,
    .to_bf16 = to_bf16_avx2,
    .round = round_avx2,
};

const ek_panel_kit *ek_panel_kit_of(ek_isa isa)
{
    switch (isa) {
    case EK_ISA_SCALAR:
        return &kit_scalar;
    case EK_ISA_AVX2:
        return &kit_avx2;
    case EK_ISA_AVX512:
    case EK_ISA_AVX512VNNI:
        return &kit_avx512;
    case EK_ISA_AVX512BF16:
        break;
    }
    return &kit_avx512bf16;
}
