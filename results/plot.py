#!/usr/bin/env python3
"""Draw quality against the kept fraction, from the database alone.

usage: plot.py --db FILE --run ID --out FILE.png [--metric NAME]...     (normally `evictkit results plot`)

One panel per task and metric, one line a method, 95 % bootstrap intervals as error bars, a dashed line for
full cache.  Learned methods are thick and filled, rules thin and hollow, oracles dotted.  The kept fraction
is the one asked for (what is kept equals it, or the run stops); --measured takes kept / seen, mean over
steps, which answers that are added to the cache raise.  Writes FILE.png and FILE.svg.  Exit status: 0; 2 nothing to draw; 3 no matplotlib.
"""
import argparse
import os
import sqlite3
import sys

try:
    import matplotlib
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.ticker import FuncFormatter, NullLocator
except ImportError:
    sys.exit(3)

# Okabe and Ito's palette, which people with any common colour vision can tell apart; the strongest go to
# learned methods.  Rules repeat theirs with other marks and dashes, so colour is never the only sign.
LEARNED = ["#D55E00", "#0072B2", "#009E73", "#CC79A7"]
RULES = ["#56B4E9", "#E69F00", "#7A7A7A", "#9C7A00", "#B07AA1", "#4C9F70"]
MARKS = ["o", "s", "^", "D", "v", "P", "X", "<", ">", "*"]
DASHES = ["-", (0, (4, 1.5)), (0, (1.5, 1.5))]

FIRST = ["score", "Mean KLD", "PPL"]           # of these, a task's first is drawn when none is asked for
LOG = {"Mean KLD", "99% KLD", "PPL", "Mean PPL ratio", "Maximum KLD", "Median KLD"}
LABEL = {
    "score": "score (%)", "Mean KLD": "Mean KLD from full cache (nats)", "99% KLD": "99% KLD (nats)",
    "Mean PPL ratio": "perplexity / full cache's", "PPL": "perplexity", "Same top p": "same top token (%)",
    "recall": "top-k recall (%)",
}
LOWER = {"Mean KLD", "99% KLD", "Mean PPL ratio", "PPL", "Maximum KLD", "Median KLD"}


def fail(text):
    print("evictkit: plot: " + text, file=sys.stderr)
    sys.exit(2)


def arguments():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--db", required=True)
    p.add_argument("--run", required=True)
    p.add_argument("--out", required=True)
    p.add_argument("--metric", action="append", default=[])
    p.add_argument("--measured", action="store_true")
    return p.parse_args()


def read(db, run, measured):
    """Rows of v_score as dictionaries; the file is opened for reading only."""
    uri = "file:" + os.path.abspath(db).replace("%", "%25").replace("?", "%3f").replace("#", "%23") + "?mode=ro"
    try:
        con = sqlite3.connect(uri, uri=True)
        con.row_factory = sqlite3.Row
        rows = con.execute(
            "SELECT suite, task, variant, length, query_aware, seed, method, policy, learned, name, value,"
            " ci_lo, ci_hi, n, %s AS kept"
            " FROM v_score WHERE run = ? AND value IS NOT NULL ORDER BY cell, name"
            % ("coalesce(keep_measured, keep)" if measured else "coalesce(keep, keep_measured)"), (run,)).fetchall()
        model = con.execute("SELECT model FROM run WHERE id = ?", (run,)).fetchone()
    except sqlite3.Error as e:
        fail("%s: %s" % (db, e))
    return [dict(r) for r in rows], os.path.basename(model[0]) if model else ""


def panels(rows, asked):
    """[(task key, metric name)] in the order of the run."""
    tasks, names = [], {}
    for r in rows:
        key = (r["suite"], r["task"], r["variant"], r["length"], r["query_aware"], r["seed"])
        if key not in names:
            tasks.append(key)
            names[key] = set()
        if r["method"] != "full":
            names[key].add(r["name"])
    out = []
    for key in tasks:
        wanted = asked or [n for n in FIRST if n in names[key]][:1]
        out += [(key, n) for n in wanted if n in names[key]]
    return out


def styles(rows):
    """Looks of every method, the same in all panels and independent of the order of the run."""
    learned = sorted({r["method"] for r in rows if r["learned"]})
    others = sorted({r["method"] for r in rows} - set(learned) - {"full"})
    oracle = {r["method"] for r in rows if r["method"].startswith("oracle") or r["policy"].startswith("oracle")}
    oracles = [m for m in others if m in oracle]
    rules = [m for m in others if m not in oracles]
    look = {}
    for i, m in enumerate(learned):
        look[m] = dict(color=LEARNED[i % len(LEARNED)], lw=2.6, ms=7, marker=MARKS[i % len(MARKS)], zorder=5,
                       linestyle=DASHES[(i // len(LEARNED)) % len(DASHES)])
    for i, m in enumerate(rules):
        look[m] = dict(color=RULES[i % len(RULES)], lw=1.1, ms=5, marker=MARKS[i % len(MARKS)], zorder=3,
                       linestyle=DASHES[(i // len(RULES)) % len(DASHES)], markerfacecolor="white")
    for i, m in enumerate(oracles):
        look[m] = dict(color="#000000", lw=1.2, ms=4, marker=MARKS[i % len(MARKS)], zorder=4, linestyle=":")
    return learned + oracles + rules, look, learned


def number(x, _=None):
    return "%.4g" % x


def draw_panel(ax, rows, key, name, order, look, learned, measured):
    mine = [r for r in rows if name == r["name"] and key ==
            (r["suite"], r["task"], r["variant"], r["length"], r["query_aware"], r["seed"])]
    n, kept_all, low = 0, set(), []
    drawn = [m for m in order if any(r["method"] == m and r["kept"] for r in mine)]
    for i, m in enumerate(drawn):
        points = sorted((r["kept"], r["value"], r["ci_lo"], r["ci_hi"], r["n"]) for r in mine
                        if r["method"] == m and r["kept"])
        # A hair to the side of each other (at most 6 % of an octave), so that no error bar hides another.
        aside = 2 ** (0.12 * ((i + 0.5) / len(drawn) - 0.5))
        x, y = [p[0] * aside for p in points], [p[1] for p in points]
        lo = [p[1] - p[2] if p[2] is not None else 0 for p in points]
        hi = [p[3] - p[1] if p[3] is not None else 0 for p in points]
        n = max([n] + [p[4] for p in points])
        kept_all.update(round(p[0], 4) for p in points)
        low += [v for v in y if v > 0]
        ax.errorbar(x, y, yerr=[[max(v, 0) for v in lo], [max(v, 0) for v in hi]], label=m, capsize=2,
                    elinewidth=1.0 if m in learned else 0.7, **look[m])
    full = [r["value"] for r in mine if r["method"] == "full"]
    logarithmic = name in LOG and low and max(low) / min(low) > 3
    if full and not (logarithmic and full[0] <= 0):
        ax.axhline(full[0], color="#333333", lw=1.2, ls="--", zorder=2, label="full cache")
    ax.set_xscale("log", base=2)
    if logarithmic:
        ax.set_yscale("log")
        ax.yaxis.set_major_formatter(FuncFormatter(number))
    # Few kept fractions: say exactly which; measured values a hair apart share a tick.
    ticks = []
    for v in sorted(kept_all):
        if not ticks or v / ticks[-1] > 1.15:
            ticks.append(v)
    if len(ticks) <= 8:
        ax.set_xticks(ticks)
        ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: "%.3g" % x))
    ax.set_xlabel("kept fraction (measured, mean over steps)" if measured else "kept fraction of the cache")
    ax.set_ylabel(LABEL.get(name, name) + (", lower is better" if name in LOWER or name.startswith("FMM") else ""))
    suite, task, variant, length, aware, _ = key
    ax.set_title("%s%s%s%s, n = %d" % (task if suite == task else suite + " / " + task, " (%s)" % variant if variant else "",
                                         ", %d tokens" % length if length else "",
                                         ", query seen" if aware else "", n), fontsize=10)
    ax.grid(True, which="major", color="#E4E4E4", lw=0.7)
    ax.set_axisbelow(True)
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)


def save(fig, out):
    stem = os.path.splitext(out)[0]
    folder = os.path.dirname(stem)
    if folder:
        os.makedirs(folder, exist_ok=True)
    for kind in ("png", "svg"):
        temp = "%s.%d.tmp" % (stem, os.getpid())
        fig.savefig(temp, format=kind, dpi=160, bbox_inches="tight", metadata={"Date": None} if kind == "svg" else None)
        os.replace(temp, stem + "." + kind)
        print(stem + "." + kind)


def main():
    a = arguments()
    rows, model = read(a.db, a.run, a.measured)
    todo = panels(rows, a.metric)
    if not todo:
        if not rows:
            fail("run %.8s has no aggregates; `evictkit results rebuild` makes them from its samples" % a.run)
        fail("run %.8s has no %s to draw" % (a.run, " or ".join(a.metric) if a.metric else "scores under a budget"))
    plt.rcParams.update({"font.size": 9, "svg.fonttype": "none", "svg.hashsalt": "evictkit"})
    order, look, learned = styles(rows)
    columns = min(len(todo), 2)
    lines = (len(todo) + columns - 1) // columns
    fig = plt.figure(figsize=(5.2 * columns + 1.9, 4.2 * lines), constrained_layout=True)
    grid = fig.add_gridspec(lines, columns + 1, width_ratios=[5.2] * columns + [1.2])
    flat = [fig.add_subplot(grid[i // columns, i % columns]) for i in range(lines * columns)]
    beside = fig.add_subplot(grid[:, columns])
    beside.axis("off")
    for ax, (key, name) in zip(flat, todo):
        draw_panel(ax, rows, key, name, order, look, learned, a.measured)
    for ax in flat[len(todo):]:
        ax.axis("off")
    handles, labels = {}, []
    for ax in flat[:len(todo)]:
        for h, label in zip(*ax.get_legend_handles_labels()):
            if label not in handles:
                labels.append(label)
            handles.setdefault(label, h)
    labels.sort(key=lambda m: (m != "full cache", order.index(m) if m in order else 0))
    legend = beside.legend([handles[m] for m in labels], labels, loc="upper left", frameon=False, fontsize=9,
                           handlelength=3.2, borderaxespad=0)
    for text in legend.get_texts():
        if text.get_text() in learned:
            text.set_fontweight("bold")
    fig.suptitle("%s, run %.8s: quality against what is kept (bars: 95 %% bootstrap)" % (model, a.run), fontsize=10)
    try:
        save(fig, a.out)
    except OSError as e:
        print("evictkit: plot: %s" % e, file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
