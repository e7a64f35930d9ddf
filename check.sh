#!/usr/bin/env bash
# Build and run every test; the last line is "N passed, N failed".
#
# usage: ./check.sh             (as root on Debian 12 or 13, or with the packages already there)
# gcc Release with all tests; gcc with address and undefined-behaviour sanitizers with all tests;
# clang compiles everything; lint; every fuzz target for FUZZ_SECONDS (default 5).
set -euo pipefail
cd "$(dirname "$0")"
. ./install.sh

FUZZ_SECONDS=${FUZZ_SECONDS:-5}
passed=0
failed=0
skipped=0
failures=()
began=$SECONDS
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT

title() {
    printf '== %s (%d s)\n' "$1" $((SECONDS - began))
}

pass() {
    passed=$((passed + 1))
}

fail() { # name [log]
    failed=$((failed + 1))
    failures+=("$1")
    printf 'FAILED: %s\n' "$1"
    [ -n "${2:-}" ] || return 0
    # Of a compiler's output the lines about errors, else the end.
    grep -E -A4 'error:|FAILED:.*\.o *$|undefined reference' "$2" | grep -v '^ccache\|^/usr/bin/' | head -n 60 ||
        tail -n "${3:-40}" "$2"
}

check() { # name command...: one check, quiet unless it fails
    local log=$logs/check
    if "${@:2}" >"$log" 2>&1; then
        pass
    else
        fail "$1" "$log"
        return 1
    fi
}

configure() { # folder compiler options...
    local launcher=()
    command -v ccache >/dev/null && launcher=(-DCMAKE_C_COMPILER_LAUNCHER=ccache)
    # A tree configured elsewhere (a copied clone) or with another compiler cannot be used here.
    if [ -f "$1/CMakeCache.txt" ] && ! grep -qxF "CMAKE_HOME_DIRECTORY:INTERNAL=$PWD" "$1/CMakeCache.txt"; then
        rm -rf "$1"
    fi
    cmake -S . -B "$1" -G Ninja -DCMAKE_C_COMPILER="$2" "${launcher[@]}" "${@:3}"
}

targets() { # folder: what is compiled there; of a fuzzing build the fuzz targets and their needs
    [ "$1" != build-fuzz ] || ninja -C "$1" -t targets all | sed -nE 's/^(fuzz_[a-z0-9_]+): .*/\1/p'
}

build() { # name folder compiler options...: configure and compile
    title "$1"
    # shellcheck disable=SC2046
    check "$1: configure" configure "${@:2}" && check "$1: compile" ninja -C "$2" -k 0 $(targets "$2")
}

run_tests() { # name folder: every ctest counts
    local log=$logs/ctest line n_failed=0 status
    title "$1: tests"
    # Threads that sleep while they wait let two tests share two cores.
    OMP_WAIT_POLICY=passive ctest --test-dir "$2" -j "$(nproc)" --timeout 600 --output-on-failure \
        >"$log" 2>&1 || true
    while read -r line; do
        case $line in
        *"***Skipped"*) skipped=$((skipped + 1)) ;;
        *" Passed "*) pass ;;
        *"***"*)
            n_failed=$((n_failed + 1))
            fail "$1: $(sed -E 's/^.*: ([A-Za-z0-9_]+) .*/\1/' <<<"$line")"
            ;;
        esac
    done < <(grep -E '^ *[0-9]+/[0-9]+ Test' "$log")
    [ "$n_failed" = 0 ] || grep -vE '(Passed|Skipped|^ *Start) ' "$log" | tail -n 80
    # A ctest that dies, or that found no test, must not look like success.
    status=$(grep -cE '^[0-9]+% tests passed' "$log" || true)
    if [ "$status" != 1 ]; then
        fail "$1: ctest" "$log"
    fi
}

fuzz() { # each target for a few seconds, on its committed seeds and what it finds
    local target name seeds
    for target in build-fuzz/fuzz_*; do
        [ -f "$target" ] && [ -x "$target" ] || continue
        name=${target##*/}
        mkdir -p "$logs/$name"
        seeds=tests/fuzz/${name#fuzz_}
        [ -d "$seeds" ] || seeds=
        check "$name" "$target" -max_total_time="$FUZZ_SECONDS" -rss_limit_mb=2048 -timeout=10 -max_len=65536 \
            -artifact_prefix="$logs/" "$logs/$name" ${seeds:+"$seeds"} || true
    done
}

ek_install build check
title "model and texts"
check "fetch" python3 datasets/fetch.py || true
title "python"
check "numpy and safetensors" ek_python build-python && export EVICTKIT_PYTHON=$PWD/build-python/bin/python

build "gcc" build gcc -DCMAKE_BUILD_TYPE=Release && run_tests "gcc" build || true
build "sanitizers" build-asan gcc -DEVICTKIT_SANITIZE=ON && run_tests "sanitizers" build-asan || true
build "clang" build-clang clang || true
title "lint"
if tests/lint.sh >"$logs/lint" 2>&1; then
    pass
    grep '^lint:' "$logs/lint" || true
else
    fail "lint" "$logs/lint" 60
fi
build "fuzz" build-fuzz clang -DEVICTKIT_FUZZ=ON && fuzz || true

for f in "${failures[@]}"; do
    printf 'failed: %s\n' "$f"
done
printf '%d skipped, %d s\n' "$skipped" $((SECONDS - began))
printf '%d passed, %d failed\n' "$passed" "$failed"
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
