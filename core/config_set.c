/* core/config_set.c - `-s a.b=c` on the tree.  What a path does not find in the tables is put there
 * all the same: the check that follows says what is wrong with it, as for a file. */
#include "core/config_node.h"

#include <stdlib.h>
#include <string.h>

typedef struct set {
    ek_doc *doc;
    int number;
    ek_node *value;
    ek_err *err;
} set;

#define REFUSE(s, ...)                                                 \
    do {                                                               \
        char place_[400];                                              \
        ek_code code_ = EK_FAIL((s)->err, EK_EASKED, __VA_ARGS__);     \
        (void)code_;                                                   \
        ek_doc_place((s)->doc, (s)->number, 0, place_, sizeof place_); \
        return ek_err_in((s)->err, "%s", place_);                      \
    } while (0)

static ek_code no_memory(set *s)
{
    return EK_FAIL(s->err, EK_ENOMEM, "option -s: no memory");
}

int ek_doc_wrap(ek_doc *doc, ek_node *element, const ek_field *fields)
{
    ek_node *word;

    if (element->kind != EK_NODE_WORD || ek_node_is_null(element) || !fields[0].key ||
        (!element->quoted && element->text[0] == '\0'))
        return 1;
    word = ek_doc_node(doc, EK_NODE_WORD, element->line, element->set);
    if (!word)
        return 0;
    word->text = element->text;
    word->quoted = element->quoted;
    word->key = fields[0].key;
    element->kind = EK_NODE_MAP;
    ek_node_add(element, word);
    return 1;
}

static void put(set *s, ek_node *map, const char *key)
{
    ek_node *old = ek_node_find(map, key);

    s->value->key = key;
    if (old)
        ek_node_replace(map, old, s->value);
    else
        ek_node_add(map, s->value);
}

/* The element that `word` numbers. */
static ek_code element_of(set *s, const char *path, ek_node *list, const char *word, ek_node **out)
{
    char *end;
    const long i = strtol(word, &end, 10);

    if (*word < '0' || *word > '9' || *end != '\0' || i >= list->n) {
        if (list->n == 0)
            REFUSE(s, "%.200s: found element %.40s, but the list is empty", path, word);
        REFUSE(s, "%.200s: found element %.40s, expected 0 .. %d", path, word, list->n - 1);
    }
    *out = ek_node_at(list, (int)i);
    return EK_OK;
}

/* Takes the first word off *rest; NULL stays there if it was the last. */
static const char *next_word(ek_doc *doc, const char **rest)
{
    const char *dot = strchr(*rest, '.'), *word;

    word = ek_doc_copy(doc, *rest, dot ? (size_t)(dot - *rest) : strlen(*rest));
    *rest = dot ? dot + 1 : NULL;
    return word;
}

/* One word into a list.  *map becomes the element to go on in, or NULL: all is done. */
static ek_code step_list(set *s, const ek_field *f, const char **rest, ek_node **map)
{
    ek_node *list = ek_node_find(*map, f->key), *element = NULL;
    const char *word;

    if (!list)
        REFUSE(s, "%s: the file holds no such list; give it whole, as in %s=[..]", f->key, f->key);
    if (list->kind != EK_NODE_LIST) {
        *map = NULL; /* the check names the file's mistake */
        return EK_OK;
    }
    word = next_word(s->doc, rest);
    if (!word)
        return no_memory(s);
    EK_TRY(element_of(s, f->key, list, word, &element));
    if (!*rest) {
        ek_node_replace(list, element, s->value);
        *map = NULL;
        return EK_OK;
    }
    if (f->kind != EK_FIELD_LIST)
        REFUSE(s, "%s.%.40s: found .%.60s behind it, expected =", f->key, word, *rest);
    if (!ek_doc_wrap(s->doc, element, f->fields))
        return no_memory(s);
    *map = element->kind == EK_NODE_MAP ? element : NULL;
    return EK_OK;
}

/* One word into a mapping's mapping, which is made if it is not there. */
static ek_code step_map(set *s, const ek_field *f, ek_node **map)
{
    ek_node *inner = ek_node_find(*map, f->key);

    if (!inner) {
        inner = ek_doc_node(s->doc, EK_NODE_MAP, 0, s->number);
        if (!inner)
            return no_memory(s);
        inner->key = f->key;
        ek_node_add(*map, inner);
    }
    *map = inner->kind == EK_NODE_MAP ? inner : NULL;
    return EK_OK;
}

ek_code ek_doc_set(ek_doc *doc, const ek_field *fields, int number, ek_err *err)
{
    const char *text = doc->sets[number], *equals = strchr(text, '='), *rest;
    set s = {.doc = doc, .number = number, .err = err};
    ek_node *map = doc->root;

    if (!equals || equals == text)
        REFUSE(&s, "expected key=value");
    if (equals[1] == '\0')
        REFUSE(&s, "found nothing behind =, expected a value");
    EK_TRY(ek_doc_parse(doc, &s.value, equals + 1, strlen(equals + 1), number, err));
    rest = ek_doc_copy(doc, text, (size_t)(equals - text));
    if (!rest)
        return no_memory(&s);
    while (map) {
        const char *word = next_word(doc, &rest);
        const ek_field *f;

        if (!word)
            return no_memory(&s);
        f = ek_field_find(fields, word);
        if (!rest || !f) {
            put(&s, map, word);
            return EK_OK;
        }
        if (f->kind == EK_FIELD_MAP)
            EK_TRY(step_map(&s, f, &map));
        else if (f->kind == EK_FIELD_LIST || f->kind == EK_FIELD_INTS ||
                 f->kind == EK_FIELD_STRINGS)
            EK_TRY(step_list(&s, f, &rest, &map));
        else
            REFUSE(&s, "%s: found .%.60s behind it, expected =", f->key, rest);
        fields = f->fields;
    }
    return EK_OK;
}
