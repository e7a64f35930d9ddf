/* scorers/memory.h - the matrix memory of a recurrent scorer, one chunk of a head at a time.
 *
 * Token t brings a key k_t (d), a value v_t (dv), all entries of k positive, and the logs of two
 * gates, in_t and f_t:
 *     C_t = f_t C_{t-1} + in_t k_t v_t^T  (d, dv)       z_t = f_t z_{t-1} + in_t k_t
 * A read with query q (d) after token t gives o = (q^T C_t) / (q^T z_t).
 *
 * Both are kept divided by exp(m_t), m_t = max(log f_t + m_{t-1}, log in_t), so that the largest
 * weight inside z is 1 and nothing overflows; the denominator is then at least EK_MEMORY_FLOOR.
 * A chunk is taken in at once, with products of matrices: with F_t the sum of log f within the
 * chunk, the weight of token s in a read after t is exp(F_t - F_s + log in_s - m_t), and F_t
 * cancels against m_t.  Time is linear in the number of tokens, and chunks of any size up to
 * EK_MEMORY_CHUNK give the same numbers to rounding.
 *
 * In the backward pass m is a constant, since o does not depend on it; where the floor is active
 * the denominator is a constant too. */
#ifndef EK_SCORERS_MEMORY_H
#define EK_SCORERS_MEMORY_H

#include "core/real.h"

enum { EK_MEMORY_CHUNK = 64 };
#define EK_MEMORY_FLOOR 1e-6

/* Positive features of numbers: phi(z) = [ softmax(z) ; softmax(-z) ], `parts` vectors of dv
 * numbers per row of z (row stride ldz); y (rows, parts, 2 dv) dense. */
void ek_memory_features(ek_device *dev, ek_real *y, const ek_real *z, size_t ldz, int rows,
                        int parts, int dv);
/* dz (row stride ldz, dv numbers) of y (row stride ldy) and dy (dense, 2 dv numbers). */
void ek_memory_features_back(ek_real *dz, size_t ldz, const ek_real *y, size_t ldy,
                             const ek_real *dy, int rows, int dv);

/* State of one head: C (d, dv) row-major, z (d), m.  All zero remembers nothing: with no token
 * taken in z is 0, and m is not looked at; with one, z is not, since its keys are positive. */
static inline size_t ek_memory_size(int d, int dv)
{
    return (size_t)d * (size_t)dv + (size_t)d + 1;
}

/* n tokens, and n_q reads; read i comes after token at[i] of the chunk, at ascending.  Row strides
 * in numbers.  The lower half is written by take and read, and needed again by back. */
typedef struct ek_memory_chunk {
    ek_device *dev;
    int d, dv, n, n_q;
    const ek_real *k, *v, *q; /* (n, d), (n, dv), (n_q, d) */
    size_t ldk, ldv, ldq;
    const ek_real *gate; /* (n, 2) log in, and g with f = sigmoid(g) */
    const int *at;       /* (n_q) */

    ek_real *weight, *product; /* (n_q, CHUNK) of token s in read i; the same times q_i . k_s */
    ek_real *carry;            /* (n_q) weight of the state before the chunk */
    ek_real *last;             /* (n + 1) weights in the state after it, of token s; of the state */
    ek_real *o, *den; /* (n_q, dv), (n_q) what was read; the denominator before its floor */
} ek_memory_chunk;

/* Take the chunk into `from`, giving `to` (may be the same), and read.  work: n * d numbers. */
void ek_memory_forward(const ek_memory_chunk *c, const ek_real *from, ek_real *to, ek_real *work);

typedef struct ek_memory_grad { /* of the loss, to the chunk's ... */
    const ek_real *o;           /* (n_q, dv) given */
    ek_real *q, *k, *v, *gate;  /* dense, (n_q, d), (n, d), (n, dv), (n, 2); set */
    ek_real *state; /* C and z after the chunk; turned into those before it.  Zero at the end */
} ek_memory_grad;

size_t ek_memory_back_work(int d, int dv);
/* from, to: the states before and after the chunk, as forward had and left them. */
void ek_memory_backward(const ek_memory_chunk *c, const ek_real *from, const ek_real *to,
                        const ek_memory_grad *g, ek_real *work);

#endif
