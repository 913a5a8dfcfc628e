"""folded.py: a finished item reads back as it was sent."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.events import encode_event
from engine.folded import FoldedItem
from engine.items import ItemStatus
from engine.scaffold import MessageScaffold, Scaffold
from tests.test_scaffold import SCAFFOLDS, write

PIECES = st.lists(st.text(min_size=1, max_size=4), max_size=6)


def check_same_bytes(scaffold: Scaffold, pieces: list[str], status: ItemStatus, first: int) -> None:
    live = write(scaffold, pieces, status, first)
    folded = FoldedItem(scaffold, first, pieces, status)
    assert len(folded) == len(live)
    assert [encode_event(folded.event(first + i)) for i in range(len(folded))] == [encode_event(e) for e in live]
    assert folded.item() == scaffold.item("".join(pieces), status)


@pytest.mark.parametrize("scaffold", SCAFFOLDS)
@given(pieces=PIECES, status=st.sampled_from(["completed", "incomplete"]), first=st.integers(0, 99))
def test_folded_item_gives_the_same_bytes(
    scaffold: Scaffold, pieces: list[str], status: ItemStatus, first: int
) -> None:
    check_same_bytes(scaffold, pieces, status, first)


@pytest.mark.parametrize("num_pieces", [511, 512, 513, 1024, 1500])
def test_long_item_gives_the_same_bytes(num_pieces: int) -> None:
    check_same_bytes(MessageScaffold(0, "msg_1"), [f"{i}é" for i in range(num_pieces)], "completed", 7)


@pytest.mark.parametrize("length", [255, 256, 70_000])
def test_item_with_a_long_delta_gives_the_same_bytes(length: int) -> None:
    check_same_bytes(MessageScaffold(0, "msg_1"), ["a", "b" * length, *["c"] * 600], "completed", 7)
