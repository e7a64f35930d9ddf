#!/usr/bin/env bash
# Train the variants of ablations, evaluate them beside rules at equal entries, print and draw what differs.
#
# usage: configs/ablations/run.sh [NAME...]        (all of them, if none is named; from the source tree)
# A name is that of a file beside this script; its line "# sweep:" says what is varied.  Everything resumes: what is
# done is not done twice.  Results are in results/ablations.db, figures in results/ablations/NAME.png.
set -euo pipefail
cd "$(dirname "$0")/../.."
EVICTKIT=${EVICTKIT:-build/evictkit}
DB=${DB:-results/ablations.db}

[ $# -gt 0 ] || set -- age carried delay horizon loss mix scorer target
for name in "$@"; do
    config=configs/ablations/$name.yaml
    sweeps=() methods="full, h2o, snapkv, keydiff, streaming, oracle"
    for list in $(sed -n 's/^# sweep: //p' "$config"); do
        sweeps+=(--sweep "$list")
    done
    method=$(sed -n 's/^method: //p' "$config")
    out=$(sed -n 's/^out: //p' "$config")
    printf '== %s: train\n' "$name"
    "$EVICTKIT" train "$config" -s results="$DB" "${sweeps[@]}" --resume
    for weights in "$out"/*/model.safetensors; do
        folder=$(dirname "$weights")
        methods+=", {name: $method, label: $(basename "$folder"), weights: $folder}"
    done
    printf '== %s: evaluate\n' "$name"
    "$EVICTKIT" evaluate configs/ablations/evaluate.yaml -s results="$DB" -s "methods=[$methods]" --resume
    "$EVICTKIT" results query results/queries/ablation.sql --db "$DB"
    "$EVICTKIT" results plot --ablation --db "$DB" -o "results/ablations/$name.png"
done
