/* core/cpu/tile.c - packing cached vectors. */
#include "core/cpu/tile.h"

#include "core/bf16.h"

#include <immintrin.h>
#include <string.h>

ek_dtype ek_tile_type(ek_isa isa, ek_dtype storage)
{
    return storage == EK_BF16 && ek_panel_kit_of(isa)->bf16 ? EK_BF16 : EK_F32;
}

void ek_tile_operand(const ek_panel_kit *kit, void *to, ek_dtype type, const float *x,
                     ek_dtype storage, int n)
{
    if (type == EK_BF16)
        kit->to_bf16(to, x, n);
    else if (storage == EK_BF16)
        kit->round(to, x, n);
    else
        memcpy(to, x, (size_t)n * sizeof(float));
}

/* ---- scalar ---- */

/* A key tile is a transposition of 32-bit words: pairs of bf16, or floats. */
static void keys_scalar(void *tile, ek_dtype to, const void *x, ek_dtype from, int n, int dim)
{
    const int words = from == EK_BF16 ? dim / 2 : dim;
    const size_t half = ek_panel_bytes(to, dim) / 4; /* floats or pairs in a panel */

    for (int j = 0; j < EK_TILE; j++) {
        uint32_t *out = (uint32_t *)tile + half * (size_t)(j / EK_PANEL) + j % EK_PANEL;
        const uint32_t *in = (const uint32_t *)x + (size_t)j * (size_t)words;

        for (int w = 0; w < words; w++) {
            const uint32_t bits = j < n ? in[w] : 0;

            if (to == from) {
                out[w * EK_PANEL] = bits;
            } else {
                out[2 * w * EK_PANEL] = bits << 16;
                out[(2 * w + 1) * EK_PANEL] = bits & 0xffff0000u;
            }
        }
    }
}

static void values_scalar(void *tile, ek_dtype to, const void *x, ek_dtype from, int n, int dim)
{
    const size_t panel = (size_t)EK_TILE * EK_PANEL;

    memset(tile, 0, ek_value_tile_bytes(to, dim));
    for (int j = 0; j < n; j++)
        for (int d = 0; d < dim; d++) {
            const size_t in = (size_t)j * (size_t)dim + (size_t)d;
            const size_t p = panel * (size_t)(d / EK_PANEL);
            const int c = d % EK_PANEL;

            if (to == EK_BF16)
                ((ek_bf16 *)tile)[p + (size_t)(j / 2 * 2 * EK_PANEL + 2 * c + j % 2)] =
                    ((const ek_bf16 *)x)[in];
            else
                ((float *)tile)[p + (size_t)(j * EK_PANEL + c)] =
                    from == EK_F32 ? ((const float *)x)[in]
                                   : ek_from_bf16(((const ek_bf16 *)x)[in]);
        }
}

/* ---- AVX2: panels are fp32 ---- */

/* Eight rows of 8 words to eight columns of 8 words. */
EK_AVX2 EK_INLINE void transpose8(__m256i out[8], const __m256i in[8])
{
    __m256i u[8];

    EK_UNROLL
    for (int i = 0; i < 8; i += 4) { /* 4 x 4 blocks within each half of a register */
        const __m256i a = _mm256_unpacklo_epi32(in[i], in[i + 1]);
        const __m256i b = _mm256_unpackhi_epi32(in[i], in[i + 1]);
        const __m256i c = _mm256_unpacklo_epi32(in[i + 2], in[i + 3]);
        const __m256i d = _mm256_unpackhi_epi32(in[i + 2], in[i + 3]);

        u[i] = _mm256_unpacklo_epi64(a, c);
        u[i + 1] = _mm256_unpackhi_epi64(a, c);
        u[i + 2] = _mm256_unpacklo_epi64(b, d);
        u[i + 3] = _mm256_unpackhi_epi64(b, d);
    }
    EK_UNROLL
    for (int c = 0; c < 4; c++) { /* then the halves */
        out[c] = _mm256_permute2x128_si256(u[c], u[4 + c], 0x20);
        out[4 + c] = _mm256_permute2x128_si256(u[c], u[4 + c], 0x31);
    }
}

EK_AVX2 static void keys_avx2(void *tile, ek_dtype to, const void *x, ek_dtype from, int n, int dim)
{
    const __m256i upper = _mm256_set1_epi32((int)0xffff0000u);
    const int words = from == EK_BF16 ? dim / 2 : dim;

    if (to == EK_BF16 || words % 8 != 0) {
        keys_scalar(tile, to, x, from, n, dim);
        return;
    }
    for (int j = 0; j < EK_TILE; j += 8) {
        float *out = (float *)tile + dim * EK_PANEL * (j / EK_PANEL) + j % EK_PANEL;

        for (int w = 0; w < words; w += 8) {
            __m256i row[8], col[8];

            EK_UNROLL
            for (int i = 0; i < 8; i++)
                row[i] = j + i < n ? _mm256_loadu_si256((const __m256i *)((const uint32_t *)x +
                                                                          (j + i) * words + w))
                                   : _mm256_setzero_si256();
            transpose8(col, row);
            EK_UNROLL
            for (int c = 0; c < 8; c++)
                if (from == EK_F32) {
                    _mm256_store_si256((__m256i *)(out + (w + c) * EK_PANEL), col[c]);
                } else {
                    _mm256_store_si256((__m256i *)(out + 2 * (w + c) * EK_PANEL),
                                       _mm256_slli_epi32(col[c], 16));
                    _mm256_store_si256((__m256i *)(out + (2 * (w + c) + 1) * EK_PANEL),
                                       _mm256_and_si256(col[c], upper));
                }
        }
    }
}

EK_AVX2 static void values_avx2(void *tile, ek_dtype to, const void *x, ek_dtype from, int n,
                                int dim)
{
    float *out = tile;

    if (to == EK_BF16 || dim % 8 != 0) {
        values_scalar(tile, to, x, from, n, dim);
        return;
    }
    if (n < EK_TILE || dim % EK_PANEL != 0)
        memset(tile, 0, ek_value_tile_bytes(to, dim));
    for (int j = 0; j < n; j++)
        for (int d = 0; d < dim; d += 8) {
            const int at = j * dim + d;
            __m256i v;

            if (from == EK_F32)
                v = _mm256_loadu_si256((const __m256i *)((const float *)x + at));
            else
                v = _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(
                                          (const __m128i *)((const ek_bf16 *)x + at))),
                                      16);
            _mm256_store_si256(
                (__m256i *)(out + d / EK_PANEL * EK_TILE * EK_PANEL + j * EK_PANEL + d % EK_PANEL),
                v);
        }
}

/* ---- AVX-512 ---- */

/* Sixteen rows of 16 words to sixteen columns of 16 words. */
EK_AVX512 EK_INLINE void transpose16(__m512i out[16], const __m512i in[16])
{
    __m512i u[16];

    EK_UNROLL
    for (int i = 0; i < 16; i += 4) { /* 4 x 4 blocks within each quarter of a register */
        const __m512i a = _mm512_unpacklo_epi32(in[i], in[i + 1]);
        const __m512i b = _mm512_unpackhi_epi32(in[i], in[i + 1]);
        const __m512i c = _mm512_unpacklo_epi32(in[i + 2], in[i + 3]);
        const __m512i d = _mm512_unpackhi_epi32(in[i + 2], in[i + 3]);

        u[i] = _mm512_unpacklo_epi64(a, c);
        u[i + 1] = _mm512_unpackhi_epi64(a, c);
        u[i + 2] = _mm512_unpacklo_epi64(b, d);
        u[i + 3] = _mm512_unpackhi_epi64(b, d);
    }
    EK_UNROLL
    for (int c = 0; c < 4; c++) { /* then the quarters */
        const __m512i a = _mm512_shuffle_i32x4(u[c], u[4 + c], 0x88);
        const __m512i b = _mm512_shuffle_i32x4(u[c], u[4 + c], 0xdd);
        const __m512i d = _mm512_shuffle_i32x4(u[8 + c], u[12 + c], 0x88);
        const __m512i e = _mm512_shuffle_i32x4(u[8 + c], u[12 + c], 0xdd);

        out[c] = _mm512_shuffle_i32x4(a, d, 0x88);
        out[4 + c] = _mm512_shuffle_i32x4(b, e, 0x88);
        out[8 + c] = _mm512_shuffle_i32x4(a, d, 0xdd);
        out[12 + c] = _mm512_shuffle_i32x4(b, e, 0xdd);
    }
}

EK_AVX512 static void keys_avx512(void *tile, ek_dtype to, const void *x, ek_dtype from, int n,
                                  int dim)
{
    const __m512i upper = _mm512_set1_epi32((int)0xffff0000u);
    const int words = from == EK_BF16 ? dim / 2 : dim;
    const size_t half = ek_panel_bytes(to, dim) / 4;

    for (int j = 0; j < EK_TILE; j += 16) {
        uint32_t *out = (uint32_t *)tile + half * (size_t)(j / EK_PANEL) + j % EK_PANEL;

        for (int w = 0; w < words; w += 16) {
            const int cols = words - w < 16 ? words - w : 16;
            const __mmask16 real = (__mmask16)((1u << cols) - 1);
            __m512i row[16], col[16];

            EK_UNROLL
            for (int i = 0; i < 16; i++)
                row[i] = j + i < n
                             ? _mm512_maskz_loadu_epi32(
                                   real, (const uint32_t *)x + (size_t)(j + i) * (size_t)words + w)
                             : _mm512_setzero_si512();
            transpose16(col, row);
            if (to == from)
                for (int c = 0; c < cols; c++)
                    _mm512_store_si512(out + (w + c) * EK_PANEL, col[c]);
            else
                for (int c = 0; c < cols; c++) {
                    _mm512_store_si512(out + 2 * (w + c) * EK_PANEL, _mm512_slli_epi32(col[c], 16));
                    _mm512_store_si512(out + (2 * (w + c) + 1) * EK_PANEL,
                                       _mm512_and_si512(col[c], upper));
                }
        }
    }
}

/* Two vectors' numbers taken in turn: columns 0..15 of a panel, then 16..31. */
EK_AVX512 static void values_pairs_avx512(ek_bf16 *tile, const ek_bf16 *x, int n, int dim)
{
    __m512i low, high;
    int16_t at[2][32];

    for (int c = 0; c < 32; c++) {
        at[0][c] = (int16_t)(c / 2 + (c % 2 ? 32 : 0));
        at[1][c] = (int16_t)(16 + c / 2 + (c % 2 ? 32 : 0));
    }
    low = _mm512_loadu_si512(at[0]);
    high = _mm512_loadu_si512(at[1]);
    for (int d = 0; d < dim; d += EK_PANEL, tile += EK_TILE * EK_PANEL) {
        const __mmask32 real =
            dim - d < EK_PANEL ? (__mmask32)((1u << (dim - d)) - 1) : (__mmask32)0xffffffffu;

        for (int j = 0; j < EK_TILE; j += 2) {
            const ek_bf16 *row = x + (size_t)j * (size_t)dim + d;
            const __m512i a = j < n ? _mm512_maskz_loadu_epi16(real, row) : _mm512_setzero_si512();
            const __m512i b =
                j + 1 < n ? _mm512_maskz_loadu_epi16(real, row + dim) : _mm512_setzero_si512();

            _mm512_store_si512(tile + j * EK_PANEL, _mm512_permutex2var_epi16(a, low, b));
            _mm512_store_si512(tile + (j + 1) * EK_PANEL, _mm512_permutex2var_epi16(a, high, b));
        }
    }
}

EK_AVX512 static void values_avx512(void *tile, ek_dtype to, const void *x, ek_dtype from, int n,
                                    int dim)
{
    float *out = tile;

    if (to == EK_BF16) {
        values_pairs_avx512(tile, x, n, dim);
        return;
    }
    for (int d = 0; d < dim; d += 16) {
        const __mmask16 real = (__mmask16)(dim - d < 16 ? (1u << (dim - d)) - 1 : 0xffffu);
        float *col = out + (size_t)(d / EK_PANEL) * EK_TILE * EK_PANEL + d % EK_PANEL;

        for (int j = 0; j < EK_TILE; j++) {
            const size_t at = (size_t)j * (size_t)dim + (size_t)d;
            __m512 v = _mm512_setzero_ps();

            if (j < n && from == EK_F32)
                v = _mm512_maskz_loadu_ps(real, (const float *)x + at);
            else if (j < n)
                v = _mm512_castsi512_ps(_mm512_slli_epi32(
                    _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(real, (const ek_bf16 *)x + at)),
                    16));
            _mm512_store_ps(col + j * EK_PANEL, v);
        }
        if (dim - d <= 16 && d % EK_PANEL == 0) /* the rest of a half panel */
            for (int j = 0; j < EK_TILE; j++)
                _mm512_store_ps(col + j * EK_PANEL + 16, _mm512_setzero_ps());
    }
}

/* ---- the kits ---- */

const ek_tile_kit *ek_tile_kit_of(ek_isa isa)
{
    static const ek_tile_kit plain = {.keys = keys_scalar, .values = values_scalar};
    static const ek_tile_kit avx2 = {.keys = keys_avx2, .values = values_avx2};
    static const ek_tile_kit avx512 = {.keys = keys_avx512, .values = values_avx512};

    return isa >= EK_ISA_AVX512 ? &avx512 : isa >= EK_ISA_AVX2 ? &avx2 : &plain;
}
