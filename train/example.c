/* train/example.c - the layout of a record: head, pos, log_weight, mass, carry, k, v; each
 * 64-aligned. */
#include "train/example.h"

#include "scorers/carried.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(sizeof(ek_example_head) == 128, "the head is part of a file format");

enum { MOST_ENTRIES = 1 << 24, MOST_CARRY = 4096 };

static int64_t aligned(int64_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

static int64_t column(const ek_example_shape *s, int64_t per)
{
    return aligned((int64_t)s->dims.n_layers * s->dims.n_heads * s->n * per);
}

static int64_t vector_bytes(const ek_example_shape *s)
{
    return (int64_t)s->dims.head_dim * ek_dtype_size(s->dtype);
}

int64_t ek_example_bytes(const ek_example_shape *s)
{
    return (int64_t)sizeof(ek_example_head) + 2 * column(s, 4) + column(s, 4 * s->n_cuts) +
           column(s, (int64_t)4 * s->n_cuts * s->n_carry) + 2 * column(s, vector_bytes(s));
}

static void carve(ek_example *r, const ek_example_shape *s, char *block)
{
    *r = (ek_example){.head = (ek_example_head *)(void *)block, .dims = s->dims, .dtype = s->dtype};
    block += sizeof(ek_example_head);
    r->pos = (int32_t *)(void *)block;
    block += column(s, 4);
    r->log_weight = (float *)(void *)block;
    block += column(s, 4);
    r->mass = (float *)(void *)block;
    block += column(s, 4 * s->n_cuts);
    r->carry = s->n_carry > 0 ? (float *)(void *)block : NULL;
    block += column(s, (int64_t)4 * s->n_cuts * s->n_carry);
    r->k = block;
    r->v = block + column(s, vector_bytes(s));
}

ek_code ek_example_open(ek_example *r, const ek_example_shape *s, ek_err *err)
{
    const int sound = s->n >= 1 && s->n <= MOST_ENTRIES && s->n_cuts >= 1 &&
                      s->n_cuts <= EK_EXAMPLE_CUTS && s->n_carry >= 0 && s->n_carry <= MOST_CARRY;
    const int64_t bytes = sound ? ek_example_bytes(s) : 0;
    char *block = sound ? aligned_alloc(64, (size_t)bytes) : NULL;
    ek_example_head *head;

    if (block == NULL)
        return EK_FAIL(err, EK_ENOMEM, "a training record of %d entries per head and %d cuts", s->n,
                       s->n_cuts);
    memset(block, 0, (size_t)bytes);
    carve(r, s, block);
    r->owned = 1;
    head = ek_example_edit(r);
    head->n = s->n;
    head->n_cuts = s->n_cuts;
    head->n_carry = s->n_carry;
    head->bytes = bytes;
    return EK_OK;
}

ek_example_head *ek_example_edit(ek_example *r)
{
    return r->owned ? (ek_example_head *)r->head : NULL;
}

static int is_flag(int32_t x)
{
    return x == 0 || x == 1;
}

/* Cuts ascend within the sequence and each is followed by queries; or there is the one behind it.
 */
static ek_code check_cuts(const ek_example_head *h, ek_err *err)
{
    if (h->n_cuts == 1 && h->cut[0] == h->n_seq && h->end[0] == h->n_seq)
        return EK_OK;
    for (int m = 0; m < h->n_cuts; m++)
        if (h->cut[m] <= (m > 0 ? h->cut[m - 1] : 0) || h->cut[m] >= h->end[m] ||
            h->end[m] > h->n_seq)
            return EK_FAIL(err, EK_EINPUT,
                           "cut %d: found %d .. %d, expected ascending cuts in a sequence of %d", m,
                           h->cut[m], h->end[m], h->n_seq);
    return EK_OK;
}

ek_code ek_example_view(ek_example *r, const ek_dims *dims, ek_dtype dtype, const void *block,
                        int64_t size, ek_err *err)
{
    ek_example_head h;

    if (size < (int64_t)sizeof h)
        return EK_FAIL(err, EK_EINPUT, "found %lld bytes, expected a record's head of %zu",
                       (long long)size, sizeof h);
    memcpy(&h, block, sizeof h);
    if (h.n < 1 || h.n > MOST_ENTRIES || h.n_seq < h.n || h.n_seq > MOST_ENTRIES || h.n_cuts < 1 ||
        h.n_cuts > EK_EXAMPLE_CUTS || h.n_carry < 0 || h.n_carry > MOST_CARRY || h.carried < 0 ||
        h.carried > EK_CARRIED_FULL || h.n_carry != ek_carried_floats(h.carried, dims->group) ||
        h.sinks < 0 || h.recent < 1 || h.sinks > h.n_seq || h.recent > h.n_seq ||
        !is_flag(h.retrieval) || !is_flag(h.whole) || (h.whole && h.n != h.n_seq))
        return EK_FAIL(err, EK_EINPUT,
                       "a record of %d entries, %d tokens, %d cuts, %d carried floats, %d sinks, "
                       "%d recent",
                       h.n, h.n_seq, h.n_cuts, h.n_carry, h.sinks, h.recent);
    EK_TRY(check_cuts(&h, err));
    const ek_example_shape shape = {
        .dims = *dims, .dtype = dtype, .n = h.n, .n_cuts = h.n_cuts, .n_carry = h.n_carry};
    /* Each factor is bounded above, so the product stays far below 2^63. */
    const int64_t want = ek_example_bytes(&shape);
    if (h.bytes != want || h.bytes > size)
        return EK_FAIL(err, EK_EINPUT, "a record of %lld bytes, expected %lld within %lld",
                       (long long)h.bytes, (long long)want, (long long)size);
    carve(r, &shape, (char *)block);
    return EK_OK;
}

static int is_amount(float x)
{
    return isfinite(x) && x >= 0;
}

/* The masses and carried columns of one head at one cut. */
static ek_code check_cut(const ek_example *r, int l, int m, int h, ek_err *err)
{
    const int n = r->head->n, n_carry = r->head->n_carry;
    const size_t at = ek_example_mass_at(r, l, m, h);

    for (int e = 0; e < n; e++)
        if (!is_amount(r->mass[at + (size_t)e]))
            return EK_FAIL(err, EK_EINPUT, "layer %d, cut %d, head %d, entry %d: mass %g", l, m, h,
                           e, (double)r->mass[at + (size_t)e]);
    for (size_t i = 0; i < (size_t)n * (size_t)n_carry; i++)
        if (!is_amount(r->carry[at * (size_t)n_carry + i]))
            return EK_FAIL(err, EK_EINPUT, "layer %d, cut %d, head %d, entry %zu: carried %g", l, m,
                           h, i / (size_t)n_carry, (double)r->carry[at * (size_t)n_carry + i]);
    return EK_OK;
}

ek_code ek_example_check(const ek_example *r, ek_err *err)
{
    const ek_example_head *head = r->head;

    for (int l = 0; l < r->dims.n_layers; l++)
        for (int h = 0; h < r->dims.n_heads; h++) {
            const size_t at = ek_example_at(r, l, h);

            for (int e = 0; e < head->n; e++) {
                const int32_t before = e > 0 ? r->pos[at + (size_t)e - 1] : -1;
                const int32_t pos = r->pos[at + (size_t)e];
                const float w = r->log_weight[at + (size_t)e];

                if (pos <= before || pos >= head->n_seq || !is_amount(w) || w > 64)
                    return EK_FAIL(err, EK_EINPUT,
                                   "layer %d, head %d, entry %d: position %d after %d, weight %g",
                                   l, h, e, pos, before, (double)w);
            }
            for (int m = 0; m < head->n_cuts; m++)
                EK_TRY(check_cut(r, l, m, h, err));
        }
    return EK_OK;
}

void ek_example_close(ek_example *r)
{
    if (r->owned)
        free((void *)r->head);
    *r = (ek_example){0};
}

int ek_example_over_time(const ek_example_head *head)
{
    return head->cut[0] == head->n_seq;
}

size_t ek_example_at(const ek_example *r, int layer, int h)
{
    return ((size_t)layer * (size_t)r->dims.n_heads + (size_t)h) * (size_t)r->head->n;
}

size_t ek_example_mass_at(const ek_example *r, int layer, int m, int h)
{
    const size_t n_cuts = (size_t)r->head->n_cuts, heads = (size_t)r->dims.n_heads;

    return (((size_t)layer * n_cuts + (size_t)m) * heads + (size_t)h) * (size_t)r->head->n;
}

/* The first of n ascending positions that is at least `least`. */
static int32_t first_from(const int32_t *pos, int n, int32_t least)
{
    int lo = 0, hi = n;

    while (lo < hi) {
        const int mid = lo + (hi - lo) / 2;

        if (pos[mid] < least)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

void ek_example_slots(const ek_example *r, int layer, int h, int m, int recent, int32_t *first,
                      int32_t *n)
{
    const int32_t *pos = r->pos + ek_example_at(r, layer, h);
    const int32_t lo = first_from(pos, r->head->n, r->head->sinks);
    const int32_t window = recent > r->head->recent ? recent : r->head->recent;
    const int32_t hi = first_from(pos, r->head->n, r->head->cut[m] - window);

    *first = lo;
    *n = hi > lo ? hi - lo : 0;
}

void ek_example_layer(const ek_example *r, int layer, int m, int32_t *first, int32_t *n,
                      ek_view *out)
{
    const size_t at = ek_example_at(r, layer, 0);
    const size_t vector = (size_t)r->dims.head_dim * (size_t)ek_dtype_size(r->dtype);
    const int carries = m >= 0 && r->carry != NULL;

    for (int h = 0; h < r->dims.n_heads; h++) {
        first[h] = h * r->head->n;
        n[h] = r->head->n;
    }
    *out = (ek_view){.layer = layer,
                     .n_heads = r->dims.n_heads,
                     .group = r->dims.group,
                     .head_dim = r->dims.head_dim,
                     .n_carry = carries ? r->head->n_carry : 0,
                     .dtype = r->dtype,
                     .next_pos = m >= 0 ? r->head->cut[m] : r->head->n_seq,
                     .first = first,
                     .n = n,
                     .pos = r->pos + at,
                     .k = r->k + at * vector,
                     .v = r->v + at * vector,
                     .carry = carries ? r->carry + ek_example_mass_at(r, layer, m, 0) *
                                                       (size_t)r->head->n_carry
                                      : NULL};
}
