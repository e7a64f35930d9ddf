/* results/grid.h - tables whose columns align on a terminal.
 *
 * Widths are counted in characters of UTF-8.  What could move a terminal's cursor (control
 * characters out of a prediction or a foreign file) is shown as blanks. */
#ifndef EK_RESULTS_GRID_H
#define EK_RESULTS_GRID_H

#include "core/json.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ek_grid {
    char **cell; /* (rows, n_cols) owned */
    int n_cols;  /* set before the first ek_grid_add */
    int n_cells, room;
    int failed; /* out of memory: what is printed is cut short, and the text is failed too */
} ek_grid;

void ek_grid_add(ek_grid *g, const char *fmt, ...) EK_PRINTF(2, 3); /* next cell, row by row */
/* The first row is the head.  Columns of numbers stand right, others left. */
void ek_grid_print(const ek_grid *g, const char *indent, ek_text *out);
void ek_grid_clear(ek_grid *g); /* n_cols too */

#ifdef __cplusplus
}
#endif
#endif
