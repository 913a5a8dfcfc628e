"""keyfile.py: one key, made once, for its owner only."""

import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from engine.keyfile import KeyFileError, load_key
from engine.sealing import KEY_BYTES, Sealer


def test_a_key_is_made_once_and_read_ever_after(tmp_path: Path) -> None:
    file = tmp_path / "data" / "key"
    key = load_key(file)
    assert load_key(file) == key
    assert Sealer(load_key(file)).unseal("k", Sealer(key).seal("k", b"x")) == b"x"


def test_only_its_owner_can_read_it(tmp_path: Path) -> None:
    file = tmp_path / "data" / "key"
    load_key(file)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700


def test_servers_that_start_at_once_have_one_key_and_leave_no_drafts(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        keys = set(pool.map(lambda _: load_key(tmp_path / "key"), range(64)))
    assert len(keys) == 1
    assert [file.name for file in tmp_path.iterdir()] == ["key"]


@pytest.mark.parametrize("length", [0, KEY_BYTES - 1, KEY_BYTES + 1])
def test_a_file_that_holds_no_key_is_refused_by_name(tmp_path: Path, length: int) -> None:
    file = tmp_path / "key"
    file.write_bytes(bytes(length))
    with pytest.raises(KeyFileError, match=str(file)):
        load_key(file)
    assert file.stat().st_size == length


def test_a_place_that_cannot_hold_a_key_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(KeyFileError, match="file"):
        load_key(tmp_path / "file" / "key")
