/* tests/check_tasks.h - tasks over datasets/tiny.txt in which a token is a word, and other books.
 */
#ifndef EK_TESTS_CHECK_TASKS_H
#define EK_TESTS_CHECK_TASKS_H

#include "datasets/dataset.h"

/* Words of text[0 .. n): lengths are then exact to the word. */
int ek_check_words(void *ctx, const char *text, size_t n);
extern const ek_counter ek_check_counter; /* of words; 20 for the template */

int ek_check_task_index(const char *task); /* in ek_task_names */
/* Over tiny.txt unless c names a text; fails the test if it does not open. */
ek_task *ek_check_task_open(ek_task_config *c, const char *name);
void ek_check_task_clear(ek_task_config *c);           /* frees what the configuration owns */
int64_t *ek_check_numbers(int n, const int64_t *from); /* malloc'd */
/* Lengths 256 and 512, depths 0, 30, 70 and 100, three repeats: 24 samples. */
void ek_check_grid(ek_task_config *c);
int ek_check_prompt_words(const ek_sample *s);

/* Fixture: a folder with a book that is not the haystack's, and the haystack's by another name. */
extern char ek_check_books[32], ek_check_other_book[64], ek_check_same_book[64];
int ek_check_books_write(void **state);
int ek_check_books_remove(void **state);

#endif
