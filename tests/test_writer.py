"""writer.py: what the model says becomes items, one at a time, each with all its events."""

from typing import Any

import msgspec
import pytest

from engine.backends.base import CallStart, CallType
from engine.errors import BackendError
from engine.events import encode_event
from engine.items import Item
from engine.log import EventLog
from engine.writer import ItemWriter
from tests.machines import counting_ids, json_paths_of_null


class Written:
    """A writer with its log and what it told."""

    def __init__(self) -> None:
        self.log = EventLog(10_000)
        self.told: list[Item] = []
        self.writer = ItemWriter(self.log, counting_ids(), self.told.append)

    @property
    def events(self) -> list[dict[str, Any]]:
        return [msgspec.json.decode(encode_event(self.log.read(seq))) for seq in range(self.log.next)]

    def call(self, kind: CallType, *pieces: str, name: str = "f", **start: Any) -> Any:
        self.writer.start_call(CallStart(kind, name, **start))
        for piece in pieces:
            self.writer.call_text(piece)
        return self.writer.end_call()

    def refuses(self, act: Any) -> None:
        """Whether the move is illegal, and then changed nothing."""
        before = self.events, list(self.writer.output)
        with pytest.raises(ValueError):
            act()
        assert (self.events, self.writer.output) == before


def test_pieces_of_one_kind_are_one_item_and_another_kind_starts_the_next() -> None:
    written = Written()
    for say, text in (("reasoning", "r1"), ("reasoning", "r2"), ("text", "t1"), ("text", "t2"), ("reasoning", "r3")):
        getattr(written.writer, say)(text)
    written.writer.close("completed")
    kinds = [
        (event["item"]["type"], event["output_index"])
        for event in written.events
        if event["type"].endswith("item.done")
    ]
    assert kinds == [("reasoning", 0), ("message", 1), ("reasoning", 2)]
    texts = [event["text"] for event in written.events if event["type"].endswith("text.done")]
    assert texts == ["r1r2", "t1t2", "r3"]
    assert written.told == written.writer.output


def test_empty_pieces_say_nothing() -> None:  # Wei-Shaw/sub2api#2875
    written = Written()
    written.writer.text("")
    written.writer.reasoning("")
    assert written.events == []
    assert written.call("function_call", "", "{", "", "}").arguments == "{}"
    assert [event["delta"] for event in written.events if event["type"].endswith("delta")] == ["{", "}"]


@pytest.mark.parametrize("kind", ["function_call", "custom_tool_call"])
def test_call_streams(kind: CallType) -> None:  # vllm-project/vllm#25719
    written = Written()
    item = written.call(kind, '{"a"', ":1}", namespace="crm")
    assert (item.name, item.namespace, item.status) == ("f", "crm", "completed")
    assert [event["type"].rsplit(".")[-1] for event in written.events] == ["added", "delta", "delta", "done", "done"]
    assert written.events[0]["item"]["call_id"] == written.events[-1]["item"]["call_id"] == item.call_id
    assert all(json_paths_of_null(event) == [] for event in written.events)


def test_call_without_arguments_is_announced_and_finished() -> None:
    written = Written()
    written.call("function_call")
    assert len(written.events) == 3


def test_parallel_calls_have_their_own_index_item_id_and_call_id() -> None:
    # ollama/ollama#16212, ggml-org/llama.cpp#20607
    written = Written()
    for number in range(3):
        written.call("function_call", f"{number}")
    done = [event for event in written.events if event["type"] == "response.output_item.done"]
    assert [event["output_index"] for event in done] == [0, 1, 2]
    assert len({event["item"]["id"] for event in done} | {event["item"]["call_id"] for event in done}) == 6
    owner = {event["item_id"]: event["delta"] for event in written.events if event["type"].endswith("delta")}
    assert [owner[event["item"]["id"]] for event in done] == ["0", "1", "2"]


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("local_shell_call", '{"command":["ls"]}'),
        ("apply_patch_call", '{"type":"delete_file","path":"a"}'),
        ("computer_call", '{"type":"screenshot"}'),
        ("tool_search_call", '{"query":"q"}'),
        ("mcp_approval_request", "{}"),
    ],
)
def test_call_with_an_action_comes_whole(kind: CallType, text: str) -> None:
    written = Written()
    item = written.call(kind, text[:3], text[3:])
    assert [event["type"] for event in written.events] == [
        "response.output_item.added",
        "response.output_item.done",
    ]
    assert written.writer.output == written.told == [item]
    assert all(json_paths_of_null(event) == [] for event in written.events)


def test_shell_call_shows_its_commands() -> None:
    written = Written()
    written.call("shell_call", '{"commands":["ls","pwd"]}')
    shell = [event for event in written.events if "shell_call_command" in event["type"]]
    assert [(event["type"].rsplit(".")[-1], event["command_index"]) for event in shell] == [
        ("added", 0), ("delta", 0), ("done", 0), ("added", 1), ("delta", 1), ("done", 1),
    ]  # fmt: skip
    assert [event["command"] for event in shell if event["type"].endswith("done")] == ["ls", "pwd"]


def test_malformed_action_logs_nothing_and_the_writer_goes_on() -> None:
    written = Written()
    with pytest.raises(BackendError):
        written.call("shell_call", '{"commands":"ls"}')
    assert written.events == []
    written.writer.text("sorry")
    assert written.events[0]["output_index"] == 0


def test_item_that_is_cut_off_is_incomplete() -> None:
    written = Written()
    written.writer.start_call(CallStart("function_call", "f"))
    written.writer.call_text('{"a')
    item = written.writer.close("incomplete")
    assert item is not None
    assert (item.status, item.arguments) == ("incomplete", '{"a')  # type: ignore[union-attr]
    assert written.writer.close("incomplete") is None


def test_call_of_a_kind_that_does_not_stream_leaves_nothing_when_it_is_cut_off() -> None:
    written = Written()
    written.writer.start_call(CallStart("shell_call", "shell"))
    written.writer.call_text('{"comm')
    assert written.writer.close("incomplete") is None
    written.writer.text("next step")
    written.writer.close("completed")
    assert [event["output_index"] for event in written.events] == [0] * 6


def test_illegal_moves_change_nothing() -> None:
    written = Written()
    written.refuses(lambda: written.writer.call_text("x"))
    written.refuses(written.writer.end_call)
    written.writer.text("hello")
    written.refuses(lambda: written.writer.call_text("x"))
    written.refuses(written.writer.end_call)
    written.writer.start_call(CallStart("function_call", "f"))
    written.refuses(lambda: written.writer.text("x"))
    written.refuses(lambda: written.writer.reasoning("x"))
    written.refuses(lambda: written.writer.start_call(CallStart("function_call", "g")))
    written.writer.end_call()
    written.writer.text("bye")


def test_finished_items_are_folded() -> None:
    written = Written()
    for _ in range(3):
        for _ in range(100):
            written.writer.text("x")
        written.writer.close("completed")
    assert len(written.log._entries) == 3
