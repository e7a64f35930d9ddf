/* train/example.h - what a trainer needs of one sequence: entries as of one position, and the mass
 * of attention each of them received later.
 *
 * Every (layer, kv head) has the same number of entries; which ones they are may differ, since long
 * sequences are sampled (log_weight: log of how many entries each stands for).  One block holds all
 * columns, so a record can be mapped from a file as it is. */
#ifndef EK_TRAIN_EXAMPLE_H
#define EK_TRAIN_EXAMPLE_H

#include "core/err.h"
#include "core/view.h"

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ek_example_head { /* the first 64 bytes of a record's block */
    int32_t retrieval;           /* 0 prose, 1 retrieval text */
    int32_t n_seq;               /* tokens of the sequence */
    int32_t next_pos;            /* ages are counted at this position: the cut, or n_seq */
    int32_t n;                   /* entries per head */
    int32_t whole;               /* 1: all tokens sinks .. n_seq - recent - 1, for ranking losses */
    int32_t reserved;
    int64_t number; /* of the sequence in its data */
    int64_t bytes;  /* of the block */
    int64_t unused[3];
} ek_example_head;

typedef struct ek_example {
    const ek_example_head *head; /* the block; borrowed if it is a mapping's, else owned */
    ek_dims dims;
    ek_dtype dtype;
    int32_t *pos;             /* (n_layers, n_heads, n) ascending within a head */
    float *mass, *log_weight; /* (n_layers, n_heads, n) */
    char *k, *v;              /* (n_layers, n_heads, n, head_dim) of dtype */
    int owned;
} ek_example;

int64_t ek_example_bytes(const ek_dims *dims, ek_dtype dtype, int n);

/* A new record, columns zero, head->n and bytes set; write through the column pointers and
 * ek_example_edit. */
ek_code ek_example_open(ek_example *r, const ek_dims *dims, ek_dtype dtype, int n, ek_err *err);
ek_example_head *ek_example_edit(ek_example *r); /* of an owned one */
/* A record in someone's memory, size bytes from block on: EK_EINPUT if it does not fit or its
 * numbers are impossible. */
ek_code ek_example_view(ek_example *r, const ek_dims *dims, ek_dtype dtype, const void *block,
                        int64_t size, ek_err *err);
/* Positions ascend below next_pos, masses are finite and not negative: EK_EINPUT naming the place.
 */
ek_code ek_example_check(const ek_example *r, ek_err *err);
void ek_example_close(ek_example *r); /* zeroed, closed and viewing ones too */

/* One layer as a scorer sees it; first, n: room for n_heads numbers each, borrowed by the view. */
void ek_example_layer(const ek_example *r, int layer, int32_t *first, int32_t *n, ek_view *out);
/* Where the numbers of a head begin in pos, mass and log_weight. */
size_t ek_example_at(const ek_example *r, int layer, int h);

#ifdef __cplusplus
}
#endif
#endif
