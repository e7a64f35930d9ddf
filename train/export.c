/* train/export.c - see the header. */
#include "train/export.h"

#include "infer/folder.h"
#include "infer/weights.h"
#include "scorers/carried.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static ek_code refuse_nan(const ek_scorer *s, const ek_param *p, int n, ek_err *err)
{
    for (int i = 0; i < n; i++)
        for (int l = 0; l < s->dims.n_layers; l++)
            for (int h = 0; h < s->dims.n_heads; h++) {
                const float *x = s->params + ek_params_at(s, i, l, h);

                for (int j = 0; j < p[i].rows * p[i].cols; j++)
                    if (!isfinite(x[j]))
                        return EK_FAIL(err, EK_ENAN,
                                       "%s, layer %d, head %d: a parameter is not finite; nothing "
                                       "was written",
                                       p[i].name, l, h);
            }
    return EK_OK;
}

static ek_code put_params(ek_writer *to, const char *dir, const ek_scorer_export *x, char hash[33],
                          ek_err *err)
{
    const ek_scorer *s = x->scorer;
    ek_param p[EK_MAX_PARAMS];
    ek_st_tensor t[EK_MAX_PARAMS];
    const int n = s->cls->learner->describe(s, p);
    const ek_st_pair meta[] = {{"format", "evictkit scorer"}, {"base_model", x->model}};

    EK_TRY(refuse_nan(s, p, n, err));
    for (int i = 0; i < n; i++) {
        const int64_t dim[4] = {s->dims.n_layers, s->dims.n_heads, p[i].rows, p[i].cols};

        t[i] = (ek_st_tensor){.name = p[i].name,
                              .type = EK_ST_F32,
                              .n_dims = 4,
                              .data = s->params + ek_params_at(s, i, 0, 0),
                              .bytes = sizeof(float)};
        for (int c = 0; c < 4; c++) {
            t[i].dim[c] = dim[c];
            t[i].bytes *= (size_t)dim[c];
        }
    }
    return ek_folder_put(to, dir, t, n, meta, (int)EK_COUNT(meta), hash, err);
}

static void add_string(ek_text *t, const char *key, const char *value)
{
    ek_text_add(t, "  \"%s\": ", key);
    ek_text_json(t, value, strlen(value));
    ek_text_add(t, ",\n");
}

static void config_text(ek_text *t, const ek_scorer_export *x, const char *hash)
{
    const ek_scorer *s = x->scorer;
    char scoring[33];

    ek_weights_scoring(scoring, x->method, s);
    ek_text_add(t, "{\n");
    add_string(t, "format", "evictkit scorer");
    ek_text_add(t, "  \"version\": 1,\n");
    add_string(t, "method", x->method);
    add_string(t, "scorer", s->cls->name);
    ek_text_add(t, "  \"hidden\": %lld,\n", (long long)ek_weights_width(s));
    add_string(t, "age", ek_age_names[s->set.age]);
    add_string(t, "input", s->set.rms ? "rms" : "raw");
    add_string(t, "carried", ek_carried_names[s->set.carried]);
    ek_text_add(t, "  \"absolute\": %d,\n", s->set.absolute);
    ek_text_add(t, "  \"delay\": %lld,\n  \"norm\": %d,\n  \"skip\": %d,\n",
                (long long)s->set.delay, s->set.norm, s->set.skip);
    ek_text_add(t, "  \"sinks\": %lld,\n  \"recent\": %lld,\n", (long long)s->set.sinks,
                (long long)s->set.recent);
    ek_text_add(
        t, "  \"dims\": {\"n_layers\": %d, \"n_heads\": %d, \"group\": %d, \"head_dim\": %d},\n",
        s->dims.n_layers, s->dims.n_heads, s->dims.group, s->dims.head_dim);
    add_string(t, "model", x->model);
    add_string(t, "tokenizer", x->tokenizer);
    add_string(t, "data", x->data);
    add_string(t, "target", x->target);
    add_string(t, "loss", x->loss);
    ek_text_add(t, "  \"steps\": %lld,\n  \"parameters\": %zu,\n", (long long)x->steps,
                ek_params_size(s));
    if (isfinite(x->loss_last))
        ek_text_add(t, "  \"final_loss\": %.9g,\n", x->loss_last);
    add_string(t, "settings", x->settings);
    add_string(t, "scoring", scoring);
    ek_text_add(t, "  \"weights\": \"%s\"\n}\n", hash);
}

ek_code ek_scorer_write(const char *dir, const ek_scorer_export *x, ek_err *err)
{
    ek_writer weights = {0};
    ek_text t = {0};
    char hash[33];

    err->code = EK_OK;
    EK_CHECK(put_params(&weights, dir, x, hash, err));
    config_text(&t, x, hash);
    EK_CHECK(ek_folder_commit(&weights, dir, &t, err));
fail:
    ek_writer_close(&weights);
    ek_text_clear(&t);
    return err->code;
}
