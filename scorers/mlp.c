/* scorers/mlp.c - a small network per (layer, kv head) that reads an entry's key and value.
 *
 *     x = the inputs, [k ; v] and what else is asked for (scorers/inputs.h), standardised
 *     r = w_out . silu(E x + b) + b_out
 * KVpop's MLP (arXiv 2607.05061), with log age as a further choice.  w_out starts at 0, so an
 * untrained scorer with an age ranks by recency.  Differences: inputs are standardised with
 * constants measured before training, and the age terms are those of scorers/age.h.
 *
 * Activations of a head of n entries: x (n, in), E x + b (n, hidden), its silu (n, hidden). */
#include "core/rng.h"
#include "scorers/age.h"
#include "scorers/inputs.h"

#include <math.h>
#include <omp.h>
#include <string.h>

enum { HIDDEN = EK_INPUT_TENSORS, HIDDEN_BIAS, OUT, OUT_BIAS }; /* tensors, in order */

/* Entries per product: x, the weights and both activations of a tile stay in the second cache. */
enum { TILE = 128 };

/* The default width is the one whose size is nearest to the paper's recurrent scorer. */
static int n_hidden(const ek_scorer *s)
{
    const int d = s->dims.head_dim;

    if (s->set.hidden > 0)
        return (int)s->set.hidden;
    const double recurrent = 3.0 * 2 * d * (d / 2.0) + 2.0 * (2 * d + 1) + d / 2.0 + 1;
    const int width = (int)((recurrent - 1) / (2 * d + 2) + 0.5);
    return width > 1 ? width : 1;
}

static int describe(const ek_scorer *s, ek_param *out)
{
    const int in = ek_inputs_n(s), hidden = n_hidden(s);
    int n = ek_inputs_describe(s, out);

    out[n++] = (ek_param){"hidden.weight", hidden, in, 1, 1};
    out[n++] = (ek_param){"hidden.bias", 1, hidden, 1, 0};
    out[n++] = (ek_param){"out.weight", 1, hidden, 1, 1};
    out[n++] = (ek_param){"out.bias", 1, 1, 1, 0};
    return n + ek_age_describe(s, out + n);
}

static void init(const ek_scorer *s, ek_real *params, uint64_t seed)
{
    const int in = ek_inputs_n(s), hidden = n_hidden(s);
    const double bound = 1 / sqrt((double)in);

    memset(params, 0, ek_params_size(s) * sizeof *params);
    ek_inputs_init(s, params);
    ek_age_init(s, params);
    for (int l = 0; l < s->dims.n_layers; l++) {
        for (int h = 0; h < s->dims.n_heads; h++) {
            ek_real *w = params + ek_params_at(s, HIDDEN, l, h);
            const uint64_t stream = ek_rng_stream("mlp", (uint64_t)l, (uint64_t)h);

            for (int i = 0; i < hidden * in; i++)
                w[i] = (ek_real)(bound * (2 * ek_rng_unit(seed, stream, (uint64_t)i) - 1));
        }
    }
}

/* Slots first_row .. first_row + rows - 1 of one head; x, pre, act and r are of these rows. */
static void forward_rows(const ek_scorer *s, const ek_view *in, int h, int first_row, int rows,
                         ek_real *x, ek_real *pre, ek_real *act, ek_real *r)
{
    const int width = ek_inputs_n(s), hidden = n_hidden(s), l = in->layer;
    const ek_real *w = s->params + ek_params_at(s, HIDDEN, l, h);
    const ek_real *b = s->params + ek_params_at(s, HIDDEN_BIAS, l, h);
    const ek_real *out = s->params + ek_params_at(s, OUT, l, h);
    const ek_real out_bias = s->params[ek_params_at(s, OUT_BIAS, l, h)];

    ek_inputs_read(s, in, h, first_row, rows, x);
    ek_inputs_standardise(s, l, h, rows, x);
    ek_real_gemm(s->dev, pre, (size_t)hidden, x, (size_t)width, 0, w, (size_t)width, 1, rows,
                 hidden, width, EK_SET);
    for (int i = 0; i < rows; i++) {
        ek_real *z = pre + (size_t)i * hidden;

#pragma omp simd
        for (int c = 0; c < hidden; c++)
            z[c] += b[c];
    }
    ek_real_silu(s->dev, act, pre, (size_t)rows * (size_t)hidden);
    /* One output would fill a thirty-second of a panel. */
    for (int i = 0; i < rows; i++) {
        const ek_real *a = act + (size_t)i * hidden;
        ek_real sum = 0;

#pragma omp simd reduction(+ : sum)
        for (int c = 0; c < hidden; c++)
            sum += a[c] * out[c];
        r[i] = sum + out_bias;
    }
}

static size_t scratch(const ek_scorer *s, int n)
{
    return (size_t)n * ((size_t)ek_inputs_n(s) + 2 * (size_t)n_hidden(s));
}

static void forward(const ek_scorer *s, const ek_view *in, int h, ek_real *act, ek_real *r)
{
    const size_t width = (size_t)ek_inputs_n(s), hidden = (size_t)n_hidden(s);
    const int n = in->n[h];
    ek_real *x = act, *pre = x + (size_t)n * width, *after = pre + (size_t)n * hidden;

    for (int i = 0; i < n; i += TILE) {
        const int rows = n - i < TILE ? n - i : TILE;

        forward_rows(s, in, h, i, rows, x + (size_t)i * width, pre + (size_t)i * hidden,
                     after + (size_t)i * hidden, r + i);
    }
}

static void backward(const ek_scorer *s, const ek_view *in, int h, ek_real *act, const ek_real *dr,
                     ek_real *dparams)
{
    const int width = ek_inputs_n(s), hidden = n_hidden(s), n = in->n[h], l = in->layer;
    const ek_real *out = s->params + ek_params_at(s, OUT, l, h);
    ek_real *dw = dparams + ek_params_at(s, HIDDEN, l, h);
    ek_real *db = dparams + ek_params_at(s, HIDDEN_BIAS, l, h);
    ek_real *dout = dparams + ek_params_at(s, OUT, l, h);
    ek_real *dout_bias = dparams + ek_params_at(s, OUT_BIAS, l, h);
    ek_real *x = act, *pre = x + (size_t)n * width, *after = pre + (size_t)n * hidden;

    for (int i = 0; i < n; i += TILE) {
        const int rows = n - i < TILE ? n - i : TILE;
        ek_real *a = after + (size_t)i * hidden, *z = pre + (size_t)i * hidden;

        ek_real_gemm(s->dev, dout, (size_t)hidden, dr + i, 1, 1, a, (size_t)hidden, 0, 1, hidden,
                     rows, EK_ADD);
        for (int j = 0; j < rows; j++) {
            *dout_bias += dr[i + j];
            for (int c = 0; c < hidden; c++)
                a[(size_t)j * hidden + c] = dr[i + j] * out[c];
        }
        ek_real_silu_back(s->dev, a, z, a, (size_t)rows * (size_t)hidden);
        for (int j = 0; j < rows; j++)
            for (int c = 0; c < hidden; c++)
                db[c] += a[(size_t)j * hidden + c];
        ek_real_gemm(s->dev, dw, (size_t)width, a, (size_t)hidden, 1, x + (size_t)i * width,
                     (size_t)width, 0, hidden, width, rows, EK_ADD);
    }
}

static const ek_learner learner = {.describe = describe,
                                   .init = init,
                                   .scratch = scratch,
                                   .forward = forward,
                                   .backward = backward};

/* Heads are cut into tiles so that few heads keep many threads busy; a row's bits do not depend on
 * the tile it is in.  The workspace is free for this: gemm and silu run on the calling thread and
 * take none. */
static ek_code score(const ek_scorer *s, const ek_view *in, float *out, ek_err *err)
{
    const size_t width = (size_t)ek_inputs_n(s), hidden = (size_t)n_hidden(s);
    const size_t room = TILE * (width + 2 * hidden + 1);
    const int threads = s->dev->threads > 0 ? s->dev->threads : 1;
    int most = 0;

    if (s->params == NULL)
        return EK_FAIL(err, EK_EASKED, "mlp: the scorer has no parameters: name trained weights");
    for (int h = 0; h < in->n_heads; h++)
        most = in->n[h] > most ? in->n[h] : most;
    ek_real *work = ek_device_work(s->dev, (size_t)threads * room * sizeof *work);
    const int tiles = (most + TILE - 1) / TILE;

/* The newest entry of each head alone is not worth waking threads. */
#pragma omp parallel for num_threads(threads) schedule(static) if (most > 4)
    for (int t = 0; t < tiles * in->n_heads; t++) {
        const int h = t / tiles, from = t % tiles * TILE;
        const int rows = in->n[h] - from < TILE ? in->n[h] - from : TILE;
        ek_real *x = work + (size_t)omp_get_thread_num() * room, *pre = x + TILE * width;
        ek_real *act = pre + TILE * hidden, *r = act + TILE * hidden;

        if (rows <= 0)
            continue;
        forward_rows(s, in, h, from, rows, x, pre, act, r);
        for (int i = 0; i < rows; i++)
            out[(int64_t)in->first[h] + from + i] = (float)r[i];
    }
    return EK_OK;
}

const ek_scorer_class ek_scorer_mlp = {.name = "mlp",
                                       .brief = "a trained network per head over key, value, age",
                                       .source = EK_FROM_ENTRIES,
                                       .learner = &learner,
                                       .score = score};
