/* tests/test_cuts.c - several cuts in a record: gradients are those of one cut each added up,
 * records that lack what a scorer reads are refused, a step's memory grows with the length. */
#include "core/rng.h"
#include "scorers/carried.h"
#include "train/trainer.h"

#include <malloc.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { GROUP = 2, DIM = 8, SINKS = 2, RECENT = 8, CUTS = 3 };

static ek_device *dev;

typedef struct maker { /* of records that depend on their number alone */
    ek_dims dims;
    int n_seq, n_cuts, cut[CUTS];
    int only;   /* 1: record i has the one cut i */
    int sample; /* 1: every other token */
    int sinks, carried, over_time;
} maker;

static void fill_head(ek_example *r, int l, int h, int step)
{
    const int n = r->head->n, floats = r->head->n_carry;
    const size_t at = ek_example_at(r, l, h);

    for (int e = 0; e < n; e++) {
        const int j = e * step;
        float *k = (float *)(void *)r->k + (at + (size_t)e) * DIM;
        float *v = (float *)(void *)r->v + (at + (size_t)e) * DIM;

        r->pos[at + (size_t)e] = j;
        r->log_weight[at + (size_t)e] = j % 3 == 0 && !r->head->whole ? 0.5f : 0;
        for (int d = 0; d < DIM; d++) {
            const uint64_t c = (uint64_t)(((l * 9 + h) * 100000 + j) * DIM + d);
            k[d] = (float)ek_rng_normal(1, 1, c);
            v[d] = (float)ek_rng_normal(1, 2, c);
        }
        for (int m = 0; m < r->head->n_cuts; m++) {
            const int cut = r->head->cut[m];
            const size_t x = ek_example_mass_at(r, l, m, h) + (size_t)e;
            const uint64_t c = (uint64_t)((l * 9 + h) * 100000 + j), stream = 3 + (uint64_t)cut;

            if (j >= r->head->sinks && j < cut - RECENT)
                r->mass[x] =
                    1e-3f * (float)ek_rng_unit(1, stream, c) * expf(k[0]) / (float)(cut - j);
            for (int f = 0; f < floats && j < cut; f++)
                r->carry[x * (size_t)floats + (size_t)f] =
                    (float)ek_rng_unit(2, stream, c * 64 + (uint64_t)f);
        }
    }
}

static ek_code get(void *ctx, int64_t i, ek_example *out, ek_err *err)
{
    const maker *want = ctx;
    const int step = want->sample ? 2 : 1, n = want->n_seq / step;
    const ek_example_shape shape = {.dims = want->dims,
                                    .dtype = EK_F32,
                                    .n = n,
                                    .n_cuts = want->only ? 1 : want->n_cuts,
                                    .n_carry = ek_carried_floats(want->carried, GROUP)};
    ek_example_head *head;

    EK_TRY(ek_example_open(out, &shape, err));
    head = ek_example_edit(out);
    head->n_seq = want->n_seq;
    head->sinks = want->sinks;
    head->recent = RECENT;
    head->whole = !want->sample;
    head->carried = want->carried;
    head->number = i;
    for (int m = 0; m < shape.n_cuts; m++) {
        head->cut[m] = want->over_time ? want->n_seq : want->cut[want->only ? i : m];
        head->end[m] = want->over_time ? want->n_seq : head->cut[m] + 20;
    }
    for (int l = 0; l < want->dims.n_layers; l++)
        for (int h = 0; h < want->dims.n_heads; h++)
            fill_head(out, l, h, step);
    return ek_example_check(out, err);
}

static maker standard(void)
{
    return (maker){
        .dims = {.n_layers = 2, .n_heads = 2, .group = GROUP, .head_dim = DIM},
        .n_seq = 300,
        .n_cuts = CUTS,
        .cut = {90, 171, 260},
        .sinks = SINKS,
    };
}

static ek_trainer_need need_of(maker *m, const ek_scorer_class *cls, int age, int carried, int loss)
{
    ek_trainer_need need = {
        .scorer = {.cls = cls,
                   .dev = dev,
                   .dims = m->dims,
                   .set = {.hidden = 8,
                           .age = age,
                           .carried = carried,
                           .sinks = SINKS,
                           .recent = RECENT,
                           .delay = cls->learner->n_state != NULL ? RECENT / 2 : 0}},
        .loss = ek_loss_defaults,
        .optim = ek_optim_defaults,
        .eps = 1e-6,
        .sinks = SINKS,
        .recent = RECENT,
        .keep = 30,
        .seed = 3,
        .steps = 10,
        .batch = m->only ? CUTS : 1,
        .records = {.get = get, .ctx = m, .n = m->only ? CUTS : 1}};

    need.loss.kind = loss;
    need.loss.samples = 16;
    return need;
}

/* The gradient of one step from parameters away from their start, where some slopes are 0. */
static double *gradient(maker *m, const ek_scorer_class *cls, int age, int carried, int loss,
                        size_t *n, double *value)
{
    const ek_trainer_need need = need_of(m, cls, age, carried, loss);
    ek_trainer *t;
    ek_train_stats x;
    ek_err err;
    double *out;

    if (ek_trainer_open(&t, &need, &err) != EK_OK)
        fail_msg("%s", err.msg);
    for (size_t i = 0; i < t->n; i++)
        t->params[i] += 0.2f * (float)ek_rng_normal(7, 7, i);
    if (ek_trainer_step(t, &x, &err) != EK_OK)
        fail_msg("%s", err.msg);
    *n = t->n;
    *value = x.loss;
    out = malloc(t->n * sizeof *out);
    assert_non_null(out);
    for (size_t i = 0; i < t->n; i++)
        out[i] = (double)t->grad[i];
    ek_trainer_close(t);
    return out;
}

static double distance(const double *a, const double *b, size_t n)
{
    double apart = 0, size = 0;

    for (size_t i = 0; i < n; i++) {
        apart += (a[i] - b[i]) * (a[i] - b[i]);
        size += a[i] * a[i];
    }
    assert_true(size > 0);
    return sqrt(apart / size);
}

/* One record of three cuts against three records of one cut each; and of three other cuts. */
static void compare_cuts(const ek_scorer_class *cls, int age, int carried, int sample, int loss)
{
    maker m = standard();
    size_t n;
    double value[3], far, near;

    m.carried = carried;
    m.sample = sample;
    double *many = gradient(&m, cls, age, carried, loss, &n, &value[0]);
    m.only = 1;
    double *one = gradient(&m, cls, age, carried, loss, &n, &value[1]);
    m.cut[1] += 20;
    double *other = gradient(&m, cls, age, carried, loss, &n, &value[2]);
    near = distance(many, one, n);
    far = distance(many, other, n);
    if (!(near < 3e-5) || !(fabs(value[0] - value[1]) < 1e-6 * fabs(value[0])) || !(far > 1e-3))
        fail_msg("%s, age %s, carried %s, loss %s: apart %g, other cuts %g; loss %.9g, %.9g",
                 cls->name, ek_age_names[age], ek_carried_names[carried], ek_losses[loss].name,
                 near, far, value[0], value[1]);
    free(many);
    free(one);
    free(other);
}

static void test_gradients(void **state)
{
    (void)state;
    for (int i = 0; ek_learned[i] != NULL; i++) {
        const int remembers = ek_learned[i]->learner->n_state != NULL;

        for (int age = EK_AGE_NONE; age <= EK_AGE_INPUT; age++)
            for (int carried = EK_CARRIED_NONE; carried <= EK_CARRIED_FULL; carried++)
                for (int sample = 0; sample <= !remembers; sample++) {
                    compare_cuts(ek_learned[i], age, carried, sample, EK_LOSS_LISTWISE);
                    compare_cuts(ek_learned[i], age, carried, sample, EK_LOSS_REGRESS);
                }
    }
}

/* A step on records that do not go with the scorer: refused, saying what is missing. */
static void refused(maker *m, const ek_trainer_need *need, const char *why)
{
    ek_trainer *t;
    ek_train_stats x;
    ek_err err;

    (void)m;
    assert_int_equal(ek_trainer_open(&t, need, &err), EK_OK);
    assert_int_equal(ek_trainer_step(t, &x, &err), EK_EASKED);
    if (strstr(err.msg, why) == NULL)
        fail_msg("found \"%s\", expected %s", err.msg, why);
    assert_int_equal(ek_trainer_fit(t, &err), EK_EASKED);
    ek_trainer_close(t);
}

static void test_refusals(void **state)
{
    const ek_scorer_class *mlp = &ek_scorer_mlp;
    maker m = standard();
    ek_trainer_need need = need_of(&m, mlp, EK_AGE_NONE, EK_CARRIED_FULL, EK_LOSS_LISTWISE);
    ek_trainer *t;
    ek_err err;

    (void)state;
    refused(&m, &need, "scorer.carried is full");
    need = need_of(&m, mlp, EK_AGE_NONE, EK_CARRIED_NONE, EK_LOSS_PAIR);
    refused(&m, &need, "whole sequences");
    m.sinks = SINKS + 1;
    need = need_of(&m, mlp, EK_AGE_NONE, EK_CARRIED_NONE, EK_LOSS_LISTWISE);
    refused(&m, &need, "sinks");
    need = need_of(&m, mlp, EK_AGE_NONE, EK_CARRIED_EMA, EK_LOSS_PAIR);
    assert_int_equal(ek_trainer_open(&t, &need, &err), EK_EASKED);
    m = standard();
    m.sample = 1;
    for (int i = 0; ek_learned[i] != NULL; i++) {
        if (ek_learned[i]->learner->n_state == NULL)
            continue;
        need = need_of(&m, ek_learned[i], EK_AGE_NONE, EK_CARRIED_NONE, EK_LOSS_LISTWISE);
        refused(&m, &need, "remembers");
        need.scorer.set.delay = RECENT + 1;
        assert_int_equal(ek_trainer_open(&t, &need, &err), EK_EASKED);
        assert_non_null(strstr(err.msg, "scorer.delay"));
    }
}

/* Bytes of a step at one length, as counted and as the heap sees them (0: it does not say). */
static void measure(const ek_scorer_class *cls, int loss, int n_seq, double *counted, double *heap)
{
    maker m = standard();
    ek_trainer_need need;
    ek_trainer *t;
    ek_train_stats x;
    ek_err err;

    m.dims = (ek_dims){.n_layers = 1, .n_heads = 1, .group = GROUP, .head_dim = DIM};
    m.n_seq = n_seq;
    m.over_time = ek_losses[loss].whole;
    m.n_cuts = m.over_time ? 1 : CUTS;
    for (int c = 0; c < CUTS; c++)
        m.cut[c] = n_seq * (c + 2) / 5;
    need = need_of(&m, cls, EK_AGE_EXP, EK_CARRIED_NONE, loss);
    const struct mallinfo2 before = mallinfo2();
    assert_int_equal(ek_trainer_open(&t, &need, &err), EK_OK);
    if (ek_trainer_step(t, &x, &err) != EK_OK)
        fail_msg("%s", err.msg);
    const struct mallinfo2 after = mallinfo2();
    const ek_trainer_memory bytes = ek_trainer_bytes(t);
    *counted = (double)(bytes.params + bytes.activations + bytes.records);
    /* The record is closed by now; what is left is the trainer's. */
    *heap = (double)(after.uordblks + after.hblkhd) - (double)(before.uordblks + before.hblkhd) +
            (after.uordblks + after.hblkhd > 0 ? (double)bytes.records : 0);
    ek_trainer_close(t);
}

static void test_memory(void **state)
{
    static const int loss[] = {EK_LOSS_LISTWISE, EK_LOSS_PAIR};

    (void)state;
    for (int i = 0; ek_learned[i] != NULL; i++)
        for (size_t y = 0; y < EK_COUNT(loss); y++) {
            double last = 0, heap, counted;

            for (int n = 1024; n <= 8192; n *= 2) {
                measure(ek_learned[i], loss[y], n, &counted, &heap);
                print_message("%-9s %-8s %5d tokens: %8.1f kB a step (heap %.1f)\n",
                              ek_learned[i]->name, ek_losses[loss[y]].name, n, counted / 1e3,
                              heap / 1e3);
                assert_true(last == 0 || counted < 2.02 * last); /* T x T would be fourfold */
                assert_true(heap <= 1.1 * counted + 1e5);
                last = counted;
            }
            assert_true(last < 8192.0 * 8192.0); /* no byte per pair of tokens either */
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_gradients),
                                       cmocka_unit_test(test_refusals),
                                       cmocka_unit_test(test_memory)};
    ek_err err;

    if (ek_device_open(&dev, "cpu", getenv("EVICTKIT_ISA"), &err) != EK_OK)
        return 77;
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    ek_device_close(dev);
    return failed;
}
