/* train/log.c - see the header. */
#include "train/log.h"

#include "core/file.h"

#include <math.h>
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

ek_code ek_log_open(ek_log *log, const ek_train_set *set, const ek_run_row *row, int resume,
                    const char *const *paths, int n_paths, int *done, ek_err *err)
{
    ek_run_found found;
    int there = 1;

    *done = 0;
    log->id = row->id;
    if (set->results == NULL)
        return EK_OK;
    EK_TRY(ek_store_open(&log->store, set->results, EK_STORE_CREATE, err));
    if (log->restart)
        EK_TRY(ek_store_run_delete(log->store, row->id, err));
    EK_TRY(begin(log, set, row, resume, &found, err));
    for (int i = 0; i < n_paths; i++)
        there = there && ek_file_exists(paths[i]);
    if (found == EK_RUN_DONE && !there) { /* what it made is gone: anew */
        EK_TRY(ek_store_run_delete(log->store, row->id, err));
        EK_TRY(begin(log, set, row, resume, &found, err));
    }
    if (found == EK_RUN_UNFINISHED)
        return EK_FAIL(
            err, EK_EASKED,
            "a run with these very settings was begun and not finished: --resume goes on "
            "with it, --restart begins again");
    *done = found == EK_RUN_DONE;
    log->open = !*done;
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
    ek_map map;

    if (log->store == NULL)
        return EK_OK;
    EK_TRY(ek_map_open(&map, path, err));
    ek_sha256(sha, map.data, map.size);
    const ek_code code =
        ek_store_artifact(log->store, log->id, "weights", path, (int64_t)map.size, sha, err);
    ek_map_close(&map);
    return code;
}

ek_code ek_log_close(ek_log *log, ek_code code, ek_err *err)
{
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
