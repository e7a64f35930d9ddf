/* results/store_file.c - what can be said of a database's file without opening it as one. */
#include "results/inside.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

ek_code ek_store_name(const char *path, ek_err *err)
{
    if (!*path)
        return EK_FAIL(err, EK_EASKED, "results: found an empty name, expected that of a database");
    if (*path == ':' || strncasecmp(path, "file:", 5) == 0)
        return EK_FAIL(err, EK_EASKED,
                       "results: %s: found %s, expected the name of a file (./%s is one)", path,
                       *path == ':' ? "a database in memory" : "a URI", path);
    return EK_OK;
}

ek_code ek_store_look(const char *path, ek_store_mode mode, ek_err *err)
{
    static const char magic[16] = "SQLite format 3";
    char head[16];
    struct stat st;
    size_t got;
    FILE *f;

    EK_TRY(ek_store_name(path, err));
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

/* The same file; of two that are not there, the same name in the same folder. */
static int same_place(const char *a, const char *b)
{
    char a_copy[PATH_MAX + 16], b_copy[PATH_MAX + 16];
    struct stat x, y;
    const int a_is = stat(a, &x) == 0, b_is = stat(b, &y) == 0;

    if (a_is || b_is)
        return a_is && b_is && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
    snprintf(a_copy, sizeof a_copy, "%s", a);
    snprintf(b_copy, sizeof b_copy, "%s", b);
    if (strcmp(basename(a_copy), basename(b_copy)) != 0)
        return 0;
    snprintf(a_copy, sizeof a_copy, "%s", a);
    snprintf(b_copy, sizeof b_copy, "%s", b);
    return stat(dirname(a_copy), &x) == 0 && stat(dirname(b_copy), &y) == 0 &&
           x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

int ek_store_owns(const char *db, const char *path)
{
    static const char *const beside[] = {"", "-wal", "-shm", "-journal"};
    char real[PATH_MAX], name[PATH_MAX + 16];

    /* SQLite's own files lie beside what a link leads to. */
    if (realpath(db, real) == NULL)
        snprintf(real, sizeof real, "%s", db);
    for (size_t i = 0; i < EK_COUNT(beside); i++) {
        snprintf(name, sizeof name, "%s%s", real, beside[i]);
        if (same_place(name, path))
            return 1;
    }
    return 0;
}
