/* tests/check_tasks.c - see the header. */
#include "tests/check_tasks.h"

#include <ctype.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

int ek_check_words(void *ctx, const char *text, size_t n)
{
    int words = 0;

    (void)ctx;
    for (size_t i = 0; i < n; i++)
        words +=
            !isspace((unsigned char)text[i]) && (i == 0 || isspace((unsigned char)text[i - 1]));
    return words;
}

const ek_counter ek_check_counter = {.count = ek_check_words, .wrap = 20, .turn = 8};

int ek_check_task_index(const char *task)
{
    for (int i = 0; ek_task_names[i] != NULL; i++)
        if (strcmp(ek_task_names[i], task) == 0)
            return i;
    fail();
    return -1;
}

ek_task *ek_check_task_open(ek_task_config *c, const char *name)
{
    ek_task *t = NULL;
    ek_err err;

    c->name = ek_check_task_index(name);
    if (c->text == NULL)
        c->text = strdup("datasets/tiny.txt");
    if (ek_task_open(&t, c, &ek_check_counter, &err) != EK_OK)
        fail_msg("%s", err.msg);
    return t;
}

void ek_check_task_clear(ek_task_config *c)
{
    free(c->text);
    free(c->lengths);
    free(c->depths);
    free(c->needle_text);
    c->needle_text = NULL;
}

int64_t *ek_check_numbers(int n, const int64_t *from)
{
    int64_t *p = malloc((size_t)n * sizeof *p);

    assert_non_null(p);
    return memcpy(p, from, (size_t)n * sizeof *p);
}

void ek_check_grid(ek_task_config *c)
{
    c->n_lengths = 2;
    c->lengths = ek_check_numbers(2, (int64_t[]){256, 512});
    c->n_depths = 4;
    c->depths = ek_check_numbers(4, (int64_t[]){0, 30, 70, 100});
    c->repeats = 3;
}

int ek_check_prompt_words(const ek_sample *s)
{
    char *all = malloc(strlen(s->context) + strlen(s->question) + strlen(s->answer_prefix) + 1);

    assert_non_null(all);
    sprintf(all, "%s%s%s", s->context, s->question, s->answer_prefix);
    const int n = ek_check_words(NULL, all, strlen(all));
    free(all);
    return n;
}

char ek_check_books[32] = "/tmp/evictkit_books_XXXXXX";
char ek_check_other_book[64], ek_check_same_book[64];

static int write_file(const char *path, const char *from)
{
    FILE *out = fopen(path, "w"), *in = fopen(from, "r");
    int c;

    if (out == NULL || in == NULL)
        return -1;
    while ((c = fgetc(in)) != EOF)
        fputc(c, out);
    fclose(in);
    return fclose(out);
}

int ek_check_books_write(void **state)
{
    FILE *f;

    (void)state;
    if (mkdtemp(ek_check_books) == NULL)
        return -1;
    snprintf(ek_check_other_book, sizeof ek_check_other_book, "%s/other.txt", ek_check_books);
    snprintf(ek_check_same_book, sizeof ek_check_same_book, "%s/same.txt", ek_check_books);
    f = fopen(ek_check_other_book, "w");
    if (f == NULL)
        return -1;
    fputs("Of bees\n\nEvery spring the old beekeeper carried his wooden hives across the river to "
          "the clover fields. Nobody could explain why the youngest swarm always returned before "
          "the evening rain began to fall. Too short a sentence. A patient observer counts the "
          "dancers on the comb and writes their figures down at noon. He said: \"No sentence with "
          "speech or signs is ever taken out of any book at all.\" \n",
          f);
    return fclose(f) || write_file(ek_check_same_book, "datasets/tiny.txt");
}

int ek_check_books_remove(void **state)
{
    (void)state;
    return remove(ek_check_other_book) || remove(ek_check_same_book) || rmdir(ek_check_books);
}
