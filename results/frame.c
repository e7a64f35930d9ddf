/* results/frame.c - see frame.h. */
#include "results/frame.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Columns of sample that are numbers worth a mean; the first is the task's score. */
static const char *const column[] = {"score",         "kept_mean",   "keep_mean",  "kv_bytes_mean",
                                     "kv_bytes_peak", "state_bytes", "prefill_ns", "ttft_ns",
                                     "itl_ns",        "score_ns"};

typedef struct loading {
    ek_frame *f;
    int first; /* cell of this load */
    int cell;  /* walking through cells and points in the order of the query */
    int point;
} loading;

static ek_code no_memory(ek_err *err)
{
    return EK_FAIL(err, EK_ENOMEM, "samples: out of memory");
}

static void *grow(void *items, int *room, int n, size_t size)
{
    void *more;

    if (n < *room)
        return items;
    *room = *room ? 2 * *room : 16;
    more = realloc(items, (size_t)*room * size);
    return more;
}

static char *text_of(const ek_sql *v)
{
    return v->kind == EK_SQL_TEXT && v->text ? strdup(v->text) : NULL;
}

static int64_t int_of(const ek_sql *v)
{
    return v->kind == EK_SQL_INT ? v->i : EK_NONE;
}

static double real_of(const ek_sql *v)
{
    return v->kind == EK_SQL_INT || v->kind == EK_SQL_REAL ? v->r : NAN;
}

static ek_code add_name(ek_frame *f, const char *name, ek_err *err)
{
    char **more;

    if (ek_frame_name(f, name) >= 0)
        return EK_OK;
    more = realloc(f->name, (size_t)(f->n_names + 1) * sizeof *more);
    if (!more)
        return no_memory(err);
    f->name = more;
    if (!(f->name[f->n_names] = strdup(name)))
        return no_memory(err);
    f->n_names++;
    return EK_OK;
}

static ek_code take_name(void *ctx, int n, const char *const *name, const ek_sql *v, ek_err *err)
{
    (void)n, (void)name;
    return add_name(((loading *)ctx)->f, v[0].text, err);
}

static ek_code take_cell(void *ctx, int n, const char *const *name, const ek_sql *v, ek_err *err)
{
    ek_frame *f = ((loading *)ctx)->f;
    ek_frame_cell *c, *more = grow(f->cell, &f->room, f->n_cells, sizeof *f->cell);

    (void)n, (void)name;
    if (!more)
        return no_memory(err);
    f->cell = more;
    c = &f->cell[f->n_cells++];
    memset(c, 0, sizeof *c);
    c->id = v[0].i;
    snprintf(c->run, sizeof c->run, "%s", v[1].text);
    c->suite = text_of(&v[2]);
    c->task = text_of(&v[3]);
    c->variant = text_of(&v[4]);
    c->length = v[5].i;
    c->method = text_of(&v[6]);
    c->policy = text_of(&v[7]);
    c->learned = (int)v[8].i;
    c->keep = real_of(&v[9]);
    c->keep_of = text_of(&v[10]);
    c->entries = int_of(&v[11]);
    c->bytes = int_of(&v[12]);
    c->query_aware = (int)v[13].i;
    c->seed = v[14].i;
    c->base = int_of(&v[15]);
    return c->suite && c->task && c->variant && c->method && c->policy ? EK_OK : no_memory(err);
}

/* Queries come ordered by cell, doc_id, rep. */
static ek_code take_point(void *ctx, int n, const char *const *name, const ek_sql *v, ek_err *err)
{
    loading *l = ctx;
    ek_frame_cell *c;
    ek_point *p, *more;

    (void)n, (void)name;
    while (l->cell < l->f->n_cells && l->f->cell[l->cell].id != v[1].i)
        l->cell++;
    if (l->cell == l->f->n_cells)
        return EK_FAIL(err, EK_EBROKEN, "samples of cell %lld came unsorted", (long long)v[1].i);
    c = &l->f->cell[l->cell];
    more = grow(c->point, &c->room, c->n, sizeof *c->point);
    if (!more)
        return no_memory(err);
    c->point = more;
    p = &c->point[c->n++];
    memset(p, 0, sizeof *p);
    p->id = v[0].i;
    p->rep = v[2].i;
    p->doc_id = text_of(&v[3]);
    p->cluster = text_of(&v[4]);
    p->prompt_hash = text_of(&v[5]);
    p->value = malloc((size_t)l->f->n_names * sizeof *p->value);
    if (!p->doc_id || !p->cluster || !p->prompt_hash || !p->value)
        return no_memory(err);
    for (int i = 0; i < l->f->n_names; i++)
        p->value[i] = NAN;
    for (size_t i = 0; i < EK_COUNT(column); i++)
        p->value[i] = real_of(&v[6 + i]);
    return EK_OK;
}

static ek_code take_value(void *ctx, int n, const char *const *name, const ek_sql *v, ek_err *err)
{
    loading *l = ctx;

    (void)n, (void)name;
    for (; l->cell < l->f->n_cells; l->cell++, l->point = 0) {
        ek_frame_cell *c = &l->f->cell[l->cell];

        for (; l->point < c->n; l->point++) {
            const int at = ek_frame_name(l->f, v[1].text);

            if (c->point[l->point].id != v[0].i)
                continue;
            if (at >= 0)
                c->point[l->point].value[at] = v[2].r;
            return EK_OK;
        }
    }
    return EK_FAIL(err, EK_EBROKEN, "a value of sample %lld came unsorted", (long long)v[0].i);
}

/* Points of earlier loads get room for names that came later. */
static ek_code widen(ek_frame *f, int old, ek_err *err)
{
    for (int i = 0; old < f->n_names && i < f->n_cells; i++) {
        for (int j = 0; j < f->cell[i].n; j++) {
            ek_point *p = &f->cell[i].point[j];
            double *more = realloc(p->value, (size_t)f->n_names * sizeof *more);

            if (!more)
                return no_memory(err);
            p->value = more;
            for (int k = old; k < f->n_names; k++)
                p->value[k] = NAN;
        }
    }
    return EK_OK;
}

static ek_code load(ek_frame *f, ek_store *store, const char *run, ek_err *err)
{
    static const char names[] = "SELECT DISTINCT v.name FROM cell c JOIN sample s ON s.cell = c.id"
                                " JOIN sample_value v ON v.sample = s.id"
                                " WHERE ?1 IS NULL OR c.run = ?1 ORDER BY v.name";
    static const char cells[] =
        "SELECT id, run, suite, task, variant, length, method, policy, learned, keep, keep_of,"
        " entries, bytes, query_aware, seed, base FROM cell WHERE ?1 IS NULL OR run = ?1"
        " ORDER BY id";
    static const char points[] =
        "SELECT s.id, s.cell, s.rep, s.doc_id, s.cluster, s.prompt_hash, s.score, s.kept_mean,"
        " s.keep_mean, s.kv_bytes_mean, s.kv_bytes_peak, s.state_bytes, s.prefill_ns, s.ttft_ns,"
        " s.itl_ns, s.score_ns FROM cell c JOIN sample s ON s.cell = c.id"
        " WHERE ?1 IS NULL OR c.run = ?1 ORDER BY s.cell, s.doc_id, s.rep";
    static const char values[] =
        "SELECT s.id, v.name, v.value FROM cell c JOIN sample s ON s.cell = c.id"
        " JOIN sample_value v ON v.sample = s.id WHERE ?1 IS NULL OR c.run = ?1"
        " ORDER BY s.cell, s.doc_id, s.rep, v.name";
    const ek_sql p = ek_sql_text(run);
    const int old = f->n_names;
    loading l = {.f = f, .first = f->n_cells};

    for (size_t i = 0; i < EK_COUNT(column); i++)
        EK_TRY(add_name(f, column[i], err));
    EK_TRY(ek_store_sql(store, names, &p, 1, take_name, &l, err));
    EK_TRY(widen(f, old, err));
    EK_TRY(ek_store_sql(store, cells, &p, 1, take_cell, &l, err));
    l.cell = l.first;
    EK_TRY(ek_store_sql(store, points, &p, 1, take_point, &l, err));
    l.cell = l.first;
    return ek_store_sql(store, values, &p, 1, take_value, &l, err);
}

/* One moment of the file, though another process may be writing. */
ek_code ek_frame_load(ek_frame *f, ek_store *store, const char *run, ek_err *err)
{
    ek_code code;

    EK_TRY(ek_store_sql(store, "BEGIN", NULL, 0, NULL, NULL, err));
    code = load(f, store, run, err);
    ek_store_rollback(store);
    return code;
}

void ek_frame_clear(ek_frame *f)
{
    for (int i = 0; i < f->n_cells; i++) {
        ek_frame_cell *c = &f->cell[i];

        for (int j = 0; j < c->n; j++) {
            free(c->point[j].doc_id);
            free(c->point[j].cluster);
            free(c->point[j].prompt_hash);
            free(c->point[j].value);
        }
        free(c->point);
        free(c->suite);
        free(c->task);
        free(c->variant);
        free(c->method);
        free(c->policy);
        free(c->keep_of);
    }
    for (int i = 0; i < f->n_names; i++)
        free(f->name[i]);
    free(f->cell);
    free(f->name);
    memset(f, 0, sizeof *f);
}

const ek_frame_cell *ek_frame_find(const ek_frame *f, int64_t id)
{
    for (int i = 0; i < f->n_cells; i++)
        if (f->cell[i].id == id)
            return &f->cell[i];
    return NULL;
}

int ek_frame_name(const ek_frame *f, const char *name)
{
    for (int i = 0; i < f->n_names; i++)
        if (strcmp(f->name[i], name) == 0)
            return i;
    return -1;
}

/* ---- pairs ---- */

typedef struct both {
    const char *cluster;
    double x, base;
    int order;
} both;

static int by_cluster(const void *a, const void *b)
{
    const both *x = a, *y = b;
    const int c = strcmp(x->cluster, y->cluster);

    return c ? c : (x->order > y->order) - (x->order < y->order);
}

static int compare_points(const ek_point *a, const ek_point *b)
{
    const int c = strcmp(a->doc_id, b->doc_id);

    return c ? c : (a->rep > b->rep) - (a->rep < b->rep);
}

static double shown(const ek_metric *m, double stored)
{
    if (m->mean == EK_MEAN_LOG)
        return stored > 0 ? log(stored * m->scale) : NAN;
    return stored * m->scale;
}

/* The samples both have, with the number in both. */
static int merge(both *out, const ek_frame_cell *cell, const ek_frame_cell *base, int name,
                 const ek_metric *m)
{
    int n = 0, j = 0;

    for (int i = 0; i < cell->n; i++) {
        const ek_point *p = &cell->point[i];
        double x = shown(m, p->value[name]), y = 0;

        if (base) {
            while (j < base->n && compare_points(&base->point[j], p) < 0)
                j++;
            if (j == base->n)
                break;
            if (compare_points(&base->point[j], p) != 0)
                continue;
            y = shown(m, base->point[j].value[name]);
        }
        if (isnan(x) || isnan(y))
            continue;
        out[n] = (both){p->cluster, x, y, n};
        n++;
    }
    return n;
}

ek_code ek_frame_pair(const ek_frame *f, const ek_frame_cell *cell, const ek_frame_cell *base,
                      int name, ek_pairing *out, ek_err *err)
{
    const ek_metric *m = ek_metric_find(f->name[name]);
    both *all = malloc((size_t)(cell->n + 1) * sizeof *all);
    double *count, *sum, *other;
    int p = -1;

    if (all && cell->n > out->room) {
        free(out->mem);
        out->room = cell->n;
        out->mem = malloc((size_t)out->room * 3 * sizeof *out->mem);
    }
    if (!all || (cell->n > 0 && !out->mem)) {
        free(all);
        out->room = 0;
        return no_memory(err);
    }
    out->n = merge(all, cell, base, name, m);
    qsort(all, (size_t)out->n, sizeof *all, by_cluster);
    count = out->mem;
    sum = count + out->room;
    other = sum + out->room;
    out->lost = out->gained = 0;
    out->binary = strcmp(f->name[name], "score") == 0;
    for (int i = 0; i < out->n; i++) {
        if (i == 0 || strcmp(all[i].cluster, all[i - 1].cluster) != 0) {
            p++;
            count[p] = sum[p] = other[p] = 0;
        } else {
            out->binary = 0;
        }
        out->lost += base && all[i].base == m->scale && all[i].x < m->scale;
        out->gained += base && all[i].x == m->scale && all[i].base < m->scale;
        count[p] += 1;
        sum[p] += all[i].x;
        other[p] += all[i].base;
        out->binary &= all[i].x == 0 || all[i].x == m->scale;
    }
    out->c = (ek_clusters){.n = p + 1,
                           .count = count,
                           .sum = sum,
                           .base = base ? other : NULL,
                           .log = m->mean == EK_MEAN_LOG};
    free(all);
    return EK_OK;
}
