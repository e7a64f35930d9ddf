/* tests/test_retrieval.c - training text that must be remembered, and that no task shares it. */
#include "datasets/dataset.h"
#include "datasets/retrieval.h"

#include <ctype.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static ek_err err;

/* A token is a word: lengths are then exact to the word. */
static int count_words(void *ctx, const char *text, size_t n)
{
    int words = 0;

    (void)ctx;
    for (size_t i = 0; i < n; i++)
        words +=
            !isspace((unsigned char)text[i]) && (i == 0 || isspace((unsigned char)text[i - 1]));
    return words;
}

static const ek_counter words = {.count = count_words, .wrap = 20, .turn = 8};

static void open_tiny(ek_texts *t)
{
    assert_int_equal(ek_texts_open(t, "datasets/tiny.txt", &err), EK_OK);
}

static int index_of(const char *task)
{
    for (int i = 0; ek_task_names[i] != NULL; i++)
        if (strcmp(ek_task_names[i], task) == 0)
            return i;
    fail();
    return -1;
}

static ek_task *open_task(ek_task_config *c, const char *name)
{
    ek_task *t = NULL;

    c->name = index_of(name);
    if (c->text == NULL)
        c->text = strdup("datasets/tiny.txt");
    if (ek_task_open(&t, c, &words, &err) != EK_OK)
        fail_msg("%s", err.msg);
    return t;
}

static void clear_config(ek_task_config *c)
{
    free(c->text);
    free(c->lengths);
    free(c->depths);
}

static int64_t *numbers(int n, const int64_t *from)
{
    int64_t *p = malloc((size_t)n * sizeof *p);

    assert_non_null(p);
    return memcpy(p, from, (size_t)n * sizeof *p);
}

static void set_grid(ek_task_config *c)
{
    c->n_lengths = 2;
    c->lengths = numbers(2, (int64_t[]){256, 512});
    c->n_depths = 4;
    c->depths = numbers(4, (int64_t[]){0, 30, 70, 100});
    c->repeats = 3;
}

static const ek_retrieval_config recipe = {
    .facts = 6, .min_tokens = 512, .max_tokens = 700, .passage_tokens = 40};

static int occurs(const char *text, const char *piece)
{
    int n = 0;

    for (const char *p = strstr(text, piece); p != NULL; p = strstr(p + 1, piece))
        n++;
    return n;
}

static int has_five_digits(const char *text)
{
    for (size_t run = 0; *text != '\0'; text += run ? run : 1) {
        run = strspn(text, "0123456789");
        if (run == 5)
            return 1;
    }
    return 0;
}

static void check_turn(const ek_retrieval *r, int k)
{
    const ek_turn *turn = &r->turn[k];
    const size_t length = turn->value.end - turn->value.begin;
    char value[2000], fact[2000];

    assert_true(turn->value.end <= strlen(turn->answer) && length > 0 && length < sizeof value);
    assert_true(turn->fact.end <= strlen(r->context));
    snprintf(value, sizeof value, "%.*s", (int)length, turn->answer + turn->value.begin);
    snprintf(fact, sizeof fact, "%.*s", (int)(turn->fact.end - turn->fact.begin),
             r->context + turn->fact.begin);
    assert_non_null(strstr(fact, value)); /* the answer stands where it says */
    if (k == r->n_turns - 1) {
        assert_string_equal(fact, turn->answer);
        assert_int_equal(occurs(r->context, fact), 1);
    } else {
        assert_null(strstr(turn->question, value)); /* the question does not give it away */
        assert_null(strchr(fact, '%'));
    }
    assert_null(strchr(turn->question, '%'));
    assert_false(has_five_digits(turn->question) || has_five_digits(turn->answer));
}

static void retrieval_text_holds_its_answers(void **state)
{
    ek_texts t;
    int lengths_differ = 0, last = 0, orders = 0;

    (void)state;
    open_tiny(&t);
    for (int64_t i = 0; i < 60; i++) {
        ek_retrieval r, again;

        if (ek_retrieval_make(&r, &t, &words, &recipe, 3, i, &err) != EK_OK)
            fail_msg("%s", err.msg);
        assert_int_equal(ek_retrieval_make(&again, &t, &words, &recipe, 3, i, &err), EK_OK);
        assert_string_equal(r.context, again.context);
        assert_int_equal(r.n_turns, 7);
        assert_in_range(r.tokens, 512 - 64, 700);
        lengths_differ += r.tokens != last;
        last = r.tokens;
        for (int k = 0; k < r.n_turns; k++) {
            check_turn(&r, k);
            assert_string_equal(r.turn[k].question, again.turn[k].question);
            assert_string_equal(r.turn[k].answer, again.turn[k].answer);
        }
        orders += r.turn[0].fact.begin > r.turn[1].fact.begin;
        assert_in_range(count_words(NULL, r.turn[6].answer, strlen(r.turn[6].answer)), 20, 40);
        assert_null(strstr(r.context, "pass key"));
        assert_false(has_five_digits(r.context));
        ek_retrieval_clear(&again);
        ek_retrieval_clear(&r);
        ek_retrieval_clear(&r);
    }
    assert_true(lengths_differ > 40);
    assert_in_range(orders, 10, 50); /* questions do not follow the text's order */
    ek_texts_close(&t);
}

static void retrieval_asks_for_room(void **state)
{
    ek_texts t;
    ek_retrieval r;
    ek_retrieval_config c = recipe;

    (void)state;
    open_tiny(&t);
    c.facts = 16;
    assert_int_equal(ek_retrieval_make(&r, &t, &words, &c, 3, 0, &err), EK_EASKED);
    c.facts = 17;
    assert_int_equal(ek_retrieval_make(&r, &t, &words, &c, 3, 0, &err), EK_EASKED);
    c = recipe;
    c.max_tokens = 511;
    assert_int_equal(ek_retrieval_make(&r, &t, &words, &c, 3, 0, &err), EK_EASKED);
    c = recipe;
    c.min_tokens = c.max_tokens = 100000;
    assert_int_equal(ek_retrieval_make(&r, &t, &words, &c, 3, 0, &err), EK_EASKED);
    assert_non_null(strstr(err.msg, "longest document"));
    ek_texts_close(&t);
}

/* The words of a template between its slots, longest stretch first found. */
static void each_stretch(const char *template, void (*use)(const char *stretch, size_t n, void *),
                         void *ctx)
{
    while (*template != '\0') {
        const size_t n = strcspn(template, "%");

        if (n > 0)
            use(template, n, ctx);
        template += n;
        template += *template ? 2 : 0;
    }
}

typedef struct shared {
    const char *in;
    int found;
} shared;

static void look_for(const char *stretch, size_t n, void *ctx)
{
    shared *s = ctx;

    /* Short stretches such as "is the" say nothing. */
    if (n >= 20 && memmem(s->in, strlen(s->in), stretch, n) != NULL)
        s->found = 1;
}

/* What the training text says, no evaluation sample says, and the other way round. */
static void templates_are_disjoint(void **state)
{
    ek_task_config c = ek_task_defaults;
    int kinds_seen = 0;

    (void)state;
    assert_true(ek_retrieval_n_templates() >= 30);
    assert_true(ek_retrieval_n_kinds() >= 6);
    for (int i = 0; i < ek_retrieval_n_templates(); i++)
        for (int what = 0; what < 3; what++) {
            const char *p = ek_retrieval_template(i, what);

            assert_null(strstr(p, "pass key"));
            assert_null(strstr(p, "Pass key"));
            assert_null(strstr(p, "passkey"));
        }
    set_grid(&c);
    for (c.kind = 0; c.kind < 2; c.kind++) {
        ek_task *t = open_task(&c, "passkey");

        for (int64_t k = 0; k < t->n; k++) {
            ek_sample s;
            char *all;

            assert_int_equal(ek_task_sample(&s, t, k, &err), EK_OK);
            assert_non_null(strstr(s.context, "pass key"));
            assert_non_null(strstr(s.question, "pass key"));
            all = malloc(strlen(s.context) + strlen(s.question) + strlen(s.answer_prefix) + 1);
            assert_non_null(all);
            sprintf(all, "%s%s%s", s.context, s.question, s.answer_prefix);
            shared look = {.in = all};
            for (int i = 0; i < ek_retrieval_n_templates(); i++)
                for (int what = 0; what < 3; what++)
                    each_stretch(ek_retrieval_template(i, what), look_for, &look);
            assert_false(look.found);
            kinds_seen++;
            free(all);
            ek_sample_clear(&s);
        }
        ek_task_close(t);
    }
    assert_int_equal(kinds_seen, 48);
    shared look = {.in = "The ledger of the mill at Kew lists 7 sacks"}; /* negative control */
    each_stretch(ek_retrieval_template(0, 0), look_for, &look);
    assert_true(look.found);
    clear_config(&c);
}

static void the_generator_has_an_identity(void **state)
{
    char one[33], two[33];

    (void)state;
    ek_retrieval_hash(one);
    ek_retrieval_hash(two);
    assert_string_equal(one, two);
    assert_int_equal(strlen(one), 32);
    assert_string_not_equal(one, "00000000000000000000000000000000");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(retrieval_text_holds_its_answers),
        cmocka_unit_test(retrieval_asks_for_room),
        cmocka_unit_test(templates_are_disjoint),
        cmocka_unit_test(the_generator_has_an_identity),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
