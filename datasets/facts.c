/* datasets/facts.c - see facts.h.  The wordings are our own and share none with any evaluation
 * task: nothing here is called a pass key, and no number has five digits. */
#include "datasets/facts.h"

#include "core/err.h"

#include <stdio.h>
#include <string.h>

typedef enum kind { NUMBER, CODE, NAME, PLACE, TIME, DATE, WORD, COLOUR, N_KINDS } kind;

typedef struct template
{
    kind kind;
    const char *part[3]; /* fact, question, answer */
}
template;

static const template templates[] = {
    {NUMBER,
     {"The ledger of the mill at %B lists %V sacks of flour.",
      "How many sacks of flour does the ledger of the mill at %B list?",
      "It lists %V sacks of flour."}},
    {NUMBER,
     {"Locker %V was given to %A.", "Which locker was given to %A?", "%A was given locker %V."}},
    {NUMBER,
     {"The crate with the %C carries the number %V.",
      "Which number does the crate with the %C carry?", "It carries the number %V."}},
    {NUMBER,
     {"The library shelf for %B holds exactly %V volumes.",
      "How many volumes does the library shelf for %B hold?", "It holds %V volumes."}},
    {NUMBER,
     {"%A bought the %C for %V crowns.", "For how many crowns did %A buy the %C?",
      "%A bought it for %V crowns."}},
    {NUMBER,
     {"The bridge at %B is %V feet long.", "How long is the bridge at %B?",
      "The bridge at %B is %V feet long."}},
    {NUMBER,
     {"To reach %A by wire, ask the operator for %V.",
      "What should one ask the operator for to reach %A by wire?", "Ask the operator for %V."}},
    {NUMBER,
     {"The lottery ticket that won the %C was number %V.", "Which lottery ticket won the %C?",
      "Ticket number %V won the %C."}},
    {NUMBER,
     {"Note: the combination of the safe at %B is %V.",
      "What is the combination of the safe at %B?", "The combination is %V."}},
    {CODE,
     {"The entry code of the house at %B is %V.", "What is the entry code of the house at %B?",
      "The entry code is %V."}},
    {CODE,
     {"The %C was stamped with the mark %V.", "With which mark was the %C stamped?",
      "It was stamped with the mark %V."}},
    {CODE,
     {"%A travels under the permit %V.", "Under which permit does %A travel?",
      "%A travels under the permit %V."}},
    {CODE,
     {"The drawing of the %C is filed as %V.", "As what is the drawing of the %C filed?",
      "It is filed as %V."}},
    {CODE,
     {"Orders from %B begin with the signal %V.", "With which signal do orders from %B begin?",
      "They begin with the signal %V."}},
    {CODE,
     {"The seat of %A is marked %V on the plan.", "How is the seat of %A marked on the plan?",
      "It is marked %V."}},
    {NAME,
     {"The keeper of the %C is called %V.", "What is the keeper of the %C called?",
      "The keeper of the %C is called %V."}},
    {NAME,
     {"At %B the post was carried by %V.", "Who carried the post at %B?",
      "%V carried the post at %B."}},
    {NAME, {"It was %V who repaired the %C.", "Who repaired the %C?", "%V repaired the %C."}},
    {NAME,
     {"%A learned to swim from %V.", "From whom did %A learn to swim?",
      "%A learned to swim from %V."}},
    {NAME,
     {"The painter of the great ceiling at %B was %V.", "Who painted the great ceiling at %B?",
      "It was painted by %V."}},
    {NAME,
     {"In the end the %C went to %V as a prize.", "To whom did the %C go as a prize?",
      "It went to %V."}},
    {PLACE,
     {"%A keeps a small garden in %V.", "Where does %A keep a small garden?",
      "%A keeps a small garden in %V."}},
    {PLACE, {"The %C was made in %V.", "Where was the %C made?", "The %C was made in %V."}},
    {PLACE,
     {"The brother of %A went to live in %V.", "Where did the brother of %A go to live?",
      "He went to live in %V."}},
    {PLACE,
     {"They found the lost %C near %V.", "Near which place was the lost %C found?",
      "It was found near %V."}},
    {PLACE,
     {"The coach that %A took stops only at %V.", "Where does the coach that %A took stop?",
      "It stops only at %V."}},
    {TIME,
     {"The ferry to %B leaves at %V.", "When does the ferry to %B leave?", "It leaves at %V."}},
    {TIME,
     {"%A winds the clock at %V, never later.", "At what time does %A wind the clock?",
      "%A winds it at %V."}},
    {TIME,
     {"The bell of %B was heard at %V.", "At what time was the bell of %B heard?",
      "It was heard at %V."}},
    {TIME,
     {"The shop that sells the %C opens at %V.", "When does the shop that sells the %C open?",
      "It opens at %V."}},
    {TIME, {"%A asked to be woken at %V.", "At what time did %A ask to be woken?", "At %V."}},
    {DATE, {"%A was born on %V.", "When was %A born?", "%A was born on %V."}},
    {DATE,
     {"The fair at %B begins on %V.", "On which day does the fair at %B begin?",
      "It begins on %V."}},
    {DATE,
     {"The %C must be returned by %V.", "By which day must the %C be returned?",
      "It must be returned by %V."}},
    {DATE,
     {"The treaty of %B was signed on %V.", "When was the treaty of %B signed?",
      "It was signed on %V."}},
    {DATE,
     {"%A last saw the sea on %V.", "When did %A last see the sea?", "%A last saw it on %V."}},
    {WORD,
     {"The watchword at the gate of %B is \"%V\".", "What is the watchword at the gate of %B?",
      "The watchword is \"%V\"."}},
    {WORD,
     {"The horse of %A answers to \"%V\".", "What does the horse of %A answer to?",
      "It answers to \"%V\"."}},
    {WORD,
     {"On the lid of the %C someone scratched the word \"%V\".",
      "Which word is scratched on the lid of the %C?", "The word \"%V\"."}},
    {WORD,
     {"The ship that sailed from %B was named \"%V\".",
      "What was the ship that sailed from %B named?", "It was named \"%V\"."}},
    {COLOUR,
     {"The door of the inn at %B is painted %V.", "What colour is the door of the inn at %B?",
      "It is painted %V."}},
    {COLOUR,
     {"%A wore a coat of %V.", "What colour was the coat that %A wore?", "%A wore a coat of %V."}},
    {COLOUR,
     {"The ribbon around the %C was %V.", "What colour was the ribbon around the %C?",
      "The ribbon was %V."}},
};

static const char *const given[] = {
    "Agnes",   "Bertram",  "Cecily",  "Dorian",  "Edith",  "Felix",   "Greta",    "Hector",
    "Ingrid",  "Jasper",   "Klara",   "Leopold", "Mabel",  "Norbert", "Olive",    "Percy",
    "Quentin", "Rosalind", "Silas",   "Thora",   "Ursula", "Victor",  "Winifred", "Xavier",
    "Yvonne",  "Zelda",    "Ambrose", "Beatrix", "Conrad", "Daphne",  "Ezra",     "Flora"};
static const char *const family[] = {
    "Abernathy",    "Blackwood",   "Carrow",    "Dunmore",  "Eastlake",     "Fairweather",
    "Gillespie",    "Hathersage",  "Inglewood", "Jessop",   "Kirkbride",    "Lockhart",
    "Merriweather", "Nettleship",  "Oakhurst",  "Plumtree", "Quillfeather", "Ravenscroft",
    "Saltmarsh",    "Thistlewood", "Underhill", "Vickers",  "Wetherby",     "Yarrow"};
static const char *const places[] = {
    "Aldermoor",      "Brackenford",  "Corvale",    "Dunholm",        "Eskerton",
    "Farthing Cross", "Glenmarrow",   "Hollin Bay", "Inverkell",      "Juniper Hill",
    "Kestrel Point",  "Larkstead",    "Mossgate",   "Northwick Mere", "Ottercombe",
    "Pellworth",      "Quarry Hythe", "Redmire",    "Stonebeck",      "Tarn End",
    "Upper Sallow",   "Vennick",      "Whitlow",    "Yewdale",        "Lisbon",
    "Bergen",         "Cordoba",      "Trieste",    "Riga",           "Zanzibar",
    "Valparaiso",     "Quebec"};
static const char *const things[] = {
    "brass lantern",  "silver flute",    "walnut cabinet", "copper kettle", "glass globe",
    "iron anchor",    "leather satchel", "ivory comb",     "wicker cradle", "marble bust",
    "velvet cloak",   "oak barrel",      "pocket compass", "music box",     "bronze bell",
    "feather quilt",  "tin soldier",     "porcelain vase", "ruby brooch",   "weather vane",
    "spinning wheel", "sundial",         "telescope",      "chessboard",    "harpsichord",
    "hourglass",      "saddle",          "tapestry"};
static const char *const words[] = {
    "juniper", "harvest", "marigold", "falcon",  "ember",  "cobweb", "thunder", "saffron",
    "willow",  "pebble",  "lullaby",  "compass", "meadow", "raven",  "orchid",  "beacon",
    "velvet",  "cinder",  "thimble",  "glacier", "acorn",  "mirror", "sparrow", "anvil"};
static const char *const colours[] = {"crimson", "turquoise", "ochre",  "violet", "emerald",
                                      "scarlet", "ivory",     "indigo", "amber",  "charcoal",
                                      "lilac",   "maroon",    "teal",   "russet"};
static const char *const months[] = {"January",   "February", "March",    "April",
                                     "May",       "June",     "July",     "August",
                                     "September", "October",  "November", "December"};
static const char *const daytimes[] = {"in the morning", "in the afternoon", "at night"};

#define PICK(list, draw) (list)[ek_draw_below((draw), EK_COUNT(list))]

/* Three, four, six or seven digits, the first of them not 0. */
static void draw_number(char *out, size_t room, ek_draw *draw)
{
    static const unsigned from[] = {100, 1000, 1000, 100000, 1000000};
    const unsigned low = PICK(from, draw);

    snprintf(out, room, "%u", low + (unsigned)ek_draw_below(draw, 9u * low));
}

static void draw_code(char *out, size_t room, ek_draw *draw)
{
    static const char letters[] = "ABCDEFGHJKLMNPQRSTUVWXYZ";
    char l[4];
    unsigned n[3];

    for (int i = 0; i < 4; i++)
        l[i] = letters[ek_draw_below(draw, sizeof letters - 1)];
    for (int i = 0; i < 3; i++)
        n[i] = (unsigned)ek_draw_below(draw, 10);
    switch (ek_draw_below(draw, 4)) {
    case 0:
        snprintf(out, room, "%c%c-%u%u%u", l[0], l[1], n[0], n[1], n[2]);
        break;
    case 1:
        snprintf(out, room, "%c%u%c%u", l[0], n[0], l[1], n[1]);
        break;
    case 2:
        snprintf(out, room, "%u%u/%c%c%c", n[0], n[1], l[0], l[1], l[2]);
        break;
    default:
        snprintf(out, room, "%c%c%c%c-%u", l[0], l[1], l[2], l[3], n[0]);
        break;
    }
}

static void draw_value(char *out, size_t room, kind k, ek_draw *draw)
{
    switch (k) {
    case NUMBER:
        draw_number(out, room, draw);
        break;
    case CODE:
        draw_code(out, room, draw);
        break;
    case NAME: {
        const char *first = PICK(given, draw);

        snprintf(out, room, "%s %s", first, PICK(family, draw));
        break;
    }
    case PLACE:
        snprintf(out, room, "%s", PICK(places, draw));
        break;
    case TIME: {
        const unsigned hour = 1 + (unsigned)ek_draw_below(draw, 12);
        const unsigned minute = (unsigned)ek_draw_below(draw, 60);

        snprintf(out, room, "%u:%02u %s", hour, minute, PICK(daytimes, draw));
        break;
    }
    case DATE: {
        const unsigned day = 1 + (unsigned)ek_draw_below(draw, 28);
        const char *month = PICK(months, draw);

        snprintf(out, room, "%u %s %u", day, month, 1700 + (unsigned)ek_draw_below(draw, 250));
        break;
    }
    case WORD:
        snprintf(out, room, "%s", PICK(words, draw));
        break;
    case COLOUR:
    case N_KINDS:
        snprintf(out, room, "%s", PICK(colours, draw));
        break;
    }
}

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
        const char *first;

        do {
            memset(f, 0, sizeof *f);
            f->which = (int)ek_draw_below(draw, EK_COUNT(templates));
            draw_value(f->value, sizeof f->value, templates[f->which].kind, draw);
            first = PICK(given, draw);
            snprintf(f->person, sizeof f->person, "%s %s", first, PICK(family, draw));
            snprintf(f->place, sizeof f->place, "%s", PICK(places, draw));
            snprintf(f->thing, sizeof f->thing, "%s", PICK(things, draw));
        } while (is_taken(f, out, i));
        fill(f->text, templates[f->which].part[0], f, 0);
        fill(f->question, templates[f->which].part[1], f, 0);
        fill(f->answer, templates[f->which].part[2], f, 1);
    }
}

void ek_facts_words(void (*word)(void *ctx, const char *text), void *ctx)
{
    for (size_t i = 0; i < EK_COUNT(templates); i++)
        for (int k = 0; k < 3; k++)
            word(ctx, templates[i].part[k]);
    for (size_t i = 0; i < EK_COUNT(given); i++)
        word(ctx, given[i]);
    for (size_t i = 0; i < EK_COUNT(family); i++)
        word(ctx, family[i]);
    for (size_t i = 0; i < EK_COUNT(places); i++)
        word(ctx, places[i]);
    for (size_t i = 0; i < EK_COUNT(things); i++)
        word(ctx, things[i]);
    for (size_t i = 0; i < EK_COUNT(words); i++)
        word(ctx, words[i]);
    for (size_t i = 0; i < EK_COUNT(colours); i++)
        word(ctx, colours[i]);
    for (size_t i = 0; i < EK_COUNT(months); i++)
        word(ctx, months[i]);
    for (size_t i = 0; i < EK_COUNT(daytimes); i++)
        word(ctx, daytimes[i]);
}

int ek_facts_n_templates(void)
{
    return (int)EK_COUNT(templates);
}

int ek_facts_n_kinds(void)
{
    return N_KINDS;
}

const char *ek_facts_template(int i, int what)
{
    return templates[i].part[what];
}
