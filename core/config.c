/* core/config.c - see config.h.  The checked tree is written as YAML again and read by libcyaml,
 * whose schema is made of the same tables; the only user of cyaml.h.
 *
 * libcyaml loads into a shadow struct: field i of a table is a pointer at 16 i, NULL if the key is
 * absent, and the length of a list at 16 i + 8.  What is there then moves into the caller's struct,
 * so an absent key leaves what the struct held. */
#include "core/config.h"
#include "core/config_node.h"
#include "core/file.h"

#include <cyaml/cyaml.h>

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { SLOT = 16, COUNT = 8 };

static void *at(void *config, size_t offset)
{
    return (char *)config + offset;
}

/* ---- schema ---- */

/* Everything a schema is made of, freed together. */
typedef struct schema {
    struct piece {
        struct piece *next;
        _Alignas(16) char data[];
    } * pieces;
    int failed;
} schema;

static void *take(schema *s, size_t n)
{
    struct piece *p = calloc(1, sizeof *p + n);

    if (!p) {
        s->failed = 1;
        return NULL;
    }
    p->next = s->pieces;
    s->pieces = p;
    return p->data;
}

static void schema_clear(schema *s)
{
    while (s->pieces) {
        struct piece *next = s->pieces->next;

        free(s->pieces);
        s->pieces = next;
    }
}

static uint32_t n_fields(const ek_field *fields)
{
    uint32_t n = 0;

    while (fields[n].key)
        n++;
    return n;
}

static uint32_t shadow_size(const ek_field *fields)
{
    const uint32_t n = n_fields(fields);

    return SLOT * (n ? n : 1);
}

static const cyaml_schema_field_t *schema_of(schema *s, const ek_field *fields);

static void set_names(schema *s, cyaml_schema_value_t *v, const ek_field *f)
{
    const int n = ek_field_n_names(f);
    cyaml_strval_t *names = take(s, (size_t)(n + 1) * sizeof *names);

    for (int i = 0; names && i < n; i++)
        names[i] = (cyaml_strval_t){.str = f->names[i], .val = i};
    v->enumeration.strings = names;
    v->enumeration.count = (uint32_t)n;
    v->flags |= CYAML_FLAG_STRICT;
}

static void set_entry(schema *s, cyaml_schema_value_t *v, const ek_field *f)
{
    cyaml_schema_value_t *e = take(s, sizeof *e);

    if (!e)
        return;
    if (f->kind == EK_FIELD_LIST) {
        e->type = CYAML_MAPPING;
        e->data_size = shadow_size(f->fields);
        e->mapping.fields = schema_of(s, f->fields);
    } else if (f->kind == EK_FIELD_INTS) {
        e->type = CYAML_INT;
        e->data_size = sizeof(int64_t);
    } else {
        e->type = CYAML_STRING;
        e->flags = CYAML_FLAG_POINTER;
        e->data_size = sizeof(char *);
        e->string.max = CYAML_UNLIMITED;
    }
    v->type = CYAML_SEQUENCE;
    v->data_size = e->data_size;
    v->sequence.entry = e;
    v->sequence.max = CYAML_UNLIMITED;
}

static void set_value(schema *s, cyaml_schema_value_t *v, const ek_field *f)
{
    v->flags = CYAML_FLAG_POINTER | CYAML_FLAG_OPTIONAL;
    switch (f->kind) {
    case EK_FIELD_INT:
        v->type = CYAML_INT;
        v->data_size = sizeof(int64_t);
        break;
    case EK_FIELD_FLOAT:
        v->type = CYAML_FLOAT;
        v->data_size = sizeof(double);
        break;
    case EK_FIELD_BOOL:
        v->type = CYAML_BOOL;
        v->data_size = sizeof(bool);
        break;
    case EK_FIELD_STRING:
        v->type = CYAML_STRING;
        v->data_size = sizeof(char *);
        v->string.max = CYAML_UNLIMITED;
        break;
    case EK_FIELD_ENUM:
        v->type = CYAML_ENUM;
        v->data_size = sizeof(int);
        set_names(s, v, f);
        break;
    case EK_FIELD_MAP:
        v->type = CYAML_MAPPING;
        v->data_size = shadow_size(f->fields);
        v->mapping.fields = schema_of(s, f->fields);
        break;
    case EK_FIELD_LIST:
    case EK_FIELD_INTS:
    case EK_FIELD_STRINGS:
        set_entry(s, v, f);
        break;
    }
}

static const cyaml_schema_field_t *schema_of(schema *s, const ek_field *fields)
{
    const uint32_t n = n_fields(fields);
    cyaml_schema_field_t *out = take(s, (n + 1) * sizeof *out);

    for (uint32_t i = 0; out && i < n; i++) {
        out[i].key = fields[i].key;
        out[i].data_offset = SLOT * i;
        out[i].count_offset = SLOT * i + COUNT;
        out[i].count_size = sizeof(uint64_t);
        set_value(s, &out[i].value, &fields[i]);
    }
    return out;
}

/* ---- the tree as text again ---- */

static void write_map(ek_text *t, const ek_node *map, const ek_field *fields);

static void write_word(ek_text *t, const ek_node *v, ek_field_kind kind)
{
    char number[32];

    switch (kind) {
    case EK_FIELD_INT:
    case EK_FIELD_INTS:
        ek_text_add(t, "%lld", (long long)v->i);
        break;
    case EK_FIELD_FLOAT:
        ek_number_text(number, v->d);
        ek_text_add(t, "%s", number);
        break;
    case EK_FIELD_BOOL:
        ek_text_add(t, "%s", v->i ? "true" : "false");
        break;
    default:
        ek_text_quoted(t, v->text);
        break;
    }
}

static void write_map(ek_text *t, const ek_node *map, const ek_field *fields)
{
    const char *comma = "";

    ek_text_add(t, "{");
    for (const ek_node *v = map->child; v; v = v->next) {
        const ek_field *f = ek_field_find(fields, v->key);

        if (ek_node_is_null(v))
            continue;
        ek_text_add(t, "%s\"%s\": ", comma, f->key);
        comma = ", ";
        if (v->kind == EK_NODE_MAP) {
            write_map(t, v, f->fields);
        } else if (v->kind == EK_NODE_LIST) {
            ek_text_add(t, "[");
            for (const ek_node *e = v->child; e; e = e->next) {
                if (f->kind == EK_FIELD_LIST)
                    write_map(t, e, f->fields);
                else
                    write_word(t, e, f->kind);
                ek_text_add(t, "%s", e->next ? ", " : "");
            }
            ek_text_add(t, "]");
        } else {
            write_word(t, v, f->kind);
        }
    }
    ek_text_add(t, "}");
}

/* libcyaml says what it has to say in pieces. */
typedef struct yaml_log {
    char text[512];
} yaml_log;

static void log_piece(cyaml_log_t level, void *ctx, const char *fmt, va_list args)
{
    yaml_log *log = ctx;
    const size_t used = strlen(log->text);

    if (level >= CYAML_LOG_ERROR && used + 1 < sizeof log->text)
        vsnprintf(log->text + used, sizeof log->text - used, fmt, args);
}

/* ---- ownership ---- */

static char *copy_string(const char *s, int *ok)
{
    char *copy = s ? strdup(s) : NULL;

    if (s && !copy)
        *ok = 0;
    return copy;
}

static void *copy_block(const void *p, size_t n, size_t size, int *ok)
{
    void *copy = p && n > 0 ? malloc(n * size) : NULL;

    if (copy)
        memcpy(copy, p, n * size);
    else if (p && n > 0)
        *ok = 0;
    return copy;
}

/* Replace every borrowed string and list by a copy of its own; NULL where there is no memory for
 * it.  copies = 0: by NULL everywhere.  Returns whether all went well. */
static int own(void *config, const ek_field *fields, int copies)
{
    int ok = 1;

    for (const ek_field *f = fields; f->key; f++) {
        void **p = at(config, f->offset);
        int *n = at(config, f->offset_n);

        if (f->kind == EK_FIELD_MAP) {
            ok &= own(p, f->fields, copies);
        } else if (f->kind == EK_FIELD_STRING) {
            *p = copies ? copy_string(*p, &ok) : NULL;
        } else if (f->kind == EK_FIELD_LIST || f->kind == EK_FIELD_INTS ||
                   f->kind == EK_FIELD_STRINGS) {
            const size_t size = f->kind == EK_FIELD_LIST   ? f->size
                                : f->kind == EK_FIELD_INTS ? sizeof(int64_t)
                                                           : sizeof(char *);

            *p = copies ? copy_block(*p, (size_t)*n, size, &ok) : NULL;
            if (!*p)
                *n = 0;
            for (int i = 0; i < *n && f->kind == EK_FIELD_LIST; i++)
                ok &= own(at(*p, (size_t)i * size), f->fields, copies);
            for (int i = 0; i < *n && f->kind == EK_FIELD_STRINGS; i++)
                ((char **)*p)[i] = copy_string(((char **)*p)[i], &ok);
        }
    }
    return ok;
}

static void clear_field(void *config, const ek_field *f)
{
    void **p = at(config, f->offset);
    int *n = at(config, f->offset_n);

    if (f->kind == EK_FIELD_MAP) {
        ek_config_clear(p, f->fields);
    } else if (f->kind == EK_FIELD_STRING) {
        free(*p);
        *p = NULL;
    } else if (f->kind == EK_FIELD_LIST || f->kind == EK_FIELD_INTS ||
               f->kind == EK_FIELD_STRINGS) {
        for (int i = 0; *p && i < *n; i++) {
            if (f->kind == EK_FIELD_LIST)
                ek_config_clear(at(*p, (size_t)i * f->size), f->fields);
            else if (f->kind == EK_FIELD_STRINGS)
                free(((char **)*p)[i]);
        }
        free(*p);
        *p = NULL;
        *n = 0;
    }
}

void ek_config_clear(void *config, const ek_field *fields)
{
    for (const ek_field *f = fields; f->key; f++)
        clear_field(config, f);
}

/* ---- shadow -> struct ---- */

static int move_map(void *config, const ek_field *fields, const ek_node *map, char *shadow);

static int move_list(void *config, const ek_field *f, const ek_node *list, char *shadow)
{
    const uint32_t step = shadow_size(f->fields);
    char *items = calloc((size_t)list->n + 1, f->size);
    int i = 0, ok = 1;

    if (!items)
        return 0;
    for (const ek_node *e = list->child; e; e = e->next, i++) {
        char *item = items + (size_t)i * f->size;

        if (f->element)
            memcpy(item, f->element, f->size);
        ok &= own(item, f->fields, 1);
        ok &= move_map(item, f->fields, e, shadow + (size_t)i * step);
    }
    clear_field(config, f);
    *(void **)at(config, f->offset) = items;
    *(int *)at(config, f->offset_n) = list->n;
    return ok;
}

static int move_value(void *config, const ek_field *f, const ek_node *v, void **slot)
{
    void *to = at(config, f->offset);

    switch (f->kind) {
    case EK_FIELD_INT:
        memcpy(to, *slot, sizeof(int64_t));
        return 1;
    case EK_FIELD_FLOAT:
        memcpy(to, *slot, sizeof(double));
        return 1;
    case EK_FIELD_BOOL:
        memcpy(to, *slot, sizeof(bool));
        return 1;
    case EK_FIELD_ENUM:
        memcpy(to, *slot, sizeof(int));
        return 1;
    case EK_FIELD_MAP:
        return move_map(to, f->fields, v, *slot);
    case EK_FIELD_LIST:
        return move_list(config, f, v, *slot);
    case EK_FIELD_INTS:
    case EK_FIELD_STRINGS:
        clear_field(config, f);
        *(void **)to = *slot;
        *(int *)at(config, f->offset_n) = v->n;
        memset(slot, 0, SLOT); /* it is ours now */
        return 1;
    case EK_FIELD_STRING:
        clear_field(config, f);
        *(void **)to = *slot;
        *slot = NULL;
        return 1;
    }
    return 0;
}

/* All that map names: the shadow holds its values.  0: no memory. */
static int move_map(void *config, const ek_field *fields, const ek_node *map, char *shadow)
{
    int ok = 1;

    for (const ek_node *v = map->child; v; v = v->next) {
        const ek_field *f = ek_field_find(fields, v->key);
        void **slot = (void **)(void *)(shadow + SLOT * (f - fields));

        if (!ek_node_is_null(v))
            ok &= move_value(config, f, v, slot);
        else if (f->kind == EK_FIELD_STRING)
            clear_field(config, f);
    }
    return ok;
}

/* ---- the load ---- */

static ek_code read_tree(ek_doc *doc, const ek_field *fields, const char *text, size_t size,
                         ek_err *err)
{
    if (size > 0) {
        EK_TRY(ek_doc_parse(doc, &doc->root, text, size, -1, err));
    } else if (!(doc->root = ek_doc_node(doc, EK_NODE_MAP, 1, -1))) {
        return EK_FAIL(err, EK_ENOMEM, "%s: no memory to read it", doc->name);
    }
    /* Overrides go into a mapping; without one the check says what the file is instead. */
    for (int i = 0; i < doc->n_sets && doc->root->kind == EK_NODE_MAP; i++)
        EK_TRY(ek_doc_set(doc, fields, i, err));
    return ek_doc_check(doc, fields, err);
}

/* The checked tree -> libcyaml -> shadow, which cyaml_free takes back. */
static ek_code load_shadow(const ek_doc *doc, const cyaml_config_t *how,
                           const cyaml_schema_value_t *top, const ek_field *fields, void **shadow,
                           ek_err *err)
{
    yaml_log *log = how->log_ctx;
    ek_text text = {0};
    cyaml_err_t got;

    write_map(&text, doc->root, fields);
    if (text.failed) {
        ek_text_clear(&text);
        return EK_FAIL(err, EK_ENOMEM, "%s: no memory to load it", doc->name);
    }
    got = cyaml_load_data((const uint8_t *)text.data, text.size, how, top, (cyaml_data_t **)shadow,
                          NULL);
    ek_text_clear(&text);
    if (got == CYAML_OK)
        return EK_OK;
    if (got == CYAML_ERR_OOM)
        return EK_FAIL(err, EK_ENOMEM, "%s: no memory to load it", doc->name);
    log->text[strcspn(log->text, "\n")] = '\0';
    return EK_FAIL(err, EK_EBROKEN, "%s: libcyaml refuses what the walk accepted: %s: %s",
                   doc->name, cyaml_strerror(got), log->text);
}

static ek_code load(void *out, const ek_field *fields, const char *text, size_t size, ek_doc *doc,
                    ek_err *err)
{
    schema s = {0};
    yaml_log log = {.text = ""};
    const cyaml_config_t how = {.log_fn = log_piece,
                                .log_ctx = &log,
                                .log_level = CYAML_LOG_ERROR,
                                .mem_fn = cyaml_mem,
                                .flags = CYAML_CFG_NO_ALIAS};
    cyaml_schema_value_t top = {
        .type = CYAML_MAPPING, .flags = CYAML_FLAG_POINTER, .data_size = shadow_size(fields)};
    void *shadow = NULL;
    ek_code code = read_tree(doc, fields, text, size, err);

    if (code == EK_OK) {
        top.mapping.fields = schema_of(&s, fields);
        code = s.failed ? EK_FAIL(err, EK_ENOMEM, "%s: no memory to load it", doc->name)
                        : load_shadow(doc, &how, &top, fields, &shadow, err);
    }
    if (code != EK_OK) {
        own(out, fields, 0);
    } else if (!own(out, fields, 1) || !move_map(out, fields, doc->root, shadow)) {
        code = EK_FAIL(err, EK_ENOMEM, "%s: no memory to load it", doc->name);
    }
    if (shadow)
        cyaml_free(&how, &top, shadow, 0);
    schema_clear(&s);
    return code;
}

ek_code ek_config_parse(void *out, const ek_field *fields, const char *text, size_t size,
                        const char *name, const char *const *sets, int n_sets, ek_err *err)
{
    ek_doc doc = {.name = name, .sets = sets, .n_sets = n_sets};
    const ek_code code = load(out, fields, text, size, &doc, err);

    ek_doc_clear(&doc);
    return code;
}

ek_code ek_config_load(void *out, const ek_field *fields, const char *path, const char *const *sets,
                       int n_sets, ek_err *err)
{
    ek_map map = {0};
    ek_code code = ek_map_open(&map, path, err);

    if (code == EK_OK && map.size == 0)
        code = EK_FAIL(err, EK_EINPUT, "%s: found an empty file, expected a YAML document", path);
    if (code == EK_OK)
        code =
            ek_config_parse(out, fields, (const char *)map.data, map.size, path, sets, n_sets, err);
    else
        own(out, fields, 0);
    ek_map_close(&map);
    return code;
}
