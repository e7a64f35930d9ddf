/* core/cpu/tile.h - cached keys and values as panels, 64 entries at a time.
 *
 * A tile of keys is 2 panels of 32 entries with head_dim inputs; a tile of values is one panel per
 * 32 dims with 64 inputs.  Entries past n are zeros.  The panels' type is bf16 where the
 * micro-kernel multiplies bf16, else fp32: bf16 storage is then widened here, once. */
#ifndef EK_CORE_CPU_TILE_H
#define EK_CORE_CPU_TILE_H

#include "core/cpu/panel.h"

enum { EK_TILE = 64 };

/* n <= 64 vectors of dim numbers, dense, of type `from` -> panels of type `to`. */
typedef void ek_tile_fn(void *tile, ek_dtype to, const void *x, ek_dtype from, int n, int dim);

typedef struct ek_tile_kit {
    ek_tile_fn *keys, *values;
} ek_tile_kit;

/* dim is even. */
static inline size_t ek_key_tile_bytes(ek_dtype type, int dim)
{
    return (size_t)EK_TILE * (size_t)dim * (size_t)ek_dtype_size(type);
}

static inline size_t ek_value_tile_bytes(ek_dtype type, int dim)
{
    return (size_t)EK_TILE * EK_PANEL * (size_t)ek_panels(dim) * (size_t)ek_dtype_size(type);
}

/* The type of operands and panels at a level for a type of storage. */
ek_dtype ek_tile_type(ek_isa isa, ek_dtype storage);
const ek_tile_kit *ek_tile_kit_of(ek_isa isa);

/* n fp32 numbers as an operand that meets storage, converted to the panels' type. */
void ek_tile_operand(const ek_panel_kit *kit, void *to, ek_dtype type, const float *x,
                     ek_dtype storage, int n);

#endif
