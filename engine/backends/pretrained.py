"""A model's name to a folder on this machine: configuration, safetensors, tokenizer and chat template.

A name is the default model's, a folder, a `.gguf` file, or an id of the Hugging Face hub. GGUF files are converted
once, into a folder named after the file's hash; a conversion that was cut off leaves nothing behind.
"""

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import huggingface_hub  # resolves its names at first use, so importing it costs next to nothing

from engine.backends.default_model import (
    DEFAULT_MODEL,
    FILE_SHA256,
    ModelNotAvailable,
    Progress,
    find_file,
    hash_file,
    last_line,
)
from engine.data_folder import data_folder

__all__ = ["DEFAULT_MODEL", "ModelNotAvailable", "resolve", "resolve_tokenizer", "tokenizer_folder"]

# Not any suffix: hub ids have dots too, as in Qwen2.5-0.5B.
_FILE_SUFFIXES: Final = {
    ".bin", ".gguf", ".json", ".onnx", ".pt", ".pth", ".py", ".safetensors", ".toml", ".txt", ".yaml", ".yml", ".zip",
}  # fmt: skip
_HUB_TOKENIZER_FILES: Final = ("*.json", "*.jinja")
_HUB_FILES: Final = (*_HUB_TOKENIZER_FILES, "*.safetensors")


def resolve(model: str, progress: Progress) -> Path:
    """The folder of `model`, which is made or downloaded if need be. Raises ModelNotAvailable.

    progress: called with what is being done and the fraction done, 0 to 1, from this thread. May block for minutes.
    """
    path = Path(model).expanduser()
    if model == DEFAULT_MODEL:
        return _converted(FILE_SHA256, DEFAULT_MODEL, lambda temporary: find_file(temporary, progress), progress)
    if path.is_dir():
        return _checked_folder(path)
    if not path.exists() and _is_path_like(model):
        raise ModelNotAvailable(f"There is no folder or file {path}.")
    if path.suffix == ".gguf":
        file = path.resolve()
        return _converted(hash_file(file, progress), file.stem, lambda _: file, progress)
    if path.exists():
        raise ModelNotAvailable(f"{path} is no model: give a folder with a Hugging Face model, or a .gguf file.")
    return _from_hub(model, progress)


def _is_path_like(model: str) -> bool:
    """Whether the user means something on this machine: ids of the hub are `name` or `owner/name`."""
    return model.startswith((".", "/", "~")) or model.count("/") > 1 or Path(model).suffix in _FILE_SUFFIXES


def tokenizer_folder(progress: Progress) -> Path:
    """A folder with the default model's tokenizer, template and configuration; weights may be missing.

    A few seconds the first time, nothing afterwards. Raises ModelNotAvailable.
    """
    whole = _folder_for(FILE_SHA256, DEFAULT_MODEL)
    if whole.is_dir():
        return whole
    return _converted(
        FILE_SHA256,
        DEFAULT_MODEL,
        lambda temporary: find_file(temporary, progress),
        progress,
        tokenizer_only=True,
    )


def resolve_tokenizer(name: str, progress: Progress) -> Path:
    """The folder with the tokenizer, template and configuration of a model; weights may be missing.

    name: `default`, or what `resolve` takes. Raises ModelNotAvailable. May block for minutes.
    """
    path = Path(name).expanduser()
    if name in ("default", DEFAULT_MODEL):
        return tokenizer_folder(progress)
    if path.suffix == ".gguf" and path.exists():
        file = path.resolve()
        return _converted(hash_file(file, progress), file.stem, lambda _: file, progress, tokenizer_only=True)
    if path.exists() or _is_path_like(name):
        return resolve(name, progress)
    return _from_hub(name, progress, _HUB_TOKENIZER_FILES)


def _checked_folder(folder: Path) -> Path:
    missing = [name for name in ("config.json", "tokenizer.json") if not (folder / name).is_file()]
    if missing:
        raise ModelNotAvailable(f"{folder} is not a model's folder: {' and '.join(missing)} missing.")
    return folder.resolve()


def _from_hub(model: str, progress: Progress, files: Sequence[str] = _HUB_FILES) -> Path:
    progress(f"Fetching {model} from the Hugging Face hub", 0.0)
    try:
        folder = Path(huggingface_hub.snapshot_download(model, allow_patterns=list(files)))
    except huggingface_hub.errors.HFValidationError as error:
        raise ModelNotAvailable(
            f"'{model}' is no model: neither a folder, nor a .gguf file, nor an id of the Hugging Face hub. "
            f"'{DEFAULT_MODEL}' needs no hub."
        ) from error
    except Exception as error:  # the hub's client raises its own errors, httpx's, OSError and ValueError
        raise ModelNotAvailable(
            f"'{model}' is no folder here and could not be had from the Hugging Face hub "
            f"({type(error).__name__}: {last_line(str(error))}). Give a local folder, a .gguf file, or "
            f"'{DEFAULT_MODEL}', which needs no hub."
        ) from error
    progress(f"Fetched {model}", 1.0)
    return _checked_folder(folder)


# --- conversion --------------------------------------------------------------------------------------------------


def _folder_for(sha256: str, name: str, *, tokenizer_only: bool = False) -> Path:
    suffix = "-tokenizer" if tokenizer_only else ""
    return data_folder() / "models" / f"{name}-{sha256[:16]}{suffix}"


def _converted(
    sha256: str,
    name: str,
    find: Callable[[Path], Path],
    progress: Progress,
    *,
    tokenizer_only: bool = False,
) -> Path:
    """The converted folder, made from the file that `find` (given a temporary folder) returns if it is not there."""
    folder = _folder_for(sha256, name, tokenizer_only=tokenizer_only)
    if folder.is_dir():
        return folder
    with _temporary_beside(folder) as temporary:
        file = find(temporary)
        made = temporary / "converted"
        _run_converter(file, made, name, progress, tokenizer_only=tokenizer_only)
        try:
            made.rename(folder)
        except OSError as error:
            if not folder.is_dir():  # else another process was first, and made the same
                raise ModelNotAvailable(f"{folder} cannot be written ({error}).") from error
    return folder


@contextmanager
def _temporary_beside(folder: Path) -> Iterator[Path]:
    """A folder on the same file system, so that a rename is atomic; gone afterwards, whatever happened."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=".making-", dir=folder.parent))
    except OSError as error:
        raise ModelNotAvailable(f"{folder.parent} cannot be written ({error}).") from error
    try:
        yield temporary
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _run_converter(file: Path, folder: Path, name: str, progress: Progress, *, tokenizer_only: bool) -> None:
    command = [sys.executable, "-m", "engine.backends.convert", str(file), str(folder), name]
    if tokenizer_only:
        command.append("--tokenizer-only")
    progress(f"Converting {file.name}, once", 0.0)
    # A file, not a pipe, for what it says on the side: nobody reads a second pipe while progress is read.
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as said:
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=said, text=True) as process:
            for line in process.stdout or ():
                fraction, tab, what = line.rstrip("\n").partition("\t")
                if tab:  # else a library printed something
                    progress(what, float(fraction))
        if process.returncode:
            said.seek(0)
            raise ModelNotAvailable(f"{file.name} could not be converted ({last_line(said.read())}).")
