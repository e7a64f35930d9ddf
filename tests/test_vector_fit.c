/* tests/test_vector_fit.c - fits of VECTOR's maps: planted maps are found through rotated keys,
 * what is held out is never fitted on, stopped and killed runs resume to the bit, R2 is stored. */
#include "core/bf16.h"
#include "core/file.h"
#include "core/rng.h"
#include "infer/maps.h"
#include "infer/model.h"
#include "infer/tokenizer.h"
#include "infer/vector.h"
#include "results/store.h"
#include "tests/check_folder.h"
#include "tests/tiny_model.h"
#include "train/prose.h"
#include "train/session.h"
#include "train/sums.h"

#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static ek_device *dev;
static char model[96];

/* ---- sums of caches ---- */

enum { LAYERS = 2, HEADS = 2, D = 8, WIDTH = HEADS * D, TOKENS = 300 };

static const ek_dims dims = {
    .n_layers = LAYERS, .n_heads = HEADS, .group = 1, .head_dim = D, .rope_base = 100};

typedef struct planted {
    double w[LAYERS][WIDTH * WIDTH], b[LAYERS][WIDTH];
} planted;

/* v = W x + b over the heads joined (joint) or within each head alone. */
static void plant(planted *p, int joint)
{
    for (int l = 0; l < LAYERS; l++)
        for (int o = 0; o < WIDTH; o++) {
            p->b[l][o] = ek_rng_normal(3, (uint64_t)l, (uint64_t)o);
            for (int i = 0; i < WIDTH; i++)
                p->w[l][o * WIDTH + i] =
                    joint || o / D == i / D
                        ? ek_rng_normal(3, 10 + (uint64_t)l, (uint64_t)(o * WIDTH + i))
                        : 0;
        }
}

/* A cache of rotated keys and planted values; the first token's are another matter. */
static void fill(ek_cache *c, const planted *p, double base, uint64_t seed)
{
    float x[TOKENS * WIDTH], v[TOKENS * WIDTH];
    int32_t pos[TOKENS];
    double inv_freq[D / 2];

    for (int i = 0; i < D / 2; i++)
        inv_freq[i] = pow(base, -2.0 * i / D);
    for (int t = 0; t < TOKENS; t++)
        pos[t] = t;
    for (int l = 0; l < LAYERS; l++) {
        for (int t = 0; t < TOKENS; t++) {
            for (int i = 0; i < WIDTH; i++)
                x[t * WIDTH + i] =
                    (float)(0.5 + ek_rng_normal(seed, (uint64_t)l, (uint64_t)(t * WIDTH + i)));
            for (int o = 0; o < WIDTH; o++) {
                double sum = p->b[l][o];

                for (int i = 0; i < WIDTH; i++)
                    sum += p->w[l][o * WIDTH + i] * (double)x[t * WIDTH + i];
                v[t * WIDTH + o] = t == 0 ? 1e6f : (float)sum;
            }
        }
        dev->ops.rope(dev, x, WIDTH, TOKENS, HEADS, D, pos, inv_freq);
        ek_cache_append(c, l, x, WIDTH, v, WIDTH, TOKENS);
    }
    ek_cache_advance(c, TOKENS);
}

static double apart(const ek_maps *m, const planted *p)
{
    double most = 0;

    for (int l = 0; l < LAYERS; l++)
        for (int o = 0; o < WIDTH; o++)
            for (int i = 0; i < WIDTH; i++) {
                const int head = o / D, width = m->width, row = m->joint ? o : o % D;

                if (!m->joint && i / D != head)
                    continue;
                const double w =
                    (double)ek_maps_weight(m, l, head)[row * width + (m->joint ? i : i % D)];
                const double b = (double)ek_maps_bias(m, l, head)[row];
                most = fmax(most, fabs(w - p->w[l][o * WIDTH + i]));
                most = fmax(most, fabs(b - p->b[l][o]));
            }
    return most;
}

static void fit_planted(int joint, double base, ek_maps *maps, ek_sums_fit *fit, const planted *p)
{
    const ek_cache_need need = {.dims = dims, .dtype = EK_F32, .cap = TOKENS};
    ek_cache c;
    ek_sums sums;
    ek_err err;

    ek_check_ok(ek_cache_open(&c, &need, dev, &err), &err);
    ek_check_ok(ek_sums_open(&sums, &dims, joint, TOKENS, dev, &err), &err);
    for (int i = 0; i < 4; i++) {
        fill(&c, p, base, 50 + (uint64_t)i);
        ek_sums_add(&sums, &c, i == 0);
        ek_cache_rewind(&c, TOKENS);
    }
    assert_int_equal(ek_regress_count(&sums.held, 0), TOKENS - 1);
    assert_int_equal(ek_regress_count(&sums.fit, joint ? 1 : 3), 3 * (TOKENS - 1));
    ek_check_ok(ek_sums_solve(&sums, 1, maps, fit, &err), &err);
    ek_sums_close(&sums);
    ek_cache_close(&c);
}

/* Maps are found through the rotation, in both modes; undoing another rotation finds nothing, and
 * a map per head cannot find what joins heads. */
static void test_planted(void **state)
{
    planted p;

    (void)state;
    for (int joint = 0; joint < 2; joint++) {
        ek_sums_fit fit;
        ek_maps maps;

        plant(&p, joint);
        fit_planted(joint, 100, &maps, &fit, &p);
        assert_true(apart(&maps, &p) < 1e-4); /* ridge of 1e-6, keys in fp32 */
        for (int i = 0; i < LAYERS * HEADS; i++) {
            assert_true(fit.r2[i] > 0.999999 && fit.r2[i] <= 1);
            assert_true(fit.lambda[i] == 1e-6);
            assert_true(maps.r2[i] == (float)fit.r2[i]);
        }
        ek_maps_close(&maps);
        ek_sums_fit_close(&fit);
        fit_planted(joint, 7, &maps, &fit, &p);
        for (int i = 0; i < LAYERS * HEADS; i++)
            assert_true(fit.r2[i] < 0.9);
        ek_maps_close(&maps);
        ek_sums_fit_close(&fit);
    }
    ek_sums_fit fit;
    ek_maps maps;
    fit_planted(0, 100, &maps, &fit, &p);
    for (int i = 0; i < LAYERS * HEADS; i++)
        assert_true(fit.r2[i] < 0.9);
    ek_maps_close(&maps);
    ek_sums_fit_close(&fit);
}

/* ---- what is held out ---- */

static void write_doc(const char *name, const char *word, int paragraphs)
{
    char path[160];
    ek_text t = {0};
    ek_err err;

    snprintf(path, sizeof path, "%s/%s", ek_check_in_folder("texts"), name);
    for (int i = 0; i < paragraphs; i++)
        ek_text_add(&t, "%s %s %d %s and %s.\n\n", word, word, i, word, word);
    ek_check_ok(ek_file_write(path, t.data, t.size, &err), &err);
    ek_text_clear(&t);
}

static int has_word(ek_tokenizer *tok, const ek_tokens *ids, const char *word)
{
    ek_text text = {0};
    ek_err err;

    ek_check_ok(ek_tokenizer_decode(tok, ids->id, ids->n, 0, &text, &err), &err);
    const int found = memmem(text.data, text.size, word, strlen(word)) != NULL;
    ek_text_clear(&text);
    return found;
}

static void test_held_out(void **state)
{
    static const char *const words[] = {"apple", "berry", "cherry", "damson", "elder"};
    int seen[2][5] = {{0}};
    ek_tokens ids = {0};
    ek_tokenizer *tok;
    ek_model *m;
    ek_prose p;
    ek_err err;

    (void)state;
    ek_check_ok(ek_make_folder(ek_check_in_folder("texts"), &err), &err);
    for (int i = 0; i < 5; i++) {
        char name[16];

        snprintf(name, sizeof name, "%s.txt", words[i]);
        write_doc(name, words[i], i == 4 ? 3 : 200); /* the last is too short for windows */
    }
    ek_check_ok(ek_model_open(&m, model, dev, EK_BF16, &err), &err);
    ek_check_ok(ek_tokenizer_open(&tok, ek_model_gguf(m), &err), &err);
    ek_check_ok(ek_prose_open(&p, ek_check_in_folder("texts"), 100, 0.3, 1, &err), &err);
    for (int g = 0; g < 2; g++)
        for (int i = 0; i < 60; i++) {
            ek_check_ok(ek_prose_window(&p, (ek_prose_group)g, i, tok, &ids, &err), &err);
            assert_true(ids.n >= 100);
            for (int w = 0; w < 5; w++)
                seen[g][w] += has_word(tok, &ids, words[w]);
        }
    int held = 0;
    for (int w = 0; w < 4; w++) {
        assert_true((seen[0][w] > 0) != (seen[1][w] > 0)); /* in one of the two, never in both */
        held += seen[1][w] > 0;
    }
    assert_int_equal(held, 2); /* two quarters are the first to make up three tenths */
    ek_prose_close(&p);
    /* One document: its end is held out, and its parts share no byte. */
    ek_check_ok(ek_prose_open(&p, "datasets/tiny.txt", 100, 0.2, 1, &err), &err);
    const ek_doc *head = &p.group[EK_PROSE_FIT].doc[0], *tail = &p.group[EK_PROSE_HELD].doc[0];
    assert_ptr_equal(head->text + head->size, tail->text);
    assert_int_equal(head->size + tail->size, p.all.doc[0].size);
    assert_int_equal(tail->paragraph[0], 0);
    for (int i = 0; i < 20; i++)
        ek_check_ok(ek_prose_window(&p, EK_PROSE_HELD, i, tok, &ids, &err), &err);
    ek_prose_close(&p);
    assert_int_equal(ek_prose_open(&p, "datasets/tiny.txt", 2000, 0.2, 1, &err), EK_EASKED);
    assert_non_null(strstr(err.msg, "tiny"));
    ek_tokens_clear(&ids);
    ek_tokenizer_close(tok);
    ek_model_close(m);
}

/* ---- runs ---- */

static ek_train_set settings(char *out)
{
    static char texts[] = "datasets/tiny.txt";
    ek_train_set s;

    ek_train_set_defaults(&s);
    s.method = EK_TRAIN_VECTOR;
    s.model = model;
    s.out = out;
    s.data.texts = texts;
    s.data.length = 192;
    s.vector.tokens = 12 * 192;
    s.vector.held_out = 0.2;
    s.save_every = 2;
    return s;
}

static ek_code run(const ek_train_set *s, int resume, int64_t stop_after, ek_err *err)
{
    const ek_train_options o = {.quiet = 1, .resume = resume, .stop_after = stop_after};

    return ek_train_run(s, &o, dev, err);
}

static ek_code count(void *ctx, int n, const char *const *name, const ek_sql *value, ek_err *err)
{
    (void)n, (void)name, (void)err;
    *(double *)ctx = value[0].r;
    return EK_OK;
}

static double ask(const char *path, const char *sql)
{
    ek_store *store;
    double found = NAN;
    ek_err err;

    ek_check_ok(ek_store_open(&store, path, EK_STORE_READ, &err), &err);
    ek_check_ok(ek_store_query(store, sql, NULL, 0, count, &found, &err), &err);
    ek_store_close(store);
    return found;
}

/* Maps that can be opened, in both modes; R2 in the database as in the file; done is done. */
static void test_run(void **state)
{
    char *db = ek_check_in_folder("results.db");
    ek_train_set s = settings(ek_check_in_folder("head"));
    ek_tokenizer *tok;
    ek_model *m;
    ek_maps maps;
    ek_err err;

    (void)state;
    ek_check_ok(ek_model_open(&m, model, dev, EK_BF16, &err), &err);
    ek_check_ok(ek_tokenizer_open(&tok, ek_model_gguf(m), &err), &err);
    const ek_maps_need need = {.dims = ek_model_dims(m),
                               .model_hash = ek_model_hash(m),
                               .tokenizer_hash = ek_tokenizer_hash(tok)};
    s.results = db;
    ek_check_ok(run(&s, 0, 0, &err), &err);
    ek_check_ok(ek_maps_open(&maps, s.out, &need, &err), &err);
    assert_int_equal(maps.joint, 0);
    assert_int_equal(maps.width, 16);
    assert_true(ask(db, "SELECT count(*) FROM train_head") == 3 * 4);
    assert_true(fabs(ask(db, "SELECT value FROM train_head WHERE name = 'r2' AND layer = 1 AND "
                             "head = 0") -
                     (double)maps.r2[2]) < 1e-6);
    assert_true(ask(db, "SELECT tokens FROM train_step WHERE split = 'valid'") == 2 * 191);
    assert_true(ask(db, "SELECT tokens FROM train_step WHERE split = 'train'") == 10 * 191);
    assert_true(ask(db, "SELECT count(*) FROM train_value") == 0); /* nothing is recalled here */
    assert_true(ask(db, "SELECT count(*) FROM run WHERE status = 'done'") == 1);
    ek_maps_close(&maps);
    ek_check_ok(run(&s, 0, 0, &err), &err); /* finished before: nothing more is stored */
    assert_true(ask(db, "SELECT count(*) FROM train_run") == 1);
    s.out = ek_check_in_folder("layer");
    s.vector.mode = 1;
    ek_check_ok(run(&s, 0, 0, &err), &err);
    ek_check_ok(ek_maps_open(&maps, s.out, &need, &err), &err);
    assert_int_equal(maps.joint, 1);
    assert_int_equal(maps.width, 32);
    ek_maps_close(&maps);
    s.out = ek_check_in_folder("plain");
    s.vector.mode = 0;
    s.vector.bias = false;
    ek_check_ok(run(&s, 0, 0, &err), &err);
    ek_check_ok(ek_maps_open(&maps, s.out, &need, &err), &err);
    for (int i = 0; i < maps.n * maps.width; i++)
        assert_true(maps.b[i] == 0);
    ek_maps_close(&maps);
    ek_tokenizer_close(tok);
    ek_model_close(m);
}

/* Sum of eps over one window, by the run-time code, of the outputs of one map. */
static double run_time_error(const ek_maps *maps, const ek_cache *c, int layer, int head)
{
    static int32_t slot[192];
    static float eps[192];
    ek_view view;
    double sum = 0;
    ek_err err;

    ek_cache_view(c, layer, -1, &view);
    for (int32_t j = 1; j < view.n[head]; j++)
        slot[j - 1] = j;
    ek_check_ok(
        ek_vector_errors(maps, dev, &c->dims, &view, head, slot, view.n[head] - 1, eps, NULL, &err),
        &err);
    for (int32_t j = 0; j < view.n[head] - 1; j++)
        sum += (double)eps[j];
    return sum;
}

/* Sum of the squared distances of values from their mean, from the cache itself. */
static double spread(const ek_cache *c, int layer, int head)
{
    const int d = c->dims.head_dim;
    ek_view view;
    double all = 0;

    ek_cache_view(c, layer, -1, &view);
    for (int i = 0; i < d; i++) {
        const int n = view.n[head] - 1;
        double mean = 0, sum = 0;

        for (int j = 1; j <= n; j++)
            mean += (double)ek_from_bf16(((const ek_bf16 *)view.v)[(view.first[head] + j) * d + i]);
        mean /= n;
        for (int j = 1; j <= n; j++) {
            const double v =
                (double)ek_from_bf16(((const ek_bf16 *)view.v)[(view.first[head] + j) * d + i]);
            sum += (v - mean) * (v - mean);
        }
        all += sum;
    }
    return all;
}

/* What a run measures of these maps is what the fit has measured: 1 - R2 of the same window. */
static void test_run_time(void **state)
{
    ek_tokenizer *tok;
    ek_model *m;
    ek_prose prose;
    ek_tokens ids = {0};
    ek_cache c;
    ek_err err;

    (void)state;
    ek_check_ok(ek_model_open(&m, model, dev, EK_BF16, &err), &err);
    ek_check_ok(ek_tokenizer_open(&tok, ek_model_gguf(m), &err), &err);
    const ek_dims *d = ek_model_dims(m);
    const ek_cache_need room = {.dims = *d, .dtype = EK_BF16, .cap = 192};
    ek_check_ok(ek_prose_open(&prose, "datasets/tiny.txt", 192, 0.2, 9, &err), &err);
    ek_check_ok(ek_prose_window(&prose, EK_PROSE_HELD, 3, tok, &ids, &err), &err);
    ek_check_ok(ek_cache_open(&c, &room, dev, &err), &err);
    const ek_feed feed = {.cache = &c, .tok = ids.id, .n = 192};
    ek_check_ok(ek_model_step(m, &feed, 1, NULL, &err), &err);
    for (int joint = 0; joint < 2; joint++) {
        const ek_maps_need need = {
            .dims = d, .model_hash = ek_model_hash(m), .tokenizer_hash = ek_tokenizer_hash(tok)};
        double w[32 * 32], b[32], worst = 0;
        ek_sums sums;
        ek_maps maps;

        ek_check_ok(ek_maps_open(&maps, ek_check_in_folder(joint ? "layer" : "head"), &need, &err),
                    &err);
        ek_check_ok(ek_sums_open(&sums, d, joint, 192, dev, &err), &err);
        ek_sums_add(&sums, &c, 1);
        for (int l = 0; l < d->n_layers; l++)
            for (int h = 0; h < (joint ? 1 : d->n_heads); h++) {
                const int map = joint ? l : l * d->n_heads + h, width = maps.width;
                double all = 0;

                for (int i = 0; i < width * width; i++)
                    w[i] = (double)ek_maps_weight(&maps, l, h)[i];
                for (int i = 0; i < width; i++)
                    b[i] = (double)ek_maps_bias(&maps, l, h)[i];
                for (int x = joint ? 0 : h; x < (joint ? d->n_heads : h + 1); x++)
                    all += spread(&c, l, x);
                const double r2 = ek_regress_r2(&sums.held, map, w, b, 0, width);
                const double left = run_time_error(&maps, &c, l, h) / all;
                assert_true(fabs(left - (1 - r2)) < 1e-4 * (1 + left));
                w[5] += 0.5; /* another map measures otherwise */
                worst = fmax(worst, fabs(r2 - ek_regress_r2(&sums.held, map, w, b, 0, width)));
            }
        assert_true(worst > 1e-3);
        ek_sums_close(&sums);
        ek_maps_close(&maps);
    }
    ek_cache_close(&c);
    ek_prose_close(&prose);
    ek_tokens_clear(&ids);
    ek_tokenizer_close(tok);
    ek_model_close(m);
}

/* Stopped twice and resumed: the same bytes.  Another seed: others. */
static void test_resume(void **state)
{
    ek_train_set s = settings(ek_check_in_folder("stopped"));
    char *checkpoint = ek_check_in_folder("stopped/checkpoint.safetensors");
    ek_err err;
    ek_map map;

    (void)state;
    assert_int_equal(run(&s, 0, 1, &err), EK_ESTOPPED); /* among the windows held out */
    assert_non_null(strstr(err.msg, "window 1 of 12"));
    assert_int_equal(run(&s, 1, 4, &err), EK_ESTOPPED);
    assert_true(ek_file_exists(checkpoint));
    /* Another run's checkpoint, and a damaged one, are refused. */
    s.seed = 2;
    assert_int_equal(run(&s, 1, 0, &err), EK_EASKED);
    assert_non_null(strstr(err.msg, "other settings"));
    s.seed = 1;
    ek_check_ok(ek_map_open(&map, checkpoint, &err), &err);
    uint8_t *bytes = malloc(map.size);
    memcpy(bytes, map.data, map.size);
    bytes[map.size - 200] ^= 1;
    const size_t size = map.size;
    ek_map_close(&map);
    ek_check_ok(ek_file_write(checkpoint, bytes, size, &err), &err);
    assert_int_equal(run(&s, 1, 0, &err), EK_EINPUT);
    assert_non_null(strstr(err.msg, "damaged checkpoint"));
    ek_check_ok(ek_file_write(checkpoint, bytes, size / 2, &err), &err);
    assert_int_equal(run(&s, 1, 0, &err), EK_EINPUT);
    /* So is one that says it is further on. */
    bytes[size - 200] ^= 1;
    uint8_t *step = memmem(bytes, size, "\"step\":\"5\"", 10);
    assert_non_null(step);
    step[8] = '6';
    ek_check_ok(ek_file_write(checkpoint, bytes, size, &err), &err);
    assert_int_equal(run(&s, 1, 0, &err), EK_EINPUT);
    assert_non_null(strstr(err.msg, "damaged checkpoint"));
    step[8] = '5';
    bytes[size - 200] ^= 1;
    bytes[size - 200] ^= 1;
    ek_check_ok(ek_file_write(checkpoint, bytes, size, &err), &err);
    free(bytes);
    ek_check_ok(run(&s, 1, 0, &err), &err);
    assert_false(ek_file_exists(checkpoint));
    ek_check_same_weights(ek_check_in_folder("head"), s.out, 1);
    s.out = ek_check_in_folder("seed");
    s.seed = 2;
    ek_check_ok(run(&s, 0, 0, &err), &err);
    ek_check_same_weights(ek_check_in_folder("head"), s.out, 0);
}

/* A fit that is killed: its first checkpoint comes long before its end. */
static ek_train_set long_settings(char *out, char *results)
{
    ek_train_set s = settings(out);

    s.results = results;
    s.vector.tokens = 60 * s.data.length;
    return s;
}

/* kill -9 in mid-run, three times, then resume: bytes and log of a fit that was left alone. */
static void test_kill(void **state)
{
    ek_train_set s = long_settings(ek_check_in_folder("killed"), ek_check_in_folder("killed.db"));
    ek_train_set left =
        long_settings(ek_check_in_folder("left-alone"), ek_check_in_folder("left-alone.db"));
    ek_err err;

    (void)state;
    const char *const argv[] = {"test_vector_fit", "--child", s.out, s.results, model, NULL};
    ek_check_kill(argv, 3, s.out);
    ek_check_ok(run(&s, 1, 0, &err), &err);
    ek_check_ok(run(&left, 0, 0, &err), &err);
    ek_check_same_weights(left.out, s.out, 1);
    ek_check_same_log(&left, &s, 1);
    ek_check_same_weights(ek_check_in_folder("head"), s.out, 0); /* fewer windows: other maps */
}

static void test_refused(void **state)
{
    ek_train_set s = settings(ek_check_in_folder("refused"));
    ek_err err;

    (void)state;
    s.vector.tokens = 300;
    assert_int_equal(run(&s, 0, 0, &err), EK_EASKED);
    assert_non_null(strstr(err.msg, "vector.tokens: found 300, expected at least 384"));
    s = settings(ek_check_in_folder("refused"));
    s.data.length = 3000;
    s.vector.tokens = 9000;
    assert_int_equal(run(&s, 0, 0, &err), EK_EASKED);
    assert_non_null(strstr(err.msg, "context"));
    s = settings(ek_check_in_folder("refused"));
    s.data.texts = ek_check_in_folder("nowhere");
    assert_int_equal(run(&s, 0, 0, &err), EK_EASKED);
    s.data.texts = NULL;
    assert_int_equal(run(&s, 0, 0, &err), EK_EASKED);
    assert_false(ek_file_exists(ek_check_in_folder("refused")));
}

static int child(char **argv)
{
    ek_err err;

    snprintf(model, sizeof model, "%s", argv[4]);
    const ek_train_set s = long_settings(argv[2], argv[3]);
    if (ek_device_open(&dev, "cpu", getenv("EVICTKIT_ISA"), &err) != EK_OK)
        return 1;
    return run(&s, 1, 0, &err) != EK_OK;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_planted), cmocka_unit_test(test_held_out),
        cmocka_unit_test(test_run),     cmocka_unit_test(test_run_time),
        cmocka_unit_test(test_resume),  cmocka_unit_test(test_kill),
        cmocka_unit_test(test_refused),
    };
    const ek_tiny big = {.n_ctx = 2048};
    ek_err err;

    if (argc == 5 && strcmp(argv[1], "--child") == 0)
        return child(argv);
    if (ek_device_open(&dev, "cpu", getenv("EVICTKIT_ISA"), &err) != EK_OK ||
        ek_check_folder_open("vector") != 0)
        return 77;
    snprintf(model, sizeof model, "%s/tiny.gguf", ek_check_folder);
    if (ek_tiny_model(model, &big, &err) != EK_OK) {
        fprintf(stderr, "%s\n", err.msg);
        return 1;
    }
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    ek_device_close(dev);
    return ek_check_folder_close() != 0 || failed;
}
