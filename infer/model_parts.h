/* infer/model_parts.h - what a model is made of; for model.c (the step) and load.c (the file) only.
 */
#ifndef EK_INFER_MODEL_PARTS_H
#define EK_INFER_MODEL_PARTS_H

#include "infer/model.h"

typedef struct ek_layer {
    const float *attn_norm, *ffn_norm; /* (d_model) inside the model's norms */
    ek_weight qkv;                     /* (n_heads * (group + 2) * head_dim, d_model): q, k, v */
    ek_weight o;                       /* (d_model, n_heads * group * head_dim) */
    ek_weight gate_up;                 /* (2 d_ff, d_model): gate, up */
    ek_weight down;                    /* (d_model, d_ff) */
} ek_layer;

/* What a step works in; grown to the largest step, then reused. */
typedef struct ek_step_buffers {
    int tokens, rows, head_rows, copy_rows; /* what there is room for */
    void *block;                            /* of all the following */
    float *x, *normed;                      /* (tokens, d_model) residual stream; normed input */
    float *qkv, *attn;                      /* (tokens, n_qkv), (tokens, n_q) */
    float *gate_up, *ff;                    /* (tokens, 2 d_ff), (tokens, d_ff) */
    float *lse;                             /* (tokens, query heads) */
    int32_t *pos, *tok;                     /* (tokens) */
    ek_attn_row *row;                       /* (rows) */
    ek_mapped_row *mapped;                  /* (rows) */
    float *head_x, *head_normed;            /* (head_rows, d_model) */
    float *copy;                            /* (copy_rows, n_vocab) */
} ek_step_buffers;

struct ek_model {
    ek_device *dev; /* borrowed */
    ek_gguf *gguf;
    ek_dims dims;
    ek_dtype storage;
    char hash[33];
    float *norms;       /* (2 n_layers + 1, d_model) */
    ek_weight embd;     /* (n_vocab, d_model) */
    ek_weight own_head; /* the same shape; data NULL: the head is embd */
    ek_layer *layers;   /* (n_layers) */
    double *inv_freq;   /* (head_dim / 2) */
    ek_step_buffers buf;
};

/* Numbers of one token's queries, and of its keys (or values). */
static inline int ek_n_query(const ek_dims *d)
{
    return d->n_heads * d->group * d->head_dim;
}

static inline int ek_n_kv(const ek_dims *d)
{
    return d->n_heads * d->head_dim;
}

#endif
