/* datasets/facts.c - see facts.h.  The wordings are our own and share none with any evaluation
 * task: nothing here is called a pass key, and no number has five digits. */
#include "datasets/facts.h"

#include "core/err.h"
#include "datasets/values.h"

#include <stdio.h>
#include <string.h>

typedef struct template
{
    ek_value_kind kind;
    const char *part[3]; /* fact, question, answer */
}
template;

static const template templates[] = {
    {EK_VALUE_NUMBER,
     {"The ledger of the mill at %B lists %V sacks of flour.",
      "How many sacks of flour does the ledger of the mill at %B list?",
      "It lists %V sacks of flour."}},
    {EK_VALUE_NUMBER,
     {"Locker %V was given to %A.", "Which locker was given to %A?", "%A was given locker %V."}},
    {EK_VALUE_NUMBER,
     {"The crate with the %C carries the number %V.",
      "Which number does the crate with the %C carry?", "It carries the number %V."}},
    {EK_VALUE_NUMBER,
     {"The library shelf for %B holds exactly %V volumes.",
      "How many volumes does the library shelf for %B hold?", "It holds %V volumes."}},
    {EK_VALUE_NUMBER,
     {"%A bought the %C for %V crowns.", "For how many crowns did %A buy the %C?",
      "%A bought it for %V crowns."}},
    {EK_VALUE_NUMBER,
     {"The bridge at %B is %V feet long.", "How long is the bridge at %B?",
      "The bridge at %B is %V feet long."}},
    {EK_VALUE_NUMBER,
     {"To reach %A by wire, ask the operator for %V.",
      "What should one ask the operator for to reach %A by wire?", "Ask the operator for %V."}},
    {EK_VALUE_NUMBER,
     {"The lottery ticket that won the %C was number %V.", "Which lottery ticket won the %C?",
      "Ticket number %V won the %C."}},
    {EK_VALUE_NUMBER,
     {"Note: the combination of the safe at %B is %V.",
      "What is the combination of the safe at %B?", "The combination is %V."}},
    {EK_VALUE_CODE,
     {"The entry code of the house at %B is %V.", "What is the entry code of the house at %B?",
      "The entry code is %V."}},
    {EK_VALUE_CODE,
     {"The %C was stamped with the mark %V.", "With which mark was the %C stamped?",
      "It was stamped with the mark %V."}},
    {EK_VALUE_CODE,
     {"%A travels under the permit %V.", "Under which permit does %A travel?",
      "%A travels under the permit %V."}},
    {EK_VALUE_CODE,
     {"The drawing of the %C is filed as %V.", "As what is the drawing of the %C filed?",
      "It is filed as %V."}},
    {EK_VALUE_CODE,
     {"Orders from %B begin with the signal %V.", "With which signal do orders from %B begin?",
      "They begin with the signal %V."}},
    {EK_VALUE_CODE,
     {"The seat of %A is marked %V on the plan.", "How is the seat of %A marked on the plan?",
      "It is marked %V."}},
    {EK_VALUE_NAME,
     {"The keeper of the %C is called %V.", "What is the keeper of the %C called?",
      "The keeper of the %C is called %V."}},
    {EK_VALUE_NAME,
     {"At %B the post was carried by %V.", "Who carried the post at %B?",
      "%V carried the post at %B."}},
    {EK_VALUE_NAME,
     {"It was %V who repaired the %C.", "Who repaired the %C?", "%V repaired the %C."}},
    {EK_VALUE_NAME,
     {"%A learned to swim from %V.", "From whom did %A learn to swim?",
      "%A learned to swim from %V."}},
    {EK_VALUE_NAME,
     {"The painter of the great ceiling at %B was %V.", "Who painted the great ceiling at %B?",
      "It was painted by %V."}},
    {EK_VALUE_NAME,
     {"In the end the %C went to %V as a prize.", "To whom did the %C go as a prize?",
      "It went to %V."}},
    {EK_VALUE_PLACE,
     {"%A keeps a small garden in %V.", "Where does %A keep a small garden?",
      "%A keeps a small garden in %V."}},
    {EK_VALUE_PLACE,
     {"The %C was made in %V.", "Where was the %C made?", "The %C was made in %V."}},
    {EK_VALUE_PLACE,
     {"The brother of %A went to live in %V.", "Where did the brother of %A go to live?",
      "He went to live in %V."}},
    {EK_VALUE_PLACE,
     {"They found the lost %C near %V.", "Near which place was the lost %C found?",
      "It was found near %V."}},
    {EK_VALUE_PLACE,
     {"The coach that %A took stops only at %V.", "Where does the coach that %A took stop?",
      "It stops only at %V."}},
    {EK_VALUE_TIME,
     {"The ferry to %B leaves at %V.", "When does the ferry to %B leave?", "It leaves at %V."}},
    {EK_VALUE_TIME,
     {"%A winds the clock at %V, never later.", "At what time does %A wind the clock?",
      "%A winds it at %V."}},
    {EK_VALUE_TIME,
     {"The bell of %B was heard at %V.", "At what time was the bell of %B heard?",
      "It was heard at %V."}},
    {EK_VALUE_TIME,
     {"The shop that sells the %C opens at %V.", "When does the shop that sells the %C open?",
      "It opens at %V."}},
    {EK_VALUE_TIME,
     {"%A asked to be woken at %V.", "At what time did %A ask to be woken?", "At %V."}},
    {EK_VALUE_DATE, {"%A was born on %V.", "When was %A born?", "%A was born on %V."}},
    {EK_VALUE_DATE,
     {"The fair at %B begins on %V.", "On which day does the fair at %B begin?",
      "It begins on %V."}},
    {EK_VALUE_DATE,
     {"The %C must be returned by %V.", "By which day must the %C be returned?",
      "It must be returned by %V."}},
    {EK_VALUE_DATE,
     {"The treaty of %B was signed on %V.", "When was the treaty of %B signed?",
      "It was signed on %V."}},
    {EK_VALUE_DATE,
     {"%A last saw the sea on %V.", "When did %A last see the sea?", "%A last saw it on %V."}},
    {EK_VALUE_WORD,
     {"The watchword at the gate of %B is \"%V\".", "What is the watchword at the gate of %B?",
      "The watchword is \"%V\"."}},
    {EK_VALUE_WORD,
     {"The horse of %A answers to \"%V\".", "What does the horse of %A answer to?",
      "It answers to \"%V\"."}},
    {EK_VALUE_WORD,
     {"On the lid of the %C someone scratched the word \"%V\".",
      "Which word is scratched on the lid of the %C?", "The word \"%V\"."}},
    {EK_VALUE_WORD,
     {"The ship that sailed from %B was named \"%V\".",
      "What was the ship that sailed from %B named?", "It was named \"%V\"."}},
    {EK_VALUE_COLOUR,
     {"The door of the inn at %B is painted %V.", "What colour is the door of the inn at %B?",
      "It is painted %V."}},
    {EK_VALUE_COLOUR,
     {"%A wore a coat of %V.", "What colour was the coat that %A wore?", "%A wore a coat of %V."}},
    {EK_VALUE_COLOUR,
     {"The ribbon around the %C was %V.", "What colour was the ribbon around the %C?",
      "The ribbon was %V."}},
};

static void fill(char *out, const char *pattern, ek_fact *f, int is_answer)
{
    size_t n = 0;

    for (const char *p = pattern; *p != '\0' && n + 1 < EK_FACT_ROOM; p++) {
        const char *word = NULL;

        if (p[0] == '%')
            word = p[1] == 'V'   ? f->value
                   : p[1] == 'A' ? f->person
                   : p[1] == 'B' ? f->place
                   : p[1] == 'C' ? f->thing
                                 : NULL;
        if (word == NULL) {
            out[n++] = *p;
            continue;
        }
        if (is_answer && p[1] == 'V') {
            f->value_begin = n;
            f->value_end = n + strlen(word);
        }
        n += (size_t)snprintf(out + n, EK_FACT_ROOM - n, "%s", word);
        p++;
    }
    out[n] = '\0';
}

/* Whether anything of f was used by the n facts before it. */
static int is_taken(const ek_fact *f, const ek_fact *before, int n)
{
    for (int i = 0; i < n; i++) {
        const ek_fact *b = &before[i];

        if (f->which == b->which || strcmp(f->value, b->value) == 0 ||
            strcmp(f->person, b->person) == 0 || strcmp(f->place, b->place) == 0 ||
            strcmp(f->thing, b->thing) == 0 || strcmp(f->value, b->person) == 0 ||
            strcmp(f->value, b->place) == 0 || strcmp(f->person, b->value) == 0 ||
            strcmp(f->place, b->value) == 0)
            return 1;
    }
    return strcmp(f->value, f->person) == 0 || strcmp(f->value, f->place) == 0;
}

void ek_facts_draw(ek_fact *out, int n, ek_draw *draw)
{
    for (int i = 0; i < n; i++) {
        ek_fact *f = &out[i];
        do {
            memset(f, 0, sizeof *f);
            f->which = (int)ek_draw_below(draw, EK_COUNT(templates));
            ek_value_draw(f->value, sizeof f->value, templates[f->which].kind, draw);
            ek_value_draw(f->person, sizeof f->person, EK_VALUE_NAME, draw);
            ek_value_draw(f->place, sizeof f->place, EK_VALUE_PLACE, draw);
            ek_value_draw(f->thing, sizeof f->thing, EK_VALUE_THING, draw);
        } while (is_taken(f, out, i));
        fill(f->text, templates[f->which].part[0], f, 0);
        fill(f->question, templates[f->which].part[1], f, 0);
        fill(f->answer, templates[f->which].part[2], f, 1);
    }
}

int ek_facts_n_templates(void)
{
    return (int)EK_COUNT(templates);
}

const char *ek_facts_template(int i, int what)
{
    return templates[i].part[what];
}
