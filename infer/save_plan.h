/* infer/save_plan.h - what a policy kept of a prompt, as a .safetensors file.
 *
 * Heads are ragged, so lists are flat, with a count per (layer, head), layer by layer:
 *     ids           I32 (tokens)             the prompt
 *     logits        F32 (n_vocab)            of the prompt's last token, full cache
 *     kept.count    I32 (n_layers, n_heads)  entries kept in each head
 *     kept.pos      I32 (sum of kept.count)  their positions, ascending within a head
 *     mapped.count  I32 (n_layers, n_heads)  entries that keep their key and lose their value
 *     mapped.pos    I32 (sum of mapped.count)
 *     score.count   I32 (n_layers, n_heads)  entries that were ranked
 *     score.pos     I32 (sum of score.count)
 *     score.value   F32 (sum of score.count) higher stays
 * The scores are absent where a method ranks nothing (full), mapped ones without `rest: vector`.
 * Metadata: method, model (hash), entries (asked per head), n_prompt. */
#ifndef EK_INFER_SAVE_PLAN_H
#define EK_INFER_SAVE_PLAN_H

#include "infer/engine.h"

typedef struct ek_saved_plan {
    const int32_t *ids; /* (n_ids) borrowed, as logits (n_vocab) */
    int n_ids, n_vocab;
    const float *logits;
    int n_lists; /* n_layers * n_heads */
    int32_t *kept_count, *kept_pos, *score_count, *score_pos;
    int32_t *mapped_count, *mapped_pos; /* NULL: none */
    float *score;                       /* owned, as the lists; NULL: no scores */
} ek_saved_plan;

/* Scores of all entries c holds, before they are cut.  EK_OK without scores if the policy never
 * plans. */
ek_code ek_saved_plan_scores(ek_saved_plan *s, const ek_cache *c, int lane, const ek_policy *p,
                             ek_err *err);
/* Positions of all entries c holds, after the cut; those below n_ids only. */
ek_code ek_saved_plan_kept(ek_saved_plan *s, const ek_cache *c, ek_err *err);
ek_code ek_saved_plan_write(const ek_saved_plan *s, const char *path, const ek_dims *dims,
                            const char *method, const char *model_hash, int32_t entries,
                            ek_err *err);
void ek_saved_plan_clear(ek_saved_plan *s);

#endif
