/* tests/fuzz/safetensors.c - any bytes as a safetensors file; what opens must be readable to its
 * last byte. */
#include "core/safetensors.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char path[64];

static void drop(void)
{
    unlink(path);
}

static void read_all(const ek_st *st)
{
    ek_err err;

    for (int i = 0; i < ek_st_count(st); i++) {
        const ek_st_tensor *t = ek_st_at(st, i);
        const size_t n = t->bytes / (size_t)ek_st_type_size(t->type);
        float *out = malloc(n * sizeof *out + 1);

        if (!out || ek_st_find(st, t->name) != t)
            abort();
        if (ek_st_read_f32(st, t->name, t->n_dims, t->dim, out, &err) == EK_OK && n > 0 &&
            out[n - 1] != out[n - 1])
            abort();
        free(out);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    ek_st *st = NULL;
    ek_err err;
    FILE *f;

    if (!path[0]) {
        snprintf(path, sizeof path, "/tmp/ek_fuzz_%ld", (long)getpid());
        atexit(drop);
    }
    f = fopen(path, "wb");
    if (!f || fwrite(data, 1, size, f) != size || fclose(f) != 0)
        abort();
    if (ek_st_open(&st, path, &err) == EK_OK) {
        read_all(st);
        ek_st_close(st);
    }
    return 0;
}
