/* tests/test_session.c - training runs on a tiny model, from text to weights: the three kinds of
 * trace agree to the bit, stopped and killed runs resume, what does not fit is refused. */
#include "core/file.h"
#include "infer/model.h"
#include "infer/tokenizer.h"
#include "results/store.h"
#include "scorers/carried.h"
#include "tests/check_folder.h"
#include "tests/tiny_model.h"
#include "train/session.h"
#include "train/trainer.h"
#include "train/trace.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static ek_device *dev;
static char model[96], other[96];

static ek_train_set settings(char *out)
{
    static char texts[] = "datasets/tiny.txt";
    ek_train_set s;

    ek_train_set_defaults(&s);
    s.model = model;
    s.out = out;
    s.sinks = 2;
    s.recent = 16;
    s.keep = 40;
    s.scorer.hidden = 6;
    s.data = (ek_data_set){.texts = texts,
                           .sequences = 3,
                           .valid = 1,
                           .length = 320,
                           .cut = 160,
                           .cuts = 2,
                           .horizon = 48,
                           .facts = 1,
                           .passage = 16,
                           .entries = 64};
    s.trace = EK_TRACE_MEMORY;
    s.steps = 12;
    s.batch = 2;
    s.optimiser.warmup = 2;
    s.optimiser.lr = 0.02;
    s.save_every = 4;
    s.valid_every = 6;
    return s;
}

static ek_code run(const ek_train_set *s, int resume, int64_t stop_after, ek_err *err)
{
    const ek_train_options o = {.quiet = 1, .resume = resume, .stop_after = stop_after};

    return ek_train_run(s, &o, dev, err);
}

/* Memory, disk, disk again (mapped) and none: the same weights; another seed: others. */
static void test_traces(void **state)
{
    char *memory = ek_check_in_folder("memory"), *disk = ek_check_in_folder("disk"),
         *none = ek_check_in_folder("none");
    char *again = ek_check_in_folder("again"), *seed = ek_check_in_folder("seed");
    ek_train_set s = settings(memory);
    ek_err err;

    (void)state;
    ek_check_ok(run(&s, 0, 0, &err), &err);
    s.out = disk;
    s.trace = EK_TRACE_DISK;
    ek_check_ok(run(&s, 0, 0, &err), &err);
    ek_check_same_weights(memory, disk, 1);
    s.out = again;
    s.trace_file = ek_check_in_folder("disk/records.trace");
    ek_check_ok(run(&s, 0, 0, &err), &err);
    ek_check_same_weights(memory, again, 1);
    s.out = none;
    s.trace = EK_TRACE_NONE;
    ek_check_ok(run(&s, 0, 0, &err), &err);
    ek_check_same_weights(memory, none, 1);
    s.out = seed;
    s.seed = 2;
    ek_check_ok(run(&s, 0, 0, &err), &err);
    ek_check_same_weights(memory, seed, 0);
}

static void note(void *ctx, const char *line)
{
    if (strncmp(line, "read ", 5) == 0)
        snprintf(ctx, 160, "%s", line);
}

/* trace: none reads every sequence of an epoch once, beside those the constants come from and those
 * held out, once each. */
static void test_readings(void **state)
{
    ek_train_set s = settings(ek_check_in_folder("readings"));
    char line[160] = "";
    const ek_train_options o = {.quiet = 1, .say = note, .ctx = line};
    ek_err err;

    (void)state;
    s.data.sequences = 70;
    s.data.length = 96;
    s.data.cut = 88;
    s.data.horizon = 4;
    s.trace = EK_TRACE_NONE;
    s.steps = 35;
    ek_check_ok(ek_train_run(&s, &o, dev, &err), &err);
    assert_int_equal(strtol(line + 4, NULL, 10), EK_FIT_RECORDS + 70 + 1);
    /* More than the disk has is refused before anything is read. */
    s.out = ek_check_in_folder("greedy");
    s.trace = EK_TRACE_DISK;
    s.data.sequences = 1 << 24;
    s.data.entries = 0;
    s.data.length = 1024;
    s.data.cuts = 8;
    s.scorer.carried = EK_CARRIED_FULL;
    assert_int_equal(ek_train_run(&s, &o, dev, &err), EK_EASKED);
    assert_non_null(strstr(err.msg, "are free"));
    s.trace = EK_TRACE_MEMORY;
    assert_int_equal(ek_train_run(&s, &o, dev, &err), EK_EASKED);
    assert_non_null(strstr(err.msg, "of memory"));
}

/* The trace of another text, target, model is refused by name; a damaged one too. */
static void test_trace_refused(void **state)
{
    ek_train_set s = settings(ek_check_in_folder("refused"));
    char *trace = ek_check_in_folder("disk/records.trace"),
         *copy = ek_check_in_folder("damaged.trace");
    ek_err err;
    ek_map map;

    (void)state;
    s.trace = EK_TRACE_DISK;
    s.trace_file = trace;
    s.data.horizon = 49;
    assert_int_equal(run(&s, 0, 0, &err), EK_EASKED);
    assert_non_null(strstr(err.msg, "another text and data settings"));
    s.data.horizon = 48;
    s.target.group = 1;
    assert_int_equal(run(&s, 0, 0, &err), EK_EASKED);
    assert_non_null(strstr(err.msg, "another target settings"));
    s.target.group = 0;
    s.model = other;
    assert_int_equal(run(&s, 0, 0, &err), EK_EASKED);
    assert_non_null(strstr(err.msg, "another model"));
    s.model = model;
    ek_check_ok(ek_map_open(&map, trace, &err), &err);
    char *bytes = malloc(map.size);
    memcpy(bytes, map.data, map.size);
    const size_t size = map.size;
    ek_map_close(&map);
    s.trace_file = copy;
    for (int way = 0; way < 6; way++) {
        char *mine = malloc(size);
        size_t n = size;

        memcpy(mine, bytes, size);
        if (way == 0)
            n = size / 2;
        else if (way == 1)
            n = 100;
        else if (way == 2)
            memset(mine + 4096 + 8, 0x7f, 4); /* entries of the first record */
        else if (way == 3)
            memset(mine + size - 8, 0xff, 8); /* offset of the last */
        else if (way == 4)
            memset(mine + 4096 + 128, 0xff, 64); /* positions */
        else
            mine[0] = 'X';
        ek_check_ok(ek_file_write(copy, mine, n, &err), &err);
        assert_int_equal(run(&s, 0, 0, &err), EK_EINPUT);
        assert_non_null(strstr(err.msg, "damaged.trace"));
        free(mine);
    }
    ek_check_ok(ek_file_write(copy, bytes, size, &err), &err); /* whole again, it is taken */
    ek_check_ok(run(&s, 0, 0, &err), &err);
    free(bytes);
}

/* Stopped twice and resumed, logged into a database: the same weights as never stopping. */
static void test_resume(void **state)
{
    ek_train_set s = settings(ek_check_in_folder("stopped"));
    ek_err err;

    (void)state;
    s.out = ek_check_in_folder("stopped-none"); /* records made when asked: the same */
    s.trace = EK_TRACE_NONE;
    assert_int_equal(run(&s, 0, 5, &err), EK_ESTOPPED);
    ek_check_ok(run(&s, 1, 0, &err), &err);
    ek_check_same_weights(ek_check_in_folder("memory"), s.out, 1);
    ek_check_same_loss(ek_check_in_folder("memory"), s.out, 1);
    s.out = ek_check_in_folder("stopped");
    s.trace = EK_TRACE_MEMORY;
    s.results = ek_check_in_folder("resume.db");
    assert_int_equal(run(&s, 0, 5, &err), EK_ESTOPPED);
    assert_int_equal(run(&s, 0, 0, &err), EK_EASKED); /* unfinished: says what to do */
    assert_non_null(strstr(err.msg, "--resume"));
    assert_int_equal(run(&s, 1, 3, &err), EK_ESTOPPED);
    ek_check_ok(run(&s, 1, 0, &err), &err);
    ek_check_same_weights(ek_check_in_folder("memory"), s.out, 1);
    ek_check_same_loss(ek_check_in_folder("memory"), s.out, 1);
    ek_check_same_loss(ek_check_in_folder("seed"), s.out, 0); /* negative control */
    assert_false(ek_file_exists(ek_check_in_folder("stopped/checkpoint.safetensors")));
    ek_check_ok(run(&s, 0, 0, &err), &err); /* done before: nothing to do */
}

static ek_code take_number(void *ctx, int n, const char *const *name, const ek_sql *v, ek_err *err)
{
    (void)n, (void)name, (void)err;
    *(int64_t *)ctx = v[0].i;
    return EK_OK;
}

static int64_t runs_in(const char *db)
{
    int64_t n = -1;
    ek_store *s;
    ek_err err;

    ek_check_ok(ek_store_open(&s, db, EK_STORE_READ, &err), &err);
    ek_check_ok(ek_store_query(s, "SELECT count(*) FROM run", NULL, 0, take_number, &n, &err),
                &err);
    ek_store_close(s);
    return n;
}

/* What is found when the run is open already leaves no run behind, and no folder. */
static void test_found_late(void **state)
{
    char *text = ek_check_in_folder("small.txt"), *trace = ek_check_in_folder("no.trace"),
         *db = ek_check_in_folder("late.db");
    ek_train_set s, good = settings(ek_check_in_folder("late/and/deep"));
    ek_err err;

    (void)state;
    good.results = db;
    ek_check_ok(ek_file_write(text, "A few words.\n", 13, &err), &err);
    ek_check_ok(ek_file_write(trace, "This is no trace.", 17, &err), &err);
    for (int way = 0; way < 3; way++)
        for (int again = 0; again < 2; again++) {
            s = good;
            if (way == 0) {
                s.target.reduce = EK_REDUCE_BLOCK;
            } else if (way == 1) {
                s.trace = EK_TRACE_DISK;
                s.trace_file = trace;
            } else {
                s.data.texts = text;
            }
            assert_int_equal(run(&s, 0, 0, &err), way == 1 ? EK_EINPUT : EK_EASKED);
            if (strstr(err.msg, way == 0   ? "target.reduce"
                                : way == 1 ? "no.trace"
                                           : "document") == NULL)
                fail_msg("%d: %s", way, err.msg);
            assert_false(ek_file_exists(ek_check_in_folder("late")));
            if (way > 0)
                assert_int_equal(runs_in(db), 0);
        }
    assert_int_equal(run(&good, 0, 1, &err), EK_ESTOPPED); /* negative control: one with a step */
    assert_int_equal(runs_in(db), 1);
    good.trace = EK_TRACE_DISK;
    good.trace_file = trace;
    assert_int_equal(run(&good, 0, 0, &err), EK_EINPUT);
    assert_int_equal(runs_in(db), 1);
    assert_true(ek_file_exists(ek_check_in_folder("late/and/deep/checkpoint.safetensors")));
}

static ek_code restart(const ek_train_set *s, ek_err *err)
{
    const ek_train_options o = {.quiet = 1, .restart = 1};

    return ek_train_run(s, &o, dev, err);
}

static void copy_file(const char *from, const char *to)
{
    ek_map map;
    ek_err err;

    ek_check_ok(ek_map_open(&map, from, &err), &err);
    ek_check_ok(ek_file_write(to, map.data, map.size, &err), &err);
    ek_map_close(&map);
}

static void refused_for(const ek_train_set *s, const char *says)
{
    ek_err err;

    assert_int_equal(run(s, 0, 0, &err), EK_EASKED);
    if (strstr(err.msg, says) == NULL || strstr(err.msg, "--restart") == NULL)
        fail_msg("expected %s and --restart, found: %s", says, err.msg);
}

/* A run counts as finished while its folder holds what it made, of the model that is there now. */
static void test_done(void **state)
{
    ek_train_set s = settings(ek_check_in_folder("done")), later = s;
    char *weights = ek_check_in_folder("done/model.safetensors"),
         *config = ek_check_in_folder("done/config.json"), *own = ek_check_in_folder("own.gguf");
    ek_err err;

    (void)state;
    copy_file(model, own);
    s.model = own;
    s.results = ek_check_in_folder("done.db");
    ek_check_ok(run(&s, 0, 0, &err), &err);
    ek_check_ok(run(&s, 0, 0, &err), &err); /* nothing to do */
    later = s;
    later.seed = 2; /* another run uses the folder */
    ek_check_ok(run(&later, 0, 0, &err), &err);
    refused_for(&s, "done/");
    ek_check_same_weights(ek_check_in_folder("seed"), s.out, 1); /* what is there stays */
    ek_check_ok(run(&later, 0, 0, &err), &err);
    ek_check_ok(restart(&s, &err), &err);
    ek_check_same_weights(ek_check_in_folder("memory"), s.out, 1);
    assert_int_equal(truncate(weights, 100), 0);
    refused_for(&s, "model.safetensors");
    assert_int_equal(unlink(config), 0);
    refused_for(&s, "model.safetensors"); /* one gone, one damaged: still asks */
    assert_int_equal(unlink(weights), 0);
    ek_check_ok(run(&s, 0, 0, &err), &err); /* all gone: anew */
    ek_check_same_weights(ek_check_in_folder("memory"), s.out, 1);
    copy_file(other, own); /* another model under the same name */
    refused_for(&s, "another model_hash");
    ek_check_same_weights(ek_check_in_folder("memory"), s.out, 1);
    ek_check_ok(restart(&s, &err), &err);
    ek_check_same_weights(ek_check_in_folder("memory"), s.out, 0);
}

static void die(void *ctx, const char *line)
{
    (void)ctx;
    if (strncmp(line, "read", 4) == 0 || strncmp(line, "collected", 9) == 0)
        kill(getpid(), SIGKILL);
}

/* Another run of the same folder, seed and rhythm of saving apart. */
static ek_train_set other_run(const ek_train_set *s)
{
    ek_train_set b = *s;

    b.seed = 2;
    b.save_every = 100;
    return b;
}

/* kill -9 behind the reading, before the first step. */
static void begin_and_die(const ek_train_set *s)
{
    const char *const argv[] = {"test_session", "--die", s->out, s->results, s->model, NULL};
    const pid_t child = fork();
    int status = 0;

    if (child == 0) {
        execv("/proc/self/exe", (char *const *)argv);
        _exit(127);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

/* What was half written when the process was killed does not stay. */
static void test_orphans(void **state)
{
    ek_train_set s = settings(ek_check_in_folder("orphans"));
    static const char *const name[] = {"records.trace", "checkpoint.safetensors",
                                       "model.safetensors", "config.json"};
    const pid_t gone = fork();
    char path[EK_COUNT(name)][200];
    ek_err err;

    (void)state;
    if (gone == 0)
        _exit(0);
    assert_int_equal(waitpid(gone, NULL, 0), gone);
    ek_check_ok(ek_make_folder(s.out, &err), &err);
    for (size_t i = 0; i < EK_COUNT(name); i++) {
        snprintf(path[i], sizeof path[i], "%s/%s.tmp-%ld-0", s.out, name[i], (long)gone);
        ek_check_ok(ek_file_write(path[i], "half", 4, &err), &err);
    }
    assert_int_equal(run(&s, 0, 1, &err), EK_ESTOPPED); /* it writes none but a checkpoint */
    for (size_t i = 0; i < EK_COUNT(name); i++)
        assert_false(ek_file_exists(path[i]));
}

/* A checkpoint goes with the text and the model that it was made from, by content; and what another
 * run has left in the folder is no dead end. */
static void test_identity(void **state)
{
    ek_train_set s = settings(ek_check_in_folder("identity")), b;
    char *own = ek_check_in_folder("identity.gguf"), *text = ek_check_in_folder("identity.txt");
    ek_err err;
    ek_map map;

    (void)state;
    copy_file(model, own);
    copy_file("datasets/tiny.txt", text);
    s.model = own;
    s.data.texts = text;
    assert_int_equal(run(&s, 0, 5, &err), EK_ESTOPPED);
    copy_file(other, own);
    assert_int_equal(run(&s, 1, 0, &err), EK_EASKED);
    assert_non_null(strstr(err.msg, "another model"));
    assert_non_null(strstr(err.msg, "--restart"));
    copy_file(model, own);
    ek_check_ok(ek_map_open(&map, text, &err), &err);
    ek_check_ok(ek_file_write(text, map.data, map.size - 200, &err), &err);
    ek_map_close(&map);
    assert_int_equal(run(&s, 1, 0, &err), EK_EASKED);
    assert_non_null(strstr(err.msg, "another text"));
    copy_file("datasets/tiny.txt", text); /* as it was: it goes on */
    ek_check_ok(run(&s, 1, 0, &err), &err);
    ek_check_same_weights(ek_check_in_folder("memory"), s.out, 1);
    /* s stops behind a checkpoint; b, of the same folder, before its first. */
    s.results = ek_check_in_folder("identity.db");
    s.data.texts = settings(s.out).data.texts;
    assert_int_equal(run(&s, 0, 5, &err), EK_ESTOPPED);
    b = other_run(&s);
    begin_and_die(&b);
    refused_for(&b, "--resume");
    assert_int_equal(run(&b, 1, 0, &err), EK_EASKED);
    assert_non_null(strstr(err.msg, "--restart"));
    ek_check_ok(restart(&b, &err), &err);
}

/* A run that is killed: its first checkpoint comes long before its end. */
static ek_train_set long_settings(char *out, char *results)
{
    ek_train_set s = settings(out);

    s.results = results;
    s.steps = 400;
    s.save_every = 25;
    s.valid_every = 50;
    return s;
}

/* kill -9 in mid-run, twice, then resume: weights, loss and log of a run that was left alone. */
static void test_kill(void **state)
{
    ek_train_set s = long_settings(ek_check_in_folder("killed"), ek_check_in_folder("kill.db"));
    ek_train_set left =
        long_settings(ek_check_in_folder("left-alone"), ek_check_in_folder("left-alone.db"));
    ek_err err;

    (void)state;
    const char *const argv[] = {"test_session", "--child", s.out, s.results, model, NULL};
    ek_check_kill(argv, 2, s.out);
    ek_check_ok(run(&s, 1, 0, &err), &err);
    ek_check_ok(run(&left, 0, 0, &err), &err);
    ek_check_same_weights(left.out, s.out, 1);
    ek_check_same_loss(left.out, s.out, 1);
    ek_check_same_log(&left, &s, 1);
    left.seed = 2; /* negative control */
    left.out = ek_check_in_folder("left-other");
    ek_check_ok(run(&left, 0, 0, &err), &err);
    ek_check_same_loss(left.out, s.out, 0);
    ek_check_same_log(&left, &s, 0);
}

/* Retrieval text and the pair loss over whole sequences. */
static void test_whole(void **state)
{
    ek_train_set s = settings(ek_check_in_folder("whole"));
    ek_err err;

    (void)state;
    s.method = 1;
    s.scorer.age = EK_AGE_EXP;
    s.loss.kind = EK_LOSS_PAIR;
    assert_int_equal(run(&s, 0, 0, &err), EK_EASKED); /* needs whole sequences */
    s.data.cut = 0;
    ek_check_ok(run(&s, 0, 0, &err), &err);
    s.keep = 300;
    assert_int_equal(run(&s, 0, 0, &err), EK_EASKED);
}

static void test_retrieval(void **state)
{
    ek_train_set s = settings(ek_check_in_folder("retrieval"));
    ek_err err;

    (void)state;
    s.data.mix = 0.5;
    s.data.length = 2000;
    s.data.cut = 600;
    ek_check_ok(run(&s, 0, 0, &err), &err);
    s.out = ek_check_in_folder("retrieval-none");
    s.trace = EK_TRACE_NONE; /* read again, without a look at the answers: the same bits */
    ek_check_ok(run(&s, 0, 0, &err), &err);
    ek_check_same_weights(ek_check_in_folder("retrieval"), s.out, 1);
}

/* Every scorer, with carried columns or, if it has a memory, over whole records: streamed as from a
 * file. */
static void test_scorers(void **state)
{
    ek_err err;

    (void)state;
    for (int kind = 0; ek_learned[kind] != NULL; kind++) {
        ek_train_set s = settings(ek_check_in_folder("scorer-disk"));
        const int remembers = ek_learned[kind]->learner->n_state != NULL;

        s.scorer.kind = kind;
        s.scorer.hidden = ek_learned[kind] == &ek_scorer_mlp ? 6 : 0;
        s.scorer.age = remembers ? EK_AGE_EXP : EK_AGE_INPUT;
        s.scorer.carried = remembers ? EK_CARRIED_NONE : EK_CARRIED_FULL;
        s.trace = EK_TRACE_DISK;
        ek_check_ok(run(&s, 0, 0, &err), &err);
        assert_int_equal(unlink(ek_check_in_folder("scorer-disk/records.trace")), 0);
        s.out = ek_check_in_folder("scorer-none");
        s.trace = EK_TRACE_NONE;
        ek_check_ok(run(&s, 0, 0, &err), &err);
        ek_check_same_weights(ek_check_in_folder("scorer-disk"), s.out, 1);
        s.scorer.carried = remembers ? EK_CARRIED_NONE : EK_CARRIED_EMA; /* negative control */
        s.scorer.age = EK_AGE_NONE;
        ek_check_ok(run(&s, 0, 0, &err), &err);
        ek_check_same_weights(ek_check_in_folder("scorer-disk"), s.out, 0);
    }
}

static int child(char **argv)
{
    ek_err err;

    snprintf(model, sizeof model, "%s", argv[4]);
    const ek_train_set s = long_settings(argv[2], argv[3]);
    if (ek_device_open(&dev, "cpu", getenv("EVICTKIT_ISA"), &err) != EK_OK)
        return 1;
    return run(&s, 1, 0, &err) != EK_OK;
}

static int die_early(char **argv)
{
    const ek_train_options o = {.quiet = 1, .say = die};
    ek_train_set s = settings(argv[2]), b;
    ek_err err;

    s.results = argv[3];
    s.model = argv[4];
    b = other_run(&s);
    if (ek_device_open(&dev, "cpu", getenv("EVICTKIT_ISA"), &err) != EK_OK)
        return 1;
    return ek_train_run(&b, &o, dev, &err) != EK_OK;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_traces),     cmocka_unit_test(test_trace_refused),
        cmocka_unit_test(test_resume),     cmocka_unit_test(test_done),
        cmocka_unit_test(test_identity),   cmocka_unit_test(test_kill),
        cmocka_unit_test(test_whole),      cmocka_unit_test(test_retrieval),
        cmocka_unit_test(test_scorers),    cmocka_unit_test(test_readings),
        cmocka_unit_test(test_found_late), cmocka_unit_test(test_orphans),
    };
    const ek_tiny big = {.n_ctx = 2048}, differs = {.n_ctx = 2048, .seed = 5};
    ek_err err;

    if (argc == 5 && strcmp(argv[1], "--child") == 0)
        return child(argv);
    if (argc == 5 && strcmp(argv[1], "--die") == 0)
        return die_early(argv);
    if (ek_device_open(&dev, "cpu", getenv("EVICTKIT_ISA"), &err) != EK_OK ||
        ek_check_folder_open("session") != 0)
        return 77;
    snprintf(model, sizeof model, "%s/tiny.gguf", ek_check_folder);
    snprintf(other, sizeof other, "%s/other.gguf", ek_check_folder);
    if (ek_tiny_model(model, &big, &err) != EK_OK ||
        ek_tiny_model(other, &differs, &err) != EK_OK) {
        fprintf(stderr, "%s\n", err.msg);
        return 1;
    }
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    ek_device_close(dev);
    return ek_check_folder_close() != 0 || failed;
}
