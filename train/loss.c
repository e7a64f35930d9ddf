/* train/loss.c - pair, regress, hinge, survival, listwise, bce, poisson. */
#include "train/loss.h"

#include "core/rng.h"

#include <math.h>
#include <string.h>

enum { TAIL = 64 }; /* tokens with fewer later queries have noisy targets */

const ek_loss_set ek_loss_defaults = {.kind = EK_LOSS_LISTWISE,
                                      .balance = true,
                                      .margin_min = 0.1,
                                      .margin_tau = 1,
                                      .tau = 1,
                                      .hinge = 0.01,
                                      .samples = 128,
                                      .members = 64};

static const char *const kinds[] = {"pair",     "regress", "hinge",   "survival",
                                    "listwise", "bce",     "poisson", NULL};
static const char *const compares[] = {"static", "raw", NULL};
static const char *const margins[] = {"sigma", "centred", "none", NULL};

const ek_field ek_loss_fields[] = {
    EK_ENUM(ek_loss_set, kind, kinds, "what is minimised"),
    EK_ENUM(ek_loss_set, compare, compares, "pair, hinge: compare static priorities or raw scores"),
    EK_ENUM(ek_loss_set, margin, margins, "pair: weight by the target's margin"),
    EK_BOOL(ek_loss_set, balance, "pair: weigh kept and dropped newborns equally"),
    EK_FLOAT(ek_loss_set, margin_min, 0, 1, "pair: least margin weight"),
    EK_FLOAT(ek_loss_set, margin_tau, 1e-6, 1e6, "pair: scale of the margin"),
    EK_FLOAT(ek_loss_set, tau, 1e-6, 1e6, "pair, survival, bce: temperature"),
    EK_FLOAT(ek_loss_set, hinge, 0, 1e6, "hinge: margin"),
    EK_FLOAT(ek_loss_set, smooth, 0, 1e6, "regress: weight of neighbours' squared difference"),
    EK_INT(ek_loss_set, samples, 1, 65536, "ranking losses: positions per sequence"),
    EK_INT(ek_loss_set, members, 1, 65536, "bce: eligible tokens drawn per position"),
    EK_FIELD_END};

static double sigmoid(double x)
{
    return x >= 0 ? 1 / (1 + exp(-x)) : exp(x) / (1 + exp(x));
}

static double softplus(double x)
{
    return (x > 0 ? x : 0) + log1p(exp(-fabs(x)));
}

static double clip(double x, double lo, double hi)
{
    return x < lo ? lo : x > hi ? hi : x;
}

void ek_loss_balance(double rho, double *yes, double *no)
{
    const double y = clip(rho > 0 ? 1 / (2 * rho) : 4, 0.5, 4);
    const double n = clip(rho < 1 ? 1 / (2 * (1 - rho)) : 4, 0.5, 4);
    const double mean = rho * y + (1 - rho) * n;

    *yes = y / mean;
    *no = n / mean;
}

double ek_loss_margin(const ek_loss_set *set, double delta)
{
    const double s = sigmoid(delta / set->margin_tau);

    if (set->margin == 2)
        return 1;
    return set->margin_min + (1 - set->margin_min) * (set->margin == 1 ? 2 * s - 1 : s);
}

int ek_loss_sample(int32_t *at, int n, int n_seq, int sinks, int recent, int keep, uint64_t seed,
                   uint64_t stream)
{
    const int first = sinks + recent + keep, last = n_seq - TAIL, span = last - first + 1;

    if (span < 1)
        return 0;
    for (int i = 0; i < n; i++) {
        const double u = ek_rng_unit(seed, stream, (uint64_t)i);
        const int off = (int)(span * (i % 2 == 0 ? u : sqrt(u)));

        at[i] = first + (off < span ? off : span - 1);
    }
    return n;
}

static double log_target(const ek_loss_item *x, int e)
{
    return log(x->eps + (double)x->mass[e]);
}

/* Static priorities of the target; sinks and the last window have none. */
static void rank_targets(ek_loss_item *x)
{
    for (int j = 0; j < x->n_seq; j++)
        x->scratch[j] = -INFINITY;
    for (int e = 0; e < x->n; e++) {
        const int j = x->sinks + e;
        x->scratch[j] = (float)(log_target(x, e) - j * x->log_gamma);
    }
    ek_rank_run(x->rank, x->scratch, x->n_seq, x->sinks, x->recent, x->keep);
}

static void count_decisions(const ek_loss_set *set, ek_loss_item *x, ek_loss_sum *sum)
{
    (void)set;
    rank_targets(x);
    for (int i = 0; i < x->n_at; i++)
        sum->n_yes += ek_rank_decide(x->rank, x->at[i]).y > 0;
    sum->weight += x->n_at;
}

static void clear(const ek_loss_item *x)
{
    memset(x->dr, 0, (size_t)x->n * sizeof *x->dr);
    memset(x->dp, 0, (size_t)x->n * sizeof *x->dp);
}

/* pair and hinge: newborn against partner at each sampled position. */
static void run_pairs(const ek_loss_set *set, const ek_loss_item *x, ek_loss_sum *sum)
{
    double yes = 1, no = 1;

    clear(x);
    if (set->balance && set->kind == EK_LOSS_PAIR)
        ek_loss_balance(sum->n_yes / sum->weight, &yes, &no);
    for (int i = 0; i < x->n_at; i++) {
        const ek_decision d = ek_rank_decide(x->rank, x->at[i]);
        const int a = d.newborn - x->sinks, b = d.partner - x->sinks;
        const ek_real *says = set->compare == 1 ? x->r : x->p;
        ek_real *back = set->compare == 1 ? x->dr : x->dp;
        const double diff = d.y * ((double)says[a] - (double)says[b]);
        double loss, slope;

        if (set->kind == EK_LOSS_PAIR) {
            const double delta = d.y * (log_target(x, a) - log_target(x, b) -
                                        (d.newborn - d.partner) * x->log_gamma);
            const double w = ek_loss_margin(set, delta) * (d.y > 0 ? yes : no);

            loss = w * softplus(-diff / set->tau);
            slope = -w * sigmoid(-diff / set->tau) / set->tau;
        } else {
            loss = diff < set->hinge ? set->hinge - diff : 0;
            slope = diff < set->hinge ? -1 : 0;
        }
        sum->loss += loss;
        back[a] += (ek_real)(slope * d.y / sum->weight);
        back[b] -= (ek_real)(slope * d.y / sum->weight);
    }
}

/* survival: of those held and the newborn, who leaves is drawn with probability exp(-a). */
static void run_survival(const ek_loss_set *set, const ek_loss_item *x, ek_loss_sum *sum)
{
    clear(x);
    for (int i = 0; i < x->n_at; i++) {
        const int at = x->at[i];
        const ek_decision d = ek_rank_decide(x->rank, at);
        const int leaver = d.leaver - x->sinks, newborn = d.newborn - x->sinks;
        double most = -INFINITY, total = 0;

        for (int e = 0; e <= newborn; e++) {
            if (e != newborn && x->rank->rank[x->sinks + e] > x->rank->tau[at - 1])
                continue;
            const double z = -(double)x->p[e] / set->tau;
            if (z > most) {
                total = total * exp(most - z) + 1;
                most = z;
            } else {
                total += exp(z - most);
            }
        }
        sum->loss += (double)x->p[leaver] / set->tau + most + log(total);
        for (int e = 0; e <= newborn; e++) {
            if (e != newborn && x->rank->rank[x->sinks + e] > x->rank->tau[at - 1])
                continue;
            const double q = exp(-(double)x->p[e] / set->tau - most) / total;
            x->dp[e] -= (ek_real)(q / set->tau / sum->weight);
        }
        x->dp[leaver] += (ek_real)(1 / set->tau / sum->weight);
    }
}

static int regressed(const ek_loss_item *x, int e)
{
    return x->n_seq == 0 || x->n_seq - x->recent - x->pos[e] >= TAIL;
}

static double log_weight(const ek_loss_item *x, int e)
{
    return x->log_weight != NULL ? (double)x->log_weight[e] : 0;
}

static void count_regress(const ek_loss_set *set, ek_loss_item *x, ek_loss_sum *sum)
{
    (void)set;
    for (int e = 0; e < x->n; e++)
        if (regressed(x, e))
            sum->weight += exp(log_weight(x, e));
}

/* regress: smooth L1 of the score against the log target.  Over time the target is of the whole
 * life, and the raw score meets it: the age is not trained.  At a cut it is of what follows, and
 * what is ranked meets it: the priority.  Sampled entries stand for several; only neighbours in the
 * text are smoothed. */
static void run_regress(const ek_loss_set *set, const ek_loss_item *x, ek_loss_sum *sum)
{
    const int over_time = x->n_seq > 0;
    const ek_real *score = over_time ? x->r : x->p;
    ek_real *slope = over_time ? x->dr : x->dp;

    clear(x);
    for (int e = 0; e < x->n; e++) {
        if (!regressed(x, e))
            continue;
        const double d = (double)score[e] - log_target(x, e), w = exp(log_weight(x, e));

        sum->loss += w * (fabs(d) < 1 ? 0.5 * d * d : fabs(d) - 0.5);
        slope[e] += (ek_real)(w * clip(d, -1, 1) / sum->weight);
        if (set->smooth > 0 && e + 1 < x->n && regressed(x, e + 1) &&
            x->pos[e + 1] == x->pos[e] + 1) {
            const double step = (double)score[e + 1] - (double)score[e];

            sum->loss += set->smooth * step * step;
            slope[e + 1] += (ek_real)(2 * set->smooth * step / sum->weight);
            slope[e] -= (ek_real)(2 * set->smooth * step / sum->weight);
        }
    }
}

static void count_records(const ek_loss_set *set, ek_loss_item *x, ek_loss_sum *sum)
{
    (void)set;
    (void)x;
    sum->weight += 1;
}

/* listwise: cross-entropy of the shares of future mass with the softmax of priorities.  Sampled
 * entries stand for several, in the target and in the softmax alike. */
static void run_listwise(const ek_loss_set *set, const ek_loss_item *x, ek_loss_sum *sum)
{
    double most = -INFINITY, total = 0, mass = 0, loss = 0;

    (void)set;
    clear(x);
    for (int e = 0; e < x->n; e++) {
        const double z = (double)x->p[e] + log_weight(x, e);
        most = z > most ? z : most;
        mass += (double)x->mass[e] * exp(log_weight(x, e));
    }
    for (int e = 0; e < x->n; e++)
        total += exp((double)x->p[e] + log_weight(x, e) - most);
    const double log_total = most + log(total);
    if (!(mass > 0)) /* nothing was looked at: nothing to learn */
        return;
    for (int e = 0; e < x->n; e++) {
        const double w = log_weight(x, e), share = (double)x->mass[e] * exp(w) / mass;
        const double log_q = (double)x->p[e] - log_total;

        loss -= share * log_q;
        x->dp[e] = (ek_real)((exp(log_q + w) - share) / sum->weight);
    }
    sum->loss += loss;
}

/* ---- bce ---- */

/* Entries asked about at sampled position s: all eligible ones, or `members` drawn from them with
 * replacement. */
static int members_at(const ek_loss_set *set, const ek_loss_item *x, int s)
{
    const int eligible = x->at[s] - x->recent - x->sinks + 1;

    return eligible < set->members ? eligible : (int)set->members;
}

static int member(const ek_loss_set *set, const ek_loss_item *x, int s, int m)
{
    const int eligible = x->at[s] - x->recent - x->sinks + 1;

    if (eligible <= set->members)
        return m;
    return (int)ek_rng_below((uint64_t)eligible, x->seed, x->stream,
                             (uint64_t)(set->samples + s * set->members + m));
}

static void count_members(const ek_loss_set *set, ek_loss_item *x, ek_loss_sum *sum)
{
    rank_targets(x);
    for (int s = 0; s < x->n_at; s++)
        sum->weight += members_at(set, x, s);
}

/* bce: is the token among the k best at query i?  The logit is its score there, age included, over
 * a threshold that is learned per head.  p is the priority at n_seq and p - r the age term, which
 * is linear in age; so the score at query i lies between r and p. */
static void run_bce(const ek_loss_set *set, const ek_loss_item *x, ek_loss_sum *sum)
{
    double d_threshold = 0;

    clear(x);
    for (int s = 0; s < x->n_at; s++) {
        const int at = x->at[s], n = members_at(set, x, s);

        for (int m = 0; m < n; m++) {
            const int e = member(set, x, s, m), j = x->sinks + e;
            const double share = (double)(at - j) / (double)(x->n_seq - j);
            const double score = (1 - share) * (double)x->r[e] + share * (double)x->p[e];
            const double z = (score - (double)x->threshold) / set->tau;
            const int stays = x->rank->rank[j] <= x->rank->tau[at];
            const double slope = (sigmoid(z) - stays) / set->tau / sum->weight;

            sum->loss += softplus(stays ? -z : z);
            x->dr[e] += (ek_real)((1 - share) * slope);
            x->dp[e] += (ek_real)(share * slope);
            d_threshold -= slope;
        }
    }
    if (x->d_threshold != NULL)
        *x->d_threshold += (ek_real)d_threshold;
}

/* ---- poisson ---- */

/* poisson: exp(p) is the expected mass as a part of the head's mean mass; its likelihood is
 * greatest where sums of both agree over whatever the scorer can tell apart, so that the scores of
 * different heads, and of a head in different texts, compare.  (listwise compares within a head and
 * a text.) */
static void run_poisson(const ek_loss_set *set, const ek_loss_item *x, ek_loss_sum *sum)
{
    const double scale = exp(-x->log_mass);
    double loss = 0;

    (void)set;
    clear(x);
    for (int e = 0; e < x->n; e++) {
        const double w = exp(log_weight(x, e)), p = (double)x->p[e];
        const double expected = exp(p < 20 ? p : 20), got = (double)x->mass[e] * scale;

        loss += w * (expected - got * p);
        x->dp[e] = (ek_real)(w * ((p < 20 ? expected : 0) - got) / sum->weight);
    }
    sum->loss += loss;
}

const ek_loss ek_losses[EK_N_LOSSES] = {
    [EK_LOSS_PAIR] = {.name = "pair",
                      .brief = "newborn against boundary, weighted by margin and balance",
                      .whole = 1,
                      .count = count_decisions,
                      .run = run_pairs},
    [EK_LOSS_REGRESS] = {.name = "regress",
                         .brief = "smooth L1 to the log of the mean future probability",
                         .count = count_regress,
                         .run = run_regress},
    [EK_LOSS_HINGE] = {.name = "hinge",
                       .brief = "newborn against boundary, with a margin",
                       .whole = 1,
                       .count = count_decisions,
                       .run = run_pairs},
    [EK_LOSS_SURVIVAL] = {.name = "survival",
                          .brief = "who leaves, as a partial likelihood",
                          .whole = 1,
                          .count = count_decisions,
                          .run = run_survival},
    [EK_LOSS_LISTWISE] = {.name = "listwise",
                          .brief = "cross-entropy with the shares of future mass",
                          .count = count_records,
                          .run = run_listwise},
    [EK_LOSS_BCE] = {.name = "bce",
                     .brief = "member of the k best or not, over a learned threshold",
                     .whole = 1,
                     .threshold = 1,
                     .count = count_members,
                     .run = run_bce},
    [EK_LOSS_POISSON] = {.name = "poisson",
                         .brief = "likelihood of future mass, which heads share budgets by",
                         .absolute = 1,
                         .count = count_records,
                         .run = run_poisson},
};
