/* tests/test_collect.c - records: masses and carried columns at every cut against a dense map in
 * double, samples against whole records, the same bits whenever made; damaged records are refused.
 */
#include "core/file.h"
#include "infer/tokenizer.h"
#include "scorers/carried.h"
#include "tests/check_folder.h"
#include "tests/check_model.h"
#include "train/collect.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { LENGTH = 320, CUT = 130, CUTS = 3, HORIZON = 40, SINKS = 2, RECENT = 16, ENTRIES = 64 };

static ek_check_model check;
static ek_tokenizer *tok;

typedef struct source { /* data and what collects from it */
    ek_data *data;
    ek_collect collect;
} source;

static ek_data_set settings(int entries)
{
    static char texts[] = "datasets/tiny.txt";

    return (ek_data_set){.texts = texts,
                         .sequences = 3,
                         .length = LENGTH,
                         .cut = CUT,
                         .cuts = CUTS,
                         .horizon = HORIZON,
                         .facts = 1,
                         .passage = 16,
                         .entries = entries};
}

static void open_source(source *s, const ek_data_set *set, int carried, int answers)
{
    ek_err err;

    ek_check_ok(ek_data_open(&s->data, set, 1, ek_model_gguf(check.model), tok, &err), &err);
    const ek_collect_need need = {.model = check.model,
                                  .dev = check.dev,
                                  .data = s->data,
                                  .set = *set,
                                  .target = ek_target_defaults,
                                  .sinks = SINKS,
                                  .recent = RECENT,
                                  .carried = carried,
                                  .seed = 1,
                                  .answers = answers};
    ek_check_ok(ek_collect_open(&s->collect, &need, &err), &err);
}

static void close_source(source *s)
{
    ek_collect_close(&s->collect);
    ek_data_close(s->data);
}

static ek_example made(source *s, int64_t i)
{
    ek_example r = {0};
    ek_err err;

    ek_check_ok(ek_collect_example(&s->collect, i, &r, &err), &err);
    ek_check_ok(ek_example_check(&r, &err), &err);
    assert_true(r.head->bytes <= ek_collect_bytes(&s->collect.need));
    return r;
}

/* Every probability of one sequence: (layers, query heads, n, n), 0 where j > i. */
typedef struct map {
    int n, x_n;
    double *p;
} map;

static double *row_of(const map *m, int layer, int x, int i)
{
    return m->p +
           (((size_t)layer * (size_t)m->x_n + (size_t)x) * (size_t)m->n + (size_t)i) * (size_t)m->n;
}

static ek_code look(void *ctx, const ek_tap_layer *t, ek_err *err)
{
    const ek_attn_row *row = &t->row[0];
    const ek_view *v = &row->view;
    map *m = ctx;

    (void)err;
    for (int i = 0; i < row->n_new; i++)
        for (int x = 0; x < m->x_n; x++) {
            const int at = v->next_pos - row->n_new + i;
            const float *q = row->q + (size_t)i * t->ldq + (size_t)x * (size_t)v->head_dim;
            double *p = row_of(m, v->layer, x, at);

            for (int j = 0; j <= at; j++) {
                const float *k = (const float *)v->k +
                                 (size_t)(v->first[x / v->group] + j) * (size_t)v->head_dim;
                double z = 0;

                for (int d = 0; d < v->head_dim; d++)
                    z += (double)q[d] * (double)k[d];
                p[j] = exp(z * (double)check.dims->scale -
                           (double)row->lse[(size_t)i * (size_t)m->x_n + (size_t)x]);
            }
        }
    return EK_OK;
}

static void read_map(map *m, source *s, int64_t i)
{
    ek_sequence seq = {0};
    ek_cache cache;
    ek_err err;
    const ek_tap tap = {.layer = look, .ctx = m};

    ek_check_ok(ek_data_sequence(s->data, i, &seq, &err), &err);
    *m = (map){.n = seq.n, .x_n = check.dims->n_heads * check.dims->group};
    m->p = calloc((size_t)check.dims->n_layers * (size_t)m->x_n * (size_t)m->n * (size_t)m->n,
                  sizeof *m->p);
    assert_non_null(m->p);
    ek_check_cache_open(&cache, &check, seq.n, NULL, 0);
    const ek_feed feed = {.cache = &cache, .tok = seq.tok, .n = seq.n};
    ek_check_ok(ek_model_step(check.model, &feed, 1, &tap, &err), &err);
    ek_cache_close(&cache);
    ek_sequence_clear(&seq);
}

static void near(double found, double want, const char *what, int j)
{
    if (!(fabs(found - want) <= 1e-7 + 2e-5 * fabs(want)))
        fail_msg("%s, token %d: found %.9g, expected %.9g", what, j, found, want);
}

/* Greatest over the group of the mean over queries from .. end - 1. */
static double mean_of(const map *m, int layer, int h, int j, int from, int end)
{
    double most = 0;

    for (int g = 0; g < check.dims->group; g++) {
        double sum = 0;

        for (int i = from; i < end; i++)
            sum += row_of(m, layer, h * check.dims->group + g, i)[j] / (end - from);
        most = sum > most ? sum : most;
    }
    return most;
}

/* The carried floats of token j as of a cut. */
static void carried_of(const map *m, int layer, int h, int j, int cut, double *out)
{
    const int group = check.dims->group;

    memset(out, 0, (size_t)(4 * group + 1) * sizeof *out);
    for (int g = 0; g < group; g++)
        for (int i = j; i < cut; i++) {
            const double p = row_of(m, layer, h * group + g, i)[j];

            out[g] += p;
            out[group + g] = .99 * out[group + g] + .01 * p;
            out[2 * group + g] = .97 * out[2 * group + g] + .03 * p;
            if (i < j + EK_CARRIED_BIRTH)
                out[3 * group + g] += p;
            if (i == cut - 1)
                out[4 * group] += p / group;
        }
}

/* Whole records: every token once, masses and columns of each cut as the dense map has them. */
static void test_whole(void **state)
{
    const ek_data_set set = settings(0);
    const int floats = 4 * check.dims->group + 1;
    double want[65];
    source s;
    map m;

    (void)state;
    open_source(&s, &set, EK_CARRIED_FULL, 0);
    const ek_example r = made(&s, 1);
    read_map(&m, &s, 1);
    assert_int_equal(r.head->n_cuts, CUTS);
    assert_true(r.head->whole && r.head->n == m.n && r.head->n_seq == m.n);
    assert_int_equal(r.head->n_carry, floats);
    for (int l = 0; l < check.dims->n_layers; l++)
        for (int c = 0; c < CUTS; c++)
            for (int h = 0; h < check.dims->n_heads; h++)
                for (int j = 0; j < m.n; j++) {
                    const size_t at = ek_example_mass_at(&r, l, c, h) + (size_t)j;
                    const int cut = r.head->cut[c], counts = j >= SINKS && j < cut - RECENT;

                    near((double)r.mass[at], counts ? mean_of(&m, l, h, j, cut, r.head->end[c]) : 0,
                         "mass", j);
                    carried_of(&m, l, h, j, cut, want);
                    for (int f = 0; f < floats; f++)
                        near((double)r.carry[at * (size_t)floats + (size_t)f], want[f], "carried",
                             j);
                }
    /* Negative control: the columns of one cut are not those of another. */
    const size_t a = ek_example_mass_at(&r, 0, 0, 0) + 10, b = ek_example_mass_at(&r, 0, 1, 0) + 10;
    assert_true(fabsf(r.carry[a * (size_t)floats] - r.carry[b * (size_t)floats]) > 1e-4f);
    ek_example one = r;
    ek_example_close(&one);
    free(m.p);
    close_source(&s);
}

/* data.cut 0: one cut behind the sequence, masses from the moment a token leaves the window. */
static void test_over_time(void **state)
{
    ek_data_set set = settings(ENTRIES);
    source s;
    map m;

    (void)state;
    set.cut = 0;
    open_source(&s, &set, EK_CARRIED_NONE, 0);
    ek_example r = made(&s, 0);
    read_map(&m, &s, 0);
    assert_true(ek_example_over_time(r.head) && r.head->whole && r.head->n == LENGTH);
    for (int j = 0; j < m.n; j++)
        near((double)r.mass[ek_example_mass_at(&r, 1, 0, 1) + (size_t)j],
             j >= SINKS && j < m.n - RECENT ? mean_of(&m, 1, 1, j, j + RECENT, m.n) : 0, "mass", j);
    ek_example_close(&r);
    free(m.p);
    close_source(&s);
}

/* The greatest share of a cut's mass that token j of a whole record has. */
static double share_of(const ek_example *r, int l, int h, int j)
{
    double most = 0;

    for (int c = 0; c < r->head->n_cuts; c++) {
        const float *mass = r->mass + ek_example_mass_at(r, l, c, h);
        double sum = 0;

        for (int e = 0; e < r->head->n; e++)
            sum += (double)mass[e];
        most = (double)mass[j] / sum > most ? (double)mass[j] / sum : most;
    }
    return most;
}

/* One head of a sample: its entries are the whole record's, the best third is there for sure, and
 * the weights add up to what could have been drawn. */
static void compare_sample(const ek_example *r, const ek_example *all, int l, int h)
{
    const size_t at = ek_example_at(r, l, h), vector = (size_t)check.dims->head_dim * 4;
    const size_t floats = (size_t)r->head->n_carry;
    const int last = r->head->cut[CUTS - 1] - RECENT;
    double weight = 0;
    int sure = 0;

    for (int e = 0; e < r->head->n; e++) {
        const size_t x = at + (size_t)e;
        const size_t y = ek_example_at(all, l, h) + (size_t)r->pos[x];

        assert_memory_equal(r->k + x * vector, all->k + y * vector, vector);
        assert_memory_equal(r->v + x * vector, all->v + y * vector, vector);
        for (int c = 0; c < CUTS; c++) {
            const size_t p = ek_example_mass_at(r, l, c, h) + (size_t)e;
            const size_t q = ek_example_mass_at(all, l, c, h) + (size_t)r->pos[x];

            assert_memory_equal(&r->mass[p], &all->mass[q], sizeof(float));
            assert_memory_equal(r->carry + p * floats, all->carry + q * floats,
                                floats * sizeof(float));
        }
        weight += exp((double)r->log_weight[x]);
    }
    assert_true(fabs(weight - (last - SINKS)) < 1e-3 * weight);
    for (int j = SINKS; j < last; j++) { /* how many are above it? */
        int above = 0, there = 0;

        for (int i = SINKS; i < last; i++)
            above += share_of(all, l, h, i) > share_of(all, l, h, j);
        for (int e = 0; e < r->head->n; e++)
            there |= r->pos[at + (size_t)e] == j && r->log_weight[at + (size_t)e] == 0;
        if (above >= ENTRIES / 3 - 1)
            continue;
        assert_true(there);
        sure++;
    }
    assert_int_equal(sure, ENTRIES / 3 - 1);
    for (int c = 0; c < CUTS; c++) { /* what counts at a cut is one stretch of slots */
        int32_t first, n;

        ek_example_slots(r, l, h, c, 0, &first, &n);
        for (int e = 0; e < r->head->n; e++)
            assert_int_equal(e >= first && e < first + n,
                             r->pos[at + (size_t)e] >= SINKS &&
                                 r->pos[at + (size_t)e] < r->head->cut[c] - RECENT);
    }
}

static void test_sample(void **state)
{
    const ek_data_set few = settings(ENTRIES), every = settings(0);
    source s, t;

    (void)state;
    open_source(&s, &few, EK_CARRIED_EMA, 0);
    open_source(&t, &every, EK_CARRIED_EMA, 0);
    ek_example r = made(&s, 2), all = made(&t, 2);
    assert_int_equal(r.head->n, ENTRIES);
    assert_false(r.head->whole);
    compare_sample(&r, &all, 0, 0);
    compare_sample(&r, &all, 1, 1);
    /* Heads are drawn apart. */
    assert_memory_not_equal(r.pos, r.pos + ENTRIES, ENTRIES * sizeof *r.pos);
    ek_example_close(&r);
    ek_example_close(&all);
    close_source(&s);
    close_source(&t);
}

/* Made first, made again later, with and without looking at the answers: the same bits. */
static void test_again(void **state)
{
    ek_data_set set = settings(ENTRIES);
    source s, t;

    (void)state;
    set.mix = 0.5;
    set.length = 1000;
    set.cut = 500;
    open_source(&s, &set, EK_CARRIED_FULL, 1);
    open_source(&t, &set, EK_CARRIED_FULL, 0);
    for (int64_t i = 0; i < 2; i++) {
        ek_example a = made(&s, i), b = made(&s, 1 - i), c = made(&s, i), d = made(&t, i);

        assert_int_equal(a.head->retrieval, i); /* the second is retrieval text */
        assert_int_equal(a.head->n_cuts, i == 0 ? CUTS : 1);
        assert_memory_equal(a.head, c.head, (size_t)a.head->bytes);
        assert_memory_equal(a.head, d.head, (size_t)a.head->bytes);
        assert_memory_not_equal(a.head, b.head, 1024); /* negative control */
        ek_example_close(&a);
        ek_example_close(&b);
        ek_example_close(&c);
        ek_example_close(&d);
    }
    assert_int_equal(s.collect.answers[0].texts, 1);
    close_source(&s);
    close_source(&t);
}

/* A head that lies, columns that cannot be: refused; untouched: taken. */
static void test_damage(void **state)
{
    const ek_data_set set = settings(ENTRIES);
    const int32_t bad[] = {-1, 0, 9, 1 << 25, INT32_MAX, INT32_MIN};
    const size_t fields[] = {offsetof(ek_example_head, n),       offsetof(ek_example_head, n_seq),
                             offsetof(ek_example_head, n_cuts),  offsetof(ek_example_head, n_carry),
                             offsetof(ek_example_head, cut) + 4, offsetof(ek_example_head, end) + 4,
                             offsetof(ek_example_head, bytes)};
    ek_example r, x;
    source s;
    ek_err err;

    (void)state;
    open_source(&s, &set, EK_CARRIED_EMA, 0);
    r = made(&s, 0);
    const int64_t size = r.head->bytes;
    char *copy = aligned_alloc(64, (size_t)size);
    assert_non_null(copy);
    memcpy(copy, r.head, (size_t)size);
    ek_check_ok(ek_example_view(&x, check.dims, EK_F32, copy, size, &err), &err);
    ek_check_ok(ek_example_check(&x, &err), &err);
    assert_ptr_equal(x.v - (char *)copy, r.v - (char *)(uintptr_t)r.head);
    for (size_t f = 0; f < EK_COUNT(fields); f++)
        for (size_t i = 0; i < EK_COUNT(bad); i++) {
            memcpy(copy, r.head, sizeof *r.head);
            memcpy(copy + fields[f], &bad[i], sizeof bad[i]);
            assert_int_equal(ek_example_view(&x, check.dims, EK_F32, copy, size, &err), EK_EINPUT);
        }
    memcpy(copy, r.head, sizeof *r.head);
    ((ek_example_head *)(void *)copy)->whole = 1; /* a sample is not */
    assert_int_equal(ek_example_view(&x, check.dims, EK_F32, copy, size, &err), EK_EINPUT);
    memcpy(copy, r.head, sizeof *r.head);
    ((ek_example_head *)(void *)copy)->carried = EK_CARRIED_FULL; /* more than it has columns for */
    assert_int_equal(ek_example_view(&x, check.dims, EK_F32, copy, size, &err), EK_EINPUT);
    memcpy(copy, r.head, sizeof *r.head);
    assert_int_equal(ek_example_view(&x, check.dims, EK_F32, copy, size - 1, &err), EK_EINPUT);
    assert_int_equal(ek_example_view(&x, check.dims, EK_F32, copy, 100, &err), EK_EINPUT);
    ek_check_ok(ek_example_view(&x, check.dims, EK_F32, copy, size, &err), &err);
    float *const numbers[] = {&x.mass[7], &x.carry[9], &x.log_weight[3]};
    for (size_t i = 0; i < EK_COUNT(numbers); i++) {
        const float held = *numbers[i];

        *numbers[i] = NAN;
        assert_int_equal(ek_example_check(&x, &err), EK_EINPUT);
        *numbers[i] = -1;
        assert_int_equal(ek_example_check(&x, &err), EK_EINPUT);
        *numbers[i] = held;
    }
    x.pos[5] = x.pos[4];
    assert_int_equal(ek_example_check(&x, &err), EK_EINPUT);
    free(copy);
    ek_example_close(&r);
    close_source(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_whole), cmocka_unit_test(test_over_time),
        cmocka_unit_test(test_sample), cmocka_unit_test(test_again), cmocka_unit_test(test_damage)};
    ek_err err;

    ek_check_model_open(&check, NULL, EK_F32, 0);
    if (ek_tokenizer_open(&tok, ek_model_gguf(check.model), &err) != EK_OK)
        return 1;
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    ek_tokenizer_close(tok);
    ek_check_model_close(&check);
    return failed;
}
