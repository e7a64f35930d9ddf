/* tests/check_model.h - a tiny model on a device, opened and removed by a test's fixture. */
#ifndef EK_TESTS_CHECK_MODEL_H
#define EK_TESTS_CHECK_MODEL_H

#include "infer/model.h"
#include "tests/tiny_model.h"

typedef struct ek_check_model {
    char folder[64], path[96]; /* made by mkdtemp; removed at close */
    ek_device *dev;
    ek_model *model;
    const ek_dims *dims;
    int threads_before;
} ek_check_model;

/* tiny: NULL for the defaults; threads: 0 for OpenMP's own number.  Fails the test if it cannot. */
void ek_check_model_open(ek_check_model *out, const ek_tiny *tiny, ek_dtype storage, int threads);
/* The same with the real model; path from ek_check_real_model. */
void ek_check_model_real(ek_check_model *out, const char *path, ek_dtype storage, int threads);
void ek_check_model_close(ek_check_model *m);

/* A cache for it with room for cap tokens and lanes for n measures that carry something. */
void ek_check_cache_open(ek_cache *out, const ek_check_model *m, int cap,
                         const ek_measure *const *measures, int n);

/* n token ids, a function of (seed, place) alone. */
void ek_check_tokens(int32_t *out, int n, int n_vocab, uint64_t seed);

/* The real model: EVICTKIT_MODEL, or the default file; NULL if it is not there. */
const char *ek_check_real_model(void);

#endif
