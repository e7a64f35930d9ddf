#!/usr/bin/env python3
"""Trained scorers, read and written by code that is not ours.

    python3 -m venv v && v/bin/pip install numpy safetensors
    v/bin/python tests/interchange.py check FOLDER       recompute the scores of a folder
    v/bin/python tests/interchange.py write FOLDER SEED  folders of random scorers, with scores

A folder holds config.json and model.safetensors, as infer/weights.h describes them, and for this
test vectors.safetensors: k, v (layers, heads, n, head_dim), pos (n), next_pos (1), carry (layers,
heads, n, floats) if anything is carried, and the scores r without and p with age (layers, heads,
n).  `check` recomputes r and p in float64 with nothing but numpy, the recurrent scorer token by
token, and fails if any is off by more than 1e-5.  `write FOLDER 1` made tests/data/interchange;
test_interchange reads that, and runs this script with $EVICTKIT_PYTHON or python3 if it can.
"""

import json
import os
import sys

import numpy as np
from safetensors.numpy import load_file, save_file


def softplus(x):
    return np.logaddexp(0.0, x)


def sigmoid(x):
    return 0.5 * (1.0 + np.tanh(0.5 * x))


def silu(x):
    return x * sigmoid(x)


def carried(kind, group, carry, age):
    """Features of carried attention, scorers/carried.h; carry (n, floats), age (n)."""
    if kind == "none":
        return np.zeros((len(age), 0))
    if kind == "ema":
        x = carry[:, :1]
    else:
        total, slow, fast, birth = (carry[:, i * group : (i + 1) * group] for i in range(4))
        total = total / age[:, None]
        x = []
        for part in (total, slow, fast):
            x += [part.mean(1), part.max(1)]
        x += [birth.max(1) / np.minimum(age, 64), carry[:, 4 * group]]
        x = np.stack(x, 1)
    return np.log(1e-6 + x)


def inputs(config, w, vectors, layer, head):
    k, v = vectors["k"][layer, head].astype(float), vectors["v"][layer, head].astype(float)
    age = (vectors["next_pos"][0] - vectors["pos"]).astype(float)
    if config["input"] == "rms":
        k = k / np.sqrt((k * k).mean(1, keepdims=True) + 1e-12)
        v = v / np.sqrt((v * v).mean(1, keepdims=True) + 1e-12)
    x = [k, v]
    if config["age"] == "input":
        x.append(np.log(age)[:, None])
    kind = config.get("carried", "none")
    if kind != "none":
        carry = vectors["carry"][layer, head].astype(float)
        x.append(carried(kind, config["dims"]["group"], carry, age))
    return (np.concatenate(x, 1) - w["input.mean"]) * w["input.scale"]


def phi(z):
    a, b = np.exp(z - z.max()), np.exp(z.min() - z)
    return np.concatenate([a / a.sum(), b / b.sum()])


def recurrent(config, w, x):
    n, values = len(x), w["memory.weight"].shape[0] // 3
    delay = config.get("delay", 0)
    project = x @ w["memory.weight"].T
    gate = 15.0 * np.tanh((x @ w["gate.weight"].T + w["gate.bias"]) / 15.0)
    c, z, m = np.zeros((2 * values, values)), np.zeros(2 * values), -np.inf
    r = np.zeros(n)
    for t in range(n):
        k, v = phi(project[t, values : 2 * values]), project[t, 2 * values :]
        log_f = -softplus(-gate[t, 1])
        top = max(log_f + m, gate[t, 0])
        keep, take = np.exp(log_f + m - top), np.exp(gate[t, 0] - top)
        c = keep * c + take * np.outer(k, v)
        z = keep * z + take * k
        m = top
        if t >= delay:
            q = phi(project[t - delay, :values])
            o = (q @ c) / max(q @ z, 1e-6)
            if config.get("norm", 0):
                o = o / np.sqrt((o * o).mean() + 1e-6)
            r[t - delay] = silu(o) @ w["out.weight"][0] + w["out.bias"][0, 0]
            if config.get("skip", 0):
                r[t - delay] += w["skip.weight"][0] @ x[t - delay]
    return r


def score(config, w, vectors, layer, head):
    x = inputs(config, w, vectors, layer, head)
    kind = config["scorer"]
    if kind == "mlp":
        x = silu(x @ w["hidden.weight"].T + w["hidden.bias"])
    if kind == "recurrent":
        r = recurrent(config, w, x)
    else:
        r = x @ w["out.weight"][0] + w["out.bias"][0, 0]
    age = (vectors["next_pos"][0] - vectors["pos"]).astype(float)
    if config["age"] == "exp":
        lo, hi = np.log(0.99), np.log(0.999999)
        return r, r + age * (lo + sigmoid(w["age.alpha"][0, 0]) * (hi - lo))
    if config["age"] in ("power", "input"):
        return r, r - softplus(w["age.beta"][0, 0]) * np.log(age)
    return r, r


def all_scores(config, params, vectors):
    shape = params["log_mass"].shape[:2]
    r, p = np.zeros(vectors["k"].shape[:3]), np.zeros(vectors["k"].shape[:3])
    for layer, head in np.ndindex(shape):
        w = {name: t[layer, head].astype(float) for name, t in params.items()}
        r[layer, head], p[layer, head] = score(config, w, vectors, layer, head)
    return r, p


def check(folder):
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as f:
        config = json.load(f)
    vectors = load_file(os.path.join(folder, "vectors.safetensors"))
    params = load_file(os.path.join(folder, "model.safetensors"))
    worst = 0.0
    for name, want in zip(("r", "p"), all_scores(config, params, vectors)):
        wrong = np.abs(vectors[name] - want) / np.maximum(1.0, np.abs(want))
        worst = max(worst, float(wrong.max()))
    print(f"{config['scorer']}: {want.size} scores, greatest error {worst:.2g}")
    return worst <= 1e-5


def shapes(config, hidden):
    d = config["dims"]["head_dim"]
    features = {"none": 0, "ema": 1, "full": 8}[config["carried"]]
    n = 2 * d + (config["age"] == "input") + features
    x = {"input.mean": (1, n), "input.scale": (1, n), "log_mass": (1, 1), "out.bias": (1, 1)}
    if config["scorer"] == "mlp":
        x |= {"hidden.weight": (hidden, n), "hidden.bias": (1, hidden), "out.weight": (1, hidden)}
    elif config["scorer"] == "linear":
        x |= {"out.weight": (1, n)}
    else:
        x |= {"memory.weight": (3 * d // 2, n), "gate.weight": (2, n), "gate.bias": (1, 2)}
        x |= {"out.weight": (1, d // 2)}
    if config["age"] != "none":
        x["age.alpha" if config["age"] == "exp" else "age.beta"] = (1, 1)
    return x


def write(folder, seed):
    rng = np.random.default_rng(seed)
    dims = {"n_layers": 2, "n_heads": 2, "group": 3, "head_dim": 8}
    for kind, age, read, kept, delay, n in (
        ("mlp", "input", "rms", "full", 0, 20),
        ("linear", "power", "raw", "ema", 0, 20),
        ("recurrent", "exp", "raw", "none", 5, 70),
    ):
        config = {"format": "evictkit scorer", "version": 1, "scorer": kind, "hidden": 6}
        config |= {"method": "foresight", "age": age, "input": read, "carried": kept}
        config |= {"delay": delay, "sinks": 4, "recent": 16, "dims": dims}
        config |= {"model": "interchange", "tokenizer": "interchange"}
        lead = (dims["n_layers"], dims["n_heads"])
        params = {
            name: (rng.standard_normal(lead + shape) * (0.5 if shape[0] > 1 else 1.0))
            for name, shape in shapes(config, 6).items()
        }
        floats = {"none": 0, "ema": 1, "full": 4 * dims["group"] + 1}[kept]
        vectors = {
            "k": rng.standard_normal(lead + (n, dims["head_dim"])),
            "v": rng.standard_normal(lead + (n, dims["head_dim"])),
            "carry": rng.random(lead + (n, floats)) if floats else None,
        }
        vectors = {name: x.astype(np.float32) for name, x in vectors.items() if x is not None}
        params = {name: x.astype(np.float32) for name, x in params.items()}
        vectors |= {"pos": np.arange(n, dtype=np.int32), "next_pos": np.array([n + 3], np.int32)}
        r, p = all_scores(config, params, vectors)
        vectors |= {"r": r.astype(np.float32), "p": p.astype(np.float32)}
        to = os.path.join(folder, kind)
        os.makedirs(to, exist_ok=True)
        with open(os.path.join(to, "config.json"), "w", encoding="utf-8") as f:
            json.dump(config, f, indent=2)
            f.write("\n")
        save_file(params, os.path.join(to, "model.safetensors"))
        save_file(vectors, os.path.join(to, "vectors.safetensors"))


if __name__ == "__main__":
    if sys.argv[1:2] == ["check"] and len(sys.argv) == 3:
        sys.exit(0 if check(sys.argv[2]) else 1)
    if sys.argv[1:2] == ["write"] and len(sys.argv) == 4:
        write(sys.argv[2], int(sys.argv[3]))
        sys.exit(0)
    sys.exit(__doc__)
