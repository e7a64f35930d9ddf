/* tests/test_refusals.c - wrong requests and damaged files, all through the real executable: one
 * sentence on standard error, exit status 2, and nothing half-written beside it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "core/file.h"
#include "tests/check_program.h"

enum { WORDS = 12 };

static ek_world world;
static ek_ran ran;
static int n_requests, n_files, n_bad;

static void run(const char *const *args)
{
    ek_program(&ran, &world, NULL, args);
}

static void sound(const char *const *args)
{
    run(args);
    if (ran.status != 0)
        fail_msg("%s %s: exit %d: %s", args[0], args[1] ? args[1] : "", ran.status, ran.err);
}

/* All that goes wrong is shown, not only the first. */
static void refused(const char *what, const char *const *args, const char *expected)
{
    run(args);
    if (!ek_is_refusal(&ran, 2)) {
        print_error("%s: exit %d, expected one sentence and exit 2: %s\n", what, ran.status,
                    ran.err);
        n_bad++;
    } else if (expected && !strstr(ran.err, expected)) {
        print_error("%s: expected \"%s\" in: %s", what, expected, ran.err);
        n_bad++;
    }
}

/* ---- requests ---- */

typedef struct request {
    const char *args[WORDS];
    const char *expected; /* in the sentence; NULL: anything */
} request;

static const request requests[] = {
    {{"nonsense"}, "no command 'nonsense'"},
    {{"evalute", "all.yaml"}, "did you mean 'evaluate'"},
    {{"--nonsense"}, "no command"},
    {{"list"}, "methods, losses, tasks or models"},
    {{"list", "nonsense"}, "no registry 'nonsense'"},
    {{"list", "method"}, "did you mean 'methods'"},
    {{"list", "methods", "more"}, "methods"},
    {{"list", "models", "nowhere"}, "nowhere"},
    {{"doctor", "--nonsense"}, "--nonsense"},
    {{"doctor", "--model", "nowhere.gguf"}, "nowhere.gguf"},
    {{"doctor", "--model"}, "--model"},
    {{"train"}, "configuration"},
    {{"train", "missing.yaml"}, "missing.yaml"},
    {{"train", "train.yaml", "--nonsense"}, "--nonsense"},
    {{"train", "train.yaml", "second.yaml"}, "second.yaml"},
    {{"train", "train.yaml", "-s"}, "-s"},
    {{"train", "train.yaml", "--resume", "--restart"}, "exclude each other"},
    {{"train", "train.yaml", "-s", "steps=0"}, "steps"},
    {{"train", "train.yaml", "-s", "stps=1"}, "\"steps\""},
    {{"train", "train.yaml", "-s", "loss.kind=nonsense"}, "kind"},
    {{"train", "train.yaml", "-s", "model=nowhere.gguf"}, "nowhere.gguf"},
    {{"train", "train.yaml", "-s", "data.length=193", "-s", "data.cuts=3"}, "3 cuts from 128"},
    {{"train", "train.yaml", "-s", "target.horizon=32"}, "data.horizon"},
    {{"train", "train.yaml", "-s", "data.mix=0.5", "-s", "data.length=640"}, "shortest"},
    {{"train", "train.yaml", "-s", "results=\"\""}, "empty name"},
    {{"train", "train.yaml", "-s", "results=\":memory:\""}, "in memory"},
    {{"train", "train.yaml", "-s", "results=\"file:x.db?mode=memory\""}, "a URI"},
    {{"train", "train.yaml", "-s", "method=vector", "-s", "results=\"file:x.db\""}, "a URI"},
    {{"evaluate", "run.yaml", "-s", "results=\"\""}, "empty name"},
    {{"evaluate", "run.yaml", "-s", "results=\":memory:\""}, "in memory"},
    {{"evaluate", "run.yaml", "-s", "results=\"file:x.db?mode=memory\"", "--plan"}, "a URI"},
    {{"evaluate", "run.yaml", "-s", "results=\"FILE:x.db\""}, "a URI"},
    {{"results", "list", "--db", ""}, "empty name"},
    {{"results", "list", "--db", ":memory:"}, "in memory"},
    {{"results", "list", "--db", "file:out.db"}, "a URI"},
    {{"evaluate"}, "CONFIG.yaml"},
    {{"evaluate", "missing.yaml"}, "missing.yaml"},
    {{"evaluate", "run.yaml", "--nonsense"}, "--nonsense"},
    {{"evaluate", "run.yaml", "--limit"}, "--limit"},
    {{"evaluate", "run.yaml", "--limit", "-3"}, "limit"},
    {{"evaluate", "run.yaml", "--limit", "many"}, "limit"},
    {{"evaluate", "run.yaml", "--resume", "--restart"}, "exclude each other"},
    {{"evaluate", "run.yaml", "-s", "sed=4"}, "\"seed\""},
    {{"evaluate", "run.yaml", "-s", "no equals sign"}, "no equals sign"},
    {{"evaluate", "run.yaml", "-s", "methods=[snapvk]"}, "snapkv"},
    {{"evaluate", "run.yaml", "-s", "methods=[foresight]"}, "weights"},
    {{"evaluate", "run.yaml", "-s", "methods=[tova, tova]"}, "twice"},
    {{"evaluate", "run.yaml", "-s", "budgets=[0.5, .50]"}, "twice"},
    {{"evaluate", "run.yaml", "-s", "methods=[{name: tova, label: full}]"}, "label"},
    {{"evaluate", "run.yaml", "-s", "methods=[tova, {name: h2o, label: tova}]"}, "both called"},
    {{"evaluate", "run.yaml", "-s", "methods=[{name: tova, weights: text}]"}, "not learned"},
    {{"evaluate", "run.yaml", "-s", "tasks=[nonsense]"}, "tasks"},
    {{"evaluate", "run.yaml", "-s", "budgets=[1.5]"}, "budgets"},
    {{"evaluate", "run.yaml", "-s", "budgets=[0]"}, "budgets"},
    {{"evaluate", "run.yaml", "-s", "budgets=[{keep: 0.5, entries: 9}]"}, "expected one"},
    {{"evaluate", "run.yaml", "-s", "budgets=[{compression_ratio: 0.5}]"}, "compression_ratio"},
    {{"evaluate", "run.yaml", "-s", "tasks.0.prompt=2000"}, "1024"},
    {{"evaluate", "run.yaml", "-s", "tasks=[{name: passkey, text: text, lengths: [400, 1025]}]"},
     "1024"},
    {{"evaluate", "run.yaml", "-s",
      "tasks=[{name: kv_needle, text: text, lengths: [900, 64], depths: [50], repeats: 1}]"},
     "length 64 leaves"},
    {{"evaluate", "run.yaml", "--plan", "-s",
      "tasks=[{name: passkey, text: text, lengths: [900, 64], depths: [50], repeats: 1}]"},
     "length 64 leaves"},
    {{"evaluate", "run.yaml", "-s",
      "tasks=[{name: fidelity, text: text, prompt: 96, continuation: 16, samples: 2}, "
      "{name: fidelity, text: text, prompt: 96, continuation: 16, samples: 1}]"},
     "a label"},
    {{"evaluate", "run.yaml", "-s", "tasks.0.samples=5000"}, "windows"},
    {{"evaluate", "run.yaml", "-s", "tasks.0.text=nowhere"}, "nowhere"},
    {{"generate"}, "--model"},
    {{"generate", "--model", "nowhere.gguf", "hello"}, "nowhere.gguf"},
    {{"generate", "--model", "tiny.gguf"}, "PROMPT"},
    {{"generate", "--model", "tiny.gguf", "--polcy", "full", "hello"}, "--policy"},
    {{"generate", "--model", "tiny.gguf", "--policy", "nonsense", "hello"}, "nonsense"},
    {{"generate", "--model", "tiny.gguf", "--policy", "tova:wndow=3", "hello"}, "wndow"},
    {{"generate", "--model", "tiny.gguf", "--policy", "foresight", "--keep", "0.5", "hello"},
     "weights"},
    {{"generate", "--model", "tiny.gguf", "--keep", "2", "hello"}, NULL},
    {{"generate", "--model", "tiny.gguf", "--max-new", "x", "hello"}, "max-new"},
    {{"generate", "--model", "tiny.gguf", "--prompt-file", "nowhere.txt"}, "nowhere.txt"},
    {{"generate", "--model", "tiny.gguf", "--prompt-file", "text"}, "cannot read"},
    {{"generate", "--model", "tiny.gguf", "--save-plan", "", "hello"}, "empty name"},
    {{"generate", "--model", "tiny.gguf", "--save-plan", "text", "hello"}, "a folder"},
    {{"bench", "--nonsense"}, "--nonsense"},
    {{"bench", "--model", "nowhere.gguf"}, "nowhere.gguf"},
    {{"results", "nonsense"}, "nonsense"},
    {{"results", "list", "--db", "nowhere.db"}, "nowhere.db"},
    {{"results", "show", "ffff", "--db", "out.db"}, "ffff"},
    {{"results", "query", "DROP TABLE run", "--db", "out.db"}, NULL},
    {{"results", "query", "SELECT nonsense FROM run", "--db", "out.db"}, "nonsense"},
    {{"results", "export", "xml", "--db", "out.db"}, "xml"},
    {{"results", "export", "csv", "--db", "out.db", "-o", "text"}, "a folder"},
    {{"results", "export", "md", "--db", "out.db", "--metric", "nonsense"}, "nonsense"},
    {{"results", "export", "kvpress", "--db", "out.db", "-o", ""}, "empty name"},
    {{"results", "export", "csv", "--db", "out.db", "-o", "run.yaml/x.csv"}, "not a folder"},
    {{"results", "plot", "--db", "out.db", "-o", "run.yaml/x.png"}, "run.yaml is not a folder"},
    {{"results", "plot", "--db", "out.db", "-o", "run.yaml/a/x.png"}, "run.yaml is not a folder"},
    {{"results", "plot", "--db", "out.db", "-o", "text/"}, "a folder"},
    {{"results", "plot", "--db", "out.db", "-o", "drawn.svg"}, "drawn.png: found a folder"},
    {{"results", "compare", "--metric", "nonsense", "--db", "out.db"}, "nonsense"},
};

static void wrong_requests_end_in_a_sentence(void **state)
{
    char what[64];

    (void)state;
    ek_world_text(&world, "drawn.png/x", "in the way of a figure");
    for (size_t i = 0; i < EK_COUNT(requests); i++) {
        snprintf(what, sizeof what, "request %zu (%s)", i + 1, requests[i].args[0]);
        refused(what, requests[i].args, requests[i].expected);
        n_requests++;
    }
    {
        const char *none[] = {NULL}, *results[] = {"results", NULL};

        run(none); /* without a word it lists the commands */
        assert_int_equal(ran.status, 2);
        assert_non_null(strstr(ran.err, "usage: evictkit COMMAND"));
        run(results);
        assert_int_equal(ran.status, 2);
        assert_non_null(strstr(ran.err, "usage: evictkit results list"));
    }
    print_message("%d wrong requests: one sentence, exit 2\n", n_requests);
    assert_int_equal(n_bad, 0);
    assert_true(n_requests >= 25);
}

/* The database is what an export reads: no spelling of its name is written to. */
static void the_database_is_not_written_over(void **state)
{
    static const char *const names[] = {
        "out.db",       "./text/../out.db",      "soft.db", "hard.db", "out.db-wal",
        "./out.db-shm", "text/../out.db-journal"};
    const char *export[] = {"results", "export", "csv", "last", "--db", "out.db", "-o", "", NULL};
    const char *plot[] = {"results", "plot", "--db", "out.db", "-o", "", NULL};
    const char *through[] = {"results", "export", "csv",        "last", "--db",
                             "soft.db", "-o",     "out.db-wal", NULL};
    const char *drawn[] = {"results", "plot", "--db", "soft.svg", "-o", "soft.png", NULL};
    const char *other[] = {"results", "export", "csv",        "last", "--db",
                           "out.db",  "-o",     "out.db.csv", NULL};
    const char *read[] = {"results", "compare", "--db", "out.db", NULL};

    (void)state;
    n_bad = 0;
    assert_int_equal(symlink("out.db", ek_world_path(&world, "soft.db")), 0);
    assert_int_equal(symlink("out.db", ek_world_path(&world, "soft.svg")), 0);
    assert_int_equal(link(ek_world_path(&world, "out.db"), ek_world_path(&world, "hard.db")), 0);
    for (size_t i = 0; i < EK_COUNT(names); i++) {
        export[7] = plot[5] = names[i];
        refused(names[i], export, "overwrite the database");
        refused(names[i], plot, "overwrite the database");
    }
    refused("beside what a link leads to", through, "overwrite the database");
    refused("the other figure", drawn, "overwrite the database");
    assert_int_equal(n_bad, 0);
    sound(other);
    sound(read);
}

/* ---- damage ---- */

typedef struct bytes {
    char *data;
    size_t size;
} bytes;

static bytes load(const char *name)
{
    bytes b = {0};
    FILE *f = fopen(ek_world_path(&world, name), "rb");

    assert_non_null(f);
    assert_int_equal(fseek(f, 0, SEEK_END), 0);
    b.size = (size_t)ftell(f);
    rewind(f);
    b.data = malloc(b.size + 4096);
    assert_non_null(b.data);
    assert_int_equal(fread(b.data, 1, b.size, f), b.size);
    fclose(f);
    return b;
}

typedef enum damage_kind {
    CUT,     /* the file ends after a share of at/1000 */
    LOSE,    /* the last `at` bytes are missing */
    PUT,     /* eight bytes at `at` (from the end if negative) become `value` */
    REPLACE, /* the first `find` becomes `with`, of the same length */
    WHOLE    /* the file becomes `with` */
} damage_kind;

typedef struct damage {
    const char *what;
    damage_kind kind;
    long at;
    uint64_t value;
    const char *find, *with;
} damage;

static size_t find(const bytes *b, const char *what)
{
    const size_t n = strlen(what);

    for (size_t i = 0; i + n <= b->size; i++)
        if (memcmp(b->data + i, what, n) == 0)
            return i;
    fail_msg("\"%s\" is not in the file", what);
    return 0;
}

static void do_damage(bytes *b, const damage *d)
{
    switch (d->kind) {
    case CUT:
        b->size = b->size * (size_t)d->at / 1000;
        break;
    case LOSE:
        b->size -= (size_t)d->at;
        break;
    case PUT:
        memcpy(b->data + (d->at < 0 ? (long)b->size : 0) + d->at, &d->value, 8);
        break;
    case REPLACE:
        assert_int_equal(strlen(d->find), strlen(d->with));
        memcpy(b->data + find(b, d->find), d->with, strlen(d->with));
        break;
    case WHOLE:
        b->size = strlen(d->with);
        memcpy(b->data, d->with, b->size);
        break;
    }
}

/* Damages a sound file in each way and asks for it; the sound one must do. */
static void each(const char *file, const damage *d, size_t n, const char *const *args)
{
    const bytes good = load(file);
    char what[160];

    for (size_t i = 0; i < n; i++) {
        bytes b = {malloc(good.size + 4096), good.size};

        assert_non_null(b.data);
        memcpy(b.data, good.data, good.size);
        do_damage(&b, &d[i]);
        ek_world_write(&world, file, b.data, b.size);
        free(b.data);
        snprintf(what, sizeof what, "%s: %s", file, d[i].what);
        refused(what, args, NULL);
        n_files++;
    }
    ek_world_write(&world, file, good.data, good.size);
    free(good.data);
    sound(args);
}

/* Bytes: magic 0, version 4, tensors 8, keys 16, then the first key's length 24 and name 32. */
static const damage in_gguf[] = {
    {"empty", .kind = WHOLE, .with = ""},
    {"text", .kind = WHOLE, .with = "this is not a model, but long enough to be looked at\n"},
    {"the magic alone", .kind = WHOLE, .with = "GGUF"},
    {"another magic", .kind = REPLACE, .find = "GGUF", .with = "GGML"},
    {"version 99", .kind = PUT, .at = 4, .value = 99 | 2ull << 32},
    {"2^60 tensors", .kind = PUT, .at = 8, .value = 1ull << 60},
    {"2^60 keys", .kind = PUT, .at = 16, .value = 1ull << 60},
    {"a name of 2^62 bytes", .kind = PUT, .at = 24, .value = 1ull << 62},
    {"one key more than there is", .kind = PUT, .at = 16, .value = 24},
    {"no architecture", .kind = REPLACE, .find = "general.arch", .with = "generalXarch"},
    {"unknown architecture", .kind = REPLACE, .find = "llama", .with = "lamma"},
    {"no layers", .kind = REPLACE, .find = "block_count", .with = "block_koint"},
    {"no tokens", .kind = REPLACE, .find = "ggml.tokens", .with = "ggml.takens"},
    {"no merges", .kind = REPLACE, .find = "ggml.merges", .with = "ggml.marges"},
    {"unknown pre-tokenizer", .kind = REPLACE, .find = "smollm", .with = "smallm"},
    {"a tensor by another name", .kind = REPLACE, .find = "blk.1.attn_q", .with = "blk.7.attn_q"},
    {"half of it", .kind = CUT, .at = 500},
    {"its first hundredth", .kind = CUT, .at = 10},
    {"without its last bytes", .kind = LOSE, .at = 5},
    {"a weight that is no number", .kind = PUT, .at = -16, .value = 0x7fc000007fc00000},
    {"an infinite weight", .kind = PUT, .at = -64, .value = 0x7f8000007f800000},
};

static const damage in_weights[] = {
    {"empty", .kind = WHOLE, .with = ""},
    {"a head of 2^60 bytes", .kind = PUT, .at = 0, .value = 1ull << 60},
    {"a head of 0 bytes", .kind = PUT, .at = 0, .value = 0},
    {"another type", .kind = REPLACE, .find = "\"F32\"", .with = "\"F99\""},
    {"offsets beyond the end", .kind = REPLACE, .find = "data_offsets\":[0,",
     .with = "data_offsets\":[9,"},
    {"half of it", .kind = CUT, .at = 500},
    {"without its last byte", .kind = LOSE, .at = 1},
    {"one number changed", .kind = PUT, .at = -8, .value = 0x3f8000003f800000},
    {"a number that is none", .kind = PUT, .at = -8, .value = 0x7fc000007fc00000},
};

static const damage in_settings[] = {
    {"empty", .kind = WHOLE, .with = ""},
    {"a list", .kind = WHOLE, .with = "[1, 2, 3]"},
    {"deep", .kind = WHOLE, .with = "[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[["},
    {"half of it", .kind = CUT, .at = 500},
    {"another format", .kind = REPLACE, .find = "evictkit scorer", .with = "evictkit sc0rer"},
    {"another method", .kind = REPLACE, .find = "\"foresight\"", .with = "\"kvpopular\""},
    {"no model", .kind = REPLACE, .find = "\"model\"", .with = "\"moder\""},
    {"weights of no hash", .kind = REPLACE, .find = "\"weights\": \"", .with = "\"weights\":\"x"},
    {"a key nobody knows", .kind = REPLACE, .find = "\"norm\"", .with = "\"nprm\""},
    {"another window", .kind = REPLACE, .find = "\"recent\": 16", .with = "\"recent\": 48"},
    {"an unknown age", .kind = REPLACE, .find = "\"input\"", .with = "\"inpot\""},
};

static const damage in_yaml[] = {
    {"empty", .kind = WHOLE, .with = ""},
    {"a list", .kind = WHOLE, .with = "- model\n- results\n"},
    {"a word", .kind = WHOLE, .with = "model\n"},
    {"binary", .kind = WHOLE, .with = "\x01\x02\xff\xfe\x80"},
    {"a tab", .kind = REPLACE, .find = "seed: 3", .with = "\tseed:3"},
    {"an open bracket", .kind = REPLACE, .find = "tova]", .with = "tova "},
    {"an unknown key", .kind = REPLACE, .find = "seed:", .with = "sead:"},
    {"a word for a number", .kind = REPLACE, .find = "seed: 3", .with = "seed: x"},
    {"a number below its range", .kind = REPLACE, .find = "seed: 3", .with = "seed:-3"},
    {"a key twice", .kind = REPLACE, .find = "decode: grow", .with = "seed:    4  "},
    {"an unknown choice", .kind = REPLACE, .find = "grow", .with = "grew"},
    {"an unknown alias", .kind = REPLACE, .find = "seed: 3", .with = "seed:*a"},
    {"a mapping for a list", .kind = REPLACE, .find = "[0.5]", .with = "{a: }"},
    {"a budget of nothing", .kind = REPLACE, .find = "[0.5]", .with = "[0.0]"},
    {"an unknown method", .kind = REPLACE, .find = "tova]", .with = "tovo]"},
    {"an unknown task", .kind = REPLACE, .find = "name: fidelity", .with = "name: infidels"},
    {"no model", .kind = REPLACE, .find = "model: ", .with = "seed: 4"},
    {"half of it", .kind = CUT, .at = 400},
};

static const damage in_database[] = {
    {"text", .kind = WHOLE,
     .with = "this is not a database, but it is long enough to be looked at "
             "as if it were one, with a head of a hundred bytes and more\n"},
    {"the magic alone", .kind = WHOLE, .with = "SQLite format 3"},
    {"of another program", .kind = PUT, .at = 68, .value = 0x12345678},
    {"of a newer version", .kind = PUT, .at = 60, .value = 99ull << 24},
    {"another page size", .kind = PUT, .at = 16, .value = 0x0102030405060708},
    {"half of it", .kind = CUT, .at = 500},
    {"its first tenth", .kind = CUT, .at = 100},
    {"a schema that is none", .kind = REPLACE, .find = "CREATE TABLE run(",
     .with = "CREATE TABEL run("},
};

static const damage in_trace[] = {
    {"text", .kind = WHOLE, .with = "this is not a trace\n"},
    {"half of it", .kind = CUT, .at = 500},
    {"without its last byte", .kind = LOSE, .at = 1},
    {"another magic", .kind = PUT, .at = 0, .value = 0},
    {"an offset far away", .kind = PUT, .at = -8, .value = 1ull << 50},
};

static const damage in_text[] = {
    {"empty", .kind = WHOLE, .with = ""},
    {"bytes that are no UTF-8", .kind = PUT, .at = 4000, .value = 0xffffffffffffffff},
    {"a NUL", .kind = PUT, .at = 4000, .value = 0},
};

#define EACH(file, d, ...) each(file, d, EK_COUNT(d), (const char *const[]){__VA_ARGS__, NULL})

static void damaged_files_end_in_a_sentence(void **state)
{
    (void)state;
    n_bad = 0;
    EACH("tiny.gguf", in_gguf, "generate", "--model", "tiny.gguf", "--max-new", "2", "hello");
    EACH("w/model.safetensors", in_weights, "generate", "--model", "tiny.gguf", "--policy",
         "foresight", "--weights", "w", "--keep", "0.5", "--max-new", "2", "hello");
    EACH("w/config.json", in_settings, "generate", "--model", "tiny.gguf", "--policy", "foresight",
         "--weights", "w", "--keep", "0.5", "--max-new", "2", "hello");
    EACH("run.yaml", in_yaml, "evaluate", "run.yaml");
    EACH("text/tiny.txt", in_text, "evaluate", "run.yaml", "--plan");
    EACH("out.db", in_database, "results", "compare", "--db", "out.db");
    EACH("w/records.trace", in_trace, "train", "train.yaml", "--quiet");
    print_message("%d damaged files: one sentence, exit 2\n", n_files);
    assert_int_equal(n_bad, 0);
    assert_true(n_files >= 40);
}

static void nothing_half_written_remains(void **state)
{
    const char *bad[] = {"generate",      "--model", "tiny.gguf", "--policy",
                         "nonsense",      "--keep",  "0.5",       "--save-plan",
                         "p.safetensors", "hello",   NULL};
    const char *good[] = {"generate",    "--model",       "tiny.gguf", "--max-new", "2",
                          "--save-plan", "p.safetensors", "hello",     NULL};

    (void)state;
    n_bad = 0;
    refused("a plan that is not made", bad, NULL);
    assert_int_equal(n_bad, 0);
    assert_false(ek_file_exists(ek_world_path(&world, "p.safetensors")));
    sound(good);
    assert_true(ek_file_exists(ek_world_path(&world, "p.safetensors")));
}

static int set_up(void **state)
{
    const char *train[] = {"train", "train.yaml", "--quiet", NULL};
    const char *evaluate[] = {"evaluate", "run.yaml", NULL};

    (void)state;
    ek_world_open(&world, "refusals");
    ek_world_text(&world, "train.yaml",
                  "model: tiny.gguf\nout: w\nseed: 1\nmethod: foresight\nsinks: 2\nrecent: 16\n"
                  "scorer: {kind: mlp, age: input, hidden: 8}\nloss: {kind: listwise}\n"
                  "data: {texts: text, mix: 0, sequences: 3, valid: 1, length: 256, cut: 128, "
                  "horizon: 64, entries: 64}\ntrace: disk\nsteps: 2\nbatch: 2\n");
    ek_world_text(&world, "run.yaml",
                  "model: tiny.gguf\nresults: out.db\nseed: 3\ndecode: grow\n"
                  "methods: [recency, tova]\nbudgets: [0.5]\n"
                  "tasks:\n  - {name: fidelity, text: text, prompt: 96, continuation: 16, "
                  "samples: 2}\n");
    sound(train);
    sound(evaluate);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    ek_world_close(&world);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wrong_requests_end_in_a_sentence),
        cmocka_unit_test(the_database_is_not_written_over),
        cmocka_unit_test(damaged_files_end_in_a_sentence),
        cmocka_unit_test(nothing_half_written_remains),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
