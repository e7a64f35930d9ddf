/* train/prose.h - windows of prose in two groups that share no text: one to fit on, one held out.
 *
 * Whole documents are held out, chosen by seed until they make up the share asked for; if only one
 * document is long enough for windows, its end is.  Window i of a group depends on (seed, group, i)
 * alone. */
#ifndef EK_TRAIN_PROSE_H
#define EK_TRAIN_PROSE_H

#include "datasets/text.h"
#include "infer/tokenizer.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum ek_prose_group { EK_PROSE_FIT, EK_PROSE_HELD } ek_prose_group;

typedef struct ek_prose {
    ek_texts all;      /* owns the text */
    ek_texts group[2]; /* documents of each, borrowed from all; their arrays are owned */
    size_t *cut[2];    /* paragraphs of a document's two parts; NULL: no document was divided */
    int tokens;        /* of a window */
    uint64_t seed;
} ek_prose;

/* held: share of the text, above 0, below 1.  EK_EASKED: no text, or too short for two groups. */
ek_code ek_prose_open(ek_prose *p, const char *path, int tokens, double held, uint64_t seed,
                      ek_err *err);
void ek_prose_close(ek_prose *p); /* of a zeroed one too */

/* Put the ids of a window into out (emptied first): the first `tokens` count, there may be more. */
ek_code ek_prose_window(const ek_prose *p, ek_prose_group group, int64_t i, ek_tokenizer *tok,
                        ek_tokens *out, ek_err *err);

#ifdef __cplusplus
}
#endif
#endif
