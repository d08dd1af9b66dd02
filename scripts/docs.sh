#!/usr/bin/env bash
# Builds the documentation into build/site; any warning is an error. `scripts/docs.sh --write` first writes the pages
# that are made from the code (docs/cli.md). `scripts/docs.sh --serve` shows it while it is written.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

export NO_MKDOCS_2_WARNING=true # of Material's, about another program's future
case ${1-} in
--write) "${VENV:-.venv}"/bin/python scripts/cli_page.py ;;
--serve) exec "${VENV:-.venv}"/bin/python -m mkdocs serve --strict ;;
esac
# Not --quiet: --strict counts only warnings that are printed.
log=$("${VENV:-.venv}"/bin/python -m mkdocs build --strict 2>&1) || {
    printf '%s\n' "$log" >&2
    exit 1
}
# The site must load nothing from another host; links to other hosts are allowed.
if grep -rnoE '(<(script|img|iframe)[^>]* src|<link[^>]*(stylesheet|preconnect|icon)[^>]* href)="?(https?:)?//[^" ]*' build/site --include='*.html'; then
    echo "the site fetches these from elsewhere" >&2
    exit 1
fi
