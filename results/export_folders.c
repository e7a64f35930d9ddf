/* results/export_folders.c - the layouts that scripts around kvpress and lm-eval read.
 *
 * One policy (method and budget) is one kvpress folder per task, and one results file of lm-eval
 * with its samples files.  Fields we do not hold (the prompt's text, chat templates) are left out
 * or null, never invented. */
#include "results/report.h"

#include "core/file.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct cell_of {
    int64_t id, length, seed;
    char suite[80], task[80], variant[40], method[80], policy[300];
    double keep; /* asked, else measured */
    int query_aware;
} cell_of;

typedef struct folders {
    ek_store *store;
    const ek_export *how;
    ek_text *out;
    cell_of *cell;
    int n, room;
    char model[200], created[40], finished[40], revision[80];
    ek_text config;
    ek_text text; /* of the file being made */
    int rows;
} folders;

static ek_code no_memory(ek_err *err)
{
    return EK_FAIL(err, EK_ENOMEM, "export: out of memory");
}

static void copy(char *to, size_t size, const ek_sql *v)
{
    snprintf(to, size, "%s", v->kind == EK_SQL_TEXT && v->text ? v->text : "");
}

static ek_code take_cell(void *ctx, int n, const char *const *name, const ek_sql *v, ek_err *err)
{
    folders *f = ctx;
    cell_of *c;

    (void)n, (void)name;
    if (f->n == f->room) {
        const int room = f->room ? 2 * f->room : 64;
        cell_of *more = realloc(f->cell, (size_t)room * sizeof *more);

        if (!more)
            return no_memory(err);
        f->cell = more;
        f->room = room;
    }
    c = &f->cell[f->n++];
    memset(c, 0, sizeof *c);
    c->id = v[0].i;
    copy(c->suite, sizeof c->suite, &v[1]);
    copy(c->task, sizeof c->task, &v[2]);
    copy(c->variant, sizeof c->variant, &v[3]);
    c->length = v[4].i;
    copy(c->method, sizeof c->method, &v[5]);
    copy(c->policy, sizeof c->policy, &v[6]);
    c->keep = v[7].kind == EK_SQL_NULL ? NAN : v[7].r;
    c->query_aware = (int)v[8].i;
    c->seed = v[9].i;
    return EK_OK;
}

static ek_code take_run(void *ctx, int n, const char *const *name, const ek_sql *v, ek_err *err)
{
    folders *f = ctx;

    (void)n, (void)name, (void)err;
    copy(f->model, sizeof f->model, &v[0]);
    copy(f->created, sizeof f->created, &v[1]);
    copy(f->finished, sizeof f->finished, &v[2]);
    copy(f->revision, sizeof f->revision, &v[3]);
    ek_text_add(&f->config, "%s", v[4].text ? v[4].text : "");
    return EK_OK;
}

static ek_code open_folders(folders *f, ek_store *store, const ek_export *how, ek_text *out,
                            ek_err *err)
{
    static const char cells[] =
        "SELECT c.id, c.suite, c.task, c.variant, c.length, c.method, c.policy,"
        " coalesce(c.keep, (SELECT avg(keep_mean) FROM sample s WHERE s.cell = c.id)),"
        " c.query_aware, c.seed FROM cell c WHERE c.run = ?1 ORDER BY c.id";
    static const char run[] =
        "SELECT model, created, coalesce(finished, created), revision, config FROM run"
        " WHERE id = ?1";
    const ek_sql p = ek_sql_text(how->run);

    *f = (folders){.store = store, .how = how, .out = out};
    EK_TRY(ek_store_sql(store, run, &p, 1, take_run, f, err));
    return ek_store_sql(store, cells, &p, 1, take_cell, f, err);
}

static void close_folders(folders *f)
{
    free(f->cell);
    ek_text_clear(&f->config);
    ek_text_clear(&f->text);
}

/* Part of a file name: what is not a letter, digit, dot, plus, minus or underscore becomes `with`.
 */
static void add_word(char *path, size_t size, const char *word, char with)
{
    size_t n = strlen(path);

    for (; *word && n + 1 < size; word++)
        path[n++] = isalnum((unsigned char)*word) || strchr(".+-_", *word) ? *word : with;
    path[n] = 0;
}

static void model_name(const folders *f, char *path, size_t size)
{
    const char *slash = strrchr(f->model, '/');

    add_word(path, size, slash ? slash + 1 : f->model, '_');
}

/* Write f->text as folder/name. */
static ek_code write_text(folders *f, const char *folder, const char *name, ek_err *err)
{
    char path[1200];

    if (f->text.failed)
        return no_memory(err);
    EK_TRY(ek_make_folder(folder, err));
    snprintf(path, sizeof path, "%s/%s", folder, name);
    EK_TRY(ek_file_write(path, f->text.data ? f->text.data : "", f->text.size, err));
    ek_text_add(f->out, "%s\n", path);
    ek_text_clear(&f->text);
    return EK_OK;
}

/* ---- kvpress ---- */

static ek_code take_prediction(void *ctx, int n, const char *const *name, const ek_sql *v,
                               ek_err *err)
{
    folders *f = ctx;

    (void)err;
    if (f->rows++ == 0)
        for (int i = 0; i < n; i++)
            ek_text_add(&f->text, "%s%s", name[i], i == n - 1 ? "\n" : ",");
    for (int i = 0; i < n; i++) {
        ek_export_csv(&f->text, &v[i]);
        ek_text_add(&f->text, i == n - 1 ? "\n" : ",");
    }
    return EK_OK;
}

static ek_code take_double(void *ctx, int n, const char *const *name, const ek_sql *v, ek_err *err)
{
    (void)n, (void)name, (void)err;
    *(double *)ctx = v[0].kind == EK_SQL_NULL ? NAN : v[0].r;
    return EK_OK;
}

static ek_code take_number(void *ctx, int n, const char *const *name, const ek_sql *v, ek_err *err)
{
    folders *f = ctx;

    (void)n, (void)name, (void)err;
    ek_text_add(&f->text, "%s", f->rows++ ? ", " : "");
    ek_export_json(&f->text, &v[0]);
    ek_text_add(&f->text, ": ");
    ek_export_json(&f->text, &v[1]);
    return EK_OK;
}

/* metrics.json in the form its readers expect of the suite; other suites: name -> number. */
static ek_code kvpress_metrics(folders *f, const cell_of *c, ek_err *err)
{
    static const char mean[] = "SELECT avg(score) FROM sample WHERE cell = ?1";
    static const char all[] = "SELECT name, value FROM metric WHERE cell = ?1 AND name NOT LIKE"
                              " 'delta:%' AND name NOT LIKE 'pct_of_full:%' ORDER BY name";
    const ek_sql p = ek_sql_int(c->id);
    double score = NAN;

    EK_TRY(ek_store_sql(f->store, mean, &p, 1, take_double, &score, err));
    if (strcmp(c->suite, "ruler") == 0 && !isnan(score)) {
        ek_text_add(&f->text, "{");
        ek_text_json(&f->text, c->task, strlen(c->task));
        ek_text_add(&f->text, ": {\"string_match\": %.2f}}\n", 100 * score);
    } else if (strcmp(c->suite, "longbench") == 0 && !isnan(score)) {
        ek_text_add(&f->text, "%.2f\n", 100 * score);
    } else {
        f->rows = 0;
        ek_text_add(&f->text, "{");
        EK_TRY(ek_store_sql(f->store, all, &p, 1, take_number, f, err));
        ek_text_add(&f->text, "}\n");
    }
    return EK_OK;
}

static void kvpress_folder(const folders *f, const cell_of *c, char *path, size_t size)
{
    char more[120];

    snprintf(path, size, "%s/", f->how->path);
    add_word(path, size, c->suite, '-');
    add_word(path, size, "__", '_');
    if (c->length) {
        snprintf(more, sizeof more, "%lld__", (long long)c->length);
        add_word(path, size, more, '_');
    } else {
        add_word(path, size, c->task, '-');
        add_word(path, size, "__", '_');
    }
    model_name(f, path, size);
    snprintf(more, sizeof more, "__%s__%.2f",
             strcmp(c->method, "full") == 0 ? "no_press" : c->method,
             strcmp(c->method, "full") == 0 || isnan(c->keep) ? 0 : 1 - c->keep);
    add_word(path, size, more, '-');
    if (c->query_aware)
        add_word(path, size, "__query_aware", '_');
    snprintf(more, sizeof more, "__seed%lld", (long long)c->seed);
    add_word(path, size, more, '_');
    if (c->length) { /* several tasks share a length: each has its own folder below */
        add_word(path, size, "/", '/');
        add_word(path, size, c->task, '-');
    }
}

ek_code ek_export_kvpress(ek_store *store, const ek_export *how, ek_text *out, ek_err *err)
{
    static const char predictions[] =
        "SELECT s.doc_id AS id, c.task, s.reference AS answer, s.n_prompt AS length,"
        " s.prediction AS predicted_answer, round(1 - coalesce(c.keep, s.keep_mean, 1), 6) AS"
        " compression_ratio, s.score FROM sample s JOIN cell c ON c.id = s.cell WHERE s.cell = ?1"
        " ORDER BY s.doc_id, s.rep";
    folders f;
    ek_code code = open_folders(&f, store, how, out, err);

    for (int i = 0; code == EK_OK && i < f.n; i++) {
        const ek_sql p = ek_sql_int(f.cell[i].id);
        char folder[1000];

        kvpress_folder(&f, &f.cell[i], folder, sizeof folder);
        f.rows = 0;
        code = ek_store_sql(store, predictions, &p, 1, take_prediction, &f, err);
        if (code != EK_OK || f.rows == 0)
            continue;
        code = write_text(&f, folder, "predictions.csv", err);
        if (code == EK_OK)
            code = kvpress_metrics(&f, &f.cell[i], err);
        if (code == EK_OK)
            code = write_text(&f, folder, "metrics.json", err);
        ek_text_add(&f.text, "%s", f.config.data ? f.config.data : "");
        if (code == EK_OK)
            code = write_text(&f, folder, "config.yaml", err);
    }
    close_folders(&f);
    return code;
}

/* ---- lm-eval ---- */

static ek_code take_metric(void *ctx, int n, const char *const *name, const ek_sql *v, ek_err *err)
{
    folders *f = ctx;
    char key[300];

    (void)n, (void)name, (void)err;
    /* Shares leave the table of percents and become 0 .. 1. */
    const double scale = v[1].kind == EK_SQL_TEXT && strcmp(v[1].text, "percent") == 0 ? 0.01 : 1;
    ek_sql value = v[2], se = v[3];

    value.r *= scale;
    se.r *= scale;
    value.kind = v[2].kind == EK_SQL_NULL ? EK_SQL_NULL : EK_SQL_REAL;
    se.kind = v[3].kind == EK_SQL_NULL ? EK_SQL_NULL : EK_SQL_REAL;
    snprintf(key, sizeof key, "%s,none", v[0].text);
    ek_text_add(&f->text, ", ");
    ek_text_json(&f->text, key, strlen(key));
    ek_text_add(&f->text, ": ");
    ek_export_json(&f->text, &value);
    snprintf(key, sizeof key, "%s_stderr,none", v[0].text);
    ek_text_add(&f->text, ", ");
    ek_text_json(&f->text, key, strlen(key));
    ek_text_add(&f->text, ": ");
    ek_export_json(&f->text, &se);
    return EK_OK;
}

static ek_code take_doc(void *ctx, int n, const char *const *name, const ek_sql *v, ek_err *err)
{
    folders *f = ctx;
    char hash[65];

    (void)n, (void)name, (void)err;
    ek_text_add(&f->text, "{\"doc_id\": %d, \"doc\": {\"id\": ", f->rows++);
    ek_export_json(&f->text, &v[0]);
    ek_text_add(&f->text, "}, \"target\": ");
    ek_export_json(&f->text, &v[1]);
    ek_text_add(&f->text, ", \"arguments\": [], \"resps\": [[");
    ek_export_json(&f->text, &v[2]);
    ek_text_add(&f->text, "]], \"filtered_resps\": [");
    ek_export_json(&f->text, &v[3]);
    ek_text_add(&f->text, "], \"filter\": \"none\", \"metrics\": [\"score\"], \"score\": ");
    ek_export_json(&f->text, &v[4]);
    ek_sha256(hash, v[0].text ? v[0].text : "", v[0].size);
    ek_text_add(&f->text, ", \"doc_hash\": \"%s\", \"prompt_hash\": ", hash);
    ek_export_json(&f->text, &v[5]);
    ek_sha256(hash, v[1].text ? v[1].text : "", v[1].size);
    ek_text_add(&f->text, ", \"target_hash\": \"%s\"}\n", hash);
    return EK_OK;
}

static void task_key(const cell_of *c, char out[200])
{
    *out = 0;
    add_word(out, 200, c->suite, '-');
    add_word(out, 200, "_", '_');
    add_word(out, 200, c->task, '-');
    if (c->length)
        snprintf(out + strlen(out), 200 - strlen(out), "_%lld", (long long)c->length);
}

/* One object over the policy's tasks: "name": {"task": ...}. */
static ek_code lm_eval_part(folders *f, const cell_of *like, const char *name, const char *sql,
                            ek_row_fn row, ek_err *err)
{
    int n = 0;

    ek_text_add(&f->text, ",\n \"%s\": {", name);
    for (int i = 0; i < f->n; i++) {
        const cell_of *c = &f->cell[i];
        const ek_sql p = ek_sql_int(c->id);
        char key[200];

        if (strcmp(c->policy, like->policy) != 0 || c->query_aware != like->query_aware ||
            c->seed != like->seed)
            continue;
        task_key(c, key);
        ek_text_add(&f->text, "%s\n  ", n++ ? "," : "");
        ek_text_json(&f->text, key, strlen(key));
        ek_text_add(&f->text, ": ");
        if (row == take_metric)
            ek_text_add(&f->text, "{\"alias\": \"%s\"", key);
        EK_TRY(ek_store_sql(f->store, sql, &p, 1, row, f, err));
        if (row == take_metric)
            ek_text_add(&f->text, "}");
    }
    ek_text_add(&f->text, "}");
    return EK_OK;
}

static ek_code take_raw(void *ctx, int n, const char *const *name, const ek_sql *v, ek_err *err)
{
    (void)n, (void)name, (void)err;
    ek_text_add(&((folders *)ctx)->text, "%s", v[0].text ? v[0].text : "null");
    return EK_OK;
}

static ek_code lm_eval_results(folders *f, const cell_of *c, ek_err *err)
{
    static const char metrics[] =
        "SELECT name, unit, value, stderr FROM metric WHERE cell = ?1 AND name NOT LIKE 'delta:%'"
        " AND name NOT LIKE 'pct_of_full:%' ORDER BY name";
    static const char counts[] = "SELECT printf('{\"original\": %d, \"effective\": %d}', count(*),"
                                 " count(*)) FROM sample WHERE cell = ?1";
    static const char version[] = "SELECT '1' WHERE ?1";
    static const char shots[] = "SELECT '0' WHERE ?1";

    ek_text_add(&f->text, "{\"config\": {\"model\": ");
    ek_text_json(&f->text, f->model, strlen(f->model));
    ek_text_add(&f->text, ", \"policy\": ");
    ek_text_json(&f->text, c->policy, strlen(c->policy));
    ek_text_add(&f->text, ", \"yaml\": ");
    ek_text_json(&f->text, f->config.data ? f->config.data : "", f->config.size);
    ek_text_add(&f->text, "},\n \"git_hash\": ");
    ek_text_json(&f->text, f->revision, strlen(f->revision));
    ek_text_add(&f->text, ", \"date\": ");
    ek_text_json(&f->text, f->created, strlen(f->created));
    ek_text_add(&f->text, ", \"chat_template\": null, \"groups\": {}, \"group_subtasks\": {},"
                          " \"configs\": {}, \"higher_is_better\": {}");
    EK_TRY(lm_eval_part(f, c, "results", metrics, take_metric, err));
    EK_TRY(lm_eval_part(f, c, "versions", version, take_raw, err));
    EK_TRY(lm_eval_part(f, c, "n-shot", shots, take_raw, err));
    EK_TRY(lm_eval_part(f, c, "n-samples", counts, take_raw, err));
    ek_text_add(&f->text, "}\n");
    return EK_OK;
}

static ek_code lm_eval_policy(folders *f, const cell_of *like, ek_err *err)
{
    static const char docs[] =
        "SELECT doc_id, reference, prediction, parsed, score, prompt_hash FROM sample"
        " WHERE cell = ?1 ORDER BY doc_id, rep";
    char folder[1000], time[40], name[300], key[200];

    snprintf(folder, sizeof folder, "%s/", f->how->path);
    model_name(f, folder, sizeof folder);
    add_word(folder, sizeof folder, "__", '_');
    add_word(folder, sizeof folder, like->policy, '-');
    snprintf(name, sizeof name, "__seed%lld%s", (long long)like->seed,
             like->query_aware ? "__query_aware" : "");
    add_word(folder, sizeof folder, name, '-');
    snprintf(time, sizeof time, "%s", f->finished);
    for (char *c = time; *c; c++)
        if (*c == ':')
            *c = '-';
    EK_TRY(lm_eval_results(f, like, err));
    snprintf(name, sizeof name, "results_%s.json", time);
    EK_TRY(write_text(f, folder, name, err));
    for (int i = 0; i < f->n; i++) {
        const cell_of *c = &f->cell[i];
        const ek_sql p = ek_sql_int(c->id);

        if (strcmp(c->policy, like->policy) != 0 || c->query_aware != like->query_aware ||
            c->seed != like->seed)
            continue;
        f->rows = 0;
        EK_TRY(ek_store_sql(f->store, docs, &p, 1, take_doc, f, err));
        task_key(c, key);
        snprintf(name, sizeof name, "samples_%s_%s.jsonl", key, time);
        EK_TRY(write_text(f, folder, name, err));
    }
    return EK_OK;
}

ek_code ek_export_lm_eval(ek_store *store, const ek_export *how, ek_text *out, ek_err *err)
{
    folders f;
    ek_code code = open_folders(&f, store, how, out, err);

    for (int i = 0; code == EK_OK && i < f.n; i++) {
        int known = 0;

        for (int j = 0; !known && j < i; j++)
            known = strcmp(f.cell[j].policy, f.cell[i].policy) == 0 &&
                    f.cell[j].query_aware == f.cell[i].query_aware &&
                    f.cell[j].seed == f.cell[i].seed;
        if (!known)
            code = lm_eval_policy(&f, &f.cell[i], err);
    }
    close_folders(&f);
    return code;
}
