/* core/file.h - files: mapped for reading, written under a temporary name, fsync'd and renamed; and
 * hashes.  XXH3-128 names things, SHA-256 proves them. */
#ifndef EK_CORE_FILE_H
#define EK_CORE_FILE_H

#include "core/err.h"

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

typedef struct ek_map {
    const uint8_t *data; /* NULL if size is 0 */
    size_t size;
} ek_map;

/* Map a regular file read-only.  EK_EASKED: not there or not a regular file. */
ek_code ek_map_open(ek_map *out, const char *path, ek_err *err);
void ek_map_close(ek_map *m);

/* A file being written: `path` appears, whole, only at commit.  Close without commit removes it. */
typedef struct ek_writer {
    FILE *file; /* write here; errors are found at commit */
    char *path, *temp;
} ek_writer;

/* A process that is killed leaves its temporary file.  Remove those of this path whose process is
 * gone; opening a writer does so, too. */
void ek_drop_temps(const char *path);

/* EK_EASKED: path is empty, in no folder, or is something other than a regular file. */
ek_code ek_writer_open(ek_writer *w, const char *path, ek_err *err);
/* Flush and fsync: `temp` is whole, and `path` as before.  For files that must appear together; a
 * commit does it, too. */
ek_code ek_writer_finish(ek_writer *w, ek_err *err);
ek_code ek_writer_commit(ek_writer *w, ek_err *err); /* flush, fsync, rename, fsync the folder */
void ek_writer_close(ek_writer *w);                  /* after commit or instead of it */
ek_code ek_file_write(const char *path, const void *data, size_t size, ek_err *err);

ek_code ek_make_folder(const char *path, ek_err *err); /* and its parents; existing is fine */
ek_code ek_make_parent(const char *path, ek_err *err); /* the folder that path lies in */
int ek_file_exists(const char *path);

/* How much of a folder's name is there already, in bytes; and, after something went wrong, without
 * what was made of it beyond that, as far as it is empty. */
size_t ek_folder_there(const char *path);
void ek_drop_folders(const char *path, size_t keep);

/* The one name of a file or folder, there or not: absolute, without ".", ".." and symbolic links.
 */
enum { EK_PATH_ROOM = 4096 };
ek_code ek_real_path(const char *path, char out[EK_PATH_ROOM], ek_err *err);

/* 32 lower-case hex digits and NUL. */
void ek_hash128(char out[33], const void *data, size_t size);
/* Of several pieces, as if joined with their lengths between. */
typedef struct ek_hasher ek_hasher;
ek_hasher *ek_hasher_open(void); /* NULL: no memory */
void ek_hasher_add(ek_hasher *h, const void *data, size_t size);
void ek_hasher_close(ek_hasher *h, char out[33]); /* frees h */

/* 64 lower-case hex digits and NUL. */
void ek_sha256(char out[65], const void *data, size_t size);

#endif
