/* infer/model.h - the frozen decoder: one forward for ragged rows, one tap per layer.
 *
 * Several sequences, each with its own cache, go through one pass over the weights.  Decode is a
 * feed of one token, chunked prefill a feed of many; they mix freely and a feed's bits do not
 * depend on its company.  The model does not know that training or eviction exist. */
#ifndef EK_INFER_MODEL_H
#define EK_INFER_MODEL_H

#include "infer/cache.h"
#include "infer/gguf.h"

typedef struct ek_model ek_model;

/* storage: of weights and of the caches made for it.  EK_F32 is for golden numbers. */
ek_code ek_model_open(ek_model **out, const char *path, ek_device *dev, ek_dtype storage,
                      ek_err *err);
void ek_model_close(ek_model *m);
const ek_dims *ek_model_dims(const ek_model *m);
ek_dtype ek_model_storage(const ek_model *m);
ek_gguf *ek_model_gguf(const ek_model *m);        /* for the tokenizer; stays open with the model */
const char *ek_model_hash(const ek_model *m);     /* 32 hex digits of the file */
int64_t ek_model_weight_bytes(const ek_model *m); /* read by one decode step */

typedef struct ek_feed {
    ek_cache *cache;    /* with room for n more tokens; EK_EBROKEN otherwise */
    const int32_t *tok; /* (n) */
    int n;
    int n_logits;  /* logits of the last n_logits tokens, 0 .. n */
    float *logits; /* (n_logits, n_vocab) */
    float *prob;   /* NULL, or room for (most entries of a layer, group): the last query's
                      probabilities, overwritten layer by layer, read in the tap */
} ek_feed;

/* Called after the attention of each layer, in layer order, before the next. */
typedef struct ek_tap_layer {
    int layer, n_feeds;
    const ek_feed *feed;    /* (n_feeds) */
    const ek_attn_row *row; /* (n_feeds) view, q, lse, prob of each */
    size_t ldq;
    const float *x; /* (tokens of all feeds in order, d_model) the attention's normed input */
} ek_tap_layer;

typedef struct ek_tap {
    ek_code (*layer)(void *ctx, const ek_tap_layer *t, ek_err *err); /* NULL: no tap */
    void *ctx;
} ek_tap;

/* Feed all; caches are appended and advanced, logits written.  Workspaces grow to the largest step
 * seen and are then reused.  EK_EASKED if a position passes the context length or an id is none of
 * the vocabulary's: nothing has happened then.  After an error of the tap the caches are half
 * written and good for closing only. */
ek_code ek_model_step(ek_model *m, const ek_feed *feeds, int n_feeds, const ek_tap *tap,
                      ek_err *err);

#endif
