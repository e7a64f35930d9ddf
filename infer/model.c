/* infer/model.c - the frozen decoder's forward pass.
 *
 * Per layer: norm, one product for q, k and v, rotation of q and k, append to the caches, attention
 * of all feeds, the tap, then the output product into the residual; norm, one product for gate and
 * up, silu, down into the residual.  The head runs only for tokens whose logits are asked. */
#include "infer/annex.h"
#include "infer/model_parts.h"

#include <stdlib.h>
#include <string.h>

enum { HEAD_ROWS = 64 }; /* rows of logits that pass through the buffer at a time */

const ek_dims *ek_model_dims(const ek_model *m)
{
    return &m->dims;
}

ek_dtype ek_model_storage(const ek_model *m)
{
    return m->storage;
}

ek_gguf *ek_model_gguf(const ek_model *m)
{
    return m->gguf;
}

const char *ek_model_hash(const ek_model *m)
{
    return m->hash;
}

static const ek_weight *head_of(const ek_model *m)
{
    return m->own_head.data ? &m->own_head : &m->embd;
}

int64_t ek_model_weight_bytes(const ek_model *m)
{
    int64_t bytes = (int64_t)head_of(m)->bytes;

    bytes += (int64_t)sizeof(float) * (2 * m->dims.n_layers + 1) * m->dims.d_model;
    for (int l = 0; l < m->dims.n_layers; l++) {
        const ek_layer *y = &m->layers[l];

        bytes += (int64_t)(y->qkv.bytes + y->o.bytes + y->gate_up.bytes + y->down.bytes);
    }
    return bytes;
}

/* Room in steps of 64 tokens, so that lengths that vary a little do not each grow it. */
static int round_up(int n)
{
    return (n + 63) / 64 * 64;
}

static ek_code reserve_tokens(ek_model *m, int tokens, ek_err *err)
{
    const ek_dims *d = &m->dims;
    ek_step_buffers *b = &m->buf;
    const int q = ek_n_query(d);
    const size_t n = (size_t)round_up(tokens);
    const size_t width[] = {
        (size_t)d->d_model,  (size_t)d->d_model, (size_t)(q + 2 * ek_n_kv(d)),   (size_t)q,
        (size_t)2 * d->d_ff, (size_t)d->d_ff,    (size_t)(d->n_heads * d->group)};
    float **const piece[] = {&b->x, &b->normed, &b->qkv, &b->attn, &b->gate_up, &b->ff, &b->lse};
    size_t sum = 2, at = 0;

    if (tokens <= b->tokens)
        return EK_OK;
    for (size_t i = 0; i < EK_COUNT(width); i++)
        sum += width[i];
    ek_device_free(m->dev, b->block);
    b->tokens = 0;
    b->block = ek_device_alloc(m->dev, n * sum * sizeof(float));
    if (!b->block)
        return EK_FAIL(err, EK_ENOMEM, "no memory for a step of %d tokens", tokens);
    /* n is a multiple of 64, so every piece stays aligned to 64 bytes. */
    for (size_t i = 0; i < EK_COUNT(width); i++) {
        *piece[i] = (float *)b->block + at;
        at += n * width[i];
    }
    b->pos = (int32_t *)((float *)b->block + at);
    b->tok = b->pos + n;
    b->tokens = (int)n;
    return EK_OK;
}

static ek_code reserve_rows(ek_model *m, int rows, int head_rows, int copy_rows, ek_err *err)
{
    ek_step_buffers *b = &m->buf;

    if (rows > b->rows) {
        ek_attn_row *grown = realloc(b->row, sizeof *grown * (size_t)round_up(rows));
        ek_mapped_row *mapped = realloc(b->mapped, sizeof *mapped * (size_t)round_up(rows));

        b->row = grown ? grown : b->row;
        b->mapped = mapped ? mapped : b->mapped;
        if (!grown || !mapped)
            return EK_FAIL(err, EK_ENOMEM, "no memory for a step of %d sequences", rows);
        b->rows = round_up(rows);
    }
    if (head_rows > b->head_rows) {
        const size_t n = (size_t)round_up(head_rows) * (size_t)m->dims.d_model;

        ek_device_free(m->dev, b->head_x);
        b->head_rows = 0;
        b->head_x = ek_device_alloc(m->dev, 2 * n * sizeof(float));
        if (!b->head_x)
            return EK_FAIL(err, EK_ENOMEM, "no memory for %d rows of logits", head_rows);
        b->head_normed = b->head_x + n;
        b->head_rows = round_up(head_rows);
    }
    if (copy_rows > b->copy_rows) {
        ek_device_free(m->dev, b->copy);
        b->copy_rows = 0;
        b->copy =
            ek_device_alloc(m->dev, (size_t)copy_rows * (size_t)m->dims.n_vocab * sizeof(float));
        if (!b->copy)
            return EK_FAIL(err, EK_ENOMEM, "no memory for %d rows of logits", copy_rows);
        b->copy_rows = copy_rows;
    }
    return EK_OK;
}

static ek_code check_feed(const ek_model *m, const ek_feed *f, ek_err *err)
{
    const ek_dims *d = &m->dims, *c = &f->cache->dims;

    if (f->n < 1 || f->n_logits < 0 || f->n_logits > f->n)
        return EK_FAIL(err, EK_EBROKEN,
                       "found %d tokens and %d rows of logits, expected 1 or more "
                       "tokens and at most as many rows",
                       f->n, f->n_logits);
    if (c->n_layers != d->n_layers || c->n_heads != d->n_heads || c->group != d->group ||
        c->head_dim != d->head_dim)
        return EK_FAIL(err, EK_EBROKEN, "the cache was made for another model");
    if ((int64_t)f->cache->next_pos + f->n > d->n_ctx)
        return EK_FAIL(err, EK_EASKED,
                       "found %lld positions (%d so far, %d more), expected at most the model's "
                       "context of %d",
                       (long long)f->cache->next_pos + f->n, f->cache->next_pos, f->n, d->n_ctx);
    if (ek_cache_room(f->cache) < f->n)
        return EK_FAIL(err, EK_EBROKEN, "the cache has room for %d tokens, expected %d",
                       ek_cache_room(f->cache), f->n);
    if (f->prob && ek_cache_mapped(f->cache) > 0)
        return EK_FAIL(err, EK_EBROKEN,
                       "probabilities are asked of a cache whose values are partly gone");
    for (int t = 0; t < f->n; t++)
        if (f->tok[t] < 0 || f->tok[t] >= d->n_vocab)
            return EK_FAIL(err, EK_EASKED, "token %d: found id %d, expected 0 .. %d", t, f->tok[t],
                           d->n_vocab - 1);
    return EK_OK;
}

/* Attention input of one layer: norm, q k v, rotation, caches. */
static void project(ek_model *m, const ek_layer *y, int l, const ek_feed *feeds, int n_feeds,
                    int tokens)
{
    const ek_dims *d = &m->dims;
    const ek_ops *ops = &m->dev->ops;
    ek_step_buffers *b = &m->buf;
    const int q = ek_n_query(d), kv = ek_n_kv(d);
    const size_t ld = (size_t)(q + 2 * kv);
    size_t at = 0;

    ops->rms_norm(m->dev, b->normed, b->x, y->attn_norm, tokens, d->d_model, d->norm_eps);
    ops->matmul(m->dev, b->qkv, ld, b->normed, (size_t)d->d_model, &y->qkv, tokens, EK_SET);
    /* The heads of k follow those of q: one call rotates both. */
    ops->rope(m->dev, b->qkv, ld, tokens, d->n_heads * (d->group + 1), d->head_dim, b->pos,
              m->inv_freq);
    for (int i = 0; i < n_feeds; i++) {
        const float *k = b->qkv + at * ld + q;
        ek_attn_row *r = &b->row[i];

        ek_cache_append(feeds[i].cache, l, k, ld, k + kv, ld, feeds[i].n);
        *r = (ek_attn_row){.n_new = feeds[i].n,
                           .q = b->qkv + at * ld,
                           .out = b->attn + at * (size_t)q,
                           .lse = b->lse + at * (size_t)(d->n_heads * d->group),
                           .prob = feeds[i].prob};
        ek_cache_view(feeds[i].cache, l, -1, &r->view);
        r->view.next_pos = feeds[i].cache->next_pos + feeds[i].n; /* moves only after the step */
        at += (size_t)feeds[i].n;
    }
}

/* What the entries of the caches' annexes, whose values are gone, add to attention. */
static void attend_annexes(ek_model *m, int l, const ek_feed *feeds, int n_feeds)
{
    const ek_dims *d = &m->dims;
    ek_step_buffers *b = &m->buf;
    const int q = ek_n_query(d);
    int n = 0;

    for (int i = 0; i < n_feeds; i++) {
        const ek_annex *a = &feeds[i].cache->annex;
        ek_mapped_row *r = &b->mapped[n];

        if (!ek_annex_has(feeds[i].cache, l))
            continue;
        *r = (ek_mapped_row){.n_new = feeds[i].n,
                             .joint = a->maps->joint,
                             .w = ek_maps_weight(a->maps, l, 0),
                             .b = ek_maps_bias(a->maps, l, 0),
                             .q = b->row[i].q,
                             .out = b->row[i].out,
                             .lse = b->row[i].lse};
        ek_annex_view(feeds[i].cache, l, &r->view);
        n++;
    }
    if (n > 0)
        m->dev->ops.attn_mapped(m->dev, b->mapped, n, d->scale, (size_t)(q + 2 * ek_n_kv(d)),
                                (size_t)q, m->inv_freq);
}

static void feed_forward(ek_model *m, const ek_layer *y, int tokens)
{
    const ek_dims *d = &m->dims;
    const ek_ops *ops = &m->dev->ops;
    ek_step_buffers *b = &m->buf;
    const size_t ff = (size_t)d->d_ff, dm = (size_t)d->d_model;

    ops->rms_norm(m->dev, b->normed, b->x, y->ffn_norm, tokens, d->d_model, d->norm_eps);
    ops->matmul(m->dev, b->gate_up, 2 * ff, b->normed, dm, &y->gate_up, tokens, EK_SET);
    ops->silu_mul(m->dev, b->ff, b->gate_up, tokens, d->d_ff);
    ops->matmul(m->dev, b->x, dm, b->ff, ff, &y->down, tokens, EK_ADD);
}

/* Logits straight to where they are wanted if that is one piece of memory, else through a buffer
 * of a few rows; the head's weights are read once for HEAD_ROWS rows either way. */
static void logits(ek_model *m, const ek_feed *feeds, int n_feeds, int rows, int direct)
{
    const ek_dims *d = &m->dims;
    const ek_ops *ops = &m->dev->ops;
    ek_step_buffers *b = &m->buf;
    const size_t dm = (size_t)d->d_model, nv = (size_t)d->n_vocab;
    size_t at = 0;
    int r = 0, feed = 0, row = 0;
    float *out = NULL;

    for (int i = 0; i < n_feeds; i++) {
        const ek_feed *f = &feeds[i];

        at += (size_t)f->n;
        if (f->n_logits == 0)
            continue;
        memcpy(b->head_x + (size_t)r * dm, b->x + (at - (size_t)f->n_logits) * dm,
               (size_t)f->n_logits * dm * sizeof(float));
        r += f->n_logits;
        if (!out)
            out = f->logits;
    }
    ops->rms_norm(m->dev, b->head_normed, b->head_x, m->norms + (size_t)2 * d->n_layers * dm, rows,
                  d->d_model, d->norm_eps);
    if (direct) {
        ops->matmul(m->dev, out, nv, b->head_normed, dm, head_of(m), rows, EK_SET);
        return;
    }
    for (int first = 0; first < rows; first += HEAD_ROWS) {
        const int n = rows - first < HEAD_ROWS ? rows - first : HEAD_ROWS;

        ops->matmul(m->dev, b->copy, nv, b->head_normed + (size_t)first * dm, dm, head_of(m), n,
                    EK_SET);
        for (int i = 0; i < n; i++, row++) {
            while (row == feeds[feed].n_logits) {
                feed++;
                row = 0;
            }
            memcpy(feeds[feed].logits + (size_t)row * nv, b->copy + (size_t)i * nv,
                   nv * sizeof(float));
        }
    }
}

ek_code ek_model_step(ek_model *m, const ek_feed *feeds, int n_feeds, const ek_tap *tap,
                      ek_err *err)
{
    const ek_dims *d = &m->dims;
    const ek_ops *ops = &m->dev->ops;
    ek_step_buffers *b = &m->buf;
    const int q = ek_n_query(d);
    const float *next = NULL;
    int tokens = 0, rows = 0, direct = 1;

    for (int i = 0; i < n_feeds; i++) {
        if (check_feed(m, &feeds[i], err) != EK_OK)
            return n_feeds > 1 ? ek_err_in(err, "sequence %d", i) : err->code;
        if (feeds[i].n > INT32_MAX / 8 - tokens)
            return EK_FAIL(err, EK_EASKED, "more tokens than a step can hold");
        tokens += feeds[i].n;
        rows += feeds[i].n_logits;
        if (feeds[i].n_logits && next && feeds[i].logits != next)
            direct = 0;
        if (feeds[i].n_logits)
            next = feeds[i].logits + (size_t)feeds[i].n_logits * (size_t)d->n_vocab;
    }
    if (n_feeds == 0)
        return EK_OK;
    EK_TRY(reserve_tokens(m, tokens, err));
    EK_TRY(reserve_rows(m, n_feeds, rows,
                        direct ? 0 : (rows < HEAD_ROWS ? round_up(rows) : HEAD_ROWS), err));
    for (int i = 0, at = 0; i < n_feeds; i++)
        for (int t = 0; t < feeds[i].n; t++, at++) {
            b->tok[at] = feeds[i].tok[t];
            b->pos[at] = feeds[i].cache->next_pos + t;
        }
    ops->gather(m->dev, b->x, &m->embd, b->tok, tokens);
    for (int l = 0; l < d->n_layers; l++) {
        const ek_layer *y = &m->layers[l];

        project(m, y, l, feeds, n_feeds, tokens);
        ops->attn(m->dev, b->row, n_feeds, d->scale, (size_t)(q + 2 * ek_n_kv(d)), (size_t)q);
        attend_annexes(m, l, feeds, n_feeds);
        if (tap && tap->layer) {
            const ek_tap_layer t = {.layer = l,
                                    .n_feeds = n_feeds,
                                    .feed = feeds,
                                    .row = b->row,
                                    .ldq = (size_t)(q + 2 * ek_n_kv(d)),
                                    .x = b->normed};

            EK_TRY(tap->layer(tap->ctx, &t, err));
        }
        ops->matmul(m->dev, b->x, (size_t)d->d_model, b->attn, (size_t)q, &y->o, tokens, EK_ADD);
        feed_forward(m, y, tokens);
    }
    for (int i = 0; i < n_feeds; i++)
        ek_cache_advance(feeds[i].cache, feeds[i].n);
    if (rows > 0)
        logits(m, feeds, n_feeds, rows, direct);
    return EK_OK;
}
