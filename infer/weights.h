/* infer/weights.h - a trained scorer from its folder.
 *
 * config.json says what it is and what it was made for; model.safetensors holds its parameters, one
 * tensor (n_layers, n_heads, rows, cols) for each that the scorer describes.  Both are hostile
 * until checked.  Refused with one sentence: another base model or tokenizer (by hash), another
 * method, another recent window, a delay beyond that window, parameters that do not fit, that are
 * not finite, or that were changed after config.json was written. */
#ifndef EK_INFER_WEIGHTS_H
#define EK_INFER_WEIGHTS_H

#include "scorers/method.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ek_weights ek_weights;

typedef struct ek_weights_need {
    const char *method; /* "foresight"; NULL: any */
    const ek_dims *dims;
    const char *model_hash, *tokenizer_hash;
    int64_t recent; /* window the user asks for; 0 or less: the trained one */
} ek_weights_need;

/* EK_EASKED: not there, or made for something else; EK_EINPUT: damaged. */
ek_code ek_weights_open(ek_weights **out, const char *dir, const ek_weights_need *need,
                        ek_device *dev, ek_err *err);
void ek_weights_close(ek_weights *w); /* NULL is fine */

/* Hang the scorer into a method's measure, whose signal becomes the class config.json names (mlp,
 * linear, recurrent), with the protection it was trained for; the method must not outlive the
 * weights. */
void ek_weights_apply(const ek_weights *w, ek_method *method);

const ek_scorer *ek_weights_scorer(const ek_weights *w);
const char *ek_weights_method(const ek_weights *w);
const char *ek_weights_hash(const ek_weights *w); /* of the parameters' file, 32 hex digits */
/* Id of the training run that made them, 32 hex digits; "" if config.json does not say. */
const char *ek_weights_trained(const ek_weights *w);

#ifdef __cplusplus
}
#endif
#endif
