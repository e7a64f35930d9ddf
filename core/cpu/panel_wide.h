/* core/cpu/panel_wide.h - what the wide micro-kernels share.
 *
 * The accumulators of R rows stay in registers, R a constant after inlining, so each number of rows
 * is an own function body; next_rows spreads the rows of a call evenly.  AVX-512: 12 rows x 32
 * columns are 24 accumulators of 32 registers.  AVX2: 6 x 16 are 12 of 16. */
#ifndef EK_CORE_CPU_PANEL_WIDE_H
#define EK_CORE_CPU_PANEL_WIDE_H

#include "core/cpu/panel.h"

#include <immintrin.h>

#define ROW_CASES_2_6(call) \
    case 2:                 \
        call(2);            \
        break;              \
    case 3:                 \
        call(3);            \
        break;              \
    case 4:                 \
        call(4);            \
        break;              \
    case 5:                 \
        call(5);            \
        break;              \
    case 6:                 \
        call(6);            \
        break;
#define ROW_CASES_12(call)  \
    case 1:                 \
        call(1);            \
        break;              \
        ROW_CASES_2_6(call) \
    case 7:                 \
        call(7);            \
        break;              \
    case 8:                 \
        call(8);            \
        break;              \
    case 9:                 \
        call(9);            \
        break;              \
    case 10:                \
        call(10);           \
        break;              \
    case 11:                \
        call(11);           \
        break;              \
    case 12:                \
        call(12);           \
        break;

/* Rows of the next block: as even as most rows per block allow. */
static inline int next_rows(int left, int most)
{
    const int blocks = (left + most - 1) / most;

    return (left + blocks - 1) / blocks;
}

#endif
