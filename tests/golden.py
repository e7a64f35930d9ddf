#!/usr/bin/env python3
"""Make the golden numbers in tests/data with code that is not ours.

    python3 -m venv v && v/bin/pip install gguf numpy tokenizers
    v/bin/python tests/golden.py models/SmolLM2-135M-Instruct.Q4_1.gguf

Writes tests/data/{blocks,tokenizer,logits}_golden.json; name some of blocks, tokenizer, logits
behind the model to make only those.  The numbers come from the gguf package (blocks, weights),
the tokenizers package (ids) and a float64 forward in numpy that rotates adjacent pairs on the rows
as the file stores them, so it shares neither code nor layout with us.  Tests only read the files.
"""

import hashlib
import importlib.metadata
import json
import os
import random
import sys

import gguf
import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
DATA = os.path.join(HERE, "data")
CONTROL = 3


def versions(*names):
    return {n: importlib.metadata.version(n) for n in names}


def save(name, value):
    path = os.path.join(DATA, name)
    with open(path, "w", encoding="ascii") as f:
        json.dump(value, f, separators=(",", ":"))
        f.write("\n")
    print(path, os.path.getsize(path), "bytes")


def sha256(path):
    with open(path, "rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


# Blocks of each tensor type -------------------------------------------------------------------


def blocks():
    rng = np.random.default_rng(20)
    types = ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"]
    out = {"versions": versions("gguf", "numpy"), "types": {}}
    for name in types:
        t = gguf.GGMLQuantizationType[name]
        # Blocks of unlike sizes: a scale taken from the wrong block shows.
        x = (rng.standard_normal((3, 32)) * [[1.0], [0.01], [40.0]]).astype(np.float32)
        if name == "F32":
            raw, y = x.view(np.uint8), x
        else:
            raw = gguf.quants.quantize(x, t)
            y = gguf.quants.dequantize(raw, t)
        raw = np.ascontiguousarray(raw).view(np.uint8)
        # And blocks of any bits (finite scales): every value of every field.
        if name.startswith("Q"):
            block, size = gguf.GGML_QUANT_SIZES[t]
            any_bits = rng.integers(0, 256, (3, size), dtype=np.uint8)
            any_bits[:, 1] &= 0xBF  # the exponent of the scale is never all ones
            any_bits[:, 3] &= 0xBF
            raw = np.concatenate([raw.reshape(3, size), any_bits])
            y = np.concatenate([y.reshape(3, block), gguf.quants.dequantize(any_bits, t)])
        out["types"][name] = {
            "id": int(t),
            "hex": raw.tobytes().hex(),
            "values": [float(v) for v in y.astype(np.float32).ravel()],
        }
    save("blocks_golden.json", out)


# Token ids ------------------------------------------------------------------------------------


def reference(reader):
    """The same vocabulary in the tokenizers package: digits singly, GPT-2's pattern, bytes."""
    import tokenizers
    from tokenizers import models, pre_tokenizers, decoders

    field = lambda k: reader.fields[k].contents()
    tokens, types = field("tokenizer.ggml.tokens"), field("tokenizer.ggml.token_type")
    merges = [tuple(m.split(" ", 1)) for m in field("tokenizer.ggml.merges")]
    tok = tokenizers.Tokenizer(models.BPE({t: i for i, t in enumerate(tokens)}, merges))
    tok.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tok.decoder = decoders.ByteLevel()
    plain = tokenizers.Tokenizer.from_str(tok.to_str())  # control tokens stay characters
    tok.add_special_tokens(
        [
            tokenizers.AddedToken(t, special=True, normalized=False)
            for t, k in zip(tokens, types)
            if k == CONTROL
        ]
    )
    return tok, plain


FIXED = [
    "costs 120 now  caf\u00e9 \u4f60\u597d \U0001f642\n\n\tx=1",
    "",
    " ",
    "  ",
    "\n",
    "\n\n",
    "\t",
    " \n ",
    "a",
    " a",
    "a ",
    "Hello, world!",
    "it's we're they've I'm you'll he'd don't IT'S",
    "'s't're",
    "''''s",
    " 's",
    "The quick brown fox jumps over the lazy dog.",
    "UPPER lower MiXeD camelCase snake_case",
    "3.14159265358979",
    "1234567890",
    "1 2 3",
    "a1b2c3",
    "0x1F",
    "1,000,000.50",
    "-17",
    "2^10=1024",
    "\u0661\u0662\u0663 \u0967\u0968 \u00b2\u00b3 \u00bd \u2163 \u3007 \u2460",
    "v1.2.3-rc4+build.5",
    "2024-02-29T23:59:60Z",
    "int main(void)\n{\n    return 0;\n}\n",
    "for (int i = 0; i < n; i++)\n\tsum += x[i];",
    "def f(x):\n        return x ** 2  # square\n",
    "#include <stdio.h>",
    "SELECT * FROM t WHERE a='b';",
    '<html><body class="x">&nbsp;</body></html>',
    '{"a": [1, 2.5e-3, null], "b": {}}',
    "if x==1:\n\n\n    pass",
    "\\frac{a}{b} $x_{i}^{2}$",
    "https://example.org/a?b=c&d=%20#e",
    "a@b.co",
    "\U0001f600\U0001f601",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467",
    "\U0001f1e9\U0001f1ea",
    "\u2764\ufe0f",
    "\U0001f44d\U0001f3fd ok",
    "e\u0301 \u00e9",
    "na\u00efve fa\u00e7ade \u00c5ngstr\u00f6m \u0141\u00f3d\u017a",
    "\u00fcber stra\u00dfe",
    "\u010ce\u0161tina \u017elu\u0165ou\u010dk\u00fd k\u016f\u0148",
    "\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440!",
    "\u0393\u03b5\u03b9\u03ac \u03c3\u03bf\u03c5",
    "\u0645\u0631\u062d\u0628\u0627",
    "\u05e9\u05dc\u05d5\u05dd",
    "\u0928\u092e\u0938\u094d\u0924\u0947",
    "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35",
    "\u4f60\u597d\uff0c\u4e16\u754c\u3002",
    "\u3053\u3093\u306b\u3061\u306f\u4e16\u754c",
    "\uc548\ub155\ud558\uc138\uc694",
    "\u6f22\u5b57\u304b\u306a\u4ea4\u3058\u308a\u6587123",
    "\u00a0nbsp\u00a0",
    "\u2003em\u2003space",
    "\u3000ideographic\u3000",
    "a\u2028b\u2029c",
    "\u200bzero\u200bwidth",
    "\u0085next",
    "\u180emongol",
    "\r\n\r\n",
    "a\r\nb",
    "a\n b",
    "a \nb",
    "a  b",
    "a   b",
    "a    b",
    "x" + " " * 17 + "y",
    " " * 40,
    "\n" * 20,
    "\t\t\tx",
    " \t \t x",
    "end   ",
    "end\n\n",
    "\x00nul\x00",
    "\x01\x02\x03",
    "\x7f",
    "\x0b\x0c",
    "!!!???...",
    "---",
    "***bold***",
    "(((a)))",
    "\u201cquotes\u201d \u2018x\u2019 \u2014 \u2026",
    "\u20ac100 \u00a35 \u00a510",
    "50%",
    "#1",
    "C++",
    "R&D",
    "<|im_start|>user\nHi<|im_end|>\n",
    "<|endoftext|>",
    "a<|im_end|>b",
    " <|im_end|> ",
    "<|im_start|><|im_start|>",
    "<|im_end|",
    "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n2+2?<|im_end|>\n<|im_start|>assistant\n",
    "<repo_name>x<file_sep>y",
    "<|im_end|>12",
    "12<|im_end|>",
    "<jupyter_code>import os",
    "< |im_end| >",
    "a" * 300,
    "ab" * 200,
    "1" * 50,
    "\u00e9" * 60,
    "\u4f60" * 50,
    "." * 100,
    " a" * 80,
    "\U0001f642" * 20,
]


def varied(n):
    rng = random.Random(7)
    words = (
        "the of and to in is that for it as was with be by on not he his but at are this have "
        "from or had an they which one you were all her she there would their we him been has "
        "when who will no more if out so up said what its about than into them can only other "
        "time new some could these two may first then do any like my now over such our man me "
        "even most made after also did many off before must well back through years much"
    ).split()
    bits = [
        lambda: rng.choice(words),
        lambda: rng.choice(words).upper(),
        lambda: str(rng.randrange(10**6)),
        lambda: "".join(chr(rng.randrange(0x20, 0x7F)) for _ in range(rng.randrange(1, 12))),
        lambda: "".join(chr(rng.randrange(0xA1, 0x250)) for _ in range(rng.randrange(1, 6))),
        lambda: "".join(chr(rng.randrange(0x4E00, 0x9FA5)) for _ in range(rng.randrange(1, 5))),
        lambda: "".join(chr(rng.randrange(0x400, 0x450)) for _ in range(rng.randrange(1, 9))),
        lambda: chr(rng.randrange(0x1F300, 0x1F650)),
        lambda: rng.choice(["\n", "\t", "  ", "\n\n", " \n", "   "]),
        lambda: rng.choice(["==", "->", "();", "[i]", "{\n", "}\n", "//", "/* x */", "&&", "!="]),
        lambda: rng.choice(["'s", "'t", "'re", "'", "n't", "'LL"]),
    ]
    return [
        "".join(
            rng.choice(bits)() + rng.choice(["", " ", " ", " "])
            for _ in range(rng.randrange(3, 30))
        )
        for _ in range(n)
    ]


def tokenizer(path, reader):
    tok, plain = reference(reader)
    strings = FIXED + varied(200 - len(FIXED))
    cases = []
    for s in strings:
        ids = tok.encode(s).ids
        case = {"text": s.encode("utf-8").hex(), "special": ids}
        other = plain.encode(s).ids
        if other != ids:
            case["plain"] = other  # absent: the same
        assert tok.decode(ids, skip_special_tokens=False) == s or "\ufffd" in tok.decode(ids), s
        cases.append(case)
    assert len(cases) == 200
    save(
        "tokenizer_golden.json",
        {
            "model": os.path.basename(path),
            "sha256": sha256(path),
            "versions": versions("tokenizers", "gguf"),
            "cases": cases,
        },
    )


# Logits ---------------------------------------------------------------------------------------

PLAIN = """It was a quiet evening in the harbour. The last of the fishing boats had come in before the
wind turned, and the men were mending their nets under the lamps along the quay. An old woman sat on
an upturned crate and told the children about the winter when the sea froze as far as the lighthouse.
Nobody believed her, but nobody left either. She said that the ice sang at night, that the gulls
walked about like people on their way to church, and that a horse had been driven across to the
island with a cart of flour, because the mill there had burned down in the autumn. When the horse
came back it would not eat for three days. The children asked what the horse had seen. She did not
know, she said; horses keep such things to themselves. Then she laughed, and the lamps shook in the
wind, and somebody's mother called from a window that it was late. The boats knocked against the
stones. Far out a single light was moving, so slowly that one had to look away and back again to be
sure of it. The youngest boy said it was the horse. Nobody laughed at that, and after a while even
the old woman turned round on her crate to look. In the morning the light was gone and the sea was
flat and grey as a slate, and the men went out again because there was nothing else to do. They found
a plank, some rope and an empty flour barrel with a date burned into the lid. The harbour master put
the barrel in his office and wrote the date into the book, and under it he wrote: found adrift, no
owner. It is still there. If you ask for it they will show it to you, but they will not let you open
it, and they will not tell you why. The old woman died that spring. At her funeral the bell rang once
more than it should have, and the man who rang it swears that he had already let go of the rope."""
DIGITS = """Invoice 2024-0173, due 31.12.2024: 3 x 19.99 + 2 x 4.50 = 68.97; VAT 19% = 13.10; total 82.07 EUR.
IBAN DE02 1203 0000 0000 2020 51; ref #(7/12)-[A_9]; tel. +49 30 1234567, ext. 42; 0xDEADBEEF, 1e-9, 3/4, 50%,
pi ~ 3.14159265358979, e ~ 2.71828182845905, sqrt(2) ~ 1.4142135; {1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144}; !?;:,..."""
FOREIGN = """Der Fluss fl\u00f6\u00dft \u00fcber gro\u00dfe Steine. \u00c0 la fin de l'\u00e9t\u00e9, le caf\u00e9 \u00e9tait ferm\u00e9. \u041c\u043e\u0441\u043a\u0432\u0430 \u2014 \u0441\u0442\u043e\u043b\u0438\u0446\u0430 \u0420\u043e\u0441\u0441\u0438\u0438.
\u4f60\u597d\uff0c\u4e16\u754c\u3002\u4eca\u65e5\u306f\u3044\u3044\u5929\u6c17\u3067\u3059\u306d\u3002 \u0393\u03b5\u03b9\u03ac \u03c3\u03bf\u03c5 \u03ba\u03cc\u03c3\u03bc\u03b5! \U0001f642\U0001f680 na\u00efve \u201cquotes\u201d \u2026"""
CHAT = (
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
    "<|im_end|>\n<|im_start|>user\nWhat is the capital of France?<|im_end|>\n"
    "<|im_start|>assistant\n"
)


class Model:
    """Float64, adjacent-pair rotation on the rows as stored."""

    def __init__(self, reader):
        key = lambda k: reader.fields["llama." + k].contents()
        self.n_layers, self.heads = key("block_count"), key("attention.head_count")
        self.kv_heads, self.base = key("attention.head_count_kv"), key("rope.freq_base")
        self.eps, self.d = key("attention.layer_norm_rms_epsilon"), key("embedding_length")
        self.hd = self.d // self.heads
        self.w = {}
        for t in reader.tensors:
            x = t.data if t.tensor_type == 0 else gguf.quants.dequantize(t.data, t.tensor_type)
            self.w[t.name] = np.asarray(x, np.float32)

    def get(self, name):
        return self.w[name + ".weight"].astype(np.float64)

    def norm(self, x, name):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.eps) * self.get(name)

    def rotate(self, x):
        """x (T, heads, hd) in the file's order: pairs (2i, 2i + 1)."""
        i = np.arange(self.hd // 2)
        angle = np.arange(len(x))[:, None] * self.base ** (-2.0 * i / self.hd)
        c, s = np.cos(angle)[:, None], np.sin(angle)[:, None]
        a, b = x[..., 0::2], x[..., 1::2]
        out = np.empty_like(x)
        out[..., 0::2], out[..., 1::2] = a * c - b * s, a * s + b * c
        return out

    def forward(self, ids, probe_layers, probe_at):
        T, g = len(ids), self.heads // self.kv_heads
        x = self.get("token_embd")[ids]
        probes = []
        mask = np.triu(np.full((T, T), -np.inf), 1)
        for l in range(self.n_layers):
            b = f"blk.{l}."
            h = self.norm(x, b + "attn_norm")
            q = self.rotate((h @ self.get(b + "attn_q").T).reshape(T, self.heads, self.hd))
            k = self.rotate((h @ self.get(b + "attn_k").T).reshape(T, self.kv_heads, self.hd))
            v = (h @ self.get(b + "attn_v").T).reshape(T, self.kv_heads, self.hd)
            if l in probe_layers:
                # In the layout of Hugging Face the even rows of a head come first.
                hf = lambda y: np.concatenate([y[..., 0::2], y[..., 1::2]], -1)
                probes.append(
                    {
                        "layer": l,
                        "at": probe_at,
                        "q": hf(q[probe_at, 0])[:8].tolist(),
                        "k": hf(k[probe_at, 0])[:8].tolist(),
                        "v": v[probe_at, 0][:8].tolist(),
                        "q_last": hf(q[probe_at, -1])[-8:].tolist(),
                        "k_last": hf(k[probe_at, -1])[-8:].tolist(),
                    }
                )
            o = np.empty((T, self.heads, self.hd))
            for i in range(self.heads):
                z = q[:, i] @ k[:, i // g].T / np.sqrt(self.hd) + mask
                p = np.exp(z - z.max(-1, keepdims=True))
                o[:, i] = p / p.sum(-1, keepdims=True) @ v[:, i // g]
            x = x + o.reshape(T, -1) @ self.get(b + "attn_output").T
            h = self.norm(x, b + "ffn_norm")
            gate = h @ self.get(b + "ffn_gate").T
            x = (
                x
                + (gate / (1 + np.exp(-gate)) * (h @ self.get(b + "ffn_up").T))
                @ self.get(b + "ffn_down").T
            )
        return self.norm(x, "output_norm") @ self.get("token_embd").T, probes


def logits(path, reader):
    tok, plain = reference(reader)
    model = Model(reader)
    prompts = [
        ("plain", plain.encode(PLAIN + "\n\n" + PLAIN).ids[:512]),
        ("digits", plain.encode(DIGITS).ids),
        ("foreign", plain.encode(FOREIGN).ids),
        ("chat", tok.encode(CHAT).ids),
    ]
    out = {
        "model": os.path.basename(path),
        "sha256": sha256(path),
        "versions": versions("gguf", "numpy", "tokenizers"),
        "stride": 48,
        "prompts": [],
    }
    for name, ids in prompts:
        T = len(ids)
        z, probes = model.forward(ids, (0, model.n_layers - 1), T // 2)
        top = z.max(-1, keepdims=True)
        lse = (top + np.log(np.exp(z - top).sum(-1, keepdims=True)))[:, 0]
        mean = float((z[np.arange(T - 1), ids[1:]] - lse[:-1]).mean())
        tops = []
        for at in (0, T // 2, T - 1):
            best = np.argsort(-z[at], kind="stable")[:16]
            tops.append(
                {
                    "at": at,
                    "ids": best.tolist(),
                    "logits": z[at, best].tolist(),
                    "lse": float(lse[at]),
                }
            )
        # Every 48th logit of some rows: enough to see one wrong row of the head, small enough to keep.
        rows = sorted(set(int(r) for r in np.linspace(0, T - 1, 8 if name == "plain" else 4)))
        sparse = [{"at": r, "logits": [round(float(v), 5) for v in z[r, ::48]]} for r in rows]
        out["prompts"].append(
            {
                "name": name,
                "ids": ids,
                "mean_log_likelihood": mean,
                "top": tops,
                "probes": probes,
                "rows": sparse,
            }
        )
        print(name, T, "tokens, mean log-likelihood", mean, "argmax", tops[-1]["ids"][0])
    save("logits_golden.json", out)


def main():
    path, what = sys.argv[1], sys.argv[2:] or ["blocks", "tokenizer", "logits"]
    reader = gguf.GGUFReader(path)
    os.makedirs(DATA, exist_ok=True)
    if "blocks" in what:
        blocks()
    if "tokenizer" in what:
        tokenizer(path, reader)
    if "logits" in what:
        logits(path, reader)


if __name__ == "__main__":
    main()
