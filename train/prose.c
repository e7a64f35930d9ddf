/* train/prose.c - see the header. */
#include "train/prose.h"

#include "core/rng.h"

#include <stdlib.h>
#include <string.h>

/* English has about 4.3 bytes a token. */
static size_t bytes_of(const ek_prose *p)
{
    return (size_t)p->tokens * 5;
}

/* Long enough for windows, some of which turn out longer in bytes than the rest. */
static int is_long(const ek_prose *p, size_t size)
{
    return size >= 2 * bytes_of(p);
}

static void add_doc(ek_prose *p, ek_prose_group group, const ek_doc *doc)
{
    ek_texts *t = &p->group[group];

    t->doc[t->n++] = *doc;
    t->bytes += doc->size;
}

/* Divide the only long document: its end is held out. */
static ek_code divide(ek_prose *p, const ek_doc *doc, double held, ek_err *err)
{
    const double share = held * (double)doc->size, least = 2.0 * (double)bytes_of(p);
    const double want = share > least ? share : least;
    ek_doc head = *doc, tail = *doc;
    int first = doc->n_paragraphs - 1;

    while (first > 0 && (double)(doc->size - doc->paragraph[first]) < want)
        first--;
    const size_t at = doc->paragraph[first];
    if (first == 0 || !is_long(p, at))
        return EK_FAIL(err, EK_EASKED,
                       "data.texts: the longest document, %s, has %zu bytes; windows of %d tokens "
                       "to fit on and others to judge by need about %zu",
                       doc->id, doc->size, p->tokens, 5 * bytes_of(p));
    for (int g = 0; g < 2; g++) {
        p->cut[g] = malloc((size_t)doc->n_paragraphs * sizeof *p->cut[g]);
        if (p->cut[g] == NULL)
            return EK_FAIL(err, EK_ENOMEM, "%s: paragraphs", doc->id);
    }
    memcpy(p->cut[0], doc->paragraph, (size_t)first * sizeof *p->cut[0]);
    for (int i = first; i < doc->n_paragraphs; i++)
        p->cut[1][i - first] = doc->paragraph[i] - at;
    head.size = at;
    head.paragraph = p->cut[0];
    head.n_paragraphs = first;
    tail.text = doc->text + at;
    tail.size = doc->size - at;
    tail.paragraph = p->cut[1];
    tail.n_paragraphs = doc->n_paragraphs - first;
    add_doc(p, EK_PROSE_FIT, &head);
    add_doc(p, EK_PROSE_HELD, &tail);
    return EK_OK;
}

static ek_code share_out(ek_prose *p, double held, ek_err *err)
{
    const int n = p->all.n;
    const uint64_t stream = ek_rng_stream("prose", 0, 0);
    int *order = malloc((size_t)n * sizeof *order), n_long = 0, longest = 0;
    ek_code code = EK_OK;

    if (order == NULL)
        return EK_FAIL(err, EK_ENOMEM, "%d documents", n);
    for (int i = 0; i < n; i++) { /* shuffled on the way */
        const int j = (int)ek_rng_below((uint64_t)i + 1, p->seed, stream, (uint64_t)i);

        order[i] = order[j];
        order[j] = i;
        n_long += is_long(p, p->all.doc[i].size);
        longest = p->all.doc[i].size > p->all.doc[longest].size ? i : longest;
    }
    int left = n_long;
    for (int i = 0; i < n; i++) {
        const ek_doc *doc = &p->all.doc[order[i]];
        const double so_far = (double)p->group[EK_PROSE_HELD].bytes;

        if (n_long < 2 && order[i] == longest) {
            if ((code = divide(p, doc, held, err)) != EK_OK)
                break;
        } else if (n_long >= 2 && is_long(p, doc->size) && left > 1 &&
                   so_far < held * (double)p->all.bytes) {
            add_doc(p, EK_PROSE_HELD, doc);
            left--;
        } else {
            add_doc(p, EK_PROSE_FIT, doc);
        }
    }
    free(order);
    return code;
}

ek_code ek_prose_open(ek_prose *p, const char *path, int tokens, double held, uint64_t seed,
                      ek_err *err)
{
    *p = (ek_prose){.tokens = tokens, .seed = seed};
    EK_TRY(ek_texts_open(&p->all, path, err));
    for (int g = 0; g < 2; g++) {
        p->group[g].doc = malloc((size_t)p->all.n * sizeof *p->group[g].doc);
        if (p->group[g].doc == NULL)
            EK_CHECK(EK_FAIL(err, EK_ENOMEM, "%d documents", p->all.n));
    }
    EK_CHECK(share_out(p, held, err));
    return EK_OK;
fail:
    ek_prose_close(p);
    return err->code;
}

void ek_prose_close(ek_prose *p)
{
    for (int g = 0; g < 2; g++) {
        free(p->group[g].doc);
        free(p->cut[g]);
    }
    ek_texts_close(&p->all);
    *p = (ek_prose){0};
}

ek_code ek_prose_window(const ek_prose *p, ek_prose_group group, int64_t i, ek_tokenizer *tok,
                        ek_tokens *out, ek_err *err)
{
    const ek_texts *t = &p->group[group];
    ek_window w;

    /* A window that turns out short is cut out longer. */
    for (size_t bytes = bytes_of(p);; bytes += bytes / 2) {
        EK_TRY(ek_texts_window(&w, t, bytes, p->seed + (uint64_t)group, i, err));
        out->n = out->bytes = 0;
        EK_TRY(ek_tokenizer_encode(tok, t->doc[w.doc].text + w.begin, w.end - w.begin, EK_TOK_LOSSY,
                                   out, err));
        if (out->n >= p->tokens)
            return EK_OK;
    }
}
