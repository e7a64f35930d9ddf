/* core/err.c - see err.h. */
#include "core/err.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* A message is one line, whatever a hostile file's names hold. */
static void one_line(char *msg)
{
    for (; *msg; msg++)
        if ((unsigned char)*msg < 0x20 || *msg == 0x7f)
            *msg = '?';
}

ek_code ek_err_set(ek_err *err, ek_code code, const char *file, int line, const char *fmt, ...)
{
    va_list args;

    err->code = code;
    err->file = file;
    err->line = line;
    va_start(args, fmt);
    vsnprintf(err->msg, sizeof err->msg, fmt, args);
    va_end(args);
    one_line(err->msg);
    return code;
}

ek_code ek_err_in(ek_err *err, const char *fmt, ...)
{
    char inner[sizeof err->msg];
    va_list args;
    int n;

    memcpy(inner, err->msg, sizeof inner);
    va_start(args, fmt);
    n = vsnprintf(err->msg, sizeof err->msg, fmt, args);
    va_end(args);
    if (n >= 0 && (size_t)n < sizeof err->msg)
        snprintf(err->msg + n, sizeof err->msg - (size_t)n, ": %.*s",
                 (int)(sizeof err->msg - (size_t)n), inner);
    one_line(err->msg);
    return err->code;
}

int ek_err_exit(ek_code code)
{
    switch (code) {
    case EK_OK:
        return 0;
    case EK_EASKED:
    case EK_EINPUT:
    case EK_ENOTSUP:
        return 2;
    case EK_ESTOPPED:
        return 130;
    default:
        return 1;
    }
}
