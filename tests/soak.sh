#!/usr/bin/env bash
# The full counts that CI runs a part of: random walks by the thousand, connects by the ten thousand, servers killed by
# the hundred, an hour of the default model under load, twenty runs of it. Takes about two hours on two cores, less with
# LONGLOOP_SOAK_SECONDS; its last result stands in the README.
set -euo pipefail
cd "$(dirname "$0")/.."
. demos/setup.sh
ensure_venv local,dev,clients
python=.venv/bin/python

echo "== random walks over the pure machines"
HYPOTHESIS_PROFILE=soak $python -m pytest -q -k "walk or any_" tests

echo "== connects and drops"
LONGLOOP_SOAK_CONNECTS=10000 $python -m pytest -q tests/test_sockets.py -k thousand

echo "== servers killed in the middle of runs"
LONGLOOP_SOAK_KILLS=200 $python -m pytest -q tests/test_killed_server.py tests/test_kills.py

echo "== fifty runs of the default model, disturbed in every way"
LONGLOOP_SOAK_MODEL=smollm2-135m-instruct $python -m pytest -q tests/test_chaos.py -k replay

echo "== an hour of the default model: 64 runs paused, 8 sampling"
PYTHONPATH=. $python -m tests.soak_local --seconds "${LONGLOOP_SOAK_SECONDS:-3600}"

echo "== a service cut off at every byte of its stream"
LONGLOOP_SOAK_CUTS=1000000 $python -m pytest -q tests/test_remote_runs.py -k cut_off
LONGLOOP_SOAK_CUTS=2000 $python -m pytest -q tests/test_remote_raw.py -k cut
LONGLOOP_SOAK_SEEDS=200 $python -m pytest -q tests/test_remote_runs.py -k mix
LONGLOOP_SOAK_CUTS=2000 $python -m pytest -q tests/test_chat_sequence.py -k cut_at

echo "== twenty runs of the default model"
work=$(mktemp -d)
trap 'kill "${server:-0}" 2>/dev/null; rm -rf "$work"' EXIT
mkfifo "$work/out"
.venv/bin/longloop serve --port 0 --set data_dir="$work/data" >"$work/out" 2>"$work/log" &
server=$!
read -r line <"$work/out" || fail "the server did not start: $(tail -n 3 "$work/log")"
PYTHONPATH=. $python demos/many_runs.py --url "${line##* }" --runs 20
