"""`longloop index`: folders that models may search."""

from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from engine.commands.serve import UsageError
from engine.hosted.file_index import FileIndex, Indexed, IndexUnusable


def index_command(data_dir: Path, folder: Path | None, *, name: str | None = None, remove: str | None = None) -> None:
    """Index a folder, or only what has changed in it; forget one; or list all. Raises UsageError."""
    console = Console(stderr=True)
    try:
        with FileIndex.open(data_dir) as index:
            if remove is not None:
                if not index.remove_folder(remove):
                    raise UsageError(f"No folder is indexed as '{remove}'.")
                console.print(f"'{remove}' cannot be searched any more", markup=False)
            elif folder is None:
                _show(index)
            else:
                _index(index, folder, name, console)
    except IndexUnusable as error:
        raise UsageError(error.message) from error


def _index(index: FileIndex, folder: Path, name: str | None, console: Console) -> None:
    if not folder.is_dir():
        raise UsageError(f"{folder} is no folder.")
    name = name or folder.resolve().name
    columns = (TextColumn("indexing"), BarColumn(), MofNCompleteColumn(), TextColumn("files"), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("", total=None)
        done = index.add_folder(name, folder, lambda now, total: progress.update(task, completed=now, total=total))
    console.print(_summary(done), markup=False)
    definition = f'{{"type": "file_search", "vector_store_ids": ["{name}"]}}'
    console.print(f"responses may search it with {definition}", soft_wrap=True, markup=False)
    console.print("(the server must run with --set file_search=true)", markup=False)


def _summary(done: Indexed) -> str:
    counts = {
        "new": done.added,
        "changed": done.changed,
        "unchanged": done.unchanged,
        "gone": done.removed,
        "skipped (no text, or too large)": done.skipped,
    }
    return "files: " + (", ".join(f"{count} {what}" for what, count in counts.items() if count) or "none")


def _show(index: FileIndex) -> None:
    if not (folders := index.folders()):
        Console().print("no folder is indexed yet: longloop index FOLDER does it", markup=False)
        return
    table = Table("name", "folder", "files", "passages", title="folders that models may search")
    for folder in folders:
        table.add_row(folder.name, folder.path, str(folder.num_files), str(folder.num_passages))
    Console().print(table)
