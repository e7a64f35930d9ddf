/* train/cmd_train.c - evictkit train CONFIG.yaml [-s key=value] [--plan] [--resume] [--quiet]. */
#include "commands.h"
#include "train/session.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_SETS = 64 };

static void usage(FILE *to)
{
    ek_train_set set;
    char *keys;

    ek_train_set_defaults(&set);
    keys = ek_config_help(ek_train_fields);
    fprintf(to,
            "usage: evictkit train CONFIG.yaml [-s key=value ...] [--plan] [--resume | --restart] "
            "[--quiet]\n\n"
            "Fit a scorer on a frozen model.\n"
            "  -s key=value  override a key of the file, such as optimiser.lr=0.002\n"
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

static ek_code parse(int argc, char **argv, const char **path, const char **sets, int *n_sets,
                     ek_train_options *options, ek_err *err)
{
    static const char *const known[] = {"-s",        "--plan",  "--resume",
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
            if (i + 1 == argc || *n_sets == MAX_SETS)
                return EK_FAIL(err, EK_EASKED, "train: -s: expected key=value, at most %d times",
                               MAX_SETS);
            sets[(*n_sets)++] = argv[++i];
        } else if (a[0] == '-') {
            const char *near = ek_nearest(a, known, (int)EK_COUNT(known));

            return EK_FAIL(err, EK_EASKED, "train: unknown option '%.60s'%s%s%s", a,
                           near ? ", did you mean '" : "", near ? near : "", near ? "'?" : "");
        } else if (*path != NULL) {
            return EK_FAIL(err, EK_EASKED, "train: found a second configuration '%.200s'", a);
        } else {
            *path = a;
        }
    }
    if (options->resume && options->restart)
        return EK_FAIL(err, EK_EASKED, "train: --resume and --restart exclude each other");
    if (*path == NULL)
        return EK_FAIL(err, EK_EASKED, "train: expected a configuration file; --help says more");
    return EK_OK;
}

int ek_cmd_train(int argc, char **argv)
{
    const char *path = NULL, *sets[MAX_SETS];
    ek_train_options options = {.say = say, .revision = EK_VERSION " " EK_REVISION};
    ek_device *dev = NULL;
    ek_train_set set;
    ek_code code;
    ek_err err;
    int n_sets = 0;

    if (argc > 1 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)) {
        usage(stdout);
        return 0;
    }
    ek_train_set_defaults(&set);
    code = parse(argc, argv, &path, sets, &n_sets, &options, &err);
    if (code == EK_OK)
        code = ek_config_load(&set, ek_train_fields, path, sets, n_sets, &err);
    if (code == EK_OK)
        code = ek_cmd_device(&dev, &err);
    if (code == EK_OK)
        code = ek_train_run(&set, &options, dev, &err);
    ek_device_close(dev);
    ek_config_clear(&set, ek_train_fields);
    return code == EK_OK ? 0 : ek_cmd_fail(&err);
}
