/* core/cpu/panel_avx2.c - the micro-kernels for AVX2 with FMA, and conversions for all wide levels.
 */
#include "core/cpu/panel_wide.h"

#include "core/bf16.h"

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

/* Up to here a product is bound by memory. */
enum { few_rows = 12 };

/* Half a panel: 16 of its 32 columns. */
EK_AVX2 EK_INLINE void rows_f32_avx2(const int R, const int T, int k, const float *a, size_t lda,
                                     const float *b, float *c, size_t ldc, const float *keep)
{
    __m256 acc[6][2];

    EK_UNROLL
    for (int i = 0; i < R; i++)
        acc[i][0] = acc[i][1] = _mm256_setzero_ps();
    for (int n = 0; n < k; n++, b += EK_PANEL) {
        const __m256 b0 = _mm256_load_ps(b), b1 = _mm256_load_ps(b + 8);

        EK_UNROLL
        for (int i = 0; i < R; i++) {
            const __m256 x =
                _mm256_set1_ps(T ? a[(size_t)n * lda + (size_t)i] : a[(size_t)i * lda + (size_t)n]);

            acc[i][0] = _mm256_fmadd_ps(x, b0, acc[i][0]);
            acc[i][1] = _mm256_fmadd_ps(x, b1, acc[i][1]);
        }
    }
    EK_UNROLL
    for (int i = 0; i < R; i++)
        merge_avx2(c + (size_t)i * ldc, acc[i][0], acc[i][1], keep, i);
}

/* Few rows over a whole panel: it is read in one stream, as memory likes it. */
EK_AVX2 EK_INLINE void few_f32_avx2(const int R, int k, const float *a, size_t lda, const float *b,
                                    float *c, size_t ldc, const float *keep)
{
    __m256 acc[3][4];

    EK_UNROLL
    for (int i = 0; i < R; i++)
        acc[i][0] = acc[i][1] = acc[i][2] = acc[i][3] = _mm256_setzero_ps();
    for (int n = 0; n < k; n++, b += EK_PANEL) {
        __m256 x[3];

        EK_UNROLL
        for (int i = 0; i < R; i++)
            x[i] = _mm256_set1_ps(a[(size_t)i * lda + (size_t)n]);
        EK_UNROLL
        for (int j = 0; j < 4; j++) {
            const __m256 w = _mm256_load_ps(b + 8 * j);

            EK_UNROLL
            for (int i = 0; i < R; i++)
                acc[i][j] = _mm256_fmadd_ps(x[i], w, acc[i][j]);
        }
    }
    EK_UNROLL
    for (int i = 0; i < R; i++) {
        merge_avx2(c + (size_t)i * ldc, acc[i][0], acc[i][1], keep, i);
        merge_avx2(c + (size_t)i * ldc + 16, acc[i][2], acc[i][3], keep, i);
    }
}

EK_AVX2 EK_INLINE void any_f32_avx2(const int V, const int T, int k, const void *a, size_t lda,
                                    const float *b, float *c, size_t ldc, const float *keep,
                                    int rows)
{
    const float *x = a;

    while (rows > 0) {
        const int few = V == 2 && !T && rows <= few_rows;
        const int r = next_rows(rows, few ? 3 : 6);

        if (few && r == 1)
            few_f32_avx2(1, k, x, lda, b, c, ldc, keep);
        else if (few && r == 2)
            few_f32_avx2(2, k, x, lda, b, c, ldc, keep);
        else if (few)
            few_f32_avx2(3, k, x, lda, b, c, ldc, keep);
        for (int j = 0; j < 16 * V && !few; j += 16)
            switch (r) {
#define CALL(R) rows_f32_avx2(R, T, k, x, lda, b + j, c + j, ldc, keep)
            case 1:
                CALL(1);
                break;
                ROW_CASES_2_6(CALL)
#undef CALL
            }
        rows -= r;
        x += T ? (size_t)r : (size_t)r * lda;
        c += (size_t)r * ldc;
        keep = keep ? keep + r : NULL;
    }
}

EK_AVX2 static void panel_f32_avx2(int k, const void *a, size_t lda, const void *b, float *c,
                                   size_t ldc, const float *keep, int rows)
{
    any_f32_avx2(2, 0, k, a, lda, b, c, ldc, keep, rows);
}

EK_AVX2 static void panel_f32t_avx2(int k, const void *a, size_t lda, const void *b, float *c,
                                    size_t ldc, const float *keep, int rows)
{
    any_f32_avx2(2, 1, k, a, lda, b, c, ldc, keep, rows);
}

EK_AVX2 static void half_f32_avx2(int k, const void *a, size_t lda, const void *b, float *c,
                                  size_t ldc, const float *keep, int rows)
{
    any_f32_avx2(1, 0, k, a, lda, b, c, ldc, keep, rows);
}

EK_AVX2 static void half_f32t_avx2(int k, const void *a, size_t lda, const void *b, float *c,
                                   size_t ldc, const float *keep, int rows)
{
    any_f32_avx2(1, 1, k, a, lda, b, c, ldc, keep, rows);
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

/* One row or two: for more, the panel is unpacked first. */
EK_AVX2 EK_INLINE void rows_wide_avx2(const int R, int k, const float *a, size_t lda,
                                      const ek_bf16 *b, float *c, size_t ldc, const float *keep)
{
    __m256 acc[2][4];

    EK_UNROLL
    for (int i = 0; i < R; i++)
        acc[i][0] = acc[i][1] = acc[i][2] = acc[i][3] = _mm256_setzero_ps();
    for (int n = 0; n < k; n += 2, b += 2 * EK_PANEL) {
        __m256 even[2], odd[2];

        EK_UNROLL
        for (int i = 0; i < R; i++) {
            even[i] = _mm256_set1_ps(a[(size_t)i * lda + (size_t)n]);
            odd[i] = _mm256_set1_ps(a[(size_t)i * lda + (size_t)n + 1]);
        }
        EK_UNROLL
        for (int j = 0; j < 4; j++) {
            const __m256 e = even_avx2(b + 16 * j), o = odd_avx2(b + 16 * j);

            EK_UNROLL
            for (int i = 0; i < R; i++) {
                acc[i][j] = _mm256_fmadd_ps(even[i], e, acc[i][j]);
                acc[i][j] = _mm256_fmadd_ps(odd[i], o, acc[i][j]);
            }
        }
    }
    EK_UNROLL
    for (int i = 0; i < R; i++) {
        merge_avx2(c + (size_t)i * ldc, acc[i][0], acc[i][1], keep, i);
        merge_avx2(c + (size_t)i * ldc + 16, acc[i][2], acc[i][3], keep, i);
    }
}

EK_AVX2 static void panel_wide_avx2(int k, const void *a, size_t lda, const void *b, float *c,
                                    size_t ldc, const float *keep, int rows)
{
    const float *x = a;

    for (; rows > 1; rows -= 2, x += 2 * lda, c += 2 * ldc, keep = keep ? keep + 2 : NULL)
        rows_wide_avx2(2, k, x, lda, b, c, ldc, keep);
    if (rows == 1)
        rows_wide_avx2(1, k, x, lda, b, c, ldc, keep);
}

EK_AVX2 static void unpack_avx2(float *to, const ek_bf16 *panel, int k)
{
    for (int n = 0; n < k; n += 2, panel += 2 * EK_PANEL, to += 2 * EK_PANEL)
        for (int j = 0; j < EK_PANEL; j += 8) {
            _mm256_store_ps(to + j, even_avx2(panel + 2 * j));
            _mm256_store_ps(to + EK_PANEL + j, odd_avx2(panel + 2 * j));
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

EK_AVX2 void ek_round_avx2(float *to, const float *x, int n)
{
    const __m256i upper = _mm256_set1_epi32((int)0xffff0000u);
    int i = 0;

    for (; i + 8 <= n; i += 8)
        _mm256_storeu_si256((__m256i *)(to + i),
                            _mm256_and_si256(nearest_avx2(_mm256_loadu_ps(x + i)), upper));
    for (; i < n; i++)
        to[i] = ek_from_bf16(ek_to_bf16(x[i]));
}

EK_AVX2 void ek_to_bf16_avx2(ek_bf16 *to, const float *x, int n)
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

const ek_panel_kit ek_panel_avx2 = {
    .f32 = panel_f32_avx2,
    .gemm = {{panel_f32_avx2, half_f32_avx2}, {panel_f32t_avx2, half_f32t_avx2}},
    .wide = panel_wide_avx2,
    .unpack = unpack_avx2,
    .to_bf16 = ek_to_bf16_avx2,
    .round = ek_round_avx2,
};
