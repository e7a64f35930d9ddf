/* core/view.h - the entries of one layer of one sequence, as columns.
 *
 * The live cache and a training trace both hand out this struct, so a scorer cannot tell training
 * from inference.  Heads are ragged: kv head h owns entries first[h] .. first[h] + n[h] - 1 of each
 * column ("entry" indexes a column; "slot" is entry - first[h]).  Between two heads a column may
 * have unused room.  All pointers are borrowed; columns nobody asked for are NULL.
 *
 * Query head number x belongs to kv head x / group (integer division). */
#ifndef EK_CORE_VIEW_H
#define EK_CORE_VIEW_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef uint16_t ek_bf16; /* upper half of an IEEE float; conversions in core/bf16.h */

typedef enum ek_dtype { EK_BF16, EK_F32 } ek_dtype; /* storage of weights and of cached vectors */

static inline int ek_dtype_size(ek_dtype t)
{
    return t == EK_F32 ? 4 : 2;
}

/* Forms an entry's key and value can have.  A view's are all exact so far (form is NULL); entries
 * that have lost their value are a view of their own, without v (ek_mapped_row in core/ops.h). */
typedef enum ek_key_form { EK_KEY_EXACT, EK_KEY_QUANT } ek_key_form;
typedef enum ek_value_form { EK_VALUE_EXACT, EK_VALUE_MAPPED, EK_VALUE_QUANT } ek_value_form;
typedef struct ek_form {
    uint8_t key, value; /* one of each of the above */
} ek_form;

enum { EK_MAX_HEADS = 256 }; /* KV heads of a layer */

/* The frozen model's sizes: what every layer of the program needs to agree on. */
typedef struct ek_dims {
    int n_layers, n_heads;            /* layers; KV heads */
    int group, head_dim;              /* query heads per KV head; numbers per key and per value */
    int d_model, d_ff;                /* hidden size; feed-forward size */
    int n_vocab, n_ctx;               /* tokens; longest trained context */
    float rope_base, norm_eps, scale; /* scale: of the logits, 1/sqrt(head_dim) unless stated */
} ek_dims;

typedef struct ek_view {
    int layer, n_heads, group, head_dim;
    int n_carry;      /* floats per entry in carry */
    ek_dtype dtype;   /* of k and v */
    int32_t next_pos; /* position of the token after the newest: age of an entry = next_pos - pos */
    const int32_t *first, *n; /* (n_heads) host */
    const int32_t *pos;       /* (entries) position at birth, ascending within a head */
    const ek_form *form;      /* (entries) NULL: all exact */
    const float *bias;        /* (entries) added to the logit; NULL: all 0 */
    const void *k, *v;        /* (entries, head_dim) of dtype; keys are rotated for pos */
    const float *carry; /* (entries, n_carry) the measure's memory of an entry; NULL if none */
} ek_view;

/* Bytes of one vector of the view's k or v. */
static inline int64_t ek_view_vector_bytes(const ek_view *in)
{
    return (int64_t)in->head_dim * ek_dtype_size(in->dtype);
}

#ifdef __cplusplus
}
#endif
#endif
