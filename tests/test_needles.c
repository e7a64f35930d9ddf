/* tests/test_needles.c - key-value needles and sentences of another book: hidden where they should
 * be, asked without being told, graded. */
#include "tests/check_tasks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static ek_err err;

/* The share of the haystack's words that stand before text. */
static double depth_of(const ek_sample *s, const char *text)
{
    const char *hay = strstr(s->context, "\n\n") + 2, *at = strstr(hay, text);

    assert_non_null(at);
    if (s->n_distractors == 0) /* a value is said twice, a sentence once */
        assert_null(strstr(at + 1, text));
    return 100.0 * ek_check_words(NULL, hay, (size_t)(at - hay)) /
           ek_check_words(NULL, hay, strlen(hay));
}

static void check_depth(const ek_sample *s, double share)
{
    if (s->depth == 0)
        assert_true(share < 6.0);
    else if (s->depth == 100)
        assert_true(share > 85.0);
    else /* moved back to a sentence's end; other needles before it push it on */
        assert_true(share < s->depth + 14 && share > s->depth - 35);
}

static void check_needle_sample(const ek_sample *s, const ek_sample *again, const char *needle)
{
    assert_string_equal(s->hash, again->hash);
    assert_string_equal(s->context, again->context);
    assert_string_equal(s->question, again->question);
    assert_in_range(ek_check_prompt_words(s) + ek_check_counter.wrap + s->max_new_tokens,
                    s->length - 1, s->length);
    assert_int_equal(s->n_references, 1);
    assert_true(strncmp(s->question, "\n\n", 2) == 0 && s->question[2] != '\n' && s->chat);
    assert_null(strstr(s->question, s->references[0]));
    assert_null(strstr(s->answer_prefix, s->references[0]));
    assert_null(strstr(s->context, s->question + 2)); /* the question is no part of the context */
    check_depth(s, depth_of(s, needle));
}

static void pairs_are_hidden_and_one_is_asked(void **state)
{
    ek_task_config c = ek_task_defaults;
    char last[33] = "";
    int before = 0;

    (void)state;
    c.seed = 11;
    c.pairs = 5;
    ek_check_grid(&c);
    ek_task *t = ek_check_task_open(&c, "kv_needle");
    assert_int_equal(t->n, 24);
    for (int64_t i = 0; i < t->n; i++) {
        ek_sample s, again;

        if (ek_task_sample(&s, t, i, &err) != EK_OK)
            fail_msg("%s", err.msg);
        assert_int_equal(ek_task_sample(&again, t, i, &err), EK_OK);
        check_needle_sample(&s, &again, s.references[0]);
        assert_int_equal(s.n_distractors, 4);
        for (int k = 0; k < s.n_distractors; k++) {
            const char *at = strstr(s.context, s.distractors[k]);

            assert_non_null(at);
            assert_string_not_equal(s.distractors[k], s.references[0]);
            before += at < strstr(s.context, s.references[0]);
        }
        assert_string_not_equal(s.hash, last);
        strcpy(last, s.hash);
        ek_sample_clear(&s);
        ek_sample_clear(&again);
    }
    assert_in_range(before, 24, 72); /* the other pairs are spread */
    ek_task_close(t);
    ek_check_task_clear(&c);
    c = ek_task_defaults;
    c.name = ek_check_task_index("kv_needle");
    c.pairs = 1;
    assert_int_equal(ek_task_open(&t, &c, &ek_check_counter, &err), EK_EASKED);
    assert_non_null(strstr(err.msg, "pairs"));
    ek_check_task_clear(&c);
}

static void sentences_of_another_book_are_hidden(void **state)
{
    ek_task_config c = ek_task_defaults;

    (void)state;
    c.seed = 12;
    c.needle_text = strdup(ek_check_books); /* both books: the haystack's own is never taken */
    ek_check_grid(&c);
    ek_task *t = ek_check_task_open(&c, "verbatim");
    assert_int_equal(c.max_new_tokens, 40);
    for (int64_t i = 0; i < t->n; i++) {
        ek_sample s, again;
        char whole[400];

        if (ek_task_sample(&s, t, i, &err) != EK_OK)
            fail_msg("%s", err.msg);
        assert_int_equal(ek_task_sample(&again, t, i, &err), EK_OK);
        snprintf(whole, sizeof whole, "%s %s", s.answer_prefix, s.references[0]);
        assert_true(strncmp(whole, "Every spring", 12) == 0 ||
                    strncmp(whole, "Nobody could", 12) == 0 || strncmp(whole, "A patient", 9) == 0);
        assert_int_equal(ek_check_words(NULL, s.answer_prefix, strlen(s.answer_prefix)), 5);
        assert_in_range(ek_check_words(NULL, s.references[0], strlen(s.references[0])), 8, 14);
        check_needle_sample(&s, &again, whole);
        ek_sample_clear(&s);
        ek_sample_clear(&again);
    }
    ek_task_close(t);
    free(c.needle_text);
    c.needle_text = strdup(ek_check_same_book);
    assert_int_equal(ek_task_open(&t, &c, &ek_check_counter, &err), EK_EASKED);
    assert_non_null(strstr(err.msg, "book other than"));
    ek_check_task_clear(&c);
}

static void values_are_graded_whole(void **state)
{
    static const struct {
        const char *prediction;
        double score;
        const char *flag, *parsed;
    } cases[] = {
        {" tiger/pencil.", 1, "", "tiger/pencil"},
        {"\"Tiger/Pencil\"", 1, "", "Tiger/Pencil"},
        {"It is tiger/pencil, I think", 1, "", "tiger/pencil"},
        {"tiger/pencils", 0, "", "tiger/pencils"},
        {"atiger/pencil", 0, "", "atiger/pencil"},
        {"tiger pencil", 0, "unparsed", ""},
        {"pencil/tiger", 0, "", "pencil/tiger"},
        {"tiger/pencil or ocean/lemon", 1, "", "tiger/pencil"},
        {"ocean/lemon or tiger/pencil", 0, "distractor", "ocean/lemon"},
        {"ocean/lemon", 0, "distractor", "ocean/lemon"},
        {"", 0, "empty", ""},
        {"I do not know", 0, "unparsed", ""},
    };
    char *right[] = {"tiger/pencil"}, *wrong[] = {"ocean/lemon"};
    const ek_sample s = {
        .references = right, .n_references = 1, .distractors = wrong, .n_distractors = 1};
    ek_task_config c = ek_task_defaults;
    ek_check_grid(&c);
    ek_task *t = ek_check_task_open(&c, "kv_needle");

    (void)state;
    for (size_t i = 0; i < EK_COUNT(cases); i++) {
        ek_grade g;

        ek_task_grade(&g, t, &s, cases[i].prediction);
        assert_true(g.score == cases[i].score);
        assert_string_equal(g.flag, cases[i].flag);
        assert_string_equal(g.parsed, cases[i].parsed);
    }
    ek_task_close(t);
    ek_check_task_clear(&c);
}

static void continuations_are_graded_by_their_prefix(void **state)
{
    static const struct {
        const char *prediction;
        double words; /* of 8 */
    } cases[] = {
        {" his wooden hives across the river to clover.", 8},
        {"His wooden HIVES across, the river to 'clover' and on", 8},
        {" his wooden hives", 3},
        {" his wooden hive across the river to clover", 2},
        {" wooden hives across the river to clover", 0},
        {" his old wooden hives across", 1},
        {" his wooden hives across the river to clovers", 7},
        {"", 0},
        {" .", 0},
    };
    char *right[] = {"his wooden hives across the river to clover."};
    const ek_sample s = {.references = right, .n_references = 1};
    ek_task_config c = ek_task_defaults;
    c.needle_text = strdup(ek_check_other_book);
    ek_check_grid(&c);
    ek_task *t = ek_check_task_open(&c, "verbatim");
    ek_grade g;

    (void)state;
    for (size_t i = 0; i < EK_COUNT(cases); i++) {
        ek_task_grade(&g, t, &s, cases[i].prediction);
        assert_true(g.score == cases[i].words / 8);
    }
    ek_task_grade(&g, t, &s, "his wooden boxes");
    assert_string_equal(g.parsed, "his wooden");
    ek_task_close(t);
    ek_check_task_clear(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pairs_are_hidden_and_one_is_asked),
        cmocka_unit_test(sentences_of_another_book_are_hidden),
        cmocka_unit_test(values_are_graded_whole),
        cmocka_unit_test(continuations_are_graded_by_their_prefix),
    };

    return cmocka_run_group_tests(tests, ek_check_books_write, ek_check_books_remove);
}
