/* tests/test_progress.c - stop signals and the lines that a pipe gets. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "core/progress.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* Run work in a child whose stderr is a pipe; its exit status, and what it wrote. */
static int run(void (*work)(void), char *out, size_t room)
{
    int ends[2], status;
    size_t n = 0;
    pid_t child;

    assert_int_equal(pipe(ends), 0);
    child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        dup2(ends[1], STDERR_FILENO);
        close(ends[0]);
        close(ends[1]);
        work();
        _exit(0);
    }
    close(ends[1]);
    for (ssize_t got; n + 1 < room && (got = read(ends[0], out + n, room - 1 - n)) > 0;)
        n += (size_t)got;
    out[n] = '\0';
    close(ends[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    return status;
}

static void one_signal(void)
{
    ek_stop_install();
    if (ek_stop_asked())
        _exit(1);
    raise(SIGINT);
    _exit(ek_stop_asked() ? 42 : 2);
}

static void two_signals(void)
{
    ek_stop_install();
    raise(SIGINT);
    raise(SIGTERM);
    _exit(3);
}

static void the_first_signal_asks_the_second_ends(void **state)
{
    char out[100];
    int status;

    (void)state;
    status = run(one_signal, out, sizeof out);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 42);
    status = run(two_signals, out, sizeof out);
    assert_true(WIFSIGNALED(status));
    assert_int_equal(WTERMSIG(status), SIGTERM);
}

static void short_work(void)
{
    ek_progress p;

    ek_progress_open(&p, "prefill", "tokens", 1000);
    for (int i = 1; i <= 1000; i++)
        ek_progress_at(&p, i, "loss 1.5");
    ek_progress_close(&p);
}

static void long_work(void)
{
    ek_progress p;

    ek_progress_open(&p, "training", "steps", 100);
    p.start -= 25; /* as if it had begun then */
    p.shown -= 25;
    ek_progress_at(&p, 50, "loss 1.5");
    ek_progress_at(&p, 51, NULL); /* too soon for another line */
    ek_progress_close(&p);
}

static void quiet_work(void)
{
    setenv("EVICTKIT_QUIET", "1", 1);
    long_work();
}

static void a_pipe_gets_few_plain_lines(void **state)
{
    char out[4000];

    (void)state;
    assert_int_equal(run(short_work, out, sizeof out), 0);
    assert_int_equal(strncmp(out, "prefill: 1000 tokens in 0:00, ", 30), 0);
    assert_ptr_equal(strchr(out, '\n'), out + strlen(out) - 1); /* one line only */
    assert_null(strchr(out, '\r'));

    assert_int_equal(run(long_work, out, sizeof out), 0);
    assert_non_null(strstr(out, "training: 50 of 100 steps, 2.00/s, 0:25 left, loss 1.5\n"));
    assert_null(strstr(out, "51 of"));
    assert_non_null(strstr(out, "training: 51 steps in 0:25, 2.04/s\n"));

    assert_int_equal(run(quiet_work, out, sizeof out), 0);
    assert_string_equal(out, "");
}

static void the_clock_moves_forward(void **state)
{
    const double a = ek_now();

    (void)state;
    usleep(2000);
    assert_true(ek_now() - a > 0.001);
    assert_true(ek_now() - a < 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_signal_asks_the_second_ends),
        cmocka_unit_test(a_pipe_gets_few_plain_lines),
        cmocka_unit_test(the_clock_moves_forward),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
