/* train/export.h - a trained scorer as a folder: config.json and model.safetensors.
 *
 * What it is, what it was trained for and from, by hash; infer/weights.h reads it back. */
#ifndef EK_TRAIN_EXPORT_H
#define EK_TRAIN_EXPORT_H

#include "core/json.h"
#include "scorers/scorer.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ek_scorer_export {
    const ek_scorer *scorer; /* with its params */
    const char *method;      /* "foresight" */
    const char *loss;
    const char *model, *tokenizer, *data, *target; /* hashes */
    const char *settings;                          /* the resolved config as text */
    int64_t steps;
    double loss_last; /* of the last steps; NAN: unknown */
} ek_scorer_export;

/* EK_ENAN naming tensor, layer and head if a parameter is not finite; nothing is written then.
 * The folder is made; model.safetensors and config.json, which names its hash, appear when both are
 * whole on the disk. */
ek_code ek_scorer_write(const char *dir, const ek_scorer_export *x, ek_err *err);

#ifdef __cplusplus
}
#endif
#endif
