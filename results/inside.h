/* results/inside.h - what store.c (SQL), record.c (rows) and store_file.c (the file) share; nobody
 * else includes it. */
#ifndef EK_RESULTS_INSIDE_H
#define EK_RESULTS_INSIDE_H

#include "results/store.h"

enum { EK_STORE_STATEMENTS = 64, EK_STORE_STEPS = 64 };

struct sqlite3;
struct sqlite3_stmt;

typedef struct ek_store_statement {
    const char *sql; /* borrowed constant; its address is the key */
    struct sqlite3_stmt *stmt;
    int busy; /* being stepped further up the stack */
} ek_store_statement;

struct ek_store {
    struct sqlite3 *db;
    char *path;
    ek_store_mode mode;
    ek_store_statement cached[EK_STORE_STATEMENTS];
    int n_cached;
    const char *refused; /* what the authorizer said no to in a user's query; NULL: nothing */
    /* Training steps waiting to be written together. */
    ek_step_row step[EK_STORE_STEPS]; /* strings not owned: run and split are as below */
    char step_run[33];
    int n_steps;
    int64_t first_step_ms; /* wall clock of the oldest waiting step */
};

/* Is there, in this mode, something that may be a database?  EK_EASKED, EK_EINPUT if not. */
ek_code ek_store_look(const char *path, ek_store_mode mode, ek_err *err);
/* SQLite reads a database in WAL mode only where it may write files beside it.  Where it may not,
 * and no log waits there, nothing can change: the name as a URI that says so (owned by the caller).
 * NULL: not so. */
char *ek_store_still(const char *path);

#endif
