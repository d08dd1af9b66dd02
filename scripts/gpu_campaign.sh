#!/usr/bin/env bash
# What one GPU has to say, item by item; nothing is downloaded. First with random weights, whose words mean nothing, then
# with the pocket models in bodies of the same sizes, whose words are accepted or not by themselves. On 141 GB it takes
# Qwen3-32B, Qwen3-1.7B and a 7B judge together.
#
#     scripts/gpu_campaign.sh [--print] [FOLDER]
#
# --print shows the items and the seconds that each is expected to take, and starts nothing.
# It ends after MINUTES (9), wherever it is; the same command goes on there, on another machine too if FOLDER is there.
# It may be cut off at any second: every answer is written when it ends, and an item is done when all of its are.
# SHAPES is TARGET,DRAFT,JUDGE for a smaller GPU, or for none: SHAPES=pocket-target,pocket-draft,pocket-judge, and
# BODIES the deployment of bodies: BODIES=pocket-body
# FLAGS are of SGLang, for every server: NAME[=VALUE] with spaces between. By default attention is Triton's, because
# FlashInfer would compile for minutes on a machine that has not used it yet.
# ITEMS are some of the items, of which one that failed is then tried again.
# ALPHA, DEPTHS, SD_TOKENS, CONCURRENCY, LIMIT and TOKENS are other sizes than the items'.
# LEFT BEHIND: FOLDER/ITEM/ with every record, FOLDER/ITEM.json with every figure, FOLDER/plots-ITEM/ with pictures,
# FOLDER/campaign.jsonl with a line for every try of an item: its status (0: done), its seconds, and those expected.
set -euo pipefail
only_print=
if [ "${1-}" = --print ]; then only_print=1 && shift; fi
folder=$(realpath -m "${1:-gpu-campaign}")
cd "$(dirname "${BASH_SOURCE[0]}")/.."
shapes=${SHAPES:-qwen3-32b,qwen3-1.7b,qwen2.5-7b}
draft=$(cut -d, -f2 <<<"$shapes")
command=${LR_SGLANG:-.venv/bin/lr-sglang}
[ -x "$command" ] || command=lr-sglang
# What is stopped gets half a minute to stop its servers and to be reported.
ends=$(awk -v m="${MINUTES:-9}" -v now="$(date +%s)" 'BEGIN { printf "%d", now + 60 * m - 30 }')
least=60 # seconds: with less left, servers would hardly be up
flags=()
for flag in ${FLAGS-attention-backend=triton}; do flags+=(--flag "$flag"); done
running=
trap '[ -z "$running" ] || kill "$running" 2>/dev/null' EXIT
trap 'exit 143' TERM INT HUP

tried() { # NAME PATTERN: whether it ended once with such a status
    grep -Pqs "^{\"item\": \"$1\", \"status\": $2," "$folder/campaign.jsonl"
}

item() { # NAME SECONDS LIMIT TOKENS OPTIONS...: one benchmark, taken up again where it was
    local name=$1 expected=$2 options=(--limit "${LIMIT:-$3}" --max-tokens "${TOKENS:-$4}" "${@:5}")
    local began left status=0 resume=() models=(--dummy-weights --shapes "$shapes")
    [ -z "${bodies-}" ] || models=(--deployment "$bodies" --temperature 0.6)
    [[ " ${ITEMS:-$name} " == *" $name "* ]] || return 0
    if [ -n "$only_print" ]; then
        printf '%-8s %4d s  %s\n' "$name" "$expected" "${options[*]}"
        return
    fi
    # What failed is not tried again before the rest, only when it is named: 124 and 137 are out of time.
    if tried "$name" 0 || { [ -z "${ITEMS-}" ] && tried "$name" '(?!124|137)[0-9]+'; }; then return; fi
    began=$(date +%s) left=$((ends - $(date +%s)))
    if ((left < least)); then
        echo "$name: no time is left; the same command goes on"
        return
    fi
    [ -e "$folder/$name/run.json" ] && resume=(--resume)
    timeout --signal=TERM --kill-after=15 "$left" "$command" bench "${models[@]}" \
        --output "$folder/$name" "${flags[@]}" "${resume[@]}" "${options[@]}" >"$folder/$name.txt" 2>&1 &
    running=$!
    wait "$running" || status=$?
    running=
    # The line feed before it ends a line that was cut off.
    printf '\n{"item": "%s", "status": %d, "seconds": %d, "expected": %d}\n' \
        "$name" "$status" $(($(date +%s) - began)) "$expected" >>"$folder/campaign.jsonl"
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

[ -n "$only_print" ] || mkdir -p "$folder"
# Seconds are expected, not measured: 90 for a start of servers, 14 ms for a token of the target, whose 66 GB are read
# at 4.8 TB/s, and twice that where draft and judge share the GPU.
item modes 260 4 256 --modes autoregressive,lookahead,sd,lookahead+sd --token-layer ngram \
    --alpha "${ALPHA:-0.63}" --depth 6
# The target alone, and the draft in its place: the time of a token by how many answers are written at once.
item target 170 32 64 --modes autoregressive --concurrency "${CONCURRENCY:-1,2,4,8,16,32}"
shapes="$draft,$draft,$draft" item draft 110 32 64 --modes autoregressive --concurrency "${CONCURRENCY:-1,2,4,8,16,32}"
# Depth and acceptance, one answer at a time: the parallel budget M is the depth here.
item depth 340 2 256 --alpha "${ALPHA:-0.4,0.63,0.8}" --sweep "depth=${DEPTHS:-1,2,4,6,8}"
# While others wait.
item load 340 64 96 --alpha "${ALPHA:-0.63}" --depth 6 --concurrency "${CONCURRENCY:-1,4,16,64}"
# Each number of tokens is another start of the target.
item sd 460 3 256 --modes autoregressive,sd --token-layer ngram --sweep "sd-tokens=${SD_TOKENS:-2,4,8,16}"
# Real words: alpha and tokens for each verification are the pocket models' own; steps are short.
bodies=${BODIES:-pocket-1gpu} item bodies 280 8 512 --modes autoregressive,sd,lookahead,lookahead+sd
bodies=${BODIES:-pocket-1gpu} item weak 280 8 512 --modes autoregressive,sd,lookahead,lookahead+sd \
    --draft "${WEAK:-pocket:draft-60@qwen3-1.7b}"
