"""data_folder.py: where the user's data lies."""

from pathlib import Path

import pytest

from engine.data_folder import data_folder
from engine.settings import Settings


def test_the_data_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LONGLOOP_DATA_DIR", "~/mine")
    assert data_folder() == Settings().data_dir == Path.home() / "mine"
    monkeypatch.delenv("LONGLOOP_DATA_DIR")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert data_folder() == Settings().data_dir == tmp_path / "longloop"
    monkeypatch.delenv("XDG_DATA_HOME")
    assert data_folder() == Settings().data_dir == Path.home() / ".local/share/longloop"
