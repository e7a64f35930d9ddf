/* tests/check_program.h - the real executable, run as a user runs it, in a folder of its own.
 *
 * A world holds what a run needs: tiny.gguf (2 layers, nearly uniform head, so that its perplexity
 * passes for language), text/ (made up prose) and whatever the test writes.  The program runs with
 * the world's folder, or a folder below it, as its working directory. */
#ifndef EK_TESTS_CHECK_PROGRAM_H
#define EK_TESTS_CHECK_PROGRAM_H

#include "core/err.h"

#include <stddef.h>
#include <stdint.h>

typedef struct ek_world {
    char folder[64];
} ek_world;

/* Fails the test (or exits, in a fixture) if it cannot. */
void ek_world_open(ek_world *w, const char *name);
void ek_world_close(ek_world *w); /* removes the folder */
/* "FOLDER/name"; four results stay valid at a time. */
const char *ek_world_path(const ek_world *w, const char *name);
void ek_world_write(const ek_world *w, const char *name, const void *data, size_t size);
void ek_world_text(const ek_world *w, const char *name, const char *text); /* with its folders */

/* How one run of the program ended. */
typedef struct ek_ran {
    int status;                 /* of exit; 128 + the signal that killed it */
    char out[32768], err[8192]; /* NUL-terminated, cut if longer */
} ek_ran;

typedef struct ek_run_how {
    const char *folder; /* working directory below the world's; NULL: the world's own */
    int threads;        /* OMP_NUM_THREADS; 0: as it is */
    int signal;         /* sent once `db` holds at_least samples; 0: none */
    const char *db;     /* below the working directory */
    int at_least;
} ek_run_how;

/* args: the arguments behind the program's name, NULL at the end. */
void ek_program(ek_ran *r, const ek_world *w, const ek_run_how *how, const char *const *args);

/* A refusal: exit 2, nothing on stdout but what doctor and list say, and one line on stderr that
 * starts with "evictkit: " and is a sentence of the program, not of a sanitizer or a shell. */
int ek_is_refusal(const ek_ran *r, int status);

#endif
