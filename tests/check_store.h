/* tests/check_store.h - a database in a folder of its own, with a run to write samples to. */
#ifndef EK_TESTS_CHECK_STORE_H
#define EK_TESTS_CHECK_STORE_H

#include "results/store.h"

#define EK_CHECK_DB_ID "0123456789abcdef0123456789abcdef"

extern char ek_check_db_folder[64], ek_check_db[128]; /* the database: in a folder below */
int ek_check_db_make(void **state);                   /* fixture: the folder, empty */
int ek_check_db_drop(void **state);

/* Row function: the last row's first column into a double, NULL as NAN. */
ek_code ek_check_db_take(void *ctx, int n, const char *const *name, const ek_sql *v, ek_err *err);
/* First column of the last row; fails the test if the query does. */
double ek_check_db_number(ek_store *s, const char *sql);

extern const ek_run_row ek_check_db_run; /* of id EK_CHECK_DB_ID */
/* The database, opened, with a run of `full` and n - 1 policies: cell (n). */
ek_store *ek_check_db_open(const char *id, int64_t *cell, int n, ek_run_found *found);
/* Document number doc of n cells. */
ek_code ek_check_db_sample(ek_store *s, const int64_t *cell, int n, int doc, ek_err *err);

#endif
