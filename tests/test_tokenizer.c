/* Tokenizer: ids against another program's, and bytes back as they went in.
 * With --bench FILE: prints MB/s of encoding FILE with the default model's tokenizer. */
#include "core/file.h"
#include "core/json.h"
#include "core/progress.h"
#include "core/rng.h"
#include "infer/tokenizer.h"
#include "infer/utf8.h"
#include "tests/tiny_model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

#define OK(expr)                              \
    do {                                      \
        if ((expr) != EK_OK)                  \
            fail_msg("%s: %s", #expr, e.msg); \
    } while (0)

static char folder[] = "/tmp/evictkit-tokenizer-XXXXXX";
static char path[64];
static ek_tokenizer *tiny, *real; /* real: NULL without the model */

static const char *model_path(void)
{
    const char *p = getenv("EVICTKIT_MODEL");

    return p ? p : "models/SmolLM2-135M-Instruct.Q4_1.gguf";
}

static int open_one(const char *model, ek_tokenizer **tok)
{
    ek_gguf *g;
    ek_err e;

    if (ek_gguf_open(&g, model, &e) != EK_OK || ek_tokenizer_open(tok, g, &e) != EK_OK) {
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
    if (ek_tiny_model(path, NULL, &e) != EK_OK || open_one(path, &tiny) != 0)
        return -1;
    return access(model_path(), R_OK) == 0 ? open_one(model_path(), &real) : 0;
}

static int tear_down(void **state)
{
    (void)state;
    ek_tokenizer_close(tiny);
    ek_tokenizer_close(real);
    unlink(path);
    return rmdir(folder);
}

static void need_real(void)
{
    if (!real)
        skip();
}

/* Encode, check that the tokens tile the text and decode to it, and hand the ids over. */
static ek_tokens ids_of(ek_tokenizer *tok, const char *text, size_t size, int flags)
{
    ek_tokens t = {0};
    ek_text back = {0};
    ek_err e;

    OK(ek_tokenizer_encode(tok, text, size, flags, &t, &e));
    assert_int_equal(t.bytes, size);
    for (int64_t i = 0; i < t.n; i++) {
        const int64_t end = i + 1 < t.n ? t.at[i + 1] : t.bytes;
        size_t n;
        const char *piece = ek_tokenizer_piece(tok, t.id[i], &n);

        assert_int_equal(n, end - t.at[i]);
        assert_memory_equal(piece, text + t.at[i], n);
    }
    OK(ek_tokenizer_decode(tok, t.id, t.n, 0, &back, &e));
    assert_int_equal(back.size, size);
    if (size)
        assert_memory_equal(back.data, text, size);
    ek_text_clear(&back);
    return t;
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

static size_t from_hex(char *out, const char *hex)
{
    const size_t n = strlen(hex) / 2;

    for (size_t i = 0; i < n; i++) {
        unsigned byte;

        assert_int_equal(sscanf(hex + 2 * i, "%2x", &byte), 1);
        out[i] = (char)byte;
    }
    return n;
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

static void ids_equal_those_of_another_program(void **state)
{
    static char text[4096];
    ek_json *root;
    int n = 0, equal = 0, control = 0;

    (void)state;
    need_real();
    root = golden("tests/data/tokenizer_golden.json");
    for (const ek_json *c = ek_json_child(ek_json_get(root, "cases")); c; c = ek_json_next(c)) {
        const size_t size = from_hex(text, ek_json_string(ek_json_get(c, "text")));
        const ek_json *special = ek_json_get(c, "special"), *plain = ek_json_get(c, "plain");
        ek_tokens a = ids_of(real, text, size, EK_TOK_SPECIAL);
        ek_tokens b = ids_of(real, text, size, EK_TOK_STRICT);

        n++;
        equal += same(&a, special) && same(&b, plain ? plain : special);
        if (!same(&a, special))
            print_message("string %d differs: %.*s\n", n, (int)size, text);
        if (size > 0) { /* negative control: another first letter */
            ek_tokens other;

            text[0] = text[0] == 'Q' ? 'Z' : 'Q';
            other = ids_of(real, text, size, EK_TOK_SPECIAL);
            control += !same(&other, special);
            ek_tokens_clear(&other);
        }
        ek_tokens_clear(&a);
        ek_tokens_clear(&b);
    }
    ek_json_close(root);
    assert_int_equal(n, 200);
    assert_int_equal(equal, 200);
    assert_int_equal(control, 199);
}

static void the_check_string_has_its_ids(void **state)
{
    static const int32_t ids[] = {11386, 99,  216,   33,  34,    32,   1209, 216, 37366, 216,
                                  18645, 250, 48392, 138, 47526, 1116, 197,  104, 45,    33};
    const char *s = "costs 120 now  café 你好 🙂\n\n\tx=1";
    ek_tokens t;
    int n;

    (void)state;
    need_real();
    t = ids_of(real, s, strlen(s), EK_TOK_STRICT);
    assert_int_equal(t.n, EK_COUNT(ids));
    assert_memory_equal(t.id, ids, sizeof ids);
    ek_tokens_clear(&t);
    assert_int_equal(ek_tokenizer_size(real), 49152);
    assert_int_equal(ek_tokenizer_bos(real), 1);
    assert_int_equal(ek_tokenizer_eos(real), 2);
    assert_false(ek_tokenizer_adds_bos(real));
    assert_true(ek_tokenizer_is_end(real, 2) && ek_tokenizer_is_end(real, 0));
    assert_false(ek_tokenizer_is_end(real, 1) || ek_tokenizer_is_end(real, 99));
    assert_int_equal(ek_tokenizer_ends(real, &n)[0], 2);
    assert_int_equal(n, 2);
    assert_int_equal(ek_tokenizer_find(real, " now", 4), 1209);
    assert_int_equal(ek_tokenizer_find(real, "<|im_end|>", 10), 2);
    assert_int_equal(ek_tokenizer_find(real, "no such token", 13), -1);
    assert_int_equal(strlen(ek_tokenizer_hash(real)), 32);
    assert_string_not_equal(ek_tokenizer_hash(real), ek_tokenizer_hash(tiny));
}

/* Bytes of all kinds: random, text with some random ones, runs. */
static size_t any_bytes(char *out, uint64_t i)
{
    const size_t n = (size_t)ek_rng_below(400, 3, i, 0);
    const uint64_t kind = ek_rng_below(4, 3, i, 1);

    for (size_t j = 0; j < n; j++) {
        const uint64_t r = ek_rng_u64(4, i, j);

        if (kind == 0 || r % 16 == 0)
            out[j] = (char)(r >> 8);
        else if (kind == 1)
            out[j] = "the quick brown fox 123\n\t  <|im_end|>'s"[(r >> 8) % 39];
        else if (kind == 2)
            out[j] = "\xe4\xbd\xa0\xe5\xa5\xbd\xc3\xa9\xf0\x9f\x99\x82"[j % 12];
        else
            out[j] = (char)(' ' + (r >> 8) % 2);
    }
    return n;
}

static void any_bytes_come_back(void **state)
{
    char text[400];

    (void)state;
    for (uint64_t i = 0; i < 800; i++) {
        const size_t n = any_bytes(text, i);
        ek_tokens t = ids_of(tiny, text, n, i % 2 ? EK_TOK_SPECIAL : 0);

        ek_tokens_clear(&t);
        if (!real)
            continue;
        for (size_t j = 0; j < n; j++) /* bytes that this vocabulary has no token for */
            if (ek_tokenizer_find(real, text + j, 1) < 0)
                text[j] = 'x';
        t = ids_of(real, text, n, i % 2 ? EK_TOK_SPECIAL : 0);
        ek_tokens_clear(&t);
    }
}

static void bytes_without_a_token_are_named_or_left_out(void **state)
{
    ek_tokens t = {0}, u = {0};
    ek_err e;
    int missing = 0;

    (void)state;
    need_real();
    for (int b = 0; b < 256; b++) {
        const char byte = (char)b;

        missing += ek_tokenizer_find(real, &byte, 1) < 0;
    }
    assert_int_equal(missing, 21);
    OK(ek_tokenizer_encode(real, "keep", 4, 0, &t, &e));
    assert_int_equal(ek_tokenizer_encode(real,
                                         "ab\x04"
                                         "c",
                                         4, 0, &t, &e),
                     EK_EINPUT);
    assert_non_null(strstr(e.msg, "byte 0x04 at offset 6"));
    assert_true(t.n == 1 && t.bytes == 4);
    OK(ek_tokenizer_encode(real,
                           "ab\x04"
                           "c",
                           4, EK_TOK_LOSSY, &t, &e));
    OK(ek_tokenizer_encode(real, "ab", 2, 0, &u, &e));
    OK(ek_tokenizer_encode(real, "c", 1, 0, &u, &e));
    assert_int_equal(t.bytes, 8);
    assert_int_equal(t.n, 1 + u.n);
    assert_memory_equal(t.id + 1, u.id, (size_t)u.n * sizeof *u.id);
    ek_tokens_clear(&t);
    ek_tokens_clear(&u);
}

static void strict_text_is_utf8(void **state)
{
    static const struct {
        const char *s;
        size_t size, at;
    } bad[] = {{"abc\xff", 4, 3},          {"\xc0\x80", 2, 0}, {"x\xed\xa0\x80", 4, 1},
               {"\xf4\x90\x80\x80", 4, 0}, {"\xe4\xbd", 2, 0}, {"ok \xf0\x8f\xbf\xbf", 7, 3},
               {"\xc3\xa9\x80", 3, 2}};
    ek_tokens t = {0};
    char words[64];
    ek_err e;

    (void)state;
    for (size_t i = 0; i < EK_COUNT(bad); i++) {
        assert_int_equal(ek_tokenizer_encode(tiny, bad[i].s, bad[i].size, EK_TOK_STRICT, &t, &e),
                         EK_EINPUT);
        snprintf(words, sizeof words, "byte offset %zu:", bad[i].at);
        assert_non_null(strstr(e.msg, words));
        assert_int_equal(ek_utf8_valid(bad[i].s, bad[i].size), bad[i].at);
        OK(ek_tokenizer_encode(tiny, bad[i].s, bad[i].size, 0, &t, &e));
    }
    ek_tokens_clear(&t);
}

static void special_tokens_are_found_only_on_request(void **state)
{
    const char *s = "a<|im_end|>b";
    ek_tokens t = ids_of(tiny, s, 12, EK_TOK_SPECIAL);
    ek_text shown = {0};
    ek_err e;

    (void)state;
    assert_int_equal(t.n, 3);
    assert_int_equal(t.id[1], 2);
    assert_true(ek_tokenizer_is_special(tiny, 2) && !ek_tokenizer_is_special(tiny, t.id[0]));
    OK(ek_tokenizer_decode(tiny, t.id, t.n, 1, &shown, &e));
    assert_string_equal(shown.data, "ab");
    ek_text_clear(&shown);
    ek_tokens_clear(&t);
    t = ids_of(tiny, s, 12, 0);
    for (int64_t i = 0; i < t.n; i++)
        assert_false(ek_tokenizer_is_special(tiny, t.id[i]));
    t.id[0] = 300;
    assert_int_equal(ek_tokenizer_decode(tiny, t.id, t.n, 0, &shown, &e), EK_EASKED);
    t.id[0] = -1;
    assert_int_equal(ek_tokenizer_decode(tiny, t.id, t.n, 0, &shown, &e), EK_EASKED);
    assert_null(ek_tokenizer_piece(tiny, 300, &(size_t){0}));
    ek_tokens_clear(&t);
}

static void a_text_in_parts_is_the_text(void **state)
{
    ek_tokenizer *tok = real ? real : tiny;
    char text[400];

    (void)state;
    for (uint64_t i = 1; i < 400; i += 2) {
        const size_t n = any_bytes(text, i), cut = n ? (size_t)ek_rng_below(n + 1, 5, i, 0) : 0;
        const size_t next = cut + (size_t)ek_rng_below(n - cut + 1, 5, i, 1);
        const ek_tok_part parts[] = {{text, cut, EK_TOK_LOSSY},
                                     {text + cut, next - cut, EK_TOK_LOSSY},
                                     {text + next, n - next, EK_TOK_LOSSY}};
        ek_tokens whole = {0}, t = {0};
        ek_err e;

        OK(ek_tokenizer_encode(tok, text, n, EK_TOK_LOSSY, &whole, &e));
        OK(ek_tokenizer_encode_parts(tok, parts, 3, &t, &e));
        assert_int_equal(t.n, whole.n);
        if (t.n) {
            assert_memory_equal(t.id, whole.id, (size_t)t.n * sizeof *t.id);
            assert_memory_equal(t.at, whole.at, (size_t)t.n * sizeof *t.at);
        }
        ek_tokens_clear(&t);
        ek_tokens_clear(&whole);
    }
}

static void long_pieces_take_no_longer_than_they_must(void **state)
{
    const size_t n = 300000;
    char *text = malloc(n);
    const double start = ek_now();

    (void)state;
    for (int i = 0; i < 4; i++) {
        ek_tokens t;

        memset(text, "a \n."[i], n);
        text[n - 1] = 'x';
        t = ids_of(real ? real : tiny, text, n, EK_TOK_STRICT);
        ek_tokens_clear(&t);
    }
    free(text);
    assert_true(ek_now() - start < 60); /* under 1 s; a quadratic merge takes an hour */
}

/* UTF-8 ---------------------------------------------------------------------------------------- */

static void unfinished_characters_are_held_back(void **state)
{
    const char *s = "a\xc3\xa9\xe4\xbd\xa0\xf0\x9f\x99\x82";
    static const size_t whole[] = {0, 1, 1, 3, 3, 3, 6, 6, 6, 6, 10};
    ek_text t = {0};

    (void)state;
    for (size_t n = 0; n <= 10; n++)
        assert_int_equal(ek_utf8_whole(s, n), whole[n]);
    assert_int_equal(ek_utf8_whole("a\xff", 2), 2);     /* will never be a character */
    assert_int_equal(ek_utf8_whole("a\xed\xa0", 3), 3); /* nor will half a surrogate */
    assert_int_equal(ek_utf8_whole("a\x80\x80\x80", 4), 4);
    ek_utf8_repair(&t, "a\xff\xc3\xa9\xe4\xbd", 6);
    assert_string_equal(t.data, "a\xef\xbf\xbd\xc3\xa9\xef\xbf\xbd\xef\xbf\xbd");
    ek_text_clear(&t);
}

static int bench(const char *name)
{
    ek_map m;
    ek_err e;

    if (ek_map_open(&m, name, &e) != EK_OK || open_one(model_path(), &real) != 0)
        return 1;
    for (int i = 0; i < 3; i++) {
        ek_tokens t = {0};
        const double start = ek_now();
        const clock_t cpu = clock();

        if (ek_tokenizer_encode(real, (const char *)m.data, m.size, EK_TOK_LOSSY, &t, &e) != EK_OK)
            return 1;
        printf("%zu bytes, %lld tokens, %.1f MB/s, %.1f MB per CPU second\n", m.size,
               (long long)t.n, (double)m.size / 1e6 / (ek_now() - start),
               (double)m.size / 1e6 / ((double)(clock() - cpu) / CLOCKS_PER_SEC));
        ek_tokens_clear(&t);
    }
    return 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ids_equal_those_of_another_program),
        cmocka_unit_test(the_check_string_has_its_ids),
        cmocka_unit_test(any_bytes_come_back),
        cmocka_unit_test(bytes_without_a_token_are_named_or_left_out),
        cmocka_unit_test(strict_text_is_utf8),
        cmocka_unit_test(special_tokens_are_found_only_on_request),
        cmocka_unit_test(a_text_in_parts_is_the_text),
        cmocka_unit_test(long_pieces_take_no_longer_than_they_must),
        cmocka_unit_test(unfinished_characters_are_held_back),
    };

    if (argc == 3 && strcmp(argv[1], "--bench") == 0)
        return bench(argv[2]);
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
