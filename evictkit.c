/* evictkit.c - the subcommand table; signals; an error becomes one sentence and an exit code. */
#include "commands.h"
#include "core/config.h"
#include "core/progress.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct command {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *brief;
} command;

static const command commands[] = {
    {"train", ek_cmd_train, "fit a scorer on a frozen model:   train CONFIG.yaml [-s key=value]"},
    {"evaluate", ek_cmd_evaluate,
     "compare methods x budgets x tasks: evaluate CONFIG.yaml [--resume]"},
    {"results", ek_cmd_results,
     "read the database:                list, show, compare, query, export, plot"},
    {"generate", ek_cmd_generate,
     "stream text under a policy:       generate --model M --policy SPEC PROMPT"},
    {"bench", ek_cmd_bench, "speed beside the machine's limits, measured in the same run"},
    {"list", ek_cmd_list,
     "the registries:                   list methods, losses, tasks or models"},
    {"doctor", ek_cmd_doctor, "what works on this machine, and why the rest does not"},
};

int ek_cmd_fail(const ek_err *err)
{
    fflush(stdout);
    fprintf(stderr, "evictkit: %s\n", err->msg);
    return ek_err_exit(err->code);
}

ek_code ek_cmd_device(ek_device **out, ek_err *err)
{
    return ek_device_open(out, "cpu", getenv("EVICTKIT_ISA"), err);
}

static int usage(FILE *to)
{
    fprintf(to,
            "evictkit %s: train and compare KV-cache eviction methods\n\n"
            "usage: evictkit COMMAND [ARGUMENTS]     (evictkit COMMAND --help says more)\n\n",
            EK_VERSION);
    for (size_t i = 0; i < EK_COUNT(commands); i++)
        fprintf(to, "  %-9s %s\n", commands[i].name, commands[i].brief);
    return to == stdout ? 0 : 2;
}

/* Were one of the three standard streams closed, the next file opened would take its number and
 * receive what is printed. */
static void hold_streams(void)
{
    int fd;

    do
        fd = open("/dev/null", O_RDWR);
    while (fd >= 0 && fd <= STDERR_FILENO);
    if (fd >= 0)
        close(fd);
}

int main(int argc, char **argv)
{
    const char *names[EK_COUNT(commands)], *near;

    if (argc < 2)
        return usage(stderr);
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 ||
        strcmp(argv[1], "help") == 0)
        return usage(stdout);
    if (strcmp(argv[1], "--version") == 0) {
        printf("evictkit %s (%s)\n", EK_VERSION, EK_REVISION);
        return 0;
    }
    hold_streams();
    ek_stop_install();
    for (size_t i = 0; i < EK_COUNT(commands); i++) {
        names[i] = commands[i].name;
        if (strcmp(argv[1], names[i]) == 0) {
            const int status = commands[i].run(argc - 1, argv + 1);

            /* A full disk or a closed pipe must not look like success; the error of a line that
             * was flushed long ago is still there. */
            if ((fflush(stdout) == 0 && !ferror(stdout)) || status != 0)
                return status;
            fprintf(stderr, "evictkit: standard output could not be written\n");
            return 1;
        }
    }
    near = ek_nearest(argv[1], names, (int)EK_COUNT(names));
    fprintf(stderr, "evictkit: no command '%s'%s%s%s; evictkit --help lists them\n", argv[1],
            near ? ", did you mean '" : "", near ? near : "", near ? "'" : "");
    return 2;
}
