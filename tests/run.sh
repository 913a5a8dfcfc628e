#!/usr/bin/env bash
# Makes what it needs and runs every check and test. Needs Python 3.11, pip and a package index; nothing else.
#   tests/run.sh         what a stranger can run
#   tests/run.sh --all   the same and what needs Debian packages, which it installs where it may (CI)
#   tests/run.sh -k …    further arguments go to pytest
set -euo pipefail
cd "$(dirname "$0")/.."
. demos/setup.sh

# ensure_packages COMMAND:PACKAGE…   Debian packages for commands that are missing. Fails with one sentence.
ensure_packages() {
    local pair missing=()
    for pair in "$@"; do
        [ -x "/usr/bin/${pair%%:*}" ] || missing+=("${pair##*:}")
    done
    [ ${#missing[@]} -gt 0 ] || return 0
    echo "installing ${missing[*]}"
    { apt-get update -qq && apt-get install -qq --yes --no-install-recommends "${missing[@]}"; } >/dev/null ||
        fail "these Debian packages are missing and could not be installed: ${missing[*]}"
}

if [ "${1:-}" = "--all" ]; then
    shift
    ensure_packages bwrap:bubblewrap setpriv:util-linux python3:python3-minimal
    export LONGLOOP_TESTS=all # what would be skipped fails
fi
ensure_venv local,dev,clients
bin=.venv/bin

echo "== format, lint, types"
$bin/ruff format --check --quiet engine tests demos || fail "some files are not formatted: run 'ruff format'."
$bin/ruff check --quiet engine tests demos || fail "ruff found faults; its messages are above."
$bin/mypy --no-error-summary || fail "mypy found faults; its messages are above."

# torch's threads would spin while they wait, and take the cores from the servers and clients that the tests run.
export OMP_WAIT_POLICY=passive

echo "== tests"
exec $bin/python -m pytest "$@"
