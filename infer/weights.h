/* infer/weights.h - a trained scorer from its folder.
 *
 * config.json says what it is and what it was made for; model.safetensors holds its parameters.
 * Both are hostile until checked.  Refused with one sentence: another base model or tokenizer (by
 * hash), another method, another recent window, parameters that do not fit, that are not finite, or
 * that were changed after config.json was written, unknown keys, and settings of which `scoring`
 * says that they were others.
 *
 * A scorer trained elsewhere is taken if its folder follows this (tests/interchange.py writes one
 * with numpy and the safetensors library).  Keys of config.json:
 *     format     "evictkit scorer"                  version    1
 *     method     "foresight", "kvpop"               scorer     "mlp", "linear", "recurrent"
 *     age        "none", "exp", "power", "input"    input      "raw", "rms"
 *     hidden     width of the mlp; any positive integer otherwise
 *     carried    "none", "ema", "full"; absent: none
 *     delay      0 .. recent; absent: 0             sinks, recent    the protection
 *     norm, skip recurrent: 1 or 0; absent: 0
 *     absolute   1: exp(score + log_mass) is a mass, 0: a share of the head's; absent: 0
 *     dims       {"n_layers", "n_heads", "group", "head_dim"} of the model
 *     model, tokenizer    their hashes; the refusal of wrong ones says the right ones
 *     weights    XXH3-128 of model.safetensors, 32 hex digits; absent: not checked
 *     scoring    ek_weights_scoring of the settings above; absent: not checked
 *     data, target, loss, steps, parameters, final_loss, settings    where it comes from; optional
 * and no others.
 * Tensors, F32, F16 or BF16, each (n_layers, n_heads, rows, cols) row-major, and no others.  d is
 * head_dim; n = 2 d, + 1 with age input, + 1 or 8 with carried ema or full: the inputs, in the
 * order of scorers/inputs.h.
 *     all         input.mean, input.scale (1, n)   out.bias, log_mass (1, 1)
 *     age         age.alpha (1, 1) with exp; age.beta (1, 1) with power or input
 *     mlp         hidden.weight (hidden, n)   hidden.bias, out.weight (1, hidden)
 *     linear      out.weight (1, n)
 *     recurrent   memory.weight (3 d/2, n): d/2 rows of Wq, of Wk, of Wv   gate.weight (2, n):
 *                 input, forget   gate.bias (1, 2)   out.weight (1, d/2)
 *                 with skip: skip.weight (1, n)
 *
 * Formulas: scorers/mlp.c, linear.c, recurrent.c, age.h. */
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
    int64_t sinks, recent; /* protection the user asks for; negative: what it was trained for */
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
/* Of all that scores depend on beside the parameters: method, class, width, inputs, age, delay,
 * protection and the rest of the settings.  What is absent and what says the default are alike. */
const char *ek_weights_settings(const ek_weights *w);                          /* 32 hex digits */
void ek_weights_scoring(char out[33], const char *method, const ek_scorer *s); /* the same, anew */
/* The width of the hidden layer, as it really is: settings may say 0 for the default; 1: none. */
int64_t ek_weights_width(const ek_scorer *s);
/* Id of the training run that made them, 32 hex digits; "" if config.json does not say. */
const char *ek_weights_trained(const ek_weights *w);

#ifdef __cplusplus
}
#endif
#endif
