"""log.py: reading, folding, and letting go of what is old."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.events import Event, ResponseTokens, encode_event
from engine.folded import FoldedItem, fold_item
from engine.log import EventLog, EventsExpired
from engine.scaffold_message import MessageScaffold


def plain(seq: int) -> Event:
    return ResponseTokens(sequence_number=seq, response_id="resp_0", spans=[])


def write_item(log: EventLog, pieces: list[str], *, disturbed: bool = False) -> list[Event]:
    """Log a message as the writer does, with another event in its middle if `disturbed`. Returns its events."""
    scaffold, first, events = MessageScaffold(0, "msg_0"), log.next, []

    def add(event: Event) -> None:
        log.append(event)
        events.append(event)

    for event in scaffold.head(log.next):
        add(event)
    for index, piece in enumerate(pieces):
        add(scaffold.delta(log.next, piece, index))
    if disturbed:
        add(plain(log.next))
    for event in scaffold.tail(log.next, "".join(pieces), "completed"):
        add(event)
    log.fold(fold_item(scaffold, pieces, "completed"), first)
    return events


ENTRIES = st.lists(
    st.one_of(st.none(), st.tuples(st.lists(st.text(min_size=1, max_size=3), max_size=5), st.booleans())), max_size=8
)


@given(entries=ENTRIES, max_events=st.sampled_from([1, 4, 9, 1000]))
def test_every_event_that_is_kept_reads_back_as_it_was(
    entries: list[tuple[list[str], bool] | None], max_events: int
) -> None:
    log, written = EventLog(max_events), []
    for entry in entries:
        if entry is None:
            written.append(plain(log.next))
            log.append(written[-1])
            log.pack()
        else:
            written += write_item(log, entry[0], disturbed=entry[1])
    assert log.next == len(written)
    assert log.next - log.oldest <= max_events
    for seq in range(log.oldest, log.next):
        assert encode_event(log.read(seq)) == encode_event(written[seq])
    for seq in range(log.oldest):
        with pytest.raises(EventsExpired):
            log.read(seq)


def test_next_event_must_be_the_one_that_is_due() -> None:
    log = EventLog(10)
    log.append(plain(0))
    for seq in (0, 2):
        with pytest.raises(ValueError, match="1 is due"):
            log.append(plain(seq))
    assert log.next == 1


def test_event_to_come_is_no_event() -> None:
    with pytest.raises(IndexError):
        EventLog(10).read(0)


def test_expired_event_is_refused_with_a_code_and_the_field() -> None:
    log = EventLog(2)
    for seq in range(5):
        log.append(plain(seq))
    assert (log.oldest, log.next) == (3, 5)
    with pytest.raises(EventsExpired) as caught:
        log.read(2)
    assert (caught.value.code, caught.value.param, caught.value.status) == ("events_expired", "starting_after", 400)
    assert "up to 2" in caught.value.message


def test_finished_item_becomes_one_entry() -> None:
    log = EventLog(1000)
    write_item(log, ["a"] * 50)
    write_item(log, ["b"] * 50)
    assert len(log._entries) == len(log._firsts) == 2


def test_item_whose_beginning_is_gone_stays_readable_to_its_end() -> None:
    log = EventLog(4)
    events = write_item(log, list("abcdef"))
    assert log.oldest > 0
    assert log.read(log.next - 1) == events[-1]


def test_pack_packs_what_came_after_the_newest_item() -> None:
    log = EventLog(1000)
    log.pack()
    write_item(log, ["a"])
    for seq in (log.next, log.next + 1):
        log.append(plain(seq))
    log.pack()
    log.pack()
    assert [type(entry) for entry in log._entries] == [FoldedItem, bytes, bytes]
    assert [log.read(seq) for seq in (log.next - 2, log.next - 1)] == [plain(log.next - 2), plain(log.next - 1)]


# --- the journal's side ------------------------------------------------------------------------------------------


@given(entries=ENTRIES, cuts=st.sets(st.integers(0, 7)), max_events=st.sampled_from([1, 4, 9, 1000]))
def test_log_restored_piece_by_piece_reads_the_same(
    entries: list[tuple[list[str], bool] | None], cuts: set[int], max_events: int
) -> None:
    log, twin, seen = EventLog(max_events), EventLog(max_events), 0
    for number, entry in enumerate(entries):
        if entry is None:
            log.append(plain(log.next))
            log.pack()
        else:
            write_item(log, entry[0], disturbed=entry[1])
        if number in cuts:
            twin.restore(log.entries_since(seen), log.next)
            seen = log.next
    twin.restore(log.entries_since(seen), log.next)
    assert (twin.oldest, twin.next) == (log.oldest, log.next)
    for seq in range(log.oldest, log.next):
        assert encode_event(twin.read(seq)) == encode_event(log.read(seq))
    last = plain(log.next)
    for one in (log, twin):
        one.append(last)
    assert (twin.oldest, twin.read(log.next - 1)) == (log.oldest, last)
