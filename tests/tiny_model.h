/* tests/tiny_model.h - small synthetic GGUF models of architecture llama, with random weights and a
 * working byte-level tokenizer, so that tests need no download.
 *
 * The same options and seed give the same file, byte for byte.  The rows of q and k are stored
 * permuted, as in real files of this architecture.  Vocabulary: 3 control tokens
 * (0 <|endoftext|>, 1 <|im_start|>, 2 <|im_end|>), the 256 bytes (ids 3 .. 258 in byte order), then
 * merges up to n_vocab.  ChatML template with a default system text. */
#ifndef EK_TESTS_TINY_MODEL_H
#define EK_TESTS_TINY_MODEL_H

#include "core/err.h"
#include "infer/dequant.h"

#include <stdint.h>

typedef struct ek_tiny {
    int n_layers, d_model, d_ff;       /* default 2, 64, 128; widths are multiples of 32 */
    int n_heads, n_kv_heads, head_dim; /* default 4 query heads, 2 KV heads, 16 */
    int n_vocab, n_ctx;                /* default 300, 1024; n_vocab is 259 .. 512 */
    double rope_base;                  /* default 10000 */
    ek_qtype type;                     /* of the matrices; default F32, which is 0 */
    int own_head;                      /* an output.weight of its own instead of a tied head */
    double head_gain;                  /* of output.weight; default 1.4; small: nearly uniform */
    int no_template;                   /* leave tokenizer.chat_template out */
    uint64_t seed;
} ek_tiny; /* zero: the default */

ek_code ek_tiny_model(const char *path, const ek_tiny *options, ek_err *err); /* NULL: defaults */

#endif
