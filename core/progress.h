/* core/progress.h - how far long work is: a bar with rate and ETA on a terminal, plain lines (at
 * most one every ten seconds) elsewhere.  Writes to stderr; the only printing outside commands. */
#ifndef EK_CORE_PROGRESS_H
#define EK_CORE_PROGRESS_H

#include <stdint.h>

typedef struct ek_progress {
    const char *what, *unit;     /* "prefill", "tokens"; borrowed */
    int64_t total, done, before; /* before: done when it was opened, by an earlier run */
    double start, shown;         /* seconds, monotonic */
    int terminal, quiet;
} ek_progress;

void ek_progress_open(ek_progress *p, const char *what, const char *unit, int64_t total);
/* note: NULL, or a few words shown behind the figures ("loss 1.23"). */
void ek_progress_at(ek_progress *p, int64_t done, const char *note);
void ek_progress_close(ek_progress *p); /* last line with the total time */

double ek_now(void); /* seconds, monotonic */

/* Set by the first SIGINT or SIGTERM; long loops ask and end after the unit at hand.  The second
 * signal ends the process at once.  A mapped file that shrinks ends it with a sentence. */
void ek_stop_install(void);
int ek_stop_asked(void);

#endif
