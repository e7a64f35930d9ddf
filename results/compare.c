/* results/compare.c - `evictkit results compare`: what may be compared, and the paired numbers. */
#include "results/comparison.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static ek_code no_memory(ek_err *err)
{
    return EK_FAIL(err, EK_ENOMEM, "compare: out of memory");
}

const ek_metric *ek_comparison_metric(const ek_comparison *c, int k)
{
    return ek_metric_find(c->frame.name[c->metric[k]]);
}

/* ---- groups and budgets ---- */

static int same_group(const ek_comparison *c, const ek_frame_cell *a, const ek_frame_cell *b)
{
    return strcmp(a->suite, b->suite) == 0 && strcmp(a->task, b->task) == 0 &&
           a->length == b->length && a->seed == b->seed &&
           /* Cut once and held at a budget are two questions: not even force mixes them. */
           strcmp(a->variant, b->variant) == 0 &&
           (c->how->force || a->query_aware == b->query_aware);
}

int ek_cell_is_full(const ek_frame_cell *c)
{
    return strcmp(c->method, "full") == 0;
}

static int falling(double a, double b) /* NAN last */
{
    if (isnan(a) || isnan(b))
        return isnan(a) - isnan(b);
    return (a < b) - (a > b);
}

int ek_cell_compare_budget(const ek_frame_cell *a, const ek_frame_cell *b)
{
    int c = ek_cell_is_full(b) - ek_cell_is_full(a);

    if (c == 0)
        c = falling(a->keep, b->keep);
    if (c == 0)
        c = strcmp(a->keep_of ? a->keep_of : "", b->keep_of ? b->keep_of : "");
    if (c == 0)
        c = (a->entries < b->entries) - (a->entries > b->entries);
    if (c == 0)
        c = (a->bytes < b->bytes) - (a->bytes > b->bytes);
    return c;
}

static int by_budget(const void *x, const void *y)
{
    const ek_frame_cell *a = *(const ek_frame_cell *const *)x;
    const ek_frame_cell *b = *(const ek_frame_cell *const *)y;
    const int c = ek_cell_compare_budget(a, b);

    return c ? c : (a->id > b->id) - (a->id < b->id);
}

void ek_cell_budget_text(const ek_frame_cell *c, char out[64])
{
    if (!isnan(c->keep))
        snprintf(out, 64, "keep %g of %s", c->keep, c->keep_of ? c->keep_of : "prompt");
    else if (c->entries != EK_NONE)
        snprintf(out, 64, "%lld entries per head", (long long)c->entries);
    else if (c->bytes != EK_NONE)
        snprintf(out, 64, "%lld bytes", (long long)c->bytes);
    else
        snprintf(out, 64, "no budget");
}

/* ---- numbers ---- */

static ek_code draws_for(ek_comparison *c, int n, const ek_draws **out, ek_err *err)
{
    ek_draws *d;

    for (int i = 0; i < EK_COMPARE_DRAWS; i++) {
        if (c->draws[i].n == n) {
            *out = &c->draws[i];
            return EK_OK;
        }
    }
    d = &c->draws[c->next_draws++ % EK_COMPARE_DRAWS];
    ek_draws_close(d);
    EK_TRY(ek_draws_open(d, n, EK_BOOTSTRAP, c->how->seed, err));
    *out = d;
    return EK_OK;
}

static const ek_difference no_difference = {
    .value = {NAN, NAN, NAN, NAN}, .percent = NAN, .p = NAN};

ek_code ek_comparison_differ(ek_comparison *c, const ek_frame_cell *cell, const ek_frame_cell *base,
                             int k, ek_difference *out, ek_err *err)
{
    const ek_metric *m = ek_comparison_metric(c, k);
    const ek_draws *d;
    ek_bootstrap boot;

    *out = no_difference;
    if (!base)
        return EK_OK;
    EK_TRY(ek_frame_pair(&c->frame, cell, base, c->metric[k], &c->pair, err));
    out->n = c->pair.n;
    out->clusters = c->pair.c.n;
    out->lost = c->pair.lost;
    out->gained = c->pair.gained;
    if (out->n == 0)
        return EK_OK;
    for (int i = 0; i < c->pair.c.n; i++)
        out->better += (c->pair.c.sum[i] - c->pair.c.base[i]) * (m->better < 0 ? -1 : 1) > 0;
    out->value = ek_stat_difference(&c->pair.c);
    out->percent = ek_stat_percent(&c->pair.c).value;
    if (out->clusters < 2)
        return EK_OK;
    EK_TRY(draws_for(c, out->clusters, &d, err));
    EK_TRY(ek_stat_bootstrap(&boot, &c->pair.c, d, err));
    out->value.lo = boot.difference_lo;
    out->value.hi = boot.difference_hi;
    out->p = boot.p;
    return EK_OK;
}

static ek_code holm(ek_difference *d, int n, int stride, ek_err *err)
{
    double *p = malloc((size_t)(n + 1) * sizeof *p);

    if (!p)
        return no_memory(err);
    for (int i = 0; i < n; i++)
        p[i] = d[i * stride].p;
    ek_stat_holm(p, n);
    for (int i = 0; i < n; i++)
        d[i * stride].p = p[i];
    free(p);
    return EK_OK;
}

/* The cell of method at a's budget in the group, or full, which has none. */
static const ek_frame_cell *opponent(const ek_comparison *c, const ek_frame_cell *a,
                                     const char *method)
{
    for (int i = 0; i < c->n; i++) {
        const ek_frame_cell *b = c->cell[i];

        if (strcmp(b->method, method) == 0 && strcmp(b->run, a->run) == 0 && b != a &&
            (ek_cell_is_full(b) || ek_cell_compare_budget(a, b) == 0))
            return b;
    }
    return NULL;
}

/* ---- one group ---- */

static int is_there(const ek_comparison *c, int name)
{
    for (int i = 0; i < c->n; i++)
        for (int j = 0; j < c->cell[i]->n; j++)
            if (!isnan(c->cell[i]->point[j].value[name]))
                return 1;
    return 0;
}

/* The metrics asked for, or the main ones that some cell of the group has, in the table's order,
 * then by length of name and name ("FMM32" before "FMM128"). */
static void find_metrics(ek_comparison *c)
{
    c->n_metrics = 0;
    for (int i = 0; i < c->how->n_metrics && c->n_metrics < EK_COMPARE_METRICS; i++) {
        const int name = ek_frame_name(&c->frame, c->how->metric[i]);

        if (name >= 0 && is_there(c, name))
            c->metric[c->n_metrics++] = name;
    }
    if (c->how->n_metrics > 0)
        return;
    for (const ek_metric *m = ek_metrics; m->name; m++) {
        const int first = c->n_metrics;

        for (int name = 0; name < c->frame.n_names && c->n_metrics < EK_COMPARE_METRICS; name++) {
            int at = c->n_metrics;

            if (!m->main || ek_metric_find(c->frame.name[name]) != m || !is_there(c, name))
                continue;
            for (; at > first; at--) {
                const char *a = c->frame.name[c->metric[at - 1]], *b = c->frame.name[name];

                if (strlen(a) < strlen(b) || (strlen(a) == strlen(b) && strcmp(a, b) < 0))
                    break;
                c->metric[at] = c->metric[at - 1];
            }
            c->metric[at] = name;
            c->n_metrics++;
        }
    }
}

static ek_code find_differences(ek_comparison *c, ek_err *err)
{
    const char *base = c->how->base ? c->how->base : "full";

    free(c->to_base);
    c->to_base = calloc((size_t)c->n * (size_t)c->n_metrics + 1, sizeof *c->to_base);
    if (!c->to_base)
        return no_memory(err);
    for (int i = 0; i < c->n; i++)
        for (int k = 0; k < c->n_metrics; k++)
            EK_TRY(ek_comparison_differ(c, c->cell[i], opponent(c, c->cell[i], base), k,
                                        &c->to_base[i * c->n_metrics + k], err));
    for (int k = 0; k < c->n_metrics; k++)
        EK_TRY(holm(c->to_base + k, c->n, c->n_metrics, err));
    return EK_OK;
}

static void title(ek_comparison *c)
{
    const ek_frame_cell *x = c->cell[0];
    const ek_metric *m = ek_comparison_metric(c, 0);
    int most = 0;

    for (int i = 0; i < c->n; i++)
        if (c->cell[i]->n > most)
            most = c->cell[i]->n;
    ek_text_add(c->out, "\n%s%s%s", strcmp(x->suite, x->task) ? x->suite : "",
                strcmp(x->suite, x->task) ? " / " : "", x->task);
    if (*x->variant)
        ek_text_add(c->out, " (%s)", x->variant);
    if (x->length)
        ek_text_add(c->out, ", length %lld", (long long)x->length);
    ek_text_add(c->out, ", question %s the cut", x->query_aware ? "before" : "after");
    if (c->several_seeds)
        ek_text_add(c->out, ", seed %lld", (long long)x->seed);
    ek_text_add(c->out, ": %d sample%s; %s, %s is better\n", most, most == 1 ? "" : "s",
                c->frame.name[c->metric[0]],
                m->better > 0   ? "higher"
                : m->better < 0 ? "lower"
                                : "neither way");
}

static ek_code print_group(ek_comparison *c, ek_err *err)
{
    int first = 0;

    qsort(c->cell, (size_t)c->n, sizeof *c->cell, by_budget);
    find_metrics(c);
    if (c->n_metrics == 0)
        return EK_OK;
    EK_TRY(find_differences(c, err));
    title(c);
    while (first < c->n && ek_cell_is_full(c->cell[first]))
        first++;
    if (first == c->n && c->n > 0) /* full cache alone */
        return ek_comparison_print_budget(c, 0, c->n, err);
    while (first < c->n) {
        int last = first + 1;

        while (last < c->n && ek_cell_compare_budget(c->cell[first], c->cell[last]) == 0)
            last++;
        EK_TRY(ek_comparison_print_budget(c, first, last, err));
        first = last;
    }
    return ek_comparison_print_duels(c, err);
}

static ek_code print_groups(ek_comparison *c, ek_err *err)
{
    const int n = c->frame.n_cells;
    char *done = calloc((size_t)n + 1, 1);
    ek_code code = EK_OK;

    c->cell = calloc((size_t)n + 1, sizeof *c->cell);
    if (!done || !c->cell)
        code = no_memory(err);
    for (int i = 1; i < n; i++)
        c->several_seeds |= c->frame.cell[i].seed != c->frame.cell[0].seed;
    for (int i = 0; code == EK_OK && i < n; i++) {
        if (done[i])
            continue;
        c->n = 0;
        for (int j = i; j < n; j++) {
            if (!same_group(c, &c->frame.cell[i], &c->frame.cell[j]))
                continue;
            done[j] = 1;
            if (c->frame.cell[j].n > 0)
                c->cell[c->n++] = &c->frame.cell[j];
        }
        if (c->n > 0)
            code = print_group(c, err);
    }
    free(done);
    return code;
}

/* ---- what may not be compared ---- */

typedef struct described {
    char text[8][200];
    int n;
} described;

static ek_code take_text(void *ctx, int n, const char *const *name, const ek_sql *v, ek_err *err)
{
    described *d = ctx;

    (void)name, (void)err;
    for (d->n = 0; d->n < n && d->n < 8; d->n++)
        snprintf(d->text[d->n], sizeof d->text[0], "%s", v[d->n].text ? v[d->n].text : "");
    return EK_OK;
}

static void name_it(char *names, size_t size, const char *what)
{
    if (!strstr(names, what))
        snprintf(names + strlen(names), size - strlen(names), "%s%s", *names ? ", " : "", what);
}

/* Prompts of the samples two cells share. */
static void compare_prompts(const ek_frame_cell *a, const ek_frame_cell *b, char *names,
                            size_t size)
{
    int j = 0, shared = 0;

    for (int i = 0; i < a->n; i++) {
        while (j < b->n && strcmp(b->point[j].doc_id, a->point[i].doc_id) < 0)
            j++;
        if (j == b->n)
            break;
        if (strcmp(b->point[j].doc_id, a->point[i].doc_id) != 0)
            continue;
        shared++;
        if (strcmp(a->point[i].prompt_hash, b->point[j].prompt_hash) != 0)
            name_it(names, size, "prompts");
    }
    if (shared == 0 && a->n > 0 && b->n > 0)
        name_it(names, size, "sample sets");
}

static void compare_cells(const ek_comparison *c, char *names, size_t size)
{
    int met = 0;

    for (int i = 0; i < c->frame.n_cells; i++) {
        for (int j = 0; j < i; j++) {
            const ek_frame_cell *a = &c->frame.cell[i], *b = &c->frame.cell[j];
            const int two = strcmp(a->run, b->run) != 0;

            if (strcmp(a->suite, b->suite) != 0 || strcmp(a->task, b->task) != 0 ||
                a->length != b->length)
                continue;
            met |= two;
            if (two && a->query_aware != b->query_aware)
                name_it(names, size, "query_aware");
            /* Within a run, every cell is held against the group's first. */
            if (a->seed == b->seed && a->query_aware == b->query_aware &&
                strcmp(a->variant, b->variant) == 0 && (two || ek_cell_is_full(b)))
                compare_prompts(a, b, names, size);
        }
    }
    if (c->how->run2 && !met)
        name_it(names, size, "tasks");
}

static ek_code check(ek_comparison *c, ek_store *store, ek_err *err)
{
    static const char sql[] = "SELECT kernel, model_hash, tokenizer_hash, template_hash, model,"
                              " status, device, revision FROM run WHERE id = ?";
    static const char *const what[] = {"kernel", "model", "tokenizer", "template"};
    const ek_sql p[] = {ek_sql_text(c->how->run), ek_sql_text(c->how->run2)};
    described d[2] = {{.n = 0}};
    char names[300] = "", run[2][33];

    for (int r = 0; r < (c->how->run2 ? 2 : 1); r++)
        snprintf(run[r], sizeof run[r], "%s", p[r].text);
    EK_TRY(ek_report_one_decode(store, (const char(*)[33])run, c->how->run2 ? 2 : 1, err));
    for (int r = 0; r < (c->how->run2 ? 2 : 1); r++) {
        EK_TRY(ek_store_sql(store, sql, &p[r], 1, take_text, &d[r], err));
        ek_text_add(c->out, "run %.8s  %s  %s  kernel %s  %s\n", p[r].text, d[r].text[5],
                    strrchr(d[r].text[4], '/') ? strrchr(d[r].text[4], '/') + 1 : d[r].text[4],
                    d[r].text[0], d[r].text[6]);
    }
    for (int i = 0; c->how->run2 && i < 4; i++)
        if (strcmp(d[0].text[i], d[1].text[i]) != 0)
            name_it(names, sizeof names, what[i]);
    compare_cells(c, names, sizeof names);
    if (*names && !c->how->force)
        return EK_FAIL(err, EK_EASKED,
                       "these differ in %s, so their scores are not compared; --force does it all "
                       "the same",
                       names);
    if (*names)
        ek_text_add(c->out, "compared by force, although these differ: %s\n", names);
    return EK_OK;
}

static ek_code check_words(const ek_comparison *c, ek_err *err)
{
    const char *const word[] = {c->how->base, c->how->against, c->how->method};

    for (int w = 0; w < 3; w++) {
        int there =
            !word[w] || (w == 1 && (strcmp(word[w], "all") == 0 || strcmp(word[w], "best") == 0));

        for (int i = 0; !there && i < c->frame.n_cells; i++)
            there = strcmp(c->frame.cell[i].method, word[w]) == 0;
        if (!there)
            return EK_FAIL(err, EK_EASKED, "run %.8s holds no method \"%.40s\"", c->how->run,
                           word[w]);
    }
    for (int i = 0; i < c->how->n_metrics; i++)
        if (ek_frame_name(&c->frame, c->how->metric[i]) < 0)
            return EK_FAIL(err, EK_EASKED, "run %.8s holds no metric \"%.40s\"", c->how->run,
                           c->how->metric[i]);
    return EK_OK;
}

ek_code ek_report_compare(ek_store *store, const ek_compare *how, ek_text *out, ek_err *err)
{
    ek_comparison c = {.how = how, .out = out};
    ek_code code = ek_frame_load(&c.frame, store, how->run, err);

    if (code == EK_OK && how->run2)
        code = ek_frame_load(&c.frame, store, how->run2, err);
    if (code == EK_OK && c.frame.n_cells == 0)
        code =
            EK_FAIL(err, EK_EASKED, "run %.8s has nothing to compare: it holds no cells", how->run);
    if (code == EK_OK)
        code = check_words(&c, err);
    if (code == EK_OK)
        code = check(&c, store, err);
    if (code == EK_OK)
        code = print_groups(&c, err);
    if (code == EK_OK)
        ek_text_add(out,
                    "\n*  differs (95 %% interval without 0, Holm p < 0.05)   =  equal for all "
                    "purposes   \xe2\x89\x88  not distinguishable\n"
                    "Intervals: paired bootstrap over clusters, %d draws, seed %llu.\n",
                    EK_BOOTSTRAP, (unsigned long long)how->seed);
    if (code == EK_OK && out->failed)
        code = no_memory(err);
    ek_frame_clear(&c.frame);
    for (int i = 0; i < EK_COMPARE_DRAWS; i++)
        ek_draws_close(&c.draws[i]);
    free(c.pair.mem);
    free(c.cell);
    free(c.to_base);
    return code;
}
