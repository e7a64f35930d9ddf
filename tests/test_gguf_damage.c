/* GGUF files that are not what they say end in a sentence; sound ones open, and their keys are read
 * by type. */
#include "core/rng.h"
#include "infer/gguf.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <cmocka.h>

/* Thousands of files are written: they are in memory. */
static char path[64];
static int file = -1;

static int set_up(void **state)
{
    (void)state;
    file = memfd_create("gguf", MFD_CLOEXEC);
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    return file < 0 ? -1 : 0;
}

static int tear_down(void **state)
{
    (void)state;
    return close(file);
}

#define OK(expr)                              \
    do {                                      \
        if ((expr) != EK_OK)                  \
            fail_msg("%s: %s", #expr, e.msg); \
    } while (0)

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

typedef struct bytes {
    uint8_t data[4096];
    size_t n;
} bytes;

static void put(bytes *b, uint64_t x, int size)
{
    for (int i = 0; i < size; i++)
        b->data[b->n++] = (uint8_t)(x >> 8 * i);
}

static void put_string(bytes *b, const char *s, size_t size)
{
    put(b, size, 8);
    memcpy(b->data + b->n, s, size);
    b->n += size;
}

static void put_text(bytes *b, const char *s)
{
    put_string(b, s, strlen(s));
}

/* A small sound file (two keys, tensors a: F32 32 x 2 and b: Q8_0 32), except for what a case says
 * otherwise.  Fields are xor-ed or replaced only where set. */
typedef struct damage {
    const char *what, *says; /* says: words the sentence must hold */
    const char *magic;
    uint64_t version, n_tensors, n_keys; /* added to what is right */
    const char *key_name;
    size_t key_size; /* 0: that of key_name */
    int key_type;    /* of an extra key "x", whose value is the bytes of key_hex; 0: u8 */
    const char *key_hex;
    uint64_t arch_type; /* added */
    int no_alignment;   /* leave the key out */
    uint64_t alignment; /* 0: 32 */
    const char *name;   /* of tensor b */
    uint64_t n_dims;    /* added */
    uint64_t dim, rows; /* of tensor b; 0: 32 and absent */
    int zero_dim;
    uint64_t type;   /* added to Q8_0 */
    uint64_t offset; /* added to 256 */
    size_t cut;      /* bytes missing at the end */
    int keep;        /* > 0: only so many bytes */
    ek_code code;    /* 0: EK_EINPUT */
} damage;

static void build(bytes *b, const damage *d)
{
    const char *name = d->name ? d->name : "b";

    b->n = 0;
    memcpy(b->data, d->magic ? d->magic : "GGUF", 4);
    b->n = 4;
    put(b, 3 + d->version, 4);
    put(b, 2 + d->n_tensors, 8);
    put(b, 2 + (d->key_hex != NULL) - (uint64_t)d->no_alignment + d->n_keys, 8);
    put_text(b, "general.architecture");
    put(b, 8 + d->arch_type, 4);
    put_text(b, "llama");
    if (!d->no_alignment) {
        put_text(b, "general.alignment");
        put(b, 4, 4);
        put(b, d->alignment ? d->alignment : 32, 4);
    }
    if (d->key_hex) {
        const char *key = d->key_name ? d->key_name : "x";

        put_string(b, key, d->key_size ? d->key_size : strlen(key));
        put(b, (uint64_t)d->key_type, 4);
        b->n += from_hex(b->data + b->n, d->key_hex);
    }
    put_text(b, "a");
    put(b, 2, 4);
    put(b, 32, 8);
    put(b, 2, 8);
    put(b, 0, 4);
    put(b, 0, 8);
    put_text(b, name);
    put(b, (d->rows ? 2 : 1) + d->n_dims, 4);
    put(b, d->zero_dim ? 0 : d->dim ? d->dim : 32, 8);
    if (d->rows)
        put(b, d->rows, 8);
    put(b, 8 + d->type, 4);
    put(b, 256 + d->offset, 8);
    while (b->n % (d->alignment == 8 ? 8 : 32))
        b->data[b->n++] = 0;
    for (int i = 0; i < 64; i++)
        put(b, 0x3f800000, 4); /* 1.0f */
    put(b, 0x3c00, 2);
    for (int i = 0; i < 32; i++)
        put(b, (uint64_t)i, 1);
    b->n -= d->cut;
    if (d->keep)
        b->n = (size_t)d->keep;
}

static const damage cases[] = {
    {.what = "three bytes", .keep = 3, .says = "GGUF"},
    {.what = "another kind of file", .magic = "GGML", .says = "not a GGUF file"},
    {.what = "version 1", .version = (uint64_t)-2, .says = "version 1", .code = EK_ENOTSUP},
    {.what = "version 0", .version = (uint64_t)-3, .says = "version 0"},
    {.what = "version 4", .version = 1, .says = "version 4"},
    {.what = "big-endian", .version = 0x03000000 - 3, .says = "big-endian", .code = EK_ENOTSUP},
    {.what = "ends in the header", .keep = 16, .says = "number of tensors"},
    {.what = "2^63 tensors", .n_tensors = 1ull << 63, .says = "number of tensors"},
    {.what = "2^64 - 1 keys", .n_keys = (uint64_t)-3, .says = "number of keys"},
    {.what = "a key too many", .n_keys = 1, .says = "byte"},
    {.what = "a key too few", .n_keys = (uint64_t)-1, .says = "tensor"},
    {.what = "empty key", .key_name = "", .key_hex = "00", .says = "0 bytes"},
    {.what = "NUL in a key", .key_name = "a\0b", .key_size = 3, .key_hex = "00", .says = "NUL"},
    {.what = "value type 13", .key_type = 13, .key_hex = "00", .says = "type 13"},
    {.what = "value type 2^31", .key_type = INT32_MIN, .key_hex = "00", .says = "value type"},
    {.what = "a key twice",
     .key_name = "general.alignment",
     .key_type = 4,
     .key_hex = "20000000",
     .says = "general.alignment is there twice"},
    {.what = "string past the end", .key_type = 8, .key_hex = "ffffffffffffffff", .says = "key x"},
    {.what = "array of 2^62 u64",
     .key_type = 9,
     .key_hex = "0a0000000000000000000040",
     .says = "hold at most"},
    {.what = "array of 2^61 strings",
     .key_type = 9,
     .key_hex = "080000000000000000000020",
     .says = "hold at most"},
    {.what = "array of type 99",
     .key_type = 9,
     .key_hex = "630000000000000000000000",
     .says = "value type 99"},
    {.what = "arrays four deep",
     .key_type = 9,
     .key_hex = "090000000100000000000000"
                "090000000100000000000000"
                "090000000100000000000000"
                "000000000100000000000000"
                "07",
     .says = "nested"},
    {.what = "bool of 2", .key_type = 7, .key_hex = "02", .says = "bool"},
    {.what = "architecture a number", .arch_type = (uint64_t)-4, .says = ""},
    {.what = "alignment 12", .alignment = 12, .says = "multiple of 8"},
    {.what = "alignment 1", .alignment = 1, .says = "expected 8 .."},
    {.what = "alignment 2^31", .alignment = 1u << 31, .says = "expected 8 .."},
    {.what = "alignment a string",
     .no_alignment = 1,
     .key_name = "general.alignment",
     .key_type = 8,
     .key_hex = "0100000000000000"
                "33",
     .says = "expected an integer"},
    {.what = "one of three parts",
     .key_name = "split.count",
     .key_type = 2,
     .key_hex = "0300",
     .says = "one of 3 parts",
     .code = EK_ENOTSUP},
    {.what = "tensor without a name", .name = "", .says = "tensor's name"},
    {.what = "tensor name of 65 bytes",
     .says = "65 bytes",
     .name = "0123456789012345678901234567890123456789012345678901234567890123x"},
    {.what = "two tensors of a name", .name = "a", .says = "tensor a is there twice"},
    {.what = "no dimensions", .n_dims = (uint64_t)-1, .says = "0 dimensions"},
    {.what = "five dimensions", .n_dims = 4, .says = "5 dimensions"},
    {.what = "dimension 0", .zero_dim = 1, .says = "dimension 0 is 0"},
    {.what = "dimension 2^63", .dim = 1ull << 63, .says = "dimension 0"},
    {.what = "2^40 x 2^40", .dim = 1ull << 40, .rows = 1ull << 40, .says = "more than any file"},
    {.what = "2^61 numbers a row", .dim = 1ull << 61, .rows = 4, .says = "more than any file"},
    {.what = "rows of 33", .dim = 33, .says = "multiple of 32"},
    {.what = "a K-quant", .type = 4, .says = "Q4_K is not supported", .code = EK_ENOTSUP},
    {.what = "a type that is gone", .type = (uint64_t)-4, .says = "Q4_2", .code = EK_ENOTSUP},
    {.what = "a type that never was", .type = 1000, .says = "no type 1008"},
    {.what = "offset of 257", .offset = 1, .says = "no multiple of 32"},
    {.what = "offset past the end", .offset = 32, .says = "reach past"},
    {.what = "offset that wraps", .offset = (uint64_t)-288, .says = "reach past"},
    {.what = "more rows than bytes", .dim = 32, .rows = 2, .says = "reach past"},
    {.what = "last byte missing", .cut = 1, .says = "reach past"},
};

static ek_code open_bytes(const bytes *b, ek_gguf **g, ek_err *err)
{
    assert_int_equal(ftruncate(file, (off_t)b->n), 0);
    assert_int_equal(pwrite(file, b->data, b->n, 0), b->n);
    return ek_gguf_open(g, path, err);
}

static void damaged_files_end_in_a_sentence(void **state)
{
    static bytes b;

    (void)state;
    for (size_t i = 0; i < EK_COUNT(cases); i++) {
        const damage *d = &cases[i];
        ek_gguf *g = NULL;
        ek_err e = {0};
        ek_code code;

        build(&b, d);
        code = open_bytes(&b, &g, &e);
        if (code == EK_OK)
            ek_gguf_close(g);
        if (code != (d->code ? d->code : EK_EINPUT))
            fail_msg("%s: code %d: %s", d->what, (int)code, e.msg);
        if (!strstr(e.msg, d->says) || strchr(e.msg, '\n') || !strstr(e.msg, path))
            fail_msg("%s: found \"%s\", expected \"%s\"", d->what, e.msg, d->says);
    }
}

/* Negative control: without damage, versions 2 and 3 open; so do legal oddities. */
static void sound_files_open(void **state)
{
    static const damage sound[] = {
        {.what = "as it is"},
        {.what = "version 2", .version = (uint64_t)-1},
        {.what = "default alignment", .no_alignment = 1},
        {.what = "alignment 8", .alignment = 8},
        {.what = "array of two arrays",
         .key_type = 9,
         .key_hex = "090000000200000000000000"
                    "000000000100000000000000"
                    "07"
                    "070000000200000000000000"
                    "0001"},
        {.what = "empty array", .key_type = 9, .key_hex = "080000000000000000000000"},
        {.what = "the only part", .key_name = "split.count", .key_type = 2, .key_hex = "0100"},
    };
    static bytes b;
    float x[64];
    ek_gguf *g;
    ek_err e;

    (void)state;
    for (size_t i = 0; i < EK_COUNT(sound); i++) {
        build(&b, &sound[i]);
        if (open_bytes(&b, &g, &e) != EK_OK)
            fail_msg("%s: %s", sound[i].what, e.msg);
        OK(ek_gguf_rows_f32(g, ek_gguf_find(g, "b"), 0, 1, x, &e));
        assert_true(x[31] == 31.0f);
        OK(ek_gguf_rows_f32(g, ek_gguf_find(g, "a"), 0, 2, x, &e));
        assert_true(x[63] == 1.0f);
        ek_gguf_close(g);
    }
}

static void no_beginning_of_a_file_opens(void **state)
{
    const damage sound = {.key_type = 9,
                          .key_hex = "090000000100000000000000"
                                     "080000000100000000000000"
                                     "0100000000000000"
                                     "41"};
    static bytes b;
    ek_gguf *g;
    ek_err e;

    (void)state;
    build(&b, &sound);
    OK(open_bytes(&b, &g, &e));
    ek_gguf_close(g);
    while (b.n > 0) {
        b.n--;
        assert_int_equal(open_bytes(&b, &g, &e), EK_EINPUT);
    }
}

/* Whatever a changed byte does, it ends in an open file or a sentence; reading stays inside. */
static void changed_bytes_do_no_harm(void **state)
{
    const damage sound = {.key_type = 9,
                          .key_hex = "080000000100000000000000"
                                     "0100000000000000"
                                     "41"};
    static bytes b;
    int opened = 0, refused = 0;

    (void)state;
    for (uint64_t i = 0; i < 3000; i++) {
        ek_gguf *g;
        ek_err e = {0};

        build(&b, &sound);
        for (uint64_t j = 0; j <= i % 3; j++)
            b.data[ek_rng_below(b.n, 1, i, 2 * j)] = (uint8_t)ek_rng_u64(1, i, 2 * j + 1);
        if (open_bytes(&b, &g, &e) != EK_OK) {
            refused++;
            assert_true(e.msg[0] != '\0');
            continue;
        }
        opened++;
        for (int k = 0; k < ek_gguf_n_tensors(g); k++) {
            const ek_gguf_tensor *t = ek_gguf_tensor_at(g, k);
            float *x = malloc((size_t)(t->rows * t->dim[0]) * sizeof *x);

            (void)!ek_gguf_rows_f32(g, t, 0, t->rows, x, &e);
            free(x);
        }
        ek_gguf_close(g);
    }
    assert_true(opened > 100 && refused > 100);
}

static void numbers_that_are_none_are_refused_with_their_row(void **state)
{
    static bytes b;
    const damage sound = {0};
    float x[64];
    ek_gguf *g;
    ek_err e;

    (void)state;
    build(&b, &sound);
    b.data[b.n - 33] = 0x7e; /* the scale of b is a NaN */
    b.data[b.n - 34 - 1] = 0x7f;
    b.data[b.n - 34 - 2] = 0x80; /* the last number of a is infinite */
    OK(open_bytes(&b, &g, &e));
    assert_int_equal(ek_gguf_rows_f32(g, ek_gguf_find(g, "b"), 0, 1, x, &e), EK_EINPUT);
    assert_non_null(strstr(e.msg, "tensor b: row 0 holds a NaN or an infinity"));
    assert_int_equal(ek_gguf_rows_f32(g, ek_gguf_find(g, "a"), 0, 2, x, &e), EK_EINPUT);
    assert_non_null(strstr(e.msg, "tensor a: row 1"));
    OK(ek_gguf_rows_f32(g, ek_gguf_find(g, "a"), 0, 1, x, &e));
    ek_gguf_close(g);
}

static void scales_and_minima_of_all_types_are_checked(void **state)
{
    static const struct {
        ek_qtype type;
        int at; /* of the high byte of a half */
    } halves[] = {{EK_Q_Q4_0, 1}, {EK_Q_Q4_1, 1}, {EK_Q_Q4_1, 3}, {EK_Q_Q5_0, 1}, {EK_Q_Q5_1, 1},
                  {EK_Q_Q5_1, 3}, {EK_Q_Q8_0, 1}, {EK_Q_F16, 1},  {EK_Q_BF16, 1}};
    float x[32];

    (void)state;
    for (size_t i = 0; i < EK_COUNT(halves); i++) {
        uint8_t block[64] = {0};
        const size_t n = (size_t)ek_qtype_block(halves[i].type);

        assert_true(ek_dequant(x, halves[i].type, block, n));
        block[halves[i].at] = 0x7f;
        block[halves[i].at - 1] = 0x80;
        assert_false(ek_dequant(x, halves[i].type, block, n));
    }
}

/* Metadata ------------------------------------------------------------------------------------- */

static ek_code int_of(int type, const char *hex, int64_t *out, ek_err *err)
{
    static bytes b;
    const damage d = {.key_type = type, .key_hex = hex};
    ek_gguf *g;
    ek_code code;
    ek_err e;

    build(&b, &d);
    OK(open_bytes(&b, &g, &e));
    code = ek_gguf_int(g, "x", EK_GGUF_NEEDED, -300, 1000, out, err);
    ek_gguf_close(g);
    return code;
}

static void integers_come_in_any_width(void **state)
{
    static const struct {
        int type;
        const char *hex;
        int64_t x;
    } good[] = {{0, "ff", 255},
                {1, "ff", -1},
                {2, "e803", 1000},
                {3, "feff", -2},
                {4, "07000000", 7},
                {5, "fcffffff", -4},
                {10, "0900000000000000", 9},
                {11, "ffffffffffffffff", -1}};
    int64_t x;
    ek_err e;

    (void)state;
    for (size_t i = 0; i < EK_COUNT(good); i++) {
        OK(int_of(good[i].type, good[i].hex, &x, &e));
        assert_int_equal(x, good[i].x);
    }
    x = 77;
    assert_int_equal(int_of(2, "e903", &x, &e), EK_EINPUT); /* 1001 */
    assert_non_null(strstr(e.msg, "key x: found 1001, expected -300 .. 1000"));
    assert_int_equal(int_of(10, "ffffffffffffffff", &x, &e), EK_EINPUT);
    assert_int_equal(int_of(6, "0000803f", &x, &e), EK_EINPUT);
    assert_non_null(strstr(e.msg, "found type f32, expected an integer"));
    assert_int_equal(int_of(9, "040000000000000000000000", &x, &e), EK_EINPUT);
    assert_int_equal(x, 77);
}

static void keys_are_looked_up_by_type(void **state)
{
    static bytes b;
    const damage ints = {.key_name = "llama.list",
                         .key_type = 9,
                         .key_hex = "010000000300000000000000"
                                    "01ff05"};
    ek_gguf_str s = {NULL, 0}, *strings = NULL;
    int64_t *list, x = 5;
    double f = 2.5;
    size_t n;
    ek_gguf *g;
    ek_err e;
    int flag = 3;

    (void)state;
    build(&b, &ints);
    OK(open_bytes(&b, &g, &e));
    assert_true(ek_gguf_has(g, "A.list") && ek_gguf_is_array(g, "llama.list"));
    assert_false(ek_gguf_has(g, "list") || ek_gguf_has(g, "A.lis") || ek_gguf_has(g, "A.listx"));
    OK(ek_gguf_ints(g, "A.list", EK_GGUF_NEEDED, -1, 5, &list, &n, &e));
    assert_true(n == 3 && list[0] == 1 && list[1] == -1 && list[2] == 5);
    free(list);
    assert_int_equal(ek_gguf_ints(g, "A.list", EK_GGUF_NEEDED, 0, 5, &list, &n, &e), EK_EINPUT);
    assert_int_equal(ek_gguf_strings(g, "A.list", EK_GGUF_NEEDED, &strings, &n, &e), EK_EINPUT);
    assert_non_null(strstr(e.msg, "array of i8, expected array of string"));
    OK(ek_gguf_strings(g, "A.no", EK_GGUF_OPTIONAL, &strings, &n, &e));
    assert_true(!strings && n == 0);
    OK(ek_gguf_string(g, "general.architecture", EK_GGUF_NEEDED, &s, &e));
    assert_true(s.size == 5 && memcmp(s.data, "llama", 5) == 0);
    OK(ek_gguf_int(g, "A.no", EK_GGUF_OPTIONAL, 0, 9, &x, &e));
    OK(ek_gguf_float(g, "A.no", EK_GGUF_OPTIONAL, 0, 9, &f, &e));
    OK(ek_gguf_bool(g, "A.no", EK_GGUF_OPTIONAL, &flag, &e));
    assert_true(x == 5 && f == 2.5 && flag == 3);
    assert_int_equal(ek_gguf_int(g, "A.no", EK_GGUF_NEEDED, 0, 9, &x, &e), EK_EINPUT);
    assert_non_null(strstr(e.msg, "key llama.no is missing"));
    assert_int_equal(ek_gguf_bool(g, "general.alignment", EK_GGUF_OPTIONAL, &flag, &e), EK_EINPUT);
    assert_int_equal(ek_gguf_float(g, "general.alignment", EK_GGUF_OPTIONAL, 0, 99, &f, &e),
                     EK_EINPUT);
    ek_gguf_close(g);
}

static void floats_are_finite(void **state)
{
    static const struct {
        int type;
        const char *hex;
        ek_code code;
    } floats[] = {
        {6, "0000c03f", EK_OK},     {12, "000000000000f83f", EK_OK},     {6, "0000c07f", EK_EINPUT},
        {6, "0000807f", EK_EINPUT}, {12, "000000000000f07f", EK_EINPUT}, {6, "00000042", EK_EINPUT},
        {4, "01000000", EK_EINPUT}};
    static bytes b;

    (void)state;
    for (size_t i = 0; i < EK_COUNT(floats); i++) {
        const damage d = {.key_type = floats[i].type, .key_hex = floats[i].hex};
        double f = 0;
        ek_gguf *g;
        ek_err e;

        build(&b, &d);
        OK(open_bytes(&b, &g, &e));
        assert_int_equal(ek_gguf_float(g, "x", EK_GGUF_NEEDED, 0, 31, &f, &e), floats[i].code);
        assert_true(f == (floats[i].code ? 0 : 1.5));
        ek_gguf_close(g);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(damaged_files_end_in_a_sentence),
        cmocka_unit_test(sound_files_open),
        cmocka_unit_test(no_beginning_of_a_file_opens),
        cmocka_unit_test(changed_bytes_do_no_harm),
        cmocka_unit_test(numbers_that_are_none_are_refused_with_their_row),
        cmocka_unit_test(scales_and_minima_of_all_types_are_checked),
        cmocka_unit_test(integers_come_in_any_width),
        cmocka_unit_test(keys_are_looked_up_by_type),
        cmocka_unit_test(floats_are_finite),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
