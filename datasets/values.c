/* datasets/values.c - see values.h.  All words here are our own; no number has five digits, and no
 * value has the form of any evaluation task's answer. */
#include "datasets/values.h"

#include "core/err.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

static const char *const qualities[] = {"amber",  "brisk",  "clever", "dusty",  "eager",  "frosty",
                                        "gentle", "hollow", "jolly",  "keen",   "lively", "mellow",
                                        "nimble", "plain",  "quiet",  "rugged", "silent", "tidy",
                                        "upper",  "vivid",  "wintry", "young"};
static const char *const heads[] = {"Kelv", "Brind", "Thar",  "Quen",  "Zorl", "Mael",
                                    "Dwin", "Fost",  "Grev",  "Harst", "Jund", "Lorch",
                                    "Nesk", "Pell",  "Storv", "Wend"};
static const char *const tails[] = {"orn",    "ax",  "imir",   "oth",   "ella", "ust",
                                    "ingham", "ock", "andine", "ewell", "ort",  "ish"};

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

void ek_value_draw(char *out, size_t room, ek_value_kind k, ek_draw *draw)
{
    switch (k) {
    case EK_VALUE_NUMBER:
        draw_number(out, room, draw);
        break;
    case EK_VALUE_CODE:
        draw_code(out, room, draw);
        break;
    case EK_VALUE_NAME: {
        const char *first = PICK(given, draw);

        snprintf(out, room, "%s %s", first, PICK(family, draw));
        break;
    }
    case EK_VALUE_PLACE:
        snprintf(out, room, "%s", PICK(places, draw));
        break;
    case EK_VALUE_TIME: {
        const unsigned hour = 1 + (unsigned)ek_draw_below(draw, 12);
        const unsigned minute = (unsigned)ek_draw_below(draw, 60);

        snprintf(out, room, "%u:%02u %s", hour, minute, PICK(daytimes, draw));
        break;
    }
    case EK_VALUE_DATE: {
        const unsigned day = 1 + (unsigned)ek_draw_below(draw, 28);
        const char *month = PICK(months, draw);

        snprintf(out, room, "%u %s %u", day, month, 1700 + (unsigned)ek_draw_below(draw, 250));
        break;
    }
    case EK_VALUE_WORD:
        snprintf(out, room, "%s", PICK(words, draw));
        break;
    case EK_VALUE_THING:
        snprintf(out, room, "%s", PICK(things, draw));
        break;
    case EK_VALUE_DOUBLE: {
        const char *first = PICK(qualities, draw);

        snprintf(out, room, "%s-%s", first, PICK(words, draw));
        break;
    }
    case EK_VALUE_MADE: {
        const char *first = PICK(heads, draw);

        snprintf(out, room, "%s%s", first, PICK(tails, draw));
        break;
    }
    case EK_VALUE_WIRE: {
        const unsigned first = 100 + (unsigned)ek_draw_below(draw, 900);

        snprintf(out, room, "%u-%04u", first, (unsigned)ek_draw_below(draw, 10000));
        break;
    }
    case EK_VALUE_SMALL:
        snprintf(out, room, "%u", 10 + (unsigned)ek_draw_below(draw, 90));
        break;
    case EK_VALUE_COLOUR:
    case EK_N_VALUES:
        snprintf(out, room, "%s", PICK(colours, draw));
        break;
    }
}

void ek_values_words(void (*word)(void *ctx, const char *text), void *ctx)
{
#define ALL(list)                               \
    for (size_t i = 0; i < EK_COUNT(list); i++) \
    word(ctx, (list)[i])
    ALL(given);
    ALL(family);
    ALL(places);
    ALL(things);
    ALL(words);
    ALL(colours);
    ALL(months);
    ALL(daytimes);
    ALL(qualities);
    ALL(heads);
    ALL(tails);
#undef ALL
}

/* The slot that begins at p, as an index into slot_name, or -1. */
static int slot_at(const char *p)
{
    static const char names[] = "KV123";
    const char *at = p[0] == '%' && p[1] != '\0' ? strchr(names, p[1]) : NULL;

    return at ? (int)(at - names) : -1;
}

char *ek_slots_fill(const char *pattern, const char *const *word, int marked, size_t *begin,
                    size_t *end)
{
    size_t room = 1, n = 0;
    char *out;

    for (const char *p = pattern; *p != '\0'; p++)
        room += slot_at(p) >= 0 ? strlen(word[slot_at(p)]) : 1;
    out = malloc(room);
    if (out == NULL)
        return NULL;
    for (const char *p = pattern; *p != '\0'; p++) {
        const int slot = slot_at(p);

        if (slot < 0) {
            out[n++] = *p;
            continue;
        }
        if (slot == marked) {
            *begin = n;
            *end = n + strlen(word[slot]);
        }
        memcpy(out + n, word[slot], strlen(word[slot]));
        n += strlen(word[slot]);
        p++;
    }
    out[n] = '\0';
    return out;
}
