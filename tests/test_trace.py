"""Traces: lines as they happened, frames as they were."""

import io
import json

import pytest

from engine.client import open_run
from engine.client_wire import decode_event
from engine.trace import Trace, open_trace, read_trace


def written(*records: tuple[str, str | None]) -> list[str]:
    times = iter([10.0, *(10.0 + n / 1000 for n in range(1, 99))])
    file = io.StringIO()
    trace = Trace(file, clock=lambda: next(times))
    for direction, frame in records:
        trace.record(direction, frame)  # type: ignore[arg-type]  # strings from a table
    return file.getvalue().splitlines()


def test_frame_stands_in_its_own_spelling():
    assert written(("send", '{"a":  1.50}')) == ['{"t_ms":1.0,"dir":"send","frame":{"a":  1.50}}']


@pytest.mark.parametrize("frame", ["{", "", 'no "json"', '{"a":\n1}'])
def test_frame_that_would_break_the_line_stands_as_a_string(frame):
    (line,) = written(("recv", frame))
    assert json.loads(line)["frame"] == frame


def test_connections_leave_their_begin_and_end():
    lines = [json.loads(line) for line in written(("open", "ws://h"), ("close", None))]
    assert [(line["dir"], line["frame"]) for line in lines] == [("open", "ws://h"), ("close", None)]


def test_what_was_written_can_be_read(tmp_path):
    path = tmp_path / "trace.jsonl"
    with open_trace(path) as trace:
        trace.record("send", '{"type":"response.create"}')
        (line,) = read_trace(path)
    assert (line.dir, line.frame) == ("send", {"type": "response.create"})
    assert line.t_ms >= 0


async def test_run_that_cannot_connect_leaves_an_empty_trace(tmp_path):
    path = tmp_path / "trace.jsonl"
    with pytest.raises(Exception, match="cannot connect"):
        async with open_run("http://127.0.0.1:1", input="x", max_retries=0, trace=path) as run:
            await run.result()
    assert read_trace(path) == []


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"type": 1}'])
def test_frames_that_are_no_events_are_a_lost_connection(text):
    with pytest.raises(Exception, match="the server sent a frame that is"):
        decode_event(text)


def test_event_has_its_fields_as_attributes_at_every_depth():
    event = decode_event('{"type": "t", "item": {"content": [{"text": "x"}]}}')
    assert event.item.content[0].text == "x"
    with pytest.raises(AttributeError, match="t has no field 'delta'"):
        _ = event.delta
