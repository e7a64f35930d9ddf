/* tests/test_evaluate_laws.c - one process: a sample leaves no trace in the next, and what stays
 * of a context does not depend on the question that follows. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "core/file.h"
#include "infer/evaluate.h"
#include "tests/check_program.h"

enum { METHODS = 32, CONTEXT = 420 };

static ek_world world;
static ek_device *dev;
static ek_eval ev;
static ek_eval_config config;
static ek_err err;
static char *context; /* (CONTEXT bytes) of the world's text */

static void ok(ek_code code)
{
    if (code != EK_OK)
        fail_msg("%s", err.msg);
}

/* ---- the same sample again ---- */

static char any[] = "", id[] = "sample", prefix[] = "The key is", asks[] = "\n\nWhich one was it?",
            answer[] = "12345", *answers[] = {answer};

static ek_sample forced(void)
{
    return (ek_sample){.kind = EK_SAMPLE_FORCED,
                       .doc_id = id,
                       .cluster = id,
                       .context = context,
                       .question = any,
                       .answer_prefix = any,
                       .prompt_tokens = 200,
                       .forced_tokens = 30,
                       .depth = -1};
}

static ek_sample answered(void)
{
    return (ek_sample){.kind = EK_SAMPLE_ANSWER,
                       .doc_id = id,
                       .cluster = id,
                       .context = context,
                       .question = asks,
                       .answer_prefix = prefix,
                       .references = answers,
                       .n_references = 1,
                       .chat = true,
                       .max_new_tokens = 8,
                       .depth = 50};
}

static int same_number(double a, double b)
{
    return memcmp(&a, &b, sizeof a) == 0 || (isnan(a) && isnan(b));
}

static int same_record(const ek_record *a, const ek_record *b)
{
    const ek_sample_row *x = &a->row, *y = &b->row;
    int same = x->n_values == y->n_values && x->n_gen == y->n_gen &&
               x->kept_asked == y->kept_asked && x->kept_min == y->kept_min &&
               x->kept_max == y->kept_max && same_number(x->kept_mean, y->kept_mean) &&
               same_number(x->keep_mean, y->keep_mean) && same_number(x->score, y->score) &&
               x->kv_bytes_mean == y->kv_bytes_mean && x->kv_bytes_peak == y->kv_bytes_peak &&
               x->state_bytes == y->state_bytes && x->n_prompt == y->n_prompt &&
               strcmp(a->prompt_hash, b->prompt_hash) == 0 && strcmp(a->parsed, b->parsed) == 0 &&
               (!a->prediction || strcmp(a->prediction, b->prediction) == 0);

    for (int i = 0; same && i < x->n_values; i++)
        same = strcmp(a->value[i].name, b->value[i].name) == 0 &&
               same_number(a->value[i].value, b->value[i].value);
    return same;
}

static void run_sample(ek_record *record, const ek_sample *s)
{
    const ek_task *task = ev.task[s->kind == EK_SAMPLE_FORCED ? 0 : 1].task;

    for (int c = 0; c < ev.grid.n_cells; c++)
        record[c] = (ek_record){.row = ek_sample_none()};
    ok(s->kind == EK_SAMPLE_FORCED ? ek_eval_forced(&ev, s, 0, record, &err)
                                   : ek_eval_answer(&ev, task, s, 0, record, &err));
}

static void one_sample_three_times_is_three_times_the_same(void **state)
{
    const int n = ev.grid.n_cells;
    ek_record *record[3];
    int differ = 0;

    (void)state;
    for (int r = 0; r < 3; r++)
        record[r] = calloc((size_t)n, sizeof *record[r]);
    for (int kind = 0; kind < 2; kind++) {
        const ek_sample s = kind ? answered() : forced();
        ek_sample other = s;

        other.context = context + 60;
        for (int r = 0; r < 3; r++)
            run_sample(record[r], &s);
        for (int c = 0; c < n; c++) {
            assert_true(record[0][c].row.n_gen > 0);
            assert_true(same_record(&record[0][c], &record[1][c]));
            assert_true(same_record(&record[0][c], &record[2][c]));
            ek_record_clear(&record[1][c]);
            ek_record_clear(&record[2][c]);
        }
        /* Negative control: another context is another record. */
        run_sample(record[1], &other);
        for (int c = 0; c < n; c++) {
            differ += !same_record(&record[0][c], &record[1][c]);
            ek_record_clear(&record[0][c]);
            ek_record_clear(&record[1][c]);
        }
    }
    assert_int_equal(differ, 2 * n);
    for (int r = 0; r < 3; r++)
        free(record[r]);
}

/* ---- the question does not decide ---- */

/* Positions of the context's tokens that cell c keeps once the question was read, into kept; n of
 * them in all, heads divided by -1. */
static int kept_after(int c, const char *question, int aware, int32_t *kept, int room)
{
    const ek_prompt p = {.context = context,
                         .context_size = strlen(context),
                         .question = question,
                         .question_size = strlen(question)};
    const ek_policy *policy = &ev.grid.cell[c].policy;
    ek_tokens tok = {0};
    ek_cache prompt = {0};
    ek_row row, *rows[1] = {&row};
    int64_t first = 0;
    int n = 0;

    ok(ek_template_encode(&ev.chat, ev.tok, &p, 0, &tok, &first, &err));
    const int64_t cut = aware ? tok.n : first;
    const ek_cache_need need = {.dims = *ek_model_dims(ev.model),
                                .dtype = ek_model_storage(ev.model),
                                .cap = (int32_t)tok.n + 8,
                                .n_lanes = ev.grid.n_measures,
                                .measures = ev.grid.measure};
    const int rest = (int)(tok.n - cut);

    ok(ek_cache_open(&prompt, &need, dev, &err));
    ok(ek_engine_read(ev.engine, &prompt, tok.id, (int)cut, cut, NULL, NULL, &err));
    ok(ek_row_open(&row, ev.engine, &prompt, policy, first, rest + 8,
                   aware ? 0 : EK_ROW_QUESTION_LATER, &err));
    for (int step = aware ? 1 : 0; step < 2; step++) { /* the question, then an answer's token */
        static int32_t next = 70;

        row.feed = step ? &next : tok.id + cut;
        row.n_feed = step ? 1 : rest;
        row.n_logits = 1;
        row.logits = ev.logits;
        row.counts = step;
        ok(ek_engine_step(ev.engine, rows, 1, &err));
    }
    for (int i = 0; i < row.cache.dims.n_layers * row.cache.dims.n_heads; i++) {
        const int l = i / row.cache.dims.n_heads;
        const int32_t *pos = row.cache.pos + row.cache.layer_at[l] + row.cache.first[i];

        for (int32_t e = 0; e < row.cache.n[i] && pos[e] < first && n < room; e++)
            kept[n++] = pos[e];
        kept[n++] = -1;
    }
    assert_true(n < room);
    ek_row_close(&row);
    ek_cache_close(&prompt);
    ek_tokens_clear(&tok);
    return n;
}

static void what_stays_does_not_depend_on_the_question(void **state)
{
    enum { ROOM = 8192 };
    static const char *const ask[] = {"\n\nWhat is the key?",
                                      "\n\nPlease name every river and stone in the text above."};
    int32_t *a = malloc(sizeof *a * ROOM), *b = malloc(sizeof *b * ROOM);
    int moved = 0;

    (void)state;
    for (int c = 1; c < ev.grid.n_cells; c++) {
        int n[2];

        if (strcmp(ev.grid.cell[c].label, "oracle") == 0)
            continue; /* it is told the future, questions included */
        n[0] = kept_after(c, ask[0], 0, a, ROOM);
        n[1] = kept_after(c, ask[1], 0, b, ROOM);
        assert_int_equal(n[0], n[1]);
        assert_true(n[0] > 100);
        assert_memory_equal(a, b, sizeof *a * (size_t)n[0]);
        /* Negative control: with the question in view, methods that look at it do choose. */
        n[0] = kept_after(c, ask[0], 1, a, ROOM);
        n[1] = kept_after(c, ask[1], 1, b, ROOM);
        moved += n[0] != n[1] || memcmp(a, b, sizeof *a * (size_t)n[0]) != 0;
    }
    assert_true(moved >= 4);
    free(a);
    free(b);
}

/* ---- fixture ---- */

static void open_evaluation(void)
{
    ek_text yaml = {0};
    char *text;

    ek_text_add(&yaml, "model: %s\nresults: none.db\nseed: 3\ndecode: grow\nmethods: [full",
                ek_world_path(&world, "tiny.gguf"));
    for (int i = 0; ek_methods[i]; i++)
        if (!ek_methods[i]->measure.signal->learner && strcmp(ek_methods[i]->name, "full") != 0)
            ek_text_add(&yaml, ", %s", ek_methods[i]->name);
    ek_text_add(&yaml,
                "]\nbudgets: [0.3]\ntasks:\n"
                "  - {name: fidelity, text: %s, prompt: 200, continuation: 30, samples: 1}\n"
                "  - {name: passkey, text: %s, lengths: [420], depths: [50], repeats: 1}\n",
                ek_world_path(&world, "text"), ek_world_path(&world, "text"));
    assert_false(yaml.failed);
    config = ek_eval_defaults;
    ok(ek_config_parse(&config, ek_eval_fields, yaml.data, yaml.size, "test", NULL, 0, &err));
    text = ek_config_text(&config, ek_eval_fields);
    assert_non_null(text);
    ok(ek_device_open(&dev, "cpu", getenv("EVICTKIT_ISA"), &err));
    ok(ek_eval_open(&ev, &config, text, dev, &err));
    free(text);
    ek_text_clear(&yaml);
}

static int set_up(void **state)
{
    ek_map map = {0};

    (void)state;
    ek_world_open(&world, "laws");
    ok(ek_map_open(&map, ek_world_path(&world, "text/tiny.txt"), &err));
    context = strndup((const char *)map.data, CONTEXT);
    ek_map_close(&map);
    open_evaluation();
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    ek_eval_close(&ev);
    ek_device_close(dev);
    ek_config_clear(&config, ek_eval_fields);
    free(context);
    ek_world_close(&world);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_sample_three_times_is_three_times_the_same),
        cmocka_unit_test(what_stays_does_not_depend_on_the_question),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
