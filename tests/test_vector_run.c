/* tests/test_vector_run.c - lost values the way a user goes, on a tiny model: fit maps, evaluate
 * methods with and without them, generate under one. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "core/file.h"
#include "core/safetensors.h"
#include "infer/vector.h"
#include "results/store.h"
#include "tests/check_program.h"
#include "tests/tiny_model.h"

enum { PROMPT = 160, HEADS = 4 }; /* KV heads of all layers of the tiny model */

static ek_world world;
static ek_ran ran;
static ek_err err;

#define RUN(...) ek_program(&ran, &world, NULL, (const char *const[]){__VA_ARGS__, NULL})

static void expect(int status)
{
    if (ran.status != status)
        fail_msg("exit %d, expected %d: %s", ran.status, status, ran.err);
}

static void refused(const char *says)
{
    assert_true(ek_is_refusal(&ran, 2));
    if (!strstr(ran.err, says))
        fail_msg("expected \"%s\" in: %s", says, ran.err);
}

static ek_code first_number(void *ctx, int n, const char *const *name, const ek_sql *value,
                            ek_err *e)
{
    (void)n;
    (void)name;
    (void)e;
    *(double *)ctx = value[0].kind == EK_SQL_NULL  ? NAN
                     : value[0].kind == EK_SQL_INT ? (double)value[0].i
                                                   : value[0].r;
    return EK_OK;
}

static double number(const char *sql)
{
    ek_store *store = NULL;
    double x = NAN;

    if (ek_store_open(&store, ek_world_path(&world, "out.db"), EK_STORE_READ, &err) != EK_OK ||
        ek_store_query(store, sql, NULL, 0, first_number, &x, &err) != EK_OK)
        fail_msg("%s", err.msg);
    ek_store_close(store);
    return x;
}

/* Bytes of a sample's cache, mean over its steps. */
static double bytes_of(const char *method, const char *keep)
{
    char sql[300];

    snprintf(sql, sizeof sql,
             "SELECT avg(s.kv_bytes_mean) FROM sample s JOIN cell c ON c.id = s.cell WHERE "
             "c.method = '%s' AND c.keep = %s",
             method, keep);
    return number(sql);
}

static void maps_are_fitted_and_used(void **state)
{
    static const struct {
        const char *keep;
        int32_t entries;
    } budgets[] = {{"0.5", 80}, {"0.25", 40}};
    const ek_maps maps = {0};
    const ek_method m = {.maps = &maps}; /* protects nothing, as knorm and keydiff */

    static const char runs[] = "SELECT count(*) FROM run WHERE kind = 'evaluate'";
    char old[256];

    (void)state;
    snprintf(old, sizeof old, "%s", ek_world_path(&world, "w_old"));
    RUN("train", "maps.yaml", "--quiet");
    expect(0);
    RUN("evaluate", "run.yaml");
    expect(0);
    assert_int_equal(number("SELECT count(DISTINCT method) FROM cell"), 6);
    /* What has fitted maps is not training-free, whatever its scorer. */
    assert_int_equal(number("SELECT count(DISTINCT method) FROM cell WHERE learned = 1"), 3);
    assert_int_equal(number("SELECT sum(over_budget) FROM v_kept"), 0);
    for (size_t i = 0; i < EK_COUNT(budgets); i++) {
        const int32_t a = ek_vector_a(&m, PROMPT, budgets[i].entries);
        const double host = bytes_of("keydiff", budgets[i].keep);

        assert_true(a > 0 && host > 0);
        assert_true(bytes_of("keydiff+vector", budgets[i].keep) - host == 4.0 * a * HEADS);
        assert_true(bytes_of("short of values", budgets[i].keep) -
                        bytes_of("knorm", budgets[i].keep) ==
                    4.0 * a * HEADS);
    }
    /* An entry without value counts half. */
    assert_true(number("SELECT max(abs(s.kept_max - s.kept_asked)) FROM sample s JOIN cell c ON "
                       "c.id = s.cell WHERE c.method = 'keydiff+vector'") == 0);
    /* They are not the host, and not the full cache. */
    assert_true(number("SELECT count(DISTINCT value) FROM sample_value WHERE name = 'Mean KLD'") >
                10);
    /* Other maps in the same folder are another run. */
    assert_int_equal(number(runs), 1);
    RUN("evaluate", "run.yaml");
    assert_int_equal(number(runs), 1);
    assert_int_equal(rename(ek_world_path(&world, "w"), old), 0);
    RUN("train", "maps.yaml", "--quiet", "-s", "vector.tokens=1536");
    expect(0);
    RUN("evaluate", "run.yaml");
    expect(0);
    assert_int_equal(number(runs), 2);
    RUN("train", "maps.yaml", "--quiet", "-s", "out=others", "-s", "vector.mode=layer");
    expect(0);
}

static void text_is_generated_under_it(void **state)
{
    ek_st *st;

    (void)state;
    RUN("generate", "--model", "tiny.gguf", "--policy", "keydiff:rest=vector,maps=w", "--keep",
        "0.5", "--decode", "grow", "--max-new", "8", "--save-plan", "plan.safetensors",
        "Where did the river go?");
    expect(0);
    assert_non_null(strstr(ran.err, "without values"));
    if (ek_st_open(&st, ek_world_path(&world, "plan.safetensors"), &err) != EK_OK)
        fail_msg("%s", err.msg);
    assert_non_null(ek_st_find(st, "mapped.count"));
    assert_true(ek_st_find(st, "mapped.pos")->bytes > 0);
    ek_st_close(st);
    /* Joint maps, where a layer keeps one set. */
    RUN("generate", "--model", "tiny.gguf", "--policy",
        "keydiff:rest=vector,maps=others,granularity=layer", "--keep", "0.5", "--decode", "grow",
        "--max-new", "8", "Where did the river go?");
    expect(0);
    assert_non_null(strstr(ran.err, "without values"));
}

static void what_does_not_go_together_is_refused(void **state)
{
    (void)state;
    RUN("generate", "--model", "tiny.gguf", "--policy", "keydiff:rest=vector,maps=others", "--keep",
        "0.5", "--decode", "grow", "hi");
    refused("granularity: layer");
    RUN("generate", "--model", "tiny.gguf", "--policy", "keydiff:rest=vector,maps=w", "--keep",
        "0.5", "hi");
    refused("decode: grow");
    RUN("generate", "--model", "other.gguf", "--policy", "keydiff:rest=vector,maps=w", "--keep",
        "0.5", "--decode", "grow", "hi");
    refused("another");
    RUN("evaluate", "run.yaml", "-s", "decode=hold");
    refused("rest: vector");
    RUN("evaluate", "run.yaml", "-s", "model=other.gguf");
    refused("another");
}

static int set_up(void **state)
{
    ek_tiny other = {.own_head = 1, .head_gain = 0.1, .n_vocab = 262, .seed = 6};

    (void)state;
    ek_world_open(&world, "vector_run");
    ek_world_text(&world, "maps.yaml",
                  "model: tiny.gguf\nout: w\nresults: out.db\nseed: 1\nmethod: vector\n"
                  "vector: {tokens: 2048, held_out: 0.2}\ndata: {texts: text, length: 256}\n");
    ek_world_text(&world, "run.yaml",
                  "model: tiny.gguf\nresults: out.db\nseed: 3\ndecode: grow\n"
                  "methods: [keydiff, knorm, {name: keydiff, rest: vector, maps: w}, "
                  "{name: knorm, label: short of values, rest: vector, maps: w, select: relative}, "
                  "{name: inertiakv, rest: vector, maps: w}]\n"
                  "budgets: [0.5, 0.25]\n"
                  "tasks:\n  - {name: fidelity, text: text, prompt: 160, continuation: 24, "
                  "samples: 3}\n");
    if (ek_tiny_model(ek_world_path(&world, "other.gguf"), &other, &err) != EK_OK)
        fail_msg("%s", err.msg);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    ek_world_close(&world);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(maps_are_fitted_and_used),
        cmocka_unit_test(text_is_generated_under_it),
        cmocka_unit_test(what_does_not_go_together_is_refused),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
