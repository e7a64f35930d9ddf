/* tests/check_folder.c - see the header. */
#include "tests/check_folder.h"

#include "core/file.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

char ek_check_folder[64];

int ek_check_folder_open(const char *name)
{
    snprintf(ek_check_folder, sizeof ek_check_folder, "/tmp/evictkit-%s-XXXXXX", name);
    return mkdtemp(ek_check_folder) != NULL ? 0 : -1;
}

int ek_check_folder_close(void)
{
    char command[80];

    snprintf(command, sizeof command, "rm -r '%s'", ek_check_folder);
    return system(command);
}

char *ek_check_in_folder(const char *name)
{
    static char path[16][160];
    static int next;
    char *p = path[next++ % 16];

    snprintf(p, sizeof path[0], "%s/%s", ek_check_folder, name);
    return p;
}

void ek_check_ok(ek_code code, const ek_err *err)
{
    if (code != EK_OK)
        fail_msg("%s", err->msg);
}

void ek_check_same_weights(const char *a, const char *b, int same)
{
    const char *const dir[2] = {a, b};
    ek_map map[2];
    ek_err err;

    for (int i = 0; i < 2; i++) {
        char path[200];

        snprintf(path, sizeof path, "%s/model.safetensors", dir[i]);
        ek_check_ok(ek_map_open(&map[i], path, &err), &err);
    }
    if ((map[0].size == map[1].size && memcmp(map[0].data, map[1].data, map[0].size) == 0) != same)
        fail_msg("%s and %s: %s", a, b, same ? "differ" : "are the same");
    ek_map_close(&map[0]);
    ek_map_close(&map[1]);
}

void ek_check_kill(const char *const *argv, int times, unsigned step)
{
    for (int i = 1; i <= times; i++) {
        const pid_t child = fork();

        if (child == 0) {
            setenv("OMP_NUM_THREADS", "1", 1);
            execv("/proc/self/exe", (char *const *)argv);
            _exit(127);
        }
        usleep((useconds_t)(step * (unsigned)i));
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
    }
}
