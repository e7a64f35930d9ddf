/* Any bytes as text: they come back from decoding as they went in.  The tokenizer is that of
 * EVICTKIT_TINY, a file written by tests/tiny_model.c with its default options (every byte has a
 * token).  The first byte of an input chooses the flags. */
#include "infer/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static ek_tokenizer *tokenizer(void)
{
    static ek_tokenizer *tok;
    const char *path = getenv("EVICTKIT_TINY");
    ek_gguf *g;
    ek_err err;

    if (tok)
        return tok;
    if (!path || ek_gguf_open(&g, path, &err) != EK_OK ||
        ek_tokenizer_open(&tok, g, &err) != EK_OK) {
        fprintf(stderr, "%s\n", path ? err.msg : "EVICTKIT_TINY names no model");
        exit(2);
    }
    ek_gguf_close(g);
    return tok;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    ek_tokens ids = {0};
    ek_text text = {0};
    ek_err err;
    int flags;

    if (size == 0)
        return 0;
    flags = data[0] & (EK_TOK_SPECIAL | EK_TOK_STRICT | EK_TOK_BOS | EK_TOK_LOSSY);
    data++;
    size--;
    if (ek_tokenizer_encode(tokenizer(), (const char *)data, size, flags, &ids, &err) != EK_OK) {
        if (!(flags & EK_TOK_STRICT) || ids.n != 0)
            abort();
        return 0;
    }
    if (ek_tokenizer_decode(tokenizer(), ids.id, ids.n, 0, &text, &err) != EK_OK ||
        text.size != size || (size && memcmp(text.data, data, size) != 0))
        abort();
    ek_text_clear(&text);
    ek_tokens_clear(&ids);
    return 0;
}
