/* results/frame.h - the samples of some runs in memory: what statistics and reports are made from.
 *
 * Numbers are as stored (shares 0 .. 1).  Cells stand in the order of their ids, samples in the
 * order of (doc_id, rep), so that two cells are paired by one merge. */
#ifndef EK_RESULTS_FRAME_H
#define EK_RESULTS_FRAME_H

#include "results/metric.h"
#include "results/stats.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ek_point {
    int64_t id; /* of the sample */
    char *doc_id, *cluster, *prompt_hash;
    int64_t rep;
    double *value; /* (n_names) NAN: none */
} ek_point;

typedef struct ek_frame_cell {
    int64_t id, length, entries, bytes, seed, base; /* EK_NONE: none */
    char run[33];
    char *suite, *task, *variant, *method, *policy, *keep_of; /* keep_of may be NULL */
    double keep;
    int learned, query_aware;
    ek_point *point; /* (n) */
    int n, room;
} ek_frame_cell;

typedef struct ek_frame {
    ek_frame_cell *cell; /* (n_cells) */
    int n_cells, room;
    char **name; /* (n_names) of the numbers, columns of sample first */
    int n_names;
} ek_frame;

/* The cells of a run (NULL: all), added to what f holds (start from {0}). */
ek_code ek_frame_load(ek_frame *f, ek_store *store, const char *run, ek_err *err);
void ek_frame_clear(ek_frame *f);
const ek_frame_cell *ek_frame_find(const ek_frame *f, int64_t id); /* NULL: not there */
int ek_frame_name(const ek_frame *f, const char *name);            /* index, or -1 */

/* Cluster sums of one number over the samples that have it, in both cells if base is given, scaled
 * and logged as the metric says.  Clusters stand in the order of their names.  out starts as {0},
 * is used again and again, and is the caller's to end with free(out->mem). */
typedef struct ek_pairing {
    ek_clusters c;
    int n;      /* samples; 0: nothing to compare */
    int binary; /* every sample is 0 or scale and a cluster of its own: Wilson's interval holds */
    int lost, gained; /* samples fully right under base and not here, and the reverse */
    double *mem;
    int room; /* clusters mem has room for */
} ek_pairing;
ek_code ek_frame_pair(const ek_frame *f, const ek_frame_cell *cell, const ek_frame_cell *base,
                      int name, ek_pairing *out, ek_err *err);

#ifdef __cplusplus
}
#endif
#endif
