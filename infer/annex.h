/* infer/annex.h - the part of a cache that holds keys without values; all but the first two for
 * infer/cache.c alone.
 *
 * What lies in it never changes again: only a fork fills it, and nothing is added behind. */
#ifndef EK_INFER_ANNEX_H
#define EK_INFER_ANNEX_H

#include "infer/cache.h"

/* 1 if the annex of a layer holds anything. */
int ek_annex_has(const ek_cache *c, int layer);
/* One layer of it: positions and keys; v is NULL.  The cache must have one. */
void ek_annex_view(const ek_cache *c, int layer, ek_view *out);

/* EK_EASKED: sizes that cannot be; EK_EBROKEN: room without maps, or maps of another model. */
ek_code ek_annex_check_need(const ek_cache_need *need, ek_err *err);
size_t ek_annex_bytes(const ek_cache_need *need); /* its piece of the cache's block */
void ek_annex_open(ek_cache *c, const ek_cache_need *need, void *piece); /* zeroed, of that size */

/* EK_EBROKEN unless what the plan says of mapped entries can be carried out. */
ek_code ek_annex_check_plan(const ek_cache *to, const ek_cache *from, const ek_plan *plan,
                            ek_err *err);
/* Copy positions and keys of the plan's mapped entries; the plan has been checked. */
void ek_annex_take(ek_cache *to, const ek_cache *from, const ek_plan *plan);
/* The invariants of infer/cache.h. */
ek_code ek_annex_check(const ek_cache *c, ek_err *err);

#endif
