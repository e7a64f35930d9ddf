/* train/sums.h - the sums behind VECTOR's maps: of un-rotated keys and values of whole caches, with
 * their checkpoint and their maps. */
#ifndef EK_TRAIN_SUMS_H
#define EK_TRAIN_SUMS_H

#include "infer/cache.h"
#include "infer/maps.h"
#include "train/regress.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ek_sums {
    ek_dims dims;
    int joint, threads;
    int length;           /* longest sequence */
    ek_regress fit, held; /* a map per layer and head, or per layer */
    double *angle;        /* (length, head_dim) cosines, then sines; owned */
    double *scratch;      /* (threads, 2, rows, ld) owned */
    double seconds;       /* spent in ek_sums_add */
} ek_sums;

ek_code ek_sums_open(ek_sums *s, const ek_dims *dims, int joint, int length, ek_device *dev,
                     ek_err *err);
void ek_sums_close(ek_sums *s); /* of a zeroed one too */
size_t ek_sums_bytes(const ek_sums *s);

/* Add all entries of a cache that has evicted nothing, the first token's left out.  x is the stored
 * key with its rotation undone in double, v the stored value. */
void ek_sums_add(ek_sums *s, const ek_cache *c, int held);

/* What was found for each layer and head; each (n_layers, n_heads); owned. */
typedef struct ek_sums_fit {
    double *r2, *r2_fit; /* on tokens held out; on those of the fit */
    double *lambda;
} ek_sums_fit;
/* Fit all maps, lambda by R2 on what was held out; R2 is that of the maps as rounded to fp32.
 * EK_ENAN naming layer and head if numbers were not finite.  On failure both are as if closed. */
ek_code ek_sums_solve(const ek_sums *s, int bias, ek_maps *maps, ek_sums_fit *fit, ek_err *err);
void ek_sums_fit_close(ek_sums_fit *fit);

/* The state of a run after window `at`, to the bit.  Loading: EK_EASKED if it is another run's,
 * EK_EINPUT if damaged; at is at most n. */
ek_code ek_sums_save(const ek_sums *s, const char *path, const char *identity, int64_t at,
                     ek_err *err);
ek_code ek_sums_load(ek_sums *s, const char *path, const char *identity, int64_t n, int64_t *at,
                     ek_err *err);

#ifdef __cplusplus
}
#endif
#endif
