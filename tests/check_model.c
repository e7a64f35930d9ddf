#include "tests/check_model.h"

#include "core/file.h"
#include "core/rng.h"
#include "tests/check_folder.h"

#include <omp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include <cmocka.h>

static void open_model(ek_check_model *out, const char *path, ek_dtype storage, int threads)
{
    ek_err err;

    out->threads_before = omp_get_max_threads();
    if (threads > 0)
        omp_set_num_threads(threads);
    ek_check_ok(ek_device_open(&out->dev, "cpu", getenv("EVICTKIT_ISA"), &err), &err);
    ek_check_ok(ek_model_open(&out->model, path, out->dev, storage, &err), &err);
    out->dims = ek_model_dims(out->model);
}

void ek_check_model_real(ek_check_model *out, const char *path, ek_dtype storage, int threads)
{
    *out = (ek_check_model){0};
    open_model(out, path, storage, threads);
}

void ek_check_model_open(ek_check_model *out, const ek_tiny *tiny, ek_dtype storage, int threads)
{
    ek_err err;

    *out = (ek_check_model){0};
    snprintf(out->folder, sizeof out->folder, "/tmp/evictkit-model-XXXXXX");
    assert_non_null(mkdtemp(out->folder));
    snprintf(out->path, sizeof out->path, "%s/tiny.gguf", out->folder);
    ek_check_ok(ek_tiny_model(out->path, tiny, &err), &err);
    open_model(out, out->path, storage, threads);
}

void ek_check_model_close(ek_check_model *m)
{
    ek_model_close(m->model);
    ek_device_close(m->dev);
    if (m->path[0]) {
        unlink(m->path);
        rmdir(m->folder);
    }
    omp_set_num_threads(m->threads_before);
}

void ek_check_cache_open(ek_cache *out, const ek_check_model *m, int cap,
                         const ek_measure *const *measures, int n)
{
    const ek_cache_need need = {.dims = *m->dims,
                                .dtype = ek_model_storage(m->model),
                                .cap = cap,
                                .n_lanes = n,
                                .measures = measures};
    ek_err err;

    ek_check_ok(ek_cache_open(out, &need, m->dev, &err), &err);
}

void ek_check_tokens(int32_t *out, int n, int n_vocab, uint64_t seed)
{
    for (int i = 0; i < n; i++)
        out[i] = (int32_t)ek_rng_below((uint64_t)n_vocab, seed, 0, (uint64_t)i);
}

const char *ek_check_real_model(void)
{
    const char *path = getenv("EVICTKIT_MODEL");

    if (!path)
        path = "models/SmolLM2-135M-Instruct.Q4_1.gguf";
    return ek_file_exists(path) ? path : NULL;
}
