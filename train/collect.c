/* train/collect.c - one sequence through the model, targets and carried columns by the tap, its
 * record. */
#include "train/collect.h"

#include "core/file.h"
#include "core/progress.h"
#include "core/rng.h"
#include "scorers/carried.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNK = 512, LOGITS = 128 }; /* tokens per pass; where logits may be asked */

_Static_assert((int)EK_DATA_CUTS <= (int)EK_EXAMPLE_CUTS, "a record holds all cuts of a sequence");

static int is_whole(const ek_collect_need *n)
{
    return n->whole || n->set.entries == 0 || n->set.cut == 0;
}

static size_t n_carry(const ek_collect_need *n)
{
    return (size_t)ek_carried_floats(n->carried, ek_model_dims(n->model)->group);
}

int ek_collect_entries(const ek_collect_need *n)
{
    const int64_t all = n->set.length - 1 - n->recent - n->sinks;

    return (int)(is_whole(n) ? n->set.length : n->set.entries < all ? n->set.entries : all);
}

int64_t ek_collect_bytes(const ek_collect_need *n)
{
    const ek_example_shape shape = {.dims = *ek_model_dims(n->model),
                                    .dtype = ek_model_storage(n->model),
                                    .n = ek_collect_entries(n),
                                    .n_cuts = n->set.cut > 0 ? (int)n->set.cuts : 1,
                                    .n_carry = (int)n_carry(n)};

    return ek_example_bytes(&shape);
}

void ek_collect_target_hash(const ek_collect_need *n, char out[33])
{
    const double numbers[] = {n->target.reduce, (double)n->target.horizon,
                              n->target.group,  n->target.normaliser,
                              n->sinks,         n->recent,
                              is_whole(n),      n->carried};

    ek_hash128(out, numbers, sizeof numbers); /* eps is added after the record */
}

/* Entries of a layer's columns in the cache that sequences are read into. */
static size_t column(const ek_collect *c)
{
    return (size_t)ek_model_dims(c->need.model)->n_heads * (size_t)c->need.set.length;
}

static ek_code open_room(ek_collect *c, ek_err *err)
{
    const ek_dims *d = ek_model_dims(c->need.model);
    const size_t length = (size_t)c->need.set.length, carry = n_carry(&c->need);

    c->mass = malloc(EK_DATA_CUTS * length * sizeof *c->mass);
    c->score = malloc(length * sizeof *c->score);
    c->scratch = malloc(length * sizeof *c->scratch);
    c->pick = malloc(length * sizeof *c->pick);
    if (c->need.answers > 0)
        c->logits = malloc((size_t)LOGITS * (size_t)d->n_vocab * sizeof *c->logits);
    if (carry > 0) {
        c->carry = malloc((size_t)d->n_layers * column(c) * carry * sizeof *c->carry);
        c->fold = malloc(4 * column(c) * (size_t)d->group * sizeof *c->fold);
    }
    if (c->mass == NULL || c->score == NULL || c->scratch == NULL || c->pick == NULL ||
        (c->need.answers > 0 && c->logits == NULL) ||
        (carry > 0 && (c->carry == NULL || c->fold == NULL)))
        return EK_FAIL(err, EK_ENOMEM, "room to collect records of %zu tokens", length);
    return EK_OK;
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
    const ek_code code = open_room(c, err);
    if (code != EK_OK)
        ek_collect_close(c);
    return code;
}

void ek_collect_close(ek_collect *c)
{
    ek_cache_close(&c->cache);
    free(c->logits);
    free(c->mass);
    free(c->score);
    free(c->scratch);
    free(c->pick);
    free(c->carry);
    free(c->fold);
    *c = (ek_collect){0};
}

typedef struct reading { /* of one sequence */
    ek_collect *c;
    int n;                          /* cuts */
    int at[EK_DATA_CUTS];           /* where each is; behind the last token for whole sequences */
    ek_target target[EK_DATA_CUTS]; /* what later queries pay */
    float *carry[EK_DATA_CUTS]; /* (n_layers, column, floats) what was received before the cut */
} reading;

/* Columns of one layer as of cut m: what has been folded so far. */
static void snapshot(reading *r, int m, const ek_view *view)
{
    const size_t width = n_carry(&r->c->need), layer = (size_t)view->layer * column(r->c);

    for (int h = 0; h < view->n_heads; h++) {
        const size_t at = (layer + (size_t)view->first[h]) * width;
        const int n = view->n[h] < r->at[m] ? view->n[h] : r->at[m];

        memcpy(r->carry[m] + at, r->c->carry + at, (size_t)n * width * sizeof(float));
    }
}

/* Carried columns run on from cut to cut: queries q_pos .. q_pos + n_q - 1 in stretches that end at
 * the cuts, each kept as it is there; those behind the last cut are nobody's. */
static void fold_queries(reading *r, const ek_tap_layer *t, int64_t q_pos, int n_q)
{
    const ek_attn_row *row = &t->row[0];
    const size_t heads = (size_t)row->view.n_heads * (size_t)row->view.group;
    const ek_dims *d = ek_model_dims(r->c->need.model);
    float *carry = r->c->carry + (size_t)row->view.layer * column(r->c) * n_carry(&r->c->need);
    int64_t from = q_pos;

    for (int m = 0; m < r->n && from < q_pos + n_q; m++) {
        const int64_t end = r->at[m] < q_pos + n_q ? r->at[m] : q_pos + n_q;

        if (end <= from)
            continue;
        const ek_colsum chunk = {.view = row->view,
                                 .n_q = (int)(end - from),
                                 .q_pos = from,
                                 .q = row->q + (size_t)(from - q_pos) * t->ldq,
                                 .ldq = t->ldq,
                                 .lse = row->lse + (size_t)(from - q_pos) * heads};

        ek_carried_fold(r->c->need.carried, r->c->need.dev, &chunk, d->scale, carry, r->c->fold);
        if (end == r->at[m])
            snapshot(r, m, &row->view);
        from = end;
    }
}

static ek_code tap(void *ctx, const ek_tap_layer *t, ek_err *err)
{
    const double start = ek_now();
    const ek_attn_row *row = &t->row[0];
    const int64_t q_pos = (int64_t)row->view.next_pos - row->n_new;
    reading *r = ctx;

    (void)err;
    for (int m = 0; m < r->n; m++)
        ek_target_add(&r->target[m], &row->view, q_pos, row->n_new, row->q, t->ldq, row->lse);
    if (r->c->carry != NULL)
        fold_queries(r, t, q_pos, row->n_new);
    r->c->target_seconds += ek_now() - start;
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
            c->answers[s->kind].loss += most + log(sum) - (double)z[s->tok[j]];
            c->answers[s->kind].tokens++;
        }
}

/* Passes of retrieval text have a seam at the cut and are short behind it, whether or not logits
 * are asked there: a record has the same bits when it is made again. */
static ek_code read_sequence(reading *r, const ek_sequence *s, ek_err *err)
{
    ek_collect *c = r->c;
    const ek_tap observer = {.layer = tap, .ctx = r};
    const int seam = s->retrieval && s->cut[0] > 0 ? s->cut[0] : s->n;
    const int measure = seam < s->n && c->answers[s->kind].texts < c->need.answers;
    const double start = ek_now(), tapped = c->target_seconds;

    for (int at = 0; at < s->n;) {
        const int end = at < seam ? seam : s->n, most = at < seam ? CHUNK : LOGITS;
        const int n = end - at < most ? end - at : most, wants = measure && at >= seam;
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
    c->model_seconds += ek_now() - start - (c->target_seconds - tapped);
    c->answers[s->kind].texts += measure;
    c->tokens += s->n;
    c->sequences++;
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

/* Masses of one head at every cut, c->mass (cuts, length): 0 where an entry does not count. */
static void masses(reading *r, const ek_view *view, int h)
{
    const size_t length = (size_t)r->c->need.set.length;

    for (int m = 0; m < r->n; m++) {
        float *mass = r->c->mass + (size_t)m * length;

        memset(mass, 0, length * sizeof *mass);
        ek_target_mass(&r->target[m], view, h, mass);
        memset(mass, 0, (size_t)r->c->need.sinks * sizeof *mass);
    }
}

/* Of the tokens sinks .. sinks + n - 1: the greatest share that one of the cuts gives them. */
static void scores(reading *r, int n)
{
    const size_t length = (size_t)r->c->need.set.length;
    float *score = r->c->score;

    memset(score, 0, (size_t)n * sizeof *score);
    for (int m = 0; m < r->n; m++) {
        const float *mass = r->c->mass + (size_t)m * length + r->c->need.sinks;
        double sum = 0;

        for (int j = 0; j < n; j++)
            sum += (double)mass[j];
        for (int j = 0; j < n && sum > 0; j++) {
            const float share = (float)((double)mass[j] / sum);
            score[j] = share > score[j] ? share : score[j];
        }
    }
}

/* Entries of one head: which token each of them is goes to c->pick. */
static void choose_head(reading *r, int64_t number, int layer, int h, ek_example *out)
{
    ek_collect *c = r->c;
    const int n = out->head->n, all = ek_target_count(&r->target[r->n - 1]) - c->need.sinks;
    const int x = layer * out->dims.n_heads + h;

    if (out->head->whole) {
        for (int e = 0; e < n; e++)
            c->pick[e] = e;
        return;
    }
    scores(r, all);
    choose(c->score, all, n, (uint64_t)c->need.seed,
           ek_rng_stream("entries", (uint64_t)number, (uint64_t)x), c->pick,
           out->log_weight + ek_example_at(out, layer, h), c->scratch);
    for (int e = 0; e < n; e++)
        c->pick[e] += c->need.sinks;
}

static void fill_head(reading *r, const ek_view *view, int h, ek_example *out)
{
    const ek_collect *c = r->c;
    const int l = view->layer, n = out->head->n;
    const size_t vector = (size_t)ek_view_vector_bytes(view), width = n_carry(&c->need);
    const size_t at = ek_example_at(out, l, h), length = (size_t)c->need.set.length;

    for (int i = 0; i < n; i++) {
        const size_t to = at + (size_t)i, from = (size_t)view->first[h] + (size_t)c->pick[i];

        out->pos[to] = view->pos[from];
        memcpy(out->k + to * vector, (const char *)view->k + from * vector, vector);
        memcpy(out->v + to * vector, (const char *)view->v + from * vector, vector);
    }
    for (int m = 0; m < r->n; m++) {
        const size_t to = ek_example_mass_at(out, l, m, h);
        const size_t from = (size_t)l * column(c) + (size_t)view->first[h];

        for (int i = 0; i < n; i++)
            out->mass[to + (size_t)i] = c->mass[(size_t)m * length + (size_t)c->pick[i]];
        for (int i = 0; i < n && width > 0; i++)
            if (c->pick[i] < r->at[m])
                memcpy(out->carry + (to + (size_t)i) * width,
                       r->carry[m] + (from + (size_t)c->pick[i]) * width, width * sizeof(float));
    }
}

static ek_code make(reading *r, int64_t number, const ek_sequence *s, ek_example *out, ek_err *err)
{
    const ek_collect_need *need = &r->c->need;
    const int all = ek_target_count(&r->target[r->n - 1]) - need->sinks;
    const int least = ek_target_count(&r->target[0]) - need->sinks, whole = is_whole(need);
    const ek_example_shape shape = {.dims = *ek_model_dims(need->model),
                                    .dtype = ek_model_storage(need->model),
                                    .n = whole                     ? s->n
                                         : need->set.entries < all ? (int)need->set.entries
                                                                   : all,
                                    .n_cuts = r->n,
                                    .n_carry = (int)n_carry(need)};
    ek_example_head *head;
    ek_view view;

    if (least < 8)
        return EK_FAIL(err, EK_EASKED, "%d tokens before the cut leave %d to choose from", r->at[0],
                       least);
    EK_TRY(ek_example_open(out, &shape, err));
    head = ek_example_edit(out);
    head->retrieval = s->retrieval;
    head->n_seq = s->n;
    head->whole = whole;
    head->sinks = need->sinks;
    head->recent = need->recent;
    head->carried = need->carried;
    head->number = number;
    for (int m = 0; m < r->n; m++) {
        head->cut[m] = r->at[m];
        head->end[m] = s->cut[m] > 0 ? s->end[m] : s->n;
    }
    for (int l = 0; l < out->dims.n_layers; l++) {
        ek_cache_view(&r->c->cache, l, -1, &view);
        for (int h = 0; h < out->dims.n_heads; h++) {
            masses(r, &view, h);
            choose_head(r, number, l, h, out);
            fill_head(r, &view, h, out);
        }
    }
    return EK_OK;
}

static ek_code open_reading(reading *r, const ek_sequence *s, ek_err *err)
{
    const ek_collect_need *c = &r->c->need;
    const ek_dims *d = ek_model_dims(c->model);
    const size_t carry = (size_t)d->n_layers * column(r->c) * n_carry(c);

    for (int m = 0; m < s->n_cuts; m++) {
        ek_target_need need = {.dims = *d,
                               .set = c->target,
                               .recent = c->recent,
                               .n_seq = s->n,
                               .cut = s->cut[m],
                               .column = (int)column(r->c)};

        if (s->cut[m] > 0)
            need.set.horizon = s->end[m] - s->cut[m];
        EK_TRY(ek_target_open(&r->target[m], &need, c->dev, err));
        r->n = m + 1;
        r->at[m] = s->cut[m] > 0 ? s->cut[m] : s->n;
        if (carry > 0 && (r->carry[m] = malloc(carry * sizeof(float))) == NULL)
            return EK_FAIL(err, EK_ENOMEM, "carried columns of %d tokens", s->n);
    }
    if (carry > 0)
        memset(r->c->carry, 0, carry * sizeof(float));
    return EK_OK;
}

ek_code ek_collect_example(ek_collect *c, int64_t i, ek_example *out, ek_err *err)
{
    reading r = {.c = c};
    ek_sequence s = {0};

    EK_CHECK(ek_data_sequence(c->need.data, i, &s, err));
    EK_CHECK(open_reading(&r, &s, err));
    EK_CHECK(read_sequence(&r, &s, err));
    EK_CHECK(make(&r, i, &s, out, err));
    ek_cache_rewind(&c->cache, s.n);
    err->code = EK_OK;
fail:
    for (int m = 0; m < r.n; m++) {
        ek_target_close(&r.target[m]);
        free(r.carry[m]);
    }
    ek_sequence_clear(&s);
    return err->code == EK_OK ? EK_OK : ek_err_in(err, "training sequence %lld", (long long)i);
}
