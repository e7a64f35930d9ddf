/* core/cpu/attn.c - attention of new queries over ragged rows of cached entries. */
#include "core/cpu/soft.h"

#include "core/bf16.h"

#include <math.h>
#include <omp.h>
#include <string.h>

static float item(const void *x, ek_dtype type, size_t i)
{
    return type == EK_F32 ? ((const float *)x)[i] : ek_from_bf16(((const ek_bf16 *)x)[i]);
}

static float meet(float x, ek_dtype type)
{
    return type == EK_F32 ? x : ek_from_bf16(ek_to_bf16(x));
}

/* scale * q . k + bias of slot s of head h. */
static float logit(const ek_view *in, const float *q, int h, int s, float scale)
{
    const size_t e = (size_t)(in->first[h] + s), dim = (size_t)in->head_dim;
    float sum = 0.0f;

    for (size_t d = 0; d < dim; d++)
        sum += meet(q[d], in->dtype) * item(in->k, in->dtype, e * dim + d);
    return in->bias ? sum * scale + in->bias[e] : sum * scale;
}

/* One query of one head over its first n slots: the plain form, two passes over the keys. */
static void attend_scalar(const ek_view *in, const float *q, int h, int n, float scale, float *out,
                          float *lse)
{
    const size_t dim = (size_t)in->head_dim;
    float max = -INFINITY, sum = 0.0f;

    memset(out, 0, dim * sizeof *out);
    for (int s = 0; s < n; s++)
        max = fmaxf(max, logit(in, q, h, s, scale));
    for (int s = 0; s < n && max > -INFINITY; s++) {
        const size_t e = (size_t)(in->first[h] + s);
        const float p = expf(logit(in, q, h, s, scale) - max), met = meet(p, in->dtype);

        sum += p;
        for (size_t d = 0; d < dim; d++)
            out[d] += met * item(in->v, in->dtype, e * dim + d);
    }
    for (size_t d = 0; d < dim && sum != 0.0f; d++)
        out[d] /= sum;
    *lse = sum != 0.0f ? max + logf(sum) : -INFINITY;
}

static void attn_scalar(ek_device *dev, const ek_attn_row *rows, int n_rows, float scale,
                        size_t ldq, size_t ldo)
{
    (void)dev;
    for (int r = 0; r < n_rows; r++) {
        const ek_attn_row *row = &rows[r];
        const ek_view *in = &row->view;
        const int heads = in->n_heads * in->group;

#pragma omp parallel for schedule(dynamic) collapse(2)
        for (int t = 0; t < row->n_new; t++)
            for (int x = 0; x < heads; x++) {
                const int h = x / in->group, n = in->n[h] - row->n_new + t + 1;
                const size_t at = (size_t)x * (size_t)in->head_dim;
                const float *q = row->q + (size_t)t * ldq + at;
                float *lse = row->lse + (size_t)t * (size_t)heads + x;

                attend_scalar(in, q, h, n, scale, row->out + (size_t)t * ldo + at, lse);
                for (int s = 0; row->prob && t == row->n_new - 1 && s < n; s++)
                    row->prob[(size_t)(in->first[h] + s) * (size_t)in->group +
                              (size_t)(x % in->group)] = expf(logit(in, q, h, s, scale) - *lse);
            }
    }
}

/* ---- wide forms ----
 *
 * A unit of work is a block of queries of one kv head, all its query heads together, over a run of
 * entries; 64 entries at a time, 12 rows (query, head) at a time: products, softmax, products, all
 * within the first-level cache.
 *  - Rows with many new queries (prefill): each head's keys and values become panels once; a unit
 * is 64 queries over everything they see.  Tiles past the last query's sight are skipped.
 *  - Rows with few (decode): a unit is all queries over a chunk of 256 entries, packed on the way;
 * the chunks of a head are merged in order.  So even one row keeps several threads busy. Which of
 * the two is a matter of n_new alone, and units are cut by slot: a row's bits depend neither on its
 * company, nor on threads, nor on where its columns lie in memory. */

enum { few = 16, chunk = 256, block_rows = 12 };

/* Queries of a unit. */
static int unit_queries(const ek_attn_row *row)
{
    const int fit = 192 / row->view.group;

    return row->n_new <= few ? row->n_new : fit < 1 ? 1 : fit < 64 ? fit : 64;
}

static int is_split(const ek_attn_row *row)
{
    return row->n_new <= few;
}

static int ceil_div(int a, int b)
{
    return (a + b - 1) / b;
}

/* Numbers per row of gathered values: whole panels. */
static int padded_dim(const ek_view *in)
{
    return ek_panels(in->head_dim) * EK_PANEL;
}

/* One thread's room. */
typedef struct room {
    char *q;  /* (rows, head_dim) operands */
    float *o; /* (rows, padded dim) gathered values */
    float *max, *sum;
    char *keys, *values; /* one tile each, where nobody packed them before */
    float *s;            /* (12, 64) */
    char *p;             /* (12, 64) operands */
    float *bias;         /* (64) */
} room;

typedef struct unit {
    int32_t row, head, part; /* part: which block of queries, or which chunk */
} unit;

/* What a call shares. */
typedef struct call {
    const ek_attn_row *rows;
    int n_rows;
    float scale;
    size_t ldq, ldo;
    const ek_panel_kit *panel;
    const ek_tile_kit *tile;
    const ek_soft_kit *soft;
    ek_isa isa;
    unit *pack, *work, *prob; /* the units of three passes */
    int n_pack, n_work, n_prob, n_merge;
    size_t *packed_at; /* (n_rows, heads + 1 apart by head_room) where a head's panels start */
    size_t *parts_at;  /* where a head's chunks start */
    int head_room;     /* most heads of a row */
    char *packed, *parts, *rooms;
    size_t room_bytes;
} call;

static ek_dtype type_of(const call *c, const ek_view *in)
{
    return ek_tile_type(c->isa, in->dtype);
}

static size_t tiles_bytes(const call *c, const ek_view *in)
{
    return ek_key_tile_bytes(type_of(c, in), in->head_dim) +
           ek_value_tile_bytes(type_of(c, in), in->head_dim);
}

/* Bytes of one chunk's result: max, sum and values of each of its rows. */
static size_t part_bytes(const ek_attn_row *row)
{
    const size_t rows = (size_t)row->n_new * (size_t)row->view.group;

    return ek_lines(rows * (size_t)(padded_dim(&row->view) + 2) * sizeof(float));
}

static size_t carve_room(const call *c, room *r, char *at)
{
    size_t q = 0, o = 0, tile_k = 0, tile_v = 0, rows_most = 0;
    char *start = at;

    for (int i = 0; i < c->n_rows; i++) {
        const ek_view *in = &c->rows[i].view;
        const size_t rows = (size_t)unit_queries(&c->rows[i]) * (size_t)in->group;
        const ek_dtype type = type_of(c, in);
        const size_t k = ek_key_tile_bytes(type, in->head_dim);
        const size_t v = ek_value_tile_bytes(type, in->head_dim);
        const size_t q_row = rows * (size_t)in->head_dim * (size_t)ek_dtype_size(type);
        const size_t o_row = rows * (size_t)padded_dim(in) * sizeof(float);

        rows_most = rows > rows_most ? rows : rows_most;
        q = q_row > q ? q_row : q;
        o = o_row > o ? o_row : o;
        tile_k = k > tile_k ? k : tile_k;
        tile_v = v > tile_v ? v : tile_v;
    }
    r->q = at;
    r->o = (float *)(at += ek_lines(q));
    r->max = (float *)(at += ek_lines(o));
    r->sum = (float *)(at += ek_lines(rows_most * sizeof(float)));
    r->keys = at += ek_lines(rows_most * sizeof(float));
    r->values = at += ek_lines(tile_k);
    r->s = (float *)(at += ek_lines(tile_v));
    r->p = at += block_rows * EK_TILE * sizeof(float);
    r->bias = (float *)(at += block_rows * EK_TILE * sizeof(float));
    at += EK_TILE * sizeof(float);
    return (size_t)(at - start);
}

/* The tile's biases, padded to 64. */
static const float *tile_bias(const ek_view *in, float *to, size_t e, int n)
{
    if (!in->bias)
        return NULL;
    memcpy(to, in->bias + e, (size_t)n * sizeof *to);
    memset(to + n, 0, (size_t)(EK_TILE - n) * sizeof *to);
    return to;
}

/* The block of rows from r0 meets a tile of n entries of which row r0 + i sees seen[i]. */
static void meet_tile(const call *c, const ek_view *in, const room *m, int r0, const int *seen,
                      int rows, const char *keys, const char *values, const float *bias)
{
    const ek_dtype type = type_of(c, in);
    const int dim = in->head_dim, dpad = padded_dim(in);
    const size_t size = (size_t)ek_dtype_size(type);
    ek_panel_fn *mul = type == EK_BF16 ? c->panel->bf16 : c->panel->f32;
    const char *q = m->q + (size_t)r0 * (size_t)dim * size;
    float keep[block_rows];
    int most = seen[rows - 1];

    mul(dim, q, (size_t)dim, keys, m->s, EK_TILE, NULL, rows);
    mul(dim, q, (size_t)dim, keys + ek_panel_bytes(type, dim), m->s + EK_PANEL, EK_TILE, NULL,
        rows);
    c->soft->rows(&(ek_soft){.rows = rows,
                             .scale = c->scale,
                             .bias = bias,
                             .n = seen,
                             .s = m->s,
                             .p = m->p,
                             .type = type,
                             .meet = in->dtype == EK_BF16,
                             .max = m->max + r0,
                             .sum = m->sum + r0,
                             .keep = keep});
    most += most % 2; /* panels of bf16 hold pairs; what is past the last entry is 0 */
    for (int p = 0; p < dpad / EK_PANEL; p++)
        mul(most, m->p, EK_TILE, values + (size_t)p * EK_TILE * EK_PANEL * size,
            m->o + (size_t)r0 * (size_t)dpad + (size_t)p * EK_PANEL, (size_t)dpad, keep, rows);
}

/* Logits of the last query's heads, as far as they are in this block, to where probabilities go. */
static void leave_logits(const ek_attn_row *row, const float *s, int r0, int rows, size_t e, int n)
{
    const int group = row->view.group, last = (row->n_new - 1) * group;
    float *to = row->prob + e * (size_t)group;

    for (int r = last > r0 ? last : r0; r < r0 + rows; r++)
        for (int j = 0; j < n; j++)
            to[j * group + r - last] = s[(r - r0) * EK_TILE + j];
}

/* Queries t0 .. t0 + n_t - 1 over slots from .. to - 1 (from: a multiple of 64); packed: their
 * panels, of slot 0 onwards, or NULL. */
static void run_unit(const call *c, const ek_attn_row *row, int h, int t0, int n_t, int from,
                     int to, const char *packed, const room *m)
{
    const ek_view *in = &row->view;
    const ek_dtype type = type_of(c, in);
    const int group = in->group, rows = n_t * group, dim = in->head_dim;
    const size_t key_bytes = ek_key_tile_bytes(type, dim),
                 vector = (size_t)ek_view_vector_bytes(in);

    for (int r = 0; r < rows; r++) {
        const float *q = row->q + (size_t)(t0 + r / group) * c->ldq +
                         (size_t)(h * group + r % group) * (size_t)dim;

        ek_tile_operand(c->panel, m->q + (size_t)r * (size_t)dim * (size_t)ek_dtype_size(type),
                        type, q, in->dtype, dim);
        m->max[r] = -INFINITY;
        m->sum[r] = 0.0f;
    }
    memset(m->o, 0, (size_t)rows * (size_t)padded_dim(in) * sizeof *m->o);
    for (int s = from; s < to; s += EK_TILE) {
        const int n = to - s < EK_TILE ? to - s : EK_TILE;
        const size_t e = (size_t)(in->first[h] + s);
        const char *keys = packed ? packed + tiles_bytes(c, in) * (size_t)(s / EK_TILE) : m->keys;
        const char *values = packed ? keys + key_bytes : m->values;
        const float *bias = tile_bias(in, m->bias, e, n);

        if (!packed) {
            c->tile->keys(m->keys, type, (const char *)in->k + e * vector, in->dtype, n, dim);
            c->tile->values(m->values, type, (const char *)in->v + e * vector, in->dtype, n, dim);
        }
        for (int r0 = 0; r0 < rows; r0 += block_rows) {
            const int block = rows - r0 < block_rows ? rows - r0 : block_rows;
            int seen[block_rows];

            for (int i = 0; i < block; i++) {
                const int sight = in->n[h] - row->n_new + t0 + (r0 + i) / group + 1 - s;

                seen[i] = sight < 0 ? 0 : sight < n ? sight : n;
            }
            if (seen[block - 1] == 0) /* rows see ever more */
                continue;
            meet_tile(c, in, m, r0, seen, block, keys, values, bias);
            if (row->prob && !packed)
                leave_logits(row, m->s, r0, block, e, n);
        }
    }
}

/* Divide what a row has gathered by its sum. */
static void finish_row(float *out, float *lse, const float *o, float max, float sum, int dim)
{
    if (sum == 0.0f) { /* it has seen nothing; a NaN is not 0 and goes on */
        memset(out, 0, (size_t)dim * sizeof *out);
        *lse = -INFINITY;
        return;
    }
    for (int d = 0; d < dim; d++)
        out[d] = o[d] / sum;
    *lse = max + logf(sum);
}

static size_t head_index(const call *c, int row, int h)
{
    return (size_t)row * (size_t)c->head_room + (size_t)h;
}

static void do_pack(const call *c, const unit *u)
{
    const ek_view *in = &c->rows[u->row].view;
    const ek_dtype type = type_of(c, in);
    const int s = u->part * EK_TILE, left = in->n[u->head] - s;
    const size_t at = (size_t)(in->first[u->head] + s) * (size_t)ek_view_vector_bytes(in);
    char *to = c->packed + c->packed_at[head_index(c, u->row, u->head)] +
               tiles_bytes(c, in) * (size_t)u->part;
    const int n = left < EK_TILE ? left : EK_TILE;

    c->tile->keys(to, type, (const char *)in->k + at, in->dtype, n, in->head_dim);
    c->tile->values(to + ek_key_tile_bytes(type, in->head_dim), type, (const char *)in->v + at,
                    in->dtype, n, in->head_dim);
}

static void do_block(const call *c, const unit *u, const room *m)
{
    const ek_attn_row *row = &c->rows[u->row];
    const ek_view *in = &row->view;
    const int t0 = u->part * unit_queries(row), heads = in->n_heads * in->group;
    const int n_t = row->n_new - t0 < unit_queries(row) ? row->n_new - t0 : unit_queries(row);
    const int to = in->n[u->head] - row->n_new + t0 + n_t;

    run_unit(c, row, u->head, t0, n_t, 0, to,
             c->packed + c->packed_at[head_index(c, u->row, u->head)], m);
    for (int r = 0; r < n_t * in->group; r++) {
        const size_t t = (size_t)(t0 + r / in->group);
        const int x = u->head * in->group + r % in->group;

        finish_row(row->out + t * c->ldo + (size_t)x * (size_t)in->head_dim,
                   row->lse + t * (size_t)heads + x, m->o + (size_t)r * (size_t)padded_dim(in),
                   m->max[r], m->sum[r], in->head_dim);
    }
}

static void do_chunk(const call *c, const unit *u, const room *m)
{
    const ek_attn_row *row = &c->rows[u->row];
    const ek_view *in = &row->view;
    const int from = u->part * chunk, n = in->n[u->head];
    const size_t rows = (size_t)row->n_new * (size_t)in->group;
    float *part = (float *)(c->parts + c->parts_at[head_index(c, u->row, u->head)] +
                            part_bytes(row) * (size_t)u->part);

    run_unit(c, row, u->head, 0, row->n_new, from, n - from < chunk ? n : from + chunk, NULL, m);
    memcpy(part, m->max, rows * sizeof *part);
    memcpy(part + rows, m->sum, rows * sizeof *part);
    memcpy(part + 2 * rows, m->o, rows * (size_t)padded_dim(in) * sizeof *part);
}

/* The chunks of one head, in order. */
static void do_merge(const call *c, int r, int h, const room *m)
{
    const ek_attn_row *row = &c->rows[r];
    const ek_view *in = &row->view;
    const int heads = in->n_heads * in->group, n_parts = ceil_div(in->n[h], chunk);
    const size_t rows = (size_t)row->n_new * (size_t)in->group, dpad = (size_t)padded_dim(in);
    const char *parts = c->parts + c->parts_at[head_index(c, r, h)];

    for (size_t i = 0; i < rows; i++) {
        const size_t t = i / (size_t)in->group;
        const int x = h * in->group + (int)(i % (size_t)in->group);
        float max = -INFINITY, sum = 0.0f;

        for (int p = 0; p < n_parts; p++)
            max = fmaxf(max, ((const float *)(parts + part_bytes(row) * (size_t)p))[i]);
        memset(m->o, 0, dpad * sizeof *m->o);
        for (int p = 0; p < n_parts; p++) {
            const float *part = (const float *)(parts + part_bytes(row) * (size_t)p);
            const float *o = part + 2 * rows + i * dpad;
            const float f = expf(part[i] - (max == -INFINITY ? 0.0f : max));

            sum += part[rows + i] * f;
            for (size_t d = 0; d < dpad; d++)
                m->o[d] += o[d] * f;
        }
        finish_row(row->out + t * c->ldo + (size_t)x * (size_t)in->head_dim,
                   row->lse + t * (size_t)heads + x, m->o, max, sum, in->head_dim);
    }
}

/* Probabilities of the last query on one chunk.  A split row has left its logits there. */
static void do_prob(const call *c, const unit *u, const room *m)
{
    const ek_attn_row *row = &c->rows[u->row];
    const ek_view *in = &row->view;
    const ek_dtype type = type_of(c, in);
    const int h = u->head, group = in->group, from = u->part * chunk, dim = in->head_dim;
    const int n = in->n[h] - from < chunk ? in->n[h] - from : chunk;
    const size_t e0 = (size_t)(in->first[h] + from), size = (size_t)ek_dtype_size(type);
    const float *lse =
        row->lse + (size_t)(row->n_new - 1) * (size_t)(in->n_heads * group) + h * group;
    const float *q = row->q + (size_t)(row->n_new - 1) * c->ldq + (size_t)(h * group * dim);

    for (int s = 0; s < n && !is_split(row); s += EK_TILE) {
        const char *keys = c->packed + c->packed_at[head_index(c, u->row, h)] +
                           tiles_bytes(c, in) * (size_t)((from + s) / EK_TILE);
        ek_panel_fn *mul = type == EK_BF16 ? c->panel->bf16 : c->panel->f32;

        for (int g = 0; g < group; g++) {
            ek_tile_operand(c->panel, m->q, type, q + (size_t)(g * dim), in->dtype, dim);
            for (int p = 0; p < EK_TILE / EK_PANEL; p++)
                mul(dim, m->q, (size_t)dim, keys + (size_t)p * EK_PANEL * (size_t)dim * size,
                    m->s + p * EK_PANEL, EK_TILE, NULL, 1);
            for (int j = s; j < n && j < s + EK_TILE; j++)
                row->prob[(e0 + (size_t)j) * (size_t)group + (size_t)g] =
                    m->s[j - s] * c->scale + (in->bias ? in->bias[e0 + (size_t)j] : 0.0f);
        }
    }
    c->soft->prob(row->prob + e0 * (size_t)group, lse, group, (size_t)n * (size_t)group);
}

/* Cut the call into units: called once to count (unit lists NULL), once to write. */
static void cut(call *c, size_t *packed_bytes, size_t *parts_bytes)
{
    c->n_pack = c->n_work = c->n_prob = c->n_merge = 0;
    *packed_bytes = *parts_bytes = 0;
    for (int r = 0; r < c->n_rows; r++) {
        const ek_attn_row *row = &c->rows[r];
        const ek_view *in = &row->view;
        const int n_blocks = ceil_div(row->n_new, unit_queries(row));

        for (int h = 0; h < in->n_heads; h++) {
            const int n_tiles = is_split(row) ? 0 : ceil_div(in->n[h], EK_TILE);
            const int n_chunks = ceil_div(in->n[h], chunk);

            if (c->pack) {
                c->packed_at[head_index(c, r, h)] = *packed_bytes;
                c->parts_at[head_index(c, r, h)] = *parts_bytes;
            }
            *packed_bytes += (size_t)n_tiles * tiles_bytes(c, in);
            *parts_bytes += is_split(row) ? (size_t)n_chunks * part_bytes(row) : 0;
            for (int p = 0; p < n_tiles; p++, c->n_pack++)
                if (c->pack)
                    c->pack[c->n_pack] = (unit){r, h, p};
            for (int p = 0; p < n_chunks && is_split(row); p++, c->n_work++)
                if (c->pack)
                    c->work[c->n_work] = (unit){r, h, p};
            for (int p = 0; p < n_chunks && row->prob; p++, c->n_prob++)
                if (c->pack)
                    c->prob[c->n_prob] = (unit){r, h, p};
            c->n_merge += is_split(row);
        }
        /* The last queries see most: they go first, so that no thread is left with them alone. */
        for (int p = n_blocks - 1; p >= 0 && !is_split(row); p--)
            for (int h = 0; h < in->n_heads; h++, c->n_work++)
                if (c->pack)
                    c->work[c->n_work] = (unit){r, h, p};
    }
}

static void plan(ek_device *dev, call *c, int threads)
{
    size_t packed_bytes, parts_bytes, units, heads;
    room none;
    char *at;

    for (int r = 0; r < c->n_rows; r++)
        if (c->rows[r].view.n_heads > c->head_room)
            c->head_room = c->rows[r].view.n_heads;
    cut(c, &packed_bytes, &parts_bytes);
    c->room_bytes = carve_room(c, &none, (char *)c); /* only the size counts */
    units = ek_lines((size_t)(c->n_pack + c->n_work + c->n_prob) * sizeof(unit));
    heads = ek_lines((size_t)c->n_rows * (size_t)c->head_room * sizeof(size_t));
    at = ek_device_work(dev, units + 2 * heads + packed_bytes + parts_bytes +
                                 c->room_bytes * (size_t)threads);
    c->rooms = at;
    c->packed = at += c->room_bytes * (size_t)threads;
    c->parts = at += packed_bytes;
    c->packed_at = (size_t *)(at += parts_bytes);
    c->parts_at = (size_t *)(at += heads);
    c->pack = (unit *)(at + heads);
    c->work = c->pack + c->n_pack;
    c->prob = c->work + c->n_work;
    cut(c, &packed_bytes, &parts_bytes);
}

static void run_call(const call *c)
{
    room m;

    carve_room(c, &m, c->rooms + c->room_bytes * (size_t)omp_get_thread_num());
    if (c->n_pack > 0) {
#pragma omp for schedule(static)
        for (int i = 0; i < c->n_pack; i++)
            do_pack(c, &c->pack[i]);
    }
#pragma omp for schedule(dynamic)
    for (int i = 0; i < c->n_work; i++)
        if (is_split(&c->rows[c->work[i].row]))
            do_chunk(c, &c->work[i], &m);
        else
            do_block(c, &c->work[i], &m);
    if (c->n_merge > 0) {
#pragma omp for schedule(static)
        for (int i = 0; i < c->n_rows * c->head_room; i++)
            if (is_split(&c->rows[i / c->head_room]) &&
                i % c->head_room < c->rows[i / c->head_room].view.n_heads)
                do_merge(c, i / c->head_room, i % c->head_room, &m);
    }
    if (c->n_prob > 0) {
#pragma omp for schedule(static)
        for (int i = 0; i < c->n_prob; i++)
            do_prob(c, &c->prob[i], &m);
    }
}

static void attn_tiles(ek_device *dev, const ek_attn_row *rows, int n_rows, float scale, size_t ldq,
                       size_t ldo)
{
    const int threads = omp_get_max_threads();
    call c = {.rows = rows,
              .n_rows = n_rows,
              .scale = scale,
              .ldq = ldq,
              .ldo = ldo,
              .panel = ek_panel_kit_of(dev->isa),
              .tile = ek_tile_kit_of(dev->isa),
              .soft = ek_soft_kit_of(dev->isa),
              .isa = dev->isa};

    plan(dev, &c, threads);
#pragma omp parallel num_threads(threads)
    run_call(&c);
}

void ek_cpu_attn_pick(ek_ops *ops, ek_isa isa)
{
    ops->attn = isa >= EK_ISA_AVX2 ? attn_tiles : attn_scalar;
}
