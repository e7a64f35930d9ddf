/* infer/arch.c - reads a model's sizes and refuses what the forward pass does not do. */
#include "infer/arch.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LLAMA };
const char *const ek_arch_names[] = {[LLAMA] = "llama", NULL};

/* The parts of one block and of the whole model; a tensor with another name would stay unread. */
static const char *const block_parts[] = {"attn_norm", "attn_q",      "attn_k",
                                          "attn_v",    "attn_output", "ffn_norm",
                                          "ffn_gate",  "ffn_up",      "ffn_down"};
static const char *const model_parts[] = {"token_embd", "output_norm", "output"};

/* A key whose presence means arithmetic we do not do, and what it would be. */
static const struct unsupported {
    const char *key, *what;
} unsupported[] = {
    {"A.expert_count", "a mixture of experts"},
    {"A.attention.sliding_window", "a sliding attention window"},
    {"A.attention.scale", "a scale of its own for attention"},
    {"A.logit_scale", "scaled logits"},
    {"A.embedding_scale", "scaled embeddings"},
    {"A.residual_scale", "scaled residuals"},
    {"A.final_logit_softcapping", "capped logits"},
    {"A.attn_logit_softcapping", "capped attention logits"},
};

static int part_known(const char *name)
{
    char part[80];
    int block, used = 0;
    const size_t size = strlen(name);

    if (size < 8 || size >= sizeof part || strcmp(name + size - 7, ".weight") != 0)
        return 0;
    memcpy(part, name, size - 7);
    part[size - 7] = '\0';
    for (size_t i = 0; i < EK_COUNT(model_parts); i++)
        if (strcmp(part, model_parts[i]) == 0)
            return 1;
    if (sscanf(part, "blk.%d.%n", &block, &used) != 1 || used == 0)
        return 0;
    for (size_t i = 0; i < EK_COUNT(block_parts); i++)
        if (strcmp(part + used, block_parts[i]) == 0)
            return 1;
    return 0;
}

static ek_code check_tensors(const ek_gguf *g, ek_err *err)
{
    for (int i = 0; i < ek_gguf_n_tensors(g); i++) {
        const char *name = ek_gguf_tensor_at(g, i)->name;

        if (strcmp(name, "rope_freqs.weight") == 0)
            return EK_FAIL(err, EK_ENOTSUP,
                           "tensor 'rope_freqs.weight': found Llama 3 rotary scaling, expected "
                           "unscaled rotary embedding");
        if (!part_known(name))
            return EK_FAIL(err, EK_ENOTSUP,
                           "tensor '%s': found a part that architecture %s does not have here "
                           "(no biases, no q/k norms, no experts)",
                           name, ek_gguf_arch(g));
    }
    return EK_OK;
}

static ek_code check_keys(const ek_gguf *g, ek_err *err)
{
    ek_gguf_str scaling = {0};

    for (size_t i = 0; i < EK_COUNT(unsupported); i++) {
        int64_t n = 0;
        double x = 0.0;

        if (!ek_gguf_has(g, unsupported[i].key))
            continue;
        /* Writers put 0 (or a scale of 1) where the feature is off; either type may be used. */
        if (ek_gguf_int(g, unsupported[i].key, EK_GGUF_NEEDED, 0, INT32_MAX, &n, err) == EK_OK &&
            n == 0)
            continue;
        if (ek_gguf_float(g, unsupported[i].key, EK_GGUF_NEEDED, -1e30, 1e30, &x, err) == EK_OK &&
            (x == 0.0 || x == 1.0))
            continue;
        return EK_FAIL(err, EK_ENOTSUP, "key '%s': found %s, which the forward pass does not do",
                       unsupported[i].key, unsupported[i].what);
    }
    EK_TRY(ek_gguf_string(g, "A.rope.scaling.type", EK_GGUF_OPTIONAL, &scaling, err));
    if (scaling.data && !(scaling.size == 4 && memcmp(scaling.data, "none", 4) == 0))
        return EK_FAIL(err, EK_ENOTSUP,
                       "key 'A.rope.scaling.type': found '%.*s', expected none: scaled rotary "
                       "embedding is not supported",
                       (int)(scaling.size < 40 ? scaling.size : 40), scaling.data);
    return EK_OK;
}

/* head_count_kv may be one number or one per layer, which must then agree. */
static ek_code read_kv_heads(const ek_gguf *g, int n_layers, int64_t *heads, ek_err *err)
{
    int64_t *each = NULL;
    size_t n = 0;

    if (!ek_gguf_is_array(g, "A.attention.head_count_kv"))
        return ek_gguf_int(g, "A.attention.head_count_kv", EK_GGUF_OPTIONAL, 1, 1024, heads, err);
    EK_TRY(ek_gguf_ints(g, "A.attention.head_count_kv", EK_GGUF_NEEDED, 1, 1024, &each, &n, err));
    if (n != (size_t)n_layers) {
        free(each);
        return EK_FAIL(err, EK_EINPUT,
                       "key 'A.attention.head_count_kv': found %zu numbers, expected one for "
                       "each of %d layers",
                       n, n_layers);
    }
    *heads = each[0];
    for (size_t i = 1; i < n; i++) {
        if (each[i] == *heads)
            continue;
        (void)EK_FAIL(
            err, EK_ENOTSUP,
            "key 'A.attention.head_count_kv': found %lld KV heads in layer %zu and %lld in "
            "layer 0, expected the same number in all",
            (long long)each[i], i, (long long)*heads);
        free(each);
        return EK_ENOTSUP;
    }
    free(each);
    return EK_OK;
}

typedef struct sizes {
    int64_t layers, d_model, d_ff, ctx, heads, kv_heads, head_dim, value_dim, rope_dim, vocab;
    double eps, base;
} sizes;

static ek_code read_sizes(const ek_gguf *g, sizes *s, ek_err *err)
{
    const ek_gguf_tensor *embd = ek_gguf_find(g, "token_embd.weight");

    if (!embd)
        return EK_FAIL(err, EK_EINPUT, "tensor 'token_embd.weight': not in the file");
    EK_TRY(ek_gguf_int(g, "A.block_count", EK_GGUF_NEEDED, 1, 1024, &s->layers, err));
    EK_TRY(ek_gguf_int(g, "A.embedding_length", EK_GGUF_NEEDED, 1, 65536, &s->d_model, err));
    EK_TRY(ek_gguf_int(g, "A.feed_forward_length", EK_GGUF_NEEDED, 1, 1 << 20, &s->d_ff, err));
    EK_TRY(ek_gguf_int(g, "A.context_length", EK_GGUF_NEEDED, 1, 1 << 24, &s->ctx, err));
    EK_TRY(ek_gguf_int(g, "A.attention.head_count", EK_GGUF_NEEDED, 1, 1024, &s->heads, err));
    s->kv_heads = s->heads;
    EK_TRY(read_kv_heads(g, (int)s->layers, &s->kv_heads, err));
    s->head_dim = s->d_model / s->heads;
    EK_TRY(ek_gguf_int(g, "A.attention.key_length", EK_GGUF_OPTIONAL, 1, 1024, &s->head_dim, err));
    s->value_dim = s->head_dim;
    EK_TRY(
        ek_gguf_int(g, "A.attention.value_length", EK_GGUF_OPTIONAL, 1, 1024, &s->value_dim, err));
    s->rope_dim = s->head_dim;
    EK_TRY(ek_gguf_int(g, "A.rope.dimension_count", EK_GGUF_OPTIONAL, 0, 1024, &s->rope_dim, err));
    EK_TRY(ek_gguf_float(g, "A.attention.layer_norm_rms_epsilon", EK_GGUF_NEEDED, 1e-12, 1.0,
                         &s->eps, err));
    s->base = 10000.0;
    EK_TRY(ek_gguf_float(g, "A.rope.freq_base", EK_GGUF_OPTIONAL, 1.0, 1e12, &s->base, err));
    if (embd->rows > INT32_MAX / 2)
        return EK_FAIL(err, EK_EINPUT, "tensor 'token_embd.weight': found %lld rows",
                       (long long)embd->rows);
    s->vocab = embd->rows;
    return ek_gguf_int(g, "A.vocab_size", EK_GGUF_OPTIONAL, 1, INT32_MAX / 2, &s->vocab, err);
}

static ek_code check_sizes(const sizes *s, ek_err *err)
{
    if (s->heads % s->kv_heads != 0)
        return EK_FAIL(err, EK_EINPUT,
                       "found %lld query heads and %lld KV heads, expected a multiple",
                       (long long)s->heads, (long long)s->kv_heads);
    if (s->head_dim < 2 || s->head_dim > 1024 || s->head_dim % 2 != 0)
        return EK_FAIL(err, EK_ENOTSUP, "found head size %lld, expected an even number, 2 .. 1024",
                       (long long)s->head_dim);
    if (s->value_dim != s->head_dim)
        return EK_FAIL(err, EK_ENOTSUP,
                       "found keys of %lld and values of %lld numbers, expected the same size",
                       (long long)s->head_dim, (long long)s->value_dim);
    if (s->rope_dim != s->head_dim)
        return EK_FAIL(err, EK_ENOTSUP,
                       "found rotary embedding of %lld of %lld dimensions, expected all of them",
                       (long long)s->rope_dim, (long long)s->head_dim);
    return EK_OK;
}

ek_code ek_arch_dims(const ek_gguf *g, ek_dims *out, ek_err *err)
{
    const char *arch = ek_gguf_arch(g);
    sizes s = {0};

    if (strcmp(arch, ek_arch_names[LLAMA]) != 0)
        return EK_FAIL(err, EK_ENOTSUP, "architecture: found '%.60s', expected %s", arch,
                       ek_arch_names[LLAMA]);
    EK_TRY(check_keys(g, err));
    EK_TRY(read_sizes(g, &s, err));
    EK_TRY(check_sizes(&s, err));
    EK_TRY(check_tensors(g, err));
    *out = (ek_dims){.n_layers = (int)s.layers,
                     .n_heads = (int)s.kv_heads,
                     .group = (int)(s.heads / s.kv_heads),
                     .head_dim = (int)s.head_dim,
                     .d_model = (int)s.d_model,
                     .d_ff = (int)s.d_ff,
                     .n_vocab = (int)s.vocab,
                     .n_ctx = (int)s.ctx,
                     .rope_base = (float)s.base,
                     .norm_eps = (float)s.eps,
                     .scale = (float)(1.0 / sqrt((double)s.head_dim))};
    return EK_OK;
}
