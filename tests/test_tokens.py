"""tokens.py: the log against the plainest model of it, a list of (segment, kind, id)."""

from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.tokens import Span, TokenLog

IDS = st.lists(st.integers(0, 2**32 - 1), max_size=5)
KINDS = st.sampled_from(["give", "sample", "rate"])
MOVES = st.lists(st.one_of(st.tuples(KINDS, IDS), st.just(("segment", []))), max_size=12)


def played(log: TokenLog, moves: list[tuple[str, list[int]]]) -> TokenLog:
    for move, ids in moves:
        match move:
            case "segment":
                log.start_segment()
            case "give":
                log.give(ids)
            case "sample":
                log.sample(ids)
            case "rate":
                log.sample(ids, [-0.5 * one for one in ids])
    return log


def kind(span: Span) -> str:
    if span.logprobs is msgspec.UNSET:
        return "sample" if span.sampled else "give"
    assert span.sampled and span.logprobs == [-0.5 * one for one in span.ids]
    return "rate"


@given(MOVES)
def test_any_history_reads_back_from_any_position(moves: list[tuple[str, list[int]]]) -> None:
    log, model, segment = TokenLog(), [], 0
    for move, ids in moves:
        played(log, [(move, ids)])
        segment += move == "segment" and bool(model) and model[-1][0] == segment
        model += [(segment, move, one) for one in ids]
    context = [one for number, _, one in model if number == segment]
    assert (log.total, log.segment, len(log)) == (len(model), segment, len(context))
    assert list(log.context()) == context
    for offset in range(len(context) + 1):
        assert list(log.context_from(offset)) == context[offset:]
    starts = [next(i for i, entry in enumerate(model) if entry[0] == number) for number in range(segment) if model]
    for position in range(len(model) + 1):
        spans = list(log.since(position))
        assert [(span.segment, kind(span), one) for span in spans for one in span.ids] == model[position:]
        place = position
        for span in spans:
            start = starts[span.segment] if span.segment < len(starts) else len(model) - len(context)
            assert span.ids and span.offset == place - start
            place += len(span.ids)
        for stop in range(position, len(model)):
            cut = [(span.segment, kind(span), one) for span in log.since(position, stop) for one in span.ids]
            assert cut == model[position:stop]
        borders = pairwise(spans)
        assert all((a.segment, kind(a)) != (b.segment, kind(b)) for a, b in borders)


@given(MOVES, MOVES)
def test_a_copy_and_what_is_made_of_its_spans_say_the_same_and_go_on_by_themselves(before, after) -> None:
    log = played(TokenLog(), before)
    spans, context = list(log.since(0)), list(log.context())
    assert [list(log.segment_ids(number)) for number in range(log.segment + 1)][-1] == context
    twin, again = log.copy(), TokenLog()
    again.extend(spans)
    assert list(twin.since(0)) == list(again.since(0)) == spans
    assert (twin.segment, list(twin.context())) == (log.segment, context)
    assert [list(again.segment_ids(number)) for number in range(again.segment + 1)] == [
        list(log.segment_ids(number)) for number in range(again.segment + 1)
    ]
    played(twin, after)
    assert (list(log.since(0)), list(log.context())) == (spans, context)
    assert list(twin.since(0)) == list(played(log, after).since(0))


def test_spans_are_taken_in_where_the_log_ends() -> None:
    log, rest = played(TokenLog(), [("give", [1]), ("sample", [2]), ("segment", []), ("give", [3, 4])]), TokenLog()
    rest.extend(log.since(0))
    played(log, [("sample", [5]), ("segment", []), ("give", [6])])
    rest.extend(log.since(rest.total))
    assert list(rest.since(0)) == list(log.since(0))


def test_empty_log_has_no_spans() -> None:
    log = TokenLog()
    log.give([])
    assert (list(log.since(0)), len(log), log.total, log.segment) == ([], 0, 0, 0)


def test_starting_a_segment_twice_is_starting_it_once() -> None:
    log = TokenLog()
    log.start_segment()
    log.give([1])
    log.start_segment()
    log.start_segment()
    assert (log.segment, len(log), log.total) == (1, 0, 1)


def test_ids_that_do_not_fit_change_nothing() -> None:
    log = TokenLog()
    log.give([1, 2])
    with pytest.raises(OverflowError):
        log.sample([3, -1])
    with pytest.raises(ValueError, match="1 log-probabilities for 2 ids"):
        log.sample([3, 4], [-0.5])
    assert list(log.context()) == [1, 2]
    assert [span.ids for span in log.since(0)] == [[1, 2]]
