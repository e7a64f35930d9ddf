/* datasets/fidelity.c - held-out text whose true continuation is fed under eviction.
 *
 * The text is cut into consecutive windows that do not overlap; the samples are spread evenly over
 * them.  A window is its own cluster: neighbouring tokens are alike, distant windows are not. */
#include "datasets/dataset.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct fidelity {
    ek_task base;
    ek_window *window; /* (n_windows) */
    int n_windows;
} fidelity;

static void defaults(ek_task_config *c)
{
    c->prompt = c->prompt ? c->prompt : 4096;
    c->continuation = c->continuation ? c->continuation : 512;
}

static ek_code open_task(ek_task *t, ek_err *err)
{
    fidelity *f = (fidelity *)t;
    const ek_task_config *c = t->config;

    if (c->prompt < 2 || c->continuation < 2)
        return EK_FAIL(err, EK_EASKED,
                       "prompt %lld, continuation %lld: expected at least 2 tokens each",
                       (long long)c->prompt, (long long)c->continuation);
    EK_TRY(ek_texts_consecutive(&f->window, &f->n_windows, &t->texts, &t->counter,
                                (int)(c->prompt + c->continuation), err));
    if (c->samples > f->n_windows)
        return EK_FAIL(err, EK_EASKED,
                       "%s: found %d windows of %lld tokens, expected the %lld samples asked for",
                       c->text, f->n_windows, (long long)(c->prompt + c->continuation),
                       (long long)c->samples);
    t->n = c->samples > 0 ? c->samples : f->n_windows;
    return EK_OK;
}

static void close_task(ek_task *t)
{
    free(((fidelity *)t)->window);
}

static ek_code sample(ek_sample *s, const ek_task *t, int64_t i, ek_err *err)
{
    const fidelity *f = (const fidelity *)t;
    const ek_window *w = &f->window[i * f->n_windows / t->n];
    const ek_doc *d = &t->texts.doc[w->doc];
    char id[256];

    snprintf(id, sizeof id, "%.200s@%zu", d->id, w->begin);
    s->kind = EK_SAMPLE_FORCED;
    s->doc_id = strdup(id);
    s->cluster = strdup(id);
    s->context = strndup(d->text + w->begin, w->end - w->begin);
    s->question = strdup("");
    s->answer_prefix = strdup("");
    s->prompt_tokens = (int)t->config->prompt;
    s->forced_tokens = (int)t->config->continuation;
    s->length = s->prompt_tokens + s->forced_tokens;
    if (!s->doc_id || !s->cluster || !s->context || !s->question || !s->answer_prefix)
        return EK_FAIL(err, EK_ENOMEM, "%s", id);
    return EK_OK;
}

const ek_task_class ek_task_fidelity = {
    .name = "fidelity",
    .brief = "held-out text, its continuation fed: perplexity and divergence from the full cache",
    .keys = "samples prompt continuation",
    .metric = "kld",
    .size = sizeof(fidelity),
    .defaults = defaults,
    .open = open_task,
    .close = close_task,
    .sample = sample,
};
