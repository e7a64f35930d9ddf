/* core/config.h - one YAML file is one run.
 *
 * Who owns a struct owns its table of fields.  From the tables come the libcyaml schema that loads
 * the file, the walk that finds unknown keys (with their line and the nearest known key), `-s`
 * overrides, printing, and the leaves stored with a run.  An absent key leaves what the struct held
 * before the load: fill it with defaults first.
 *
 * Whose memory: strings and lists that the struct holds before a load are borrowed, so defaults may
 * be literals and static arrays.  After the call, failed or not, all of them belong to the struct
 * and ek_config_clear frees them; after a failure they are NULL and empty, and nothing else has
 * changed.  Load a struct once, or clear it and set its defaults again.
 *
 * null means "not given": it leaves what the struct held, and makes a string NULL.  A number, an
 * enum or the length of a list that lies outside its own range (-1, NaN) prints as null, so that
 * defaults can say "not given" too.
 *
 * A list's element struct starts as the table's `element` (its defaults), or zero.  A list element
 * written as a bare word or number, where a mapping is expected, means the element's first field:
 * `methods: [full, {name: snapkv, window: 32}]`. */
#ifndef EK_CORE_CONFIG_H
#define EK_CORE_CONFIG_H

#include "core/err.h"

#include <stddef.h>
#include <stdint.h>

typedef enum ek_field_kind {
    EK_FIELD_INT,    /* int64_t */
    EK_FIELD_FLOAT,  /* double; NaN and infinities are refused */
    EK_FIELD_BOOL,   /* bool */
    EK_FIELD_STRING, /* char *, owned by the config; NULL if absent */
    EK_FIELD_ENUM,   /* int: index into names */
    EK_FIELD_MAP,    /* an embedded struct */
    EK_FIELD_LIST,   /* T *items at offset, owned; its length, int, at offset_n */
    EK_FIELD_INTS,   /* int64_t *items at offset, owned; its length, int, at offset_n */
    EK_FIELD_STRINGS /* char **items at offset, owned; its length, int, at offset_n */
} ek_field_kind;

typedef struct ek_field {
    const char *key;
    ek_field_kind kind;
    size_t offset, offset_n;
    double min, max; /* inclusive; of numbers, of each of INTS, of LIST's length; 0, 0: any */
    const char *const *names;      /* ENUM: NULL-terminated */
    const struct ek_field *fields; /* MAP, LIST: the inner table */
    size_t size;                   /* LIST: sizeof the element */
    const void *element;           /* LIST: defaults of an element, or NULL */
    const char *help;              /* one line */
} ek_field;                        /* a table ends with a NULL key */

#define EK_INT(T, f, lo, hi, h)                                                              \
    {                                                                                        \
        .key = #f, .kind = EK_FIELD_INT, .offset = offsetof(T, f), .min = (lo), .max = (hi), \
        .help = (h)                                                                          \
    }
#define EK_FLOAT(T, f, lo, hi, h)                                                              \
    {                                                                                          \
        .key = #f, .kind = EK_FIELD_FLOAT, .offset = offsetof(T, f), .min = (lo), .max = (hi), \
        .help = (h)                                                                            \
    }
#define EK_BOOL(T, f, h)                                                        \
    {                                                                           \
        .key = #f, .kind = EK_FIELD_BOOL, .offset = offsetof(T, f), .help = (h) \
    }
#define EK_STRING(T, f, h)                                                        \
    {                                                                             \
        .key = #f, .kind = EK_FIELD_STRING, .offset = offsetof(T, f), .help = (h) \
    }
#define EK_ENUM(T, f, n, h)                                                                   \
    {                                                                                         \
        .key = #f, .kind = EK_FIELD_ENUM, .offset = offsetof(T, f), .names = (n), .help = (h) \
    }
#define EK_MAP(T, f, t, h)                                                                    \
    {                                                                                         \
        .key = #f, .kind = EK_FIELD_MAP, .offset = offsetof(T, f), .fields = (t), .help = (h) \
    }
#define EK_LIST(T, f, nf, E, t, d, lo, hi, h)                                                    \
    {                                                                                            \
        .key = #f, .kind = EK_FIELD_LIST, .offset = offsetof(T, f), .offset_n = offsetof(T, nf), \
        .min = (lo), .max = (hi), .fields = (t), .size = sizeof(E), .element = (d), .help = (h)  \
    }
#define EK_INTS(T, f, nf, lo, hi, h)                                                             \
    {                                                                                            \
        .key = #f, .kind = EK_FIELD_INTS, .offset = offsetof(T, f), .offset_n = offsetof(T, nf), \
        .min = (lo), .max = (hi), .help = (h)                                                    \
    }
#define EK_STRINGS(T, f, nf, h)                                        \
    {                                                                  \
        .key = #f, .kind = EK_FIELD_STRINGS, .offset = offsetof(T, f), \
        .offset_n = offsetof(T, nf), .help = (h)                       \
    }
#define EK_FIELD_END \
    {                \
        .key = NULL  \
    }

/* Load path into out (already holding defaults), with n_sets overrides "a.b=c" (list elements by
 * number: "methods.1.window=32"; a value is YAML, so "methods=[full, tova]" works too).  All
 * unknown keys are reported at once.  A wrong override names the option, not a line. */
ek_code ek_config_load(void *out, const ek_field *fields, const char *path, const char *const *sets,
                       int n_sets, ek_err *err);
/* The same from memory; name stands for the path in messages.  Size 0: no keys, overrides alone. */
ek_code ek_config_parse(void *out, const ek_field *fields, const char *text, size_t size,
                        const char *name, const char *const *sets, int n_sets, ek_err *err);
void ek_config_clear(void *config, const ek_field *fields); /* frees what the load allocated */

/* The resolved run as YAML text, every key present; malloc'd, the caller frees.  NULL: no memory.
 */
char *ek_config_text(const void *config, const ek_field *fields);

/* Every leaf as "methods.1.window" and "32", in table order. */
void ek_config_leaves(const void *config, const ek_field *fields,
                      void (*leaf)(void *ctx, const char *key, const char *value), void *ctx);

/* The known keys, one line each: "name  kind and range  help", for --help. */
char *ek_config_help(const ek_field *fields);

/* The name nearest to word by edit distance, or NULL if none is near (distance > 1 + length/3,
 * or every letter differs). */
const char *ek_nearest(const char *word, const char *const *names, int n);

#endif
