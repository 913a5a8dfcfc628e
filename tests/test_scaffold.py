"""scaffold.py: the events around each kind of streamed item."""

from typing import Any

import msgspec
import pytest

from engine.events import encode_event
from engine.items import ItemStatus, encode_item
from engine.scaffold import (
    CustomToolCallScaffold,
    FunctionCallScaffold,
    MessageScaffold,
    ReasoningScaffold,
    Scaffold,
)
from tests.machines import json_paths_of_null

SCAFFOLDS: list[Scaffold] = [
    MessageScaffold(3, "msg_1"),
    ReasoningScaffold(3, "rs_1"),
    FunctionCallScaffold(3, "fc_1", "call_1", "f"),
    FunctionCallScaffold(3, "fc_1", "call_1", "f", "crm"),
    CustomToolCallScaffold(3, "ctc_1", "call_1", "f"),
    CustomToolCallScaffold(3, "ctc_1", "call_1", "f", "crm"),
]


def write(scaffold: Scaffold, pieces: list[str], status: ItemStatus, first: int) -> list[Any]:
    """The events of an item as they go out live."""
    events = scaffold.head(first)
    events += [scaffold.delta(first + len(events) + i, piece) for i, piece in enumerate(pieces)]
    return events + scaffold.tail(first + len(events), "".join(pieces), status)


def decoded(scaffold: Scaffold, pieces: list[str], status: ItemStatus = "completed") -> list[dict[str, Any]]:
    return [msgspec.json.decode(encode_event(event)) for event in write(scaffold, pieces, status, 5)]


@pytest.mark.parametrize(
    ("scaffold", "types"),
    [
        (SCAFFOLDS[0], "output_item.added content_part.added output_text.delta output_text.done"),
        (SCAFFOLDS[1], "output_item.added content_part.added reasoning_text.delta reasoning_text.done"),
        (SCAFFOLDS[2], "output_item.added function_call_arguments.delta function_call_arguments.done"),
        (SCAFFOLDS[4], "output_item.added custom_tool_call_input.delta custom_tool_call_input.done"),
    ],
)
def test_order_of_events(scaffold: Scaffold, types: str) -> None:
    # BerriAI/litellm#22102, openai/codex#12798, ogx-ai/ogx#5309, Wei-Shaw/sub2api#2875
    ends = ["content_part.done"] * isinstance(scaffold, MessageScaffold | ReasoningScaffold) + ["output_item.done"]
    assert [event["type"].removeprefix("response.") for event in decoded(scaffold, ["x"])] == [*types.split(), *ends]


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
