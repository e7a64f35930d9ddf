/* core/cpu/panel_avx512.c - the micro-kernels for AVX-512, with and without bf16 dot products. */
#include "core/cpu/panel_wide.h"

#include <string.h>

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

EK_AVX512 EK_INLINE void half_avx512(float *c, __m512 acc, const float *keep, int i)
{
    if (keep)
        acc = _mm512_fmadd_ps(_mm512_loadu_ps(c), _mm512_set1_ps(keep[i]), acc);
    _mm512_storeu_ps(c, acc);
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

/* T: a is stored (k, rows).  V: how many of the panel's two halves are wanted. */
EK_AVX512 EK_INLINE void rows_f32_avx512(const int R, const int V, const int T, int k,
                                         const float *a, size_t lda, const float *b, float *c,
                                         size_t ldc, const float *keep)
{
    __m512 acc[12][2];

    EK_UNROLL
    for (int i = 0; i < R; i++)
        acc[i][0] = acc[i][1] = _mm512_setzero_ps();
    for (int n = 0; n < k; n++, b += EK_PANEL) {
        const __m512 b0 = _mm512_load_ps(b);
        const __m512 b1 = V == 2 ? _mm512_load_ps(b + 16) : b0;

        EK_UNROLL
        for (int i = 0; i < R; i++) {
            const __m512 x =
                _mm512_set1_ps(T ? a[(size_t)n * lda + (size_t)i] : a[(size_t)i * lda + (size_t)n]);

            acc[i][0] = _mm512_fmadd_ps(x, b0, acc[i][0]);
            if (V == 2)
                acc[i][1] = _mm512_fmadd_ps(x, b1, acc[i][1]);
        }
    }
    EK_UNROLL
    for (int i = 0; i < R; i++)
        if (V == 2)
            merge_avx512(c + (size_t)i * ldc, acc[i][0], acc[i][1], keep, i);
        else
            half_avx512(c + (size_t)i * ldc, acc[i][0], keep, i);
}

EK_AVX512 EK_INLINE void any_f32_avx512(const int V, const int T, int k, const void *a, size_t lda,
                                        const void *b, float *c, size_t ldc, const float *keep,
                                        int rows)
{
    const float *x = a;

    while (rows > 0) {
        const int r = next_rows(rows, 12);

        switch (r) {
#define CALL(R) rows_f32_avx512(R, V, T, k, x, lda, b, c, ldc, keep)
            ROW_CASES_12(CALL)
#undef CALL
        }
        rows -= r;
        x += T ? (size_t)r : (size_t)r * lda;
        c += (size_t)r * ldc;
        keep = keep ? keep + r : NULL;
    }
}

EK_AVX512 static void panel_f32_avx512(int k, const void *a, size_t lda, const void *b, float *c,
                                       size_t ldc, const float *keep, int rows)
{
    any_f32_avx512(2, 0, k, a, lda, b, c, ldc, keep, rows);
}

EK_AVX512 static void panel_f32t_avx512(int k, const void *a, size_t lda, const void *b, float *c,
                                        size_t ldc, const float *keep, int rows)
{
    any_f32_avx512(2, 1, k, a, lda, b, c, ldc, keep, rows);
}

EK_AVX512 static void half_f32_avx512(int k, const void *a, size_t lda, const void *b, float *c,
                                      size_t ldc, const float *keep, int rows)
{
    any_f32_avx512(1, 0, k, a, lda, b, c, ldc, keep, rows);
}

EK_AVX512 static void half_f32t_avx512(int k, const void *a, size_t lda, const void *b, float *c,
                                       size_t ldc, const float *keep, int rows)
{
    any_f32_avx512(1, 1, k, a, lda, b, c, ldc, keep, rows);
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

const ek_panel_kit ek_panel_avx512 = {
    .f32 = panel_f32_avx512,
    .gemm = {{panel_f32_avx512, half_f32_avx512}, {panel_f32t_avx512, half_f32t_avx512}},
    .wide = panel_wide_avx512,
    .to_bf16 = ek_to_bf16_avx2,
    .round = ek_round_avx2,
};
const ek_panel_kit ek_panel_avx512bf16 = {
    .f32 = panel_f32_avx512,
    .gemm = {{panel_f32_avx512, half_f32_avx512}, {panel_f32t_avx512, half_f32t_avx512}},
    .wide = panel_wide_avx512,
    .bf16 = panel_bf16_avx512,
    .to_bf16 = ek_to_bf16_avx2,
    .round = ek_round_avx2,
};
