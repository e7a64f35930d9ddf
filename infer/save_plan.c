/* infer/save_plan.c - see save_plan.h. */
#include "infer/save_plan.h"

#include "core/safetensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Counts and positions of what c holds, positions below `end` only. */
static ek_code list_entries(const ek_cache *c, int32_t end, int32_t **count, int32_t **pos,
                            ek_err *err)
{
    const int n_lists = c->dims.n_layers * c->dims.n_heads;
    int32_t *n = malloc(sizeof *n * (size_t)n_lists);
    int32_t *p = malloc(sizeof *p * (size_t)(ek_cache_entries(c) + 1));
    int64_t at = 0;

    if (!n || !p) {
        free(n);
        free(p);
        return EK_FAIL(err, EK_ENOMEM, "no memory for a list of kept entries");
    }
    for (int i = 0; i < n_lists; i++) {
        const int32_t *from = c->pos + c->layer_at[i / c->dims.n_heads] + c->first[i];

        n[i] = 0;
        for (int32_t j = 0; j < c->n[i] && from[j] < end; j++, n[i]++)
            p[at++] = from[j];
    }
    free(*count);
    free(*pos);
    *count = n;
    *pos = p;
    return EK_OK;
}

ek_code ek_saved_plan_scores(ek_saved_plan *s, const ek_cache *c, int lane, const ek_policy *p,
                             ek_err *err)
{
    const int H = c->dims.n_heads;
    int64_t at = 0, widest = 0;
    float *layer;
    ek_code code = EK_OK;

    if (!p || !(p->method.when.prefill_end || p->method.when.first_step || p->method.when.every))
        return EK_OK;
    EK_TRY(list_entries(c, INT32_MAX, &s->score_count, &s->score_pos, err));
    for (int l = 0; l < c->dims.n_layers; l++)
        if (c->layer_at[l + 1] - c->layer_at[l] > widest)
            widest = c->layer_at[l + 1] - c->layer_at[l];
    layer = malloc(sizeof *layer * (size_t)(widest + 1));
    free(s->score);
    s->score = malloc(sizeof *s->score * (size_t)(ek_cache_entries(c) + 1));
    if (!layer || !s->score) {
        free(layer);
        return EK_FAIL(err, EK_ENOMEM, "no memory for scores");
    }
    for (int l = 0; l < c->dims.n_layers && code == EK_OK; l++) {
        code = ek_policy_scores(p, c, lane, l, layer, err);
        for (int h = 0; h < H && code == EK_OK; h++) {
            const int i = l * H + h;

            memcpy(s->score + at, layer + c->first[i], sizeof *layer * (size_t)c->n[i]);
            at += c->n[i];
        }
    }
    free(layer);
    return code;
}

ek_code ek_saved_plan_kept(ek_saved_plan *s, const ek_cache *c, ek_err *err)
{
    s->n_lists = c->dims.n_layers * c->dims.n_heads;
    return list_entries(c, s->n_ids, &s->kept_count, &s->kept_pos, err);
}

static int64_t sum_of(const int32_t *count, int n)
{
    int64_t sum = 0;

    for (int i = 0; i < n; i++)
        sum += count[i];
    return sum;
}

ek_code ek_saved_plan_write(const ek_saved_plan *s, const char *path, const ek_dims *dims,
                            const char *method, const char *model_hash, int32_t entries,
                            ek_err *err)
{
    char asked[16], length[16];
    const int64_t lists = (int64_t)dims->n_layers * dims->n_heads;
    const int64_t kept = sum_of(s->kept_count, (int)lists);
    const int64_t scored = s->score ? sum_of(s->score_count, (int)lists) : 0;
    const ek_st_tensor tensors[] = {
        {"ids", EK_ST_I32, 1, {s->n_ids}, s->ids, 4 * (size_t)s->n_ids},
        {"logits", EK_ST_F32, 1, {s->n_vocab}, s->logits, 4 * (size_t)s->n_vocab},
        {"kept.count",
         EK_ST_I32,
         2,
         {dims->n_layers, dims->n_heads},
         s->kept_count,
         4 * (size_t)lists},
        {"kept.pos", EK_ST_I32, 1, {kept}, s->kept_pos, 4 * (size_t)kept},
        {"score.count",
         EK_ST_I32,
         2,
         {dims->n_layers, dims->n_heads},
         s->score_count,
         4 * (size_t)lists},
        {"score.pos", EK_ST_I32, 1, {scored}, s->score_pos, 4 * (size_t)scored},
        {"score.value", EK_ST_F32, 1, {scored}, s->score, 4 * (size_t)scored}};
    const ek_st_pair meta[] = {
        {"method", method}, {"model", model_hash}, {"entries", asked}, {"n_prompt", length}};
    const int n = (int)EK_COUNT(tensors) - (s->score ? 0 : 3);

    snprintf(asked, sizeof asked, "%d", entries);
    snprintf(length, sizeof length, "%d", s->n_ids);
    return ek_st_write(path, tensors, n, meta, (int)EK_COUNT(meta), err);
}

void ek_saved_plan_clear(ek_saved_plan *s)
{
    free(s->kept_count);
    free(s->kept_pos);
    free(s->score_count);
    free(s->score_pos);
    free(s->score);
    *s = (ek_saved_plan){0};
}
