/* tests/test_file.c - mapping, writing whole or not at all, and published hashes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "core/file.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char folder[64];

static const char *in(const char *name)
{
    static char path[2][256];
    static int turn;

    turn = !turn;
    snprintf(path[turn], sizeof path[turn], "%s/%s", folder, name);
    return path[turn];
}

static int files(void)
{
    DIR *d = opendir(folder);
    int n = 0;

    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));)
        n += e->d_name[0] != '.';
    closedir(d);
    return n;
}

static void assert_holds(const char *path, const char *text)
{
    ek_map m = {0};
    ek_err err = {0};

    assert_int_equal(ek_map_open(&m, path, &err), EK_OK);
    assert_int_equal(m.size, strlen(text));
    if (m.size > 0)
        assert_memory_equal(m.data, text, m.size);
    ek_map_close(&m);
    assert_null(m.data);
}

static void what_is_committed_is_there(void **state)
{
    ek_err err = {0};

    (void)state;
    assert_int_equal(ek_file_write(in("a"), "hello", 5, &err), EK_OK);
    assert_holds(in("a"), "hello");
    assert_int_equal(ek_file_write(in("a"), "bye", 3, &err), EK_OK);
    assert_holds(in("a"), "bye");
    assert_int_equal(ek_file_write(in("empty"), NULL, 0, &err), EK_OK);
    assert_holds(in("empty"), "");
    assert_int_equal(files(), 2); /* no temporary file stays */
    assert_true(ek_file_exists(in("a")));
    unlink(in("a"));
    unlink(in("empty"));
    assert_false(ek_file_exists(in("a")));
}

static void what_is_not_committed_is_not(void **state)
{
    ek_writer w = {0};
    ek_err err = {0};

    (void)state;
    assert_int_equal(ek_file_write(in("b"), "old", 3, &err), EK_OK);
    assert_int_equal(ek_writer_open(&w, in("b"), &err), EK_OK);
    fputs("new", w.file);
    fflush(w.file);
    assert_int_equal(files(), 2);
    assert_holds(in("b"), "old");
    ek_writer_close(&w);
    assert_holds(in("b"), "old");
    assert_int_equal(files(), 1);
    ek_writer_close(&w); /* closing twice is harmless */
    assert_int_equal(symlink(in("b"), in("link")), 0);
    assert_int_equal(ek_file_write(in("link"), "through", 7, &err), EK_OK);
    assert_holds(in("b"), "through");
    unlink(in("link"));
    unlink(in("b"));
}

static void a_full_disk_is_reported(void **state)
{
    ek_writer w = {0};
    ek_err err = {0};
    static char block[1 << 16];

    (void)state;
    assert_int_equal(ek_writer_open(&w, in("c"), &err), EK_OK);
    if (!freopen("/dev/full", "wb", w.file))
        skip();
    fwrite(block, 1, sizeof block, w.file);
    assert_int_equal(ek_writer_commit(&w, &err), EK_EIO);
    assert_non_null(strstr(err.msg, "disk full"));
    ek_writer_close(&w);
    assert_int_equal(files(), 0);

    assert_int_equal(ek_writer_open(&w, in("c"), &err), EK_OK);
    assert_non_null(freopen("/dev/full", "wb", w.file));
    fputs("few", w.file); /* seen only when the buffer is flushed */
    assert_int_equal(ek_writer_commit(&w, &err), EK_EIO);
    assert_non_null(strstr(err.msg, "No space"));
    ek_writer_close(&w);
    assert_int_equal(files(), 0);
}

static void what_cannot_be_opened_is_named(void **state)
{
    ek_map m = {0};
    ek_writer w = {0};
    ek_err err = {0};

    (void)state;
    assert_int_equal(ek_map_open(&m, in("none"), &err), EK_EASKED);
    assert_non_null(strstr(err.msg, "/none: "));
    assert_int_equal(ek_map_open(&m, folder, &err), EK_EASKED);
    assert_non_null(strstr(err.msg, "found a folder, expected a regular file"));
    assert_int_equal(mkfifo(in("pipe"), 0600), 0);
    assert_int_equal(ek_map_open(&m, in("pipe"), &err), EK_EASKED); /* and does not wait */
    /* Renamed over, a pipe or a device would be gone for everybody. */
    assert_int_equal(ek_writer_open(&w, in("pipe"), &err), EK_EASKED);
    assert_non_null(strstr(err.msg, "found a special file"));
    unlink(in("pipe"));
    assert_int_equal(ek_writer_open(&w, folder, &err), EK_EASKED);
    assert_int_equal(ek_writer_open(&w, "", &err), EK_EASKED);
    assert_int_equal(ek_writer_open(&w, in("no/such/file"), &err), EK_EASKED);
    assert_null(w.file);
    assert_null(m.data);
}

static void folders_are_made_with_parents(void **state)
{
    ek_err err = {0};

    (void)state;
    assert_int_equal(ek_make_folder(in("x/y/z"), &err), EK_OK);
    assert_int_equal(ek_make_folder(in("x/y/z/"), &err), EK_OK);
    assert_int_equal(ek_file_write(in("x/file"), "1", 1, &err), EK_OK);
    assert_int_equal(ek_make_folder(in("x/file"), &err), EK_EASKED);
    assert_int_equal(ek_make_folder("", &err), EK_EASKED);
    unlink(in("x/file"));
    rmdir(in("x/y/z"));
    rmdir(in("x/y"));
    assert_int_equal(rmdir(in("x")), 0);
}

static void sha256_vectors(void **state)
{
    /* FIPS 180-2 appendix B, and the empty message. */
    static const struct {
        const char *text, *hash;
    } v[] = {
        {"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
        {"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
        {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
         "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
    };
    char out[65], *million = malloc(1000000);

    (void)state;
    for (size_t i = 0; i < EK_COUNT(v); i++) {
        ek_sha256(out, v[i].text, strlen(v[i].text));
        assert_string_equal(out, v[i].hash);
    }
    assert_non_null(million);
    memset(million, 'a', 1000000);
    ek_sha256(out, million, 1000000);
    assert_string_equal(out, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
    million[999999] = 'b'; /* negative control */
    ek_sha256(out, million, 1000000);
    assert_string_not_equal(out,
                            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
    free(million);
}

static void hash128_is_stable(void **state)
{
    char a[33], b[33];
    ek_hasher *h;

    (void)state;
    ek_hash128(a, "", 0); /* the library's published value of the empty input */
    assert_string_equal(a, "99aa06d3014798d86001c324468d497f");
    ek_hash128(a, "abc", 3);
    ek_hash128(b, "abd", 3);
    assert_string_not_equal(a, b);

    h = ek_hasher_open();
    ek_hasher_add(h, "ab", 2);
    ek_hasher_add(h, "c", 1);
    ek_hasher_close(h, a);
    h = ek_hasher_open();
    ek_hasher_add(h, "a", 1);
    ek_hasher_add(h, "bc", 2);
    ek_hasher_close(h, b);
    assert_string_not_equal(a, b); /* where a piece ends counts */
    h = ek_hasher_open();
    ek_hasher_add(h, "ab", 2);
    ek_hasher_add(h, "c", 1);
    ek_hasher_close(h, b);
    assert_string_equal(a, b);
}

/* What a killed writer left goes when the file is written again; a living one's stays. */
static void orphans_are_removed(void **state)
{
    ek_writer w = {0}, second = {0};
    const pid_t child = fork();
    char left[300];
    ek_err err = {0};

    (void)state;
    if (child == 0) {
        if (ek_writer_open(&w, in("big"), &err) != EK_OK || fputs("half", w.file) < 0)
            _exit(1);
        kill(getpid(), SIGKILL);
    }
    assert_int_equal(waitpid(child, NULL, 0), child);
    assert_int_equal(files(), 1);
    snprintf(left, sizeof left, "%s.tmp-%ld-0", in("big"), (long)child);
    assert_true(ek_file_exists(left));
    ek_drop_temps(in("bi")); /* another file's */
    ek_drop_temps(in("nowhere/big"));
    assert_int_equal(files(), 1);
    assert_int_equal(ek_writer_open(&w, in("big"), &err), EK_OK);
    assert_false(ek_file_exists(left));
    assert_int_equal(ek_writer_open(&second, in("big"), &err), EK_OK); /* w's lives */
    assert_int_equal(files(), 2);
    /* A name that is none of ours; one that is locked by somebody who is not seen from here. */
    snprintf(left, sizeof left, "%s.tmp-%ldx-0", in("big"), (long)child);
    assert_int_equal(ek_file_write(left, "", 0, &err), EK_OK);
    ek_drop_temps(in("big"));
    assert_int_equal(files(), 3);
    assert_int_equal(unlink(left), 0);
    snprintf(left, sizeof left, "%s.tmp-%ld-0", in("big"), (long)child);
    const int fd = open(left, O_WRONLY | O_CREAT, 0666);
    assert_true(fd >= 0);
    assert_int_equal(flock(fd, LOCK_EX), 0);
    ek_drop_temps(in("big"));
    assert_int_equal(files(), 3);
    close(fd);
    ek_drop_temps(in("big"));
    assert_int_equal(files(), 2);
    ek_writer_close(&w);
    ek_writer_close(&second);
    assert_int_equal(files(), 0);
}

static void a_place_has_one_name(void **state)
{
    static const char *const same[] = {"a/b/c",      "./a//b/./c/", "a/b/../b/c",
                                       "a/x/../b/c", "link/c",      "a/new/../../a/b/c"};
    char want[EK_PATH_ROOM], got[EK_PATH_ROOM], here[256];
    ek_err err = {0};

    (void)state;
    assert_non_null(getcwd(here, sizeof here));
    assert_int_equal(ek_make_folder(in("a/b"), &err), EK_OK);
    assert_int_equal(symlink("a/b", in("link")), 0);
    assert_int_equal(chdir(folder), 0);
    assert_int_equal(ek_real_path(in("a/b/c"), want, &err), EK_OK); /* c is not there yet */
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        assert_int_equal(ek_real_path(same[i], got, &err), EK_OK);
        assert_string_equal(got, want);
    }
    assert_int_equal(ek_real_path("a/b/d", got, &err), EK_OK);
    assert_string_not_equal(got, want);
    assert_int_equal(ek_real_path("/..", got, &err), EK_OK);
    assert_string_equal(got, "/");
    char *big = malloc(2 * EK_PATH_ROOM);
    memset(big, 'x', 2 * EK_PATH_ROOM - 1);
    big[2 * EK_PATH_ROOM - 1] = '\0';
    assert_int_equal(ek_real_path(big, got, &err), EK_EASKED);
    free(big);
    assert_int_equal(chdir(here), 0);
    assert_int_equal(unlink(in("link")), 0);
    assert_int_equal(rmdir(in("a/b")), 0);
    assert_int_equal(rmdir(in("a")), 0);
}

static int make_folder(void **state)
{
    (void)state;
    strcpy(folder, "/tmp/ek_file_XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static int drop_folder(void **state)
{
    (void)state;
    return rmdir(folder); /* fails if a test left a file */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_committed_is_there),
        cmocka_unit_test(what_is_not_committed_is_not),
        cmocka_unit_test(a_full_disk_is_reported),
        cmocka_unit_test(what_cannot_be_opened_is_named),
        cmocka_unit_test(folders_are_made_with_parents),
        cmocka_unit_test(orphans_are_removed),
        cmocka_unit_test(a_place_has_one_name),
        cmocka_unit_test(sha256_vectors),
        cmocka_unit_test(hash128_is_stable),
    };

    return cmocka_run_group_tests(tests, make_folder, drop_folder);
}
