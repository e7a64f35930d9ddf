/* tests/fuzz/json.c - any bytes as JSON: accepted or refused, never a fault. */
#include "core/json.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Touch every value, so that a bad pointer is seen. */
static size_t visit(const ek_json *v)
{
    int64_t i = 0;
    size_t n = 1 + (size_t)ek_json_kind_of(v);

    n += ek_json_int(v, INT64_MIN, INT64_MAX, &i) + (ek_json_string(v) ? 1 : 0);
    for (const ek_json *c = ek_json_child(v); c; c = ek_json_next(c))
        n += visit(c);
    return n;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    ek_json *v = NULL;
    ek_err err;

    if (ek_json_parse(&v, (const char *)data, size, "fuzz", &err) == EK_OK) {
        if (visit(v) == 0)
            abort();
        ek_json_close(v);
    }
    return 0;
}
