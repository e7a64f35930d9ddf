/* tests/test_err.c - the error type: context in front, cut but never broken, exit codes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "core/err.h"

#include <string.h>

static ek_code inner(ek_err *err)
{
    return EK_FAIL(err, EK_EINPUT, "line %d: found %s, expected %s", 14, "0", "1 .. 4096");
}

static ek_code outer(ek_err *err)
{
    EK_TRY(inner(err));
    return EK_OK;
}

static void context_goes_in_front(void **state)
{
    ek_err err = {0};

    (void)state;
    assert_int_equal(outer(&err), EK_EINPUT);
    assert_int_equal(ek_err_in(&err, "configs/%s.yaml", "mlp"), EK_EINPUT);
    assert_string_equal(err.msg, "configs/mlp.yaml: line 14: found 0, expected 1 .. 4096");
    assert_int_equal(err.code, EK_EINPUT);
    assert_true(err.line > 0);
    assert_non_null(strstr(err.file, "test_err.c"));
}

static void long_messages_are_cut(void **state)
{
    char word[3000];
    ek_err err = {0};
    ek_code code;

    (void)state;
    memset(word, 'x', sizeof word - 1);
    word[sizeof word - 1] = '\0';
    code = EK_FAIL(&err, EK_EIO, "%s", word);
    assert_int_equal(code, EK_EIO);
    assert_int_equal(strlen(err.msg), sizeof err.msg - 1);
    for (int i = 0; i < 3; i++) {
        code = ek_err_in(&err, "context %d", i);
        assert_int_equal(code, EK_EIO);
        assert_int_equal(strlen(err.msg), sizeof err.msg - 1);
    }
    assert_int_equal(strncmp(err.msg, "context 2: context 1: context 0: xxx", 36), 0);
    code = ek_err_in(&err, "%s", word); /* a context that fills everything */
    assert_int_equal(code, EK_EIO);
    assert_int_equal(strlen(err.msg), sizeof err.msg - 1);
}

static void exit_codes(void **state)
{
    static const struct {
        ek_code code;
        int exit;
    } t[] = {{EK_OK, 0},     {EK_EASKED, 2},  {EK_EINPUT, 2}, {EK_ENOTSUP, 2}, {EK_EIO, 1},
             {EK_ENOMEM, 1}, {EK_EDEVICE, 1}, {EK_ENAN, 1},   {EK_EBROKEN, 1}, {EK_ESTOPPED, 130}};

    (void)state;
    for (size_t i = 0; i < EK_COUNT(t); i++)
        assert_int_equal(ek_err_exit(t[i].code), t[i].exit);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(context_goes_in_front),
        cmocka_unit_test(long_messages_are_cut),
        cmocka_unit_test(exit_codes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
