/* scorers/recurrent.c - a matrix memory per (layer, kv head) that reads an entry some tokens later.
 *
 *     x = [k ; v], standardised                         2d numbers
 *     q = phi(Wq x)   k = phi(Wk x)   in R^d            v = Wv x   in R^(d/2)
 *     phi(z) = [ softmax(z) ; softmax(-z) ]             positive, sums to 2
 *     log in = 15 tanh(gi / 15)   f = sigmoid(15 tanh(gf / 15))   gi, gf linear in x
 *     o_u = what q_u reads of the memory once it has taken in token u + delay (scorers/memory.h)
 *     r_u = w_out . silu(o_u) + b_out
 * set.norm divides o_u by its root mean square first; set.skip adds w_skip . x_u.
 * KVpop's mLSTM (arXiv 2607.05061): every token goes into the memory, sinks included, and stays
 * there after it is evicted; the later read has seen `delay` tokens of the entry's future.  Rows of
 * Wq, Wk and Wv start as the first components of key, key and value; w_out starts at 0, so an
 * untrained scorer with an age ranks by recency; the forget gates of a layer's heads start spread
 * from +3 to +6, the input gates at -2.
 * Differences: inputs are standardised with constants measured before training, and the age terms
 * are those of scorers/age.h.  The memory reads an entry once, so its inputs must not change with
 * time: age as an input and carried columns are refused (ek_scorer_check). */
#include "scorers/age.h"
#include "scorers/inputs.h"
#include "scorers/memory.h"

#include <assert.h>
#include <math.h>
#include <string.h>

enum { PROJECT = EK_INPUT_TENSORS, GATE, GATE_BIAS, OUT, OUT_BIAS, SKIP }; /* tensors, in order */
enum { CHUNK = EK_MEMORY_CHUNK, TILE = 4 * CHUNK }; /* rows of one projection */

#define CAP          15.0 /* of the gates */
#define INPUT_START  (-2.0)
#define FORGET_START 3.0
#define FORGET_END   6.0
#define NORM_EPS     1e-6

static int n_values(const ek_scorer *s)
{
    return s->dims.head_dim / 2;
}

static int describe(const ek_scorer *s, ek_param *out)
{
    const int in = ek_inputs_n(s), dv = n_values(s);
    int n = ek_inputs_describe(s, out);

    out[n++] = (ek_param){"memory.weight", 3 * dv, in, 1, 1};
    out[n++] = (ek_param){"gate.weight", 2, in, 1, 1};
    out[n++] = (ek_param){"gate.bias", 1, 2, 1, 0};
    out[n++] = (ek_param){"out.weight", 1, dv, 1, 1};
    out[n++] = (ek_param){"out.bias", 1, 1, 1, 0};
    if (s->set.skip)
        out[n++] = (ek_param){"skip.weight", 1, in, 1, 1};
    return n + ek_age_describe(s, out + n);
}

static void init(const ek_scorer *s, ek_real *params, uint64_t seed)
{
    const int in = ek_inputs_n(s), dv = n_values(s), heads = s->dims.n_heads;

    (void)seed;
    memset(params, 0, ek_params_size(s) * sizeof *params);
    ek_inputs_init(s, params);
    ek_age_init(s, params);
    for (int l = 0; l < s->dims.n_layers; l++)
        for (int h = 0; h < heads; h++) {
            ek_real *w = params + ek_params_at(s, PROJECT, l, h);
            ek_real *bias = params + ek_params_at(s, GATE_BIAS, l, h);
            const double at = heads > 1 ? (double)h / (heads - 1) : 0.5;

            for (int i = 0; i < dv; i++) {
                w[i * in + i] = 1;
                w[(dv + i) * in + i] = 1;
                w[(2 * dv + i) * in + s->dims.head_dim + i] = 1;
            }
            bias[0] = (ek_real)INPUT_START;
            bias[1] = (ek_real)(FORGET_START + at * (FORGET_END - FORGET_START));
        }
}

/* The parameters of one head. */
typedef struct head {
    const ek_real *project, *gate, *gate_bias, *out, *skip; /* skip: NULL unless set.skip */
    ek_real out_bias;
} head;

static head head_of(const ek_scorer *s, int l, int h)
{
    const ek_real *p = s->params;

    return (head){.project = p + ek_params_at(s, PROJECT, l, h),
                  .gate = p + ek_params_at(s, GATE, l, h),
                  .gate_bias = p + ek_params_at(s, GATE_BIAS, l, h),
                  .out = p + ek_params_at(s, OUT, l, h),
                  .skip = s->set.skip ? p + ek_params_at(s, SKIP, l, h) : NULL,
                  .out_bias = p[ek_params_at(s, OUT_BIAS, l, h)]};
}

/* y (n) = W x, four rows at a time so that their sums do not wait for each other. */
static void times_one(ek_real *y, const ek_real *x, const ek_real *w, int n, int in)
{
    for (; n > 0; n -= 4, y += 4, w += 4 * (size_t)in) {
        const ek_real *w1 = w + (n > 1) * in, *w2 = w1 + (n > 2) * in, *w3 = w2 + (n > 3) * in;
        ek_real sum = 0, sum1 = 0, sum2 = 0, sum3 = 0;

#pragma omp simd reduction(+ : sum, sum1, sum2, sum3)
        for (int i = 0; i < in; i++) {
            sum += w[i] * x[i];
            sum1 += w1[i] * x[i];
            sum2 += w2[i] * x[i];
            sum3 += w3[i] * x[i];
        }
        const ek_real sums[4] = {sum, sum1, sum2, sum3};
        memcpy(y, sums, (size_t)(n < 4 ? n : 4) * sizeof *y);
    }
}

/* y (rows, n) = x (rows, in) W^T. */
static void times(ek_device *dev, ek_real *y, const ek_real *x, const ek_real *w, int rows, int n,
                  int in)
{
    if (rows == 1)
        times_one(y, x, w, n, in);
    else
        ek_real_gemm(dev, y, (size_t)n, x, (size_t)in, 0, w, (size_t)in, 1, rows, n, in, EK_SET);
}

/* Capped gates (rows, 2) of standardised inputs. */
static void gates(const ek_scorer *s, const head *p, ek_real *gate, const ek_real *x, int rows)
{
    times(s->dev, gate, x, p->gate, rows, 2, ek_inputs_n(s));
    for (int i = 0; i < 2 * rows; i++)
        gate[i] = (ek_real)(CAP * tanh((double)(gate[i] + p->gate_bias[i % 2]) / CAP));
}

/* o (rows, dv) with every row divided by its root mean square; 1 / that to `by` unless NULL. */
static void normalise(ek_real *y, const ek_real *o, int rows, int dv, ek_real *by)
{
    for (int i = 0; i < rows; i++, o += dv, y += dv) {
        ek_real sum = 0;

#pragma omp simd reduction(+ : sum)
        for (int c = 0; c < dv; c++)
            sum += o[c] * o[c];
        const ek_real inverse = (ek_real)(1 / sqrt((double)sum / dv + NORM_EPS));
        for (int c = 0; c < dv; c++)
            y[c] = o[c] * inverse;
        if (by != NULL)
            by[i] = inverse;
    }
}

/* From the gradient of y to that of o, in place. */
static void normalise_back(ek_real *go, const ek_real *y, const ek_real *by, int rows, int dv)
{
    for (int i = 0; i < rows; i++, go += dv, y += dv) {
        ek_real sum = 0;

#pragma omp simd reduction(+ : sum)
        for (int c = 0; c < dv; c++)
            sum += go[c] * y[c];
        sum /= (ek_real)dv;
        for (int c = 0; c < dv; c++)
            go[c] = by[i] * (go[c] - y[c] * sum);
    }
}

/* r of rows that were read, from o (rows, dv) and inputs x; silu: room for (rows, dv). */
static void scores(const ek_scorer *s, const head *p, const ek_real *o, const ek_real *x, int rows,
                   ek_real *silu, ek_real *r)
{
    const int dv = n_values(s), in = ek_inputs_n(s);

    if (s->set.norm)
        normalise(silu, o, rows, dv, NULL);
    ek_real_silu(s->dev, silu, s->set.norm ? silu : o, (size_t)rows * (size_t)dv);
    for (int i = 0; i < rows; i++) {
        const ek_real *y = silu + (size_t)i * (size_t)dv;
        ek_real sum = 0;

#pragma omp simd reduction(+ : sum)
        for (int c = 0; c < dv; c++)
            sum += y[c] * p->out[c];
        r[i] = sum + p->out_bias;
    }
    if (p->skip != NULL)
        ek_real_gemm(s->dev, r, 1, x, (size_t)in, 0, p->skip, (size_t)in, 1, rows, 1, in, EK_ADD);
}

/* ---- a whole sequence ---- */

/* What forward keeps of n entries.  Reads are stored by the entry that was read. */
typedef struct room {
    ek_real *x, *phi, *v, *gate;              /* (n, in), (n, q | k, d), (n, dv), (n, 2) */
    ek_real *weight, *product, *carry, *last; /* of the chunks; last (n + chunks) */
    ek_real *o, *den, *state;                 /* (n, dv), (n), (chunks + 1, state) */
    ek_real *work;                            /* to the end */
} room;

static int n_chunks(int n)
{
    return (n + CHUNK - 1) / CHUNK;
}

static size_t carve(const ek_scorer *s, int n, ek_real *act, room *m)
{
    const size_t d = (size_t)s->dims.head_dim, dv = (size_t)n_values(s), rows = (size_t)n;
    const size_t chunks = (size_t)n_chunks(n), in = (size_t)ek_inputs_n(s);
    const size_t forward = TILE * 3 * dv + CHUNK * d;
    const size_t backward = ek_memory_back_work((int)d, (int)dv) + ek_memory_size((int)d, (int)dv) +
                            CHUNK * (2 * d + 4 * dv + 2);
    const size_t size[] = {rows * in,
                           rows * 2 * d,
                           rows * dv,
                           rows * 2,
                           rows * CHUNK,
                           rows * CHUNK,
                           rows,
                           rows + chunks,
                           rows * dv,
                           rows,
                           (chunks + 1) * ek_memory_size((int)d, (int)dv),
                           forward > backward ? forward : backward};
    ek_real **const to[] = {&m->x,     &m->phi,  &m->v, &m->gate, &m->weight, &m->product,
                            &m->carry, &m->last, &m->o, &m->den,  &m->state,  &m->work};
    size_t at = 0;

    for (size_t i = 0; i < sizeof size / sizeof size[0]; i++) {
        if (act != NULL)
            *to[i] = act + at;
        at += (size[i] + 15) / 16 * 16;
    }
    return at;
}

static size_t scratch(const ek_scorer *s, int n)
{
    room m;

    return carve(s, n, NULL, &m);
}

/* Chunk i of n entries; the entry of its first read. */
static int chunk_of(const ek_scorer *s, const room *m, int n, int i, int at[CHUNK],
                    ek_memory_chunk *c)
{
    const int d = s->dims.head_dim, dv = n_values(s), delay = (int)s->set.delay;
    const int from = i * CHUNK, to = from + CHUNK < n ? from + CHUNK : n;
    const int begin = from > delay ? from : delay, u = begin - delay;
    const size_t row = (size_t)from, read = (size_t)u;

    *c = (ek_memory_chunk){.dev = s->dev,
                           .d = d,
                           .dv = dv,
                           .n = to - from,
                           .n_q = begin < to ? to - begin : 0,
                           .k = m->phi + row * 2 * (size_t)d + d,
                           .ldk = 2 * (size_t)d,
                           .v = m->v + row * (size_t)dv,
                           .ldv = (size_t)dv,
                           .q = m->phi + read * 2 * (size_t)d,
                           .ldq = 2 * (size_t)d,
                           .gate = m->gate + row * 2,
                           .at = at,
                           .weight = m->weight + read * CHUNK,
                           .product = m->product + read * CHUNK,
                           .carry = m->carry + read,
                           .last = m->last + row + (size_t)i,
                           .o = m->o + read * (size_t)dv,
                           .den = m->den + read};
    for (int j = 0; j < c->n_q; j++)
        at[j] = begin - from + j;
    return u;
}

static void project(const ek_scorer *s, const ek_view *in, int h, const head *p, const room *m)
{
    const int dv = n_values(s), n = in->n[h], width = ek_inputs_n(s);

    for (int i = 0; i < n; i += TILE) {
        const int rows = n - i < TILE ? n - i : TILE;
        const size_t at = (size_t)i;
        ek_real *x = m->x + at * (size_t)width, *z = m->work;

        ek_inputs_read(s, in, h, i, rows, x);
        ek_inputs_standardise(s, in->layer, h, rows, x);
        times(s->dev, z, x, p->project, rows, 3 * dv, width);
        ek_memory_features(s->dev, m->phi + at * 4 * (size_t)dv, z, 3 * (size_t)dv, rows, 2, dv);
        for (int j = 0; j < rows; j++)
            memcpy(m->v + (at + (size_t)j) * (size_t)dv, z + (size_t)j * 3 * (size_t)dv + 2 * dv,
                   (size_t)dv * sizeof *z);
        gates(s, p, m->gate + at * 2, x, rows);
    }
}

static void forward(const ek_scorer *s, const ek_view *in, int h, ek_real *act, ek_real *r)
{
    const int n = in->n[h], dv = n_values(s);
    const size_t size = ek_memory_size(s->dims.head_dim, dv);
    const int reads = n > (int)s->set.delay ? n - (int)s->set.delay : 0;
    const head p = head_of(s, in->layer, h);
    room m;

    carve(s, n, act, &m);
    project(s, in, h, &p, &m);
    memset(m.state, 0, size * sizeof *m.state);
    for (int i = 0; i < n_chunks(n); i++) {
        ek_real *state = m.state + (size_t)i * size;
        int at[CHUNK];
        ek_memory_chunk c;

        chunk_of(s, &m, n, i, at, &c);
        ek_memory_forward(&c, state, state + size, m.work);
    }
    for (int i = 0; i < reads; i += TILE)
        scores(s, &p, m.o + (size_t)i * (size_t)dv, m.x + (size_t)i * (size_t)ek_inputs_n(s),
               reads - i < TILE ? reads - i : TILE, m.work, r + i);
    for (int i = reads; i < n; i++)
        r[i] = 0;
}

/* Gradients of one head's parameters. */
typedef struct head_grad {
    ek_real *project, *gate, *gate_bias, *out, *out_bias, *skip;
} head_grad;

static head_grad grad_of(const ek_scorer *s, int l, int h, ek_real *p)
{
    return (head_grad){.project = p + ek_params_at(s, PROJECT, l, h),
                       .gate = p + ek_params_at(s, GATE, l, h),
                       .gate_bias = p + ek_params_at(s, GATE_BIAS, l, h),
                       .out = p + ek_params_at(s, OUT, l, h),
                       .out_bias = p + ek_params_at(s, OUT_BIAS, l, h),
                       .skip = s->set.skip ? p + ek_params_at(s, SKIP, l, h) : NULL};
}

/* From r to o (rows, dv) of one chunk; silu: room for twice as many. */
static void scores_back(const ek_scorer *s, const head *p, const head_grad *g, const ek_real *o,
                        const ek_real *x, const ek_real *dr, int rows, ek_real *silu, ek_real *go)
{
    const int dv = n_values(s), in = ek_inputs_n(s);
    ek_real by[CHUNK], *y = silu + (size_t)rows * (size_t)dv;

    if (g->skip != NULL)
        ek_real_gemm(s->dev, g->skip, (size_t)in, dr, 1, 1, x, (size_t)in, 0, 1, in, rows, EK_ADD);

    if (s->set.norm)
        normalise(y, o, rows, dv, by);
    const ek_real *from = s->set.norm ? y : o;
    ek_real_silu(s->dev, silu, from, (size_t)rows * (size_t)dv);
    for (int i = 0; i < rows; i++) {
        *g->out_bias += dr[i];
        for (int c = 0; c < dv; c++) {
            g->out[c] += dr[i] * silu[(size_t)i * (size_t)dv + c];
            go[(size_t)i * (size_t)dv + c] = dr[i] * p->out[c];
        }
    }
    ek_real_silu_back(s->dev, go, from, go, (size_t)rows * (size_t)dv);
    if (s->set.norm)
        normalise_back(go, y, by, rows, dv);
}

/* From features, values and gates to the weights: z of the reads, then z and gates of the tokens.
 */
static void project_back(const ek_scorer *s, const head_grad *g, const room *m,
                         const ek_memory_chunk *c, const ek_memory_grad *of, int row, int read,
                         ek_real *z)
{
    const int dv = c->dv, in = ek_inputs_n(s);
    const ek_real *x = m->x + (size_t)row * (size_t)in;

    if (c->n_q > 0) {
        ek_memory_features_back(z, (size_t)dv, c->q, c->ldq, of->q, c->n_q, dv);
        ek_real_gemm(s->dev, g->project, (size_t)in, z, (size_t)dv, 1,
                     m->x + (size_t)read * (size_t)in, (size_t)in, 0, dv, in, c->n_q, EK_ADD);
    }
    ek_memory_features_back(z, 2 * (size_t)dv, c->k, c->ldk, of->k, c->n, dv);
    for (int i = 0; i < c->n; i++) {
        memcpy(z + (size_t)i * 2 * (size_t)dv + dv, of->v + (size_t)i * (size_t)dv,
               (size_t)dv * sizeof *z);
        for (int j = 0; j < 2; j++) {
            const double capped = (double)c->gate[2 * i + j] / CAP;

            of->gate[2 * i + j] *= (ek_real)(1 - capped * capped);
            g->gate_bias[j] += of->gate[2 * i + j];
        }
    }
    ek_real_gemm(s->dev, g->project + (size_t)dv * (size_t)in, (size_t)in, z, 2 * (size_t)dv, 1, x,
                 (size_t)in, 0, 2 * dv, in, c->n, EK_ADD);
    ek_real_gemm(s->dev, g->gate, (size_t)in, of->gate, 2, 1, x, (size_t)in, 0, 2, in, c->n,
                 EK_ADD);
}

static void backward(const ek_scorer *s, const ek_view *in, int h, ek_real *act, const ek_real *dr,
                     ek_real *dparams)
{
    const int n = in->n[h], d = s->dims.head_dim, dv = n_values(s);
    const size_t size = ek_memory_size(d, dv);
    const head p = head_of(s, in->layer, h);
    const head_grad grad = grad_of(s, in->layer, h, dparams);
    room m;

    carve(s, n, act, &m);
    ek_real *z = m.work, *go = z + CHUNK * 2 * dv, *at_state = go + CHUNK * dv;
    ek_real *work = at_state + size + CHUNK * (2 * d + dv + 2);
    const ek_memory_grad g = {.o = go,
                              .state = at_state,
                              .q = at_state + size,
                              .k = at_state + size + CHUNK * d,
                              .v = at_state + size + CHUNK * 2 * d,
                              .gate = at_state + size + CHUNK * (2 * d + dv)};

    memset(g.state, 0, size * sizeof *g.state);
    for (int i = n_chunks(n) - 1; i >= 0; i--) {
        const ek_real *state = m.state + (size_t)i * size;
        int at[CHUNK];
        ek_memory_chunk c;

        const int u = chunk_of(s, &m, n, i, at, &c);
        if (c.n_q > 0)
            scores_back(s, &p, &grad, c.o, m.x + (size_t)u * (size_t)ek_inputs_n(s), dr + u, c.n_q,
                        z, go);
        ek_memory_backward(&c, state, state + size, &g, work);
        project_back(s, &grad, &m, &c, &g, i * CHUNK, u, z);
    }
}

/* ---- a running cache ---- */

static size_t n_state(const ek_scorer *s)
{
    return ek_memory_size(s->dims.head_dim, n_values(s));
}

static size_t advance_work(const ek_scorer *s, int rows)
{
    const size_t d = (size_t)s->dims.head_dim, dv = (size_t)n_values(s);
    const size_t n = (size_t)(rows < CHUNK ? rows : CHUNK);

    return n * (2 * (size_t)ek_inputs_n(s) + 2 * dv + 3 * d + 2 * dv + 2 + 2 * CHUNK + 3) + 1;
}

/* First slot of the head whose position is at least `pos`. */
static int slot_at(const ek_view *in, int h, int64_t pos)
{
    int lo = 0, hi = in->n[h];

    while (lo < hi) {
        const int mid = lo + (hi - lo) / 2;

        if (in->pos[in->first[h] + mid] < pos)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

/* At most CHUNK new rows. */
static void advance_chunk(const ek_scorer *s, const ek_view *in, int h, const head *p, int row,
                          int rows, ek_real *state, ek_real *work, ek_real *r)
{
    const int d = s->dims.head_dim, dv = n_values(s), width = ek_inputs_n(s);
    const int32_t *pos = in->pos + in->first[h];
    const int64_t first = (int64_t)pos[row] - s->set.delay;
    const int begin = slot_at(in, h, first), end = slot_at(in, h, first + rows);
    int at[CHUNK];
    ek_real *x = work, *old = x + rows * width, *z = old + rows * width, *k = z + rows * 2 * dv,
            *q = k + rows * d;
    ek_real *scaled = q + rows * d, *gate = scaled + rows * d, *o = gate + rows * 2;
    ek_real *silu = o + rows * dv, *weight = silu + rows * dv, *product = weight + rows * CHUNK;
    ek_real *carry = product + rows * CHUNK, *den = carry + rows, *last = den + rows;

    assert(pos[row + rows - 1] - pos[row] == rows - 1 && end - begin <= rows);
    if (end > begin) {
        ek_inputs_read(s, in, h, begin, end - begin, old);
        ek_inputs_standardise(s, in->layer, h, end - begin, old);
        times(s->dev, z, old, p->project, end - begin, dv, width);
        ek_memory_features(s->dev, q, z, (size_t)dv, end - begin, 1, dv);
        for (int i = 0; i < end - begin; i++)
            at[i] = (int)(pos[begin + i] - first);
    }
    ek_inputs_read(s, in, h, row, rows, x);
    ek_inputs_standardise(s, in->layer, h, rows, x);
    times(s->dev, z, x, p->project + (size_t)dv * (size_t)width, rows, 2 * dv, width);
    ek_memory_features(s->dev, k, z, 2 * (size_t)dv, rows, 1, dv);
    gates(s, p, gate, x, rows);
    const ek_memory_chunk c = {.dev = s->dev,
                               .d = d,
                               .dv = dv,
                               .n = rows,
                               .n_q = end - begin,
                               .k = k,
                               .ldk = (size_t)d,
                               .v = z + dv,
                               .ldv = 2 * (size_t)dv,
                               .q = q,
                               .ldq = (size_t)d,
                               .gate = gate,
                               .at = at,
                               .weight = weight,
                               .product = product,
                               .carry = carry,
                               .last = last,
                               .o = o,
                               .den = den};
    ek_memory_forward(&c, state, state, scaled);
    scores(s, p, o, old, end - begin, silu, r + begin);
}

static void advance(const ek_scorer *s, const ek_view *in, int h, int first_row, int rows,
                    ek_real *state, ek_real *work, ek_real *r)
{
    const head p = head_of(s, in->layer, h);

    for (int i = 0; i < rows; i += CHUNK)
        advance_chunk(s, in, h, &p, first_row + i, rows - i < CHUNK ? rows - i : CHUNK, state, work,
                      r);
}

static const ek_learner learner = {.describe = describe,
                                   .init = init,
                                   .scratch = scratch,
                                   .forward = forward,
                                   .backward = backward,
                                   .n_state = n_state,
                                   .advance_work = advance_work,
                                   .advance = advance};

static ek_code score(const ek_scorer *s, const ek_view *in, float *out, ek_err *err)
{
    (void)s;
    (void)in;
    (void)out;
    return EK_FAIL(err, EK_EASKED,
                   "recurrent: an entry's score needs the memory of all tokens before it: it can "
                   "only be carried from the first token on");
}

const ek_scorer_class ek_scorer_recurrent = {
    .name = "recurrent",
    .brief = "a trained matrix memory per head, read some tokens later",
    .source = EK_FROM_ENTRIES,
    .learner = &learner,
    .score = score};
