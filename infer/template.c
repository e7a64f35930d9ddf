#include "infer/template.h"

#include "core/file.h"

#include <stdlib.h>
#include <string.h>

#define WAYS_OUT "`template: none` gives the text as it is"

/* Offset of word in s, or s.size. */
static size_t find(ek_gguf_str s, const char *word)
{
    const char *p = s.size ? memmem(s.data, s.size, word, strlen(word)) : NULL;

    return p ? (size_t)(p - s.data) : s.size;
}

/* The default system text stands in the source as a literal "<|im_start|>system\nTEXT<|im_end|>";
 * NULL if there is none.  A newline may be written as such or as \n; other escapes are kept. */
static char *default_system(ek_gguf_str s)
{
    static const char *const heads[] = {"<|im_start|>system\n", "<|im_start|>system\\n"};

    for (size_t i = 0; i < EK_COUNT(heads); i++) {
        const size_t at = find(s, heads[i]) + strlen(heads[i]);
        ek_gguf_str rest;
        size_t end;

        if (at >= s.size)
            continue;
        rest = (ek_gguf_str){s.data + at, s.size - at};
        end = find(rest, "<|im_end|>");
        /* A quote in between means that the text is put together by the program. */
        if (end < rest.size && !memchr(rest.data, '\'', end) && !memchr(rest.data, '"', end))
            return strndup(rest.data, end);
    }
    return NULL;
}

ek_code ek_template_open(ek_template *out, const ek_gguf *g, ek_err *err)
{
    ek_gguf_str s = {NULL, 0};
    ek_template t = {.kind = EK_TEMPLATE_CHATML};
    ek_gguf_str rest;

    EK_TRY(ek_gguf_string(g, "tokenizer.chat_template", EK_GGUF_OPTIONAL, &s, err));
    if (s.size == 0)
        return EK_FAIL(err, EK_ENOTSUP, "%s: the model has no chat template; " WAYS_OUT,
                       ek_gguf_path(g));
    ek_hash128(t.hash, s.data, s.size);
    if (find(s, "<|im_start|>") == s.size || find(s, "<|im_end|>") == s.size ||
        find(s, "add_generation_prompt") == s.size || find(s, "assistant") == s.size)
        return EK_FAIL(
            err, EK_ENOTSUP,
            "%s: its chat template (hash %s) is of no family we know, which is ChatML; " WAYS_OUT,
            ek_gguf_path(g), t.hash);
    /* Thinking, tools and the like make more of a turn than header and text. */
    rest = s;
    if (find(rest, "<think>") < rest.size)
        return EK_FAIL(err, EK_ENOTSUP,
                       "%s: its chat template (hash %s) has turns for thinking, which we do not "
                       "render; " WAYS_OUT,
                       ek_gguf_path(g), t.hash);
    t.system = default_system(s);
    *out = t;
    return EK_OK;
}

void ek_template_none(ek_template *out)
{
    *out = (ek_template){.kind = EK_TEMPLATE_NONE};
}

void ek_template_clear(ek_template *t)
{
    free(t->system);
    *t = (ek_template){0};
}

ek_code ek_template_wrap(const ek_template *t, const char *system, ek_text *before, ek_text *after,
                         ek_err *err)
{
    if (!system)
        system = t->system ? t->system : "";
    if (t->kind == EK_TEMPLATE_CHATML) {
        if (*system)
            ek_text_add(before, "<|im_start|>system\n%s<|im_end|>\n", system);
        ek_text_add(before, "<|im_start|>user\n");
        ek_text_add(after, "<|im_end|>\n<|im_start|>assistant\n");
    }
    if (before->failed || after->failed)
        return EK_FAIL(err, EK_ENOMEM, "no memory for the chat template");
    return EK_OK;
}

/* The parts of a prompt: what the template writes has control tokens, what people write has not. */
enum { MAX_PARTS = 8 };
typedef struct part_list {
    ek_tok_part part[MAX_PARTS];
    int n;
} part_list;

static void add(part_list *l, const char *text, size_t size, int flags)
{
    l->part[l->n++] = (ek_tok_part){text, size, flags};
}

static void add_word(part_list *l, const char *text)
{
    add(l, text, strlen(text), EK_TOK_SPECIAL);
}

ek_code ek_template_encode(const ek_template *t, ek_tokenizer *tok, const ek_prompt *prompt,
                           int flags, ek_tokens *out, int64_t *question, ek_err *err)
{
    const char *system = prompt->system ? prompt->system : t->system ? t->system : "";
    part_list l = {.n = 0};
    int64_t at = out->bytes;

    flags &= EK_TOK_STRICT | EK_TOK_LOSSY;
    if (t->kind == EK_TEMPLATE_CHATML && *system) {
        add_word(&l, "<|im_start|>system\n");
        add(&l, system, strlen(system), flags);
        add_word(&l, "<|im_end|>\n");
    }
    if (t->kind == EK_TEMPLATE_CHATML)
        add_word(&l, "<|im_start|>user\n");
    for (int i = 0; i < l.n; i++)
        at += (int64_t)l.part[i].size;
    at += (int64_t)prompt->context_size;
    add(&l, prompt->context, prompt->context_size, flags);
    add(&l, prompt->question, prompt->question_size, flags);
    if (t->kind == EK_TEMPLATE_CHATML)
        add_word(&l, "<|im_end|>\n<|im_start|>assistant\n");
    l.part[0].flags |= EK_TOK_BOS;
    EK_TRY(ek_tokenizer_encode_parts(tok, l.part, l.n, out, err));
    *question = ek_tokens_from(out, at);
    return EK_OK;
}

ek_code ek_template_turns(const ek_template *t, ek_tokenizer *tok, const ek_turn *turns, int n,
                          ek_tokens *out, ek_err *err)
{
    const int add_system = t->system && n > 0 && strcmp(turns[0].role, "system") != 0;
    ek_tok_part *parts = calloc(5 * ((size_t)n + 1) + 1, sizeof *parts);
    ek_code code;
    int k = 0;

    if (!parts)
        return EK_FAIL(err, EK_ENOMEM, "no memory for %d turns", n);
#define WORD(s)                        \
    parts[k++] = (ek_tok_part)         \
    {                                  \
        (s), strlen(s), EK_TOK_SPECIAL \
    }
#define TEXT(s)                \
    parts[k++] = (ek_tok_part) \
    {                          \
        (s), strlen(s), 0      \
    }
    for (int i = add_system ? -1 : 0; i < n; i++) {
        const char *role = i < 0 ? "system" : turns[i].role;
        const char *text = i < 0 ? t->system : turns[i].text;

        if (t->kind == EK_TEMPLATE_NONE) {
            TEXT(text);
            continue;
        }
        WORD("<|im_start|>");
        TEXT(role);
        TEXT("\n");
        TEXT(text);
        WORD("<|im_end|>\n");
    }
    if (t->kind == EK_TEMPLATE_CHATML)
        WORD("<|im_start|>assistant\n");
#undef WORD
#undef TEXT
    if (k > 0)
        parts[0].flags |= EK_TOK_BOS;
    code = ek_tokenizer_encode_parts(tok, parts, k, out, err);
    free(parts);
    return code;
}
