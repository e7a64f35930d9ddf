/* The database: what is written is there, whole, once; what is foreign or damaged is refused. */
#include "core/file.h"
#include "results/metric.h"
#include "results/store.h"

#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define ID    "0123456789abcdef0123456789abcdef"
#define OTHER "fedcba9876543210fedcba9876543210"
#define OK(x) assert_int_equal((x), EK_OK)

static char folder[64], path[128];

static int make_folder(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/ek_store_XXXXXX");
    if (!mkdtemp(folder))
        return 1;
    snprintf(path, sizeof path, "%s/deeper/x.db", folder);
    return 0;
}

static int drop_folder(void **state)
{
    char command[100];

    (void)state;
    snprintf(command, sizeof command, "rm -rf %s", folder);
    return system(command);
}

static ek_code take(void *ctx, int n, const char *const *name, const ek_sql *v, ek_err *err)
{
    (void)n, (void)name, (void)err;
    *(double *)ctx = v[0].kind == EK_SQL_NULL ? NAN : v[0].r;
    return EK_OK;
}

/* First column of the last row. */
static double number(ek_store *s, const char *sql)
{
    double x = -1;
    ek_err err = {0};

    if (ek_store_query(s, sql, NULL, 0, take, &x, &err) != EK_OK)
        fail_msg("%s: %s", sql, err.msg);
    return x;
}

static const ek_run_row run_row = {.id = ID,
                                   .kind = "evaluate",
                                   .revision = "0.1 abc",
                                   .device = "cpu scalar",
                                   .kernel = "scalar bf16",
                                   .model = "m.gguf",
                                   .model_hash = "mh",
                                   .tokenizer_hash = "th",
                                   .template_hash = "ch",
                                   .config = "seed: 1\n"};

/* A run with `full` and n policies. */
static ek_store *open_run(const char *id, int64_t *cell, int n, ek_run_found *found)
{
    const ek_leaf leaves[] = {{"seed", "1"}, {"methods.0.name", "full"}};
    ek_run_row row = run_row;
    ek_store *s = NULL;
    ek_err err = {0};

    row.id = id;
    if (ek_store_open(&s, path, EK_STORE_CREATE, &err) != EK_OK)
        fail_msg("%s", err.msg);
    OK(ek_store_run_begin(s, &row, leaves, 2, 1, found, &err));
    for (int i = 0; i < n; i++) {
        ek_cell_row c = ek_cell_none();
        char policy[40];

        snprintf(policy, sizeof policy, i ? "method%d@0.25" : "full", i);
        c.run = id;
        c.suite = "needle";
        c.task = "passkey";
        c.method = i ? "snapkv" : "full";
        c.policy = policy;
        if (i) {
            c.keep = 0.25;
            c.keep_of = "prompt";
            c.base = cell[0];
        }
        c.seed = 1;
        if (ek_store_cell(s, &c, &cell[i], &err) != EK_OK)
            fail_msg("%s", err.msg);
    }
    return s;
}

static ek_code put_sample(ek_store *s, const int64_t *cell, int n, int doc, ek_err *err)
{
    ek_sample_row rows[16];
    ek_named values[16][3];
    char name[20];

    snprintf(name, sizeof name, "doc%04d", doc);
    for (int i = 0; i < n; i++) {
        values[i][0] = (ek_named){"Mean KLD", 0.01 * i + 0.001 * doc};
        values[i][1] = (ek_named){"PPL", 10.0 + i};
        values[i][2] = (ek_named){"recall", NAN};
        rows[i] = ek_sample_none();
        rows[i].cell = cell[i];
        rows[i].doc_id = name;
        rows[i].prompt_hash = "ph";
        rows[i].n_original = rows[i].n_prompt = 100;
        rows[i].score = (doc + i) % 3 == 0 ? 1.0 : 0.0;
        rows[i].kept_asked = rows[i].kept_max = rows[i].kept_min = 25;
        rows[i].kept_mean = 25;
        rows[i].keep_mean = i ? 0.25 : 1.0;
        rows[i].prediction = "bad \xff byte, good \xc3\xa9";
        rows[i].values = values[i];
        rows[i].n_values = 3;
    }
    return ek_store_samples(s, rows, n, err);
}

static void a_run_is_written_once(void **state)
{
    int64_t cell[3], again[3];
    ek_run_found found;
    ek_store *s = open_run(ID, cell, 3, &found);
    ek_err err = {0};
    int has = -1;

    (void)state;
    assert_int_equal(found, EK_RUN_NEW);
    OK(put_sample(s, cell, 3, 1, &err));
    OK(put_sample(s, cell, 3, 1, &err));
    OK(put_sample(s, cell, 3, 2, &err));
    OK(ek_store_has_sample(s, cell[2], "doc0002", 0, &has, &err));
    assert_int_equal(has, 1);
    OK(ek_store_has_sample(s, cell[2], "doc0003", 0, &has, &err));
    assert_int_equal(has, 0);
    assert_float_equal(number(s, "SELECT count(*) FROM sample"), 6, 0);
    assert_float_equal(number(s, "SELECT count(*) FROM sample_value"), 12, 0);
    assert_float_equal(number(s, "SELECT count(*) FROM run_param"), 2, 0);
    assert_float_equal(
        number(s, "SELECT prediction = 'bad ' || char(65533) || ' byte, good é' FROM sample"), 1,
        0);
    ek_store_close(s);

    s = open_run(ID, again, 3, &found);
    assert_int_equal(found, EK_RUN_RESUMED);
    for (int i = 0; i < 3; i++)
        assert_int_equal(cell[i], again[i]);
    OK(ek_store_run_end(s, ID, "interrupted", &err));
    OK(ek_store_run_begin(s, &run_row, NULL, 0, 0, &found, &err));
    assert_int_equal(found, EK_RUN_UNFINISHED);
    OK(ek_store_run_end(s, ID, "done", &err));
    OK(ek_store_run_begin(s, &run_row, NULL, 0, 1, &found, &err));
    assert_int_equal(found, EK_RUN_DONE);
    assert_float_equal(number(s, "SELECT finished IS NOT NULL FROM run"), 1, 0);
    ek_store_close(s);
}

static void other_data_cannot_resume(void **state)
{
    const ek_leaf then[] = {{"text", "some"}, {"text_hash", "11"}};
    const ek_leaf now[] = {{"text", "some"}, {"text_hash", "22"}};
    ek_run_row row = run_row;
    int64_t cell[1];
    ek_run_found found;
    ek_store *s = open_run(ID, cell, 1, &found);
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

static void a_database_that_went_away_is_noticed(void **state)
{
    int64_t cell[3];
    ek_run_found found;
    ek_store *s = open_run(ID, cell, 3, &found);
    char away[300];
    ek_err err = {0};

    (void)state;
    OK(put_sample(s, cell, 3, 1, &err));
    snprintf(away, sizeof away, "%s.away", path);
    assert_int_equal(rename(path, away), 0);
    assert_int_equal(put_sample(s, cell, 3, 2, &err), EK_EIO);
    assert_non_null(strstr(err.msg, "moved or deleted"));
    assert_int_equal(rename(away, path), 0);
    ek_store_close(s);
}

static void a_folder_that_is_read_only_can_be_read(void **state)
{
    int64_t cell[1];
    ek_run_found found;
    ek_store *s = open_run(ID, cell, 1, &found);
    ek_err err = {.msg = ""};

    (void)state;
    ek_store_close(s);
    assert_int_equal(chmod(folder, 0555), 0);
    if (geteuid() == 0 && seteuid(65534) != 0) /* root may write anywhere */
        skip();
    const ek_code code = ek_store_open(&s, path, EK_STORE_READ, &err);
    if (seteuid(getuid()) != 0 || chmod(folder, 0755) != 0)
        fail();
    assert_string_equal(err.msg, "");
    assert_int_equal(code, EK_OK);
    assert_float_equal(number(s, "SELECT count(*) FROM run"), 1, 0);
    ek_store_close(s);
}

static void another_kernel_cannot_resume(void **state)
{
    ek_run_row row = run_row;
    int64_t cell[1];
    ek_run_found found;
    ek_store *s = open_run(ID, cell, 1, &found);
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
    ek_store *s = open_run(ID, cell, 3, &found);
    ek_err err = {0};
    ek_named inf = {"Mean KLD", INFINITY};
    ek_sample_row row = ek_sample_none();

    (void)state;
    memcpy(bad, cell, sizeof bad);
    bad[2] = 999; /* no such cell: the foreign key refuses the third row */
    assert_int_not_equal(put_sample(s, bad, 3, 1, &err), EK_OK);
    assert_float_equal(number(s, "SELECT count(*) FROM sample"), 0, 0);
    row.cell = cell[0];
    row.doc_id = "d";
    row.values = &inf;
    row.n_values = 1;
    assert_int_equal(ek_store_samples(s, &row, 1, &err), EK_ENAN);
    assert_float_equal(number(s, "SELECT count(*) FROM sample"), 0, 0);
    row.n_values = 0;
    row.score = 1.5;
    assert_int_not_equal(ek_store_samples(s, &row, 1, &err), EK_OK);
    row.score = 1.0;
    OK(ek_store_samples(s, &row, 1, &err));
    assert_float_equal(number(s, "SELECT count(*) FROM sample"), 1, 0);
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

            s = open_run(ID, cell, CELLS, &found);
            for (int doc = shot * 10000;; doc++) {
                if (put_sample(s, cell, CELLS, doc, &err) != EK_OK)
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

        s = open_run(ID, cell, CELLS, &found);
        assert_true(number(s, "SELECT count(*) FROM sample") > last);
        last = number(s, "SELECT count(*) FROM sample");
        assert_float_equal(number(s, "SELECT count(*) FROM (SELECT doc_id FROM sample GROUP BY "
                                     "doc_id HAVING count(*) <> 8)"),
                           0, 0);
        assert_float_equal(number(s, "SELECT count(*) FROM (SELECT s.id FROM sample s LEFT JOIN "
                                     "sample_value v ON v.sample = s.id GROUP BY s.id HAVING "
                                     "count(v.name) <> 2)"),
                           0, 0);
        ek_store_close(s);
    }
}

static void training_steps_are_batched_and_replaced(void **state)
{
    const ek_train_row train = {.run = ID,
                                .scorer = "mlp",
                                .loss = "listwise",
                                .params = 10,
                                .text_hash = "t",
                                .target_hash = "g",
                                .steps_asked = 200};
    ek_run_row row = run_row;
    ek_run_found found;
    ek_store *s;
    ek_err err = {0};

    (void)state;
    row.kind = "train";
    OK(ek_store_open(&s, path, EK_STORE_CREATE, &err));
    OK(ek_store_run_begin(s, &row, NULL, 0, 0, &found, &err));
    OK(ek_store_train_begin(s, &train, &err));
    for (int i = 0; i < 150; i++) {
        const ek_step_row step = {.run = ID,
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
    assert_float_equal(number(s, "SELECT count(*) FROM train_step"), 150, 0);
    for (int i = 149; i < 151; i++) {
        const ek_step_row step = {.run = ID,
                                  .step = i,
                                  .loss = 7,
                                  .split = "train",
                                  .value = {{"recall", 0.5 + i}, {"chance", NAN}}};
        OK(ek_store_step(s, &step, &err));
    }
    OK(ek_store_artifact(s, ID, "weights", "a/model.safetensors", 12,
                         "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef", &err));
    OK(ek_store_run_end(s, ID, "done", &err));
    assert_float_equal(number(s, "SELECT count(*) FROM train_step"), 151, 0);
    assert_float_equal(number(s, "SELECT steps_done FROM train_run"), 151, 0);
    assert_float_equal(number(s, "SELECT loss FROM train_step WHERE step = 149"), 7, 0);
    assert_float_equal(number(s, "SELECT sum(value) FROM train_value"), 300, 0);
    assert_float_equal(number(s, "SELECT count(*) FROM train_value WHERE name = 'recall'"), 2, 0);
    assert_float_equal(number(s, "SELECT count(*) FROM artifact"), 1, 0);
    assert_int_not_equal(ek_store_artifact(s, ID, "weights", "b", 12, "short", &err), EK_OK);
    const double heads[] = {0.5, 0.25, 0.75, -1}, bad[] = {0, 0, 0, NAN};
    assert_int_equal(ek_store_train_heads(s, ID, "r2", 2, 2, bad, &err), EK_ENAN);
    assert_float_equal(number(s, "SELECT count(*) FROM train_head"), 0, 0); /* all or none */
    OK(ek_store_train_heads(s, ID, "r2", 2, 2, heads, &err));
    OK(ek_store_train_heads(s, ID, "r2", 2, 2, heads, &err)); /* again: replaced */
    assert_float_equal(number(s, "SELECT count(*) FROM train_head"), 4, 0);
    assert_float_equal(
        number(s, "SELECT value FROM train_head WHERE layer = 1 AND head = 0 AND name = 'r2'"),
        0.75, 0);
    OK(ek_store_run_delete(s, ID, &err));
    assert_float_equal(number(s, "SELECT count(*) FROM train_step"), 0, 0);
    assert_float_equal(number(s, "SELECT count(*) FROM train_head"), 0, 0);
    ek_store_close(s);
}

static void weights_of_a_cell_are_named(void **state)
{
    int64_t cell[2];
    ek_run_found found;
    ek_store *s = open_run(ID, cell, 2, &found);
    ek_err err = {0};

    (void)state;
    OK(ek_store_cell_weights(s, cell[1], "aa", "", &err));
    OK(ek_store_cell_weights(s, cell[1], "bb", ID, &err)); /* again: replaced */
    assert_float_equal(number(s, "SELECT count(*) FROM cell_weights WHERE hash = 'bb'"), 1, 0);
    assert_float_equal(number(s, "SELECT count(*) FROM cell_weights"), 1, 0);
    assert_int_not_equal(ek_store_cell_weights(s, 12345, "aa", "", &err), EK_OK);
    OK(ek_store_run_delete(s, ID, &err));
    assert_float_equal(number(s, "SELECT count(*) FROM cell_weights"), 0, 0);
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
    ek_store *s = open_run(ID, cell, 2, &found);
    ek_err err = {0};
    double x;

    (void)state;
    ek_store_close(s);
    for (int mode = EK_STORE_READ; mode <= EK_STORE_WRITE; mode++) {
        OK(ek_store_open(&s, path, (ek_store_mode)mode, &err));
        for (size_t i = 0; i < EK_COUNT(refused); i++) {
            err.msg[0] = 0;
            assert_int_equal(ek_store_query(s, refused[i], NULL, 0, take, &x, &err), EK_EASKED);
            assert_true(err.msg[0] != 0);
        }
        assert_float_equal(number(s, "SELECT count(*) FROM cell; "), 2, 0);
        assert_float_equal(number(s, "WITH RECURSIVE t(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM"
                                     " t WHERE i < 9) SELECT sum(i) FROM t -- nine"),
                           45, 0);
        ek_store_close(s);
    }
    OK(ek_store_open(&s, path, EK_STORE_READ, &err));
    assert_int_equal(ek_store_run_end(s, ID, "done", &err), EK_EASKED);
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
    ek_store *s = open_run(ID, cell, 2, &found);
    ek_err err = {0};
    char sql[100];
    double x;

    (void)state;
    for (size_t i = 0; i < EK_COUNT(columns); i++) {
        snprintf(sql, sizeof sql, "SELECT %s FROM v_score", columns[i]);
        OK(ek_store_query(s, sql, NULL, 0, take, &x, &err));
    }
    OK(put_sample(s, cell, 2, 0, &err));
    assert_float_equal(number(s, "SELECT over_budget FROM v_kept"), 0, 0);
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
    ek_store *s = open_run(ID, cell, 3, &found);
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
    if (ek_store_rebuild_metrics(s, ID, &err) != EK_OK)
        fail_msg("%s", err.msg);
#define AT(cond, column) number(s, "SELECT " column " FROM v_score WHERE name = " cond)
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
        number(s, "SELECT stderr FROM metric WHERE name = 'delta:score' AND cell = 2"), 1.984943,
        1e-6);
    assert_true(digest_metrics(s, first) > 12);
    OK(ek_store_rebuild_metrics(s, NULL, &err));
    digest_metrics(s, second);
    assert_string_equal(first, second);
    ek_store_close(s);
    OK(ek_store_open(&s, path, EK_STORE_WRITE, &err));
    OK(ek_store_sql(s, "DELETE FROM metric", NULL, 0, NULL, NULL, &err));
    assert_int_equal(digest_metrics(s, second), 0);
    assert_string_not_equal(first, second); /* negative control */
    OK(ek_store_rebuild_metrics(s, ID, &err));
    digest_metrics(s, second);
    assert_string_equal(first, second);
    ek_store_close(s);
}

/* ---- files that are not ours ---- */

static void write_bytes(const char *to, const void *data, size_t size)
{
    FILE *f = fopen(to, "wb");

    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, size, f), size);
    fclose(f);
}

static uint8_t *read_bytes(const char *from, size_t *size)
{
    FILE *f = fopen(from, "rb");
    uint8_t *data = malloc(1 << 22);

    assert_non_null(f);
    *size = fread(data, 1, 1 << 22, f);
    fclose(f);
    return data;
}

static void refuse(const char *file, const char *word)
{
    for (int mode = EK_STORE_READ; mode <= EK_STORE_CREATE; mode++) {
        ek_store *s = NULL;
        ek_err err = {0};
        const ek_code code = ek_store_open(&s, file, (ek_store_mode)mode, &err);

        if (code == EK_OK)
            fail_msg("opened: %s", word);
        if (!strstr(err.msg, word))
            fail_msg("found \"%s\", expected \"%s\"", err.msg, word);
        assert_int_equal(ek_err_exit(code), 2);
        assert_null(s);
        assert_null(strchr(err.msg, '\n'));
    }
}

static void put32(uint8_t *p, uint32_t v)
{
    p[0] = (uint8_t)(v >> 24), p[1] = (uint8_t)(v >> 16), p[2] = (uint8_t)(v >> 8),
    p[3] = (uint8_t)v;
}

/* A finished database as bytes, its log folded in. */
static uint8_t *whole_database(size_t *size)
{
    int64_t cell[4];
    ek_run_found found;
    ek_store *s = open_run(ID, cell, 4, &found);
    ek_err err = {0};

    for (int doc = 0; doc < 40; doc++)
        OK(put_sample(s, cell, 4, doc, &err));
    OK(ek_store_run_end(s, ID, "done", &err));
    ek_store_close(s);
    return read_bytes(path, size);
}

static void damaged_files_are_refused(void **state)
{
    char bad[128], command[400];
    size_t size;
    uint8_t *good = whole_database(&size), *copy = malloc(size);
    ek_store *s;
    ek_err err;

    (void)state;
    snprintf(bad, sizeof bad, "%s/bad.db", folder);
    assert_true(size > 5 * 4096);
    write_bytes(bad, good, size); /* negative control: the untouched copy opens */
    OK(ek_store_open(&s, bad, EK_STORE_READ, &err));
    ek_store_close(s);

    write_bytes(bad, "not a database at all, just words", 33);
    refuse(bad, "not an SQLite database");
    write_bytes(bad, "SQL", 3);
    refuse(bad, "not an SQLite database");
    write_bytes(bad, good, 100); /* the header alone */
    refuse(bad, "damaged");
    write_bytes(bad, good, size / 2);
    refuse(bad, "damaged");
    write_bytes(bad, good, size - 4096);
    refuse(bad, "damaged");
    memcpy(copy, good, size);
    put32(copy + 68, 12345);
    write_bytes(bad, copy, size);
    refuse(bad, "not evictkit's");
    memcpy(copy, good, size);
    put32(copy + 60, 1000);
    write_bytes(bad, copy, size);
    refuse(bad, "newer evictkit: found schema version 1000");
    put32(copy + 60, 0);
    write_bytes(bad, copy, size);
    refuse(bad, "schema version 0");
    memcpy(copy, good, size);
    memset(copy + 2 * 4096, 0xa5, 4096); /* a page of noise */
    write_bytes(bad, copy, size);
    refuse(bad, "damaged");
    memcpy(copy, good, size);
    memset(copy + 100, 0, 12); /* the root page's own header */
    write_bytes(bad, copy, size);
    refuse(bad, "damaged");
    memcpy(copy, good, size);
    put32(copy + 16, 0x03010101); /* an impossible page size */
    write_bytes(bad, copy, size);
    refuse(bad, "damaged");
    memcpy(copy, good, size);
    put32(copy + 56, 2); /* another text encoding */
    write_bytes(bad, copy, size);
    refuse(bad, "bad.db");

    snprintf(command, sizeof command,
             "cd %s && rm -f t.db m.db && cp deeper/x.db t.db && cp deeper/x.db m.db &&"
             " python3 -c \"import sqlite3\n"
             "t = sqlite3.connect('t.db'); t.execute('CREATE TRIGGER g AFTER INSERT ON sample"
             " BEGIN DELETE FROM run; END'); t.commit(); t.close()\n"
             "m = sqlite3.connect('m.db'); m.execute('DROP TABLE artifact'); m.commit()\"",
             folder);
    if (system(command) == 0) {
        snprintf(bad, sizeof bad, "%s/t.db", folder);
        refuse(bad, "triggers");
        snprintf(bad, sizeof bad, "%s/m.db", folder);
        refuse(bad, "artifact is missing");
    }
    refuse(folder, "a folder");
    free(good);
    free(copy);
}

/* A file of the first version gains what it lacks and keeps what it has; one that was tampered with
 * besides is still refused. */
static void an_older_file_is_lifted(void **state)
{
    char old[128], command[700];
    int64_t cell[4];
    ek_run_found found;
    ek_store *s = open_run(ID, cell, 4, &found);
    ek_err err = {0};

    (void)state;
    ek_store_close(s);
    snprintf(
        command, sizeof command,
        "cd %s && cp deeper/x.db old.db && cp deeper/x.db other.db && python3 -c \"import sqlite3\n"
        "for name in ('old.db', 'other.db'):\n"
        " d = sqlite3.connect(name); d.execute('DROP TABLE train_value'); d.execute('DROP TABLE "
        "cell_weights')\n"
        " d.execute('DROP VIEW v_kept'); d.execute('CREATE VIEW v_kept AS SELECT 1 AS run')\n"
        " d.execute('PRAGMA user_version = 1')\n"
        " if name == 'other.db': d.execute('ALTER TABLE artifact ADD COLUMN x INTEGER')\n"
        " d.commit(); d.close()\"",
        folder);
    if (system(command) != 0)
        skip();
    snprintf(old, sizeof old, "%s/old.db", folder);
    assert_int_equal(ek_store_open(&s, old, EK_STORE_READ, &err), EK_EINPUT);
    assert_non_null(strstr(err.msg, "older schema"));
    OK(ek_store_open(&s, old, EK_STORE_WRITE, &err));
    assert_float_equal(number(s, "SELECT count(*) FROM cell"), 4, 0);
    assert_float_equal(number(s, "SELECT count(*) FROM train_value"), 0, 0);
    assert_float_equal(number(s, "SELECT count(*) FROM v_kept WHERE samples > 99"), 0, 0);
    ek_store_close(s);
    OK(ek_store_open(&s, old, EK_STORE_READ, &err));
    ek_store_close(s);
    snprintf(old, sizeof old, "%s/other.db", folder);
    assert_int_equal(ek_store_open(&s, old, EK_STORE_WRITE, &err), EK_EINPUT);
    assert_non_null(strstr(err.msg, "artifact is missing or was changed"));
}

/* Bytes flipped anywhere: opened or refused, never a crash; an opened file answers queries. */
static void flipped_bytes_never_crash(void **state)
{
    size_t size;
    uint8_t *good = whole_database(&size), *copy = malloc(size);
    uint32_t rng = 12345;
    char bad[128];
    int refused = 0;

    (void)state;
    snprintf(bad, sizeof bad, "%s/flip.db", folder);
    for (int round = 0; round < 60; round++) {
        ek_store *s = NULL;
        ek_err err = {0};

        memcpy(copy, good, size);
        for (int i = 0; i < 40; i++) {
            rng = rng * 1664525u + 1013904223u;
            copy[16 + (rng >> 4) % (size - 16)] ^= (uint8_t)(rng >> 24);
        }
        write_bytes(bad, copy, size);
        if (ek_store_open(&s, bad, EK_STORE_READ, &err) == EK_OK) {
            double x;
            ek_code code = ek_store_query(s, "SELECT count(*), max(prediction) FROM sample", NULL,
                                          0, take, &x, &err);
            refused += code != EK_OK;
            ek_store_close(s);
        } else {
            refused++;
        }
    }
    assert_true(refused > 20);
    free(good);
    free(copy);
}

static void absent_and_empty(void **state)
{
    char p[128];
    ek_store *s = NULL;
    ek_err err = {0};

    (void)state;
    snprintf(p, sizeof p, "%s/none.db", folder);
    assert_int_equal(ek_store_open(&s, p, EK_STORE_READ, &err), EK_EASKED);
    assert_non_null(strstr(err.msg, "no such database"));
    assert_int_equal(ek_file_exists(p), 0);
    write_bytes(p, "", 0);
    assert_int_equal(ek_store_open(&s, p, EK_STORE_READ, &err), EK_EINPUT);
    OK(ek_store_open(&s, p, EK_STORE_CREATE, &err));
    assert_float_equal(number(s, "SELECT count(*) FROM run"), 0, 0);
    ek_store_close(s);
    OK(ek_store_open(&s, p, EK_STORE_READ, &err));
    ek_store_close(s);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, make_folder, drop_folder)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_run_is_written_once),
        TEST(another_kernel_cannot_resume),
        TEST(other_data_cannot_resume),
        TEST(a_folder_that_is_read_only_can_be_read),
        TEST(a_database_that_went_away_is_noticed),
        TEST(a_failing_sample_leaves_nothing),
        TEST(a_killed_writer_leaves_whole_samples),
        TEST(training_steps_are_batched_and_replaced),
        TEST(weights_of_a_cell_are_named),
        TEST(a_query_only_reads),
        TEST(the_view_has_its_columns),
        TEST(aggregates_are_right_and_repeatable),
        TEST(damaged_files_are_refused),
        TEST(an_older_file_is_lifted),
        TEST(flipped_bytes_never_crash),
        TEST(absent_and_empty),
    };

    return cmocka_run_group_tests_name("store", tests, NULL, NULL);
}
