/* core/progress.c - see progress.h. */
#include "core/progress.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

static const double bar_every = 0.1, line_every = 10.0; /* seconds */

double ek_now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* "0:07", "12:34" or "1:02:03". */
static void clock_text(char out[32], double seconds)
{
    const long s = seconds > 0 && seconds < 3.6e8 ? (long)(seconds + 0.5) : 0;

    if (s >= 3600)
        snprintf(out, 32, "%ld:%02ld:%02ld", s / 3600, s / 60 % 60, s % 60);
    else
        snprintf(out, 32, "%ld:%02ld", s / 60, s % 60);
}

/* Three digits are what one can read while it moves. */
static void rate_text(char out[32], double rate)
{
    snprintf(out, 32, rate >= 100 ? "%.0f" : rate >= 10 ? "%.1f" : "%.2f", rate);
}

void ek_progress_open(ek_progress *p, const char *what, const char *unit, int64_t total)
{
    *p = (ek_progress){.what = what, .unit = unit, .total = total};
    p->start = ek_now();
    p->terminal = isatty(STDERR_FILENO);
    p->quiet = getenv("EVICTKIT_QUIET") != NULL;
    /* The first line comes at once on a terminal, and elsewhere only once it has taken a while. */
    p->shown = p->terminal ? 0 : p->start;
}

/* Columns of the terminal. */
static int columns(void)
{
    struct winsize w;

    return ioctl(STDERR_FILENO, TIOCGWINSZ, &w) == 0 && w.ws_col >= 20 ? w.ws_col : 80;
}

/* Everything but the bar: "12 of 40 tokens, 3.21/s, 0:09 left, loss 1.2". */
static void figures(const ek_progress *p, double now, const char *note, char *out, size_t room)
{
    const double took = now - p->start, rate = took > 0 ? (double)(p->done - p->before) / took : 0;
    char r[32], left[32] = "";
    int n;

    rate_text(r, rate);
    if (p->total > 0)
        n = snprintf(out, room, "%lld of %lld %s, %s/s", (long long)p->done, (long long)p->total,
                     p->unit, r);
    else
        n = snprintf(out, room, "%lld %s, %s/s", (long long)p->done, p->unit, r);
    if (n > 0 && (size_t)n < room && p->total > p->done && rate > 0) {
        clock_text(left, (double)(p->total - p->done) / rate);
        n += snprintf(out + n, room - (size_t)n, ", %s left", left);
    }
    if (n > 0 && (size_t)n < room && note)
        snprintf(out + n, room - (size_t)n, ", %s", note);
}

static void draw_bar(const ek_progress *p, const char *text)
{
    enum { WIDTH = 24 };
    char bar[WIDTH + 1], line[512];
    const double part = p->total > 0 ? (double)p->done / (double)p->total : 0;
    const int full = (int)(WIDTH * (part < 0 ? 0 : part > 1 ? 1 : part));
    int n;

    memset(bar, '.', WIDTH);
    memset(bar, '#', (size_t)full);
    bar[WIDTH] = '\0';
    if (p->total > 0)
        n = snprintf(line, sizeof line, "%s [%s] %3.0f%% %s", p->what, bar, 100 * part, text);
    else
        n = snprintf(line, sizeof line, "%s %s", p->what, text);
    /* A line longer than the terminal would scroll; the last column stays free. */
    if (n >= columns())
        n = columns() - 1;
    fprintf(stderr, "\r%.*s\033[K", n, line);
    fflush(stderr);
}

void ek_progress_at(ek_progress *p, int64_t done, const char *note)
{
    const double now = ek_now();
    char text[400];

    p->done = done;
    if (p->quiet || now - p->shown < (p->terminal ? bar_every : line_every))
        return;
    p->shown = now;
    figures(p, now, note, text, sizeof text);
    if (p->terminal)
        draw_bar(p, text);
    else
        fprintf(stderr, "%s: %s\n", p->what, text);
}

void ek_progress_close(ek_progress *p)
{
    const double took = ek_now() - p->start;
    char t[32], r[32];

    if (p->quiet || !p->what)
        return;
    clock_text(t, took);
    rate_text(r, took > 0 ? (double)(p->done - p->before) / took : 0);
    fprintf(stderr, "%s%s: %lld %s in %s, %s/s\n", p->terminal ? "\r\033[K" : "", p->what,
            (long long)(p->done - p->before), p->unit, t, r);
    p->what = NULL;
}

static volatile sig_atomic_t stop_asked;

static void on_signal(int sig)
{
    if (stop_asked) {
        /* Die of the signal itself, so that a shell sees what happened. */
        signal(sig, SIG_DFL);
        raise(sig);
    }
    stop_asked = 1;
}

/* A mapped file became shorter while it was read: nothing that was in it can be had any more. */
static void on_bus_error(int sig)
{
    static const char text[] = "evictkit: a file that was being read became shorter, or its disk "
                               "failed; everything finished is stored\n";

    (void)sig;
    if (write(STDERR_FILENO, text, sizeof text - 1) < 0)
        _exit(1);
    _exit(1);
}

void ek_stop_install(void)
{
    struct sigaction bus = {.sa_handler = on_bus_error};

    struct sigaction a = {.sa_handler = on_signal, .sa_flags = SA_RESTART};

    sigemptyset(&a.sa_mask);
    sigaction(SIGINT, &a, NULL);
    sigaction(SIGTERM, &a, NULL);
    sigemptyset(&bus.sa_mask);
    sigaction(SIGBUS, &bus, NULL);
}

int ek_stop_asked(void)
{
    return stop_asked != 0;
}
