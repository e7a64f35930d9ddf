/* infer/gguf_file.h - inside an open GGUF file: for gguf.c, which checks, and gguf_keys.c, which
 * looks up. */
#ifndef EK_INFER_GGUF_FILE_H
#define EK_INFER_GGUF_FILE_H

#include "core/file.h"
#include "infer/gguf.h"

enum ek_gguf_value {
    EK_GGUF_U8,
    EK_GGUF_I8,
    EK_GGUF_U16,
    EK_GGUF_I16,
    EK_GGUF_U32,
    EK_GGUF_I32,
    EK_GGUF_F32,
    EK_GGUF_BOOL,
    EK_GGUF_STRING,
    EK_GGUF_ARRAY,
    EK_GGUF_U64,
    EK_GGUF_I64,
    EK_GGUF_F64,
    EK_GGUF_COUNT
};
extern const char *const ek_gguf_value_names[EK_GGUF_COUNT];
extern const uint8_t
    ek_gguf_value_sizes[EK_GGUF_COUNT]; /* 0: strings and arrays have no one size */

typedef struct ek_gguf_key {
    ek_gguf_str name;
    uint32_t type, element; /* element: of an array */
    uint64_t count;         /* elements of an array, else 1 */
    const uint8_t *data;    /* the value, or the array's first element */
} ek_gguf_key;

/* For "%.*s": a hostile name is cut short, so that what the sentence says still fits. */
#define EK_GGUF_SHOW(s) (int)((s).size < 80 ? (s).size : 80), (s).data

struct ek_gguf {
    char *path, *arch;
    ek_map map;
    ek_gguf_key *keys;          /* (n_keys) in the file's order */
    const ek_gguf_key **by_key; /* (n_keys) by name */
    ek_gguf_tensor *tensors;
    const ek_gguf_tensor **by_name; /* (n_tensors) by name */
    char *names;                    /* the tensors', each with its NUL */
    size_t n_keys, n_tensors;
    char hash[33];
};

static inline uint64_t ek_gguf_le(const uint8_t *p, int size)
{
    uint64_t x = 0;

    for (int i = 0; i < size; i++)
        x |= (uint64_t)p[i] << 8 * i;
    return x;
}

#endif
