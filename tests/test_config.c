/* tests/test_config.c - what a YAML file may hold, and the sentence that refuses the rest. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "core/config.h"
#include "core/file.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct inner {
    int64_t hidden;
    double rate;
    int act;
} inner;

typedef struct method {
    char *name;
    int64_t window;
    double alpha; /* NaN: not given */
    int pool;     /* -1: not given */
    int64_t *layers;
    int n_layers;
} method;

typedef struct run {
    int64_t seed, big;
    double keep;
    bool resume;
    char *model, *note;
    int dtype;
    inner scorer;
    method *methods;
    int n_methods;
    int64_t *budgets;
    int n_budgets;
    char **tasks;
    int n_tasks;
} run;

static const char *const acts[] = {"relu", "silu", "gelu", NULL};
static const char *const pools[] = {"none", "mean", "max", NULL};
static const char *const dtypes[] = {"bf16", "f32", NULL};

static const ek_field inner_fields[] = {
    EK_INT(inner, hidden, 1, 4096, "units of the hidden layer"),
    EK_FLOAT(inner, rate, 0, 1, "learning rate"),
    EK_ENUM(inner, act, acts, "activation"),
    EK_FIELD_END,
};
static const ek_field method_fields[] = {
    EK_STRING(method, name, "which method"),
    EK_INT(method, window, 0, 1024, "newest entries that stay"),
    EK_FLOAT(method, alpha, 0, 10, "strength"),
    EK_ENUM(method, pool, pools, "smoothing"),
    EK_INTS(method, layers, n_layers, 0, 99, "where"),
    EK_FIELD_END,
};
static const method method_default = {.name = "full", .window = 8, .alpha = NAN, .pool = -1};
static const ek_field fields[] = {
    EK_INT(run, seed, 0, 1e9, "of all random numbers"),
    EK_INT(run, big, -9e18, 9e18, "a large one"),
    EK_FLOAT(run, keep, 0, 1, "share of entries kept"),
    EK_BOOL(run, resume, "go on where the last run ended"),
    EK_STRING(run, model, "path of the model"),
    EK_STRING(run, note, "anything"),
    EK_ENUM(run, dtype, dtypes, "storage"),
    EK_MAP(run, scorer, inner_fields, "the network"),
    EK_LIST(run, methods, n_methods, method, method_fields, &method_default, 0, 5, "to compare"),
    EK_INTS(run, budgets, n_budgets, 1, 1e6, "entries"),
    EK_STRINGS(run, tasks, n_tasks, "what to answer"),
    EK_FIELD_END,
};

static run defaults(void)
{
    static method two[2] = {{.name = "tova", .window = 3, .alpha = 1, .pool = 0},
                            {.name = "h2o", .window = 4, .alpha = NAN, .pool = -1}};
    static int64_t sizes[] = {128, 256};
    static char *names[] = {"needle"};

    return (run){.seed = 42,
                 .keep = 0.25,
                 .model = "models/tiny.gguf",
                 .dtype = 1,
                 .scorer = {.hidden = 64, .rate = 1e-3, .act = 1},
                 .methods = two,
                 .n_methods = 2,
                 .budgets = sizes,
                 .n_budgets = 2,
                 .tasks = names,
                 .n_tasks = 1};
}

static ek_code parse(run *out, const char *text, const char *const *sets, int n, ek_err *err)
{
    const size_t size = strlen(text);
    char *exact = malloc(size ? size : 1); /* one byte too far is seen by the sanitizer */
    ek_code code;

    assert_non_null(exact);
    memcpy(exact, text, size);
    *out = defaults();
    code = ek_config_parse(out, fields, exact, size, "a.yaml", sets, n, err);
    free(exact);
    return code;
}

static run parsed(const char *text, const char *const *sets, int n)
{
    ek_err err = {0};
    run r;

    if (parse(&r, text, sets, n, &err) != EK_OK)
        fail_msg("refused: %s", err.msg);
    return r;
}

/* Refused, with all the words given (separated by |) in the message. */
static void assert_refused(const char *text, const char *const *sets, int n, const char *words)
{
    char all[1000];
    ek_err err = {0};
    run r;
    const ek_code code = parse(&r, text, sets, n, &err);

    if (ek_err_exit(code) != 2)
        fail_msg("code %d (%s) for:\n%s", (int)code, err.msg, text);
    snprintf(all, sizeof all, "%s", words);
    for (char *save, *w = strtok_r(all, "|", &save); w; w = strtok_r(NULL, "|", &save))
        if (!strstr(err.msg, w))
            fail_msg("\"%s\" is missing in: %s", w, err.msg);
    assert_null(strchr(err.msg, '\n'));
    assert_int_equal(r.seed, 42); /* numbers are as before, and the rest is safe to clear */
    assert_int_equal(r.n_methods, 0);
    ek_config_clear(&r, fields);
}

static void absent_keys_keep_defaults(void **state)
{
    run r = parsed("seed: 7\n", NULL, 0);

    (void)state;
    assert_int_equal(r.seed, 7);
    assert_true(r.keep == 0.25);
    assert_string_equal(r.model, "models/tiny.gguf");
    assert_null(r.note);
    assert_int_equal(r.scorer.hidden, 64);
    assert_int_equal(r.n_methods, 2);
    assert_string_equal(r.methods[1].name, "h2o");
    assert_int_equal(r.budgets[1], 256);
    assert_string_equal(r.tasks[0], "needle");
    ek_config_clear(&r, fields);
    assert_null(r.model);
    assert_int_equal(r.n_methods, 0);
}

static void everything_loads(void **state)
{
    static const char text[] = "# a comment\n"
                               "seed: 0\n"
                               "big: -1234567890123456789\n"
                               "keep: .5e0\n"
                               "resume: true\n"
                               "model: \"a b: \\u00e9#\"\n"
                               "note: |\n"
                               "  two\n"
                               "  lines\n"
                               "dtype: bf16\n"
                               "scorer: {hidden: 4096, act: 'gelu'}\n"
                               "methods:\n"
                               "  - full\n"
                               "  - name: snapkv\n"
                               "    window: 32\n"
                               "    pool: max\n"
                               "    layers: [0, 3]\n"
                               "  - {alpha: 2}\n"
                               "budgets: []\n"
                               "tasks: [ruler, '12', long bench]\n";
    run r = parsed(text, NULL, 0);

    (void)state;
    assert_int_equal(r.seed, 0);
    assert_true(r.big == -1234567890123456789);
    assert_true(r.keep == 0.5 && r.resume && r.dtype == 0);
    assert_string_equal(r.model, "a b: \xc3\xa9#");
    assert_string_equal(r.note, "two\nlines\n");
    assert_true(r.scorer.hidden == 4096 && r.scorer.rate == 1e-3 && r.scorer.act == 2);
    assert_int_equal(r.n_methods, 3);
    assert_string_equal(r.methods[0].name, "full");
    assert_true(r.methods[0].window == 8 && isnan(r.methods[0].alpha) && r.methods[0].pool == -1);
    assert_string_equal(r.methods[1].name, "snapkv");
    assert_true(r.methods[1].window == 32 && r.methods[1].pool == 2);
    assert_true(r.methods[1].n_layers == 2 && r.methods[1].layers[1] == 3);
    assert_string_equal(r.methods[2].name, "full"); /* the element's default */
    assert_true(r.methods[2].alpha == 2);
    assert_int_equal(r.n_budgets, 0);
    assert_int_equal(r.n_tasks, 3);
    assert_string_equal(r.tasks[1], "12");
    assert_string_equal(r.tasks[2], "long bench");
    ek_config_clear(&r, fields);
}

static const struct {
    const char *text, *words;
} damaged[] = {
    /* keys */
    {"seed: 1\nkep: 0.5\n", "a.yaml: line 2: |unknown key \"kep\"|nearest known: \"keep\""},
    {"scorer:\n  hidden: 3\n  hiden: 4\n", "line 3|\"scorer.hiden\"|\"hidden\""},
    {"methods: [full,\n {name: a, windw: 3}]\n", "line 2|\"methods.1.windw\"|\"window\""},
    {"kep: 1\nscorer: {ratte: 2}\nmethods:\n- {nmae: x}\n",
     "line 1: unknown key \"kep\"|; line 2: unknown key \"scorer.ratte\"|\"rate\"|; line 4: "
     "unknown "
     "key \"methods.0.nmae\"|\"name\""},
    {"zzzzzzzz: 1\n", "line 1|known here: seed, big, keep"},
    {"window: 1\n", "line 1|known as methods.N.window"},
    {"seed: 1\nkeep: 0.5\nseed: 2\n", "line 3|\"seed\" twice|line 1"},
    {"methods:\n- name: a\n  name: b\n", "line 3|\"name\" twice"},
    {"? [a]\n: 1\n", "line 1|as a key"},
    {"'': 1\n", "line 1|unknown key"},
    {"compression_ratio: 0.75\n",
     "line 1: compression_ratio|removed 0.75 is keep: 0.25|kept 0.75 is keep: 0.75"},
    {"methods:\n- full\n- {name: a, compression_ratio: 0.9}\n",
     "line 3|removed 0.9 is keep: 0.1,|kept 0.9 is keep: 0.9"},
    {"compression_ratio: 4\n", "4 times smaller is keep: 0.25"},
    {"compression_ratio: high\n", "keep: 0.25"},
    /* kinds */
    {"seed: 1.5\n", "a.yaml: line 1: seed: found 1.5, expected a whole number 0 .. 1000000000"},
    {"seed: '1'\n", "line 1|found the text \"1\", expected a whole number"},
    {"seed: 0x10\n", "found 0x10, expected a whole number"},
    {"seed: [1]\n", "line 1: seed: found a list, expected a whole number"},
    {"seed:\n", "seed: found nothing, expected a whole number"},
    {"keep: half\n", "keep: found half, expected a number 0 .. 1"},
    {"resume: yes\n", "resume: found yes, expected true or false"},
    {"model: {a: 1}\n", "model: found a mapping, expected text"},
    {"model:\n", "model: found nothing, expected text"},
    {"scorer: 3\n", "scorer: found 3, expected a mapping"},
    {"scorer: null\n", "scorer: found null, expected a mapping"},
    {"methods: full\n", "methods: found full, expected a list of 0 .. 5 mappings"},
    {"methods: {name: full}\n", "methods: found a mapping, expected a list"},
    {"methods:\n- [a]\n", "line 2: methods.0: found a list, expected a mapping, or a word for its "
                          "\"name\""},
    {"methods: [null]\n", "methods.0: found null"},
    {"methods: [a, , b]\n", "line 1"},
    {"budgets: 5\n", "budgets: found 5, expected a list of whole numbers 1 .. 1000000"},
    {"budgets: [1, x]\n", "budgets.1: found x, expected a whole number"},
    {"tasks: [a, [b]]\n", "tasks.1: found a list, expected text"},
    {"tasks: [~]\n", "tasks.0: found ~, expected text"},
    /* ranges */
    {"scorer:\n  rate: 1\n  hidden: 0\n",
     "a.yaml: line 3: scorer.hidden: found 0, expected 1 .. 4096"},
    {"scorer: {hidden: 4097}\n", "found 4097, expected 1 .. 4096"},
    {"seed: -1\n", "found -1, expected 0 .. 1000000000"},
    {"big: 9223372036854775808\n", "found 9223372036854775808|fits 64 bits"},
    {"keep: 1.0001\n", "found 1.0001, expected 0 .. 1"},
    {"keep: .nan\n", "found .nan, expected a number 0 .. 1"},
    {"keep: nan\n", "found nan, expected a number"},
    {"keep: -.inf\n", "found -.inf, expected a number"},
    {"keep: inf\n", "found inf, expected a number"},
    {"keep: 1e999\n", "found 1e999|fits 64 bits"},
    {"keep: 1e-999\n", "found 1e-999|fits 64 bits"},
    {"budgets: [1, 0]\n", "budgets.1: found 0, expected 1 .. 1000000"},
    {"methods: [a, b, c, d, e, f]\n", "methods: found a list of 6, expected 0 .. 5 elements"},
    {"dtype: bf61\n", "dtype: found bf61, expected one of bf16, f32 (nearest: \"bf16\")"},
    {"dtype: 0\n", "dtype: found 0, expected one of bf16, f32"},
    {"dtype: BF16\n", "found BF16"},
    /* the document */
    {"# nothing\n", "a.yaml: line |found nothing, expected a document"},
    {"--- {}\n--- {}\n", "line 2|second document"},
    {"- 1\n", "line 1: document: found a list, expected a mapping"},
    {"word\n", "document: found word"},
    {"seed: &a 1\n", "line 1|anchor &a"},
    {"seed: 1\nbig: *a\n", "line 2|alias *a"},
    {"a: &a [x]\nb: &b [*a, *a]\n", "line 1|anchor"},
    {"seed: !!int 1\n", "line 1|tag"},
    {"seed: 1\n\tkeep: 2\n", "line 2|not valid YAML"},
    {"seed: [1\n", "not valid YAML"},
    {"seed: \"\\q\"\n", "line 1|not valid YAML"},
    {"seed: 1\nmodel: \x01\n", "line 2|not valid YAML"},
    {"seed: 1\n\nmodel: \xff\n", "line 3|not valid YAML"},
    {"model: \"a\\0b\"\n", "line 1|NUL"},
    {"seed: {a: {b: {c: {d: {e: {f: {g: {h: {i: {j: {k: {l: {m: {n: {o: {p: {q: {r: {s: {t: {u: "
     "{v: {w: {x: {y: {z: 1}}}}}}}}}}}}}}}}}}}}}}}}}}\n",
     "nested deeper than 24"},
};

static void damaged_files_are_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < EK_COUNT(damaged); i++)
        assert_refused(damaged[i].text, NULL, 0, damaged[i].words);
}

static void sizes_are_limited(void **state)
{
    char *text = malloc(1100000);
    size_t n = 0;

    (void)state;
    assert_non_null(text);
    memset(text, ' ', 1000001);
    text[1000001] = '\0';
    assert_refused(text, NULL, 0, "found 1000001 bytes, expected at most 1000000");
    for (int i = 0; i < 1001; i++)
        n += (size_t)sprintf(text + n, "k%d: 1\n", i);
    assert_refused(text, NULL, 0, "line 1001|more than 1000 keys");
    memset(text, '[', 100000);
    text[100000] = '\0';
    assert_refused(text, NULL, 0, "nested deeper than 24");
    n = (size_t)sprintf(text, "tasks: [");
    for (int i = 0; i < 5000; i++)
        n += (size_t)sprintf(text + n, "a,");
    sprintf(text + n, "b]\n");
    run r = parsed(text, NULL, 0);
    assert_int_equal(r.n_tasks, 5001);
    ek_config_clear(&r, fields);
    free(text);
}

static void many_unknown_keys_are_counted(void **state)
{
    (void)state;
    assert_refused("q1: 1\nq2: 1\nq3: 1\nq4: 1\nq5: 1\nq6: 1\nq7: 1\nq8: 1\nq9: 1\nq10: 1\n", NULL,
                   0, "line 1|line 2|line 3");
}

static void overrides_change_the_tree(void **state)
{
    static const char text[] = "methods: [full, {name: snapkv, window: 3}]\nseed: 1\n";
    const char *sets[] = {"seed=9",          "methods.1.window=32", "methods.0.alpha=1.5",
                          "scorer.hidden=5", "budgets=[7, 8, 9]",   "budgets.2=10",
                          "note='a=b: c'",   "resume=true"};
    run r = parsed(text, sets, 8);

    (void)state;
    assert_int_equal(r.seed, 9);
    assert_int_equal(r.methods[1].window, 32);
    assert_string_equal(r.methods[1].name, "snapkv");
    assert_string_equal(r.methods[0].name, "full");
    assert_true(r.methods[0].alpha == 1.5);
    assert_int_equal(r.scorer.hidden, 5);
    assert_true(r.n_budgets == 3 && r.budgets[2] == 10);
    assert_string_equal(r.note, "a=b: c");
    assert_true(r.resume);
    ek_config_clear(&r, fields);

    sets[0] = "methods=[full, tova]";
    sets[1] = "methods.1={name: h2o, window: 5}";
    sets[2] = "model=null";
    r = parsed("", sets, 3); /* no file at all */
    assert_int_equal(r.n_methods, 2);
    assert_string_equal(r.methods[1].name, "h2o");
    assert_null(r.model);
    ek_config_clear(&r, fields);
}

static void wrong_overrides_name_the_option(void **state)
{
    static const char text[] = "methods: [full, {name: snapkv, window: 3}]\nseed: 1\n";
    static const struct {
        const char *set, *words;
    } t[] = {
        {"methods.1.windw=3",
         "option -s methods.1.windw=3: |unknown key \"methods.1.windw\"|\"window\""},
        {"sed=3", "option -s sed=3: |\"seed\""},
        {"scorr.hidden=3", "option -s scorr.hidden=3: |unknown key \"scorr\"|\"scorer\""},
        {"seed=x", "option -s seed=x: seed: found x, expected a whole number"},
        {"scorer.hidden=0",
         "option -s scorer.hidden=0: scorer.hidden: found 0, expected 1 .. 4096"},
        {"methods.2.window=1", "methods: found element 2, expected 0 .. 1"},
        {"methods.x.window=1", "methods: found element x, expected 0 .. 1"},
        {"methods.-1.window=1", "found element -1"},
        {"methods.99999999999999999999.window=1", "found element"},
        {"budgets.0=1", "budgets: the file holds no such list"},
        {"seed.x=1", "seed: found .x behind it"},
        {"seed", "option -s seed: expected key=value"},
        {"=3", "expected key=value"},
        {"seed=", "found nothing behind ="},
        {"seed=[1", "option -s seed=[1: not valid YAML"},
        {"seed=&a 1", "anchor"},
        {"methods=[a,b,c,d,e,f]", "option -s methods=[a,b,c,d,e,f]: methods: found a list of 6"},
        {"compression_ratio=0.6", "option -s |removed 0.6 is keep: 0.4"},
        {"dtype=bf15", "option -s dtype=bf15: dtype: found bf15|nearest: \"bf16\""},
        {"a..b=1", "unknown key \"a\""},
        {".=1", "unknown key"},
    };

    (void)state;
    for (size_t i = 0; i < EK_COUNT(t); i++)
        assert_refused(text, &t[i].set, 1, t[i].words);
    /* A file's mistake next to an option keeps its line. */
    assert_refused("scorer: 3\n", &(const char *){"scorer.hidden=3"}, 1,
                   "a.yaml: line 1: scorer: found 3");
    assert_refused("kep: 3\n", &(const char *){"sed=3"}, 1,
                   "a.yaml: line 1: |\"kep\"|option -s sed=3: |\"seed\"");
}

static const char *const written = "seed: 42\n"
                                   "big: 0\n"
                                   "keep: 0.25\n"
                                   "resume: false\n"
                                   "model: models/tiny.gguf\n"
                                   "note: null\n"
                                   "dtype: f32\n"
                                   "scorer:\n"
                                   "  hidden: 64\n"
                                   "  rate: 0.001\n"
                                   "  act: silu\n"
                                   "methods:\n"
                                   "  - name: tova\n"
                                   "    window: 3\n"
                                   "    alpha: 1\n"
                                   "    pool: none\n"
                                   "    layers: []\n"
                                   "  - name: h2o\n"
                                   "    window: 4\n"
                                   "    alpha: null\n"
                                   "    pool: null\n"
                                   "    layers: []\n"
                                   "budgets: [128, 256]\n"
                                   "tasks: [needle]\n";

static void text_comes_back(const char *yaml, char **first)
{
    run a = parsed(yaml, NULL, 0), b;
    char *x = ek_config_text(&a, fields), *y;

    assert_non_null(x);
    b = parsed(x, NULL, 0);
    y = ek_config_text(&b, fields);
    assert_string_equal(x, y);
    ek_config_clear(&a, fields);
    ek_config_clear(&b, fields);
    free(y);
    *first = x;
}

static void text_is_complete_and_comes_back(void **state)
{
    char *x;

    (void)state;
    text_comes_back("{}", &x);
    assert_string_equal(x, written);
    free(x);
    text_comes_back(
        "methods: []\nbudgets: []\ntasks: ['null', 'true', '1', '', ' a ', 'x: y', '- z', "
        "'#', \"\\n\\t\\\"\\\\\\u0085\\u2028\\ufeff\\U0001F600\\x7f\", ab/c-d_e.f, 'a,b', "
        "'[a]', \"q'\"]\nkeep: 0.1\nnote: ''\nmodel: \"\xf0\x9f\x98\x80\"\n",
        &x);
    assert_non_null(strstr(x, "tasks: [\"null\", \"true\", \"1\", \"\", \" a \", \"x: y\""));
    assert_non_null(strstr(x, "keep: 0.1\n"));
    assert_non_null(strstr(x, "methods: []\n"));
    free(x);
    text_comes_back(
        "keep: 0.30000000000000004\nscorer: {rate: 1.25e-7}\nbig: -9000000000000000000\n", &x);
    assert_non_null(strstr(x, "keep: 0.30000000000000004\n"));
    assert_non_null(strstr(x, "rate: 1.25e-07\n"));
    free(x);
}

static void add_leaf(void *ctx, const char *key, const char *value)
{
    char *text = ctx;

    sprintf(text + strlen(text), "%s=%s;", key, value);
}

static void leaves_are_listed(void **state)
{
    char text[2000] = "";
    run r = parsed("note: 'a b'\nmethods: [{name: x, layers: [4]}]\n", NULL, 0);

    (void)state;
    ek_config_leaves(&r, fields, add_leaf, text);
    assert_string_equal(text, "seed=42;big=0;keep=0.25;resume=false;model=models/tiny.gguf;"
                              "note=a b;dtype=f32;scorer.hidden=64;scorer.rate=0.001;"
                              "scorer.act=silu;methods.0.name=x;methods.0.window=8;"
                              "methods.0.alpha=null;methods.0.pool=null;methods.0.layers.0=4;"
                              "budgets.0=128;budgets.1=256;tasks.0=needle;");
    ek_config_clear(&r, fields);
}

static void help_names_every_key(void **state)
{
    char *help = ek_config_help(fields);
    int lines = 0;

    (void)state;
    assert_non_null(help);
    for (const char *p = help; *p; p++)
        lines += *p == '\n';
    assert_int_equal(lines, 19);
    assert_non_null(strstr(help, "scorer.hidden "));
    assert_non_null(strstr(help, "a whole number 1 .. 4096"));
    assert_non_null(strstr(help, "units of the hidden layer\n"));
    assert_non_null(strstr(help, "methods.N.pool "));
    assert_non_null(strstr(help, "one of none, mean, max"));
    free(help);
}

static void near_names(void **state)
{
    static const char *const names[] = {"window", "keep", "hidden", "snapkv"};

    (void)state;
    assert_string_equal(ek_nearest("windwo", names, 4), "window");
    assert_string_equal(ek_nearest("kep", names, 4), "keep");
    assert_string_equal(ek_nearest("snapvk", names, 4), "snapkv");
    assert_string_equal(ek_nearest("hid", names + 2, 1) ? "near" : "far", "far");
    assert_null(ek_nearest("xyzzy", names, 4));
    assert_null(ek_nearest("", names, 4));
    assert_null(ek_nearest("q", (const char *const[]){"w"}, 1));
    assert_null(ek_nearest("window", names, 0));
}

static void files_load(void **state)
{
    char folder[] = "/tmp/ek_config_XXXXXX", path[64];
    ek_err err = {0};
    run r = defaults();

    (void)state;
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/run.yaml", folder);
    assert_int_equal(ek_file_write(path, "seed: 5\nkeep: 2\n", 16, &err), EK_OK);
    assert_int_equal(ek_config_load(&r, fields, path, NULL, 0, &err), EK_EASKED);
    assert_int_equal(strncmp(err.msg, path, strlen(path)), 0);
    assert_non_null(strstr(err.msg, "run.yaml: line 2: keep: found 2, expected 0 .. 1"));
    r = defaults();
    assert_int_equal(ek_config_load(&r, fields, path, &(const char *){"keep=1"}, 1, &err), EK_OK);
    assert_true(r.seed == 5 && r.keep == 1);
    ek_config_clear(&r, fields);
    assert_int_equal(ek_file_write(path, "", 0, &err), EK_OK);
    r = defaults();
    assert_int_equal(ek_config_load(&r, fields, path, NULL, 0, &err), EK_EINPUT);
    assert_non_null(strstr(err.msg, "empty file"));
    unlink(path);
    r = defaults();
    assert_int_equal(ek_config_load(&r, fields, path, NULL, 0, &err), EK_EASKED);
    ek_config_clear(&r, fields);
    rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(absent_keys_keep_defaults),
        cmocka_unit_test(everything_loads),
        cmocka_unit_test(damaged_files_are_refused),
        cmocka_unit_test(sizes_are_limited),
        cmocka_unit_test(many_unknown_keys_are_counted),
        cmocka_unit_test(overrides_change_the_tree),
        cmocka_unit_test(wrong_overrides_name_the_option),
        cmocka_unit_test(text_is_complete_and_comes_back),
        cmocka_unit_test(leaves_are_listed),
        cmocka_unit_test(help_names_every_key),
        cmocka_unit_test(near_names),
        cmocka_unit_test(files_load),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
