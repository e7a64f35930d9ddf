/* datasets/text.c - see text.h. */
#include "datasets/text.h"

#include "datasets/draw.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define MAX_FILES     100000
#define MAX_FILE_SIZE ((size_t)1 << 30)

static int is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

size_t ek_text_check_utf8(const char *text, size_t size)
{
    const unsigned char *s = (const unsigned char *)text;
    size_t i = 0;

    while (i < size) {
        const unsigned c = s[i];
        const size_t n = c < 0x80   ? 1
                         : c < 0xc2 ? 0
                         : c < 0xe0 ? 2
                         : c < 0xf0 ? 3
                         : c < 0xf5 ? 4
                                    : 0;

        if (n == 0 || c == 0 || i + n > size)
            return i;
        for (size_t k = 1; k < n; k++)
            if ((s[i + k] & 0xc0) != 0x80)
                return i;
        /* Overlong forms, surrogates, and what lies beyond U+10FFFF. */
        if ((c == 0xe0 && s[i + 1] < 0xa0) || (c == 0xed && s[i + 1] > 0x9f) ||
            (c == 0xf0 && s[i + 1] < 0x90) || (c == 0xf4 && s[i + 1] > 0x8f))
            return i;
        i += n;
    }
    return size;
}

/* Where the paragraph behind `at` begins: the first mark after a blank line; size if none. */
static size_t next_paragraph(const char *text, size_t size, size_t at)
{
    int lines = 0;

    for (; at < size; at++) {
        if (text[at] == '\n')
            lines++;
        else if (!is_space(text[at])) {
            if (lines >= 2)
                return at;
            lines = 0;
        }
    }
    return size;
}

static ek_code find_paragraphs(ek_doc *d, ek_err *err)
{
    int n = 1;

    for (size_t at = next_paragraph(d->text, d->size, 0); at < d->size;
         at = next_paragraph(d->text, d->size, at))
        n++;
    d->paragraph = malloc((size_t)n * sizeof *d->paragraph);
    if (d->paragraph == NULL)
        return EK_FAIL(err, EK_ENOMEM, "%s: %d paragraph starts", d->id, n);
    d->paragraph[0] = 0;
    for (int i = 1; i < n; i++)
        d->paragraph[i] = next_paragraph(d->text, d->size, d->paragraph[i - 1]);
    d->n_paragraphs = n;
    return EK_OK;
}

static void close_doc(ek_doc *d)
{
    ek_map_close(&d->map);
    free(d->paragraph);
    free(d->id);
    memset(d, 0, sizeof *d);
}

static ek_code open_doc(ek_doc *d, const char *path, ek_err *err)
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    size_t length = strlen(name), bad;

    if (length > 4 && strcmp(name + length - 4, ".txt") == 0)
        length -= 4;
    d->id = strndup(name, length);
    if (d->id == NULL)
        return EK_FAIL(err, EK_ENOMEM, "%s: its name", path);
    EK_TRY(ek_map_open(&d->map, path, err));
    d->text = (const char *)d->map.data;
    d->size = d->map.size;
    if (d->size == 0)
        return EK_FAIL(err, EK_EINPUT, "%s: found an empty file, expected text", path);
    if (d->size > MAX_FILE_SIZE)
        return EK_FAIL(err, EK_EINPUT, "%s: found %zu bytes, expected at most %zu", path, d->size,
                       MAX_FILE_SIZE);
    bad = ek_text_check_utf8(d->text, d->size);
    if (bad < d->size)
        return EK_FAIL(err, EK_EINPUT, "%s: byte %zu: found 0x%02x, expected UTF-8 text", path, bad,
                       (unsigned)(unsigned char)d->text[bad]);
    ek_hash128(d->hash, d->text, d->size);
    return find_paragraphs(d, err);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static void free_names(char **names, int n)
{
    for (int i = 0; i < n; i++)
        free(names[i]);
    free(names);
}

/* Paths of the *.txt in a folder, sorted. */
static ek_code list_folder(char ***out, int *n, const char *path, ek_err *err)
{
    DIR *dir = opendir(path);
    char **names = NULL;
    int n_names = 0;
    const struct dirent *e;

    if (dir == NULL)
        return EK_FAIL(err, EK_EASKED, "%s: the folder cannot be read", path);
    while ((e = readdir(dir)) != NULL) {
        const size_t length = strlen(e->d_name);
        const size_t room = strlen(path) + length + 2;
        char **more;

        if (e->d_name[0] == '.' || length < 5 || strcmp(e->d_name + length - 4, ".txt") != 0)
            continue;
        if (n_names == MAX_FILES) {
            EK_CHECK(EK_FAIL(err, EK_EINPUT, "%s: more than %d files", path, MAX_FILES));
        }
        more = realloc(names, (size_t)(n_names + 1) * sizeof *names);
        if (more != NULL) {
            names = more;
            names[n_names] = malloc(room);
        }
        if (more == NULL || names[n_names] == NULL) {
            EK_CHECK(EK_FAIL(err, EK_ENOMEM, "%s: its list of files", path));
        }
        snprintf(names[n_names++], room, "%s/%s", path, e->d_name);
    }
    closedir(dir);
    if (n_names == 0)
        return EK_FAIL(err, EK_EASKED,
                       "%s: found no .txt inside (datasets/fetch.py --texts fetches some)", path);
    qsort(names, (size_t)n_names, sizeof *names, by_name);
    *out = names;
    *n = n_names;
    return EK_OK;
fail:
    closedir(dir);
    free_names(names, n_names);
    return err->code;
}

static ek_code open_all(ek_texts *t, char *const *names, int n, ek_err *err)
{
    ek_hasher *h = ek_hasher_open();

    t->doc = calloc((size_t)n, sizeof *t->doc);
    if (t->doc == NULL || h == NULL) {
        if (h != NULL)
            ek_hasher_close(h, t->hash);
        return EK_FAIL(err, EK_ENOMEM, "%d documents", n);
    }
    for (int i = 0; i < n; i++) {
        ek_doc *d = &t->doc[i];
        const ek_code code = open_doc(d, names[i], err);

        t->n = i + 1;
        if (code != EK_OK) {
            ek_hasher_close(h, t->hash);
            return code;
        }
        t->bytes += d->size;
        ek_hasher_add(h, d->id, strlen(d->id));
        ek_hasher_add(h, d->text, d->size);
    }
    ek_hasher_close(h, t->hash);
    return EK_OK;
}

ek_code ek_texts_open(ek_texts *out, const char *path, ek_err *err)
{
    ek_texts t = {0};
    char **names = NULL, *one = (char *)path;
    int n = 1;
    struct stat st;
    ek_code code;

    if (stat(path, &st) != 0)
        return EK_FAIL(err, EK_EASKED, "%s: not there (datasets/fetch.py --texts fetches texts)",
                       path);
    if (S_ISDIR(st.st_mode))
        EK_TRY(list_folder(&names, &n, path, err));
    code = open_all(&t, names ? names : &one, n, err);
    if (names != NULL)
        free_names(names, n);
    if (code != EK_OK) {
        ek_texts_close(&t);
        return code;
    }
    *out = t;
    return EK_OK;
}

void ek_texts_close(ek_texts *t)
{
    for (int i = 0; i < t->n; i++)
        close_doc(&t->doc[i]);
    free(t->doc);
    memset(t, 0, sizeof *t);
}

/* Bytes at which a window may begin so that enough is left. */
static size_t starts(const ek_doc *d, size_t bytes)
{
    return d->size >= bytes ? d->size - bytes + 1 : 0;
}

ek_code ek_texts_window(ek_window *out, const ek_texts *t, size_t bytes, uint64_t seed, int64_t i,
                        ek_err *err)
{
    size_t all = 0, longest = 0, at, end;
    ek_draw draw = ek_draw_of(seed, "text/window", (uint64_t)i, 0);
    int d = 0, low = 0, high;

    for (int k = 0; k < t->n; k++) {
        all += starts(&t->doc[k], bytes);
        longest = t->doc[k].size > longest ? t->doc[k].size : longest;
    }
    if (all == 0)
        return EK_FAIL(err, EK_EASKED,
                       "the longest document has %zu bytes, expected at least %zu for a window",
                       longest, bytes);
    at = ek_draw_below(&draw, all);
    while (at >= starts(&t->doc[d], bytes))
        at -= starts(&t->doc[d++], bytes);
    high = t->doc[d].n_paragraphs;
    while (high - low > 1) {
        const int mid = low + (high - low) / 2;

        if (t->doc[d].paragraph[mid] <= at)
            low = mid;
        else
            high = mid;
    }
    end = t->doc[d].paragraph[low] + bytes;
    while (end < t->doc[d].size && !is_space(t->doc[d].text[end]))
        end++;
    *out = (ek_window){.doc = d, .begin = t->doc[d].paragraph[low], .end = end};
    return EK_OK;
}

/* The last place at or before `at` that ends a word. */
static size_t word_end(const char *text, size_t size, size_t at)
{
    while (at > 0 && !((at == size || is_space(text[at])) && !is_space(text[at - 1])))
        at--;
    return at;
}

/* The first place behind `at` that ends a word, or size. */
static size_t next_word_end(const char *text, size_t size, size_t at)
{
    at++;
    while (at < size && !(is_space(text[at]) && !is_space(text[at - 1])))
        at++;
    return at < size ? at : size;
}

/* Brackets the answer between lo, which fits, and hi, which does not.  Tokens are nearly
 * proportional to bytes, so interpolation finds it in a few counts; every other step bisects. */
ek_code ek_text_cut(size_t *end, const char *text, size_t size, const ek_counter *counter,
                    int tokens, ek_err *err)
{
    size_t lo = 0, hi = size + 1;
    double n_lo = 0.0, n_hi = 0.0; /* n_hi 0: hi was not counted yet */

    for (int step = 0;; step++) {
        const double left = (double)tokens - n_lo;
        double ratio = 4.0, guess;
        size_t at;
        int n;

        if (n_hi > n_lo)
            ratio = (double)(hi - lo) / (n_hi - n_lo);
        else if (n_lo > 0.0)
            ratio = (double)lo / n_lo;
        guess = (double)lo + (left + (n_hi > n_lo ? 0.5 : 2.0)) * ratio;
        if (n_hi > 0.0 && step % 2 == 1)
            guess = (double)lo + (double)(hi - lo) / 2.0;
        at = guess >= (double)size ? size : (size_t)guess;
        at = word_end(text, size, at < hi ? at : hi - 1);
        if (at <= lo)
            at = next_word_end(text, size, lo);
        if (lo >= size || at >= hi)
            break;
        n = counter->count(counter->ctx, text, at);
        if (n < 0)
            return EK_FAIL(err, EK_EBROKEN, "the tokenizer could not count %zu bytes", at);
        if (n <= tokens) {
            lo = at;
            n_lo = n;
        } else {
            hi = at;
            n_hi = n;
        }
    }
    *end = word_end(text, size, lo);
    return EK_OK;
}

ek_code ek_texts_consecutive(ek_window **out, int *n, const ek_texts *t, const ek_counter *counter,
                             int tokens, ek_err *err)
{
    ek_window *list = NULL;
    int n_list = 0;

    for (int d = 0; d < t->n; d++) {
        const ek_doc *doc = &t->doc[d];
        size_t at = 0;

        while (at < doc->size) {
            size_t length = 0;
            int have = 0;
            ek_window *more;

            /* A little more than asked, since a last word that does not fit is left out whole. */
            for (int slack = 8; slack < 1 << 20 && have < tokens; slack *= 4) {
                EK_CHECK(ek_text_cut(&length, doc->text + at, doc->size - at, counter,
                                     tokens + slack, err));
                have = counter->count(counter->ctx, doc->text + at, length);
                if (at + length >= word_end(doc->text, doc->size, doc->size))
                    break;
            }
            if (have < tokens)
                break; /* the rest of the document is too short */
            more = realloc(list, (size_t)(n_list + 1) * sizeof *list);
            if (more == NULL) {
                EK_CHECK(EK_FAIL(err, EK_ENOMEM, "%d windows", n_list + 1));
            }
            list = more;
            list[n_list++] = (ek_window){.doc = d, .begin = at, .end = at + length};
            at = next_paragraph(doc->text, doc->size, at + length);
        }
    }
    if (n_list == 0)
        return EK_FAIL(err, EK_EASKED, "no document has the %d tokens of one window", tokens);
    *out = list;
    *n = n_list;
    return EK_OK;
fail:
    free(list);
    return err->code;
}
