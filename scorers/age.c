/* scorers/age.c - see the header. */
#include "scorers/age.h"

#include <math.h>

#define LOG_GAMMA_MIN (-0.01005033585350145)   /* log .99 */
#define LOG_GAMMA_MAX (-1.000000500029089e-06) /* log .999999 */
#define ALPHA_START   2.2032463747             /* gamma = .999 */
#define BETA_START    0.5413248546129181       /* softplus of it is 1 */

double ek_log_age(const ek_view *in, int64_t entry)
{
    const int32_t age = in->next_pos - in->pos[entry];

    return log(age > 1 ? (double)age : 1.0);
}

int ek_age_describe(const ek_scorer *s, ek_param *out)
{
    int n = 0;

    out[n++] = (ek_param){"log_mass", 1, 1, 0, 0};
    if (s->set.age == EK_AGE_EXP)
        out[n++] = (ek_param){"age.alpha", 1, 1, 1, 0};
    else if (s->set.age != EK_AGE_NONE)
        out[n++] = (ek_param){"age.beta", 1, 1, 1, 0};
    return n;
}

/* Where a head's age parameter (from_end 1) or, behind it, its log mass lies. */
static size_t at_end(const ek_scorer *s, int from_end, int layer, int h)
{
    ek_param p[EK_MAX_PARAMS];

    return ek_params_at(s, s->cls->learner->describe(s, p) - from_end, layer, h);
}

static size_t age_at(const ek_scorer *s, int layer, int h)
{
    return at_end(s, 1, layer, h);
}

void ek_age_init(const ek_scorer *s, ek_real *params)
{
    if (s->set.age == EK_AGE_NONE)
        return;
    for (int l = 0; l < s->dims.n_layers; l++)
        for (int h = 0; h < s->dims.n_heads; h++)
            params[age_at(s, l, h)] =
                (ek_real)(s->set.age == EK_AGE_EXP ? ALPHA_START : BETA_START);
}

static ek_real sigmoid(ek_real x)
{
    return (ek_real)(x >= 0 ? 1 / (1 + exp(-(double)x)) : exp((double)x) / (1 + exp((double)x)));
}

static double softplus(double x)
{
    return (x > 0 ? x : 0) + log1p(exp(-fabs(x)));
}

ek_real ek_age_log_gamma(const ek_scorer *s, int layer, int h)
{
    if (s->set.age != EK_AGE_EXP)
        return 0;
    return (ek_real)(LOG_GAMMA_MIN + (double)sigmoid(s->params[age_at(s, layer, h)]) *
                                         (LOG_GAMMA_MAX - LOG_GAMMA_MIN));
}

ek_real ek_age_log_mass(const ek_scorer *s, int layer, int h)
{
    return s->params[at_end(s, s->set.age == EK_AGE_NONE ? 1 : 2, layer, h)];
}

void ek_age_add(const ek_scorer *s, const ek_view *in, int h, const ek_real *r, ek_real *p)
{
    const int l = in->layer, kind = s->set.age, n = in->n[h];
    const int64_t first = in->first[h];
    double by = 0;

    if (kind == EK_AGE_EXP)
        by = (double)ek_age_log_gamma(s, l, h);
    else if (kind != EK_AGE_NONE)
        by = -softplus((double)s->params[age_at(s, l, h)]);
    for (int i = 0; i < n; i++) {
        double term = 0;

        if (kind == EK_AGE_EXP)
            term = by * (double)(in->next_pos - in->pos[first + i]);
        else if (kind != EK_AGE_NONE)
            term = by * ek_log_age(in, first + i);
        p[i] = (ek_real)((double)r[i] + term);
    }
}

void ek_age_back(const ek_scorer *s, const ek_view *in, int h, const ek_real *dp, ek_real *dparams)
{
    const int kind = s->set.age, n = in->n[h];

    if (kind == EK_AGE_NONE)
        return;
    const size_t at = age_at(s, in->layer, h);
    const double sig = (double)sigmoid(s->params[at]);
    double sum = 0;

    for (int i = 0; i < n; i++) {
        const int64_t e = (int64_t)in->first[h] + i;
        sum += (double)dp[i] *
               (kind == EK_AGE_EXP ? (double)(in->next_pos - in->pos[e]) : ek_log_age(in, e));
    }
    if (kind == EK_AGE_EXP)
        dparams[at] += (ek_real)(sum * sig * (1 - sig) * (LOG_GAMMA_MAX - LOG_GAMMA_MIN));
    else
        dparams[at] -= (ek_real)(sum * sig);
}
