/* scorers/carried.c - see the header. */
#include "scorers/carried.h"

#include <math.h>

const char *const ek_carried_names[] = {"none", "ema", "full", NULL};

int ek_carried_floats(int kind, int group)
{
    return kind == EK_CARRIED_NONE ? 0 : kind == EK_CARRIED_EMA ? 1 : 4 * group + 1;
}

int ek_carried_features(int kind)
{
    return kind == EK_CARRIED_NONE ? 0 : kind == EK_CARRIED_EMA ? 1 : 8;
}

static ek_real feature(double x)
{
    return (ek_real)log(1e-6 + x);
}

static void mean_and_max(const float *x, int group, double *mean, double *max)
{
    *mean = 0;
    *max = 0;
    for (int g = 0; g < group; g++) {
        *mean += (double)x[g] / group;
        *max = (double)x[g] > *max ? (double)x[g] : *max;
    }
}

void ek_carried_read(int kind, int group, const float *carry, int32_t age, ek_real *x)
{
    const double seen = age > 1 ? age : 1;
    const double born = seen < EK_CARRIED_BIRTH ? seen : EK_CARRIED_BIRTH;
    double mean, max;

    if (kind == EK_CARRIED_EMA)
        x[0] = feature((double)carry[0]);
    if (kind != EK_CARRIED_FULL)
        return;
    for (int i = 0; i < 4; i++, carry += group) {
        const double by = i == 0 ? seen : i == 3 ? born : 1;

        mean_and_max(carry, group, &mean, &max);
        if (i < 3)
            *x++ = feature(mean / by);
        *x++ = feature(max / by);
    }
    *x = feature((double)*carry);
}
