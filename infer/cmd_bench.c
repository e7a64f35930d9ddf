/* infer/cmd_bench.c - print the speed contract, as a table or as JSON. */
#include "commands.h"
#include "core/config.h"
#include "core/json.h"
#include "infer/bench.h"

#include <stdio.h>
#include <string.h>

static const char usage_text[] =
    "usage: evictkit bench [--model FILE.gguf] [--storage bf16|f32] [--quick] [--only FIGURE] "
    "[--json]\n"
    "\n"
    "Measures speed and memory beside the machine's own limits, taken in the same run.  Ratios "
    "can\n"
    "be compared between machines; figures in tok/s cannot.  --quick: shorter, for a first look.\n"
    "Default model: models/SmolLM2-135M-Instruct.Q4_1.gguf\n";

static void processor(char *out, size_t size)
{
    char line[256], name[200] = "unknown processor";
    FILE *f = fopen("/proc/cpuinfo", "r");

    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "model name : %199[^\n]", name) == 1)
            break;
    if (f)
        fclose(f);
    snprintf(out, size, "%s", name);
}

static const char *verdict(const ek_bench_figure *f)
{
    if (f->samples == 0)
        return "not measured";
    if (!(f->goal > 0.0))
        return f->noisy ? "noisy" : "";
    if (ek_bench_misses(f, 1.0))
        return f->noisy ? "MISSED, noisy" : "MISSED";
    return f->noisy ? "met, noisy" : "met";
}

static void print_figure(void *ctx, const ek_bench_figure *f)
{
    char goal[24] = "";

    (void)ctx;
    if (f->goal > 0.0)
        snprintf(goal, sizeof goal, "%s %.2f", f->at_least ? ">=" : "<=", f->goal);
    if (f->samples == 0)
        printf("%-17s %10s\n", f->name, "-");
    else
        printf("%-17s %10.*f %-13s [%.*f .. %.*f]  %-8s %s\n", f->name, f->value < 100 ? 3 : 1,
               f->value, f->unit, f->value < 100 ? 3 : 1, f->low, f->value < 100 ? 3 : 1, f->high,
               goal, verdict(f));
    printf("                  %s\n", f->detail);
    fflush(stdout);
}

static void json_figure(ek_text *t, const ek_bench_figure *f)
{
    ek_text_add(t, "    {\"name\": \"%s\", \"unit\": \"%s\", \"samples\": %d", f->name, f->unit,
                f->samples);
    if (f->samples > 0)
        ek_text_add(t, ", \"value\": %.6g, \"low\": %.6g, \"high\": %.6g", f->value, f->low,
                    f->high);
    if (f->goal > 0.0)
        ek_text_add(t, ", \"goal\": %.6g, \"goal_is\": \"%s\", \"met\": %s", f->goal,
                    f->at_least ? "at least" : "at most",
                    f->samples > 0 && !ek_bench_misses(f, 1.0) ? "true" : "false");
    ek_text_add(t, ", \"noisy\": %s", f->noisy ? "true" : "false");
    if (f->samples > 0)
        ek_text_add(t, ", \"streaming_gb_s\": [%.2f, %.2f], \"product_gflop_s\": [%.1f, %.1f]",
                    f->stream[0] / 1e9, f->stream[1] / 1e9, f->product[0] / 1e9,
                    f->product[1] / 1e9);
    ek_text_add(t, ", \"definition\": ");
    ek_text_json(t, f->what, strlen(f->what));
    ek_text_add(t, ", \"detail\": ");
    ek_text_json(t, f->detail, strlen(f->detail));
    ek_text_add(t, "}");
}

static int print_json(const ek_bench *b, const ek_bench_set *set, const ek_device *dev,
                      const char *cpu)
{
    ek_text t = {0};

    ek_text_add(&t,
                "{\n  \"version\": \"%s\", \"revision\": \"%s\",\n  \"processor\": ", EK_VERSION,
                EK_REVISION);
    ek_text_json(&t, cpu, strlen(cpu));
    ek_text_add(&t, ", \"isa\": \"%s\", \"threads\": %d, \"storage\": \"%s\", \"quick\": %s",
                ek_isa_name(dev->isa), dev->threads, set->storage == EK_F32 ? "f32" : "bf16",
                set->quick ? "true" : "false");
    if (b->steal >= 0.0)
        ek_text_add(&t, ", \"steal\": %.4f", b->steal);
    ek_text_add(&t, ",\n  \"model\": ");
    ek_text_json(&t, set->model, strlen(set->model));
    ek_text_add(&t, ",\n  \"streaming_gb_s\": %.2f, \"product_gflop_s\": %.1f,\n  \"figures\": [\n",
                b->stream / 1e9, b->product / 1e9);
    for (int i = 0; i < b->n; i++) {
        json_figure(&t, &b->figure[i]);
        ek_text_add(&t, "%s\n", i + 1 < b->n ? "," : "");
    }
    ek_text_add(&t, "  ]\n}\n");
    if (!t.failed)
        fwrite(t.data, 1, t.size, stdout);
    ek_text_clear(&t);
    return t.failed;
}

static ek_code read_options(int argc, char **argv, ek_bench_set *set, int *json, ek_err *err)
{
    static const char *const names[] = {"--model", "--storage", "--quick",
                                        "--only",  "--json",    "--help"};

    for (int i = 1; i < argc; i++) {
        const char *near;

        if (strcmp(argv[i], "--quick") == 0) {
            set->quick = 1;
        } else if (strcmp(argv[i], "--json") == 0) {
            *json = 1;
        } else if (i + 1 < argc && strcmp(argv[i], "--model") == 0) {
            set->model = argv[++i];
        } else if (i + 1 < argc && strcmp(argv[i], "--only") == 0) {
            set->only = argv[++i];
        } else if (i + 1 < argc && strcmp(argv[i], "--storage") == 0) {
            if (strcmp(argv[++i], "f32") != 0 && strcmp(argv[i], "bf16") != 0)
                return EK_FAIL(err, EK_EASKED, "--storage: found \"%s\", expected bf16 or f32",
                               argv[i]);
            set->storage = argv[i][0] == 'f' ? EK_F32 : EK_BF16;
        } else {
            near = ek_nearest(argv[i], names, (int)EK_COUNT(names));
            return EK_FAIL(err, EK_EASKED,
                           "bench: found '%s'%s%s%s; bench --help lists the options", argv[i],
                           near && strcmp(near, argv[i]) == 0 ? " without a value" : "",
                           near && strcmp(near, argv[i]) != 0 ? ", did you mean " : "",
                           near && strcmp(near, argv[i]) != 0 ? near : "");
        }
    }
    return EK_OK;
}

static ek_code run(int argc, char **argv, ek_device **dev, ek_err *err)
{
    ek_bench_set set = {.model = "models/SmolLM2-135M-Instruct.Q4_1.gguf"};
    ek_bench bench;
    char cpu[256];
    int json = 0;

    EK_TRY(read_options(argc, argv, &set, &json, err));
    EK_TRY(ek_cmd_device(dev, err));
    processor(cpu, sizeof cpu);
    if (!json)
        printf("%s, %s, %d threads, %s%s\n", cpu, ek_isa_name((*dev)->isa), (*dev)->threads,
               set.storage == EK_F32 ? "f32" : "bf16", set.quick ? ", quick" : "");
    EK_TRY(ek_bench_run(&bench, &set, *dev, json ? NULL : print_figure, NULL, err));
    if (json)
        return print_json(&bench, &set, *dev, cpu) ? EK_FAIL(err, EK_ENOMEM, "bench: no memory")
                                                   : EK_OK;
    printf("ceilings: streaming %.1f GB/s, product %.0f GFLOP/s", bench.stream / 1e9,
           bench.product / 1e9);
    if (bench.steal >= 0.0)
        printf("; %.1f %% of processor time stolen by the host", 100.0 * bench.steal);
    printf("\n");
    return EK_OK;
}

int ek_cmd_bench(int argc, char **argv)
{
    ek_device *dev = NULL;
    ek_err err = {0};
    ek_code code;

    if (argc > 1 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)) {
        fputs(usage_text, stdout);
        return 0;
    }
    code = run(argc, argv, &dev, &err);
    if (dev)
        ek_device_close(dev);
    return code == EK_OK ? 0 : ek_cmd_fail(&err);
}
