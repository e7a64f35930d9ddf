/* tests/test_datasets.c - texts, windows, tasks and grading. */
#include "datasets/dataset.h"
#include "datasets/list.h"

#include <ctype.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/json.h"

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

static int count_fails(void *ctx, const char *text, size_t n)
{
    (void)ctx, (void)text, (void)n;
    return -1;
}

static const ek_counter words = {.count = count_words, .wrap = 20, .turn = 8};

static char *make_folder(char room[32])
{
    strcpy(room, "/tmp/ek_texts_XXXXXX");
    assert_non_null(mkdtemp(room));
    return room;
}

static void put(const char *folder, const char *name, const void *data, size_t size)
{
    char path[200];

    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, size, f), size);
    fclose(f);
}

static void remove_folder(const char *folder)
{
    char command[100];

    snprintf(command, sizeof command, "rm -r '%s'", folder);
    assert_int_equal(system(command), 0);
}

static void open_tiny(ek_texts *t)
{
    assert_int_equal(ek_texts_open(t, "datasets/tiny.txt", &err), EK_OK);
}

/* ---- text ---- */

static void utf8_is_checked(void **state)
{
    static const struct {
        const char *text;
        size_t size, bad;
    } cases[] = {
        {"plain", 5, 5},
        {"caf\xc3\xa9", 5, 5},
        {"\xf0\x9f\x99\x82", 4, 4},
        {"a\0b", 3, 1},
        {"\xc0\x80", 2, 0},
        {"ab\xe2\x82", 4, 2},
        {"\xed\xa0\x80", 3, 0},
        {"\xf4\x90\x80\x80", 4, 0},
        {"\xe0\x80\x80", 3, 0},
        {"\xf0\x80\x80\x80", 4, 0},
        {"x\x80", 2, 1},
        {"\xff", 1, 0},
        {"\xf4\x8f\xbf\xbf", 4, 4},
        {"\xed\x9f\xbf\xee\x80\x80", 6, 6},
    };

    (void)state;
    for (size_t i = 0; i < EK_COUNT(cases); i++)
        assert_int_equal(ek_text_check_utf8(cases[i].text, cases[i].size), cases[i].bad);
}

static void folders_open_by_name(void **state)
{
    char room[32], *folder = make_folder(room), before[33];
    ek_texts t;

    (void)state;
    put(folder, "b.txt", "Second.\n\nTwo.\n", 14);
    put(folder, "a.txt", "First.\n \n\n  Next\nline.\n\nLast.", 29);
    put(folder, "c.md", "\xff", 1);
    put(folder, ".d.txt", "\xff", 1);
    assert_int_equal(ek_texts_open(&t, folder, &err), EK_OK);
    assert_int_equal(t.n, 2);
    assert_string_equal(t.doc[0].id, "a");
    assert_string_equal(t.doc[1].id, "b");
    assert_int_equal(t.bytes, 43);
    assert_int_equal(t.doc[0].n_paragraphs, 3);
    assert_memory_equal(t.doc[0].text + t.doc[0].paragraph[1], "Next", 4);
    assert_memory_equal(t.doc[0].text + t.doc[0].paragraph[2], "Last", 4);
    strcpy(before, t.hash);
    ek_texts_close(&t);
    ek_texts_close(&t); /* twice is fine */

    put(folder, "b.txt", "Second.\n\nTwO.\n", 14);
    assert_int_equal(ek_texts_open(&t, folder, &err), EK_OK);
    assert_string_not_equal(t.hash, before);
    ek_texts_close(&t);
    remove_folder(folder);
}

static void bad_texts_are_refused(void **state)
{
    char room[32], *folder = make_folder(room), path[100];
    ek_texts t;

    (void)state;
    assert_int_equal(ek_texts_open(&t, folder, &err), EK_EASKED);
    assert_non_null(strstr(err.msg, "no .txt"));
    assert_int_equal(ek_texts_open(&t, "/nowhere/at/all", &err), EK_EASKED);
    put(folder, "a.txt", "good", 4);
    put(folder, "b.txt", "bad \xff here", 10);
    assert_int_equal(ek_texts_open(&t, folder, &err), EK_EINPUT);
    assert_non_null(strstr(err.msg, "b.txt: byte 4: found 0xff"));
    put(folder, "b.txt", "", 0);
    assert_int_equal(ek_texts_open(&t, folder, &err), EK_EINPUT);
    assert_non_null(strstr(err.msg, "empty"));
    put(folder, "b.txt", "nul\0", 4);
    assert_int_equal(ek_texts_open(&t, folder, &err), EK_EINPUT);
    snprintf(path, sizeof path, "%s/b.txt", folder);
    assert_int_equal(ek_texts_open(&t, path, &err), EK_EINPUT);
    put(folder, "b.txt", "mended", 6); /* negative control */
    assert_int_equal(ek_texts_open(&t, folder, &err), EK_OK);
    ek_texts_close(&t);
    remove_folder(folder);
}

static void sentence_ends(void **state)
{
    static const char text[] = "Mr. Long came. \"Oh!\" said J. Smith. \"Well.\" He left\n\nNo stop";
    static const int ends[] = {0, 14, 35, 43, 51, 60};
    int k = 0;

    (void)state;
    assert_int_equal(strlen(text), 60);
    for (int at = 0; at <= 60; at++) {
        while (k + 1 < (int)EK_COUNT(ends) && ends[k + 1] <= at)
            k++;
        assert_int_equal(ek_text_sentence_end(text, 60, (size_t)at), ends[k]);
    }
}

static void cuts_are_exact(void **state)
{
    ek_texts t;
    const ek_counter broken = {.count = count_fails};
    size_t end;

    (void)state;
    open_tiny(&t);
    const char *text = t.doc[0].text;
    for (int n = 0; n < 900; n += 1 + n / 9) {
        assert_int_equal(ek_text_cut(&end, text, t.doc[0].size, &words, n, &err), EK_OK);
        assert_int_equal(count_words(NULL, text, end), n);
        assert_true(end == 0 || !isspace((unsigned char)text[end - 1]));
        assert_true(isspace((unsigned char)text[end]) || end == 0);
    }
    assert_int_equal(ek_text_cut(&end, text, t.doc[0].size, &words, 1 << 30, &err), EK_OK);
    assert_int_equal(end, t.doc[0].size - 1); /* all but the last newline */
    assert_int_equal(ek_text_cut(&end, text, t.doc[0].size, &broken, 5, &err), EK_EBROKEN);
    assert_int_equal(ek_text_cut(&end, "", 0, &words, 5, &err), EK_OK);
    assert_int_equal(end, 0);
    ek_texts_close(&t);
}

static int is_paragraph(const ek_doc *d, size_t at)
{
    for (int i = 0; i < d->n_paragraphs; i++)
        if (d->paragraph[i] == at)
            return 1;
    return 0;
}

static void windows_repeat(void **state)
{
    ek_texts t;
    ek_window w, again;
    int distinct = 0;

    (void)state;
    open_tiny(&t);
    for (int i = 0; i < 200; i++) {
        const size_t bytes = 100 + (size_t)i * 50;

        assert_int_equal(ek_texts_window(&w, &t, bytes, 7, i, &err), EK_OK);
        assert_int_equal(ek_texts_window(&again, &t, bytes, 7, i, &err), EK_OK);
        assert_int_equal(w.begin, again.begin);
        assert_int_equal(w.end, again.end);
        assert_true(is_paragraph(&t.doc[0], w.begin));
        assert_true(w.end - w.begin >= bytes && w.end - w.begin < bytes + 40);
        assert_true(w.end <= t.doc[0].size);
        assert_int_equal(ek_texts_window(&again, &t, bytes, 8, i, &err), EK_OK);
        distinct += again.begin != w.begin;
    }
    assert_true(distinct > 100);
    assert_int_equal(ek_texts_window(&w, &t, t.bytes, 7, 0, &err), EK_OK);
    assert_int_equal(ek_texts_window(&w, &t, t.bytes + 1, 7, 0, &err), EK_EASKED);
    ek_texts_close(&t);
}

static void consecutive_windows_do_not_overlap(void **state)
{
    ek_texts t;
    ek_window *w;
    int n;
    size_t end = 0;

    (void)state;
    open_tiny(&t);
    assert_int_equal(ek_texts_consecutive(&w, &n, &t, &words, 200, &err), EK_OK);
    assert_true(n >= 8);
    for (int i = 0; i < n; i++) {
        const int have = count_words(NULL, t.doc[0].text + w[i].begin, w[i].end - w[i].begin);

        assert_true(w[i].begin >= end);
        assert_true(is_paragraph(&t.doc[0], w[i].begin));
        assert_in_range(have, 200, 225);
        end = w[i].end;
    }
    free(w);
    assert_int_equal(ek_texts_consecutive(&w, &n, &t, &words, 1 << 20, &err), EK_EASKED);
    ek_texts_close(&t);
}

/* ---- tasks ---- */

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

static int prompt_words(const ek_sample *s)
{
    char *all = malloc(strlen(s->context) + strlen(s->question) + strlen(s->answer_prefix) + 1);

    assert_non_null(all);
    sprintf(all, "%s%s%s", s->context, s->question, s->answer_prefix);
    const int n = count_words(NULL, all, strlen(all));
    free(all);
    return n;
}

static void check_passkey(const ek_task *t, const ek_sample *s)
{
    const int used = prompt_words(s) + words.wrap + s->max_new_tokens;
    const char *at = strstr(s->context, s->references[0]);
    const size_t before = (size_t)(at - s->context);
    const int all = count_words(NULL, s->context, strlen(s->context));
    const double share = 100.0 * count_words(NULL, s->context, before) / all;

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
        set_grid(&c);
        ek_task *t = open_task(&c, "passkey");
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
        clear_config(&c);
    }
}

static void another_seed_is_another_grid(void **state)
{
    ek_sample s[2];

    (void)state;
    for (int k = 0; k < 2; k++) {
        ek_task_config c = ek_task_defaults;

        c.seed = k;
        set_grid(&c);
        ek_task *t = open_task(&c, "passkey");
        assert_int_equal(ek_task_sample(&s[k], t, 6, &err), EK_OK);
        ek_task_close(t);
        clear_config(&c);
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
    set_grid(&c);
    ek_task *t = open_task(&c, "passkey");
    for (int64_t i = 0; i < t->n; i++) {
        ek_sample s;

        assert_int_equal(ek_task_sample(&s, t, i, &err), EK_OK);
        const size_t at = (size_t)(strstr(s.context, s.references[0]) - s.context);
        if (s.depth == 0)
            assert_true(at < 80);
        if (s.depth == 100)
            assert_true(at + 80 > strlen(s.context));
        ek_sample_clear(&s);
    }
    ek_task_close(t);
    clear_config(&c);
}

static void short_texts_and_lengths_are_refused(void **state)
{
    ek_task_config c = ek_task_defaults;
    ek_task *t;
    ek_sample s;

    (void)state;
    c.n_lengths = 2;
    c.lengths = numbers(2, (int64_t[]){64, 8192});
    t = open_task(&c, "passkey");
    assert_int_equal(c.n_depths, 11); /* filled in */
    assert_int_equal(c.max_new_tokens, 30);
    assert_int_equal(ek_task_sample(&s, t, 0, &err), EK_EASKED);
    assert_non_null(strstr(err.msg, "length 64 leaves"));
    assert_int_equal(ek_task_sample(&s, t, 11, &err), EK_EASKED);
    assert_non_null(strstr(err.msg, "longest document"));
    ek_task_close(t);
    clear_config(&c);
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
    ek_task *t = open_task(&c, "passkey");
    ek_grade g;

    (void)state;
    for (size_t i = 0; i < EK_COUNT(cases); i++)
        assert_true(grade_of(t, &s, cases[i].prediction, cases[i].flag) == cases[i].score);
    ek_task_grade(&g, t, &s, "It is 777.");
    assert_string_equal(g.parsed, "777");
    ek_task_close(t);
    clear_config(&c);
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
    t = open_task(&c, "fidelity");
    assert_int_equal(t->n, 5);
    for (int64_t i = 0; i < t->n; i++) {
        ek_sample s;

        assert_int_equal(ek_task_sample(&s, t, i, &err), EK_OK);
        assert_int_equal(s.kind, EK_SAMPLE_FORCED);
        assert_true(count_words(NULL, s.context, strlen(s.context)) >= 200);
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
    c.name = index_of("fidelity");
    assert_int_equal(ek_task_open(&t, &c, &words, &err), EK_EASKED);
    clear_config(&c);
}

static void settings_come_from_yaml(void **state)
{
    ek_task_config c = ek_task_defaults;

    (void)state;
    assert_int_equal(c.n_lengths, 0);
    for (const ek_field *f = ek_task_fields; f->key != NULL; f++)
        assert_true(f->offset < sizeof c && f->help != NULL);
    assert_string_equal(ek_task_fields[0].key, "name"); /* a bare word means the task's name */
}

/* ---- fetched texts ---- */

/* What datasets/fetch.py wrote is what its manifest says. */
static void the_manifest_is_true(void **state)
{
    ek_map m;
    ek_json *root;
    int n = 0;

    (void)state;
    if (!ek_file_exists("data/text/manifest.json"))
        skip();
    assert_int_equal(ek_map_open(&m, "data/text/manifest.json", &err), EK_OK);
    if (ek_json_parse(&root, (const char *)m.data, m.size, "manifest", &err) != EK_OK)
        fail_msg("%s", err.msg);
    for (const ek_json *d = ek_json_child(ek_json_get(root, "documents")); d != NULL;
         d = ek_json_next(d)) {
        char path[300], hash[65];
        ek_map text;

        snprintf(path, sizeof path, "data/text/%s", ek_json_string(ek_json_get(d, "path")));
        assert_int_equal(ek_map_open(&text, path, &err), EK_OK);
        ek_sha256(hash, text.data, text.size);
        assert_string_equal(hash, ek_json_string(ek_json_get(d, "sha256")));
        assert_int_equal(ek_text_check_utf8((const char *)text.data, text.size), text.size);
        ek_map_close(&text);
        n++;
    }
    assert_true(n > 2);
    ek_json_close(root);
    ek_map_close(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(utf8_is_checked),
        cmocka_unit_test(folders_open_by_name),
        cmocka_unit_test(bad_texts_are_refused),
        cmocka_unit_test(sentence_ends),
        cmocka_unit_test(cuts_are_exact),
        cmocka_unit_test(windows_repeat),
        cmocka_unit_test(consecutive_windows_do_not_overlap),
        cmocka_unit_test(the_table_is_whole),
        cmocka_unit_test(passkeys_fit_and_repeat),
        cmocka_unit_test(another_seed_is_another_grid),
        cmocka_unit_test(single_needles_lie_at_the_ends),
        cmocka_unit_test(short_texts_and_lengths_are_refused),
        cmocka_unit_test(containment_is_exact),
        cmocka_unit_test(fidelity_cuts_windows),
        cmocka_unit_test(settings_come_from_yaml),
        cmocka_unit_test(the_manifest_is_true),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
