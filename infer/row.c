/* infer/row.c - rows: a sequence under a policy, opened from a prompt, decoded in lockstep. */
#include "infer/engine_parts.h"

#include "core/progress.h"

#include <stdlib.h>
#include <string.h>

static int64_t since(double start)
{
    return (int64_t)((ek_now() - start) * 1e9);
}

/* A method that never plans is the full cache, whatever its budget says. */
static int evicts(const ek_policy *p)
{
    return p && (p->method.when.prefill_end || p->method.when.first_step || p->method.when.every);
}

/* May plans come while decoding? */
static int plans_later(const ek_row *r)
{
    return r->policy && ek_policy_watches(r->policy, r->planned == 0);
}

/* Entries per head now.  A fraction of the prompt stays what it was; what is asked as a number or
 * as bytes, or as a fraction of what was seen, looks at the tokens seen so far.  Where every cache
 * grows after its cut, one that is cut at a decode step holds what the others have grown to. */
static int32_t budget_now(const ek_row *r, const ek_cache *c)
{
    const ek_policy *p = r->policy;
    const int32_t grown = p->decode == EK_DECODE_GROW ? (int32_t)r->step : 0;
    const ek_cost cost = ek_policy_cost(p, &c->dims, c->dtype);
    const int64_t n = p->budget.num && !p->budget.of_seen ? r->n_prompt : c->next_pos - grown;

    return ek_budget_entries(&p->budget, n, &cost) + grown;
}

/* Entries of a list; those without values count half. */
static int32_t held_by(const ek_cache *c, int list)
{
    return c->n[list] + (c->annex.maps != NULL ? c->annex.n[list] / 2 : 0);
}

static void count_kept(ek_row *r)
{
    const ek_cache *c = &r->cache;

    r->kept_min = INT32_MAX;
    r->kept_max = 0;
    for (int i = 0; i < c->dims.n_layers * c->dims.n_heads; i++) {
        const int32_t n = held_by(c, i);

        r->kept_min = n < r->kept_min ? n : r->kept_min;
        r->kept_max = n > r->kept_max ? n : r->kept_max;
    }
}

/* Bytes of living entries.  Lanes that a full cache took over from its prompt are of no use to it
 * and not its cost. */
static int64_t held(ek_row *r)
{
    const ek_cache_bytes b = ek_cache_count(&r->cache);

    r->state_bytes = r->later ? b.state : 0;
    return b.kv + b.pos + r->state_bytes;
}

/* ---- opening ---- */

static ek_code find_lane(const ek_cache *prompt, const ek_policy *p, int *lane, ek_err *err)
{
    const ek_measure *m = &p->method.measure;

    *lane = -1;
    if (ek_measure_n_carry(m, prompt->dims.group) == 0)
        return EK_OK;
    for (int i = 0; i < prompt->n_lanes; i++)
        if (ek_measure_same(prompt->lane[i].measure, m)) {
            *lane = i;
            return EK_OK;
        }
    return EK_FAIL(err, EK_EBROKEN, "%s: the prompt's cache has no lane for its measure",
                   p->method.name);
}

static ek_code keep_all(ek_engine *e, const ek_cache *c, ek_err *err)
{
    const int heads = c->dims.n_layers * c->dims.n_heads;
    ek_plan *p = &e->plan;

    EK_TRY(ek_engine_plan_room(e, c, err));
    p->first[0] = 0;
    memset(p->mapped_first, 0, sizeof *p->mapped_first * (size_t)(heads + 1));
    for (int i = 0; i < heads; i++) {
        for (int32_t s = 0; s < c->n[i]; s++)
            p->slot[p->first[i] + s] = s;
        p->of[i] = c->n[i];
        p->first[i + 1] = p->first[i] + c->n[i];
    }
    return EK_OK;
}

/* Room of each head: what is kept and `grow` more; less where every step (or every few) cuts back
 * to a budget that does not move. */
static void size_heads(const ek_row *r, const ek_plan *plan, int grow, int32_t *caps)
{
    const ek_policy *p = r->policy;
    const int heads = plan->n_layers * plan->n_heads;
    int32_t bound = INT32_MAX;

    if (r->later && (r->planned || !p->method.when.first_step) &&
        !(r->flags & EK_ROW_QUESTION_LATER) && p->method.budget == EK_SHARE_UNIFORM &&
        !(p->budget.num && p->budget.of_seen)) {
        const int every =
            p->decode == EK_DECODE_HOLD || p->method.when.every < 1 ? 1 : p->method.when.every;

        /* An amount that may still grow to what was asked is bounded by `grow` below. */
        if (p->budget.num)
            bound = r->entries + every;
    }
    for (int i = 0; i < heads; i++) {
        const int32_t kept = plan->first[i + 1] - plan->first[i];
        const int32_t least = bound > kept ? bound : kept + 1;

        caps[i] = kept + grow < least ? kept + grow : least;
        if (caps[i] < 1)
            caps[i] = 1;
    }
}

/* A new cache that holds what the engine's plan keeps of `from`. */
static ek_code fork_cache(ek_row *r, ek_engine *e, const ek_cache *from, int lane, int grow,
                          ek_cache *to, ek_err *err)
{
    const int heads = from->dims.n_layers * from->dims.n_heads;
    const ek_measure *m = r->policy ? &r->policy->method.measure : NULL;
    int32_t *caps = malloc(2 * sizeof *caps * (size_t)heads);
    const ek_cache_need need = {.dims = from->dims,
                                .dtype = from->dtype,
                                .caps = caps,
                                .mapped = caps + heads,
                                .maps = r->policy ? r->policy->method.maps : NULL,
                                .n_lanes = r->later && lane >= 0 ? 1 : 0,
                                .measures = &m};
    ek_code code;

    if (!caps)
        return EK_FAIL(err, EK_ENOMEM, "no memory for the sizes of a cache");
    size_heads(r, &e->plan, grow, caps);
    for (int i = 0; i < heads; i++)
        caps[heads + i] = e->plan.mapped_first[i + 1] - e->plan.mapped_first[i];
    code = ek_cache_open(to, &need, e->dev, err);
    free(caps);
    if (code != EK_OK)
        return code;
    code = ek_cache_apply(to, from, lane, &e->plan, err);
    if (code != EK_OK)
        ek_cache_close(to);
    return code;
}

static ek_code open_row(ek_row *r, ek_engine *e, ek_cache *prompt, int grow, ek_err *err)
{
    const ek_policy *p = r->policy;
    int lane = -1, due = 0;

    if (evicts(p)) {
        EK_TRY(ek_engine_check_measure(&p->method.measure, err));
        EK_TRY(ek_policy_affords(p, &prompt->dims, prompt->dtype, err));
        EK_TRY(find_lane(prompt, p, &lane, err));
        r->entries = budget_now(r, prompt);
        due = ek_policy_due(p, EK_AT_PREFILL_END, 0, 1, prompt, r->entries) ||
              ((r->flags & EK_ROW_QUESTION_LATER) && p->method.when.first_step);
    }
    if (due) {
        const double start = ek_now();

        EK_TRY(ek_engine_plan_room(e, prompt, err));
        EK_TRY(ek_policy_plan(p, prompt, lane, r->entries, &e->policy, &e->plan, err));
        r->planned = 1;
        r->score_ns += since(start);
    } else {
        EK_TRY(keep_all(e, prompt, err));
    }
    r->later = plans_later(r);
    if ((r->flags & EK_ROW_TAKE) && !due && ek_cache_room(prompt) >= grow &&
        (!p || prompt->n_lanes == (lane >= 0))) {
        r->cache = *prompt;
        *prompt = (ek_cache){0};
        if (r->cache.n_lanes && p)
            r->cache.lane[0].measure = &p->method.measure;
    } else {
        EK_TRY(fork_cache(r, e, prompt, lane, grow, &r->cache, err));
    }
    if (due)
        EK_TRY(ek_policy_check(p, &e->plan, prompt, &r->cache, r->entries, err));
    /* What the prompt's last query left behind is not part of a measure that begins with the first
     * decode step. */
    if (r->later && !due && p->method.when.first_step && r->cache.n_lanes)
        ek_cache_clear(&r->cache, 0);
    return EK_OK;
}

ek_code ek_row_open(ek_row *r, ek_engine *e, ek_cache *prompt, const ek_policy *policy,
                    int64_t n_prompt, int grow, int flags, ek_err *err)
{
    ek_row row = {.policy = evicts(policy) ? policy : NULL,
                  .n_prompt = n_prompt,
                  .flags = flags,
                  .end_pos = prompt->next_pos + grow};

    if (open_row(&row, e, prompt, grow, err) != EK_OK) {
        ek_cache_close(&row.cache);
        return policy ? ek_err_in(err, "%s", policy->method.name) : err->code;
    }
    if (flags & EK_ROW_TAKE)
        ek_cache_close(prompt);
    count_kept(&row);
    row.kept_asked = row.policy && row.entries < row.kept_max ? row.entries : row.kept_max;
    row.bytes_peak = held(&row);
    *r = row;
    return EK_OK;
}

void ek_row_close(ek_row *r)
{
    ek_cache_close(&r->cache);
    *r = (ek_row){0};
}

/* ---- stepping ---- */

typedef struct stepping {
    ek_engine *e;
    ek_row *const *live;
} stepping;

/* The lane of a row looks at one layer's attention. */
static ek_code measure_layer(ek_engine *e, ek_row *r, const ek_tap_layer *t, int i, ek_err *err)
{
    const ek_measure *m = &r->policy->method.measure;
    ek_cache *c = &r->cache;
    ek_view view = t->row[i].view;

    if (!r->counts)
        return ek_engine_fold(e, t, i, 0, (int64_t)c->next_pos + r->n_feed, err);
    const ek_memory mem = ek_cache_memory(c, t->layer, 0);

    view.n_carry = c->lane[0].n_carry;
    view.carry = mem.shared != NULL ? mem.shared : mem.carry;
    ek_measure_step(m, e->dev, &view, t->row[i].prob, &mem);
    return EK_OK;
}

static ek_code step_tap(void *ctx, const ek_tap_layer *t, ek_err *err)
{
    const stepping *s = ctx;

    for (int i = 0; i < t->n_feeds; i++) {
        ek_row *r = s->live[i];
        double start;

        /* The future is not measured: the evaluator has put it there. */
        if (!r->later || r->cache.n_lanes == 0 ||
            r->policy->method.measure.signal->source == EK_FROM_FUTURE)
            continue;
        start = ek_now();
        EK_TRY(measure_layer(s->e, r, t, i, err));
        r->score_ns += since(start);
    }
    return EK_OK;
}

/* Evict in place, or into a cache of the new size when most of the room would stay empty. */
static ek_code apply_plan(ek_row *r, ek_engine *e, int first, int32_t asked, ek_err *err)
{
    ek_cache *c = &r->cache;
    const size_t heads = (size_t)c->dims.n_layers * (size_t)c->dims.n_heads;
    const size_t entries = (size_t)c->layer_at[c->dims.n_layers];
    ek_cache before = *c;

    if (first) {
        ek_cache small = {0};
        const int grow = r->end_pos > c->next_pos ? r->end_pos - c->next_pos : 0;
        ek_code code;

        EK_TRY(fork_cache(r, e, c, c->n_lanes ? 0 : -1, grow, &small, err));
        code = ek_policy_check(r->policy, &e->plan, c, &small, asked, err);
        ek_cache_close(c);
        *c = small;
        return code;
    }
    EK_TRY(ek_engine_reserve(e, &e->before, sizeof(int32_t) * (heads + entries), err));
    before.n = e->before.data;
    before.pos = before.n + heads;
    memcpy(before.n, c->n, sizeof(int32_t) * heads);
    memcpy(before.pos, c->pos, sizeof(int32_t) * entries);
    EK_TRY(ek_cache_apply(c, c, 0, &e->plan, err));
    return ek_policy_check(r->policy, &e->plan, &before, c, asked, err);
}

static ek_code look_after(ek_row *r, ek_engine *e, ek_err *err)
{
    const ek_policy *p = r->policy;
    int first;

    r->entries = budget_now(r, &r->cache);
    first = r->planned == 0 && p->method.when.first_step;
    if (ek_policy_due(p, EK_AT_STEP, r->step, r->planned == 0, &r->cache, r->entries)) {
        const int32_t asked = ek_policy_target(p, r->entries);
        const double start = ek_now();

        EK_TRY(ek_engine_plan_room(e, &r->cache, err));
        EK_TRY(ek_policy_plan(p, &r->cache, r->cache.n_lanes ? 0 : -1, asked, &e->policy, &e->plan,
                              err));
        r->score_ns += since(start);
        r->planned++;
        r->later = plans_later(r);
        EK_TRY(apply_plan(r, e, first, asked, err));
        count_kept(r);
        r->kept_asked = asked;
    }
    r->later = plans_later(r);
    return EK_OK;
}

static ek_code after_step(ek_row *r, ek_engine *e, ek_err *err)
{
    int64_t bytes = held(r);

    if (bytes > r->bytes_peak)
        r->bytes_peak = bytes;
    if (!r->counts)
        return EK_OK;
    r->step += r->n_feed;
    if (r->later) {
        if (look_after(r, e, err) != EK_OK)
            return ek_err_in(err, "%s: step %lld", r->policy->method.name, (long long)r->step);
        bytes = held(r);
    }
    r->kept_sum +=
        (double)r->n_feed *
        ((double)ek_cache_entries(&r->cache) + (double)ek_cache_mapped(&r->cache) / 2.0) /
        ((double)r->cache.dims.n_layers * r->cache.dims.n_heads);
    r->seen_sum += (double)r->n_feed * r->cache.next_pos;
    r->bytes_sum += bytes * r->n_feed;
    r->steps_counted += r->n_feed;
    return EK_OK;
}

/* Does this feed have to hand over probabilities? */
static int wants_prob(const ek_row *r)
{
    return r->later && r->counts && r->cache.n_lanes &&
           ek_measure_wants_prob(&r->policy->method.measure, r->step + 1);
}

static size_t prob_size(const ek_row *r)
{
    return (size_t)ek_engine_widest(&r->cache) * (size_t)r->cache.dims.group;
}

ek_code ek_engine_step(ek_engine *e, ek_row *const *rows, int n_rows, ek_err *err)
{
    ek_feed *feed;
    ek_row **live;
    float *prob;
    size_t probs = 0;
    int n = 0;

    EK_TRY(ek_engine_reserve(e, &e->feed, sizeof *feed * (size_t)(n_rows + 1), err));
    EK_TRY(ek_engine_reserve(e, &e->live, sizeof *live * (size_t)(n_rows + 1), err));
    feed = e->feed.data;
    live = e->live.data;
    for (int i = 0; i < n_rows; i++) {
        ek_row *r = rows[i];

        if (r->n_feed == 0)
            continue;
        if (r->counts && r->n_feed > 1 && r->later)
            return EK_FAIL(err, EK_EBROKEN,
                           "%s: found a decode step of %d tokens, expected one where plans may "
                           "come after each",
                           r->policy->method.name, r->n_feed);
        if (wants_prob(r))
            probs += prob_size(r);
        live[n] = r;
        feed[n++] = (ek_feed){.cache = &r->cache,
                              .tok = r->feed,
                              .n = r->n_feed,
                              .n_logits = r->n_logits,
                              .logits = r->logits};
    }
    EK_TRY(ek_engine_reserve(e, &e->prob, sizeof(float) * probs, err));
    prob = e->prob.data;
    for (int i = 0; i < n; i++)
        if (wants_prob(live[i])) {
            feed[i].prob = prob;
            prob += prob_size(live[i]);
        }
    stepping s = {.e = e, .live = live};
    const ek_tap tap = {.layer = step_tap, .ctx = &s};

    EK_TRY(ek_model_step(e->model, feed, n, &tap, err));
    for (int i = 0; i < n; i++)
        EK_TRY(after_step(live[i], e, err));
    return EK_OK;
}
