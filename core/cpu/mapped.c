/* core/cpu/mapped.c - attention over entries that have a key and, by a fixed map, a value.
 *
 * The sums over entries are taken of keys before rotation; the map meets a query head's sum once,
 * when that is merged with what attention has found among entries with values. */
#include "core/cpu/soft.h"

#include "core/bf16.h"

#include <assert.h>
#include <immintrin.h>
#include <math.h>
#include <omp.h>
#include <string.h>

/* Numbers the map reads. */
static int n_inputs(const ek_mapped_row *row)
{
    return row->joint ? row->view.n_heads * row->view.head_dim : row->view.head_dim;
}

static void widen(float *to, const ek_view *in, size_t e)
{
    const size_t dim = (size_t)in->head_dim, at = e * dim;

    if (in->dtype == EK_F32)
        memcpy(to, (const float *)in->k + at, dim * sizeof *to);
    else
        for (size_t d = 0; d < dim; d++)
            to[d] = ek_from_bf16(((const ek_bf16 *)in->k)[at + d]);
}

/* x of slot s of head h: the map's input. */
static void input_of(const ek_mapped_row *row, const ek_unrope *u, int h, int s, float *x)
{
    const ek_view *in = &row->view;

    for (int g = row->joint ? 0 : h; g < (row->joint ? in->n_heads : h + 1); g++) {
        const size_t e = (size_t)(in->first[g] + s);

        widen(x, in, e);
        ek_cpu_unrope_one(u, x, in->pos[e]);
        x += in->head_dim;
    }
}

static int32_t newest(const ek_mapped_row *rows, int n_rows)
{
    int32_t last = 0;

    for (int r = 0; r < n_rows; r++) {
        const ek_view *in = &rows[r].view;

        for (int h = 0; h < in->n_heads; h++)
            if (in->n[h] > 0 && in->pos[in->first[h] + in->n[h] - 1] > last)
                last = in->pos[in->first[h] + in->n[h] - 1];
    }
    return last;
}

/* w (rows, n) x, one number after the other. */
static float dot_scalar(const float *w, const float *x, int n)
{
    float sum = 0.0f;

    for (int i = 0; i < n; i++)
        sum += w[i] * x[i];
    return sum;
}

EK_AVX2 static float dot_avx2(const float *w, const float *x, int n)
{
    __m256 a = _mm256_setzero_ps(), b = _mm256_setzero_ps();
    float sum;
    int i = 0;

    for (; i + 16 <= n; i += 16) {
        a = _mm256_fmadd_ps(_mm256_loadu_ps(w + i), _mm256_loadu_ps(x + i), a);
        b = _mm256_fmadd_ps(_mm256_loadu_ps(w + i + 8), _mm256_loadu_ps(x + i + 8), b);
    }
    a = _mm256_add_ps(a, b);
    {
        __m128 s = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));

        s = _mm_add_ps(s, _mm_movehl_ps(s, s));
        sum = _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
    }
    for (; i < n; i++)
        sum += w[i] * x[i];
    return sum;
}

typedef float dot_fn(const float *w, const float *x, int n);

/* Merge one query head's sums over mapped entries, max and sum of their exponentials and x (the
 * weighted sum of inputs, overwritten), with what attention has left. */
static void merge(const ek_mapped_row *row, dot_fn *dot, int h, float max, float sum, float *x,
                  float *out, float *lse)
{
    const int dim = row->view.head_dim, n = n_inputs(row);
    const float *w = row->w + (size_t)h * (size_t)dim * (size_t)n, *b = row->b + h * dim;
    float top, mine, theirs, all;

    if (sum == 0.0f) /* no entries; a NaN is not 0 and goes on */
        return;
    for (int i = 0; i < n; i++)
        x[i] /= sum;
    mine = max + logf(sum);
    top = *lse > mine ? *lse : mine;
    theirs = expf(*lse - top);
    mine = expf(mine - top);
    all = mine + theirs;
    for (int d = 0; d < dim; d++)
        out[d] = (theirs * out[d] + mine * (dot(w + (size_t)d * (size_t)n, x, n) + b[d])) / all;
    *lse = top + logf(all);
}

/* ---- scalar: one query of one head, two passes over the keys ---- */

static float logit(const ek_view *in, const float *q, int h, int s, float scale)
{
    const size_t e = (size_t)(in->first[h] + s), dim = (size_t)in->head_dim;
    float sum = 0.0f;

    for (size_t d = 0; d < dim; d++)
        sum += in->dtype == EK_F32 ? q[d] * ((const float *)in->k)[e * dim + d]
                                   : ek_from_bf16(ek_to_bf16(q[d])) *
                                         ek_from_bf16(((const ek_bf16 *)in->k)[e * dim + d]);
    return sum * scale;
}

/* x, all: (n_inputs) each. */
static void attend_scalar(const ek_mapped_row *row, const ek_unrope *u, const float *q, int h,
                          float scale, float *x, float *all, float *out, float *lse)
{
    const ek_view *in = &row->view;
    const int n = n_inputs(row);
    float max = -INFINITY, sum = 0.0f;

    memset(all, 0, (size_t)n * sizeof *all);
    for (int s = 0; s < in->n[h]; s++)
        max = fmaxf(max, logit(in, q, h, s, scale));
    for (int s = 0; s < in->n[h]; s++) {
        const float p = expf(logit(in, q, h, s, scale) - max);

        sum += p;
        input_of(row, u, h, s, x);
        for (int i = 0; i < n; i++)
            all[i] += p * x[i];
    }
    merge(row, dot_scalar, h, max, sum, all, out, lse);
}

static void mapped_scalar(ek_device *dev, const ek_mapped_row *rows, int n_rows, float scale,
                          size_t ldq, size_t ldo, const double *inv_freq)
{
    size_t room = 0;
    ek_unrope u;
    float *work;

    for (int r = 0; r < n_rows; r++)
        if ((size_t)n_inputs(&rows[r]) > room)
            room = (size_t)n_inputs(&rows[r]);
    if (n_rows < 1)
        return;
    u = ek_cpu_unrope(dev, newest(rows, n_rows), rows[0].view.head_dim, inv_freq);
    work = ek_device_work(dev, (size_t)omp_get_max_threads() * 2 * room * sizeof *work);
    for (int r = 0; r < n_rows; r++) {
        const ek_mapped_row *row = &rows[r];
        const int group = row->view.group, heads = row->view.n_heads * group;

#pragma omp parallel for schedule(dynamic) collapse(2)
        for (int t = 0; t < row->n_new; t++)
            for (int x = 0; x < heads; x++) {
                const size_t at = (size_t)x * (size_t)row->view.head_dim;
                float *mine = work + (size_t)omp_get_thread_num() * 2 * room;

                attend_scalar(row, &u, row->q + (size_t)t * ldq + at, x / group, scale, mine,
                              mine + room, row->out + (size_t)t * ldo + at,
                              row->lse + (size_t)t * (size_t)heads + x);
            }
    }
}

/* ---- wide forms ----
 *
 * As in attn.c: a unit of work is a block of queries of one kv head, all its query heads together,
 * over a chunk of entries, 64 at a time; a chunk is 256 entries where queries are few and all of
 * them where they are many.  A tile's keys become panels, and again, rotation taken back, as the
 * fp32 rows that are summed.  The chunks of a head are merged in order. */

enum { few = 16, chunk = 256, block_rows = 12 };

typedef struct unit {
    int32_t row, head, block, part; /* block of queries; part: chunk of entries */
} unit;

typedef struct room { /* one thread's */
    char *q, *keys;   /* (rows, head_dim) operands; one tile */
    float *x;         /* (inputs) one vector */
    float *values;    /* one tile of inputs as fp32 panels */
    float *s, *p;     /* (12, 64) each */
} room;

typedef struct call {
    const ek_mapped_row *rows;
    int n_rows;
    float scale;
    size_t ldq, ldo;
    ek_isa isa;
    const ek_panel_kit *panel;
    const ek_tile_kit *tile;
    const ek_soft_kit *soft;
    ek_unrope unrope;
    unit *work, *merge;
    int n_work, n_merge;
    size_t *parts_at; /* (n_rows, head_room) floats: where the results of a head's units start */
    int head_room;
    float *parts;
    char *rooms;
    size_t room_bytes;
} call;

static int unit_queries(const ek_mapped_row *row)
{
    const int fit = 192 / row->view.group;

    return row->n_new <= few ? row->n_new : fit < 1 ? 1 : fit < 64 ? fit : 64;
}

static int ceil_div(int a, int b)
{
    return (a + b - 1) / b;
}

static int n_blocks(const ek_mapped_row *row)
{
    return ceil_div(row->n_new, unit_queries(row));
}

static int n_parts(const ek_mapped_row *row, int h)
{
    const int n = row->view.n[h];

    return n == 0 ? 0 : row->n_new <= few ? ceil_div(n, chunk) : 1;
}

static size_t padded_inputs(const ek_mapped_row *row)
{
    return (size_t)ek_panels(n_inputs(row)) * EK_PANEL;
}

/* Floats of one unit's result: max and sum of each of its rows, then their sums of inputs. */
static size_t part_size(const ek_mapped_row *row)
{
    const size_t rows = (size_t)unit_queries(row) * (size_t)row->view.group;

    return (2 * ek_lines(rows * sizeof(float)) / sizeof(float)) + rows * padded_inputs(row);
}

static float *part_of(const call *c, const ek_mapped_row *row, const unit *u)
{
    const size_t head = (size_t)u->row * (size_t)c->head_room + (size_t)u->head;
    const int i = u->block * n_parts(row, u->head) + u->part;

    return c->parts + c->parts_at[head] + part_size(row) * (size_t)i;
}

/* Cut the call into units: called once to count (work NULL), once to write.  Returns the floats of
 * all parts. */
static size_t cut(call *c)
{
    size_t floats = 0;

    c->n_work = c->n_merge = 0;
    for (int r = 0; r < c->n_rows; r++) {
        const ek_mapped_row *row = &c->rows[r];

        for (int h = 0; h < row->view.n_heads; h++) {
            if (c->work)
                c->parts_at[(size_t)r * (size_t)c->head_room + (size_t)h] = floats;
            floats += part_size(row) * (size_t)n_parts(row, h) * (size_t)n_blocks(row);
            for (int b = 0; b < n_blocks(row) && n_parts(row, h) > 0; b++, c->n_merge++) {
                if (c->work)
                    c->merge[c->n_merge] = (unit){r, h, b, 0};
                for (int p = 0; p < n_parts(row, h); p++, c->n_work++)
                    if (c->work)
                        c->work[c->n_work] = (unit){r, h, b, p};
            }
        }
    }
    return floats;
}

/* Where the pieces of a room lie, from `at` on; returns its bytes. */
static size_t carve_room(const call *c, room *m, char *at)
{
    size_t q = 0, keys = 0, inputs = 0;
    char *start = at;

    for (int i = 0; i < c->n_rows; i++) {
        const ek_view *in = &c->rows[i].view;
        const ek_dtype type = ek_tile_type(c->isa, in->dtype);
        const size_t rows = (size_t)unit_queries(&c->rows[i]) * (size_t)in->group;
        const size_t q_row = rows * (size_t)in->head_dim * (size_t)ek_dtype_size(type);
        const size_t tile = ek_key_tile_bytes(type, in->head_dim);

        q = q_row > q ? q_row : q;
        keys = tile > keys ? tile : keys;
        inputs = padded_inputs(&c->rows[i]) > inputs ? padded_inputs(&c->rows[i]) : inputs;
    }
    m->q = at;
    m->keys = at += ek_lines(q);
    m->x = (float *)(at += ek_lines(keys));
    m->values = (float *)(at += ek_lines(inputs * sizeof(float)));
    m->s = (float *)(at += inputs * EK_TILE * sizeof(float));
    m->p = (float *)(at += block_rows * EK_TILE * sizeof(float));
    at += block_rows * EK_TILE * sizeof(float);
    return (size_t)(at - start);
}

static void plan(ek_device *dev, call *c, int threads)
{
    size_t floats, units, heads;
    room none;
    char *at;

    for (int r = 0; r < c->n_rows; r++)
        if (c->rows[r].view.n_heads > c->head_room)
            c->head_room = c->rows[r].view.n_heads;
    floats = cut(c);
    c->room_bytes = carve_room(c, &none, (char *)c); /* only the size counts */
    units = ek_lines((size_t)(c->n_work + c->n_merge) * sizeof(unit));
    heads = ek_lines((size_t)c->n_rows * (size_t)c->head_room * sizeof(size_t));
    at = ek_device_work(dev, c->room_bytes * (size_t)threads + ek_lines(floats * sizeof(float)) +
                                 heads + units);
    c->rooms = at;
    c->parts = (float *)(at += c->room_bytes * (size_t)threads);
    c->parts_at = (size_t *)(at += ek_lines(floats * sizeof(float)));
    c->work = (unit *)(at + heads);
    c->merge = c->work + c->n_work;
    (void)cut(c);
}

/* Where number i of vector j lies in a tile of inputs. */
static inline size_t tile_at(int i, int j)
{
    return (size_t)(i / EK_PANEL) * EK_TILE * EK_PANEL + (size_t)j * EK_PANEL +
           (size_t)(i % EK_PANEL);
}

EK_AVX2 EK_INLINE __m256 load_key(const ek_view *in, size_t i)
{
    if (in->dtype == EK_F32)
        return _mm256_loadu_ps((const float *)in->k + i);
    return _mm256_castsi256_ps(_mm256_slli_epi32(
        _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)((const ek_bf16 *)in->k + i))), 16));
}

/* One key straight into the tile as numbers i0 .. of vector j; cs: its cosines, then its sines.
 * Half a vector is whole registers, and the products are rounded as in rope.c: the same bits. */
EK_AVX2 static void lay_key(const ek_view *in, size_t e, const float *cs, float *values, int i0,
                            int j)
{
    const int half = in->head_dim / 2;
    const size_t at = e * (size_t)in->head_dim;

    for (int i = 0; i < half; i += 8) {
        const __m256 a = load_key(in, at + (size_t)i), b = load_key(in, at + (size_t)(half + i));
        const __m256 c = _mm256_loadu_ps(cs + i), s = _mm256_loadu_ps(cs + half + i);

        _mm256_storeu_ps(values + tile_at(i0 + i, j),
                         _mm256_add_ps(_mm256_mul_ps(a, c), _mm256_mul_ps(b, s)));
        _mm256_storeu_ps(values + tile_at(i0 + half + i, j),
                         _mm256_sub_ps(_mm256_mul_ps(b, c), _mm256_mul_ps(a, s)));
    }
}

/* n vectors from slot s on as rows of fp32 panels, rotation taken back. */
static void lay_inputs(const call *c, const ek_mapped_row *row, int h, int s, int n, const room *m)
{
    const ek_view *in = &row->view;
    const ek_unrope *u = &c->unrope;
    const int inputs = n_inputs(row), dim = in->head_dim;

    if (inputs % EK_PANEL != 0) /* the last panel's unused columns */
        memset(m->values + tile_at(inputs / EK_PANEL * EK_PANEL, 0), 0,
               (size_t)EK_TILE * EK_PANEL * sizeof(float));
    for (int j = 0; j < n; j++)
        for (int g = row->joint ? 0 : h, i0 = 0; i0 < inputs; g++, i0 += dim) {
            const size_t e = (size_t)(in->first[g] + s + j);

            if (dim % 16 == 0 && in->pos[e] < u->n_pos) {
                lay_key(in, e, u->cs + (size_t)in->pos[e] * (size_t)dim, m->values, i0, j);
                continue;
            }
            widen(m->x, in, e);
            ek_cpu_unrope_one(u, m->x, in->pos[e]);
            for (int i = 0; i < dim; i++)
                m->values[tile_at(i0 + i, j)] = m->x[i];
        }
}

/* Rows r0 .. of a unit meet a tile of n entries. */
static void meet_tile(const call *c, const ek_mapped_row *row, const room *m, int r0, int rows,
                      int n, float *max, float *sum, float *o)
{
    const ek_view *in = &row->view;
    const ek_dtype type = ek_tile_type(c->isa, in->dtype);
    const int dim = in->head_dim;
    const size_t wide = padded_inputs(row);
    ek_panel_fn *mul = type == EK_BF16 ? c->panel->bf16 : c->panel->f32;
    const char *q = m->q + (size_t)r0 * (size_t)dim * (size_t)ek_dtype_size(type);
    float keep[block_rows];
    int seen[block_rows];

    for (int i = 0; i < rows; i++)
        seen[i] = n;
    for (int p = 0; p < EK_TILE / EK_PANEL; p++)
        mul(dim, q, (size_t)dim, m->keys + (size_t)p * ek_panel_bytes(type, dim),
            m->s + p * EK_PANEL, EK_TILE, NULL, rows);
    c->soft->rows(&(ek_soft){.rows = rows,
                             .scale = c->scale,
                             .n = seen,
                             .s = m->s,
                             .p = m->p,
                             .type = EK_F32,
                             .max = max + r0,
                             .sum = sum + r0,
                             .keep = keep});
    for (size_t i = 0; i < wide; i += EK_PANEL)
        c->panel->f32(n, m->p, EK_TILE, m->values + i * EK_TILE, o + (size_t)r0 * wide + i, wide,
                      keep, rows);
}

static void do_unit(const call *c, const unit *u, const room *m)
{
    const ek_mapped_row *row = &c->rows[u->row];
    const ek_view *in = &row->view;
    const ek_dtype type = ek_tile_type(c->isa, in->dtype);
    const int group = in->group, dim = in->head_dim, t0 = u->block * unit_queries(row);
    const int n_t = row->n_new - t0 < unit_queries(row) ? row->n_new - t0 : unit_queries(row);
    const int rows = n_t * group, from = row->n_new <= few ? u->part * chunk : 0;
    const int to =
        row->n_new <= few && in->n[u->head] - from > chunk ? from + chunk : in->n[u->head];
    const size_t most = (size_t)unit_queries(row) * (size_t)group;
    float *max = part_of(c, row, u), *sum = max + ek_lines(most * sizeof(float)) / sizeof(float);
    float *o = sum + ek_lines(most * sizeof(float)) / sizeof(float);

    for (int r = 0; r < rows; r++) {
        const float *q = row->q + (size_t)(t0 + r / group) * c->ldq +
                         (size_t)(u->head * group + r % group) * (size_t)dim;

        ek_tile_operand(c->panel, m->q + (size_t)r * (size_t)dim * (size_t)ek_dtype_size(type),
                        type, q, in->dtype, dim);
        max[r] = -INFINITY;
        sum[r] = 0.0f;
    }
    memset(o, 0, (size_t)rows * padded_inputs(row) * sizeof *o);
    for (int s = from; s < to; s += EK_TILE) {
        const int n = to - s < EK_TILE ? to - s : EK_TILE;
        const size_t e = (size_t)(in->first[u->head] + s);

        c->tile->keys(m->keys, type, (const char *)in->k + e * (size_t)ek_view_vector_bytes(in),
                      in->dtype, n, dim);
        lay_inputs(c, row, u->head, s, n, m);
        for (int r0 = 0; r0 < rows; r0 += block_rows)
            meet_tile(c, row, m, r0, rows - r0 < block_rows ? rows - r0 : block_rows, n, max, sum,
                      o);
    }
}

/* The chunks of a block of queries of one head, in order; then the map. */
static void do_merge(const call *c, const unit *u, const room *m)
{
    const ek_mapped_row *row = &c->rows[u->row];
    const int group = row->view.group, heads = row->view.n_heads * group;
    const int t0 = u->block * unit_queries(row), parts = n_parts(row, u->head);
    const int n_t = row->n_new - t0 < unit_queries(row) ? row->n_new - t0 : unit_queries(row);
    const size_t most = (size_t)unit_queries(row) * (size_t)group, wide = padded_inputs(row);
    const size_t line = ek_lines(most * sizeof(float)) / sizeof(float), size = part_size(row);
    const float *part = part_of(c, row, u);

    for (int r = 0; r < n_t * group; r++) {
        const size_t t = (size_t)(t0 + r / group), x = (size_t)(u->head * group + r % group);
        float max = -INFINITY, sum = 0.0f;

        for (int p = 0; p < parts; p++)
            max = fmaxf(max, part[size * (size_t)p + (size_t)r]);
        memset(m->x, 0, wide * sizeof *m->x);
        for (int p = 0; p < parts; p++) {
            const float *of = part + size * (size_t)p;
            const float *o = of + 2 * line + (size_t)r * wide;
            const float f = expf(of[r] - (max == -INFINITY ? 0.0f : max));

            sum += of[line + (size_t)r] * f;
            for (size_t i = 0; i < wide; i++)
                m->x[i] += o[i] * f;
        }
        merge(row, dot_avx2, u->head, max, sum, m->x,
              row->out + t * c->ldo + x * (size_t)row->view.head_dim,
              row->lse + t * (size_t)heads + x);
    }
}

static void run_call(const call *c)
{
    room m;

    carve_room(c, &m, c->rooms + c->room_bytes * (size_t)omp_get_thread_num());
#pragma omp for schedule(dynamic)
    for (int i = 0; i < c->n_work; i++)
        do_unit(c, &c->work[i], &m);
#pragma omp for schedule(static)
    for (int i = 0; i < c->n_merge; i++)
        do_merge(c, &c->merge[i], &m);
}

static void mapped_tiles(ek_device *dev, const ek_mapped_row *rows, int n_rows, float scale,
                         size_t ldq, size_t ldo, const double *inv_freq)
{
    const int threads = omp_get_max_threads();
    call c = {.rows = rows,
              .n_rows = n_rows,
              .scale = scale,
              .ldq = ldq,
              .ldo = ldo,
              .isa = dev->isa,
              .panel = ek_panel_kit_of(dev->isa),
              .tile = ek_tile_kit_of(dev->isa),
              .soft = ek_soft_kit_of(dev->isa)};

    if (n_rows < 1)
        return;
    for (int r = 0; r < n_rows; r++)
        assert(rows[r].view.head_dim == rows[0].view.head_dim && !rows[r].view.bias);
    c.unrope = ek_cpu_unrope(dev, newest(rows, n_rows), rows[0].view.head_dim, inv_freq);
    plan(dev, &c, threads);
#pragma omp parallel num_threads(threads)
    run_call(&c);
}

void ek_cpu_mapped_pick(ek_ops *ops, ek_isa isa)
{
    ops->attn_mapped = isa >= EK_ISA_AVX2 ? mapped_tiles : mapped_scalar;
}
