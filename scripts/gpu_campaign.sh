#!/usr/bin/env bash
# Benchmarks on one GPU, item by item; nothing is downloaded. First the table of modes on the pocket models in bodies of
# Qwen's sizes, whose steps are really accepted or refused, then the times of each role alone, then random weights with a
# given acceptance. 141 GB of GPU memory hold Qwen3-32B, Qwen3-1.7B and a 7B judge together.
#
#     scripts/gpu_campaign.sh [--print] [FOLDER]
#
# --print shows the items and the seconds that each is expected to take, and starts nothing.
# It ends after MINUTES (9) in any case, and begins no item that it expects to end later, unless that is its first. The
# same command continues where it stopped, also on another machine that has FOLDER: the first item that starts servers
# there compiles again what the first one had compiled.
# It may be killed at any second: every answer and every time is written at once, and an item is done when all of its
# answers and times are written.
# SHAPES is TARGET,DRAFT,JUDGE, and BODIES the deployment of bodies:
#     80 GB: SHAPES=qwen2.5-7b,qwen3-1.7b,qwen3-1.7b BODIES=pocket-1gpu-80gb
#     24 GB: SHAPES=qwen3-1.7b,pocket-draft,pocket-judge BODIES=pocket-1gpu-24gb
#     without a GPU: SHAPES=pocket-target,pocket-draft,pocket-judge BODIES=pocket-body
# FLAGS are SGLang's, for every server: NAME[=VALUE], separated by spaces. The default is Triton's attention, because
# FlashInfer would compile for minutes on a machine that has not used it yet.
# ITEMS selects items, and tries those that failed again.
# ALPHA, DEPTHS, SD_TOKENS, CONCURRENCY, LIMIT, TOKENS, BATCHES and PREFIXES override the sizes of the items.
# LEFT BEHIND: FOLDER/ITEM.json with every figure, FOLDER/ITEM/ with every record, FOLDER/plots-ITEM/ with pictures,
# FOLDER/campaign.jsonl with a line for every try of an item: its status (0: done), its seconds, and those expected;
# FOLDER/share.json with the figures of the first item, to be given to others: nothing in it is private.
set -euo pipefail
if [ "${1-}" = --help ]; then
    sed -n '2,/^set /{/^set /d; s/^# \{0,1\}//; p}' "${BASH_SOURCE[0]}"
    exit
fi
only_print=
if [ "${1-}" = --print ]; then only_print=1 && shift; fi
folder=$(realpath -m "${1:-gpu-campaign}")
cd "$(dirname "${BASH_SOURCE[0]}")/.."
shapes=${SHAPES:-qwen3-32b,qwen3-1.7b,qwen2.5-7b}
command=${LR_SGLANG:-.venv/bin/lr-sglang}
[ -x "$command" ] || command=lr-sglang
python=${PYTHON:-.venv/bin/python}
[ -x "$python" ] || python=python3
# A stopped item gets half a minute to stop its servers and to be recorded.
ends=$(awk -v m="${MINUTES:-9}" -v now="$(date +%s)" 'BEGIN { printf "%d", now + 60 * m - 30 }')
least=60 # seconds: with less left, servers would hardly be up
flags=() settings=()
for flag in ${FLAGS-attention-backend=triton}; do
    flags+=(--flag "$flag")
    [[ $flag == *=* ]] || flag+==true
    for role in target draft judge; do settings+=(-o "runtimes.$role.extra.$flag"); done
done
running= begun= ran= # the item that runs; whether one has begun, and whether this one has
trap '[ -z "$running" ] || kill "$running" 2>/dev/null' EXIT
trap 'exit 143' TERM INT HUP

tried() { # NAME PATTERN: whether it ended once with such a status
    grep -Pqs "^{\"item\": \"$1\", \"status\": $2," "$folder/campaign.jsonl"
}

item() { # NAME SECONDS COMMAND...: taken up again where it was
    local name=$1 expected=$2 began left status=0
    shift 2
    ran=
    [[ " ${ITEMS:-$name} " == *" $name "* ]] || return 0
    if [ -n "$only_print" ]; then
        printf '%-8s %4d s  %s\n' "$name" "$expected" "${*/#"$folder/"/}"
        return
    fi
    # A failed item is only tried again if ITEMS names it; 124 and 137 mean out of time.
    if tried "$name" 0 || { [ -z "${ITEMS-}" ] && tried "$name" '(?!124|137)[0-9]+'; }; then return; fi
    began=$(date +%s) left=$((ends - $(date +%s)))
    if ((left < (${begun:-0} ? expected : least))); then
        echo "$name: no time is left; the same command goes on"
        return
    fi
    begun=1 ran=1
    # --foreground: else timeout would send the signal twice, and the second one would interrupt the stop of servers.
    timeout --foreground --signal=TERM --kill-after=15 "$left" "$@" >"$folder/$name.txt" 2>&1 &
    running=$!
    wait "$running" || status=$?
    running=
    # The line feed in front ends an incomplete line.
    printf '\n{"item": "%s", "status": %d, "seconds": %d, "expected": %d}\n' \
        "$name" "$status" $(($(date +%s) - began)) "$expected" >>"$folder/campaign.jsonl"
    if ((status)); then
        echo "$name: ended with status $status; its last lines:"
        tail -n 5 "$folder/$name.txt"
    fi
}

bench() { # NAME SECONDS LIMIT TOKENS OPTIONS...: a benchmark, and its report
    local name=$1 resume=() models=(-o bench.dummy_weights=true -o bench.shapes="$shapes")
    [ -z "${bodies-}" ] || models=(--deployment "$bodies" --temperature 0.6)
    [ -e "$folder/$name/run.json" ] && resume=(--resume)
    item "$name" "$2" "$command" bench "${models[@]}" "${settings[@]}" --output "$folder/$name" \
        "${resume[@]}" --limit "${LIMIT:-$3}" --max-tokens "${TOKENS:-$4}" "${@:5}"
    if [ -n "$ran" ] && compgen -G "$folder/$name/*/records.jsonl" >/dev/null; then
        "$command" report "$folder/$name" --json --plots "$folder/plots-$name" >"$folder/$name.json" ||
            echo "$name: no report"
    fi
}

[ -n "$only_print" ] || mkdir -p "$folder"
# Seconds are expected, not measured: 90 for a start of servers, 14 ms for a token of the target, whose 66 GB are read
# at 4.8 TB/s, and twice that where draft and judge share the GPU.
# The table of modes. Its servers, without and with the token layer, compile at their first start: 136 and 159 s on an
# H200; answers took .5 to 2.2 s each.
bodies=${BODIES:-pocket-1gpu} bench table 390 8 512 --modes autoregressive,sd,lookahead,lookahead+sd,lossless \
    -o bench.figures="$folder/share.json"
# Each role alone, while the others wait: a token with 1 to 98 answers at once, a verdict, prefill of a drafted step.
item roles 150 "$python" -m benchmarks.role_times --shapes "$shapes" "${flags[@]}" --output "$folder/roles.json" \
    --batches "${BATCHES:-1,2,4,8,16,32,98}" --prefixes "${PREFIXES:-1024,8192,32768}"
# Servers without a token layer, with it, and without it again.
bench modes 340 4 256 --modes autoregressive,lookahead,sd,lookahead+sd --token-layer ngram \
    --sweep "alpha=${ALPHA:-0.63}" --depth 6
# The table with a weaker draft.
bodies=${BODIES:-pocket-1gpu} bench weak 310 8 512 --modes autoregressive,sd,lookahead,lookahead+sd \
    --draft "${WEAK:-pocket:draft-60@qwen3-1.7b}"
# With several answers at a time.
bench load 340 64 96 --sweep "alpha=${ALPHA:-0.63}" --depth 6 --sweep "concurrency=${CONCURRENCY:-1,4,16,64}"
# Depth and acceptance, one answer at a time: the parallel budget M is the depth here.
bench depth 340 2 256 --sweep "alpha=${ALPHA:-0.4,0.63,0.8}" --sweep "depth=${DEPTHS:-1,2,4,6,8}"
# Each number of drafted tokens needs another start of the target.
bench sd 360 3 256 --modes autoregressive,sd --token-layer ngram --sweep "sd-tokens=${SD_TOKENS:-4,8,16}"
