/* tests/test_model.c - the forward pass against a plain one in double, and its laws. */
#include "tests/check_model.h"

#include "core/file.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static ek_err err;

static void ok(ek_code code)
{
    if (code != EK_OK)
        fail_msg("%s", err.msg);
}

/* Feed n tokens in chunks; logits (n, n_vocab) of all of them. */
static void feed(ek_check_model *m, ek_cache *c, const int32_t *tok, int n, int chunk,
                 float *logits)
{
    for (int at = 0; at < n; at += chunk) {
        const int k = n - at < chunk ? n - at : chunk;
        const ek_feed f = {.cache = c,
                           .tok = tok + at,
                           .n = k,
                           .n_logits = logits ? k : 0,
                           .logits = logits ? logits + (size_t)at * m->dims->n_vocab : NULL};

        ok(ek_model_step(m->model, &f, 1, NULL, &err));
    }
}

/* ---- a plain forward in double ---- */

/* y (n) = W x, W being a tensor as the file stores it. */
static void plain_matmul(const ek_gguf *g, const char *name, int layer, const double *x, double *y)
{
    char full[80];
    const ek_gguf_tensor *t;
    float *rows;

    if (layer < 0)
        snprintf(full, sizeof full, "%s.weight", name);
    else
        snprintf(full, sizeof full, "blk.%d.%s.weight", layer, name);
    t = ek_gguf_find(g, full);
    assert_non_null(t);
    rows = malloc(sizeof *rows * (size_t)(t->rows * t->dim[0]));
    ok(ek_gguf_rows_f32(g, t, 0, t->rows, rows, &err));
    for (int64_t i = 0; i < t->rows; i++) {
        y[i] = 0.0;
        for (int64_t j = 0; j < t->dim[0]; j++)
            y[i] += (double)rows[i * t->dim[0] + j] * x[j];
    }
    free(rows);
}

static void plain_norm(const ek_gguf *g, const ek_dims *d, const char *name, int layer,
                       const double *x, double *y)
{
    char full[80];
    float w[512];
    double sum = 0.0;

    if (layer < 0)
        snprintf(full, sizeof full, "%s.weight", name);
    else
        snprintf(full, sizeof full, "blk.%d.%s.weight", layer, name);
    ok(ek_gguf_rows_f32(g, ek_gguf_find(g, full), 0, 1, w, &err));
    for (int i = 0; i < d->d_model; i++)
        sum += x[i] * x[i];
    for (int i = 0; i < d->d_model; i++)
        y[i] = x[i] / sqrt(sum / d->d_model + (double)d->norm_eps) * (double)w[i];
}

/* Rows as stored belong to adjacent pairs, (0,1), (2,3) ...: no un-permutation here. */
static void plain_rope(const ek_dims *d, double *x, int heads, int pos)
{
    for (int h = 0; h < heads; h++)
        for (int i = 0; i < d->head_dim / 2; i++) {
            const double a = pos * pow((double)d->rope_base, -2.0 * i / d->head_dim);
            double *p = x + h * d->head_dim + 2 * i;
            const double u = p[0], v = p[1];

            p[0] = u * cos(a) - v * sin(a);
            p[1] = u * sin(a) + v * cos(a);
        }
}

enum { MOST = 24, WIDE = 512 };

/* Attention of token t over k, v (t + 1, kv) into out. */
static void plain_attend(const ek_dims *d, const double *q, double (*k)[WIDE], double (*v)[WIDE],
                         int t, double *out)
{
    for (int x = 0; x < d->n_heads * d->group; x++) {
        const int kv = x / d->group * d->head_dim;
        double p[MOST], sum = 0.0;

        for (int j = 0; j <= t; j++) {
            p[j] = 0.0;
            for (int i = 0; i < d->head_dim; i++)
                p[j] += q[x * d->head_dim + i] * k[j][kv + i];
            p[j] = exp(p[j] / sqrt((double)d->head_dim));
            sum += p[j];
        }
        for (int i = 0; i < d->head_dim; i++) {
            out[x * d->head_dim + i] = 0.0;
            for (int j = 0; j <= t; j++)
                out[x * d->head_dim + i] += p[j] / sum * v[j][kv + i];
        }
    }
}

static void plain_layer(const ek_gguf *g, const ek_dims *d, int l, int n, double (*x)[WIDE])
{
    static double q[MOST][WIDE], k[MOST][WIDE], v[MOST][WIDE];
    double a[WIDE], b[WIDE], gate[WIDE], up[WIDE];

    for (int t = 0; t < n; t++) {
        plain_norm(g, d, "attn_norm", l, x[t], a);
        plain_matmul(g, "attn_q", l, a, q[t]);
        plain_matmul(g, "attn_k", l, a, k[t]);
        plain_matmul(g, "attn_v", l, a, v[t]);
        plain_rope(d, q[t], d->n_heads * d->group, t);
        plain_rope(d, k[t], d->n_heads, t);
        plain_attend(d, q[t], k, v, t, a);
        plain_matmul(g, "attn_output", l, a, b);
        for (int i = 0; i < d->d_model; i++)
            x[t][i] += b[i];
        plain_norm(g, d, "ffn_norm", l, x[t], a);
        plain_matmul(g, "ffn_gate", l, a, gate);
        plain_matmul(g, "ffn_up", l, a, up);
        for (int i = 0; i < d->d_ff; i++)
            gate[i] = gate[i] / (1.0 + exp(-gate[i])) * up[i];
        plain_matmul(g, "ffn_down", l, gate, b);
        for (int i = 0; i < d->d_model; i++)
            x[t][i] += b[i];
    }
}

static void plain_forward(const ek_model *m, const int32_t *tok, int n, double *logits)
{
    const ek_gguf *g = ek_model_gguf(m);
    const ek_dims *d = ek_model_dims(m);
    const ek_gguf_tensor *embd = ek_gguf_find(g, "token_embd.weight");
    const char *head = ek_gguf_find(g, "output.weight") ? "output" : "token_embd";
    static double x[MOST][WIDE];
    double y[WIDE];
    float row[WIDE];

    for (int t = 0; t < n; t++) {
        ok(ek_gguf_rows_f32(g, embd, tok[t], 1, row, &err));
        for (int i = 0; i < d->d_model; i++)
            x[t][i] = (double)row[i];
    }
    for (int l = 0; l < d->n_layers; l++)
        plain_layer(g, d, l, n, x);
    for (int t = 0; t < n; t++) {
        plain_norm(g, d, "output_norm", -1, x[t], y);
        plain_matmul(g, head, -1, y, logits + (size_t)t * d->n_vocab);
    }
}

/* Largest difference as a share of the largest logit. */
static double distance(const double *a, const float *b, size_t n)
{
    double most = 0.0, scale = 0.0;

    for (size_t i = 0; i < n; i++) {
        most = fmax(most, fabs(a[i] - (double)b[i]));
        scale = fmax(scale, fabs(a[i]));
    }
    return most / scale;
}

static void agrees_with_a_plain_forward(void **state)
{
    const ek_tiny cases[] = {
        {.seed = 1},
        {.seed = 2, .own_head = 1},
        {.seed = 3, .n_heads = 6, .n_kv_heads = 2, .head_dim = 32, .n_layers = 3, .d_model = 96},
        {.seed = 4, .n_heads = 4, .n_kv_heads = 4, .rope_base = 100000},
        {.seed = 5, .type = EK_Q_Q8_0}};
    const ek_dtype storages[] = {EK_F32, EK_BF16};

    (void)state;
    for (size_t i = 0; i < EK_COUNT(cases); i++)
        for (size_t s = 0; s < EK_COUNT(storages); s++) {
            /* bf16 keeps 8 bits of each factor: about 2^-8 an operand, over a few products. */
            const double bound = storages[s] == EK_F32 ? 1e-5 : 0.04;
            ek_check_model m;
            ek_cache c;
            int32_t tok[MOST];
            float *logits;
            double *plain;
            size_t n;

            ek_check_model_open(&m, &cases[i], storages[s], 0);
            n = (size_t)MOST * m.dims->n_vocab;
            logits = malloc(n * sizeof *logits);
            plain = malloc(n * sizeof *plain);
            ek_check_cache_open(&c, &m, MOST, NULL, 0);
            ek_check_tokens(tok, MOST, m.dims->n_vocab, i);
            feed(&m, &c, tok, MOST, MOST, logits);
            plain_forward(m.model, tok, MOST, plain);
            assert_true(distance(plain, logits, n) < bound);
            tok[MOST - 2] ^= 1; /* negative control: one other token */
            plain_forward(m.model, tok, MOST, plain);
            assert_false(distance(plain, logits, n) < bound);
            free(logits);
            free(plain);
            ek_cache_close(&c);
            ek_check_model_close(&m);
        }
}

/* ---- laws ---- */

enum { LONG = 150 };

static void chunks_change_rounding_only(void **state)
{
    ek_check_model m;
    ek_cache c[4];
    int32_t tok[LONG];
    float *logits[4];
    double *whole;
    size_t n;
    const int chunk[4] = {LONG, 64, 64, 1};

    (void)state;
    ek_check_model_open(&m, NULL, EK_F32, 0);
    n = (size_t)LONG * m.dims->n_vocab;
    ek_check_tokens(tok, LONG, m.dims->n_vocab, 9);
    for (int i = 0; i < 4; i++) {
        logits[i] = malloc(n * sizeof(float));
        ek_check_cache_open(&c[i], &m, LONG, NULL, 0);
        feed(&m, &c[i], tok, LONG, chunk[i], logits[i]);
        ok(ek_cache_check(&c[i], &err));
        assert_int_equal(c[i].next_pos, LONG);
    }
    whole = malloc(n * sizeof *whole);
    for (size_t i = 0; i < n; i++)
        whole[i] = (double)logits[0][i];
    assert_true(distance(whole, logits[1], n) < 1e-5);
    assert_true(distance(whole, logits[3], n) < 1e-5);
    assert_memory_equal(logits[1], logits[2], n * sizeof(float));
    for (int i = 0; i < 4; i++) {
        free(logits[i]);
        ek_cache_close(&c[i]);
    }
    free(whole);
    ek_check_model_close(&m);
}

/* A feed alone, and the same in the company of others of other lengths: the same bits. */
static void feeds_do_not_see_each_other(void **state)
{
    enum { FEEDS = 17, ROWS = 2 };
    const ek_dtype storages[] = {EK_F32, EK_BF16};

    (void)state;
    for (size_t s = 0; s < EK_COUNT(storages); s++) {
        ek_check_model m;
        ek_cache alone, c[FEEDS];
        ek_feed f[FEEDS];
        int32_t tok[LONG], other[LONG];
        float *one, *many;
        size_t row;

        ek_check_model_open(&m, NULL, storages[s], 0);
        row = (size_t)ROWS * m.dims->n_vocab;
        one = malloc(row * sizeof *one);
        many = malloc((row + 7) * FEEDS * sizeof *many);
        ek_check_tokens(tok, LONG, m.dims->n_vocab, 20);
        ek_check_cache_open(&alone, &m, LONG, NULL, 0);
        feed(&m, &alone, tok, 40, 40, NULL);
        f[0] = (ek_feed){&alone, tok + 40, 7, ROWS, one, NULL};
        ok(ek_model_step(m.model, f, 1, NULL, &err));
        for (int i = 0; i < FEEDS; i++) {
            const int mine = i == 11, before = mine ? 40 : 3 * i, now = mine ? 7 : 1 + i % 5;

            ek_check_tokens(other, LONG, m.dims->n_vocab, mine ? 20 : 100 + (uint64_t)i);
            ek_check_cache_open(&c[i], &m, LONG, NULL, 0);
            feed(&m, &c[i], other, before, 40, NULL);
            /* One float apart, so that the rows of logits are no single piece of memory. */
            f[i] = (ek_feed){.cache = &c[i],
                             .tok = tok + (mine ? 40 : i),
                             .n = now,
                             .n_logits = mine ? ROWS : i % 2,
                             .logits = many + (row + 7) * (size_t)i};
        }
        ok(ek_model_step(m.model, f, FEEDS, NULL, &err));
        assert_memory_equal(one, f[11].logits, row * sizeof *one);
        assert_memory_not_equal(one, f[9].logits, (size_t)m.dims->n_vocab * sizeof *one);
        for (int i = 0; i < FEEDS; i++)
            ek_cache_close(&c[i]);
        ek_cache_close(&alone);
        free(one);
        free(many);
        ek_check_model_close(&m);
    }
}

static void threads_do_not_change_a_bit(void **state)
{
    float *logits[3];
    size_t n = 0;

    (void)state;
    for (int threads = 1; threads <= 3; threads++) {
        ek_check_model m;
        ek_cache c;
        int32_t tok[LONG];

        ek_check_model_open(&m, NULL, EK_BF16, threads);
        n = (size_t)LONG * m.dims->n_vocab;
        logits[threads - 1] = malloc(n * sizeof(float));
        ek_check_tokens(tok, LONG, m.dims->n_vocab, 5);
        ek_check_cache_open(&c, &m, LONG, NULL, 0);
        feed(&m, &c, tok, 100, 100, logits[threads - 1]);
        feed(&m, &c, tok + 100, LONG - 100, 1, logits[threads - 1] + (size_t)100 * m.dims->n_vocab);
        ek_cache_close(&c);
        ek_check_model_close(&m);
    }
    assert_memory_equal(logits[0], logits[1], n * sizeof(float));
    assert_memory_equal(logits[0], logits[2], n * sizeof(float));
    for (int i = 0; i < 3; i++)
        free(logits[i]);
}

static void a_steady_loop_allocates_nothing(void **state)
{
    ek_check_model m;
    ek_cache c;
    int32_t tok[LONG];
    float *logits;
    int64_t bytes, grown;

    (void)state;
    ek_check_model_open(&m, NULL, EK_BF16, 0);
    logits = malloc(sizeof *logits * (size_t)LONG * m.dims->n_vocab);
    ek_check_tokens(tok, LONG, m.dims->n_vocab, 5);
    ek_check_cache_open(&c, &m, LONG, NULL, 0);
    feed(&m, &c, tok, 64, 64, logits);
    bytes = m.dev->bytes;
    feed(&m, &c, tok, 2, 1, logits);
    grown = m.dev->work_grown;
    feed(&m, &c, tok, 80, 1, logits);
    assert_int_equal(m.dev->bytes, bytes);
    assert_int_equal(m.dev->work_grown, grown);
    free(logits);
    ek_cache_close(&c);
    ek_check_model_close(&m);
}

typedef struct seen {
    int next;
    double worst; /* distance of a sum of probabilities from 1 */
} seen;

static ek_code look(void *ctx, const ek_tap_layer *t, ek_err *e)
{
    seen *s = ctx;
    const ek_view *v = &t->row[0].view;

    (void)e;
    assert_int_equal(t->layer, s->next++);
    assert_int_equal(v->layer, t->layer);
    assert_int_equal(v->next_pos, t->feed[0].cache->next_pos + t->feed[0].n);
    for (int h = 0; h < v->n_heads; h++) {
        assert_int_equal(v->n[h], v->next_pos);
        for (int g = 0; g < v->group; g++) {
            double sum = 0.0;

            for (int32_t i = v->first[h]; i < v->first[h] + v->n[h]; i++)
                sum += (double)t->row[0].prob[(size_t)i * (size_t)v->group + (size_t)g];
            s->worst = fmax(s->worst, fabs(sum - 1.0));
        }
    }
    for (int i = 0; i < t->feed[0].n * v->n_heads * v->group; i++)
        assert_true(isfinite(t->row[0].lse[i]));
    return EK_OK;
}

static ek_code refuse(void *ctx, const ek_tap_layer *t, ek_err *e)
{
    (void)ctx;
    return t->layer == 1 ? EK_FAIL(e, EK_ESTOPPED, "seen enough") : EK_OK;
}

static void the_tap_sees_every_layer_in_order(void **state)
{
    ek_check_model m;
    ek_cache c;
    int32_t tok[LONG];
    seen s = {0};
    ek_tap tap = {look, &s};
    ek_feed f = {.cache = &c, .tok = tok, .n = 33};

    (void)state;
    ek_check_model_open(&m, NULL, EK_F32, 0);
    ek_check_tokens(tok, LONG, m.dims->n_vocab, 5);
    ek_check_cache_open(&c, &m, LONG, NULL, 0);
    f.prob = malloc(sizeof(float) * (size_t)LONG * m.dims->n_heads * m.dims->group);
    ok(ek_model_step(m.model, &f, 1, &tap, &err));
    assert_int_equal(s.next, m.dims->n_layers);
    s.next = 0;
    f.n = 1;
    ok(ek_model_step(m.model, &f, 1, &tap, &err));
    assert_int_equal(s.next, m.dims->n_layers);
    assert_true(s.worst < 1e-5);
    tap.layer = refuse;
    assert_int_equal(ek_model_step(m.model, &f, 1, &tap, &err), EK_ESTOPPED);
    free(f.prob);
    ek_cache_close(&c);
    ek_check_model_close(&m);
}

static void too_much_is_refused_with_numbers(void **state)
{
    const ek_tiny tiny = {.n_ctx = 64};
    ek_check_model m;
    ek_cache c, small;
    int32_t tok[LONG], bad = -1;
    ek_feed f = {.cache = &c, .tok = tok, .n = 65};

    (void)state;
    ek_check_model_open(&m, &tiny, EK_F32, 0);
    ek_check_tokens(tok, LONG, m.dims->n_vocab, 5);
    ek_check_cache_open(&c, &m, LONG, NULL, 0);
    ek_check_cache_open(&small, &m, 8, NULL, 0);
    assert_int_equal(ek_model_step(m.model, &f, 1, NULL, &err), EK_EASKED);
    assert_non_null(strstr(err.msg, "65"));
    assert_non_null(strstr(err.msg, "64"));
    f.n = 64;
    ok(ek_model_step(m.model, &f, 1, NULL, &err));
    f.n = 1;
    assert_int_equal(ek_model_step(m.model, &f, 1, NULL, &err), EK_EASKED);
    f = (ek_feed){.cache = &small, .tok = tok, .n = 9};
    assert_int_equal(ek_model_step(m.model, &f, 1, NULL, &err), EK_EBROKEN);
    f = (ek_feed){.cache = &small, .tok = &bad, .n = 1};
    assert_int_equal(ek_model_step(m.model, &f, 1, NULL, &err), EK_EASKED);
    bad = m.dims->n_vocab;
    assert_int_equal(ek_model_step(m.model, &f, 1, NULL, &err), EK_EASKED);
    assert_int_equal(small.next_pos, 0);
    ek_cache_close(&c);
    ek_cache_close(&small);
    ek_check_model_close(&m);
}

/* ---- files we cannot run ---- */

/* A copy of the tiny model with the bytes `from` (its first occurrence) replaced. */
static ek_code open_changed(const ek_check_model *m, const char *from, const void *to, size_t at,
                            size_t size)
{
    char path[112];
    ek_map map;
    ek_model *out = NULL;
    uint8_t *copy, *p;
    ek_code code;

    snprintf(path, sizeof path, "%s.changed", m->path);
    ok(ek_map_open(&map, m->path, &err));
    copy = malloc(map.size);
    memcpy(copy, map.data, map.size);
    p = memmem(copy, map.size, from, strlen(from));
    assert_non_null(p);
    memcpy(p + at, to, size);
    ok(ek_file_write(path, copy, map.size, &err));
    ek_map_close(&map);
    free(copy);
    code = ek_model_open(&out, path, m->dev, EK_F32, &err);
    assert_null(out);
    remove(path);
    return code;
}

static void what_we_cannot_run_is_refused_by_name(void **state)
{
    /* A number follows its key's name and a type of 4 bytes. */
    const struct {
        const char *from, *to;
        size_t at, size;
        ek_code code;
        const char *says;
    } cases[] = {
        {"general.architecture", "gemma", 32, 5, EK_ENOTSUP, "gemma"},
        {"blk.1.attn_q.weight", "blk.1.attn_z.weight", 0, 19, EK_ENOTSUP, "blk.1.attn_z.weight"},
        {"output_norm.weight", "rope_freqs.weightx", 0, 18, EK_ENOTSUP, "rope_freqs"},
        {"llama.block_count", "\003\0\0\0", 21, 4, EK_EINPUT, "blk.2."},
        {"llama.block_count", "\0\0\0\0", 21, 4, EK_EINPUT, "block_count"},
        {"llama.block_count", "\377\377\0\0", 21, 4, EK_EINPUT, "block_count"},
        {"llama.feed_forward_length", "\140\0\0\0", 29, 4, EK_EINPUT, "ffn_gate"},
        {"llama.attention.head_count_kv", "\003\0\0\0", 33, 4, EK_EINPUT, "multiple"},
        {"llama.embedding_length", "\040\0\0\0", 26, 4, EK_EINPUT, "expected"},
    };
    ek_check_model m;

    (void)state;
    ek_check_model_open(&m, NULL, EK_F32, 0);
    for (size_t i = 0; i < EK_COUNT(cases); i++) {
        const int64_t bytes = m.dev->bytes;
        const ek_code code =
            open_changed(&m, cases[i].from, cases[i].to, cases[i].at, cases[i].size);

        if (code != cases[i].code || !strstr(err.msg, cases[i].says))
            print_message("case %zu: code %d: %s\n", i, (int)code, err.msg);
        assert_int_equal(code, cases[i].code);
        assert_non_null(strstr(err.msg, cases[i].says));
        assert_non_null(strstr(err.msg, m.path));
        assert_int_equal(m.dev->bytes, bytes);
    }
    ek_check_model_close(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(agrees_with_a_plain_forward),
        cmocka_unit_test(chunks_change_rounding_only),
        cmocka_unit_test(feeds_do_not_see_each_other),
        cmocka_unit_test(threads_do_not_change_a_bit),
        cmocka_unit_test(a_steady_loop_allocates_nothing),
        cmocka_unit_test(the_tap_sees_every_layer_in_order),
        cmocka_unit_test(too_much_is_refused_with_numbers),
        cmocka_unit_test(what_we_cannot_run_is_refused_by_name),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
