#!/usr/bin/env bash
# Provides Chromium for the tests of the endpoint's page: installs the distribution's if there is none and we may.
#
# Only these tests need a browser, so scripts/setup.sh does not install one. Without one they are skipped with a
# message; under CI=true they fail.
set -euo pipefail

say() { printf 'browser: %s\n' "$*" >&2; }

for name in chromium chromium-browser google-chrome; do
    if command -v "$name" >/dev/null; then exit 0; fi
done
if ! command -v apt-get >/dev/null; then
    say "no Chromium here: install one with this system's packages to test the page."
elif ((EUID)); then
    say "no Chromium here: to test the page, sudo apt-get install chromium"
else
    say "installing Chromium, to test the page"
    export DEBIAN_FRONTEND=noninteractive
    install() { apt-get install -qq -y --no-install-recommends chromium >/dev/null; }
    # The lists may be missing or old on a fresh machine.
    install 2>/dev/null || { apt-get update -qq && install; } || say "apt-get did not manage; the tests of the page go without."
fi
