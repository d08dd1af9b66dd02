#!/usr/bin/env bash
# Speed-up against acceptance, depth, concurrency and parallel budget on one GPU, with random weights: nothing is
# downloaded, and the words mean nothing. On 141 GB it takes Qwen3-32B, Qwen3-1.7B and a 7B judge together.
#
#     scripts/gpu_bench.sh [FOLDER]
#
# SHAPES is TARGET,DRAFT,JUDGE for a smaller GPU, or for none: SHAPES=pocket-target,pocket-draft,pocket-judge
# FLAGS are of SGLang, for every server: NAME[=VALUE] with spaces between. By default attention is Triton's, because
# FlashInfer would compile for minutes on a machine that has not used it yet.
# ONLY is one of its two parts: depth, load.
# MINUTES is when it stops at the latest; what is finished then is reported, and the same command goes on.
# LEFT BEHIND: FOLDER/{depth,load}/ with every record, FOLDER/*.json with every figure, FOLDER/plots-*/ with pictures.
set -euo pipefail
folder=$(realpath -m "${1:-gpu-bench}")
cd "$(dirname "${BASH_SOURCE[0]}")/.."
shapes=${SHAPES:-qwen3-32b,qwen3-1.7b,qwen2.5-7b}
minutes=${MINUTES:-9.5}
command=${LR_SGLANG:-.venv/bin/lr-sglang}
[ -x "$command" ] || command=lr-sglang
ends=$(awk -v m="$minutes" -v now="$(date +%s)" 'BEGIN { printf "%d", now + 60 * m }')
flags=()
for flag in ${FLAGS-attention-backend=triton}; do flags+=(--flag "$flag"); done
mkdir -p "$folder"

measure() { # NAME SECONDS OPTIONS...: one benchmark, stopped (and its servers with it) when its time is over
    local name=$1 left=$((ends - $(date +%s))) most=$2 resume=() status=0
    shift 2
    [[ " ${ONLY:-$name} " == *" $name "* ]] || return 0
    ((left < most)) && most=$left
    if ((most < 20)); then
        echo "$name: no time is left"
        return
    fi
    [ -e "$folder/$name/run.json" ] && resume=(--resume)
    timeout --signal=TERM --kill-after=30 "$most" "$command" bench --dummy-weights --shapes "$shapes" \
        --output "$folder/$name" "${flags[@]}" "${resume[@]}" "$@" >"$folder/$name.txt" 2>&1 || status=$?
    if ((status)); then
        echo "$name: ended with status $status; its last lines:"
        tail -n 5 "$folder/$name.txt"
    fi
    if compgen -G "$folder/$name/*/records.jsonl" >/dev/null; then
        "$command" report "$folder/$name" --format json --output "$folder/$name.json" --plots "$folder/plots-$name" ||
            echo "$name: no report"
        cp "$folder/$name"/plots/* "$folder/plots-$name/" 2>/dev/null || true
    fi
}

# Acceptance and depth, one answer at a time: the parallel budget M is the depth here.
measure depth 355 --alpha "${ALPHA:-0.4,0.63,0.8}" --sweep "depth=${DEPTHS:-1,2,4,6,8}" --limit "${LIMIT:-2}" \
    --max-tokens "${TOKENS:-256}"
# The same work while others wait.
measure load 210 --alpha 0.63 --sweep depth=2,6 --concurrency "${CONCURRENCY:-4,16}" --limit "${LOAD:-16}" \
    --max-tokens "${TOKENS:-256}"
ls -R "$folder" | head -n 60
