#!/usr/bin/env bash
# Builds the source archive, and from it the wheel; twine checks both. Then tries the wheel alone: in an empty folder,
# with the dependencies of .venv and without access to this checkout. --no-servers skips the question.
# --plain makes an environment of its own with plain pip and without constraints, as a user does (9 GB, minutes). VENV
# names another environment than .venv.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
root=$PWD
venv=${VENV:-.venv}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

say() { printf 'wheel: %s\n' "$*" >&2; }

# Built from files that git does not ignore, so that old files in build/ or *.egg-info do not get in.
mkdir "$work/source" "$work/alone" "$work/elsewhere"
if git rev-parse --is-inside-work-tree >/dev/null 2>&1; then
    git ls-files -z --cached --others --exclude-standard
else
    find . -type f -not -path './.git/*' -not -path './.venv*/*' -not -path './runs/*' -not -path './build/*' -not -path './*.egg-info/*' -not -name '*.pyc' -print0
fi | tar --null --ignore-failed-read -T - -cf - 2>/dev/null | tar -C "$work/source" -xf -
say "building"
# The wheel is built from the source archive, as pip would; .venv has the setuptools that pyproject.toml asks for.
"$venv"/bin/python -m build --no-isolation --outdir "$work/dist" "$work/source" >"$work/build.log" 2>&1 || {
    tail -n 40 "$work/build.log" >&2
    exit 1
}
"$venv"/bin/python -m twine check --strict "$work"/dist/* >"$work/build.log" || {
    cat "$work/build.log" >&2
    exit 1
}
wheel=$(echo "$work"/dist/*.whl)
say "$(basename "$wheel"), $(du -h "$wheel" | cut -f1)"

base=$("$venv"/bin/python -c 'import sys; print(sys._base_executable)')
python=$work/env/bin/python
export PYTHONDONTWRITEBYTECODE=1 HF_HUB_OFFLINE=1
unset PYTHONPATH
if [[ ${1-} == --plain ]]; then
    "$base" -m venv "$work/env"
    say "installing, with plain pip"
    "$python" -m pip install -q --disable-pip-version-check "$wheel"
    programs=$work/env/bin alone=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    export PATH="$programs:$PATH"
else
    # An environment with .venv's packages but without its .pth files, one of which leads to this checkout.
    alone=$work/alone programs=$work/alone/bin
    "$base" -m venv --without-pip "$work/env"
    packages=$("$venv"/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    printf '%s\n' "$alone" "$packages" >"$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/alone.pth"
    # The distribution's programs (ninja) are found beside the interpreter of .venv.
    export PATH="$work/env/bin:$root/$venv/bin:$PATH"
    if "$venv"/bin/python -c 'import pip' 2>/dev/null; then
        "$python" -m pip install -q --disable-pip-version-check --no-deps --no-index --target "$alone" "$wheel"
    else
        uv pip install -q --python "$python" --no-deps --no-index --target "$alone" "$wheel"
    fi
fi
cd "$work/elsewhere"
lr_sglang() { "$python" "$programs/lr-sglang" "$@"; }

say "what is in it"
lr_sglang --version
"$python" "$root/scripts/wheel_check.py" "$work/source" "$alone"
lr_sglang doctor >"$work/doctor.txt" || {
    cat "$work/doctor.txt" >&2
    exit 1
}

if [[ ${1-} != --no-servers ]]; then
    say "one question, on three servers"
    lr_sglang run --limit 1 --task pocket --quiet --output "$work/run"
    "$python" -c '
import json, sys
(record,) = map(json.loads, open(sys.argv[1], encoding="utf-8"))
assert record["error"] is None and record["correct"] is True, record
assert record["judged"] > 0, "nothing was looked ahead"
print("answered:", record["answer"], "in", round(record["seconds"], 2), "s")' "$work/run/records.jsonl"
fi
say "good"
