/* tests/fuzz/text.c - any bytes as a text: checked, cut, and sentences put in, without a fault. */
#include "datasets/text.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int count(void *ctx, const char *text, size_t n)
{
    int words = 0;

    (void)ctx;
    for (size_t i = 0; i < n; i++)
        words += text[i] > ' ' && (i == 0 || text[i - 1] <= ' ');
    return words;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const ek_counter counter = {.count = count};
    /* A copy of exactly this size, so that a byte read behind it is seen. */
    char *text = malloc(size ? size : 1), *out;
    ek_insert piece[2] = {{.before = " ", .piece = "A b."}, {.before = "\n\n", .piece = "C d."}};
    ek_err err;
    size_t end;

    if (text == NULL)
        return 0;
    if (size > 0)
        memcpy(text, data, size);
    if (ek_text_check_utf8(text, size) > size)
        abort();
    for (int tokens = 0; tokens < 20; tokens += 7)
        if (ek_text_cut(&end, text, size, &counter, tokens, &err) != EK_OK || end > size ||
            count(NULL, text, end) > tokens)
            abort();
    piece[0].at = ek_text_sentence_end(text, size, size / 2);
    piece[1].at = ek_text_sentence_end(text, size, size);
    if (piece[0].at > size / 2 || piece[1].at > size)
        abort();
    out = ek_text_insert(text, size, piece, 2);
    if (out == NULL || memcmp(out + piece[0].where, "A b.", 4) != 0 ||
        memcmp(out + piece[1].where, "C d.", 4) != 0)
        abort();
    free(out);
    free(text);
    return 0;
}
