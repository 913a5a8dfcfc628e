"""writer.py: what the model says becomes items, one at a time, each with all its events."""

from typing import Any

import msgspec
import pytest

from engine.backends.base import CallStart, CallType
from engine.content import SummaryText, TokenLogprob, TopLogprob
from engine.errors import BackendError
from engine.events import encode_event
from engine.item_style import ItemStyle
from engine.items import Compaction, Item, Message, Reasoning, encode_item
from engine.log import EventLog
from engine.resolving import seal_reasoning
from engine.sealing import Sealer, new_key
from engine.writer import ItemWriter
from tests.machines import counting_ids, json_paths_of_null


class Written:
    """A writer with its log and what it told."""

    def __init__(self, **style: Any) -> None:
        self.log = EventLog(10_000)
        self.told: list[Item] = []
        self.writer = ItemWriter(self.log, counting_ids(), self.told.append, ItemStyle(**style))

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
        ("shell_call", '{"commands":["ls","pwd"]}'),
        ("apply_patch_call", '{"type":"delete_file","path":"a"}'),
        ("computer_call", '{"type":"screenshot"}'),
        ("tool_search_call", '{"query":"q"}'),
        ("mcp_approval_request", "{}"),
    ],
)
def test_call_with_an_action_comes_whole(kind: CallType, text: str) -> None:
    written = Written()
    item = written.call(kind, text[:3], text[3:])
    assert written.events[-1]["item"]["type"] == kind
    assert written.writer.output == written.told == [item]


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


# --- styles ------------------------------------------------------------------------------------------------------


def test_reasoning_is_written_as_a_summary_when_that_is_the_style() -> None:  # P59
    written = Written(summarises=True)
    written.writer.reasoning("a")
    written.writer.reasoning("b")
    written.writer.text("c")
    summary = written.told[0]
    assert isinstance(summary, Reasoning)
    assert (summary.summary, summary.content) == ([SummaryText(text="ab")], msgspec.UNSET)
    assert not any("reasoning_text" in event["type"] for event in written.events)


@pytest.mark.parametrize("summarises", [True, False])
def test_finished_reasoning_is_sealed_and_reads_back_the_same_to_the_byte(summarises: bool) -> None:
    sealer = Sealer(new_key())
    written = Written(summarises=summarises, sealer=sealer)
    written.writer.reasoning("ab")
    written.writer.close("completed")
    assert [item.encrypted_content for item in written.told] == [seal_reasoning("ab", sealer)]  # type: ignore[union-attr]
    assert written.writer.output == written.told
    assert written.events == written.events


def test_an_agents_messages_say_whether_they_are_the_answer() -> None:
    written = Written(agent="/root")
    written.writer.text("First I look.")
    written.call("function_call")
    written.writer.text("Hm.")
    written.writer.reasoning("r")
    written.writer.text("Done.")
    written.writer.close("completed", is_final=True)
    messages = [item for item in written.told if isinstance(item, Message)]
    assert [message.phase for message in messages] == ["commentary", "commentary", "final_answer"]
    assert all(message.agent == {"agent_name": "/root"} for message in messages)


def test_without_an_agent_a_message_says_nothing_of_it() -> None:
    written = Written()
    written.writer.text("Done.")
    item = written.writer.close("completed", is_final=True)
    assert isinstance(item, Message)
    assert (item.phase, item.agent) == (msgspec.UNSET, msgspec.UNSET)


def rating(token: str) -> TokenLogprob:
    return TokenLogprob(token, list(token.encode()), -0.5, [TopLogprob(token, list(token.encode()), -0.5)])


def test_a_rated_message_keeps_what_it_was_given_and_reads_back_the_same_to_the_byte() -> None:  # P58
    written = Written(rates=True)
    written.writer.text("He", [rating("H"), rating("e")])
    written.writer.text("", [])
    written.writer.text("y")
    live = written.events
    written.writer.close("completed")
    assert written.events[: len(live)] == live
    expected = msgspec.to_builtins([rating("H"), rating("e")])
    assert [event["logprobs"] for event in live if "delta" in event] == [expected, []]
    assert msgspec.json.decode(encode_item(written.writer.output[0]))["content"][0]["logprobs"] == expected


def test_only_a_rated_message_shows_log_probabilities() -> None:
    written = Written()
    written.writer.text("H", [rating("H")])
    written.writer.close("completed")
    assert b'logprob":-' not in encode_item(written.writer.output[0])


# --- compaction --------------------------------------------------------------------------------------------------


def test_a_compaction_is_an_item_between_others() -> None:
    written = Written()
    written.writer.text("before")
    written.writer.start_compaction()
    assert written.events[-1]["type"] == "response.compaction.compacting"
    item = written.writer.end_compaction("sealed")
    written.writer.text("after")
    written.writer.close("completed")
    assert item == Compaction(id="cmp_0", encrypted_content="sealed")
    assert written.told[1] == written.writer.output[1] == item
    done = [(event["item"]["type"], event["output_index"]) for event in written.events if "item.done" in event["type"]]
    assert done == [("message", 0), ("compaction", 1), ("message", 2)]


@pytest.mark.parametrize("status", ["completed", "incomplete"])
def test_a_compaction_that_failed_leaves_no_item(status: Any) -> None:
    written = Written()
    written.writer.start_compaction()
    assert written.writer.close(status) is None
    assert written.writer.output == written.told == []


def test_illegal_moves_change_nothing() -> None:
    written = Written()
    written.refuses(lambda: written.writer.call_text("x"))
    written.refuses(written.writer.end_call)
    written.refuses(lambda: written.writer.end_compaction("x"))
    written.writer.text("hello")
    written.refuses(lambda: written.writer.end_compaction("x"))
    written.refuses(lambda: written.writer.call_text("x"))
    written.refuses(written.writer.end_call)
    written.writer.start_call(CallStart("function_call", "f"))
    written.refuses(lambda: written.writer.text("x"))
    written.refuses(lambda: written.writer.reasoning("x"))
    written.refuses(written.writer.start_compaction)
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
