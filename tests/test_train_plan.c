/* tests/test_train_plan.c - what a plan says of a training run. */
#include "tests/check_folder.h"
#include "tests/tiny_model.h"
#include "train/session.h"
#include "train/trace.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static ek_device *dev;
static char model[96];

static void note_cost(void *ctx, const char *line)
{
    if (strncmp(line, "cost ", 5) == 0)
        snprintf(ctx, 160, "%s", line);
}

/* What the scorer costs beside the model, of one real step; no weights are written. */
static void test_plan(void **state)
{
    static char texts[] = "datasets/tiny.txt";
    char line[160] = "", *out = ek_check_in_folder("planned");
    char *weights = ek_check_in_folder("planned/model.safetensors");
    ek_train_options o = {.quiet = 1, .plan = 1, .say = note_cost, .ctx = line};
    double share = -1, both = -1, read = -1;
    ek_train_set s;
    ek_err err;

    (void)state;
    ek_train_set_defaults(&s);
    s.model = model;
    s.out = out;
    s.sinks = 2;
    s.recent = 16;
    s.keep = 40;
    s.scorer.hidden = 6;
    s.data = (ek_data_set){.texts = texts,
                           .sequences = 2,
                           .valid = 1,
                           .length = 320,
                           .cut = 160,
                           .cuts = 2,
                           .horizon = 48,
                           .facts = 1,
                           .passage = 16,
                           .entries = 64};
    s.trace = EK_TRACE_MEMORY;
    s.steps = 4;
    s.optimiser.warmup = 1;
    if (ek_train_run(&s, &o, dev, &err) != EK_OK)
        fail_msg("%s", err.msg);
    assert_int_equal(sscanf(line,
                            "cost scorer %lf of the model's forward (%lf s forward and backward, "
                            "%lf s)",
                            &share, &both, &read),
                     3);
    assert_true(isfinite(share) && share >= 0 && isfinite(both) && isfinite(read));
    assert_int_equal(access(weights, F_OK), -1);
    o = (ek_train_options){.quiet = 1}; /* negative control: a run leaves some */
    if (ek_train_run(&s, &o, dev, &err) != EK_OK)
        fail_msg("%s", err.msg);
    assert_int_equal(access(weights, F_OK), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_plan)};
    const ek_tiny big = {.n_ctx = 2048};
    ek_err err;

    if (ek_device_open(&dev, "cpu", getenv("EVICTKIT_ISA"), &err) != EK_OK ||
        ek_check_folder_open("train_plan") != 0)
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
