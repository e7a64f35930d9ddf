/* results/cmd_results.c - `evictkit results`: read the database. */
#include "commands.h"
#include "core/config.h"
#include "core/file.h"
#include "results/metric.h"
#include "results/report.h"
#include "results/store.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef EK_SHARE_DIR
#define EK_SHARE_DIR "."
#endif

enum { WORDS = 9, RUNS = WORDS - 1 };

typedef struct options {
    const char *db, *out, *base, *against, *method, *task, *metric[EK_EXPORT_METRICS], *seed;
    const char *word[WORDS]; /* after the subcommand */
    int n_words, n_metrics, force, measured, curves, ablation;
} options;

static const char help[] =
    "usage: evictkit results list\n"
    "       evictkit results show [RUN]\n"
    "       evictkit results compare [RUN [RUN2]] [--base METHOD] [--against METHOD|best|all]\n"
    "                                [--method METHOD] [--metric NAME]... [--seed N] [--force]\n"
    "       evictkit results query SQL|FILE.sql [RUN]     (?1 in the SQL is the run)\n"
    "       evictkit results export csv|jsonl|md|kvpress|lm-eval [RUN] [-o FILE|FOLDER]\n"
    "                                [--metric NAME]...   (columns of md, rows of csv)\n"
    "       evictkit results export csv RUN... -o FILE.csv [--metric NAME]...\n"
    "       evictkit results plot [RUN]... [-o FILE.png] [--metric NAME]... [--method NAME,...]\n"
    "                             [--task NAME,...] [--measured]\n"
    "       evictkit results plot --ablation [RUN]... | --curves [TRAINING RUN]...\n"
    "       evictkit results rebuild [RUN|all]            aggregates anew, from the samples\n"
    "\n"
    "RUN is `last` (what is meant if it is absent), an id or the beginning of one.\n"
    "--db FILE names the database (results/evictkit.db).\n"
    "\n"
    "plot draws quality against the kept fraction (--method: of the learned methods and oracles\n"
    "these alone; --task: these panels, \"passkey aware\" where the question was seen); "
    "--ablation\n"
    "trained variants side by side; --curves loss, recall, boundary accuracy and gradient norm of\n"
    "training runs (the last, if none is named).  Runs whose caches evict at different times\n"
    "(decode: grow, hold) never share a table or a figure.\n"
    "\n"
    "compare prints, per task and budget, every method with its paired difference to full cache\n"
    "(or --base) and its 95 % bootstrap interval; then each learned method (or --method) against\n"
    "the best training-free one of the same budget (or --against another, or all of them).\n"
    "Runs that differ in prompts, protocol, query_aware, model or kernel are not compared without\n"
    "--force.  query reads only: tables and views are those of results/schema.sql, and\n"
    "results/queries/ holds ready ones.\n";

/* ---- options ---- */

/* The value of "--name VALUE" or "--name=VALUE" at argv[*i], or NULL if it is another option. */
static const char *option(int argc, char **argv, int *i, const char *name, ek_err *err,
                          ek_code *code)
{
    const size_t n = strlen(name);

    if (strncmp(argv[*i], name, n) != 0)
        return NULL;
    if (argv[*i][n] == '=')
        return argv[*i] + n + 1;
    if (argv[*i][n])
        return NULL;
    if (*i + 1 >= argc) {
        *code = EK_FAIL(err, EK_EASKED, "results: %s needs a value", name);
        return "";
    }
    return argv[++*i];
}

static ek_code take_option(options *o, int argc, char **argv, int *i, ek_err *err)
{
    const struct {
        const char *name;
        const char **value;
    } known[] = {{"--db", &o->db},         {"--out", &o->out},   {"-o", &o->out},
                 {"--base", &o->base},     {"--seed", &o->seed}, {"--against", &o->against},
                 {"--method", &o->method}, {"--task", &o->task}};
    ek_code code = EK_OK;
    const char *value;

    for (size_t k = 0; k < EK_COUNT(known); k++) {
        if ((value = option(argc, argv, i, known[k].name, err, &code)) != NULL) {
            *known[k].value = value;
            return code;
        }
    }
    if ((value = option(argc, argv, i, "--metric", err, &code)) != NULL) {
        if (code == EK_OK && o->n_metrics == EK_EXPORT_METRICS)
            return EK_FAIL(err, EK_EASKED, "results: at most %d metrics", EK_EXPORT_METRICS);
        if (code == EK_OK)
            o->metric[o->n_metrics++] = value;
        return code;
    }
    if (strcmp(argv[*i], "--force") == 0) {
        o->force = 1;
        return EK_OK;
    }
    if (strcmp(argv[*i], "--measured") == 0) {
        o->measured = 1;
        return EK_OK;
    }
    if (strcmp(argv[*i], "--curves") == 0) {
        o->curves = 1;
        return EK_OK;
    }
    if (strcmp(argv[*i], "--ablation") == 0) {
        o->ablation = 1;
        return EK_OK;
    }
    return EK_FAIL(err, EK_EASKED, "results: unknown option %s; evictkit results --help lists them",
                   argv[*i]);
}

static ek_code parse(options *o, int argc, char **argv, ek_err *err)
{
    *o = (options){.db = "results/evictkit.db"};
    for (int i = 2; i < argc; i++) {
        if (argv[i][0] == '-' && argv[i][1]) {
            EK_TRY(take_option(o, argc, argv, &i, err));
        } else if (o->n_words == WORDS) {
            return EK_FAIL(err, EK_EASKED, "results: unexpected word \"%s\"", argv[i]);
        } else {
            o->word[o->n_words++] = argv[i];
        }
    }
    return EK_OK;
}

static ek_code at_most(const options *o, int n, ek_err *err)
{
    if (o->n_words <= n)
        return EK_OK;
    return EK_FAIL(err, EK_EASKED, "results: unexpected word \"%s\"", o->word[n]);
}

/* What is read must not be written over. */
static ek_code refuse_database(const options *o, const char *out, ek_err *err)
{
    if (!ek_store_owns(o->db, out))
        return EK_OK;
    return EK_FAIL(err, EK_EASKED,
                   "%s: this would overwrite the database %s; -o must name another file", out,
                   o->db);
}

/* ---- subcommands: each appends to out ---- */

static ek_code cmd_list(ek_store *s, const options *o, ek_text *out, ek_err *err)
{
    EK_TRY(at_most(o, 0, err));
    return ek_report_list(s, out, err);
}

static ek_code cmd_show(ek_store *s, const options *o, ek_text *out, ek_err *err)
{
    char id[33];

    EK_TRY(at_most(o, 1, err));
    EK_TRY(ek_report_run(s, o->word[0], NULL, id, err));
    return ek_report_show(s, id, out, err);
}

static ek_code cmd_compare(ek_store *s, const options *o, ek_text *out, ek_err *err)
{
    char id[33], id2[33], *end = NULL;
    ek_compare how = {.run = id,
                      .base = o->base,
                      .against = o->against,
                      .method = o->method,
                      .metric = o->metric,
                      .n_metrics = o->n_metrics,
                      .force = o->force,
                      .seed = EK_STAT_SEED};

    EK_TRY(at_most(o, 2, err));
    if (o->seed) {
        errno = 0;
        how.seed = strtoull(o->seed, &end, 10);
        if (errno || *end || !*o->seed || *o->seed == '-')
            return EK_FAIL(err, EK_EASKED, "results: --seed: found \"%s\", expected a number",
                           o->seed);
    }
    EK_TRY(ek_report_run(s, o->word[0], "evaluate", id, err));
    if (o->n_words == 2) {
        EK_TRY(ek_report_run(s, o->word[1], "evaluate", id2, err));
        if (strcmp(id, id2) == 0)
            return EK_FAIL(err, EK_EASKED, "results: %.8s and %.8s are the same run", id, id2);
        how.run2 = id2;
    }
    return ek_report_compare(s, &how, out, err);
}

static ek_code cmd_query(ek_store *s, const options *o, ek_text *out, ek_err *err)
{
    const char *sql = o->word[0];
    size_t n;
    char id[33], *text = NULL;
    int known;
    ek_err none;
    ek_code code;
    ek_map map;

    EK_TRY(at_most(o, 2, err));
    if (!sql)
        return EK_FAIL(err, EK_EASKED, "results query: which SQL, or which file of it?");
    /* A database without runs can still be asked about. */
    known = ek_report_run(s, o->word[1], NULL, id, o->word[1] ? err : &none) == EK_OK;
    if (!known && o->word[1])
        return err->code;
    n = strlen(sql);
    if (n > 4 && strcmp(sql + n - 4, ".sql") == 0) {
        EK_TRY(ek_map_open(&map, sql, err));
        if (map.size > 1 << 20) {
            ek_map_close(&map);
            return EK_FAIL(err, EK_EINPUT, "%s: larger than 1 MiB", sql);
        }
        text = strndup(map.data ? (const char *)map.data : "", map.size);
        ek_map_close(&map);
        if (!text)
            return EK_FAIL(err, EK_ENOMEM, "%s: out of memory", sql);
    }
    code = ek_report_query(s, text ? text : sql, known ? id : NULL, out, err);
    free(text);
    return code;
}

/* The runs named from word `from` on, or the last of the kind; at most RUNS.  No run twice. */
static ek_code find_runs(ek_store *s, const options *o, int from, const char *kind,
                         char run[RUNS][33], int *n, ek_err *err)
{
    *n = 0;
    do {
        EK_TRY(ek_report_run(s, from + *n < o->n_words ? o->word[from + *n] : NULL, kind, run[*n],
                             err));
        for (int i = 0; i < *n; i++)
            if (strcmp(run[i], run[*n]) == 0)
                return EK_FAIL(err, EK_EASKED, "results: run %.8s is named twice", run[i]);
        ++*n;
    } while (from + *n < o->n_words && *n < RUNS);
    return EK_OK;
}

static ek_code cmd_export(ek_store *s, const options *o, ek_text *out, ek_err *err)
{
    char run[RUNS][33];
    ek_export how = {.form = o->word[0], .run = run[0], .path = o->out ? o->out : "results/export"};
    int n;

    if (!how.form)
        return EK_FAIL(err, EK_EASKED,
                       "results export: which form: csv, jsonl, md, kvpress or lm-eval?");
    EK_TRY(at_most(o, strcmp(how.form, "csv") == 0 ? WORDS : 2, err));
    for (int i = 0; i < o->n_metrics; i++)
        how.metric[how.n_metrics++] = o->metric[i];
    EK_TRY(find_runs(s, o, 1, "evaluate", run, &n, err));
    EK_TRY(ek_report_one_decode(s, (const char(*)[33])run, n, err));
    how.also = (const char(*)[33])(run + 1);
    how.n_also = n - 1;
    EK_TRY(ek_report_export(s, &how, out, err));
    if (o->out && strcmp(how.form, "kvpress") != 0 && strcmp(how.form, "lm-eval") != 0) {
        EK_TRY(ek_make_parent(o->out, err));
        EK_TRY(ek_file_write(o->out, out->data ? out->data : "", out->size, err));
        ek_text_clear(out);
    }
    return EK_OK;
}

static ek_code cmd_rebuild(ek_store *s, const options *o, ek_text *out, ek_err *err)
{
    char id[33];

    EK_TRY(at_most(o, 1, err));
    if (o->word[0] && strcmp(o->word[0], "all") == 0) {
        EK_TRY(ek_store_rebuild_metrics(s, NULL, err));
        ek_text_add(out, "aggregates of all runs are made anew\n");
        return EK_OK;
    }
    EK_TRY(ek_report_run(s, o->word[0], "evaluate", id, err));
    EK_TRY(ek_store_rebuild_metrics(s, id, err));
    ek_text_add(out, "aggregates of run %.8s are made anew\n", id);
    return EK_OK;
}

/* ---- plot ---- */

/* plot.py of $EVICTKIT_SHARE, of the source tree, of the folder above the executable, or of here.
 */
static ek_code find_script(char *path, size_t size, ek_err *err)
{
    const char *share = getenv("EVICTKIT_SHARE");
    char self[1000];
    const ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    char *slash;

    if (share) {
        snprintf(path, size, "%s/results/plot.py", share);
        if (ek_file_exists(path))
            return EK_OK;
        return EK_FAIL(err, EK_EASKED, "%s: not there; EVICTKIT_SHARE should name the source tree",
                       path);
    }
    snprintf(path, size, "%s/results/plot.py", EK_SHARE_DIR);
    if (ek_file_exists(path))
        return EK_OK;
    if (n > 0) {
        self[n] = 0;
        for (int up = 0; up < 2 && (slash = strrchr(self, '/')) != NULL; up++)
            *slash = 0;
        snprintf(path, size, "%s/results/plot.py", self);
        if (ek_file_exists(path))
            return EK_OK;
    }
    snprintf(path, size, "results/plot.py");
    if (ek_file_exists(path))
        return EK_OK;
    return EK_FAIL(err, EK_EASKED,
                   "results/plot.py is not found; EVICTKIT_SHARE may name the source tree");
}

enum { NO_PYTHON = 127, NO_LIBRARY = 3 }; /* exit statuses */

static ek_code run_program(const char *const *argv, int *status, ek_err *err)
{
    int raw = 0;
    pid_t child;

    fflush(stdout);
    child = fork();
    if (child == 0) {
        execvp(argv[0], (char *const *)argv);
        _exit(NO_PYTHON);
    }
    if (child < 0 || waitpid(child, &raw, 0) < 0)
        return EK_FAIL(err, EK_EIO, "%s: %s", argv[0], strerror(errno));
    *status = WIFEXITED(raw) ? WEXITSTATUS(raw) : 1;
    return EK_OK;
}

/* plot.py writes NAME.png and NAME.svg, whichever of them is asked for: can it, and may it? */
static ek_code check_figures(const options *o, const char *out, ek_err *err)
{
    static const char *const kinds[] = {"png", "svg"};
    const char *slash = strrchr(out, '/'), *base = slash ? slash + 1 : out;
    const char *dot = strrchr(base, '.');
    const size_t stem = dot != NULL && dot > base ? (size_t)(dot - out) : strlen(out);
    char name[PATH_MAX];

    struct stat st;

    if (stem + 5 > sizeof name)
        return EK_FAIL(err, EK_EASKED, "results plot: --out: found a name of %zu bytes", stem);
    if (!*base)
        return EK_FAIL(err, EK_EASKED, "%s: found a folder, expected the name of a figure", out);
    for (size_t i = 0; i < EK_COUNT(kinds); i++) {
        snprintf(name, sizeof name, "%.*s.%s", (int)stem, out, kinds[i]);
        EK_TRY(refuse_database(o, name, err));
        if (stat(name, &st) == 0 && !S_ISREG(st.st_mode))
            return EK_FAIL(err, EK_EASKED, "%s: found %s, expected a regular file or none", name,
                           S_ISDIR(st.st_mode) ? "a folder" : "a special file");
    }
    return ek_make_parent(out, err);
}

static ek_code cmd_plot(ek_store *s, const options *o, ek_text *out, ek_err *err)
{
    static const char *const python[] = {"python3", "/usr/bin/python3"};
    char run[RUNS][33], script[1100];
    const char *argv[18 + 2 * RUNS + 2 * EK_EXPORT_METRICS];
    const char *to = o->out ? o->out : "results/plot.png";
    int n = 0, n_runs, status = NO_PYTHON;

    (void)out;
    if (o->curves && o->ablation)
        return EK_FAIL(err, EK_EASKED, "results plot: --curves and --ablation are two figures");
    EK_TRY(at_most(o, RUNS, err));
    EK_TRY(find_runs(s, o, 0, o->curves ? "train" : "evaluate", run, &n_runs, err));
    if (!o->curves)
        EK_TRY(ek_report_one_decode(s, (const char(*)[33])run, n_runs, err));
    EK_TRY(check_figures(o, to, err));
    EK_TRY(find_script(script, sizeof script, err));
    argv[n++] = NULL;
    argv[n++] = script;
    argv[n++] = "--db";
    argv[n++] = o->db;
    for (int i = 0; i < n_runs; i++) {
        argv[n++] = "--run";
        argv[n++] = run[i];
    }
    argv[n++] = "--kind";
    argv[n++] = o->curves ? "curves" : o->ablation ? "ablation" : "quality";
    argv[n++] = "--out";
    argv[n++] = to;
    for (int i = 0; i < o->n_metrics; i++) {
        argv[n++] = "--metric";
        argv[n++] = o->metric[i];
    }
    if (o->method) {
        argv[n++] = "--method";
        argv[n++] = o->method;
    }
    if (o->task) {
        argv[n++] = "--task";
        argv[n++] = o->task;
    }
    if (o->measured)
        argv[n++] = "--measured";
    argv[n] = NULL;
    /* A python3 that comes first in PATH may lack the system's packages. */
    for (size_t i = 0; i < EK_COUNT(python) && (status == NO_PYTHON || status == NO_LIBRARY); i++) {
        argv[0] = python[i];
        EK_TRY(run_program(argv, &status, err));
    }
    if (status == NO_PYTHON)
        return EK_FAIL(err, EK_EIO, "plot needs python3, which is not installed");
    if (status == NO_LIBRARY)
        return EK_FAIL(err, EK_EIO,
                       "plot needs matplotlib: apt-get install python3-matplotlib, or "
                       "pip install matplotlib");
    if (status != 0)
        return EK_FAIL(err, status == 2 ? EK_EASKED : EK_EIO, "%s", ""); /* plot.py said why */
    return EK_OK;
}

/* ---- the command ---- */

typedef struct subcommand {
    const char *name;
    ek_store_mode mode;
    ek_code (*run)(ek_store *s, const options *o, ek_text *out, ek_err *err);
} subcommand;

static const subcommand subcommands[] = {
    {"list", EK_STORE_READ, cmd_list},        {"show", EK_STORE_READ, cmd_show},
    {"compare", EK_STORE_READ, cmd_compare},  {"query", EK_STORE_READ, cmd_query},
    {"export", EK_STORE_READ, cmd_export},    {"plot", EK_STORE_READ, cmd_plot},
    {"rebuild", EK_STORE_WRITE, cmd_rebuild},
};

static ek_code run_command(const subcommand *c, int argc, char **argv, ek_err *err)
{
    ek_text out = {0};
    ek_store *store = NULL;
    options o;
    ek_code code;

    EK_TRY(parse(&o, argc, argv, err));
    if (o.out && !*o.out)
        return EK_FAIL(err, EK_EASKED, "results: --out: found an empty name");
    EK_TRY(ek_store_open(&store, o.db, c->mode, err));
    code = o.out ? refuse_database(&o, o.out, err) : EK_OK;
    if (code == EK_OK)
        code = c->run(store, &o, &out, err);
    if (code == EK_OK && out.size > 0 && fwrite(out.data, 1, out.size, stdout) != out.size)
        code = EK_FAIL(err, EK_EIO, "standard output: %s", strerror(errno));
    ek_text_clear(&out);
    ek_store_close(store);
    return code;
}

int ek_cmd_results(int argc, char **argv)
{
    const char *names[EK_COUNT(subcommands)], *near;
    ek_err err = {0};

    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            fputs(help, stdout);
            return 0;
        }
    }
    if (argc < 2) {
        fputs(help, stderr);
        return 2;
    }
    for (size_t i = 0; i < EK_COUNT(subcommands); i++) {
        names[i] = subcommands[i].name;
        if (strcmp(argv[1], names[i]) == 0) {
            if (run_command(&subcommands[i], argc, argv, &err) == EK_OK)
                return 0;
            return err.msg[0] ? ek_cmd_fail(&err) : ek_err_exit(err.code);
        }
    }
    near = ek_nearest(argv[1], names, (int)EK_COUNT(names));
    fprintf(stderr, "evictkit: results: no subcommand \"%s\"%s%s%s\n", argv[1],
            near ? ", did you mean \"" : "", near ? near : "", near ? "\"?" : "");
    return 2;
}
