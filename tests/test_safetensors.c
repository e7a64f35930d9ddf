/* tests/test_safetensors.c - a round trip, and damaged files refused with one sentence each. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "core/safetensors.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char folder[64], path[128];

/* A file from a header's text and `zeros` bytes of buffer; length < 0: the header's own. */
static void write_file(const char *header, long long length, int zeros)
{
    FILE *f = fopen(path, "wb");
    const uint64_t n = length < 0 ? strlen(header) : (uint64_t)length;

    assert_non_null(f);
    for (int i = 0; i < 8; i++)
        fputc((int)(n >> (8 * i) & 255), f);
    fputs(header, f);
    for (int i = 0; i < zeros; i++)
        fputc(0, f);
    fclose(f);
}

#define T(name, dtype, shape, from, to)                                                            \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[" from "," to "]" \
    "}"

static const struct {
    const char *header;
    long long length;
    int zeros;
    const char *says;
} damaged[] = {
    {"", 2, 0, "header length: found 2"},
    {"{}", 1000, 0, "header length: found 1000, expected at most 2"},
    {"{}", INT64_MAX, 0, "header length: found 9223372036854775807"},
    {"{}", 200000000, 0, "header length"},
    {"[]", -1, 0, "begins with {"},
    {" {}", -1, 0, "begins with {"},
    {"{", -1, 0, "begins with {"},
    {"{\"a\":}", -1, 0, "header: line 1"},
    {"{}x", -1, 0, "behind the JSON value"},
    {"{}", -1, 4, "found a buffer of 4 bytes, expected the 0"},
    {"{" T("w", "F32", "[2]", "0", "8") "}", -1, 4, "tensor \"w\": data_offsets: found [0, 8]"},
    {"{" T("w", "F32", "[2]", "0", "4") "}", -1, 4, "found 4 bytes, expected 8"},
    {"{" T("w", "F32", "[1]", "4", "8") "}", -1, 8, "found begin 4, expected 0"},
    {"{" T("w", "F32", "[1]", "0", "4") "," T("v", "F32", "[1]", "2", "6") "}", -1, 6,
     "neither overlap"},
    {"{" T("w", "F32", "[1]", "0", "4") "," T("v", "F32", "[1]", "8", "12") "}", -1, 12,
     "found begin 8, expected 4"},
    {"{" T("w", "F32", "[1]", "0", "4") "," T("w", "F32", "[1]", "4", "8") "}", -1, 8,
     "key \"w\" twice"},
    {"{" T("w", "F8", "[4]", "0", "4") "}", -1, 4, "dtype: found F8, expected F64"},
    {"{" T("w", "F32", "[-1]", "0", "4") "}", -1, 4, "shape: dimension 0: found -1"},
    {"{" T("w", "F32", "[1.5]", "0", "6") "}", -1, 6, "shape: dimension 0: found 1.5"},
    {"{" T("w", "F32", "[4611686018427387904,4]", "0", "4") "}", -1, 4, "shape: dimension 0"},
    {"{" T("w", "F32", "[4294967296,4294967296]", "0", "4") "}", -1, 4, "does not fit"},
    {"{" T("w", "F32", "[1,1,1,1,1,1,1,1,1]", "0", "4") "}", -1, 4, "more than 8 dimensions"},
    {"{" T("w", "F32", "7", "0", "4") "}", -1, 4, "shape: found no list"},
    {"{" T("w", "F32", "[1]", "4", "0") "}", -1, 4, "data_offsets: found [4, 0]"},
    {"{" T("w", "F32", "[1]", "\"0\"", "4") "}", -1, 4, "expected two whole numbers"},
    {"{" T("w", "F32", "[1]", "0,4", "4") "}", -1, 4, "expected two whole numbers"},
    {"{\"w\":{\"dtype\":\"F32\",\"shape\":[1]}}", -1, 4, "expected two whole numbers"},
    {"{\"w\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4],\"x\":1}}", -1, 4,
     "found key \"x\""},
    {"{\"w\":{\"dtype\":7,\"shape\":[1],\"data_offsets\":[0,4]}}", -1, 4, "dtype: found no text"},
    {"{\"w\":1}", -1, 0, "found no object"},
    {"{\"__metadata__\":{\"a\":1}}", -1, 0, "__metadata__: \"a\": found no text"},
    {"{\"__metadata__\":[]}", -1, 0, "__metadata__: found no object"},
};

static void damaged_files_are_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < EK_COUNT(damaged); i++) {
        ek_st *st = NULL;
        ek_err err = {0};

        write_file(damaged[i].header, damaged[i].length, damaged[i].zeros);
        if (ek_st_open(&st, path, &err) != EK_EINPUT)
            fail_msg("case %zu was accepted: %s", i, damaged[i].header);
        if (strncmp(err.msg, path, strlen(path)) != 0 || !strstr(err.msg, damaged[i].says))
            fail_msg("case %zu says: %s", i, err.msg);
        assert_null(st);
    }
}

/* Every proper prefix of a sound file is refused. */
static void cut_files_are_refused(void **state)
{
    static const char header[] = "{" T("w", "F32", "[1]", "0", "4") "}   ";
    const off_t whole = (off_t)(8 + strlen(header) + 4);
    ek_st *st = NULL;
    ek_err err = {0};

    (void)state;
    for (off_t n = whole; n >= 0; n--) {
        write_file(header, -1, 4);
        assert_int_equal(truncate(path, n), 0);
        st = NULL;
        assert_int_equal(ek_st_open(&st, path, &err), n == whole ? EK_OK : EK_EINPUT);
        ek_st_close(st);
    }
    unlink(path);
    assert_int_equal(ek_st_open(&st, path, &err), EK_EASKED);
}

static void what_is_written_is_read(void **state)
{
    static const float w[6] = {1, -2, 0.5f, 1e-30f, 3e38f, 0};
    static const uint16_t half[5] = {0x3c00, 0xc000, 0x0001, 0x7bff, 0x8000};
    static const uint16_t brain[2] = {0x3f80, 0xc040};
    static const uint8_t odd[3] = {7, 8, 9};
    static const int64_t big[1] = {-5};
    const ek_st_tensor t[] = {
        {"z.half", EK_ST_F16, 1, {5}, half, sizeof half},
        {"w", EK_ST_F32, 2, {2, 3}, w, sizeof w},
        {"a \"odd\"", EK_ST_U8, 1, {3}, odd, sizeof odd},
        {"brain", EK_ST_BF16, 1, {2}, brain, sizeof brain},
        {"scalar", EK_ST_I64, 0, {0}, big, sizeof big},
        {"none", EK_ST_F64, 2, {0, 9}, NULL, 0},
    };
    const ek_st_pair meta[] = {{"format", "pt"}, {"note", "two\nlines"}};
    float out[6] = {0};
    ek_st *st = NULL;
    ek_map map = {0};
    ek_err err = {0};

    (void)state;
    assert_int_equal(ek_st_write(path, t, 6, meta, 2, &err), EK_OK);
    assert_int_equal(ek_map_open(&map, path, &err), EK_OK);
    assert_int_equal(map.data[0] % 8, 0); /* the buffer starts at a multiple of 8 */
    ek_map_close(&map);
    assert_int_equal(ek_st_open(&st, path, &err), EK_OK);
    assert_int_equal(ek_st_count(st), 6);
    assert_string_equal(ek_st_at(st, 0)->name, "a \"odd\"");
    assert_string_equal(ek_st_meta(st, "note"), "two\nlines");
    assert_null(ek_st_meta(st, "other"));
    assert_memory_equal(ek_st_find(st, "a \"odd\"")->data, odd, 3);
    assert_int_equal(ek_st_find(st, "none")->bytes, 0);
    assert_int_equal(ek_st_find(st, "scalar")->n_dims, 0);
    assert_null(ek_st_find(st, "wo"));

    assert_int_equal(ek_st_read_f32(st, "w", 2, (int64_t[]){2, 3}, out, &err), EK_OK);
    assert_memory_equal(out, w, sizeof w);
    assert_int_equal(ek_st_read_f32(st, "z.half", 1, (int64_t[]){5}, out, &err), EK_OK);
    assert_true(out[0] == 1 && out[1] == -2 && out[2] == 0x1p-24f && out[3] == 65504);
    assert_true(out[4] == 0 && signbit(out[4]));
    assert_int_equal(ek_st_read_f32(st, "brain", 1, (int64_t[]){2}, out, &err), EK_OK);
    assert_true(out[0] == 1 && out[1] == -3);

    out[0] = 42;
    assert_int_equal(ek_st_read_f32(st, "w", 2, (int64_t[]){3, 2}, out, &err), EK_EINPUT);
    assert_non_null(strstr(err.msg, "tensor \"w\": found shape [2, 3], expected [3, 2]"));
    assert_int_equal(ek_st_read_f32(st, "w", 1, (int64_t[]){6}, out, &err), EK_EINPUT);
    assert_int_equal(ek_st_read_f32(st, "v", 1, (int64_t[]){6}, out, &err), EK_EINPUT);
    assert_non_null(strstr(err.msg, "\"v\" is missing"));
    assert_int_equal(ek_st_read_f32(st, "scalar", 0, NULL, out, &err), EK_EINPUT);
    assert_non_null(strstr(err.msg, "found dtype I64"));
    assert_true(out[0] == 42);
    ek_st_close(st);
    unlink(path);
}

static void nan_is_refused(void **state)
{
    const float w[2] = {1, NAN};
    const ek_st_tensor t = {"w", EK_ST_F32, 1, {2}, w, sizeof w};
    float out[2] = {5, 5};
    ek_st *st = NULL;
    ek_err err = {0};

    (void)state;
    assert_int_equal(ek_st_write(path, &t, 1, NULL, 0, &err), EK_OK);
    assert_int_equal(ek_st_open(&st, path, &err), EK_OK);
    assert_int_equal(ek_st_read_f32(st, "w", 1, (int64_t[]){2}, out, &err), EK_EINPUT);
    assert_non_null(strstr(err.msg, "number 1: found nan"));
    assert_true(out[0] == 5);
    ek_st_close(st);
    unlink(path);
}

static void the_writer_checks_its_caller(void **state)
{
    const float w[2] = {1, 2};
    const ek_st_tensor t[2] = {{"w", EK_ST_F32, 1, {2}, w, 8}, {"w", EK_ST_F32, 1, {2}, w, 8}};
    const ek_st_tensor s = {"s", EK_ST_F32, 1, {3}, w, 8};
    ek_err err = {0};

    (void)state;
    assert_int_equal(ek_st_write(path, t, 2, NULL, 0, &err), EK_EBROKEN);
    assert_int_equal(ek_st_write(path, &s, 1, NULL, 0, &err), EK_EBROKEN);
    assert_false(ek_file_exists(path));
    assert_int_equal(ek_st_write(path, NULL, 0, NULL, 0, &err), EK_OK);
    unlink(path);
}

static int make_folder(void **state)
{
    (void)state;
    strcpy(folder, "/tmp/ek_st_XXXXXX");
    if (!mkdtemp(folder))
        return -1;
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    return 0;
}

static int drop_folder(void **state)
{
    (void)state;
    return rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(damaged_files_are_refused),    cmocka_unit_test(cut_files_are_refused),
        cmocka_unit_test(what_is_written_is_read),      cmocka_unit_test(nan_is_refused),
        cmocka_unit_test(the_writer_checks_its_caller),
    };

    return cmocka_run_group_tests(tests, make_folder, drop_folder);
}
