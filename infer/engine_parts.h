/* infer/engine_parts.h - the engine's own buffers; for engine.c (prompts) and row.c (rows) only. */
#ifndef EK_INFER_ENGINE_PARTS_H
#define EK_INFER_ENGINE_PARTS_H

#include "infer/engine.h"

/* A buffer that grows to the largest request and is then reused. */
typedef struct ek_room {
    void *data;
    size_t bytes;
} ek_room;

struct ek_engine {
    ek_model *model; /* borrowed */
    ek_device *dev;  /* borrowed */
    ek_plan plan;    /* the last one made */
    ek_policy_scratch policy;
    ek_room measure; /* (most entries of a layer, n_scratch) floats, for folding chunks */
    ek_room weight;  /* (4, EK_CHUNK) weights of queries */
    ek_room before;  /* a cache's n and pos before a plan is applied in place */
    ek_room prob;    /* of all rows that measure, one after the other */
    ek_room feed;    /* (rows) ek_feed */
    ek_room live;    /* (rows) ek_row *, as the feeds */
    int64_t grown;
};

/* At least bytes of r, contents undefined; EK_ENOMEM leaves it empty. */
ek_code ek_engine_reserve(ek_engine *e, ek_room *r, size_t bytes, ek_err *err);
/* Room in the engine's plan for everything c holds. */
ek_code ek_engine_plan_room(ek_engine *e, const ek_cache *c, ek_err *err);
/* EK_EASKED: a learned measure without weights. */
ek_code ek_engine_check_measure(const ek_measure *m, ek_err *err);
/* Most entries, unused room included, that a layer of c has. */
int64_t ek_engine_widest(const ek_cache *c);
/* Fold the queries of one feed of one layer into a lane, as part of a prompt of n_prompt tokens. */
ek_code ek_engine_fold(ek_engine *e, const ek_tap_layer *t, int feed, int lane, int64_t n_prompt,
                       ek_err *err);

#endif
