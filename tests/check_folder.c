/* tests/check_folder.c - see the header. */
#include "tests/check_folder.h"

#include "core/file.h"
#include "core/json.h"
#include "results/store.h"
#include "train/sweep.h"

#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
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

static double final_loss(const char *dir)
{
    char path[200];
    ek_json *root;
    ek_map map;
    ek_err err;

    snprintf(path, sizeof path, "%s/config.json", dir);
    ek_check_ok(ek_map_open(&map, path, &err), &err);
    ek_check_ok(ek_json_parse(&root, (const char *)map.data, map.size, path, &err), &err);
    const double loss = ek_json_number(ek_json_get(root, "final_loss"));
    ek_json_close(root);
    ek_map_close(&map);
    if (!isfinite(loss))
        fail_msg("%s: no final_loss", path);
    return loss;
}

void ek_check_same_loss(const char *a, const char *b, int same)
{
    const double x = final_loss(a), y = final_loss(b);

    if ((x == y) != same)
        fail_msg("%s and %s: final_loss %.17g and %.17g, expected %s", a, b, x, y,
                 same ? "the same" : "others");
}

static ek_code add_row(void *ctx, int n, const char *const *name, const ek_sql *v, ek_err *err)
{
    (void)err;
    for (int i = 0; i < n; i++)
        if (v[i].kind == EK_SQL_TEXT)
            ek_text_add(ctx, " %s", v[i].text);
        else if (v[i].kind == EK_SQL_NULL)
            ek_text_add(ctx, " no %s", name[i]);
        else
            ek_text_add(ctx, " %.17g", v[i].r);
    ek_text_add(ctx, "\n");
    return EK_OK;
}

/* Everything stored of a training run that must not depend on when it ran, a row a line. */
static void read_log(const ek_train_set *set, ek_text *out)
{
    static const char *const sql[] = {
        ("SELECT step, split, loss, lr, grad_norm, acc, tokens FROM train_step WHERE run = ?"
         " ORDER BY step, split"),
        "SELECT step, split, name, value FROM train_value WHERE run = ? ORDER BY step, split, name",
        "SELECT layer, head, name, value FROM train_head WHERE run = ? ORDER BY layer, head, name"};
    char *text = ek_config_text(set, ek_train_fields), id[33];
    ek_store *store;
    ek_err err;

    assert_non_null(text);
    ek_hash128(id, text, strlen(text)); /* so train/session.c names runs */
    free(text);
    const ek_sql run = ek_sql_text(id);
    ek_check_ok(ek_store_open(&store, set->results, EK_STORE_READ, &err), &err);
    for (size_t i = 0; i < EK_COUNT(sql); i++)
        ek_check_ok(ek_store_query(store, sql[i], &run, 1, add_row, out, &err), &err);
    ek_store_close(store);
    if (out->failed || out->size == 0)
        fail_msg("%s: nothing of the run that wrote %s", set->results, set->out);
}

void ek_check_same_log(const ek_train_set *a, const ek_train_set *b, int same)
{
    const ek_train_set *const set[2] = {a, b};
    ek_text text[2] = {{0}};

    for (int i = 0; i < 2; i++)
        read_log(set[i], &text[i]);
    if ((strcmp(text[0].data, text[1].data) == 0) != same) {
        size_t at = 0, from = 0;

        for (; text[0].data[at] != '\0' && text[0].data[at] == text[1].data[at]; at++)
            if (text[0].data[at] == '\n')
                from = at + 1;
        fail_msg("%s and %s: rows %s, from \"%.80s\" and \"%.80s\" on", a->out, b->out,
                 same ? "differ" : "are the same", text[0].data + from, text[1].data + from);
    }
    ek_text_clear(&text[0]);
    ek_text_clear(&text[1]);
}

/* Tells one checkpoint in the same place from the one before. */
static struct timespec written(const char *path)
{
    struct stat s;

    return stat(path, &s) == 0 ? s.st_mtim : (struct timespec){0};
}

void ek_check_kill(const char *const *argv, int times, const char *out)
{
    enum { BOUND = 60 }; /* seconds until the checkpoint: a test that hangs helps nobody */
    const struct timespec nap = {.tv_nsec = 500000};
    char checkpoint[200], weights[200];

    snprintf(checkpoint, sizeof checkpoint, "%s/checkpoint.safetensors", out);
    snprintf(weights, sizeof weights, "%s/model.safetensors", out);
    for (int i = 0; i < times; i++) {
        const struct timespec before = written(checkpoint);
        const time_t start = time(NULL);
        struct timespec now = before;
        int status = 0, ended = 0;
        const pid_t child = fork();

        if (child == 0) {
            setenv("OMP_NUM_THREADS", "1", 1);
            execv("/proc/self/exe", (char *const *)argv);
            _exit(127);
        }
        assert_true(child > 0);
        while (!ended && now.tv_sec == before.tv_sec && now.tv_nsec == before.tv_nsec &&
               time(NULL) - start < BOUND) {
            nanosleep(&nap, NULL);
            ended = waitpid(child, &status, WNOHANG) == child;
            now = written(checkpoint);
        }
        if (!ended) {
            kill(child, SIGKILL);
            assert_int_equal(waitpid(child, &status, 0), child);
        }
        if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL)
            fail_msg("%s: the run ended by itself, status %d", out, status);
        if (now.tv_sec == before.tv_sec && now.tv_nsec == before.tv_nsec)
            fail_msg("%s: no checkpoint within %d s", out, (int)BOUND);
        if (!ek_file_exists(checkpoint) || ek_file_exists(weights))
            fail_msg("%s: not killed in mid-run", out);
    }
}

ek_code ek_check_open_runs(const char *yaml, ek_train_set **set, int *n, const char *const *sets,
                           int n_sets, const char *const *list, int n_lists, ek_err *err)
{
    const char *const path[] = {yaml};
    const ek_sweep sweep = {.path = path,
                            .n_paths = 1,
                            .set = sets,
                            .n_sets = n_sets,
                            .list = list,
                            .n_lists = n_lists};

    return ek_sweep_open(set, n, &sweep, err);
}

ek_code ek_check_run(ek_device *dev, const ek_train_set *set, int n, int resume, int64_t stop_after,
                     ek_err *err)
{
    const ek_train_options o = {.quiet = 1, .resume = resume, .stop_after = stop_after};

    return ek_train_runs(set, n, &o, dev, err);
}
