/* tests/check_given.c - see check_given.h. */
#include "tests/check_given.h"

#include "scorers/age.h"

#include <string.h>

float ek_given_score[4096];
float ek_given_mass[32];

static ek_code given_score(const ek_scorer *s, const ek_view *in, float *out, ek_err *err)
{
    (void)s;
    (void)err;
    for (int h = 0; h < in->n_heads; h++)
        for (int32_t j = 0; j < in->n[h]; j++)
            out[in->first[h] + j] =
                ek_given_score[h * 512 + in->pos[in->first[h] + j] + 128 * in->layer];
    return EK_OK;
}

/* One tensor: log_mass. */
static const ek_learner given_learner = {.describe = ek_age_describe};
static const ek_scorer_class given_class = {
    .name = "given", .source = EK_FROM_ENTRIES, .learner = &given_learner, .score = given_score};

void ek_given_open(ek_given *g, int n_layers, int n_heads, int n)
{
    memset(g, 0, sizeof *g);
    ek_toy_open(&g->t, n_layers, n_heads, 1, 4, EK_F32);
    ek_toy_cache(&g->c, &g->t, n + 8, 1, NULL);
    ek_toy_feed(&g->t, &g->c, n, n, 0);
    ek_toy_plan(&g->plan, &g->c);
    g->scorer = (ek_scorer){.cls = &given_class,
                            .dev = g->t.dev,
                            .dims = {.n_layers = 4, .n_heads = 8},
                            .params = ek_given_mass};
    g->p.method = (ek_method){.name = "given",
                              .measure = {.signal = &given_class,
                                          .scorer = &g->scorer,
                                          .carry = {.kind = EK_CARRY_LAST, .every = 1}},
                              .floor = EK_SHARE_FLOOR,
                              .when = {.prefill_end = 1, .every = 1}};
    memset(ek_given_score, 0, sizeof ek_given_score);
    memset(ek_given_mass, 0, sizeof ek_given_mass);
}

ek_code ek_given_plan(ek_given *g, int32_t entries, ek_err *err)
{
    return ek_policy_plan(&g->p, &g->c, -1, entries, &g->scratch, &g->plan, err);
}

void ek_given_close(ek_given *g)
{
    ek_policy_scratch_close(&g->scratch);
    ek_plan_close(&g->plan);
    ek_cache_close(&g->c);
    ek_toy_close(&g->t);
}

int ek_ranked_better(const void *a, const void *b)
{
    const ek_ranked *p = a, *q = b;

    if (p->x > q->x || p->x < q->x)
        return p->x > q->x ? -1 : 1;
    if (p->range != q->range)
        return p->range - q->range;
    return q->e - p->e;
}
