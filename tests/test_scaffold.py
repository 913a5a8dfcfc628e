"""scaffold.py and its neighbours: the events around each kind of item, in OpenAI's order."""

import json
from typing import Any

import msgspec
import pytest

from engine.backends.base import CallStart, CallType
from engine.calls import build_call
from engine.events import encode_event
from engine.items import ItemStatus, encode_item
from engine.scaffold import Scaffold
from engine.scaffold_call import CustomToolCallScaffold, FunctionCallScaffold, call_events
from engine.scaffold_compaction import CompactionScaffold
from engine.scaffold_message import MessageScaffold, RatedMessageScaffold
from engine.scaffold_reasoning import ReasoningScaffold, SummaryScaffold
from tests.machines import json_paths_of_null

# Each kind that streams, in each form, with the names of its events for one piece of text.
STREAMED: list[tuple[Scaffold, str]] = [
    (
        MessageScaffold(3, "msg_1"),
        "output_item.added content_part.added output_text.delta output_text.done content_part.done output_item.done",
    ),
    (
        ReasoningScaffold(3, "rs_1"),
        "output_item.added content_part.added reasoning_text.delta reasoning_text.done content_part.done "
        "output_item.done",
    ),
    (
        SummaryScaffold(3, "rs_1"),
        "output_item.added reasoning_summary_part.added reasoning_summary_text.delta reasoning_summary_text.done "
        "reasoning_summary_part.done output_item.done",
    ),
    (
        FunctionCallScaffold(3, "fc_1", "call_1", "f"),
        "output_item.added function_call_arguments.delta function_call_arguments.done output_item.done",
    ),
    (
        CustomToolCallScaffold(3, "ctc_1", "call_1", "f"),
        "output_item.added custom_tool_call_input.delta custom_tool_call_input.done output_item.done",
    ),
]
SCAFFOLDS: list[Scaffold] = [
    *(scaffold for scaffold, _ in STREAMED),
    MessageScaffold(3, "msg_1", agent="/root", phase="commentary"),
    ReasoningScaffold(3, "rs_1", "sealed"),
    SummaryScaffold(3, "rs_1", "sealed"),
    FunctionCallScaffold(3, "fc_1", "call_1", "f", "crm"),
    CustomToolCallScaffold(3, "ctc_1", "call_1", "f", "crm"),
]


def write(scaffold: Scaffold, pieces: list[str], status: ItemStatus, first: int) -> list[Any]:
    """The events of an item as they go out live."""
    events = scaffold.head(first)
    events += [scaffold.delta(first + len(events) + i, piece, i) for i, piece in enumerate(pieces)]
    return events + scaffold.tail(first + len(events), "".join(pieces), status)


def decoded(scaffold: Scaffold, pieces: list[str], status: ItemStatus = "completed") -> list[dict[str, Any]]:
    return [msgspec.json.decode(encode_event(event)) for event in write(scaffold, pieces, status, 5)]


def names(events: list[dict[str, Any]]) -> str:
    return " ".join(event["type"].removeprefix("response.") for event in events)


@pytest.mark.parametrize(("scaffold", "types"), STREAMED)
def test_order_of_events(scaffold: Scaffold, types: str) -> None:
    # BerriAI/litellm#22102, openai/codex#12798, ogx-ai/ogx#5309, Wei-Shaw/sub2api#2875
    assert names(decoded(scaffold, ["x"])) == types


@pytest.mark.parametrize("scaffold", SCAFFOLDS)
def test_every_event_says_where_it_belongs(scaffold: Scaffold) -> None:
    # ggml-org/llama.cpp#20607, maximhq/bifrost#5959, BerriAI/litellm#30071, Oaklight/llm-rosetta#56
    events = decoded(scaffold, ["a", "b"])
    assert [event["sequence_number"] for event in events] == list(range(5, 5 + len(events)))
    assert {event["output_index"] for event in events} == {3}
    assert {event.get("item_id") or event["item"]["id"] for event in events} == {scaffold.head(0)[0].item.id}  # type: ignore[union-attr]
    assert all(json_paths_of_null(event) == [] for event in events)


@pytest.mark.parametrize("scaffold", SCAFFOLDS)
def test_added_item_is_empty_and_done_item_is_whole(scaffold: Scaffold) -> None:
    events = decoded(scaffold, ["ab", "c"])
    added, done = events[0]["item"], events[-1]["item"]
    assert (added["status"], done["status"]) == ("in_progress", "completed")
    assert b"abc" not in msgspec.json.encode(added)
    assert done == msgspec.json.decode(encode_item(scaffold.item("abc", "completed")))
    assert {key: added.get(key) for key in ("id", "type", "call_id", "name", "namespace")} == {
        key: done.get(key) for key in ("id", "type", "call_id", "name", "namespace")
    }


@pytest.mark.parametrize("scaffold", SCAFFOLDS)
def test_item_without_text_is_announced_and_finished_all_the_same(
    scaffold: Scaffold,
) -> None:  # vllm-project/vllm#48274
    assert len(decoded(scaffold, [])) == scaffold.num_head + scaffold.num_tail


# --- one kind at a time ------------------------------------------------------------------------------------------


def test_reasoning_is_raw_or_its_own_summary() -> None:
    raw, summary = (decoded(kind(3, "rs_1"), ["ab", "c"]) for kind in (ReasoningScaffold, SummaryScaffold))
    assert [event["delta"] for event in raw if "delta" in event] == ["ab", "c"]
    assert [event["delta"] for event in summary if "delta" in event] == ["ab", "c"]
    assert raw[-1]["item"] == {
        "type": "reasoning", "id": "rs_1", "status": "completed", "summary": [],
        "content": [{"type": "reasoning_text", "text": "abc"}],
    }  # fmt: skip
    assert summary[-1]["item"] == {
        "type": "reasoning", "id": "rs_1", "status": "completed",
        "summary": [{"type": "summary_text", "text": "abc"}],
    }  # fmt: skip
    assert {event["summary_index"] for event in summary[1:-1]} == {0}


def test_a_summary_that_was_cut_off_says_so() -> None:
    part = [event for event in decoded(SummaryScaffold(3, "rs_1"), ["a"], "incomplete") if "part.done" in event["type"]]
    assert [event["status"] for event in part] == ["incomplete"]


@pytest.mark.parametrize("kind", [ReasoningScaffold, SummaryScaffold])
def test_finished_reasoning_carries_its_text_sealed(kind: type[ReasoningScaffold | SummaryScaffold]) -> None:
    events = decoded(kind(3, "rs_1", "sealed"), ["ab", "c"])
    assert events[-1]["item"]["encrypted_content"] == "sealed"
    assert "encrypted_content" not in events[0]["item"]


def test_an_agents_message_says_who_speaks_and_in_the_end_what_it_is() -> None:
    events = decoded(MessageScaffold(3, "msg_1", agent="/root", phase="final_answer"), ["x"])
    assert [events[at]["item"]["agent"] for at in (0, -1)] == [{"agent_name": "/root"}] * 2
    assert [events[at]["item"].get("phase") for at in (0, -1)] == [None, "final_answer"]


def test_a_rated_message_has_its_tokens_with_each_delta_and_all_at_the_end() -> None:
    rated = [[msgspec.Raw(b'{"token":"a"}')], [], [msgspec.Raw(b'{"token":"c"}'), msgspec.Raw(b'{"token":"d"}')]]
    events = decoded(RatedMessageScaffold(3, "msg_1", rated=rated), ["a", "b", "cd"])
    plain = decoded(MessageScaffold(3, "msg_1"), ["a", "b", "cd"])
    a, c, d = ({"token": token} for token in "acd")
    assert [event["logprobs"] for event in events[2:6]] == [[a], [], [c, d], [a, c, d]]
    assert [event["part"]["logprobs"] for event in (events[1], events[6])] == [[], [a, c, d]]
    assert events[-1]["item"]["content"][0]["logprobs"] == [a, c, d]
    assert names(events) == names(plain)


def test_a_compaction_is_announced_before_it_is_known() -> None:
    events = decoded(CompactionScaffold(3, "cmp_1", "sealed"), [])
    assert names(events) == "output_item.added compaction.compacting output_item.done"
    empty = {"type": "compaction", "id": "cmp_1", "encrypted_content": ""}
    assert [events[at]["item"] for at in (0, -1)] == [empty, empty | {"encrypted_content": "sealed"}]
    assert events[1] == {
        "type": "response.compaction.compacting", "sequence_number": 6, "item_id": "cmp_1", "output_index": 3,
    }  # fmt: skip
    with pytest.raises(ValueError, match="whole"):
        CompactionScaffold(3, "cmp_1").delta(0, "x", 0)


COMMANDS = "shell_call_command.added shell_call_command.delta shell_call_command.done"


@pytest.mark.parametrize(
    ("kind", "value", "between"),
    [
        ("local_shell_call", {"command": ["ls"]}, ""),
        ("shell_call", {"commands": ["ls", "pwd"]}, f"{COMMANDS} {COMMANDS} "),
        ("shell_call", {"commands": []}, ""),
        ("apply_patch_call", {"type": "delete_file", "path": "a"}, ""),
        ("computer_call", {"type": "screenshot"}, ""),
        ("tool_search_call", {"query": "q"}, ""),
        ("mcp_approval_request", {}, ""),
    ],
)
def test_a_call_with_an_action_comes_whole(kind: CallType, value: dict[str, Any], between: str) -> None:
    call = build_call(CallStart(kind, "f", server_label="s"), json.dumps(value), item_id="i", call_id="c")
    events = [msgspec.json.decode(encode_event(event)) for event in call_events(call, 3, 5)]
    assert names(events) == f"output_item.added {between}output_item.done"
    assert [event["sequence_number"] for event in events] == list(range(5, 5 + len(events)))
    assert {event["output_index"] for event in events} == {3}
    assert all(json_paths_of_null(event) == [] for event in events)
    added, done = events[0]["item"], events[-1]["item"]
    assert done == msgspec.json.decode(encode_item(call))
    if kind != "mcp_approval_request":  # it has no status
        assert (added.pop("status"), done.pop("status")) == ("in_progress", "completed")
    assert added == done


def test_each_command_of_a_shell_call_is_shown() -> None:
    call = build_call(CallStart("shell_call", "shell"), '{"commands":["ls","pwd"]}', item_id="i", call_id="c")
    shown = [msgspec.json.decode(encode_event(event)) for event in call_events(call, 3, 5)][1:-1]
    assert [(event["command_index"], event.get("command"), event.get("delta")) for event in shown] == [
        (0, "", None), (0, None, "ls"), (0, "ls", None), (1, "", None), (1, None, "pwd"), (1, "pwd", None),
    ]  # fmt: skip
