/* scorers/random.c - chance, the floor of every table.
 * An entry's number is a function of (seed, layer, head, position) alone: drawn once per token, the
 * same whatever the batch or thread count, and the set of a small budget lies in that of a larger.
 */
#include "core/rng.h"
#include "scorers/method.h"

static ek_code score(const ek_scorer *s, const ek_view *in, float *out, ek_err *err)
{
    (void)err;
    for (int h = 0; h < in->n_heads; h++) {
        const uint64_t stream = ek_rng_stream("random", (uint64_t)in->layer, (uint64_t)h);

        for (int32_t e = in->first[h]; e < in->first[h] + in->n[h]; e++)
            out[e] = (float)ek_rng_unit((uint64_t)s->set.seed, stream, (uint64_t)in->pos[e]);
    }
    return EK_OK;
}

const ek_scorer_class ek_scorer_random = {.name = "random",
                                          .brief = "a seeded number in [0, 1]",
                                          .source = EK_FROM_ENTRIES,
                                          .score = score};

const ek_method ek_method_random = {
    .name = "random",
    .brief = "entries drawn by chance, the same for a seed",
    .paper = "-",
    .measure = {.signal = &ek_scorer_random, .carry = {.kind = EK_CARRY_LAST, .every = 1}},
    .budget = EK_SHARE_UNIFORM,
    .granularity = EK_SET_PER_HEAD,
    .when = {.prefill_end = 1, .every = 1}};
