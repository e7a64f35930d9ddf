/* datasets/table.c - the table of tasks, their settings, and what is the same for all of them. */
#include "datasets/dataset.h"

#include "datasets/list.h"

#include <stdlib.h>
#include <string.h>

#define DECLARE(name) extern const ek_task_class ek_task_##name;
EK_TASKS(DECLARE)

#define ROW(name) &ek_task_##name,
const ek_task_class *const ek_tasks[] = {EK_TASKS(ROW) NULL};

#define WORD(name) #name,
const char *const ek_task_names[] = {EK_TASKS(WORD) NULL};

static const char *const kinds[] = {"single", "multi", NULL};

#define T ek_task_config
const ek_field ek_task_fields[] = {
    EK_ENUM(T, name, ek_task_names, "which task"),
    EK_STRING(T, label, "suite in results, where two tasks have one name (default: the name)"),
    EK_STRING(T, text, "folder of .txt, or one file (default data/text/test)"),
    EK_INT(T, samples, 0, 1000000, "fidelity: windows, spread over the text; 0: all there are"),
    EK_INT(T, prompt, 0, 1 << 20, "fidelity: tokens of the prompt (default 4096)"),
    EK_INT(T, continuation, 0, 1 << 20, "fidelity: tokens that follow (default 512)"),
    EK_ENUM(T, kind, kinds, "passkey: one key, or one of four that is asked for"),
    EK_INT(T, pairs, 0, 8, "kv_needle: keys with values, 2 .. 8 (default 3)"),
    EK_STRING(T, needle_text, "verbatim: the other books, as text (default data/text/other)"),
    EK_INTS(T, lengths, n_lengths, 64, 1 << 20,
            "needles: tokens, prompt and answer (default 1024, 2048, 4096)"),
    EK_INTS(T, depths, n_depths, 0, 100, "needles: percent of the text (default 0, 10 .. 100)"),
    EK_INT(T, repeats, 0, 100000, "needles: haystacks a length and depth (default 3)"),
    EK_INT(T, max_new_tokens, 0, 4096, "needles: tokens of the answer (default 30; verbatim 40)"),
    EK_BOOL(T, query_aware, "evict after the question instead of before it"),
    EK_INT(T, seed, 0, 9007199254740991.0, "of everything drawn at random; absent: the run's"),
    EK_FIELD_END};
#undef T

const ek_task_config ek_task_defaults = {.seed = -1};

static int has_word(const char *words, const char *word)
{
    const size_t n = strlen(word);

    for (const char *p = words; (p = strstr(p, word)) != NULL; p += n)
        if ((p == words || p[-1] == ' ') && (p[n] == ' ' || p[n] == '\0'))
            return 1;
    return 0;
}

/* A key of another kind of task would be ignored, and a user think that it did something.  Zero and
 * NULL are what stands there when nothing is given. */
static ek_code refuse_others(const ek_task_class *cls, const ek_task_config *c, ek_err *err)
{
    const struct {
        const char *name;
        int given;
    } key[] = {{"samples", c->samples != 0},
               {"prompt", c->prompt != 0},
               {"continuation", c->continuation != 0},
               {"kind", c->kind != 0},
               {"pairs", c->pairs != 0},
               {"needle_text", c->needle_text != NULL},
               {"lengths", c->n_lengths != 0},
               {"depths", c->n_depths != 0},
               {"repeats", c->repeats != 0},
               {"max_new_tokens", c->max_new_tokens != 0}};

    for (size_t i = 0; i < EK_COUNT(key); i++)
        if (key[i].given && !has_word(cls->keys, key[i].name))
            return EK_FAIL(err, EK_EASKED, "task %s: has no key %s, only %s", cls->name,
                           key[i].name, cls->keys);
    return EK_OK;
}

ek_code ek_task_open(ek_task **out, ek_task_config *config, const ek_counter *counter, ek_err *err)
{
    const ek_task_class *cls = ek_tasks[config->name];
    ek_task *t;

    EK_TRY(refuse_others(cls, config, err));
    if (config->text == NULL && (config->text = strdup("data/text/test")) == NULL)
        return EK_FAIL(err, EK_ENOMEM, "task %s", cls->name);
    cls->defaults(config);
    t = calloc(1, cls->size);
    if (t == NULL)
        return EK_FAIL(err, EK_ENOMEM, "task %s", cls->name);
    t->cls = cls;
    t->config = config;
    t->counter = *counter;
    EK_CHECK(ek_texts_open(&t->texts, config->text, err));
    EK_CHECK(cls->open(t, err));
    *out = t;
    return EK_OK;
fail:
    ek_task_close(t);
    return ek_err_in(err, "task %s", cls->name);
}

void ek_task_close(ek_task *t)
{
    if (t == NULL)
        return;
    if (t->cls->close != NULL)
        t->cls->close(t);
    ek_texts_close(&t->texts);
    free(t);
}

static void hash_list(ek_hasher *h, char *const *list, int n)
{
    ek_hasher_add(h, &n, sizeof n);
    for (int i = 0; i < n; i++)
        ek_hasher_add(h, list[i], strlen(list[i]));
}

static ek_code hash_sample(ek_sample *s, ek_err *err)
{
    const int numbers[] = {(int)s->kind,     s->chat,  s->max_new_tokens, s->prompt_tokens,
                           s->forced_tokens, s->depth, s->length};
    ek_hasher *h = ek_hasher_open();

    if (h == NULL)
        return EK_FAIL(err, EK_ENOMEM, "sample %s", s->doc_id);
    ek_hasher_add(h, numbers, sizeof numbers);
    ek_hasher_add(h, s->doc_id, strlen(s->doc_id));
    ek_hasher_add(h, s->cluster, strlen(s->cluster));
    ek_hasher_add(h, s->context, strlen(s->context));
    ek_hasher_add(h, s->question, strlen(s->question));
    ek_hasher_add(h, s->answer_prefix, strlen(s->answer_prefix));
    hash_list(h, s->references, s->n_references);
    hash_list(h, s->distractors, s->n_distractors);
    ek_hasher_close(h, s->hash);
    return EK_OK;
}

ek_code ek_task_sample(ek_sample *out, const ek_task *t, int64_t i, ek_err *err)
{
    ek_sample s = {.depth = -1};

    if (i < 0 || i >= t->n)
        return EK_FAIL(err, EK_EASKED, "task %s: found sample %lld, expected 0 .. %lld",
                       t->cls->name, (long long)i, (long long)t->n - 1);
    EK_CHECK(t->cls->sample(&s, t, i, err));
    EK_CHECK(hash_sample(&s, err));
    *out = s;
    return EK_OK;
fail:
    ek_sample_clear(&s);
    return ek_err_in(err, "task %s: sample %lld", t->cls->name, (long long)i);
}

void ek_task_grade(ek_grade *out, const ek_task *t, const ek_sample *s, const char *prediction)
{
    *out = (ek_grade){.flag = ""};
    if (t->cls->grade == NULL)
        return;
    if (prediction[strspn(prediction, " \t\r\n")] == '\0') {
        out->flag = "empty";
        return;
    }
    t->cls->grade(out, s, prediction);
}

static void free_list(char **list, int n)
{
    for (int i = 0; i < n && list != NULL; i++)
        free(list[i]);
    free(list);
}

void ek_sample_clear(ek_sample *s)
{
    free(s->doc_id);
    free(s->cluster);
    free(s->context);
    free(s->question);
    free(s->answer_prefix);
    free_list(s->references, s->n_references);
    free_list(s->distractors, s->n_distractors);
    memset(s, 0, sizeof *s);
}
