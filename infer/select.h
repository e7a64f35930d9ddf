/* infer/select.h - the k best of some numbers, without sorting them. */
#ifndef EK_INFER_SELECT_H
#define EK_INFER_SELECT_H

#include <stdint.h>

/* Among the entries e of n_ranges ranges, first[r] <= e < first[r] + n[r], whose mask[e] is 0: set
 * mask[e] = 1 for the k with the largest x[e] (all, if there are no more than k).  Equal numbers:
 * the lower range first, within a range the larger e; so the choice is total and does not depend on
 * anything but its arguments.  x holds no NaN; -inf comes last; -0 equals 0.
 * A radix select: three counting passes, whatever the numbers. */
void ek_select(const float *x, const int32_t *first, const int32_t *n, int n_ranges, int64_t k,
               uint8_t *mask);

#endif
