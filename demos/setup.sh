# Sourced by demos/quickstart.sh and tests/run.sh: makes .venv in the checkout and installs what is asked for.
# Usage: ensure_venv EXTRAS   (comma-separated extras of pyproject.toml). Fails with one sentence.

fail() {
    echo "longloop: $*" >&2
    exit 1
}

find_python() {
    local candidate
    for candidate in "${PYTHON:-python3}" python3.13 python3.12 python3.11 python3; do
        if command -v "$candidate" >/dev/null 2>&1 &&
            "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            echo "$candidate"
            return 0
        fi
    done
    return 1
}

ensure_venv() {
    local extras=$1 python stamp wanted
    if [ ! -x .venv/bin/python ]; then
        python=$(find_python) || fail "Python 3.11 or newer is needed and was not found; set PYTHON to its path."
        echo "making .venv with $("$python" --version)"
        "$python" -m venv .venv || fail "python -m venv failed; on Debian and Ubuntu install python3-venv."
    fi
    # A second run installs nothing while pyproject.toml is the same.
    stamp=.venv/.installed-$extras
    wanted=$(cksum pyproject.toml)
    if [ "$(cat "$stamp" 2>/dev/null)" != "$wanted" ]; then
        echo "installing longloop with its $extras parts (the first time takes some minutes)"
        .venv/bin/python -m pip install --quiet --disable-pip-version-check --editable ".[$extras]" ||
            fail "pip could not install longloop's dependencies; its message is above. Is the package index reachable?"
        echo "$wanted" >"$stamp"
    fi
}
