#!/usr/bin/env bash
# Makes .venv with the project and its `dev` extra at the versions of constraints.txt, or mends it.
#
# SGLANG=0.5.16 makes .venv-0.5.16 from constraints-0.5.16.txt instead, SGLANG=next .venv-next with whatever is newest.
# Quick when nothing changed: a stamp inside .venv names the content it was made from. It is written last, so that the
# next call after an interrupted set-up starts afresh. PYTHON=/path/to/python3.12 chooses the Python.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
root=$PWD
sglang=${SGLANG-}
venv=.venv${sglang:+-$sglang}
pins=constraints${sglang:+-$sglang}.txt
stamp=$venv/.lr-sglang-ready
unfinished=$venv/.lr-sglang-unfinished
project=(-c "$pins" -e '.[dev]')
# A specifier that names a pre-release allows pre-releases of this package only.
if [[ $sglang == next ]]; then project=(--upgrade -e '.[dev]' 'sglang>=0.5.23.dev0') pins=; fi

say() { printf 'set-up: %s\n' "$*" >&2; }
fail() {
    say "$@"
    exit 1
}

# What the stamp must hold: the folder too, because an environment does not survive being moved or copied.
inputs() { printf '%s %s\n' "$(cat pyproject.toml $pins scripts/setup.sh | sha256sum | cut -d' ' -f1)" "$root"; }
ready() { [[ $sglang != next && -x $venv/bin/python && -x $venv/bin/lr-sglang && -f $stamp && $(<"$stamp") == "$(inputs)" ]]; }

# Prints the interpreter behind $1 if it runs and is a CPython 3.11 or 3.12; a pyenv shim may exist and yet fail.
# Inside an active environment this is the Python beneath it, so that .venv may be the active one.
interpreter() {
    "$1" -I -c '
import sys
ok = sys.implementation.name == "cpython" and (3, 11) <= sys.version_info[:2] <= (3, 12)
print(sys._base_executable) if ok else sys.exit(1)' 2>/dev/null
}

candidates() {
    local name
    for name in python3.12 python3.11 python3 python; do type -ap "$name" || true; done
    printf '%s\n' "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.1[12].*/bin/python
}

# Prints the first interpreter that fits; the optional $1 is a module that it must have.
find_python() {
    local candidate found
    while read -r candidate; do
        if found=$(interpreter "$candidate") && { [[ -z ${1-} ]] || "$found" -I -c "import $1" 2>/dev/null; }; then
            printf '%s\n' "$found"
            return
        fi
    done < <(if [[ -n ${PYTHON-} ]]; then printf '%s\n' "$PYTHON"; else candidates; fi)
    return 1
}

have_uv() { uv --version >/dev/null 2>&1; }

check_machine() {
    [[ $(uname -s) == Linux ]] || fail "SGLang runs on Linux only."
    [[ $(uname -m) == x86_64 ]] || say "warning: constraints.txt was tested on x86-64 only, this is $(uname -m)."
    local glibc
    if glibc=$(getconf GNU_LIBC_VERSION 2>/dev/null) && [[ $(printf '%s\n' 2.34 "${glibc#glibc }" | sort -V | head -n 1) != 2.34 ]]; then
        fail "SGLang's packages need glibc 2.34 or newer (Debian 12, Ubuntu 22.04, RHEL 9); this machine has $glibc."
    fi
    local compiler
    read -ra compiler <<<"${CXX:-c++}" # CXX may carry options
    if ! "${compiler[0]}" --version >/dev/null 2>&1; then
        say "warning: no C++ compiler: SGLang's n-gram speculation compiles a file when it starts."
        say "         On Debian or Ubuntu: apt install g++"
    fi
}

check_headers() {
    "$venv"/bin/python -I -c 'import os, sysconfig; os.stat(sysconfig.get_path("include") + "/Python.h")' 2>/dev/null && return 0
    say "warning: this Python has no headers; on a GPU, Triton compiles against them."
    say "         On Debian or Ubuntu: apt install python3-dev"
}

# Empties .venv but keeps our mark, so that the next call can go on if this is interrupted. (.venv may be a symbolic link.)
create() {
    local python
    if (($(df -Pk . | awk 'NR == 2 {print $4}') < 10 * 1024 * 1024)); then
        say "warning: less than 10 GB free here; SGLang and what it brings take about 9 GB."
    fi
    find "$venv"/ -mindepth 1 ! -path "$venv/${unfinished##*/}" -delete
    if have_uv; then
        python=$(find_python) || python='>=3.11,<3.13' # uv may have one of its own, or fetch one
        say "making $venv with uv and Python $python"
        uv venv -q --allow-existing --python "$python" "$venv" || fail "uv could not make $venv. Python 3.11 or 3.12 is needed; on Debian 12: apt install python3.11"
    elif python=$(find_python ensurepip); then
        say "making $venv with $python"
        "$python" -m venv "$venv"
    elif python=$(find_python); then
        fail "$python cannot make environments: on Debian or Ubuntu, apt install python3-venv (or install uv)."
    else
        fail "found no Python 3.11 or 3.12 that runs; on Debian 12: apt install python3.11 python3-venv (or install uv, or set PYTHON)."
    fi
}

# An installed uv, else one that is kept inside of .venv, else pip; pip also if uv's registry does not answer, because
# uv does not read pip's configuration.
install() {
    local quiet=() uv=uv pip=("$venv"/bin/python -m pip)
    [[ -t 2 ]] || quiet=(-q)
    if ! have_uv; then
        ensure_pip
        uv=$venv/.uv/bin/uv
        [[ -x $uv ]] || "${pip[@]}" install -q --disable-pip-version-check --target $venv/.uv uv || uv=
    fi
    if [[ -n $uv ]]; then
        "$uv" pip install "${quiet[@]}" --python "$venv"/bin/python "${project[@]}" && return
        say "uv did not manage; trying pip (slower)"
    fi
    ensure_pip
    "${pip[@]}" install "${quiet[@]}" --disable-pip-version-check "${project[@]}"
}

ensure_pip() {
    "$venv"/bin/python -m pip --version >/dev/null 2>&1 || "$venv"/bin/python -m ensurepip >/dev/null 2>&1 ||
        fail "there is no pip for $venv: on Debian or Ubuntu, apt install python3-venv"
}

# Compiles the modules that servers import. After uv, the first processes would all compile them at once, and every
# process again if PYTHONDONTWRITEBYTECODE is set. Errors of SGLang are reported when it is used.
compile_bytecode() {
    (cd / && PYTHONDONTWRITEBYTECODE='' "$root/$venv/bin/python" -c 'import sglang.srt.entrypoints.http_server' >/dev/null 2>&1) || true
}

main() {
    trap 'exit 130' INT TERM
    [[ -z $pins || -f $pins ]] || fail "there is no $pins: SGLANG may be $(ls constraints-[0-9]*.txt | sed 's/constraints-\(.*\).txt/\1/' | paste -sd ' '), next or nothing."
    ready && return
    command -v flock >/dev/null || fail "flock is missing: on Debian or Ubuntu, apt install util-linux"
    exec 9<"$root" # the folder itself is the lock
    flock -n 9 || { say "waiting for another set-up in this folder"; flock 9; }
    ready && return

    check_machine
    local started=$SECONDS afresh=
    if [[ -e $venv && ! -d $venv/ ]]; then fail "$venv is not a folder."; fi
    # An environment without our mark, which others made, is used as it is if its Python fits.
    if [[ -e $unfinished ]] || ! interpreter "$venv"/bin/python >/dev/null; then afresh=yes; fi
    if [[ -f $stamp && $(<"$stamp") != *" $root" ]]; then afresh=yes; fi
    mkdir -p "$venv"
    : >"$unfinished"
    rm -f "$stamp"
    if [[ -n $afresh ]]; then
        create
        say "installing SGLang and what it brings (about 9 GB: a minute, or as long as the download takes)"
    else
        say "bringing $venv up to date"
    fi
    # An installer that fails has written nothing yet, so the environment is as good as before.
    if ! install; then
        if [[ -z $afresh ]]; then rm -f "$unfinished"; fi
        fail "the packages could not be installed; the reason stands above."
    fi
    compile_bytecode
    (cd / && "$root/$venv/bin/python" -c 'import lr_sglang.programs') || fail "the installed package cannot be imported."
    check_headers
    inputs >"$stamp"
    rm -f "$unfinished"
    say "ready after $((SECONDS - started)) s"
}

main
