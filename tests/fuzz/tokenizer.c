/* Any bytes as text: they come back from decoding as they went in.  The tokenizer is that of a
 * tiny model (tests/tiny_model.c), in which every byte has a token.  The first byte of an input
 * chooses the flags. */
#include "infer/tokenizer.h"
#include "tests/tiny_model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static ek_tokenizer *tokenizer(void)
{
    static ek_tokenizer *tok;
    char path[] = "/tmp/ek_tiny_XXXXXX";
    ek_gguf *g = NULL;
    ek_err err;
    int file;

    if (tok)
        return tok;
    file = mkstemp(path);
    if (file < 0 || ek_tiny_model(path, NULL, &err) != EK_OK ||
        ek_gguf_open(&g, path, &err) != EK_OK || ek_tokenizer_open(&tok, g, &err) != EK_OK) {
        fprintf(stderr, "%s\n", file < 0 ? "no temporary file" : err.msg);
        exit(2);
    }
    ek_gguf_close(g);
    close(file);
    unlink(path);
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
