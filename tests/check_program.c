#include "tests/check_program.h"

#include "core/file.h"
#include "core/rng.h"
#include "results/store.h"
#include "tests/tiny_model.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

/* The executable stands beside the tests. */
static void program_path(char *out, size_t room)
{
    const ssize_t n = readlink("/proc/self/exe", out, room - 16);
    char *slash;

    if (n < 0)
        fail_msg("/proc/self/exe cannot be read");
    out[n] = '\0';
    slash = strrchr(out, '/');
    snprintf(slash, 16, "/evictkit");
    if (access(out, X_OK) != 0)
        fail_msg("%s is not built", out);
}

/* ---- the world ---- */

static const char *const words[] = {
    "the",   "old",   "river",  "went",  "down",  "to",    "a",     "mill",  "and",   "nobody",
    "there", "knew",  "why",    "it",    "had",   "been",  "built", "so",    "far",   "from",
    "town",  "their", "father", "said",  "that",  "water", "finds", "its",   "way",   "in",
    "spite", "of",    "stones", "women", "sang",  "at",    "night", "when",  "rain",  "came",
    "over",  "hills", "with",   "wind",  "which", "bent",  "every", "tree",  "until", "morning",
    "then",  "birds", "were",   "heard", "again", "on",    "roofs", "whose", "tiles", "shone"};

/* About 64 paragraphs of some 500 bytes. */
static void write_text(const ek_world *w)
{
    enum { ROOM = 48000 };
    char *text = malloc(ROOM);
    size_t n = 0;
    uint64_t draw = 0;

    assert_non_null(text);
    while (n < ROOM - 800) {
        for (int sentence = 0; sentence < 6; sentence++) {
            const int length = 8 + (int)ek_rng_below(10, 7, 0, draw++);

            for (int i = 0; i < length; i++) {
                const char *word = words[ek_rng_below(EK_COUNT(words), 7, 1, draw++)];

                n += (size_t)snprintf(text + n, ROOM - n, "%s%s", i ? " " : "", word);
                if (i == 0)
                    text[n - strlen(word)] = (char)(text[n - strlen(word)] - 'a' + 'A');
            }
            n += (size_t)snprintf(text + n, ROOM - n, sentence < 5 ? ". " : ".\n\n");
        }
    }
    ek_world_write(w, "text/tiny.txt", text, n);
    free(text);
}

void ek_world_open(ek_world *w, const char *name)
{
    const ek_tiny tiny = {.own_head = 1, .head_gain = 0.1, .n_vocab = 262, .seed = 5};
    ek_err err;

    snprintf(w->folder, sizeof w->folder, "/tmp/ek_%.20s_XXXXXX", name);
    assert_non_null(mkdtemp(w->folder));
    if (ek_tiny_model(ek_world_path(w, "tiny.gguf"), &tiny, &err) != EK_OK)
        fail_msg("%s", err.msg);
    write_text(w);
}

void ek_world_close(ek_world *w)
{
    char command[100];

    snprintf(command, sizeof command, "rm -rf %s", w->folder);
    if (!getenv("EK_KEEP_WORLD") && system(command) != 0)
        fail_msg("%s", command);
}

const char *ek_world_path(const ek_world *w, const char *name)
{
    static char path[4][256];
    static int next;
    char *out = path[next++ & 3];

    snprintf(out, sizeof path[0], "%s/%s", w->folder, name);
    return out;
}

void ek_world_write(const ek_world *w, const char *name, const void *data, size_t size)
{
    char path[256];
    FILE *f;

    snprintf(path, sizeof path, "%s/%s", w->folder, name);
    for (char *p = path + strlen(w->folder) + 1; (p = strchr(p, '/')) != NULL; *p++ = '/') {
        *p = '\0';
        if (mkdir(path, 0777) != 0 && errno != EEXIST)
            fail_msg("%s: %s", path, strerror(errno));
    }
    f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, size, f), size);
    assert_int_equal(fclose(f), 0);
}

void ek_world_text(const ek_world *w, const char *name, const char *text)
{
    ek_world_write(w, name, text, strlen(text));
}

/* ---- the program ---- */

static void read_all(const char *path, char *out, size_t room)
{
    FILE *f = fopen(path, "rb");
    size_t n = 0;

    if (f) {
        n = fread(out, 1, room - 1, f);
        fclose(f);
    }
    out[n] = '\0';
}

static void become(const char *program, const ek_world *w, const ek_run_how *how,
                   const char *const *args)
{
    const char *argv[64] = {"evictkit"};
    char threads[16];
    int n = 1;

    while (*args && n < 63)
        argv[n++] = *args++;
    if (chdir(ek_world_path(w, how->folder ? how->folder : ".")) != 0)
        _exit(126);
    if (how->threads) {
        snprintf(threads, sizeof threads, "%d", how->threads);
        setenv("OMP_NUM_THREADS", threads, 1);
    }
    setenv("OMP_WAIT_POLICY", "passive", 1); /* threads that spin would starve other tests */
    setenv("EVICTKIT_QUIET", "1", 1);
    if (!freopen("/dev/null", "r", stdin) || !freopen(ek_world_path(w, "stdout"), "w", stdout) ||
        !freopen(ek_world_path(w, "stderr"), "w", stderr))
        _exit(126);
    execv(program, (char *const *)(uintptr_t)argv);
    _exit(127);
}

static ek_code count_one(void *ctx, int n, const char *const *name, const ek_sql *value,
                         ek_err *err)
{
    (void)n;
    (void)name;
    (void)err;
    *(int64_t *)ctx = value[0].i;
    return EK_OK;
}

/* Samples in the database now; 0 while it is not there or not ready. */
static int64_t samples_in(const char *db)
{
    ek_store *store = NULL;
    int64_t n = 0;
    ek_err err;

    if (!ek_file_exists(db) || ek_store_open(&store, db, EK_STORE_READ, &err) != EK_OK)
        return 0;
    if (ek_store_query(store, "SELECT count(*) FROM sample", NULL, 0, count_one, &n, &err) != EK_OK)
        n = 0;
    ek_store_close(store);
    return n;
}

/* Waits until the program ends, and sends the signal when it is time. */
static int watch(pid_t pid, const ek_world *w, const ek_run_how *how)
{
    const struct timespec nap = {.tv_nsec = 1000000};
    char name[128] = "", db[256];
    int status, sent = how->signal == 0;

    if (!sent)
        snprintf(name, sizeof name, "%s/%s", how->folder ? how->folder : ".", how->db);
    snprintf(db, sizeof db, "%s/%s", w->folder, name);
    while (!sent && waitpid(pid, &status, WNOHANG) == 0) {
        if (samples_in(db) >= how->at_least) {
            kill(pid, how->signal);
            sent = 1;
        }
        nanosleep(&nap, NULL);
    }
    if (sent && waitpid(pid, &status, 0) != pid)
        fail_msg("the program was lost");
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

void ek_program(ek_ran *r, const ek_world *w, const ek_run_how *how, const char *const *args)
{
    static const ek_run_how plain;
    char program[512];
    pid_t pid;

    if (!how)
        how = &plain;
    program_path(program, sizeof program);
    fflush(NULL);
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0)
        become(program, w, how, args);
    r->status = watch(pid, w, how);
    read_all(ek_world_path(w, "stdout"), r->out, sizeof r->out);
    read_all(ek_world_path(w, "stderr"), r->err, sizeof r->err);
}

int ek_is_refusal(const ek_ran *r, int status)
{
    const size_t n = strlen(r->err);

    return r->status == status && strncmp(r->err, "evictkit: ", 10) == 0 && n > 20 &&
           strchr(r->err, '\n') == r->err + n - 1;
}
