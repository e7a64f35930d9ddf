/* infer/policy.c - see policy.h. */
#include "infer/policy.h"

#include "infer/budget.h"
#include "infer/vector.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static int never_cuts(const ek_method *m)
{
    return !m->when.prefill_end && !m->when.first_step && m->when.every <= 0;
}

/* Does anybody who has a budget hold more than it: a list, or a layer or the model that share one?
 */
static int is_over(const ek_policy *p, const ek_cache *c, int32_t entries)
{
    const int lists = c->dims.n_layers * c->dims.n_heads;
    const int share = ek_share_lists(&p->method, c->dims.n_layers, c->dims.n_heads);

    for (int i = 0; i < lists; i += share) {
        int64_t sum = 0;

        for (int k = i; k < i + share; k++)
            sum += c->n[k];
        if (sum > (int64_t)entries * share)
            return 1;
    }
    return 0;
}

int ek_policy_due(const ek_policy *p, ek_moment moment, int64_t step, int first_plan,
                  const ek_cache *c, int32_t entries)
{
    const ek_when *when = &p->method.when;

    if (never_cuts(&p->method) || entries <= 0)
        return 0;
    if (moment == EK_AT_PREFILL_END)
        return when->prefill_end;
    if (step < 1 || !ek_policy_watches(p, first_plan) || !is_over(p, c, entries))
        return 0;
    if (first_plan && (when->first_step || p->decode == EK_DECODE_GROW))
        return 1;
    if (p->decode == EK_DECODE_HOLD)
        return 1;
    return when->every > 0 && step % when->every == 0;
}

int32_t ek_policy_target(const ek_policy *p, int32_t entries)
{
    const int32_t every = p->method.when.every;
    int32_t sinks, recent, least;

    if (p->decode != EK_DECODE_HOLD || every <= 1 || entries <= 1)
        return entries;
    ek_policy_protected(&p->method, entries, entries, &sinks, &recent);
    least = sinks + recent + 1 < entries ? sinks + recent + 1 : entries;
    return entries - every + 1 > least ? entries - every + 1 : least;
}

int ek_policy_watches(const ek_policy *p, int first_plan)
{
    const ek_when *when = &p->method.when;

    if (never_cuts(&p->method))
        return 0;
    switch (p->decode) {
    case EK_DECODE_GROW:
        return first_plan;
    case EK_DECODE_HOLD:
        return 1;
    case EK_DECODE_ROW:
        break;
    }
    return when->every > 0 || (first_plan && when->first_step);
}

void ek_policy_scratch_close(ek_policy_scratch *s)
{
    ek_vector_scratch_close(&s->vector);
    free(s->block);
    *s = (ek_policy_scratch){0};
}

/* Room for one layer at a time, or (whole) for all at once. */
static ek_code make_room(ek_policy_scratch *s, const ek_cache *c, int whole, ek_err *err)
{
    const int lists = c->dims.n_layers * c->dims.n_heads;
    int64_t widest = 0, room, sums;
    char *block;

    for (int l = 0; l < c->dims.n_layers; l++)
        if (c->layer_at[l + 1] - c->layer_at[l] > widest)
            widest = c->layer_at[l + 1] - c->layer_at[l];
    room = whole ? c->layer_at[c->dims.n_layers] : widest;
    if (room <= s->room && widest <= s->sums && lists <= s->lists)
        return EK_OK;
    if (room > INT32_MAX)
        return EK_FAIL(err, EK_EASKED,
                       "plan: found room for %" PRId64 " entries, expected at most %d where all "
                       "heads share a budget",
                       room, INT32_MAX);
    room = room > s->room ? room : s->room;
    sums = widest > s->sums ? widest : s->sums;
    block = malloc((size_t)sums * sizeof *s->sum + (size_t)lists * sizeof *s->first +
                   (size_t)room * (sizeof *s->score + sizeof *s->mask));
    if (block == NULL)
        return EK_FAIL(err, EK_ENOMEM, "plan: scratch for %" PRId64 " entries", room);
    free(s->block);
    s->block = block;
    s->sum = (double *)block;
    s->score = (float *)(s->sum + sums);
    s->first = (int32_t *)(s->score + room);
    s->mask = (uint8_t *)(s->first + lists);
    s->room = room;
    s->sums = sums;
    s->lists = lists;
    s->grown++;
    return EK_OK;
}

/* Lists that share one set must hold the same positions. */
static ek_code check_alike(const ek_cache *c, int layer, int layers, ek_err *err)
{
    const int H = c->dims.n_heads;
    const int32_t n = c->n[layer * H];
    const int32_t *pos = c->pos + c->layer_at[layer] + c->first[layer * H];

    for (int i = layer * H; i < (layer + layers) * H; i++)
        if (c->n[i] != n ||
            memcmp(c->pos + c->layer_at[i / H] + c->first[i], pos, (size_t)n * sizeof *pos) != 0)
            return EK_FAIL(err, EK_EBROKEN,
                           "plan: layer %d, head %d: other entries than layer %d, head 0, though "
                           "one set is kept for both",
                           i / H, i % H, layer);
    return EK_OK;
}

/* The mean over the heads of `layers` layers of what the measure says of each slot, written over
 * all heads of `score`.  sum (entries of a head). */
static ek_code mean_scores(const ek_policy *p, const ek_cache *c, int lane, int layer, int layers,
                           double *sum, float *score, ek_err *err)
{
    ek_view view;

    EK_TRY(check_alike(c, layer, layers, err));
    memset(sum, 0, (size_t)c->n[layer * c->dims.n_heads] * sizeof *sum);
    for (int l = layer; l < layer + layers; l++) {
        ek_cache_view(c, l, lane, &view);
        EK_TRY(ek_measure_score(&p->method.measure, c->dev, &view, score, err));
        for (int h = 0; h < view.n_heads; h++)
            for (int32_t j = 0; j < view.n[h]; j++)
                sum[j] += (double)score[view.first[h] + j];
    }
    ek_cache_view(c, layer, lane, &view);
    for (int h = 0; h < view.n_heads; h++)
        for (int32_t j = 0; j < view.n[h]; j++)
            score[view.first[h] + j] = (float)(sum[j] / (layers * view.n_heads));
    return EK_OK;
}

/* What one layer's plan ranks. */
static ek_code scores(const ek_policy *p, const ek_cache *c, int lane, int layer, double *sum,
                      float *score, ek_err *err)
{
    ek_view view;

    switch (p->method.granularity) {
    case EK_SET_PER_HEAD:
        break;
    case EK_SET_PER_LAYER:
        return mean_scores(p, c, lane, layer, 1, sum, score, err);
    case EK_SET_PER_MODEL:
        EK_TRY(check_alike(c, 0, c->dims.n_layers, err));
        return mean_scores(p, c, lane, 0,
                           ek_measure_is_shared(&p->method.measure) ? 1 : c->dims.n_layers, sum,
                           score, err);
    }
    ek_cache_view(c, layer, lane, &view);
    return ek_measure_score(&p->method.measure, c->dev, &view, score, err);
}

ek_code ek_policy_scores(const ek_policy *p, const ek_cache *c, int lane, int layer, float *out,
                         ek_err *err)
{
    ek_policy_scratch s = {0};
    const int32_t *first = c->first + layer * c->dims.n_heads;
    const int32_t *n = c->n + layer * c->dims.n_heads;
    ek_code code;

    EK_TRY(make_room(&s, c, 0, err));
    code = scores(p, c, lane, layer, s.sum, s.score, err);
    /* One set for the model: its scores lie where layer 0 has its heads. */
    const int32_t *from = p->method.granularity == EK_SET_PER_MODEL ? c->first : first;
    for (int h = 0; h < c->dims.n_heads && code == EK_OK; h++)
        memcpy(out + first[h], s.score + from[h], (size_t)n[h] * sizeof *out);
    ek_policy_scratch_close(&s);
    return code;
}

static void mark_protected(const ek_method *m, int32_t n, int32_t entries, uint8_t *mask)
{
    int32_t sinks, recent;

    ek_policy_protected(m, n, entries, &sinks, &recent);
    memset(mask, 0, (size_t)n);
    memset(mask, 1, (size_t)sinks);
    memset(mask + n - recent, 1, (size_t)recent);
}

/* Mark the survivors of all lists from `list` on that are planned together: `more` of each beyond
 * the budget, whose protection stays the budget's. */
static void mark(const ek_policy *p, const ek_share_pool *pool, int32_t entries, int32_t more)
{
    for (int i = 0; i < pool->n_lists; i++)
        mark_protected(&p->method, pool->n[i], entries, pool->mask + pool->first[i]);
    if (p->method.budget != EK_SHARE_UNIFORM) {
        ek_share_out(&p->method, pool, entries + more);
        return;
    }
    for (int i = 0; i < pool->n_lists; i++) {
        int32_t sinks, recent;

        ek_policy_protected(&p->method, pool->n[i], entries, &sinks, &recent);
        ek_select(pool->score, pool->first + i, pool->n + i, 1, entries + more - sinks - recent,
                  pool->mask);
    }
}

/* Close list i with the marked slots of n entries; mask NULL: all of them. */
static ek_code put_list(ek_plan *out, int i, int32_t n, const uint8_t *mask, ek_err *err)
{
    int64_t at = out->first[i];

    out->of[i] = n;
    for (int32_t j = 0; j < n; j++) {
        if (mask != NULL && mask[j] == 0)
            continue;
        if (at >= out->room)
            return EK_FAIL(err, EK_EBROKEN,
                           "plan: layer %d, head %d: no room behind %" PRId64 " survivors",
                           i / out->n_heads, i % out->n_heads, out->room);
        out->slot[at++] = j;
    }
    out->first[i + 1] = (int32_t)at;
    out->mapped_first[i + 1] = out->mapped_first[i];
    return EK_OK;
}

/* Do the lists of a pool hold no more than their budgets, one each or one for all? */
static int fits(const ek_policy *p, const ek_share_pool *pool, int32_t entries)
{
    int64_t sum = 0;
    int each = 1;

    for (int i = 0; i < pool->n_lists; i++) {
        sum += pool->n[i];
        each = each && pool->n[i] <= entries;
    }
    return p->method.budget == EK_SHARE_UNIFORM ? each : sum <= (int64_t)entries * pool->n_lists;
}

/* Plan layers that are ranked together: one, or all. */
static ek_code plan_layers(const ek_policy *p, const ek_cache *c, int lane, int layer, int n_layers,
                           int32_t entries, ek_policy_scratch *s, ek_plan *out, ek_err *err)
{
    const int H = c->dims.n_heads, model = p->method.granularity == EK_SET_PER_MODEL;
    const ek_share_pool pool = {.list = layer * H,
                                .n_lists = n_layers * H,
                                .n_heads = H,
                                .first = s->first,
                                .n = c->n + layer * H,
                                .score = s->score,
                                .mask = s->mask};
    ek_vector_pool left = {.layer = layer,
                           .n_layers = n_layers,
                           .mask = s->mask,
                           .first = model ? c->first : s->first, /* one set: layer 0's marks */
                           .score = s->score,
                           .own = s->first,
                           .entries = entries};
    int all;

    for (int i = 0; i < pool.n_lists; i++)
        s->first[i] =
            (int32_t)(c->layer_at[layer + i / H] - c->layer_at[layer]) + c->first[pool.list + i];
    all = entries <= 0 || fits(p, &pool, entries);
    left.more = all ? 0 : ek_vector_more(&p->method, pool.n, pool.n_lists, entries);
    if (!all && !(model && layer > 0)) {
        for (int l = layer; l < layer + n_layers; l++)
            EK_TRY(
                scores(p, c, lane, l, s->sum, s->score + c->layer_at[l] - c->layer_at[layer], err));
        mark(p, &pool, entries, left.more);
    }
    if (left.more > 0)
        return ek_vector_split(&p->method, c, &left, &s->vector, out, err);
    for (int i = 0; i < pool.n_lists; i++)
        EK_TRY(put_list(out, pool.list + i, pool.n[i], all ? NULL : s->mask + left.first[i], err));
    return EK_OK;
}

ek_code ek_policy_plan(const ek_policy *p, const ek_cache *c, int lane, int32_t entries,
                       ek_policy_scratch *scratch, ek_plan *out, ek_err *err)
{
    const int L = c->dims.n_layers, H = c->dims.n_heads;
    const int together = p->method.budget == EK_SHARE_MODEL ? L : 1;

    if (out->n_layers != L || out->n_heads != H)
        return EK_FAIL(err, EK_EBROKEN, "plan of %d x %d lists, cache of %d x %d", out->n_layers,
                       out->n_heads, L, H);
    EK_TRY(make_room(scratch, c, together > 1, err));
    out->first[0] = out->mapped_first[0] = 0;
    for (int l = 0; l < L; l += together)
        EK_TRY(plan_layers(p, c, lane, l, together, entries, scratch, out, err));
    return EK_OK;
}

/* Are pos[0 .. n - 1] the positions of these slots of a list? */
static ek_code check_positions(const int32_t *pos, const int32_t *slot, int32_t n,
                               const ek_cache *before, int i, ek_err *err)
{
    const int H = before->dims.n_heads;
    const int32_t *was = before->pos + before->layer_at[i / H] + before->first[i];

    for (int32_t j = 0; j < n; j++)
        if (slot[j] < 0 || slot[j] >= before->n[i] || pos[j] != was[slot[j]])
            return EK_FAIL(err, EK_EBROKEN,
                           "layer %d, head %d: entry %d has position %d, the plan keeps slot %d",
                           i / H, i % H, j, pos[j], slot[j]);
    return EK_OK;
}

static ek_code check_list(const ek_plan *plan, int i, const ek_cache *before, const ek_cache *after,
                          ek_err *err)
{
    const int H = after->dims.n_heads, l = i / H, h = i % H;
    const int32_t kept = plan->first[i + 1] - plan->first[i];
    const int32_t mapped = plan->mapped_first[i + 1] - plan->mapped_first[i];
    const ek_annex *annex = &after->annex;
    const int32_t keys = annex->maps != NULL ? annex->n[i] : 0;

    if (after->n[i] != kept || keys != mapped)
        return EK_FAIL(err, EK_EBROKEN,
                       "layer %d, head %d: planned %d entries and %d without values, the cache "
                       "holds %d and %d",
                       l, h, kept, mapped, after->n[i], keys);
    if (before == NULL || before == after)
        return EK_OK;
    EK_TRY(check_positions(after->pos + after->layer_at[l] + after->first[i],
                           plan->slot + plan->first[i], kept, before, i, err));
    if (mapped == 0)
        return EK_OK;
    return check_positions(annex->pos + annex->layer_at[l] + annex->first[i],
                           plan->mapped + plan->mapped_first[i], mapped, before, i, err);
}

/* An entry without value counts half: asked for B, a head has B - a and 2 a of those. */
static ek_code check_share(const ek_policy *p, const ek_plan *plan, int first, int n_lists,
                           int32_t entries, ek_err *err)
{
    const int H = plan->n_heads, share = p->method.budget != EK_SHARE_UNIFORM;
    const int32_t a = ek_vector_more(&p->method, plan->of + first, n_lists, entries);
    int64_t sum = 0, halves = 0, seen = 0;

    for (int i = first; i < first + n_lists; i++) {
        const int32_t n = plan->of[i], kept = plan->first[i + 1] - plan->first[i];
        const int32_t mapped = plan->mapped_first[i + 1] - plan->mapped_first[i];
        const int32_t asked = entries > 0 && entries < n ? entries : n;
        const int32_t least = entries > 0 ? ek_share_floor(&p->method, n, entries + a) : n;

        if (share ? kept + mapped < least || kept + mapped > n
                  : kept != asked - a || mapped != 2 * a)
            return EK_FAIL(err, EK_EBROKEN,
                           "layer %d, head %d: asked for %s%d entries, kept %d and %d without "
                           "values",
                           i / H, i % H, share ? "at least " : "", share ? least : asked, kept,
                           mapped);
        sum += kept;
        halves += mapped;
        seen += n;
    }
    const int64_t budget = (int64_t)entries * n_lists;
    const int64_t asked = entries > 0 && budget < seen ? budget : seen;
    if (share && (halves != 2 * (int64_t)a * n_lists || sum + halves / 2 != asked))
        return EK_FAIL(err, EK_EBROKEN,
                       "layers %d to %d: asked for %" PRId64 " entries, kept %" PRId64
                       " and %" PRId64 " without values",
                       first / H, (first + n_lists - 1) / H, asked, sum, halves);
    return EK_OK;
}

ek_code ek_policy_check(const ek_policy *p, const ek_plan *plan, const ek_cache *before,
                        const ek_cache *after, int32_t entries, ek_err *err)
{
    const int L = after->dims.n_layers, H = after->dims.n_heads;
    const int together = p->method.budget == EK_SHARE_MODEL ? L : 1;

    for (int i = 0; i < L * H; i++)
        EK_TRY(check_list(plan, i, before, after, err));
    for (int l = 0; l < L; l += together)
        EK_TRY(check_share(p, plan, l * H, together * H, entries, err));
    return EK_OK;
}
