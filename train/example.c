/* train/example.c - the layout of a record: head, pos, mass, log_weight, k, v; each 64-aligned. */
#include "train/example.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(sizeof(ek_example_head) == 64, "the head is part of a file format");

static int64_t aligned(int64_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

static int64_t column(const ek_dims *d, int n, int64_t per)
{
    return aligned((int64_t)d->n_layers * d->n_heads * n * per);
}

int64_t ek_example_bytes(const ek_dims *dims, ek_dtype dtype, int n)
{
    return (int64_t)sizeof(ek_example_head) + 3 * column(dims, n, 4) +
           2 * column(dims, n, (int64_t)dims->head_dim * ek_dtype_size(dtype));
}

static void carve(ek_example *r, const ek_dims *dims, ek_dtype dtype, char *block, int n)
{
    const int64_t vectors = column(dims, n, (int64_t)dims->head_dim * ek_dtype_size(dtype));

    *r = (ek_example){.head = (ek_example_head *)(void *)block, .dims = *dims, .dtype = dtype};
    block += sizeof(ek_example_head);
    r->pos = (int32_t *)(void *)block;
    block += column(dims, n, 4);
    r->mass = (float *)(void *)block;
    block += column(dims, n, 4);
    r->log_weight = (float *)(void *)block;
    block += column(dims, n, 4);
    r->k = block;
    r->v = block + vectors;
}

ek_code ek_example_open(ek_example *r, const ek_dims *dims, ek_dtype dtype, int n, ek_err *err)
{
    const int64_t bytes = ek_example_bytes(dims, dtype, n);
    char *block = n < 1 ? NULL : aligned_alloc(64, (size_t)bytes);

    if (block == NULL)
        return EK_FAIL(err, EK_ENOMEM, "a training record of %d entries per head", n);
    memset(block, 0, (size_t)bytes);
    carve(r, dims, dtype, block, n);
    r->owned = 1;
    ek_example_edit(r)->n = n;
    ek_example_edit(r)->bytes = bytes;
    return EK_OK;
}

ek_example_head *ek_example_edit(ek_example *r)
{
    return r->owned ? (ek_example_head *)r->head : NULL;
}

ek_code ek_example_view(ek_example *r, const ek_dims *dims, ek_dtype dtype, const void *block,
                        int64_t size, ek_err *err)
{
    ek_example_head h;

    if (size < (int64_t)sizeof h)
        return EK_FAIL(err, EK_EINPUT, "found %lld bytes, expected a record's head of 64",
                       (long long)size);
    memcpy(&h, block, sizeof h);
    if (h.n < 1 || h.n > 1 << 24 || h.n_seq < h.n || h.next_pos < 1 || h.next_pos > h.n_seq ||
        (h.retrieval != 0 && h.retrieval != 1) || (h.whole != 0 && h.whole != 1))
        return EK_FAIL(err, EK_EINPUT, "a record of %d entries, %d tokens, position %d", h.n,
                       h.n_seq, h.next_pos);
    if (h.bytes != ek_example_bytes(dims, dtype, h.n) || h.bytes > size)
        return EK_FAIL(err, EK_EINPUT, "a record of %lld bytes, expected %lld within %lld",
                       (long long)h.bytes, (long long)ek_example_bytes(dims, dtype, h.n),
                       (long long)size);
    carve(r, dims, dtype, (char *)block, h.n);
    return EK_OK;
}

ek_code ek_example_check(const ek_example *r, ek_err *err)
{
    const int n = r->head->n;

    for (int l = 0; l < r->dims.n_layers; l++)
        for (int h = 0; h < r->dims.n_heads; h++)
            for (int e = 0; e < n; e++) {
                const size_t at = ek_example_at(r, l, h) + (size_t)e;
                const int32_t before = e > 0 ? r->pos[at - 1] : -1;

                if (r->pos[at] <= before || r->pos[at] >= r->head->next_pos ||
                    !isfinite(r->mass[at]) || r->mass[at] < 0 || !isfinite(r->log_weight[at]))
                    return EK_FAIL(err, EK_EINPUT,
                                   "layer %d, head %d, entry %d: position %d after %d, mass %g", l,
                                   h, e, r->pos[at], before, (double)r->mass[at]);
            }
    return EK_OK;
}

void ek_example_close(ek_example *r)
{
    if (r->owned)
        free((void *)r->head);
    *r = (ek_example){0};
}

size_t ek_example_at(const ek_example *r, int layer, int h)
{
    return ((size_t)layer * (size_t)r->dims.n_heads + (size_t)h) * (size_t)r->head->n;
}

void ek_example_layer(const ek_example *r, int layer, int32_t *first, int32_t *n, ek_view *out)
{
    const size_t at = ek_example_at(r, layer, 0);
    const size_t vector = (size_t)r->dims.head_dim * (size_t)ek_dtype_size(r->dtype);

    for (int h = 0; h < r->dims.n_heads; h++) {
        first[h] = h * r->head->n;
        n[h] = r->head->n;
    }
    *out = (ek_view){.layer = layer,
                     .n_heads = r->dims.n_heads,
                     .group = r->dims.group,
                     .head_dim = r->dims.head_dim,
                     .dtype = r->dtype,
                     .next_pos = r->head->next_pos,
                     .first = first,
                     .n = n,
                     .pos = r->pos + at,
                     .k = r->k + at * vector,
                     .v = r->v + at * vector};
}
