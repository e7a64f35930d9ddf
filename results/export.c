/* results/export.c - csv, jsonl and markdown from the database. */
#include "results/metric.h"
#include "results/report.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static ek_code no_memory(ek_err *err)
{
    return EK_FAIL(err, EK_ENOMEM, "export: out of memory");
}

static ek_code no_aggregates(const char *run, ek_err *err)
{
    return EK_FAIL(
        err, EK_EASKED,
        "run %.8s has no aggregates; `evictkit results rebuild %.8s` makes them from its "
        "samples",
        run, run);
}

static void number(ek_text *out, double x)
{
    char text[40];

    for (int digits = 15; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, x);
        if (strtod(text, NULL) == x)
            break;
    }
    ek_text_add(out, "%s", text);
}

void ek_export_csv(ek_text *out, const ek_sql *v)
{
    if (v->kind == EK_SQL_INT) {
        ek_text_add(out, "%lld", (long long)v->i);
    } else if (v->kind == EK_SQL_REAL) {
        number(out, v->r);
    } else if (v->kind == EK_SQL_TEXT && v->text) {
        if (!v->text[strcspn(v->text, ",\"\r\n")]) {
            ek_text_add(out, "%s", v->text);
            return;
        }
        ek_text_add(out, "\"");
        for (const char *c = v->text; *c; c++)
            ek_text_add(out, "%s%c", *c == '"' ? "\"" : "", *c);
        ek_text_add(out, "\"");
    }
}

void ek_export_json(ek_text *out, const ek_sql *v)
{
    if (v->kind == EK_SQL_INT)
        ek_text_add(out, "%lld", (long long)v->i);
    else if (v->kind == EK_SQL_REAL && isfinite(v->r))
        number(out, v->r);
    else if (v->kind == EK_SQL_TEXT && v->text)
        ek_text_json(out, v->text, v->size);
    else
        ek_text_add(out, "null");
}

/* ---- csv ---- */

typedef struct csv {
    const ek_export *how;
    ek_text *out;
    int found, rows;
} csv;

/* Is it of a metric that was named, if any was? */
static int is_wanted(const ek_export *how, int n, const char *const *name, const ek_sql *v)
{
    if (how->n_metrics == 0)
        return 1;
    for (int i = 0; i < n; i++)
        for (int k = 0; strcmp(name[i], "name") == 0 && k < how->n_metrics; k++)
            if (strcmp(v[i].text, how->metric[k]) == 0)
                return 1;
    return 0;
}

static ek_code take_csv(void *ctx, int n, const char *const *name, const ek_sql *v, ek_err *err)
{
    csv *c = ctx;

    (void)err;
    c->found++;
    if (!is_wanted(c->how, n, name, v))
        return EK_OK;
    for (int i = 0; c->rows == 0 && i < n; i++)
        ek_text_add(c->out, "%s%s", i ? "," : "", name[i]);
    if (c->rows++ == 0)
        ek_text_add(c->out, "\n");
    for (int i = 0; i < n; i++) {
        if (i)
            ek_text_add(c->out, ",");
        ek_export_csv(c->out, &v[i]);
    }
    ek_text_add(c->out, "\n");
    return EK_OK;
}

static ek_code export_csv(ek_store *store, const ek_export *how, ek_text *out, ek_err *err)
{
    static const char sql[] = "SELECT * FROM v_score WHERE run = ?1 ORDER BY cell, name";
    csv c = {.how = how, .out = out};

    for (int i = -1; i < how->n_also; i++) {
        const char *run = i < 0 ? how->run : how->also[i];
        const ek_sql p = ek_sql_text(run);
        const int before = c.found;

        EK_TRY(ek_store_sql(store, sql, &p, 1, take_csv, &c, err));
        if (c.found == before)
            return no_aggregates(run, err);
    }
    if (c.rows == 0)
        return EK_FAIL(err, EK_EASKED, "run %.8s has no metric %s", how->run, how->metric[0]);
    return EK_OK;
}

/* ---- jsonl ---- */

typedef struct jsonl {
    ek_store *store;
    ek_text *out;
    int values;
} jsonl;

static ek_code take_value(void *ctx, int n, const char *const *name, const ek_sql *v, ek_err *err)
{
    jsonl *j = ctx;

    (void)n, (void)name, (void)err;
    if (j->values++)
        ek_text_add(j->out, ", ");
    ek_export_json(j->out, &v[0]);
    ek_text_add(j->out, ": ");
    ek_export_json(j->out, &v[1]);
    return EK_OK;
}

static ek_code take_sample(void *ctx, int n, const char *const *name, const ek_sql *v, ek_err *err)
{
    static const char values[] =
        "SELECT name, value FROM sample_value WHERE sample = ?1 ORDER BY name";
    jsonl *j = ctx;

    ek_text_add(j->out, "{");
    for (int i = 1; i < n; i++) {
        ek_text_json(j->out, name[i], strlen(name[i]));
        ek_text_add(j->out, ": ");
        /* A JSON array goes out as one, not as a string that holds one. */
        if (strcmp(name[i], "reference") == 0 && v[i].kind == EK_SQL_TEXT) {
            ek_json *array;
            ek_err bad;

            if (ek_json_parse(&array, v[i].text, v[i].size, "reference", &bad) == EK_OK) {
                ek_json_close(array);
                ek_text_add(j->out, "%s, ", v[i].text);
                continue;
            }
        }
        ek_export_json(j->out, &v[i]);
        ek_text_add(j->out, ", ");
    }
    j->values = 0;
    ek_text_add(j->out, "\"values\": {");
    EK_TRY(ek_store_sql(j->store, values, &v[0], 1, take_value, j, err));
    ek_text_add(j->out, "}}\n");
    return EK_OK;
}

static ek_code export_jsonl(ek_store *store, const char *run, ek_text *out, ek_err *err)
{
    static const char sql[] =
        "SELECT s.id, c.run, c.suite, c.task, c.variant, c.length, c.method, c.policy, c.learned,"
        " c.keep, c.keep_of, c.entries, c.bytes, c.query_aware, c.seed, s.doc_id, s.rep, s.cluster,"
        " s.prompt_hash, s.n_original, s.n_prompt, s.n_gen, s.stop_reason, s.prediction, s.parsed,"
        " s.reference, s.flag, s.score, s.kept_asked, s.kept_min, s.kept_mean, s.kept_max,"
        " s.keep_mean, s.kv_bytes_mean, s.kv_bytes_peak, s.state_bytes, s.prefill_ns, s.ttft_ns,"
        " s.itl_ns, s.score_ns, s.error FROM cell c JOIN sample s ON s.cell = c.id"
        " WHERE c.run = ?1 ORDER BY c.id, s.doc_id, s.rep";
    const ek_sql p = ek_sql_text(run);
    jsonl j = {.store = store, .out = out};

    return ek_store_sql(store, sql, &p, 1, take_sample, &j, err);
}

/* ---- markdown ---- */

typedef struct score {
    char suite[80], task[80], variant[40], name[80], method[80], budget[64], mark[8];
    int64_t length;
    double value, se, keep, order; /* order: of the budget, full first */
} score;

typedef struct scores {
    score *row;
    int n, room;
    const ek_export *how;
} scores;

static void copy(char *to, size_t size, const ek_sql *v)
{
    snprintf(to, size, "%s", v->kind == EK_SQL_TEXT && v->text ? v->text : "");
}

static double real_of(const ek_sql *v)
{
    return v->kind == EK_SQL_REAL || v->kind == EK_SQL_INT ? v->r : NAN;
}

static ek_code take_score(void *ctx, int n, const char *const *name, const ek_sql *v, ek_err *err)
{
    scores *s = ctx;
    score *r;

    (void)n, (void)name;
    if (s->n == s->room) {
        const int room = s->room ? 2 * s->room : 128;
        score *more = realloc(s->row, (size_t)room * sizeof *more);

        if (!more)
            return no_memory(err);
        s->row = more;
        s->room = room;
    }
    r = &s->row[s->n];
    copy(r->suite, sizeof r->suite, &v[0]);
    copy(r->task, sizeof r->task, &v[1]);
    r->length = v[2].i;
    copy(r->name, sizeof r->name, &v[3]);
    copy(r->method, sizeof r->method, &v[4]);
    r->value = real_of(&v[8]);
    r->se = sqrt(real_of(&v[9])) / v[12].r;
    copy(r->variant, sizeof r->variant, &v[13]);
    copy(r->mark, sizeof r->mark, &v[10]);
    r->keep = real_of(&v[11]);
    if (v[5].kind != EK_SQL_NULL)
        snprintf(r->budget, sizeof r->budget, "keep %g", v[5].r), r->order = 1 - v[5].r;
    else if (v[6].kind != EK_SQL_NULL)
        snprintf(r->budget, sizeof r->budget, "%lld entries", (long long)v[6].i),
            r->order = 2 + 1 / (1 + v[6].r);
    else if (v[7].kind != EK_SQL_NULL)
        snprintf(r->budget, sizeof r->budget, "%lld bytes", (long long)v[7].i),
            r->order = 4 + 1 / (1 + v[7].r);
    else
        snprintf(r->budget, sizeof r->budget, "-"), r->order = -1;
    s->n++;
    return EK_OK;
}

/* Does the table show this row?  The metrics asked for, or each task's first main one. */
static int is_column(const scores *s, const score *r)
{
    const ek_metric *m = ek_metric_find(r->name);

    for (int i = 0; i < s->how->n_metrics; i++)
        if (strcmp(s->how->metric[i], r->name) == 0)
            return 1;
    if (s->how->n_metrics > 0 || !m->main)
        return 0;
    for (int i = 0; i < s->n; i++) {
        const score *x = &s->row[i];
        const ek_metric *other = ek_metric_find(x->name);

        if (strcmp(x->suite, r->suite) == 0 && strcmp(x->task, r->task) == 0 &&
            x->length == r->length && other->main && other < m)
            return 0;
    }
    return 1;
}

static int same_column(const score *a, const score *b)
{
    return strcmp(a->suite, b->suite) == 0 && strcmp(a->task, b->task) == 0 &&
           strcmp(a->variant, b->variant) == 0 && a->length == b->length &&
           strcmp(a->name, b->name) == 0;
}

static int same_line(const score *a, const score *b)
{
    return strcmp(a->method, b->method) == 0 && strcmp(a->budget, b->budget) == 0;
}

/* Positions of the first row of each distinct column (or line). */
static int distinct(const scores *s, const int *shown, int *first,
                    int (*same)(const score *, const score *))
{
    int n = 0;

    for (int i = 0; i < s->n; i++) {
        int known = !shown[i];

        for (int j = 0; !known && j < n; j++)
            known = same(&s->row[first[j]], &s->row[i]);
        if (!known)
            first[n++] = i;
    }
    return n;
}

static void markdown_line(const scores *s, const int *column, int n_columns, const score *line,
                          ek_text *out)
{
    double sum = 0;
    int n = 0, percent = 1;

    ek_text_add(out, "| %s | %s | ", line->method, line->budget);
    if (!isnan(line->keep))
        ek_text_add(out, "%.4f", line->keep);
    for (int c = 0; c < n_columns; c++) {
        const score *head = &s->row[column[c]], *r = NULL;
        const ek_metric *m = ek_metric_find(head->name);

        for (int i = 0; !r && i < s->n; i++)
            if (same_column(&s->row[i], head) && same_line(&s->row[i], line))
                r = &s->row[i];
        ek_text_add(out, " | ");
        percent &= m->scale == 100;
        if (!r || isnan(r->value))
            continue;
        sum += r->value;
        n++;
        ek_text_add(out, "%.*f", m->digits, r->value);
        if (!isnan(r->se) && r->se > 0)
            ek_text_add(out, " ± %.*f", m->digits, r->se);
        ek_text_add(out, "%s%s", *r->mark ? " " : "", r->mark);
    }
    if (percent && n_columns > 1 && n == n_columns)
        ek_text_add(out, " | %.2f", sum / n);
    else if (percent && n_columns > 1)
        ek_text_add(out, " | ");
    ek_text_add(out, " |\n");
}

static ek_code take_note(void *ctx, int n, const char *const *name, const ek_sql *v, ek_err *err)
{
    ek_text *out = ctx;

    (void)err;
    ek_text_add(out, "\n");
    for (int i = 0; i < n; i++) {
        ek_text_add(out, "%s%s ", i ? "; " : "", name[i]);
        if (v[i].kind == EK_SQL_TEXT && v[i].text)
            ek_text_add(out, "%s", v[i].text);
        else
            ek_text_add(out, "%lld", (long long)v[i].i);
    }
    ek_text_add(out, ".  `*` differs from full cache, `=` equal, `≈` not distinguishable"
                     " (paired bootstrap, Holm).\n");
    return EK_OK;
}

static ek_code markdown(const scores *s, ek_text *out, ek_err *err)
{
    int *shown = calloc(3 * (size_t)s->n + 3, sizeof *shown), n_columns, n_lines, percent = 1;
    int *column = shown + s->n + 1, *line = column + s->n + 1;

    if (!shown)
        return no_memory(err);
    for (int i = 0; i < s->n; i++)
        shown[i] = is_column(s, &s->row[i]);
    n_columns = distinct(s, shown, column, same_column);
    n_lines = distinct(s, shown, line, same_line);
    ek_text_add(out, "| method | budget | kept");
    for (int c = 0; c < n_columns; c++) {
        const score *x = &s->row[column[c]];

        percent &= ek_metric_find(x->name)->scale == 100;
        ek_text_add(out, " | %s%s%s", strcmp(x->suite, x->task) ? x->suite : "",
                    strcmp(x->suite, x->task) ? "/" : "", x->task);
        if (x->length)
            ek_text_add(out, " %lld", (long long)x->length);
        if (*x->variant)
            ek_text_add(out, " (%s)", x->variant);
        ek_text_add(out, ": %s", x->name);
    }
    ek_text_add(out, "%s |\n|---|---|---:", percent && n_columns > 1 ? " | average" : "");
    for (int c = 0; c < n_columns + (percent && n_columns > 1); c++)
        ek_text_add(out, "|---:");
    ek_text_add(out, "|\n");
    for (int i = 0; i < n_lines; i++)
        markdown_line(s, column, n_columns, &s->row[line[i]], out);
    free(shown);
    return EK_OK;
}

static int by_line(const void *x, const void *y)
{
    const score *a = x, *b = y;

    return (a->order > b->order) - (a->order < b->order);
}

/* A metric asked for by name is one that the run has. */
static ek_code check_metrics(const scores *s, ek_err *err)
{
    for (int i = 0; i < s->how->n_metrics; i++) {
        int found = 0;

        for (int j = 0; !found && j < s->n; j++)
            found = strcmp(s->how->metric[i], s->row[j].name) == 0;
        if (!found)
            return EK_FAIL(err, EK_EASKED, "run %.8s holds no metric \"%s\"", s->how->run,
                           s->how->metric[i]);
    }
    return EK_OK;
}

static ek_code export_md(ek_store *store, const ek_export *how, ek_text *out, ek_err *err)
{
    /* Several seeds of a cell: their mean; the error is that of independent parts. */
    static const char sql[] =
        "SELECT suite, task, length, name, method, keep, entries, bytes, avg(value),"
        " sum(stderr * stderr), CASE WHEN count(*) = 1 THEN max(mark) END,"
        " avg(keep_measured), count(*), variant FROM v_score WHERE run = ?1"
        " GROUP BY suite, task, variant, length, query_aware, policy, name ORDER BY min(cell), "
        "name";
    static const char note[] =
        "SELECT substr(r.id, 1, 8) AS run, r.model, r.kernel AS kernel,"
        " max(m.n) AS samples, count(DISTINCT c.seed) AS seeds, substr(r.model_hash, 1, 12) AS"
        " 'model hash' FROM run r JOIN cell c ON c.run = r.id JOIN metric m ON m.cell = c.id"
        " WHERE r.id = ?1 GROUP BY r.id";
    const ek_sql p = ek_sql_text(how->run);
    scores s = {.how = how};
    ek_code code = ek_store_sql(store, sql, &p, 1, take_score, &s, err);

    if (code == EK_OK && s.n == 0)
        code = no_aggregates(how->run, err);
    if (code == EK_OK)
        code = check_metrics(&s, err);
    if (code == EK_OK) {
        score *sorted = s.row;

        /* qsort is not stable everywhere; the order within a budget is found by position. */
        for (int i = 0; i < s.n; i++)
            sorted[i].order += i * 1e-9;
        qsort(sorted, (size_t)s.n, sizeof *sorted, by_line);
        code = markdown(&s, out, err);
    }
    free(s.row);
    EK_TRY(code);
    return ek_store_sql(store, note, &p, 1, take_note, out, err);
}

ek_code ek_report_export(ek_store *store, const ek_export *how, ek_text *out, ek_err *err)
{
    ek_code code;

    if (strcmp(how->form, "csv") == 0)
        code = export_csv(store, how, out, err);
    else if (strcmp(how->form, "jsonl") == 0)
        code = export_jsonl(store, how->run, out, err);
    else if (strcmp(how->form, "md") == 0)
        code = export_md(store, how, out, err);
    else if (strcmp(how->form, "kvpress") == 0)
        code = ek_export_kvpress(store, how, out, err);
    else if (strcmp(how->form, "lm-eval") == 0)
        code = ek_export_lm_eval(store, how, out, err);
    else
        code = EK_FAIL(err, EK_EASKED,
                       "export: found form \"%.20s\", expected csv, jsonl, md, kvpress or lm-eval",
                       how->form);
    return code == EK_OK && out->failed ? no_memory(err) : code;
}
