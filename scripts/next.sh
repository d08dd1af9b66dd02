#!/usr/bin/env bash
# Installs the newest release of SGLang that pyproject.toml allows, pre-releases too, into .venv-next without pins, and
# prints what breaks: the interfaces that lr-sglang uses, unit and integration tests, and the demo. All of them run.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

SGLANG=next bash scripts/setup.sh
python=.venv-next/bin/python
log=$(mktemp)
trap 'rm -f "$log"' EXIT
status=0
try() {
    local what=$1
    shift
    if "$@" >"$log" 2>&1; then
        echo "good: $what"
    else
        status=1
        echo "BROKEN: $what"
        grep -E '^(FAILED|ERROR) ' "$log" || tail -n 30 "$log"
    fi
}

.venv-next/bin/lr-sglang --version
try "SGLang's insides and packages (doctor)" .venv-next/bin/lr-sglang doctor
try "tests without servers" env -u LR_SGLANG_FULL "$python" -m pytest -q tests/unit tests/integration tests/processes
try "demo" .venv-next/bin/lr-sglang demo
exit "$status"
