/* infer/maps.h - VECTOR's maps: what rebuilds a value from its key, from their folder.
 *
 *     x_j = R_pos^-1 k_j  (the cached key, its rotation undone)        v^_j = W x_j + b
 *
 * Mode head: one map per layer and KV head, from the head's key to the head's value.  Mode layer:
 * one map per layer, from the keys of all heads, joined in head order, to their values joined.
 *
 * The folder: config.json with format "evictkit maps", version 1, mode, dims, model and tokenizer
 * by hash, and weights, the hash of model.safetensors (maps fitted elsewhere may leave it out),
 * which holds three fp32 tensors, row-major.  Of other keys only those that ek_maps_write writes
 * are taken.
 *
 *     map.weight  (n_layers, n_heads, d, d)  or  (n_layers, H d, H d)     [output][input]
 *     map.bias    (n_layers, n_heads, d)     or  (n_layers, H d)
 *     map.r2      (n_layers, n_heads)        share of the values' variance that the map explains
 *                                            on held-out tokens: at most 1, 0 for a mean alone
 *
 * Both files are hostile until checked; see infer/folder.h. */
#ifndef EK_INFER_MAPS_H
#define EK_INFER_MAPS_H

#include "core/err.h"
#include "core/view.h"

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ek_maps {
    ek_dims dims;
    int joint;     /* 0: mode head; 1: mode layer */
    int width;     /* numbers a map takes and gives: head_dim, or n_heads * head_dim */
    int n;         /* maps: n_layers * n_heads, or n_layers */
    float *w, *b;  /* (n, width, width), (n, width) */
    float *r2;     /* (n_layers, n_heads) */
    char hash[33]; /* of model.safetensors, 32 hex digits */
    void *block;   /* all of the above; owned */
} ek_maps;

typedef struct ek_maps_need {
    const ek_dims *dims;
    const char *model_hash, *tokenizer_hash;
} ek_maps_need;

/* EK_EASKED: not there, or made for something else; EK_EINPUT: damaged. */
ek_code ek_maps_open(ek_maps *out, const char *dir, const ek_maps_need *need, ek_err *err);
/* Room for maps, all zero, to be filled in. */
ek_code ek_maps_make(ek_maps *out, const ek_dims *dims, int joint, ek_err *err);
void ek_maps_close(ek_maps *m); /* of a zeroed or closed one too */

/* Where the map of a layer and head lies; mode layer: head is ignored. */
const float *ek_maps_weight(const ek_maps *m, int layer, int head);
const float *ek_maps_bias(const ek_maps *m, int layer, int head);
int64_t ek_maps_bytes(const ek_maps *m); /* of w and b */

typedef struct ek_maps_origin {           /* what config.json says about where maps come from */
    const char *model, *tokenizer, *data; /* hashes */
    const char *settings;                 /* the resolved config as text */
    int64_t tokens, held_out;             /* fitted on; judged on */
} ek_maps_origin;

/* Write the folder (made if absent); model.safetensors appears before config.json, which names its
 * hash.  EK_ENAN naming tensor, layer and number if one is not finite; nothing is written then. */
ek_code ek_maps_write(const char *dir, const ek_maps *m, const ek_maps_origin *from, ek_err *err);

#ifdef __cplusplus
}
#endif
#endif
