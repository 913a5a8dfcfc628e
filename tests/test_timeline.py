"""Timelines: rows from events, and how they look."""

import dataclasses
import io
import json
import re
from typing import Any

import pytest
import trio
from rich.cells import cell_len
from rich.console import Console

from engine.client_driver import Retry
from engine.client_state import Result
from engine.client_tools import ToolCall, ToolOutcome
from engine.client_wire import ConnectionLost, Event, RunFailed
from engine.timeline import Row, Timeline, cost, milliseconds
from engine.timeline_view import JsonView, TimelineView, styled
from engine.usage import Timing, count_usage

CALL = ToolCall("c0", "look", '{"n": 1, "at": "sea"}', Event())
RESULT = Result(id="r", status="completed", text="hi", output=[], run_usage=count_usage(10, 4, cached_tokens=8))
AT_WORK = Row("model", 4, text="the model is at work")


def event(kind: str, **fields: Any) -> Event:
    return Event({"type": f"response.{kind}", **fields})


def item(kind: str, where: str) -> Event:
    return event(f"output_item.{where}", item={"id": f"i_{kind}", "type": kind})


def done(**fields: Any) -> Event:
    usage = {"input_tokens": 10, "output_tokens": 4, "total_tokens": 14, "input_tokens_details": {"cached_tokens": 8}}
    return event("done", response={"usage": usage, "timing": {"step": {"sampling_ms": 40.0}}, **fields})


def test_message_is_open_until_its_item_is_done():
    timeline = Timeline()
    timeline.receive(item("message", "added"), 1)
    timeline.receive(event("output_text.delta", item_id="i_message", delta="he"), 2)
    timeline.receive(event("output_text.delta", item_id="i_message", delta="y"), 3)
    assert timeline.open_rows == [Row("message", 1, text="hey")]
    assert timeline.take_finished() == []
    timeline.receive(item("message", "done"), 4)
    assert timeline.open_rows == [AT_WORK]
    assert timeline.take_finished() == [Row("message", 1, text="hey", duration_s=3)]
    assert timeline.take_finished() == []


def test_model_is_at_work_while_nothing_else_is_to_be_seen_of_a_step():
    timeline = Timeline()
    assert timeline.open_rows == []
    timeline.receive(event("created"), 4)
    timeline.receive(event("in_progress"), 5)
    assert timeline.open_rows == [AT_WORK]
    timeline.call(CALL, 6)
    assert [row.kind for row in timeline.open_rows] == ["call"]
    timeline.answer(ToolOutcome(CALL, "42", False, 1.0), 7)
    assert timeline.open_rows == [dataclasses.replace(AT_WORK, start_s=7)]
    timeline.receive(done(), 8)
    assert timeline.open_rows == []


def test_call_lasts_from_its_start_to_its_output():
    timeline = Timeline()
    timeline.call(CALL, 1)
    timeline.answer(ToolOutcome(CALL, "42", True, 2.0), 3)
    assert timeline.take_finished() == [Row("call", 1, 'look(n=1, at="sea")', "42", 2, is_error=True)]


@pytest.mark.parametrize(
    ("item", "row"),
    [
        (
            {"type": "mcp_call", "server_label": "box", "name": "add", "arguments": '{"a":1}', "output": "3"},
            Row("hosted", 1, "box.add(a=1)", "3", 2),
        ),
        (
            {"type": "mcp_call", "name": "add", "arguments": "", "status": "failed"}
            | {"error": {"type": "mcp_tool_execution_error", "content": [{"type": "text", "text": "no"}]}},
            Row("hosted", 1, "add()", "no", 2, is_error=True),
        ),
        (
            {"type": "web_search_call", "action": {"type": "search", "query": "tea"}},
            Row("hosted", 1, 'web_search({"type":"search","query":"tea"})', "completed", 2),
        ),
        (
            {"type": "code_interpreter_call", "code": "1 + 1"},
            Row("hosted", 1, "code_interpreter(1 + 1)", "completed", 2),
        ),
    ],
)
def test_hosted_call_lasts_from_its_first_event_to_its_last(item: dict[str, Any], row: Row) -> None:
    timeline = Timeline()
    whole = {"id": "h", "status": "completed"} | item
    begun = {"id": "h", "type": item["type"], "status": "in_progress"}
    timeline.receive(event("output_item.added", item=begun), 1)
    timeline.receive(event("output_item.done", item=whole), 3)
    assert (timeline.take_finished(), timeline.num_calls) == ([row], 1)


def test_what_a_dead_server_had_begun_is_no_more():
    timeline = Timeline()
    other = ToolCall("c1", "look", "{}", Event())
    timeline.receive(item("message", "added"), 1)
    timeline.call(CALL, 1)
    timeline.call(other, 2)
    timeline.receive(event("resume.accepted", status="paused", still_pending=["c1"]), 3)
    assert [row.title for row in timeline.open_rows] == ["look()"]
    (note,) = timeline.take_finished()
    assert (note.kind, note.text) == ("note", "the server was started anew; the run goes on from its last stored step")
    # What ends a run at the pause that it was set back to is no step.
    timeline.receive(event("incomplete", response={}), 4)
    assert timeline.num_steps == 0
    timeline.answer(ToolOutcome(other, "42", False, 2.0), 5)
    assert [row.kind for row in timeline.take_finished()] == ["call"]


@pytest.mark.parametrize(("written", "shown"), [("", "f()"), ("{", "f({)"), ("[1]", "f([1])")])
def test_arguments_that_are_no_object_are_shown_as_written(written, shown):
    timeline = Timeline()
    timeline.call(ToolCall("c", "f", written, Event()), 0)
    assert timeline.open_rows[0].title == shown


@pytest.mark.parametrize(
    ("item", "title"),
    [
        ({"type": "function_call", "name": "look", "arguments": '{"at": "se'}, 'look({"at": "se)'),
        ({"type": "custom_tool_call", "name": "query", "input": "SELECT"}, "query(SELECT)"),
    ],
)
def test_call_that_was_cut_off_is_told(item: dict[str, Any], title: str) -> None:
    timeline = Timeline()
    timeline.receive(event("output_item.done", item={"id": "i", "status": "completed", **item}), 1)
    assert timeline.take_finished() == []
    timeline.receive(event("output_item.done", item={"id": "i", "status": "incomplete", **item}), 2)
    assert [row.text for row in timeline.take_finished()] == [f"{title} was cut off, so it is not made"]


def test_step_says_what_it_cost_and_what_it_waits_for():
    timeline = Timeline()
    timeline.receive(event("created"), 0)
    timeline.receive(done(pending=[{"name": "look"}, {"name": "see"}]), 1)
    (row,) = timeline.take_finished()
    assert row.text == "step 1: 10 tokens in (8 reused, 2 prefilled), 4 out, sampling 40 ms; waits for look, see"


def test_end_at_a_pause_is_no_step():
    timeline = Timeline()
    timeline.receive(event("created"), 0)
    timeline.receive(done(), 1)
    timeline.receive(event("incomplete", response={}), 2)
    assert timeline.num_steps == 1


def test_failed_step_does_not_repeat_the_figures_of_the_one_before():
    timeline = Timeline()
    timeline.receive(event("created"), 0)
    timeline.receive(event("failed", response=done()["response"]), 1)
    assert (timeline.num_steps, timeline.take_finished()) == (0, [])


def test_failed_run_ends_with_its_code_and_message():
    view, file = view_on(terminal=False)
    view.fail(RunFailed("Too much.", code="rate_limit_exceeded"))
    assert file.getvalue() == "   0.00 s ■ failed (rate_limit_exceeded): Too much.\n"
    lines = io.StringIO()
    JsonView(lines).fail(RunFailed("Too much.", code="rate_limit_exceeded"))
    line = json.loads(lines.getvalue())
    assert (line["type"], line["error"]["code"]) == ("longloop.failed", "rate_limit_exceeded")


def test_events_of_unknown_kinds_and_items_do_not_show():
    timeline = Timeline()
    timeline.receive(item("function_call", "added"), 0)
    timeline.receive(event("something.delta", item_id="x", delta="y"), 0)
    timeline.receive(event("output_text.delta", item_id="unknown", delta="y"), 0)
    timeline.receive(item("function_call", "done"), 0)
    assert (timeline.open_rows, timeline.take_finished()) == ([dataclasses.replace(AT_WORK, start_s=0)], [])


@pytest.mark.parametrize(("value", "text"), [(0.25, "0.2 ms"), (9.96, "10.0 ms"), (12.4, "12 ms"), (1234, "1.23 s")])
def test_milliseconds(value, text):
    assert milliseconds(value) == text


def test_cost_leaves_out_times_that_are_zero():
    assert (
        cost(count_usage(1, 2), Timing(client_wait_ms=5)) == "1 token in (0 reused, 1 prefilled), 2 out, tools 5.0 ms"
    )


def view_on(terminal: bool) -> tuple[TimelineView, io.StringIO]:
    file = io.StringIO()
    console = Console(file=file, force_terminal=terminal, width=80)
    return TimelineView(console, clock=lambda: 7.0), file


def play(view: TimelineView | JsonView) -> None:
    view.event(event("created"))
    view.call(CALL)
    view.answer(ToolOutcome(CALL, "4\n2", False, 0.5))
    view.retry(Retry(1, 0.2, ConnectionLost("gone")))
    view.event(done())
    view.end(RESULT)


APPROVAL = {"type": "mcp_approval_request", "server_label": "shop", "name": "refund", "arguments": '{"order": 7}'}
REFUSED = ToolCall("mcpr_1", "refund", '{"order": 7}', Event(APPROVAL))


def test_a_call_that_was_not_approved_is_told_with_what_would_help():
    view, file = view_on(terminal=False)
    view.refuse(REFUSED)
    line = "0.00 s ! shop.refund(order=7) was not approved, so it is not made; --approve approves such calls"
    assert " ".join(file.getvalue().split()) == line


def test_without_a_terminal_rows_are_plain_lines():
    view, file = view_on(terminal=False)
    with view.open_region():
        play(view)
    assert file.getvalue().splitlines() == [
        '   0.00 s → look(n=1, at="sea") = 4 2  0.0 ms',
        "   0.00 s ! gone; trying again in 200 ms",
        "   0.00 s ‖ step 1: 10 tokens in (8 reused, 2 prefilled), 4 out, sampling 40 ms",
        "   0.00 s ■ completed after 0.00 s, 1 step, 1 call: 10 tokens in (8 reused, 2 prefilled), 4 out",
    ]


async def test_in_a_terminal_open_rows_are_redrawn_below(autojump_clock):
    view, file = view_on(terminal=True)
    with view.open_region(), trio.move_on_after(0.5):
        view.event(event("created"))
        with trio.move_on_after(0.2):
            await view.redraw()
        assert "the model is at work" in file.getvalue()
        view.call(CALL)
        await view.redraw()
    assert "look(n=1" in file.getvalue()
    play(view)
    assert "\x1b[" in file.getvalue()


async def test_finished_row_is_not_shown_as_open_any_more(autojump_clock):
    view, file = view_on(terminal=True)
    with view.open_region():
        view.call(CALL)
        with trio.move_on_after(0.5):
            await view.redraw()
        view.answer(ToolOutcome(CALL, "42", False, 0.5))
        view.retry(Retry(1, 0.2, ConnectionLost("gone")))
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", file.getvalue())
    assert "look(n=1" not in shown.partition('look(n=1, at="sea") = 42')[2]


def test_json_view_prints_one_object_a_line():
    file = io.StringIO()
    view = JsonView(file)
    play(view)
    view.refuse(REFUSED)
    lines = [json.loads(line) for line in file.getvalue().splitlines()]
    assert [line["type"] for line in lines] == [
        "response.created",
        "longloop.tool_call",
        "longloop.tool_output",
        "longloop.retry",
        "response.done",
        "longloop.result",
        "longloop.not_approved",
    ]
    assert lines[-2]["result"]["text"] == "hi"


@pytest.mark.parametrize(("duration", "shown"), [(None, "…bcdef"), (1.0, "abcde…")])
def test_long_text_shows_its_end_while_open_and_its_start_when_finished(duration, shown):
    line = styled(Row("thought", 0, text="abcdef", duration_s=duration), 1, max_text=5).plain
    assert shown in line


def test_message_keeps_its_lines():
    line = styled(Row("message", 0, text="a\n\nb\n", duration_s=1), 1, max_text=None).plain
    assert line == "   1.00 s » a\n\n            b"


# --- narrow and wide terminals -------------------------------------------------------------------------------------


def long_run(view: TimelineView) -> None:
    """A run whose rows are longer than most terminals are wide, with a call that outlasts the rows after it."""
    url = "https://example.org/" + "x" * 90
    slow = ToolCall("c1", "fetch", json.dumps({"url": url}), Event())
    view.call(slow)
    view.call(CALL)
    view.answer(ToolOutcome(CALL, "the tide is out and the boats lie on the sand " * 9, False, 0.5))
    view.event(event("created"))
    view.event(done(pending=[{"name": "fetch"}]))
    view.answer(ToolOutcome(slow, "天気は晴れです" * 20, True, 0.5))
    view.event(item("message", "added"))
    view.event(event("output_text.delta", item_id="i_message", delta="Two paragraphs of " + "words " * 40 + "\nwith 𝔘"))
    view.event(item("message", "done"))
    view.end(RESULT)


def shown_at(width: int, *, terminal: bool) -> list[str]:
    """The lines that the long run leaves, without their colours; each look at the clock takes a tenth of a second."""
    ticks = iter(range(10_000))
    file = io.StringIO()
    console = Console(file=file, force_terminal=terminal, width=width)
    view = TimelineView(console, clock=lambda: next(ticks) / 10)
    long_run(view)
    return re.sub(r"\x1b\[[0-9;]*m", "", file.getvalue()).splitlines()


@pytest.mark.parametrize("width", [60, 80, 200])
def test_lines_fit_the_terminal_and_line_up(width):
    lines = shown_at(width, terminal=True)
    assert max(map(cell_len, lines)) < width
    for line in lines:
        assert re.match(r" *\d+\.\d\d s [·»→‖!■] \S| {12}\S", line), line
        assert line == line.rstrip()
    assert sum(line.startswith(" " * 12) for line in lines) >= 4


@pytest.mark.parametrize("width", [60, 80, 200])
def test_words_are_not_broken_and_none_is_lost(width):
    wrapped = [line[12:] for line in shown_at(width, terminal=True)]
    plain = [line[12:] for line in shown_at(width, terminal=False)]
    assert "".join("".join(wrapped).split()) == "".join("".join(plain).split())
    words = {"the", "tide", "boats", "prefilled),", "words", "completed"}
    assert words <= {word for line in wrapped for word in line.split()}
    assert all(
        word in ("words", "Two", "paragraphs", "of") for line in wrapped if "words" in line for word in line.split()
    )


@pytest.mark.parametrize("terminal", [True, False])
@pytest.mark.parametrize("width", [60, 80, 200])
def test_rows_come_in_the_order_of_their_times(width, terminal):
    times = [float(line[:7]) for line in shown_at(width, terminal=terminal) if line[:8].strip()]
    assert len(times) == 5
    assert times == sorted(times)


def test_row_in_a_file_is_one_line_however_long():
    assert len(shown_at(60, terminal=False)) == 6  # the message has a line break of its own


def test_terminal_too_narrow_for_anything_still_gets_the_text():
    lines = shown_at(10, terminal=True)
    assert {cell_len(line) for line in lines if line.startswith(" " * 12)} <= set(range(13, 12 + 20 + 1))
