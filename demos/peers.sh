#!/usr/bin/env bash
# Installs into .venv what `longloop bench peers` compares with: transformers' own server and llama.cpp's (34 MB).
set -euo pipefail
cd "$(dirname "$0")/.."
. demos/setup.sh
ensure_venv local,peers
echo "Now run: .venv/bin/longloop bench peers"
