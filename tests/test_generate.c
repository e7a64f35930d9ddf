/* tests/test_generate.c - the generate command on a tiny model: output, saved plans, refusals. */
#include "tests/check_program.h"

#include "core/safetensors.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

enum { LAYERS = 2, HEADS = 2 };

static ek_world world;
static ek_err err;

static const char prompt[] =
    "The harbour lay quiet, and the boats rocked at their ropes while the tide came in.  Nobody "
    "spoke of the letter, nor of the man who had carried it over the hills in the rain.";

static void ok(ek_code code)
{
    if (code != EK_OK)
        fail_msg("%s", err.msg);
}

/* generate --model tiny.gguf --max-new 12 EXTRA... */
static void generate(ek_ran *r, const char *const *extra)
{
    const char *args[32] = {"generate", "--model", "tiny.gguf", "--max-new", "12"};
    int n = 5;

    for (int i = 0; extra[i]; i++)
        args[n++] = extra[i];
    args[n] = NULL;
    ek_program(r, &world, NULL, args);
}

static const int32_t *ints(const ek_st *st, const char *name, int64_t *n)
{
    const ek_st_tensor *t = ek_st_find(st, name);

    assert_non_null(t);
    assert_int_equal(t->type, EK_ST_I32);
    *n = (int64_t)(t->bytes / 4);
    return t->data; /* tensors of 4 bytes follow each other */
}

/* Kept positions ascend, are as many as asked, and (knorm, without protection) are those of the
 * best scores. */
static void check_plan(const char *method)
{
    int64_t n_ids, n_counts, n_kept, n_scored, at = 0, scored_at = 0;
    const int32_t *count, *pos, *scored = NULL, *scored_pos = NULL;
    const float *score = NULL;
    const int full = strcmp(method, "full") == 0, late = strcmp(method, "inertiakv") == 0;
    ek_st *st;

    ok(ek_st_open(&st, ek_world_path(&world, "plan.safetensors"), &err));
    assert_string_equal(ek_st_meta(st, "method"), method);
    ints(st, "ids", &n_ids);
    assert_true(n_ids > 64);
    count = ints(st, "kept.count", &n_counts);
    assert_int_equal(n_counts, LAYERS * HEADS);
    pos = ints(st, "kept.pos", &n_kept);
    assert_non_null(ek_st_find(st, "logits"));
    assert_true(full == (ek_st_find(st, "score.value") == NULL));
    if (!full) {
        scored = ints(st, "score.count", &n_counts);
        scored_pos = ints(st, "score.pos", &n_scored);
        score = ek_st_find(st, "score.value")->data;
    }
    for (int i = 0; i < LAYERS * HEADS; i++) {
        float least = INFINITY;

        /* One that cuts at the first step may keep the token of that step, which is no prompt's. */
        assert_in_range(count[i], full ? n_ids : n_ids / 4 - late, full ? n_ids : n_ids / 4);
        for (int32_t j = 1; j < count[i]; j++)
            assert_true(pos[at + j - 1] < pos[at + j]);
        assert_true(pos[at + count[i] - 1] < n_ids);
        if (strcmp(method, "knorm") == 0) {
            for (int32_t j = 0, k = 0; j < scored[i]; j++)
                if (k < count[i] && scored_pos[scored_at + j] == pos[at + k]) {
                    least = fminf(least, score[scored_at + j]);
                    k++;
                }
            int better = 0;

            for (int32_t j = 0; j < scored[i]; j++)
                better += score[scored_at + j] > least;
            assert_int_equal(scored[i], n_ids);
            assert_int_equal(better, count[i] - 1);
        }
        at += count[i];
        if (scored)
            scored_at += scored[i];
    }
    assert_int_equal(at, n_kept);
    ek_st_close(st);
}

static void every_policy_streams_and_saves_its_plan(void **state)
{
    static const char *const names[] = {"full",   "random",    "recency",   "streaming",
                                        "knorm",  "keydiff",   "tova",      "h2o",
                                        "snapkv", "inertiakv", "scorefree", "inertiakv_lazy"};

    (void)state;
    for (size_t i = 0; i < EK_COUNT(names); i++) {
        const char *const extra[] = {"--policy",    names[i],           "--keep", "0.25",
                                     "--save-plan", "plan.safetensors", prompt,   NULL};
        ek_ran one, two;

        generate(&one, extra);
        if (one.status != 0)
            fail_msg("%s: status %d: %s", names[i], one.status, one.err);
        assert_true(strlen(one.out) > 0);
        assert_non_null(strstr(one.err, "cache"));
        if (strstr(names[i], "inertiakv_lazy") == NULL && strcmp(names[i], "scorefree") != 0)
            check_plan(names[i]);
        generate(&two, extra);
        assert_string_equal(one.out, two.out);
        for (size_t d = 0; d < 2; d++) { /* one whose measure is gone after its only cut, too */
            const char *const when[] = {"--policy",    names[i],
                                        "--keep",      "0.25",
                                        "--save-plan", "plan.safetensors",
                                        "--decode",    d ? "grow" : "hold",
                                        prompt,        NULL};

            generate(&two, when);
            if (two.status != 0)
                fail_msg("%s, %s: status %d: %s", names[i], when[7], two.status, two.err);
        }
    }
}

static void seeds_and_templates_matter(void **state)
{
    const char *const a[] = {"--temperature", "1.5", "--seed", "1", "--raw", prompt, NULL};
    const char *const b[] = {"--temperature", "1.5", "--seed", "2", "--raw", prompt, NULL};
    const char *const c[] = {"--prompt-file", "prompt.txt",       "--raw",
                             "--save-plan",   "plan.safetensors", NULL};
    const char *const d[] = {"--save-plan", "plan.safetensors", prompt, NULL};
    int64_t raw, chat;
    ek_ran r, s;
    ek_st *st;

    (void)state;
    generate(&r, a);
    assert_int_equal(r.status, 0);
    generate(&s, a);
    assert_string_equal(r.out, s.out);
    generate(&s, b);
    assert_string_not_equal(r.out, s.out);
    ek_world_text(&world, "prompt.txt", prompt);
    generate(&r, c);
    assert_int_equal(r.status, 0);
    ok(ek_st_open(&st, ek_world_path(&world, "plan.safetensors"), &err));
    ints(st, "ids", &raw);
    ek_st_close(st);
    generate(&r, d);
    assert_int_equal(r.status, 0);
    ok(ek_st_open(&st, ek_world_path(&world, "plan.safetensors"), &err));
    assert_int_equal(*ints(st, "ids", &chat), 1); /* <|im_start|> */
    ek_st_close(st);
    assert_true(chat > raw);
}

static void wrong_requests_are_refused(void **state)
{
    static const char *const cases[][8] = {
        {"--policy", "snapk", "--keep", "0.5", "hi"},
        {"--policy", "snapkv:windw=3", "--keep", "0.5", "hi"},
        {"--policy", "snapkv:window", "--keep", "0.5", "hi"},
        {"--policy", "snapkv", "hi"},
        {"--policy", "h2o", "--keep", "1.5", "hi"},
        {"--policy", "h2o", "--keep", "0.5", "--entries", "3", "hi"},
        {"--policy", "h2o", "--entries", "0", "hi"},
        {"--policy", "kvpop", "--keep", "0.5", "hi"},
        {"--policy", "kvpop", "--keep", "0.5", "--weights", "nowhere", "hi"},
        {"--policy", "oracle", "--keep", "0.5", "hi"},
        {"--weights", "nowhere", "hi"},
        {"--temperature", "-1", "hi"},
        {"--temperature", "warm", "hi"},
        {"--top-p", "0", "hi"},
        {"--storage", "int4", "hi"},
        {"--decode", "never", "hi"},
        {"--prompt-file", "nowhere.txt"},
        {"--prompt-file", "prompt.txt", "hi"},
        {"--unheard-of", "hi"},
        {"one", "two"},
        {"--raw", ""},
        {NULL},
    };

    (void)state;
    ek_world_text(&world, "prompt.txt", prompt);
    for (size_t i = 0; i < EK_COUNT(cases); i++) {
        ek_ran r;

        generate(&r, cases[i]);
        if (!ek_is_refusal(&r, 2))
            fail_msg("case %zu: status %d: %s%s", i, r.status, r.out, r.err);
    }
}

static int open_world(void **state)
{
    (void)state;
    ek_world_open(&world, "generate");
    return 0;
}

static int close_world(void **state)
{
    (void)state;
    ek_world_close(&world);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_policy_streams_and_saves_its_plan),
        cmocka_unit_test(seeds_and_templates_matter),
        cmocka_unit_test(wrong_requests_are_refused),
    };

    return cmocka_run_group_tests(tests, open_world, close_world);
}
