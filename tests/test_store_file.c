/* tests/test_store_file.c - files that are not ours: foreign or damaged ones are refused, older
 * ones lifted, those that cannot be written or went away are told apart. */
#include "core/file.h"
#include "tests/check_store.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define OK(x) assert_int_equal((x), EK_OK)

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
    ek_store *s = ek_check_db_open(EK_CHECK_DB_ID, cell, 4, &found);
    ek_err err = {0};

    for (int doc = 0; doc < 40; doc++)
        OK(ek_check_db_sample(s, cell, 4, doc, &err));
    OK(ek_store_run_end(s, EK_CHECK_DB_ID, "done", &err));
    ek_store_close(s);
    return read_bytes(ek_check_db, size);
}

static void damaged_files_are_refused(void **state)
{
    char bad[128], command[400];
    size_t size;
    uint8_t *good = whole_database(&size), *copy = malloc(size);
    ek_store *s;
    ek_err err;

    (void)state;
    snprintf(bad, sizeof bad, "%s/bad.db", ek_check_db_folder);
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
             ek_check_db_folder);
    if (system(command) == 0) {
        snprintf(bad, sizeof bad, "%s/t.db", ek_check_db_folder);
        refuse(bad, "triggers");
        snprintf(bad, sizeof bad, "%s/m.db", ek_check_db_folder);
        refuse(bad, "artifact is missing");
    }
    refuse(ek_check_db_folder, "a folder");
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
    ek_store *s = ek_check_db_open(EK_CHECK_DB_ID, cell, 4, &found);
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
        ek_check_db_folder);
    if (system(command) != 0)
        skip();
    snprintf(old, sizeof old, "%s/old.db", ek_check_db_folder);
    assert_int_equal(ek_store_open(&s, old, EK_STORE_READ, &err), EK_EINPUT);
    assert_non_null(strstr(err.msg, "older schema"));
    OK(ek_store_open(&s, old, EK_STORE_WRITE, &err));
    assert_float_equal(ek_check_db_number(s, "SELECT count(*) FROM cell"), 4, 0);
    assert_float_equal(ek_check_db_number(s, "SELECT count(*) FROM train_value"), 0, 0);
    assert_float_equal(ek_check_db_number(s, "SELECT count(*) FROM v_kept WHERE samples > 99"), 0,
                       0);
    ek_store_close(s);
    OK(ek_store_open(&s, old, EK_STORE_READ, &err));
    ek_store_close(s);
    snprintf(old, sizeof old, "%s/other.db", ek_check_db_folder);
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
    snprintf(bad, sizeof bad, "%s/flip.db", ek_check_db_folder);
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
                                          0, ek_check_db_take, &x, &err);
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
    snprintf(p, sizeof p, "%s/none.db", ek_check_db_folder);
    assert_int_equal(ek_store_open(&s, p, EK_STORE_READ, &err), EK_EASKED);
    assert_non_null(strstr(err.msg, "no such database"));
    assert_int_equal(ek_file_exists(p), 0);
    write_bytes(p, "", 0);
    assert_int_equal(ek_store_open(&s, p, EK_STORE_READ, &err), EK_EINPUT);
    OK(ek_store_open(&s, p, EK_STORE_CREATE, &err));
    assert_float_equal(ek_check_db_number(s, "SELECT count(*) FROM run"), 0, 0);
    ek_store_close(s);
    OK(ek_store_open(&s, p, EK_STORE_READ, &err));
    ek_store_close(s);
}

static void a_database_that_went_away_is_noticed(void **state)
{
    int64_t cell[3];
    ek_run_found found;
    ek_store *s = ek_check_db_open(EK_CHECK_DB_ID, cell, 3, &found);
    char away[300];
    ek_err err = {0};

    (void)state;
    OK(ek_check_db_sample(s, cell, 3, 1, &err));
    snprintf(away, sizeof away, "%s.away", ek_check_db);
    assert_int_equal(rename(ek_check_db, away), 0);
    assert_int_equal(ek_check_db_sample(s, cell, 3, 2, &err), EK_EIO);
    assert_non_null(strstr(err.msg, "moved or deleted"));
    assert_int_equal(rename(away, ek_check_db), 0);
    ek_store_close(s);
}

static void a_folder_that_is_read_only_can_be_read(void **state)
{
    int64_t cell[1];
    ek_run_found found;
    ek_store *s = ek_check_db_open(EK_CHECK_DB_ID, cell, 1, &found);
    ek_err err = {.msg = ""};

    (void)state;
    ek_store_close(s);
    assert_int_equal(chmod(ek_check_db_folder, 0555), 0);
    if (geteuid() == 0 && seteuid(65534) != 0) /* root may write anywhere */
        skip();
    const ek_code code = ek_store_open(&s, ek_check_db, EK_STORE_READ, &err);
    if (seteuid(getuid()) != 0 || chmod(ek_check_db_folder, 0755) != 0)
        fail();
    assert_string_equal(err.msg, "");
    assert_int_equal(code, EK_OK);
    assert_float_equal(ek_check_db_number(s, "SELECT count(*) FROM run"), 1, 0);
    ek_store_close(s);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, ek_check_db_make, ek_check_db_drop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_folder_that_is_read_only_can_be_read),
        TEST(a_database_that_went_away_is_noticed),
        TEST(damaged_files_are_refused),
        TEST(an_older_file_is_lifted),
        TEST(flipped_bytes_never_crash),
        TEST(absent_and_empty),
    };

    return cmocka_run_group_tests_name("store file", tests, NULL, NULL);
}
