/* infer/dequant.h - the tensor types of GGUF that we read, and their numbers as fp32.
 *
 * A row is a whole number of blocks.  Blocks are aligned to nothing.  In the 4- and 5-bit types
 * byte j of a block's 16 holds element j in its low and element j + 16 in its high half. */
#ifndef EK_INFER_DEQUANT_H
#define EK_INFER_DEQUANT_H

#include <stddef.h>
#include <stdint.h>

typedef enum ek_qtype { /* numbers are those of the file */
                        EK_Q_F32 = 0,
                        EK_Q_F16 = 1,
                        EK_Q_Q4_0 = 2,
                        EK_Q_Q4_1 = 3,
                        EK_Q_Q5_0 = 6,
                        EK_Q_Q5_1 = 7,
                        EK_Q_Q8_0 = 8,
                        EK_Q_BF16 = 30
} ek_qtype;

int ek_qtype_known(uint32_t type); /* we read it */
/* Elements and bytes of a block of a known type. */
int ek_qtype_block(ek_qtype type);
int ek_qtype_block_bytes(ek_qtype type);
/* "Q4_1", also for types we do not read; NULL: no such type. */
const char *ek_qtype_name(uint32_t type);

/* out (n) from n / block blocks at data; n is a multiple of the block.  Returns 0 if a scale, a
 * minimum or a plain number is NaN or infinite. */
int ek_dequant(float *out, ek_qtype type, const uint8_t *data, size_t n);

float ek_from_f16(uint16_t h); /* IEEE half */

#endif
