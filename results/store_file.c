/* results/store_file.c - what can be said of a database's file without opening it as one. */
#include "results/inside.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

ek_code ek_store_look(const char *path, ek_store_mode mode, ek_err *err)
{
    static const char magic[16] = "SQLite format 3";
    char head[16];
    struct stat st;
    size_t got;
    FILE *f;

    if (strcmp(path, ":memory:") == 0)
        return EK_OK;
    if (stat(path, &st) != 0) {
        if (errno != ENOENT)
            return EK_FAIL(err, EK_EASKED, "%s: %s", path, strerror(errno));
        if (mode == EK_STORE_CREATE)
            return EK_OK;
        return EK_FAIL(err, EK_EASKED,
                       "%s: no such database; `evictkit evaluate` makes one, --db names another",
                       path);
    }
    if (!S_ISREG(st.st_mode))
        return EK_FAIL(err, EK_EASKED, "%s: found %s, expected a database file", path,
                       S_ISDIR(st.st_mode) ? "a folder" : "no regular file");
    if (st.st_size == 0)
        return mode == EK_STORE_CREATE
                   ? EK_OK
                   : EK_FAIL(err, EK_EINPUT, "%s: an empty file, not a database", path);
    f = fopen(path, "rb");
    if (!f)
        return EK_FAIL(err, EK_EASKED, "%s: %s", path, strerror(errno));
    got = fread(head, 1, sizeof head, f);
    fclose(f);
    if (got != sizeof head || memcmp(head, magic, sizeof magic) != 0)
        return EK_FAIL(err, EK_EINPUT, "%s: not an SQLite database", path);
    return EK_OK;
}

char *ek_store_still(const char *path)
{
    const char *name = strrchr(path, '/');
    const size_t size = strlen(path), slash = name ? (size_t)(name + 1 - path) : 0;
    const size_t room = 3 * size + 32;
    char *uri = malloc(room), *to = uri;

    if (!uri)
        return NULL;
    const char *end = uri + room;

    snprintf(uri, size + 3, "%.*s.", (int)slash, path);
    if (faccessat(AT_FDCWD, uri, W_OK, AT_EACCESS) == 0)
        *uri = '\0';
    else
        snprintf(uri, size + 5, "%s-wal", path);
    if (!*uri || access(uri, F_OK) == 0) {
        free(uri);
        return NULL;
    }
    to += snprintf(to, (size_t)(end - to), "file:");
    for (const char *c = path; *c; c++)
        to += snprintf(to, (size_t)(end - to), strchr("%?#", *c) ? "%%%02X" : "%c",
                       (unsigned)(unsigned char)*c);
    snprintf(to, (size_t)(end - to), "?immutable=1");
    return uri;
}
