#!/usr/bin/env bash
# From a clone to a comparison: install, fetch, build, train a scorer, evaluate it beside published
# rules, compare, draw.  A second run does nothing twice.
#
# usage: ./quickstart.sh        (as root on Debian 12 or 13, or with the packages already there)
# The two configurations and the database can be others:
#     TRAIN=configs/quickstart-train.yaml EVALUATE=configs/quickstart.yaml DB=results/evictkit.db
set -euo pipefail
cd "$(dirname "$0")"
. ./install.sh

TRAIN=${TRAIN:-configs/quickstart-train.yaml}
EVALUATE=${EVALUATE:-configs/quickstart.yaml}
DB=${DB:-results/evictkit.db}
PLOT=${PLOT:-results/quickstart.png}
began=$SECONDS
name=""

step() { # name: ends the step before it and begins the next
    [ -z "$name" ] || printf -- '-- %s: %d s\n' "$name" $((SECONDS - started))
    name=$1
    started=$SECONDS
    [ -z "$name" ] || printf '== %s\n' "$name"
}
trap 'code=$?; [ $code = 0 ] || echo "quickstart: stopped in step \"$name\" (exit $code); run ./quickstart.sh again to go on" >&2' EXIT

step "install what is missing"
ek_install build

step "fetch model and texts"
python3 datasets/fetch.py

step "build"
launcher=()
command -v ccache >/dev/null && launcher=(-DCMAKE_C_COMPILER_LAUNCHER=ccache)
# A tree configured elsewhere (a copied clone) cannot be used here.
if [ -f build/CMakeCache.txt ] && ! grep -qxF "CMAKE_HOME_DIRECTORY:INTERNAL=$PWD" build/CMakeCache.txt; then
    rm -rf build
fi
[ -f build/build.ninja ] || cmake -S . -B build -G Ninja "${launcher[@]}" >build.log 2>&1 || {
    cat build.log >&2
    exit 1
}
rm -f build.log
ninja -C build evictkit | tail -n 1

# Training asks nothing of a run that is finished: the program compares configuration and hashes.
step "train a scorer"
build/evictkit train "$TRAIN" --resume

step "evaluate"
build/evictkit evaluate "$EVALUATE" --resume

step "compare"
build/evictkit results compare --db "$DB"

step "plot"
build/evictkit results plot --db "$DB" --out "$PLOT"
step ""
printf 'quickstart: done in %d s; results in %s, figure in %s\n' $((SECONDS - began)) "$DB" "$PLOT"
