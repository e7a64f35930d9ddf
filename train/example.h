/* train/example.h - what a trainer needs of one sequence: its entries once, and for each of several
 * cuts the mass of attention every entry received after it.
 *
 * Every (layer, kv head) has the same number of entries.  A whole record holds every token of the
 * sequence, as a scorer with a memory must read them; a sampled one holds entries that may differ
 * between heads, each standing for several (log_weight: log of how many).  At a cut an entry counts
 * if sinks <= pos < cut - recent; since positions ascend, these are consecutive slots (a whole
 * record at cuts also serves scorers with a larger window).  A record
 * made for losses that rank over time has one cut, behind its last token, and its masses are of all
 * queries from pos + recent on.
 *
 * One block holds head and columns, so a record can be mapped from a file as it is. */
#ifndef EK_TRAIN_EXAMPLE_H
#define EK_TRAIN_EXAMPLE_H

#include "core/err.h"
#include "core/view.h"

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { EK_EXAMPLE_CUTS = 8 }; /* per record at most */

typedef struct ek_example_head { /* the first 128 bytes of a record's block */
    int32_t retrieval;           /* 0 prose, 1 retrieval text */
    int32_t n_seq;               /* tokens of the sequence */
    int32_t n;                   /* entries per head */
    int32_t whole;               /* 1: entry e is token e of the sequence, n == n_seq */
    int32_t sinks, recent;       /* the protection: which entries count at a cut */
    int32_t n_cuts;
    int32_t cut[EK_EXAMPLE_CUTS]; /* ascending; ages are counted at these positions */
    int32_t end[EK_EXAMPLE_CUTS]; /* queries cut .. end - 1 made the mass; cut n_seq: end n_seq */
    int32_t carried, n_carry;     /* ek_carried of the carried columns; floats per entry */
    int32_t reserved;
    int64_t number; /* of the sequence in its data */
    int64_t bytes;  /* of the block */
    int64_t unused[1];
} ek_example_head;

typedef struct ek_example_shape { /* what the size of a record depends on */
    ek_dims dims;
    ek_dtype dtype;
    int n, n_cuts, n_carry;
} ek_example_shape;

typedef struct ek_example {
    const ek_example_head *head; /* the block; borrowed if it is a mapping's, else owned */
    ek_dims dims;
    ek_dtype dtype;
    int32_t *pos;      /* (n_layers, n_heads, n) ascending within a head */
    float *log_weight; /* (n_layers, n_heads, n) 0 in a whole record */
    float *mass;       /* (n_layers, n_cuts, n_heads, n) 0 where an entry does not count */
    float *carry;      /* (n_layers, n_cuts, n_heads, n, n_carry) as of the cut; NULL if none */
    char *k, *v;       /* (n_layers, n_heads, n, head_dim) of dtype */
    int owned;
} ek_example;

int64_t ek_example_bytes(const ek_example_shape *shape);

/* A new record, columns zero, head->n, n_cuts, n_carry and bytes set; write through the column
 * pointers and ek_example_edit. */
ek_code ek_example_open(ek_example *r, const ek_example_shape *shape, ek_err *err);
ek_example_head *ek_example_edit(ek_example *r); /* of an owned one */
/* A record in someone's memory, size bytes from block on: EK_EINPUT if it does not fit or its
 * numbers are impossible. */
ek_code ek_example_view(ek_example *r, const ek_dims *dims, ek_dtype dtype, const void *block,
                        int64_t size, ek_err *err);
/* Positions ascend below n_seq, masses and carried columns are finite and not negative: EK_EINPUT
 * naming the place. */
ek_code ek_example_check(const ek_example *r, ek_err *err);
void ek_example_close(ek_example *r); /* zeroed, closed and viewing ones too */

/* 1: made for losses that rank over time. */
int ek_example_over_time(const ek_example_head *head);

/* Where the numbers of a head begin in pos and log_weight; and those of a head at cut m in mass. */
size_t ek_example_at(const ek_example *r, int layer, int h);
size_t ek_example_mass_at(const ek_example *r, int layer, int m, int h);

/* Which slots of a head count at cut m for a window of `recent` tokens, the record's own at least:
 * *first .. *first + *n - 1; n may be 0. */
void ek_example_slots(const ek_example *r, int layer, int h, int m, int recent, int32_t *first,
                      int32_t *n);

/* One layer as a scorer sees it, all entries of every head; at cut m (next_pos, carried columns),
 * or m = -1: behind the sequence, without carried columns.  first, n: room for n_heads numbers
 * each, borrowed by the view; narrow them to see fewer slots. */
void ek_example_layer(const ek_example *r, int layer, int m, int32_t *first, int32_t *n,
                      ek_view *out);

#ifdef __cplusplus
}
#endif
#endif
