/* train/loop.c - the steps of runs that share a reading: log, look, save, export. */
#include "train/cohort.h"

#include "core/progress.h"
#include "train/export.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { SHOWN = 8 }; /* runs whose loss the progress line has room for */

const char *ek_variant_name(const ek_cohort *g, const ek_variant *v)
{
    const char *slash = strrchr(v->set->out, '/');

    return g->n == 1 ? "" : slash != NULL && slash[1] ? slash + 1 : v->set->out;
}

const char *ek_variant_gap(const ek_cohort *g)
{
    return g->n == 1 ? "" : "  ";
}

static ek_code look(ek_cohort *g, ek_variant *v, ek_err *err)
{
    const double start = ek_now();

    if (g->reading.n_valid == 0)
        return EK_OK;
    EK_TRY(ek_trainer_valid(v->trainer, &v->valid, err));
    return ek_log_step(&v->log, v->trainer->step, "valid", &v->valid, ek_now() - start, err);
}

static ek_code save(ek_variant *v, ek_err *err)
{
    /* A resumed run goes on behind the checkpoint: the steps up to it must be stored by then. */
    EK_TRY(ek_log_flush(&v->log, err));
    return ek_trainer_save(v->trainer, v->checkpoint, v->identity, err);
}

static ek_code export_all(ek_cohort *g, ek_variant *v, ek_err *err)
{
    const ek_reading *s = &g->reading;
    const ek_scorer_export x = {.scorer = &v->trainer->scorer,
                                .method = ek_train_methods[v->set->method],
                                .loss = ek_losses[v->set->loss.kind].name,
                                .model = ek_model_hash(s->model),
                                .tokenizer = ek_tokenizer_hash(s->tok),
                                .data = ek_data_hash(s->data),
                                .target = v->target_hash,
                                .settings = v->text,
                                .steps = v->trainer->step,
                                .loss_last = v->trainer->smooth};

    EK_TRY(ek_scorer_write(v->set->out, &x, err));
    EK_TRY(ek_log_file(&v->log, v->weights_json, err));
    EK_TRY(ek_log_file(&v->log, v->weights_bin, err));
    unlink(v->checkpoint); /* its run is done; a leftover would only mislead */
    return EK_OK;
}

/* What a loss counts as right: the target's best quarter found, or decisions. */
static const char *right_of(const ek_variant *v)
{
    return ek_losses[v->set->loss.kind].whole ? "boundary" : "best quarter";
}

/* The numbers of a run: those held out, if there are any yet. */
static void describe(const ek_variant *v, ek_text *out)
{
    const int held = isfinite(v->valid.loss);
    const ek_train_stats *x = held ? &v->valid : &v->last;

    ek_text_add(out, "loss %.4f", v->trainer->smooth);
    if (held)
        ek_text_add(out, "  held out %.4f", x->loss);
    ek_text_add(out, "  %s %.3f", right_of(v), x->acc);
    if (isfinite(x->recall))
        ek_text_add(out, "  recall %.3f", x->recall);
}

static void say_end(ek_cohort *g, const ek_variant *v)
{
    const int64_t n = v->trainer->step - v->begun;
    const int decides = isfinite(v->valid.boundary) && !ek_losses[v->set->loss.kind].whole;
    char recall[96] = "", boundary[32] = "";

    if (decides)
        snprintf(boundary, sizeof boundary, ", boundary %.3f", v->valid.boundary);
    if (isfinite(v->valid.recall))
        snprintf(recall, sizeof recall, ", recall of the %lld best %.3f (chance %.3f)",
                 (long long)v->set->keep, v->valid.recall, v->valid.chance);
    if (isfinite(v->valid.loss))
        ek_train_say(g->options, "held out    %s%sloss %.4f, %s %.3f%s%s", ek_variant_name(g, v),
                     ek_variant_gap(g), v->valid.loss, right_of(v), v->valid.acc, boundary, recall);
    ek_train_say(g->options, "trained     %s%s%lld steps in %.0f s (%.2f s per step), loss %.4f",
                 ek_variant_name(g, v), ek_variant_gap(g), (long long)n, v->seconds,
                 v->seconds / (double)(n > 0 ? n : 1), v->trainer->smooth);
    ek_train_say(g->options, "weights     %s", v->set->out);
}

/* The run is over: EK_OK, or why it ended. */
static ek_code end(ek_variant *v, ek_code code, ek_err *err)
{
    v->open = 0;
    return ek_log_close(&v->log, code, err);
}

/* One step of one run, and what is due after it.  A loss that is no number ends this run alone. */
static ek_code step_one(ek_cohort *g, ek_variant *v, int stop, ek_err *err)
{
    const ek_train_set *set = v->set;
    ek_trainer *t = v->trainer;
    const double start = ek_now(), read = g->reading.seconds;
    ek_code code = ek_trainer_step(t, &v->last, err);
    /* Of several runs the first to ask would pay for the reading of all. */
    const double took = ek_now() - start - (g->n > 1 ? g->reading.seconds - read : 0);

    if (code == EK_ENAN && g->n > 1) {
        v->failed = *err;
        ek_train_say(g->options, "failed      %s: %s", ek_variant_name(g, v), err->msg);
        ek_err ended = *err;
        if (end(v, EK_ENAN, &ended) != EK_ENAN)
            v->failed = ended;
        return EK_OK;
    }
    EK_TRY(code);
    v->seconds += took;
    EK_TRY(ek_log_step(&v->log, t->step, NULL, &v->last, took, err));
    if (t->step % set->valid_every == 0 || t->step == set->steps)
        EK_TRY(look(g, v, err));
    if (t->step < set->steps)
        return t->step % set->save_every == 0 || stop ? save(v, err) : EK_OK;
    EK_TRY(export_all(g, v, err));
    say_end(g, v);
    return end(v, EK_OK, err);
}

/* The next step of the run that is least far; -1: none has one. */
static int64_t next_step(const ek_cohort *g)
{
    int64_t next = -1;

    for (int i = 0; i < g->n; i++)
        if (g->v[i].open && (next < 0 || g->v[i].trainer->step + 1 < next))
            next = g->v[i].trainer->step + 1;
    return next;
}

static int64_t most_steps(const ek_cohort *g)
{
    int64_t most = 1;

    for (int i = 0; i < g->n; i++)
        most = g->v[i].set->steps > most ? g->v[i].set->steps : most;
    return most;
}

void ek_cohort_losses(const ek_cohort *g, ek_text *out)
{
    int held = 0;

    for (int i = 0; i < g->n; i++)
        held = held || isfinite(g->v[i].valid.loss);
    ek_text_add(out, "%s", held ? "held out" : "loss");
    for (int i = 0; i < g->n && i < SHOWN; i++) {
        const ek_variant *v = &g->v[i];
        const double loss = held ? v->valid.loss : v->trainer != NULL ? v->trainer->smooth : NAN;

        if (isfinite(loss))
            ek_text_add(out, " %.3f", loss);
        else
            ek_text_add(out, " -");
    }
}

static void show(const ek_cohort *g, ek_progress *p, int64_t step)
{
    ek_text note = {0}; /* a loss that runs away has any number of digits */

    if (g->n == 1)
        describe(&g->v[0], &note);
    else
        ek_cohort_losses(g, &note);
    ek_progress_at(p, step, note.failed ? NULL : note.data);
    ek_text_clear(&note);
}

ek_code ek_cohort_train(ek_cohort *g, ek_err *err)
{
    int64_t step, taken = 0;
    ek_progress p;
    ek_code code = EK_OK;

    ek_progress_open(&p, "train", "steps", most_steps(g));
    p.quiet = g->options->quiet;
    p.before = next_step(g) > 0 ? next_step(g) - 1 : 0;
    while (code == EK_OK && (step = next_step(g)) > 0) {
        const int stop =
            ek_stop_asked() || (g->options->stop_after > 0 && taken + 1 >= g->options->stop_after);

        /* Runs that were resumed further on wait for the others. */
        for (int i = 0; i < g->n && code == EK_OK; i++)
            if (g->v[i].open && g->v[i].trainer->step + 1 == step)
                code = step_one(g, &g->v[i], stop, err);
        ek_reading_next(&g->reading);
        show(g, &p, step);
        taken++;
        if (code == EK_OK && stop && next_step(g) > 0)
            code = EK_FAIL(err, EK_ESTOPPED,
                           "stopped after step %lld of %lld; --resume goes on from there",
                           (long long)step, (long long)most_steps(g));
    }
    ek_progress_close(&p);
    return code;
}
