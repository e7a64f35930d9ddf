/* datasets/haystack.h - needles in a haystack: what all tasks that hide something share.
 *
 * The grid is lengths x depths x repeats.  Each sample has its own haystack of prose and is its own
 * cluster.  A needle goes behind the last sentence that ends before `depth` percent of the
 * haystack's tokens (0: before all of it, 100: behind all of it). */
#ifndef EK_DATASETS_HAYSTACK_H
#define EK_DATASETS_HAYSTACK_H

#include "datasets/dataset.h"
#include "datasets/draw.h"

enum { EK_NEEDLES = 8 };

typedef struct ek_needle {
    const char *text; /* borrowed */
    int depth;        /* percent */
} ek_needle;

typedef struct ek_haystack {
    const char *intro; /* opens the context: says that something will matter, not what it is */
    const char *question, *prefix;
    ek_needle needle[EK_NEEDLES]; /* (n) */
    int n, asked;                 /* asked: index of the one that is asked for */
} ek_haystack;

typedef struct ek_haystack_cell {
    int depth, length;
    int64_t repeat;
    ek_draw draw; /* of this sample alone */
} ek_haystack_cell;

/* Lengths, depths and repeats that were left 0; tokens: max_new_tokens where left 0. */
void ek_haystack_defaults(ek_task_config *c, int64_t tokens);
/* Settles the number of samples.  What `sample` needs must stand already: of each length some are
 * made.  EK_EASKED: a length leaves no room, or the text is too short for it. */
ek_code ek_haystack_open(ek_task *t, ek_err *err);

/* Where sample i stands.  Depths change fastest and repeats slowest, so that the first samples are
 * a grid of their own. */
ek_haystack_cell ek_haystack_cell_of(const ek_task *t, int64_t i);

/* Where sample i's haystack lies; takes one number of cell->draw. */
ek_code ek_haystack_window(ek_window *out, const ek_task *t, ek_haystack_cell *cell, int64_t i,
                           ek_err *err);

/* The context: intro and the window's text with all needles in it, cut so that prompt, template and
 * answer together have at most cell->length tokens, and a word more would not fit.  malloc'd.
 * EK_EASKED: the length leaves no room, or the text is too short. */
ek_code ek_haystack_build(char **out, const ek_haystack *h, const ek_task *t, const ek_window *w,
                          int length, ek_err *err);

/* Fills in what is the same for all: id "what-length-depth-repeat-doc@byte", question, prefix,
 * numbers.  The context is taken over.  References and distractors remain to be set. */
ek_code ek_haystack_sample(ek_sample *s, const char *what, const ek_haystack *h, const ek_task *t,
                           const ek_haystack_cell *cell, const ek_window *w, ek_err *err);

#endif
