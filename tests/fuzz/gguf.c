/* Any bytes as a GGUF file: they open or end in a sentence; what opens can be read to its end, and
 * its tokenizer and template too. */
#include "infer/template.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void read_all(ek_gguf *g)
{
    ek_tokenizer *tok;
    ek_template t;
    ek_tokens ids = {0};
    ek_text text = {0};
    ek_err err;

    for (int i = 0; i < ek_gguf_n_tensors(g); i++) {
        const ek_gguf_tensor *x = ek_gguf_tensor_at(g, i);
        float *row = malloc((size_t)x->dim[0] * sizeof *row);

        for (int64_t r = 0; row && r < x->rows; r++)
            (void)!ek_gguf_rows_f32(g, x, r, 1, row, &err);
        free(row);
    }
    if (ek_template_open(&t, g, &err) == EK_OK)
        ek_template_clear(&t);
    if (ek_tokenizer_open(&tok, g, &err) != EK_OK)
        return;
    if (ek_tokenizer_encode(tok, "a <|im_end|> 12\n", 16, EK_TOK_SPECIAL | EK_TOK_LOSSY, &ids,
                            &err) == EK_OK &&
        ek_tokenizer_decode(tok, ids.id, ids.n, 0, &text, &err) != EK_OK)
        abort();
    ek_text_clear(&text);
    ek_tokens_clear(&ids);
    ek_tokenizer_close(tok);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const int file = memfd_create("gguf", MFD_CLOEXEC);
    char path[64];
    ek_gguf *g;
    ek_err err;

    if (file < 0 || write(file, data, size) != (ssize_t)size)
        abort();
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    if (ek_gguf_open(&g, path, &err) == EK_OK) {
        read_all(g);
        ek_gguf_close(g);
    }
    close(file);
    return 0;
}
