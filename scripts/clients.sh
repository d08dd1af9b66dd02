#!/usr/bin/env bash
# An environment for third-party clients of the endpoint, and for the tools that grade code, at pinned versions, because SGLang pins
# other versions of openai. Without it their tests are skipped with a message; under CI=true they fail. To renew it (the second line
# leaves out what these tools need for other purposes, and pins that the clients do not share):
#
#     .venv-clients/bin/python -m pip install --upgrade openai anthropic llm 'lm-eval[api]' inspect-ai
#     .venv-clients/bin/python -m pip install --upgrade --no-deps sgl-eval evalplus nvidia-livecodebench math-verify \
#         latex2sympy2-extended antlr4-python3-runtime==4.13.2 sympy mpmath editdistance pillow tempdir wget multipledispatch appdirs \
#         fire termcolor tree-sitter tree-sitter-python pebble
#     VENV=.venv-clients SGLANG=clients bash scripts/pin.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

venv=.venv-clients pins=constraints-clients.txt
stamp="$(sha256sum <"$pins") $PWD"
if [[ -f $venv/.ready && $(<"$venv/.ready") == "$stamp" ]]; then exit 0; fi
printf 'clients: making %s\n' "$venv" >&2
rm -rf "$venv"
uv=$(command -v uv || printf '%s/.uv/bin/uv' "${VENV:-.venv}")
# The file pins everything, so there is nothing to resolve. uv does not read pip's configuration.
if "${VENV:-.venv}"/bin/python -m venv "$venv" && {
    "$uv" pip install -q --no-deps --python "$venv"/bin/python -r "$pins" 2>/dev/null ||
        "$venv"/bin/python -m pip install -q --disable-pip-version-check --no-deps -r "$pins"
}; then
    printf '%s\n' "$stamp" >"$venv/.ready"
else
    printf 'clients: %s could not be made; its tests go without.\n' "$venv" >&2
fi
