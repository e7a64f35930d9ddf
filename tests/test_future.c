/* tests/test_future.c - the true future attention against single queries, one by one. */
#include "tests/check_model.h"

#include "infer/engine.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <cmocka.h>

enum { PROMPT = 130, STEPS = 40 };

static ek_err err;

static void ok(ek_code code)
{
    if (code != EK_OK)
        fail_msg("%s", err.msg);
}

typedef struct adding {
    double *sum; /* (entries, group) */
    int from, to, at;
} adding;

/* Probabilities of one query at a time, summed in double. */
static ek_code add_prob(void *ctx, const ek_tap_layer *t, ek_err *e)
{
    adding *a = ctx;
    const ek_view *v = &t->row[0].view;
    const ek_cache *c = t->feed[0].cache;

    (void)e;
    if (a->at < a->from || a->at > a->to)
        return EK_OK;
    for (int h = 0; h < v->n_heads; h++)
        for (int32_t i = v->first[h]; i < v->first[h] + PROMPT; i++)
            for (int g = 0; g < v->group; g++)
                a->sum[((size_t)c->layer_at[t->layer] + i) * v->group + g] +=
                    (double)t->row[0].prob[(size_t)i * v->group + g];
    return EK_OK;
}

static void the_future_is_the_attention_of_later_queries(void **state)
{
    ek_future f = {.n_sets = 2, .first = {0, 5}, .last = {1000, 11}};
    ek_check_model m;
    ek_engine *e;
    int32_t tok[PROMPT + STEPS];
    ek_cache c, before;
    size_t n;
    double *plain;

    (void)state;
    ek_check_model_open(&m, NULL, EK_BF16, 0);
    ok(ek_engine_open(&e, m.model, m.dev, &err));
    ek_check_tokens(tok, PROMPT + STEPS, m.dims->n_vocab, 42);
    ek_check_cache_open(&c, &m, PROMPT + STEPS, NULL, 0);
    ek_check_cache_open(&before, &m, PROMPT + STEPS, NULL, 0);
    ok(ek_engine_read(e, &c, tok, PROMPT, PROMPT, NULL, NULL, &err));
    ok(ek_engine_read(e, &before, tok, PROMPT, PROMPT, NULL, NULL, &err));
    n = (size_t)c.layer_at[c.dims.n_layers] * (size_t)c.dims.group;
    f.sum[0] = malloc(n * sizeof(float));
    f.sum[1] = malloc(n * sizeof(float));
    ok(ek_engine_future(e, &c, tok + PROMPT, STEPS, &f, &err));
    assert_int_equal(c.next_pos, PROMPT);
    assert_memory_equal(c.n, before.n, sizeof *c.n * (size_t)(c.dims.n_layers * c.dims.n_heads));
    for (int s = 0; s < 2; s++) {
        adding a = {.from = f.first[s], .to = f.last[s]};
        const ek_tap tap = {add_prob, &a};
        double worst = 0.0, total = 0.0;

        plain = calloc(n, sizeof *plain);
        a.sum = plain;
        for (int i = 0; i < STEPS; i++) {
            ek_feed one = {.cache = &c, .tok = tok + PROMPT + i, .n = 1};

            a.at = i;
            one.prob = malloc(n * sizeof(float));
            ok(ek_model_step(m.model, &one, 1, &tap, &err));
            free(one.prob);
        }
        ek_cache_rewind(&c, STEPS);
        for (size_t i = 0; i < n; i++) {
            worst = fmax(worst, fabs(plain[i] - (double)f.sum[s][i]));
            total += plain[i];
        }
        assert_true(total > 1.0);
        assert_true(worst < 0.02); /* bf16 of q and k, chunk against single queries */
        assert_true(total / (s ? 7 : STEPS) > 1.0);
        free(plain);
    }
    double apart = 0.0; /* negative control: other queries, other sums */

    for (size_t i = 0; i < n; i++)
        apart = fmax(apart, fabs((double)f.sum[0][i] - (double)f.sum[1][i]));
    assert_true(apart > 0.02);
    for (int i = 0; i < 2; i++)
        free(f.sum[i]);
    ek_cache_close(&c);
    ek_cache_close(&before);
    ek_engine_close(e);
    ek_check_model_close(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_future_is_the_attention_of_later_queries),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
