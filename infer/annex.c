/* infer/annex.c - see annex.h. */
#include "infer/annex.h"

#include <inttypes.h>
#include <string.h>

enum { ALIGN = 64 }; /* of every column */

static size_t aligned(size_t bytes)
{
    return (bytes + ALIGN - 1) / ALIGN * ALIGN;
}

static int n_lists(const ek_dims *d)
{
    return d->n_layers * d->n_heads;
}

static size_t vector_bytes(const ek_dims *d, ek_dtype type)
{
    return (size_t)d->head_dim * (size_t)ek_dtype_size(type);
}

static int64_t room(const ek_cache_need *need)
{
    int64_t sum = 0;

    for (int i = 0; need->mapped != NULL && i < n_lists(&need->dims); i++)
        sum += need->mapped[i];
    return sum;
}

ek_code ek_annex_check_need(const ek_cache_need *need, ek_err *err)
{
    const ek_dims *d = &need->dims;

    for (int l = 0; need->mapped != NULL && l < d->n_layers; l++) {
        int64_t layer = 0;

        for (int h = 0; h < d->n_heads; h++) {
            const int32_t n = need->mapped[l * d->n_heads + h];

            if (n < 0 || (layer += n) > INT32_MAX)
                return EK_FAIL(err, EK_EASKED,
                               "cache: layer %d, head %d: found room for %d keys without values", l,
                               h, n);
        }
    }
    if (room(need) == 0)
        return EK_OK;
    if (need->maps == NULL)
        return EK_FAIL(err, EK_EBROKEN, "cache: keys without values, and no maps to rebuild them");
    if (need->maps->dims.n_layers != d->n_layers || need->maps->dims.n_heads != d->n_heads ||
        need->maps->dims.head_dim != d->head_dim)
        return EK_FAIL(err, EK_EBROKEN, "cache: maps of another model");
    return EK_OK;
}

size_t ek_annex_bytes(const ek_cache_need *need)
{
    const size_t lists = (size_t)n_lists(&need->dims), n = (size_t)room(need);

    if (n == 0)
        return 0;
    return aligned(((size_t)need->dims.n_layers + 1) * sizeof(int64_t)) +
           3 * aligned(lists * sizeof(int32_t)) + aligned(n * sizeof(int32_t)) +
           aligned(n * vector_bytes(&need->dims, need->dtype));
}

void ek_annex_open(ek_cache *c, const ek_cache_need *need, void *piece)
{
    const ek_dims *d = &need->dims;
    const size_t lists = (size_t)n_lists(d), n = (size_t)room(need);
    char *at = piece;
    ek_annex a = {.maps = need->maps};

    if (n == 0)
        return;
    a.layer_at = (int64_t *)at;
    a.first = (int32_t *)(at += aligned(((size_t)d->n_layers + 1) * sizeof(int64_t)));
    a.n = (int32_t *)(at += aligned(lists * sizeof(int32_t)));
    a.cap = (int32_t *)(at += aligned(lists * sizeof(int32_t)));
    a.pos = (int32_t *)(at += aligned(lists * sizeof(int32_t)));
    a.k = at + aligned(n * sizeof(int32_t));
    for (int l = 0; l < d->n_layers; l++) {
        int32_t first = 0;

        for (int h = 0; h < d->n_heads; h++) {
            const int i = l * d->n_heads + h;

            a.first[i] = first;
            a.cap[i] = need->mapped[i];
            first += a.cap[i];
        }
        a.layer_at[l + 1] = a.layer_at[l] + first;
    }
    c->annex = a;
}

int ek_annex_has(const ek_cache *c, int layer)
{
    return c->annex.maps != NULL && c->annex.layer_at[layer + 1] > c->annex.layer_at[layer];
}

void ek_annex_view(const ek_cache *c, int layer, ek_view *out)
{
    const ek_annex *a = &c->annex;
    const int64_t at = a->layer_at[layer];
    const int list = layer * c->dims.n_heads;

    ek_cache_view(c, layer, -1, out);
    out->first = a->first + list;
    out->n = a->n + list;
    out->pos = a->pos + at;
    out->form = NULL;
    out->bias = NULL;
    out->k = (const char *)a->k + (size_t)at * vector_bytes(&c->dims, c->dtype);
    out->v = NULL;
}

int64_t ek_cache_mapped(const ek_cache *c)
{
    int64_t n = 0;

    for (int i = 0; c->annex.maps != NULL && i < n_lists(&c->dims); i++)
        n += c->annex.n[i];
    return n;
}

/* Slots of a list ascend, are there, and are not also kept with their value. */
static ek_code check_list(const ek_cache *from, const ek_plan *plan, int i, ek_err *err)
{
    const int l = i / from->dims.n_heads, h = i % from->dims.n_heads;
    int32_t at = plan->first[i], last = -1;

    for (int32_t j = plan->mapped_first[i]; j < plan->mapped_first[i + 1]; j++) {
        const int32_t slot = plan->mapped[j];

        if (slot <= last || slot >= from->n[i])
            return EK_FAIL(err, EK_EBROKEN,
                           "plan: layer %d, head %d: slot %d loses its value, expected ascending "
                           "slots below %d",
                           l, h, slot, from->n[i]);
        while (at < plan->first[i + 1] && plan->slot[at] < slot)
            at++;
        if (at < plan->first[i + 1] && plan->slot[at] == slot)
            return EK_FAIL(err, EK_EBROKEN,
                           "plan: layer %d, head %d: slot %d both keeps and loses its value", l, h,
                           slot);
        last = slot;
    }
    return EK_OK;
}

ek_code ek_annex_check_plan(const ek_cache *to, const ek_cache *from, const ek_plan *plan,
                            ek_err *err)
{
    const int lists = n_lists(&from->dims);

    if (to != from && ek_cache_mapped(from) > 0)
        return EK_FAIL(err, EK_EBROKEN, "fork: values of %" PRId64 " entries are gone",
                       ek_cache_mapped(from));
    if (plan->mapped_first[lists] == 0)
        return EK_OK;
    if (to == from || to->annex.maps == NULL)
        return EK_FAIL(err, EK_EBROKEN,
                       "plan: %d entries lose their values, and there is no room for keys alone",
                       plan->mapped_first[lists]);
    for (int i = 0; i < lists; i++) {
        const int32_t n = plan->mapped_first[i + 1] - plan->mapped_first[i];

        if (n < 0 || n > to->annex.cap[i])
            return EK_FAIL(err, EK_EBROKEN,
                           "plan: layer %d, head %d: %d entries lose their values, room for %d",
                           i / from->dims.n_heads, i % from->dims.n_heads, n, to->annex.cap[i]);
        EK_TRY(check_list(from, plan, i, err));
    }
    return EK_OK;
}

void ek_annex_take(ek_cache *to, const ek_cache *from, const ek_plan *plan)
{
    const ek_annex *a = &to->annex;
    const size_t bytes = vector_bytes(&from->dims, from->dtype);
    const int H = from->dims.n_heads;

    for (int i = 0; a->maps != NULL && i < n_lists(&from->dims); i++) {
        const int32_t n = plan->mapped_first[i + 1] - plan->mapped_first[i];
        const int32_t *slot = plan->mapped + plan->mapped_first[i];
        const int64_t into = a->layer_at[i / H] + a->first[i];
        const int64_t out = from->layer_at[i / H] + from->first[i];

        for (int32_t j = 0; j < n; j++) {
            a->pos[into + j] = from->pos[out + slot[j]];
            memcpy((char *)a->k + (size_t)(into + j) * bytes,
                   (const char *)from->k + (size_t)(out + slot[j]) * bytes, bytes);
        }
        a->n[i] = n;
    }
}

ek_code ek_annex_check(const ek_cache *c, ek_err *err)
{
    const ek_annex *a = &c->annex;
    const int H = c->dims.n_heads;

    for (int i = 0; a->maps != NULL && i < n_lists(&c->dims); i++) {
        const int32_t *pos = a->pos + a->layer_at[i / H] + a->first[i];
        const int32_t *exact = c->pos + c->layer_at[i / H] + c->first[i];
        int32_t at = 0;

        if (a->n[i] < 0 || a->n[i] > a->cap[i])
            return EK_FAIL(err, EK_EBROKEN,
                           "cache: layer %d, head %d: %d keys without values in room for %d", i / H,
                           i % H, a->n[i], a->cap[i]);
        for (int32_t j = 0; j < a->n[i]; j++) {
            if (pos[j] < 0 || pos[j] >= c->next_pos || (j > 0 && pos[j] <= pos[j - 1]))
                return EK_FAIL(err, EK_EBROKEN,
                               "cache: layer %d, head %d, key %d without value: position %d, "
                               "expected ascending ones below %d",
                               i / H, i % H, j, pos[j], c->next_pos);
            while (at < c->n[i] && exact[at] < pos[j])
                at++;
            if (at < c->n[i] && exact[at] == pos[j])
                return EK_FAIL(err, EK_EBROKEN,
                               "cache: layer %d, head %d: position %d both with and without value",
                               i / H, i % H, pos[j]);
        }
    }
    return EK_OK;
}
