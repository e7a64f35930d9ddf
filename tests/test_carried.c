/* tests/test_carried.c - carried attention: a cut's features against a dense map in double, and
 * the same numbers however the queries arrive. */
#include "core/device.h"
#include "core/rng.h"
#include "scorers/carried.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { DIM = 8, MOST_HEADS = 3, MOST_GROUP = 5, WIDE_GROUP = 9 };

static ek_device *dev;

/* One layer of one sequence: random queries and keys, and every probability in double. */
typedef struct sequence {
    int n, heads, group, cap;
    float *q, *k, *lse, *scratch;
    double *p; /* (heads * group, n, n), 0 where j > i */
    int32_t first[MOST_HEADS], count[MOST_HEADS], *pos;
    ek_view view;
} sequence;

static void fill(sequence *s, uint64_t seed)
{
    const int x_n = s->heads * s->group;

    for (int i = 0; i < s->n * x_n * DIM; i++)
        s->q[i] = (float)(1.2 * ek_rng_normal(seed, 1, (uint64_t)i));
    for (int i = 0; i < s->heads * s->cap * DIM; i++)
        s->k[i] = (float)ek_rng_normal(seed, 2, (uint64_t)i);
    for (int x = 0; x < x_n; x++)
        for (int i = 0; i < s->n; i++) {
            double *p = s->p + ((size_t)x * s->n + i) * s->n, sum = 0;

            for (int j = 0; j <= i; j++) {
                const float *q = s->q + ((size_t)i * x_n + x) * DIM;
                const float *k = s->k + ((size_t)(x / s->group) * s->cap + j) * DIM;
                double z = 0;

                for (int d = 0; d < DIM; d++)
                    z += (double)q[d] * (double)k[d];
                sum += p[j] = exp(z);
            }
            for (int j = 0; j <= i; j++)
                p[j] /= sum;
            s->lse[(size_t)i * x_n + x] = (float)log(sum);
        }
}

static void open_sequence(sequence *s, int n, int heads, int group, uint64_t seed)
{
    const size_t x_n = (size_t)(heads * group);

    *s = (sequence){.n = n, .heads = heads, .group = group, .cap = n + 5};
    s->q = calloc((size_t)n * x_n * DIM, sizeof *s->q);
    s->k = calloc((size_t)(heads * s->cap * DIM), sizeof *s->k);
    s->lse = calloc((size_t)n * x_n, sizeof *s->lse);
    s->p = calloc(x_n * (size_t)n * (size_t)n, sizeof *s->p);
    s->pos = calloc((size_t)(heads * s->cap), sizeof *s->pos);
    s->scratch = calloc(4 * (size_t)(heads * s->cap * group), sizeof *s->scratch);
    assert_true(s->q && s->k && s->lse && s->p && s->pos && s->scratch);
    for (int h = 0; h < heads; h++) {
        s->first[h] = h * s->cap;
        s->count[h] = n;
        for (int j = 0; j < n; j++)
            s->pos[s->first[h] + j] = j;
    }
    s->view = (ek_view){.n_heads = heads,
                        .group = group,
                        .head_dim = DIM,
                        .dtype = EK_F32,
                        .next_pos = n,
                        .first = s->first,
                        .n = s->count,
                        .pos = s->pos,
                        .k = s->k,
                        .v = s->k};
    fill(s, seed);
}

static void close_sequence(sequence *s)
{
    free(s->q);
    free(s->k);
    free(s->lse);
    free(s->p);
    free(s->pos);
    free(s->scratch);
}

static ek_colsum queries(const sequence *s, int from, int to)
{
    const size_t x_n = (size_t)(s->heads * s->group);

    return (ek_colsum){.view = s->view,
                       .n_q = to - from,
                       .q_pos = from,
                       .q = s->q + (size_t)from * x_n * DIM,
                       .ldq = x_n * DIM,
                       .lse = s->lse + (size_t)from * x_n,
                       .horizon = -1};
}

static float *new_carry(const sequence *s, int kind)
{
    const size_t floats = (size_t)ek_carried_floats(kind, s->group);
    float *carry = calloc((size_t)(s->heads * s->cap) * floats, sizeof *carry);

    assert_non_null(carry);
    return carry;
}

static double log_of(double x)
{
    return log(1e-6 + x);
}

/* The columns as their definition says, from the dense map; t queries in all. */
static void define(const sequence *s, int kind, int h, int j, int t, double x[8])
{
    const int age = t - j, born = age < 64 ? age : 64;
    double mean[4] = {0}, most[4] = {0}, last = 0;

    for (int g = 0; g < s->group; g++) {
        const double *p = s->p + (size_t)(h * s->group + g) * s->n * s->n;
        double c[4] = {0};

        for (int i = j; i < t; i++) {
            const double y = p[(size_t)i * s->n + j];

            c[0] += y / age;
            c[1] += .01 * pow(.99, t - 1 - i) * y;
            c[2] += .03 * pow(.97, t - 1 - i) * y;
            c[3] += i - j < 64 ? y / born : 0;
        }
        last += p[(size_t)(t - 1) * s->n + j] / s->group;
        for (int f = 0; f < 4; f++) {
            mean[f] += c[f] / s->group;
            most[f] = c[f] > most[f] ? c[f] : most[f];
        }
    }
    if (kind == EK_CARRIED_EMA) {
        x[0] = log_of(mean[1]);
        return;
    }
    for (int f = 0; f < 3; f++) {
        x[2 * f] = log_of(mean[f]);
        x[2 * f + 1] = log_of(most[f]);
    }
    x[6] = log_of(most[3]);
    x[7] = log_of(last);
}

/* Largest difference of a feature at a cut of t queries, entry by entry, from its definition with
 * `late` queries more. */
static double worst_feature(const sequence *s, int kind, const float *carry, int t, int late)
{
    const int floats = ek_carried_floats(kind, s->group), features = ek_carried_features(kind);
    double worst = 0;

    for (int h = 0; h < s->heads; h++)
        for (int j = 0; j < t; j++) {
            ek_real x[8];
            double want[8];

            ek_carried_read(kind, s->group, carry + (size_t)(s->first[h] + j) * (size_t)floats,
                            t - j, x);
            define(s, kind, h, j, t + late, want);
            for (int f = 0; f < features; f++)
                worst = fmax(worst, fabs((double)x[f] - want[f]));
        }
    return worst;
}

/* With entries behind the cut in the view, which stay untouched. */
static void features_of_a_cut_are_those_of_the_dense_map(void **state)
{
    static const int lengths[] = {3, 65, 200, 512};

    (void)state;
    for (int i = 0; i < 8; i++) {
        const int n = lengths[i % 4], kind = 1 + (i + i / 4) % 2;
        const int group = 1 + (int)ek_rng_below(MOST_GROUP, 1, 1, (uint64_t)i);
        const int t = i == 3 ? 400 : n - 1;
        sequence s;

        open_sequence(&s, n, 1 + i % MOST_HEADS, group, (uint64_t)i);
        float *carry = new_carry(&s, kind);
        const ek_colsum c = queries(&s, 0, t);
        const size_t floats = (size_t)ek_carried_floats(kind, group);

        ek_carried_fold(kind, dev, &c, 1, carry, s.scratch);
        const double worst = worst_feature(&s, kind, carry, t, 0);
        if (!(worst <= 1e-5)) /* measured: 1.7e-6 */
            fail_msg("%s, %d tokens, group %d: a feature is off by %g", ek_carried_names[kind], n,
                     group, worst);
        /* Negative control: one query more is another cut. */
        assert_true(worst_feature(&s, kind, carry, t, 1) > 5e-3);
        for (int h = 0; h < s.heads; h++)
            for (size_t x = 0; x < (size_t)(n - t) * floats; x++)
                assert_true(carry[(size_t)(s.first[h] + t) * floats + x] == 0.0f);
        free(carry);
        close_sequence(&s);
    }
}

/* Query i as a decode step: its probabilities over what is there by then. */
static void step(sequence *s, int kind, int i, float *carry)
{
    float *prob = s->scratch;

    for (int h = 0; h < s->heads; h++) {
        s->count[h] = i + 1;
        for (int j = 0; j <= i; j++)
            for (int g = 0; g < s->group; g++)
                prob[(s->first[h] + j) * s->group + g] =
                    (float)s->p[((size_t)(h * s->group + g) * s->n + i) * s->n + j];
    }
    ek_carried_step(kind, dev, &s->view, prob, carry);
    for (int h = 0; h < s->heads; h++)
        s->count[h] = s->n;
}

/* Largest relative difference of carried numbers between one fold of all queries and chunks
 * followed by steps; skip: a step left out. */
static double worst_number(sequence *s, int kind, int prompt, uint64_t seed, int skip)
{
    float *once = new_carry(s, kind), *parts = new_carry(s, kind);
    const int floats = ek_carried_floats(kind, s->group);
    ek_colsum c = queries(s, 0, s->n);
    double worst = 0;

    ek_carried_fold(kind, dev, &c, 1, once, s->scratch);
    for (int at = 0, x = 0; at < prompt; x++) {
        int n = 1 + (int)ek_rng_below(150, seed, 3, (uint64_t)x);

        if (at + n > prompt)
            n = prompt - at;
        c = queries(s, at, at + n);
        for (int h = 0; h < s->heads; h++)
            s->count[h] = at + n;
        ek_carried_fold(kind, dev, &c, 1, parts, s->scratch);
        at += n;
    }
    for (int i = prompt; i < s->n; i++)
        if (i != skip)
            step(s, kind, i, parts);
    for (int h = 0; h < s->heads; h++)
        for (int x = 0; x < s->n * floats; x++) {
            const double a = (double)once[s->first[h] * floats + x];
            const double b = (double)parts[s->first[h] * floats + x];

            worst = fmax(worst, fabs(a - b) / (fabs(a) + 1e-6));
        }
    free(once);
    free(parts);
    return worst;
}

static void chunks_and_steps_carry_what_one_fold_does(void **state)
{
    (void)state;
    for (int i = 0; i < 8; i++) {
        const int n = i == 5 ? 900 : i > 5 ? 150 : 150 + 60 * i, kind = 1 + i % 2;
        const int group = i > 5    ? WIDE_GROUP /* more query heads than any form is made for */
                          : i == 4 ? 3
                                   : 1 + (int)ek_rng_below(MOST_GROUP, 2, 2, (uint64_t)i);
        const int prompt = i == 0 ? 0 : n - 90;
        sequence s;

        open_sequence(&s, n, 1 + i % MOST_HEADS, group, 20 + (uint64_t)i);
        const double worst = worst_number(&s, kind, prompt, (uint64_t)i, -1);
        if (!(worst <= 1e-5)) /* measured: 3.2e-6 */
            fail_msg("%s, %d tokens, group %d: a number is off by %g of it", ek_carried_names[kind],
                     n, group, worst);
        /* Negative control: a step that is forgotten shows. */
        assert_true(worst_number(&s, kind, prompt, (uint64_t)i, n - 5) > 1e-2);
        close_sequence(&s);
    }
}

static void nothing_is_carried_where_nothing_is_asked(void **state)
{
    (void)state;
    assert_int_equal(ek_carried_floats(EK_CARRIED_NONE, 3), 0);
    assert_int_equal(ek_carried_features(EK_CARRIED_NONE), 0);
    assert_int_equal(ek_carried_floats(EK_CARRIED_EMA, 3), 1);
    assert_int_equal(ek_carried_floats(EK_CARRIED_FULL, 3), 13);
    assert_null(ek_carried_names[3]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(features_of_a_cut_are_those_of_the_dense_map),
        cmocka_unit_test(chunks_and_steps_carry_what_one_fold_does),
        cmocka_unit_test(nothing_is_carried_where_nothing_is_asked)};
    ek_err err;

    if (ek_device_open(&dev, "cpu", getenv("EVICTKIT_ISA"), &err) != EK_OK)
        return 77;
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    ek_device_close(dev);
    return failed;
}
