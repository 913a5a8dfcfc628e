#!/usr/bin/env bash
# Makes what it needs and runs every check and test. Needs Python 3.11, pip and a package index; nothing else.
#   tests/run.sh         what a stranger can run
#   tests/run.sh --all   the same and the peers that need Debian packages (CI)
#   tests/run.sh -k …    further arguments go to pytest
set -euo pipefail
cd "$(dirname "$0")/.."
. demos/setup.sh

if [ "${1:-}" = "--all" ]; then
    shift # No peer needs a Debian package yet; the flag is what CI calls.
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
