/* train/checkpoint.c - a trainer's state as one file. */
#include "core/file.h"
#include "core/safetensors.h"
#include "train/trainer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Of all numbers: a damaged checkpoint must not become other weights without a word. */
static ek_code hash_state(const ek_trainer *t, char out[33], ek_err *err)
{
    ek_hasher *h = ek_hasher_open();

    if (h == NULL)
        return EK_FAIL(err, EK_ENOMEM, "the hash of a checkpoint");
    ek_hasher_add(h, t->params, t->n * sizeof(float));
    ek_hasher_add(h, t->optim.m, t->n * sizeof(float));
    ek_hasher_add(h, t->optim.v, t->n * sizeof(float));
    ek_hasher_close(h, out);
    return EK_OK;
}

ek_code ek_trainer_save(const ek_trainer *t, const char *path, const char *identity, ek_err *err)
{
    const struct {
        const char *name;
        const float *data;
    } part[] = {{"params", t->params}, {"moment1", t->optim.m}, {"moment2", t->optim.v}};
    ek_st_tensor tensor[EK_COUNT(part)];
    char step[24], hash[33];
    const ek_st_pair meta[] = {
        {"format", "evictkit checkpoint"}, {"identity", identity}, {"step", step}, {"hash", hash}};

    EK_TRY(hash_state(t, hash, err));
    snprintf(step, sizeof step, "%lld", (long long)t->step);
    for (size_t i = 0; i < EK_COUNT(part); i++)
        tensor[i] = (ek_st_tensor){.name = part[i].name,
                                   .type = EK_ST_F32,
                                   .n_dims = 1,
                                   .dim = {(int64_t)t->n},
                                   .data = part[i].data,
                                   .bytes = t->n * sizeof(float)};
    return ek_st_write(path, tensor, (int)EK_COUNT(part), meta, (int)EK_COUNT(meta), err);
}

ek_code ek_trainer_load(ek_trainer *t, const char *path, const char *identity, ek_err *err)
{
    const int64_t shape[1] = {(int64_t)t->n};
    const char *format, *step, *found, *hash;
    char now[33];
    char *end;
    ek_st *st;

    EK_TRY(ek_st_open(&st, path, err));
    format = ek_st_meta(st, "format");
    found = ek_st_meta(st, "identity");
    step = ek_st_meta(st, "step");
    hash = ek_st_meta(st, "hash");
    if (format == NULL || strcmp(format, "evictkit checkpoint") != 0 || found == NULL ||
        step == NULL)
        EK_CHECK(EK_FAIL(err, EK_EINPUT, "%s: not a checkpoint of evictkit", path));
    if (strcmp(found, identity) != 0)
        EK_CHECK(EK_FAIL(err, EK_EASKED,
                         "%s: the checkpoint belongs to a run with other settings (found %.32s, "
                         "expected %.32s); train without --resume to start anew",
                         path, found, identity));
    const long long at = strtoll(step, &end, 10);
    if (*end != '\0' || at < 0 || at > t->need.steps)
        EK_CHECK(EK_FAIL(err, EK_EINPUT, "%s: step: found %.20s, expected 0 .. %lld", path, step,
                         (long long)t->need.steps));
    EK_CHECK(ek_st_read_f32(st, "params", 1, shape, t->params, err));
    EK_CHECK(ek_st_read_f32(st, "moment1", 1, shape, t->optim.m, err));
    EK_CHECK(ek_st_read_f32(st, "moment2", 1, shape, t->optim.v, err));
    EK_CHECK(hash_state(t, now, err));
    if (hash != NULL && strcmp(hash, now) != 0)
        EK_CHECK(EK_FAIL(err, EK_EINPUT,
                         "%s: damaged checkpoint: its numbers have hash %s, expected %.32s", path,
                         now, hash));
    t->step = at;
    ek_st_close(st);
    return EK_OK;
fail:
    ek_st_close(st);
    return err->code;
}
