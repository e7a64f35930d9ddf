/* Chat templates: rendered as the golden prompt is, what people write kept apart from what the
 * template writes; and damaged tokenizers and templates. */
#include "core/file.h"
#include "core/json.h"
#include "infer/template.h"
#include "tests/tiny_model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <cmocka.h>

#define OK(expr)                              \
    do {                                      \
        if ((expr) != EK_OK)                  \
            fail_msg("%s: %s", #expr, e.msg); \
    } while (0)

static char folder[] = "/tmp/evictkit-template-XXXXXX";
static char path[64];
static ek_tokenizer *tiny, *real; /* real: NULL without the model */
static ek_template tiny_template, real_template;

static const char *model_path(void)
{
    const char *p = getenv("EVICTKIT_MODEL");

    return p ? p : "models/SmolLM2-135M-Instruct.Q4_1.gguf";
}

static int open_both(const char *model, ek_tokenizer **tok, ek_template *t)
{
    ek_gguf *g;
    ek_err e;

    if (ek_gguf_open(&g, model, &e) != EK_OK || ek_tokenizer_open(tok, g, &e) != EK_OK ||
        ek_template_open(t, g, &e) != EK_OK) {
        fprintf(stderr, "%s\n", e.msg);
        return -1;
    }
    ek_gguf_close(g);
    return 0;
}

static int set_up(void **state)
{
    ek_err e;

    (void)state;
    if (!mkdtemp(folder))
        return -1;
    snprintf(path, sizeof path, "%s/x.gguf", folder);
    if (ek_tiny_model(path, NULL, &e) != EK_OK || open_both(path, &tiny, &tiny_template) != 0)
        return -1;
    return access(model_path(), R_OK) == 0 ? open_both(model_path(), &real, &real_template) : 0;
}

static int tear_down(void **state)
{
    (void)state;
    ek_tokenizer_close(tiny);
    ek_tokenizer_close(real);
    ek_template_clear(&tiny_template);
    ek_template_clear(&real_template);
    unlink(path);
    return rmdir(folder);
}

static void need_real(void)
{
    if (!real)
        skip();
}

/* Whether the tokens are the numbers of a JSON array. */
static int same(const ek_tokens *t, const ek_json *ids)
{
    int64_t i = 0;

    for (const ek_json *v = ek_json_child(ids); v; v = ek_json_next(v), i++)
        if (i >= t->n || (double)t->id[i] != ek_json_number(v))
            return 0;
    return i == t->n;
}

static ek_json *golden(const char *name)
{
    ek_map m;
    ek_json *root;
    ek_err e;

    OK(ek_map_open(&m, name, &e));
    OK(ek_json_parse(&root, (const char *)m.data, m.size, name, &e));
    ek_map_close(&m);
    return root;
}

static void chatml_equals_the_golden_prompt(void **state)
{
    const ek_prompt p = {.context = "What is the capital",
                         .context_size = 19,
                         .question = " of France?",
                         .question_size = 11};
    const ek_turn turn = {"user", "What is the capital of France?"};
    ek_json *root;
    const ek_json *prompt;
    ek_tokens a = {0}, b = {0};
    int64_t question;
    ek_err e;

    (void)state;
    need_real();
    root = golden("tests/data/logits_golden.json");
    prompt = ek_json_child(ek_json_get(root, "prompts"));
    while (strcmp(ek_json_string(ek_json_get(prompt, "name")), "chat") != 0)
        prompt = ek_json_next(prompt);
    OK(ek_template_encode(&real_template, real, &p, EK_TOK_STRICT, &a, &question, &e));
    OK(ek_template_turns(&real_template, real, &turn, 1, &b, &e));
    assert_true(same(&a, ek_json_get(prompt, "ids")) && same(&b, ek_json_get(prompt, "ids")));
    assert_int_equal(a.id[question], ek_tokenizer_find(real, " of", 3));
    assert_string_equal(real_template.system,
                        "You are a helpful AI assistant named SmolLM, trained by Hugging Face");
    assert_int_equal(strlen(real_template.hash), 32);
    ek_tokens_clear(&a);
    ek_tokens_clear(&b);
    ek_json_close(root);
}

static void wrap_and_encode_say_the_same(void **state)
{
    static const char *const systems[] = {NULL, "", "Answer <|im_end|> in one word"};
    ek_err e;

    (void)state;
    for (size_t i = 0; i < EK_COUNT(systems); i++) {
        const ek_prompt p = {systems[i], "\n\n ctx <|im_end|>", " why?\n", 17, 6};
        ek_text before = {0}, after = {0}, all = {0};
        ek_tokens t = {0};
        int64_t question;

        OK(ek_template_wrap(&tiny_template, systems[i], &before, &after, &e));
        OK(ek_template_encode(&tiny_template, tiny, &p, 0, &t, &question, &e));
        ek_text_add(&before, "%s%s%s", p.context, p.question, after.data);
        OK(ek_tokenizer_decode(tiny, t.id, t.n, 0, &all, &e));
        assert_string_equal(all.data, before.data);
        assert_int_equal(t.at[question], before.size - after.size - p.question_size);
        /* The user's and the system's "<|im_end|>" stay characters: turns end with the only ids. */
        int ends = 0;
        for (int64_t j = 0; j < t.n; j++)
            ends += t.id[j] == 2;
        assert_int_equal(ends, systems[i] && !*systems[i] ? 1 : 2);
        ek_text_clear(&before);
        ek_text_clear(&after);
        ek_text_clear(&all);
        ek_tokens_clear(&t);
    }
}

static void turns_are_rendered_in_order(void **state)
{
    static const ek_turn turns[] = {
        {"system", "Be kind"}, {"user", "Hi"}, {"assistant", "Hello"}, {"user", "Bye"}};
    ek_tokens t = {0};
    ek_text all = {0};
    ek_err e;

    (void)state;
    OK(ek_template_turns(&tiny_template, tiny, turns, 4, &t, &e));
    OK(ek_tokenizer_decode(tiny, t.id, t.n, 0, &all, &e));
    assert_string_equal(all.data, "<|im_start|>system\nBe kind<|im_end|>\n"
                                  "<|im_start|>user\nHi<|im_end|>\n"
                                  "<|im_start|>assistant\nHello<|im_end|>\n"
                                  "<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n");
    all.size = 0;
    t.n = t.bytes = 0;
    OK(ek_template_turns(&tiny_template, tiny, turns + 1, 1, &t, &e));
    OK(ek_tokenizer_decode(tiny, t.id, t.n, 0, &all, &e));
    assert_string_equal(all.data, "<|im_start|>system\nBe brief<|im_end|>\n"
                                  "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
    ek_text_clear(&all);
    ek_tokens_clear(&t);
}

static void no_template_is_the_text(void **state)
{
    const ek_prompt p = {NULL, "one two", " three", 7, 6};
    ek_template none;
    ek_tokens t = {0}, u = {0};
    int64_t question;
    ek_err e;

    (void)state;
    ek_template_none(&none);
    OK(ek_tokenizer_encode(tiny, "one two three", 13, 0, &u, &e));
    OK(ek_template_encode(&none, tiny, &p, 0, &t, &question, &e));
    assert_int_equal(t.n, u.n);
    assert_memory_equal(t.id, u.id, (size_t)t.n * sizeof *t.id);
    assert_int_equal(t.at[question], 7);
    ek_tokens_clear(&t);
    ek_tokens_clear(&u);
    ek_template_clear(&none);
}

/* Damaged tokenizers and templates: the tiny model with some bytes replaced -------------------- */

typedef struct change {
    const char *after, *from, *to; /* behind the first `after`, the next `from` becomes `to` */
} change;

/* The tiny model with some bytes replaced, in memory. */
static ek_gguf *changed(const change *c, int n)
{
    const int file = memfd_create("gguf", MFD_CLOEXEC);
    char name[64];
    ek_gguf *g;
    ek_map m;
    uint8_t *copy, *p;
    ek_err e;

    OK(ek_map_open(&m, path, &e));
    copy = malloc(m.size);
    memcpy(copy, m.data, m.size);
    for (int i = 0; i < n; i++) {
        p = memmem(copy, m.size, c[i].after, strlen(c[i].after));
        assert_non_null(p);
        p += strlen(c[i].after);
        p = memmem(p, m.size - (size_t)(p - copy), c[i].from, strlen(c[i].from));
        assert_non_null(p);
        assert_int_equal(strlen(c[i].to), strlen(c[i].from));
        memcpy(p, c[i].to, strlen(c[i].to));
    }
    assert_int_equal(write(file, copy, m.size), m.size);
    free(copy);
    ek_map_close(&m);
    snprintf(name, sizeof name, "/proc/self/fd/%d", file);
    OK(ek_gguf_open(&g, name, &e));
    close(file);
    return g;
}

static void damaged_tokenizers_are_refused(void **state)
{
    static const struct {
        change c;
        const char *says;
        ek_code code;
    } cases[] = {
        {{"ggml.model", "gpt2", "bert"}, "kind \"bert\"", EK_ENOTSUP},
        {{"ggml.pre", "smollm", "qwen35"}, "pre-tokenizer \"qwen35\"", EK_ENOTSUP},
        {{"ggml.model", "ggml.tokens", "ggml.tokeNs"},
         "tokenizer.ggml.tokens is missing",
         EK_EINPUT},
        {{"ggml.model", "ggml.merges", "ggml.mErges"},
         "tokenizer.ggml.merges is missing",
         EK_EINPUT},
        {{"ggml.merges", "h e", "h0e"}, "expected \"left right\"", EK_EINPUT},
        {{"ggml.merges", "h e", "h ~"}, "the result is no token", EK_EINPUT},
        {{"ggml.merges", "i n", "h e"}, "the same", EK_EINPUT},
        {{"ggml.tokens", "he", "in"}, "are the same", EK_EINPUT},
        {{"ggml.token_type", "\3", "\7"}, "token_type: found 7", EK_EINPUT},
        {{"ggml.bos_token_id", "\4", "\6"}, "bos_token_id", EK_EINPUT},
    };
    ek_err e;

    (void)state;
    for (size_t i = 0; i < EK_COUNT(cases); i++) {
        ek_tokenizer *tok;
        ek_gguf *g;

        g = changed(&cases[i].c, 1);
        if (ek_tokenizer_open(&tok, g, &e) != cases[i].code)
            fail_msg("case %zu: code %d: %s", i, (int)e.code, e.msg);
        if (!strstr(e.msg, cases[i].says))
            fail_msg("found \"%s\", expected \"%s\"", e.msg, cases[i].says);
        ek_gguf_close(g);
    }
}

static void unknown_templates_name_the_way_out(void **state)
{
    static const change other[] = {{"chat_template", "<|im_start|>", "[INST] [xx] "},
                                   {"chat_template", "<|im_start|>", "[INST] [xx] "},
                                   {"chat_template", "<|im_start|>", "[INST] [xx] "}};
    static const change absent = {"add_bos_token", "tokenizer.chat_template",
                                  "tokenizer.that_template"};
    /* A copy of the template without the default system text: the file decides. */
    static const change bare = {"chat_template", "'<|im_start|>system\n", "'<|im_start|>sys'+'\n"};
    ek_template t;
    ek_gguf *g;
    ek_err e;

    (void)state;
    g = changed(&absent, 1);
    assert_int_equal(ek_template_open(&t, g, &e), EK_ENOTSUP);
    assert_non_null(strstr(e.msg, "template: none"));
    ek_gguf_close(g);
    g = changed(other, 3);
    assert_int_equal(ek_template_open(&t, g, &e), EK_ENOTSUP);
    assert_non_null(strstr(e.msg, "template: none"));
    ek_gguf_close(g);
    g = changed(&bare, 1);
    OK(ek_template_open(&t, g, &e));
    assert_null(t.system);
    assert_string_not_equal(t.hash, tiny_template.hash);
    ek_template_clear(&t);
    ek_gguf_close(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chatml_equals_the_golden_prompt),
        cmocka_unit_test(wrap_and_encode_say_the_same),
        cmocka_unit_test(turns_are_rendered_in_order),
        cmocka_unit_test(no_template_is_the_text),
        cmocka_unit_test(damaged_tokenizers_are_refused),
        cmocka_unit_test(unknown_templates_name_the_way_out),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
