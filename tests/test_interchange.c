/* tests/test_interchange.c - scorers of others are read, and ours by others.
 *
 * tests/interchange.py writes and scores folders with the safetensors library and numpy.  Folders
 * that it wrote lie in tests/data/interchange; it runs itself too where $EVICTKIT_PYTHON, or
 * python3, has the two packages. */
#include "core/file.h"
#include "core/rng.h"
#include "core/safetensors.h"
#include "infer/weights.h"
#include "scorers/age.h"
#include "scorers/carried.h"
#include "tests/check_folder.h"
#include "train/export.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { LAYERS = 2, HEADS = 2, GROUP = 3, DIM = 8, MOST = 150, FLOATS = 4 * GROUP + 1 };
enum { ALL = LAYERS * HEADS };

static const ek_dims dims = {.n_layers = LAYERS, .n_heads = HEADS, .group = GROUP, .head_dim = DIM};
static const char *const kinds[] = {"mlp", "linear", "recurrent"};
static ek_device *dev;
static char folder[] = "/tmp/evictkit-interchange-XXXXXX";
static char python[256]; /* empty: there is none */

/* What vectors.safetensors holds. */
typedef struct vectors {
    int n, floats;
    int32_t next_pos, pos[MOST];
    float k[ALL * MOST * DIM], v[ALL * MOST * DIM], carry[ALL * MOST * FLOATS];
    float r[ALL * MOST], p[ALL * MOST];
} vectors;

static void read_vectors(const char *dir, vectors *x)
{
    char path[512];
    ek_err err;
    ek_st *st;

    snprintf(path, sizeof path, "%s/vectors.safetensors", dir);
    ek_check_ok(ek_st_open(&st, path, &err), &err);
    const ek_st_tensor *pos = ek_st_find(st, "pos"), *next = ek_st_find(st, "next_pos");
    const ek_st_tensor *carry = ek_st_find(st, "carry");
    assert_true(pos != NULL && pos->type == EK_ST_I32 && pos->dim[0] <= MOST);
    assert_true(next != NULL && next->type == EK_ST_I32);
    x->n = (int)pos->dim[0];
    x->floats = carry != NULL ? (int)carry->dim[3] : 0;
    assert_true(x->floats <= FLOATS);
    memcpy(x->pos, pos->data, pos->bytes);
    memcpy(&x->next_pos, next->data, sizeof x->next_pos);
    int64_t shape[4] = {LAYERS, HEADS, x->n, DIM};
    ek_check_ok(ek_st_read_f32(st, "k", 4, shape, x->k, &err), &err);
    ek_check_ok(ek_st_read_f32(st, "v", 4, shape, x->v, &err), &err);
    ek_check_ok(ek_st_read_f32(st, "r", 3, shape, x->r, &err), &err);
    ek_check_ok(ek_st_read_f32(st, "p", 3, shape, x->p, &err), &err);
    shape[3] = x->floats;
    if (carry != NULL)
        ek_check_ok(ek_st_read_f32(st, "carry", 4, shape, x->carry, &err), &err);
    ek_st_close(st);
}

static void write_vectors(const char *dir, const vectors *x)
{
    const size_t n = (size_t)x->n;
    ek_st_tensor t[7] = {{.name = "k", .n_dims = 4, .data = x->k, .dim[3] = DIM},
                         {.name = "v", .n_dims = 4, .data = x->v, .dim[3] = DIM},
                         {.name = "r", .n_dims = 3, .data = x->r},
                         {.name = "p", .n_dims = 3, .data = x->p},
                         {.name = "carry", .n_dims = 4, .data = x->carry, .dim[3] = x->floats}};
    const int last = x->floats > 0 ? 5 : 4;
    char path[512];
    ek_err err;

    for (int i = 0; i < last; i++) {
        t[i].type = EK_ST_F32;
        t[i].dim[0] = LAYERS;
        t[i].dim[1] = HEADS;
        t[i].dim[2] = x->n;
        t[i].bytes = ALL * n * (t[i].n_dims == 4 ? (size_t)t[i].dim[3] : 1) * sizeof(float);
    }
    t[last] = (ek_st_tensor){.name = "pos",
                             .type = EK_ST_I32,
                             .n_dims = 1,
                             .dim = {x->n},
                             .data = x->pos,
                             .bytes = n * sizeof *x->pos};
    t[last + 1] = (ek_st_tensor){.name = "next_pos",
                                 .type = EK_ST_I32,
                                 .n_dims = 1,
                                 .dim = {1},
                                 .data = &x->next_pos,
                                 .bytes = sizeof x->next_pos};
    snprintf(path, sizeof path, "%s/vectors.safetensors", dir);
    ek_check_ok(ek_st_write(path, t, last + 2, NULL, 0, &err), &err);
}

/* r and p of all layers and heads by the program. */
static void score(const ek_scorer *s, const vectors *x, float *r, float *p)
{
    const ek_learner *l = s->cls->learner;
    float *act = malloc(l->scratch(s, x->n) * sizeof *act);
    int32_t pos[HEADS * MOST], first[HEADS], n[HEADS];

    for (int h = 0; h < HEADS; h++) {
        first[h] = h * x->n;
        n[h] = x->n;
        memcpy(pos + first[h], x->pos, (size_t)x->n * sizeof *pos);
    }
    for (int layer = 0; layer < LAYERS; layer++) {
        const size_t at = (size_t)layer * HEADS * (size_t)x->n;
        const ek_view view = {.layer = layer,
                              .n_heads = HEADS,
                              .group = GROUP,
                              .head_dim = DIM,
                              .n_carry = x->floats,
                              .dtype = EK_F32,
                              .next_pos = x->next_pos,
                              .first = first,
                              .n = n,
                              .pos = pos,
                              .k = x->k + at * DIM,
                              .v = x->v + at * DIM,
                              .carry = x->floats > 0 ? x->carry + at * (size_t)x->floats : NULL};

        for (int h = 0; h < HEADS; h++) {
            l->forward(s, &view, h, act, r + at + first[h]);
            ek_age_add(s, &view, h, r + at + first[h], p + at + first[h]);
        }
    }
    free(act);
}

/* Greatest difference between the scores in a folder and those of the program's own reading. */
static double error_of(const char *dir, const char *kind)
{
    static const ek_weights_need need = {.dims = &dims,
                                         .model_hash = "interchange",
                                         .tokenizer_hash = "interchange",
                                         .sinks = -1,
                                         .recent = -1};
    static vectors x;
    static float r[ALL * MOST], p[ALL * MOST];
    double worst = 0;
    ek_weights *w;
    ek_err err;

    ek_check_ok(ek_weights_open(&w, dir, &need, dev, &err), &err);
    assert_string_equal(ek_weights_scorer(w)->cls->name, kind);
    assert_int_equal(strlen(ek_weights_hash(w)), 32);
    read_vectors(dir, &x);
    score(ek_weights_scorer(w), &x, r, p);
    for (int i = 0; i < ALL * x.n; i++) {
        worst = fmax(worst, fabs((double)r[i] - (double)x.r[i]) / fmax(1, fabs((double)x.r[i])));
        worst = fmax(worst, fabs((double)p[i] - (double)x.p[i]) / fmax(1, fabs((double)x.p[i])));
    }
    ek_weights_close(w);
    return worst;
}

static int run_python(const char *words)
{
    char line[1024];

    snprintf(line, sizeof line, "'%s' %s", python, words);
    return system(line);
}

/* Folders written by the script long ago. */
static void test_stored(void **state)
{
    (void)state;
    for (size_t i = 0; i < EK_COUNT(kinds); i++) {
        char dir[128];

        snprintf(dir, sizeof dir, "tests/data/interchange/%s", kinds[i]);
        const double wrong = error_of(dir, kinds[i]);
        print_message("%s: %.2g\n", kinds[i], wrong);
        assert_true(wrong <= 1e-5);
    }
}

/* Folders written by the script now, from other numbers. */
static void test_written_now(void **state)
{
    char words[256];

    (void)state;
    if (python[0] == '\0')
        skip();
    snprintf(words, sizeof words, "tests/interchange.py write %s/theirs 2", folder);
    assert_int_equal(run_python(words), 0);
    for (size_t i = 0; i < EK_COUNT(kinds); i++) {
        char dir[128];

        snprintf(dir, sizeof dir, "%s/theirs/%s", folder, kinds[i]);
        assert_true(error_of(dir, kinds[i]) <= 1e-5);
    }
}

static void random_numbers(float *x, size_t n, uint64_t seed)
{
    for (size_t i = 0; i < n; i++)
        x[i] = 0.7f * (float)ek_rng_normal(seed, 3, i);
}

/* A folder of ours, with our scores. */
static void write_ours(const char *dir, ek_scorer *s, vectors *x)
{
    const size_t size = ek_params_size(s);
    float *params = malloc(size * sizeof *params);
    const ek_scorer_export out = {.scorer = s,
                                  .method = "foresight",
                                  .loss = "listwise",
                                  .model = "interchange",
                                  .tokenizer = "interchange",
                                  .data = "",
                                  .target = "",
                                  .settings = "",
                                  .loss_last = NAN};
    ek_err err;

    ek_check_ok(ek_scorer_check(s, &err), &err);
    random_numbers(params, size, 5);
    s->params = params;
    ek_check_ok(ek_scorer_write(dir, &out, &err), &err);
    x->n = MOST;
    x->floats = ek_carried_floats(s->set.carried, GROUP);
    x->next_pos = MOST + 1;
    for (int i = 0; i < MOST; i++)
        x->pos[i] = i;
    random_numbers(x->k, EK_COUNT(x->k), 6);
    random_numbers(x->v, EK_COUNT(x->v), 7);
    for (size_t i = 0; i < EK_COUNT(x->carry); i++)
        x->carry[i] = (float)ek_rng_unit(8, 8, i);
    score(s, x, x->r, x->p);
    write_vectors(dir, x);
    free(params);
}

/* The script recomputes our scores, and notices one that is off. */
static void test_read(void **state)
{
    static const ek_scorer_set sets[] = {
        {.hidden = 5, .age = EK_AGE_INPUT, .carried = EK_CARRIED_FULL, .recent = 64},
        {.age = EK_AGE_EXP, .rms = true, .carried = EK_CARRIED_EMA, .recent = 64},
        {.age = EK_AGE_POWER, .recent = 64, .delay = 40, .norm = true, .skip = true}};
    static vectors x;

    (void)state;
    if (python[0] == '\0')
        skip();
    for (size_t i = 0; i < EK_COUNT(sets); i++) {
        ek_scorer s = {.cls = ek_learned_find(kinds[i]), .dev = dev, .dims = dims, .set = sets[i]};
        char dir[128], words[256];

        snprintf(dir, sizeof dir, "%s/ours-%s", folder, kinds[i]);
        write_ours(dir, &s, &x);
        snprintf(words, sizeof words, "tests/interchange.py check %s", dir);
        assert_int_equal(run_python(words), 0);
        x.r[MOST + 3] += 1e-3f * fmaxf(1, fabsf(x.r[MOST + 3]));
        write_vectors(dir, &x);
        assert_int_not_equal(run_python(words), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_stored),
                                       cmocka_unit_test(test_written_now),
                                       cmocka_unit_test(test_read)};
    const char *named = getenv("EVICTKIT_PYTHON");
    ek_err err;

    snprintf(python, sizeof python, "%s", named != NULL ? named : "python3");
    if (run_python("-c 'import numpy, safetensors' 2>/dev/null") != 0) {
        fprintf(stderr, "%s has no numpy and safetensors: only what lies in tests/data is read\n",
                python);
        if (named != NULL)
            return 1;
        python[0] = '\0';
    }
    if (mkdtemp(folder) == NULL || ek_device_open(&dev, "cpu", NULL, &err) != EK_OK)
        return 1;
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    char line[128];
    snprintf(line, sizeof line, "rm -rf %s", folder);
    const int kept = system(line);
    ek_device_close(dev);
    return failed + (kept != 0);
}
