/* core/config_node.h - what the parts of core/config*.c share, and nobody else includes: the tree
 * that a document becomes, so that overrides can change it and messages can say where a value
 * stands.
 *
 *   config_walk.c   text -> tree (libyaml): one document, no anchors, no equal keys
 *   config_set.c    -s a.b=c changes the tree
 *   config_check.c  tree against table: unknown keys, kinds, ranges; values become numbers
 *   config.c        tree -> libcyaml -> struct
 *   config_text.c   struct -> text, leaves; help; words in quotes */
#ifndef EK_CORE_CONFIG_NODE_H
#define EK_CORE_CONFIG_NODE_H

#include "core/config.h"
#include "core/json.h"

typedef enum ek_node_kind { EK_NODE_WORD, EK_NODE_LIST, EK_NODE_MAP } ek_node_kind;

typedef struct ek_node {
    ek_node_kind kind;
    int line;        /* from 1, of the value */
    int set;         /* -1, or the number of the option it came from */
    const char *key; /* of a map's member */
    int key_line;
    const char *text; /* WORD */
    int quoted;       /* WORD: not a plain one, so it is text and nothing else */
    int64_t i;        /* WORD, once checked: INT, BOOL, ENUM */
    double d;         /* WORD, once checked: FLOAT */
    int n;            /* LIST, MAP: children */
    struct ek_node *child, *last, *next;
} ek_node;

/* A document and its memory: nodes and texts live until ek_doc_clear. */
typedef struct ek_doc {
    const char *name; /* of the file; borrowed, like the options */
    const char *const *sets;
    int n_sets;
    ek_node *root;
    struct ek_block *blocks;
} ek_doc;

void ek_doc_clear(ek_doc *doc);
ek_node *ek_doc_node(ek_doc *doc, ek_node_kind kind, int line, int set); /* NULL: no memory */
char *ek_doc_copy(ek_doc *doc, const char *s, size_t n);                 /* NULL: no memory */
void ek_node_add(ek_node *parent, ek_node *child);
ek_node *ek_node_find(const ek_node *map, const char *key); /* or NULL */
ek_node *ek_node_at(const ek_node *list, int i);            /* or NULL */
void ek_node_replace(ek_node *parent, ek_node *old, ek_node *with);

/* Parse a text that holds one document.  set: -1 for the file, or the number of the option. */
ek_code ek_doc_parse(ek_doc *doc, ek_node **out, const char *text, size_t size, int set,
                     ek_err *err);

/* A list's element that is a bare word becomes a mapping of the first field to it, in place; others
 * stay as they are.  0: no memory. */
int ek_doc_wrap(ek_doc *doc, ek_node *element, const ek_field *fields);

ek_code ek_doc_set(ek_doc *doc, const ek_field *fields, int set, ek_err *err);
ek_code ek_doc_check(ek_doc *doc, const ek_field *fields, ek_err *err);

/* "configs/x.yaml: line 3" or "option -s a.b=c". */
const char *ek_doc_place(const ek_doc *doc, int set, int line, char *out, size_t room);

/* null or ~, written plainly. */
int ek_node_is_null(const ek_node *v);

const ek_field *ek_field_find(const ek_field *fields, const char *key);
int ek_field_has_range(const ek_field *f);
int ek_field_in_range(const ek_field *f, double x);
int ek_field_n_names(const ek_field *f);                           /* ENUM */
void ek_field_expected(const ek_field *f, char *out, size_t room); /* "a whole number 1 .. 8" */

/* "a.b.0.c", growing and shrinking while a tree is walked; what does not fit is cut. */
typedef struct ek_path {
    char text[400];
    size_t n;
} ek_path;
size_t ek_path_push(ek_path *p, const char *key); /* returns the length before, for pop */
size_t ek_path_push_number(ek_path *p, int i);
void ek_path_pop(ek_path *p, size_t n);

void ek_number_text(char out[32], double x);    /* shortest form that reads back the same */
void ek_text_word(ek_text *t, const char *s);   /* a YAML word, in quotes where needed */
void ek_text_quoted(ek_text *t, const char *s); /* always in quotes */

#endif
