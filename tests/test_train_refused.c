/* tests/test_train_refused.c - trainings that cannot be: refused by name, all of a command before
 * one of them trains; and those that ship, which can. */
#include "core/file.h"
#include "tests/check_folder.h"
#include "tests/tiny_model.h"
#include "train/reading.h"
#include "train/sweep.h"

#include <glob.h>
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
static char model[96], yaml[96];

/* What does not fit is found before anything is read or written. */
static void test_refused(void **state)
{
    static const char *const list[] = {"loss.kind=listwise,pair"};
    static const char *const whole[] = {"data.cut=0", "scorer.age=power"};
    ek_train_set *set;
    ek_err err;
    int n;

    (void)state;
    ek_check_ok(ek_check_open_runs(yaml, &set, &n, NULL, 0, list, 1, &err), &err);
    assert_int_equal(ek_check_run(dev, set, n, 0, 0, &err), EK_EASKED);
    assert_non_null(strstr(err.msg, "ranks over time"));
    free(set[1].out);
    set[1].out = strdup(set[0].out);
    set[1].loss.kind = EK_LOSS_REGRESS;
    assert_int_equal(ek_check_run(dev, set, n, 0, 0, &err), EK_EASKED);
    assert_non_null(strstr(err.msg, "two runs would write"));
    for (int way = 0; way < 2; way++) { /* nor under another name of the same folder */
        char *out = calloc(1, strlen(set[0].out) + 4);

        memcpy(out, set[0].out, strlen(set[0].out));
        if (way == 0)
            strcat(out, "/");
        else
            sprintf(strrchr(out, '/'), "/.%s", strrchr(set[0].out, '/'));
        free(set[1].out);
        set[1].out = out;
        assert_int_equal(ek_check_run(dev, set, n, 0, 0, &err), EK_EASKED);
        assert_non_null(strstr(err.msg, "two runs would write"));
    }
    ek_sweep_close(set, n);
    ek_check_ok(ek_check_open_runs(yaml, &set, &n, whole, 2, list, 1, &err), &err);
    assert_int_equal(ek_check_run(dev, set, n, 0, 0, &err), EK_EASKED);
    assert_non_null(strstr(err.msg, "static priorities"));
    assert_false(ek_file_exists(ek_check_in_folder("out/loss.kind-listwise/model.safetensors")));
    ek_sweep_close(set, n);
}

/* The runs of an ablation's file, in small, opened on the tiny model as a real run opens them:
 * readings, scorers, trainers, and two steps of each on a real sequence.  more: words
 * in place of those of the file's own sweep, or NULL. */
static ek_code plan_ablation(const char *name, const char *more, int *together, ek_err *err)
{
    static const char *const small[] = {"data.texts=datasets/tiny.txt", "data.sequences=2",
                                        "data.valid=1", "steps=2", "batch=1"};
    const ek_train_options plan = {.quiet = 1, .plan = 1};
    char file[64], line[160] = "", *word[EK_SWEEP_KEYS];
    const char *const path[] = {file};
    ek_train_set *set;
    int n, n_words = 0;

    snprintf(file, sizeof file, "configs/ablations/%s.yaml", name);
    FILE *f = fopen(file, "r");
    assert_non_null(f);
    while (strncmp(line, "# sweep: ", 9) != 0)
        assert_non_null(fgets(line, sizeof line, f));
    fclose(f);
    if (more != NULL)
        snprintf(line + 9, sizeof line - 9, "%s", more);
    for (char *w = strtok(line + 9, " \n"); w != NULL; w = strtok(NULL, " \n"))
        word[n_words++] = w;
    const ek_sweep sweep = {.path = path,
                            .n_paths = 1,
                            .set = small,
                            .n_sets = (int)EK_COUNT(small),
                            .list = (const char *const *)word,
                            .n_lists = n_words};
    ek_check_ok(ek_sweep_open(&set, &n, &sweep, err), err);
    assert_true(n >= 3);
    *together = ek_reading_shares(&set[0], &set[1]);
    for (int r = 0; r < n; r++) {
        free(set[r].model);
        set[r].model = strdup(model);
        free(set[r].results);
        set[r].results = NULL;
    }
    const ek_code code = ek_train_runs(set, n, &plan, dev, err);
    ek_sweep_close(set, n);
    return code;
}

/* Also where the runs need readings of their own: the last is refused before the first trains. */
static void test_refused_at_once(void **state)
{
    static const char *const keys[][2] = {
        {"scorer.kind=mlp,recurrent", "reads an entry once"},
        {"data.texts=datasets/tiny.txt,datasets/nowhere", "nowhere"},
        {"data.length=320,5000", "context"},
        {"method=kvpop,vector", "vector.tokens"},
        {"data.texts", "document"}};
    static const char *const sets[] = {"scorer.age=input", "vector.tokens=100", "scorer.hidden=0"};
    ek_train_set *set;
    ek_err err;
    int n;

    (void)state;
    for (size_t i = 0; i < EK_COUNT(keys); i++) {
        char out[200], text[200];
        const char *const all[] = {sets[0], sets[1], sets[2], out}, *list = keys[i][0];

        snprintf(out, sizeof out, "out=%s/at-once", ek_check_folder);
        if (i == EK_COUNT(keys) - 1) { /* a text that is too small */
            snprintf(text, sizeof text, "data.texts=datasets/tiny.txt,%s/few.txt", ek_check_folder);
            ek_check_ok(ek_file_write(ek_check_in_folder("few.txt"), "Few words.", 10, &err), &err);
            list = text;
        }
        ek_check_ok(ek_check_open_runs(yaml, &set, &n, all, 4, &list, 1, &err), &err);
        assert_int_equal(n, 2);
        assert_true(set[1].method == EK_TRAIN_VECTOR || !ek_reading_shares(&set[0], &set[1]));
        assert_int_equal(ek_check_run(dev, set, n, 0, 0, &err), EK_EASKED);
        if (strstr(err.msg, keys[i][1]) == NULL)
            fail_msg("%s: %s", list, err.msg);
        assert_false(ek_file_exists(ek_check_in_folder("at-once")));
        if (i == EK_COUNT(keys) - 1) /* negative control: by itself the first one trains */
            ek_check_ok(ek_check_run(dev, set, 1, 0, 0, &err), &err);
        ek_sweep_close(set, n);
    }
}

/* Also what only the database knows: the last of them was begun before, or its files are not its
 * own any more. */
static void test_begun(void **state)
{
    static const char *const list[] = {"seed=1,2"};
    char out[200], db[200];
    const char *const sets[] = {out, db};
    ek_train_set *set;
    ek_err err;
    int n;

    (void)state;
    snprintf(out, sizeof out, "out=%s/begun", ek_check_folder);
    snprintf(db, sizeof db, "results=%s/begun.db", ek_check_folder);
    ek_check_ok(ek_check_open_runs(yaml, &set, &n, sets, 2, list, 1, &err), &err);
    assert_false(ek_reading_shares(&set[0], &set[1]));
    assert_int_equal(ek_check_run(dev, &set[1], 1, 0, 4, &err), EK_ESTOPPED);
    assert_int_equal(ek_check_run(dev, set, n, 0, 0, &err), EK_EASKED);
    assert_non_null(strstr(err.msg, "--resume"));
    assert_false(ek_file_exists(set[0].out)); /* the first has not trained */
    ek_check_ok(ek_check_run(dev, &set[1], 1, 1, 0, &err), &err);
    char *weights = ek_check_in_folder("begun/seed-2/model.safetensors");
    ek_check_ok(ek_file_write(weights, "other", 5, &err), &err);
    assert_int_equal(ek_check_run(dev, set, n, 0, 0, &err), EK_EASKED);
    assert_non_null(strstr(err.msg, "--restart"));
    assert_false(ek_file_exists(set[0].out));
    assert_int_equal(unlink(weights), 0);
    ek_check_ok(ek_check_run(dev, set, n, 0, 0, &err), &err); /* gone: both train */
    assert_true(ek_file_exists(weights));
    ek_check_same_weights(set[0].out, set[1].out, 0);
    ek_sweep_close(set, n);
}

/* Settings that a scorer does not have are refused by name; those that it has are not. */
static void test_not_read(void **state)
{
    static const struct {
        const char *kind, *list, *says;
    } row[] = {{"mlp", "scorer.norm=none,rms", "scorer.norm: the mlp scorer has none"},
               {"mlp", "scorer.skip=false,true", "scorer.skip: the mlp"},
               {"linear", "scorer.delay=0,8", "scorer.delay: the linear"},
               {"linear", "scorer.hidden=0,6", "scorer.hidden: the linear"},
               {"recurrent", "scorer.hidden=0,6", "scorer.hidden: the recurrent"},
               {"mlp", "scorer.hidden=0,6", "no such folder"},
               {"mlp", "scorer.delay=-1,0", "no such folder"},
               {"recurrent", "scorer.norm=none,rms", "no such folder"},
               {"recurrent", "scorer.skip=false,true", "no such folder"},
               {"recurrent", "scorer.delay=0,8", "no such folder"}};
    ek_train_set *set;
    ek_err err;
    int n;

    (void)state;
    for (size_t i = 0; i < EK_COUNT(row); i++) {
        char kind[40];
        const char *const sets[] = {"scorer.hidden=0", "data.texts='no such folder'", kind};

        snprintf(kind, sizeof kind, "scorer.kind=%s", row[i].kind);
        ek_check_ok(ek_check_open_runs(yaml, &set, &n, sets, 3, &row[i].list, 1, &err), &err);
        assert_int_equal(ek_check_run(dev, set, n, 0, 0, &err), EK_EASKED);
        if (strstr(err.msg, row[i].says) == NULL)
            fail_msg("%s, %s: found \"%s\"", row[i].kind, row[i].list, err.msg);
        ek_sweep_close(set, n);
    }
}

/* Every training that ships has settings that go together: it is refused for nothing but the text
 * that is not there. */
static void test_shipped(void **state)
{
    static const char *const name[] = {"foresight",     "kvpop",           "kvpop-mlp",
                                       "kvpop-nodelay", "vector",          "tiny-train",
                                       "vector-layer",  "quickstart-train"};

    (void)state;
    for (size_t i = 0; i < EK_COUNT(name); i++) {
        char file[64], own[120];
        const char *const path[] = {file};
        const char *const sets[] = {own, "data.texts='no such folder'"};
        const ek_sweep sweep = {.path = path, .n_paths = 1, .set = sets, .n_sets = 2};
        ek_train_set *set;
        ek_err err;
        int n;

        snprintf(file, sizeof file, "configs/%s.yaml", name[i]);
        snprintf(own, sizeof own, "model=%s", model);
        ek_check_ok(ek_sweep_open(&set, &n, &sweep, &err), &err);
        assert_int_equal(ek_check_run(dev, set, n, 0, 0, &err), EK_EASKED);
        if (strstr(err.msg, "no such folder") == NULL)
            fail_msg("%s: %s", file, err.msg);
        ek_sweep_close(set, n);
    }
}

/* Every ablation that ships: its line "# sweep:" makes runs that may train, from as few readings as
 * can be. */
static void test_ablations(void **state)
{
    static const char *const name[] = {"age",  "carried", "delay",  "horizon",
                                       "loss", "mix",     "scorer", "target"};
    static const struct {
        const char *name, *list, *says;
    } bad[] = {{"delay", "scorer.delay=0,16,65", "delay: found 65"},
               {"scorer", "scorer.kind=linear,mlp,recurrent scorer.age=input",
                "must not change with time"},
               {"loss", "scorer.age=none,exp,power", "static priorities"},
               {"mix", "recent=16,64,2000", "data.cut"}};
    int together;
    ek_err err;
    glob_t files;

    (void)state;
    assert_int_equal(glob("configs/ablations/*.yaml", 0, NULL, &files), 0);
    assert_int_equal(files.gl_pathc, EK_COUNT(name) + 1); /* and what they are evaluated by */
    globfree(&files);
    for (size_t i = 0; i < EK_COUNT(name); i++) {
        if (plan_ablation(name[i], NULL, &together, &err) != EK_OK)
            fail_msg("%s: %s", name[i], err.msg);
        assert_int_equal(together, strcmp(name[i], "mix") != 0 && strcmp(name[i], "target") != 0 &&
                                       strcmp(name[i], "horizon") != 0);
    }
    for (size_t i = 0; i < EK_COUNT(bad); i++) /* negative controls */
        if (plan_ablation(bad[i].name, bad[i].list, &together, &err) != EK_EASKED ||
            strstr(err.msg, bad[i].says) == NULL)
            fail_msg("%s, %s: found \"%s\"", bad[i].name, bad[i].list, err.msg);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refused), cmocka_unit_test(test_refused_at_once),
        cmocka_unit_test(test_begun),   cmocka_unit_test(test_not_read),
        cmocka_unit_test(test_shipped), cmocka_unit_test(test_ablations)};
    const ek_tiny big = {.n_ctx = 4096};
    char text[900];
    ek_err err;

    if (ek_device_open(&dev, "cpu", getenv("EVICTKIT_ISA"), &err) != EK_OK ||
        ek_check_folder_open("refused") != 0)
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
