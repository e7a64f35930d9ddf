/* tests/test_end_to_end.c - the way a user goes, on a tiny model: train a scorer, evaluate it
 * beside rules, read the database, export it, generate under the policy. */
#include <glob.h>
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

#include "core/file.h"
#include "core/json.h"
#include "results/store.h"
#include "tests/check_program.h"
#include "tests/tiny_model.h"

static ek_world world;
static ek_ran ran;
static ek_err err;

#define RUN(...) run((const char *const[]){__VA_ARGS__, NULL})

static void run(const char *const *args)
{
    ek_program(&ran, &world, NULL, args);
}

static void expect(int status)
{
    if (ran.status != status)
        fail_msg("exit %d, expected %d: %s", ran.status, status, ran.err);
}

static void says(const char *what)
{
    if (!strstr(ran.out, what))
        fail_msg("expected \"%s\" in: %s", what, ran.out);
}

static int is_there(const char *name)
{
    return ek_file_exists(ek_world_path(&world, name));
}

static ek_code first_number(void *ctx, int n, const char *const *name, const ek_sql *value,
                            ek_err *e)
{
    (void)n;
    (void)name;
    (void)e;
    *(double *)ctx = value[0].kind == EK_SQL_NULL ? NAN : value[0].r;
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

static char *contents(const char *name, size_t *size)
{
    ek_map map = {0};
    char *copy;

    if (ek_map_open(&map, ek_world_path(&world, name), &err) != EK_OK)
        fail_msg("%s", err.msg);
    *size = map.size;
    copy = malloc(map.size + 1);
    assert_non_null(copy);
    memcpy(copy, map.data, map.size);
    copy[map.size] = '\0';
    ek_map_close(&map);
    return copy;
}

static void a_scorer_is_trained(void **state)
{
    (void)state;
    RUN("train", "train.yaml", "--plan");
    expect(0);
    assert_false(is_there("w/model.safetensors"));
    RUN("train", "train.yaml", "--quiet");
    expect(0);
    assert_true(is_there("w/config.json"));
    assert_true(is_there("w/model.safetensors"));
    assert_int_equal(number("SELECT count(*) FROM run WHERE kind = 'train' AND status = 'done'"),
                     1);
    assert_int_equal(number("SELECT max(step) FROM train_step WHERE split = 'train'"), 30);
    assert_int_equal(number("SELECT count(*) FROM artifact"), 2);
    /* It learns: the last steps lose less than the first. */
    assert_true(number("SELECT avg(loss) FROM train_step WHERE split = 'train' AND step > 24") <
                number("SELECT avg(loss) FROM train_step WHERE split = 'train' AND step <= 4"));
}

/* The same seed in another folder gives the same weights, to the bit. */
static void training_again_gives_the_same_weights(void **state)
{
    char *a, *b, *c;
    size_t n[3];

    (void)state;
    RUN("train", "train.yaml", "--quiet", "-s", "out=w2");
    expect(0);
    RUN("train", "train.yaml", "--quiet", "-s", "out=w3", "-s", "seed=2");
    expect(0);
    a = contents("w/model.safetensors", &n[0]);
    b = contents("w2/model.safetensors", &n[1]);
    c = contents("w3/model.safetensors", &n[2]);
    assert_int_equal(n[0], n[1]);
    assert_memory_equal(a, b, n[0]);
    assert_true(n[0] != n[2] || memcmp(a, c, n[0]) != 0);
    free(a);
    free(b);
    free(c);
}

static void it_is_evaluated_beside_rules(void **state)
{
    (void)state;
    RUN("evaluate", "run.yaml");
    expect(0);
    says("evictkit results compare");
    assert_int_equal(number("SELECT count(*) FROM cell WHERE learned = 1"), 2);
    assert_int_equal(number("SELECT count(*) FROM sample"), 4 * 7);
    assert_int_equal(number("SELECT sum(over_budget) FROM v_kept"), 0);
    assert_true(number("SELECT min(value) FROM v_score WHERE method = 'foresight' AND name = "
                       "'Mean KLD'") > 0);
    /* Weights of another model are refused by name. */
    RUN("evaluate", "run.yaml", "-s", "model=other.gguf");
    assert_true(ek_is_refusal(&ran, 2));
    assert_non_null(strstr(ran.err, "another base model"));
}

static void the_database_is_read(void **state)
{
    (void)state;
    RUN("results", "list", "--db", "out.db");
    expect(0);
    says("evaluate");
    says("train");
    RUN("results", "show", "--db", "out.db");
    expect(0);
    RUN("results", "compare", "--db", "out.db");
    expect(0);
    says("foresight");
    says("oracle");
    says("Mean KLD");
    RUN("results", "query", "SELECT count(*) AS n FROM cell", "--db", "out.db");
    expect(0);
    says("7");
    RUN("results", "export", "csv", "--db", "out.db", "-o", "all.csv");
    expect(0);
    RUN("results", "export", "jsonl", "--db", "out.db", "-o", "all.jsonl");
    expect(0);
    RUN("results", "export", "md", "--db", "out.db", "-o", "all.md");
    expect(0);
    assert_true(is_there("all.csv") && is_there("all.jsonl") && is_there("all.md"));
    RUN("results", "rebuild", "--db", "out.db");
    expect(0);
}

static void text_is_generated_under_it(void **state)
{
    char *first;

    (void)state;
    RUN("generate", "--model", "tiny.gguf", "--max-new", "8", "Where did the river go?");
    expect(0);
    first = strdup(ran.out);
    assert_non_null(first);
    /* Everything kept: the full cache's text, whatever the scorer says. */
    RUN("generate", "--model", "tiny.gguf", "--policy", "foresight", "--weights", "w", "--keep",
        "1.0", "--decode", "grow", "--max-new", "8", "Where did the river go?");
    expect(0);
    assert_string_equal(ran.out, first);
    free(first);
    RUN("generate", "--model", "tiny.gguf", "--policy", "foresight", "--weights", "w", "--keep",
        "0.5", "--max-new", "8", "--save-plan", "plan.safetensors", "Where did the river go?");
    expect(0);
    assert_true(is_there("plan.safetensors"));
}

static void plan_run(char id[33])
{
    RUN("evaluate", "run.yaml", "--plan");
    expect(0);
    assert_int_equal(sscanf(ran.out, "run %32[0-9a-f]", id), 1);
}

/* Other settings beside the same parameters are another run; a changed byte is no run at all. */
static void other_settings_are_another_run(void **state)
{
    char id[33], other[33], *text, *at, *end;
    size_t size;

    (void)state;
    plan_run(id);
    text = contents("w/config.json", &size);
    at = strstr(text, "\"sinks\": 2");
    assert_non_null(at);
    at[strlen("\"sinks\": ")] = '3';
    ek_world_text(&world, "w/config.json", text);
    RUN("evaluate", "run.yaml", "--plan");
    expect(2);
    assert_non_null(strstr(ran.err, "settings were changed"));
    at = strstr(text, "  \"scoring\"");
    end = strchr(at, '\n') + 1;
    memmove(at, end, strlen(end) + 1);
    ek_world_text(&world, "w/config.json", text); /* as if made elsewhere */
    plan_run(other);
    assert_string_not_equal(id, other);
    strstr(text, "\"sinks\": 3")[strlen("\"sinks\": ")] = '2';
    ek_world_text(&world, "w/config.json", text);
    plan_run(other);
    assert_string_equal(id, other);
    free(text);
}

/* Two variants from one reading, each joined to its training; runs of two regimes stay apart. */
static void variants_are_compared(void **state)
{
    static const char columns[] =
        "run,suite,task,variant,length,method,policy,seed,name,unit,value,stderr,n,clusters,"
        "full_value,delta,delta_lo,delta_hi,pct_of_full,mark,cell,learned,query_aware,keep,keep_of,"
        "entries,bytes,keep_measured,ci_lo,ci_hi,p\n";
    static const char methods[] =
        "methods=[recency, oracle, {name: foresight, label: a, weights: s/loss.kind-listwise}, "
        "{name: foresight, label: b, weights: s/loss.kind-regress}]";
    char here[400], ablation[500];
    size_t size;

    (void)state;
    assert_non_null(getcwd(here, sizeof here));
    snprintf(ablation, sizeof ablation, "%s/results/queries/ablation.sql", here);
    RUN("train", "train.yaml", "--quiet", "-s", "results=s.db", "-s", "out=s", "-s", "keep=8",
        "--sweep", "loss.kind=listwise,regress");
    expect(0);
    says("2 scorers take their steps from one reading");
    says("recall of the 8 best");
    RUN("evaluate", "run.yaml", "-s", "results=s.db", "-s", methods);
    expect(0);
    RUN("results", "query", ablation, "--db", "s.db");
    expect(0);
    says("listwise");
    says("regress");
    says("recency"); /* the best rule beside them */
    RUN("results", "export", "csv", "--db", "s.db", "-o", "tables/s.csv");
    expect(0);
    char *csv = contents("tables/s.csv", &size);
    assert_memory_equal(csv, columns, strlen(columns));
    assert_non_null(strstr(csv, ",99% KLD,"));
    free(csv);
    RUN("results", "export", "csv", "--metric", "Mean KLD", "--db", "s.db", "-o", "tables/one.csv");
    expect(0);
    csv = contents("tables/one.csv", &size);
    assert_non_null(strstr(csv, ",Mean KLD,"));
    assert_null(strstr(csv, ",99% KLD,"));
    free(csv);
    RUN("results", "export", "csv", "--metric", "KLD", "--db", "s.db", "-o", "tables/none.csv");
    expect(2);
    assert_false(is_there("tables/none.csv"));
    for (int kind = 0; kind < 3; kind++) {
        static const char *const flag[] = {"--measured", "--ablation", "--curves"};

        RUN("results", "plot", flag[kind], "--db", "s.db", "-o", "s.png");
        if (ran.status != 0 && strstr(ran.err, "plot needs") == NULL)
            fail_msg("plot %s: %s", flag[kind], ran.err);
        assert_int_equal(ran.status == 0, is_there("s.png") && is_there("s.svg"));
    }
    RUN("results", "plot", "--method", "nonsense", "--db", "s.db", "-o", "no.png");
    assert_true(ran.status == 2 || strstr(ran.err, "plot needs") != NULL);
    assert_false(is_there("no.png"));
    RUN("results", "plot", "--task", "nonsense", "--db", "s.db", "-o", "no.png");
    assert_true(ran.status == 2 || strstr(ran.err, "plot needs") != NULL);
    assert_false(is_there("no.png"));
    /* The same at a held budget: a second question, which no table or figure mixes with the first.
     */
    RUN("evaluate", "run.yaml", "-s", "results=s.db", "-s", "decode=hold", "-s",
        "methods=[recency, oracle]");
    expect(0);
    RUN("results", "query", "SELECT group_concat(id, ' ') FROM run WHERE kind = 'evaluate'", "--db",
        "s.db");
    expect(0);
    char *first = strpbrk(strchr(ran.out, '\n') + 1, "0123456789abcdef"), one[33], other[33];
    snprintf(one, sizeof one, "%.32s", first);
    snprintf(other, sizeof other, "%.32s", first + 33);
    RUN("results", "export", "csv", one, other, "--db", "s.db", "-o", "tables/both.csv");
    expect(2);
    assert_non_null(strstr(ran.err, "differ in when they evict"));
    assert_false(is_there("tables/both.csv"));
    RUN("results", "plot", one, other, "--db", "s.db", "-o", "both.png");
    expect(2);
    RUN("results", "compare", one, other, "--force", "--db", "s.db");
    expect(2);
    RUN("results", "compare", other, "--db", "s.db"); /* by itself: negative control */
    expect(0);
}

/* Every query that ships runs on a database of training and evaluation. */
static void ready_queries_run(void **state)
{
    glob_t files;

    (void)state;
    assert_int_equal(glob("results/queries/*.sql", 0, NULL, &files), 0);
    assert_true(files.gl_pathc >= 11);
    for (size_t i = 0; i < files.gl_pathc; i++) {
        char path[4096]; /* PATH_MAX */

        assert_non_null(realpath(files.gl_pathv[i], path) ? path : NULL);
        RUN("results", "query", path, "--db", "s.db");
        if (ran.status != 0)
            fail_msg("%s: %s", files.gl_pathv[i], ran.err);
    }
    globfree(&files);
}

static int set_up(void **state)
{
    (void)state;
    ek_world_open(&world, "end_to_end");
    ek_world_text(&world, "train.yaml",
                  "model: tiny.gguf\nout: w\nresults: out.db\nseed: 1\nmethod: foresight\n"
                  "sinks: 2\nrecent: 16\nscorer: {kind: mlp, age: input, hidden: 8}\n"
                  "loss: {kind: listwise}\n"
                  "data: {texts: text, mix: 0, sequences: 6, valid: 1, length: 256, cut: 128, "
                  "horizon: 64, entries: 64}\ntrace: memory\nsteps: 30\nbatch: 2\n"
                  "optimiser: {lr: 5.0e-3, warmup: 3}\n");
    ek_world_text(&world, "run.yaml",
                  "model: tiny.gguf\nresults: out.db\nseed: 3\ndecode: grow\n"
                  "methods: [recency, oracle, {name: foresight, weights: w}]\n"
                  "budgets: [0.5, 0.25]\n"
                  "tasks:\n  - {name: fidelity, text: text, prompt: 160, continuation: 24, "
                  "samples: 4}\n");
    {
        ek_tiny other = {.own_head = 1, .head_gain = 0.1, .n_vocab = 262, .seed = 6};

        if (ek_tiny_model(ek_world_path(&world, "other.gguf"), &other, &err) != EK_OK)
            fail_msg("%s", err.msg);
    }
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
        cmocka_unit_test(a_scorer_is_trained),
        cmocka_unit_test(training_again_gives_the_same_weights),
        cmocka_unit_test(it_is_evaluated_beside_rules),
        cmocka_unit_test(the_database_is_read),
        cmocka_unit_test(text_is_generated_under_it),
        cmocka_unit_test(other_settings_are_another_run),
        cmocka_unit_test(variants_are_compared),
        cmocka_unit_test(ready_queries_run),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
