/* infer/cmd_evaluate.c - evictkit evaluate CONFIG.yaml: methods x budgets x tasks. */
#include "commands.h"
#include "core/progress.h"
#include "infer/evaluate.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char usage_text[] =
    "usage: evictkit evaluate CONFIG.yaml [-s key=value]... [--limit N] [--resume | --restart] "
    "[--plan]\n"
    "Compares methods at budgets on tasks; every sample goes into the database.\n"
    "  -s a.b=c   override a key of the config (lists by number: tasks.0.samples=8)\n"
    "  --limit N  the first N samples of each task\n"
    "  --resume   go on with this very run where it stopped\n"
    "  --restart  forget what this very run has stored, and begin again\n"
    "  --plan     say what would run, how long it takes and what it needs, and stop\n";

typedef struct arguments {
    const char *config;
    const char **sets;
    int n_sets, resume, restart, plan, help;
    char limit[64];
} arguments;

static ek_code parse(int argc, char **argv, arguments *a, ek_err *err)
{
    for (int i = 1; i < argc; i++) {
        const char *s = argv[i];

        if (strcmp(s, "--help") == 0 || strcmp(s, "-h") == 0)
            a->help = 1;
        else if (strcmp(s, "--resume") == 0)
            a->resume = 1;
        else if (strcmp(s, "--restart") == 0)
            a->restart = 1;
        else if (strcmp(s, "--plan") == 0)
            a->plan = 1;
        else if (strcmp(s, "-s") == 0 || strcmp(s, "--limit") == 0) {
            if (++i == argc)
                return EK_FAIL(err, EK_EASKED, "evaluate: %s needs a value", s);
            if (s[1] == 's') {
                a->sets[a->n_sets++] = argv[i];
            } else {
                snprintf(a->limit, sizeof a->limit, "limit=%s", argv[i]);
                a->sets[a->n_sets++] = a->limit;
            }
        } else if (s[0] == '-')
            return EK_FAIL(err, EK_EASKED, "evaluate: unknown option '%s'", s);
        else if (a->config)
            return EK_FAIL(err, EK_EASKED, "evaluate: one config, found '%s' and '%s'", a->config,
                           s);
        else
            a->config = s;
    }
    if (!a->help && !a->config)
        return EK_FAIL(err, EK_EASKED, "evaluate: which CONFIG.yaml?");
    if (a->resume && a->restart)
        return EK_FAIL(err, EK_EASKED, "evaluate: --resume and --restart exclude each other");
    return EK_OK;
}

static ek_code print_plan(ek_eval *ev, ek_err *err)
{
    ek_eval_todo todo;

    EK_TRY(ek_eval_plan(ev, &todo, err));
    printf("run %s: %d methods x %d budgets: %d cells and %d tasks\n", ev->run,
           ev->grid.n_methods - 1, ev->config->n_budgets, ev->grid.n_cells, ev->config->n_tasks);
    printf("samples         %lld, each through every cell\n", (long long)todo.samples);
    printf("prompt tokens   %lld\n", (long long)todo.tokens_prefill);
    printf("decoded tokens  %lld in %lld locksteps\n", (long long)todo.tokens_decode,
           (long long)todo.steps);
    printf("caches          %.0f MB at most\n", (double)todo.bytes_cache / 1e6);
    printf("weights         %.0f MB\n", (double)ek_model_weight_bytes(ev->model) / 1e6);
    for (int m = 0; m < ev->grid.n_methods; m++)
        if (ev->grid.maps[m].block)
            printf("maps            %.1f MB of %s, the model's and in no cache's bytes\n",
                   (double)ek_maps_bytes(&ev->grid.maps[m]) / 1e6, ev->grid.method[m].name);
    printf("disk            about %.1f MB in %s\n",
           (double)todo.samples * ev->grid.n_cells * 2500.0 / 1e6, ev->config->results);
    printf("time            about %.0f s, from a few steps measured just now\n", todo.seconds);
    for (int c = 0; c < ev->grid.n_cells; c++)
        printf("cell %3d        %s\n", c, ev->grid.cell[c].spec);
    return EK_OK;
}

typedef struct leaves {
    ek_leaf *leaf;
    int n, room, failed;
} leaves;

static void keep_leaf(void *ctx, const char *key, const char *value)
{
    leaves *l = ctx;

    if (l->n == l->room) {
        const int room = l->room ? 2 * l->room : 64;
        ek_leaf *more = realloc(l->leaf, sizeof *more * (size_t)room);

        if (!more) {
            l->failed = 1;
            return;
        }
        l->leaf = more;
        l->room = room;
    }
    l->leaf[l->n++] = (ek_leaf){strdup(key), strdup(value)};
}

static void free_leaves(leaves *l)
{
    for (int i = 0; i < l->n; i++) {
        free((void *)l->leaf[i].key);
        free((void *)l->leaf[i].value);
    }
    free(l->leaf);
}

static ek_code begin(ek_eval *ev, ek_store *store, const arguments *a, const char *text,
                     const ek_device *dev, int *nothing_to_do, ek_err *err)
{
    char device[96], kernel[96];
    leaves l = {0};
    ek_run_found found = EK_RUN_NEW;
    ek_code code;

    snprintf(device, sizeof device, "%s %d threads", dev->ops.name, dev->threads);
    snprintf(kernel, sizeof kernel, "own attention, %s cache",
             ev->config->storage == EK_F32 ? "f32" : "bf16");
    ek_config_leaves(ev->config, ek_eval_fields, keep_leaf, &l);
    /* The id names the texts' paths only: with this a run of other texts cannot be gone on with. */
    for (int i = 0; i < ev->config->n_tasks; i++) {
        char key[40];

        snprintf(key, sizeof key, "tasks.%d.text_hash", i);
        keep_leaf(&l, key, ev->task[i].task->texts.hash);
    }
    const ek_run_row row = {.id = ev->run,
                            .kind = "evaluate",
                            .revision = EK_VERSION " " EK_REVISION,
                            .device = device,
                            .kernel = kernel,
                            .model = ev->config->model,
                            .model_hash = ek_model_hash(ev->model),
                            .tokenizer_hash = ek_tokenizer_hash(ev->tok),
                            .template_hash = ev->chat.hash,
                            .config = text};

    code = a->restart ? ek_store_run_delete(store, ev->run, err) : EK_OK;
    if (code == EK_OK && l.failed)
        code = EK_FAIL(err, EK_ENOMEM, "no memory for the config's leaves");
    if (code == EK_OK)
        code = ek_store_run_begin(store, &row, l.leaf, l.n, a->resume, &found, err);
    free_leaves(&l);
    if (code != EK_OK)
        return code;
    if (found == EK_RUN_UNFINISHED)
        return EK_FAIL(
            err, EK_EASKED,
            "run %.8s of this very config is there and unfinished: --resume goes on with "
            "it, --restart begins again",
            ev->run);
    *nothing_to_do = found == EK_RUN_DONE;
    return EK_OK;
}

static ek_code evaluate(const arguments *a, ek_eval *ev, const ek_eval_config *config,
                        const char *text, ek_device *dev, ek_err *err)
{
    ek_store *store = NULL;
    ek_err end = {0};
    int nothing = 0;
    ek_code code;

    EK_TRY(ek_eval_open(ev, config, text, dev, err));
    if (a->plan)
        return print_plan(ev, err);
    EK_TRY(ek_store_open(&store, config->results, EK_STORE_CREATE, err));
    code = begin(ev, store, a, text, dev, &nothing, err);
    if (code == EK_OK && nothing) {
        printf("run %.8s is already complete in %s; nothing to do (--restart runs it again)\n",
               ev->run, config->results);
    } else if (code == EK_OK) {
        code = ek_eval_run(ev, store, err);
        if (ek_store_run_end(store, ev->run,
                             code == EK_OK         ? "done"
                             : code == EK_ESTOPPED ? "interrupted"
                                                   : "failed",
                             &end) != EK_OK &&
            code == EK_OK) {
            *err = end;
            code = end.code;
        }
        if (code == EK_OK)
            printf("run %.8s is complete: evictkit results compare %.8s --db %s\n", ev->run,
                   ev->run, config->results);
        else if (code == EK_ESTOPPED)
            code = ek_err_in(err, "everything finished is stored, --resume goes on");
    }
    ek_store_close(store);
    return code;
}

int ek_cmd_evaluate(int argc, char **argv)
{
    arguments a = {.sets = calloc((size_t)argc + 1, sizeof(char *))};
    ek_eval_config config = ek_eval_defaults;
    ek_eval ev = {0};
    ek_device *dev = NULL;
    ek_err err = {0};
    char *text = NULL;
    ek_code code = a.sets ? parse(argc, argv, &a, &err) : EK_FAIL(&err, EK_ENOMEM, "no memory");

    if (code == EK_OK && a.help) {
        char *keys = ek_config_help(ek_eval_fields);

        printf("%s\nkeys of the config:\n%s", usage_text, keys ? keys : "");
        free(keys);
        free(a.sets);
        return 0;
    }
    if (code == EK_OK)
        code = ek_config_load(&config, ek_eval_fields, a.config, a.sets, a.n_sets, &err);
    if (code == EK_OK && !(text = ek_config_text(&config, ek_eval_fields)))
        code = EK_FAIL(&err, EK_ENOMEM, "no memory for the resolved config");
    if (code == EK_OK)
        code = ek_cmd_device(&dev, &err);
    if (code == EK_OK)
        code = evaluate(&a, &ev, &config, text, dev, &err);
    ek_eval_close(&ev);
    ek_device_close(dev);
    ek_config_clear(&config, ek_eval_fields);
    free(text);
    free(a.sets);
    return code == EK_OK ? 0 : ek_cmd_fail(&err);
}
