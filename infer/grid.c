/* infer/grid.c - see grid.h. */
#include "infer/grid.h"

#include "core/file.h"
#include "core/json.h"
#include "infer/vector.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const of_names[] = {"prompt", "seen", NULL};

const ek_field ek_budget_fields[] = {
    EK_STRING(ek_budget_set, keep, "fraction of entries that stay, such as 0.25"),
    EK_ENUM(ek_budget_set, of, of_names, "what the fraction is of"),
    EK_INT(ek_budget_set, entries, 0, 1 << 30,
           "bytes of so many plain entries per KV head, on average"),
    EK_INT(ek_budget_set, bytes, 0, (double)(1LL << 52),
           "bytes of the whole cache, positions and state included"),
    EK_FIELD_END};

static ek_code open_scorer(ek_method *method, ek_scorer *scorer, ek_weights **weights,
                           const ek_method_set *set, int64_t seed, ek_model *model,
                           const char *tokenizer_hash, ek_device *dev, ek_err *err)
{
    if (method->measure.signal->learner) {
        const ek_weights_need need = {.method = method->name,
                                      .dims = ek_model_dims(model),
                                      .model_hash = ek_model_hash(model),
                                      .tokenizer_hash = tokenizer_hash,
                                      .sinks = set->sinks,
                                      .recent = set->recent};

        if (!set->weights)
            return EK_FAIL(err, EK_EASKED,
                           "methods: %s is learned and needs weights: {name: %s, weights: FOLDER}",
                           method->name, method->name);
        EK_TRY(ek_weights_open(weights, set->weights, &need, dev, err));
        ek_weights_apply(*weights, method);
        return EK_OK;
    }
    if (set->weights)
        return EK_FAIL(err, EK_EASKED, "methods: %s is not learned and takes no weights",
                       method->name);
    *scorer = (ek_scorer){.cls = method->measure.signal, .dev = dev, .dims = *ek_model_dims(model)};
    scorer->set.seed = set->seed >= 0 ? set->seed : seed;
    method->measure.scorer = scorer;
    return EK_OK;
}

ek_code ek_grid_method(ek_method *method, ek_scorer *scorer, ek_weights **weights, ek_maps *maps,
                       const ek_method_set *set, ek_decode decode, int64_t seed, ek_model *model,
                       const char *tokenizer_hash, ek_device *dev, ek_err *err)
{
    const ek_maps_need need = {.dims = ek_model_dims(model),
                               .model_hash = ek_model_hash(model),
                               .tokenizer_hash = tokenizer_hash};

    *weights = NULL;
    memset(maps, 0, sizeof *maps);
    EK_TRY(ek_method_open(method, set, err));
    EK_TRY(open_scorer(method, scorer, weights, set, seed, model, tokenizer_hash, dev, err));
    return ek_vector_open(maps, method, set, decode, &need, err);
}

/* The settings that differ from a bare name, in a fixed order. */
static void write_spec(ek_text *t, const ek_method_set *set, const ek_budget_set *b)
{
    char *all = ek_config_text(set, ek_method_fields), *plain;
    ek_method_set bare = ek_method_set_defaults;
    const char *sep = ":";

    bare.name = set->name;
    bare.label = set->label;
    plain = ek_config_text(&bare, ek_method_fields);
    ek_text_add(t, "%s", set->name);
    if (!all || !plain)
        t->failed = 1;
    /* Both texts have the same keys in the same order, one a line: write the lines that differ. */
    for (char *a = all, *p = plain; !t->failed && *a && *p;) {
        const size_t na = strcspn(a, "\n"), np = strcspn(p, "\n");

        if (na != np || memcmp(a, p, na) != 0) {
            const size_t key = strcspn(a, ":");
            const char *value = a + key + 1 + strspn(a + key + 1, " ");

            ek_text_add(t, "%s%.*s=%.*s", sep, (int)key, a, (int)(na - (size_t)(value - a)), value);
            sep = ",";
        }
        a += na + (a[na] == '\n');
        p += np + (p[np] == '\n');
    }
    free(all);
    free(plain);
    if (!b)
        return;
    if (b->keep)
        ek_text_add(t, "@keep=%s%s", b->keep, b->of ? " of seen" : "");
    else if (b->entries)
        ek_text_add(t, "@entries=%lld", (long long)b->entries);
    else
        ek_text_add(t, "@bytes=%lld", (long long)b->bytes);
}

static ek_code check_budget(const ek_budget_set *b, int i, ek_budget *out, ek_err *err)
{
    const int said = (b->keep != NULL) + (b->entries > 0) + (b->bytes > 0);

    memset(out, 0, sizeof *out);
    if (said != 1)
        return EK_FAIL(err, EK_EASKED,
                       "budgets: number %d: found %d of keep, entries and bytes, expected one",
                       i + 1, said);
    if (b->keep && ek_budget_keep(out, b->keep, err) != EK_OK)
        return ek_err_in(err, "budgets: number %d", i + 1);
    out->of_seen = b->of;
    out->entries = b->entries;
    out->bytes = b->bytes;
    return EK_OK;
}

static int same_budget(const ek_budget *a, const ek_budget *b)
{
    return a->num * b->den == b->num * a->den && (a->num > 0) == (b->num > 0) &&
           a->of_seen == b->of_seen && a->entries == b->entries && a->bytes == b->bytes;
}

static ek_code add_cell(ek_grid *g, int method, const ek_method_set *set, const ek_budget_set *b,
                        const ek_budget *budget, ek_decode decode, ek_err *err)
{
    ek_cell *c = &g->cell[g->n_cells];
    ek_text spec = {0};
    ek_code code = EK_OK;

    write_spec(&spec, set, b);
    *c = (ek_cell){.policy = {.method = g->method[method], .budget = *budget, .decode = decode},
                   .full = b == NULL,
                   .method = method,
                   .label = set->label ? set->label : set->name,
                   .keep = b && b->keep ? (double)budget->num / (double)budget->den : NAN};
    if (!set->label && set->rest == EK_REST_VECTOR) {
        snprintf(c->own_label, sizeof c->own_label, "%s+vector", set->name);
        c->label = c->own_label;
    }
    if (spec.failed)
        code = EK_FAIL(err, EK_ENOMEM, "no memory for the grid");
    else if (spec.size >= sizeof c->spec)
        code = EK_FAIL(err, EK_EASKED, "methods: %s: the settings are too long to name", set->name);
    else
        memcpy(c->spec, spec.data, spec.size + 1);
    ek_text_clear(&spec);
    if (code == EK_OK && b && (!*c->label || strcmp(c->label, "full") == 0))
        code = EK_FAIL(err, EK_EASKED, "methods: %s: label: found \"%s\", expected another name",
                       set->name, c->label);
    for (int i = 0; code == EK_OK && i < g->n_cells; i++) {
        const ek_cell *old = &g->cell[i];

        if (strcmp(old->spec, c->spec) == 0 ||
            (old->method == method && same_budget(&old->policy.budget, budget)))
            code = EK_FAIL(err, EK_EASKED, "methods: %s stands there twice", c->spec);
        else if (strcmp(old->label, c->label) == 0 &&
                 strcmp(g->method[old->method].name, g->method[method].name) != 0)
            code = EK_FAIL(err, EK_EASKED, "methods: %s and %s are both called \"%s\"", old->spec,
                           c->spec, c->label);
    }
    if (code == EK_OK)
        g->n_cells++;
    return code;
}

static void find_measures(ek_grid *g)
{
    for (int c = 0; c < g->n_cells; c++) {
        const ek_measure *m = &g->cell[c].policy.method.measure;
        int known = g->cell[c].full || ek_measure_n_carry(m, 1) == 0;

        for (int i = 0; !known && i < g->n_measures; i++)
            known = ek_measure_same(m, g->measure[i]);
        if (!known)
            g->measure[g->n_measures++] = m;
    }
}

ek_code ek_grid_open(ek_grid *g, const ek_method_set *methods, int n_methods,
                     const ek_budget_set *budgets, int n_budgets, ek_decode decode, int64_t seed,
                     ek_model *model, const char *tokenizer_hash, ek_device *dev, ek_err *err)
{
    static char full_name[] = "full";
    ek_method_set full = ek_method_set_defaults;
    const size_t n = (size_t)n_methods + 1, cells = n * (size_t)(n_budgets + 1);

    memset(g, 0, sizeof *g);
    full.name = full_name;
    g->method = calloc(n, sizeof *g->method);
    g->scorer = calloc(n, sizeof *g->scorer);
    g->weights = calloc(n, sizeof *g->weights);
    g->maps = calloc(n, sizeof *g->maps);
    g->cell = calloc(cells, sizeof *g->cell);
    g->measure = calloc(cells, sizeof *g->measure);
    if (!g->method || !g->scorer || !g->weights || !g->maps || !g->cell || !g->measure) {
        EK_CHECK(EK_FAIL(err, EK_ENOMEM, "no memory for %zu cells", cells));
    }
    for (int m = -1; m < n_methods; m++) {
        const ek_method_set *set = m < 0 ? &full : &methods[m];
        const int is_full = set->name && strcmp(set->name, "full") == 0, at = g->n_methods;

        if (m >= 0 && is_full)
            continue; /* it is cell 0 already */
        g->n_methods++;
        EK_CHECK(ek_grid_method(&g->method[at], &g->scorer[at], &g->weights[at], &g->maps[at], set,
                                decode, seed, model, tokenizer_hash, dev, err));
        for (int b = 0; b < (is_full ? 1 : n_budgets); b++) {
            ek_budget budget = {0};

            if (!is_full)
                EK_CHECK(check_budget(&budgets[b], b, &budget, err));
            EK_CHECK(add_cell(g, at, set, is_full ? NULL : &budgets[b], &budget, decode, err));
            EK_CHECK(ek_policy_affords(&g->cell[g->n_cells - 1].policy, ek_model_dims(model),
                                       ek_model_storage(model), err));
        }
    }
    find_measures(g);
    return EK_OK;
fail:
    ek_grid_close(g);
    return err->code;
}

void ek_grid_close(ek_grid *g)
{
    for (int m = 0; m < g->n_methods; m++) {
        ek_weights_close(g->weights[m]);
        ek_maps_close(&g->maps[m]);
    }
    free(g->method);
    free(g->scorer);
    free(g->weights);
    free(g->maps);
    free(g->cell);
    free((void *)g->measure);
    memset(g, 0, sizeof *g);
}

void ek_grid_hash(const ek_grid *g, char out[33])
{
    ek_hasher *h = ek_hasher_open();

    for (int m = 0; m < g->n_methods; m++) {
        if (h && g->weights[m]) {
            ek_hasher_add(h, ek_weights_hash(g->weights[m]), 32);
            ek_hasher_add(h, ek_weights_settings(g->weights[m]), 32);
        }
        if (h && g->maps[m].block)
            ek_hasher_add(h, g->maps[m].hash, 32);
    }
    memset(out, '0', 32);
    out[32] = '\0';
    if (h)
        ek_hasher_close(h, out);
}
