/* Opening a device, its memory, its workspace. */
#include "tests/check_kernels.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void levels_and_refusals(void **state)
{
    ek_device *dev = NULL;
    ek_err err;

    (void)state;
    for (int i = 0; i <= (int)ek_isa_of_cpu(); i++) {
        assert_int_equal(ek_device_open(&dev, i % 2 ? "auto" : "cpu", ek_isa_name((ek_isa)i), &err),
                         EK_OK);
        assert_int_equal(dev->isa, i);
        assert_true(strstr(dev->ops.name, ek_isa_name((ek_isa)i)) != NULL);
        assert_int_equal(dev->ops.abi, EK_ABI);
        assert_true(dev->threads >= 1);
        ek_device_close(dev);
    }
    dev = NULL;
    assert_int_equal(ek_device_open(&dev, "cpu", "sse9", &err), EK_EASKED);
    assert_non_null(strstr(err.msg, "sse9"));
    assert_non_null(strstr(err.msg, "scalar"));
    assert_int_equal(ek_device_open(&dev, "cpu", "", &err), EK_EASKED);
    assert_int_equal(ek_device_open(&dev, "tpu", NULL, &err), EK_EASKED);
    assert_non_null(strstr(err.msg, "tpu"));
    for (int i = (int)ek_isa_of_cpu() + 1; i <= EK_ISA_AVX512BF16; i++) {
        assert_int_equal(ek_device_open(&dev, "cpu", ek_isa_name((ek_isa)i), &err), EK_EASKED);
        assert_non_null(strstr(err.msg, "does not have"));
    }
    assert_null(dev);
    assert_int_equal(ek_device_open(&dev, "cpu", NULL, &err), EK_OK);
    assert_int_equal(dev->isa, ek_isa_of_cpu());
    ek_device_close(dev);
    ek_device_close(NULL);
}

static void memory_is_counted(void **state)
{
    static const size_t sizes[] = {1, 64, 1000, (size_t)5 << 20};
    ek_device *dev;
    ek_err err;
    void *p[4];
    int64_t sum = 0;

    (void)state;
    assert_int_equal(ek_device_open(&dev, "cpu", NULL, &err), EK_OK);
    for (int i = 0; i < 4; i++) {
        p[i] = ek_device_alloc(dev, sizes[i]);
        assert_non_null(p[i]);
        assert_int_equal((uintptr_t)p[i] % 64, 0);
        for (size_t b = 0; b < sizes[i]; b++)
            assert_int_equal(((const char *)p[i])[b], 0);
        memset(p[i], 1, sizes[i]);
        sum += (int64_t)sizes[i];
        assert_int_equal(dev->bytes, sum);
    }
    for (int i = 0; i < 4; i++)
        ek_device_free(dev, p[i]);
    ek_device_free(dev, NULL);
    assert_int_equal(dev->bytes, 0);
    assert_int_equal(dev->peak, sum);
    assert_null(ek_device_alloc(dev, SIZE_MAX - 3));
    assert_null(ek_device_alloc(dev, SIZE_MAX / 4));
    assert_int_equal(dev->bytes, 0);
    ek_device_close(dev);
}

static void the_workspace_grows_once_per_size(void **state)
{
    ek_device *dev;
    ek_err err;
    char *a;

    (void)state;
    assert_int_equal(ek_device_open(&dev, "cpu", NULL, &err), EK_OK);
    a = ek_device_work(dev, 10000);
    assert_int_equal((uintptr_t)a % 64, 0);
    memset(a, 1, 10000);
    assert_int_equal(dev->work_grown, 1);
    assert_ptr_equal(ek_device_work(dev, 0), a);
    assert_ptr_equal(ek_device_work(dev, 10000), a);
    assert_int_equal(dev->work_grown, 1);
    memset(ek_device_work(dev, 100000), 2, 100000);
    assert_int_equal(dev->work_grown, 2);
    ek_device_work(dev, 10);
    assert_int_equal(dev->work_grown, 2);
    assert_true(dev->bytes >= 100000);
    ek_device_close(dev);
}

static void weights_are_zero_padded(void **state)
{
    ek_device *dev;
    ek_weight w;
    ek_err err;

    (void)state;
    assert_int_equal(ek_device_open(&dev, "cpu", NULL, &err), EK_OK);
    assert_int_equal(ek_weight_open(&w, dev, EK_BF16, 33, 5, &err), EK_OK);
    assert_int_equal(w.bytes, 2 * 32 * 6 * 2); /* two panels, six inputs */
    assert_int_equal((uintptr_t)w.data % 64, 0);
    assert_int_equal(dev->bytes, w.bytes);
    for (size_t i = 0; i < w.bytes; i++)
        assert_int_equal(((const char *)w.data)[i], 0);
    ek_weight_close(&w, dev);
    ek_weight_close(&w, dev);
    assert_int_equal(dev->bytes, 0);
    assert_int_equal(ek_weight_open(&w, dev, EK_F32, 1 << 30, 1 << 30, &err), EK_ENOMEM);
    assert_non_null(strstr(err.msg, "1073741824"));
    assert_null(w.data);
    ek_device_close(dev);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(levels_and_refusals),
        cmocka_unit_test(memory_is_counted),
        cmocka_unit_test(the_workspace_grows_once_per_size),
        cmocka_unit_test(weights_are_zero_padded),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
