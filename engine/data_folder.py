"""Where the user's data lies on this machine: models, the store, keys."""

import os
from pathlib import Path


def data_folder() -> Path:
    """`LONGLOOP_DATA_DIR`, or `longloop` in the XDG data directory."""
    if chosen := os.environ.get("LONGLOOP_DATA_DIR"):
        return Path(chosen).expanduser()
    base = os.environ.get("XDG_DATA_HOME")
    return (Path(base) if base else Path.home() / ".local" / "share") / "longloop"
