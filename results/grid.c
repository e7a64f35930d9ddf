/* results/grid.c - see grid.h. */
#include "results/grid.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void ek_grid_add(ek_grid *g, const char *fmt, ...)
{
    va_list args;
    int n;
    char *text;

    if (g->n_cells == g->room) {
        const int room = g->room ? 2 * g->room : 128;
        char **more = realloc(g->cell, (size_t)room * sizeof *more);

        if (!more) {
            g->failed = 1;
            return;
        }
        g->cell = more;
        g->room = room;
    }
    va_start(args, fmt);
    n = vasprintf(&text, fmt, args);
    va_end(args);
    if (n < 0) {
        g->failed = 1;
        return;
    }
    for (unsigned char *c = (unsigned char *)text; *c; c++) {
        if (*c < 0x20 || *c == 0x7f)
            *c = ' ';
        else if (*c == 0xc2 && c[1] >= 0x80 && c[1] < 0xa0)
            c[0] = c[1] = ' ';
    }
    g->cell[g->n_cells++] = text;
}

static int width_of(const char *text)
{
    int n = 0;

    for (; *text; text++)
        n += ((unsigned char)*text & 0xc0) != 0x80;
    return n;
}

/* "12", "-1.5e-3", "+0.02 [..]", "3/0", "24 of 24"; not "3f27" (a run) nor "16:00". */
static int is_number(const char *text)
{
    char *end;

    (void)strtod(text, &end);
    return end != text && strchr("0123456789+-.", *text) && (!*end || strchr(" %/", *end));
}

/* A column is one of numbers if a cell below the head is one and none is a word. */
static int is_numeric(const ek_grid *g, int col)
{
    int numbers = 0;

    for (int i = g->n_cols + col; i < g->n_cells; i += g->n_cols) {
        if (is_number(g->cell[i]))
            numbers++;
        else if (g->cell[i][0] && strcmp(g->cell[i], "-") != 0)
            return 0;
    }
    return numbers > 0;
}

void ek_grid_print(const ek_grid *g, const char *indent, ek_text *out)
{
    int *width = calloc((size_t)g->n_cols + 1, sizeof *width);
    int *right = calloc((size_t)g->n_cols + 1, sizeof *right);

    out->failed |= g->failed || !width || !right;
    if (out->failed || g->n_cols < 1) {
        free(width);
        free(right);
        return;
    }
    for (int i = 0; i < g->n_cells; i++) {
        const int w = width_of(g->cell[i]);

        if (w > width[i % g->n_cols])
            width[i % g->n_cols] = w;
    }
    for (int col = 0; col < g->n_cols; col++)
        right[col] = is_numeric(g, col);
    for (int i = 0; i < g->n_cells; i++) {
        const int col = i % g->n_cols, pad = width[col] - width_of(g->cell[i]);
        const int last = col == g->n_cols - 1;

        ek_text_add(out, "%s%*s%s%*s%s", col == 0 ? indent : "  ", right[col] ? pad : 0, "",
                    g->cell[i], right[col] || last ? 0 : pad, "", last ? "\n" : "");
    }
    free(width);
    free(right);
}

void ek_grid_clear(ek_grid *g)
{
    for (int i = 0; i < g->n_cells; i++)
        free(g->cell[i]);
    free(g->cell);
    memset(g, 0, sizeof *g);
}
