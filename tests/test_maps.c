/* tests/test_maps.c - folders of maps: written, read back to the bit, and refused when they were
 * made for something else or are damaged. */
#include "core/file.h"
#include "core/rng.h"
#include "infer/maps.h"
#include "tests/check_folder.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const ek_dims dims = {.n_layers = 3, .n_heads = 2, .group = 2, .head_dim = 4};
static const char model[] = "0123456789abcdef0123456789abcdef";
static const char tokenizer[] = "fedcba9876543210fedcba9876543210";
static const ek_maps_need need = {.dims = &dims, .model_hash = model, .tokenizer_hash = tokenizer};
static const ek_maps_origin origin = {.model = model,
                                      .tokenizer = tokenizer,
                                      .data = "data",
                                      .settings = "seed: 1\n",
                                      .tokens = 990,
                                      .held_out = 10};

static ek_maps filled(int joint)
{
    ek_maps m;
    ek_err err;

    ek_check_ok(ek_maps_make(&m, &dims, joint, &err), &err);
    for (int i = 0; i < m.n * m.width * m.width; i++)
        m.w[i] = (float)ek_rng_normal(1, 1, (uint64_t)i);
    for (int i = 0; i < m.n * m.width; i++)
        m.b[i] = (float)ek_rng_normal(1, 2, (uint64_t)i);
    for (int i = 0; i < dims.n_layers * dims.n_heads; i++)
        m.r2[i] = (float)(1 - ek_rng_unit(1, 3, (uint64_t)i));
    return m;
}

/* Both modes come back to the bit, each with the sizes that its mode asks for. */
static void test_round_trip(void **state)
{
    (void)state;
    for (int joint = 0; joint < 2; joint++) {
        char *dir = ek_check_in_folder(joint ? "layer" : "head");
        ek_maps m = filled(joint), back;
        ek_err err;

        assert_int_equal(m.width, joint ? 8 : 4);
        assert_int_equal(m.n, joint ? 3 : 6);
        ek_check_ok(ek_maps_write(dir, &m, &origin, &err), &err);
        ek_check_ok(ek_maps_open(&back, dir, &need, &err), &err);
        assert_int_equal(back.joint, joint);
        assert_int_equal(back.width, m.width);
        assert_int_equal(back.n, m.n);
        assert_int_equal(ek_maps_bytes(&back), 4 * m.n * m.width * (m.width + 1));
        assert_memory_equal(back.w, m.w, (size_t)(m.n * m.width * m.width) * sizeof(float));
        assert_memory_equal(back.b, m.b, (size_t)(m.n * m.width) * sizeof(float));
        assert_memory_equal(back.r2, m.r2, 6 * sizeof(float));
        assert_ptr_equal(ek_maps_weight(&back, 2, 1),
                         back.w + (joint ? 2 : 5) * back.width * back.width);
        assert_ptr_equal(ek_maps_bias(&back, 2, 1), back.b + (joint ? 2 : 5) * back.width);
        assert_int_equal(strlen(back.hash), 32);
        ek_maps_close(&back);
        ek_maps_close(&m);
    }
}

/* A map that is not finite is never written. */
static void test_not_finite(void **state)
{
    ek_maps m = filled(0);
    ek_err err;

    (void)state;
    m.w[2 * 2 * 16 + 21] = NAN;
    assert_int_equal(ek_maps_write(ek_check_in_folder("nan"), &m, &origin, &err), EK_ENAN);
    assert_non_null(strstr(err.msg, "map.weight, layer 2, number 21"));
    assert_false(ek_file_exists(ek_check_in_folder("nan/model.safetensors")));
    ek_maps_close(&m);
}

/* Made for something else: asked wrongly, said in a sentence. */
static void test_other(void **state)
{
    const char *dir = ek_check_in_folder("head");
    ek_maps_need other = need;
    ek_dims wide = dims;
    ek_maps m;
    ek_err err;

    (void)state;
    other.model_hash = tokenizer;
    assert_int_equal(ek_maps_open(&m, dir, &other, &err), EK_EASKED);
    assert_non_null(strstr(err.msg, "another base model"));
    other = need;
    other.tokenizer_hash = model;
    assert_int_equal(ek_maps_open(&m, dir, &other, &err), EK_EASKED);
    assert_non_null(strstr(err.msg, "another tokenizer"));
    other = need;
    other.dims = &wide;
    wide.head_dim = 8;
    assert_int_equal(ek_maps_open(&m, dir, &other, &err), EK_EASKED);
    assert_non_null(strstr(err.msg, "dims.head_dim: found 4, the model has 8"));
    assert_int_equal(ek_maps_open(&m, ek_check_in_folder("nowhere"), &need, &err), EK_EASKED);
    ek_check_ok(ek_maps_open(&m, dir, &need, &err), &err); /* asked rightly, it is taken */
    ek_maps_close(&m);
}

/* Rewrite the parameters and name their new hash, so that only the contents can be refused. */
static void write_both(const char *text, const uint8_t *bytes, size_t size)
{
    char hash[33], *copy = strdup(text), *at = strstr(copy, "\"weights\": \"");
    ek_err err;

    ek_hash128(hash, bytes, size);
    memcpy(at + strlen("\"weights\": \""), hash, 32);
    ek_check_ok(ek_file_write(ek_check_in_folder("bent/config.json"), copy, strlen(copy), &err),
                &err);
    ek_check_ok(ek_file_write(ek_check_in_folder("bent/model.safetensors"), bytes, size, &err),
                &err);
    free(copy);
}

static void refused(const char *what, const char *says)
{
    ek_maps m;
    ek_err err;
    const ek_code code = ek_maps_open(&m, ek_check_in_folder("bent"), &need, &err);

    if (code != EK_EINPUT && code != EK_EASKED)
        fail_msg("%s was not refused", what);
    assert_int_equal(ek_err_exit(code), 2);
    if (says != NULL && strstr(err.msg, says) == NULL)
        fail_msg("%s: '%s' does not say '%s'", what, err.msg, says);
}

static void test_damaged(void **state)
{
    static const char *const edits[][2] = {{"\"evictkit maps\"", "\"evictkit scorer\""},
                                           {"\"version\": 1", "\"version\": 2"},
                                           {"\"version\": 1", "\"version\": true"},
                                           {"\"mode\": \"head\"", "\"mode\": \"heads\""},
                                           {"\"mode\": \"head\"", "\"mode\": \"layer\""},
                                           {"\"mode\": \"head\"", "\"mode\": 0"},
                                           {"\"dims\": {", "\"dims\": 3, \"old\": {"},
                                           {"\"n_layers\": 3", "\"n_layers\": 4"},
                                           {"\"n_heads\": 2", "\"n_heads\": 1e300"},
                                           {"\"weights\": \"", "\"weights\": \"0"},
                                           {"{", "{ \"format\": 1, "},
                                           {"}\n", "}}\n"},
                                           {"\"model\"", "\"modem\""},
                                           {"\"tokens\"", "\"tokena\""},
                                           {"\"weights\"", "\"wrights\""}};
    ek_map json, params;
    ek_maps m;
    ek_err err;

    (void)state;
    ek_check_ok(ek_make_folder(ek_check_in_folder("bent"), &err), &err);
    ek_check_ok(ek_map_open(&json, ek_check_in_folder("head/config.json"), &err), &err);
    ek_check_ok(ek_map_open(&params, ek_check_in_folder("head/model.safetensors"), &err), &err);
    char *text = strndup((const char *)json.data, json.size);
    uint8_t *bytes = malloc(params.size);
    memcpy(bytes, params.data, params.size);
    ek_check_ok(
        ek_file_write(ek_check_in_folder("bent/model.safetensors"), bytes, params.size, &err),
        &err);
    for (size_t i = 0; i < EK_COUNT(edits); i++) {
        char *at = strstr(text, edits[i][0]), *bent = malloc(json.size + 200);

        if (strcmp(edits[i][0], "}\n") == 0)
            at = text + json.size - 2;
        assert_non_null(at);
        snprintf(bent, json.size + 200, "%.*s%s%s", (int)(at - text), text, edits[i][1],
                 at + strlen(edits[i][0]));
        ek_check_ok(ek_file_write(ek_check_in_folder("bent/config.json"), bent, strlen(bent), &err),
                    &err);
        refused(edits[i][1], NULL);
        free(bent);
    }
    write_both(text, bytes, params.size); /* undamaged, it is taken */
    ek_check_ok(ek_maps_open(&m, ek_check_in_folder("bent"), &need, &err), &err);
    ek_maps_close(&m);
    char *bare = strdup(text), *said = strstr(text, "\"weights\"");
    strcpy(strrchr(bare, ','), "}\n"); /* without the hash: maps may come from elsewhere */
    assert_null(strstr(bare, "weights"));
    ek_check_ok(ek_file_write(ek_check_in_folder("bent/config.json"), bare, strlen(bare), &err),
                &err);
    ek_check_ok(ek_maps_open(&m, ek_check_in_folder("bent"), &need, &err), &err);
    assert_memory_equal(m.hash, said + strlen("\"weights\": \""), 32);
    ek_maps_close(&m);
    free(bare);
    const float nan = NAN, two = 2;
    const size_t n_b = 24 * sizeof(float), n_r2 = 6 * sizeof(float), n_w = 96 * sizeof(float);
    const size_t data = params.size - n_b - n_r2 - n_w; /* by name: bias, r2, weight */
    memcpy(bytes + data + n_b + n_r2 + 40, &nan, sizeof nan);
    write_both(text, bytes, params.size);
    refused("a weight that is NaN", "map.weight");
    memcpy(bytes, params.data, params.size);
    memcpy(bytes + data + n_b + 3 * sizeof(float), &two, sizeof two);
    write_both(text, bytes, params.size);
    refused("an R2 of 2", "map.r2, layer 1, head 1");
    memcpy(bytes, params.data, params.size);
    bytes[3] = 0x7f; /* the header's length */
    write_both(text, bytes, params.size);
    refused("a header longer than the file", NULL);
    memcpy(bytes, params.data, params.size);
    memcpy(strstr((char *)bytes + 8, "map.r2"), "map.r3", 6);
    write_both(text, bytes, params.size);
    refused("a tensor of another name", "map.r2");
    memcpy(bytes, params.data, params.size);
    write_both(text, bytes, params.size / 2);
    refused("half a file", NULL);
    ek_check_ok(ek_file_write(ek_check_in_folder("bent/config.json"), text, json.size, &err), &err);
    bytes[params.size - 20] ^= 1;
    ek_check_ok(
        ek_file_write(ek_check_in_folder("bent/model.safetensors"), bytes, params.size, &err),
        &err);
    refused("parameters of another fit", "not of one training");
    ek_check_ok(ek_file_write(ek_check_in_folder("bent/config.json"), "", 0, &err), &err);
    refused("an empty config.json", NULL);
    free(bytes);
    free(text);
    ek_map_close(&json);
    ek_map_close(&params);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip), cmocka_unit_test(test_not_finite),
        cmocka_unit_test(test_other), cmocka_unit_test(test_damaged)};

    if (ek_check_folder_open("maps") != 0)
        return 77;
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    return ek_check_folder_close() != 0 || failed;
}
