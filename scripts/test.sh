#!/usr/bin/env bash
# All tests, in two processes at once, which take about the same time: those on SGLang's servers, and all others.
#
#     scripts/test.sh PYTHON [OPTIONS OF PYTEST]
#
# The output of the others comes last; until then it is in build/tests.txt. The status is 0 if no test failed, also where
# the options choose tests of one process only.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
run=("$1" -m pytest --session-timeout=2700 "${@:2}")
mkdir -p build
none=5 # pytest's status when it finds no test

"${run[@]}" tests/unit tests/integration tests/processes >build/tests.txt 2>&1 &
others=$!
"${run[@]}" tests/e2e
first=$?
wait "$others"
second=$?
cat build/tests.txt
((first == none)) && exit "$second"
((second == none)) && exit "$first"
exit $((first ? first : second))
