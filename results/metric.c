/* results/metric.c - the table of metrics, and table metric of the database made anew. */
#include "results/metric.h"

#include "results/frame.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* name, unit, better, mean, scale, close, floor, main, digits, help.  Main ones stand in the order
 * in which `results compare` shows them; the first that a task has decides its order of methods. */
const ek_metric ek_metrics[] = {
    {"score", "percent", +1, EK_MEAN_PLAIN, 100, 1, 1, 2, 2, "the task's own score"},
    {"Mean KLD", "nat", -1, EK_MEAN_PLAIN, 1, 0, 0, 2, 5,
     "Kullback-Leibler divergence of the next token from full cache, mean over predictions"},
    {"99% KLD", "nat", -1, EK_MEAN_PLAIN, 1, 0, 0, 1, 4,
     "its 99% point over the predictions of a document, mean over documents"},
    {"Mean PPL ratio", "ratio", -1, EK_MEAN_LOG, 1, 0.001, 0, 2, 4,
     "perplexity over that of full cache; documents are averaged in the log"},
    {"PPL", "ratio", -1, EK_MEAN_LOG, 1, 0, 0, 1, 3,
     "perplexity of the continuation; documents are averaged in the log"},
    {"Same top p", "percent", +1, EK_MEAN_PLAIN, 100, 1, 1, 2, 2,
     "share of predictions whose most likely token is full cache's"},
    {"FMM*", "percent", -1, EK_MEAN_PLAIN, 100, 1, 0, 1, 2,
     "Future Missed Mass: attention the next N queries of full cache pay to what is not kept"},
    {"recall*", "percent", +1, EK_MEAN_PLAIN, 100, 1, 1, 1, 2,
     "share of the oracle's top k that is kept"},
    {"needle kept", "percent", +1, EK_MEAN_PLAIN, 100, 1, 0, 1, 2,
     "share of the entries of what is asked for that are still held when the answer ends"},
    {"needle10", "ratio", +1, EK_MEAN_PLAIN, 1, 0.1, 0, 2, 2, "10 x ROUGE-1 F1 with the needle"},
    {"ln(PPL ratio)", "nat", -1, EK_MEAN_PLAIN, 1, 0.001, 0, 0, 5, "log of Mean PPL ratio"},
    {"PPL(base)", "ratio", -1, EK_MEAN_LOG, 1, 0, 0, 0, 3, "perplexity of full cache"},
    {"Cor(ln PPL)", "ratio", +1, EK_MEAN_PLAIN, 1, 0, 0, 0, 4,
     "correlation of the log probabilities with full cache's"},
    {"PPL difference", "ratio", -1, EK_MEAN_PLAIN, 1, 0, 0, 0, 4, "perplexity less full cache's"},
    {"Minimum KLD", "nat", -1, EK_MEAN_PLAIN, 1, 0, 0, 0, 5, "smallest over predictions"},
    {"1% KLD", "nat", -1, EK_MEAN_PLAIN, 1, 0, 0, 0, 5, "1% point over predictions"},
    {"10% KLD", "nat", -1, EK_MEAN_PLAIN, 1, 0, 0, 0, 5, "10% point over predictions"},
    {"Median KLD", "nat", -1, EK_MEAN_PLAIN, 1, 0, 0, 0, 5, "median over predictions"},
    {"90% KLD", "nat", -1, EK_MEAN_PLAIN, 1, 0, 0, 0, 4, "90% point over predictions"},
    {"95% KLD", "nat", -1, EK_MEAN_PLAIN, 1, 0, 0, 0, 4, "95% point over predictions"},
    {"99.9% KLD", "nat", -1, EK_MEAN_PLAIN, 1, 0, 0, 0, 4, "99.9% point over predictions"},
    {"Maximum KLD", "nat", -1, EK_MEAN_PLAIN, 1, 0, 0, 0, 4, "largest over predictions"},
    {"Mean Δp", "percent", 0, EK_MEAN_PLAIN, 100, 1, 0, 0, 3,
     "probability of the true token less full cache's"},
    {"RMS Δp", "percent", -1, EK_MEAN_PLAIN, 100, 1, 0, 0, 3, "its root mean square"},
    {"tok/s", "tok/s", +1, EK_MEAN_PLAIN, 1, 0, 0, 0, 1, "tokens per second"},
    {"kept_mean", "count", 0, EK_MEAN_PLAIN, 1, 0, 0, 0, 1, "entries per head, mean over steps"},
    {"keep_mean", "ratio", 0, EK_MEAN_PLAIN, 1, 0, 0, 0, 4, "kept / seen, mean over steps"},
    {"kv_bytes_mean", "bytes", -1, EK_MEAN_PLAIN, 1, 0, 0, 0, 0, "bytes of the cache"},
    {"kv_bytes_peak", "bytes", -1, EK_MEAN_PLAIN, 1, 0, 0, 0, 0, "most bytes of the cache"},
    {"state_bytes", "bytes", -1, EK_MEAN_PLAIN, 1, 0, 0, 0, 0, "bytes of the scorer's own state"},
    {"prefill_ns", "ns", -1, EK_MEAN_PLAIN, 1, 0, 0, 0, 0, "time of the prompt"},
    {"ttft_ns", "ns", -1, EK_MEAN_PLAIN, 1, 0, 0, 0, 0, "time to the first token"},
    {"itl_ns", "ns", -1, EK_MEAN_PLAIN, 1, 0, 0, 0, 0, "time between tokens"},
    {"score_ns", "ns", -1, EK_MEAN_PLAIN, 1, 0, 0, 0, 0, "time spent on scoring"},
    {NULL, NULL, 0, EK_MEAN_PLAIN, 0, 0, 0, 0, 0, NULL},
};

const ek_metric *ek_metric_find(const char *name)
{
    static const ek_metric unknown = {
        "*", "ratio", 0, EK_MEAN_PLAIN, 1, 0, 0, 0, 4, "a number the program has no words for"};

    for (const ek_metric *m = ek_metrics; m->name; m++) {
        const size_t n = strlen(m->name);

        if (m->name[n - 1] == '*' ? strncmp(m->name, name, n - 1) == 0 : strcmp(m->name, name) == 0)
            return m;
    }
    return &unknown;
}

/* ---- rebuilding ---- */

typedef enum row_kind { ROW_VALUE, ROW_DELTA, ROW_PERCENT } row_kind;

typedef struct row {
    const ek_frame_cell *cell;
    int name, n, clusters;
    row_kind kind;
    double value, se, lo, hi, p;
    int grouped; /* Holm has been here */
} row;

enum { DRAWS = 8 };

typedef struct rebuild {
    ek_frame frame;
    ek_pairing pair;
    ek_draws draws[DRAWS]; /* by number of clusters, oldest replaced */
    int next_draws;
    row *row;
    int n_rows, room;
} rebuild;

static ek_code draws_for(rebuild *r, int n, const ek_draws **out, ek_err *err)
{
    ek_draws *d;

    for (int i = 0; i < DRAWS; i++) {
        if (r->draws[i].n == n) {
            *out = &r->draws[i];
            return EK_OK;
        }
    }
    d = &r->draws[r->next_draws++ % DRAWS];
    ek_draws_close(d);
    EK_TRY(ek_draws_open(d, n, EK_BOOTSTRAP, EK_STAT_SEED, err));
    *out = d;
    return EK_OK;
}

static ek_code add_row(rebuild *r, const ek_frame_cell *cell, int name, row_kind kind,
                       ek_estimate e, double lo, double hi, double p, ek_err *err)
{
    if (r->n_rows == r->room) {
        const int room = r->room ? 2 * r->room : 256;
        row *more = realloc(r->row, (size_t)room * sizeof *more);

        if (!more)
            return EK_FAIL(err, EK_ENOMEM, "metrics: out of memory");
        r->row = more;
        r->room = room;
    }
    r->row[r->n_rows++] = (row){.cell = cell,
                                .name = name,
                                .n = r->pair.n,
                                .clusters = r->pair.c.n,
                                .kind = kind,
                                .value = e.value,
                                .se = e.se,
                                .lo = lo,
                                .hi = hi,
                                .p = p};
    return EK_OK;
}

static ek_code value_row(rebuild *r, const ek_frame_cell *cell, int name, ek_err *err)
{
    const ek_metric *m = ek_metric_find(r->frame.name[name]);
    const ek_draws *d;
    ek_bootstrap boot = {0};
    ek_estimate e;

    EK_TRY(ek_frame_pair(&r->frame, cell, NULL, name, &r->pair, err));
    if (r->pair.n == 0)
        return EK_OK;
    e = ek_stat_clustered(&r->pair.c);
    if (r->pair.c.n < 2) {
        boot.mean_lo = boot.mean_hi = NAN; /* one cluster says nothing about others */
    } else if (r->pair.binary && (e.value < 0.1 * m->scale || e.value > 0.9 * m->scale)) {
        const ek_estimate w = ek_stat_wilson(e.value / m->scale * r->pair.n, r->pair.n);

        boot.mean_lo = w.lo * m->scale;
        boot.mean_hi = w.hi * m->scale;
    } else {
        EK_TRY(draws_for(r, r->pair.c.n, &d, err));
        EK_TRY(ek_stat_bootstrap(&boot, &r->pair.c, d, err));
    }
    return add_row(r, cell, name, ROW_VALUE, e, boot.mean_lo, boot.mean_hi, NAN, err);
}

static ek_code paired_rows(rebuild *r, const ek_frame_cell *cell, const ek_frame_cell *base,
                           int name, ek_err *err)
{
    const ek_metric *m = ek_metric_find(r->frame.name[name]);
    ek_bootstrap boot = {NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN};
    const ek_draws *d;
    ek_estimate percent, full;
    ek_clusters base_alone;

    EK_TRY(ek_frame_pair(&r->frame, cell, base, name, &r->pair, err));
    if (r->pair.n == 0)
        return EK_OK;
    if (r->pair.c.n > 1) {
        EK_TRY(draws_for(r, r->pair.c.n, &d, err));
        EK_TRY(ek_stat_bootstrap(&boot, &r->pair.c, d, err));
    }
    EK_TRY(add_row(r, cell, name, ROW_DELTA, ek_stat_difference(&r->pair.c), boot.difference_lo,
                   boot.difference_hi, boot.p, err));
    base_alone = r->pair.c;
    base_alone.sum = base_alone.base;
    full = ek_stat_clustered(&base_alone);
    percent = ek_stat_percent(&r->pair.c);
    if (full.value < m->floor) {
        percent.value = percent.se = NAN;
        boot.percent_lo = boot.percent_hi = NAN;
    }
    return add_row(r, cell, name, ROW_PERCENT, percent, boot.percent_lo, boot.percent_hi, NAN, err);
}

static int same_table(const row *a, const row *b)
{
    const ek_frame_cell *x = a->cell, *y = b->cell;

    return a->kind == ROW_DELTA && b->kind == ROW_DELTA && a->name == b->name &&
           x->length == y->length && strcmp(x->run, y->run) == 0 &&
           strcmp(x->suite, y->suite) == 0 && strcmp(x->task, y->task) == 0 &&
           strcmp(x->variant, y->variant) == 0 && x->query_aware == y->query_aware;
}

static ek_code adjust(rebuild *r, ek_err *err)
{
    double *p = malloc((size_t)(r->n_rows + 1) * sizeof *p);

    if (!p)
        return EK_FAIL(err, EK_ENOMEM, "metrics: out of memory");
    for (int i = 0; i < r->n_rows; i++) {
        int n = 0;

        if (r->row[i].kind != ROW_DELTA || r->row[i].grouped)
            continue;
        for (int j = i; j < r->n_rows; j++)
            if (same_table(&r->row[i], &r->row[j]))
                p[n++] = r->row[j].p;
        ek_stat_holm(p, n);
        n = 0;
        for (int j = i; j < r->n_rows; j++) {
            if (same_table(&r->row[i], &r->row[j])) {
                r->row[j].p = p[n++];
                r->row[j].grouped = 1;
            }
        }
    }
    free(p);
    return EK_OK;
}

static ek_code write_rows(rebuild *r, ek_store *store, const char *run, ek_err *err)
{
    static const char wipe[] =
        "DELETE FROM metric WHERE cell IN (SELECT id FROM cell WHERE ?1 IS NULL OR run = ?1)";
    static const char insert[] =
        "INSERT INTO metric(cell, name, unit, value, stderr, ci_lo, ci_hi, n, clusters, p, mark)"
        " VALUES (?,?,?,?,?,?,?,?,?,?,?)";
    static const char *const prefix[] = {"", "delta:", "pct_of_full:"};
    const ek_sql which = ek_sql_text(run);

    EK_TRY(ek_store_sql(store, wipe, &which, 1, NULL, NULL, err));
    for (int i = 0; i < r->n_rows; i++) {
        const row *w = &r->row[i];
        const ek_metric *m = ek_metric_find(r->frame.name[w->name]);
        char name[300];
        const char *mark = w->kind == ROW_DELTA ? ek_stat_mark(w->lo, w->hi, w->p, m->close) : "";
        ek_sql p[] = {ek_sql_int(w->cell->id),
                      ek_sql_text(NULL),
                      ek_sql_text(w->kind == ROW_PERCENT ? "percent" : m->unit),
                      ek_sql_real(w->value),
                      ek_sql_real(w->se),
                      ek_sql_real(w->lo),
                      ek_sql_real(w->hi),
                      ek_sql_int(w->n),
                      ek_sql_int(w->clusters),
                      ek_sql_real(w->p),
                      ek_sql_text(mark)};

        snprintf(name, sizeof name, "%s%s", prefix[w->kind], r->frame.name[w->name]);
        p[1] = ek_sql_text(name);
        EK_TRY(ek_store_sql(store, insert, p, (int)EK_COUNT(p), NULL, NULL, err));
    }
    return EK_OK;
}

static ek_code compute(rebuild *r, ek_err *err)
{
    for (int i = 0; i < r->frame.n_cells; i++) {
        const ek_frame_cell *cell = &r->frame.cell[i];
        const ek_frame_cell *base =
            cell->base == EK_NONE ? NULL : ek_frame_find(&r->frame, cell->base);

        for (int name = 0; cell->n > 0 && name < r->frame.n_names; name++) {
            EK_TRY(value_row(r, cell, name, err));
            if (base && base != cell)
                EK_TRY(paired_rows(r, cell, base, name, err));
        }
    }
    return adjust(r, err);
}

ek_code ek_store_rebuild_metrics(ek_store *store, const char *run, ek_err *err)
{
    rebuild r = {0};
    ek_code code;

    code = ek_frame_load(&r.frame, store, run, err);
    if (code == EK_OK)
        code = compute(&r, err);
    if (code == EK_OK)
        code = ek_store_begin(store, err);
    if (code == EK_OK)
        code = write_rows(&r, store, run, err);
    if (code == EK_OK)
        code = ek_store_commit(store, err);
    if (code != EK_OK)
        ek_store_rollback(store);
    ek_frame_clear(&r.frame);
    for (int i = 0; i < DRAWS; i++)
        ek_draws_close(&r.draws[i]);
    free(r.pair.mem);
    free(r.row);
    return code;
}
