"""folded.py: a finished item and the end of a step read back as they were sent."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.events import Pause, PendingCall, ResponseDone, ResponseTokens, TimingReport, encode_event
from engine.folded import FoldedItem, PackableEvent, fold_item, pack_event, unpack_event
from engine.items import ItemStatus
from engine.scaffold import Scaffold
from engine.scaffold_message import MessageScaffold, RatedMessageScaffold
from engine.tokens import Span
from engine.usage import Timing, count_usage, rounded
from tests.test_scaffold import SCAFFOLDS, write

PIECES = st.lists(st.text(min_size=1, max_size=4), max_size=6)


def check_same_bytes(scaffold: Scaffold, pieces: list[str], status: ItemStatus, first: int) -> None:
    live = write(scaffold, pieces, status, first)
    folded = fold_item(scaffold, pieces, status)
    assert len(folded) == len(live)
    assert [encode_event(folded.event(first + i, first)) for i in range(len(folded))] == [encode_event(e) for e in live]
    assert folded.item() == scaffold.item("".join(pieces), status)
    assert msgspec.json.decode(msgspec.json.encode(folded), type=FoldedItem) == folded


@pytest.mark.parametrize("scaffold", SCAFFOLDS)
@given(pieces=PIECES, status=st.sampled_from(["completed", "incomplete"]), first=st.integers(0, 99))
def test_folded_item_gives_the_same_bytes(
    scaffold: Scaffold, pieces: list[str], status: ItemStatus, first: int
) -> None:
    check_same_bytes(scaffold, pieces, status, first)


def test_rated_message_gives_the_same_bytes() -> None:
    rated = [[msgspec.Raw(b'{"token":"a"}')], [], [msgspec.Raw(b'{"token":"c"}'), msgspec.Raw(b'{"token":"d"}')]]
    check_same_bytes(RatedMessageScaffold(0, "msg_1", rated=rated), ["a", "b", "cd"], "completed", 7)


@pytest.mark.parametrize("num_pieces", [511, 512, 513, 1024, 1500])
def test_long_item_gives_the_same_bytes(num_pieces: int) -> None:
    check_same_bytes(MessageScaffold(0, "msg_1"), [f"{i}é" for i in range(num_pieces)], "completed", 7)


@pytest.mark.parametrize("length", [255, 256, 70_000])
def test_item_with_a_long_delta_gives_the_same_bytes(length: int) -> None:
    check_same_bytes(MessageScaffold(0, "msg_1"), ["a", "b" * length, *["c"] * 600], "completed", 7)


COUNTS = st.integers(0, 1 << 40)
TIMES = st.floats(0, 1e7, allow_nan=False)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
TIMINGS = st.builds(
    rounded, st.builds(Timing, TIMES, TIMES, sampling_ms=TIMES, client_wait_ms=TIMES, tokens_new=COUNTS)
)
CALLS = st.builds(PendingCall, TEXTS, TEXTS, TEXTS, TEXTS, TEXTS)
PAUSES = st.builds(
    Pause,
    id=TEXTS,
    usage=st.builds(count_usage, COUNTS, COUNTS),
    run_usage=st.builds(count_usage, COUNTS, COUNTS, cached_tokens=COUNTS),
    pending=st.lists(CALLS, max_size=3),
    timing=st.builds(TimingReport, TIMINGS, TIMINGS),
)
SPANS = st.builds(Span, st.integers(0, 9), COUNTS, st.booleans(), st.lists(COUNTS), st.lists(TIMES))
STEP_ENDS = st.builds(ResponseDone, sequence_number=COUNTS, response=PAUSES) | st.builds(
    ResponseTokens, sequence_number=COUNTS, response_id=TEXTS, spans=st.lists(SPANS, max_size=2)
)


@given(event=STEP_ENDS)
def test_packed_event_gives_the_same_bytes(event: PackableEvent) -> None:
    unpacked = unpack_event(pack_event(event))
    assert encode_event(unpacked) == encode_event(event)
    assert unpacked == event
