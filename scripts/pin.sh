#!/usr/bin/env bash
# Writes constraints.txt from what .venv holds (VENV and SGLANG name another, as in the Makefile): run it after a change of
# dependencies has been tested.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

"${VENV:-.venv}"/bin/python -I - >constraints.new <<'PYTHON'
import re
from importlib.metadata import distributions

print("# Every distribution that the set-up installs, at the version that was tested")
print("# (Linux x86-64, glibc 2.34 or newer, Python 3.11 and 3.12). Renewed by: make pin")
found = {re.sub(r"[-_.]+", "-", one.name).lower(): one.version for one in distributions()}
for name in sorted(found.keys() - {"lr-sglang", "pip", "uv"}):
    print(f"{name}=={found[name]}")
PYTHON
mv constraints.new "constraints${SGLANG:+-$SGLANG}.txt"
