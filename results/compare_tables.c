/* results/compare_tables.c - the tables of a comparison. */
#include "results/comparison.h"
#include "results/grid.h"

#include <stdlib.h>
#include <string.h>

static ek_code no_memory(ek_err *err)
{
    return EK_FAIL(err, EK_ENOMEM, "compare: out of memory");
}

/* Oracles look at the future: a bound, not an opponent. */
static int is_bound(const ek_frame_cell *c)
{
    return ek_cell_is_full(c) || strncmp(c->method, "oracle", 6) == 0 ||
           strncmp(c->policy, "oracle", 6) == 0;
}

static int falling(double a, double b) /* NAN last */
{
    if (isnan(a) || isnan(b))
        return isnan(a) - isnan(b);
    return (a < b) - (a > b);
}

static ek_code value_of(ek_comparison *c, const ek_frame_cell *cell, int name, ek_estimate *out,
                        ek_err *err)
{
    EK_TRY(ek_frame_pair(&c->frame, cell, NULL, name, &c->pair, err));
    *out = ek_stat_clustered(&c->pair.c);
    return EK_OK;
}

static const char *mark_of(const ek_difference *d, const ek_metric *m)
{
    return ek_stat_mark(d->value.lo, d->value.hi, d->p, m->close);
}

/* ---- the table of one budget ---- */

typedef struct ranked {
    int at; /* in c->cell */
    double value;
} ranked;

static int better_first(const void *x, const void *y)
{
    const ranked *a = x, *b = y;
    const int c = falling(a->value, b->value);

    return c ? c : (a->at > b->at) - (a->at < b->at);
}

static void add_number(ek_grid *g, int digits, double x, const char *mark)
{
    if (isnan(x))
        ek_grid_add(g, "-");
    else
        ek_grid_add(g, "%.*f%s%s", digits, x, *mark ? " " : "", mark);
}

static void add_difference(ek_grid *g, const ek_difference *d, const ek_metric *m)
{
    if (isnan(d->value.value))
        ek_grid_add(g, "-");
    else if (isnan(d->value.lo))
        ek_grid_add(g, "%+.*f", m->digits, d->value.value);
    else
        ek_grid_add(g, "%+.*f [%+.*f, %+.*f]", m->digits, d->value.value, m->digits, d->value.lo,
                    m->digits, d->value.hi);
}

static ek_code add_method(ek_comparison *c, ek_grid *g, int at, ek_err *err)
{
    const ek_frame_cell *cell = c->cell[at];
    const ek_difference *d = &c->to_base[at * c->n_metrics];
    const ek_metric *m = ek_comparison_metric(c, 0);
    const int keep = ek_frame_name(&c->frame, "keep_mean");
    ek_estimate e;

    if (c->how->run2)
        ek_grid_add(g, "%s (%.4s)", cell->method, cell->run);
    else
        ek_grid_add(g, "%s%s", cell->method, cell->learned ? " (learned)" : "");
    EK_TRY(value_of(c, cell, keep, &e, err));
    add_number(g, 4, e.value, "");
    EK_TRY(value_of(c, cell, c->metric[0], &e, err));
    add_number(g, m->digits, e.value, "");
    add_number(g, m->digits, e.se, "");
    add_difference(g, &d[0], m);
    ek_grid_add(g, "%s", mark_of(&d[0], m));
    if (m->better > 0) {
        add_number(g, 1, d[0].percent, "");
        if (d[0].n && strcmp(c->frame.name[c->metric[0]], "score") == 0)
            ek_grid_add(g, "%d/%d", d[0].lost, d[0].gained);
        else
            ek_grid_add(g, "-");
    }
    for (int k = 1; k < c->n_metrics; k++) {
        const char *mark = mark_of(&d[k], ek_comparison_metric(c, k));

        EK_TRY(value_of(c, cell, c->metric[k], &e, err));
        add_number(g, ek_comparison_metric(c, k)->digits, e.value, mark);
    }
    return EK_OK;
}

/* Rows first .. last - 1 share a budget; full is shown above them. */
ek_code ek_comparison_print_budget(ek_comparison *c, int first, int last, ek_err *err)
{
    const ek_metric *m = ek_comparison_metric(c, 0);
    ek_grid g = {.n_cols = 5 + (m->better > 0 ? 2 : 0) + c->n_metrics};
    ranked *row = malloc((size_t)(last - first + 1) * sizeof *row);
    char budget[64];
    double least = INFINITY, most = 0;
    ek_code code = row ? EK_OK : no_memory(err);

    ek_cell_budget_text(c->cell[first], budget);
    ek_text_add(c->out, "\n  %s\n", budget);
    ek_grid_add(&g, "method");
    ek_grid_add(&g, "kept");
    ek_grid_add(&g, "%s", c->frame.name[c->metric[0]]);
    ek_grid_add(&g, "SE");
    ek_grid_add(&g, "to %s [95 %%]", c->how->base ? c->how->base : "full");
    ek_grid_add(&g, " ");
    if (m->better > 0) {
        ek_grid_add(&g, "%% of full");
        ek_grid_add(&g, "lost/gained");
    }
    for (int k = 1; k < c->n_metrics; k++)
        ek_grid_add(&g, "%s", c->frame.name[c->metric[k]]);
    for (int i = 0; code == EK_OK && i < first; i++)
        if (ek_cell_is_full(c->cell[i]))
            code = add_method(c, &g, i, err);
    for (int i = first; code == EK_OK && i < last; i++) {
        ek_estimate e = {NAN, NAN, NAN, NAN};
        double se;

        code = value_of(c, c->cell[i], c->metric[0], &e, err);
        row[i - first] = (ranked){i, m->better < 0 ? -e.value : e.value};
        se = c->to_base[i * c->n_metrics].value.se;
        if (se > 0) {
            least = fmin(least, se);
            most = fmax(most, se);
        }
    }
    if (code == EK_OK)
        qsort(row, (size_t)(last - first), sizeof *row, better_first);
    for (int i = 0; code == EK_OK && i < last - first; i++)
        code = add_method(c, &g, row[i].at, err);
    if (code == EK_OK) {
        ek_grid_print(&g, "  ", c->out);
        if (most > 0)
            ek_text_add(c->out, "  differences of %s one could see here (2.8 SE): %.*f",
                        c->frame.name[c->metric[0]], m->digits, 2.8 * least);
        if (most > least)
            ek_text_add(c->out, " to %.*f, by method", m->digits, 2.8 * most);
        if (most > 0)
            ek_text_add(c->out, "\n");
    }
    ek_grid_clear(&g);
    free(row);
    return code;
}

/* ---- learned against others ---- */

typedef struct duel {
    const ek_frame_cell *a, *b;
    int best; /* b is the best training-free method by the first metric */
    int k;
    ek_difference d;
} duel;

static int is_challenger(const ek_comparison *c, const ek_frame_cell *a)
{
    if (c->how->run2)
        return strcmp(a->run, c->how->run2) == 0;
    return c->how->method ? strcmp(a->method, c->how->method) == 0 : a->learned && !is_bound(a);
}

static ek_code best_rule(ek_comparison *c, const ek_frame_cell *a, const ek_frame_cell **out,
                         ek_err *err)
{
    const int sign = ek_comparison_metric(c, 0)->better < 0 ? -1 : 1;
    double best = NAN;

    *out = NULL;
    for (int i = 0; i < c->n; i++) {
        const ek_frame_cell *b = c->cell[i];
        ek_estimate e;

        if (b == a || b->learned || is_bound(b) || ek_cell_compare_budget(a, b) != 0 ||
            strcmp(a->run, b->run) != 0)
            continue;
        EK_TRY(value_of(c, b, c->metric[0], &e, err));
        if (!isnan(e.value) && (isnan(best) || sign * e.value > best)) {
            best = sign * e.value;
            *out = b;
        }
    }
    return EK_OK;
}

/* All pairs to be printed for the group, for every metric; *n of them, malloc'd. */
static ek_code find_duels(ek_comparison *c, duel **list, int *n, ek_err *err)
{
    const char *against = c->how->against ? c->how->against : "best";
    const int all = strcmp(against, "all") == 0, best = strcmp(against, "best") == 0;
    duel *d = calloc((size_t)c->n * (size_t)c->n * (size_t)c->n_metrics + 1, sizeof *d);

    *list = d;
    *n = 0;
    if (!d)
        return no_memory(err);
    for (int i = 0; i < c->n; i++) {
        const ek_frame_cell *a = c->cell[i], *rule;

        if (!is_challenger(c, a))
            continue;
        EK_TRY(best_rule(c, a, &rule, err));
        for (int j = 0; j < c->n; j++) {
            const ek_frame_cell *b = c->cell[j];
            const int wanted = all    ? !b->learned && !is_bound(b)
                               : best ? b == rule
                                      : strcmp(b->method, against) == 0;

            if (c->how->run2 ? strcmp(b->run, c->how->run) != 0 || strcmp(a->policy, b->policy) != 0
                             : b == a || !wanted || strcmp(a->run, b->run) != 0 ||
                                   (!ek_cell_is_full(b) && ek_cell_compare_budget(a, b) != 0))
                continue;
            for (int k = 0; k < c->n_metrics; k++) {
                duel *x;

                if (ek_comparison_metric(c, k)->main < 2 && c->how->n_metrics == 0)
                    continue;
                x = &d[(*n)++];

                *x = (duel){.a = a, .b = b, .best = b == rule, .k = k};
                EK_TRY(ek_comparison_differ(c, a, b, k, &x->d, err));
            }
        }
    }
    return EK_OK;
}

static void add_duel(ek_comparison *c, ek_grid *g, const duel *x)
{
    const ek_metric *m = ek_comparison_metric(c, x->k);
    char budget[64];

    ek_cell_budget_text(x->a, budget);
    ek_grid_add(g, "%s", budget);
    if (c->how->run2) {
        ek_grid_add(g, "%s (%.4s)", x->a->method, x->a->run);
        ek_grid_add(g, "%s (%.4s)", x->b->method, x->b->run);
    } else {
        ek_grid_add(g, "%s", x->a->method);
        ek_grid_add(g, "%s%s", x->b->method, x->best ? " (best)" : "");
    }
    ek_grid_add(g, "%s", c->frame.name[c->metric[x->k]]);
    add_difference(g, &x->d, m);
    ek_grid_add(g, "%s", mark_of(&x->d, m));
    if (isnan(x->d.percent))
        ek_grid_add(g, "-");
    else
        ek_grid_add(g, "%+.1f %%", x->d.percent - 100);
    add_number(g, 4, x->d.p, "");
    ek_grid_add(g, "%d of %d", x->d.better, x->d.clusters);
    ek_grid_add(g, "%d", x->d.n);
}

static void print_title(ek_comparison *c)
{
    const char *against = c->how->against ? c->how->against : "best";

    if (strcmp(against, "best") == 0)
        against = "the best training-free method";
    else if (strcmp(against, "all") == 0)
        against = "every training-free method";
    if (c->how->run2)
        ek_text_add(c->out, "\n  run %.8s less run %.8s, paired\n", c->how->run2, c->how->run);
    else
        ek_text_add(c->out, "\n  %s against %s, paired at the same budget\n",
                    c->how->method ? c->how->method : "learned methods", against);
}

ek_code ek_comparison_print_duels(ek_comparison *c, ek_err *err)
{
    static const char *const head[] = {"budget", "method", "against", "metric", "difference [95 %]",
                                       " ",      "change", "p",       "better", "n"};
    ek_grid g = {.n_cols = 10};
    duel *d = NULL;
    int n = 0;
    ek_code code = find_duels(c, &d, &n, err);

    for (int k = 0; code == EK_OK && n > 0 && k < c->n_metrics; k++) {
        double *p = calloc((size_t)n + 1, sizeof *p);
        int m = 0;

        if (!p) {
            code = no_memory(err);
            break;
        }
        for (int i = 0; i < n; i++)
            if (d[i].k == k)
                p[m++] = d[i].d.p;
        ek_stat_holm(p, m);
        m = 0;
        for (int i = 0; i < n; i++)
            if (d[i].k == k)
                d[i].d.p = p[m++];
        free(p);
    }
    if (code == EK_OK && n > 0) {
        for (int i = 0; i < 10; i++)
            ek_grid_add(&g, "%s", head[i]);
        for (int i = 0; i < n; i++)
            add_duel(c, &g, &d[i]);
        print_title(c);
        ek_grid_print(&g, "  ", c->out);
    }
    ek_grid_clear(&g);
    free(d);
    return code;
}
