/* infer/template.h - the words a chat model expects around a user's text.
 *
 * A template is a program in its file; we do not run it.  We recognise the family by its markers
 * and render it here.  Only ChatML so far (SmolLM2):
 *     <|im_start|>ROLE\nTEXT<|im_end|>\n      and at the end      <|im_start|>assistant\n
 * If the first turn is not the system's and the file's template has a default system text, that
 * comes first. */
#ifndef EK_INFER_TEMPLATE_H
#define EK_INFER_TEMPLATE_H

#include "infer/tokenizer.h"

typedef enum ek_template_kind {
    EK_TEMPLATE_NONE, /* the text as it is: no turns, no headers */
    EK_TEMPLATE_CHATML
} ek_template_kind;

typedef struct ek_template {
    ek_template_kind kind;
    char *system;  /* default system text, or NULL; owned */
    char hash[33]; /* of the template's source; "" for none */
} ek_template;

/* EK_ENOTSUP: the file has no template, or one of an unknown family; the sentence names
 * `template: none` as the way out. */
ek_code ek_template_open(ek_template *out, const ek_gguf *g, ek_err *err);
void ek_template_none(ek_template *out); /* the text as it is */
void ek_template_clear(ek_template *t);

/* What stands before and after a user's text in a prompt of one turn, up to and including the
 * assistant's header; appended to the two texts.  system: NULL means the default, "" means none.
 * Both are text with control tokens: encode them with EK_TOK_SPECIAL, and the whole with
 * ek_tokenizer_encode_parts, so that ids are those of the rendered text. */
ek_code ek_template_wrap(const ek_template *t, const char *system, ek_text *before, ek_text *after,
                         ek_err *err);

/* A whole prompt: context and question together are the user's turn.  Appends the ids to out; the
 * context ends before token *question, the first that starts at or after the question's first byte
 * (so a token that straddles belongs to the context).  flags: EK_TOK_STRICT and EK_TOK_LOSSY, for
 * the user's text.  context or question may be empty. */
typedef struct ek_prompt {
    const char *system;             /* as in ek_template_wrap */
    const char *context, *question; /* borrowed */
    size_t context_size, question_size;
} ek_prompt;
ek_code ek_template_encode(const ek_template *t, ek_tokenizer *tok, const ek_prompt *prompt,
                           int flags, ek_tokens *out, int64_t *question, ek_err *err);

/* Turns of a conversation, then the assistant's header; appends the ids. */
typedef struct ek_turn {
    const char *role, *text; /* "system", "user", "assistant"; borrowed, NUL-terminated */
} ek_turn;
ek_code ek_template_turns(const ek_template *t, ek_tokenizer *tok, const ek_turn *turns, int n,
                          ek_tokens *out, ek_err *err);

#endif
