/* train/set.c - the keys of a training configuration, and their defaults. */
#include "scorers/carried.h"
#include "scorers/scorer.h"
#include "train/session.h"
#include "train/trace.h"

static const char *const kinds[] = {"mlp", "linear", "recurrent", NULL}; /* ek_learned */
static const char *const inputs[] = {"raw", "rms", NULL};
static const char *const norms[] = {"none", "rms", NULL};
const char *const ek_train_methods[] = {"foresight", "kvpop", "vector", NULL};

static const ek_field scorer_fields[] = {
    EK_ENUM(ek_train_scorer, kind, kinds, "the network"),
    EK_INT(ek_train_scorer, hidden, 0, 65536, "width; 0: the recurrent scorer's size"),
    EK_ENUM(ek_train_scorer, age, ek_age_names, "how scores fade with age"),
    EK_ENUM(ek_train_scorer, input, inputs, "keys and values as they are, or divided by their rms"),
    EK_INT(ek_train_scorer, delay, -1, 65536,
           "tokens a memory reads on before it scores one; -1: recent"),
    EK_ENUM(ek_train_scorer, norm, norms, "recurrent: what was read, or that over its rms"),
    EK_BOOL(ek_train_scorer, skip, "recurrent: add a linear score of the entry itself"),
    EK_ENUM(ek_train_scorer, carried, ek_carried_names,
            "columns of past attention among the inputs"),
    EK_FIELD_END};

const ek_field ek_train_fields[] = {
    EK_STRING(ek_train_set, model, "GGUF file of the frozen model"),
    EK_STRING(ek_train_set, out, "folder for config.json and model.safetensors"),
    EK_STRING(ek_train_set, results, "database for the log of steps"),
    EK_INT(ek_train_set, seed, 0, 9007199254740992.0, "of data, start values and order"),
    EK_ENUM(ek_train_set, method, ek_train_methods, "the method the scorer is for; vector: maps"),
    EK_INT(ek_train_set, sinks, 0, 4096, "first tokens that always stay"),
    EK_INT(ek_train_set, recent, 1, 65536, "newest tokens that always stay"),
    EK_INT(ek_train_set, keep, 1, 1 << 20,
           "older tokens that stay: what ranking losses and recall are of"),
    EK_MAP(ek_train_set, scorer, scorer_fields, "the scorer"),
    EK_MAP(ek_train_set, target, ek_target_fields, "what is to be foreseen"),
    EK_MAP(ek_train_set, loss, ek_loss_fields, "what is minimised"),
    EK_MAP(ek_train_set, data, ek_data_fields, "training text"),
    EK_MAP(ek_train_set, vector, ek_vector_fields, "method vector: what is fitted"),
    EK_ENUM(ek_train_set, trace, ek_trace_names, "where records are kept"),
    EK_STRING(ek_train_set, trace_file, "trace: disk: the file; default OUT/records.trace"),
    EK_INT(ek_train_set, steps, 1, 100000000, "optimiser steps"),
    EK_INT(ek_train_set, batch, 1, 1024, "sequences per step"),
    EK_MAP(ek_train_set, optimiser, ek_optim_fields, "AdamW"),
    EK_INT(ek_train_set, save_every, 1, 100000000, "steps (vector: windows) between checkpoints"),
    EK_INT(ek_train_set, valid_every, 1, 100000000, "steps between looks at held-out sequences"),
    EK_FIELD_END};

void ek_train_set_defaults(ek_train_set *s)
{
    *s = (ek_train_set){.seed = 1,
                        .sinks = 4,
                        .recent = 64,
                        .keep = 256,
                        .scorer = {.age = EK_AGE_INPUT, .delay = -1},
                        .target = ek_target_defaults,
                        .loss = ek_loss_defaults,
                        .data = ek_data_defaults,
                        .vector = ek_vector_defaults,
                        .trace = EK_TRACE_DISK,
                        .steps = 400,
                        .batch = 4,
                        .optimiser = ek_optim_defaults,
                        .save_every = 100,
                        .valid_every = 50};
}
