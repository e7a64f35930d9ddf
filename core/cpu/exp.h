/* core/cpu/exp.h - the exponential of the wide forms.
 *
 * exp(x) = 2^n p(r) with n = round(x / ln 2), r = x - n ln 2 in two parts, and a polynomial of
 * degree 6: relative error below 3e-7.  exp(-inf) is 0, a NaN stays one.  (The operand order of min
 * and max decides what a NaN does: the second operand is returned.) */
#ifndef EK_CORE_CPU_EXP_H
#define EK_CORE_CPU_EXP_H

#include "core/cpu/cpu.h"

#include <immintrin.h>

#define EK_LOG2E  1.44269504088896341f
#define EK_LN2_HI 0.693359375f
#define EK_LN2_LO (-2.12194440e-4f)

EK_AVX512 EK_INLINE __m512 ek_exp_avx512(__m512 x)
{
    __m512 n, r, p;

    /* Below -104 scalef rounds to 0 by itself. */
    x = _mm512_max_ps(_mm512_set1_ps(-104.0f), _mm512_min_ps(_mm512_set1_ps(89.0f), x));
    n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(EK_LOG2E)),
                             _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    r = _mm512_fnmadd_ps(n, _mm512_set1_ps(EK_LN2_HI), x);
    r = _mm512_fnmadd_ps(n, _mm512_set1_ps(EK_LN2_LO), r);
    p = _mm512_set1_ps(1.0f / 720);
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f / 120));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f / 24));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f / 6));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.5f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
    return _mm512_scalef_ps(p, n);
}

EK_AVX2 EK_INLINE __m256 ek_exp_avx2(__m256 x)
{
    const __m256 low = _mm256_set1_ps(-87.0f);
    const __m256 tiny = _mm256_cmp_ps(x, low, _CMP_LT_OQ); /* these become 0 */
    __m256 n, r, p;
    __m256i e;

    x = _mm256_max_ps(low, _mm256_min_ps(_mm256_set1_ps(88.0f), x));
    n = _mm256_round_ps(_mm256_mul_ps(x, _mm256_set1_ps(EK_LOG2E)),
                        _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    r = _mm256_fnmadd_ps(n, _mm256_set1_ps(EK_LN2_HI), x);
    r = _mm256_fnmadd_ps(n, _mm256_set1_ps(EK_LN2_LO), r);
    p = _mm256_set1_ps(1.0f / 720);
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f / 120));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f / 24));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f / 6));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(0.5f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f));
    /* Of a NaN the conversion gives 0x80000000, which the shift turns into 0. */
    e = _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23);
    p = _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), e));
    return _mm256_andnot_ps(tiny, p);
}

/* The same order of additions every time. */
EK_AVX2 EK_INLINE float ek_sum_avx2(__m256 x)
{
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));

    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

EK_AVX2 EK_INLINE float ek_max_avx2(__m256 x)
{
    __m128 s = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));

    s = _mm_max_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
}

EK_AVX512 EK_INLINE __m256 ek_upper_avx512(__m512 x)
{
    return _mm512_extractf32x8_ps(x, 1);
}

EK_AVX512 EK_INLINE float ek_sum_avx512(__m512 x)
{
    return ek_sum_avx2(_mm256_add_ps(_mm512_castps512_ps256(x), ek_upper_avx512(x)));
}

EK_AVX512 EK_INLINE float ek_max_avx512(__m512 x)
{
    return ek_max_avx2(_mm256_max_ps(_mm512_castps512_ps256(x), ek_upper_avx512(x)));
}

/* Rounded to bf16 and back; a NaN is left alone. */
EK_AVX512 EK_INLINE __m512 ek_meet_avx512(__m512 x)
{
    const __m512i bits = _mm512_castps_si512(x);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i up = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    const __mmask16 number = _mm512_cmp_ps_mask(x, x, _CMP_ORD_Q);
    const __m512i met = _mm512_and_si512(up, _mm512_set1_epi32((int)0xffff0000u));

    return _mm512_castsi512_ps(_mm512_mask_blend_epi32(number, bits, met));
}

EK_AVX2 EK_INLINE __m256 ek_meet_avx2(__m256 x)
{
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i up = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    const __m256i met = _mm256_and_si256(up, _mm256_set1_epi32((int)0xffff0000u));

    return _mm256_blendv_ps(_mm256_castsi256_ps(met), x, _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
}

#endif
