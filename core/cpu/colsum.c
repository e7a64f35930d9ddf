/* core/cpu/colsum.c - column sums of attention. */
#include "core/cpu/exp.h"
#include "core/cpu/tile.h"

#include "core/bf16.h"

#include <assert.h>
#include <math.h>
#include <omp.h>
#include <string.h>

/* One entry: the queries that may look at it, in order. */
static void column_scalar(const ek_colsum *c, int h, int e, float scale)
{
    const ek_view *in = &c->view;
    const int dim = in->head_dim, heads = in->n_heads * in->group;
    const int64_t from = (int64_t)in->pos[e] + c->delay - c->q_pos;
    const int64_t to = c->horizon < 0 ? c->n_q - 1 : from + c->horizon;

    for (int64_t i = from < 0 ? 0 : from; i < c->n_q && i <= to; i++) {
        int used = !c->weight;

        for (int s = 0; s < c->n_sets && !used; s++)
            used = c->weight[(size_t)s * (size_t)c->n_q + (size_t)i] != 0.0f;
        for (int g = 0; used && g < in->group; g++) {
            const int x = h * in->group + g;
            const float *q = c->q + (size_t)i * c->ldq + (size_t)x * (size_t)dim;
            float sum = 0.0f, p;

            for (int d = 0; d < dim; d++) {
                const size_t at = (size_t)e * (size_t)dim + (size_t)d;

                sum += in->dtype == EK_F32 ? q[d] * ((const float *)in->k)[at]
                                           : ek_from_bf16(ek_to_bf16(q[d])) *
                                                 ek_from_bf16(((const ek_bf16 *)in->k)[at]);
            }
            p = expf(sum * scale + (in->bias ? in->bias[e] : 0.0f) -
                     c->lse[(size_t)i * (size_t)heads + (size_t)x]);
            for (int s = 0; s < c->n_sets; s++)
                c->sum[s][(size_t)e * (size_t)in->group + (size_t)g] +=
                    c->weight ? c->weight[(size_t)s * (size_t)c->n_q + (size_t)i] * p : p;
        }
    }
}

static void colsum_scalar(ek_device *dev, const ek_colsum *c, float scale)
{
    (void)dev;
    for (int h = 0; h < c->view.n_heads; h++) {
#pragma omp parallel for schedule(dynamic, 16)
        for (int s = 0; s < c->view.n[h]; s++)
            column_scalar(c, h, c->view.first[h] + s, scale);
    }
}

/* ---- wide forms ----
 *
 * Tiles of 64 keys outside, queries inside, so that a column's sum is one thread's own.  Queries of
 * no weight are left out before anything else; the others of one query head meet a tile in blocks
 * of 12 (blocks are counted from the first used query, whatever the tile): products, exponentials,
 * and the block's sums in registers, added to the tile's. */

enum { block_rows = 12, sets_most = 4 };

/* One block of queries of one head against one tile. */
typedef struct meeting {
    int rows, sets; /* sets 0: all weights are 1 */
    float scale;
    const float *s;            /* (rows, 64) products */
    const float *bias;         /* (64) or NULL */
    const float *lse;          /* (rows) */
    const float *w[sets_most]; /* (rows) each */
    const int32_t *query;      /* (rows) */
    const int32_t *from, *to;  /* (64) first and last query that may look; NULL: all may */
    float *acc[sets_most];     /* (64) each, added to */
} meeting;

EK_AVX512 EK_INLINE void meet_sets_avx512(const int n, const int weighted, const int masked,
                                          const meeting *m)
{
    for (int j = 0; j < EK_TILE; j += 16) {
        const __m512 scale = _mm512_set1_ps(m->scale);
        const __m512 bias = m->bias ? _mm512_loadu_ps(m->bias + j) : _mm512_setzero_ps();
        const __m512i from = masked ? _mm512_loadu_si512(m->from + j) : _mm512_setzero_si512();
        const __m512i to = masked ? _mm512_loadu_si512(m->to + j) : _mm512_setzero_si512();
        __m512 acc[sets_most];

        EK_UNROLL
        for (int k = 0; k < n; k++)
            acc[k] = _mm512_setzero_ps();
        for (int i = 0; i < m->rows; i++) {
            const __m512 shift = _mm512_sub_ps(bias, _mm512_set1_ps(m->lse[i]));
            __m512 p = ek_exp_avx512(
                _mm512_fmadd_ps(_mm512_loadu_ps(m->s + i * EK_TILE + j), scale, shift));

            if (masked) {
                const __m512i q = _mm512_set1_epi32(m->query[i]);
                const __mmask16 sees =
                    _mm512_cmple_epi32_mask(from, q) & _mm512_cmple_epi32_mask(q, to);

                p = _mm512_maskz_mov_ps(sees, p);
            }
            EK_UNROLL
            for (int k = 0; k < n; k++)
                acc[k] = _mm512_fmadd_ps(_mm512_set1_ps(weighted ? m->w[k][i] : 1.0f), p, acc[k]);
        }
        EK_UNROLL
        for (int k = 0; k < n; k++)
            _mm512_storeu_ps(m->acc[k] + j, _mm512_add_ps(_mm512_loadu_ps(m->acc[k] + j), acc[k]));
    }
}

EK_AVX512 static void meet_avx512(const meeting *m)
{
    switch (m->sets * 2 + (m->from != NULL)) {
    case 0:
        meet_sets_avx512(1, 0, 0, m);
        break;
    case 1:
        meet_sets_avx512(1, 0, 1, m);
        break;
    case 2:
        meet_sets_avx512(1, 1, 0, m);
        break;
    case 3:
        meet_sets_avx512(1, 1, 1, m);
        break;
    case 4:
        meet_sets_avx512(2, 1, 0, m);
        break;
    case 5:
        meet_sets_avx512(2, 1, 1, m);
        break;
    case 6:
        meet_sets_avx512(3, 1, 0, m);
        break;
    case 7:
        meet_sets_avx512(3, 1, 1, m);
        break;
    case 8:
        meet_sets_avx512(4, 1, 0, m);
        break;
    default:
        meet_sets_avx512(4, 1, 1, m);
    }
}

EK_AVX2 static void meet_avx2(const meeting *m)
{
    const int n_acc = m->sets ? m->sets : 1;

    for (int j = 0; j < EK_TILE; j += 8) {
        const __m256 bias = m->bias ? _mm256_loadu_ps(m->bias + j) : _mm256_setzero_ps();
        __m256 acc[sets_most];

        for (int k = 0; k < sets_most; k++)
            acc[k] = _mm256_setzero_ps();
        for (int i = 0; i < m->rows; i++) {
            const __m256 shift = _mm256_sub_ps(bias, _mm256_set1_ps(m->lse[i]));
            __m256 p = ek_exp_avx2(_mm256_fmadd_ps(_mm256_loadu_ps(m->s + i * EK_TILE + j),
                                                   _mm256_set1_ps(m->scale), shift));

            if (m->from) {
                const __m256i q = _mm256_set1_epi32(m->query[i]);
                const __m256i from = _mm256_loadu_si256((const __m256i *)(m->from + j));
                const __m256i to = _mm256_loadu_si256((const __m256i *)(m->to + j));
                const __m256i hidden =
                    _mm256_or_si256(_mm256_cmpgt_epi32(from, q), _mm256_cmpgt_epi32(q, to));

                p = _mm256_andnot_ps(_mm256_castsi256_ps(hidden), p);
            }
            for (int k = 0; k < n_acc; k++)
                acc[k] = _mm256_fmadd_ps(_mm256_set1_ps(m->sets ? m->w[k][i] : 1.0f), p, acc[k]);
        }
        for (int k = 0; k < n_acc; k++)
            _mm256_storeu_ps(m->acc[k] + j, _mm256_add_ps(_mm256_loadu_ps(m->acc[k] + j), acc[k]));
    }
}

/* What a call shares: the used queries, as the tiles read them. */
typedef struct call {
    const ek_colsum *c;
    float scale;
    ek_dtype type;
    const ek_panel_kit *panel;
    const ek_tile_kit *tile;
    void (*meet)(const meeting *m);
    int n_used;
    int32_t *used; /* (n_used) which queries, ascending */
    float *w;      /* (n_sets, n_used) */
    float *lse;    /* (query heads, n_used) */
    char *q;       /* (query heads, n_used, head_dim) operands */
    char *rooms;
    size_t room_bytes;
} call;

/* One thread's room. */
typedef struct room {
    char *keys;         /* a tile */
    float *s;           /* (12, 64) */
    float *acc;         /* (sets, 64) */
    float *bias;        /* (64) */
    int32_t *from, *to; /* (64) */
} room;

static size_t carve_room(const call *k, room *r, char *at)
{
    const char *start = at;

    r->keys = at;
    r->s = (float *)(at += ek_lines(ek_key_tile_bytes(k->type, k->c->view.head_dim)));
    r->acc = (float *)(at += block_rows * EK_TILE * sizeof(float));
    r->bias = (float *)(at += sets_most * EK_TILE * sizeof(float));
    r->from = (int32_t *)(at += EK_TILE * sizeof(float));
    r->to = (int32_t *)(at += EK_TILE * sizeof(int32_t));
    at += EK_TILE * sizeof(int32_t);
    return (size_t)(at - start);
}

static int is_used(const ek_colsum *c, int i)
{
    for (int s = 0; c->weight && s < c->n_sets; s++)
        if (c->weight[(size_t)s * (size_t)c->n_q + (size_t)i] != 0.0f)
            return 1;
    return !c->weight;
}

/* Query head x's used queries from a0 on, at most 64. */
static void gather_queries(const call *k, int x, int a0)
{
    const ek_view *in = &k->c->view;
    const size_t heads = (size_t)(in->n_heads * in->group), dim = (size_t)in->head_dim;
    const size_t at = (size_t)x * (size_t)k->n_used, vector = dim * (size_t)ek_dtype_size(k->type);

    for (int a = a0; a < k->n_used && a < a0 + 64; a++) {
        const size_t i = (size_t)k->used[a];

        ek_tile_operand(k->panel, k->q + (at + (size_t)a) * vector, k->type,
                        k->c->q + i * k->c->ldq + (size_t)x * dim, in->dtype, in->head_dim);
        k->lse[at + (size_t)a] = k->c->lse[i * heads + (size_t)x];
    }
}

/* How many used queries stand before query i. */
static int used_before(const call *k, int64_t i)
{
    int low = 0, high = k->n_used;

    while (low < high) {
        const int mid = low + (high - low) / 2;

        if (k->used[mid] < i)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

static int32_t clamp_query(int64_t i)
{
    return i < -1 ? -1 : i > INT32_MAX ? INT32_MAX : (int32_t)i;
}

/* The queries that may look at each of n entries; entries past n are looked at by none.  sight:
 * smallest from, largest from, smallest to, largest to of the n. */
static void find_sight(const ek_colsum *c, const room *m, size_t e0, int n, int64_t sight[4])
{
    sight[0] = sight[2] = INT64_MAX;
    sight[1] = sight[3] = INT64_MIN;
    for (int j = 0; j < EK_TILE; j++) {
        int64_t from = INT32_MAX, to = -1;

        if (j < n) {
            from = (int64_t)c->view.pos[e0 + (size_t)j] + c->delay - c->q_pos;
            to = c->horizon < 0 ? INT32_MAX : from + c->horizon;
            sight[0] = from < sight[0] ? from : sight[0];
            sight[1] = from > sight[1] ? from : sight[1];
            sight[2] = to < sight[2] ? to : sight[2];
            sight[3] = to > sight[3] ? to : sight[3];
        }
        m->from[j] = clamp_query(from);
        m->to[j] = clamp_query(to);
    }
}

/* Query head h * group + g against the tile in the room, used queries a0 .. a1 - 1. */
static void sum_head(const call *k, const room *m, int x, int a0, int a1, const int64_t sight[4],
                     const float *bias)
{
    const int dim = k->c->view.head_dim, n_sets = k->c->weight ? k->c->n_sets : 0;
    const size_t at = (size_t)x * (size_t)k->n_used;
    const size_t vector = (size_t)dim * (size_t)ek_dtype_size(k->type);
    ek_panel_fn *mul = k->type == EK_BF16 ? k->panel->bf16 : k->panel->f32;

    for (int a = a0 / block_rows * block_rows; a < a1; a += block_rows) {
        const int rows = k->n_used - a < block_rows ? k->n_used - a : block_rows;
        const char *q = k->q + (at + (size_t)a) * vector;
        const int all = k->used[a] >= sight[1] && k->used[a + rows - 1] <= sight[2];
        meeting b = {.rows = rows,
                     .sets = n_sets,
                     .scale = k->scale,
                     .s = m->s,
                     .bias = bias,
                     .lse = k->lse + at + a,
                     .query = k->used + a,
                     .from = all ? NULL : m->from,
                     .to = m->to};

        for (int s = 0; s < sets_most; s++) {
            b.w[s] = k->w + (size_t)s * (size_t)k->n_used + a;
            b.acc[s] = m->acc + s * EK_TILE;
        }
        mul(dim, q, (size_t)dim, m->keys, m->s, EK_TILE, NULL, rows);
        mul(dim, q, (size_t)dim, m->keys + ek_panel_bytes(k->type, dim), m->s + EK_PANEL, EK_TILE,
            NULL, rows);
        k->meet(&b);
    }
}

static void sum_tile(const call *k, const room *m, int h, int s0)
{
    const ek_view *in = &k->c->view;
    const int n = in->n[h] - s0 < EK_TILE ? in->n[h] - s0 : EK_TILE;
    const size_t e0 = (size_t)(in->first[h] + s0);
    int64_t sight[4];
    int a0, a1;

    find_sight(k->c, m, e0, n, sight);
    a0 = used_before(k, sight[0]);
    a1 = used_before(k, sight[3] + 1);
    if (a0 >= a1)
        return;
    k->tile->keys(m->keys, k->type, (const char *)in->k + e0 * (size_t)ek_view_vector_bytes(in),
                  in->dtype, n, in->head_dim);
    if (in->bias) {
        memset(m->bias, 0, EK_TILE * sizeof *m->bias);
        memcpy(m->bias, in->bias + e0, (size_t)n * sizeof *m->bias);
    }
    for (int g = 0; g < in->group; g++) {
        memset(m->acc, 0, sets_most * EK_TILE * sizeof *m->acc);
        /* Past the last entry there are zero keys, which only a mask hides. */
        if (n < EK_TILE)
            sight[1] = INT64_MAX;
        sum_head(k, m, h * in->group + g, a0, a1, sight, in->bias ? m->bias : NULL);
        for (int s = 0; s < k->c->n_sets; s++)
            for (int j = 0; j < n; j++)
                k->c->sum[s][(e0 + (size_t)j) * (size_t)in->group + (size_t)g] +=
                    m->acc[s * EK_TILE + j];
    }
}

/* Lay out the workspace; finds the used queries.  Returns 0 when there is nothing to add. */
static int plan(ek_device *dev, call *k, int threads)
{
    const ek_colsum *c = k->c;
    const size_t heads = (size_t)(c->view.n_heads * c->view.group), n_q = (size_t)c->n_q;
    const size_t vector = (size_t)c->view.head_dim * (size_t)ek_dtype_size(k->type);
    room none;
    char *at;

    k->room_bytes = carve_room(k, &none, (char *)k); /* only the size counts */
    at = ek_device_work(dev, k->room_bytes * (size_t)threads + ek_lines(n_q * heads * vector) +
                                 ek_lines(n_q * heads * 4) + ek_lines(n_q * sets_most * 4) +
                                 ek_lines(n_q * 4));
    k->rooms = at;
    k->q = at += k->room_bytes * (size_t)threads;
    k->lse = (float *)(at += ek_lines(n_q * heads * vector));
    k->w = (float *)(at += ek_lines(n_q * heads * 4));
    k->used = (int32_t *)(at + ek_lines(n_q * sets_most * 4));
    for (int i = 0; i < c->n_q; i++)
        if (is_used(c, i))
            k->used[k->n_used++] = i;
    for (int s = 0; c->weight && s < c->n_sets; s++)
        for (int a = 0; a < k->n_used; a++)
            k->w[(size_t)s * (size_t)k->n_used + (size_t)a] =
                c->weight[(size_t)s * n_q + (size_t)k->used[a]];
    return k->n_used > 0;
}

static void colsum_tiles(ek_device *dev, const ek_colsum *c, float scale)
{
    const int threads = omp_get_max_threads(), heads = c->view.n_heads * c->view.group;
    call k = {.c = c,
              .scale = scale,
              .type = ek_tile_type(dev->isa, c->view.dtype),
              .panel = ek_panel_kit_of(dev->isa),
              .tile = ek_tile_kit_of(dev->isa),
              .meet = dev->isa >= EK_ISA_AVX512 ? meet_avx512 : meet_avx2};
    int n_tiles = 0, n_gather;

    assert(c->n_sets >= 1 && c->n_sets <= sets_most && (c->weight || c->n_sets == 1));
    if (!plan(dev, &k, threads))
        return;
    for (int h = 0; h < c->view.n_heads; h++)
        if ((c->view.n[h] + EK_TILE - 1) / EK_TILE > n_tiles)
            n_tiles = (c->view.n[h] + EK_TILE - 1) / EK_TILE;
    n_gather = (k.n_used + 63) / 64;
#pragma omp parallel num_threads(threads)
    {
        room m;

        carve_room(&k, &m, k.rooms + k.room_bytes * (size_t)omp_get_thread_num());
#pragma omp for schedule(static)
        for (int i = 0; i < heads * n_gather; i++)
            gather_queries(&k, i / n_gather, i % n_gather * 64);
            /* The oldest keys are seen by most: they go first. */
#pragma omp for schedule(dynamic)
        for (int i = 0; i < n_tiles * c->view.n_heads; i++)
            if (i / c->view.n_heads * EK_TILE < c->view.n[i % c->view.n_heads])
                sum_tile(&k, &m, i % c->view.n_heads, i / c->view.n_heads * EK_TILE);
    }
}

void ek_cpu_colsum_pick(ek_ops *ops, ek_isa isa)
{
    ops->colsum = isa >= EK_ISA_AVX2 ? colsum_tiles : colsum_scalar;
}
