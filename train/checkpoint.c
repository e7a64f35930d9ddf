/* train/checkpoint.c - a trainer's state as one file. */
#include "train/state.h"
#include "train/trainer.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static const char format[] = "evictkit checkpoint 2"; /* 2: everything is under its hash */

ek_code ek_trainer_save(const ek_trainer *t, const char *path, const char *identity, ek_err *err)
{
    const struct {
        const char *name;
        const float *data;
    } part[] = {{"params", t->params}, {"moment1", t->optim.m}, {"moment2", t->optim.v}};
    ek_st_tensor tensor[EK_COUNT(part)];
    char step[24], smooth[32];
    const ek_st_pair meta[] = {
        {"format", format}, {"identity", identity}, {"step", step}, {"smooth", smooth}};

    snprintf(step, sizeof step, "%lld", (long long)t->step);
    snprintf(smooth, sizeof smooth, "%.17g", t->smooth);
    for (size_t i = 0; i < EK_COUNT(part); i++)
        tensor[i] = (ek_st_tensor){.name = part[i].name,
                                   .type = EK_ST_F32,
                                   .n_dims = 1,
                                   .dim = {(int64_t)t->n},
                                   .data = part[i].data,
                                   .bytes = t->n * sizeof(float)};
    return ek_state_write(path, tensor, (int)EK_COUNT(part), meta, (int)EK_COUNT(meta), err);
}

static ek_code read_numbers(ek_trainer *t, const ek_st *st, const char *path, ek_err *err)
{
    const int64_t shape[1] = {(int64_t)t->n};
    const char *smooth = ek_st_meta(st, "smooth");
    int64_t step;
    char *end;

    EK_TRY(ek_state_int(st, path, "step", t->need.steps, &step, err));
    const double loss = strtod(smooth, &end);
    if (*end != '\0' || end == smooth || (step > 0 && !isfinite(loss)))
        return EK_FAIL(err, EK_EINPUT, "%s: smooth: found %.20s, expected a finite loss", path,
                       smooth);
    EK_TRY(ek_st_read_f32(st, "params", 1, shape, t->params, err));
    EK_TRY(ek_st_read_f32(st, "moment1", 1, shape, t->optim.m, err));
    EK_TRY(ek_st_read_f32(st, "moment2", 1, shape, t->optim.v, err));
    t->step = step;
    t->smooth = loss;
    return EK_OK;
}

ek_code ek_trainer_load(ek_trainer *t, const char *path, const char *identity, ek_err *err)
{
    const ek_st_pair meta[] = {
        {"format", format}, {"identity", identity}, {"step", NULL}, {"smooth", NULL}};
    ek_st *st;

    EK_TRY(ek_state_open(&st, path, meta, (int)EK_COUNT(meta), err));
    const ek_code code = read_numbers(t, st, path, err);
    ek_st_close(st);
    return code;
}
