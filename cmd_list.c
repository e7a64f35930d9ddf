/* cmd_list.c - the registries, one line each. */
#include "commands.h"
#include "core/config.h"
#include "core/file.h"
#include "datasets/dataset.h"
#include "infer/gguf.h"
#include "scorers/method.h"
#include "train/loss.h"

#include <glob.h>
#include <stdio.h>
#include <string.h>

static const char usage_text[] =
    "usage: evictkit list methods | losses | tasks | models [FOLDER]\n"
    "One line for each; models looks at FOLDER/*.gguf (default models).\n";

static int methods(const char *folder)
{
    (void)folder;
    for (int i = 0; ek_methods[i]; i++) {
        const ek_method *m = ek_methods[i];
        const int cited = m->paper && strcmp(m->paper, "-") != 0;

        printf("%-15s %s%s%s%s%s\n", m->name, m->brief, cited ? " (" : "", cited ? m->paper : "",
               cited ? ")" : "", m->measure.signal->learner ? " [learned: needs weights]" : "");
    }
    return 0;
}

static int losses(const char *folder)
{
    (void)folder;
    for (int i = 0; i < EK_N_LOSSES; i++)
        printf("%-15s %s\n", ek_losses[i].name, ek_losses[i].brief);
    return 0;
}

static int tasks(const char *folder)
{
    (void)folder;
    for (int i = 0; ek_tasks[i]; i++)
        printf("%-15s %s\n", ek_tasks[i]->name, ek_tasks[i]->brief);
    return 0;
}

static int models(const char *folder)
{
    char pattern[4096];
    glob_t found;

    snprintf(pattern, sizeof pattern, "%s/*.gguf", folder);
    if (glob(pattern, 0, NULL, &found) != 0) {
        fprintf(stderr,
                "evictkit: %s: no model files (*.gguf) here; python3 datasets/fetch.py --model "
                "fetches the default one\n",
                folder);
        return 2;
    }
    for (size_t i = 0; i < found.gl_pathc; i++) {
        ek_gguf *g = NULL;
        ek_err err = {0};

        if (ek_gguf_open(&g, found.gl_pathv[i], &err) != EK_OK)
            printf("%s: not usable: %s\n", found.gl_pathv[i], err.msg);
        else
            printf("%s: architecture %s, %d tensors, %s\n", found.gl_pathv[i], ek_gguf_arch(g),
                   ek_gguf_n_tensors(g), ek_gguf_hash(g));
        ek_gguf_close(g);
    }
    globfree(&found);
    return 0;
}

static const struct registry {
    const char *name;
    int (*list)(const char *folder);
} registries[] = {{"methods", methods}, {"losses", losses}, {"tasks", tasks}, {"models", models}};

int ek_cmd_list(int argc, char **argv)
{
    const char *names[EK_COUNT(registries)], *near;

    if (argc == 2 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)) {
        fputs(usage_text, stdout);
        return 0;
    }
    if (argc < 2 || argc > 3 || (argc == 3 && strcmp(argv[1], "models") != 0)) {
        fprintf(stderr, "evictkit: list: expected one of methods, losses, tasks or models%s\n",
                argc < 2 ? "" : ", and a folder only behind models");
        return 2;
    }
    for (size_t i = 0; i < EK_COUNT(registries); i++) {
        names[i] = registries[i].name;
        if (strcmp(argv[1], names[i]) == 0)
            return registries[i].list(argc == 3 ? argv[2] : "models");
    }
    near = ek_nearest(argv[1], names, (int)EK_COUNT(names));
    fprintf(stderr, "evictkit: list: no registry '%s'%s%s%s\n", argv[1],
            near ? ", did you mean '" : "", near ? near : "", near ? "'" : "");
    return 2;
}
