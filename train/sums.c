/* train/sums.c - see the header. */
#include "train/sums.h"

#include "core/bf16.h"
#include "core/progress.h"
#include "train/state.h"

#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 64 }; /* turned into doubles at a time */

ek_code ek_sums_open(ek_sums *s, const ek_dims *dims, int joint, int length, ek_device *dev,
                     ek_err *err)
{
    const int half = dims->head_dim / 2, width = joint ? dims->n_heads * dims->head_dim : 2 * half;
    const int n = joint ? dims->n_layers : dims->n_layers * dims->n_heads;

    *s = (ek_sums){.dims = *dims, .joint = joint, .threads = dev->threads, .length = length};
    EK_CHECK(ek_regress_open(&s->fit, n, width, dev->isa, err));
    EK_CHECK(ek_regress_open(&s->held, n, width, dev->isa, err));
    s->angle = malloc((size_t)length * 2 * (size_t)half * sizeof *s->angle);
    s->scratch = calloc((size_t)s->threads * 2 * ROWS * (size_t)s->fit.ld, sizeof *s->scratch);
    if (s->angle == NULL || s->scratch == NULL)
        EK_CHECK(EK_FAIL(err, EK_ENOMEM, "sums of %d maps", n));
    for (int p = 0; p < length; p++)
        for (int i = 0; i < half; i++) {
            const double turn = p * pow((double)dims->rope_base, -2.0 * i / (double)dims->head_dim);

            s->angle[((size_t)p * 2) * (size_t)half + (size_t)i] = cos(turn);
            s->angle[((size_t)p * 2 + 1) * (size_t)half + (size_t)i] = sin(turn);
        }
    return EK_OK;
fail:
    ek_sums_close(s);
    return err->code;
}

void ek_sums_close(ek_sums *s)
{
    ek_regress_close(&s->fit);
    ek_regress_close(&s->held);
    free(s->angle);
    free(s->scratch);
    *s = (ek_sums){0};
}

size_t ek_sums_bytes(const ek_sums *s)
{
    return 2 * ek_regress_bytes(s->fit.n, s->fit.width);
}

/* ---- adding ---- */

static double number(const void *of, ek_dtype type, size_t i)
{
    return type == EK_F32 ? (double)((const float *)of)[i]
                          : (double)ek_from_bf16(((const ek_bf16 *)of)[i]);
}

/* One entry's key, un-rotated, and its value. */
static void take(const ek_sums *s, const ek_view *view, size_t entry, double *x, double *v)
{
    const size_t d = (size_t)view->head_dim, half = d / 2;
    const double *cs = s->angle + (size_t)view->pos[entry] * d;

    for (size_t i = 0; i < half; i++) {
        const double a = number(view->k, view->dtype, entry * d + i);
        const double b = number(view->k, view->dtype, entry * d + half + i);

        x[i] = a * cs[i] + b * cs[half + i];
        x[half + i] = b * cs[i] - a * cs[half + i];
    }
    for (size_t i = 0; i < d; i++)
        v[i] = number(view->v, view->dtype, entry * d + i);
}

static void add_map(ek_sums *s, const ek_cache *c, ek_regress *r, int map, double *scratch)
{
    const int heads = s->joint ? 1 : s->dims.n_heads, layer = map / heads;
    const int from = s->joint ? 0 : map % heads, n_heads = s->joint ? s->dims.n_heads : 1;
    double *x = scratch, *v = scratch + (size_t)ROWS * (size_t)r->ld;
    ek_view view;

    ek_cache_view(c, layer, -1, &view);
    for (int t = 1; t < view.n[from]; t += ROWS) {
        const int rows = view.n[from] - t < ROWS ? view.n[from] - t : ROWS;

        for (int h = 0; h < n_heads; h++)
            for (int i = 0; i < rows; i++) {
                const size_t at = (size_t)i * (size_t)r->ld + (size_t)h * (size_t)view.head_dim;

                take(s, &view, (size_t)view.first[from + h] + (size_t)(t + i), x + at, v + at);
            }
        ek_regress_add(r, map, x, v, rows);
    }
}

void ek_sums_add(ek_sums *s, const ek_cache *c, int held)
{
    ek_regress *r = held ? &s->held : &s->fit;
    const double start = ek_now();

#pragma omp parallel for num_threads(s->threads) schedule(dynamic, 1)
    for (int map = 0; map < r->n; map++)
        add_map(s, c, r, map, s->scratch + (size_t)omp_get_thread_num() * 2 * ROWS * (size_t)r->ld);
    s->seconds += ek_now() - start;
}

/* ---- maps ---- */

static ek_code solve_map(const ek_sums *s, int map, int bias, double *w, double *b, ek_maps *maps,
                         ek_sums_fit *fit, ek_err *err)
{
    const int heads = s->dims.n_heads, d = s->dims.head_dim, width = s->fit.width;
    const size_t square = (size_t)width * (size_t)width;
    double lambda = NAN;

    EK_TRY(ek_regress_choose(&s->fit, &s->held, map, bias, w, b, &lambda, err));
    for (size_t i = 0; i < square; i++)
        w[i] = (double)(maps->w[(size_t)map * square + i] = (float)w[i]);
    for (int i = 0; i < width; i++)
        b[i] = (double)(maps->b[(size_t)map * (size_t)width + (size_t)i] = (float)b[i]);
    for (int h = 0; h < (s->joint ? heads : 1); h++) {
        const int at = s->joint ? map * heads + h : map;

        fit->r2[at] = ek_regress_r2(&s->held, map, w, b, h * d, (h + 1) * d);
        fit->r2_fit[at] = ek_regress_r2(&s->fit, map, w, b, h * d, (h + 1) * d);
        fit->lambda[at] = lambda;
        if (!isfinite(fit->r2[at]) || !isfinite(fit->r2_fit[at]))
            return EK_FAIL(err, EK_ENAN, "R2 is not finite");
        fit->r2[at] = fit->r2[at] > 1 ? 1 : fit->r2[at]; /* by rounding */
        maps->r2[at] = (float)fit->r2[at];
    }
    return EK_OK;
}

static ek_code solve_all(const ek_sums *s, int bias, ek_maps *maps, ek_sums_fit *fit, ek_err *err)
{
    const size_t width = (size_t)s->fit.width, room = width * (width + 1);
    double *w = malloc((size_t)s->threads * room * sizeof *w);
    int failed = -1;

    if (w == NULL)
        return EK_FAIL(err, EK_ENOMEM, "fitting %d maps", s->fit.n);
#pragma omp parallel for num_threads(s->threads) schedule(dynamic, 1)
    for (int map = 0; map < s->fit.n; map++) {
        double *mine = w + (size_t)omp_get_thread_num() * room;
        ek_err own;

        if (solve_map(s, map, bias, mine, mine + width * width, maps, fit, &own) == EK_OK)
            continue;
#pragma omp critical
        if (failed < 0 || map < failed) { /* the first one is told, whatever the threads do */
            failed = map;
            *err = own;
        }
    }
    free(w);
    if (failed < 0)
        return EK_OK;
    return s->joint ? ek_err_in(err, "layer %d", failed)
                    : ek_err_in(err, "layer %d, head %d", failed / s->dims.n_heads,
                                failed % s->dims.n_heads);
}

ek_code ek_sums_solve(const ek_sums *s, int bias, ek_maps *maps, ek_sums_fit *fit, ek_err *err)
{
    const size_t all = (size_t)s->dims.n_layers * (size_t)s->dims.n_heads;

    *maps = (ek_maps){0};
    *fit = (ek_sums_fit){.r2 = calloc(all, sizeof(double)),
                         .r2_fit = calloc(all, sizeof(double)),
                         .lambda = calloc(all, sizeof(double))};
    if (fit->r2 == NULL || fit->r2_fit == NULL || fit->lambda == NULL)
        EK_CHECK(EK_FAIL(err, EK_ENOMEM, "fitting %d maps", s->fit.n));
    EK_CHECK(ek_maps_make(maps, &s->dims, s->joint, err));
    EK_CHECK(solve_all(s, bias, maps, fit, err));
    return EK_OK;
fail:
    ek_maps_close(maps);
    ek_sums_fit_close(fit);
    return err->code;
}

void ek_sums_fit_close(ek_sums_fit *fit)
{
    free(fit->r2);
    free(fit->r2_fit);
    free(fit->lambda);
    *fit = (ek_sums_fit){0};
}

/* ---- checkpoint ---- */

static const char format[] = "evictkit sums 2"; /* 2: everything is under its hash */

enum { PARTS = 2 };

static void parts_of(const ek_sums *s, const ek_regress *r[PARTS], ek_st_tensor t[PARTS])
{
    static const char *const names[PARTS] = {"fit", "held"};

    r[0] = &s->fit;
    r[1] = &s->held;
    for (int i = 0; i < PARTS; i++)
        t[i] = (ek_st_tensor){.name = names[i],
                              .type = EK_ST_F64,
                              .n_dims = 2,
                              .dim = {r[i]->n, (int64_t)r[i]->stride},
                              .data = r[i]->sums,
                              .bytes = (size_t)r[i]->n * r[i]->stride * sizeof(double)};
}

ek_code ek_sums_save(const ek_sums *s, const char *path, const char *identity, int64_t at,
                     ek_err *err)
{
    const ek_regress *r[PARTS];
    ek_st_tensor t[PARTS];
    char step[24];
    const ek_st_pair meta[] = {{"format", format}, {"identity", identity}, {"step", step}};

    snprintf(step, sizeof step, "%lld", (long long)at);
    parts_of(s, r, t);
    return ek_state_write(path, t, PARTS, meta, (int)EK_COUNT(meta), err);
}

static ek_code load_parts(ek_sums *s, const ek_st *st, const char *path, ek_err *err)
{
    double *const to[PARTS] = {s->fit.sums, s->held.sums};
    const ek_regress *r[PARTS];
    ek_st_tensor want[PARTS];

    parts_of(s, r, want);
    for (int i = 0; i < PARTS; i++) {
        const ek_st_tensor *found = ek_st_find(st, want[i].name);

        if (found == NULL || found->type != EK_ST_F64 || found->n_dims != 2 ||
            found->dim[0] != want[i].dim[0] || found->dim[1] != want[i].dim[1])
            return EK_FAIL(err, EK_EINPUT, "%s: %s: expected F64 (%lld, %lld)", path, want[i].name,
                           (long long)want[i].dim[0], (long long)want[i].dim[1]);
        memcpy(to[i], found->data, want[i].bytes);
    }
    return EK_OK;
}

ek_code ek_sums_load(ek_sums *s, const char *path, const char *identity, int64_t n, int64_t *at,
                     ek_err *err)
{
    const ek_st_pair meta[] = {{"format", format}, {"identity", identity}, {"step", NULL}};
    ek_st *st;

    EK_TRY(ek_state_open(&st, path, meta, (int)EK_COUNT(meta), err));
    ek_code code = ek_state_int(st, path, "step", n, at, err);
    if (code == EK_OK)
        code = load_parts(s, st, path, err);
    ek_st_close(st);
    return code;
}
