/* Reading GGUF: the facts of the default model, and every tensor type against blocks made by
 * another program. */
#include "core/file.h"
#include "core/json.h"
#include "core/rng.h"
#include "infer/gguf.h"
#include "tests/tiny_model.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

static char folder[] = "/tmp/evictkit-gguf-XXXXXX";
static char path[64];

static int set_up(void **state)
{
    (void)state;
    if (!mkdtemp(folder))
        return -1;
    snprintf(path, sizeof path, "%s/x.gguf", folder);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    unlink(path);
    return rmdir(folder);
}

/* The default model, or skip. */
static const char *model_path(void)
{
    const char *p = getenv("EVICTKIT_MODEL");

    if (!p)
        p = "models/SmolLM2-135M-Instruct.Q4_1.gguf";
    if (access(p, R_OK) != 0)
        skip();
    return p;
}

#define OK(expr)                              \
    do {                                      \
        if ((expr) != EK_OK)                  \
            fail_msg("%s: %s", #expr, e.msg); \
    } while (0)

static int64_t whole(const ek_gguf *g, const char *key)
{
    int64_t x = -1;
    ek_err e;

    OK(ek_gguf_int(g, key, EK_GGUF_NEEDED, 0, INT64_MAX, &x, &e));
    return x;
}

static void the_default_model_is_what_it_should_be(void **state)
{
    ek_gguf *g;
    ek_err e;
    double base = 0, eps = 0;
    int64_t numbers = 0;
    size_t bytes = 0, q41 = 0;
    int count[32] = {0};
    const ek_gguf_tensor *t;

    (void)state;
    OK(ek_gguf_open(&g, model_path(), &e));
    assert_string_equal(ek_gguf_arch(g), "llama");
    assert_int_equal(whole(g, "A.block_count"), 30);
    assert_int_equal(whole(g, "A.embedding_length"), 576);
    assert_int_equal(whole(g, "A.feed_forward_length"), 1536);
    assert_int_equal(whole(g, "llama.attention.head_count"), 9);
    assert_int_equal(whole(g, "A.attention.head_count_kv"), 3);
    assert_int_equal(whole(g, "A.vocab_size"), 49152);
    assert_int_equal(whole(g, "A.context_length"), 8192);
    OK(ek_gguf_float(g, "A.rope.freq_base", EK_GGUF_NEEDED, 1, 1e9, &base, &e));
    OK(ek_gguf_float(g, "A.attention.layer_norm_rms_epsilon", EK_GGUF_NEEDED, 0, 1, &eps, &e));
    assert_true(base == 100000.0 && (float)eps == 1e-5f);
    assert_int_equal(ek_gguf_n_tensors(g), 272);
    for (int i = 0; i < 272; i++) {
        t = ek_gguf_tensor_at(g, i);
        count[t->type]++;
        bytes += t->bytes;
        numbers += t->rows * t->dim[0];
        q41 += t->type == EK_Q_Q4_1 ? t->bytes : 0;
    }
    assert_int_equal(numbers, 134515008);
    assert_int_equal(bytes, 96576768);
    assert_int_equal(q41, 66355200);
    assert_int_equal(count[EK_Q_Q4_1], 210);
    assert_int_equal(count[EK_Q_F32], 61);
    OK(ek_gguf_need(&t, g, "token_embd.weight", 49152, 576, &e));
    assert_int_equal(t->type, EK_Q_Q8_0);
    assert_int_equal(t->bytes, 30081024);
    assert_null(ek_gguf_find(g, "output.weight"));
    assert_int_equal(ek_gguf_need(&t, g, "token_embd.weight", 576, 49152, &e), EK_EINPUT);
    assert_int_equal(strlen(ek_gguf_hash(g)), 32);
    ek_gguf_close(g);
}

static void every_row_of_the_default_model_is_finite(void **state)
{
    ek_gguf *g;
    ek_err e;
    float row[1536];

    (void)state;
    OK(ek_gguf_open(&g, model_path(), &e));
    for (int i = 0; i < ek_gguf_n_tensors(g); i++) {
        const ek_gguf_tensor *t = ek_gguf_tensor_at(g, i);

        for (int64_t r = 0; r < t->rows; r += 7)
            OK(ek_gguf_rows_f32(g, t, r, 1, row, &e));
    }
    ek_gguf_close(g);
}

/* Blocks --------------------------------------------------------------------------------------- */

static int nibble(char c)
{
    return c <= '9' ? c - '0' : c - 'a' + 10;
}

static size_t from_hex(uint8_t *out, const char *hex)
{
    const size_t n = strlen(hex) / 2;

    for (size_t i = 0; i < n; i++)
        out[i] = (uint8_t)(nibble(hex[2 * i]) << 4 | nibble(hex[2 * i + 1]));
    return n;
}

static void check_type(const ek_json *type)
{
    static uint8_t bytes[4096];
    static float y[1024];
    const size_t size = from_hex(bytes, ek_json_string(ek_json_get(type, "hex")));
    int64_t id;
    size_t n, i = 0;

    assert_true(ek_json_int(ek_json_get(type, "id"), 0, 40, &id));
    assert_true(ek_qtype_known((uint32_t)id));
    assert_string_equal(ek_qtype_name((uint32_t)id), ek_json_key(type));
    n = size / (size_t)ek_qtype_block_bytes((ek_qtype)id) * (size_t)ek_qtype_block((ek_qtype)id);
    assert_true(n >= 96 && n <= EK_COUNT(y));
    assert_true(ek_dequant(y, (ek_qtype)id, bytes, n));
    for (const ek_json *v = ek_json_child(ek_json_get(type, "values")); v; v = ek_json_next(v), i++)
        if (y[i] != (float)ek_json_number(v))
            fail_msg("%s: number %zu: found %.9g, expected %.9g", ek_json_key(type), i, y[i],
                     ek_json_number(v));
    assert_int_equal(i, n);

    /* Negative control: one bit of the last byte is some number of the last block. */
    bytes[size - 1] ^= 0x10;
    assert_true(ek_dequant(y, (ek_qtype)id, bytes, n));
    i = 0;
    for (const ek_json *v = ek_json_child(ek_json_get(type, "values")); v; v = ek_json_next(v))
        if (y[i++] != (float)ek_json_number(v))
            return;
    fail_msg("%s: a changed byte changed nothing", ek_json_key(type));
}

static void types_agree_with_the_gguf_package(void **state)
{
    ek_map m;
    ek_json *root;
    ek_err e;
    int n = 0;

    (void)state;
    OK(ek_map_open(&m, "tests/data/blocks_golden.json", &e));
    OK(ek_json_parse(&root, (const char *)m.data, m.size, "blocks_golden.json", &e));
    for (const ek_json *t = ek_json_child(ek_json_get(root, "types")); t; t = ek_json_next(t), n++)
        check_type(t);
    assert_int_equal(n, 8);
    ek_json_close(root);
    ek_map_close(&m);
}

static void halves_are_ieee(void **state)
{
    (void)state;
    assert_true(ek_from_f16(0x3c00) == 1.0f && ek_from_f16(0xc000) == -2.0f);
    assert_true(ek_from_f16(0x0001) == 0x1p-24f && ek_from_f16(0x83ff) == -0x3ffp-24f);
    assert_true(ek_from_f16(0x7bff) == 65504.0f && ek_from_f16(0x0400) == 0x1p-14f);
    assert_true(ek_from_f16(0x7c00) > 1e38f && ek_from_f16(0x7e00) != ek_from_f16(0x7e00));
}

/* Rows of q and k come back in the layout of Hugging Face, in which the tiny model was drawn. */
static void rows_of_q_and_k_are_put_in_order(void **state)
{
    static const ek_tiny o = {.n_heads = 3, .n_kv_heads = 3, .head_dim = 32, .seed = 9};
    const uint64_t stream = ek_rng_stream("blk.1.attn_k.weight", 0, 0);
    static float ours[96 * 64], stored[96 * 64];
    const ek_gguf_tensor *t;
    ek_gguf *g;
    ek_err e;

    (void)state;
    OK(ek_tiny_model(path, &o, &e));
    OK(ek_gguf_open(&g, path, &e));
    assert_true(ek_gguf_permuted(g));
    OK(ek_gguf_need(&t, g, "blk.1.attn_k.weight", 96, 64, &e));
    OK(ek_gguf_qk_rows_f32(g, t, 32, 0, 96, ours, &e));
    OK(ek_gguf_rows_f32(g, t, 0, 96, stored, &e));
    for (int i = 0; i < 96 * 64; i++)
        assert_true(ours[i] == (float)(1.4 / 8 * ek_rng_normal(9, stream, (uint64_t)i)));
    assert_memory_not_equal(ours, stored, sizeof ours);
    /* Row 2i + s of a head in the file is row s * d/2 + i. */
    assert_memory_equal(stored + (32 + 2 * 5 + 1) * 64, ours + (32 + 16 + 5) * 64, 256);
    ek_gguf_close(g);
}

static void tiny_models_of_all_types_are_near_each_other(void **state)
{
    static const ek_qtype types[] = {EK_Q_F32,  EK_Q_F16,  EK_Q_BF16, EK_Q_Q4_0,
                                     EK_Q_Q4_1, EK_Q_Q5_0, EK_Q_Q5_1, EK_Q_Q8_0};
    /* Half a step of the type, beside the largest number of a block of 64 or so. */
    static const float near[] = {0, 1e-3f, 6e-3f, 0.2f, 0.2f, 0.1f, 0.1f, 0.02f};
    static float first[300 * 64], other[300 * 64];
    ek_err e;

    (void)state;
    for (size_t i = 0; i < EK_COUNT(types); i++) {
        const ek_tiny o = {.type = types[i], .own_head = 1, .no_template = 1};
        const ek_gguf_tensor *t;
        ek_gguf *g;
        float worst = 0;

        OK(ek_tiny_model(path, &o, &e));
        OK(ek_gguf_open(&g, path, &e));
        OK(ek_gguf_need(&t, g, "output.weight", 300, 64, &e));
        assert_int_equal(t->type, types[i]);
        OK(ek_gguf_rows_f32(g, t, 0, 300, i ? other : first, &e));
        for (int j = 0; i && j < 300 * 64; j++)
            worst = worst > fabsf(other[j] - first[j]) ? worst : fabsf(other[j] - first[j]);
        assert_true(worst <= near[i] && (i == 0 || worst > 0));
        ek_gguf_close(g);
    }
}

static void a_file_that_is_not_there(void **state)
{
    ek_gguf *g;
    ek_err e;

    (void)state;
    assert_int_equal(ek_gguf_open(&g, "/nowhere/x.gguf", &e), EK_EASKED);
    assert_int_equal(ek_gguf_open(&g, folder, &e), EK_EASKED);
    OK(ek_file_write(path, "", 0, &e));
    assert_int_equal(ek_gguf_open(&g, path, &e), EK_EINPUT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_default_model_is_what_it_should_be),
        cmocka_unit_test(every_row_of_the_default_model_is_finite),
        cmocka_unit_test(types_agree_with_the_gguf_package),
        cmocka_unit_test(halves_are_ieee),
        cmocka_unit_test(rows_of_q_and_k_are_put_in_order),
        cmocka_unit_test(tiny_models_of_all_types_are_near_each_other),
        cmocka_unit_test(a_file_that_is_not_there),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
