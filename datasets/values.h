/* datasets/values.h - what training text asks to remember: values of many kinds, and sentences with
 * slots that they fill. */
#ifndef EK_DATASETS_VALUES_H
#define EK_DATASETS_VALUES_H

#include "datasets/draw.h"

#include <stddef.h>

typedef enum ek_value_kind {
    EK_VALUE_NUMBER, /* three, four, six or seven digits */
    EK_VALUE_CODE,   /* letters and digits */
    EK_VALUE_NAME,   /* of a person */
    EK_VALUE_PLACE,
    EK_VALUE_TIME,
    EK_VALUE_DATE,
    EK_VALUE_WORD,
    EK_VALUE_COLOUR,
    EK_VALUE_THING,
    EK_VALUE_DOUBLE, /* two words with a hyphen */
    EK_VALUE_MADE,   /* a name that nobody has */
    EK_VALUE_WIRE,   /* three digits, a hyphen, four digits */
    EK_VALUE_SMALL,  /* two digits */
    EK_N_VALUES
} ek_value_kind;

enum { EK_VALUE_ROOM = 64 };

void ek_value_draw(char *out, size_t room, ek_value_kind k, ek_draw *draw);

/* Every word that values are made of, each handed to `word` once, in a fixed order. */
void ek_values_words(void (*word)(void *ctx, const char *text), void *ctx);

/* Slots of a pattern: %K a key, %V its value, %1 %2 %3 the fields of a record; word has one for
 * each, in this order.  The last occurrence of the slot `marked` (an index into word, or -1) is
 * reported in begin .. end-1.  malloc'd; NULL: no memory. */
enum { EK_SLOT_KEY, EK_SLOT_VALUE, EK_SLOT_FIELD, EK_N_SLOTS = 5 };
char *ek_slots_fill(const char *pattern, const char *const *word, int marked, size_t *begin,
                    size_t *end);

#endif
