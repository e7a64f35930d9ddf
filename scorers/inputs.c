/* scorers/inputs.c - see the header. */
#include "scorers/inputs.h"

#include "core/bf16.h"
#include "scorers/age.h"
#include "scorers/carried.h"

#include <assert.h>
#include <math.h>

int ek_inputs_n(const ek_scorer *s)
{
    return 2 * s->dims.head_dim + (s->set.age == EK_AGE_INPUT) +
           ek_carried_features(s->set.carried);
}

int ek_inputs_describe(const ek_scorer *s, ek_param *out)
{
    const int n = ek_inputs_n(s);

    out[EK_INPUT_MEAN] = (ek_param){"input.mean", 1, n, 0, 0};
    out[EK_INPUT_SCALE] = (ek_param){"input.scale", 1, n, 0, 0};
    return EK_INPUT_TENSORS;
}

void ek_inputs_init(const ek_scorer *s, ek_real *params)
{
    const size_t n = (size_t)s->dims.n_layers * (size_t)s->dims.n_heads * (size_t)ek_inputs_n(s);
    ek_real *scale = params + ek_params_at(s, EK_INPUT_SCALE, 0, 0);

    for (size_t i = 0; i < n; i++)
        scale[i] = 1;
}

/* One vector as reals; with rms, divided by its root mean square. */
static void load(const ek_view *in, const void *column, int64_t entry, bool rms, ek_real *x)
{
    const int d = in->head_dim;
    double sum = 0;

    if (in->dtype == EK_BF16) {
        const ek_bf16 *from = (const ek_bf16 *)column + entry * d;
#pragma omp simd
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

void ek_inputs_read(const ek_scorer *s, const ek_view *in, int h, int first_row, int rows,
                    ek_real *x)
{
    const int d = in->head_dim, width = ek_inputs_n(s), aged = s->set.age == EK_AGE_INPUT;
    const int carried = s->set.carried;

    assert(carried == EK_CARRIED_NONE ||
           (in->carry != NULL && in->n_carry >= ek_carried_floats(carried, in->group)));
    for (int i = 0; i < rows; i++, x += width) {
        const int64_t e = (int64_t)in->first[h] + first_row + i;

        load(in, in->k, e, s->set.rms, x);
        load(in, in->v, e, s->set.rms, x + d);
        if (aged)
            x[2 * d] = (ek_real)ek_log_age(in, e);
        if (carried != EK_CARRIED_NONE)
            ek_carried_read(carried, in->group, in->carry + e * in->n_carry,
                            in->next_pos - in->pos[e], x + 2 * d + aged);
    }
}

void ek_inputs_standardise(const ek_scorer *s, int layer, int h, int rows, ek_real *x)
{
    const int width = ek_inputs_n(s);
    const ek_real *mean = s->params + ek_params_at(s, EK_INPUT_MEAN, layer, h);
    const ek_real *scale = s->params + ek_params_at(s, EK_INPUT_SCALE, layer, h);

    for (int i = 0; i < rows; i++, x += width) {
#pragma omp simd
        for (int c = 0; c < width; c++)
            x[c] = (x[c] - mean[c]) * scale[c];
    }
}
