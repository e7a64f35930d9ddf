/* core/config_walk.c - text -> tree of nodes, by libyaml's events; the only user of yaml.h. */
#include "core/config_node.h"

#include <yaml.h>

#include <stdlib.h>
#include <string.h>

/* A configuration is written by hand; whatever is larger than this is something else. */
enum { MAX_BYTES = 1000 * 1000, MAX_DEPTH = 24, MAX_KEYS = 1000 };

typedef struct ek_block {
    struct ek_block *next;
    size_t used, room;
    _Alignas(16) char data[];
} ek_block;

static void *take(ek_doc *doc, size_t n)
{
    enum { ROOM = 16 * 1024 };
    ek_block *b = doc->blocks;
    void *p;

    n = (n + 15) & ~(size_t)15;
    if (!b || b->room - b->used < n) {
        const size_t room = n > ROOM ? n : ROOM;

        b = malloc(sizeof *b + room);
        if (!b)
            return NULL;
        b->next = doc->blocks;
        b->used = 0;
        b->room = room;
        doc->blocks = b;
    }
    p = b->data + b->used;
    b->used += n;
    return p;
}

void ek_doc_clear(ek_doc *doc)
{
    while (doc->blocks) {
        ek_block *next = doc->blocks->next;

        free(doc->blocks);
        doc->blocks = next;
    }
    doc->root = NULL;
}

ek_node *ek_doc_node(ek_doc *doc, ek_node_kind kind, int line, int set)
{
    ek_node *v = take(doc, sizeof *v);

    if (v)
        *v = (ek_node){.kind = kind, .line = line, .key_line = line, .set = set};
    return v;
}

char *ek_doc_copy(ek_doc *doc, const char *s, size_t n)
{
    char *copy = take(doc, n + 1);

    if (copy) {
        memcpy(copy, s, n);
        copy[n] = '\0';
    }
    return copy;
}

void ek_node_add(ek_node *parent, ek_node *child)
{
    if (parent->last)
        parent->last->next = child;
    else
        parent->child = child;
    parent->last = child;
    parent->n++;
}

ek_node *ek_node_find(const ek_node *map, const char *key)
{
    ek_node *v = map->child;

    while (v && strcmp(v->key, key) != 0)
        v = v->next;
    return v;
}

ek_node *ek_node_at(const ek_node *list, int i)
{
    ek_node *v = list->child;

    while (v && i-- > 0)
        v = v->next;
    return v;
}

void ek_node_replace(ek_node *parent, ek_node *old, ek_node *with)
{
    ek_node **at = &parent->child;

    while (*at != old)
        at = &(*at)->next;
    *at = with;
    with->next = old->next;
    if (parent->last == old)
        parent->last = with;
}

const char *ek_doc_place(const ek_doc *doc, int set, int line, char *out, size_t room)
{
    if (set >= 0)
        snprintf(out, room, "option -s %.120s", doc->sets[set]);
    else
        snprintf(out, room, "%.200s: line %d", doc->name, line);
    return out;
}

typedef struct walk {
    ek_doc *doc;
    yaml_parser_t parser;
    const char *text;
    size_t size;
    int set;
    ek_err *err;
} walk;

#define REFUSE(w, line, ...)                                             \
    do {                                                                 \
        char place_[400];                                                \
        ek_code code_ = EK_FAIL((w)->err, EK_EINPUT, __VA_ARGS__);       \
        (void)code_;                                                     \
        ek_doc_place((w)->doc, (w)->set, (line), place_, sizeof place_); \
        return ek_err_in((w)->err, "%s", place_);                        \
    } while (0)

static ek_code no_memory(walk *w)
{
    return EK_FAIL(w->err, EK_ENOMEM, "%s: no memory to read it", w->doc->name);
}

static int line_of(const yaml_event_t *e)
{
    return (int)e->start_mark.line + 1;
}

/* The next event, which the caller deletes. */
static ek_code next_event(walk *w, yaml_event_t *e)
{
    int line;

    if (yaml_parser_parse(&w->parser, e))
        return EK_OK;
    if (w->parser.error == YAML_MEMORY_ERROR)
        return no_memory(w);
    line = (int)w->parser.problem_mark.line + 1;
    if (w->parser.error == YAML_READER_ERROR) { /* has an offset instead of a line */
        line = 1;
        for (size_t i = 0; i < w->parser.problem_offset && i < w->size; i++)
            line += w->text[i] == '\n';
    }
    REFUSE(w, line, "not valid YAML: %s", w->parser.problem ? w->parser.problem : "no reason");
}

static ek_code check_marks(walk *w, const yaml_event_t *e)
{
    const yaml_char_t *anchor = NULL, *tag = NULL;

    if (e->type == YAML_ALIAS_EVENT)
        REFUSE(w, line_of(e), "found alias *%.60s, expected a value: aliases are not accepted",
               (const char *)e->data.alias.anchor);
    if (e->type == YAML_SCALAR_EVENT) {
        anchor = e->data.scalar.anchor;
        tag = e->data.scalar.tag;
    } else if (e->type == YAML_SEQUENCE_START_EVENT) {
        anchor = e->data.sequence_start.anchor;
        tag = e->data.sequence_start.tag;
    } else if (e->type == YAML_MAPPING_START_EVENT) {
        anchor = e->data.mapping_start.anchor;
        tag = e->data.mapping_start.tag;
    }
    if (anchor)
        REFUSE(w, line_of(e), "found anchor &%.60s, expected a value: anchors are not accepted",
               (const char *)anchor);
    if (tag)
        REFUSE(w, line_of(e), "found tag %.60s, expected a value: tags are not accepted",
               (const char *)tag);
    return EK_OK;
}

static ek_code read_word(walk *w, const yaml_event_t *e, ek_node *v)
{
    const char *s = (const char *)e->data.scalar.value;
    const size_t n = e->data.scalar.length;

    if (memchr(s, '\0', n))
        REFUSE(w, line_of(e), "found a NUL in a text, which is not accepted");
    v->text = ek_doc_copy(w->doc, s, n);
    v->quoted = e->data.scalar.style != YAML_PLAIN_SCALAR_STYLE;
    return v->text ? EK_OK : no_memory(w);
}

static ek_code read_value(walk *w, const yaml_event_t *first, int depth, ek_node **out);

/* The next event and the value it begins; *end instead if the event is `stop`. */
static ek_code read_next(walk *w, yaml_event_type_t stop, int depth, ek_node **out, int *end)
{
    yaml_event_t e;
    ek_code code;

    EK_TRY(next_event(w, &e));
    *end = e.type == stop;
    code = *end ? EK_OK : read_value(w, &e, depth, out);
    yaml_event_delete(&e);
    return code;
}

static ek_code read_map(walk *w, ek_node *map, int depth)
{
    for (;;) {
        ek_node *key, *v;
        const ek_node *before;
        int end;

        EK_TRY(read_next(w, YAML_MAPPING_END_EVENT, depth, &key, &end));
        if (end)
            return EK_OK;
        if (key->kind != EK_NODE_WORD)
            REFUSE(w, key->line, "found a list or mapping as a key, expected a word");
        EK_TRY(read_next(w, YAML_MAPPING_END_EVENT, depth, &v, &end));
        before = ek_node_find(map, key->text);
        if (before)
            REFUSE(w, key->line, "found key \"%.60s\" twice, expected once (first on line %d)",
                   key->text, before->key_line);
        if (map->n == MAX_KEYS)
            REFUSE(w, key->line, "found more than %d keys in a mapping", MAX_KEYS);
        v->key = key->text;
        v->key_line = key->line;
        ek_node_add(map, v);
    }
}

/* Recursion is as deep as the document is nested, at most MAX_DEPTH. */
static ek_code read_value(walk *w, const yaml_event_t *first, int depth, ek_node **out)
{
    ek_node *v, *element;
    int end;

    EK_TRY(check_marks(w, first));
    if (depth > MAX_DEPTH)
        REFUSE(w, line_of(first), "found values nested deeper than %d", MAX_DEPTH);
    v = ek_doc_node(w->doc, EK_NODE_WORD, line_of(first), w->set);
    if (!v)
        return no_memory(w);
    *out = v;
    if (first->type == YAML_SCALAR_EVENT)
        return read_word(w, first, v);
    if (first->type == YAML_MAPPING_START_EVENT) {
        v->kind = EK_NODE_MAP;
        return read_map(w, v, depth + 1);
    }
    v->kind = EK_NODE_LIST;
    for (;;) {
        EK_TRY(read_next(w, YAML_SEQUENCE_END_EVENT, depth + 1, &element, &end));
        if (end)
            return EK_OK;
        ek_node_add(v, element);
    }
}

/* Stream start, one document, stream end. */
static ek_code read_stream(walk *w, ek_node **out)
{
    yaml_event_t e;
    ek_code code = EK_OK;
    int documents = 0, end = 0;

    while (code == EK_OK && !end) {
        EK_TRY(next_event(w, &e));
        if (e.type == YAML_STREAM_END_EVENT)
            end = 1;
        else if (e.type != YAML_STREAM_START_EVENT && e.type != YAML_DOCUMENT_START_EVENT &&
                 e.type != YAML_DOCUMENT_END_EVENT)
            code = read_value(w, &e, 0, out);
        else if (e.type == YAML_DOCUMENT_START_EVENT)
            documents++;
        const int line = line_of(&e);

        yaml_event_delete(&e);
        if (documents > 1)
            REFUSE(w, line, "found a second document, expected one");
    }
    if (code == EK_OK && documents == 0)
        REFUSE(w, 1, "found nothing, expected a document");
    return code;
}

ek_code ek_doc_parse(ek_doc *doc, ek_node **out, const char *text, size_t size, int set,
                     ek_err *err)
{
    walk w = {.doc = doc, .text = text, .size = size, .set = set, .err = err};
    ek_code code;

    if (size > MAX_BYTES)
        return EK_FAIL(err, EK_EINPUT, "%s: found %zu bytes, expected at most %d", doc->name, size,
                       MAX_BYTES);
    if (!yaml_parser_initialize(&w.parser))
        return no_memory(&w);
    yaml_parser_set_input_string(&w.parser, (const unsigned char *)text, size);
    code = read_stream(&w, out);
    yaml_parser_delete(&w.parser);
    return code;
}
