/* Reports: the numbers in the tables, what is refused, and files other programs read back. */
#include "core/file.h"
#include "core/json.h"
#include "results/grid.h"
#include "results/metric.h"
#include "results/report.h"

#include <glob.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define A     "aaaa0000000000000000000000000001"
#define B     "aaab0000000000000000000000000002"
#define OK(x) ok_((x), &err, #x)

enum { DOCS = 12 };

static char folder[64], path[128];
static ek_err err;

static void ok_(ek_code code, const ek_err *e, const char *what)
{
    if (code != EK_OK)
        fail_msg("%s: %s", what, e->msg);
}

typedef struct method {
    const char *name, *policy;
    int learned;
    double kld, score; /* mean KLD; how many of the documents are right */
} method;

/* The oracle is the best of all, yet nobody's opponent; "near" is the best rule by KLD. */
static const method methods[] = {
    {"full", "full", 0, 0, 12},
    {"far", "far@0.25", 0, 0.40, 2},
    {"near", "near@0.25", 0, 0.20, 6},
    {"taught", "taught@0.25", 1, 0.10, 9},
    {"oracle", "oracle@0.25", 0, 0.01, 12},
};

static double kld_of(const method *m, int doc)
{
    return m->kld * (1 + 0.02 * ((doc * 7) % 5));
}

static const char *decode = "grow"; /* of the runs that are added now */

static ek_code add_cell(ek_store *s, const char *run, const char *suite, const method *m,
                        int64_t base, int query_aware, int64_t *id)
{
    ek_cell_row c = ek_cell_none();

    c.run = run;
    c.suite = suite;
    c.task = "text, \"quoted\"";
    c.variant = decode;
    c.length = 1024;
    c.method = m->name;
    c.policy = m->policy;
    c.learned = m->learned;
    c.query_aware = query_aware;
    c.seed = 3;
    if (strcmp(m->name, "full") != 0) {
        c.keep = 0.25;
        c.keep_of = "prompt";
        c.base = base;
    }
    return ek_store_cell(s, &c, id, &err);
}

/* A run over two suites; shift moves the learned method's KLD. */
static void add_run(ek_store *s, const char *id, const char *kernel, const char *prompt,
                    double shift, int query_aware)
{
    const ek_run_row run = {.id = id,
                            .kind = "evaluate",
                            .revision = "0.1",
                            .device = "cpu",
                            .kernel = kernel,
                            .model = "models/tiny.gguf",
                            .model_hash = "mh",
                            .tokenizer_hash = "th",
                            .template_hash = "ch",
                            .config = "seed: 3\nmethods: [full]\n"};
    int64_t cell[2][EK_COUNT(methods)];
    ek_run_found found;

    OK(ek_store_run_begin(s, &run, NULL, 0, 0, &found, &err));
    for (int suite = 0; suite < 2; suite++)
        for (size_t m = 0; m < EK_COUNT(methods); m++)
            OK(add_cell(s, id, suite ? "needle" : "fidelity", &methods[m], cell[suite][0],
                        query_aware, &cell[suite][m]));
    for (int doc = 0; doc < DOCS; doc++) {
        ek_sample_row rows[2 * EK_COUNT(methods)];
        ek_named values[EK_COUNT(methods)][2];
        char name[16], hash[32];

        snprintf(name, sizeof name, "doc%02d", doc);
        snprintf(hash, sizeof hash, "%s%d", prompt, doc);
        for (size_t m = 0; m < EK_COUNT(methods); m++) {
            const double kld = kld_of(&methods[m], doc) + (methods[m].learned ? shift : 0);

            for (int suite = 0; suite < 2; suite++) {
                ek_sample_row *r = &rows[2 * m + (size_t)suite];

                *r = ek_sample_none();
                r->cell = cell[suite][m];
                r->doc_id = name;
                r->prompt_hash = hash;
                r->n_original = r->n_prompt = 1024;
                r->kept_asked = r->kept_min = r->kept_max = m ? 256 : 1024;
                r->keep_mean = m ? 0.25 : 1;
                r->reference = "[\"12345\"]";
                r->prediction = "it is \"12345\",\n\x1b[31mred";
            }
            values[m][0] = (ek_named){"Mean KLD", kld};
            values[m][1] = (ek_named){"PPL", 10 * exp(kld)};
            rows[2 * m].values = values[m];
            rows[2 * m].n_values = 2;
            rows[2 * m + 1].score = doc < methods[m].score;
        }
        OK(ek_store_samples(s, rows, 2 * EK_COUNT(methods), &err));
    }
    OK(ek_store_rebuild_metrics(s, id, &err));
    OK(ek_store_run_end(s, id, "done", &err));
}

static int set_up(void **state)
{
    ek_store *s = NULL;

    snprintf(folder, sizeof folder, "/tmp/ek_report_XXXXXX");
    if (!mkdtemp(folder))
        return 1;
    snprintf(path, sizeof path, "%s/x.db", folder);
    OK(ek_store_open(&s, path, EK_STORE_CREATE, &err));
    add_run(s, A, "scalar bf16", "p", 0, 0);
    *state = s;
    return 0;
}

static int tear_down(void **state)
{
    char command[100];

    ek_store_close(*state);
    snprintf(command, sizeof command, "rm -rf %s", folder);
    return system(command);
}

static ek_compare how_of(const char *run)
{
    const ek_compare how = {.run = run, .seed = EK_STAT_SEED};

    return how;
}

/* Is there a line with all of the words, in their order? */
static int has_line(const char *text, const char *const *word, int n)
{
    while (*text) {
        const size_t length = strcspn(text, "\n");
        char *line = strndup(text, length), *at = line;
        int i = 0;

        for (; i < n && (at = strstr(at, word[i])) != NULL; i++)
            at += strlen(word[i]);
        free(line);
        if (i == n)
            return 1;
        text += length + (text[length] == '\n');
    }
    return 0;
}
#define LINE(text, ...)                                               \
    do {                                                              \
        const char *const w_[] = {__VA_ARGS__};                       \
        if (!has_line((text), w_, (int)EK_COUNT(w_)))                 \
            fail_msg("no line with \"%s\" .. in\n%s", w_[0], (text)); \
    } while (0)
#define NO_LINE(text, ...)                                           \
    do {                                                             \
        const char *const w_[] = {__VA_ARGS__};                      \
        if (has_line((text), w_, (int)EK_COUNT(w_)))                 \
            fail_msg("a line with \"%s\" .. in\n%s", w_[0], (text)); \
    } while (0)

static void compare_shows_paired_differences(void **state)
{
    ek_compare how = how_of(A);
    ek_text out = {0}, again = {0}, other = {0};

    /* Mean over documents of (7 doc) mod 5 is 22/12, and 0.02 of it comes on top. */
    OK(ek_report_compare(*state, &how, &out, &err));
    LINE(out.data, "full", "1.0000", "0.00000");
    LINE(out.data, "oracle", "0.2500", "0.01037");
    LINE(out.data, "near", "0.2500", "0.20733", "+0.20733 [", "*");
    LINE(out.data, "keep 0.25 of prompt", "taught", "near (best)", "Mean KLD", "-0.10367 [", "*",
         "-50.0 %", "12 of 12", "12");
    NO_LINE(out.data, "taught", "oracle");
    NO_LINE(out.data, "taught ", "far ");
    LINE(out.data, "needle", "score", "higher is better");
    LINE(out.data, "taught", "75.00", "-25.00", "75.0", "3/0");
    LINE(out.data, "taught", "near (best)", "score", "+25.00", "3 of 12");
    OK(ek_report_compare(*state, &how, &again, &err));
    assert_string_equal(out.data, again.data);
    how.seed = 5; /* negative control: another seed, other intervals */
    OK(ek_report_compare(*state, &how, &other, &err));
    assert_string_not_equal(out.data, other.data);
    ek_text_clear(&out);
    ek_text_clear(&again);
    ek_text_clear(&other);
}

static void compare_takes_other_opponents(void **state)
{
    static const char *const metric[] = {"PPL"}, *const nonsense[] = {"nonsense"};
    ek_compare how = how_of(A);
    ek_text out = {0};

    how.against = "all";
    OK(ek_report_compare(*state, &how, &out, &err));
    LINE(out.data, "taught", "far ", "Mean KLD", "-0.31100");
    LINE(out.data, "taught", "near (best)", "Mean KLD");
    ek_text_clear(&out);
    how.method = "near";
    how.against = "far";
    how.base = "far";
    OK(ek_report_compare(*state, &how, &out, &err));
    LINE(out.data, "to far");
    LINE(out.data, "near", "far", "Mean KLD", "-0.20733");
    NO_LINE(out.data, "keep 0.25 of prompt", "taught");
    ek_text_clear(&out);
    how = how_of(A);
    how.metric = metric;
    how.n_metrics = 1;
    OK(ek_report_compare(*state, &how, &out, &err));
    LINE(out.data, "PPL, lower is better");
    LINE(out.data, "full", "10.000");
    NO_LINE(out.data, "Mean KLD");
    ek_text_clear(&out);
    how.metric = nonsense;
    assert_int_equal(ek_report_compare(*state, &how, &out, &err), EK_EASKED);
    assert_non_null(strstr(err.msg, "no metric \"nonsense\""));
    how = how_of(A);
    how.against = "nobody";
    assert_int_equal(ek_report_compare(*state, &how, &out, &err), EK_EASKED);
    assert_non_null(strstr(err.msg, "no method \"nobody\""));
    ek_text_clear(&out);
}

static void runs_are_compared_pair_by_pair(void **state)
{
    ek_compare how = how_of(A);
    ek_text out = {0};

    add_run(*state, B, "scalar bf16", "p", 0.05, 0);
    how.run2 = B;
    OK(ek_report_compare(*state, &how, &out, &err));
    LINE(out.data, "taught (aaab)", "taught (aaaa)", "Mean KLD", "+0.05000 [+0.05000, +0.05000]");
    LINE(out.data, "near (aaab)", "near (aaaa)", "Mean KLD", "+0.00000");
    ek_text_clear(&out);
}

static void unlike_runs_are_refused(void **state)
{
    static const struct {
        const char *kernel, *prompt, *word;
        int query_aware;
    } unlike[] = {{"avx512 bf16", "p", "kernel", 0},
                  {"scalar bf16", "other", "prompts", 0},
                  {"scalar bf16", "p", "query_aware", 1}};
    ek_compare how = how_of(A);

    how.run2 = B;
    for (size_t i = 0; i < EK_COUNT(unlike); i++) {
        ek_text out = {0};

        add_run(*state, B, unlike[i].kernel, unlike[i].prompt, 0, unlike[i].query_aware);
        how.force = 0;
        assert_int_equal(ek_report_compare(*state, &how, &out, &err), EK_EASKED);
        if (!strstr(err.msg, unlike[i].word) || !strstr(err.msg, "--force"))
            fail_msg("%s: %s", unlike[i].word, err.msg);
        ek_text_clear(&out);
        how.force = 1;
        OK(ek_report_compare(*state, &how, &out, &err));
        LINE(out.data, "compared by force", unlike[i].word);
        LINE(out.data, "taught (aaab)", "taught (aaaa)", "Mean KLD");
        ek_text_clear(&out);
        OK(ek_store_run_delete(*state, B, &err));
    }
}

/* Cut once and held at a budget are never set side by side: not by force, not in one file. */
static void two_regimes_never_mix(void **state)
{
    static const char both[2][33] = {A, B};
    ek_compare how = how_of(A);
    ek_export table = {.form = "csv", .run = A, .also = both + 1, .n_also = 1};
    ek_text out = {0};
    int lines = 0;

    decode = "hold";
    add_run(*state, B, "scalar bf16", "p", 0.05, 0);
    decode = "grow";
    how.run2 = B;
    for (how.force = 0; how.force < 2; how.force++) {
        assert_int_equal(ek_report_compare(*state, &how, &out, &err), EK_EASKED);
        assert_non_null(strstr(err.msg, "decode: grow and hold"));
        ek_text_clear(&out);
    }
    assert_int_equal(ek_report_one_decode(*state, both, 2, &err), EK_EASKED);
    OK(ek_report_one_decode(*state, both, 1, &err));
    OK(ek_store_run_delete(*state, B, &err));
    add_run(*state, B, "scalar bf16", "p", 0.05, 0); /* of one regime they may: negative control */
    OK(ek_report_one_decode(*state, both, 2, &err));
    OK(ek_report_export(*state, &table, &out, &err));
    for (const char *c = out.data; (c = strstr(c, "\n")) != NULL; c++)
        lines++;
    assert_null(strstr(out.data + 10, "\nrun,")); /* one head */
    table.n_also = 0;
    ek_text_clear(&out);
    OK(ek_report_export(*state, &table, &out, &err));
    for (const char *c = out.data; (c = strstr(c, "\n")) != NULL; c++)
        lines -= 2;
    assert_int_equal(lines, -1);
    ek_text_clear(&out);
}

static void runs_are_found(void **state)
{
    char id[33];

    OK(ek_report_run(*state, NULL, "evaluate", id, &err));
    assert_string_equal(id, A);
    add_run(*state, B, "scalar bf16", "p", 0, 0);
    OK(ek_report_run(*state, "last", NULL, id, &err));
    assert_string_equal(id, B);
    OK(ek_report_run(*state, "aaaa", NULL, id, &err));
    assert_string_equal(id, A);
    OK(ek_report_run(*state, B, NULL, id, &err));
    assert_string_equal(id, B);
    assert_int_equal(ek_report_run(*state, "aaa", NULL, id, &err), EK_EASKED);
    assert_non_null(strstr(err.msg, "2 runs begin"));
    assert_int_equal(ek_report_run(*state, "b", NULL, id, &err), EK_EASKED);
    assert_int_equal(ek_report_run(*state, "a%", NULL, id, &err), EK_EASKED);
    assert_int_equal(ek_report_run(*state, NULL, "train", id, &err), EK_EASKED);
}

static int lines_of(const char *text)
{
    int n = 0;

    for (; *text; text++)
        n += *text == '\n';
    return n;
}

static ek_code take(void *ctx, int n, const char *const *name, const ek_sql *v, ek_err *e)
{
    (void)n, (void)name, (void)e;
    *(double *)ctx = v[0].r;
    return EK_OK;
}

static void exports_are_complete(void **state)
{
    ek_export how = {.form = "csv", .run = A};
    ek_text out = {0};
    double rows = 0;
    char *at;
    int n = 0;

    OK(ek_store_query(*state, "SELECT count(*) FROM v_score", NULL, 0, take, &rows, &err));
    OK(ek_report_export(*state, &how, &out, &err));
    assert_int_equal(lines_of(out.data), (int)rows + 1);
    assert_non_null(strstr(out.data, ",\"text, \"\"quoted\"\"\","));
    ek_text_clear(&out);

    how.form = "jsonl";
    OK(ek_report_export(*state, &how, &out, &err));
    for (at = out.data; *at; n++) {
        const size_t length = strcspn(at, "\n");
        ek_json *v;

        OK(ek_json_parse(&v, at, length, "line", &err));
        assert_int_equal(ek_json_kind_of(ek_json_get(v, "reference")), EK_JSON_ARRAY);
        assert_non_null(ek_json_get(v, "prediction"));
        if (strcmp(ek_json_string(ek_json_get(v, "suite")), "fidelity") == 0)
            assert_true(ek_json_number(ek_json_get(ek_json_get(v, "values"), "PPL")) >= 10);
        ek_json_close(v);
        at += length + 1;
    }
    assert_int_equal(n, 2 * DOCS * (int)EK_COUNT(methods));
    ek_text_clear(&out);

    how.form = "md";
    OK(ek_report_export(*state, &how, &out, &err));
    LINE(out.data, "| method | budget | kept |", "Mean KLD", "score |");
    LINE(out.data, "| taught | keep 0.25 | 0.2500 | 0.10367", "± ", "*", "75.00");
    assert_true(strstr(out.data, "| full |") < strstr(out.data, "| far |"));
    ek_text_clear(&out);

    how.form = "xml";
    assert_int_equal(ek_report_export(*state, &how, &out, &err), EK_EASKED);
    ek_text_clear(&out);
}

/* Every file that was named is there and, if JSON, reads back. */
static void folders_are_written(void **state)
{
    static const char *const forms[] = {"kvpress", "lm-eval"};
    static const int files[] = {3 * 2 * 5, 3 * 5};

    for (int i = 0; i < 2; i++) {
        ek_export how = {.form = forms[i], .run = A, .path = folder};
        ek_text out = {0};
        char *name, *next;
        int n = 0;

        OK(ek_report_export(*state, &how, &out, &err));
        for (name = out.data; *name; name = next, n++) {
            ek_json *v;
            ek_map map;

            next = name + strcspn(name, "\n");
            *next++ = 0;
            OK(ek_map_open(&map, name, &err));
            assert_true(map.size > 0);
            if (strcmp(name + strlen(name) - 5, ".json") == 0) {
                OK(ek_json_parse(&v, (const char *)map.data, map.size, name, &err));
                ek_json_close(v);
            }
            ek_map_close(&map);
        }
        assert_int_equal(n, files[i]);
        ek_text_clear(&out);
    }
}

static void the_ready_queries_run(void **state)
{
    glob_t g;

    assert_int_equal(glob("results/queries/*.sql", 0, NULL, &g), 0);
    assert_true(g.gl_pathc >= 7);
    for (size_t i = 0; i < g.gl_pathc; i++) {
        ek_text out = {0};
        ek_map map;
        char *sql;

        OK(ek_map_open(&map, g.gl_pathv[i], &err));
        sql = strndup((const char *)map.data, map.size);
        ek_map_close(&map);
        if (ek_report_query(*state, sql, A, &out, &err) != EK_OK)
            fail_msg("%s: %s", g.gl_pathv[i], err.msg);
        /* These are of training runs, of which there are none here. */
        if (!strstr(g.gl_pathv[i], "loss_curves") && !strstr(g.gl_pathv[i], "vector_r2") &&
            (out.data == NULL || lines_of(out.data) < 2))
            fail_msg("%s: found no rows", g.gl_pathv[i]);
        free(sql);
        ek_text_clear(&out);
    }
    globfree(&g);
}

static void lists_and_shows(void **state)
{
    ek_text out = {0};

    OK(ek_report_list(*state, &out, &err));
    LINE(out.data, "aaaa0000", "evaluate", "done", "10", "120", "tiny.gguf");
    ek_text_clear(&out);
    OK(ek_report_show(*state, A, &out, &err));
    LINE(out.data, "kernel", "scalar bf16");
    LINE(out.data, "taught@0.25", "pending", "12", "256");
    LINE(out.data, "  methods: [full]");
    ek_text_clear(&out);
    OK(ek_report_query(*state, "SELECT prediction FROM sample LIMIT 1", NULL, &out, &err));
    assert_null(strchr(out.data, '\x1b')); /* nothing in a prediction steers the terminal */
    ek_text_clear(&out);
    assert_int_equal(ek_report_query(*state, "SELEC", NULL, &out, &err), EK_EASKED);
    ek_text_clear(&out);
}

static void metrics_have_units_and_directions(void **state)
{
    static const char units[] = "percent nat ratio bytes tok/s ns count";

    (void)state;
    for (const ek_metric *m = ek_metrics; m->name; m++) {
        assert_non_null(strstr(units, m->unit));
        assert_true(m->scale == (strcmp(m->unit, "percent") == 0 ? 100 : 1));
        assert_true(strchr(m->name, '*') || ek_metric_find(m->name) == m);
    }
    assert_string_equal(ek_metric_find("FMM128")->name, "FMM*");
    assert_int_equal(ek_metric_find("Mean KLD")->better, -1);
    assert_int_equal(ek_metric_find("recall@64")->better, 1);
    assert_int_equal(ek_metric_find("something new")->better, 0);
}

static void columns_align(void **state)
{
    ek_grid g = {.n_cols = 3};
    ek_text out = {0};

    (void)state;
    ek_grid_add(&g, "name");
    ek_grid_add(&g, "value");
    ek_grid_add(&g, "mark");
    ek_grid_add(&g, "Δp ≈ a");
    ek_grid_add(&g, "%.1f", 1.5);
    ek_grid_add(&g, "≈");
    ek_grid_add(&g, "b\n\xc2\x9b"
                    "2J");
    ek_grid_add(&g, "-");
    ek_grid_add(&g, "*");
    ek_grid_add(&g, "3f27");
    ek_grid_add(&g, "%d", -1000000);
    ek_grid_add(&g, "%s", "");
    ek_grid_print(&g, " ", &out);
    assert_string_equal(out.data, " name       value  mark\n"
                                  " Δp ≈ a       1.5  ≈\n"
                                  " b   2J         -  *\n"
                                  " 3f27    -1000000  \n");
    ek_grid_clear(&g);
    ek_text_clear(&out);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(compare_shows_paired_differences),
        TEST(compare_takes_other_opponents),
        TEST(runs_are_compared_pair_by_pair),
        TEST(unlike_runs_are_refused),
        TEST(two_regimes_never_mix),
        TEST(runs_are_found),
        TEST(exports_are_complete),
        TEST(folders_are_written),
        TEST(the_ready_queries_run),
        TEST(lists_and_shows),
        cmocka_unit_test(metrics_have_units_and_directions),
        cmocka_unit_test(columns_align),
    };

    return cmocka_run_group_tests_name("report", tests, NULL, NULL);
}
