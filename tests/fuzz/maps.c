/* tests/fuzz/maps.c - any bytes in a folder of maps: the first byte says whether the rest is its
 * config.json, or its tensors under a config.json that names their hash.  What opens is finite to
 * its last number. */
#include "core/file.h"
#include "infer/maps.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char dir[] = "/tmp/ek_fuzz_XXXXXX", config[64], tensors[64];
static const ek_dims dims = {.n_layers = 2, .n_heads = 2, .group = 1, .head_dim = 2};
static const char hash[] = "0123456789abcdef0123456789abcdef";

static void drop(void)
{
    unlink(config);
    unlink(tensors);
    rmdir(dir);
}

static void put(const char *path, const void *data, size_t size)
{
    FILE *f = fopen(path, "wb"); /* not durable, so fast */

    if (!f || fwrite(data, 1, size, f) != size || fclose(f) != 0)
        abort();
}

static void start(void)
{
    const ek_maps_origin from = {
        .model = hash, .tokenizer = hash, .data = hash, .settings = "", .tokens = 1};
    ek_maps m;
    ek_err err;

    if (!mkdtemp(dir) || ek_maps_make(&m, &dims, 0, &err) != EK_OK ||
        ek_maps_write(dir, &m, &from, &err) != EK_OK)
        abort();
    ek_maps_close(&m);
    snprintf(config, sizeof config, "%s/config.json", dir);
    snprintf(tensors, sizeof tensors, "%s/model.safetensors", dir);
    atexit(drop);
}

/* A sound config.json for these tensors. */
static void put_config(int joint, const uint8_t *data, size_t size)
{
    char text[600], own[33];

    ek_hash128(own, data, size);
    const int n =
        snprintf(text, sizeof text,
                 "{\"format\": \"evictkit maps\", \"version\": 1, \"mode\": \"%s\", "
                 "\"dims\": {\"n_layers\": 2, \"n_heads\": 2, \"group\": 1, \"head_dim\": 2}, "
                 "\"model\": \"%s\", \"tokenizer\": \"%s\", \"weights\": \"%s\"}",
                 joint ? "layer" : "head", hash, hash, own);

    put(config, text, (size_t)n);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const ek_maps_need need = {.dims = &dims, .model_hash = hash, .tokenizer_hash = hash};
    ek_maps m;
    ek_err err;

    if (!config[0])
        start();
    if (size == 0)
        return 0;
    if (data[0] & 1) {
        put(tensors, data + 1, size - 1);
        put_config(data[0] & 2, data + 1, size - 1);
    } else {
        put(config, data + 1, size - 1);
    }
    if (ek_maps_open(&m, dir, &need, &err) != EK_OK)
        return 0;
    const float *all = m.block;
    for (int i = 0; i < m.n * m.width * (m.width + 1) + 4; i++)
        if (!isfinite(all[i]))
            abort();
    ek_maps_close(&m);
    return 0;
}
