/* train/reading.c - see the header. */
#include "train/reading.h"

#include "core/file.h"
#include "core/progress.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ANSWERS = 12 }; /* retrieval texts whose answers' loss is measured */

/* Must a record hold every token? */
static int remembers(const ek_train_set *set)
{
    return ek_learned[set->scorer.kind]->learner->n_state != NULL;
}

static ek_collect_need need_of(const ek_reading *s, const ek_train_set *set)
{
    return (ek_collect_need){.model = s->model,
                             .dev = s->dev,
                             .data = s->data,
                             .set = set->data,
                             .target = set->target,
                             .sinks = (int)set->sinks,
                             .recent = (int)set->recent,
                             .whole = remembers(set),
                             .carried = set->scorer.carried,
                             .seed = set->seed,
                             .answers = set->data.cut > 0 ? ANSWERS : 0};
}

static int same_text(const void *a, const void *b, const ek_field *fields)
{
    char *x = ek_config_text(a, fields), *y = ek_config_text(b, fields);
    const int same = x != NULL && y != NULL && strcmp(x, y) == 0;

    free(x);
    free(y);
    return same;
}

static int same_string(const char *a, const char *b)
{
    return a == b || (a != NULL && b != NULL && strcmp(a, b) == 0);
}

int ek_reading_shares(const ek_train_set *a, const ek_train_set *b)
{
    ek_target_set x = a->target, y = b->target;
    const int whole_a = remembers(a) || a->data.entries == 0 || a->data.cut == 0;
    const int whole_b = remembers(b) || b->data.entries == 0 || b->data.cut == 0;
    const int carried =
        a->scorer.carried == 0 || b->scorer.carried == 0 || a->scorer.carried == b->scorer.carried;
    /* Whole records of the smallest window hold what larger ones need, at cuts. */
    const int cuts = whole_a && whole_b && a->data.cut > 0 && a->trace != EK_TRACE_DISK;
    /* A file holds just what its run asks for; steps of a stream ask for the same records. */
    const int traced = a->trace == EK_TRACE_DISK   ? a->scorer.carried == b->scorer.carried
                       : a->trace == EK_TRACE_NONE ? a->batch == b->batch
                                                   : 1;

    x.eps = y.eps; /* added after the record */
    return same_string(a->model, b->model) && same_text(&a->data, &b->data, ek_data_fields) &&
           same_text(&x, &y, ek_target_fields) && a->seed == b->seed && a->sinks == b->sinks &&
           (a->recent == b->recent || cuts) && whole_a == whole_b && a->trace == b->trace &&
           carried && traced && same_string(a->trace_file, b->trace_file);
}

void ek_reading_target_hash(const ek_reading *s, const ek_train_set *set, char out[33])
{
    const ek_collect_need need = need_of(s, set);

    ek_collect_target_hash(&need, out);
}

/* One run: in its folder.  Several: beside their folders, named by what the records are. */
static char *trace_path(const ek_reading *s, const ek_train_set *set, int n)
{
    const size_t room = strlen(set->out) + 64;
    char *path, hash[33], target[33];

    if (set->trace_file != NULL)
        return strdup(set->trace_file);
    if ((path = malloc(room)) == NULL)
        return NULL;
    if (n == 1) {
        snprintf(path, room, "%s/records.trace", set->out);
    } else {
        char key[80];
        const char *slash = strrchr(set->out, '/');

        ek_collect_target_hash(&s->collect.need, target);
        snprintf(key, sizeof key, "%s %s", ek_data_hash(s->data), target);
        ek_hash128(hash, key, strlen(key));
        snprintf(path, room, "%.*s/records-%.8s.trace", slash != NULL ? (int)(slash - set->out) : 1,
                 slash != NULL ? set->out : ".", hash);
    }
    return path;
}

ek_code ek_reading_open(ek_reading *s, const ek_train_set *const *set, int n,
                        const ek_train_options *options, ek_device *dev, ek_err *err)
{
    *s = (ek_reading){.set = set[0], .options = options, .dev = dev};
    EK_TRY(ek_model_open(&s->model, s->set->model, dev, EK_BF16, err));
    EK_TRY(ek_tokenizer_open(&s->tok, ek_model_gguf(s->model), err));
    EK_TRY(
        ek_data_open(&s->data, &s->set->data, s->set->seed, ek_model_gguf(s->model), s->tok, err));
    s->n_train = s->set->data.sequences;
    s->n_valid = s->set->data.valid;
    s->held = calloc((size_t)s->n_valid + 1, sizeof *s->held);
    if (s->held == NULL)
        return EK_FAIL(err, EK_ENOMEM, "a training run");
    ek_collect_need need = need_of(s, s->set);
    for (int i = 1; i < n; i++) {
        need.whole |= remembers(set[i]);
        need.carried =
            need.carried > set[i]->scorer.carried ? need.carried : set[i]->scorer.carried;
        if (set[i]->recent < need.recent)
            need.recent = (int)set[i]->recent;
    }
    EK_TRY(ek_collect_open(&s->collect, &need, err));
    s->trace_path = trace_path(s, s->set, n);
    return s->trace_path != NULL ? EK_OK : EK_FAIL(err, EK_ENOMEM, "a training run");
}

void ek_reading_close(ek_reading *s)
{
    ek_reading_next(s);
    ek_trace_close(s->trace);
    for (int64_t i = 0; s->held != NULL && i < s->n_valid; i++)
        ek_example_close(&s->held[i]);
    free(s->held);
    free(s->now);
    free(s->trace_path);
    ek_collect_close(&s->collect);
    ek_data_close(s->data);
    ek_tokenizer_close(s->tok);
    ek_model_close(s->model);
    *s = (ek_reading){0};
}

/* ---- traces ---- */

static void say_answers(const ek_reading *s)
{
    for (int k = 0; k < EK_DATA_KINDS; k++) {
        const ek_answers *a = &s->collect.answers[k];
        const double loss = a->tokens > 0 ? a->loss / a->tokens : 0;

        if (a->tokens > 0)
            ek_train_say(
                s->options,
                "retrieval   %s: the model's own loss on %0.f answer tokens of %lld texts: %.2f "
                "nats%s",
                ek_data_kind_name(k), a->tokens, (long long)a->texts, loss,
                loss > 2.5 ? "; WARNING: above 2.5 the text is beyond the model and teaches noise"
                           : "");
    }
}

void ek_reading_say(const ek_reading *s, double seconds)
{
    const ek_collect *c = &s->collect;

    ek_train_say(s->options,
                 "read        %lld sequences, %lld tokens, %.0f tokens/s (model %.0f %%, targets "
                 "%.0f %%)",
                 (long long)c->sequences, (long long)c->tokens, (double)c->tokens / seconds,
                 100 * c->model_seconds / seconds, 100 * c->target_seconds / seconds);
    say_answers(s);
}

static ek_code collect_all(ek_reading *s, ek_err *err)
{
    const int64_t all = s->n_train + s->n_valid;
    const double start = ek_now();
    ek_progress p;
    ek_code code = EK_OK;

    ek_progress_open(&p, "collect", "sequences", all);
    p.quiet = s->options->quiet;
    for (int64_t i = 0; i < all && code == EK_OK; i++) {
        ek_example r = {0};

        if (ek_stop_asked())
            code = EK_FAIL(err, EK_ESTOPPED,
                           "stopped while reading sequence %lld of %lld; nothing was kept",
                           (long long)i, (long long)all);
        else if ((code = ek_collect_example(&s->collect, i, &r, err)) == EK_OK)
            code = ek_trace_add(s->trace, &r, err);
        ek_progress_at(&p, i + 1, NULL);
    }
    ek_progress_close(&p);
    EK_TRY(code);
    EK_TRY(ek_trace_finish(s->trace, err));
    const double seconds = ek_now() - start;
    ek_train_say(s->options, "collected   %lld records, %.2f GB, %.0f s",
                 (long long)ek_trace_count(s->trace), (double)ek_trace_bytes(s->trace) / 1e9,
                 seconds);
    ek_reading_say(s, seconds);
    return EK_OK;
}

ek_code ek_reading_records(ek_reading *s, ek_err *err)
{
    ek_trace_key key = {.dims = *ek_model_dims(s->model),
                        .dtype = ek_model_storage(s->model),
                        .n = s->n_train + s->n_valid};
    const char *path = s->set->trace == EK_TRACE_DISK ? s->trace_path : NULL;

    if (s->set->trace == EK_TRACE_NONE)
        return EK_OK;
    memcpy(key.model, ek_model_hash(s->model), 33);
    memcpy(key.tokenizer, ek_tokenizer_hash(s->tok), 33);
    memcpy(key.text, ek_data_hash(s->data), 33);
    ek_collect_target_hash(&s->collect.need, key.target);
    if (path != NULL && ek_file_exists(path)) {
        EK_TRY(ek_trace_open(&s->trace, &key, path, err));
        ek_train_say(s->options, "records     from %s", path);
        return EK_OK;
    }
    EK_TRY(ek_trace_fits(path, ek_collect_bytes(&s->collect.need) * key.n, err));
    EK_TRY(ek_trace_create(&s->trace, &key, path, err));
    return collect_all(s, err);
}

/* ---- streams ---- */

ek_code ek_reading_keep(ek_reading *s, int most, ek_err *err)
{
    free(s->now);
    s->room = 0;
    s->now = calloc((size_t)most, sizeof *s->now);
    if (s->now == NULL)
        return EK_FAIL(err, EK_ENOMEM, "records of a step");
    s->room = most;
    return EK_OK;
}

void ek_reading_next(ek_reading *s)
{
    while (s->n_now > 0)
        ek_example_close(&s->now[--s->n_now].record);
}

static void lend(ek_example *out, const ek_example *of)
{
    *out = *of;
    out->owned = 0;
}

/* Steps in one epoch read every sequence once; those held out are looked at again and again. */
static ek_code made_now(ek_reading *s, int64_t i, ek_example *out, ek_err *err)
{
    if (i >= s->n_train) {
        ek_example *held = &s->held[i - s->n_train];

        if (held->head == NULL)
            EK_TRY(ek_collect_example(&s->collect, i, held, err));
        lend(out, held);
        return EK_OK;
    }
    for (int k = 0; k < s->n_now; k++)
        if (s->now[k].i == i) {
            lend(out, &s->now[k].record);
            return EK_OK;
        }
    EK_TRY(ek_collect_example(&s->collect, i, out, err));
    if (s->n_now < s->room) {
        s->now[s->n_now++] = (ek_reading_record){.i = i, .record = *out};
        out->owned = 0;
    }
    return EK_OK;
}

static ek_code get(void *ctx, int64_t i, ek_example *out, ek_err *err)
{
    ek_reading *s = ctx;

    if (s->trace != NULL)
        return ek_trace_get(s->trace, i, out, err);
    const double start = ek_now();
    const ek_code code = made_now(s, i, out, err);

    s->seconds += ek_now() - start;
    return code;
}

ek_examples ek_reading_examples(ek_reading *s)
{
    return (ek_examples){.get = get, .ctx = s, .n = s->n_train, .n_valid = s->n_valid};
}
