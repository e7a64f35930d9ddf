/* scorers/table.c - all methods, once; and what YAML may change of a row. */
#include "scorers/method.h"

#include <string.h>

#define ROW(name) &ek_method_##name,
const ek_method *const ek_methods[] = {EK_METHODS(ROW) NULL};
#undef ROW

const ek_method *ek_method_find(const char *name)
{
    for (int i = 0; ek_methods[i] != NULL; i++)
        if (strcmp(ek_methods[i]->name, name) == 0)
            return ek_methods[i];
    return NULL;
}

/* The first word of each leaves the row's choice; the others follow the enumerators. */
static const char *const pools[] = {"row", "none", "avg", "max", NULL};
static const char *const groups[] = {"row", "mean", "max", "sum", NULL};
static const char *const granularities[] = {"row", "head", "layer", "model", NULL};
static const char *const shares[] = {"row", "uniform", "layer", "model", NULL};
static const char *const carries[] = {"row", "once", "last", "sum", "ema", "sum_per_age", NULL};
static const char *const rests[] = {"drop", "vector", NULL};
static const char *const selects[] = {"error", "relative", "weighted", "score", NULL};

const ek_method_set ek_method_set_defaults = {.seed = -1,
                                              .window = -1,
                                              .pool_size = -1,
                                              .sinks = -1,
                                              .recent = -1,
                                              .refresh = -1,
                                              .every = -1,
                                              .rate = -1,
                                              .approximate = 1,
                                              .floor = -1};

#define MOST 1000000 /* entries or steps */
const ek_field ek_method_fields[] = {
    EK_STRING(ek_method_set, name, "as printed by `evictkit list methods`"),
    EK_STRING(ek_method_set, label, "what tables call it; default the name"),
    EK_STRING(ek_method_set, weights, "folder of a trained scorer"),
    EK_INT(ek_method_set, window, -1, MOST,
           "queries at the prompt's end that count; -1: the row's"),
    EK_INT(ek_method_set, pool_size, -1, 255, "odd; neighbours pooled; -1: the row's"),
    EK_INT(ek_method_set, sinks, -1, MOST, "first entries that always stay; -1: the row's"),
    EK_INT(ek_method_set, recent, -1, MOST, "latest entries that always stay; -1: the row's"),
    EK_INT(ek_method_set, refresh, -1, MOST,
           "plan at every so many decode steps, 0: never; -1: the row's"),
    EK_INT(ek_method_set, every, -1, MOST,
           "measure at every so many decode steps, 0: the first only; -1: the row's"),
    EK_INT(ek_method_set, seed, -1, 9007199254740992, "of `random`; -1: the run's"),
    EK_FLOAT(ek_method_set, rate, -1, 1, "share of the past in an EMA; -1: the row's"),
    EK_ENUM(ek_method_set, pool, pools, "over neighbouring entries"),
    EK_ENUM(ek_method_set, group, groups, "of the query heads of a KV head"),
    EK_ENUM(ek_method_set, granularity, granularities, "one kept set per head, layer or model"),
    EK_ENUM(ek_method_set, share, shares,
            "the budget: uniform, as much for every head; or heads of a layer, or of the model, "
            "share it by learned scores or attention"),
    EK_FLOAT(ek_method_set, floor, -1, 1,
             "share: layer or model: part of the mean budget that every head keeps at least; -1: "
             "the row's, else 0.2"),
    EK_ENUM(ek_method_set, carry, carries, "of attention over time"),
    EK_ENUM(ek_method_set, rest, rests,
            "drop what is not kept; or vector: keep more keys, rebuild their values from them"),
    EK_STRING(ek_method_set, maps, "folder of the maps that rest: vector needs"),
    EK_ENUM(ek_method_set, select, selects, "rest: vector: whose values are rebuilt"),
    EK_FLOAT(ek_method_set, approximate, 0, 1,
             "rest: vector: part of the values that could be rebuilt which are"),
    EK_FIELD_END};

static ek_code unknown(const char *name, ek_err *err)
{
    const char *names[64];
    const char *near;
    int n = 0;

    for (int i = 0; ek_methods[i] != NULL && n < 64; i++)
        names[n++] = ek_methods[i]->name;
    near = ek_nearest(name, names, n);
    return EK_FAIL(err, EK_EASKED,
                   "methods: found \"%s\", expected one that `evictkit list methods` prints%s%s%s",
                   name, near != NULL ? " (did you mean \"" : "", near != NULL ? near : "",
                   near != NULL ? "\"?)" : "");
}

static void change_measure(ek_measure *m, const ek_method_set *set)
{
    if (set->window >= 0)
        m->queries = (int)set->window;
    if (set->pool > 0)
        m->pool.kind = (ek_pool_kind)(set->pool - 1);
    if (set->pool_size >= 0)
        m->pool.size = (int)set->pool_size;
    if (m->pool.kind != EK_POOL_NONE && m->pool.size == 0)
        m->pool.size = 5; /* where a row had no pool */
    if (set->group > 0)
        m->group.by = (ek_combine)(set->group - 1);
    if (set->carry > 0)
        m->carry.kind = (ek_carry_kind)(set->carry - 1);
    if (set->rate >= 0)
        m->carry.rate = set->rate;
    if (set->every >= 0)
        m->carry.every = (int)set->every;
}

static void change_rest(ek_method *m, const ek_method_set *set)
{
    if (set->sinks >= 0)
        m->protect.sinks = (int)set->sinks;
    if (set->recent >= 0) {
        m->protect.recent = (int)set->recent;
        m->protect.recent_half = 0;
        m->protect.recent_window = 0;
    }
    if (set->refresh >= 0)
        m->when.every = (int)set->refresh;
    if (set->granularity > 0)
        m->granularity = (ek_granularity)(set->granularity - 1);
    if (set->share > 0)
        m->budget = (ek_share)(set->share - 1);
    if (set->floor >= 0)
        m->floor = set->floor;
    else if (m->budget != EK_SHARE_UNIFORM && set->share > 0 && !(m->floor > 0))
        m->floor = EK_SHARE_FLOOR; /* of a row that did not share */
    m->rest = (ek_rest)set->rest;
    m->select = (ek_lose)set->select;
    m->spare = 1 - set->approximate;
}

/* Choices that mean nothing together are refused, not ignored. */
static ek_code check_measure(const ek_measure *m, const ek_method_set *set, ek_err *err)
{
    const int attention = m->signal->source == EK_FROM_ATTENTION;

    if (!attention && (set->window >= 0 || set->pool > 0 || set->pool_size >= 0 || set->carry > 0 ||
                       set->rate >= 0 || set->every >= 0))
        return EK_FAIL(err, EK_EASKED,
                       "found window, pool, carry, rate or every, expected them with methods that "
                       "measure attention only");
    if (m->signal->source == EK_FROM_ENTRIES && set->group > 0)
        return EK_FAIL(err, EK_EASKED, "found group, expected it with signals of query heads only");
    if (m->pool.kind != EK_POOL_NONE && m->pool.size % 2 == 0)
        return EK_FAIL(err, EK_EASKED, "pool_size: found %d, expected an odd number", m->pool.size);
    if (set->window >= 0 && m->carry.kind != EK_CARRY_ONCE)
        return EK_FAIL(err, EK_EASKED, "found window, expected it with carry: once only");
    if (m->carry.kind == EK_CARRY_EMA && !(m->carry.rate >= 0 && m->carry.rate < 1))
        return EK_FAIL(err, EK_EASKED, "rate: found %g, expected 0 .. below 1", m->carry.rate);
    if (m->carry.kind == EK_CARRY_EMA && set->carry > 0 && set->rate < 0 && !(m->carry.rate > 0))
        return EK_FAIL(err, EK_EASKED, "found carry: ema without rate");
    if (m->layers == EK_LAYERS_GEOMETRIC &&
        (m->carry.kind == EK_CARRY_ONCE || m->carry.kind == EK_CARRY_AGE))
        return EK_FAIL(err, EK_EASKED,
                       "carry: expected last, sum or ema where one state serves all layers");
    return EK_OK;
}

static ek_code check_share(const ek_method *m, const ek_method_set *set, ek_err *err)
{
    if (m->budget == EK_SHARE_UNIFORM)
        return set->floor < 0 ? EK_OK
                              : EK_FAIL(err, EK_EASKED,
                                        "found floor, expected it with share: layer or model only");
    if (m->measure.signal->learner == NULL && m->measure.signal->source == EK_FROM_ENTRIES)
        return EK_FAIL(err, EK_EASKED,
                       "share: found %s, expected uniform: only learned scores and attention "
                       "compare between heads",
                       shares[m->budget + 1]);
    if (m->granularity != EK_SET_PER_HEAD)
        return EK_FAIL(err, EK_EASKED,
                       "share: found %s with granularity: %s, expected head (or share: uniform)",
                       shares[m->budget + 1], granularities[m->granularity + 1]);
    return EK_OK;
}

static ek_code check_rest(const ek_method *m, ek_err *err)
{
    if (m->measure.layers == EK_LAYERS_GEOMETRIC && m->granularity != EK_SET_PER_MODEL)
        return EK_FAIL(err, EK_EASKED,
                       "granularity: found %s, expected model where one state serves all layers",
                       granularities[m->granularity + 1]);
    return EK_OK;
}

static ek_code check_vector(const ek_method *m, const ek_method_set *set, ek_err *err)
{
    if (m->rest != EK_REST_VECTOR) {
        if (set->maps != NULL || set->select > 0 || set->approximate < 1)
            return EK_FAIL(err, EK_EASKED, "found %s, expected it with rest: vector only",
                           set->maps != NULL ? "maps"
                           : set->select > 0 ? "select"
                                             : "approximate");
        return EK_OK;
    }
    if (set->maps == NULL)
        return EK_FAIL(err, EK_EASKED,
                       "rest: vector needs maps: {name: %s, rest: vector, maps: "
                       "FOLDER}",
                       m->name);
    if (!m->when.prefill_end && !m->when.first_step)
        return EK_FAIL(err, EK_EASKED,
                       "rest: vector needs a method that cuts once, at the end of "
                       "the prompt");
    if (m->select == EK_LOSE_WEIGHTED && m->measure.signal->source == EK_FROM_ENTRIES &&
        m->measure.signal->learner == NULL)
        return EK_FAIL(err, EK_EASKED,
                       "select: found weighted, expected it with methods whose scores are "
                       "attention, or learned from it");
    return EK_OK;
}

ek_code ek_method_open(ek_method *out, const ek_method_set *set, ek_err *err)
{
    const ek_method *row = set->name != NULL ? ek_method_find(set->name) : NULL;
    ek_method m;

    if (set->name == NULL)
        return EK_FAIL(err, EK_EASKED, "methods: an element without name");
    if (row == NULL)
        return unknown(set->name, err);
    m = *row;
    change_measure(&m.measure, set);
    change_rest(&m, set);
    if (check_measure(&m.measure, set, err) != EK_OK || check_share(&m, set, err) != EK_OK ||
        check_rest(&m, err) != EK_OK || check_vector(&m, set, err) != EK_OK)
        return ek_err_in(err, "methods: %s", set->name);
    *out = m;
    return EK_OK;
}
