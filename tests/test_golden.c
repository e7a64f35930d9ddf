/* tests/test_golden.c - the real model against numbers that an independent implementation made
 * (tests/golden.py), and bf16 storage against fp32 on held-out prose.  Skipped without the model.
 */
#include "tests/check_model.h"

#include "core/file.h"
#include "core/json.h"
#include "infer/engine.h"
#include "infer/sample.h"
#include "infer/tokenizer.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static const char golden_path[] = "tests/data/logits_golden.json";
static const char prose_path[] = "data/text/test/austen-persuasion.txt";

enum { MOST = 512, PROBE = 8, PROSE = 2000 };

static ek_err err;

static void ok(ek_code code)
{
    if (code != EK_OK)
        fail_msg("%s", err.msg);
}

static double number(const ek_json *v, const char *key)
{
    const double x = ek_json_number(ek_json_get(v, key));

    assert_true(isfinite(x));
    return x;
}

static int whole(const ek_json *v, const char *key)
{
    return (int)number(v, key);
}

/* Largest distance from a list of golden numbers, which lie `stride` apart in x. */
static double list_distance(const ek_json *list, const float *x, int stride, int shift)
{
    double most = 0.0;
    int i = 0;

    assert_non_null(list);
    for (const ek_json *v = ek_json_child(list); v; v = ek_json_next(v), i++)
        most = fmax(most, fabs(ek_json_number(v) - (double)x[(size_t)(i + shift) * stride]));
    assert_true(i > 0);
    return most;
}

/* ---- q, k, v inside the forward pass ---- */

typedef struct probing {
    const ek_json *probes;
    int first; /* position of the chunk's first token */
    double worst;
    int seen;
} probing;

static ek_code probe(void *ctx, const ek_tap_layer *t, ek_err *e)
{
    probing *p = ctx;
    const ek_view *v = &t->row[0].view;
    const int heads = v->n_heads * v->group, d = v->head_dim;

    (void)e;
    for (const ek_json *g = ek_json_child(p->probes); g; g = ek_json_next(g)) {
        const int at = whole(g, "at");
        const float *q = t->row[0].q + (size_t)(at - p->first) * t->ldq;

        if (whole(g, "layer") != t->layer || at < p->first || at >= p->first + t->feed[0].n)
            continue;
        /* The cache of fp32 storage holds what the layer computed. */
        const float *k = (const float *)v->k + (size_t)(v->first[0] + at) * d;
        const float *k_last = (const float *)v->k + (size_t)(v->first[v->n_heads - 1] + at) * d;
        const float *value = (const float *)v->v + (size_t)(v->first[0] + at) * d;

        p->worst = fmax(p->worst, list_distance(ek_json_get(g, "q"), q, 1, 0));
        p->worst = fmax(p->worst, list_distance(ek_json_get(g, "k"), k, 1, 0));
        p->worst = fmax(p->worst, list_distance(ek_json_get(g, "v"), value, 1, 0));
        p->worst = fmax(p->worst, list_distance(ek_json_get(g, "q_last"), q, 1, heads * d - PROBE));
        p->worst = fmax(p->worst, list_distance(ek_json_get(g, "k_last"), k_last, 1, d - PROBE));
        p->seen++;
    }
    return EK_OK;
}

typedef struct distances {
    double logits, lse, likelihood, probes;
} distances;

static double lse_of(const float *x, int n)
{
    double most = (double)x[ek_argmax(x, n)], sum = 0.0;

    for (int i = 0; i < n; i++)
        sum += exp((double)x[i] - most);
    return most + log(sum);
}

static void compare(const ek_json *prompt, const int32_t *tok, int n, int n_vocab, int stride,
                    const float *logits, distances *out)
{
    double sum = 0.0;

    for (const ek_json *t = ek_json_child(ek_json_get(prompt, "top")); t; t = ek_json_next(t)) {
        const float *row = logits + (size_t)whole(t, "at") * n_vocab;
        const ek_json *id = ek_json_child(ek_json_get(t, "ids"));
        const ek_json *x = ek_json_child(ek_json_get(t, "logits"));

        assert_int_equal(ek_argmax(row, n_vocab), (int)ek_json_number(id));
        for (; id && x; id = ek_json_next(id), x = ek_json_next(x))
            out->logits =
                fmax(out->logits, fabs(ek_json_number(x) - (double)row[(int)ek_json_number(id)]));
        out->lse = fmax(out->lse, fabs(number(t, "lse") - lse_of(row, n_vocab)));
    }
    for (const ek_json *r = ek_json_child(ek_json_get(prompt, "rows")); r; r = ek_json_next(r))
        out->logits =
            fmax(out->logits, list_distance(ek_json_get(r, "logits"),
                                            logits + (size_t)whole(r, "at") * n_vocab, stride, 0));
    for (int i = 0; i + 1 < n; i++) {
        const float *row = logits + (size_t)i * n_vocab;

        sum += (double)row[tok[i + 1]] - lse_of(row, n_vocab);
    }
    out->likelihood =
        fmax(out->likelihood, fabs(sum / (n - 1) - number(prompt, "mean_log_likelihood")));
}

static int read_ids(const ek_json *prompt, int32_t *tok)
{
    int n = 0;

    for (const ek_json *v = ek_json_child(ek_json_get(prompt, "ids")); v; v = ek_json_next(v)) {
        assert_true(n < MOST);
        tok[n++] = (int32_t)ek_json_number(v);
    }
    return n;
}

static void run_golden(ek_model *m, ek_device *dev, const ek_json *root, distances *out)
{
    const ek_dims *d = ek_model_dims(m);
    const ek_cache_need need = {.dims = *d, .dtype = EK_F32, .cap = MOST};
    float *logits = malloc(sizeof *logits * (size_t)MOST * d->n_vocab);
    int32_t tok[MOST];

    assert_non_null(logits);
    for (const ek_json *p = ek_json_child(ek_json_get(root, "prompts")); p; p = ek_json_next(p)) {
        const int n = read_ids(p, tok);
        probing probes = {.probes = ek_json_get(p, "probes")};
        const ek_tap tap = {probe, &probes};
        const ek_feed f = {.tok = tok, .n = n, .n_logits = n, .logits = logits};
        ek_feed feed = f;
        ek_cache c;

        ok(ek_cache_open(&c, &need, dev, &err));
        feed.cache = &c;
        ok(ek_model_step(m, &feed, 1, &tap, &err));
        compare(p, tok, n, d->n_vocab, whole(root, "stride"), logits, out);
        assert_int_equal(probes.seen, 2);
        out->probes = fmax(out->probes, probes.worst);
        ek_cache_close(&c);
    }
    free(logits);
}

static void fp32_agrees_with_golden_numbers(void **state)
{
    distances right = {0};
    ek_device *dev;
    ek_model *m;
    ek_json *root;
    ek_map map;

    (void)state;
    ok(ek_map_open(&map, golden_path, &err));
    ok(ek_json_parse(&root, (const char *)map.data, map.size, golden_path, &err));
    ok(ek_device_open(&dev, "cpu", getenv("EVICTKIT_ISA"), &err));
    ok(ek_model_open(&m, ek_check_real_model(), dev, EK_F32, &err));
    run_golden(m, dev, root, &right);
    print_message("fp32: max abs difference: logits %.2e, lse %.2e, mean log-likelihood %.2e, "
                  "q k v %.2e\n",
                  right.logits, right.lse, right.likelihood, right.probes);
    assert_true(right.logits <= 2e-3);
    assert_true(right.lse <= 2e-3);
    assert_true(right.likelihood <= 1e-4);
    assert_true(right.probes <= 1e-3);
    ek_model_close(m);
    ek_device_close(dev);
    ek_json_close(root);
    ek_map_close(&map);
}

static void another_token_is_seen_to_differ(void **state)
{
    (void)state;
    ek_device *dev;
    ek_model *m;
    const ek_dims *d;
    int32_t tok[8] = {504, 2365, 282, 4649, 314, 253, 260, 28};
    float *a, *b;
    double most = 0.0;

    ok(ek_device_open(&dev, "cpu", getenv("EVICTKIT_ISA"), &err));
    ok(ek_model_open(&m, ek_check_real_model(), dev, EK_F32, &err));
    d = ek_model_dims(m);
    a = malloc(sizeof *a * (size_t)d->n_vocab);
    b = malloc(sizeof *b * (size_t)d->n_vocab);
    for (int i = 0; i < 2; i++) {
        const ek_cache_need need = {.dims = *d, .dtype = EK_F32, .cap = 8};
        ek_cache c;

        ok(ek_cache_open(&c, &need, dev, &err));
        const ek_feed f = {.cache = &c, .tok = tok, .n = 8, .n_logits = 1, .logits = i ? b : a};

        ok(ek_model_step(m, &f, 1, NULL, &err));
        ek_cache_close(&c);
        tok[1] = 50;
    }
    for (int i = 0; i < d->n_vocab; i++)
        most = fmax(most, fabs((double)(a[i] - b[i])));
    assert_true(most > 2e-3);
    free(a);
    free(b);
    ek_model_close(m);
    ek_device_close(dev);
}

/* ---- bf16 against fp32 ---- */

/* Logits of all PROSE tokens. */
static void read_prose(ek_dtype storage, float *logits)
{
    ek_device *dev;
    ek_model *m;
    ek_tokenizer *tok;
    ek_tokens ids = {0};
    ek_map map;
    ek_cache c;
    size_t size;

    ok(ek_map_open(&map, prose_path, &err));
    size = map.size < 40000 ? map.size : 40000;
    while (size > 0 && map.data[size - 1] != '\n')
        size--; /* not inside a character */
    ok(ek_device_open(&dev, "cpu", getenv("EVICTKIT_ISA"), &err));
    ok(ek_model_open(&m, ek_check_real_model(), dev, storage, &err));
    ok(ek_tokenizer_open(&tok, ek_model_gguf(m), &err));
    ok(ek_tokenizer_encode(tok, (const char *)map.data, size, 0, &ids, &err));
    assert_true(ids.n >= PROSE);
    const ek_cache_need need = {.dims = *ek_model_dims(m), .dtype = storage, .cap = PROSE};

    ok(ek_cache_open(&c, &need, dev, &err));
    for (int at = 0; at < PROSE; at += EK_CHUNK) {
        const int n = PROSE - at < EK_CHUNK ? PROSE - at : EK_CHUNK;
        const ek_feed f = {.cache = &c,
                           .tok = ids.id + at,
                           .n = n,
                           .n_logits = n,
                           .logits = logits + (size_t)at * ek_model_dims(m)->n_vocab};

        ok(ek_model_step(m, &f, 1, NULL, &err));
    }
    ek_cache_close(&c);
    ek_tokens_clear(&ids);
    ek_tokenizer_close(tok);
    ek_model_close(m);
    ek_device_close(dev);
    ek_map_close(&map);
}

static void bf16_stays_close_to_fp32(void **state)
{
    enum { V = 49152 };
    float *base, *other;
    const float *a[64], *b[64];
    ek_device *dev;
    ek_kl kl[64];
    double sum = 0.0;
    int same = 0;

    (void)state;
    if (!ek_file_exists(prose_path)) {
        print_message("skipped: %s is not there\n", prose_path);
        skip();
    }
    base = malloc(sizeof *base * (size_t)PROSE * V);
    other = malloc(sizeof *other * (size_t)PROSE * V);
    assert_true(base && other);
    read_prose(EK_F32, base);
    read_prose(EK_BF16, other);
    ok(ek_device_open(&dev, "cpu", getenv("EVICTKIT_ISA"), &err));
    for (int at = 0; at < PROSE; at += 64) {
        const int n = PROSE - at < 64 ? PROSE - at : 64;

        for (int i = 0; i < n; i++) {
            a[i] = base + (size_t)(at + i) * V;
            b[i] = other + (size_t)(at + i) * V;
        }
        dev->ops.kl(dev, kl, a, b, n, V);
        for (int i = 0; i < n; i++) {
            sum += kl[i].kl;
            same += kl[i].top == kl[i].top_base;
        }
    }
    print_message("bf16 against fp32, %d tokens: Mean KLD %.2e, Same top p %.2f %%\n", PROSE,
                  sum / PROSE, 100.0 * same / PROSE);
    assert_true(sum / PROSE <= 2e-3);
    assert_true(sum > 0.0); /* negative control: they are not the same numbers */
    assert_true(same >= 0.97 * PROSE);
    ek_device_close(dev);
    free(base);
    free(other);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fp32_agrees_with_golden_numbers),
        cmocka_unit_test(another_token_is_seen_to_differ),
        cmocka_unit_test(bf16_stays_close_to_fp32),
    };

    if (!ek_check_real_model()) {
        print_message("skipped: no model file (models/, or EVICTKIT_MODEL)\n");
        return 77;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
