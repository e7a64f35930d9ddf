/* results/store.c - opening a database that may be hostile, and running SQL on it.
 *
 * The only file with sqlite3.h.  A file is believed only after five looks: it is a regular file, it
 * starts like an SQLite database, it carries our application id, a version we know, a sound
 * structure (quick_check), and exactly the tables and views of schema.sql without triggers. */
#include "results/inside.h"

#include "core/file.h"
#include "core/progress.h"
#include "schema_sql.h"

#include <sqlite3.h>
#include <stdlib.h>
#include <string.h>

enum { APPLICATION_ID = 1701538164, VERSION = 3, PATIENCE_MS = 10000 };

/* ---- errors ---- */

static ek_code translate(const ek_store *s, int rc, const char *what, ek_err *err)
{
    const char *why = s->db ? sqlite3_errmsg(s->db) : sqlite3_errstr(rc);

    switch (rc & 0xff) {
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
        return EK_FAIL(err, EK_EIO, "%s: another process has kept this database locked for %d s",
                       s->path, PATIENCE_MS / 1000);
    case SQLITE_INTERRUPT:
        return EK_FAIL(err, EK_ESTOPPED, "%s: %s stopped", s->path, what);
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
    case SQLITE_FORMAT:
        return EK_FAIL(err, EK_EINPUT, "%s: damaged database: %s", s->path, why);
    case SQLITE_NOMEM:
        return EK_FAIL(err, EK_ENOMEM, "%s: out of memory", s->path);
    case SQLITE_READONLY:
        if (rc == SQLITE_READONLY_ROLLBACK || rc == SQLITE_READONLY_RECOVERY)
            return EK_FAIL(err, EK_EIO,
                           "%s: what wrote this database was killed in the midst of it; the same "
                           "run with --resume mends it",
                           s->path);
        return EK_FAIL(err, EK_EASKED, "%s: cannot be written: %s", s->path, why);
    case SQLITE_PERM:
        return EK_FAIL(err, EK_EASKED, "%s: cannot be written: %s", s->path, why);
    case SQLITE_CANTOPEN:
    case SQLITE_IOERR:
    case SQLITE_FULL:
        return EK_FAIL(err, EK_EIO, "%s: %s: %s", s->path, what, why);
    case SQLITE_CONSTRAINT:
        return EK_FAIL(err, EK_EBROKEN, "%s: %s: a row breaks the schema: %s", s->path, what, why);
    default:
        return EK_FAIL(err, EK_EBROKEN, "%s: %s: %s", s->path, what, why);
    }
}

static ek_code script(ek_store *s, const char *sql, ek_err *err)
{
    const int rc = sqlite3_exec(s->db, sql, NULL, NULL, NULL);

    return rc == SQLITE_OK ? EK_OK : translate(s, rc, "setting up", err);
}

/* ---- values ---- */

ek_sql ek_sql_int(int64_t i)
{
    const ek_sql v = {
        .kind = i == EK_NONE ? EK_SQL_NULL : EK_SQL_INT, .i = i, .r = (double)i, .text = NULL};
    return v;
}

ek_sql ek_sql_real(double r)
{
    const ek_sql v = {.kind = isnan(r) ? EK_SQL_NULL : EK_SQL_REAL, .r = r};
    return v;
}

ek_sql ek_sql_text(const char *text)
{
    const ek_sql v = {
        .kind = text ? EK_SQL_TEXT : EK_SQL_NULL, .text = text, .size = text ? strlen(text) : 0};
    return v;
}

static int bind_value(sqlite3_stmt *stmt, int at, const ek_sql *v)
{
    switch (v->kind) {
    case EK_SQL_INT:
        return sqlite3_bind_int64(stmt, at, v->i);
    case EK_SQL_REAL:
        return sqlite3_bind_double(stmt, at, v->r);
    case EK_SQL_TEXT:
        return sqlite3_bind_text64(stmt, at, v->text, v->size, SQLITE_STATIC, SQLITE_UTF8);
    case EK_SQL_BLOB:
        return sqlite3_bind_blob64(stmt, at, v->text, v->size, SQLITE_STATIC);
    case EK_SQL_NULL:
        break;
    }
    return sqlite3_bind_null(stmt, at);
}

static ek_sql column_value(sqlite3_stmt *stmt, int i)
{
    ek_sql v = {.kind = EK_SQL_NULL};

    switch (sqlite3_column_type(stmt, i)) {
    case SQLITE_INTEGER:
        v.kind = EK_SQL_INT;
        v.i = sqlite3_column_int64(stmt, i);
        v.r = (double)v.i;
        break;
    case SQLITE_FLOAT:
        v.kind = EK_SQL_REAL;
        v.r = sqlite3_column_double(stmt, i);
        break;
    case SQLITE_TEXT:
        v.kind = EK_SQL_TEXT;
        v.text = (const char *)sqlite3_column_text(stmt, i);
        v.size = (size_t)sqlite3_column_bytes(stmt, i);
        break;
    case SQLITE_BLOB:
        v.kind = EK_SQL_BLOB;
        v.text = sqlite3_column_blob(stmt, i);
        v.size = (size_t)sqlite3_column_bytes(stmt, i);
        break;
    default:
        break;
    }
    return v;
}

/* ---- statements ---- */

static ek_code step_all(ek_store *s, sqlite3_stmt *stmt, ek_row_fn row, void *ctx, ek_err *err)
{
    const int n = sqlite3_column_count(stmt);
    const char **name = NULL;
    ek_sql *value = NULL;
    ek_code code = EK_OK;
    int rc;

    if (n > 0 && row) {
        name = calloc((size_t)n, sizeof *name);
        value = calloc((size_t)n, sizeof *value);
        if (!name || !value)
            code = EK_FAIL(err, EK_ENOMEM, "%s: out of memory", s->path);
        for (int i = 0; code == EK_OK && i < n; i++)
            name[i] = sqlite3_column_name(stmt, i);
    }
    while (code == EK_OK && (rc = sqlite3_step(stmt)) != SQLITE_DONE) {
        if (rc != SQLITE_ROW) {
            code = translate(s, rc, "query", err);
        } else if (row) {
            for (int i = 0; i < n; i++)
                value[i] = column_value(stmt, i);
            code = row(ctx, n, name, value, err);
        }
    }
    free(name);
    free(value);
    return code;
}

/* A prepared statement for sql: cached, or fresh (*slot NULL) if it is running further up. */
static ek_code prepare(ek_store *s, const char *sql, sqlite3_stmt **stmt, ek_store_statement **slot,
                       ek_err *err)
{
    int rc;

    *slot = NULL;
    for (int i = 0; i < s->n_cached; i++) {
        if (s->cached[i].sql == sql && !s->cached[i].busy) {
            *slot = &s->cached[i];
            *stmt = s->cached[i].stmt;
            return EK_OK;
        }
    }
    rc = sqlite3_prepare_v2(s->db, sql, -1, stmt, NULL);
    if (rc != SQLITE_OK)
        return translate(s, rc, "query", err);
    if (s->n_cached < EK_STORE_STATEMENTS) {
        *slot = &s->cached[s->n_cached++];
        (*slot)->sql = sql;
        (*slot)->stmt = *stmt;
        (*slot)->busy = 0;
    }
    return EK_OK;
}

static ek_code run_statement(ek_store *s, sqlite3_stmt *stmt, const ek_sql *params, int n_params,
                             ek_row_fn row, void *ctx, ek_err *err)
{
    for (int i = 0; i < n_params; i++) {
        const int rc = bind_value(stmt, i + 1, &params[i]);

        if (rc != SQLITE_OK)
            return translate(s, rc, "query", err);
    }
    return step_all(s, stmt, row, ctx, err);
}

ek_code ek_store_sql(ek_store *s, const char *sql, const ek_sql *params, int n_params,
                     ek_row_fn row, void *ctx, ek_err *err)
{
    ek_store_statement *slot;
    sqlite3_stmt *stmt;
    ek_code code;

    EK_TRY(prepare(s, sql, &stmt, &slot, err));
    if (slot)
        slot->busy = 1;
    code = run_statement(s, stmt, params, n_params, row, ctx, err);
    if (slot) {
        /* A failed step reports its code again at reset; it was translated already. */
        sqlite3_reset(stmt);
        sqlite3_clear_bindings(stmt);
        slot->busy = 0;
    } else {
        sqlite3_finalize(stmt);
    }
    return code;
}

/* A user's query may be endless: the first Ctrl-C ends it. */
static int query_stop(void *ctx)
{
    (void)ctx;
    return ek_stop_asked();
}

/* Users' queries may select; everything else is refused by name. */
static int allow_reading(void *ctx, int action, const char *a, const char *b, const char *c,
                         const char *d)
{
    ek_store *s = ctx;

    (void)a, (void)c, (void)d;
    switch (action) {
    case SQLITE_SELECT:
    case SQLITE_READ:
    case SQLITE_RECURSIVE:
        return SQLITE_OK;
    case SQLITE_FUNCTION:
        if (b && sqlite3_stricmp(b, "load_extension") == 0)
            break;
        return SQLITE_OK;
    case SQLITE_PRAGMA:
        s->refused = "PRAGMA";
        return SQLITE_DENY;
    case SQLITE_ATTACH:
    case SQLITE_DETACH:
        s->refused = "ATTACH and DETACH";
        return SQLITE_DENY;
    default:
        break;
    }
    s->refused = "statements that change something";
    return SQLITE_DENY;
}

ek_code ek_store_query(ek_store *s, const char *sql, const ek_sql *params, int n_params,
                       ek_row_fn row, void *ctx, ek_err *err)
{
    sqlite3_stmt *stmt = NULL, *more = NULL;
    const char *tail = NULL;
    ek_code code;
    int rc;

    s->refused = NULL;
    sqlite3_set_authorizer(s->db, allow_reading, s);
    rc = sqlite3_prepare_v2(s->db, sql, -1, &stmt, &tail);
    if (rc == SQLITE_OK && stmt && tail && *tail)
        if (sqlite3_prepare_v2(s->db, tail, -1, &more, NULL) != SQLITE_OK || more)
            rc = SQLITE_MISUSE;
    sqlite3_set_authorizer(s->db, NULL, NULL);
    if (s->refused)
        code = EK_FAIL(err, EK_EASKED, "the query is refused: %s, and this only reads", s->refused);
    else if (rc == SQLITE_MISUSE)
        code = EK_FAIL(err, EK_EASKED, "the query is refused: one statement at a time");
    else if (rc == SQLITE_ERROR)
        code = EK_FAIL(err, EK_EASKED, "the query is wrong: %s", sqlite3_errmsg(s->db));
    else if (rc != SQLITE_OK)
        code = translate(s, rc, "query", err);
    else if (!stmt)
        code = EK_FAIL(err, EK_EASKED, "the query is empty");
    else if (!sqlite3_stmt_readonly(stmt))
        code = EK_FAIL(err, EK_EASKED, "the query is refused: this only reads");
    else {
        const int want = sqlite3_bind_parameter_count(stmt);

        sqlite3_progress_handler(s->db, 10000, query_stop, NULL);
        code = run_statement(s, stmt, params, want < n_params ? want : n_params, row, ctx, err);
        sqlite3_progress_handler(s->db, 0, NULL, NULL);
    }
    sqlite3_finalize(more);
    sqlite3_finalize(stmt);
    return code;
}

int64_t ek_store_last_id(const ek_store *s)
{
    return sqlite3_last_insert_rowid(s->db);
}

ek_code ek_store_in_place(ek_store *s, ek_err *err)
{
    int moved = 0;

    if (sqlite3_file_control(s->db, "main", SQLITE_FCNTL_HAS_MOVED, &moved) == SQLITE_OK && moved)
        return EK_FAIL(err, EK_EIO, "%s: was moved or deleted while this run wrote to it", s->path);
    return EK_OK;
}

int ek_store_changes(const ek_store *s)
{
    return sqlite3_changes(s->db);
}

const char *ek_store_path(const ek_store *s)
{
    return s->path;
}

ek_code ek_store_begin(ek_store *s, ek_err *err)
{
    return ek_store_sql(s, "BEGIN IMMEDIATE", NULL, 0, NULL, NULL, err);
}

ek_code ek_store_commit(ek_store *s, ek_err *err)
{
    return ek_store_sql(s, "COMMIT", NULL, 0, NULL, NULL, err);
}

void ek_store_rollback(ek_store *s)
{
    if (!sqlite3_get_autocommit(s->db))
        sqlite3_exec(s->db, "ROLLBACK", NULL, NULL, NULL);
}

/* ---- opening ---- */

static ek_code take_int(void *ctx, int n, const char *const *name, const ek_sql *value, ek_err *err)
{
    (void)n, (void)name, (void)err;
    *(int64_t *)ctx = value[0].i;
    return EK_OK;
}

/* schema.sql in a database of its own, in memory; closed by close_model. */
static ek_code open_model(ek_store *model, const ek_store *s, ek_err *err)
{
    *model = (ek_store){.path = s->path};
    if (sqlite3_open(":memory:", &model->db) != SQLITE_OK)
        return EK_FAIL(err, EK_ENOMEM, "%s: out of memory", s->path);
    return script(model, schema_sql, err);
}

static void close_model(ek_store *model)
{
    for (int i = 0; i < model->n_cached; i++)
        sqlite3_finalize(model->cached[i].stmt);
    sqlite3_close(model->db);
}

/* One object of schema.sql: made if the file lacks it; a view, which holds no data, made anew. */
static ek_code add_object(void *ctx, int n, const char *const *name, const ek_sql *value,
                          ek_err *err)
{
    static const char find[] = "SELECT count(*) FROM sqlite_master WHERE type = ?1 AND name = ?2";
    ek_store *s = ctx;
    int64_t found = 0;

    (void)n, (void)name;
    EK_TRY(ek_store_sql(s, find, value, 2, take_int, &found, err));
    if (found == 1 && strcmp(value[0].text, "view") == 0) {
        char drop[128];

        snprintf(drop, sizeof drop, "DROP VIEW %s", value[1].text);
        EK_TRY(script(s, drop, err));
        found = 0;
    }
    return found == 1 ? EK_OK : script(s, value[2].text, err);
}

/* From an older version to ours. */
static ek_code lift(ek_store *s, ek_err *err)
{
    static const char ours[] =
        "SELECT type, name, sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY rowid";
    char version[48];
    ek_store model;
    ek_code code = open_model(&model, s, err);

    if (code == EK_OK)
        code = ek_store_sql(&model, ours, NULL, 0, add_object, s, err);
    close_model(&model);
    EK_TRY(code);
    snprintf(version, sizeof version, "PRAGMA user_version = %d", VERSION);
    return script(s, version, err);
}

/* Run what is missing between the file's version and ours, in one transaction. */
static ek_code migrate(ek_store *s, ek_err *err)
{
    int64_t version = 0, objects = 0;
    ek_code code;
    int rc = SQLITE_BUSY;

    /* A change of mode does not wait for others that are just making the same file. */
    for (int i = 0; (rc & 0xff) == SQLITE_BUSY && i < PATIENCE_MS / 50; i++) {
        if (i > 0)
            sqlite3_sleep(50);
        rc = sqlite3_exec(s->db, "PRAGMA journal_mode = WAL", NULL, NULL, NULL);
    }
    if (rc != SQLITE_OK)
        return translate(s, rc, "setting up", err);
    EK_TRY(ek_store_begin(s, err));
    /* Another process may have made the file since we looked. */
    code = ek_store_sql(s, "PRAGMA user_version", NULL, 0, take_int, &version, err);
    if (code == EK_OK)
        code =
            ek_store_sql(s, "SELECT count(*) FROM sqlite_master", NULL, 0, take_int, &objects, err);
    if (code == EK_OK && version == 0 && objects > 0)
        code = EK_FAIL(err, EK_EINPUT, "%s: a database, but not evictkit's", s->path);
    if (code == EK_OK && version == 0)
        code = script(s, schema_sql, err);
    else if (code == EK_OK && version < VERSION)
        code = lift(s, err);
    if (code == EK_OK)
        code = ek_store_commit(s, err);
    if (code != EK_OK)
        ek_store_rollback(s);
    return code;
}

static ek_code same_object(void *ctx, int n, const char *const *name, const ek_sql *value,
                           ek_err *err)
{
    static const char find[] =
        "SELECT count(*) FROM sqlite_master WHERE type = ?1 AND name = ?2 AND sql = ?3";
    ek_store *s = ctx;
    int64_t found = 0;

    (void)n, (void)name;
    EK_TRY(ek_store_sql(s, find, value, 3, take_int, &found, err));
    if (found != 1)
        return EK_FAIL(err, EK_EINPUT, "%s: damaged database: %s %s is missing or was changed",
                       s->path, value[0].text, value[1].text);
    return EK_OK;
}

/* Every object of schema.sql is there, word for word, and no trigger is. */
static ek_code check_schema(ek_store *s, ek_err *err)
{
    static const char ours[] = "SELECT type, name, sql FROM sqlite_master WHERE sql IS NOT NULL";
    static const char triggers[] = "SELECT count(*) FROM sqlite_master WHERE type = 'trigger'";
    ek_store model;
    int64_t n = 0;
    ek_code code;

    EK_TRY(ek_store_sql(s, triggers, NULL, 0, take_int, &n, err));
    if (n > 0)
        return EK_FAIL(err, EK_EINPUT, "%s: holds triggers, which evictkit never makes", s->path);
    code = open_model(&model, s, err);
    if (code == EK_OK)
        code = ek_store_sql(&model, ours, NULL, 0, same_object, s, err);
    close_model(&model);
    return code;
}

static ek_code first_text(void *ctx, int n, const char *const *name, const ek_sql *value,
                          ek_err *err)
{
    char *out = ctx;

    (void)n, (void)name, (void)err;
    if (!*out && value[0].kind == EK_SQL_TEXT)
        snprintf(out, 200, "%s", value[0].text);
    return EK_OK;
}

static ek_code check_content(ek_store *s, ek_err *err)
{
    int64_t id = 0, version = 0, objects = 0;
    char said[200] = "";

    EK_TRY(ek_store_sql(s, "PRAGMA application_id", NULL, 0, take_int, &id, err));
    EK_TRY(ek_store_sql(s, "PRAGMA user_version", NULL, 0, take_int, &version, err));
    EK_TRY(ek_store_sql(s, "SELECT count(*) FROM sqlite_master", NULL, 0, take_int, &objects, err));
    if (id == 0 && version == 0 && objects == 0 && s->mode == EK_STORE_CREATE)
        return migrate(s, err);
    if (id != APPLICATION_ID)
        return EK_FAIL(err, EK_EINPUT,
                       "%s: a database, but not evictkit's: found application id %lld, expected %d",
                       s->path, (long long)id, APPLICATION_ID);
    if (version > VERSION)
        return EK_FAIL(err, EK_EINPUT,
                       "%s: made by a newer evictkit: found schema version %lld, this program "
                       "knows up to %d",
                       s->path, (long long)version, VERSION);
    if (version < 1)
        return EK_FAIL(err, EK_EINPUT, "%s: found schema version %lld, expected 1 .. %d", s->path,
                       (long long)version, VERSION);
    EK_TRY(ek_store_sql(s, "PRAGMA quick_check(1)", NULL, 0, first_text, said, err));
    if (strcmp(said, "ok") != 0) {
        for (char *c = said; *c; c++)
            if ((unsigned char)*c < 0x20)
                *c = ' ';
        return EK_FAIL(err, EK_EINPUT, "%s: damaged database: %s", s->path, said);
    }
    if (version < VERSION && s->mode == EK_STORE_READ)
        return EK_FAIL(err, EK_EINPUT,
                       "%s: an older schema; `evictkit results rebuild --db %s` lifts it", s->path,
                       s->path);
    if (version < VERSION)
        EK_TRY(migrate(s, err));
    return check_schema(s, err);
}

static ek_code set_up(ek_store *s, ek_err *err)
{
    sqlite3_extended_result_codes(s->db, 1);
    sqlite3_busy_timeout(s->db, PATIENCE_MS);
    sqlite3_db_config(s->db, SQLITE_DBCONFIG_DEFENSIVE, 1, NULL);
    sqlite3_db_config(s->db, SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0, NULL);
    sqlite3_db_config(s->db, SQLITE_DBCONFIG_ENABLE_TRIGGER, 0, NULL);
    sqlite3_limit(s->db, SQLITE_LIMIT_LENGTH, 256 << 20);
    EK_TRY(script(s,
                  "PRAGMA foreign_keys = ON; PRAGMA trusted_schema = OFF;"
                  "PRAGMA cell_size_check = ON; PRAGMA mmap_size = 0; PRAGMA synchronous = FULL;",
                  err));
    return check_content(s, err);
}

ek_code ek_store_open(ek_store **out, const char *path, ek_store_mode mode, ek_err *err)
{
    const int flags = mode == EK_STORE_READ    ? SQLITE_OPEN_READONLY
                      : mode == EK_STORE_WRITE ? SQLITE_OPEN_READWRITE
                                               : SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE;
    char *uri;
    ek_store *s;
    ek_code code;
    int rc;

    EK_TRY(ek_store_look(path, mode, err));
    if (mode == EK_STORE_CREATE)
        EK_TRY(ek_make_parent(path, err));
    s = calloc(1, sizeof *s);
    if (!s || !(s->path = strdup(path))) {
        free(s);
        return EK_FAIL(err, EK_ENOMEM, "%s: out of memory", path);
    }
    s->mode = mode;
    uri = mode == EK_STORE_READ ? ek_store_still(path) : NULL;
    rc = sqlite3_open_v2(uri ? uri : path, &s->db, flags | (uri ? SQLITE_OPEN_URI : 0), NULL);
    free(uri);
    code = rc == SQLITE_OK ? set_up(s, err) : translate(s, rc, "opening", err);
    if (code != EK_OK) {
        ek_store_close(s);
        return code;
    }
    *out = s;
    return EK_OK;
}

void ek_store_close(ek_store *s)
{
    ek_err ignored;

    if (!s)
        return;
    /* The caller who must know calls ek_store_flush first; here the rest is saved if it can be. */
    if (s->db && s->n_steps > 0 && ek_store_flush(s, &ignored) != EK_OK)
        s->n_steps = 0;
    for (int i = 0; i < s->n_cached; i++)
        sqlite3_finalize(s->cached[i].stmt);
    sqlite3_close(s->db);
    free(s->path);
    free(s);
}
