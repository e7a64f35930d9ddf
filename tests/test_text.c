/* tests/test_text.c - texts, windows, sentences, and what was fetched. */
#include "datasets/text.h"

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

static const ek_counter words = {.count = count_words};

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
        cmocka_unit_test(the_manifest_is_true),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
