/* scorers/method.h - a method is a row of choices, plain data.  A method file declares its row;
 * YAML changes a copy of it. */
#ifndef EK_SCORERS_METHOD_H
#define EK_SCORERS_METHOD_H

#include "core/config.h"
#include "scorers/list.h"
#include "scorers/scorer.h"

typedef enum ek_combine { EK_MEAN, EK_MAX, EK_SUM } ek_combine;
typedef enum ek_heads { EK_OWN_GROUP, EK_ALL_HEADS } ek_heads; /* all: mean over a layer's heads */
typedef struct ek_group {
    ek_combine by; /* how query heads of a kv head combine, on probabilities */
    ek_heads heads;
} ek_group;

typedef enum ek_pool_kind { EK_POOL_NONE, EK_POOL_AVG, EK_POOL_MAX } ek_pool_kind;
typedef struct ek_pool {
    ek_pool_kind kind;
    int size; /* odd; neighbours in cache order; avg pads with zeros and divides by size */
} ek_pool;

typedef enum ek_layers { EK_LAYERS_NONE, EK_LAYERS_GEOMETRIC } ek_layers; /* one state, coupled */

typedef enum ek_carry_kind {
    EK_CARRY_ONCE, /* scored once: window mean at the end of prefill, or score() of the entry */
    EK_CARRY_LAST, /* this step's attention */
    EK_CARRY_SUM,  /* all queries so far */
    EK_CARRY_EMA,  /* m = rate m + (1 - rate) s */
    EK_CARRY_AGE   /* the sum divided by the number of queries that could see the entry */
} ek_carry_kind;
typedef struct ek_carry {
    ek_carry_kind kind;
    double rate;
    int every; /* update at decode steps 1, 1 + every, ...; 0: at step 1 only; 1: always */
} ek_carry;

typedef enum ek_newborn { EK_NEWBORN_OWN, EK_NEWBORN_ZERO, EK_NEWBORN_MEAN } ek_newborn;

typedef struct ek_measure { /* what is measured and carried; measure.c does it */
    const ek_scorer_class *signal;
    const ek_scorer *scorer; /* borrowed; NULL in the row, set when a run opens it */
    int queries;             /* how many of the newest count; 0: all of them */
    ek_group group;
    ek_pool pool;
    ek_layers layers;
    ek_carry carry;
    ek_newborn newborn;
} ek_measure;

/* Protected by mask, never by a high score; both count against the budget, and shrink with a
 * small one. */
typedef struct ek_protect {
    int sinks, recent;
    int recent_half;   /* 1: recent is B - B/2 (H2O), whatever `recent` says */
    int recent_window; /* 1: recent is min(queries, n/2) at the end of prefill (SnapKV) */
} ek_protect;

/* Who shares a budget of B entries per head.  Heads that share one compete by calibrated scores, so
 * a head of which much attention is expected holds more and the others less; each keeps at least
 * what is protected, and at least `floor` times B.  The sum is the same for all three. */
typedef enum ek_share {
    EK_SHARE_UNIFORM, /* nobody: B entries in every head */
    EK_SHARE_LAYER,   /* the heads of a layer: n_heads * B */
    EK_SHARE_MODEL    /* all heads: n_layers * n_heads * B */
} ek_share;
#define EK_SHARE_FLOOR 0.2 /* where nothing else is said */

typedef enum ek_granularity { EK_SET_PER_HEAD, EK_SET_PER_LAYER, EK_SET_PER_MODEL } ek_granularity;

typedef struct ek_when {
    int prefill_end; /* 1: a plan at the end of prefill */
    int first_step;  /* 1: the surplus goes at the first decode step instead (InertiaKV) */
    int every;       /* decode: when over budget, at steps divisible by every; 0: never */
} ek_when;

/* What becomes of the rest, or of a part of it: gone, or (VECTOR, infer/vector.h) keys stay and
 * values are rebuilt by maps. */
typedef enum ek_rest { EK_REST_DROP, EK_REST_VECTOR } ek_rest;
/* Whose value goes first (infer/vector.h). */
typedef enum ek_lose { EK_LOSE_ERROR, EK_LOSE_RELATIVE, EK_LOSE_WEIGHTED, EK_LOSE_SCORE } ek_lose;

typedef struct ek_method {
    const char *name, *brief, *paper;
    ek_measure measure;
    ek_protect protect; /* from here on infer/policy.c does it */
    ek_share budget;    /* how entries are shared out; how many is not in the row */
    double floor;       /* 0 .. 1 of B: the least of a head that shares */
    ek_granularity granularity;
    ek_when when;
    ek_rest rest;
    ek_lose select; /* whose values go first, by `rest: vector` */
    double spare;   /* 0 .. 1: part of those that could go and do not */
    /* borrowed; NULL until a run opens those that `rest: vector` needs */
    const struct ek_maps *maps;
} ek_method;

/* All of them, in the order of list.h, NULL at the end. */
extern const ek_method *const ek_methods[];
const ek_method *ek_method_find(const char *name); /* NULL if unknown */

#define EK_DECLARE(name) extern const ek_method ek_method_##name;
EK_METHODS(EK_DECLARE)
#undef EK_DECLARE

/* What YAML may change of a row, and the weights a learned method needs:
 * `{name: snapkv, window: 32, pool: max, pool_size: 7, group: mean, recent: 32}`.
 * -1 (or NULL) leaves the row's choice. */
typedef struct ek_method_set {
    char *name, *label, *weights; /* label: what tables call it; default the name, or name+vector */
    char *maps;                   /* folder of VECTOR's maps */
    int64_t window, pool_size, sinks, recent, refresh, every, seed;
    double rate, floor;
    int pool, group, granularity, share, carry; /* index into the names below, 0 = row's choice */
    int rest, select;                           /* ek_rest, ek_lose */
    double approximate;                         /* part of a that rest: vector uses, 0 .. 1 */
} ek_method_set;
extern const ek_method_set ek_method_set_defaults; /* an element's start values */

extern const ek_field ek_method_fields[]; /* its YAML keys, name first */

/* Copy of the row with the set's changes; EK_EASKED with the nearest name if unknown. */
ek_code ek_method_open(ek_method *out, const ek_method_set *set, ek_err *err);

#endif
