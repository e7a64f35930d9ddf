/* tests/test_retrieval.c - training text that must be remembered, and that no task shares it. */
#include "datasets/retrieval.h"
#include "tests/check_tasks.h"

#include <ctype.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static ek_err err;

static void open_tiny(ek_texts *t)
{
    assert_int_equal(ek_texts_open(t, "datasets/tiny.txt", &err), EK_OK);
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

        if (ek_retrieval_make(&r, &t, &ek_check_counter, &recipe, 3, i, &err) != EK_OK)
            fail_msg("%s", err.msg);
        assert_int_equal(ek_retrieval_make(&again, &t, &ek_check_counter, &recipe, 3, i, &err),
                         EK_OK);
        assert_string_equal(r.context, again.context);
        assert_int_equal(r.n_turns, 7);
        assert_int_equal(r.kind, EK_RETRIEVAL_FACTS); /* no weights: facts alone */
        assert_in_range(r.tokens, 512 - 64, 700);
        lengths_differ += r.tokens != last;
        last = r.tokens;
        for (int k = 0; k < r.n_turns; k++) {
            check_turn(&r, k);
            assert_string_equal(r.turn[k].question, again.turn[k].question);
            assert_string_equal(r.turn[k].answer, again.turn[k].answer);
        }
        orders += r.turn[0].fact.begin > r.turn[1].fact.begin;
        assert_in_range(ek_check_words(NULL, r.turn[6].answer, strlen(r.turn[6].answer)), 20, 40);
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
    assert_int_equal(ek_retrieval_make(&r, &t, &ek_check_counter, &c, 3, 0, &err), EK_EASKED);
    c.facts = 17;
    assert_int_equal(ek_retrieval_make(&r, &t, &ek_check_counter, &c, 3, 0, &err), EK_EASKED);
    c = recipe;
    c.max_tokens = 511;
    assert_int_equal(ek_retrieval_make(&r, &t, &ek_check_counter, &c, 3, 0, &err), EK_EASKED);
    c = recipe;
    c.min_tokens = c.max_tokens = 100000;
    assert_int_equal(ek_retrieval_make(&r, &t, &ek_check_counter, &c, 3, 0, &err), EK_EASKED);
    assert_non_null(strstr(err.msg, "longest document"));
    ek_texts_close(&t);
}

/* A turn of any kind: the answer stands where the turn says, and no question gives it away. */
static void check_any(const ek_retrieval *r, int k)
{
    const ek_turn *turn = &r->turn[k];
    const size_t n = turn->value.end - turn->value.begin;
    const char *value = turn->answer + turn->value.begin;
    char held[2000];

    assert_true(turn->value.end <= strlen(turn->answer) && n > 0 && n < sizeof held);
    assert_true(turn->fact.begin < turn->fact.end && turn->fact.end <= strlen(r->context));
    assert_non_null(
        memmem(r->context + turn->fact.begin, turn->fact.end - turn->fact.begin, value, n));
    snprintf(held, sizeof held, "%.*s", (int)n, value);
    assert_null(strstr(turn->question, held));
    assert_null(strchr(turn->question, '%'));
    assert_false(has_five_digits(turn->question) || has_five_digits(turn->answer));
}

static void every_kind_holds_its_answers(void **state)
{
    ek_texts t;

    (void)state;
    open_tiny(&t);
    for (int kind = 0; kind < EK_RETRIEVAL_KINDS; kind++) {
        ek_retrieval_config c = recipe;
        int intros = 0, blocks = 0;

        c.weight[kind] = 1;
        for (int64_t i = 0; i < 40; i++) {
            ek_retrieval r, again;

            if (ek_retrieval_make(&r, &t, &ek_check_counter, &c, 9, i, &err) != EK_OK)
                fail_msg("%s", err.msg);
            assert_int_equal(ek_retrieval_make(&again, &t, &ek_check_counter, &c, 9, i, &err),
                             EK_OK);
            assert_string_equal(r.context, again.context);
            assert_int_equal(r.kind, kind);
            assert_in_range(r.tokens, 512 - 64, 700);
            assert_in_range(r.n_turns,
                            kind == EK_RETRIEVAL_PASSAGE || kind == EK_RETRIEVAL_QUOTES ? 1 : 4,
                            EK_RETRIEVAL_TURNS);
            assert_null(strchr(r.context, '%'));
            for (int k = 0; k < r.n_turns; k++) {
                check_any(&r, k);
                assert_string_equal(r.turn[k].answer, again.turn[k].answer);
                blocks += r.context[r.turn[k].fact.end] == '\n';
            }
            intros += strstr(r.context, "\n\n") != NULL &&
                      (strstr(r.context, "Keep every one") || strstr(r.context, "be needed.") ||
                       strstr(r.context, "do not lose") || strstr(r.context, "what counts") ||
                       strstr(r.context, "wants them back") || strstr(r.context, "by one hand") ||
                       strstr(r.context, "mixed up his sheets"));
            ek_retrieval_clear(&again);
            ek_retrieval_clear(&r);
        }
        assert_true(kind == EK_RETRIEVAL_FACTS ? intros == 0 : intros > 8 && intros < 32);
        assert_true(blocks > 0);
    }
    ek_texts_close(&t);
}

static void weights_say_how_often(void **state)
{
    ek_retrieval_config c = recipe;
    int n[EK_RETRIEVAL_KINDS] = {0};

    (void)state;
    c.weight[EK_RETRIEVAL_FACTS] = 2;
    c.weight[EK_RETRIEVAL_PAIRS] = 1;
    c.weight[EK_RETRIEVAL_MIXED] = 1;
    for (int64_t i = 0; i < 4000; i++)
        n[ek_retrieval_kind_of(&c, 4, i)]++;
    assert_in_range(n[EK_RETRIEVAL_FACTS], 1850, 2150);
    assert_in_range(n[EK_RETRIEVAL_PAIRS], 880, 1120);
    assert_in_range(n[EK_RETRIEVAL_MIXED], 880, 1120);
    assert_int_equal(n[EK_RETRIEVAL_LIST] + n[EK_RETRIEVAL_PASSAGE], 0);
    c.weight[EK_RETRIEVAL_LIST] = -1;
    ek_texts t;
    ek_retrieval r;
    open_tiny(&t);
    assert_int_equal(ek_retrieval_make(&r, &t, &ek_check_counter, &c, 3, 0, &err), EK_EASKED);
    assert_non_null(strstr(err.msg, "list"));
    ek_texts_close(&t);
}

/* ---- training shares no sentence, no form of question and no kind of answer with any task ---- */

enum { MAX_WORDS = 64, RUN = 4 };

/* A wording's words in lower case, without punctuation; a slot is NULL. */
typedef struct form {
    char text[600];
    char *word[MAX_WORDS];
    int n;
} form;

static void read_form(form *f, const char *wording)
{
    char *to = f->text;

    f->n = 0;
    for (const char *p = wording; *p != '\0' && f->n < MAX_WORDS;) {
        if (*p == '%') {
            f->word[f->n++] = NULL;
            p += 2;
        } else if (isalnum((unsigned char)*p)) {
            f->word[f->n++] = to;
            while (isalnum((unsigned char)*p) || *p == '\'')
                *to++ = (char)tolower((unsigned char)*p++);
            *to++ = '\0';
        } else {
            p++;
        }
    }
}

static int same_words(const form *a, int i, const form *b, int k, int n)
{
    for (int w = 0; w < n; w++) {
        const char *x = a->word[i + w], *y = b->word[k + w];

        if (x == NULL || y == NULL ? x != y : strcmp(x, y) != 0)
            return 0;
    }
    return 1;
}

/* Whether both are one sentence (slots alike), or share RUN words in a row. */
static int share_form(const char *one, const char *two)
{
    form a, b;

    read_form(&a, one);
    read_form(&b, two);
    if (a.n == b.n && same_words(&a, 0, &b, 0, a.n))
        return 1;
    for (int i = 0; i + RUN <= a.n; i++)
        for (int k = 0; k + RUN <= b.n; k++) {
            int slots = 0;

            for (int w = 0; w < RUN; w++)
                slots += a.word[i + w] == NULL;
            if (slots == 0 && same_words(&a, i, &b, k, RUN))
                return 1;
        }
    return 0;
}

static void wordings_are_disjoint(void **state)
{
    int n_train = 0, n_tasks = 0, n_eval = 0;

    (void)state;
    while (ek_retrieval_wording(n_train) != NULL)
        n_train++;
    for (int t = 0; ek_tasks[t] != NULL; t++) {
        if (ek_tasks[t]->wording == NULL)
            continue;
        n_tasks++;
        for (int e = 0; ek_tasks[t]->wording(e) != NULL; e++, n_eval++)
            for (int i = 0; i < n_train; i++)
                if (share_form(ek_tasks[t]->wording(e), ek_retrieval_wording(i)))
                    fail_msg("%s: \"%s\" and in training: \"%s\"", ek_tasks[t]->name,
                             ek_tasks[t]->wording(e), ek_retrieval_wording(i));
    }
    assert_int_equal(n_tasks, 3);
    assert_true(n_eval > 20 && n_train > 200);
    /* Controls: the comparison finds what is alike, and lets pass what is not. */
    assert_true(share_form("Which locker was given to %A?", "which LOCKER was given, to %s"));
    assert_true(share_form("He knew the keeper of the gate", "Ask the keeper of the inn."));
    assert_true(share_form("%K = %V", "%s: %s"));
    assert_false(share_form("The keeper of %A called", "the keeper of an inn"));
}

static int is_pass_key(const char *s)
{
    return strspn(s, "0123456789") == 5 && s[5] == '\0';
}

/* What each task asks for, as a form that training values never have. */
static int is_call_sign(const char *s)
{
    const size_t head = strspn(s, "abcdefghijklmnopqrstuvwxyz");
    const size_t tail = s[head] == '/' ? strspn(s + head + 1, "abcdefghijklmnopqrstuvwxyz") : 0;

    return head > 2 && tail > 2 && s[head + 1 + tail] == '\0';
}

static void each_answer(const char *task, int kind, void (*use)(const ek_sample *s, void *ctx),
                        void *ctx)
{
    ek_task_config c = ek_task_defaults;

    ek_check_grid(&c);
    c.kind = kind;
    if (strcmp(task, "verbatim") == 0)
        c.needle_text = strdup(ek_check_other_book);
    ek_task *t = ek_check_task_open(&c, task);
    for (int64_t k = 0; k < t->n; k++) {
        ek_sample s;

        if (ek_task_sample(&s, t, k, &err) != EK_OK)
            fail_msg("%s", err.msg);
        use(&s, ctx);
        ek_sample_clear(&s);
    }
    ek_task_close(t);
    ek_check_task_clear(&c);
}

typedef struct pool { /* what training items say and ask for */
    char *value[8000];
    int n;
} pool;

static void no_value_is_this_answer(const ek_sample *s, void *ctx)
{
    const pool *p = ctx;

    for (int i = 0; i < p->n; i++) {
        for (int k = 0; k < s->n_references; k++)
            assert_null(strstr(p->value[i], s->references[k]));
        for (int k = 0; k < s->n_distractors; k++)
            assert_null(strstr(p->value[i], s->distractors[k]));
    }
}

static void has_form(const ek_sample *s, void *ctx)
{
    int (*is_form)(const char *) = *(int (**)(const char *))ctx;

    for (int k = 0; k < s->n_references; k++)
        assert_true(is_form(s->references[k]));
    for (int k = 0; k < s->n_distractors; k++)
        assert_true(is_form(s->distractors[k]));
}

static void answers_are_disjoint(void **state)
{
    int (*pass_key)(const char *) = is_pass_key, (*call_sign)(const char *) = is_call_sign;
    static pool all;
    ek_texts t;

    (void)state;
    open_tiny(&t);
    for (int kind = 0; kind < EK_RETRIEVAL_KINDS; kind++) {
        ek_retrieval_config c = recipe;

        c.weight[kind] = 1;
        for (int64_t i = 0; i < 100; i++) {
            ek_retrieval r;

            if (ek_retrieval_make(&r, &t, &ek_check_counter, &c, 21, i, &err) != EK_OK)
                fail_msg("%s", err.msg);
            assert_null(strcasestr(r.context, "pass key"));
            assert_null(strcasestr(r.context, "call sign"));
            for (int k = 0; k < r.n_turns; k++) {
                const ek_turn *u = &r.turn[k];
                char *value = strndup(u->answer + u->value.begin, u->value.end - u->value.begin);

                assert_non_null(value);
                if (is_pass_key(value) || is_call_sign(value))
                    fail_msg("%s", value);
                if (all.n < (int)EK_COUNT(all.value))
                    all.value[all.n++] = value;
                else
                    free(value);
            }
            ek_retrieval_clear(&r);
        }
    }
    assert_true(all.n > 2500);
    each_answer("passkey", 0, no_value_is_this_answer, &all);
    each_answer("passkey", 1, no_value_is_this_answer, &all);
    each_answer("kv_needle", 0, no_value_is_this_answer, &all);
    each_answer("verbatim", 0, no_value_is_this_answer, &all);
    each_answer("passkey", 1, has_form, &pass_key);
    each_answer("kv_needle", 0, has_form, &call_sign);
    for (int i = 0; i < all.n; i++)
        free(all.value[i]);
    ek_texts_close(&t);
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
        cmocka_unit_test(every_kind_holds_its_answers),
        cmocka_unit_test(weights_say_how_often),
        cmocka_unit_test(wordings_are_disjoint),
        cmocka_unit_test(answers_are_disjoint),
        cmocka_unit_test(the_generator_has_an_identity),
    };

    return cmocka_run_group_tests(tests, ek_check_books_write, ek_check_books_remove);
}
