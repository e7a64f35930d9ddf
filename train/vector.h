/* train/vector.h - fitting VECTOR's maps: prose through the frozen model, sums of un-rotated keys
 * and of values, ridge least squares at the end.
 *
 * Each window is read once; nothing but sums is kept, so memory does not grow with the text.
 * Position 0 is left out.  R2 is measured, and lambda chosen, on windows of documents that the fit
 * never sees.  A checkpoint holds the sums: a killed run resumes to the bit. */
#ifndef EK_TRAIN_VECTOR_H
#define EK_TRAIN_VECTOR_H

#include "core/config.h"
#include "core/device.h"

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ek_vector_set {
    int mode;        /* 0 head: a map per KV head; 1 layer: one per layer, heads joined */
    int64_t tokens;  /* to read in all, */
    double held_out; /* this share of them to judge by */
    bool bias;       /* with an intercept */
} ek_vector_set;
extern const ek_vector_set ek_vector_defaults;
extern const ek_field ek_vector_fields[];

struct ek_train_set;
struct ek_train_options;

/* What ek_train_run does with method vector; its options mean the same, a step is a window. */
ek_code ek_vector_run(const struct ek_train_set *set, const struct ek_train_options *options,
                      ek_device *dev, ek_err *err);
/* What it would refuse before it reads; nothing is written. */
ek_code ek_vector_look(const struct ek_train_set *set, const struct ek_train_options *options,
                       ek_device *dev, ek_err *err);

#ifdef __cplusplus
}
#endif
#endif
