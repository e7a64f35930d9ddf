/* train/watch.h - how well a scorer chooses, whatever loss it is trained with.
 *
 * A loss says how far from its minimum a scorer is; what a user wants to see fall or rise is how
 * many of the right entries stay: recall of the target's best quarter (at cuts), recall of the
 * `keep` best, and the share of boundary decisions that are right (at cuts, and over time for
 * records of whole sequences).  A boundary decision asks whether the youngest entry that may go
 * stays: it is compared with the k-th best by the target, or, if it is that itself, with the best
 * that goes; it is right if the scorer has the two in the target's order.  Equal priorities are
 * wrong. */
#ifndef EK_TRAIN_WATCH_H
#define EK_TRAIN_WATCH_H

#include "train/loss.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ek_watch_pair {
    float value, weight;
} ek_watch_pair;

typedef struct ek_watch {      /* sums over the records of one head */
    double quarter, n_quarter; /* recall of the target's best quarter; recalls measured */
    double recall, chance, n;  /* recall of the keep best; what chance gives, k/|E|; measured */
    double right, decided;     /* boundary decisions */
} ek_watch;

/* One head of one record, at a cut: entries that stand for several count as that many.  room (n).
 * Where no more than keep entries are, neither recall of the keep best nor a decision is measured;
 * elsewhere there is one decision a cut.  Of equal targets the younger is better. */
void ek_watch_cut(const ek_loss_item *x, ek_watch_pair *room, ek_watch *sum);
/* Of a whole sequence, after `count` of a ranking loss has ranked its target: recall at the first
 * query that evicts, every 256 queries from there and the last; decisions at the sampled positions.
 */
void ek_watch_whole(const ek_loss_item *x, ek_watch_pair *room, ek_watch *sum);

/* Means; NAN where nothing was measured. */
typedef struct ek_watched {
    double quarter, recall, chance, boundary;
} ek_watched;
ek_watched ek_watch_mean(const ek_watch *sum);
void ek_watch_add(ek_watch *to, const ek_watch *x);

#ifdef __cplusplus
}
#endif
#endif
