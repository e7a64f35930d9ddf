/* scorers/mlp.c - a small network per (layer, kv head) that reads an entry's key and value.
 *
 *     x = [k ; v] as cached (rotated key), and log age under EK_AGE_INPUT; standardised per head
 *     r = w_out . silu(E x + b) + b_out
 * KVpop's MLP (arXiv 2607.05061), with log age as a further choice.  w_out starts at 0, so an
 * untrained scorer with an age ranks by recency.  Differences: inputs are standardised with
 * constants measured before training, and a frozen base needs a faster decay, so gamma starts at
 * .999 within [.99, .999999].
 *
 * Activations of a head of n entries: x (n, in), E x + b (n, hidden), its silu (n, hidden). */
#include "core/bf16.h"
#include "core/rng.h"
#include "scorers/scorer.h"

#include <math.h>
#include <omp.h>
#include <string.h>

enum { MEAN, SCALE, HIDDEN, HIDDEN_BIAS, OUT, OUT_BIAS, LOG_MASS, AGE }; /* tensors, in order */

/* Entries per product: x, the weights and both activations of a tile stay in the second cache. */
enum { TILE = 128 };

#define LOG_GAMMA_MIN (-0.01005033585350145)   /* log .99 */
#define LOG_GAMMA_MAX (-1.000000500029089e-06) /* log .999999 */
#define ALPHA_START   2.2032463747             /* gamma = .999 */
#define BETA_START    0.5413248546129181       /* softplus of it is 1 */

static int n_inputs(const ek_scorer *s)
{
    return 2 * s->dims.head_dim + (s->set.age == EK_AGE_INPUT);
}

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
    const int in = n_inputs(s), hidden = n_hidden(s);
    int n = 0;

    out[n++] = (ek_param){"input.mean", 1, in, 0, 0};
    out[n++] = (ek_param){"input.scale", 1, in, 0, 0};
    out[n++] = (ek_param){"hidden.weight", hidden, in, 1, 1};
    out[n++] = (ek_param){"hidden.bias", 1, hidden, 1, 0};
    out[n++] = (ek_param){"out.weight", 1, hidden, 1, 1};
    out[n++] = (ek_param){"out.bias", 1, 1, 1, 0};
    out[n++] = (ek_param){"log_mass", 1, 1, 0, 0};
    if (s->set.age == EK_AGE_EXP)
        out[n++] = (ek_param){"age.alpha", 1, 1, 1, 0};
    else if (s->set.age != EK_AGE_NONE)
        out[n++] = (ek_param){"age.beta", 1, 1, 1, 0};
    return n;
}

static void init(const ek_scorer *s, ek_real *params, uint64_t seed)
{
    const int in = n_inputs(s), hidden = n_hidden(s);
    const double bound = 1 / sqrt((double)in);

    memset(params, 0, ek_params_size(s) * sizeof *params);
    for (int l = 0; l < s->dims.n_layers; l++) {
        for (int h = 0; h < s->dims.n_heads; h++) {
            ek_real *scale = params + ek_params_at(s, SCALE, l, h);
            ek_real *w = params + ek_params_at(s, HIDDEN, l, h);
            const uint64_t stream = ek_rng_stream("mlp", (uint64_t)l, (uint64_t)h);

            for (int i = 0; i < in; i++)
                scale[i] = 1;
            for (int i = 0; i < hidden * in; i++)
                w[i] = (ek_real)(bound * (2 * ek_rng_unit(seed, stream, (uint64_t)i) - 1));
            if (s->set.age == EK_AGE_EXP)
                params[ek_params_at(s, AGE, l, h)] = (ek_real)ALPHA_START;
            else if (s->set.age != EK_AGE_NONE)
                params[ek_params_at(s, AGE, l, h)] = (ek_real)BETA_START;
        }
    }
}

/* One vector as reals; with rms, divided by its root mean square. */
static void load(const ek_view *in, const void *column, int64_t entry, bool rms, ek_real *x)
{
    const int d = in->head_dim;
    double sum = 0;

    if (in->dtype == EK_BF16) {
        const ek_bf16 *from = (const ek_bf16 *)column + entry * d;
        for (int i = 0; i < d; i++)
            x[i] = (ek_real)ek_from_bf16(from[i]);
    } else {
        const float *from = (const float *)column + entry * d;
        for (int i = 0; i < d; i++)
            x[i] = (ek_real)from[i];
    }
    if (!rms)
        return;
    for (int i = 0; i < d; i++)
        sum += (double)x[i] * (double)x[i];
    const ek_real by = (ek_real)(1 / sqrt(sum / d + 1e-12));
    for (int i = 0; i < d; i++)
        x[i] *= by;
}

static double log_age(const ek_view *in, int64_t entry)
{
    const int32_t age = in->next_pos - in->pos[entry];

    return log(age > 1 ? (double)age : 1.0);
}

static void inputs(const ek_scorer *s, const ek_view *in, int h, int first_row, int rows,
                   ek_real *x)
{
    const int d = in->head_dim, width = n_inputs(s);

    for (int i = 0; i < rows; i++, x += width) {
        const int64_t e = (int64_t)in->first[h] + first_row + i;

        load(in, in->k, e, s->set.rms, x);
        load(in, in->v, e, s->set.rms, x + d);
        if (s->set.age == EK_AGE_INPUT)
            x[2 * d] = (ek_real)log_age(in, e);
    }
}

/* Slots first_row .. first_row + rows - 1 of one head; x, pre, act and r are of these rows. */
static void forward_rows(const ek_scorer *s, const ek_view *in, int h, int first_row, int rows,
                         ek_real *x, ek_real *pre, ek_real *act, ek_real *r)
{
    const int width = n_inputs(s), hidden = n_hidden(s), l = in->layer;
    const ek_real *mean = s->params + ek_params_at(s, MEAN, l, h);
    const ek_real *scale = s->params + ek_params_at(s, SCALE, l, h);
    const ek_real *w = s->params + ek_params_at(s, HIDDEN, l, h);
    const ek_real *b = s->params + ek_params_at(s, HIDDEN_BIAS, l, h);
    const ek_real *out = s->params + ek_params_at(s, OUT, l, h);
    const ek_real out_bias = s->params[ek_params_at(s, OUT_BIAS, l, h)];

    inputs(s, in, h, first_row, rows, x);
    for (int i = 0; i < rows; i++)
        for (int c = 0; c < width; c++)
            x[(size_t)i * width + c] = (x[(size_t)i * width + c] - mean[c]) * scale[c];
    ek_real_gemm(s->dev, pre, (size_t)hidden, x, (size_t)width, 0, w, (size_t)width, 1, rows,
                 hidden, width, EK_SET);
    for (int i = 0; i < rows; i++)
        for (int c = 0; c < hidden; c++)
            pre[(size_t)i * hidden + c] += b[c];
    ek_real_silu(s->dev, act, pre, (size_t)rows * (size_t)hidden);
    ek_real_gemm(s->dev, r, 1, act, (size_t)hidden, 0, out, (size_t)hidden, 1, rows, 1, hidden,
                 EK_SET);
    for (int i = 0; i < rows; i++)
        r[i] += out_bias;
}

static size_t scratch(const ek_scorer *s, int n)
{
    return (size_t)n * ((size_t)n_inputs(s) + 2 * (size_t)n_hidden(s));
}

static void forward(const ek_scorer *s, const ek_view *in, int h, ek_real *act, ek_real *r)
{
    const size_t width = (size_t)n_inputs(s), hidden = (size_t)n_hidden(s);
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
    const int width = n_inputs(s), hidden = n_hidden(s), n = in->n[h], l = in->layer;
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

static ek_real sigmoid(ek_real x)
{
    return (ek_real)(x >= 0 ? 1 / (1 + exp(-(double)x)) : exp((double)x) / (1 + exp((double)x)));
}

static double softplus(double x)
{
    return (x > 0 ? x : 0) + log1p(exp(-fabs(x)));
}

static ek_real log_gamma(const ek_scorer *s, int layer, int h)
{
    if (s->set.age != EK_AGE_EXP)
        return 0;
    return (ek_real)(LOG_GAMMA_MIN + (double)sigmoid(s->params[ek_params_at(s, AGE, layer, h)]) *
                                         (LOG_GAMMA_MAX - LOG_GAMMA_MIN));
}

static ek_real log_mass(const ek_scorer *s, int layer, int h)
{
    return s->params[ek_params_at(s, LOG_MASS, layer, h)];
}

/* The age term of n entries from slot first_row on. */
static void age_rows(const ek_scorer *s, const ek_view *in, int h, int first_row, int rows,
                     const ek_real *r, ek_real *p)
{
    const int l = in->layer, kind = s->set.age;
    const int64_t first = (int64_t)in->first[h] + first_row;
    double by = 0;

    if (kind == EK_AGE_EXP)
        by = (double)log_gamma(s, l, h);
    else if (kind != EK_AGE_NONE)
        by = -softplus((double)s->params[ek_params_at(s, AGE, l, h)]);
    for (int i = 0; i < rows; i++) {
        double term = 0;

        if (kind == EK_AGE_EXP)
            term = by * (double)(in->next_pos - in->pos[first + i]);
        else if (kind != EK_AGE_NONE)
            term = by * log_age(in, first + i);
        p[i] = (ek_real)((double)r[i] + term);
    }
}

static void age(const ek_scorer *s, const ek_view *in, int h, const ek_real *r, ek_real *p)
{
    age_rows(s, in, h, 0, in->n[h], r, p);
}

static void age_back(const ek_scorer *s, const ek_view *in, int h, const ek_real *dp,
                     ek_real *dparams)
{
    const int kind = s->set.age, n = in->n[h];

    if (kind == EK_AGE_NONE)
        return;
    const size_t at = ek_params_at(s, AGE, in->layer, h);
    const double sig = (double)sigmoid(s->params[at]);
    double sum = 0;

    for (int i = 0; i < n; i++) {
        const int64_t e = (int64_t)in->first[h] + i;
        sum += (double)dp[i] *
               (kind == EK_AGE_EXP ? (double)(in->next_pos - in->pos[e]) : log_age(in, e));
    }
    if (kind == EK_AGE_EXP)
        dparams[at] += (ek_real)(sum * sig * (1 - sig) * (LOG_GAMMA_MAX - LOG_GAMMA_MIN));
    else
        dparams[at] -= (ek_real)(sum * sig);
}

static const ek_learner learner = {.describe = describe,
                                   .init = init,
                                   .n_inputs = n_inputs,
                                   .inputs = inputs,
                                   .scratch = scratch,
                                   .forward = forward,
                                   .backward = backward,
                                   .age = age,
                                   .age_back = age_back,
                                   .log_gamma = log_gamma,
                                   .log_mass = log_mass};

/* Heads are cut into tiles so that few heads keep many threads busy; a row's bits do not depend on
 * the tile it is in.  The workspace is free for this: gemm and silu run on the calling thread and
 * take none. */
static ek_code score(const ek_scorer *s, const ek_view *in, float *out, ek_err *err)
{
    const size_t width = (size_t)n_inputs(s), hidden = (size_t)n_hidden(s);
    const size_t room = TILE * (width + 2 * hidden + 1);
    const int threads = s->dev->threads > 0 ? s->dev->threads : 1;
    int most = 0;

    if (s->params == NULL)
        return EK_FAIL(err, EK_EASKED, "mlp: the scorer has no parameters: name trained weights");
    for (int h = 0; h < in->n_heads; h++)
        most = in->n[h] > most ? in->n[h] : most;
    ek_real *work = ek_device_work(s->dev, (size_t)threads * room * sizeof *work);
    if (work == NULL)
        return EK_FAIL(err, EK_ENOMEM, "mlp: %zu bytes of workspace",
                       (size_t)threads * room * sizeof *work);
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
