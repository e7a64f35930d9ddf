/* core/file.c - see file.h. */
#include "core/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

ek_code ek_map_open(ek_map *out, const char *path, ek_err *err)
{
    struct stat st;
    void *data = NULL;
    /* Without O_NONBLOCK, opening a pipe nobody writes to would wait for ever. */
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);

    if (fd < 0)
        return EK_FAIL(err, errno == ENOENT || errno == ENOTDIR ? EK_EASKED : EK_EIO,
                       "%s: cannot open: %s", path, strerror(errno));
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        close(fd);
        return EK_FAIL(err, EK_EASKED, "%s: found %s, expected a regular file", path,
                       S_ISDIR(st.st_mode) ? "a folder" : "a special file");
    }
    if (st.st_size > 0) {
        data = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (data == MAP_FAILED) {
            const int e = errno;

            close(fd);
            return EK_FAIL(err, EK_EIO, "%s: cannot map %lld bytes: %s", path,
                           (long long)st.st_size, strerror(e));
        }
    }
    close(fd);
    out->data = data;
    out->size = (size_t)st.st_size;
    return EK_OK;
}

void ek_map_close(ek_map *m)
{
    if (m->data)
        munmap((void *)(uintptr_t)m->data, m->size);
    *m = (ek_map){0};
}

/* The folder a path lies in: the part in front of the last slash, or ".".  malloc'd. */
static char *folder_of(const char *path)
{
    const char *slash = strrchr(path, '/');

    if (!slash)
        return strdup(".");
    return strndup(path, slash == path ? 1 : (size_t)(slash - path));
}

/* Where a file of this name will stand: behind symbolic links.  Renaming over a device or a pipe
 * would take it away from everybody, so only what is a regular file is ever replaced.  malloc'd. */
static ek_code place_of(const char *path, char **out, ek_err *err)
{
    struct stat st;

    *out = NULL;
    if (!*path)
        return EK_FAIL(err, EK_EASKED, "found an empty name, expected that of a file to write");
    if (stat(path, &st) == 0) {
        if (!S_ISREG(st.st_mode))
            return EK_FAIL(err, EK_EASKED, "%s: found %s, expected a regular file or none", path,
                           S_ISDIR(st.st_mode) ? "a folder" : "a special file");
        *out = realpath(path, NULL);
    }
    if (!*out && !(*out = strdup(path)))
        return EK_FAIL(err, EK_ENOMEM, "%s: no memory for its name", path);
    return EK_OK;
}

/* Is PID-N, the end of a temporary file's name, of a process that is gone? */
static int is_orphan(const char *name)
{
    const size_t digits = strspn(name, "0123456789");
    const char *rest = name + digits;
    const long pid = digits > 0 && digits < 10 ? strtol(name, NULL, 10) : 0;

    if (pid <= 0 || *rest != '-' || rest[1] == '\0' || rest[1 + strspn(rest + 1, "0123456789")])
        return 0;
    return kill((pid_t)pid, 0) != 0 && errno == ESRCH;
}

void ek_drop_temps(const char *path)
{
    const char *slash = strrchr(path, '/'), *base = slash ? slash + 1 : path;
    const size_t n = strlen(base);
    char *folder = folder_of(path);
    DIR *d = folder ? opendir(folder) : NULL;

    free(folder);
    for (struct dirent *e; d && (e = readdir(d));) {
        if (strncmp(e->d_name, base, n) != 0 || strncmp(e->d_name + n, ".tmp-", 5) != 0 ||
            !is_orphan(e->d_name + n + 5))
            continue;
        /* Its number may be known to another machine or container alone: then it is locked. */
        const int fd = openat(dirfd(d), e->d_name, O_RDONLY | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC);

        if (fd < 0)
            continue;
        if (flock(fd, LOCK_EX | LOCK_NB) == 0)
            unlinkat(dirfd(d), e->d_name, 0);
        close(fd);
    }
    if (d)
        closedir(d);
}

ek_code ek_writer_open(ek_writer *w, const char *path, ek_err *err)
{
    ek_writer new = {0};
    size_t room;
    int fd = -1;

    EK_TRY(place_of(path, &new.path, err));
    room = strlen(new.path) + 48;
    new.temp = malloc(room);
    if (!new.temp) {
        free(new.path);
        return EK_FAIL(err, EK_ENOMEM, "%s: no memory for its name", path);
    }
    ek_drop_temps(new.path);
    /* Not mkstemp: the file gets the rights that the user's umask gives. */
    for (int i = 0; i < 1000; i++) {
        snprintf(new.temp, room, "%s.tmp-%ld-%d", new.path, (long)getpid(), i);
        fd = open(new.temp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (fd >= 0 || errno != EEXIST)
            break;
    }
    if (fd >= 0)
        flock(fd, LOCK_EX | LOCK_NB); /* for ek_drop_temps; a file system may have none */
    new.file = fd < 0 ? NULL : fdopen(fd, "wb");
    if (!new.file) {
        const int e = errno;

        if (fd >= 0) {
            close(fd);
            unlink(new.temp);
        }
        free(new.path);
        free(new.temp);
        return EK_FAIL(err, e == ENOENT || e == ENOTDIR ? EK_EASKED : EK_EIO,
                       "%s: cannot create: %s", path, strerror(e));
    }
    *w = new;
    return EK_OK;
}

static ek_code sync_folder(const char *path, ek_err *err)
{
    char *folder = folder_of(path);
    const int fd = folder ? open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    int e = fd < 0 ? errno : 0;

    free(folder);
    if (fd >= 0) {
        if (fsync(fd) != 0)
            e = errno;
        close(fd);
    }
    if (e != 0 && e != EINVAL && e != ENOTSUP) /* some file systems cannot sync folders */
        return EK_FAIL(err, EK_EIO, "%s: cannot sync its folder: %s", path, strerror(e));
    return EK_OK;
}

ek_code ek_writer_finish(ek_writer *w, ek_err *err)
{
    const int lost = ferror(w->file); /* of an earlier write, whose errno is gone */
    int e = 0;

    if (fflush(w->file) != 0)
        e = errno;
    else if (lost)
        e = EIO;
    else if (fsync(fileno(w->file)) != 0)
        e = errno;
    if (fclose(w->file) != 0 && e == 0)
        e = errno;
    w->file = NULL;
    return e == 0 ? EK_OK
                  : EK_FAIL(err, EK_EIO, "%s: cannot write: %s", w->path,
                            lost ? "a write failed; is the disk full?" : strerror(e));
}

ek_code ek_writer_commit(ek_writer *w, ek_err *err)
{
    if (w->file)
        EK_TRY(ek_writer_finish(w, err));
    if (rename(w->temp, w->path) != 0)
        return EK_FAIL(err, EK_EIO, "%s: cannot write: %s", w->path, strerror(errno));
    free(w->temp);
    w->temp = NULL;
    return sync_folder(w->path, err);
}

void ek_writer_close(ek_writer *w)
{
    if (w->file)
        fclose(w->file);
    if (w->temp)
        unlink(w->temp);
    free(w->temp);
    free(w->path);
    *w = (ek_writer){0};
}

ek_code ek_file_write(const char *path, const void *data, size_t size, ek_err *err)
{
    ek_writer w = {0};
    ek_code code;

    EK_TRY(ek_writer_open(&w, path, err));
    if (size > 0)
        fwrite(data, 1, size, w.file);
    code = ek_writer_commit(&w, err);
    ek_writer_close(&w);
    return code;
}

ek_code ek_make_folder(const char *path, ek_err *err)
{
    char part[PATH_MAX];
    const size_t n = strlen(path);
    struct stat st;

    if (n == 0 || n >= sizeof part)
        return EK_FAIL(err, EK_EASKED, "folder name: found %zu bytes, expected 1 .. %zu", n,
                       sizeof part - 1);
    memcpy(part, path, n + 1);
    for (size_t i = 1; i <= n; i++) {
        if (part[i] != '/' && part[i] != '\0')
            continue;
        const char end = part[i];

        part[i] = '\0';
        if (mkdir(part, 0777) != 0 && errno != EEXIST)
            return EK_FAIL(err, EK_EIO, "%s: cannot make folder %s: %s", path, part,
                           strerror(errno));
        if (stat(part, &st) != 0 || !S_ISDIR(st.st_mode))
            return EK_FAIL(err, EK_EASKED, "%s: %s is not a folder", path, part);
        part[i] = end;
    }
    return EK_OK;
}

ek_code ek_make_parent(const char *path, ek_err *err)
{
    char *folder = folder_of(path);
    ek_code code;

    if (!folder)
        return EK_FAIL(err, EK_ENOMEM, "%s: no memory for its folder's name", path);
    code = ek_make_folder(folder, err);
    free(folder);
    return code;
}

size_t ek_folder_there(const char *path)
{
    char part[PATH_MAX];
    size_t n = strlen(path);

    if (n >= sizeof part)
        return n;
    memcpy(part, path, n + 1);
    while (n > 0 && !ek_file_exists(part)) {
        while (n > 0 && part[n - 1] != '/') /* the last part, then what separates it */
            n--;
        while (n > 0 && part[n - 1] == '/')
            n--;
        part[n] = '\0';
    }
    return n;
}

void ek_drop_folders(const char *path, size_t keep)
{
    char part[PATH_MAX];
    size_t n = strlen(path);

    if (n >= sizeof part)
        return;
    memcpy(part, path, n + 1);
    while (n > keep && (rmdir(part) == 0 || errno == ENOENT)) {
        while (n > keep && part[n - 1] != '/')
            n--;
        while (n > keep && part[n - 1] == '/')
            n--;
        part[n] = '\0';
    }
}

ek_code ek_real_path(const char *path, char out[EK_PATH_ROOM], ek_err *err)
{
    char real[PATH_MAX];

    if (path[0] == '/')
        memcpy(out, "/", 2);
    else if (getcwd(out, EK_PATH_ROOM) == NULL)
        return EK_FAIL(err, EK_EIO, "%s: the working folder has no name: %s", path,
                       strerror(errno));
    while (*path) {
        const size_t part = strcspn(path, "/");
        size_t n = strlen(out);

        if (part == 2 && memcmp(path, "..", 2) == 0) {
            while (n > 1 && out[n - 1] != '/')
                n--;
            out[n > 1 ? n - 1 : 1] = '\0';
        } else if (part > 0 && !(part == 1 && *path == '.')) {
            if (n + part + 2 > EK_PATH_ROOM)
                return EK_FAIL(err, EK_EASKED, "%s: found a name of more than %d bytes", path,
                               EK_PATH_ROOM - 1);
            snprintf(out + n, EK_PATH_ROOM - n, "%s%.*s", n > 1 ? "/" : "", (int)part, path);
            if (realpath(out, real) != NULL) /* what is not there yet has no links */
                snprintf(out, EK_PATH_ROOM, "%s", real);
        }
        path += part + (path[part] == '/');
    }
    return EK_OK;
}

int ek_file_exists(const char *path)
{
    struct stat st;

    return stat(path, &st) == 0;
}

static void hex(char *out, const uint8_t *bytes, int n)
{
    static const char digit[] = "0123456789abcdef";

    for (int i = 0; i < n; i++) {
        out[2 * i] = digit[bytes[i] >> 4];
        out[2 * i + 1] = digit[bytes[i] & 15];
    }
    out[2 * n] = '\0';
}

static void hex128(char out[33], XXH128_hash_t h)
{
    XXH128_canonical_t c;

    XXH128_canonicalFromHash(&c, h);
    hex(out, c.digest, 16);
}

void ek_hash128(char out[33], const void *data, size_t size)
{
    hex128(out, XXH3_128bits(data, size));
}

struct ek_hasher {
    XXH3_state_t *state;
};

ek_hasher *ek_hasher_open(void)
{
    ek_hasher *h = malloc(sizeof *h);

    if (!h)
        return NULL;
    h->state = XXH3_createState();
    if (!h->state || XXH3_128bits_reset(h->state) != XXH_OK) {
        XXH3_freeState(h->state);
        free(h);
        return NULL;
    }
    return h;
}

void ek_hasher_add(ek_hasher *h, const void *data, size_t size)
{
    uint8_t length[8];

    for (int i = 0; i < 8; i++)
        length[i] = (uint8_t)((uint64_t)size >> (8 * i));
    XXH3_128bits_update(h->state, length, sizeof length);
    if (size > 0)
        XXH3_128bits_update(h->state, data, size);
}

void ek_hasher_close(ek_hasher *h, char out[33])
{
    hex128(out, XXH3_128bits_digest(h->state));
    XXH3_freeState(h->state);
    free(h);
}

/* SHA-256, FIPS 180-4. */
static uint32_t turn(uint32_t x, int n)
{
    return x >> n | x << (32 - n);
}

static void sha256_block(uint32_t s[8], const uint8_t *p)
{
    /* The first 32 bits of the fractions of the cube roots of the first 64 primes. */
    static const uint32_t k[64] = {
        0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4,
        0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe,
        0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f,
        0x4a7484aa, 0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7,
        0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc,
        0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b,
        0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116,
        0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
        0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7,
        0xc67178f2};
    uint32_t w[64], v[8];

    for (int i = 0; i < 16; i++)
        w[i] = (uint32_t)p[4 * i] << 24 | (uint32_t)p[4 * i + 1] << 16 |
               (uint32_t)p[4 * i + 2] << 8 | p[4 * i + 3];
    for (int i = 16; i < 64; i++) {
        const uint32_t a = w[i - 15], b = w[i - 2];

        w[i] = w[i - 16] + (turn(a, 7) ^ turn(a, 18) ^ a >> 3) + w[i - 7] +
               (turn(b, 17) ^ turn(b, 19) ^ b >> 10);
    }
    memcpy(v, s, sizeof v);
    for (int i = 0; i < 64; i++) {
        const uint32_t t1 = v[7] + (turn(v[4], 6) ^ turn(v[4], 11) ^ turn(v[4], 25)) +
                            ((v[4] & v[5]) ^ (~v[4] & v[6])) + k[i] + w[i];
        const uint32_t t2 = (turn(v[0], 2) ^ turn(v[0], 13) ^ turn(v[0], 22)) +
                            ((v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]));

        memmove(v + 1, v, 7 * sizeof v[0]);
        v[4] += t1;
        v[0] = t1 + t2;
    }
    for (int i = 0; i < 8; i++)
        s[i] += v[i];
}

void ek_sha256(char out[65], const void *data, size_t size)
{
    uint32_t s[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                     0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    const uint8_t *p = data;
    uint8_t tail[128] = {0}, digest[32];
    const size_t whole = size / 64, rest = size % 64, n_tail = rest < 56 ? 64 : 128;
    const uint64_t bits = (uint64_t)size * 8;

    for (size_t i = 0; i < whole; i++)
        sha256_block(s, p + 64 * i);
    if (rest > 0)
        memcpy(tail, p + 64 * whole, rest);
    tail[rest] = 0x80;
    for (int i = 0; i < 8; i++)
        tail[n_tail - 1 - (size_t)i] = (uint8_t)(bits >> (8 * i));
    for (size_t i = 0; i < n_tail; i += 64)
        sha256_block(s, tail + i);
    for (int i = 0; i < 32; i++)
        digest[i] = (uint8_t)(s[i / 4] >> (24 - 8 * (i % 4)));
    hex(out, digest, 32);
}
