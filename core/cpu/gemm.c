/* core/cpu/gemm.c - the general fp32 product for training, on the calling thread.
 *
 * b goes into panels of 32 columns by 256 k, four at a time, in a buffer of the thread's own; a is
 * read where it lies, rows or columns, since a product here has few panels and packing a would not
 * pay. K is cut every 256, so that a panel stays in the second-level cache: the partial sums of a
 * number meet in order of k, whatever the number of rows. */
#include "core/cpu/panel.h"

#include <immintrin.h>
#include <string.h>

enum { k_most = 256, n_most = 128, rows_most = 96 };

/* Rows k0 .. of op(b), columns n0 ..: cols <= 32 of them, the rest zeros. */
static void pack_panel(float *panel, const float *b, size_t ldb, int tb, int k, int cols)
{
    if (cols < EK_PANEL)
        memset(panel, 0, (size_t)k * EK_PANEL * sizeof *panel);
    if (!tb) {
        for (int l = 0; l < k; l++)
            memcpy(panel + l * EK_PANEL, b + (size_t)l * ldb, (size_t)cols * sizeof *panel);
        return;
    }
    for (int l0 = 0; l0 < k; l0 += 16) /* few lines at a time, since the writes stride */
        for (int j = 0; j < cols; j++)
            for (int l = l0; l < k && l < l0 + 16; l++)
                panel[l * EK_PANEL + j] = b[(size_t)j * ldb + (size_t)l];
}

/* Up to 96 rows against one panel; cols columns of c are real. */
static void rows_panel(const ek_panel_kit *kit, float *c, size_t ldc, const float *a, size_t lda,
                       int ta, const float *panel, int k, int rows, int cols, int add)
{
    static const float ones[rows_most] = {
#define ONES_8 1, 1, 1, 1, 1, 1, 1, 1
        ONES_8, ONES_8, ONES_8, ONES_8, ONES_8, ONES_8,
        ONES_8, ONES_8, ONES_8, ONES_8, ONES_8, ONES_8};
    float tile[rows_most * EK_PANEL];

    if (cols == EK_PANEL) {
        kit->gemm[ta][0](k, a, lda, panel, c, ldc, add ? ones : NULL, rows);
        return;
    }
    kit->gemm[ta][cols <= 16](k, a, lda, panel, tile, EK_PANEL, NULL, rows);
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < cols; j++)
            c[(size_t)i * ldc + (size_t)j] =
                (add ? c[(size_t)i * ldc + (size_t)j] : 0.0f) + tile[i * EK_PANEL + j];
}

static void gemm_panels(ek_device *dev, float *c, size_t ldc, const float *a, size_t lda, int ta,
                        const float *b, size_t ldb, int tb, int m, int n, int k, ek_into into)
{
    static _Thread_local _Alignas(64) float panels[k_most * n_most];
    const ek_panel_kit *kit = ek_panel_kit_of(dev->isa);

    ta = ta != 0;
    for (int i = 0; i < m && k == 0 && into == EK_SET; i++)
        memset(c + (size_t)i * ldc, 0, (size_t)n * sizeof *c);
    for (int n0 = 0; n0 < n; n0 += n_most) {
        const int n_n = n - n0 < n_most ? n - n0 : n_most;

        for (int k0 = 0; k0 < k; k0 += k_most) {
            const int n_k = k - k0 < k_most ? k - k0 : k_most;
            const float *b0 = tb ? b + (size_t)n0 * ldb + k0 : b + (size_t)k0 * ldb + n0;
            const float *a0 = ta ? a + (size_t)k0 * lda : a + k0;

            for (int p = 0; p < n_n; p += EK_PANEL)
                pack_panel(panels + p * k_most, b0 + (tb ? (size_t)p * ldb : (size_t)p), ldb, tb,
                           n_k, n_n - p < EK_PANEL ? n_n - p : EK_PANEL);
            for (int i = 0; i < m; i += rows_most)
                for (int p = 0; p < n_n; p += EK_PANEL)
                    rows_panel(kit, c + (size_t)i * ldc + (size_t)(n0 + p), ldc,
                               ta ? a0 + i : a0 + (size_t)i * lda, lda, ta, panels + p * k_most,
                               n_k, m - i < rows_most ? m - i : rows_most,
                               n_n - p < EK_PANEL ? n_n - p : EK_PANEL, k0 > 0 || into == EK_ADD);
        }
    }
}

void ek_cpu_gemm_pick(ek_ops *ops, ek_isa isa)
{
    (void)isa; /* the forms differ in their panel kit alone */
    ops->gemm = gemm_panels;
}
