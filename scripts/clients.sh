#!/usr/bin/env bash
# Environments for third-party clients of the endpoint, at pinned versions, because SGLang and litellm pin other versions
# of openai. Without them their tests are skipped with a message; under CI=true they fail. To renew one:
#
#     .venv-clients/bin/python -m pip install --upgrade openai anthropic llm 'lm-eval[api]' inspect-ai
#     VENV=.venv-clients SGLANG=clients bash scripts/pin.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

say() { printf 'clients: %s\n' "$*" >&2; }

for name in clients litellm; do
    venv=.venv-$name pins=constraints-$name.txt
    stamp="$(sha256sum <"$pins") $PWD"
    if [[ -f $venv/.ready && $(<"$venv/.ready") == "$stamp" ]]; then continue; fi
    say "making $venv"
    rm -rf "$venv"
    uv=$(command -v uv || printf '%s/.uv/bin/uv' "${VENV:-.venv}")
    # The files pin everything, so there is nothing to resolve. uv does not read pip's configuration.
    if "${VENV:-.venv}"/bin/python -m venv "$venv" && {
        "$uv" pip install -q --no-deps --python "$venv"/bin/python -r "$pins" 2>/dev/null ||
            "$venv"/bin/python -m pip install -q --disable-pip-version-check --no-deps -r "$pins"
    }; then
        printf '%s\n' "$stamp" >"$venv/.ready"
    else
        say "$venv could not be made; its tests go without."
    fi
done
