#!/usr/bin/env python3
"""Draw figures from the database alone.

usage: plot.py --db FILE --run ID [--run ID]... --out FILE.png [--kind quality|ablation|curves] [--metric NAME]...
               [--method NAME,NAME...] [--task NAME,NAME...]
       (normally `evictkit results plot`)

quality   Quality against the kept fraction: one panel per task and metric, with 95 % bootstrap intervals.  Learned
          methods are thick and coloured, the best training-free one is black, the others are grey; oracle and full
          cache are the bounds.  What is kept is what was asked for (it equals it, or the run stops); --measured
          takes kept / seen, mean over steps, which answers that are added to the cache raise.  --method: of the
          learned methods and the oracles only these; rules are always there, since the best of them is named.
          --task: only these panels, by suite; where the question was seen its name ends in " aware".
ablation  Trained variants side by side: a line a variant, named by the settings in which they differ, a mark a budget;
          below them the best training-free method and the oracle.
curves    Training runs: loss, recall of the k best, of the best quarter, boundary accuracy, gradient norm.  Thin is
          training (smoothed), thick with marks is text held out, dotted is what chance gives.

Writes FILE.png and FILE.svg.  Exit status: 0; 2 nothing to draw; 3 no matplotlib.
"""
import argparse
import math
import os
import re
import sqlite3
import sys

try:
    import matplotlib
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.ticker import FuncFormatter, NullLocator
except ImportError:
    sys.exit(3)

# Okabe and Ito's palette, which people with any common colour vision can tell apart; marks and dashes differ too, so
# colour is never the only sign.
LEARNED = ["#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"]
MARKS = ["o", "s", "^", "D", "v", "P", "X", "<", ">", "*"]
DASHES = ["-", (0, (4, 1.5)), (0, (1.5, 1.5))]
GREY, DARK = "#A8A8A8", "#222222"

FIRST = ["score", "Mean KLD", "PPL"]           # of these, a task's first is drawn when none is asked for
LOG = {"Mean KLD", "99% KLD", "PPL", "Mean PPL ratio", "Maximum KLD", "Median KLD"}
LABEL = {
    "score": "score (%)", "Mean KLD": "Mean KLD from full cache (nats)", "99% KLD": "99% KLD (nats)",
    "Mean PPL ratio": "perplexity / full cache's", "PPL": "perplexity", "Same top p": "same top token (%)",
    "recall": "top-k recall (%)",
}
RANKING = {"pair", "hinge", "survival", "bce"}  # losses over decisions
LOWER = {"Mean KLD", "99% KLD", "Mean PPL ratio", "PPL", "Maximum KLD", "Median KLD"}


def fail(text):
    print("evictkit: plot: " + text, file=sys.stderr)
    sys.exit(2)


def arguments():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--db", required=True)
    p.add_argument("--run", action="append", required=True)
    p.add_argument("--out", required=True)
    p.add_argument("--kind", choices=["quality", "ablation", "curves"], default="quality")
    p.add_argument("--metric", action="append", default=[])
    p.add_argument("--method", default="")
    p.add_argument("--task", default="")
    p.add_argument("--measured", action="store_true")
    return p.parse_args()


class Database:
    """The file, opened for reading only; rows are dictionaries."""

    def __init__(self, path):
        quoted = os.path.abspath(path).replace("%", "%25").replace("?", "%3f").replace("#", "%23")
        self.path = path
        try:
            self.con = sqlite3.connect("file:" + quoted + "?mode=ro", uri=True)
        except sqlite3.Error as e:
            fail("%s: %s" % (path, e))
        self.con.row_factory = sqlite3.Row

    def ask(self, sql, *values):
        try:
            return [dict(r) for r in self.con.execute(sql, values).fetchall()]
        except sqlite3.Error as e:
            fail("%s: %s" % (self.path, e))


def read_scores(db, runs, measured):
    """Rows of v_score of all runs; each (task, metric, method, budget) comes from one run alone."""
    rows, seen, models = [], {}, set()
    kept = "coalesce(keep_measured, keep)" if measured else "coalesce(keep, keep_measured)"
    for run in runs:
        model = db.ask("SELECT model, model_hash FROM run WHERE id = ?", run)
        models.update((m["model_hash"], os.path.basename(m["model"])) for m in model)
        mine = db.ask(
            "SELECT run, suite, task, variant, length, query_aware, seed, method, policy, learned, name, value,"
            " ci_lo, ci_hi, n, cell, keep, entries, bytes, %s AS kept"
            " FROM v_score WHERE run = ? AND value IS NOT NULL ORDER BY cell, name" % kept, run)
        if not mine:
            fail("run %.8s has no aggregates; `evictkit results rebuild` makes them from its samples" % run)
        for r in mine:
            r["key"] = (r["suite"], r["task"], r["variant"], r["length"], r["query_aware"], r["seed"])
            one = (r["key"], r["name"], r["policy"])
            if seen.setdefault(one, run) != run:
                if r["method"] == "full":
                    continue
                fail("runs %.8s and %.8s both hold %s on %s" % (seen[one], run, r["policy"], r["task"]))
            rows.append(r)
    if len({m[0] for m in models}) > 1:
        fail("the runs are of different models: %s" % ", ".join(sorted(m[1] for m in models)))
    if len({r["variant"] for r in rows}) > 1:
        fail("the runs differ in when they evict (decode)")
    return rows, sorted(models)[0][1] if models else ""


def panels(rows, asked):
    """[(task key, metric name)] in the order of the runs."""
    tasks, names = [], {}
    for r in rows:
        if r["key"] not in names:
            tasks.append(r["key"])
            names[r["key"]] = set()
        if r["method"] != "full":
            names[r["key"]].add(r["name"])
    out = []
    for key in tasks:
        wanted = asked or [n for n in FIRST if n in names[key]][:1]
        out += [(key, n) for n in wanted if n in names[key]]
    if not out:
        fail("run %.8s has no %s to draw" % (rows[0]["run"], " or ".join(asked) if asked else "scores under a budget"))
    return out


def is_oracle(r):
    return r["method"].startswith("oracle") or r["policy"].startswith("oracle")


def chosen(rows, names):
    """Without the learned methods and oracles that are not among the names, if there are names."""
    names = [n for n in names.split(",") if n]
    for n in names:
        if n not in {r["method"] for r in rows}:
            fail("there is no method %s; there are %s" % (n, ", ".join(sorted({r["method"] for r in rows}))))
    return [r for r in rows if not names or r["method"] in names or not (r["learned"] or is_oracle(r))]


def of_tasks(rows, names):
    """Of the tasks among the names, if there are names."""
    names = [n for n in names.split(",") if n]
    there = {r["key"]: r["suite"] + (" aware" if r["query_aware"] else "") for r in rows}
    for n in names:
        if n not in there.values():
            fail("there is no task %s; there are %s" % (n, ", ".join(sorted(set(there.values())))))
    return [r for r in rows if not names or there[r["key"]] in names]


def title_of(key, n):
    suite, task, variant, length, aware, _ = key
    return "%s%s%s%s, n = %d" % (
        task if suite == task else suite + " / " + task, " (decode: %s)" % variant if variant else "",
        ", %d tokens" % length if length else "", ", question seen" if aware else "", n)


def label_of(name):
    return LABEL.get(name, name) + (", lower is better" if name in LOWER or name.startswith("FMM") else "")


def mean_level(points, name):
    """What a line is at on average over its budgets; of divergences the geometric mean."""
    values = [p["value"] for p in points]
    if name in LOG and min(values) > 0:
        return math.exp(sum(map(math.log, values)) / len(values))
    return sum(values) / len(values)


def best_rule(rows, name):
    """The training-free method that is best on average over the budgets that all of them have."""
    rules = {}
    for r in rows:
        if r["method"] != "full" and not r["learned"] and not is_oracle(r):
            rules.setdefault(r["method"], []).append(r)
    most = max((len(p) for p in rules.values()), default=0)
    whole = {m: mean_level(p, name) for m, p in rules.items() if len(p) == most}
    if not whole:
        return None
    return (min if name in LOWER or name.startswith("FMM") else max)(sorted(whole), key=lambda m: whole[m])


def number(x, _=None):
    return "%.4g" % x


def number_axis(axis, values):
    """Plain numbers on a logarithmic axis; between decades too, if there are few of those."""
    axis.set_major_formatter(FuncFormatter(number))
    few = max(values) / min(values) < 30
    axis.set_minor_formatter(FuncFormatter(lambda x, _: number(x) if few and ("%.0e" % x)[0] in "235" else ""))


def interval(points):
    lo = [max(p["value"] - p["ci_lo"], 0) if p["ci_lo"] is not None else 0 for p in points]
    hi = [max(p["ci_hi"] - p["value"], 0) if p["ci_hi"] is not None else 0 for p in points]
    return [lo, hi]


def plain(ax):
    ax.grid(True, which="major", color="#E8E8E8", lw=0.7)
    ax.set_axisbelow(True)
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)


def write_labels(ax, ends, right):
    """Names beside the ends of their lines, moved apart: ends is [(y, text, style)]."""
    ax.figure.canvas.draw()
    height = ax.get_window_extent().height / ax.figure.dpi * 72
    gap = 8.6 / height
    at = []
    for y, text, style in ends:
        place = ax.transAxes.inverted().transform(ax.transData.transform((right, y)))[1]
        at.append([min(max(place, 0), 1), text, style, min(max(place, 0), 1)])
    at.sort(key=lambda e: e[0])
    for _ in range(200):
        for a, b in zip(at, at[1:]):
            if b[0] - a[0] < gap:
                middle = (a[0] + b[0]) / 2
                a[0], b[0] = middle - gap / 2, middle + gap / 2
    low = 0
    for e in at:  # from the bottom of the panel up, so that the last word is a gap and an edge
        e[0] = max(e[0], low)
        low = e[0] + gap
    for y, text, style, true in at:
        ax.annotate(text, xy=(1.0, true), xytext=(1.045, y), xycoords="axes fraction", textcoords="axes fraction",
                    va="center", ha="left", fontsize=7.5, annotation_clip=False,
                    arrowprops=dict(arrowstyle="-", color=style["color"], lw=0.5, shrinkA=0, shrinkB=1), **style)


def asked_by(rows):
    """entries or bytes, if all budgets of a panel were asked so; else kept, the fraction."""
    budgets = [r for r in rows if r["method"] != "full"]
    for by in ("entries", "bytes"):
        if budgets and all(r[by] for r in budgets):
            return by
    return "kept"


def draw_quality(ax, rows, key, name, colours, measured):
    mine = [r for r in rows if r["key"] == key and r["name"] == name and r["kept"]]
    by = asked_by(mine)  # budgets asked in entries or bytes stand as such
    for r in mine:
        r["kept"] = r[by] if by != "kept" and r["method"] != "full" else r["kept"]
    rule, lines = best_rule(mine, name), {}
    for r in mine:
        if r["method"] != "full":
            lines.setdefault((r["method"], bool(r["learned"]), is_oracle(r)), []).append(r)
    kept, low, ends, n = set(), [], [], 0
    for i, ((method, learned, oracle), points) in enumerate(sorted(lines.items())):
        points.sort(key=lambda p: p["kept"])
        if learned:
            at = sorted(colours).index(method)
            look = dict(color=colours[method], lw=2.6, ms=6.5, marker=MARKS[at % len(MARKS)], zorder=6,
                        linestyle=DASHES[(at // len(LEARNED)) % len(DASHES)])
        elif oracle:
            look = dict(color=DARK, lw=1.3, ms=4, marker=".", zorder=4, linestyle=":")
        elif method == rule:
            look = dict(color=DARK, lw=1.7, ms=5, marker="o", markerfacecolor="white", zorder=5)
        else:
            look = dict(color=GREY, lw=0.9, ms=3, marker=".", zorder=3)
        # A hair to the side of each other (at most 6 % of an octave), so that no interval hides another.
        aside = 2 ** (0.12 * ((i + 0.5) / len(lines) - 0.5))
        x, y = [p["kept"] * aside for p in points], [p["value"] for p in points]
        ax.errorbar(x, y, yerr=interval(points) if learned or oracle or method == rule else None, capsize=2,
                    elinewidth=1.0, **look)
        kept.update(round(p["kept"], 4) for p in points)
        low += [v for v in y if v > 0]
        n = max([n] + [p["n"] for p in points])
        ends.append((y[0], method + (" (best training-free)" if method == rule else ""),
                     dict(color="#6E6E6E" if look["color"] == GREY else look["color"],
                          fontweight="bold" if learned else "normal")))
    full = [r["value"] for r in rows if r["key"] == key and r["name"] == name and r["method"] == "full"]
    logarithmic = name in LOG and low and max(low) / min(low) > 3
    ax.set_xscale("log", base=2)
    if logarithmic:
        ax.set_yscale("log")
        number_axis(ax.yaxis, low)
    if full and not (logarithmic and full[0] <= 0):
        ax.axhline(full[0], color="#333333", lw=1.1, ls="--", zorder=2)
        ends.append((full[0], "full cache", dict(color="#333333", fontweight="normal")))
    # Few kept fractions: say exactly which; measured values a hair apart share a tick.
    ticks = []
    for v in sorted(kept):
        if not ticks or v / ticks[-1] > 1.15:
            ticks.append(v)
    if len(ticks) <= 8:
        ax.set_xticks(ticks)
        ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: "%.3g" % x if by == "kept" else "{:,.0f}".format(x)))
    ax.invert_xaxis()  # less is kept to the right, where lines part and are named
    ax.set_xlabel({"entries": "entries per head", "bytes": "bytes of cache"}.get(
        by, "kept fraction (measured, mean over steps)" if measured else "kept fraction of the cache"))
    ax.set_ylabel(label_of(name))
    ax.set_title(title_of(key, n), fontsize=10)
    plain(ax)
    return ends, min(kept) if kept else 1


def sheet(n, width, height, columns):
    columns = min(n, columns)
    lines = (n + columns - 1) // columns
    fig, axes = plt.subplots(lines, columns, figsize=(width * columns, height * lines), squeeze=False)
    flat = list(axes.flat)
    for ax in flat[n:]:
        ax.axis("off")
    return fig, flat[:n]


def quality(db, a):
    rows, model = read_scores(db, a.run, a.measured)
    rows = of_tasks(chosen(rows, a.method), a.task)
    todo = panels(rows, a.metric)
    learned = sorted({r["method"] for r in rows if r["learned"]})
    colours = {m: LEARNED[i % len(LEARNED)] for i, m in enumerate(learned)}
    fig, flat = sheet(len(todo), 6.9, 4.2, 2)
    drawn = [draw_quality(ax, rows, key, name, colours, a.measured) for ax, (key, name) in zip(flat, todo)]
    fig.suptitle("%s, run %s: quality against what is kept (bars: 95 %% bootstrap)" % (
        model, ", ".join("%.8s" % r for r in a.run)), fontsize=10)
    fig.tight_layout(w_pad=12, rect=(0, 0, 0.9, 0.98))
    for ax, (ends, right) in zip(flat, drawn):
        write_labels(ax, ends, right)
    return fig


# ---- trained variants ----

def training_settings(db, runs):
    """{run: {key: value}} of training runs: all their settings but where files lie."""
    out = {}
    for run in runs:
        out[run] = {r["key"]: r["value"] for r in db.ask("SELECT key, value FROM run_param WHERE run = ?", run)
                    if r["key"] not in ("out", "results", "trace_file", "trace", "save_every", "valid_every")}
    return out


def differing(settings):
    """Keys that not all of them share a value of."""
    keys = sorted({k for s in settings.values() for k in s})
    return [k for k in keys if len({s.get(k) for s in settings.values()}) > 1]


def name_variants(db, runs):
    settings = training_settings(db, runs)
    keys = differing({r: s for r, s in settings.items() if s})
    return {r: ", ".join("%s %s" % (k, s[k]) for k in keys if k in s) for r, s in settings.items()}


def ablation(db, a):
    rows, model = read_scores(db, a.run, False)
    todo = panels(rows, a.metric)
    trained = {}
    for run in a.run:
        trained.update({r["cell"]: r["trained"] for r in db.ask(
            "SELECT w.cell, w.trained FROM cell_weights w JOIN cell c ON c.id = w.cell WHERE c.run = ?", run)})
    names = name_variants(db, sorted({t for t in trained.values() if t}))
    fig, flat = sheet(len(todo), 6.6, 1.6 + 0.27 * (2 + len({r["method"] for r in rows if r["learned"]})), 2)
    for ax, (key, name) in zip(flat, todo):
        mine = [r for r in rows if r["key"] == key and r["name"] == name and r["method"] != "full"]
        rule, lines = best_rule(mine, name), {}
        for r in mine:
            if r["learned"]:
                more = names.get(trained.get(r["cell"], ""), "")
                same = re.sub(r"\W", "", more) == re.sub(r"[\W_]", "", r["method"])
                lines.setdefault((0, more if same else r["method"] + (": " + more if more else "")), []).append(r)
            elif r["method"] == rule:
                lines.setdefault((1, rule + " (best training-free)"), []).append(r)
            elif is_oracle(r):
                lines.setdefault((2, r["method"]), []).append(r)
        budgets = sorted({(r["keep"] or 0, r["entries"] or 0, r["bytes"] or 0) for r in mine}, reverse=True)
        order, named = sorted(lines), set()
        for y, line in enumerate(order):
            for r in lines[line]:
                i = budgets.index((r["keep"] or 0, r["entries"] or 0, r["bytes"] or 0))
                colour = plt.cm.viridis(0.1 + 0.75 * i / max(len(budgets) - 1, 1)) if line[0] == 0 else DARK
                ax.errorbar([r["value"]], [-y], xerr=interval([r]), color=colour, ms=6,
                            marker=MARKS[i % len(MARKS)], capsize=2, elinewidth=1, zorder=4,
                            markerfacecolor=colour if line[0] == 0 else "white", linestyle="none",
                            label=None if i in named else "%g" % r["keep"] if r["keep"] else "%d %s" % (
                                r["entries"] or r["bytes"], "entries" if r["entries"] else "bytes"))
                named.add(i)
        values = [r["value"] for line in order for r in lines[line] if r["value"] > 0]
        if name in LOG and values and max(values) / min(values) > 3:
            ax.set_xscale("log")
            number_axis(ax.xaxis, values)
        ax.set_yticks([-y for y in range(len(order))])
        ax.set_yticklabels([line[1] for line in order], fontsize=7.5)
        ax.set_xlabel(label_of(name))
        ax.set_title(title_of(key, max([r["n"] for r in mine] + [0])), fontsize=10)
        ax.legend(title="kept", fontsize=7.5, title_fontsize=7.5, frameon=False, loc="center left",
                  bbox_to_anchor=(1.0, 0.5))
        plain(ax)
    fig.suptitle("%s, run %s: what was changed in training" % (model, ", ".join("%.8s" % r for r in a.run)), fontsize=10)
    fig.tight_layout(rect=(0, 0, 1, 0.97))
    return fig


# ---- training runs ----

def smooth(values, by=0.95):
    out, held = [], None
    for v in values:
        held = v if held is None else by * held + (1 - by) * v
        out.append(held)
    return out


def read_steps(db, run):
    """{split: {name: [(step, value)]}}"""
    out = {"train": {}, "valid": {}}
    for r in db.ask("SELECT step, split, loss, grad_norm, acc FROM train_step WHERE run = ? ORDER BY step", run):
        for name in ("loss", "grad_norm", "acc"):
            if r[name] is not None:
                out[r["split"]].setdefault(name, []).append((r["step"], r[name]))
    for r in db.ask("SELECT step, split, name, value FROM train_value WHERE run = ? ORDER BY step", run):
        out[r["split"]].setdefault(r["name"], []).append((r["step"], r["value"]))
    return out


def settle_accuracy(split, loss):
    """Of a ranking loss `acc` is boundary accuracy, which every run of today has by its own name."""
    if loss in RANKING:
        acc = split.pop("acc", [])
        if acc:
            split.setdefault("boundary", acc)


def curves(db, a):
    steps, kinds = {}, {}
    for run in a.run:
        steps[run] = read_steps(db, run)
        kinds.update({run: r["loss"] for r in db.ask("SELECT loss FROM train_run WHERE run = ?", run)})
        if not steps[run]["train"]:
            fail("run %.8s has no training steps" % run)
        for split in steps[run].values():
            settle_accuracy(split, kinds.get(run))
    names = name_variants(db, a.run)
    # What a loss counts differs from loss to loss: a panel each.
    todo = [("loss", k, "loss (%s)" % k) for k in sorted(set(kinds.values()))] + [
        ("recall", None, "recall of the k best"), ("acc", None, "recall of the target's best quarter"),
        ("boundary", None, "boundary accuracy"), ("grad_norm", None, "gradient norm")]
    measured = {name for run in a.run for split in steps[run].values() for name in split}
    todo = [t for t in todo if t[0] in measured]  # runs of an older program lack some
    fig, flat = sheet(len(todo), 5.4, 3.4, 2)
    for ax, (name, of, title) in zip(flat, todo):
        for i, run in enumerate(a.run):
            if of is not None and kinds.get(run) != of:
                continue
            colour = LEARNED[i % len(LEARNED)]
            train, valid = steps[run]["train"].get(name, []), steps[run]["valid"].get(name, [])
            if train:
                ax.plot([s for s, _ in train], smooth([v for _, v in train]), color=colour, lw=0.8, alpha=0.75)
            if valid:
                ax.plot([s for s, _ in valid], [v for _, v in valid], color=colour, lw=2, marker=MARKS[i % len(MARKS)],
                        ms=4, markevery=max(1, len(valid) // 12))
            chance = steps[run]["valid"].get("chance") or steps[run]["train"].get("chance")
            if name == "recall" and chance:
                ax.axhline(sum(v for _, v in chance) / len(chance), color=colour, lw=0.9, ls=":")
        shown = [l for l in ax.get_lines() if len(l.get_ydata()) > 2]
        positive = [v for l in shown for v in l.get_ydata() if v > 0]
        if name == "grad_norm" and positive and max(positive) / min(positive) > 10:
            ax.set_yscale("log")
        ax.set_title(title, fontsize=10)
        ax.set_xlabel("step")
        plain(ax)
    handles = [plt.Line2D([], [], color=LEARNED[i % len(LEARNED)], lw=2, marker=MARKS[i % len(MARKS)],
                          label="%.8s %s" % (r, names.get(r, ""))) for i, r in enumerate(a.run)]
    fig.suptitle("training (thin: training text, smoothed; thick: held out; dotted: chance)", fontsize=10)
    fig.tight_layout(rect=(0, 0.02 + 0.035 * len(a.run) / max(1, fig.get_figheight() / 4), 1, 0.97))
    fig.legend(handles=handles, loc="lower left", fontsize=7.5, frameon=False)
    return fig


def save(fig, out):
    stem = os.path.splitext(out)[0]
    folder = os.path.dirname(stem)
    if folder:
        os.makedirs(folder, exist_ok=True)
    for kind in ("png", "svg"):
        temp = "%s.%d.tmp" % (stem, os.getpid())
        date = {"Date": None} if kind == "svg" else None
        try:
            fig.savefig(temp, format=kind, dpi=160, bbox_inches="tight", metadata=date)
            os.replace(temp, stem + "." + kind)
        except OSError:
            if os.path.exists(temp):
                os.remove(temp)
            raise
        print(stem + "." + kind)


def main():
    a = arguments()
    plt.rcParams.update({"font.size": 9, "svg.fonttype": "none", "svg.hashsalt": "evictkit"})
    fig = {"quality": quality, "ablation": ablation, "curves": curves}[a.kind](Database(a.db), a)
    try:
        save(fig, a.out)
    except OSError as e:
        print("evictkit: plot: %s: cannot write: %s" % (a.out, e.strerror), file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
