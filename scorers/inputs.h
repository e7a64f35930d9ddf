/* scorers/inputs.h - what a learned scorer reads of an entry, one vector of n numbers.
 *
 *     x = [k (d) ; v (d) ; log age, under EK_AGE_INPUT ; carried features, set.carried]
 * k as cached (rotated); with set.rms, k and v are each divided by their root mean square.  The
 * carried features come from the view's carry, whose entries then have ek_carried_floats numbers.
 *
 * Every learned scorer standardises them per (layer, head) with two constants that the trainer
 * measures first, (x - input.mean) * input.scale; they are its first two tensors. */
#ifndef EK_SCORERS_INPUTS_H
#define EK_SCORERS_INPUTS_H

#include "scorers/scorer.h"

enum { EK_INPUT_MEAN, EK_INPUT_SCALE, EK_INPUT_TENSORS }; /* tensors, in order */

int ek_inputs_n(const ek_scorer *s);
/* Writes EK_INPUT_TENSORS descriptions and returns their number. */
int ek_inputs_describe(const ek_scorer *s, ek_param *out);
/* Scale 1, all layers and heads; params are zero elsewhere. */
void ek_inputs_init(const ek_scorer *s, ek_real *params);
/* x (rows, n) of slots first_row .. first_row + rows - 1 of head h, as they are. */
void ek_inputs_read(const ek_scorer *s, const ek_view *in, int h, int first_row, int rows,
                    ek_real *x);
/* Standardises x (rows, n) in place. */
void ek_inputs_standardise(const ek_scorer *s, int layer, int h, int rows, ek_real *x);

#endif
