/* datasets/sentence.c - where sentences end, and putting sentences in between; see text.h. */
#include "datasets/text.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

static int is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

/* Words before a full stop that rarely end a sentence. */
static const char *const titles[] = {"Mr",  "Mrs", "Dr",  "St",   "Messrs", "Rev",  "Capt", "Col",
                                     "Gen", "Sir", "Esq", "viz",  "vol",    "Vol",  "ver",  "Ver",
                                     "Ps",  "cf",  "No",  "chap", "Chap",   "vers", "e.g",  "i.e"};

static int is_title(const char *text, size_t stop)
{
    size_t begin = stop;

    while (begin > 0 && !is_space(text[begin - 1]) && text[begin - 1] != '(' &&
           text[begin - 1] != '"')
        begin--;
    if (stop - begin == 1 && isupper((unsigned char)text[begin]))
        return 1;
    for (size_t i = 0; i < EK_COUNT(titles); i++)
        if (strlen(titles[i]) == stop - begin && memcmp(titles[i], text + begin, stop - begin) == 0)
            return 1;
    return 0;
}

/* The bytes of a closing quote or bracket that ends at p (exclusive), or 0. */
static size_t closer_before(const char *text, size_t p)
{
    if (p >= 1 && strchr("\"')]", text[p - 1]) != NULL && text[p - 1] != '\0')
        return 1;
    if (p >= 3 && (memcmp(text + p - 3, "\xe2\x80\x9d", 3) == 0 ||
                   memcmp(text + p - 3, "\xe2\x80\x99", 3) == 0))
        return 3;
    return 0;
}

static int ends_sentence(const char *text, size_t size, size_t p)
{
    size_t next = p, mark = p, n;
    int lines = 0;

    if (p == 0 || is_space(text[p - 1]) || (p < size && !is_space(text[p])))
        return 0;
    for (; next < size && is_space(text[next]); next++)
        lines += text[next] == '\n';
    if (lines >= 2 || next == size)
        return 1;
    while ((n = closer_before(text, mark)) > 0)
        mark -= n;
    if (mark == 0 || strchr(".!?", text[mark - 1]) == NULL || text[mark - 1] == '\0')
        return 0;
    if (islower((unsigned char)text[next]) || text[next] == '(')
        return 0; /* "Oh!" said she */
    return text[mark - 1] != '.' || !is_title(text, mark - 1);
}

size_t ek_text_sentence_end(const char *text, size_t size, size_t at)
{
    size_t p = at < size ? at : size;

    while (p > 0 && !ends_sentence(text, size, p))
        p--;
    return p;
}

char *ek_text_insert(const char *text, size_t size, ek_insert *pieces, int n)
{
    size_t room = size + 1, from = 0, to = 0;
    char *out;

    for (int i = 0; i < n; i++)
        room += strlen(pieces[i].before) + strlen(pieces[i].piece) + 1;
    out = malloc(room);
    if (out == NULL)
        return NULL;
    for (int i = 0; i < n; i++) {
        ek_insert *p = &pieces[i];
        const size_t before = strlen(p->before), length = strlen(p->piece);

        memcpy(out + to, text + from, p->at - from);
        to += p->at - from;
        from = p->at;
        if (p->at > 0) {
            memcpy(out + to, p->before, before);
            to += before;
        }
        p->where = to;
        memcpy(out + to, p->piece, length);
        to += length;
        if (p->at == 0)
            out[to++] = ' ';
    }
    memcpy(out + to, text + from, size - from);
    to += size - from;
    out[to] = '\0';
    return out;
}
