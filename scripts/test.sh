#!/usr/bin/env bash
# Runs all tests, in three processes at once: tests that compute, tests that wait for processes, and tests on SGLang's
# servers, which take longest. With LR_SGLANG_FULL=1 those that measure follow.
#
#     scripts/test.sh PYTHON [OPTIONS OF PYTEST]
#
# The output of the others is printed after that of the servers' tests; until then it is in build/tests-*.txt. The
# status is 0 if no test failed, also if the options select tests of one process only.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
limit=2700 # seconds
each=()
if [[ ${LR_SGLANG_FULL-} == 1 ]]; then
    limit=14400
    each=(--timeout=900) # a test has up to ten times as much to do
fi
# Who stalls before the first test, or at the very end, leaves a trace too: pytest prints one at SIGABRT.
run=(timeout --foreground --signal=ABRT --kill-after=30 $((limit + 600)) "$1" -m pytest --session-timeout=$limit
    "${each[@]}" "${@:2}")
mkdir -p build
none=5 # pytest's status when it finds no test

"${run[@]}" tests/unit tests/integration >build/tests-computing.txt 2>&1 &
computing=$!
export LR_SGLANG_TESTS_LEAN=1 # no torch in the processes of these tests (tests/conftest.py)
"${run[@]}" tests/processes >build/tests-waiting.txt 2>&1 &
waiting=$!
"${run[@]}" tests/e2e
statuses=($?)
for others in "$computing" "$waiting"; do
    wait "$others"
    statuses+=($?)
done
cat build/tests-computing.txt build/tests-waiting.txt
if [[ ${LR_SGLANG_FULL-} == 1 ]]; then
    "${run[@]}" tests/alone
    statuses+=($?)
fi

result=$none
for status in "${statuses[@]}"; do
    if ((status != none && (result == none || result == 0))); then result=$status; fi
done
exit "$result"
