/* train/collect.c - one sequence through the model, its targets by the tap, its record. */
#include "train/collect.h"

#include "core/bf16.h"
#include "core/file.h"
#include "core/rng.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNK = 512, LOGITS = 128 }; /* tokens per pass; while logits are asked */

int ek_collect_entries(const ek_collect_need *n)
{
    const int64_t all = (n->set.cut > 0 ? n->set.length - 1 : n->set.length) - n->recent - n->sinks;

    return (int)(n->set.cut > 0 && n->set.entries > 0 && n->set.entries < all ? n->set.entries
                                                                              : all);
}

void ek_collect_target_hash(const ek_collect_need *n, char out[33])
{
    const double numbers[] = {n->target.reduce, (double)n->target.horizon,
                              n->target.group,  n->target.normaliser,
                              n->sinks,         n->recent};

    ek_hash128(out, numbers, sizeof numbers); /* eps is added after the record */
}

ek_code ek_collect_open(ek_collect *c, const ek_collect_need *need, ek_err *err)
{
    const ek_dims *d = ek_model_dims(need->model);
    const ek_cache_need cache = {
        .dims = *d, .dtype = ek_model_storage(need->model), .cap = (int32_t)need->set.length};

    *c = (ek_collect){.need = *need};
    if (need->set.length > d->n_ctx)
        return EK_FAIL(err, EK_EASKED, "data.length: found %lld, the model's context is %d",
                       (long long)need->set.length, d->n_ctx);
    if (need->target.normaliser == EK_NORM_SPARSE)
        return EK_FAIL(err, EK_ENOTSUP,
                       "target.normaliser: sparse needs a base model trained under the policy");
    EK_TRY(ek_cache_open(&c->cache, &cache, need->dev, err));
    c->mass = malloc((size_t)need->set.length * sizeof *c->mass);
    if (need->answers > 0)
        c->logits = malloc((size_t)LOGITS * (size_t)d->n_vocab * sizeof *c->logits);
    if (c->mass == NULL || (need->answers > 0 && c->logits == NULL)) {
        ek_collect_close(c);
        return EK_FAIL(err, EK_ENOMEM, "room to collect records");
    }
    return EK_OK;
}

void ek_collect_close(ek_collect *c)
{
    ek_cache_close(&c->cache);
    free(c->logits);
    free(c->mass);
    *c = (ek_collect){0};
}

typedef struct targets { /* of one sequence: one per cut */
    ek_target cut[EK_DATA_CUTS];
    int n;
} targets;

static ek_code tap(void *ctx, const ek_tap_layer *t, ek_err *err)
{
    const ek_attn_row *row = &t->row[0];
    targets *all = ctx;

    (void)err;
    for (int m = 0; m < all->n; m++)
        ek_target_add(&all->cut[m], &row->view, (int64_t)row->view.next_pos - row->n_new,
                      row->n_new, row->q, t->ldq, row->lse);
    return EK_OK;
}

/* -log p of the answers' tokens that the logits of tokens from .. from + n - 1 predict. */
static void add_answers(ek_collect *c, const ek_sequence *s, int from, int n)
{
    const int vocab = ek_model_dims(c->need.model)->n_vocab;

    for (int a = 0; a < s->n_answers; a++)
        for (int j = s->answer[a][0]; j < s->answer[a][1]; j++) {
            if (j - 1 < from || j - 1 >= from + n)
                continue;
            const float *z = c->logits + (size_t)(j - 1 - from) * (size_t)vocab;
            double most = -INFINITY, sum = 0;

            for (int v = 0; v < vocab; v++)
                most = (double)z[v] > most ? (double)z[v] : most;
            for (int v = 0; v < vocab; v++)
                sum += exp((double)z[v] - most);
            c->answer_loss += most + log(sum) - (double)z[s->tok[j]];
            c->answer_tokens++;
        }
}

static ek_code read_sequence(ek_collect *c, const ek_sequence *s, targets *all, ek_err *err)
{
    const ek_tap observer = {.layer = tap, .ctx = all};
    const int measure = s->retrieval && s->cut[0] > 0 && c->measured < c->need.answers;

    for (int at = 0; at < s->n;) { /* where logits are asked, the cut is a seam between passes */
        const int wants = measure && at >= s->cut[0];
        const int end = measure && !wants ? s->cut[0] : s->n;
        const int most = wants ? LOGITS : CHUNK, n = end - at < most ? end - at : most;
        const ek_feed feed = {.cache = &c->cache,
                              .tok = s->tok + at,
                              .n = n,
                              .n_logits = wants ? n : 0,
                              .logits = c->logits};

        EK_TRY(ek_model_step(c->need.model, &feed, 1, &observer, err));
        if (wants)
            add_answers(c, s, at, n);
        at += n;
    }
    c->measured += measure;
    c->tokens += s->n;
    return EK_OK;
}

/* Which of n entries to keep, m in all, ascending in pick: the third with the most mass for sure,
 * the rest drawn evenly; log_weight of the drawn ones says how many each stands for. */
static void choose(const float *mass, int n, int m, uint64_t seed, uint64_t stream, int32_t *pick,
                   float *log_weight, float *scratch)
{
    const int sure = m / 3;
    float line = INFINITY;
    int above = 0, rest = 0, left = m, out = 0;

    if (m >= n) {
        for (int j = 0; j < n; j++) {
            pick[j] = j;
            log_weight[j] = 0;
        }
        return;
    }
    memcpy(scratch, mass, (size_t)n * sizeof *scratch);
    for (int lo = 0, hi = n - 1; lo < hi && sure > 0;) { /* the sure-th largest, by partition */
        const float pivot = scratch[lo + (hi - lo) / 2];
        int i = lo, j = hi;

        while (i <= j) {
            while (scratch[i] > pivot)
                i++;
            while (scratch[j] < pivot)
                j--;
            if (i <= j) {
                const float t = scratch[i];
                scratch[i++] = scratch[j];
                scratch[j--] = t;
            }
        }
        if (sure - 1 <= j)
            hi = j;
        else if (sure - 1 >= i)
            lo = i;
        else
            break;
    }
    if (sure > 0)
        line = scratch[sure - 1];
    for (int j = 0; j < n; j++)
        above += mass[j] > line;
    rest = n - above;
    left = m - above;
    const float weight = logf((float)rest / (float)left);
    for (int j = 0, seen = 0; j < n; j++) {
        if (mass[j] > line) {
            pick[out] = j;
            log_weight[out++] = 0;
            continue;
        }
        const double u = ek_rng_unit(seed, stream, (uint64_t)j);
        if (u * (rest - seen) < left) {
            pick[out] = j;
            log_weight[out++] = weight;
            left--;
        }
        seen++;
    }
}

static void fill_layer(ek_collect *c, int64_t number, int layer, const ek_target *target, int all,
                       ek_example *out, int32_t *pick, float *scratch)
{
    const int sinks = c->need.sinks, n = out->head->n;
    const size_t vector = (size_t)out->dims.head_dim * (size_t)ek_dtype_size(out->dtype);
    ek_view view;

    ek_cache_view(&c->cache, layer, -1, &view);
    for (int h = 0; h < out->dims.n_heads; h++) {
        const size_t at = ek_example_at(out, layer, h);

        ek_target_mass(target, &view, h, c->mass);
        choose(
            c->mass + sinks, all, n, (uint64_t)c->need.seed,
            ek_rng_stream("entries", (uint64_t)number, (uint64_t)(layer * out->dims.n_heads + h)),
            pick, out->log_weight + at, scratch);
        for (int i = 0; i < n; i++) {
            const int64_t e = (int64_t)view.first[h] + sinks + pick[i];

            out->pos[at + (size_t)i] = view.pos[e];
            out->mass[at + (size_t)i] = c->mass[sinks + pick[i]];
            memcpy(out->k + (at + (size_t)i) * vector, (const char *)view.k + (size_t)e * vector,
                   vector);
            memcpy(out->v + (at + (size_t)i) * vector, (const char *)view.v + (size_t)e * vector,
                   vector);
        }
    }
}

static ek_code make(ek_collect *c, int64_t number, const ek_sequence *s, int m,
                    const ek_target *target, ek_example *out, ek_err *err)
{
    const int all = ek_target_count(target) - c->need.sinks, most = ek_collect_entries(&c->need);
    const int cut = s->cut[m];
    const int n = cut > 0 && c->need.set.entries > 0 && all > most ? most : all;
    int32_t *pick;
    float *scratch;
    ek_example_head *head;

    if (all < 8)
        return EK_FAIL(err, EK_EASKED,
                       "training sequence %lld: %d tokens before the cut leave %d to choose from",
                       (long long)number, cut > 0 ? cut : s->n, all);
    EK_TRY(ek_example_open(out, ek_model_dims(c->need.model), ek_model_storage(c->need.model), n,
                           err));
    pick = malloc((size_t)all * sizeof *pick);
    scratch = malloc((size_t)all * sizeof *scratch);
    if (pick == NULL || scratch == NULL) {
        free(pick);
        free(scratch);
        ek_example_close(out);
        return EK_FAIL(err, EK_ENOMEM, "choosing among %d entries", all);
    }
    head = ek_example_edit(out);
    head->retrieval = s->retrieval;
    head->n_seq = s->n;
    head->next_pos = cut > 0 ? cut : s->n;
    head->whole = cut == 0;
    head->number = number;
    for (int l = 0; l < out->dims.n_layers; l++)
        fill_layer(c, number * EK_DATA_CUTS + m, l, target, all, out, pick, scratch);
    free(pick);
    free(scratch);
    return EK_OK;
}

static ek_code open_targets(ek_collect *c, const ek_sequence *s, targets *all, ek_err *err)
{
    const ek_dims *d = ek_model_dims(c->need.model);

    for (all->n = 0; all->n < s->n_cuts; all->n++) {
        const int cut = s->cut[all->n];
        ek_target_need need = {.dims = *d,
                               .set = c->need.target,
                               .recent = c->need.recent,
                               .n_seq = s->n,
                               .cut = cut,
                               .column = d->n_heads * (int)c->need.set.length};

        if (cut > 0)
            need.set.horizon = s->end[all->n] - cut;
        EK_TRY(ek_target_open(&all->cut[all->n], &need, c->need.dev, err));
    }
    return EK_OK;
}

/* Records first_cut .. first_cut + n - 1 of sequence i. */
static ek_code collect(ek_collect *c, int64_t i, int first_cut, int n, ek_example *out, ek_err *err)
{
    targets all = {.n = 0};
    ek_sequence s = {0};
    int made = 0;

    EK_TRY(ek_data_sequence(c->need.data, i, &s, err));
    EK_CHECK(open_targets(c, &s, &all, err));
    EK_CHECK(read_sequence(c, &s, &all, err));
    for (; made < n; made++)
        EK_CHECK(make(c, i, &s, first_cut + made, &all.cut[first_cut + made], &out[made], err));
    ek_cache_rewind(&c->cache, s.n);
    err->code = EK_OK;
fail:
    for (int m = 0; m < all.n; m++) {
        c->target_seconds += all.cut[m].seconds;
        ek_target_close(&all.cut[m]);
    }
    ek_sequence_clear(&s);
    if (err->code == EK_OK)
        return EK_OK;
    while (made > 0)
        ek_example_close(&out[--made]);
    return ek_err_in(err, "training sequence %lld", (long long)i);
}

ek_code ek_collect_sequence(ek_collect *c, int64_t i, ek_example *out, int *n, ek_err *err)
{
    *n = ek_data_cuts(c->need.data, i);
    return collect(c, i, 0, *n, out, err);
}

ek_code ek_collect_example(ek_collect *c, int64_t r, ek_example *out, ek_err *err)
{
    int64_t i = 0;

    for (; r >= ek_data_cuts(c->need.data, i); i++)
        r -= ek_data_cuts(c->need.data, i);
    return collect(c, i, (int)r, 1, out, err);
}
