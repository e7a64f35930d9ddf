/* infer/save_plan.c - see save_plan.h. */
#include "infer/save_plan.h"

#include "core/safetensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What one of a cache's two sets of lists holds. */
typedef struct lists {
    const int64_t *layer_at;
    const int32_t *first, *n, *pos;
    int64_t entries;
} lists;

/* Counts and positions, positions below `end` only. */
static ek_code list_entries(const ek_dims *dims, const lists *from, int32_t end, int32_t **count,
                            int32_t **pos, ek_err *err)
{
    const int n_lists = dims->n_layers * dims->n_heads;
    int32_t *n = malloc(sizeof *n * (size_t)n_lists);
    int32_t *p = malloc(sizeof *p * (size_t)(from->entries + 1));
    int64_t at = 0;

    if (!n || !p) {
        free(n);
        free(p);
        return EK_FAIL(err, EK_ENOMEM, "no memory for a list of kept entries");
    }
    for (int i = 0; i < n_lists; i++) {
        const int32_t *of = from->pos + from->layer_at[i / dims->n_heads] + from->first[i];

        n[i] = 0;
        for (int32_t j = 0; j < from->n[i] && of[j] < end; j++, n[i]++)
            p[at++] = of[j];
    }
    free(*count);
    free(*pos);
    *count = n;
    *pos = p;
    return EK_OK;
}

static lists lists_of(const ek_cache *c)
{
    return (lists){c->layer_at, c->first, c->n, c->pos, ek_cache_entries(c)};
}

ek_code ek_saved_plan_scores(ek_saved_plan *s, const ek_cache *c, int lane, const ek_policy *p,
                             ek_err *err)
{
    const int H = c->dims.n_heads;
    const lists all = lists_of(c);
    int64_t at = 0, widest = 0;
    float *layer;
    ek_code code = EK_OK;

    if (!p || !(p->method.when.prefill_end || p->method.when.first_step || p->method.when.every))
        return EK_OK;
    EK_TRY(list_entries(&c->dims, &all, INT32_MAX, &s->score_count, &s->score_pos, err));
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
    const ek_annex *a = &c->annex;
    const lists kept = lists_of(c);
    const lists mapped = {a->layer_at, a->first, a->n, a->pos, ek_cache_mapped(c)};

    s->n_lists = c->dims.n_layers * c->dims.n_heads;
    EK_TRY(list_entries(&c->dims, &kept, s->n_ids, &s->kept_count, &s->kept_pos, err));
    if (a->maps == NULL)
        return EK_OK;
    return list_entries(&c->dims, &mapped, s->n_ids, &s->mapped_count, &s->mapped_pos, err);
}

static int64_t sum_of(const int32_t *count, int n)
{
    int64_t sum = 0;

    for (int i = 0; i < n; i++)
        sum += count[i];
    return sum;
}

/* Counts of all heads and the flat lists they cut up. */
static void add_lists(ek_st_tensor *t, int *n, const ek_dims *dims, const char *count_name,
                      const int32_t *count, const char *pos_name, const int32_t *pos, int64_t size)
{
    t[(*n)++] = (ek_st_tensor){count_name, EK_ST_I32,
                               2,          {dims->n_layers, dims->n_heads},
                               count,      4 * (size_t)dims->n_layers * (size_t)dims->n_heads};
    t[(*n)++] = (ek_st_tensor){pos_name, EK_ST_I32, 1, {size}, pos, 4 * (size_t)size};
}

ek_code ek_saved_plan_write(const ek_saved_plan *s, const char *path, const ek_dims *dims,
                            const char *method, const char *model_hash, int32_t entries,
                            ek_err *err)
{
    char asked[16], length[16];
    const int n_lists = dims->n_layers * dims->n_heads;
    const int64_t kept = sum_of(s->kept_count, n_lists);
    const int64_t scored = s->score ? sum_of(s->score_count, n_lists) : 0;
    const int64_t mapped = s->mapped_pos ? sum_of(s->mapped_count, n_lists) : 0;
    ek_st_tensor tensors[9] = {
        {"ids", EK_ST_I32, 1, {s->n_ids}, s->ids, 4 * (size_t)s->n_ids},
        {"logits", EK_ST_F32, 1, {s->n_vocab}, s->logits, 4 * (size_t)s->n_vocab}};
    int n = 2;

    const ek_st_pair meta[] = {
        {"method", method}, {"model", model_hash}, {"entries", asked}, {"n_prompt", length}};

    add_lists(tensors, &n, dims, "kept.count", s->kept_count, "kept.pos", s->kept_pos, kept);
    if (s->mapped_pos)
        add_lists(tensors, &n, dims, "mapped.count", s->mapped_count, "mapped.pos", s->mapped_pos,
                  mapped);
    if (s->score) {
        add_lists(tensors, &n, dims, "score.count", s->score_count, "score.pos", s->score_pos,
                  scored);
        tensors[n++] =
            (ek_st_tensor){"score.value", EK_ST_F32, 1, {scored}, s->score, 4 * (size_t)scored};
    }
    snprintf(asked, sizeof asked, "%d", entries);
    snprintf(length, sizeof length, "%d", s->n_ids);
    return ek_st_write(path, tensors, n, meta, (int)EK_COUNT(meta), err);
}

void ek_saved_plan_clear(ek_saved_plan *s)
{
    free(s->kept_count);
    free(s->kept_pos);
    free(s->mapped_count);
    free(s->mapped_pos);
    free(s->score_count);
    free(s->score_pos);
    free(s->score);
    *s = (ek_saved_plan){0};
}
