/* tests/test_trainer.c - learning, resuming to the bit, threads, refusals; on made records. */
#include "core/file.h"
#include "core/rng.h"
#include "train/state.h"
#include "train/trainer.h"

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

enum { LAYERS = 2, HEADS = 2, DIM = 8, SEQ = 260, SINKS = 2, RECENT = 8, KEEP = 30, RECORDS = 5 };

static ek_device *dev;
static char folder[] = "/tmp/evictkit-trainer-XXXXXX";

static const ek_dims dims = {.n_layers = LAYERS, .n_heads = HEADS, .group = 1, .head_dim = DIM};

/* What an entry will receive depends on the first component of its key and on its age: a scorer can
 * learn it. */
static ek_code get(void *ctx, int64_t i, ek_example *out, ek_err *err)
{
    const ek_example_shape shape = {.dims = dims, .dtype = EK_F32, .n = SEQ, .n_cuts = 1};
    const int n = SEQ;
    ek_example_head *head;

    (void)ctx;
    EK_TRY(ek_example_open(out, &shape, err));
    head = ek_example_edit(out);
    head->n_seq = head->cut[0] = head->end[0] = SEQ;
    head->sinks = SINKS;
    head->recent = RECENT;
    head->whole = 1;
    head->number = i;
    for (int l = 0; l < LAYERS; l++)
        for (int h = 0; h < HEADS; h++) {
            const size_t at = ek_example_at(out, l, h);

            for (int e = 0; e < n; e++) {
                float *k = (float *)(void *)out->k + (at + (size_t)e) * DIM;
                float *v = (float *)(void *)out->v + (at + (size_t)e) * DIM;

                for (int d = 0; d < DIM; d++) {
                    const uint64_t c = (uint64_t)(((i * 50 + l * 9 + h) * n + e) * DIM + d);
                    k[d] = (float)ek_rng_normal(1, 1, c);
                    v[d] = (float)ek_rng_normal(1, 2, c);
                }
                out->pos[at + (size_t)e] = e;
                if (e >= SINKS && e < SEQ - RECENT)
                    out->mass[at + (size_t)e] = 1e-3f * expf(2 * k[h]) / sqrtf((float)(SEQ - e));
            }
        }
    return EK_OK;
}

static ek_trainer_need need_of(int loss, int age)
{
    ek_trainer_need need = {
        .scorer = {.cls = &ek_scorer_mlp,
                   .dev = dev,
                   .dims = dims,
                   .set = {.hidden = 8, .age = age, .absolute = ek_losses[loss].absolute}},
        .loss = ek_loss_defaults,
        .optim = ek_optim_defaults,
        .eps = 1e-6,
        .sinks = SINKS,
        .recent = RECENT,
        .keep = KEEP,
        .seed = 3,
        .steps = 60,
        .batch = 2,
        .records = {.get = get, .n = RECORDS, .n_valid = 1}};

    need.loss.kind = loss;
    need.loss.samples = 32;
    need.optim.lr = 0.02;
    need.optim.warmup = 5;
    return need;
}

static ek_trainer *open_trainer(int loss, int age)
{
    const ek_trainer_need need = need_of(loss, age);
    ek_trainer *t;
    ek_err err;

    assert_int_equal(ek_trainer_open(&t, &need, &err), EK_OK);
    assert_int_equal(ek_trainer_fit(t, &err), EK_OK);
    return t;
}

static double steps(ek_trainer *t, int n)
{
    ek_train_stats x = {0};
    ek_err err;

    for (int i = 0; i < n; i++)
        assert_int_equal(ek_trainer_step(t, &x, &err), EK_OK);
    return x.loss;
}

/* Every loss goes down on records it was not shown, and decides better. */
static void test_learns(void **state)
{
    static const int age[EK_N_LOSSES] = {EK_AGE_EXP, EK_AGE_POWER, EK_AGE_NONE, EK_AGE_EXP,
                                         EK_AGE_INPUT};

    (void)state;
    for (int loss = 0; loss < EK_N_LOSSES; loss++) {
        ek_trainer *t = open_trainer(loss, age[loss]);
        ek_train_stats before, after;
        ek_err err;

        assert_int_equal(ek_trainer_valid(t, &before, &err), EK_OK);
        steps(t, 60);
        assert_int_equal(ek_trainer_valid(t, &after, &err), EK_OK);
        print_message("%-9s held out %.4f -> %.4f, right %.3f -> %.3f, recall %.3f -> %.3f\n",
                      ek_losses[loss].name, before.loss, after.loss, before.acc, after.acc,
                      before.recall, after.recall);
        assert_true(after.loss < before.loss);
        /* regress spends its steps on the level of the logarithms first. */
        assert_true(loss == EK_LOSS_REGRESS || after.acc > before.acc + 0.1);
        ek_trainer_close(t);
    }
}

/* The first of these words in a file becomes the other, of the same length. */
static void change_name(const char *path, const char *from, const char *to)
{
    ek_map map;
    ek_err err;

    assert_int_equal(ek_map_open(&map, path, &err), EK_OK);
    const size_t size = map.size;
    char *copy = malloc(size), *at;
    memcpy(copy, map.data, size);
    ek_map_close(&map);
    at = memmem(copy, size, from, strlen(from));
    assert_non_null(at);
    memcpy(at, to, strlen(to));
    assert_int_equal(ek_file_write(path, copy, size, &err), EK_OK);
    free(copy);
}

/* Stopped and resumed: the same bits as never stopping; and with one thread as with several. */
static void test_resume(void **state)
{
    char path[64];
    ek_err err;

    (void)state;
    snprintf(path, sizeof path, "%s/checkpoint.safetensors", folder);
    for (int loss = 0; loss < EK_N_LOSSES; loss += EK_LOSS_LISTWISE) {
        ek_trainer *whole = open_trainer(loss, EK_AGE_EXP), *a = open_trainer(loss, EK_AGE_EXP);
        const ek_trainer_need need = need_of(loss, EK_AGE_EXP);
        ek_trainer *b;

        steps(whole, 23);
        const int threads = dev->threads;
        dev->threads = 1;
        steps(a, 11);
        dev->threads = threads;
        assert_int_equal(ek_trainer_save(a, path, "0123456789abcdef0123456789abcdef", &err), EK_OK);
        assert_int_equal(ek_trainer_open(&b, &need, &err), EK_OK);
        assert_int_equal(ek_trainer_load(b, path, "0123456789abcdef0123456789abcdef", &err), EK_OK);
        assert_int_equal(b->step, 11);
        assert_true(isfinite(a->smooth) && b->smooth == a->smooth);
        steps(b, 12);
        assert_true(b->smooth == whole->smooth && b->smooth != a->smooth);
        assert_memory_equal(whole->params, b->params, b->n * sizeof(float));
        assert_memory_equal(whole->optim.m, b->optim.m, b->n * sizeof(float));
        assert_memory_equal(whole->optim.v, b->optim.v, b->n * sizeof(float));
        steps(b, 1); /* negative control: one step more is seen */
        assert_memory_not_equal(whole->params, b->params, b->n * sizeof(float));
        /* Another run's checkpoint is refused. */
        assert_int_equal(ek_trainer_load(b, path, "ffffffffffffffffffffffffffffffff", &err),
                         EK_EASKED);
        assert_non_null(strstr(err.msg, "other settings"));
        /* So is one of which a single bit changed. */
        FILE *f = fopen(path, "r+b");

        assert_non_null(f);
        assert_int_equal(fseek(f, -4, SEEK_END), 0);
        const int last = fgetc(f);
        assert_int_equal(fseek(f, -4, SEEK_END), 0);
        fputc(last ^ 1, f);
        fclose(f);
        assert_int_equal(ek_trainer_load(b, path, "0123456789abcdef0123456789abcdef", &err),
                         EK_EINPUT);
        assert_non_null(strstr(err.msg, "damaged checkpoint"));
        assert_int_equal(ek_file_write(path, "damaged", 7, &err), EK_OK);
        assert_int_equal(ek_trainer_load(b, path, "0123456789abcdef0123456789abcdef", &err),
                         EK_EINPUT);
        ek_trainer_close(whole);
        ek_trainer_close(a);
        ek_trainer_close(b);
    }
}

/* Nothing in a checkpoint is outside its hash: neither words nor names nor the hash itself. */
static void test_damage(void **state)
{
    static const struct {
        const char *from, *to, *says;
    } way[] = {{"\"step\":\"11\"", "\"step\":\"10\"", "damaged checkpoint: it has hash"},
               {"\"step\":\"11\"", "\"step\":\" 1\"", "damaged checkpoint: it has hash"},
               {"\"step\":", "\"stop\":", "it has no step"},
               {"\"smooth\":", "\"smoosh\":", "it has no smooth"},
               {"\"hash\":", "\"hush\":", "it has no hash"},
               {"0123456789abcdef", "1123456789abcdef", "damaged checkpoint: it has hash"},
               {"moment1", "moment3", "damaged checkpoint: it has hash"},
               {"checkpoint 2", "checkpoint 1", "--restart"}};
    const char *id = "0123456789abcdef0123456789abcdef";
    ek_trainer *t = open_trainer(EK_LOSS_LISTWISE, EK_AGE_EXP);
    char path[64];
    ek_err err;

    (void)state;
    snprintf(path, sizeof path, "%s/checkpoint.safetensors", folder);
    steps(t, 11);
    for (size_t i = 0; i < EK_COUNT(way); i++) {
        assert_int_equal(ek_trainer_save(t, path, id, &err), EK_OK);
        assert_int_equal(ek_trainer_load(t, path, id, &err), EK_OK);
        change_name(path, way[i].from, way[i].to);
        assert_int_equal(ek_trainer_load(t, path, id, &err), EK_EINPUT);
        if (strstr(err.msg, way[i].says) == NULL)
            fail_msg("%s -> %s: %s", way[i].from, way[i].to, err.msg);
    }
    ek_trainer_close(t);
}

/* A step is written in one way; another that strtoll would take is refused, hash or not. */
static void test_strict(void **state)
{
    static const char *const bad[] = {
        "", " 5", "5 ", "+5", "-0", "-1", "05", "5x", "0x5", "18446744073709551621", "12"};
    static const char *const good[] = {"0", "5", "11"};
    char path[64];
    int64_t at = -1;
    ek_st *st;
    ek_err err;

    (void)state;
    snprintf(path, sizeof path, "%s/checkpoint.safetensors", folder);
    for (size_t i = 0; i < EK_COUNT(bad) + EK_COUNT(good); i++) {
        const int sound = i >= EK_COUNT(bad);
        const char *text = sound ? good[i - EK_COUNT(bad)] : bad[i];
        const ek_st_pair meta[] = {{"format", "f"}, {"identity", "i"}, {"step", text}};

        assert_int_equal(ek_state_write(path, NULL, 0, meta, 3, &err), EK_OK);
        assert_int_equal(ek_state_open(&st, path, meta, 3, &err), EK_OK);
        if (ek_state_int(st, path, "step", 11, &at, &err) != (sound ? EK_OK : EK_EINPUT))
            fail_msg("step '%s'", text);
        ek_st_close(st);
    }
    assert_int_equal(at, 11);
}

/* Constants are set from the data, and an epoch shows every record once. */
static void test_constants_and_order(void **state)
{
    ek_trainer *t = open_trainer(EK_LOSS_LISTWISE, EK_AGE_INPUT);
    int seen[RECORDS] = {0};

    (void)state;
    const float *mean = t->params + ek_params_at(&t->scorer, 0, 1, 1);
    const float *scale = t->params + ek_params_at(&t->scorer, 1, 1, 1);
    double want = 0;
    for (int e = 0; e < SEQ - RECENT - SINKS; e++)
        want += log((double)(SEQ - SINKS - e)) / (SEQ - RECENT - SINKS);
    assert_true(fabs((double)mean[2 * DIM] - want) < 1e-4); /* log age is the last input */
    for (int c = 0; c < 2 * DIM; c++) {
        assert_true(fabs((double)mean[c]) < 0.15);
        assert_true(fabs((double)scale[c] - 1) < 0.15);
    }
    for (int64_t step = 1; step <= RECORDS; step++) /* two epochs, two records a step */
        for (int b = 0; b < 2; b++)
            seen[ek_trainer_pick(t, step, b)]++;
    for (int i = 0; i < RECORDS; i++)
        assert_int_equal(seen[i], 2);
    ek_trainer_close(t);
}

static void test_refusals(void **state)
{
    ek_trainer_need need = need_of(EK_LOSS_PAIR, EK_AGE_INPUT);
    ek_trainer *t;
    ek_train_stats x;
    ek_err err;

    (void)state;
    assert_int_equal(ek_trainer_open(&t, &need, &err), EK_EASKED); /* not a static priority */
    need = need_of(EK_LOSS_PAIR, EK_AGE_EXP);
    need.keep = 400; /* no position has so many eligible tokens */
    assert_int_equal(ek_trainer_open(&t, &need, &err), EK_OK);
    assert_int_equal(ek_trainer_step(t, &x, &err), EK_EASKED);
    assert_non_null(strstr(err.msg, "no position to train on"));
    ek_trainer_close(t);
    t = open_trainer(EK_LOSS_LISTWISE, EK_AGE_EXP);
    t->params[ek_params_at(&t->scorer, 4, 0, 0)] = NAN;
    assert_int_equal(ek_trainer_step(t, &x, &err), EK_ENAN);
    ek_trainer_close(t);
}

/* Nothing is allocated by the device in a steady loop. */
static void test_steady(void **state)
{
    ek_trainer *t = open_trainer(EK_LOSS_LISTWISE, EK_AGE_EXP);

    (void)state;
    steps(t, 2);
    const int64_t grown = dev->work_grown, bytes = dev->bytes;
    steps(t, 5);
    assert_int_equal(dev->work_grown, grown);
    assert_int_equal(dev->bytes, bytes);
    ek_trainer_close(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_learns),
                                       cmocka_unit_test(test_resume),
                                       cmocka_unit_test(test_constants_and_order),
                                       cmocka_unit_test(test_refusals),
                                       cmocka_unit_test(test_damage),
                                       cmocka_unit_test(test_strict),
                                       cmocka_unit_test(test_steady)};
    char path[64];
    ek_err err;

    if (ek_device_open(&dev, "cpu", getenv("EVICTKIT_ISA"), &err) != EK_OK ||
        mkdtemp(folder) == NULL)
        return 77;
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    ek_device_close(dev);
    snprintf(path, sizeof path, "%s/checkpoint.safetensors", folder);
    unlink(path);
    rmdir(folder);
    return failed;
}
