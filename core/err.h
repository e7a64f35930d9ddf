/* core/err.h - the one error type.
 *
 * A function that can fail returns an ek_code and takes an ek_err last.  The detector writes the
 * message (file, place, found, expected), callers put context in front, the command prints it from
 * the outside in:
 *     evictkit: configs/mlp.yaml: line 14: scorer.hidden: found 0, expected 1 .. 4096
 * Outputs are untouched on failure.  err may not be NULL.  Nothing here prints or exits. */
#ifndef EK_CORE_ERR_H
#define EK_CORE_ERR_H

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__clang__)
#define EK_MUST_USE __attribute__((warn_unused_result))
#else
#define EK_MUST_USE
#endif
#define EK_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#define EK_COUNT(array)      (sizeof(array) / sizeof((array)[0]))

typedef enum EK_MUST_USE ek_code {
    EK_OK = 0,
    EK_EASKED,  /* the request is wrong: an option, a key, a value       exit 2 */
    EK_EINPUT,  /* a file does not hold what it promises                 exit 2 */
    EK_ENOTSUP, /* a valid request this backend does not implement       exit 2 */
    EK_EIO,     /* the operating system refused                          exit 1, as all below */
    EK_ENOMEM,  /* host or device memory */
    EK_EDEVICE, /* an accelerator library reported a failure */
    EK_ENAN,    /* a NaN or infinity where a number is required */
    EK_EBROKEN, /* our own promise does not hold, such as kept == asked */
    EK_ESTOPPED /* the user asked to stop; what was finished is stored   exit 130 */
} ek_code;

typedef struct ek_err {
    ek_code code;
    int line; /* where it was first raised */
    const char *file;
    char msg[1000];
} ek_err;

/* Write the message; returns code. */
ek_code ek_err_set(ek_err *err, ek_code code, const char *file, int line, const char *fmt, ...)
    EK_PRINTF(5, 6);

/* Put "context: " in front of the message; returns err->code. */
ek_code ek_err_in(ek_err *err, const char *fmt, ...) EK_PRINTF(2, 3);

/* The process's exit status for a code: 0, 1, 2 or 130. */
int ek_err_exit(ek_code code);

#define EK_FAIL(err, code, ...) ek_err_set((err), (code), __FILE__, __LINE__, __VA_ARGS__)
#define EK_TRY(expr)         \
    do {                     \
        ek_code c_ = (expr); \
        if (c_ != EK_OK)     \
            return c_;       \
    } while (0)
#define EK_CHECK(expr)       \
    do {                     \
        if ((expr) != EK_OK) \
            goto fail;       \
    } while (0)

#ifdef __cplusplus
}
#endif
#endif
