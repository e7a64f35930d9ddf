/* core/cpu/matmul.c - products with packed weights: pack, gather, matmul. */
#include "core/cpu/panel.h"

#include "core/bf16.h"

#include <assert.h>
#include <omp.h>
#include <string.h>

/* Where input x of output column c of a panel stands. */
static size_t bf16_at(int x, int c)
{
    return (size_t)(x / 2) * 2 * EK_PANEL + (size_t)c * 2 + (size_t)(x % 2);
}

static void pack_row(ek_weight *w, const float *row, int n)
{
    char *panel = (char *)w->data + ek_panel_bytes(w->type, w->k) * (size_t)(n / EK_PANEL);
    const int c = n % EK_PANEL;

    if (w->type == EK_BF16)
        for (int x = 0; x < w->k; x++)
            ((ek_bf16 *)panel)[bf16_at(x, c)] = ek_to_bf16(row[x]);
    else
        for (int x = 0; x < w->k; x++)
            ((float *)panel)[(size_t)x * EK_PANEL + (size_t)c] = row[x];
}

static void pack_panels(ek_device *dev, ek_weight *w, const float *rows, int first, int n_rows)
{
    (void)dev;
    assert(first >= 0 && n_rows >= 0 && first + n_rows <= w->n);
    /* By panel, so that two threads never write one cache line. */
#pragma omp parallel for schedule(static) if ((int64_t)n_rows * w->k > 32768)
    for (int p = first / EK_PANEL; p <= (first + n_rows - 1) / EK_PANEL; p++)
        for (int n = p * EK_PANEL; n < (p + 1) * EK_PANEL; n++)
            if (n >= first && n < first + n_rows)
                pack_row(w, rows + (size_t)(n - first) * (size_t)w->k, n);
}

static void gather_rows(ek_device *dev, float *out, const ek_weight *w, const int32_t *idx, int m)
{
    (void)dev;
    for (int i = 0; i < m; i++) {
        const int n = idx[i], c = n % EK_PANEL;
        const char *panel =
            (const char *)w->data + ek_panel_bytes(w->type, w->k) * (size_t)(n / EK_PANEL);
        float *row = out + (size_t)i * (size_t)w->k;

        assert(n >= 0 && n < w->n);
        if (w->type == EK_BF16)
            for (int x = 0; x < w->k; x++)
                row[x] = ek_from_bf16(((const ek_bf16 *)panel)[bf16_at(x, c)]);
        else
            for (int x = 0; x < w->k; x++)
                row[x] = ((const float *)panel)[(size_t)x * EK_PANEL + (size_t)c];
    }
}

/* Rows of activations that stay in the second-level cache while panels stream by. */
static int block_rows(size_t row_bytes)
{
    const int fit = (int)((size_t)384 * 1024 / row_bytes) / 12 * 12;

    return fit < 12 ? 12 : fit;
}

/* One panel for some rows.  The last panel of a matrix may have fewer than 32 real columns. */
static void panel_rows(ek_panel_fn *mul, float *out, size_t ldo, const char *x, size_t row_bytes,
                       size_t ldx, const void *panel, const ek_weight *w, int cols, int rows,
                       ek_into into)
{
    static const float ones[12] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    float tile[12 * EK_PANEL];

    if (cols == EK_PANEL && into == EK_SET) {
        mul(ek_panel_inputs(w->type, w->k), x, ldx, panel, out, ldo, NULL, rows);
        return;
    }
    for (int i = 0; i < rows; i += 12) {
        const int n = rows - i < 12 ? rows - i : 12;
        const char *a = x + (size_t)i * row_bytes;
        float *o = out + (size_t)i * ldo;

        if (cols == EK_PANEL) {
            mul(ek_panel_inputs(w->type, w->k), a, ldx, panel, o, ldo, ones, n);
            continue;
        }
        mul(ek_panel_inputs(w->type, w->k), a, ldx, panel, tile, EK_PANEL, NULL, n);
        for (int r = 0; r < n; r++)
            for (int c = 0; c < cols; c++)
                o[(size_t)r * ldo + (size_t)c] =
                    (into == EK_ADD ? o[(size_t)r * ldo + (size_t)c] : 0.0f) +
                    tile[r * EK_PANEL + c];
    }
}

/* Activations in the type the kernel reads, rows of `inputs` numbers, zero behind k. */
static void convert_rows(const ek_panel_kit *kit, char *to, size_t row_bytes, const float *x,
                         size_t ldx, const ek_weight *w, int m)
{
#pragma omp for schedule(static)
    for (int i = 0; i < m; i++) {
        char *row = to + (size_t)i * row_bytes;

        if (kit->bf16)
            kit->to_bf16((ek_bf16 *)row, x + (size_t)i * ldx, w->k);
        else
            kit->round((float *)row, x + (size_t)i * ldx, w->k);
        if (w->k % 2 && kit->bf16)
            ((ek_bf16 *)row)[w->k] = 0;
        else if (w->k % 2)
            ((float *)row)[w->k] = 0.0f;
    }
}

static void matmul_panels(ek_device *dev, float *out, size_t ldo, const float *x, size_t ldx,
                          const ek_weight *w, int m, ek_into into)
{
    const ek_panel_kit *kit = ek_panel_kit_of(dev->isa);
    const int is_bf16 = w->type == EK_BF16, n_panels = ek_panels(w->n);
    const size_t size = is_bf16 && kit->bf16 ? 2 : 4;
    const size_t row_bytes = ek_lines((size_t)ek_panel_inputs(w->type, w->k) * size);
    const size_t panel_bytes = ek_panel_bytes(w->type, w->k);
    const int step = block_rows(row_bytes), n_blocks = (m + step - 1) / step;
    ek_panel_fn *mul = !is_bf16 ? kit->f32 : kit->bf16 ? kit->bf16 : kit->wide;
    /* From seven rows on, four turns of the AVX2 kernel, widening once is cheaper than in each
     * turn; the additions are the same, and so are the bits. */
    const int unpacks = is_bf16 && kit->unpack && m > 6;
    const size_t room = unpacks ? ek_panel_bytes(EK_F32, ek_panel_inputs(w->type, w->k)) : 0;
    const int threads = omp_get_max_threads();
    char *a = is_bf16 ? ek_device_work(dev, row_bytes * (size_t)m + room * (size_t)threads) : NULL;

#pragma omp parallel num_threads(threads) if ((int64_t)m * w->n * w->k > 65536)
    {
        float *wide =
            unpacks ? (float *)(a + row_bytes * (size_t)m + room * (size_t)omp_get_thread_num())
                    : NULL;

        if (is_bf16)
            convert_rows(kit, a, row_bytes, x, ldx, w, m);
            /* K is never split and a row's sums run over k in order, so that neither the number of
             * rows nor the number of threads can change a bit. */
#pragma omp for schedule(static)
        for (int item = 0; item < n_blocks * n_panels; item++) {
            const int i = item / n_panels * step, p = item % n_panels;
            const int rows = m - i < step ? m - i : step;
            const int cols = w->n - p * EK_PANEL < EK_PANEL ? w->n - p * EK_PANEL : EK_PANEL;
            const char *panel = (const char *)w->data + panel_bytes * (size_t)p;
            float *o = out + (size_t)i * ldo + (size_t)p * EK_PANEL;

            if (unpacks && rows > 6) {
                kit->unpack(wide, (const ek_bf16 *)panel, ek_panel_inputs(w->type, w->k));
                panel_rows(kit->f32, o, ldo, a + (size_t)i * row_bytes, row_bytes, row_bytes / size,
                           wide, w, cols, rows, into);
            } else if (is_bf16)
                panel_rows(mul, o, ldo, a + (size_t)i * row_bytes, row_bytes, row_bytes / size,
                           panel, w, cols, rows, into);
            else
                panel_rows(mul, o, ldo, (const char *)(x + (size_t)i * ldx), ldx * 4, ldx, panel, w,
                           cols, rows, into);
        }
    }
}

void ek_cpu_matmul_pick(ek_ops *ops, ek_isa isa)
{
    (void)isa; /* the forms differ in their panel kit alone */
    ops->pack = pack_panels;
    ops->gather = gather_rows;
    ops->matmul = matmul_panels;
}
