/* tests/test_target.c - the streamed target against a dense one in double, and its memory. */
#include "core/device.h"
#include "core/rng.h"
#include "train/target.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { HEADS = 2, GROUP = 3, DIM = 8, X = HEADS * GROUP };

static ek_device *dev;

static void near(double found, double want, double bound, const char *what, int j)
{
    if (!(fabs(found - want) <= bound))
        fail_msg("%s, token %d: found %.9g, expected %.9g", what, j, found, want);
}

/* One layer of one sequence: random queries and keys, and in double every probability. */
typedef struct sequence {
    int n, heads, group, cap;
    float *q, *k, *lse;
    double *z; /* (heads * group, n, n) scaled logits minus lse, -inf where j > i */
    int32_t *pos, *first, *count;
    ek_view view;
} sequence;

static void open_sequence(sequence *s, int n, int heads, int group, uint64_t seed, double sharp,
                          double lse_off)
{
    const int x_n = heads * group;

    *s = (sequence){.n = n, .heads = heads, .group = group, .cap = n + 5};
    s->q = calloc((size_t)n * x_n * DIM, sizeof *s->q);
    s->k = calloc((size_t)heads * s->cap * DIM, sizeof *s->k);
    s->lse = calloc((size_t)n * x_n, sizeof *s->lse);
    s->z = calloc((size_t)x_n * n * n, sizeof *s->z);
    s->pos = calloc((size_t)heads * s->cap, sizeof *s->pos);
    s->first = calloc((size_t)heads, sizeof *s->first);
    s->count = calloc((size_t)heads, sizeof *s->count);
    for (int i = 0; i < n * x_n * DIM; i++)
        s->q[i] = (float)(sharp * ek_rng_normal(seed, 1, (uint64_t)i));
    for (int i = 0; i < heads * s->cap * DIM; i++)
        s->k[i] = (float)ek_rng_normal(seed, 2, (uint64_t)i);
    for (int h = 0; h < heads; h++) {
        s->first[h] = h * s->cap;
        for (int j = 0; j < n; j++)
            s->pos[s->first[h] + j] = j;
    }
    for (int x = 0; x < x_n; x++)
        for (int i = 0; i < n; i++) {
            double *z = s->z + ((size_t)x * n + i) * n, sum = 0;

            for (int j = 0; j <= i; j++) {
                z[j] = 0;
                for (int d = 0; d < DIM; d++)
                    z[j] += (double)s->q[((size_t)i * x_n + x) * DIM + d] *
                            (double)s->k[((size_t)s->first[x / group] + j) * DIM + d];
                sum += exp(z[j]);
            }
            /* A sparse lse lies below the true one: the policy dropped something. */
            s->lse[(size_t)i * x_n + x] =
                (float)(log(sum) - lse_off * ek_rng_unit(seed, 3, (uint64_t)(i * x_n + x)));
            for (int j = 0; j < n; j++)
                z[j] = j <= i ? z[j] - (double)s->lse[(size_t)i * x_n + x] : -INFINITY;
        }
    s->view = (ek_view){.n_heads = heads,
                        .group = group,
                        .head_dim = DIM,
                        .dtype = EK_F32,
                        .first = s->first,
                        .n = s->count,
                        .pos = s->pos,
                        .k = s->k};
}

static void close_sequence(sequence *s)
{
    free(s->q);
    free(s->k);
    free(s->lse);
    free(s->z);
    free(s->pos);
    free(s->first);
    free(s->count);
}

/* Feed the queries in chunks of changing size, as a model would. */
static void stream(ek_target *t, sequence *s, int chunk)
{
    const int x_n = s->heads * s->group;

    for (int i = 0; i < s->n;) {
        const int m = s->n - i < chunk ? s->n - i : chunk;

        for (int h = 0; h < s->heads; h++)
            s->count[h] = i + m;
        s->view.next_pos = i + m;
        ek_target_add(t, &s->view, i, m, s->q + (size_t)i * x_n * DIM, (size_t)x_n * DIM,
                      s->lse + (size_t)i * x_n);
        i += m;
        chunk = chunk * 7 / 5 + 1;
    }
}

/* The definition, in double and dense. */
static double dense(const sequence *s, const ek_target_need *need, int h, int j)
{
    const ek_target_set *set = &need->set;
    int64_t first = need->cut > 0 ? need->cut : j + need->recent, last = s->n - 1;
    double out = 0;

    if (set->horizon >= 0 && first + set->horizon - (need->cut > 0) < last)
        last = first + set->horizon - (need->cut > 0);
    for (int g = 0; g < s->group; g++) {
        const double *z = s->z + (size_t)(h * s->group + g) * s->n * s->n;
        double sum = 0, most = 0, block[8] = {0}, full = -1, part = 0;
        int in_block[8] = {0};

        for (int64_t i = first; i <= last; i++) {
            const double p = exp(z[i * s->n + j]);

            sum += p;
            most = p > most ? p : most;
            block[i / 256] += p;
            in_block[i / 256]++;
        }
        for (int b = 0; b < 8; b++) {
            const double mean = in_block[b] ? block[b] / in_block[b] : 0;

            if (in_block[b] >= 64 && mean > full)
                full = mean;
            if (mean > part)
                part = mean;
        }
        const double n = last >= first ? (double)(last - first + 1) : 1;
        const double m = set->reduce == EK_REDUCE_MEAN  ? sum / n
                         : set->reduce == EK_REDUCE_SUM ? sum
                         : set->reduce == EK_REDUCE_MAX ? most
                         : full >= 0                    ? full
                                                        : part;
        out = set->group == 1 ? out + m / s->group : m > out ? m : out;
    }
    return out;
}

static double worst_of(sequence *s, const ek_target_need *need, int chunk)
{
    ek_target t;
    ek_err err;
    double worst = 0;
    float *mass = calloc((size_t)s->n, sizeof *mass);

    assert_int_equal(ek_target_open(&t, need, dev, &err), EK_OK);
    stream(&t, s, chunk);
    for (int h = 0; h < s->heads; h++) {
        ek_target_mass(&t, &s->view, h, mass);
        for (int j = 0; j < ek_target_count(&t); j++) {
            const double want = dense(s, need, h, j);
            const double wrong = fabs((double)mass[j] - want) / (want > 1e-30 ? want : 1e-30);

            worst = wrong > worst ? wrong : worst;
        }
    }
    ek_target_close(&t);
    free(mass);
    return worst;
}

static void test_dense(void **state)
{
    double worst = 0;

    (void)state;
    for (uint64_t i = 0; i < 36; i++) {
        const int n = 20 + (int)ek_rng_below(i < 4 ? 490 : 180, 31, 1, i);
        sequence s;
        ek_target_need need = {.dims = {.n_layers = 1,
                                        .n_heads = HEADS,
                                        .group = 1 + (int)(i % 3),
                                        .head_dim = DIM,
                                        .scale = 1},
                               .recent = 1 + (int)ek_rng_below(12, 31, 2, i),
                               .n_seq = n};

        need.set = ek_target_defaults;
        need.set.normaliser = i % 5 == 4;
        need.set.reduce = (int)(i % 4) == 3 && i % 5 == 4 ? EK_REDUCE_MEAN : (int)(i % 4);
        need.set.group = (int)(i / 2 % 2);
        if (i % 3 == 1)
            need.set.horizon = (int64_t)ek_rng_below(40, 31, 3, i);
        if (i % 6 == 2 && need.set.reduce != EK_REDUCE_BLOCK) {
            need.cut = n / 2;
            need.set.horizon = 1 + (int64_t)ek_rng_below(40, 31, 4, i);
        }
        open_sequence(&s, n, HEADS, need.dims.group, 100 + i, 1 + (double)(i % 3),
                      need.set.normaliser ? 3 : 0);
        need.column = HEADS * s.cap;
        const double wrong = worst_of(&s, &need, 1 + (int)ek_rng_below(90, 31, 5, i));
        worst = wrong > worst ? wrong : worst;
        if (!(wrong <= 1e-4))
            fail_msg("case %d: reduce %d, group %d, horizon %d, cut %d: relative error %g", (int)i,
                     need.set.reduce, need.set.group, (int)need.set.horizon, need.cut, wrong);
        need.recent++; /* negative control: another window is seen */
        if (i == 0) {
            ek_target t;
            ek_err err;
            float mass[600];
            int differs = 0;

            assert_int_equal(ek_target_open(&t, &need, dev, &err), EK_OK);
            stream(&t, &s, 64);
            ek_target_mass(&t, &s.view, 0, mass);
            need.recent--;
            for (int j = 0; j < ek_target_count(&t); j++)
                differs += fabs((double)mass[j] / dense(&s, &need, 0, j) - 1) > 1e-4;
            assert_true(differs > 10);
            ek_target_close(&t);
        }
        close_sequence(&s);
    }
    print_message("greatest relative error %.2g\n", worst);
}

/* A table worked by hand, from given probabilities: keys are unit vectors, so that query
 * i, dimension j is the logit itself.  Mass is conserved. */
static void test_table(void **state)
{
    enum { S = 6, W = 2 };
    static const float p[2][S][S] = {{{1},
                                      {.5f, .5f},
                                      {.4f, .2f, .4f},
                                      {.2f, .4f, .2f, .2f},
                                      {.1f, .5f, .1f, .1f, .2f},
                                      {.1f, .3f, .2f, .1f, .1f, .2f}},
                                     {{1},
                                      {.7f, .3f},
                                      {.6f, .2f, .2f},
                                      {.6f, .1f, .1f, .2f},
                                      {.5f, .1f, .1f, .1f, .2f},
                                      {.1f, .6f, .1f, .05f, .05f, .1f}}};
    static const struct {
        int reduce, group, horizon;
        double r[4];
    } row[] = {{EK_REDUCE_MEAN, 0, -1, {-0.7985, -0.9163, -1.8971, -2.3026}},
               {EK_REDUCE_MEAN, 1, -1, {-1.1239, -1.0986, -2.0794, -2.5903}},
               {EK_REDUCE_SUM, 0, -1, {0.5878, 0.1823, -1.2040, -2.3026}},
               {EK_REDUCE_MAX, 0, -1, {-0.5108, -0.5108, -1.6094, -2.3026}},
               {EK_REDUCE_SUM, 1, -1, {0.2624, 0, -1.3863, -2.5903}},
               {EK_REDUCE_MAX, 1, -1, {-0.6931, -0.5978, -1.8971, -2.5903}},
               /* fewer queries than a block needs: what there is, as its mean */
               {EK_REDUCE_BLOCK, 0, -1, {-0.7985, -0.9163, -1.8971, -2.3026}},
               {EK_REDUCE_BLOCK, 1, -1, {-1.1239, -1.0986, -2.0794, -2.5903}},
               {EK_REDUCE_MEAN, 0, 1, {-0.5108, -0.7985, -1.8971, -2.3026}}};
    float q[S * 2 * DIM] = {0}, k[S * DIM] = {0}, lse[S * 2] = {0}, mass[S];
    int32_t first = 0, n = S, pos[S];
    ek_view view = {.n_heads = 1,
                    .group = 2,
                    .head_dim = DIM,
                    .dtype = EK_F32,
                    .next_pos = S,
                    .first = &first,
                    .n = &n,
                    .pos = pos,
                    .k = k};

    (void)state;
    for (int i = 0; i < S; i++) {
        pos[i] = i;
        k[i * DIM + i] = 1;
        for (int g = 0; g < 2; g++)
            for (int j = 0; j <= i; j++)
                q[(i * 2 + g) * DIM + j] = logf(p[g][i][j]);
    }
    for (size_t c = 0; c < sizeof row / sizeof row[0]; c++) {
        ek_target_need need = {
            .dims = {.n_layers = 1, .n_heads = 1, .group = 2, .head_dim = DIM, .scale = 1},
            .recent = W,
            .n_seq = S,
            .column = S};
        ek_target t;
        ek_err err;

        need.set = ek_target_defaults;
        need.set.reduce = row[c].reduce;
        need.set.group = row[c].group;
        need.set.horizon = row[c].horizon;
        assert_int_equal(ek_target_open(&t, &need, dev, &err), EK_OK);
        ek_target_add(&t, &view, 0, S, q, 2 * DIM, lse);
        assert_int_equal(ek_target_count(&t), 4);
        ek_target_mass(&t, &view, 0, mass);
        for (int j = 0; j < 4; j++)
            near(log(need.set.eps + (double)mass[j]), row[c].r[j], 6e-5, "table", j);
        if (c == 2) /* per query head, what is summed and what stays in windows make S */
            for (int g = 0; g < 2; g++) {
                double sum = 0;

                for (int j = 0; j < 4; j++)
                    sum += (double)t.sum[j * 2 + g];
                for (int i = 0; i < S; i++)
                    for (int j = i - W + 1 > 0 ? i - W + 1 : 0; j <= i; j++)
                        sum += (double)p[g][i][j];
                near(sum, S, 1e-5, "conservation", g);
            }
        ek_target_close(&t);
    }
}

/* Equal logits. */
static void test_equal(void **state)
{
    static const double mean[4] = {.2375, .205556, .183333, .166667};
    sequence s;
    ek_target t;
    ek_err err;
    float mass[6];
    ek_target_need need = {
        .dims = {.n_layers = 1, .n_heads = 1, .group = 1, .head_dim = DIM, .scale = 1},
        .recent = 2,
        .n_seq = 6,
        .column = 11};

    (void)state;
    need.set = ek_target_defaults;
    open_sequence(&s, 6, 1, 1, 1, 0, 0);
    assert_int_equal(ek_target_open(&t, &need, dev, &err), EK_OK);
    stream(&t, &s, 4);
    ek_target_mass(&t, &s.view, 0, mass);
    for (int j = 0; j < 4; j++)
        near((double)mass[j], mean[j], 1e-6, "equal logits", j);
    ek_target_close(&t);
    close_sequence(&s);
}

/* Bytes the device ever held for a target of n tokens of one head, computed for real. */
static int64_t peak_of(int n)
{
    ek_device *own;
    ek_err err;
    ek_target t;
    ek_target_need need = {
        .dims = {.n_layers = 1, .n_heads = 1, .group = 1, .head_dim = DIM, .scale = 1},
        .recent = 64,
        .n_seq = n,
        .column = n};
    float *q = calloc((size_t)n * DIM, sizeof *q), *k = calloc((size_t)n * DIM, sizeof *k);
    float *lse = calloc((size_t)n, sizeof *lse);
    int32_t *pos = calloc((size_t)n, sizeof *pos), first = 0, count;
    ek_view view = {.n_heads = 1,
                    .group = 1,
                    .head_dim = DIM,
                    .dtype = EK_F32,
                    .first = &first,
                    .n = &count,
                    .pos = pos,
                    .k = k};

    need.set = ek_target_defaults;
    assert_int_equal(ek_device_open(&own, "cpu", getenv("EVICTKIT_ISA"), &err), EK_OK);
    for (int i = 0; i < n; i++) {
        pos[i] = i;
        lse[i] = logf((float)i + 1);
    }
    assert_int_equal(ek_target_open(&t, &need, own, &err), EK_OK);
    for (int i = 0; i < n; i += 512) {
        const int m = n - i < 512 ? n - i : 512;

        count = i + m;
        ek_target_add(&t, &view, i, m, q + (size_t)i * DIM, DIM, lse + i);
    }
    const int64_t peak =
        own->peak > (int64_t)own->work_bytes ? own->peak : (int64_t)own->work_bytes;
    ek_target_close(&t);
    ek_device_close(own);
    free(q);
    free(k);
    free(lse);
    free(pos);
    return peak;
}

static void test_memory(void **state)
{
    const int64_t a = peak_of(1024), b = peak_of(2048), c = peak_of(8192);

    (void)state;
    print_message("peak bytes per head: %lld at T = 1024, %lld at 2048, %lld at 8192 "
                  "(a T x T map: %lld)\n",
                  (long long)a, (long long)b, (long long)c, 4LL * 8192 * 8192);
    assert_true(b < 2 * a + 65536);
    assert_true(c < 8 * a + 65536);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_table), cmocka_unit_test(test_equal),
                                       cmocka_unit_test(test_dense), cmocka_unit_test(test_memory)};
    ek_err err;

    if (ek_device_open(&dev, "cpu", getenv("EVICTKIT_ISA"), &err) != EK_OK)
        return 77;
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    ek_device_close(dev);
    return failed;
}
