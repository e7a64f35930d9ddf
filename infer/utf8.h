/* infer/utf8.h - where UTF-8 characters end, and what to do where they do not. */
#ifndef EK_INFER_UTF8_H
#define EK_INFER_UTF8_H

#include "core/json.h"

/* Length 1 .. 4 of the valid character at s (size >= 1 bytes left), or 0: no valid character
 * begins here.  Overlong forms, surrogates and numbers past U+10FFFF are invalid. */
int ek_utf8_char(const char *s, size_t size);
/* Offset of the first byte that is no valid UTF-8; size if all is valid. */
size_t ek_utf8_valid(const char *s, size_t size);
/* Bytes at the front that can be shown: size, less an unfinished character at the end.  For
 * streaming: show these, hold back the rest. */
size_t ek_utf8_whole(const char *s, size_t size);
/* Append s with each invalid byte as U+FFFD: for generated text on its way to people or JSON. */
void ek_utf8_repair(ek_text *out, const char *s, size_t size);

#endif
