/* train/rank.c - one sort and a Fenwick scan; and a heap, its second opinion. */
#include "train/rank.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

ek_code ek_rank_open(ek_rank *r, int n, ek_err *err)
{
    int32_t *p = n < 1 ? NULL : malloc(((size_t)n * 6 + 1) * sizeof *p);

    if (p == NULL)
        return EK_FAIL(err, EK_ENOMEM, "ranks of %d tokens", n);
    *r = (ek_rank){.n = n, .block = p};
    r->rank = p;
    r->order = r->rank + n;
    r->tau = r->order + n;
    r->next = r->tau + n;
    r->evict = r->next + n;
    r->tree = r->evict + n;
    return EK_OK;
}

void ek_rank_close(ek_rank *r)
{
    free(r->block);
    *r = (ek_rank){0};
}

/* A priority and its token in one sortable number: the float's order as an unsigned integer above,
 * the position below, so that equal priorities fall to the younger. */
static uint64_t sort_key(float a, int j)
{
    uint32_t bits;

    if (isnan(a))
        a = -INFINITY;
    a += 0.0f; /* -0 and +0 are equal */
    memcpy(&bits, &a, sizeof bits);
    bits = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return (uint64_t)bits << 32 | (uint32_t)j;
}

static int descending(const void *x, const void *y)
{
    const uint64_t a = *(const uint64_t *)x, b = *(const uint64_t *)y;

    return a < b ? 1 : a > b ? -1 : 0;
}

/* The i-th smallest inserted place (1-based) by binary lifting. */
static int find(const int32_t *tree, int n, int i)
{
    int at = 0, step = 1;

    while (step * 2 <= n)
        step *= 2;
    for (; step > 0; step /= 2) {
        if (at + step <= n && tree[at + step] < i) {
            at += step;
            i -= tree[at];
        }
    }
    return at;
}

void ek_rank_run(ek_rank *r, const float *a, int n, int sinks, int recent, int keep)
{
    const int m = n > sinks ? n - sinks : 0;
    uint64_t *key = (uint64_t *)(void *)r->tau; /* tau and next are written only afterwards */

    /* The block begins aligned for any type; tau stands 2 n ints in, on an even index. */
    r->n = n, r->sinks = sinks, r->recent = recent, r->keep = keep;
    for (int j = 0; j < m; j++)
        key[j] = sort_key(a[sinks + j], sinks + j);
    qsort(key, (size_t)m, sizeof *key, descending);
    for (int j = 0; j < sinks && j < n; j++)
        r->rank[j] = -1;
    for (int j = 0; j < m; j++) {
        r->order[j] = (int32_t)(key[j] & 0xffffffffu);
        r->rank[r->order[j]] = j;
    }
    memset(r->tree, 0, ((size_t)m + 1) * sizeof *r->tree);
    for (int j = 0; j < n; j++)
        r->evict[j] = n;

    int inserted = 0;
    for (int i = 0; i < n; i++) {
        const int newborn = i - recent, before = i > 0 ? r->tau[i - 1] : -1;

        if (newborn >= sinks) {
            for (int at = r->rank[newborn] + 1; at <= m; at += at & -at)
                r->tree[at]++;
            inserted++;
        }
        r->tau[i] = inserted >= keep ? find(r->tree, m, keep) : -1;
        r->next[i] = inserted >= keep + 1 ? find(r->tree, m, keep + 1) : -1;
        if (newborn >= sinks && inserted > keep) {
            /* One goes: the newborn, or who was the k-th best before it came. */
            const int stays = r->rank[newborn] <= r->tau[i];
            r->evict[stays ? r->order[before] : newborn] = i;
        }
    }
}

int ek_rank_visible(const ek_rank *r, int i, int j)
{
    if (j > i)
        return 0;
    if (j < r->sinks || i - j < r->recent)
        return 1;
    return r->tau[i] < 0 || r->rank[j] <= r->tau[i];
}

ek_decision ek_rank_decide(const ek_rank *r, int i)
{
    ek_decision d;

    d.newborn = i - r->recent;
    d.y = r->rank[d.newborn] <= r->tau[i] ? 1 : -1;
    d.boundary = r->order[r->tau[i]];
    d.partner = d.boundary == d.newborn ? r->order[r->next[i]] : d.boundary;
    d.leaver = d.y > 0 ? r->order[r->tau[i - 1]] : d.newborn;
    return d;
}

/* 1 if token x goes before token y. */
static int worse(const float *a, int x, int y)
{
    return sort_key(a[x], x) < sort_key(a[y], y);
}

static void sift_down(int32_t *heap, int n, const float *a)
{
    for (int at = 0;;) {
        int least = at;

        for (int c = 2 * at + 1; c <= 2 * at + 2 && c < n; c++)
            if (worse(a, heap[c], heap[least]))
                least = c;
        if (least == at)
            return;
        const int32_t t = heap[at];
        heap[at] = heap[least];
        heap[least] = t;
        at = least;
    }
}

void ek_rank_heap(int32_t *evict, const float *a, int n, int sinks, int recent, int keep,
                  int32_t *heap)
{
    int held = 0;

    for (int j = 0; j < n; j++)
        evict[j] = n;
    for (int i = sinks + recent; i < n; i++) {
        const int newborn = i - recent;

        if (held < keep) {
            int at = held++;

            heap[at] = newborn;
            while (at > 0 && worse(a, heap[at], heap[(at - 1) / 2])) {
                const int32_t t = heap[at];
                heap[at] = heap[(at - 1) / 2];
                heap[(at - 1) / 2] = t;
                at = (at - 1) / 2;
            }
        } else if (keep == 0 || worse(a, newborn, heap[0])) {
            evict[newborn] = i;
        } else {
            evict[heap[0]] = i;
            heap[0] = newborn;
            sift_down(heap, held, a);
        }
    }
}
