/* tests/test_evaluate.c - evictkit evaluate through the real executable: every sample is stored,
 * budgets are kept, and nothing but the clock differs between two runs of the same config, however
 * they were interrupted. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "core/json.h"
#include "results/store.h"
#include "scorers/method.h"
#include "tests/check_program.h"

enum { PROMPT = 160, NEXT = 24, WINDOWS = 3, KEYS = 3 };
enum { FEW = 4 }; /* methods of few.yaml, for tests that run many times */
static const char few_methods[] = "recency, h2o, inertiakv, oracle";

static ek_world world;
static ek_ran ran;
static ek_err err;

static void ok(ek_code code)
{
    if (code != EK_OK)
        fail_msg("%s", err.msg);
}

static void expect(int status)
{
    if (ran.status != status)
        fail_msg("exit %d, expected %d: %s", ran.status, status, ran.err);
}

/* ---- configs ---- */

static int learned(const ek_method *m)
{
    return m->measure.signal->learner != NULL;
}

/* Methods that need no training, without the full cache. */
static int method_count(void)
{
    int n = 0;

    for (int i = 0; ek_methods[i]; i++)
        n += !learned(ek_methods[i]) && strcmp(ek_methods[i]->name, "full") != 0;
    return n;
}

/* Methods (NULL: all of them) at some budgets, on text and on hidden keys. */
static void write_config(const char *name, const char *methods, const char *budgets)
{
    ek_text t = {0};

    ek_text_add(&t, "model: %s\nresults: out.db\nseed: 3\ndecode: grow\nmethods: [%s",
                ek_world_path(&world, "tiny.gguf"), methods ? methods : "full");
    for (int i = 0; !methods && ek_methods[i]; i++)
        if (!learned(ek_methods[i]) && strcmp(ek_methods[i]->name, "full") != 0)
            ek_text_add(&t, ", %s", ek_methods[i]->name);
    ek_text_add(&t,
                "]\nbudgets: [%s]\ntasks:\n"
                "  - {name: fidelity, text: %s, prompt: %d, continuation: %d, samples: %d}\n"
                "  - {name: passkey, text: %s, lengths: [420], depths: [50], repeats: %d, "
                "max_new_tokens: 6}\n",
                budgets, ek_world_path(&world, "text"), PROMPT, NEXT, WINDOWS,
                ek_world_path(&world, "text"), KEYS);
    assert_false(t.failed);
    ek_world_text(&world, name, t.data);
    ek_text_clear(&t);
}

/* A folder to run in, and the config's path as seen from it. */
static ek_run_how in_folder(const char *folder)
{
    char name[64];

    snprintf(name, sizeof name, "%s/here", folder);
    ek_world_text(&world, name, "");
    return (ek_run_how){.folder = folder, .db = "out.db"};
}

static void evaluate(const ek_run_how *how, const char *config, const char *a, const char *b)
{
    const char *args[] = {"evaluate", config, a, a ? b : NULL, NULL};

    ek_program(&ran, &world, how, args);
}

/* ---- the database ---- */

static ek_store *open_db(const char *folder)
{
    char name[64];
    ek_store *store = NULL;

    snprintf(name, sizeof name, "%s/out.db", folder);
    ok(ek_store_open(&store, ek_world_path(&world, name), EK_STORE_READ, &err));
    return store;
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

/* The first column of the last row; NaN if there is none. */
static double number(const char *folder, const char *sql)
{
    ek_store *store = open_db(folder);
    double x = NAN;

    ok(ek_store_query(store, sql, NULL, 0, first_number, &x, &err));
    ek_store_close(store);
    return x;
}

/* Clock readings, and the machine's name where threads differ. */
static int is_time(const char *column)
{
    const size_t n = strlen(column);

    return strcmp(column, "created") == 0 || strcmp(column, "finished") == 0 ||
           strcmp(column, "device") == 0 || (n > 3 && strcmp(column + n - 3, "_ns") == 0);
}

static ek_code dump_row(void *ctx, int n, const char *const *name, const ek_sql *value, ek_err *e)
{
    ek_text *t = ctx;

    (void)e;
    for (int i = 0; i < n; i++) {
        if (is_time(name[i]))
            continue;
        if (value[i].kind == EK_SQL_TEXT)
            ek_text_add(t, "%s=%s ", name[i], value[i].text);
        else if (value[i].kind != EK_SQL_NULL)
            ek_text_add(t, "%s=%.17g ", name[i], value[i].r);
    }
    ek_text_add(t, "\n");
    return EK_OK;
}

/* Everything a run left behind, as text. */
static char *dump(const char *folder)
{
    static const char *const tables[] = {
        "SELECT * FROM run",
        "SELECT * FROM run_param ORDER BY run, key",
        "SELECT * FROM cell ORDER BY id",
        "SELECT * FROM sample ORDER BY cell, doc_id, rep",
        "SELECT * FROM sample_value ORDER BY sample, name",
        "SELECT * FROM metric WHERE name NOT LIKE '%!_ns' ESCAPE '!' ORDER BY cell, name"};
    ek_store *store = open_db(folder);
    ek_text t = {0};

    for (size_t i = 0; i < EK_COUNT(tables); i++)
        ok(ek_store_query(store, tables[i], NULL, 0, dump_row, &t, &err));
    ek_store_close(store);
    assert_false(t.failed);
    return t.data;
}

static int same_tables(const char *a, const char *b)
{
    char *x = dump(a), *y = dump(b);
    const int same = strcmp(x, y) == 0;

    assert_true(strlen(x) > 10000);
    free(x);
    free(y);
    return same;
}

/* ---- laws ---- */

static int cells(int n_methods, int n_budgets)
{
    return 1 + n_methods * n_budgets;
}

static void every_sample_is_stored_and_every_budget_kept(void **state)
{
    const char *db = "whole";

    (void)state;
    expect(0);
    assert_non_null(strstr(ran.out, "is complete"));
    assert_int_equal(number(db, "SELECT count(*) FROM sample"),
                     cells(method_count(), 2) * (WINDOWS + KEYS));
    assert_int_equal(number(db, "SELECT count(*) FROM cell WHERE status != 'done'"), 0);
    assert_int_equal(number(db, "SELECT count(*) FROM run WHERE status = 'done'"), 1);
    assert_int_equal(number(db, "SELECT sum(over_budget) FROM v_kept"), 0);
    /* Not less than asked either, in every head; one more where the cut comes a step later. */
    assert_int_equal(number(db, "SELECT count(*) FROM sample s JOIN cell c ON c.id = s.cell WHERE "
                                "c.keep = 0.25 AND c.task = 'fidelity' AND s.kept_asked IN (40, "
                                "41) AND s.kept_min = s.kept_asked AND s.kept_max = s.kept_asked"),
                     WINDOWS * method_count());
    /* decode: grow: at every step every method holds the same number of entries. */
    assert_int_equal(number(db, "SELECT count(DISTINCT s.kept_mean) FROM sample s JOIN cell c ON "
                                "c.id = s.cell WHERE c.task = 'fidelity'"),
                     3);
    assert_int_equal(number(db, "SELECT count(*) FROM cell c JOIN sample s ON s.cell = c.id WHERE "
                                "c.method = 'full' AND c.task = 'fidelity' AND s.kept_min = 160"),
                     WINDOWS);
}

static void the_full_cache_is_cell_0_and_its_own_base(void **state)
{
    const char *db = "whole";

    (void)state;
    assert_int_equal(number(db, "SELECT count(*) FROM cell WHERE method = 'full' AND id = (SELECT "
                                "min(id) FROM cell d WHERE d.task = cell.task)"),
                     2);
    assert_int_equal(number(db, "SELECT count(*) FROM cell c JOIN sample s ON s.cell = c.id JOIN "
                                "sample_value v ON v.sample = s.id WHERE c.method = 'full' AND "
                                "v.name = 'Mean KLD' AND v.value = 0"),
                     WINDOWS);
    /* The negative control: eviction is seen, in every other cell. */
    assert_int_equal(number(db, "SELECT count(*) FROM cell c JOIN sample s ON s.cell = c.id JOIN "
                                "sample_value v ON v.sample = s.id WHERE c.method != 'full' AND "
                                "v.name = 'Mean KLD' AND v.value > 0"),
                     WINDOWS * 2 * method_count());
}

static void the_oracle_is_the_ceiling(void **state)
{
    const char *db = "whole";

    (void)state;
    for (int i = 0; i < 2; i++) {
        char sql[700];
        const double keep = i ? 0.25 : 0.5;

        snprintf(sql, sizeof sql,
                 "SELECT min(v.value) FROM cell c JOIN sample s ON s.cell = c.id JOIN sample_value "
                 "v ON v.sample = s.id WHERE c.method = 'oracle' AND c.keep = %g AND v.name = "
                 "'recall'",
                 keep);
        assert_true(number(db, sql) == 1.0);
        snprintf(sql, sizeof sql,
                 "SELECT max(v.value) FROM cell c JOIN sample s ON s.cell = c.id JOIN sample_value "
                 "v ON v.sample = s.id WHERE c.method != 'oracle' AND c.keep = %g AND v.name = "
                 "'recall'",
                 keep);
        assert_true(number(db, sql) < 1.0);
        snprintf(sql, sizeof sql,
                 "SELECT count(*) FROM cell c JOIN sample s ON s.cell = c.id JOIN sample_value v "
                 "ON v.sample = s.id AND v.name = 'FMM128' JOIN cell o ON o.method = 'oracle' AND "
                 "o.keep = c.keep AND o.task = c.task JOIN sample t ON t.cell = o.id AND t.doc_id "
                 "= s.doc_id JOIN sample_value w ON w.sample = t.id AND w.name = v.name WHERE "
                 "c.keep = %g AND c.method != 'oracle' AND v.value <= w.value",
                 keep);
        assert_int_equal(number(db, sql), 0);
    }
}

static void keep_1_is_the_full_cache_to_the_bit(void **state)
{
    const ek_run_how how = in_folder("keep1");

    (void)state;
    write_config("keep1.yaml", NULL, "1.0, {entries: 4000}");
    evaluate(&how, "../keep1.yaml", NULL, NULL);
    expect(0);
    assert_int_equal(
        number("keep1", "SELECT count(*) FROM cell c JOIN sample s ON s.cell = c.id JOIN sample t "
                        "ON t.cell = c.base AND t.doc_id = s.doc_id WHERE c.method != 'full'"),
        2 * method_count() * (WINDOWS + KEYS));
    assert_int_equal(
        number("keep1",
               "SELECT count(*) FROM cell c JOIN sample s ON s.cell = c.id JOIN sample t ON t.cell "
               "= c.base AND t.doc_id = s.doc_id WHERE s.prediction IS NOT t.prediction OR s.n_gen "
               "IS NOT t.n_gen OR s.score IS NOT t.score"),
        0);
    assert_int_equal(
        number("keep1",
               "SELECT count(*) FROM cell c JOIN sample s ON s.cell = c.id JOIN sample_value v ON "
               "v.sample = s.id JOIN sample t ON t.cell = c.base AND t.doc_id = s.doc_id JOIN "
               "sample_value w ON w.sample = t.id AND w.name = v.name WHERE v.value != w.value"),
        0);
    assert_int_equal(number("keep1", "SELECT count(*) FROM sample_value WHERE name = 'Mean KLD' "
                                     "AND value = 0"),
                     WINDOWS * cells(method_count(), 2));
}

/* The full cache holds all of a needle at half the text, the newest quarter nothing of it. */
static void what_stays_of_the_needle_is_told(void **state)
{
#define NEEDLE                                                                                  \
    " FROM cell c JOIN sample s ON s.cell = c.id JOIN sample_value v ON v.sample = s.id WHERE " \
    "v.name = 'needle kept' AND c.method = "

    (void)state;
    assert_int_equal(number("few", "SELECT count(*)" NEEDLE "'full' AND v.value = 1"), KEYS);
    assert_int_equal(number("few", "SELECT count(*)" NEEDLE "'recency' AND c.keep < 0.3"), KEYS);
    assert_int_equal(number("few", "SELECT sum(v.value > 0)" NEEDLE "'recency' AND c.keep < 0.3"),
                     0);
    assert_true(number("few", "SELECT sum(v.value > 0 AND v.value < 1)" NEEDLE
                              "'h2o' AND c.keep < 0.3") > 0);
#undef NEEDLE
}

static void two_runs_and_any_threads_give_the_same_tables(void **state)
{
    ek_run_how how = in_folder("again");

    (void)state;
    how.threads = 1;
    evaluate(&how, "../all.yaml", NULL, NULL);
    expect(0);
    assert_true(same_tables("whole", "again"));
    how = in_folder("three");
    how.threads = 3;
    evaluate(&how, "../few.yaml", NULL, NULL);
    expect(0);
    assert_true(same_tables("few", "three"));
    /* The negative control: another seed is another run. */
    how = in_folder("seed");
    evaluate(&how, "../few.yaml", "-s", "seed=4");
    expect(0);
    assert_false(same_tables("few", "seed"));
}

static void remove_db(const char *folder)
{
    static const char *const ends[] = {"", "-wal", "-shm"};

    for (size_t i = 0; i < EK_COUNT(ends); i++) {
        char name[64];

        snprintf(name, sizeof name, "%s/out.db%s", folder, ends[i]);
        (void)remove(ek_world_path(&world, name));
    }
}

/* Stop it by a signal after some samples, and go on. */
static void interrupt(const char *folder, int sig, int status, int samples)
{
    const int all = cells(FEW, 2) * (WINDOWS + KEYS);
    ek_run_how how = in_folder(folder);
    double n = all;

    how.signal = sig;
    how.at_least = samples * cells(FEW, 2);
    /* Where the signal came too late, begin again. */
    for (int attempt = 0; attempt < 20 && n == all; attempt++) {
        remove_db(folder);
        evaluate(&how, "../few.yaml", NULL, NULL);
        n = number(folder, "SELECT count(*) FROM sample");
    }
    expect(status);
    assert_true(n >= how.at_least && n < all);
    assert_int_equal((int)n % cells(FEW, 2), 0); /* samples are whole */
    how.signal = 0;
    evaluate(&how, "../few.yaml", NULL, NULL);
    assert_true(ek_is_refusal(&ran, 2));
    assert_non_null(strstr(ran.err, "--resume"));
    assert_int_equal(number(folder, "SELECT count(*) FROM sample"), n);
    evaluate(&how, "../few.yaml", "--resume", NULL);
    expect(0);
    assert_true(same_tables("few", folder));
}

static void killed_anywhere_it_resumes_to_the_same_tables(void **state)
{
    (void)state;
    interrupt("killed", SIGKILL, 128 + SIGKILL, 1);
    interrupt("killed_later", SIGKILL, 128 + SIGKILL, 4);
}

static void ctrl_c_stores_what_is_in_hand(void **state)
{
    (void)state;
    interrupt("stopped", SIGINT, 130, 2);
}

static void a_complete_run_has_nothing_to_do(void **state)
{
    ek_run_how how = {.folder = "few"};

    (void)state;
    evaluate(&how, "../few.yaml", NULL, NULL);
    expect(0);
    assert_non_null(strstr(ran.out, "nothing to do"));
    evaluate(&how, "../few.yaml", "--resume", NULL);
    expect(0);
    assert_non_null(strstr(ran.out, "nothing to do"));
    assert_true(same_tables("few", "three"));
    evaluate(&how, "../few.yaml", "--restart", NULL);
    expect(0);
    assert_non_null(strstr(ran.out, "is complete"));
    assert_int_equal(number("few", "SELECT count(*) FROM run"), 1);
    assert_int_equal(number("few", "SELECT count(*) FROM sample"),
                     cells(FEW, 2) * (WINDOWS + KEYS));
}

static void limits_overrides_and_plans(void **state)
{
    ek_run_how how = in_folder("limit");

    (void)state;
    evaluate(&how, "../few.yaml", "--plan", NULL);
    expect(0);
    assert_non_null(strstr(ran.out, "time            about"));
    assert_non_null(strstr(ran.out, "h2o@keep=0.25"));
    evaluate(&how, "../few.yaml", "--limit", "2");
    expect(0);
    /* --plan stored nothing: this is the only run in there. */
    assert_int_equal(number("limit", "SELECT count(*) FROM run"), 1);
    assert_int_equal(number("limit", "SELECT count(*) FROM sample"), cells(FEW, 2) * 4);
    {
        const char *args[] = {"evaluate", "../few.yaml",
                              "--limit",  "1",
                              "-s",       "methods=[recency]",
                              "-s",       "budgets=[0.3]",
                              "-s",       "tasks.1.query_aware=true",
                              "-s",       "tasks.0.label=two windows",
                              NULL};

        ek_program(&ran, &world, &how, args);
    }
    expect(0);
    assert_int_equal(number("limit", "SELECT count(*) FROM cell WHERE method = 'recency' AND keep "
                                     "= 0.3"),
                     2);
    assert_int_equal(number("limit", "SELECT count(*) FROM cell WHERE query_aware = 1"), 2);
    assert_int_equal(number("limit", "SELECT count(*) FROM cell WHERE suite = 'two windows' AND "
                                     "task = 'fidelity'"),
                     2);
}

static void a_broken_baseline_stops_the_run(void **state)
{
    ek_run_how how = in_folder("broken");

    (void)state;
    /* Four keys that even the full cache does not find. */
    evaluate(&how, "../few.yaml", "-s", "tasks.1.repeats=5");
    assert_true(ek_is_refusal(&ran, 1));
    assert_non_null(strstr(ran.err, "the baseline itself is broken"));
    assert_int_equal(number("broken", "SELECT count(*) FROM run WHERE status = 'failed'"), 1);
    assert_int_equal(number("broken", "SELECT count(*) FROM cell WHERE status = 'failed' AND task "
                                      "= 'passkey'"),
                     cells(FEW, 2));
    evaluate(&how, "../few.yaml", "-s", "tasks.1.repeats=5");
    assert_true(ek_is_refusal(&ran, 2));
}

static int set_up(void **state)
{
    ek_run_how how;

    (void)state;
    ek_world_open(&world, "evaluate");
    write_config("few.yaml", few_methods, "0.5, 0.25");
    how = in_folder("few");
    evaluate(&how, "../few.yaml", NULL, NULL);
    if (ran.status != 0)
        fail_msg("%s", ran.err);
    write_config("all.yaml", NULL, "0.5, 0.25");
    how = in_folder("whole");
    evaluate(&how, "../all.yaml", NULL, NULL);
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
        cmocka_unit_test(every_sample_is_stored_and_every_budget_kept),
        cmocka_unit_test(the_full_cache_is_cell_0_and_its_own_base),
        cmocka_unit_test(the_oracle_is_the_ceiling),
        cmocka_unit_test(keep_1_is_the_full_cache_to_the_bit),
        cmocka_unit_test(what_stays_of_the_needle_is_told),
        cmocka_unit_test(two_runs_and_any_threads_give_the_same_tables),
        cmocka_unit_test(killed_anywhere_it_resumes_to_the_same_tables),
        cmocka_unit_test(ctrl_c_stores_what_is_in_hand),
        cmocka_unit_test(a_complete_run_has_nothing_to_do),
        cmocka_unit_test(limits_overrides_and_plans),
        cmocka_unit_test(a_broken_baseline_stops_the_run),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
