/* The database: what is written is there, whole, once, and aggregates are right. */
#include "core/file.h"
#include "results/metric.h"
#include "tests/check_store.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define OTHER "fedcba9876543210fedcba9876543210"
#define OK(x) assert_int_equal((x), EK_OK)

static void a_run_is_written_once(void **state)
{
    int64_t cell[3], again[3];
    ek_run_found found;
    ek_store *s = ek_check_db_open(EK_CHECK_DB_ID, cell, 3, &found);
    ek_err err = {0};
    int has = -1;

    (void)state;
    assert_int_equal(found, EK_RUN_NEW);
    OK(ek_check_db_sample(s, cell, 3, 1, &err));
    OK(ek_check_db_sample(s, cell, 3, 1, &err));
    OK(ek_check_db_sample(s, cell, 3, 2, &err));
    OK(ek_store_has_sample(s, cell[2], "doc0002", 0, &has, &err));
    assert_int_equal(has, 1);
    OK(ek_store_has_sample(s, cell[2], "doc0003", 0, &has, &err));
    assert_int_equal(has, 0);
    assert_float_equal(ek_check_db_number(s, "SELECT count(*) FROM sample"), 6, 0);
    assert_float_equal(ek_check_db_number(s, "SELECT count(*) FROM sample_value"), 12, 0);
    assert_float_equal(ek_check_db_number(s, "SELECT count(*) FROM run_param"), 2, 0);
    assert_float_equal(
        ek_check_db_number(
            s, "SELECT prediction = 'bad ' || char(65533) || ' byte, good é' FROM sample"),
        1, 0);
    ek_store_close(s);

    s = ek_check_db_open(EK_CHECK_DB_ID, again, 3, &found);
    assert_int_equal(found, EK_RUN_RESUMED);
    for (int i = 0; i < 3; i++)
        assert_int_equal(cell[i], again[i]);
    OK(ek_store_run_end(s, EK_CHECK_DB_ID, "interrupted", &err));
    OK(ek_store_run_begin(s, &ek_check_db_run, NULL, 0, 0, &found, &err));
    assert_int_equal(found, EK_RUN_UNFINISHED);
    OK(ek_store_run_end(s, EK_CHECK_DB_ID, "done", &err));
    OK(ek_store_run_begin(s, &ek_check_db_run, NULL, 0, 1, &found, &err));
    assert_int_equal(found, EK_RUN_DONE);
    assert_float_equal(ek_check_db_number(s, "SELECT finished IS NOT NULL FROM run"), 1, 0);
    ek_store_close(s);
}

static void other_data_cannot_resume(void **state)
{
    const ek_leaf then[] = {{"text", "some"}, {"text_hash", "11"}};
    const ek_leaf now[] = {{"text", "some"}, {"text_hash", "22"}};
    ek_run_row row = ek_check_db_run;
    int64_t cell[1];
    ek_run_found found;
    ek_store *s = ek_check_db_open(EK_CHECK_DB_ID, cell, 1, &found);
    ek_err err = {0};

    (void)state;
    row.id = "00112233445566778899aabbccddeeff";
    OK(ek_store_run_begin(s, &row, then, 2, 0, &found, &err));
    OK(ek_store_run_begin(s, &row, then, 2, 1, &found, &err));
    assert_int_equal(found, EK_RUN_RESUMED);
    assert_int_equal(ek_store_run_begin(s, &row, now, 2, 1, &found, &err), EK_EASKED);
    assert_non_null(strstr(err.msg, "another text_hash"));
    OK(ek_store_run_end(s, row.id, "done", &err));
    assert_int_equal(ek_store_run_begin(s, &row, now, 2, 1, &found, &err), EK_EASKED);
    ek_store_close(s);
}

static void another_kernel_cannot_resume(void **state)
{
    ek_run_row row = ek_check_db_run;
    int64_t cell[1];
    ek_run_found found;
    ek_store *s = ek_check_db_open(EK_CHECK_DB_ID, cell, 1, &found);
    ek_err err = {0};

    (void)state;
    row.kernel = "avx512 bf16";
    assert_int_equal(ek_store_run_begin(s, &row, NULL, 0, 1, &found, &err), EK_EASKED);
    assert_non_null(strstr(err.msg, "another kernel"));
    row.id = "short";
    assert_int_equal(ek_store_run_begin(s, &row, NULL, 0, 1, &found, &err), EK_EBROKEN);
    ek_store_close(s);
}

static void a_failing_sample_leaves_nothing(void **state)
{
    int64_t cell[3], bad[3];
    ek_run_found found;
    ek_store *s = ek_check_db_open(EK_CHECK_DB_ID, cell, 3, &found);
    ek_err err = {0};
    ek_named inf = {"Mean KLD", INFINITY};
    ek_sample_row row = ek_sample_none();

    (void)state;
    memcpy(bad, cell, sizeof bad);
    bad[2] = 999; /* no such cell: the foreign key refuses the third row */
    assert_int_not_equal(ek_check_db_sample(s, bad, 3, 1, &err), EK_OK);
    assert_float_equal(ek_check_db_number(s, "SELECT count(*) FROM sample"), 0, 0);
    row.cell = cell[0];
    row.doc_id = "d";
    row.values = &inf;
    row.n_values = 1;
    assert_int_equal(ek_store_samples(s, &row, 1, &err), EK_ENAN);
    assert_float_equal(ek_check_db_number(s, "SELECT count(*) FROM sample"), 0, 0);
    row.n_values = 0;
    row.score = 1.5;
    assert_int_not_equal(ek_store_samples(s, &row, 1, &err), EK_OK);
    row.score = 1.0;
    OK(ek_store_samples(s, &row, 1, &err));
    assert_float_equal(ek_check_db_number(s, "SELECT count(*) FROM sample"), 1, 0);
    ek_store_close(s);
}

/* A child writes samples until it is shot; whatever moment that was, no half sample is left. */
static void a_killed_writer_leaves_whole_samples(void **state)
{
    enum { CELLS = 8 };
    int64_t cell[CELLS];
    ek_run_found found;
    double last = 0;

    (void)state;
    for (int shot = 0; shot < 5; shot++) {
        int ready[2];
        char byte;
        pid_t child;
        ek_store *s;

        assert_int_equal(pipe(ready), 0);
        child = fork();
        if (child == 0) {
            ek_err err;

            s = ek_check_db_open(EK_CHECK_DB_ID, cell, CELLS, &found);
            for (int doc = shot * 10000;; doc++) {
                if (ek_check_db_sample(s, cell, CELLS, doc, &err) != EK_OK)
                    _exit(1);
                if (doc == shot * 10000 && write(ready[1], "x", 1) != 1)
                    _exit(1);
            }
        }
        assert_int_equal(read(ready[0], &byte, 1), 1);
        usleep((useconds_t)(3000 + 7919 * shot));
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
        close(ready[0]);
        close(ready[1]);

        s = ek_check_db_open(EK_CHECK_DB_ID, cell, CELLS, &found);
        assert_true(ek_check_db_number(s, "SELECT count(*) FROM sample") > last);
        last = ek_check_db_number(s, "SELECT count(*) FROM sample");
        assert_float_equal(
            ek_check_db_number(s, "SELECT count(*) FROM (SELECT doc_id FROM sample GROUP BY "
                                  "doc_id HAVING count(*) <> 8)"),
            0, 0);
        assert_float_equal(
            ek_check_db_number(s, "SELECT count(*) FROM (SELECT s.id FROM sample s LEFT JOIN "
                                  "sample_value v ON v.sample = s.id GROUP BY s.id HAVING "
                                  "count(v.name) <> 2)"),
            0, 0);
        ek_store_close(s);
    }
}

static void training_steps_are_batched_and_replaced(void **state)
{
    const ek_train_row train = {.run = EK_CHECK_DB_ID,
                                .scorer = "mlp",
                                .loss = "listwise",
                                .params = 10,
                                .text_hash = "t",
                                .target_hash = "g",
                                .steps_asked = 200};
    ek_run_row row = ek_check_db_run;
    ek_run_found found;
    ek_store *s;
    ek_err err = {0};

    (void)state;
    row.kind = "train";
    OK(ek_store_open(&s, ek_check_db, EK_STORE_CREATE, &err));
    OK(ek_store_run_begin(s, &row, NULL, 0, 0, &found, &err));
    OK(ek_store_train_begin(s, &train, &err));
    for (int i = 0; i < 150; i++) {
        const ek_step_row step = {.run = EK_CHECK_DB_ID,
                                  .step = i,
                                  .loss = 1.0 / (i + 1),
                                  .lr = 0.1,
                                  .grad_norm = NAN,
                                  .acc = NAN,
                                  .tokens = EK_NONE,
                                  .ns = i};
        OK(ek_store_step(s, &step, &err));
    }
    OK(ek_store_flush(s, &err));
    assert_float_equal(ek_check_db_number(s, "SELECT count(*) FROM train_step"), 150, 0);
    for (int i = 149; i < 151; i++) {
        const ek_step_row step = {.run = EK_CHECK_DB_ID,
                                  .step = i,
                                  .loss = 7,
                                  .split = "train",
                                  .value = {{"recall", 0.5 + i}, {"chance", NAN}}};
        OK(ek_store_step(s, &step, &err));
    }
    OK(ek_store_artifact(s, EK_CHECK_DB_ID, "weights", "a/model.safetensors", 12,
                         "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef", &err));
    OK(ek_store_run_end(s, EK_CHECK_DB_ID, "done", &err));
    assert_float_equal(ek_check_db_number(s, "SELECT count(*) FROM train_step"), 151, 0);
    assert_float_equal(ek_check_db_number(s, "SELECT steps_done FROM train_run"), 151, 0);
    assert_float_equal(ek_check_db_number(s, "SELECT loss FROM train_step WHERE step = 149"), 7, 0);
    assert_float_equal(ek_check_db_number(s, "SELECT sum(value) FROM train_value"), 300, 0);
    assert_float_equal(
        ek_check_db_number(s, "SELECT count(*) FROM train_value WHERE name = 'recall'"), 2, 0);
    assert_float_equal(ek_check_db_number(s, "SELECT count(*) FROM artifact"), 1, 0);
    assert_int_not_equal(ek_store_artifact(s, EK_CHECK_DB_ID, "weights", "b", 12, "short", &err),
                         EK_OK);
    const double heads[] = {0.5, 0.25, 0.75, -1}, bad[] = {0, 0, 0, NAN};
    assert_int_equal(ek_store_train_heads(s, EK_CHECK_DB_ID, "r2", 2, 2, bad, &err), EK_ENAN);
    assert_float_equal(ek_check_db_number(s, "SELECT count(*) FROM train_head"), 0,
                       0); /* all or none */
    OK(ek_store_train_heads(s, EK_CHECK_DB_ID, "r2", 2, 2, heads, &err));
    OK(ek_store_train_heads(s, EK_CHECK_DB_ID, "r2", 2, 2, heads, &err)); /* again: replaced */
    assert_float_equal(ek_check_db_number(s, "SELECT count(*) FROM train_head"), 4, 0);
    assert_float_equal(
        ek_check_db_number(
            s, "SELECT value FROM train_head WHERE layer = 1 AND head = 0 AND name = 'r2'"),
        0.75, 0);
    OK(ek_store_run_delete(s, EK_CHECK_DB_ID, &err));
    assert_float_equal(ek_check_db_number(s, "SELECT count(*) FROM train_step"), 0, 0);
    assert_float_equal(ek_check_db_number(s, "SELECT count(*) FROM train_head"), 0, 0);
    ek_store_close(s);
}

static void weights_of_a_cell_are_named(void **state)
{
    int64_t cell[2];
    ek_run_found found;
    ek_store *s = ek_check_db_open(EK_CHECK_DB_ID, cell, 2, &found);
    ek_err err = {0};

    (void)state;
    OK(ek_store_cell_weights(s, cell[1], "aa", "", &err));
    OK(ek_store_cell_weights(s, cell[1], "bb", EK_CHECK_DB_ID, &err)); /* again: replaced */
    assert_float_equal(ek_check_db_number(s, "SELECT count(*) FROM cell_weights WHERE hash = 'bb'"),
                       1, 0);
    assert_float_equal(ek_check_db_number(s, "SELECT count(*) FROM cell_weights"), 1, 0);
    assert_int_not_equal(ek_store_cell_weights(s, 12345, "aa", "", &err), EK_OK);
    OK(ek_store_run_delete(s, EK_CHECK_DB_ID, &err));
    assert_float_equal(ek_check_db_number(s, "SELECT count(*) FROM cell_weights"), 0, 0);
    ek_store_close(s);
}

static void a_query_only_reads(void **state)
{
    static const char *const refused[] = {
        "DELETE FROM run",
        "INSERT INTO run_param VALUES('a','b','c')",
        "UPDATE run SET status = 'done'",
        "DROP TABLE sample",
        "CREATE TABLE x(y)",
        "CREATE TEMP TABLE x(y)",
        "ATTACH 'other.db' AS o",
        "PRAGMA user_version = 7",
        "PRAGMA journal_mode = DELETE",
        "SELECT 1; SELECT 2",
        "SELECT load_extension('x')",
        "VACUUM",
        "BEGIN",
        "SELEC 1",
        "SELECT nothing FROM nowhere",
        "",
        "  -- only words",
    };
    int64_t cell[2];
    ek_run_found found;
    ek_store *s = ek_check_db_open(EK_CHECK_DB_ID, cell, 2, &found);
    ek_err err = {0};
    double x;

    (void)state;
    ek_store_close(s);
    for (int mode = EK_STORE_READ; mode <= EK_STORE_WRITE; mode++) {
        OK(ek_store_open(&s, ek_check_db, (ek_store_mode)mode, &err));
        for (size_t i = 0; i < EK_COUNT(refused); i++) {
            err.msg[0] = 0;
            assert_int_equal(ek_store_query(s, refused[i], NULL, 0, ek_check_db_take, &x, &err),
                             EK_EASKED);
            assert_true(err.msg[0] != 0);
        }
        assert_float_equal(ek_check_db_number(s, "SELECT count(*) FROM cell; "), 2, 0);
        assert_float_equal(
            ek_check_db_number(s, "WITH RECURSIVE t(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM"
                                  " t WHERE i < 9) SELECT sum(i) FROM t -- nine"),
            45, 0);
        ek_store_close(s);
    }
    OK(ek_store_open(&s, ek_check_db, EK_STORE_READ, &err));
    assert_int_equal(ek_store_run_end(s, EK_CHECK_DB_ID, "done", &err), EK_EASKED);
    ek_store_close(s);
}

static void the_view_has_its_columns(void **state)
{
    static const char *const columns[] = {
        "run",         "suite",    "task",          "variant", "length",   "method",
        "policy",      "seed",     "name",          "unit",    "value",    "stderr",
        "n",           "clusters", "full_value",    "delta",   "delta_lo", "delta_hi",
        "pct_of_full", "mark",     "keep_measured", "keep",    "keep_of",  "entries",
        "bytes",       "learned",  "query_aware",   "ci_lo",   "ci_hi",    "p"};
    int64_t cell[2];
    ek_run_found found;
    ek_store *s = ek_check_db_open(EK_CHECK_DB_ID, cell, 2, &found);
    ek_err err = {0};
    char sql[100];
    double x;

    (void)state;
    for (size_t i = 0; i < EK_COUNT(columns); i++) {
        snprintf(sql, sizeof sql, "SELECT %s FROM v_score", columns[i]);
        OK(ek_store_query(s, sql, NULL, 0, ek_check_db_take, &x, &err));
    }
    OK(ek_check_db_sample(s, cell, 2, 0, &err));
    assert_float_equal(ek_check_db_number(s, "SELECT over_budget FROM v_kept"), 0, 0);
    ek_store_close(s);
}

/* ---- aggregates ---- */

typedef struct digest {
    char text[1 << 16];
    size_t n;
    int rows;
} digest;

static ek_code take_digest(void *ctx, int n, const char *const *name, const ek_sql *v, ek_err *err)
{
    digest *d = ctx;

    (void)name, (void)err;
    for (int i = 0; i < n; i++)
        d->n += (size_t)snprintf(d->text + d->n, sizeof d->text - d->n, "%d %a %s|", v[i].kind,
                                 v[i].r, v[i].kind == EK_SQL_TEXT ? v[i].text : "");
    d->rows++;
    return EK_OK;
}

static int digest_metrics(ek_store *s, char out[33])
{
    digest *d = calloc(1, sizeof *d);
    ek_err err;
    int rows;

    OK(ek_store_query(s, "SELECT * FROM metric ORDER BY cell, name", NULL, 0, take_digest, d,
                      &err));
    ek_hash128(out, d->text, d->n);
    rows = d->rows;
    free(d);
    return rows;
}

/* Scores and numbers of two cells worked out by hand, and the same bits at every rebuild. */
static void aggregates_are_right_and_repeatable(void **state)
{
    static const double f[5] = {.40, .60, .80, .20, .50}, m[5] = {.38, .61, .70, .20, .45};
    int64_t cell[3];
    ek_run_found found;
    ek_store *s = ek_check_db_open(EK_CHECK_DB_ID, cell, 3, &found);
    ek_err err = {0};
    char first[33], second[33];

    (void)state;
    for (int i = 0; i < 5; i++) {
        ek_sample_row rows[3];
        const double shift[3] = {0, 0.01, 0.02};
        ek_named values[3];
        char doc[16];

        snprintf(doc, sizeof doc, "d%d", i);
        for (int c = 0; c < 3; c++) {
            rows[c] = ek_sample_none();
            rows[c].cell = cell[c];
            rows[c].doc_id = doc;
            rows[c].score = c == 0 ? f[i] : c == 1 ? m[i] : 0.5;
            values[c] = (ek_named){"Mean KLD", shift[c] * (1 + 0.1 * i)};
            rows[c].keep_mean = c ? 0.25 : 1;
            rows[c].values = &values[c];
            rows[c].n_values = c == 2 && i == 4 ? 0 : 1; /* one document less in common */
        }
        OK(ek_store_samples(s, rows, 3, &err));
    }
    if (ek_store_rebuild_metrics(s, EK_CHECK_DB_ID, &err) != EK_OK)
        fail_msg("%s", err.msg);
#define AT(cond, column) ek_check_db_number(s, "SELECT " column " FROM v_score WHERE name = " cond)
    assert_float_equal(AT("'score' AND policy = 'full'", "value"), 50, 1e-9);
    assert_true(isnan(AT("'score' AND policy = 'full'", "delta")));
    assert_float_equal(AT("'score' AND policy = 'method1@0.25'", "value"), 46.8, 1e-9);
    assert_float_equal(AT("'score' AND policy = 'method1@0.25'", "full_value"), 50, 1e-9);
    assert_float_equal(AT("'score' AND policy = 'method1@0.25'", "delta"), -3.2, 1e-9);
    assert_float_equal(AT("'score' AND policy = 'method1@0.25'", "delta_lo"), -7, 0.3);
    assert_float_equal(AT("'score' AND policy = 'method1@0.25'", "delta_hi"), 0, 0.3);
    assert_float_equal(AT("'score' AND policy = 'method1@0.25'", "pct_of_full"), 93.6, 1e-9);
    assert_float_equal(AT("'score' AND policy = 'method1@0.25'", "mark = '≈'"), 1, 0);
    assert_float_equal(AT("'score' AND policy = 'method1@0.25'", "keep_measured"), 0.25, 1e-9);
    assert_float_equal(AT("'Mean KLD' AND policy = 'method1@0.25'", "value"), 0.012, 1e-9);
    assert_float_equal(AT("'Mean KLD' AND policy = 'method1@0.25'", "mark = '*'"), 1, 0);
    assert_true(isnan(AT("'Mean KLD' AND policy = 'method1@0.25'", "pct_of_full")));
    assert_float_equal(AT("'Mean KLD' AND policy = 'method2@0.25'", "n"), 4, 0);
    assert_float_equal(AT("'Mean KLD' AND policy = 'method2@0.25'", "delta"), 0.023, 1e-9);
    assert_float_equal(
        ek_check_db_number(s, "SELECT stderr FROM metric WHERE name = 'delta:score' AND cell = 2"),
        1.984943, 1e-6);
    assert_true(digest_metrics(s, first) > 12);
    OK(ek_store_rebuild_metrics(s, NULL, &err));
    digest_metrics(s, second);
    assert_string_equal(first, second);
    ek_store_close(s);
    OK(ek_store_open(&s, ek_check_db, EK_STORE_WRITE, &err));
    OK(ek_store_sql(s, "DELETE FROM metric", NULL, 0, NULL, NULL, &err));
    assert_int_equal(digest_metrics(s, second), 0);
    assert_string_not_equal(first, second); /* negative control */
    OK(ek_store_rebuild_metrics(s, EK_CHECK_DB_ID, &err));
    digest_metrics(s, second);
    assert_string_equal(first, second);
    ek_store_close(s);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, ek_check_db_make, ek_check_db_drop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_run_is_written_once),
        TEST(another_kernel_cannot_resume),
        TEST(other_data_cannot_resume),
        TEST(a_failing_sample_leaves_nothing),
        TEST(a_killed_writer_leaves_whole_samples),
        TEST(training_steps_are_batched_and_replaced),
        TEST(weights_of_a_cell_are_named),
        TEST(a_query_only_reads),
        TEST(the_view_has_its_columns),
        TEST(aggregates_are_right_and_repeatable),
    };

    return cmocka_run_group_tests_name("store", tests, NULL, NULL);
}
