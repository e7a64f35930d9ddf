/* tests/test_weights.c - a trained scorer's folder: written, read back to the bit, and refused when
 * it was made for something else or is damaged. */
#include "core/file.h"
#include "core/rng.h"
#include "infer/model.h"
#include "infer/tokenizer.h"
#include "infer/weights.h"
#include "scorers/carried.h"
#include "tests/check_folder.h"
#include "tests/tiny_model.h"
#include "train/export.h"

#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static ek_device *dev;
static char model[96], other[96];

static ek_model *open_model(const char *path, ek_tokenizer **tok)
{
    ek_model *m;
    ek_err err;

    ek_check_ok(ek_model_open(&m, path, dev, EK_BF16, &err), &err);
    ek_check_ok(ek_tokenizer_open(tok, ek_model_gguf(m), &err), &err);
    return m;
}

/* Random parameters, written for the tiny model. */
static ek_scorer write_weights(const char *dir, ek_model *m, ek_tokenizer *tok, float **params)
{
    ek_scorer s = {.cls = &ek_scorer_mlp,
                   .dev = dev,
                   .dims = *ek_model_dims(m),
                   .set = {.hidden = 6,
                           .age = EK_AGE_INPUT,
                           .sinks = 2,
                           .recent = 16,
                           .delay = 12,
                           .carried = EK_CARRIED_FULL}};
    const size_t n = ek_params_size(&s);
    const ek_scorer_export x = {.scorer = &s,
                                .method = "foresight",
                                .loss = "listwise",
                                .model = ek_model_hash(m),
                                .tokenizer = ek_tokenizer_hash(tok),
                                .data = "data",
                                .target = "target",
                                .settings = "seed: 1\n",
                                .steps = 7,
                                .loss_last = 1.5};
    ek_err err;

    *params = malloc(n * sizeof **params);
    for (size_t i = 0; i < n; i++)
        (*params)[i] = (float)ek_rng_normal(1, 1, i);
    s.params = *params;
    ek_check_ok(ek_scorer_write(dir, &x, &err), &err);
    return s;
}

/* What was written comes back to the bit; a parameter that is no number is never written. */
static void test_round_trip(void **state)
{
    ek_tokenizer *tok;
    ek_model *m = open_model(model, &tok);
    const ek_weights_need need = {.dims = ek_model_dims(m),
                                  .model_hash = ek_model_hash(m),
                                  .tokenizer_hash = ek_tokenizer_hash(tok),
                                  .sinks = -1,
                                  .recent = -1};
    const char *dir = ek_check_in_folder("memory");
    float *params;
    ek_weights *w;
    ek_err err;
    ek_scorer s = write_weights(dir, m, tok, &params);

    (void)state;
    ek_check_ok(ek_weights_open(&w, dir, &need, dev, &err), &err);
    const ek_scorer *found = ek_weights_scorer(w);
    assert_string_equal(ek_weights_method(w), "foresight");
    char trained[33]; /* the run is named by its settings' hash */
    ek_hash128(trained, "seed: 1\n", strlen("seed: 1\n"));
    assert_string_equal(ek_weights_trained(w), trained);
    assert_int_equal(found->set.hidden, 6);
    assert_int_equal(found->set.age, EK_AGE_INPUT);
    assert_int_equal(found->set.delay, 12);
    assert_int_equal(found->set.carried, EK_CARRIED_FULL);
    assert_int_equal(ek_params_size(found), ek_params_size(&s));
    assert_memory_equal(found->params, params, ek_params_size(&s) * sizeof *params);
    ek_weights_close(w);
    const ek_scorer_export bad = {.scorer = &s,
                                  .method = "foresight",
                                  .loss = "",
                                  .model = "",
                                  .tokenizer = "",
                                  .data = "",
                                  .target = "",
                                  .settings = "",
                                  .loss_last = NAN};
    params[ek_params_at(&s, 2, 1, 0) + 3] = NAN;
    assert_int_equal(ek_scorer_write(ek_check_in_folder("bad"), &bad, &err), EK_ENAN);
    assert_non_null(strstr(err.msg, "hidden.weight, layer 1, head 0"));
    assert_false(ek_file_exists(ek_check_in_folder("bad/model.safetensors")));
    free(params);
    ek_tokenizer_close(tok);
    ek_model_close(m);
}

static void test_weights(void **state)
{
    ek_tokenizer *tok, *tok2;
    ek_model *m = open_model(model, &tok), *m2 = open_model(other, &tok2);
    ek_weights_need need = {.method = "foresight",
                            .dims = ek_model_dims(m),
                            .model_hash = ek_model_hash(m),
                            .tokenizer_hash = ek_tokenizer_hash(tok),
                            .sinks = -1,
                            .recent = -1};
    const char *dir = ek_check_in_folder("memory");
    ek_method method = ek_method_foresight;
    ek_weights *w;
    ek_err err;

    (void)state;
    ek_check_ok(ek_weights_open(&w, dir, &need, dev, &err), &err);
    ek_weights_apply(w, &method);
    assert_int_equal(method.protect.sinks, 2);
    assert_int_equal(method.protect.recent, 16);
    assert_ptr_equal(method.measure.scorer, ek_weights_scorer(w));
    ek_weights_close(w);
    need.recent = 16;
    ek_check_ok(ek_weights_open(&w, dir, &need, dev, &err), &err);
    ek_weights_close(w);
    need.recent = 64;
    assert_int_equal(ek_weights_open(&w, dir, &need, dev, &err), EK_EASKED);
    assert_non_null(strstr(err.msg, "recent window of 16"));
    need.recent = -1;
    need.sinks = 1;
    assert_int_equal(ek_weights_open(&w, dir, &need, dev, &err), EK_EASKED);
    assert_non_null(strstr(err.msg, "found sinks 1"));
    need.sinks = -1;
    need.method = "kvpop";
    assert_int_equal(ek_weights_open(&w, dir, &need, dev, &err), EK_EASKED);
    assert_non_null(strstr(err.msg, "weights of foresight"));
    need.method = NULL;
    need.model_hash = ek_model_hash(m2);
    assert_int_equal(ek_weights_open(&w, dir, &need, dev, &err), EK_EASKED);
    assert_non_null(strstr(err.msg, "another base model"));
    need.model_hash = ek_model_hash(m);
    need.tokenizer_hash = "00000000000000000000000000000000";
    assert_int_equal(ek_weights_open(&w, dir, &need, dev, &err), EK_EASKED);
    assert_non_null(strstr(err.msg, "another tokenizer"));
    need.tokenizer_hash = ek_tokenizer_hash(tok);
    assert_int_equal(ek_weights_open(&w, ek_check_in_folder("nowhere"), &need, dev, &err),
                     EK_EASKED);
    ek_tokenizer_close(tok);
    ek_tokenizer_close(tok2);
    ek_model_close(m);
    ek_model_close(m2);
}

/* config.json and the parameters, damaged in every way we could think of. */
static void test_damaged(void **state)
{
    static const char *const edits[][2] = {{"\"evictkit scorer\"", "\"evictkit other\""},
                                           {"\"version\": 1", "\"version\": 9"},
                                           {"\"version\": 1", "\"version\": \"1\""},
                                           {"\"mlp\"", "\"mlq\""},
                                           {"\"hidden\": 6", "\"hidden\": 7"},
                                           {"\"hidden\": 6", "\"hidden\": -6"},
                                           {"\"hidden\": 6", "\"hidden\": 1e99"},
                                           {"\"input\": \"raw\"", "\"input\": \"cooked\""},
                                           {"\"age\": \"input\"", "\"age\": \"exp\""},
                                           {"\"age\": \"input\"", "\"age\": \"\""},
                                           {"\"recent\": 16", "\"recent\": 0"},
                                           {"\"recent\": 16", "\"recent\": 11"},
                                           {"\"delay\": 12", "\"delay\": 17"},
                                           {"\"delay\": 12", "\"delay\": -1"},
                                           {"\"delay\": 12", "\"delay\": \"12\""},
                                           {"\"norm\": 0", "\"norm\": 2"},
                                           {"\"skip\": 0", "\"skip\": \"no\""},
                                           {"\"carried\": \"full\"", "\"carried\": \"ema\""},
                                           {"\"carried\": \"full\"", "\"carried\": \"half\""},
                                           {"\"carried\": \"full\"", "\"carried\": 2"},
                                           {"\"sinks\": 2", "\"sinks\": 2.5"},
                                           {"\"dims\": {", "\"dims\": [], \"old\": {"},
                                           {"\"n_layers\": 2", "\"n_layers\": null"},
                                           {"\"weights\": \"", "\"weights\": \"0"},
                                           {"\"method\": \"foresight\"", "\"method\": \"\""},
                                           {"{", "{ \"format\": 1, "},
                                           {"}\n", "}}\n"},
                                           {"\"model\"", "\"modem\""},
                                           {"\"norm\"", "\"norn\""},
                                           {"\"delay\": 12", "\"delay\": 0"},
                                           {"\"recent\": 16", "\"recent\": 48"},
                                           {"\"absolute\": 0", "\"absolute\": 1"},
                                           {"\"scoring\": \"", "\"scoring\": \"0"},
                                           {"\"scoring\": \"", "\"scoring\": 7, \"loss\": \""},
                                           {"\"steps\"", "\"stops\""}};
    ek_tokenizer *tok;
    ek_model *m = open_model(model, &tok);
    const ek_weights_need need = {.dims = ek_model_dims(m),
                                  .model_hash = ek_model_hash(m),
                                  .tokenizer_hash = ek_tokenizer_hash(tok),
                                  .sinks = -1,
                                  .recent = -1};
    char *dir = ek_check_in_folder("bent"), *json = ek_check_in_folder("bent/config.json");
    char *bin = ek_check_in_folder("bent/model.safetensors");
    ek_map good, params;
    ek_weights *w;
    ek_err err;

    (void)state;
    ek_check_ok(ek_make_folder(dir, &err), &err);
    ek_check_ok(ek_map_open(&good, ek_check_in_folder("memory/config.json"), &err), &err);
    ek_check_ok(ek_map_open(&params, ek_check_in_folder("memory/model.safetensors"), &err), &err);
    ek_check_ok(ek_file_write(bin, params.data, params.size, &err), &err);
    char *text = strndup((const char *)good.data, good.size);
    for (size_t i = 0; i < EK_COUNT(edits); i++) {
        char *at = strstr(text, edits[i][0]), *bent = malloc(good.size + 200);

        if (strcmp(edits[i][0], "}\n") == 0)
            at = text + good.size - 2;
        assert_non_null(at);
        snprintf(bent, good.size + 200, "%.*s%s%s", (int)(at - text), text, edits[i][1],
                 at + strlen(edits[i][0]));
        ek_check_ok(ek_file_write(json, bent, strlen(bent), &err), &err);
        const ek_code code = ek_weights_open(&w, dir, &need, dev, &err);
        if (code != EK_EINPUT && code != EK_EASKED)
            fail_msg("'%s' was not refused", edits[i][1]);
        free(bent);
    }
    ek_check_ok(ek_file_write(json, good.data, good.size, &err), &err);
    ek_check_ok(ek_weights_open(&w, dir, &need, dev, &err), &err); /* undamaged, it is taken */
    ek_weights_close(w);
    uint8_t *bytes = malloc(params.size);
    memcpy(bytes, params.data, params.size);
    bytes[params.size - 20] ^= 1;
    ek_check_ok(ek_file_write(bin, bytes, params.size, &err), &err);
    assert_int_equal(ek_weights_open(&w, dir, &need, dev, &err), EK_EINPUT);
    assert_non_null(strstr(err.msg, "not of one training"));
    ek_check_ok(ek_file_write(bin, bytes, params.size / 2, &err), &err);
    assert_int_equal(ek_weights_open(&w, dir, &need, dev, &err), EK_EINPUT);
    ek_check_ok(ek_file_write(json, "", 0, &err), &err);
    assert_int_equal(ek_weights_open(&w, dir, &need, dev, &err), EK_EINPUT);
    free(bytes);
    free(text);
    ek_map_close(&good);
    ek_map_close(&params);
    ek_tokenizer_close(tok);
    ek_model_close(m);
}

static int same_scorer(const ek_scorer *x, const ek_scorer *y)
{
    const ek_scorer_set *a = &x->set, *b = &y->set;

    return x->cls == y->cls && a->hidden == b->hidden && a->age == b->age && a->rms == b->rms &&
           a->sinks == b->sinks && a->recent == b->recent && a->delay == b->delay &&
           a->norm == b->norm && a->skip == b->skip && a->absolute == b->absolute &&
           a->carried == b->carried;
}

/* Every byte of config.json changed by itself: refused, or the scores are what they were.  A folder
 * from elsewhere names no hash of its settings: then other settings are another identity. */
static void test_each_byte(void **state)
{
    ek_tokenizer *tok;
    ek_model *m = open_model(model, &tok);
    const ek_weights_need need = {.dims = ek_model_dims(m),
                                  .model_hash = ek_model_hash(m),
                                  .tokenizer_hash = ek_tokenizer_hash(tok),
                                  .sinks = -1,
                                  .recent = -1};
    char *dir = ek_check_in_folder("byte"), *json = ek_check_in_folder("byte/config.json");
    int taken[2] = {0}, others[2] = {0};
    ek_map map;
    ek_weights *w;
    float *params;
    ek_err err;

    (void)state;
    const ek_scorer good = write_weights(dir, m, tok, &params);
    char scoring[33];
    ek_weights_scoring(scoring, "foresight", &good);
    ek_check_ok(ek_map_open(&map, json, &err), &err);
    char *text = strndup((const char *)map.data, map.size);
    ek_map_close(&map);
    for (int bare = 0; bare < 2; bare++) {
        if (bare) {
            char *from = strstr(text, "  \"scoring\""), *to = strchr(from, '\n') + 1;

            memmove(from, to, strlen(to) + 1);
        }
        for (char *c = text; *c; c++) {
            *c ^= 1;
            FILE *f = fopen(json, "wb");
            assert_non_null(f);
            fputs(text, f);
            fclose(f);
            if (ek_weights_open(&w, dir, &need, dev, &err) == EK_OK) {
                const ek_scorer *s = ek_weights_scorer(w);
                const int same = same_scorer(s, &good);

                assert_int_equal(strcmp(ek_weights_settings(w), scoring) == 0, same);
                taken[bare]++;
                others[bare] += !same;
                ek_weights_close(w);
            }
            *c ^= 1;
        }
    }
    print_message("%d and %d changed bytes are harmless\n", taken[0], taken[1]);
    assert_int_equal(others[0], 0);
    assert_true(taken[0] > 20 && others[1] > 3); /* blanks and hashes of data; sinks, delay */
    /* What is absent says the default. */
    char *norm = strstr(text, "  \"norm\""), *end = strchr(norm, '\n') + 1;
    memmove(norm, end, strlen(end) + 1);
    assert_null(strstr(text, "norm"));
    ek_check_ok(ek_file_write(json, text, strlen(text), &err), &err);
    ek_check_ok(ek_weights_open(&w, dir, &need, dev, &err), &err);
    assert_string_equal(ek_weights_settings(w), scoring);
    ek_weights_close(w);
    free(text);
    free(params);
    ek_tokenizer_close(tok);
    ek_model_close(m);
}

/* Bytes of a file, malloc'd; NUL behind them. */
static char *bytes_of(const char *path)
{
    ek_map map;
    ek_err err;

    ek_check_ok(ek_map_open(&map, path, &err), &err);
    char *copy = calloc(1, map.size + 1);
    memcpy(copy, map.data, map.size);
    ek_map_close(&map);
    return copy;
}

/* Where config.json cannot be written, for want of room or of a place, model.safetensors stays as
 * it was: another one beside the old config would make both useless. */
static void test_together(void **state)
{
    ek_tokenizer *tok;
    ek_model *m = open_model(model, &tok);
    const char *dir = ek_check_in_folder("together");
    const char *bin = ek_check_in_folder("together/model.safetensors");
    const char *json = ek_check_in_folder("together/config.json");
    float *params;
    ek_scorer s = write_weights(dir, m, tok, &params);
    const size_t n = ek_params_size(&s);
    char *long_text = malloc(8 * n * sizeof(float)), *config = bytes_of(json);
    struct rlimit was, least;
    ek_scorer_export x = {.scorer = &s,
                          .method = "foresight",
                          .loss = "",
                          .model = "m",
                          .tokenizer = "t",
                          .data = "",
                          .target = "",
                          .settings = long_text,
                          .loss_last = NAN};
    ek_err err;

    (void)state;
    memset(long_text, 'x', 8 * n * sizeof(float));
    long_text[8 * n * sizeof(float) - 1] = '\0';
    params[0] += 1;
    char *bytes = bytes_of(bin);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &was), 0);
    least = was;
    least.rlim_cur = 4 * n * sizeof(float); /* room for the weights, none for their config */
    void (*before)(int) = signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &least), 0);
    const ek_code code = ek_scorer_write(dir, &x, &err);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &was), 0);
    signal(SIGXFSZ, before);
    assert_int_equal(code, EK_EIO);
    assert_non_null(strstr(err.msg, "config.json"));
    char *bytes_now = bytes_of(bin), *config_now = bytes_of(json);
    assert_memory_equal(bytes_now, bytes, n * sizeof(float));
    assert_string_equal(config_now, config);
    assert_int_equal(unlink(json), 0);
    assert_int_equal(mkdir(json, 0777), 0);
    assert_int_equal(ek_scorer_write(dir, &x, &err), EK_EASKED);
    free(bytes_now);
    bytes_now = bytes_of(bin);
    assert_memory_equal(bytes_now, bytes, n * sizeof(float));
    assert_int_equal(rmdir(json), 0);
    ek_check_ok(ek_scorer_write(dir, &x, &err), &err); /* negative control: with room both change */
    free(bytes_now);
    bytes_now = bytes_of(bin);
    assert_memory_not_equal(bytes_now, bytes, n * sizeof(float));
    assert_int_equal(unlink(json) | unlink(bin) | rmdir(dir), 0); /* and nothing else is left */
    free(bytes);
    free(bytes_now);
    free(config);
    free(config_now);
    free(long_text);
    free(params);
    ek_tokenizer_close(tok);
    ek_model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip), cmocka_unit_test(test_weights),
        cmocka_unit_test(test_damaged), cmocka_unit_test(test_each_byte),
        cmocka_unit_test(test_together)};
    const ek_tiny differs = {.seed = 5};
    ek_err err;

    if (ek_device_open(&dev, "cpu", getenv("EVICTKIT_ISA"), &err) != EK_OK ||
        ek_check_folder_open("weights") != 0)
        return 77;
    snprintf(model, sizeof model, "%s/tiny.gguf", ek_check_folder);
    snprintf(other, sizeof other, "%s/other.gguf", ek_check_folder);
    if (ek_tiny_model(model, NULL, &err) != EK_OK ||
        ek_tiny_model(other, &differs, &err) != EK_OK) {
        fprintf(stderr, "%s\n", err.msg);
        return 1;
    }
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    ek_device_close(dev);
    return ek_check_folder_close() != 0 || failed;
}
