"""The comparison of the designs: they play the same run, and differences are found."""

import pytest
import trio
from trio.testing import memory_stream_pair

from engine.compare.played import CountingStream, Played
from engine.compare.quick import RunsDiffer, check_equal, compare_quick, middle
from engine.compare.work import NUM_CALLS, answers, call_tool, without_ids

CALL = {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "read_file", "arguments": '{"part": 3}'}
MESSAGE = {"type": "message", "id": "msg_1", "content": "x"}


def test_the_tool_depends_on_the_call_alone() -> None:
    assert answers([MESSAGE, CALL]) == [
        {"type": "function_call_output", "call_id": "c1", "output": call_tool('{"part": 3}')}
    ]
    assert call_tool('{"part": 3}') != call_tool('{"part": 4}')


def test_ids_do_not_count_and_everything_else_does() -> None:
    other = CALL | {"id": "fc_2", "call_id": "c2"}
    assert without_ids([CALL]) == without_ids([other])
    assert without_ids([CALL]) != without_ids([CALL | {"arguments": "{}"}])


@pytest.mark.parametrize(
    ("items", "message"),
    [([MESSAGE | {"content": "y"}], "item 0"), ([MESSAGE, CALL], "2"), ([], "chain has 1 items, append 0")],
)
def test_runs_that_differ_are_found(items, message) -> None:
    with pytest.raises(RunsDiffer, match=message):
        check_equal([Played("chain", [MESSAGE]), Played("append", items)])


def test_the_middle_is_by_time_and_design() -> None:
    runs = [Played(name, wall_ms=ms) for ms in (3.0, 1.0, 2.0) for name in ("chain", "append")]
    assert middle(runs) == [Played("chain", wall_ms=2.0), Played("append", wall_ms=2.0)]


async def test_what_goes_through_is_counted() -> None:
    ours, theirs = memory_stream_pair()
    counted = CountingStream(ours)
    await counted.send_all(b"12345")
    await theirs.send_all(b"123")
    await counted.receive_some()
    assert (counted.bytes_sent, counted.bytes_received) == (5, 3)
    await counted.aclose()


async def test_all_designs_make_the_same_run_and_say_what_each_had_to_redo() -> None:
    seen: list[Played] = []
    with trio.fail_after(60):
        result = await compare_quick(1, 0, seen.append, tokenizer="")
    assert [played.lifecycle for played in seen] == ["stateless", "chain", "inject", "append"]
    by_name = {played.lifecycle: played for played in seen}
    assert all(played.num_steps == NUM_CALLS + 1 for played in seen)
    # A message and a call a step, and at the end a message.
    assert all(len(played.items) == 2 * NUM_CALLS + 1 for played in seen)
    assert by_name["append"].items_rendered == by_name["chain"].items_rendered == NUM_CALLS + 1
    assert by_name["stateless"].items_rendered > 10 * by_name["append"].items_rendered
    assert by_name["stateless"].bytes_sent > 5 * by_name["append"].bytes_sent
    assert {figure.name for figure in result["budgets"]} >= {"append over chain, wall time"}
