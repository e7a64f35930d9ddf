/* tests/test_json.c - what is accepted, what is refused, and with which sentence. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "core/json.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *text;
    size_t size; /* 0: strlen */
    const char *says;
} damaged[] = {
    {"", 0, "found nothing"},
    {"   ", 0, "expected valid JSON"},
    {"{\"a\": 1} x", 0, "text behind"},
    {"{\"a\": 1}{}", 0, "text behind"},
    {"{\"a\": 1,\n \"b\": }", 0, "line 2"},
    {"{\"a\": 1, \"a\": 2}", 0, "key \"a\" twice"},
    {"[{\"x\": {\"k\": 1, \"j\": 0, \"k\": 1}}]", 0, "key \"k\" twice"},
    {"{\"a\\u0000b\": 1}", 0, "\\u0000"},
    {"[\"\\u0000\"]", 0, "\\u0000"},
    {"[1, 2\0]", 7, "NUL byte"},
    {"[\"a\nb\"]", 0, "control character"},
    {"[\"abc]", 0, "inside a string"},
    {"[01]", 0, "malformed number"},
    {"[1.]", 0, "malformed number"},
    {"[-]", 0, "malformed number"},
    {"[1e]", 0, "malformed number"},
    {"[nan]", 0, "expected valid JSON"},
    {"[1,]", 0, "expected valid JSON"},
    {"{a: 1}", 0, "expected valid JSON"},
    {"[\"\\q\"]", 0, "expected valid JSON"},
    {"[\"\\ud800\"]", 0, "expected valid JSON"},
    {"[1", 0, "expected valid JSON"},
    {"]", 0, "expected valid JSON"},
};

static void damaged_texts_are_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < EK_COUNT(damaged); i++) {
        const size_t n = damaged[i].size ? damaged[i].size : strlen(damaged[i].text);
        char *exact = malloc(n ? n : 1); /* so that one byte too far is seen by the sanitizer */
        ek_json *v = NULL;
        ek_err err = {0};

        assert_non_null(exact);
        memcpy(exact, damaged[i].text, n);
        if (ek_json_parse(&v, exact, n, "file.json", &err) != EK_EINPUT)
            fail_msg("case %zu was accepted: %s", i, damaged[i].text);
        if (strncmp(err.msg, "file.json: ", 11) != 0 || !strstr(err.msg, damaged[i].says))
            fail_msg("case %zu says: %s", i, err.msg);
        assert_null(v);
        free(exact);
    }
}

static void nesting_ends_at_64(void **state)
{
    char text[200];
    ek_json *v = NULL;
    ek_err err = {0};

    (void)state;
    memset(text, '[', 64);
    memset(text + 64, ']', 64);
    assert_int_equal(ek_json_parse(&v, text, 128, "f", &err), EK_OK);
    ek_json_close(v);
    v = NULL;
    memset(text, '[', 65);
    memset(text + 65, ']', 65);
    assert_int_equal(ek_json_parse(&v, text, 130, "f", &err), EK_EINPUT);
    assert_non_null(strstr(err.msg, "deeper than 64"));
}

static void values_are_read(void **state)
{
    static const char text[] =
        " {\"n\": -12, \"f\": 1.5e3, \"big\": 1e400, \"s\": \"a\\\"\\u00e9\\\\"
        "u0000\", \"t\": true, \"f0\": false, \"z\": null, \"l\": [1, 2, 3], "
        "\"N\": 9007199254740993, \"half\": 0.5}\n";
    ek_json *v = NULL;
    ek_err err = {0};
    int64_t n = 77;
    int k = 0;

    (void)state;
    assert_int_equal(ek_json_parse(&v, text, sizeof text - 1, "f", &err), EK_OK);
    assert_int_equal(ek_json_kind_of(v), EK_JSON_OBJECT);
    assert_true(ek_json_int(ek_json_get(v, "n"), -12, 0, &n));
    assert_int_equal(n, -12);
    assert_false(ek_json_int(ek_json_get(v, "n"), -11, 0, &n));
    assert_false(ek_json_int(ek_json_get(v, "half"), 0, 1, &n));
    assert_false(ek_json_int(ek_json_get(v, "big"), 0, INT64_MAX, &n));
    assert_false(ek_json_int(ek_json_get(v, "s"), 0, INT64_MAX, &n));
    assert_false(ek_json_int(ek_json_get(v, "N"), 0, 9007199254740991, &n));
    assert_int_equal(n, -12);
    assert_true(ek_json_number(ek_json_get(v, "f")) == 1500);
    assert_true(isinf(ek_json_number(ek_json_get(v, "big"))));
    assert_true(isnan(ek_json_number(ek_json_get(v, "s"))));
    assert_string_equal(ek_json_string(ek_json_get(v, "s")), "a\"\xc3\xa9\\u0000");
    assert_null(ek_json_string(ek_json_get(v, "n")));
    assert_int_equal(ek_json_kind_of(ek_json_get(v, "t")), EK_JSON_BOOL);
    assert_true(ek_json_is_true(ek_json_get(v, "t")));
    assert_false(ek_json_is_true(ek_json_get(v, "f0")));
    assert_int_equal(ek_json_kind_of(ek_json_get(v, "z")), EK_JSON_NULL);
    assert_null(ek_json_get(v, "S")); /* case counts */
    for (const ek_json *e = ek_json_child(ek_json_get(v, "l")); e; e = ek_json_next(e))
        assert_true(ek_json_number(e) == ++k);
    assert_int_equal(k, 3);
    assert_string_equal(ek_json_key(ek_json_child(v)), "n");
    ek_json_close(v);
}

static void text_survives_a_round_trip(void **state)
{
    char raw[256];
    ek_text t = {0};
    ek_json *v = NULL;
    ek_err err = {0};

    (void)state;
    for (int i = 1; i < 128; i++)
        raw[i - 1] = (char)i;
    memcpy(raw + 127, "\xc3\xa9\xe2\x82\xac", 6);
    ek_text_add(&t, "[%d, ", 5);
    ek_text_json(&t, raw, strlen(raw));
    for (int i = 0; i < 500; i++)
        ek_text_add(&t, ", %d", i);
    ek_text_add(&t, "]");
    assert_false(t.failed);
    assert_int_equal(t.size, strlen(t.data));
    assert_int_equal(ek_json_parse(&v, t.data, t.size, "f", &err), EK_OK);
    assert_string_equal(ek_json_string(ek_json_next(ek_json_child(v))), raw);
    ek_json_close(v);
    ek_text_clear(&t);
    assert_null(t.data);
}

static void many_keys_are_fast(void **state)
{
    enum { N = 60000 };
    ek_text t = {0};
    ek_json *v = NULL;
    ek_err err = {0};

    (void)state;
    ek_text_add(&t, "{\"k0\": 0");
    for (int i = 1; i < N; i++)
        ek_text_add(&t, ", \"k%d\": %d", i, i);
    ek_text_add(&t, "}");
    assert_int_equal(ek_json_parse(&v, t.data, t.size, "f", &err), EK_OK);
    ek_json_close(v);
    t.size--;
    ek_text_add(&t, ", \"k31415\": 1}"); /* the one key that is there already */
    assert_int_equal(ek_json_parse(&v, t.data, t.size, "f", &err), EK_EINPUT);
    assert_non_null(strstr(err.msg, "k31415"));
    ek_text_clear(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(damaged_texts_are_refused), cmocka_unit_test(nesting_ends_at_64),
        cmocka_unit_test(values_are_read),           cmocka_unit_test(text_survives_a_round_trip),
        cmocka_unit_test(many_keys_are_fast),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
