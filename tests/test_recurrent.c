/* tests/test_recurrent.c - the recurrent scorer against its definition, token by token in double.
 *
 * Built twice: with the program's own single precision and products, and as test_recurrent_double
 * from the same sources with EK_REAL=double, where only the order of sums can differ. */
#include "core/rng.h"
#include "scorers/carried.h"
#include "scorers/scorer.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { DIM = 64, IN = 2 * DIM, DV = DIM / 2, LAYERS = 2, HEADS = 2, MOST = 4096 };
enum { MEAN, SCALE, PROJECT, GATE, GATE_BIAS, OUT, OUT_BIAS, SKIP }; /* tensors */

#ifdef EK_REAL
static const double tolerance = 1e-12;
#else
static const double tolerance = 1e-5;
#endif

static ek_device *dev;

/* One head (layer 1, head 1) over one sequence. */
typedef struct problem {
    ek_scorer s;
    const ek_learner *l;
    ek_view view;
    int32_t first[HEADS], n[HEADS], pos[2 * MOST];
    float k[2 * MOST * DIM], v[2 * MOST * DIM];
    size_t size;
    ek_real *params;
    ek_real r[MOST];
    double want[MOST];
} problem;

static ek_real *tensor(problem *p, int i)
{
    return p->params + ek_params_at(&p->s, i, 1, 1);
}

static void fill(ek_real *x, int n, double mean, double sd, uint64_t seed)
{
    for (int i = 0; i < n; i++)
        x[i] = (ek_real)(mean + sd * ek_rng_normal(seed, 7, (uint64_t)i));
}

/* gate_sd: how much the gates move with the token. */
static problem *open_problem(int n, int delay, double gate_sd, uint64_t seed)
{
    problem *p = malloc(sizeof *p);

    p->s = (ek_scorer){.cls = &ek_scorer_recurrent,
                       .dev = dev,
                       .dims = {.n_layers = LAYERS, .n_heads = HEADS, .group = 1, .head_dim = DIM},
                       .set = {.age = EK_AGE_EXP,
                               .recent = MOST,
                               .delay = delay,
                               .skip = delay % 2 == 1,
                               .norm = delay % 3 == 1}};
    p->l = p->s.cls->learner;
    for (int i = 0; i < n * DIM; i++) {
        p->k[n * DIM + i] = (float)ek_rng_normal(seed, 1, (uint64_t)i);
        p->v[n * DIM + i] = (float)ek_rng_normal(seed, 2, (uint64_t)i);
    }
    for (int i = 0; i < n; i++)
        p->pos[n + i] = i;
    p->first[0] = 0;
    p->n[0] = 0;
    p->first[1] = n;
    p->n[1] = n;
    p->view = (ek_view){.layer = 1,
                        .n_heads = HEADS,
                        .group = 1,
                        .head_dim = DIM,
                        .dtype = EK_F32,
                        .next_pos = n,
                        .first = p->first,
                        .n = p->n,
                        .pos = p->pos,
                        .k = p->k,
                        .v = p->v};
    p->size = ek_params_size(&p->s);
    p->params = calloc(p->size, sizeof *p->params);
    p->s.params = p->params;
    p->l->init(&p->s, p->params, 1);
    fill(tensor(p, MEAN), IN, 0.1, 0.2, seed + 1);
    fill(tensor(p, SCALE), IN, 1, 0.1, seed + 2);
    fill(tensor(p, PROJECT), 3 * DV * IN, 0, 0.1, seed + 3);
    fill(tensor(p, GATE), 2 * IN, 0, gate_sd / sqrt(IN), seed + 4);
    fill(tensor(p, GATE_BIAS), 2, 1, 1, seed + 5);
    fill(tensor(p, OUT), DV, 0, 1, seed + 6);
    fill(tensor(p, OUT_BIAS), 1, 0, 1, seed + 7);
    if (p->s.set.skip)
        fill(tensor(p, SKIP), IN, 0, 0.1, seed + 8);
    return p;
}

static void close_problem(problem *p)
{
    free(p->params);
    free(p);
}

static void forward(problem *p)
{
    ek_real *act = malloc(p->l->scratch(&p->s, p->n[1]) * sizeof *act);

    p->l->forward(&p->s, &p->view, 1, act, p->r);
    free(act);
}

/* ---- the definition ---- */

static void softmax(const double *z, double sign, double *y)
{
    double max = -INFINITY, sum = 0;

    for (int i = 0; i < DV; i++)
        max = fmax(max, sign * z[i]);
    for (int i = 0; i < DV; i++)
        sum += y[i] = exp(sign * z[i] - max);
    for (int i = 0; i < DV; i++)
        y[i] /= sum;
}

static double product(const ek_real *w, const double *x)
{
    double sum = 0;

    for (int i = 0; i < IN; i++)
        sum += (double)w[i] * x[i];
    return sum;
}

static void phi(const ek_real *w, const double *x, double *y)
{
    double z[DV];

    for (int i = 0; i < DV; i++)
        z[i] = product(w + i * IN, x);
    softmax(z, 1, y);
    softmax(z, -1, y + DV);
}

static void input(problem *p, int t, double *x)
{
    const size_t at = (size_t)(p->first[1] + t) * DIM;

    for (int i = 0; i < IN; i++)
        x[i] = ((double)(i < DIM ? p->k[at + (size_t)i] : p->v[at + (size_t)(i - DIM)]) -
                (double)tensor(p, MEAN)[i]) *
               (double)tensor(p, SCALE)[i];
}

/* Scores token by token, without any shift of exponents: gates are at most exp(15). */
static void define(problem *p, int delay)
{
    static double c[DIM][DV], z[DIM];
    const int n = p->n[1];
    double top = -INFINITY;

    memset(c, 0, sizeof c);
    memset(z, 0, sizeof z);
    memset(p->want, 0, sizeof p->want);
    for (int t = 0; t < n; t++) {
        double x[IN], k[DIM], q[DIM], den = 0, r = (double)tensor(p, OUT_BIAS)[0];

        input(p, t, x);
        phi(tensor(p, PROJECT) + DV * IN, x, k);
        const double gi = product(tensor(p, GATE), x) + (double)tensor(p, GATE_BIAS)[0];
        const double gf = product(tensor(p, GATE) + IN, x) + (double)tensor(p, GATE_BIAS)[1];
        const double in = 15 * tanh(gi / 15), f = 1 / (1 + exp(-15 * tanh(gf / 15)));
        top = fmax(top + log(f), in);
        for (int j = 0; j < DV; j++) {
            const double v = product(tensor(p, PROJECT) + (2 * DV + j) * IN, x);

            for (int i = 0; i < DIM; i++)
                c[i][j] = f * c[i][j] + exp(in) * k[i] * v;
        }
        for (int i = 0; i < DIM; i++)
            z[i] = f * z[i] + exp(in) * k[i];
        if (t < delay)
            continue;
        input(p, t - delay, x);
        if (p->s.set.skip)
            r += product(tensor(p, SKIP), x);
        phi(tensor(p, PROJECT), x, q);
        for (int i = 0; i < DIM; i++)
            den += q[i] * z[i];
        den = fmax(den, 1e-6 * exp(top));
        double o[DV] = {0}, norm = 0;
        for (int j = 0; j < DV; j++) {
            for (int i = 0; i < DIM; i++)
                o[j] += q[i] * c[i][j] / den;
            norm += o[j] * o[j] / DV;
        }
        for (int j = 0; j < DV; j++) {
            const double y = p->s.set.norm ? o[j] / sqrt(norm + 1e-6) : o[j];

            r += (double)tensor(p, OUT)[j] * y / (1 + exp(-y));
        }
        p->want[t - delay] = r;
    }
}

/* Greatest difference, relative to the number or to the scores' size. */
static double error_of(const problem *p, const ek_real *r, int n)
{
    double size = 0, worst = 0;

    for (int i = 0; i < n; i++)
        size += p->want[i] * p->want[i] / n;
    for (int i = 0; i < n; i++) {
        const double wrong = fabs((double)r[i] - p->want[i]);
        const double by = fmax(fabs(p->want[i]), fmax(sqrt(size), 1e-3));

        worst = wrong / by > worst || isnan(wrong) ? wrong / by : worst;
    }
    return worst;
}

/* ---- tests ---- */

static void test_definition(void **state)
{
    static const int sizes[] = {1, 63, 64, 65, 777, MOST};
    double most = 0;

    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        for (int j = 0; j < 3; j++) {
            const int n = sizes[i];
            const int delay =
                j == 0 ? 0
                       : (int)ek_rng_below((uint64_t)(n < 300 ? n + 2 : 300), 5, i, (uint64_t)j);
            problem *p = open_problem(n, delay, j == 2 ? 8 : 1, 10 * i + (uint64_t)j);

            forward(p);
            define(p, delay);
            const double wrong = error_of(p, p->r, n);
            if (!(wrong <= tolerance))
                fail_msg("%d tokens, delay %d: relative error %g", n, delay, wrong);
            most = wrong > most ? wrong : most;
            if (n >= 63) { /* negative control */
                define(p, delay + 1);
                assert_true(error_of(p, p->r, n) > 1e-3);
            }
            close_problem(p);
        }
    print_message("greatest relative error %.2g\n", most);
}

/* Gates at their caps: weights span many powers, and nothing overflows. */
static void test_extremes(void **state)
{
    static const double bias[][2] = {{1e3, 1e3}, {-1e3, 1e3}, {1e3, -1e3}, {-1e3, -1e3}, {0, 0}};

    (void)state;
    for (size_t i = 0; i < sizeof bias / sizeof bias[0]; i++) {
        problem *p = open_problem(300, 17, i == 4 ? 400 : 1, 60 + i);

        for (int j = 0; j < 2; j++)
            tensor(p, GATE_BIAS)[j] = (ek_real)bias[i][j];
        forward(p);
        define(p, 17);
        const double wrong = error_of(p, p->r, 300);
        if (!(wrong <= tolerance))
            fail_msg("gates %g and %g: relative error %g", bias[i][0], bias[i][1], wrong);
        close_problem(p);
    }
}

/* Keep some of the old entries of head 1, as a cache under eviction does: those young enough to be
 * read later stay, of the others each with probability 1/2.  r moves along. */
static void evict(problem *p, int next, int delay, ek_real *r, uint64_t seed)
{
    const int first = p->first[1];
    int n = 0;

    for (int i = 0; i < p->n[1]; i++) {
        const int32_t pos = p->pos[first + i];

        if (pos + delay < next && ek_rng_unit(seed, 3, (uint64_t)(next * 8192 + pos)) < 0.5)
            continue;
        p->pos[first + n] = pos;
        r[n] = r[i];
        memmove(p->k + (size_t)(first + n) * DIM, p->k + (size_t)(first + i) * DIM,
                DIM * sizeof(float));
        memmove(p->v + (size_t)(first + n) * DIM, p->v + (size_t)(first + i) * DIM,
                DIM * sizeof(float));
        n++;
    }
    p->n[1] = n;
}

/* Calls of random sizes, with or without evictions between them, give what forward gives; numbers
 * of entries whose time has not come, or is over, are left alone. */
static void test_advance(void **state)
{
    enum { N = 777 };
    static ek_real r[N];

    (void)state;
    for (int round = 0; round < 4; round++) {
        const int delay = round == 0 ? 0 : round == 1 ? 63 : 150 * (round - 1), evicts = round % 2;
        problem *p = open_problem(N, delay, 2, 90 + (uint64_t)round);
        problem *all = open_problem(N, delay, 2, 90 + (uint64_t)round);
        ek_real *memory = calloc(p->l->n_state(&p->s), sizeof *memory);
        ek_real *work =
            aligned_alloc(64, (p->l->advance_work(&p->s, N) * sizeof *work / 64 + 1) * 64);
        int done = 0, checked = 0;

        forward(all);
        define(all, delay);
        p->n[1] = 0;
        while (done < N) {
            const int pick = (int)ek_rng_below(4, 8, (uint64_t)round, (uint64_t)done);
            int rows = pick < 2 ? 1 : pick == 2 ? 7 : 200;

            rows = rows < N - done ? rows : N - done;
            const int first = p->first[1] + p->n[1];
            for (int i = 0; i < rows; i++) {
                p->pos[first + i] = done + i;
                r[p->n[1] + i] = -99;
            }
            memcpy(p->k + first * DIM, all->k + (all->first[1] + done) * DIM,
                   (size_t)rows * DIM * sizeof(float));
            memcpy(p->v + first * DIM, all->v + (all->first[1] + done) * DIM,
                   (size_t)rows * DIM * sizeof(float));
            p->n[1] += rows;
            p->view.next_pos = done + rows;
            p->l->advance(&p->s, &p->view, 1, p->n[1] - rows, rows, memory, work, r);
            done += rows;
            for (int i = 0; i < p->n[1]; i++) {
                const int pos = p->pos[p->first[1] + i];
                const double size = fmax(1, fabs(all->want[pos]));

                if (pos + delay >= done)
                    assert_true((double)r[i] < -98);
                else if (!(fabs((double)r[i] - (double)all->r[pos]) <= tolerance * size))
                    fail_msg("delay %d, token %d: %.9g, forward says %.9g", delay, pos,
                             (double)r[i], (double)all->r[pos]);
                checked++;
            }
            if (evicts)
                evict(p, done, delay, r, 4 + (uint64_t)round);
        }
        assert_true(checked > N && (!evicts || p->n[1] < N));
        free(memory);
        free(work);
        close_problem(all);
        close_problem(p);
    }
}

/* Without keys a read is the mean of the values, weighted by the forget gate: 1, 2, 3, 4 give 2.5
 * and, forgetting by half, 3.26667. */
static void test_mean(void **state)
{
    static const double want[2] = {2.5, 49.0 / 15};

    (void)state;
    for (int half = 0; half < 2; half++) {
        problem *p = open_problem(4, 0, 0, 1);

        for (int i = 0; i < 4 * DIM; i++)
            p->v[4 * DIM + i] = (float)(i / DIM + 1);
        fill(tensor(p, MEAN), IN, 0, 0, 1);
        fill(tensor(p, SCALE), IN, 1, 0, 1);
        fill(tensor(p, PROJECT), 3 * DV * IN, 0, 0, 1);
        tensor(p, PROJECT)[2 * DV * IN + DIM] = 1;
        fill(tensor(p, GATE_BIAS), 2, 0, 0, 1);
        tensor(p, GATE_BIAS)[1] = (ek_real)(half ? 0 : 1e4);
        fill(tensor(p, OUT), DV, 0, 0, 1);
        tensor(p, OUT)[0] = 1;
        tensor(p, OUT_BIAS)[0] = 0;
        forward(p);
        /* The gates' cap leaves a full memory of sigmoid(15) per token. */
        assert_true(fabs((double)p->r[3] - want[half] / (1 + exp(-want[half]))) < 3e-6);
        assert_true(fabs((double)p->r[2] - want[half] / (1 + exp(-want[half]))) > 0.1);
        close_problem(p);
    }
}

#ifdef EK_REAL
/* Through four chunks, reads three of them apart: sum of c_j r_j along random directions. */
static void test_gradient(void **state)
{
    enum { N = 230 };
    const double e = 1e-6;
    static ek_real c[N];

    (void)state;
    for (int round = 0; round < 4; round++) {
        problem *p = open_problem(N, round * 73, 2, 40 + (uint64_t)round);
        ek_real *grad = calloc(p->size, sizeof *grad), *u = malloc(p->size * sizeof *u);
        ek_real *act = malloc(p->l->scratch(&p->s, N) * sizeof *act);

        fill(c, N, 0, 1, 3);
        p->l->forward(&p->s, &p->view, 1, act, p->r);
        p->l->backward(&p->s, &p->view, 1, act, c, grad);
        for (int i = PROJECT; i <= (p->s.set.skip ? SKIP : OUT_BIAS); i++) {
            const size_t at = ek_params_at(&p->s, i, 1, 1);
            const size_t n =
                ek_params_at(&p->s, i + 1, 0, 0) - at; /* the last head of its tensor */
            double side[2] = {0}, dot = 0;

            fill(u, (int)n, 0, 1, 50 + (uint64_t)i);
            for (int way = 0; way < 2; way++) {
                for (size_t j = 0; j < n; j++)
                    p->params[at + j] += (way == 0 ? e : -2 * e) * u[j];
                forward(p);
                for (int j = 0; j < N; j++)
                    side[way] += c[j] * p->r[j];
            }
            for (size_t j = 0; j < n; j++) {
                p->params[at + j] += e * u[j];
                dot += grad[at + j] * u[j];
            }
            const double slope = (side[0] - side[1]) / (2 * e);
            if (!(fabs(slope - dot) <= 1e-6 * fmax(fabs(slope), 1e-2)))
                fail_msg("delay %d, tensor %d: gradient %g, slope %g", round * 73, i, dot, slope);
            if (fabs(dot) > 1e-2) /* negative control */
                assert_true(fabs(slope - 1.001 * dot) > 1e-5 * fabs(slope));
        }
        free(act);
        free(u);
        free(grad);
        close_problem(p);
    }
}
#endif

/* Start values, sizes, and what is refused. */
static void test_settings(void **state)
{
    problem *p = open_problem(65, 4, 1, 2);
    ek_param d[EK_MAX_PARAMS];
    ek_err err;
    float out[1];
    size_t trained = 0;

    (void)state;
    const int n = p->l->describe(&p->s, d);
    for (int i = 0; i < n; i++)
        trained += d[i].trained ? (size_t)d[i].rows * (size_t)d[i].cols : 0;
    assert_int_equal(trained, 12579 + 1); /* and the age */
    p->l->init(&p->s, p->params, 1);
    forward(p);
    for (int i = 0; i < 65; i++)
        assert_true(fabs((double)p->r[i]) < 1e-30);
    assert_true(fabs((double)p->params[ek_params_at(&p->s, GATE_BIAS, 0, 0) + 1] - 3) < 1e-6);
    assert_true(fabs((double)tensor(p, GATE_BIAS)[1] - 6) < 1e-6);
    /* Activations grow with the number of tokens, not with its square. */
    assert_true(p->l->scratch(&p->s, 8192) < 9 * p->l->scratch(&p->s, 1024));
    assert_int_equal(ek_scorer_check(&p->s, &err), EK_OK);
    p->s.set.age = EK_AGE_INPUT;
    assert_int_equal(ek_scorer_check(&p->s, &err), EK_EASKED);
    assert_non_null(strstr(err.msg, "age input"));
    p->s.set.age = EK_AGE_NONE;
    p->s.set.carried = EK_CARRIED_EMA;
    assert_int_equal(ek_scorer_check(&p->s, &err), EK_EASKED);
    p->s.set.carried = EK_CARRIED_NONE;
    p->s.set.delay = MOST + 1;
    assert_int_equal(ek_scorer_check(&p->s, &err), EK_EASKED);
    assert_non_null(strstr(err.msg, "4097"));
    assert_int_equal(p->s.cls->score(&p->s, &p->view, out, &err), EK_EASKED);
    close_problem(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_definition), cmocka_unit_test(test_extremes),
        cmocka_unit_test(test_advance),    cmocka_unit_test(test_mean),
        cmocka_unit_test(test_settings),
#ifdef EK_REAL
        cmocka_unit_test(test_gradient),
#endif
    };
    ek_err err;

    if (ek_device_open(&dev, "cpu", NULL, &err) != EK_OK)
        return 1;
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    ek_device_close(dev);
    return failed;
}
