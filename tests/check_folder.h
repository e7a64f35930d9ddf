/* tests/check_folder.h - a test's own folder, what two runs wrote into it, runs that are killed. */
#ifndef EK_TESTS_CHECK_FOLDER_H
#define EK_TESTS_CHECK_FOLDER_H

#include "core/err.h"

extern char ek_check_folder[64];
int ek_check_folder_open(const char *name); /* /tmp/evictkit-NAME-XXXXXX; 0, or -1 */
int ek_check_folder_close(void);            /* with all in it; 0, or what rm says */
char *ek_check_in_folder(const char *name); /* "FOLDER/name"; sixteen stay valid at a time */

void ek_check_ok(ek_code code, const ek_err *err); /* fails the test with the message if not */

/* model.safetensors in two folders: the same bytes (1), or others (0). */
void ek_check_same_weights(const char *a, const char *b, int same);

/* This very program with these arguments, once for each of so many times: killed (SIGKILL) after
 * step, 2 * step and so on microseconds. */
void ek_check_kill(const char *const *argv, int times, unsigned step);

#endif
