/* train/log.c - see the header. */
#include "train/log.h"

#include "core/file.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct leaves {
    ek_leaf *leaf;
    int n, room, failed;
} leaves;

static void add_leaf(void *ctx, const char *key, const char *value)
{
    leaves *all = ctx;

    if (all->n == all->room) {
        const int room = all->room > 0 ? 2 * all->room : 64;
        ek_leaf *grown = realloc(all->leaf, (size_t)room * sizeof *grown);

        if (grown == NULL) {
            all->failed = 1;
            return;
        }
        all->leaf = grown;
        all->room = room;
    }
    all->leaf[all->n++] = (ek_leaf){.key = strdup(key), .value = strdup(value)};
}

static ek_code begin(ek_log *log, const ek_train_set *set, const ek_run_row *row, int resume,
                     ek_run_found *found, ek_err *err)
{
    leaves all = {0};
    ek_code code;

    ek_config_leaves(set, ek_train_fields, add_leaf, &all);
    /* The id names the text's path only: with this a run of another text cannot be gone on with. */
    if (log->text_hash != NULL)
        add_leaf(&all, "data.text_hash", log->text_hash);
    code = all.failed ? EK_FAIL(err, EK_ENOMEM, "settings of the run")
                      : ek_store_run_begin(log->store, row, all.leaf, all.n, resume, found, err);
    for (int i = 0; i < all.n; i++) {
        free((char *)all.leaf[i].key);
        free((char *)all.leaf[i].value);
    }
    free(all.leaf);
    return code;
}

static ek_code sha_of(const char *path, char out[65], int64_t *bytes, ek_err *err)
{
    ek_map map;

    EK_TRY(ek_map_open(&map, path, err));
    ek_sha256(out, map.data, map.size);
    *bytes = (int64_t)map.size;
    ek_map_close(&map);
    return EK_OK;
}

static ek_code take_sha(void *ctx, int n, const char *const *name, const ek_sql *value, ek_err *err)
{
    (void)n, (void)name, (void)err;
    snprintf(ctx, 65, "%s", value[0].text);
    return EK_OK;
}

/* Are the files of a finished run there?  EK_EASKED: there is something else in their place, which
 * may be another run's. */
static ek_code find_files(ek_log *log, const char *const *paths, int n, int *there, ek_err *err)
{
    static const char find[] = "SELECT sha256 FROM artifact WHERE run = ? AND path = ?";

    *there = 1;
    for (int i = 0; i < n; i++) {
        const ek_sql p[] = {ek_sql_text(log->id), ek_sql_text(paths[i])};
        char made[65] = "", now[65];
        int64_t bytes;

        if (!ek_file_exists(paths[i])) {
            *there = 0;
            continue;
        }
        EK_TRY(ek_store_sql(log->store, find, p, (int)EK_COUNT(p), take_sha, made, err));
        EK_TRY(sha_of(paths[i], now, &bytes, err));
        if (strcmp(made, now) != 0)
            return EK_FAIL(err, EK_EASKED,
                           "%s: not what this run made when it was finished (SHA-256 %.12s, stored "
                           "%.12s): damaged, or another run's; --restart trains it again in its "
                           "place",
                           paths[i], now, made[0] ? made : "none");
    }
    return EK_OK;
}

static ek_code refuse_unfinished(ek_err *err)
{
    return EK_FAIL(err, EK_EASKED,
                   "a run with these very settings was begun and not finished: --resume goes on "
                   "with it, --restart begins again");
}

static ek_code take_status(void *ctx, int n, const char *const *name, const ek_sql *value,
                           ek_err *err)
{
    (void)n, (void)name, (void)err;
    *(int *)ctx = strcmp(value[0].text, "done") == 0 ? EK_RUN_DONE : EK_RUN_UNFINISHED;
    return EK_OK;
}

ek_code ek_log_look(const ek_train_set *set, const char *id, const ek_train_options *options,
                    const char *const *paths, int n_paths, ek_err *err)
{
    static const char find[] = "SELECT status FROM run WHERE id = ?";
    const ek_sql p[] = {ek_sql_text(id)};
    ek_log log = {.id = id};
    int found = EK_RUN_NEW, there;

    if (set->results == NULL || options->restart || !ek_file_exists(set->results))
        return EK_OK;
    EK_TRY(ek_store_open(&log.store, set->results, EK_STORE_CREATE, err));
    ek_code code = ek_store_sql(log.store, find, p, (int)EK_COUNT(p), take_status, &found, err);
    if (code == EK_OK && found == EK_RUN_UNFINISHED && !options->resume)
        code = refuse_unfinished(err);
    else if (code == EK_OK && found == EK_RUN_DONE)
        code = find_files(&log, paths, n_paths, &there, err);
    ek_store_close(log.store);
    return code;
}

ek_code ek_log_open(ek_log *log, const ek_train_set *set, const ek_run_row *row, int resume,
                    const char *const *paths, int n_paths, int *done, ek_err *err)
{
    ek_run_found found;
    int there = 0;

    *done = 0;
    log->id = row->id;
    if (set->results == NULL)
        return EK_OK;
    EK_TRY(ek_store_open(&log->store, set->results, EK_STORE_CREATE, err));
    if (log->restart)
        EK_TRY(ek_store_run_delete(log->store, row->id, err));
    EK_TRY(begin(log, set, row, resume, &found, err));
    if (found == EK_RUN_DONE)
        EK_TRY(find_files(log, paths, n_paths, &there, err));
    if (found == EK_RUN_DONE && !there) { /* what it made is gone: anew */
        EK_TRY(ek_store_run_delete(log->store, row->id, err));
        EK_TRY(begin(log, set, row, resume, &found, err));
    }
    if (found == EK_RUN_UNFINISHED)
        return refuse_unfinished(err);
    *done = found == EK_RUN_DONE;
    log->open = !*done;
    log->fresh = found == EK_RUN_NEW;
    return EK_OK;
}

ek_code ek_log_begin(ek_log *log, const ek_train_row *row, ek_err *err)
{
    return log->store != NULL ? ek_store_train_begin(log->store, row, err) : EK_OK;
}

ek_code ek_log_step(ek_log *log, int64_t step, const char *split, const ek_train_stats *x,
                    double seconds, ek_err *err)
{
    const ek_step_row row = {
        .run = log->id,
        .step = step,
        .split = split,
        .loss = x->loss,
        .lr = split == NULL ? x->lr : NAN,
        .grad_norm = split == NULL ? x->norm : NAN,
        .acc = x->acc,
        .tokens = x->tokens,
        .ns = (int64_t)(seconds * 1e9),
        .value = {{"recall", x->recall}, {"chance", x->chance}, {"boundary", x->boundary}}};

    log->fresh = 0;
    return log->store != NULL ? ek_store_step(log->store, &row, err) : EK_OK;
}

ek_code ek_log_heads(ek_log *log, const char *name, int n_layers, int n_heads, const double *values,
                     ek_err *err)
{
    return log->store != NULL
               ? ek_store_train_heads(log->store, log->id, name, n_layers, n_heads, values, err)
               : EK_OK;
}

ek_code ek_log_flush(ek_log *log, ek_err *err)
{
    return log->store != NULL ? ek_store_flush(log->store, err) : EK_OK;
}

ek_code ek_log_file(ek_log *log, const char *path, ek_err *err)
{
    char sha[65];
    int64_t bytes;

    if (log->store == NULL)
        return EK_OK;
    EK_TRY(sha_of(path, sha, &bytes, err));
    return ek_store_artifact(log->store, log->id, "weights", path, bytes, sha, err);
}

ek_code ek_log_close(ek_log *log, ek_code code, ek_err *err)
{
    if (log->open && log->fresh && code != EK_OK && code != EK_ESTOPPED && code != EK_ENAN) {
        ek_err second;

        log->open = ek_store_run_delete(log->store, log->id, &second) != EK_OK;
    }
    if (log->open) {
        const char *status = code == EK_OK         ? "done"
                             : code == EK_ESTOPPED ? "interrupted"
                                                   : "failed";
        ek_err second;

        if (ek_store_run_end(log->store, log->id, status, &second) != EK_OK && code == EK_OK) {
            *err = second;
            code = second.code;
        }
    }
    ek_store_close(log->store);
    *log = (ek_log){0};
    return code;
}
