/* cmd_doctor.c - what works on this machine, and why the rest does not. */
#include "commands.h"
#include "core/file.h"
#include "infer/model.h"

#include <dlfcn.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

static const char usage_text[] = "usage: evictkit doctor [--model FILE.gguf]\n"
                                 "Says which backends, instruction sets and model files work here. "
                                 " Exit status is 0 unless the\n"
                                 "named model cannot be read.\n";

static void cpu_lines(const ek_device *dev)
{
    char line[256], name[256] = "unknown processor";
    FILE *f = fopen("/proc/cpuinfo", "r");

    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "model name : %255[^\n]", name) == 1)
            break;
    if (f)
        fclose(f);
    printf("processor     %s, %ld cores, %d OpenMP threads\n", name, sysconf(_SC_NPROCESSORS_ONLN),
           omp_get_max_threads());
    printf("instructions  %s is used%s; this processor has:", ek_isa_name(dev->isa),
           dev->isa < ek_isa_of_cpu() ? " (capped by EVICTKIT_ISA)" : "");
    for (int i = 0; i <= (int)ek_isa_of_cpu(); i++)
        printf(" %s", ek_isa_name((ek_isa)i));
    printf("\n");
}

static void memory_lines(void)
{
    const double page = (double)sysconf(_SC_PAGESIZE);
    struct statvfs fs;

    printf("memory        %.1f GiB, %.1f GiB free\n",
           (double)sysconf(_SC_PHYS_PAGES) * page / 1073741824.0,
           (double)sysconf(_SC_AVPHYS_PAGES) * page / 1073741824.0);
    if (statvfs(".", &fs) == 0)
        printf("disk          %.1f GiB free here\n",
               (double)fs.f_bavail * (double)fs.f_frsize / 1073741824.0);
}

static void cuda_line(void)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);

    if (driver)
        dlclose(driver);
    printf("cuda          not used: %s\n",
           driver ? "an NVIDIA driver is present, but this build has no CUDA backend"
                  : "no NVIDIA driver on this machine (libcuda.so.1 not found)");
}

static int model_line(const char *path, ek_device *dev, int asked)
{
    ek_err err = {0};
    ek_model *model = NULL;

    if (!asked && !ek_file_exists(path)) {
        printf("model         %s is not there (python3 datasets/fetch.py --model fetches it)\n",
               path);
        return 0;
    }
    if (ek_model_open(&model, path, dev, EK_BF16, &err) != EK_OK) {
        printf("model         does not work: %s\n", err.msg);
        return asked ? ek_cmd_fail(&err) : 0;
    }
    const ek_dims *d = ek_model_dims(model);

    printf(
        "model         %s: %d layers, %d query and %d KV heads of %d, vocabulary %d, context %d\n",
        path, d->n_layers, d->n_heads * d->group, d->n_heads, d->head_dim, d->n_vocab, d->n_ctx);
    printf("              %.1f MB of bf16 weights per decoded token, %d bytes of cache per token\n",
           (double)ek_model_weight_bytes(model) / 1e6,
           2 * d->n_layers * d->n_heads * d->head_dim * ek_dtype_size(EK_BF16));
    ek_model_close(model);
    return 0;
}

int ek_cmd_doctor(int argc, char **argv)
{
    const char *model = "models/SmolLM2-135M-Instruct.Q4_1.gguf";
    ek_device *dev = NULL;
    ek_err err = {0};
    int asked = 0, status;

    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--model") == 0 && i + 1 < argc) {
            model = argv[++i];
            asked = 1;
        } else {
            const int help = strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0;

            if (help)
                fputs(usage_text, stdout);
            else
                fprintf(stderr, "evictkit: doctor: found '%s', expected --model FILE.gguf\n",
                        argv[i]);
            return help ? 0 : 2;
        }
    }
    if (ek_cmd_device(&dev, &err) != EK_OK)
        return ek_cmd_fail(&err);
    printf("evictkit      %s (%s)\n", EK_VERSION, EK_REVISION);
    cpu_lines(dev);
    memory_lines();
    cuda_line();
    status = model_line(model, dev, asked);
    printf("plots         %s\n", system("python3 -c 'import matplotlib' >/dev/null 2>&1") == 0
                                     ? "python3 with matplotlib"
                                     : "not possible: python3 has no matplotlib");
    ek_device_close(dev);
    return status;
}
