/* tests/test_datasets.c - tasks, their samples and grading. */
#include "datasets/list.h"
#include "tests/check_tasks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static ek_err err;

static void the_table_is_whole(void **state)
{
    int n = 0;

    (void)state;
    for (; ek_tasks[n] != NULL; n++) {
        assert_string_equal(ek_tasks[n]->name, ek_task_names[n]);
        assert_non_null(ek_tasks[n]->brief);
        assert_true(ek_tasks[n]->size >= sizeof(ek_task));
    }
    assert_null(ek_task_names[n]);
#define ONE(name) +1
    assert_int_equal(n, 0 EK_TASKS(ONE));
#undef ONE
}

static void check_passkey(const ek_task *t, const ek_sample *s)
{
    const int used = ek_check_prompt_words(s) + ek_check_counter.wrap + s->max_new_tokens;
    const char *at = strstr(s->context, s->references[0]);
    const size_t before = (size_t)(at - s->context);
    const int all = ek_check_words(NULL, s->context, strlen(s->context));
    const double share = 100.0 * ek_check_words(NULL, s->context, before) / all;

    assert_int_equal(used, s->length); /* a word more would not fit */
    assert_int_equal(s->n_references, 1);
    assert_int_equal(strlen(s->references[0]), 5);
    assert_non_null(at);
    assert_null(strstr(s->question, s->references[0]));
    assert_null(strstr(s->answer_prefix, s->references[0]));
    assert_true(s->question[0] == '\n' && s->chat);
    if (s->depth == 0) /* the first words, or among them in the multi kind */
        assert_true(share < 35.0);
    else if (s->depth == 100)
        assert_true(share > 85.0);
    else /* moved back to a sentence's end at most */
        assert_true(share < s->depth + 12 && share > s->depth - 35);
    (void)t;
}

static void passkeys_fit_and_repeat(void **state)
{
    (void)state;
    for (int kind = 0; kind < 2; kind++) {
        ek_task_config c = ek_task_defaults;
        char last[33] = "";

        c.kind = kind;
        c.seed = 5;
        ek_check_grid(&c);
        ek_task *t = ek_check_task_open(&c, "passkey");
        assert_int_equal(t->n, 24);
        for (int64_t i = 0; i < t->n; i++) {
            ek_sample s, again;

            if (ek_task_sample(&s, t, i, &err) != EK_OK)
                fail_msg("%s", err.msg);
            assert_int_equal(ek_task_sample(&again, t, i, &err), EK_OK);
            assert_string_equal(s.hash, again.hash);
            assert_string_equal(s.context, again.context);
            assert_string_not_equal(s.hash, last);
            strcpy(last, s.hash);
            assert_int_equal(s.n_distractors, kind == 0 ? 0 : 3);
            for (int k = 0; k < s.n_distractors; k++) {
                assert_non_null(strstr(s.context, s.distractors[k]));
                assert_string_not_equal(s.distractors[k], s.references[0]);
            }
            assert_int_equal(s.depth, c.depths[i % 4]);
            assert_int_equal(s.length, c.lengths[i / 4 % 2]);
            check_passkey(t, &s);
            ek_sample_clear(&s);
            ek_sample_clear(&again);
        }
        ek_sample s;
        assert_int_equal(ek_task_sample(&s, t, 24, &err), EK_EASKED);
        assert_int_equal(ek_task_sample(&s, t, -1, &err), EK_EASKED);
        ek_task_close(t);
        ek_check_task_clear(&c);
    }
}

static void another_seed_is_another_grid(void **state)
{
    ek_sample s[2];

    (void)state;
    for (int k = 0; k < 2; k++) {
        ek_task_config c = ek_task_defaults;

        c.seed = k;
        ek_check_grid(&c);
        ek_task *t = ek_check_task_open(&c, "passkey");
        assert_int_equal(ek_task_sample(&s[k], t, 6, &err), EK_OK);
        ek_task_close(t);
        ek_check_task_clear(&c);
    }
    assert_string_not_equal(s[0].references[0], s[1].references[0]);
    assert_string_not_equal(s[0].hash, s[1].hash);
    ek_sample_clear(&s[0]);
    ek_sample_clear(&s[1]);
    ek_sample_clear(&s[1]);
}

/* At depth 0 the needle opens the context, at 100 it closes it. */
static void single_needles_lie_at_the_ends(void **state)
{
    ek_task_config c = ek_task_defaults;

    (void)state;
    ek_check_grid(&c);
    ek_task *t = ek_check_task_open(&c, "passkey");
    for (int64_t i = 0; i < t->n; i++) {
        ek_sample s;

        assert_int_equal(ek_task_sample(&s, t, i, &err), EK_OK);
        /* One line says what is coming; the haystack begins behind it. */
        const char *hay = strstr(s.context, "\n\n") + 2;
        const size_t at = (size_t)(strstr(s.context, s.references[0]) - s.context);

        if (s.depth == 0)
            assert_true(at < (size_t)(hay - s.context) + 80);
        if (s.depth == 100)
            assert_true(at + 80 > strlen(s.context));
        ek_sample_clear(&s);
    }
    ek_task_close(t);
    ek_check_task_clear(&c);
}

/* When the task is opened: a sound length before it must not run first. */
static void short_texts_and_lengths_are_refused(void **state)
{
    static const char *const tasks[] = {"passkey", "kv_needle"};
    static const struct {
        int64_t lengths[2];
        const char *expected;
    } wrong[] = {{{400, 64}, "length 64 leaves"}, {{400, 32768}, "longest document"}};
    ek_task *t;

    (void)state;
    for (int k = 0; k < 2; k++) {
        ek_task_config c = ek_task_defaults;

        for (size_t i = 0; i < EK_COUNT(wrong); i++) {
            c = ek_task_defaults;
            c.name = ek_check_task_index(tasks[k]);
            c.text = strdup("datasets/tiny.txt");
            c.n_lengths = 2;
            c.lengths = ek_check_numbers(2, wrong[i].lengths);
            assert_int_equal(ek_task_open(&t, &c, &ek_check_counter, &err), EK_EASKED);
            assert_non_null(strstr(err.msg, tasks[k]));
            assert_non_null(strstr(err.msg, wrong[i].expected));
            ek_check_task_clear(&c);
        }
        c = ek_task_defaults;
        c.n_lengths = 1;
        c.lengths = ek_check_numbers(1, (int64_t[]){400});
        t = ek_check_task_open(&c, tasks[k]);
        assert_int_equal(c.n_depths, 11); /* filled in */
        assert_int_equal(c.max_new_tokens, 30);
        ek_task_close(t);
        ek_check_task_clear(&c);
    }
}

/* A length that leaves room for some needles only: opening finds out, whichever sample it is. */
static void every_sample_of_a_task_that_opens_can_be_made(void **state)
{
    int opened = 0, refused = 0;

    (void)state;
    for (int length = 64; length < 200; length++) {
        ek_task_config c = ek_task_defaults;
        ek_task *t;
        ek_sample s;

        c.name = ek_check_task_index("kv_needle");
        c.text = strdup("datasets/tiny.txt");
        c.seed = 3;
        c.n_lengths = 1;
        c.lengths = ek_check_numbers(1, (int64_t[]){length});
        if (ek_task_open(&t, &c, &ek_check_counter, &err) != EK_OK) {
            assert_int_equal(err.code, EK_EASKED);
            refused++;
        } else {
            opened++;
            for (int64_t i = 0; i < t->n; i++) {
                if (ek_task_sample(&s, t, i, &err) != EK_OK)
                    fail_msg("length %d: %s", length, err.msg);
                ek_sample_clear(&s);
            }
            ek_task_close(t);
        }
        ek_check_task_clear(&c);
    }
    assert_true(opened > 8 && refused > 8);
}

static double grade_of(const ek_task *t, const ek_sample *s, const char *prediction,
                       const char *flag)
{
    ek_grade g;

    ek_task_grade(&g, t, s, prediction);
    assert_string_equal(g.flag, flag);
    return g.score;
}

static void containment_is_exact(void **state)
{
    static const struct {
        const char *prediction;
        double score;
        const char *flag;
    } cases[] = {
        {" 48213", 1, ""},
        {"48213.", 1, ""},
        {"It is 48213, I think", 1, ""},
        {"348213", 0, ""},
        {"482130", 0, ""},
        {"48,213", 0, ""},
        {"4821 3", 0, ""},
        {"", 0, "empty"},
        {" \n\t", 0, "empty"},
        {"I do not know", 0, "unparsed"},
        {"482130 or 48213", 1, ""},
        {"48214", 0, ""},
        {"x48213x", 1, ""},
        {"\xe2\x80\x9c"
         "48213\xe2\x80\x9d",
         1, ""},
        {"48213 or 11111", 0, "distractor"},
        {"48213 or 111111", 1, ""},
    };
    char *right[] = {"48213"}, *wrong[] = {"11111"};
    const ek_sample s = {
        .references = right, .n_references = 1, .distractors = wrong, .n_distractors = 1};
    ek_task_config c = ek_task_defaults;
    ek_check_grid(&c);
    ek_task *t = ek_check_task_open(&c, "passkey");
    ek_grade g;

    (void)state;
    for (size_t i = 0; i < EK_COUNT(cases); i++)
        assert_true(grade_of(t, &s, cases[i].prediction, cases[i].flag) == cases[i].score);
    ek_task_grade(&g, t, &s, "It is 777.");
    assert_string_equal(g.parsed, "777");
    ek_task_close(t);
    ek_check_task_clear(&c);
}

static void fidelity_cuts_windows(void **state)
{
    ek_task_config c = ek_task_defaults;
    ek_task *t;
    size_t end = 0;

    (void)state;
    c.prompt = 150;
    c.continuation = 50;
    c.samples = 5;
    t = ek_check_task_open(&c, "fidelity");
    assert_int_equal(t->n, 5);
    for (int64_t i = 0; i < t->n; i++) {
        ek_sample s;

        assert_int_equal(ek_task_sample(&s, t, i, &err), EK_OK);
        assert_int_equal(s.kind, EK_SAMPLE_FORCED);
        assert_true(ek_check_words(NULL, s.context, strlen(s.context)) >= 200);
        assert_int_equal(s.prompt_tokens + s.forced_tokens, 200);
        const size_t begin = (size_t)atol(strchr(s.doc_id, '@') + 1);
        assert_true(i == 0 || begin >= end);
        end = begin + strlen(s.context);
        assert_memory_equal(s.context, t->texts.doc[0].text + begin, strlen(s.context));
        assert_true(!s.chat && s.depth == -1);
        ek_sample_clear(&s);
    }
    assert_true(end > t->texts.bytes / 2); /* spread over the text, not its beginning */
    ek_task_close(t);
    c.samples = 1000;
    c.name = ek_check_task_index("fidelity");
    assert_int_equal(ek_task_open(&t, &c, &ek_check_counter, &err), EK_EASKED);
    ek_check_task_clear(&c);
}

typedef struct run {
    ek_task_config *tasks;
    int n_tasks;
} run;

static const ek_field run_fields[] = {
    EK_LIST(run, tasks, n_tasks, ek_task_config, ek_task_fields, &ek_task_defaults, 1, 16, "tasks"),
    EK_FIELD_END};

static void settings_come_from_yaml(void **state)
{
    static const char text[] = "tasks:\n"
                               "  - fidelity\n"
                               "  - {name: passkey, lengths: [256, 512], depths: [50],\n"
                               "     kind: multi, text: datasets/tiny.txt, query_aware: true}\n";
    static const char *const wrong[] = {
        "tasks: [passkeys]",
        "tasks: [{name: passkey, lengths: [10]}]",
        "tasks: [{name: passkey, depths: [101]}]",
        "tasks: [{name: passkey, lenghts: [256]}]",
        "tasks: [{name: passkey, repeats: -1}]",
    };
    run r = {0};
    ek_task *t;

    (void)state;
    if (ek_config_parse(&r, run_fields, text, strlen(text), "run", NULL, 0, &err) != EK_OK)
        fail_msg("%s", err.msg);
    assert_int_equal(r.n_tasks, 2);
    assert_string_equal(ek_task_names[r.tasks[0].name], "fidelity");
    assert_int_equal(r.tasks[1].n_lengths, 2);
    assert_true(r.tasks[1].query_aware && !r.tasks[0].query_aware);
    if (ek_task_open(&t, &r.tasks[1], &ek_check_counter, &err) != EK_OK)
        fail_msg("%s", err.msg);
    assert_int_equal(t->n, 6); /* repeats: 3 by default */
    ek_task_close(t);
    ek_config_clear(&r, run_fields);
    for (size_t i = 0; i < EK_COUNT(wrong); i++) {
        run bad = {0};

        assert_int_not_equal(
            ek_config_parse(&bad, run_fields, wrong[i], strlen(wrong[i]), "run", NULL, 0, &err),
            EK_OK);
        assert_non_null(strstr(err.msg, "run"));
        ek_config_clear(&bad, run_fields);
    }
}

/* Every key that is not common belongs to some task, and is refused in every other one. */
static void keys_of_other_tasks_are_refused(void **state)
{
    static const char *const given[] = {
        "samples: 2",     "prompt: 64",     "continuation: 8", "kind: multi", "pairs: 4",
        "needle_text: x", "lengths: [400]", "depths: [50]",    "repeats: 1",  "max_new_tokens: 9"};
    int taken = 0, refused = 0;

    (void)state;
    for (size_t i = 0; i < EK_COUNT(given); i++) {
        char key[32];

        snprintf(key, sizeof key, "%.*s", (int)strcspn(given[i], ":"), given[i]);
        for (int k = 0; ek_task_names[k] != NULL; k++) {
            char text[200];
            run r = {0};
            ek_task *t = NULL;

            snprintf(text, sizeof text, "tasks: [{name: %s, text: datasets/tiny.txt, %s}]",
                     ek_task_names[k], given[i]);
            if (ek_config_parse(&r, run_fields, text, strlen(text), "run", NULL, 0, &err) != EK_OK)
                fail_msg("%s", err.msg);
            const ek_code code = ek_task_open(&t, &r.tasks[0], &ek_check_counter, &err);
            if (code != EK_OK && strstr(err.msg, "has no key")) { /* others may fail otherwise */
                assert_null(t);
                assert_int_equal(err.code, EK_EASKED);
                assert_non_null(strstr(err.msg, ek_task_names[k]));
                assert_non_null(strstr(strstr(err.msg, "has no key"), key));
                assert_null(strstr(ek_tasks[k]->keys, key));
                refused++;
            } else {
                assert_non_null(strstr(ek_tasks[k]->keys, key));
                taken++;
            }
            ek_task_close(t);
            ek_config_clear(&r, run_fields);
        }
    }
    assert_int_equal(taken, 3 + 3 * 4 + 3);
    assert_int_equal(refused, 40 - taken);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_table_is_whole),
        cmocka_unit_test(passkeys_fit_and_repeat),
        cmocka_unit_test(another_seed_is_another_grid),
        cmocka_unit_test(single_needles_lie_at_the_ends),
        cmocka_unit_test(short_texts_and_lengths_are_refused),
        cmocka_unit_test(every_sample_of_a_task_that_opens_can_be_made),
        cmocka_unit_test(containment_is_exact),
        cmocka_unit_test(fidelity_cuts_windows),
        cmocka_unit_test(settings_come_from_yaml),
        cmocka_unit_test(keys_of_other_tasks_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
