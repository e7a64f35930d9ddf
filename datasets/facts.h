/* datasets/facts.h - the short facts that retrieval text hides, with question and answer.
 *
 * A template is three sentences with slots: %V the value that must be remembered, %A a person,
 * %B a place, %C a thing.  What fills them is drawn anew for every fact. */
#ifndef EK_DATASETS_FACTS_H
#define EK_DATASETS_FACTS_H

#include "datasets/draw.h"

#include <stddef.h>

enum { EK_FACT_ROOM = 320 };

typedef struct ek_fact {
    int which; /* index, distinct within an item */
    char text[EK_FACT_ROOM], question[EK_FACT_ROOM], answer[EK_FACT_ROOM];
    size_t value_begin, value_end; /* in answer */
    char value[64], person[64], place[64], thing[64];
} ek_fact;

/* n facts in which no template, value, person, place or thing comes twice. */
void ek_facts_draw(ek_fact *out, int n, ek_draw *draw);

int ek_facts_n_templates(void);
const char *ek_facts_template(int i, int what); /* what: 0 fact, 1 question, 2 answer */

#endif
