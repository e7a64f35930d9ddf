/* infer/cache.c - see cache.h. */
#include "infer/annex.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { ALIGN = 64 }; /* of every piece of the block */

/* The pieces of the block, in order; also used to sum them up. */
typedef struct pieces {
    size_t layer_at, first, n, cap, pos, k, v, lane, annex, carry, bytes;
} pieces;

static int n_lists(const ek_dims *d)
{
    return d->n_layers * d->n_heads;
}

static int32_t cap_of(const ek_cache_need *need, int list)
{
    return need->caps != NULL ? need->caps[list] : need->cap;
}

static int64_t lane_entries(const ek_cache_need *need, int lane, int64_t entries)
{
    return ek_measure_is_shared(need->measures[lane]) ? cap_of(need, 0) : entries;
}

/* Place a piece behind what is placed already. */
static size_t place(pieces *p, size_t bytes)
{
    const size_t at = p->bytes;

    p->bytes += (bytes + ALIGN - 1) / ALIGN * ALIGN;
    return at;
}

static ek_code count_entries(const ek_cache_need *need, int64_t *out, ek_err *err)
{
    const ek_dims *d = &need->dims;
    int64_t entries = 0;

    if (d->n_layers < 1 || d->n_heads < 1 || d->group < 1 || d->head_dim < 1 ||
        d->n_heads > EK_MAX_HEADS)
        return EK_FAIL(err, EK_EASKED,
                       "cache: found %d layers, %d heads, group %d, head_dim %d, expected at least "
                       "1 each and at most %d heads",
                       d->n_layers, d->n_heads, d->group, d->head_dim, EK_MAX_HEADS);
    for (int l = 0; l < d->n_layers; l++) {
        int64_t layer = 0;

        for (int h = 0; h < d->n_heads; h++) {
            const int32_t cap = cap_of(need, l * d->n_heads + h);

            if (cap < 0)
                return EK_FAIL(err, EK_EASKED, "cache: layer %d, head %d: found capacity %d", l, h,
                               cap);
            layer += cap;
        }
        if (layer > INT32_MAX)
            return EK_FAIL(err, EK_EASKED, "cache: layer %d: found %" PRId64 " entries, at most %d",
                           l, layer, INT32_MAX);
        entries += layer;
    }
    *out = entries;
    return EK_OK;
}

static pieces lay_out(const ek_cache_need *need, int64_t entries)
{
    const ek_dims *d = &need->dims;
    const size_t lists = (size_t)n_lists(d), n = (size_t)entries;
    const size_t vectors = n * (size_t)d->head_dim * (size_t)ek_dtype_size(need->dtype);
    pieces p = {0};

    p.layer_at = place(&p, ((size_t)d->n_layers + 1) * sizeof(int64_t));
    p.first = place(&p, lists * sizeof(int32_t));
    p.n = place(&p, lists * sizeof(int32_t));
    p.cap = place(&p, lists * sizeof(int32_t));
    p.pos = place(&p, n * sizeof(int32_t));
    p.k = place(&p, vectors);
    p.v = place(&p, vectors);
    p.lane = place(&p, (size_t)need->n_lanes * sizeof(ek_lane));
    p.annex = place(&p, ek_annex_bytes(need));
    p.carry = p.bytes;
    for (int i = 0; i < need->n_lanes; i++) {
        place(&p, (size_t)lane_entries(need, i, entries) *
                      (size_t)ek_measure_n_carry(need->measures[i], d->group) * sizeof(float));
        place(&p, lists * ek_measure_n_state(need->measures[i]) * sizeof(float));
    }
    return p;
}

static void open_lanes(ek_cache *c, const ek_cache_need *need, int64_t entries, pieces at)
{
    at.bytes = at.carry;
    for (int i = 0; i < need->n_lanes; i++) {
        const ek_measure *m = need->measures[i];
        const int n_carry = ek_measure_n_carry(m, c->dims.group);
        const size_t n_state = ek_measure_n_state(m);
        const size_t bytes =
            (size_t)lane_entries(need, i, entries) * (size_t)n_carry * sizeof(float);
        const size_t carry = place(&at, bytes);
        const size_t state = place(&at, (size_t)n_lists(&c->dims) * n_state * sizeof(float));
        char *block = c->block;

        c->lane[i] = (ek_lane){.measure = m,
                               .n_carry = n_carry,
                               .n_state = n_state,
                               .shared = ek_measure_is_shared(m),
                               .carry = (float *)(block + carry),
                               .state = n_state > 0 ? (float *)(block + state) : NULL};
    }
}

ek_code ek_cache_open(ek_cache *c, const ek_cache_need *need, ek_device *dev, ek_err *err)
{
    const ek_dims *d = &need->dims;
    int64_t entries = 0;
    pieces at;
    char *block;

    *c = (ek_cache){0};
    EK_TRY(count_entries(need, &entries, err));
    EK_TRY(ek_annex_check_need(need, err));
    for (int i = 0; i < need->n_lanes; i++)
        if (ek_measure_n_carry(need->measures[i], d->group) < 1)
            return EK_FAIL(err, EK_EBROKEN, "cache: lane %d: a measure that remembers nothing", i);
    at = lay_out(need, entries);
    block = ek_device_alloc(dev, at.bytes);
    if (block == NULL)
        return EK_FAIL(err, EK_ENOMEM, "cache of %" PRId64 " entries, %zu bytes", entries,
                       at.bytes);
    *c = (ek_cache){.dims = *d,
                    .dtype = need->dtype,
                    .dev = dev,
                    .n_lanes = need->n_lanes,
                    .layer_at = (int64_t *)(block + at.layer_at),
                    .first = (int32_t *)(block + at.first),
                    .n = (int32_t *)(block + at.n),
                    .cap = (int32_t *)(block + at.cap),
                    .pos = (int32_t *)(block + at.pos),
                    .k = block + at.k,
                    .v = block + at.v,
                    .lane = (ek_lane *)(block + at.lane),
                    .block = block,
                    .block_bytes = at.bytes};
    for (int l = 0; l < d->n_layers; l++) {
        int32_t first = 0;

        for (int h = 0; h < d->n_heads; h++) {
            const int i = l * d->n_heads + h;

            c->first[i] = first;
            c->cap[i] = cap_of(need, i);
            first += c->cap[i];
        }
        c->layer_at[l + 1] = c->layer_at[l] + first;
    }
    ek_annex_open(c, need, block + at.annex);
    open_lanes(c, need, entries, at);
    return EK_OK;
}

void ek_cache_close(ek_cache *c)
{
    if (c->block != NULL)
        ek_device_free(c->dev, c->block);
    *c = (ek_cache){0};
}

static size_t vector_bytes(const ek_cache *c)
{
    return (size_t)c->dims.head_dim * (size_t)ek_dtype_size(c->dtype);
}

/* Index of the first entry of a list in the columns. */
static int64_t list_at(const ek_cache *c, int list)
{
    return c->layer_at[list / c->dims.n_heads] + c->first[list];
}

void ek_cache_view(const ek_cache *c, int layer, int lane, ek_view *out)
{
    const int64_t at = c->layer_at[layer];
    const int list = layer * c->dims.n_heads;

    *out = (ek_view){.layer = layer,
                     .n_heads = c->dims.n_heads,
                     .group = c->dims.group,
                     .head_dim = c->dims.head_dim,
                     .dtype = c->dtype,
                     .next_pos = c->next_pos,
                     .first = c->first + list,
                     .n = c->n + list,
                     .pos = c->pos + at,
                     .form = c->form != NULL ? c->form + at : NULL,
                     .bias = c->bias != NULL ? c->bias + at : NULL,
                     .k = (const char *)c->k + (size_t)at * vector_bytes(c),
                     .v = (const char *)c->v + (size_t)at * vector_bytes(c)};
    if (lane >= 0) {
        const ek_lane *a = &c->lane[lane];

        out->n_carry = a->n_carry;
        out->carry = a->shared ? a->carry : a->carry + at * a->n_carry;
    }
}

ek_memory ek_cache_memory(ek_cache *c, int layer, int lane)
{
    if (lane < 0)
        return (ek_memory){0};
    const ek_lane *a = &c->lane[lane];
    const size_t heads = (size_t)layer * (size_t)c->dims.n_heads;

    return (ek_memory){.carry = a->shared ? NULL : a->carry + c->layer_at[layer] * a->n_carry,
                       .shared = a->shared ? a->carry : NULL,
                       .state = a->state != NULL ? a->state + heads * a->n_state : NULL};
}

void ek_cache_clear(ek_cache *c, int lane)
{
    const ek_lane *a = &c->lane[lane];
    const int64_t entries = a->shared ? c->cap[0] : c->layer_at[c->dims.n_layers];

    memset(a->carry, 0, (size_t)entries * (size_t)a->n_carry * sizeof *a->carry);
    if (a->state != NULL)
        memset(a->state, 0, (size_t)n_lists(&c->dims) * a->n_state * sizeof *a->state);
}

/* The carry of a list's first entry; NULL if the lane has none for it. */
static float *lane_at(const ek_cache *c, const ek_lane *a, int list)
{
    if (a->shared)
        return list == 0 ? a->carry : NULL;
    return a->carry + list_at(c, list) * a->n_carry;
}

void ek_cache_append(ek_cache *c, int layer, const float *k, size_t ldk, const float *v, size_t ldv,
                     int n_new)
{
    const int d = c->dims.head_dim;
    const size_t bytes = vector_bytes(c);

    for (int h = 0; h < c->dims.n_heads; h++) {
        const int list = layer * c->dims.n_heads + h;
        const int64_t at = list_at(c, list) + c->n[list];

        assert(c->n[list] + n_new <= c->cap[list]);
        c->dev->ops.store(c->dev, (char *)c->k + (size_t)at * bytes, c->dtype, k + (size_t)h * d,
                          ldk, n_new, d);
        c->dev->ops.store(c->dev, (char *)c->v + (size_t)at * bytes, c->dtype, v + (size_t)h * d,
                          ldv, n_new, d);
        for (int i = 0; i < n_new; i++)
            c->pos[at + i] = c->next_pos + i;
        for (int a = 0; a < c->n_lanes; a++) {
            const size_t n_carry = (size_t)c->lane[a].n_carry;
            float *carry = lane_at(c, &c->lane[a], list);

            if (carry != NULL)
                memset(carry + (size_t)c->n[list] * n_carry, 0,
                       (size_t)n_new * n_carry * sizeof *carry);
        }
        c->n[list] += n_new;
    }
}

void ek_cache_advance(ek_cache *c, int n_new)
{
    c->next_pos += n_new;
}

int32_t ek_cache_room(const ek_cache *c)
{
    int32_t room = INT32_MAX;

    for (int i = 0; i < n_lists(&c->dims); i++)
        if (c->cap[i] - c->n[i] < room)
            room = c->cap[i] - c->n[i];
    return room;
}

void ek_cache_rewind(ek_cache *c, int n)
{
    for (int i = 0; i < n_lists(&c->dims); i++) {
        assert(n <= c->n[i]);
        assert(n == 0 || c->pos[list_at(c, i) + c->n[i] - n] == c->next_pos - n);
        c->n[i] -= n;
    }
    c->next_pos -= n;
}

/* Move what stays of one list: whole runs of neighbours, lowest first, so that a move in place
 * never overwrites what is still to be moved. */
static void move_runs(void *to, const void *from, size_t bytes, const int32_t *slot, int32_t n)
{
    int32_t i = 0;

    while (i < n) {
        int32_t run = 1;

        while (i + run < n && slot[i + run] == slot[i] + run)
            run++;
        if (to != from || slot[i] != i)
            memmove((char *)to + (size_t)i * bytes, (const char *)from + (size_t)slot[i] * bytes,
                    (size_t)run * bytes);
        i += run;
    }
}

static ek_code check_lists(const ek_cache *to, const ek_cache *from, const ek_plan *plan,
                           ek_err *err)
{
    for (int i = 0; i < n_lists(&from->dims); i++) {
        const int l = i / from->dims.n_heads, h = i % from->dims.n_heads;
        const int32_t n = plan->first[i + 1] - plan->first[i];
        const int32_t *slot = plan->slot + plan->first[i];

        if (plan->of[i] != from->n[i])
            return EK_FAIL(err, EK_EBROKEN,
                           "plan: layer %d, head %d: made for %d entries, found %d", l, h,
                           plan->of[i], from->n[i]);
        if (n < 0 || n > to->cap[i])
            return EK_FAIL(err, EK_EBROKEN, "plan: layer %d, head %d: %d survivors, room for %d", l,
                           h, n, to->cap[i]);
        for (int32_t j = 0; j < n; j++)
            if (slot[j] < 0 || slot[j] >= from->n[i] || (j > 0 && slot[j] <= slot[j - 1]))
                return EK_FAIL(err, EK_EBROKEN,
                               "plan: layer %d, head %d: survivor %d is slot %d, expected "
                               "ascending slots below %d",
                               l, h, j, slot[j], from->n[i]);
    }
    return EK_OK;
}

/* A shared state has one number per position, so all lists must name the same slots. */
static ek_code check_shared(const ek_plan *plan, ek_err *err)
{
    const int32_t n = plan->first[1] - plan->first[0];

    for (int i = 1; i < plan->n_layers * plan->n_heads; i++)
        if (plan->first[i + 1] - plan->first[i] != n ||
            memcmp(plan->slot + plan->first[i], plan->slot, (size_t)n * sizeof *plan->slot) != 0)
            return EK_FAIL(err, EK_EBROKEN,
                           "plan: layer %d, head %d: other survivors than layer 0, head 0, though "
                           "the measure keeps one state for all",
                           i / plan->n_heads, i % plan->n_heads);
    return EK_OK;
}

static ek_code check_apply(const ek_cache *to, const ek_cache *from, int lane, const ek_plan *plan,
                           ek_err *err)
{
    const ek_dims *a = &to->dims, *b = &from->dims;

    if (plan->n_layers != b->n_layers || plan->n_heads != b->n_heads ||
        a->n_layers != b->n_layers || a->n_heads != b->n_heads || a->head_dim != b->head_dim ||
        to->dtype != from->dtype)
        return EK_FAIL(err, EK_EBROKEN,
                       "plan of %d x %d lists, caches of %d x %d x %d and %d x %d x %d",
                       plan->n_layers, plan->n_heads, a->n_layers, a->n_heads, a->head_dim,
                       b->n_layers, b->n_heads, b->head_dim);
    EK_TRY(check_lists(to, from, plan, err));
    EK_TRY(ek_annex_check_plan(to, from, plan, err));
    if (to == from) {
        for (int i = 0; i < from->n_lanes; i++)
            if (from->lane[i].shared)
                EK_TRY(check_shared(plan, err));
        return EK_OK;
    }
    if (to->n_lanes == 0)
        return EK_OK;
    if (lane < 0 || lane >= from->n_lanes || to->n_lanes > 1 ||
        to->lane[0].n_carry != from->lane[lane].n_carry ||
        to->lane[0].n_state != from->lane[lane].n_state ||
        to->lane[0].shared != from->lane[lane].shared)
        return EK_FAIL(err, EK_EBROKEN, "fork: lane %d of %d is not what the fork remembers", lane,
                       from->n_lanes);
    return to->lane[0].shared ? check_shared(plan, err) : EK_OK;
}

static void move_lane(const ek_cache *to, const ek_lane *into, const ek_cache *from,
                      const ek_lane *lane, int list, const int32_t *slot, int32_t n)
{
    const float *source = lane_at(from, lane, list);

    if (source != NULL)
        move_runs(lane_at(to, into, list), source, (size_t)lane->n_carry * sizeof(float), slot, n);
}

ek_code ek_cache_apply(ek_cache *to, const ek_cache *from, int lane, const ek_plan *plan,
                       ek_err *err)
{
    const size_t bytes = vector_bytes(from);
    const int lists = n_lists(&from->dims);

    EK_TRY(check_apply(to, from, lane, plan, err));
    for (int i = 0; i < lists; i++) {
        const int32_t n = plan->first[i + 1] - plan->first[i];
        const int32_t *slot = plan->slot + plan->first[i];
        const size_t a = (size_t)list_at(to, i), b = (size_t)list_at(from, i);

        move_runs((char *)to->k + a * bytes, (const char *)from->k + b * bytes, bytes, slot, n);
        move_runs((char *)to->v + a * bytes, (const char *)from->v + b * bytes, bytes, slot, n);
        move_runs(to->pos + a, from->pos + b, sizeof *to->pos, slot, n);
        if (to == from)
            for (int s = 0; s < to->n_lanes; s++)
                move_lane(to, &to->lane[s], from, &from->lane[s], i, slot, n);
        else if (to->n_lanes > 0)
            move_lane(to, &to->lane[0], from, &from->lane[lane], i, slot, n);
    }
    if (to != from && to->n_lanes > 0 && to->lane[0].state != NULL)
        memcpy(to->lane[0].state, from->lane[lane].state,
               (size_t)lists * to->lane[0].n_state * sizeof *to->lane[0].state);
    for (int i = 0; i < lists; i++)
        to->n[i] = plan->first[i + 1] - plan->first[i];
    if (to != from)
        ek_annex_take(to, from, plan);
    to->next_pos = from->next_pos;
    return EK_OK;
}

ek_code ek_cache_check(const ek_cache *c, ek_err *err)
{
    for (int i = 0; i < n_lists(&c->dims); i++) {
        const int l = i / c->dims.n_heads, h = i % c->dims.n_heads;
        const int32_t *pos = c->pos + list_at(c, i);

        if (c->n[i] < 0 || c->n[i] > c->cap[i])
            return EK_FAIL(err, EK_EBROKEN, "cache: layer %d, head %d: %d entries in room for %d",
                           l, h, c->n[i], c->cap[i]);
        for (int32_t j = 0; j < c->n[i]; j++)
            if (pos[j] < 0 || pos[j] >= c->next_pos || (j > 0 && pos[j] <= pos[j - 1]))
                return EK_FAIL(err, EK_EBROKEN,
                               "cache: layer %d, head %d, slot %d: position %d, expected ascending "
                               "ones below %d",
                               l, h, j, pos[j], c->next_pos);
    }
    return ek_annex_check(c, err);
}

ek_cache_bytes ek_cache_count(const ek_cache *c)
{
    const int64_t n = ek_cache_entries(c), mapped = ek_cache_mapped(c);
    ek_cache_bytes b = {.kv = (2 * n + mapped) * (int64_t)vector_bytes(c),
                        .pos = (n + mapped) * (int64_t)sizeof *c->pos,
                        .block = (int64_t)c->block_bytes};

    for (int i = 0; i < c->n_lanes; i++)
        b.state += ((c->lane[i].shared ? c->n[0] : n) * c->lane[i].n_carry +
                    n_lists(&c->dims) * (int64_t)c->lane[i].n_state) *
                   (int64_t)sizeof(float);
    return b;
}

int64_t ek_cache_entries(const ek_cache *c)
{
    int64_t n = 0;

    for (int i = 0; i < n_lists(&c->dims); i++)
        n += c->n[i];
    return n;
}
