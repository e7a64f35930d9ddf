#!/usr/bin/env bash
# Rules that compilers do not know: banned calls, the arrows between folders, one includer for each
# foreign library, each header alone as C and as C++.  Prints every breach; layout and lengths are
# only counted.
set -euo pipefail
cd "$(dirname "$0")/.."

breaches=0
plain=$(mktemp -d)
trap 'rm -rf "$plain"' EXIT

breach() {
    breaches=$((breaches + 1))
    printf 'breach: %s\n' "$1"
}

# The files of the tree: git's, or in an archive without history all that are there.
tree() {
    git -c safe.directory='*' ls-files 2>/dev/null ||
        find . \( -path ./dl -o -path './build*' -o -path ./data -o -path ./models \) -prune -o -type f -print | sed 's#^\./##'
}
mapfile -t all < <(tree | sort)
mapfile -t files < <(printf '%s\n' "${all[@]}" | grep -E '\.[ch]$')
mapfile -t own < <(printf '%s\n' "${files[@]}" | grep -v '^tests/')
mapfile -t headers < <(printf '%s\n' "${own[@]}" | grep '\.h$')
[ ${#headers[@]} -gt 0 ] || { echo "lint: found no sources"; exit 1; }
folders=(core scorers infer train datasets results)

without_comments() {
    gcc -fpreprocessed -dD -E -P -x c "$1" 2>/dev/null | sed -E '/^#/!s/"([^"\\]|\\.)*"/""/g'
}

# --- banned calls.  Commands, progress and tests may print, end the process and ask the environment.
speaks='(printf|puts|putchar|vprintf|perror|exit|_exit|abort|getenv|system|popen)'
never='(gets|strcpy|strcat|sprintf|vsprintf|strtok|atoi|atol|atof|rand|srand|alloca|tmpnam|mktemp)'
for f in "${own[@]}"; do
    without_comments "$f" >"$plain/text"
    while read -r line; do
        breach "$f: banned call: $line"
    done < <(grep -E "(^|[^A-Za-z0-9_.>])$never *\(" "$plain/text" || true)
    case ${f##*/} in evictkit.c | cmd_*.c | progress.c) continue ;; esac
    while read -r line; do
        breach "$f: only commands speak: $line"
    done < <(grep -E "(^|[^A-Za-z0-9_.>])$speaks *\(|(fprintf|vfprintf|fputs|fputc|fwrite|fflush|putc) *\(.*(stdout|stderr) *[,)]" "$plain/text" || true)
done

# --- the arrows: core <- scorers <- infer <- train; datasets and results on core alone.
allowed() {
    case $1 in
    core) echo "core" ;;
    scorers) echo "core scorers" ;;
    datasets) echo "core datasets" ;;
    results) echo "core results" ;;
    infer) echo "core scorers datasets results infer" ;;
    train) echo "core scorers datasets results infer train" ;;
    esac
}
for folder in "${folders[@]}"; do
    may=" $(allowed "$folder") "
    while IFS=: read -r f _ include; do
        to=${include#*\"}
        to=${to%%/*}
        case " ${folders[*]} " in
        *" $to "*) [[ $may == *" $to "* ]] || breach "$f: $folder may not include $include" ;;
        esac
    done < <(printf '%s\n' "${own[@]}" | grep "^$folder/" | xargs -r grep -HnE '^#include "' || true)
done

# --- foreign libraries: each has one includer, and no header.
for library in cyaml/cyaml.h yaml.h sqlite3.h cJSON.h cjson/cJSON.h pcre2.h xxhash.h utf8proc.h cblas.h dlfcn.h; do
    mapfile -t users < <(grep -lE "^ *# *include <$library>" "${own[@]}" || true)
    [ ${#users[@]} -le 1 ] || breach "$library: ${#users[@]} includers: ${users[*]}"
    for f in "${users[@]}"; do
        case $f in *.h) breach "$f: a header includes $library" ;; esac
    done
done

# --- each header alone.
for f in "${headers[@]}"; do
    printf '#include "%s"\n' "$f" >"$plain/alone.c"
    gcc -std=gnu11 -D_GNU_SOURCE -I. -Wall -Wextra -Werror -fsyntax-only "$plain/alone.c" >"$plain/log" 2>&1 ||
        { breach "$f: does not compile alone as C"; head -n 5 "$plain/log"; }
    g++ -std=c++20 -D_GNU_SOURCE -I. -Wall -fsyntax-only -x c++ "$plain/alone.c" >"$plain/log" 2>&1 ||
        { breach "$f: does not compile alone as C++"; head -n 5 "$plain/log"; }
    guard=EK_$(tr 'a-z/.' 'A-Z__' <<<"$f")
    [[ $f != */* ]] || grep -q "^#ifndef $guard\$" "$f" || breach "$f: expected the guard $guard"
done

# --- shell and Python parse.
while read -r f; do
    bash -n "$f" || breach "$f: does not parse"
done < <(printf '%s\n' "${all[@]}" | grep -E '\.sh$|^\.ci/run$')
while read -r f; do
    python3 -c "import ast, sys; ast.parse(open(sys.argv[1]).read(), sys.argv[1])" "$f" || breach "$f: does not parse"
done < <(printf '%s\n' "${all[@]}" | grep '\.py$')

# --- counted, not judged.
if command -v clang-format >/dev/null; then
    mapfile -t unformatted < <(for f in "${files[@]}"; do
        clang-format --dry-run -Werror "$f" >/dev/null 2>&1 || echo "$f"
    done)
    echo "lint: clang-format would change ${#unformatted[@]} of ${#files[@]} files${unformatted[*]:+: ${unformatted[*]}}"
fi
long=$(wc -l "${headers[@]}" | awk '$2 != "total" && $1 > 150 { printf " %s (%d)", $2, $1 }')
echo "lint: headers over 150 lines:${long:- none}"
long=$(wc -l "${files[@]}" | awk '$2 ~ /\.c$/ && $1 > 600 { printf " %s (%d)", $2, $1 }')
echo "lint: sources over 600 lines:${long:- none}"
echo "lint: $breaches breaches"
[ "$breaches" = 0 ]
