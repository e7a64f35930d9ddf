/* train/cmd_train.c - evictkit train CONFIG.yaml... [-s key=value] [--sweep key=value,value]
 * [--plan] [--resume] [--quiet]. */
#include "commands.h"
#include "train/sweep.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void usage(FILE *to)
{
    ek_train_set set;
    char *keys;

    ek_train_set_defaults(&set);
    keys = ek_config_help(ek_train_fields);
    fprintf(
        to,
        "usage: evictkit train CONFIG.yaml... [-s key=value ...] [--sweep key=value,value ...]\n"
        "                      [--plan] [--resume | --restart] [--quiet]\n\n"
        "Fit a scorer on a frozen model.\n"
        "  -s key=value  override a key of the file, such as optimiser.lr=0.002\n"
        "  --sweep key=value,value\n"
        "                a run for each value, in a folder of its own below `out`; several of\n"
        "                these: for each combination.  Runs (of several files, too) that agree\n"
        "                in model, text, seed, target and protection read the text together\n"
        "  --plan        say sizes and predicted time, then stop\n"
        "  --resume      go on from the last checkpoint\n"
        "  --restart     forget what this very run has stored, and begin again\n"
        "  --quiet       no progress bar\n\nkeys:\n%s",
        keys ? keys : "");
    free(keys);
}

static void say(void *ctx, const char *line)
{
    (void)ctx;
    printf("%s\n", line);
    fflush(stdout);
}

typedef struct arguments {
    const char *path[EK_SWEEP_RUNS], *set[EK_SWEEP_SETS], *list[EK_SWEEP_KEYS];
    int n_paths, n_sets, n_lists;
} arguments;

/* The value that follows option i goes into one of `most` places. */
static ek_code take(int argc, char **argv, int *i, const char **into, int *n, int most, ek_err *err)
{
    if (*i + 1 == argc || *n == most)
        return EK_FAIL(err, EK_EASKED, "train: %s: expected key=value, at most %d times", argv[*i],
                       most);
    into[(*n)++] = argv[++*i];
    return EK_OK;
}

static ek_code parse(int argc, char **argv, arguments *to, ek_train_options *options, ek_err *err)
{
    static const char *const known[] = {"-s",        "--sweep", "--plan", "--resume",
                                        "--restart", "--quiet", "--help"};

    for (int i = 1; i < argc; i++) {
        const char *a = argv[i];

        if (strcmp(a, "--plan") == 0) {
            options->plan = 1;
        } else if (strcmp(a, "--resume") == 0) {
            options->resume = 1;
        } else if (strcmp(a, "--restart") == 0) {
            options->restart = 1;
        } else if (strcmp(a, "--quiet") == 0) {
            options->quiet = 1;
        } else if (strcmp(a, "-s") == 0) {
            EK_TRY(take(argc, argv, &i, to->set, &to->n_sets, EK_SWEEP_SETS, err));
        } else if (strcmp(a, "--sweep") == 0) {
            EK_TRY(take(argc, argv, &i, to->list, &to->n_lists, EK_SWEEP_KEYS, err));
        } else if (a[0] == '-') {
            const char *near = ek_nearest(a, known, (int)EK_COUNT(known));

            return EK_FAIL(err, EK_EASKED, "train: unknown option '%.60s'%s%s%s", a,
                           near ? ", did you mean '" : "", near ? near : "", near ? "'?" : "");
        } else if (to->n_paths == EK_SWEEP_RUNS) {
            return EK_FAIL(err, EK_EASKED, "train: found more than %d configurations",
                           EK_SWEEP_RUNS);
        } else {
            to->path[to->n_paths++] = a;
        }
    }
    if (options->resume && options->restart)
        return EK_FAIL(err, EK_EASKED, "train: --resume and --restart exclude each other");
    if (to->n_paths == 0)
        return EK_FAIL(err, EK_EASKED, "train: expected a configuration file; --help says more");
    return EK_OK;
}

int ek_cmd_train(int argc, char **argv)
{
    arguments a = {.n_paths = 0};
    ek_train_options options = {.say = say, .revision = EK_VERSION " " EK_REVISION};
    ek_device *dev = NULL;
    ek_train_set *set = NULL;
    ek_code code;
    ek_err err;
    int n = 0;

    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            usage(stdout);
            return 0;
        }
    code = parse(argc, argv, &a, &options, &err);
    const ek_sweep sweep = {.path = a.path,
                            .n_paths = a.n_paths,
                            .set = a.set,
                            .n_sets = a.n_sets,
                            .list = a.list,
                            .n_lists = a.n_lists};
    if (code == EK_OK)
        code = ek_sweep_open(&set, &n, &sweep, &err);
    if (code == EK_OK)
        code = ek_cmd_device(&dev, &err);
    if (code == EK_OK)
        code = ek_train_runs(set, n, &options, dev, &err);
    ek_device_close(dev);
    ek_sweep_close(set, n);
    return code == EK_OK ? 0 : ek_cmd_fail(&err);
}
