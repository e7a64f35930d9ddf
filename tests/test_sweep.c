/* tests/test_sweep.c - several runs from one reading: which they are, that each has the bits it has
 * alone, that each is read once, that stopped and killed sweeps resume to the bit. */
#include "core/file.h"
#include "infer/model.h"
#include "results/store.h"
#include "tests/check_folder.h"
#include "tests/tiny_model.h"
#include "train/cohort.h"
#include "train/sweep.h"

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
static char model[96], yaml[96];

/* Cuts, losses over them; two ages, two widths. */
static const char *const lists[] = {"scorer.age=exp,input", "loss.kind=listwise,regress"};

static void test_names(void **state)
{
    static const char *const quoted[] = {"data.texts='c,d',e"};
    static const struct {
        const char *list, *says;
    } bad[] = {{"loss.kind", "expected key=value"}, {"=3", "expected key=value"},
               {"seed=1,,2", "empty value"},        {"seed=", "empty value"},
               {"seed=1,2,1", "1 twice"},           {"out=a,b", "folder of its own"},
               {"loss.kindd=pair", "loss.kindd"},   {"loss.kind=pear", "pear"}};
    static const char *const again[] = {"seed=1", "seed=2"};
    static const char *const many[] = {"seed=1,2,3,4,5,6,7,8,9", "steps=1,2,3,4,5,6,7,8"};
    ek_train_set *set;
    ek_err err;
    int n;

    (void)state;
    ek_check_ok(ek_check_open_runs(yaml, &set, &n, NULL, 0, lists, 2, &err), &err);
    assert_int_equal(n, 4);
    assert_string_equal(set[0].out, ek_check_in_folder("out/scorer.age-exp_loss.kind-listwise"));
    assert_string_equal(set[1].out, ek_check_in_folder("out/scorer.age-exp_loss.kind-regress"));
    assert_string_equal(set[3].out, ek_check_in_folder("out/scorer.age-input_loss.kind-regress"));
    assert_int_equal(set[3].loss.kind, EK_LOSS_REGRESS);
    assert_int_equal(set[3].scorer.age, EK_AGE_INPUT);
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < i; j++)
            assert_true(ek_reading_shares(&set[i], &set[j]));
    ek_sweep_close(set, n);
    /* Commas within quotes are the value's own. */
    ek_check_ok(ek_check_open_runs(yaml, &set, &n, NULL, 0, quoted, 1, &err), &err);
    assert_int_equal(n, 2);
    assert_string_equal(set[0].data.texts, "c,d");
    assert_string_equal(set[1].data.texts, "e");
    assert_false(ek_reading_shares(&set[0], &set[1]));
    ek_sweep_close(set, n);
    for (size_t i = 0; i < EK_COUNT(bad); i++) {
        assert_int_equal(ek_check_open_runs(yaml, &set, &n, NULL, 0, &bad[i].list, 1, &err),
                         EK_EASKED);
        if (strstr(err.msg, bad[i].says) == NULL)
            fail_msg("%s: found \"%s\"", bad[i].list, err.msg);
    }
    assert_int_equal(ek_check_open_runs(yaml, &set, &n, NULL, 0, again, 2, &err), EK_EASKED);
    assert_int_equal(ek_check_open_runs(yaml, &set, &n, NULL, 0, many, 2, &err), EK_EASKED);
    assert_non_null(strstr(err.msg, "more than 64 runs"));
}

/* What records depend on parts runs; what they do not depend on does not. */
static void test_shares(void **state)
{
    static const struct {
        const char *list;
        int shares;
    } row[] = {{"optimiser.lr=0.1,0.2", 1},
               {"steps=4,5", 1},
               {"scorer.kind=mlp,linear", 1},
               {"target.eps=1e-5,1e-6", 1},
               {"keep=30,40", 1},
               {"save_every=2,3", 1},
               {"seed=1,2", 0},
               {"data.mix=0,0.5", 0},
               {"target.group=max,mean", 0},
               {"recent=16,17", 0},
               {"data.horizon=40,48", 0},
               {"scorer.kind=mlp,recurrent", 0},
               {"trace=none,memory", 0},
               {"scorer.carried=none,ema", 1},
               {"scorer.carried=ema,full", 0}};
    ek_train_set *set;
    ek_err err;
    int n;

    (void)state;
    for (size_t i = 0; i < EK_COUNT(row); i++) {
        ek_check_ok(ek_check_open_runs(yaml, &set, &n, NULL, 0, &row[i].list, 1, &err), &err);
        assert_int_equal(n, 2);
        if (ek_reading_shares(&set[0], &set[1]) != row[i].shares)
            fail_msg("%s: expected %s", row[i].list, row[i].shares ? "one reading" : "two");
        ek_sweep_close(set, n);
    }
    const char *const whole[] = {"data.entries=0"}, *const kinds[] = {"scorer.kind=mlp,recurrent"};
    ek_check_ok(ek_check_open_runs(yaml, &set, &n, whole, 1, kinds, 1, &err), &err);
    assert_true(ek_reading_shares(&set[0], &set[1])); /* both see every token anyway */
    ek_sweep_close(set, n);
    const char *const windows[] = {"recent=16,17"};
    ek_check_ok(ek_check_open_runs(yaml, &set, &n, whole, 1, windows, 1, &err), &err);
    assert_true(ek_reading_shares(&set[0], &set[1])); /* the larger is in the smaller */
    set[0].trace = set[1].trace = EK_TRACE_DISK;
    assert_false(ek_reading_shares(&set[0], &set[1])); /* a file says which it is for */
    ek_sweep_close(set, n);
}

/* Records of a step are read once, however many ask; then they go. */
static void test_read_once(void **state)
{
    static const char *const sets[] = {"trace=none"};
    const ek_train_options o = {.quiet = 1};
    ek_train_set *set;
    ek_reading s;
    ek_example a, b, c;
    ek_err err;
    int n;

    (void)state;
    ek_check_ok(ek_check_open_runs(yaml, &set, &n, sets, 1, lists, 1, &err), &err);
    const ek_train_set *const both[] = {&set[0], &set[1]};
    ek_check_ok(ek_reading_open(&s, both, 2, &o, dev, &err), &err);
    const ek_examples from = ek_reading_examples(&s);
    ek_check_ok(ek_reading_keep(&s, 2, &err), &err);
    ek_check_ok(from.get(from.ctx, 0, &a, &err), &err);
    const int64_t once = s.collect.tokens;
    ek_check_ok(from.get(from.ctx, 0, &b, &err), &err);
    assert_ptr_equal(a.k, b.k);
    assert_int_equal(s.collect.tokens, once);
    ek_example_close(&a);
    ek_example_close(&b); /* lent: the next still has it */
    ek_check_ok(from.get(from.ctx, 1, &c, &err), &err);
    ek_example_close(&c);
    const int64_t both_read = s.collect.tokens;
    assert_true(both_read > once);
    ek_check_ok(from.get(from.ctx, 0, &a, &err), &err);
    ek_check_ok(from.get(from.ctx, 1, &a, &err), &err);
    assert_int_equal(s.collect.tokens, both_read);
    ek_reading_next(&s); /* the step is done: asked again, it is read again */
    ek_check_ok(from.get(from.ctx, 0, &a, &err), &err);
    assert_int_equal(s.collect.tokens, both_read + once);
    ek_example_close(&a);
    ek_check_ok(from.get(from.ctx, s.n_train, &a, &err), &err);
    const int64_t all = s.collect.tokens;
    for (int i = 0; i < 3; i++) { /* held out: read once for good */
        ek_example_close(&a);
        ek_reading_next(&s);
        ek_check_ok(from.get(from.ctx, s.n_train, &a, &err), &err);
    }
    assert_int_equal(s.collect.tokens, all);
    ek_example_close(&a);
    ek_reading_close(&s);
    ek_sweep_close(set, n);
}

/* Four runs from one reading, in every kind of trace: each has the bits it has by itself. */
static void test_bits(void **state)
{
    static const char *const traces[] = {"trace=memory", "trace=none", "trace=disk"};
    char alone[4][160];
    ek_train_set *set;
    ek_err err;
    int n;

    (void)state;
    ek_check_ok(ek_check_open_runs(yaml, &set, &n, traces, 1, lists, 2, &err), &err);
    for (int i = 0; i < n; i++) { /* in folders of their own, from the same settings */
        ek_train_set one = set[i];

        snprintf(alone[i], sizeof alone[i], "%s/alone%d", ek_check_folder, i);
        one.out = alone[i];
        ek_check_ok(ek_check_run(dev, &one, 1, 0, 0, &err), &err);
    }
    ek_sweep_close(set, n);
    for (size_t t = 0; t < EK_COUNT(traces); t++) {
        char out[200];
        const char *const sets[] = {traces[t], out};

        snprintf(out, sizeof out, "out=%s/%s", ek_check_folder, traces[t] + 6);
        ek_check_ok(ek_check_open_runs(yaml, &set, &n, sets, 2, lists, 2, &err), &err);
        ek_check_ok(ek_check_run(dev, set, n, 0, 0, &err), &err);
        for (int i = 0; i < n; i++)
            ek_check_same_weights(alone[i], set[i].out, 1);
        ek_check_same_weights(set[0].out, set[1].out, 0); /* negative control */
        ek_check_same_weights(set[0].out, set[2].out, 0);
        ek_sweep_close(set, n);
    }
}

/* Carried columns that one of them does not read change nothing for it. */
static void test_carried(void **state)
{
    static const char *const list[] = {"scorer.carried=none,ema"};
    static const char *const sets[] = {"trace=none", "scorer.age=input"};
    ek_train_set *set;
    ek_err err;
    int n;

    (void)state;
    ek_check_ok(ek_check_open_runs(yaml, &set, &n, sets, 2, list, 1, &err), &err);
    ek_check_ok(ek_check_run(dev, set, n, 0, 0, &err), &err);
    for (int i = 0; i < n; i++) {
        ek_train_set one = set[i];

        one.out = ek_check_in_folder(i == 0 ? "without" : "with");
        ek_check_ok(ek_check_run(dev, &one, 1, 0, 0, &err), &err);
        ek_check_same_weights(one.out, set[i].out, 1);
    }
    ek_sweep_close(set, n);
}

/* A record of the smallest window serves a larger one as its own would. */
static void test_windows(void **state)
{
    static const char *const list[] = {"recent=24,16", "scorer.age=exp,input"};
    static const char *const sets[] = {"trace=none", "data.entries=0"};
    ek_train_set *set;
    ek_err err;
    int n;

    (void)state;
    ek_check_ok(ek_check_open_runs(yaml, &set, &n, sets, 2, list, 2, &err), &err);
    assert_int_equal(n, 4);
    ek_check_ok(ek_check_run(dev, set, n, 0, 0, &err), &err);
    for (int i = 0; i < n; i++) {
        ek_train_set one = set[i];
        char name[32];

        snprintf(name, sizeof name, "window%d", i);
        one.out = ek_check_in_folder(name);
        ek_check_ok(ek_check_run(dev, &one, 1, 0, 0, &err), &err);
        ek_check_same_weights(one.out, set[i].out, 1);
        ek_check_same_weights(one.out, set[(i + 2) % 4].out, 0); /* the other window's */
    }
    ek_sweep_close(set, n);
}

static ek_code first_number(void *ctx, int n, const char *const *name, const ek_sql *v, ek_err *err)
{
    (void)n, (void)name, (void)err;
    *(double *)ctx = v[0].r;
    return EK_OK;
}

static double number(const char *db, const char *sql)
{
    ek_store *s;
    ek_err err;
    double x = -1;

    ek_check_ok(ek_store_open(&s, db, EK_STORE_READ, &err), &err);
    ek_check_ok(ek_store_query(s, sql, NULL, 0, first_number, &x, &err), &err);
    ek_store_close(s);
    return x;
}

/* The progress line: nothing, and no NaN, for a run that was done before or has no look yet. */
static void test_losses(void **state)
{
    ek_trainer trainer[2] = {{.smooth = 0.5}, {.smooth = 0.25}};
    ek_variant v[3] = {{.trainer = &trainer[0], .valid = {.loss = NAN}},
                       {.valid = {.loss = NAN}},
                       {.trainer = &trainer[1], .valid = {.loss = NAN}}};
    const ek_cohort g = {.v = v, .n = 3};
    ek_text line = {0};

    (void)state;
    ek_cohort_losses(&g, &line);
    assert_string_equal(line.data, "loss 0.500 - 0.250");
    ek_text_clear(&line);
    v[2].valid.loss = 2;
    ek_cohort_losses(&g, &line);
    assert_string_equal(line.data, "held out - - 2.000");
    ek_text_clear(&line);
}

/* Checkpoints of different rhythm, stopped twice: runs that are further on wait for the others. */
static const char *const rhythm[] = {"save_every=3,5", "scorer.age=exp,input"};

static void same_as_alone(const ek_train_set *set, int n)
{
    for (int i = 0; i < n; i++) { /* ages exp, input: listwise ones of before */
        char alone[160];

        snprintf(alone, sizeof alone, "%s/alone%d", ek_check_folder, i % 2 * 2);
        ek_check_same_weights(alone, set[i].out, 1);
        ek_check_same_loss(alone, set[i].out, 1);
    }
}

static void test_resume(void **state)
{
    char out[200], db[200];
    const char *const sets[] = {"trace=none", out, db}, *file = ek_check_in_folder("resume.db");
    ek_train_set *set;
    ek_err err;
    int n;

    (void)state;
    snprintf(out, sizeof out, "out=%s/stopped", ek_check_folder);
    snprintf(db, sizeof db, "results=%s", file);
    ek_check_ok(ek_check_open_runs(yaml, &set, &n, sets, 3, rhythm, 2, &err), &err);
    assert_int_equal(ek_check_run(dev, set, n, 0, 4, &err), EK_ESTOPPED);
    assert_int_equal(ek_check_run(dev, set, n, 0, 0, &err),
                     EK_EASKED); /* unfinished: says what to do */
    assert_non_null(strstr(err.msg, "--resume"));
    assert_int_equal(ek_check_run(dev, set, n, 1, 3, &err), EK_ESTOPPED);
    ek_check_ok(ek_check_run(dev, set, n, 1, 0, &err), &err);
    same_as_alone(set, n);
    ek_check_ok(ek_check_run(dev, set, n, 0, 0, &err), &err); /* done before: nothing to do */
    assert_float_equal(number(file, "SELECT count(*) FROM run WHERE status = 'done'"), 4, 0);
    assert_float_equal(number(file, "SELECT count(*) FROM run"), 4, 0);
    assert_float_equal(number(file, "SELECT min(steps_done) FROM train_run"), 12, 0);
    assert_float_equal(number(file, "SELECT count(*) FROM train_value WHERE name = 'recall' AND"
                                    " split = 'train' AND value BETWEEN 0 AND 1"),
                       48, 0);
    assert_float_equal(number(file, "SELECT count(*) FROM train_value WHERE name = 'recall' AND"
                                    " split = 'valid'"),
                       8, 0);
    assert_float_equal(number(file, "SELECT count(*) FROM train_value WHERE name = 'boundary' AND"
                                    " value BETWEEN 0 AND 1"),
                       56, 0);
    ek_sweep_close(set, n);
}

/* Four runs whose first checkpoints come long before their end, at different steps. */
static ek_code open_long(const char *name, ek_train_set **set, int *n, ek_err *err)
{
    static const char *const seldom[] = {"save_every=15,25", "scorer.age=exp,input"};
    char out[200], db[200];
    const char *const sets[] = {"trace=none", "steps=120", "valid_every=20", out, db};

    snprintf(out, sizeof out, "out=%s/%s", ek_check_folder, name);
    snprintf(db, sizeof db, "results=%s/%s.db", ek_check_folder, name);
    return ek_check_open_runs(yaml, set, n, sets, 5, seldom, 2, err);
}

/* kill -9 in mid-run, twice, then resume: weights, losses and log of runs that were left alone.  Of
 * the first kill only those that save more often have a checkpoint; the others begin again. */
static void test_kill(void **state)
{
    ek_train_set *set, *left;
    ek_err err;
    int n;

    (void)state;
    const char *const argv[] = {"test_sweep", "--child", ek_check_folder, NULL};
    ek_check_ok(open_long("killed", &set, &n, &err), &err);
    ek_check_ok(open_long("left-alone", &left, &n, &err), &err);
    ek_check_kill(argv, 2, set[0].out);
    ek_check_ok(ek_check_run(dev, set, n, 1, 0, &err), &err);
    ek_check_ok(ek_check_run(dev, left, n, 0, 0, &err), &err);
    for (int i = 0; i < n; i++) {
        ek_check_same_weights(left[i].out, set[i].out, 1);
        ek_check_same_loss(left[i].out, set[i].out, 1);
        ek_check_same_log(&left[i], &set[i], 1);
    }
    ek_check_same_loss(left[0].out, set[1].out, 0); /* negative control: another age */
    ek_check_same_log(&left[0], &set[1], 0);
    ek_sweep_close(set, n);
    ek_sweep_close(left, n);
}

/* One run's loss stops being a number: the others finish, and the call says so. */
static void test_one_fails(void **state)
{
    static const char *const list[] = {"optimiser.lr=0.02,10"};
    static const char *const sets[] = {"optimiser.weight_decay=10", "optimiser.clip=0",
                                       "trace=none", "optimiser.warmup=0", "steps=60"};
    ek_train_set *set;
    ek_err err;
    int n;

    (void)state;
    ek_check_ok(ek_check_open_runs(yaml, &set, &n, sets, 5, list, 1, &err), &err);
    assert_int_equal(ek_check_run(dev, set, n, 0, 0, &err), EK_ENAN);
    assert_true(ek_file_exists(ek_check_in_folder("out/optimiser.lr-0.02/model.safetensors")));
    assert_false(ek_file_exists(ek_check_in_folder("out/optimiser.lr-10/model.safetensors")));
    ek_sweep_close(set, n);
}

static int child(void)
{
    ek_train_set *set;
    ek_err err;
    int n;

    if (ek_device_open(&dev, "cpu", getenv("EVICTKIT_ISA"), &err) != EK_OK ||
        open_long("killed", &set, &n, &err) != EK_OK)
        return 1;
    return ek_check_run(dev, set, n, 1, 0, &err) != EK_OK;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names),     cmocka_unit_test(test_shares),
        cmocka_unit_test(test_read_once), cmocka_unit_test(test_bits),
        cmocka_unit_test(test_carried),   cmocka_unit_test(test_windows),
        cmocka_unit_test(test_losses),    cmocka_unit_test(test_resume),
        cmocka_unit_test(test_kill),      cmocka_unit_test(test_one_fails)};
    const ek_tiny big = {.n_ctx = 4096};
    char text[900];
    ek_err err;

    if (argc == 3 && strcmp(argv[1], "--child") == 0) {
        snprintf(ek_check_folder, sizeof ek_check_folder, "%s", argv[2]);
        snprintf(yaml, sizeof yaml, "%s/run.yaml", ek_check_folder);
        return child();
    }
    if (ek_device_open(&dev, "cpu", getenv("EVICTKIT_ISA"), &err) != EK_OK ||
        ek_check_folder_open("sweep") != 0)
        return 77;
    snprintf(model, sizeof model, "%s/tiny.gguf", ek_check_folder);
    snprintf(yaml, sizeof yaml, "%s/run.yaml", ek_check_folder);
    const int size =
        snprintf(text, sizeof text,
                 "model: %s\nout: %s/out\nsinks: 2\nrecent: 16\nkeep: 40\n"
                 "scorer: {hidden: 6, age: exp, delay: 0}\nloss: {kind: listwise}\n"
                 "data: {texts: datasets/tiny.txt, mix: 0, sequences: 3, valid: 1, length: 320, "
                 "cut: 160, cuts: 2, horizon: 48, facts: 1, passage: 16, entries: 64}\n"
                 "trace: memory\nsteps: 12\nbatch: 2\noptimiser: {lr: 0.02, warmup: 2}\n"
                 "save_every: 4\nvalid_every: 6\n",
                 model, ek_check_folder);
    if (ek_tiny_model(model, &big, &err) != EK_OK ||
        ek_file_write(yaml, text, (size_t)size, &err) != EK_OK) {
        fprintf(stderr, "%s\n", err.msg);
        return 1;
    }
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    ek_device_close(dev);
    return ek_check_folder_close() != 0 || failed;
}
