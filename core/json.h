/* core/json.h - bounded JSON: the only user of cJSON.
 *
 * What users supply is hostile: size and nesting are limited, text behind the value is refused,
 * duplicate keys are refused, NUL inside strings is refused, numbers are read as doubles and
 * checked for range and integrality by who asks. */
#ifndef EK_CORE_JSON_H
#define EK_CORE_JSON_H

#include "core/err.h"

#include <stddef.h>
#include <stdint.h>

typedef struct ek_json ek_json; /* a value; children are borrowed from their root */

/* name is for messages.  The root is the caller's to close. */
ek_code ek_json_parse(ek_json **out, const char *text, size_t size, const char *name, ek_err *err);
void ek_json_close(ek_json *root);

typedef enum ek_json_kind {
    EK_JSON_NULL,
    EK_JSON_BOOL,
    EK_JSON_NUMBER,
    EK_JSON_STRING,
    EK_JSON_ARRAY,
    EK_JSON_OBJECT
} ek_json_kind;
ek_json_kind ek_json_kind_of(const ek_json *v);
const char *ek_json_key(const ek_json *v);      /* of an object's member */
const ek_json *ek_json_child(const ek_json *v); /* first element or member, or NULL */
const ek_json *ek_json_next(const ek_json *v);  /* the one after v, or NULL */
const ek_json *ek_json_get(const ek_json *v, const char *key); /* exact match, or NULL */
const char *ek_json_string(const ek_json *v);                  /* NULL unless a string */
int ek_json_is_true(const ek_json *v);                         /* the literal true; NULL is not */
double ek_json_number(const ek_json *v);                       /* NaN unless a number */
/* An exact integer within [lo, hi]; 0 if not. */
int ek_json_int(const ek_json *v, int64_t lo, int64_t hi, int64_t *out);

/* Writing: append to a growing text. */
typedef struct ek_text {
    char *data; /* NUL-terminated; owned */
    size_t size, room;
    int failed; /* out of memory at some point */
} ek_text;
void ek_text_add(ek_text *t, const char *fmt, ...) EK_PRINTF(2, 3);
void ek_text_bytes(ek_text *t, const void *data, size_t size); /* as they are, NULs included */
void ek_text_json(ek_text *t, const char *utf8, size_t size);  /* quoted and escaped */
void ek_text_clear(ek_text *t);

#endif
