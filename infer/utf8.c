#include "infer/utf8.h"

int ek_utf8_char(const char *s, size_t size)
{
    const unsigned char *p = (const unsigned char *)s;
    int n;

    if (p[0] < 0x80)
        return 1;
    if (p[0] < 0xc2 || p[0] > 0xf4)
        return 0;
    n = p[0] < 0xe0 ? 2 : p[0] < 0xf0 ? 3 : 4;
    if (size < (size_t)n)
        return 0;
    for (int i = 1; i < n; i++)
        if ((p[i] & 0xc0) != 0x80)
            return 0;
    /* The second byte rules out overlong forms, surrogates and what lies past U+10FFFF. */
    if ((p[0] == 0xe0 && p[1] < 0xa0) || (p[0] == 0xed && p[1] > 0x9f) ||
        (p[0] == 0xf0 && p[1] < 0x90) || (p[0] == 0xf4 && p[1] > 0x8f))
        return 0;
    return n;
}

size_t ek_utf8_valid(const char *s, size_t size)
{
    size_t i = 0;

    while (i < size) {
        const int n = ek_utf8_char(s + i, size - i);

        if (n == 0)
            break;
        i += (size_t)n;
    }
    return i;
}

/* Whether s, shorter than the character its first byte announces, could be the beginning of one. */
static int unfinished(const char *s, size_t size)
{
    char full[4] = {0};
    const unsigned char first = (unsigned char)s[0];
    const size_t n = first < 0xc2 ? 1 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : first < 0xf5 ? 4 : 1;

    if (size >= n)
        return 0;
    /* Some continuation completes it, or none does. */
    for (int second = 0x80; second < 0xc0; second++) {
        for (size_t i = 0; i < n; i++)
            full[i] = (char)(i < size ? (unsigned char)s[i] : i == 1 ? second : 0x80);
        if (ek_utf8_char(full, n) > 0)
            return 1;
    }
    return 0;
}

size_t ek_utf8_whole(const char *s, size_t size)
{
    for (size_t back = 1; back <= 3 && back <= size; back++)
        if (unfinished(s + size - back, back))
            return size - back;
    return size;
}

void ek_utf8_repair(ek_text *out, const char *s, size_t size)
{
    while (size > 0) {
        const size_t good = ek_utf8_valid(s, size);

        ek_text_bytes(out, s, good);
        if (good == size)
            return;
        ek_text_bytes(out, "\xef\xbf\xbd", 3);
        s += good + 1;
        size -= good + 1;
    }
}
