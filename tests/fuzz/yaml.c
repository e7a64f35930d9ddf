/* tests/fuzz/yaml.c - any bytes as a configuration, with an override behind a first line that
 * begins with "#s ".  What loads must be printed, load again and print the same. */
#include "core/config.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

typedef struct part {
    char *name;
    int64_t window;
    double alpha;
    int pool;
    int64_t *layers;
    int n_layers;
} part;

typedef struct run {
    int64_t seed;
    double keep;
    bool on;
    char *model;
    part one;
    part *parts;
    int n_parts;
    char **tasks;
    int n_tasks;
} run;

static const char *const pools[] = {"none", "mean", "max", NULL};
static const ek_field part_fields[] = {
    EK_STRING(part, name, ""),
    EK_INT(part, window, 0, 64, ""),
    EK_FLOAT(part, alpha, 0, 1, ""),
    EK_ENUM(part, pool, pools, ""),
    EK_INTS(part, layers, n_layers, 0, 99, ""),
    EK_FIELD_END,
};
static const part part_default = {.name = "full", .alpha = -1, .pool = -1};
static const ek_field fields[] = {
    EK_INT(run, seed, 0, 0, ""),
    EK_FLOAT(run, keep, -1e300, 1e300, ""),
    EK_BOOL(run, on, ""),
    EK_STRING(run, model, ""),
    EK_MAP(run, one, part_fields, ""),
    EK_LIST(run, parts, n_parts, part, part_fields, &part_default, 0, 4, ""),
    EK_STRINGS(run, tasks, n_tasks, ""),
    EK_FIELD_END,
};

static run defaults(void)
{
    static part two[2] = {{.name = "a"}, {.name = "b", .pool = 2}};

    return (run){.model = "m", .one = part_default, .parts = two, .n_parts = 2};
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *text = (const char *)data, *set = NULL;
    const uint8_t *line = size > 3 && memcmp(data, "#s ", 3) == 0 ? memchr(data, '\n', size) : NULL;
    char option[200] = "", *x, *y;
    run a = defaults(), b = defaults();
    ek_err err;

    if (line && (size_t)(line - data) < sizeof option) {
        memcpy(option, data + 3, (size_t)(line - data) - 3);
        set = option;
    }
    if (ek_config_parse(&a, fields, text, size, "fuzz", &set, set ? 1 : 0, &err) == EK_OK) {
        x = ek_config_text(&a, fields);
        if (!x || ek_config_parse(&b, fields, x, strlen(x), "again", NULL, 0, &err) != EK_OK)
            abort();
        y = ek_config_text(&b, fields);
        if (!y || strcmp(x, y) != 0)
            abort();
        free(x);
        free(y);
        ek_config_clear(&b, fields);
    } else if (err.code == EK_EBROKEN || err.code == EK_OK) {
        abort(); /* libcyaml refused what the check let through */
    }
    ek_config_clear(&a, fields);
    return 0;
}
