/* results/report.c - which run is meant; list, show and query. */
#include "results/report.h"

#include "results/grid.h"

#include <stdio.h>
#include <string.h>

static ek_code no_memory(ek_err *err)
{
    return EK_FAIL(err, EK_ENOMEM, "report: out of memory");
}

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash ? slash + 1 : path;
}

static const char *text_or(const ek_sql *v, const char *otherwise)
{
    return v->kind == EK_SQL_TEXT && v->text ? v->text : otherwise;
}

/* ---- which run ---- */

typedef struct chosen {
    char id[33];
    int n;
} chosen;

static ek_code take_id(void *ctx, int n, const char *const *name, const ek_sql *v, ek_err *err)
{
    chosen *c = ctx;

    (void)n, (void)name, (void)err;
    snprintf(c->id, sizeof c->id, "%s", text_or(&v[0], ""));
    c->n++;
    return EK_OK;
}

ek_code ek_report_run(ek_store *store, const char *word, const char *kind, char id[33], ek_err *err)
{
    static const char newest[] = "SELECT id FROM run WHERE ?1 IS NULL OR kind = ?1"
                                 " ORDER BY created DESC, rowid DESC LIMIT 1";
    static const char prefix[] = "SELECT id FROM run WHERE substr(id, 1, ?2) = ?1 ORDER BY id";
    const int last = !word || strcmp(word, "last") == 0;
    const ek_sql p[] = {ek_sql_text(last ? kind : word),
                        ek_sql_int(word ? (int64_t)strlen(word) : 0)};
    chosen c = {0};

    EK_TRY(ek_store_sql(store, last ? newest : prefix, p, last ? 1 : 2, take_id, &c, err));
    if (c.n == 0 && last)
        return EK_FAIL(err, EK_EASKED, "%s: there is no %s run yet", ek_store_path(store),
                       kind ? kind : "finished");
    if (c.n == 0)
        return EK_FAIL(err, EK_EASKED,
                       "%s: there is no run \"%.40s\"; `evictkit results list` shows them",
                       ek_store_path(store), word);
    if (c.n > 1)
        return EK_FAIL(err, EK_EASKED, "%s: %d runs begin with \"%.40s\"; more digits are needed",
                       ek_store_path(store), c.n, word);
    memcpy(id, c.id, 33);
    return EK_OK;
}

/* ---- list ---- */

static ek_code take_run(void *ctx, int n, const char *const *name, const ek_sql *v, ek_err *err)
{
    ek_grid *g = ctx;

    (void)n, (void)name, (void)err;
    ek_grid_add(g, "%.8s", text_or(&v[0], ""));
    for (int i = 1; i < 4; i++)
        ek_grid_add(g, "%s", text_or(&v[i], "-"));
    ek_grid_add(g, "%lld", (long long)v[4].i);
    ek_grid_add(g, "%lld", (long long)v[5].i);
    ek_grid_add(g, "%s", base_name(text_or(&v[6], "")));
    ek_grid_add(g, "%s", text_or(&v[7], ""));
    return EK_OK;
}

typedef struct decodes {
    char first[40], other[40];
} decodes;

static ek_code take_decode(void *ctx, int n, const char *const *name, const ek_sql *v, ek_err *err)
{
    decodes *d = ctx;
    const char *text = v[0].text ? v[0].text : "";

    (void)n, (void)name, (void)err;
    if (!*d->first)
        snprintf(d->first, sizeof d->first, "%s", text);
    else if (strcmp(d->first, text) != 0)
        snprintf(d->other, sizeof d->other, "%s", text);
    return EK_OK;
}

ek_code ek_report_one_decode(ek_store *store, const char (*run)[33], int n, ek_err *err)
{
    static const char sql[] = "SELECT DISTINCT variant FROM cell WHERE run = ?1 AND variant <> ''";
    decodes d = {{0}, {0}};

    for (int i = 0; i < n; i++) {
        const ek_sql p = ek_sql_text(run[i]);

        EK_TRY(ek_store_sql(store, sql, &p, 1, take_decode, &d, err));
    }
    if (*d.other)
        return EK_FAIL(err, EK_EASKED,
                       "these runs differ in when they evict (decode: %s and %s), which are two "
                       "questions: make a table or figure of each",
                       d.first, d.other);
    return EK_OK;
}

ek_code ek_report_list(ek_store *store, ek_text *out, ek_err *err)
{
    static const char sql[] =
        "SELECT r.id, r.kind, r.status, r.created,"
        " (SELECT count(*) FROM cell c WHERE c.run = r.id),"
        " (SELECT count(*) FROM cell c JOIN sample s ON s.cell = c.id WHERE c.run = r.id)"
        " + coalesce((SELECT steps_done FROM train_run t WHERE t.run = r.id), 0),"
        " r.model, coalesce((SELECT 'trains ' || scorer FROM train_run t WHERE t.run = r.id),"
        " (SELECT group_concat(DISTINCT CASE suite WHEN task THEN task ELSE suite || '/' || task "
        "END) FROM cell c WHERE c.run = r.id), '')"
        " FROM run r ORDER BY r.created, r.rowid";
    static const char *const head[] = {"run",   "kind",          "status", "created",
                                       "cells", "samples/steps", "model",  "what"};
    ek_grid g = {.n_cols = 8};
    ek_code code;

    for (int i = 0; i < 8; i++)
        ek_grid_add(&g, "%s", head[i]);
    code = ek_store_sql(store, sql, NULL, 0, take_run, &g, err);
    if (code == EK_OK && g.n_cells == 8)
        ek_text_add(out, "%s: no runs yet\n", ek_store_path(store));
    else if (code == EK_OK)
        ek_grid_print(&g, "", out);
    ek_grid_clear(&g);
    return code == EK_OK && out->failed ? no_memory(err) : code;
}

/* ---- show ---- */

static ek_code take_pairs(void *ctx, int n, const char *const *name, const ek_sql *v, ek_err *err)
{
    ek_grid *g = ctx;

    (void)err;
    for (int i = 0; i < n; i++) {
        if (v[i].kind == EK_SQL_NULL)
            continue;
        ek_grid_add(g, "%s", name[i]);
        if (v[i].kind == EK_SQL_TEXT)
            ek_grid_add(g, "%s", text_or(&v[i], ""));
        else if (v[i].kind == EK_SQL_INT)
            ek_grid_add(g, "%lld", (long long)v[i].i);
        else
            ek_grid_add(g, "%.6g", v[i].r);
    }
    return EK_OK;
}

static ek_code take_lines(void *ctx, int n, const char *const *name, const ek_sql *v, ek_err *err)
{
    ek_text *out = ctx;
    const char *text = text_or(&v[0], "");

    (void)n, (void)name, (void)err;
    while (*text) {
        const int length = (int)strcspn(text, "\n");

        ek_text_add(out, "  %.*s\n", length, text);
        text += length + (text[length] == '\n');
    }
    return EK_OK;
}

/* A row of a query as a row of the grid, with the columns' names as head. */
static ek_code take_row(void *ctx, int n, const char *const *name, const ek_sql *v, ek_err *err)
{
    enum { MOST = 20 << 20 }; /* cells; a query without an end must not take all memory */
    ek_grid *g = ctx;

    if (g->n_cells > MOST)
        return EK_FAIL(err, EK_EASKED, "the query gives more than %d cells; LIMIT makes it less",
                       (int)MOST);
    if (g->n_cols == 0) {
        g->n_cols = n;
        for (int i = 0; i < n; i++)
            ek_grid_add(g, "%s", name[i]);
    }
    for (int i = 0; i < n; i++) {
        if (v[i].kind == EK_SQL_TEXT)
            ek_grid_add(g, "%s", text_or(&v[i], ""));
        else if (v[i].kind == EK_SQL_INT)
            ek_grid_add(g, "%lld", (long long)v[i].i);
        else if (v[i].kind == EK_SQL_REAL)
            ek_grid_add(g, "%.7g", v[i].r);
        else
            ek_grid_add(g, "%s", v[i].kind == EK_SQL_BLOB ? "(bytes)" : "-");
    }
    return EK_OK;
}

static ek_code show_table(ek_store *store, const char *sql, const char *run, const char *title,
                          ek_text *out, ek_err *err)
{
    const ek_sql p = ek_sql_text(run);
    ek_grid g = {0};
    ek_code code = ek_store_sql(store, sql, &p, 1, take_row, &g, err);

    if (code == EK_OK && g.n_cells > 0) {
        ek_text_add(out, "\n%s\n", title);
        ek_grid_print(&g, "  ", out);
    }
    ek_grid_clear(&g);
    return code;
}

ek_code ek_report_show(ek_store *store, const char *run, ek_text *out, ek_err *err)
{
    static const char head[] =
        "SELECT id AS run, kind, status, created, finished, revision, device, kernel, model,"
        " model_hash, tokenizer_hash, template_hash FROM run WHERE id = ?1";
    static const char cells[] =
        "SELECT c.suite, c.task, c.length, c.policy, c.seed, c.status, count(s.id) AS samples,"
        " k.kept_asked, k.kept_mean, k.kept_max, k.keep_mean, k.over_budget,"
        " sum(s.error IS NOT NULL) AS errors, sum(s.flag IS NOT NULL) AS flags"
        " FROM cell c LEFT JOIN sample s ON s.cell = c.id LEFT JOIN v_kept k ON k.cell = c.id"
        " WHERE c.run = ?1 GROUP BY c.id ORDER BY c.id";
    static const char train[] =
        "SELECT scorer, loss, params, steps_asked, steps_done,"
        " (SELECT loss FROM train_step s WHERE s.run = t.run AND split = 'train'"
        "  ORDER BY step DESC LIMIT 1) AS last_loss,"
        " (SELECT min(loss) FROM train_step s WHERE s.run = t.run AND split = 'valid') AS"
        " best_valid, text_hash, target_hash FROM train_run t WHERE run = ?1";
    static const char files[] =
        "SELECT kind, path, bytes, sha256 FROM artifact WHERE run = ?1 ORDER BY path";
    static const char config[] = "SELECT config FROM run WHERE id = ?1";
    const ek_sql p = ek_sql_text(run);
    ek_grid g = {.n_cols = 2};
    ek_code code = ek_store_sql(store, head, &p, 1, take_pairs, &g, err);

    if (code == EK_OK)
        ek_grid_print(&g, "", out);
    ek_grid_clear(&g);
    EK_TRY(code);
    EK_TRY(show_table(store, train, run, "training", out, err));
    EK_TRY(show_table(store, files, run, "files", out, err));
    EK_TRY(show_table(store, cells, run, "cells (asked beside measured; over_budget must be 0)",
                      out, err));
    ek_text_add(out, "\nconfig\n");
    EK_TRY(ek_store_sql(store, config, &p, 1, take_lines, out, err));
    return out->failed ? no_memory(err) : EK_OK;
}

ek_code ek_report_query(ek_store *store, const char *sql, const char *run, ek_text *out,
                        ek_err *err)
{
    const ek_sql p = ek_sql_text(run);
    ek_grid g = {0};
    ek_code code = ek_store_query(store, sql, &p, 1, take_row, &g, err);

    if (code == EK_OK && g.n_cells > 0)
        ek_grid_print(&g, "", out);
    ek_grid_clear(&g);
    return code == EK_OK && out->failed ? no_memory(err) : code;
}
