/* results/record.c - the rows of runs, cells, samples and training steps. */
#include "results/inside.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define SQL(store, sql, params, row, ctx, err) \
    ek_store_sql((store), (sql), (params), (int)EK_COUNT(params), (row), (ctx), (err))

static void time_now(char out[32])
{
    const time_t t = time(NULL);
    struct tm tm;

    gmtime_r(&t, &tm);
    strftime(out, 32, "%Y-%m-%dT%H:%M:%SZ", &tm);
}

static ek_code take_int(void *ctx, int n, const char *const *name, const ek_sql *value, ek_err *err)
{
    (void)n, (void)name, (void)err;
    *(int64_t *)ctx = value[0].i;
    return EK_OK;
}

/* ---- text of a model may be any bytes; the database holds UTF-8 ---- */

/* Length of the valid UTF-8 character at s, 0 if it is none. */
static int utf8_length(const unsigned char *s)
{
    if (s[0] < 0x80)
        return 1;
    if (s[0] >= 0xc2 && s[0] < 0xe0)
        return (s[1] & 0xc0) == 0x80 ? 2 : 0;
    if (s[0] >= 0xe0 && s[0] < 0xf0) {
        if ((s[1] & 0xc0) != 0x80 || (s[2] & 0xc0) != 0x80)
            return 0;
        if ((s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xed && s[1] >= 0xa0))
            return 0;
        return 3;
    }
    if (s[0] >= 0xf0 && s[0] < 0xf5) {
        if ((s[1] & 0xc0) != 0x80 || (s[2] & 0xc0) != 0x80 || (s[3] & 0xc0) != 0x80)
            return 0;
        if ((s[0] == 0xf0 && s[1] < 0x90) || (s[0] == 0xf4 && s[1] >= 0x90))
            return 0;
        return 4;
    }
    return 0;
}

/* text itself if it is valid; else a copy with U+FFFD for each bad byte, also put in *owned. */
static const char *utf8_clean(const char *text, char **owned, int *failed)
{
    const unsigned char *s = (const unsigned char *)text;
    char *out, *to;
    int n;

    *owned = NULL;
    if (!text)
        return NULL;
    while (*s && (n = utf8_length(s)) > 0)
        s += n;
    if (!*s)
        return text;
    out = to = malloc(3 * strlen(text) + 1);
    if (!out) {
        *failed = 1;
        return NULL;
    }
    for (s = (const unsigned char *)text; *s;) {
        n = utf8_length(s);
        memcpy(to, n ? (const char *)s : "\xef\xbf\xbd", n ? (size_t)n : 3);
        to += n ? n : 3;
        s += n ? n : 1;
    }
    *to = 0;
    return *owned = out;
}

/* ---- runs ---- */

typedef struct found_run {
    int there;
    int done;
    const ek_run_row *row;
    const char *differs; /* name of a column that a resumed run must not change */
    const char *other;   /* of one that a finished run must not either */
} found_run;

static ek_code compare_run(void *ctx, int n, const char *const *name, const ek_sql *value,
                           ek_err *err)
{
    found_run *f = ctx;
    const char *now[] = {f->row->model_hash, f->row->tokenizer_hash, f->row->template_hash,
                         f->row->kernel};

    (void)err;
    f->there = 1;
    f->done = strcmp(value[0].text, "done") == 0;
    for (int i = 1; i < n; i++)
        if (strcmp(value[i].text, now[i - 1] ? now[i - 1] : "") != 0) {
            f->differs = name[i];
            if (i < 4) /* not the kernel, which changes the answers' last bits at most */
                f->other = name[i];
        }
    return EK_OK;
}

static ek_code insert_run(ek_store *s, const ek_run_row *row, const ek_leaf *leaves, int n,
                          ek_err *err)
{
    static const char insert[] =
        "INSERT INTO run(id, kind, status, created, revision, device, kernel, model, model_hash,"
        " tokenizer_hash, template_hash, config) VALUES (?,?,'running',?,?,?,?,?,?,?,?,?)";
    static const char leaf[] = "INSERT OR REPLACE INTO run_param(run, key, value) VALUES (?,?,?)";
    char now[32];
    const char *text[11] = {row->id,
                            row->kind,
                            now,
                            row->revision,
                            row->device,
                            row->kernel,
                            row->model,
                            row->model_hash,
                            row->tokenizer_hash,
                            row->template_hash,
                            row->config};
    ek_sql params[11];

    time_now(now);
    for (int i = 0; i < 11; i++)
        params[i] = ek_sql_text(text[i] ? text[i] : "");
    EK_TRY(SQL(s, insert, params, NULL, NULL, err));
    for (int i = 0; i < n; i++) {
        const ek_sql p[] = {ek_sql_text(row->id), ek_sql_text(leaves[i].key),
                            ek_sql_text(leaves[i].value ? leaves[i].value : "")};
        EK_TRY(SQL(s, leaf, p, NULL, NULL, err));
    }
    return EK_OK;
}

typedef struct leaf_check {
    const char *value;
    int differs;
} leaf_check;

static ek_code compare_leaf(void *ctx, int n, const char *const *name, const ek_sql *value,
                            ek_err *err)
{
    leaf_check *c = ctx;

    (void)n, (void)name, (void)err;
    c->differs = value[0].kind == EK_SQL_TEXT && strcmp(value[0].text, c->value) != 0;
    return EK_OK;
}

/* The key of a hash (of data that a setting names by path only) that is stored with another value
 * than now, or NULL. */
static ek_code changed_leaf(ek_store *s, const char *run, const ek_leaf *leaves, int n,
                            const char **key, ek_err *err)
{
    static const char find[] = "SELECT value FROM run_param WHERE run = ? AND key = ?";

    *key = NULL;
    for (int i = 0; !*key && i < n; i++) {
        const ek_sql p[] = {ek_sql_text(run), ek_sql_text(leaves[i].key)};
        leaf_check c = {.value = leaves[i].value ? leaves[i].value : ""};
        const size_t size = strlen(leaves[i].key);

        if (size < 5 || strcmp(leaves[i].key + size - 5, "_hash") != 0)
            continue;
        EK_TRY(SQL(s, find, p, compare_leaf, &c, err));
        if (c.differs)
            *key = leaves[i].key;
    }
    return EK_OK;
}

static ek_code begin_run(ek_store *s, const ek_run_row *row, const ek_leaf *leaves, int n,
                         int resume, ek_run_found *found, ek_err *err)
{
    static const char find[] = "SELECT status, model_hash, tokenizer_hash, template_hash, kernel "
                               "FROM run WHERE id = ?";
    static const char again[] = "UPDATE run SET status = 'running', finished = NULL WHERE id = ?";
    const ek_sql id[] = {ek_sql_text(row->id)};
    found_run f = {.row = row};
    const char *changed;

    EK_TRY(SQL(s, find, id, compare_run, &f, err));
    if (!f.there) {
        *found = EK_RUN_NEW;
        return insert_run(s, row, leaves, n, err);
    }
    EK_TRY(changed_leaf(s, row->id, leaves, n, &changed, err));
    if (changed)
        return EK_FAIL(err, EK_EASKED,
                       "%s: run %.8s was begun with another %s, so it is not this one; --restart "
                       "forgets it",
                       s->path, row->id, changed);
    if (f.done && f.other)
        return EK_FAIL(err, EK_EASKED,
                       "%s: run %.8s was finished with another %s, so it is not this one; "
                       "--restart forgets it",
                       s->path, row->id, f.other);
    if (f.done || !resume) {
        *found = f.done ? EK_RUN_DONE : EK_RUN_UNFINISHED;
        return EK_OK;
    }
    if (f.differs)
        return EK_FAIL(err, EK_EASKED,
                       "%s: run %.8s was begun with another %s, so it cannot be resumed; --restart "
                       "forgets it",
                       s->path, row->id, f.differs);
    *found = EK_RUN_RESUMED;
    return SQL(s, again, id, NULL, NULL, err);
}

ek_code ek_store_run_begin(ek_store *s, const ek_run_row *row, const ek_leaf *leaves, int n_leaves,
                           int resume, ek_run_found *found, ek_err *err)
{
    ek_run_found answer = EK_RUN_NEW;
    ek_code code;

    if (!row->id || strlen(row->id) != 32 || strspn(row->id, "0123456789abcdef") != 32)
        return EK_FAIL(err, EK_EBROKEN, "a run's id must be 32 hex digits, found \"%s\"",
                       row->id ? row->id : "");
    EK_TRY(ek_store_begin(s, err));
    code = begin_run(s, row, leaves, n_leaves, resume, &answer, err);
    if (code == EK_OK)
        code = ek_store_commit(s, err);
    if (code != EK_OK) {
        ek_store_rollback(s);
        return code;
    }
    *found = answer;
    return EK_OK;
}

ek_code ek_store_run_end(ek_store *s, const char *id, const char *status, ek_err *err)
{
    static const char end[] = "UPDATE run SET status = ?2, finished = ?3 WHERE id = ?1";
    ek_sql p[3] = {ek_sql_text(id), ek_sql_text(status)};
    char now[32];

    EK_TRY(ek_store_flush(s, err));
    EK_TRY(ek_store_in_place(s, err));
    time_now(now);
    p[2] = ek_sql_text(now);
    EK_TRY(SQL(s, end, p, NULL, NULL, err));
    if (ek_store_changes(s) != 1)
        return EK_FAIL(err, EK_EBROKEN, "%s: there is no run %s to end", s->path, id);
    return EK_OK;
}

ek_code ek_store_run_delete(ek_store *s, const char *id, ek_err *err)
{
    const ek_sql p[] = {ek_sql_text(id)};

    return SQL(s, "DELETE FROM run WHERE id = ?", p, NULL, NULL, err);
}

/* ---- cells and samples ---- */

ek_code ek_store_cell(ek_store *s, const ek_cell_row *row, int64_t *id, ek_err *err)
{
    static const char insert[] =
        "INSERT INTO cell(run, suite, task, variant, length, policy, query_aware, seed, method,"
        " learned, keep, keep_of, entries, bytes, base, status)"
        " VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,'pending')"
        " ON CONFLICT(run, suite, task, variant, length, policy, query_aware, seed)"
        " DO UPDATE SET base = excluded.base WHERE base IS NOT excluded.base";
    static const char find[] =
        "SELECT id FROM cell WHERE run = ? AND suite = ? AND task = ? AND variant = ? AND"
        " length = ? AND policy = ? AND query_aware = ? AND seed = ?";
    const ek_sql p[] = {ek_sql_text(row->run),        ek_sql_text(row->suite),
                        ek_sql_text(row->task),       ek_sql_text(row->variant ? row->variant : ""),
                        ek_sql_int(row->length),      ek_sql_text(row->policy),
                        ek_sql_int(row->query_aware), ek_sql_int(row->seed),
                        ek_sql_text(row->method),     ek_sql_int(row->learned),
                        ek_sql_real(row->keep),       ek_sql_text(row->keep_of),
                        ek_sql_int(row->entries),     ek_sql_int(row->bytes),
                        ek_sql_int(row->base)};
    int64_t found = 0;

    EK_TRY(SQL(s, insert, p, NULL, NULL, err));
    EK_TRY(ek_store_sql(s, find, p, 8, take_int, &found, err));
    *id = found;
    return EK_OK;
}

ek_code ek_store_cell_weights(ek_store *s, int64_t cell, const char *hash, const char *trained,
                              ek_err *err)
{
    static const char insert[] =
        "INSERT OR REPLACE INTO cell_weights(cell, hash, trained) VALUES (?,?,?)";
    const ek_sql p[] = {ek_sql_int(cell), ek_sql_text(hash), ek_sql_text(trained)};

    return SQL(s, insert, p, NULL, NULL, err);
}

ek_code ek_store_cell_status(ek_store *s, int64_t cell, const char *status, ek_err *err)
{
    const ek_sql p[] = {ek_sql_text(status), ek_sql_int(cell)};

    return SQL(s, "UPDATE cell SET status = ? WHERE id = ?", p, NULL, NULL, err);
}

static ek_code insert_values(ek_store *s, const ek_sample_row *r, ek_err *err)
{
    static const char insert[] = "INSERT INTO sample_value(sample, name, value) VALUES (?,?,?)";
    const int64_t id = ek_store_last_id(s);

    for (int i = 0; i < r->n_values; i++) {
        const ek_sql p[] = {ek_sql_int(id), ek_sql_text(r->values[i].name),
                            ek_sql_real(r->values[i].value)};

        if (isnan(r->values[i].value))
            continue;
        if (isinf(r->values[i].value))
            return EK_FAIL(err, EK_ENAN, "sample %s: %s is infinite", r->doc_id, r->values[i].name);
        EK_TRY(SQL(s, insert, p, NULL, NULL, err));
    }
    return EK_OK;
}

static ek_code insert_sample(ek_store *s, const ek_sample_row *r, ek_err *err)
{
    static const char insert[] =
        "INSERT INTO sample(cell, doc_id, rep, cluster, prompt_hash, n_original, n_prompt, n_gen,"
        " stop_reason, prediction, parsed, reference, flag, score, kept_asked, kept_min, kept_mean,"
        " kept_max, keep_mean, kv_bytes_mean, kv_bytes_peak, state_bytes, prefill_ns, ttft_ns,"
        " itl_ns, score_ns, error)"
        " VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)"
        " ON CONFLICT(cell, doc_id, rep) DO NOTHING";
    char *owned[5];
    int failed = 0;
    const char *prediction = utf8_clean(r->prediction, &owned[0], &failed);
    const char *parsed = utf8_clean(r->parsed, &owned[1], &failed);
    const char *reference = utf8_clean(r->reference, &owned[2], &failed);
    const char *error = utf8_clean(r->error, &owned[3], &failed);
    const char *doc_id = utf8_clean(r->doc_id, &owned[4], &failed);
    const ek_sql p[] = {ek_sql_int(r->cell),
                        ek_sql_text(doc_id),
                        ek_sql_int(r->rep),
                        ek_sql_text(r->cluster ? r->cluster : doc_id),
                        ek_sql_text(r->prompt_hash ? r->prompt_hash : ""),
                        ek_sql_int(r->n_original),
                        ek_sql_int(r->n_prompt),
                        ek_sql_int(r->n_gen),
                        ek_sql_text(r->stop_reason),
                        ek_sql_text(prediction),
                        ek_sql_text(parsed),
                        ek_sql_text(reference),
                        ek_sql_text(r->flag),
                        ek_sql_real(r->score),
                        ek_sql_int(r->kept_asked),
                        ek_sql_int(r->kept_min),
                        ek_sql_real(r->kept_mean),
                        ek_sql_int(r->kept_max),
                        ek_sql_real(r->keep_mean),
                        ek_sql_int(r->kv_bytes_mean),
                        ek_sql_int(r->kv_bytes_peak),
                        ek_sql_int(r->state_bytes),
                        ek_sql_int(r->prefill_ns),
                        ek_sql_int(r->ttft_ns),
                        ek_sql_int(r->itl_ns),
                        ek_sql_int(r->score_ns),
                        ek_sql_text(error)};
    ek_code code = failed ? EK_FAIL(err, EK_ENOMEM, "sample %s: out of memory", r->doc_id)
                          : SQL(s, insert, p, NULL, NULL, err);

    for (int i = 0; i < 5; i++)
        free(owned[i]);
    if (code == EK_OK && ek_store_changes(s) == 1)
        code = insert_values(s, r, err);
    return code;
}

ek_code ek_store_samples(ek_store *s, const ek_sample_row *rows, int n, ek_err *err)
{
    ek_code code;

    EK_TRY(ek_store_begin(s, err));
    code = EK_OK;
    for (int i = 0; code == EK_OK && i < n; i++)
        code = insert_sample(s, &rows[i], err);
    if (code == EK_OK)
        code = ek_store_commit(s, err);
    if (code != EK_OK) {
        ek_store_rollback(s);
        return code;
    }
    return ek_store_in_place(s, err);
}

ek_code ek_store_has_sample(ek_store *s, int64_t cell, const char *doc_id, int64_t rep, int *has,
                            ek_err *err)
{
    static const char find[] =
        "SELECT count(*) FROM sample WHERE cell = ? AND doc_id = ? AND rep = ?";
    const ek_sql p[] = {ek_sql_int(cell), ek_sql_text(doc_id), ek_sql_int(rep)};
    int64_t n = 0;

    EK_TRY(SQL(s, find, p, take_int, &n, err));
    *has = n > 0;
    return EK_OK;
}

/* ---- training ---- */

ek_code ek_store_train_begin(ek_store *s, const ek_train_row *r, ek_err *err)
{
    static const char insert[] =
        "INSERT INTO train_run(run, scorer, loss, params, text_hash, target_hash, steps_asked)"
        " VALUES (?,?,?,?,?,?,?) ON CONFLICT(run) DO UPDATE SET steps_asked = excluded.steps_asked";
    const ek_sql p[] = {ek_sql_text(r->run),       ek_sql_text(r->scorer),
                        ek_sql_text(r->loss),      ek_sql_int(r->params),
                        ek_sql_text(r->text_hash), ek_sql_text(r->target_hash),
                        ek_sql_int(r->steps_asked)};

    return SQL(s, insert, p, NULL, NULL, err);
}

static int64_t now_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static ek_code write_steps(ek_store *s, ek_err *err)
{
    static const char insert[] =
        "INSERT OR REPLACE INTO train_step(run, step, split, loss, lr, grad_norm, acc, tokens, ns)"
        " VALUES (?,?,?,?,?,?,?,?,?)";
    static const char further[] =
        "INSERT OR REPLACE INTO train_value(run, step, split, name, value) VALUES (?,?,?,?,?)";
    static const char done[] =
        "UPDATE train_run SET steps_done = (SELECT count(*) FROM train_step WHERE run = ?1 AND"
        " split = 'train') WHERE run = ?1";
    const ek_sql run[] = {ek_sql_text(s->step_run)};

    for (int i = 0; i < s->n_steps; i++) {
        const ek_step_row *r = &s->step[i];
        const ek_sql p[] = {run[0],
                            ek_sql_int(r->step),
                            ek_sql_text(r->split),
                            ek_sql_real(r->loss),
                            ek_sql_real(r->lr),
                            ek_sql_real(r->grad_norm),
                            ek_sql_real(r->acc),
                            ek_sql_int(r->tokens),
                            ek_sql_int(r->ns)};
        EK_TRY(SQL(s, insert, p, NULL, NULL, err));
        for (int v = 0; v < EK_STEP_VALUES && r->value[v].name; v++) {
            const ek_sql one[] = {run[0], p[1], p[2], ek_sql_text(r->value[v].name),
                                  ek_sql_real(r->value[v].value)};
            if (isfinite(r->value[v].value))
                EK_TRY(SQL(s, further, one, NULL, NULL, err));
        }
    }
    return SQL(s, done, run, NULL, NULL, err);
}

ek_code ek_store_flush(ek_store *s, ek_err *err)
{
    ek_code code;

    if (s->n_steps == 0)
        return EK_OK;
    EK_TRY(ek_store_begin(s, err));
    code = write_steps(s, err);
    if (code == EK_OK)
        code = ek_store_commit(s, err);
    if (code != EK_OK) {
        ek_store_rollback(s);
        return code;
    }
    s->n_steps = 0;
    return EK_OK;
}

ek_code ek_store_step(ek_store *s, const ek_step_row *row, ek_err *err)
{
    ek_step_row *r;

    if (isnan(row->loss))
        return EK_FAIL(err, EK_ENAN, "step %lld: the loss is not a number", (long long)row->step);
    if (s->n_steps > 0 && strcmp(s->step_run, row->run) != 0)
        EK_TRY(ek_store_flush(s, err));
    if (s->n_steps == 0)
        s->first_step_ms = now_ms();
    snprintf(s->step_run, sizeof s->step_run, "%s", row->run);
    if (s->n_steps == EK_STORE_STEPS) /* an earlier write failed */
        EK_TRY(ek_store_flush(s, err));
    r = &s->step[s->n_steps++];
    *r = *row;
    r->run = s->step_run;
    r->split = row->split && strcmp(row->split, "valid") == 0 ? "valid" : "train";
    if (s->n_steps == EK_STORE_STEPS || now_ms() - s->first_step_ms >= 2000)
        return ek_store_flush(s, err);
    return EK_OK;
}

static ek_code insert_head(ek_store *s, const char *run, const char *name, int layer, int head,
                           double value, ek_err *err)
{
    static const char insert[] =
        "INSERT OR REPLACE INTO train_head(run, layer, head, name, value) VALUES (?,?,?,?,?)";
    const ek_sql p[] = {ek_sql_text(run), ek_sql_int(layer), ek_sql_int(head), ek_sql_text(name),
                        ek_sql_real(value)};

    if (!isfinite(value))
        return EK_FAIL(err, EK_ENAN, "%s of layer %d, head %d is not a number", name, layer, head);
    return SQL(s, insert, p, NULL, NULL, err);
}

ek_code ek_store_train_heads(ek_store *s, const char *run, const char *name, int n_layers,
                             int n_heads, const double *values, ek_err *err)
{
    ek_code code = EK_OK;

    EK_TRY(ek_store_begin(s, err));
    for (int i = 0; i < n_layers * n_heads && code == EK_OK; i++)
        code = insert_head(s, run, name, i / n_heads, i % n_heads, values[i], err);
    if (code == EK_OK)
        code = ek_store_commit(s, err);
    if (code != EK_OK)
        ek_store_rollback(s);
    return code;
}

ek_code ek_store_artifact(ek_store *s, const char *run, const char *kind, const char *path,
                          int64_t bytes, const char *sha256, ek_err *err)
{
    static const char insert[] =
        "INSERT INTO artifact(run, kind, path, bytes, sha256) VALUES (?,?,?,?,?)"
        " ON CONFLICT(run, path) DO UPDATE SET kind = excluded.kind, bytes = excluded.bytes,"
        " sha256 = excluded.sha256";
    const ek_sql p[] = {ek_sql_text(run), ek_sql_text(kind), ek_sql_text(path), ek_sql_int(bytes),
                        ek_sql_text(sha256)};

    return SQL(s, insert, p, NULL, NULL, err);
}
