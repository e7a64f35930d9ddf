/* tests/check_store.c - see the header. */
#include "tests/check_store.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

char ek_check_db_folder[64], ek_check_db[128];

int ek_check_db_make(void **state)
{
    (void)state;
    snprintf(ek_check_db_folder, sizeof ek_check_db_folder, "/tmp/ek_store_XXXXXX");
    if (!mkdtemp(ek_check_db_folder))
        return 1;
    snprintf(ek_check_db, sizeof ek_check_db, "%s/deeper/x.db", ek_check_db_folder);
    return 0;
}

int ek_check_db_drop(void **state)
{
    char command[100];

    (void)state;
    snprintf(command, sizeof command, "rm -rf %s", ek_check_db_folder);
    return system(command);
}

ek_code ek_check_db_take(void *ctx, int n, const char *const *name, const ek_sql *v, ek_err *err)
{
    (void)n, (void)name, (void)err;
    *(double *)ctx = v[0].kind == EK_SQL_NULL ? NAN : v[0].r;
    return EK_OK;
}

double ek_check_db_number(ek_store *s, const char *sql)
{
    double x = -1;
    ek_err err = {0};

    if (ek_store_query(s, sql, NULL, 0, ek_check_db_take, &x, &err) != EK_OK)
        fail_msg("%s: %s", sql, err.msg);
    return x;
}

const ek_run_row ek_check_db_run = {.id = EK_CHECK_DB_ID,
                                    .kind = "evaluate",
                                    .revision = "0.1 abc",
                                    .device = "cpu scalar",
                                    .kernel = "scalar bf16",
                                    .model = "m.gguf",
                                    .model_hash = "mh",
                                    .tokenizer_hash = "th",
                                    .template_hash = "ch",
                                    .config = "seed: 1\n"};

ek_store *ek_check_db_open(const char *id, int64_t *cell, int n, ek_run_found *found)
{
    const ek_leaf leaves[] = {{"seed", "1"}, {"methods.0.name", "full"}};
    ek_run_row row = ek_check_db_run;
    ek_store *s = NULL;
    ek_err err = {0};

    row.id = id;
    if (ek_store_open(&s, ek_check_db, EK_STORE_CREATE, &err) != EK_OK)
        fail_msg("%s", err.msg);
    assert_int_equal(ek_store_run_begin(s, &row, leaves, 2, 1, found, &err), EK_OK);
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

ek_code ek_check_db_sample(ek_store *s, const int64_t *cell, int n, int doc, ek_err *err)
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
