/* train/checkpoint.c - a trainer's state as one file. */
#include "core/file.h"
#include "core/safetensors.h"
#include "train/trainer.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Of all numbers: a damaged checkpoint must not become another run without a word. */
static ek_code hash_state(const ek_trainer *t, char out[33], ek_err *err)
{
    ek_hasher *h = ek_hasher_open();

    if (h == NULL)
        return EK_FAIL(err, EK_ENOMEM, "the hash of a checkpoint");
    ek_hasher_add(h, &t->step, sizeof t->step);
    ek_hasher_add(h, &t->smooth, sizeof t->smooth);
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
    char step[24], smooth[32], hash[33];
    const ek_st_pair meta[] = {{"format", "evictkit checkpoint"},
                               {"identity", identity},
                               {"step", step},
                               {"smooth", smooth},
                               {"hash", hash}};

    EK_TRY(hash_state(t, hash, err));
    snprintf(step, sizeof step, "%lld", (long long)t->step);
    snprintf(smooth, sizeof smooth, "%.17g", t->smooth);
    for (size_t i = 0; i < EK_COUNT(part); i++)
        tensor[i] = (ek_st_tensor){.name = part[i].name,
                                   .type = EK_ST_F32,
                                   .n_dims = 1,
                                   .dim = {(int64_t)t->n},
                                   .data = part[i].data,
                                   .bytes = t->n * sizeof(float)};
    return ek_st_write(path, tensor, (int)EK_COUNT(part), meta, (int)EK_COUNT(meta), err);
}

/* Step and smoothed loss.  A checkpoint without the latter was written by an older program. */
static ek_code read_meta(ek_trainer *t, const ek_st *st, const char *path, ek_err *err)
{
    const char *step = ek_st_meta(st, "step"), *smooth = ek_st_meta(st, "smooth");
    char *end, *smooth_end;

    if (smooth == NULL || ek_st_meta(st, "hash") == NULL)
        return EK_FAIL(err, EK_EINPUT,
                       "%s: a checkpoint of an older evictkit, without %s; --restart begins again",
                       path, smooth == NULL ? "its smoothed loss" : "a hash");
    const long long at = strtoll(step, &end, 10);
    if (*end != '\0' || end == step || at < 0 || at > t->need.steps)
        return EK_FAIL(err, EK_EINPUT, "%s: step: found %.20s, expected 0 .. %lld", path, step,
                       (long long)t->need.steps);
    const double loss = strtod(smooth, &smooth_end);
    if (*smooth_end != '\0' || smooth_end == smooth || (at > 0 && !isfinite(loss)))
        return EK_FAIL(err, EK_EINPUT, "%s: smooth: found %.20s, expected a finite loss", path,
                       smooth);
    t->step = at;
    t->smooth = loss;
    return EK_OK;
}

ek_code ek_trainer_load(ek_trainer *t, const char *path, const char *identity, ek_err *err)
{
    const int64_t shape[1] = {(int64_t)t->n};
    const char *format, *found, *hash;
    char now[33];
    ek_st *st;

    EK_TRY(ek_st_open(&st, path, err));
    format = ek_st_meta(st, "format");
    found = ek_st_meta(st, "identity");
    hash = ek_st_meta(st, "hash");
    if (format == NULL || strcmp(format, "evictkit checkpoint") != 0 || found == NULL ||
        ek_st_meta(st, "step") == NULL)
        EK_CHECK(EK_FAIL(err, EK_EINPUT, "%s: not a checkpoint of evictkit", path));
    if (strcmp(found, identity) != 0)
        EK_CHECK(EK_FAIL(err, EK_EASKED,
                         "%s: the checkpoint belongs to a run with other settings (found %.32s, "
                         "expected %.32s); train without --resume to start anew",
                         path, found, identity));
    EK_CHECK(read_meta(t, st, path, err));
    EK_CHECK(ek_st_read_f32(st, "params", 1, shape, t->params, err));
    EK_CHECK(ek_st_read_f32(st, "moment1", 1, shape, t->optim.m, err));
    EK_CHECK(ek_st_read_f32(st, "moment2", 1, shape, t->optim.v, err));
    EK_CHECK(hash_state(t, now, err));
    if (strcmp(hash, now) != 0)
        EK_CHECK(EK_FAIL(err, EK_EINPUT,
                         "%s: damaged checkpoint: its numbers have hash %s, expected %.32s", path,
                         now, hash));
    ek_st_close(st);
    return EK_OK;
fail:
    ek_st_close(st);
    return err->code;
}
