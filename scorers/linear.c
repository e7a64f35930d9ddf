/* scorers/linear.c - one weight per number of an entry, per (layer, kv head).
 *
 *     r = w_out . x + b_out        x the inputs (scorers/inputs.h), standardised
 * KVpop's linear scorer (arXiv 2607.05061).  w_out starts at 0, so an untrained scorer with an age
 * ranks by recency.  Differences: as in mlp.c.
 *
 * Activations of a head of n entries: x (n, in). */
#include "scorers/age.h"
#include "scorers/inputs.h"

#include <string.h>

enum { OUT = EK_INPUT_TENSORS, OUT_BIAS }; /* tensors, in order */
enum { TILE = 128 };                       /* entries scored at once */

static int describe(const ek_scorer *s, ek_param *out)
{
    int n = ek_inputs_describe(s, out);

    out[n++] = (ek_param){"out.weight", 1, ek_inputs_n(s), 1, 1};
    out[n++] = (ek_param){"out.bias", 1, 1, 1, 0};
    return n + ek_age_describe(s, out + n);
}

static void init(const ek_scorer *s, ek_real *params, uint64_t seed)
{
    (void)seed;
    memset(params, 0, ek_params_size(s) * sizeof *params);
    ek_inputs_init(s, params);
    ek_age_init(s, params);
}

/* Slots first_row .. first_row + rows - 1 of one head; x and r are of these rows. */
static void forward_rows(const ek_scorer *s, const ek_view *in, int h, int first_row, int rows,
                         ek_real *x, ek_real *r)
{
    const int width = ek_inputs_n(s), l = in->layer;
    const ek_real *w = s->params + ek_params_at(s, OUT, l, h);
    const ek_real bias = s->params[ek_params_at(s, OUT_BIAS, l, h)];

    ek_inputs_read(s, in, h, first_row, rows, x);
    ek_inputs_standardise(s, l, h, rows, x);
    ek_real_gemm(s->dev, r, 1, x, (size_t)width, 0, w, (size_t)width, 1, rows, 1, width, EK_SET);
    for (int i = 0; i < rows; i++)
        r[i] += bias;
}

static size_t scratch(const ek_scorer *s, int n)
{
    return (size_t)n * (size_t)ek_inputs_n(s);
}

static void forward(const ek_scorer *s, const ek_view *in, int h, ek_real *act, ek_real *r)
{
    forward_rows(s, in, h, 0, in->n[h], act, r);
}

static void backward(const ek_scorer *s, const ek_view *in, int h, ek_real *act, const ek_real *dr,
                     ek_real *dparams)
{
    const int width = ek_inputs_n(s), n = in->n[h], l = in->layer;
    ek_real *dw = dparams + ek_params_at(s, OUT, l, h);
    ek_real *dbias = dparams + ek_params_at(s, OUT_BIAS, l, h);

    ek_real_gemm(s->dev, dw, (size_t)width, dr, 1, 1, act, (size_t)width, 0, 1, width, n, EK_ADD);
    for (int i = 0; i < n; i++)
        *dbias += dr[i];
}

static const ek_learner learner = {.describe = describe,
                                   .init = init,
                                   .scratch = scratch,
                                   .forward = forward,
                                   .backward = backward};

/* So little work per entry that it is not worth threads. */
static ek_code score(const ek_scorer *s, const ek_view *in, float *out, ek_err *err)
{
    const size_t room = TILE * ((size_t)ek_inputs_n(s) + 1);

    if (s->params == NULL)
        return EK_FAIL(err, EK_EASKED,
                       "linear: the scorer has no parameters: name trained weights");
    ek_real *x = ek_device_work(s->dev, room * sizeof *x), *r = x + room - TILE;
    for (int h = 0; h < in->n_heads; h++)
        for (int i = 0; i < in->n[h]; i += TILE) {
            const int rows = in->n[h] - i < TILE ? in->n[h] - i : TILE;

            forward_rows(s, in, h, i, rows, x, r);
            for (int j = 0; j < rows; j++)
                out[(int64_t)in->first[h] + i + j] = (float)r[j];
        }
    return EK_OK;
}

const ek_scorer_class ek_scorer_linear = {.name = "linear",
                                          .brief = "trained weights per head over key, value, age",
                                          .source = EK_FROM_ENTRIES,
                                          .learner = &learner,
                                          .score = score};
