#include "tests/tiny_model.h"

#include "core/bf16.h"
#include "core/file.h"
#include "core/rng.h"
#include "infer/gguf_file.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SPECIALS = 3, ALIGN = 32, MAX_TENSORS = 1024 };

typedef struct planned {
    char name[48];
    int64_t width, rows;
    ek_qtype type;
    int head_dim; /* > 0: rows of q or k, permuted in the file */
    int norm;     /* numbers around 1 */
    size_t offset, bytes;
} planned;

typedef struct maker {
    ek_tiny o;
    FILE *f;
    int n;
    planned t[MAX_TENSORS];
} maker;

static void put(maker *m, uint64_t x, int size)
{
    for (int i = 0; i < size; i++)
        fputc((int)(x >> 8 * i & 255), m->f);
}

static void put_string(maker *m, const char *s, size_t size)
{
    put(m, size, 8);
    fwrite(s, 1, size, m->f);
}

static void put_key(maker *m, const char *name, int type)
{
    put_string(m, name, strlen(name));
    put(m, (uint64_t)type, 4);
}

static void key_u32(maker *m, const char *name, int x)
{
    put_key(m, name, EK_GGUF_U32);
    put(m, (uint64_t)x, 4);
}

static void key_f32(maker *m, const char *name, double x)
{
    const float f = (float)x;
    uint32_t bits;

    memcpy(&bits, &f, sizeof bits);
    put_key(m, name, EK_GGUF_F32);
    put(m, bits, 4);
}

static void key_string(maker *m, const char *name, const char *s)
{
    put_key(m, name, EK_GGUF_STRING);
    put_string(m, s, strlen(s));
}

static void key_array(maker *m, const char *name, int type, int n)
{
    put_key(m, name, EK_GGUF_ARRAY);
    put(m, (uint64_t)type, 4);
    put(m, (uint64_t)n, 8);
}

/* The file's character of a byte, UTF-8; returns its length. */
static size_t letter(char *out, int byte)
{
    unsigned c = (unsigned)byte;

    if (byte <= 0x20)
        c = 0x100u + c;
    else if (byte >= 0x7f && byte <= 0xa0)
        c = 0x121u + c - 0x7fu;
    else if (byte == 0xad)
        c = 0x143u;
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    out[0] = (char)(0xc0 | c >> 6);
    out[1] = (char)(0x80 | (c & 63));
    return 2;
}

/* Merges, most useful first; each joins two bytes or earlier merges. */
static const char *const pairs[][2] = {
    {" ", "t"},   {"h", "e"}, {" ", "a"}, {"i", "n"},   {"r", "e"},  {"o", "n"},  {"e", "r"},
    {" t", "he"}, {" ", "s"}, {"a", "t"}, {" ", "w"},   {"e", "n"},  {" ", "o"},  {"o", "u"},
    {"i", "t"},   {"i", "s"}, {"e", "s"}, {"o", "r"},   {"n", "d"},  {" ", "b"},  {" ", "f"},
    {"in", "g"},  {" ", "c"}, {"a", "n"}, {" a", "nd"}, {"e", "d"},  {" ", "p"},  {"a", "l"},
    {" ", "m"},   {"a", "r"}, {" ", "d"}, {"l", "l"},   {" t", "o"}, {" o", "f"}, {" ", " "},
    {"\n", "\n"}, {" ", "h"}, {"l", "e"}, {"v", "e"},   {" ", "l"},  {"s", "t"}};

static size_t spell(char *out, const char *bytes)
{
    size_t n = 0;

    for (; *bytes; bytes++)
        n += letter(out + n, (unsigned char)*bytes);
    return n;
}

/* Past the list, merges pair two bytes that nothing else pairs: 0x80 + a with 0xc0 + b. */
static size_t merged(int i, char *left, size_t *n_left, char *right)
{
    if ((size_t)i < EK_COUNT(pairs)) {
        *n_left = spell(left, pairs[i][0]);
        return spell(right, pairs[i][1]);
    }
    *n_left = letter(left, 0x80 + i % 64);
    return letter(right, 0xc0 + i / 64);
}

static void put_tokenizer(maker *m)
{
    static const char *const specials[SPECIALS] = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};
    const int n_merges = m->o.n_vocab - SPECIALS - 256;
    char s[16], right[16];
    size_t n, n_right;

    key_string(m, "tokenizer.ggml.model", "gpt2");
    key_string(m, "tokenizer.ggml.pre", "smollm");
    key_array(m, "tokenizer.ggml.tokens", EK_GGUF_STRING, m->o.n_vocab);
    for (int i = 0; i < SPECIALS; i++)
        put_string(m, specials[i], strlen(specials[i]));
    for (int i = 0; i < 256; i++)
        put_string(m, s, letter(s, i));
    for (int i = 0; i < n_merges; i++) {
        n_right = merged(i, s, &n, right);
        memcpy(s + n, right, n_right);
        put_string(m, s, n + n_right);
    }
    key_array(m, "tokenizer.ggml.token_type", EK_GGUF_I32, m->o.n_vocab);
    for (int i = 0; i < m->o.n_vocab; i++)
        put(m, i < SPECIALS ? 3 : 1, 4);
    key_array(m, "tokenizer.ggml.merges", EK_GGUF_STRING, n_merges);
    for (int i = 0; i < n_merges; i++) {
        n_right = merged(i, s, &n, right);
        s[n] = ' ';
        memcpy(s + n + 1, right, n_right);
        put_string(m, s, n + 1 + n_right);
    }
    key_u32(m, "tokenizer.ggml.bos_token_id", 1);
    key_u32(m, "tokenizer.ggml.eos_token_id", 2);
    put_key(m, "tokenizer.ggml.add_bos_token", EK_GGUF_BOOL);
    put(m, 0, 1);
}

static void put_keys(maker *m)
{
    const ek_tiny *o = &m->o;

    key_string(m, "general.architecture", "llama");
    key_u32(m, "general.alignment", ALIGN);
    key_u32(m, "llama.block_count", o->n_layers);
    key_u32(m, "llama.context_length", o->n_ctx);
    key_u32(m, "llama.embedding_length", o->d_model);
    key_u32(m, "llama.feed_forward_length", o->d_ff);
    key_u32(m, "llama.attention.head_count", o->n_heads);
    key_u32(m, "llama.attention.head_count_kv", o->n_kv_heads);
    key_u32(m, "llama.attention.key_length", o->head_dim);
    key_u32(m, "llama.attention.value_length", o->head_dim);
    key_u32(m, "llama.rope.dimension_count", o->head_dim);
    key_f32(m, "llama.rope.freq_base", o->rope_base);
    key_f32(m, "llama.attention.layer_norm_rms_epsilon", 1e-5);
    key_u32(m, "llama.vocab_size", o->n_vocab);
    put_tokenizer(m);
    if (!o->no_template)
        key_string(m, "tokenizer.chat_template",
                   "{% for message in messages %}{% if loop.first and messages[0]['role'] != "
                   "'system' %}{{ '<|im_start|>system\nBe brief<|im_end|>\n' }}{% endif %}"
                   "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' "
                   "+ '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' "
                   "}}{% endif %}");
}
enum { N_KEYS = 22 }; /* that put_keys writes, without the template */

static void plan(maker *m, const char *name, int64_t rows, int64_t width, int head_dim, int norm)
{
    planned *t = &m->t[m->n++];

    snprintf(t->name, sizeof t->name, "%s.weight", name);
    t->width = width;
    t->rows = rows;
    t->type = norm ? EK_Q_F32 : m->o.type;
    t->head_dim = head_dim;
    t->norm = norm;
}

static void plan_all(maker *m)
{
    const ek_tiny *o = &m->o;
    const int q = o->n_heads * o->head_dim, kv = o->n_kv_heads * o->head_dim;
    char name[40];

    plan(m, "token_embd", o->n_vocab, o->d_model, 0, 0);
    for (int l = 0; l < o->n_layers; l++) {
#define ADD(what, rows, width, head_dim, norm)          \
    (snprintf(name, sizeof name, "blk.%d.%s", l, what), \
     plan(m, name, (rows), (width), (head_dim), (norm)))
        ADD("attn_norm", 1, o->d_model, 0, 1);
        ADD("attn_q", q, o->d_model, o->head_dim, 0);
        ADD("attn_k", kv, o->d_model, o->head_dim, 0);
        ADD("attn_v", kv, o->d_model, 0, 0);
        ADD("attn_output", o->d_model, q, 0, 0);
        ADD("ffn_norm", 1, o->d_model, 0, 1);
        ADD("ffn_gate", o->d_ff, o->d_model, 0, 0);
        ADD("ffn_up", o->d_ff, o->d_model, 0, 0);
        ADD("ffn_down", o->d_model, o->d_ff, 0, 0);
#undef ADD
    }
    plan(m, "output_norm", 1, o->d_model, 0, 1);
    if (o->own_head)
        plan(m, "output", o->n_vocab, o->d_model, 0, 0);
    for (int i = 0; i < m->n; i++) {
        planned *t = &m->t[i];

        t->bytes = (size_t)(t->rows * t->width / ek_qtype_block(t->type)) *
                   (size_t)ek_qtype_block_bytes(t->type);
        if (i + 1 < m->n)
            m->t[i + 1].offset = (t->offset + t->bytes + ALIGN - 1) / ALIGN * ALIGN;
    }
}

/* Half from float, for numbers of ordinary size: to nearest even, tiny ones to zero. */
static uint16_t to_f16(float x)
{
    const uint32_t sign = x < 0 ? 0x8000u : 0;
    const float a = fabsf(x);
    uint32_t bits;

    if (a < 0x1p-14f)
        return (uint16_t)(sign | (uint32_t)lrintf(a * 0x1p24f));
    memcpy(&bits, &a, sizeof bits);
    bits += 0xfffu + (bits >> 13 & 1u);
    return (uint16_t)(sign | ((bits >> 13) - (112u << 10)));
}

/* 32 numbers as a block of the 4- or 5-bit types: high (levels) and whether there is a minimum. */
static void put_block(maker *m, ek_qtype type, const float *x)
{
    const int bits = type == EK_Q_Q8_0 ? 8 : type == EK_Q_Q5_0 || type == EK_Q_Q5_1 ? 5 : 4;
    const int has_min = type == EK_Q_Q4_1 || type == EK_Q_Q5_1;
    float lo = x[0], hi = x[0], big = 0, d;
    int q[32], zero = has_min ? 0 : 1 << (bits - 1), most = (1 << bits) - 1;
    uint32_t high = 0;

    for (int i = 0; i < 32; i++) {
        lo = fminf(lo, x[i]);
        hi = fmaxf(hi, x[i]);
        big = fmaxf(big, fabsf(x[i]));
    }
    d = has_min ? (hi - lo) / (float)most : big / (float)(zero - 1);
    d = ek_from_f16(to_f16(d));
    lo = has_min ? ek_from_f16(to_f16(lo)) : 0.0f;
    for (int i = 0; i < 32; i++) {
        const float y = d > 0 ? (x[i] - lo) / d : 0.0f;

        q[i] = (int)lrintf(y) + zero;
        q[i] = q[i] < 0 ? 0 : q[i] > most ? most : q[i];
        high |= (uint32_t)(q[i] >> 4 & 1) << i;
    }
    put(m, to_f16(d), 2);
    if (has_min)
        put(m, to_f16(lo), 2);
    if (bits == 5)
        put(m, high, 4);
    for (int i = 0; bits == 8 && i < 32; i++)
        put(m, (uint64_t)(uint8_t)(int8_t)(q[i] - zero), 1);
    for (int i = 0; bits != 8 && i < 16; i++)
        put(m, (uint64_t)((q[i] & 15) | (q[i + 16] & 15) << 4), 1);
}

static void put_row(maker *m, ek_qtype type, const float *x, int64_t width)
{
    for (int64_t i = 0; i < width; i++) {
        uint32_t bits;

        switch (type) {
        case EK_Q_F32:
            memcpy(&bits, &x[i], sizeof bits);
            put(m, bits, 4);
            break;
        case EK_Q_F16:
            put(m, to_f16(x[i]), 2);
            break;
        case EK_Q_BF16:
            put(m, ek_to_bf16(x[i]), 2);
            break;
        default:
            if (i % 32 == 0)
                put_block(m, type, x + i);
        }
    }
}

/* Rows are drawn in the layout of Hugging Face, whatever place they have in the file. */
static ek_code put_tensor(maker *m, const planned *t, ek_err *err)
{
    const uint64_t stream = ek_rng_stream(t->name, 0, 0);
    const double head = m->o.head_gain > 0 ? m->o.head_gain : 1.4;
    const double gain =
        strncmp(t->name, "token_embd", 10) == 0
            ? 0.5
            : (strncmp(t->name, "output.", 7) == 0 ? head : 1.4) / sqrt((double)t->width);
    float *x = calloc((size_t)t->width, sizeof *x);

    if (!x)
        return EK_FAIL(err, EK_ENOMEM, "no memory for a row of a tiny model");
    for (int64_t row = 0; row < t->rows; row++) {
        int64_t r = row;

        if (t->head_dim) { /* the file's row 2i + s of a head is row s * d/2 + i of ours */
            const int64_t j = row % t->head_dim;

            r = row - j + j % 2 * (t->head_dim / 2) + j / 2;
        }
        for (int64_t i = 0; i < t->width; i++) {
            const double z = ek_rng_normal(m->o.seed, stream, (uint64_t)(r * t->width + i));

            x[i] = (float)(t->norm ? 1.0 + 0.1 * z : gain * z);
        }
        put_row(m, t->type, x, t->width);
    }
    free(x);
    return EK_OK;
}

static ek_code check(const ek_tiny *o, ek_err *err)
{
    if (!ek_qtype_known((uint32_t)o->type) || o->d_model % 32 || o->d_ff % 32 || o->head_dim % 2 ||
        o->n_heads * o->head_dim % 32 || o->n_heads % o->n_kv_heads || o->n_vocab < 259 ||
        o->n_vocab > 512 || o->n_layers < 1 || 9 * o->n_layers + 3 > MAX_TENSORS)
        return EK_FAIL(err, EK_EASKED, "tiny model: sizes that do not fit together");
    return EK_OK;
}

static ek_code put_all(maker *m, ek_err *err)
{
    fwrite("GGUF", 1, 4, m->f);
    put(m, 3, 4);
    put(m, (uint64_t)m->n, 8);
    put(m, N_KEYS + !m->o.no_template, 8);
    put_keys(m);
    for (int i = 0; i < m->n; i++) {
        const planned *t = &m->t[i];

        put_string(m, t->name, strlen(t->name));
        put(m, t->norm ? 1 : 2, 4);
        put(m, (uint64_t)t->width, 8);
        if (!t->norm)
            put(m, (uint64_t)t->rows, 8);
        put(m, (uint64_t)t->type, 4);
        put(m, t->offset, 8);
    }
    for (int i = 0; i < m->n; i++) {
        while (ftell(m->f) % ALIGN)
            fputc(0, m->f);
        EK_TRY(put_tensor(m, &m->t[i], err));
    }
    return EK_OK;
}

ek_code ek_tiny_model(const char *path, const ek_tiny *options, ek_err *err)
{
    static const ek_tiny usual = {.n_layers = 2,
                                  .d_model = 64,
                                  .d_ff = 128,
                                  .n_heads = 4,
                                  .n_kv_heads = 2,
                                  .head_dim = 16,
                                  .n_vocab = 300,
                                  .n_ctx = 1024,
                                  .rope_base = 10000};
    maker *m = calloc(1, sizeof *m);
    ek_writer w;
    ek_code code;

    if (!m)
        return EK_FAIL(err, EK_ENOMEM, "no memory for a tiny model");
    m->o = options ? *options : usual;
#define DEFAULT(f) (m->o.f = m->o.f ? m->o.f : usual.f)
    DEFAULT(n_layers), DEFAULT(d_model), DEFAULT(d_ff), DEFAULT(n_heads), DEFAULT(n_kv_heads);
    DEFAULT(head_dim), DEFAULT(n_vocab), DEFAULT(n_ctx);
    m->o.rope_base = m->o.rope_base > 0 ? m->o.rope_base : usual.rope_base;
#undef DEFAULT
    code = check(&m->o, err);
    if (code == EK_OK)
        code = ek_writer_open(&w, path, err);
    if (code != EK_OK) {
        free(m);
        return code;
    }
    m->f = w.file;
    plan_all(m);
    code = put_all(m, err);
    if (code == EK_OK)
        code = ek_writer_commit(&w, err);
    ek_writer_close(&w);
    free(m);
    return code;
}
