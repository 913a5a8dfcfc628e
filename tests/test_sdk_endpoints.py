"""All that openai-python can ask of responses and conversations, asked by it and read strictly by its types."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest
import trio

from tests.peers.played import open_recorded

pytestmark = pytest.mark.peer

SCENARIO: Final = """
model: test
steps:
  - cases:
      - when: {last_user_contains: long}
        steps: [{text: {words: 100000}, pace: {tokens_per_second: 20}}]
      - when: {tool_offered: true}
        steps:
          - reasoning: They greet me.
            calls: [{name: look, arguments: {n: 1}}]
      - steps: [{text: "You said {last_user}."}]
"""
TOOL: Final[Any] = {
    "type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}, "strict": False,
}  # fmt: skip


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[Any]:
    """An OpenAI client of a server that plays the scenario and keeps what is stored; it tries nothing twice."""
    from openai import OpenAI  # not at the top: without the package nothing here is selected, but still collected

    async with open_recorded(SCENARIO, tmp_path, data_dir=tmp_path / "data") as recorder:
        with OpenAI(base_url=recorder.url, api_key="a-key", timeout=10, max_retries=0) as sdk:
            yield sdk


def strictly(value: Any) -> Any:
    """The value, after its type has read the JSON that it came from as strictly as it can."""
    type(value).model_validate_json(json.dumps(value.to_dict(mode="json")), strict=True)
    return value


async def test_a_response_is_made_read_listed_and_deleted(client: Any) -> None:
    def use() -> None:
        first = strictly(client.responses.create(input="hi", tools=[TOOL]))
        assert strictly(client.responses.retrieve(first.id)) == first
        output = {"type": "function_call_output", "call_id": first.output[-1].call_id, "output": "blue"}
        second = client.responses.create(input=[output], previous_response_id=first.id)
        listed = client.responses.input_items.list(second.id, limit=1, order="asc")
        items = [strictly(item) for item in listed]  # page by page
        assert [item.type for item in items] == ["message", "reasoning", "function_call", "function_call_output"]
        assert items[2].id == first.output[-1].id
        client.responses.delete(second.id)
        with pytest.raises(Exception, match=f"Response with id '{second.id}' not found."):
            client.responses.retrieve(second.id)

    await trio.to_thread.run_sync(use)


async def test_input_tokens_are_counted(client: Any) -> None:
    def use() -> None:
        counted = strictly(client.responses.input_tokens.count(model="test", input="hello", instructions="Be brief."))
        whole = client.responses.create(model="test", input="hello", instructions="Be brief.")
        assert counted.input_tokens == whole.usage.input_tokens

    await trio.to_thread.run_sync(use)


async def test_a_response_in_the_background_is_followed_and_cancelled(client: Any) -> None:
    def use() -> None:
        begun = strictly(client.responses.create(input="a long one", background=True))
        assert begun.status == "in_progress"
        seen = -1
        for _ in range(2):  # left, and taken up where it was left
            with client.responses.retrieve(begun.id, stream=True, starting_after=seen) as stream:
                for event in stream:
                    assert strictly(event).sequence_number == seen + 1
                    seen = event.sequence_number
                    if seen >= 6 and event.type == "response.output_text.delta":
                        break
        assert strictly(client.responses.cancel(begun.id)).status == "cancelled"
        assert client.responses.cancel(begun.id).status == "cancelled"
        events = list(client.responses.retrieve(begun.id, stream=True, starting_after=seen))
        assert (events[-1].type, events[-1].response.status) == ("response.incomplete", "cancelled")

    await trio.to_thread.run_sync(use)


async def test_a_stream_that_is_taken_up_again_starts_the_sdks_accumulator(client: Any) -> None:
    """openai/openai-python#2852: an event told of an item that the accumulator had not seen."""

    def use() -> None:
        begun = client.responses.create(input="hi", tools=[TOOL], background=True)
        whole = list(client.responses.retrieve(begun.id, stream=True))
        for seen in range(len(whole)):
            with client.responses.stream(response_id=begun.id, starting_after=seen) as stream:
                assert [event.sequence_number for event in stream] == list(range(seen + 1, len(whole)))
                final = stream.get_final_response()
            assert [item.type for item in final.output] == ["reasoning", "function_call"]

    await trio.to_thread.run_sync(use)


async def test_a_conversation_is_used_from_its_beginning_to_its_end(client: Any) -> None:
    def use() -> None:
        conversation = strictly(
            client.conversations.create(metadata={"a": "b"}, items=[{"role": "user", "content": "hello"}])
        )
        response = strictly(client.responses.create(input="there", conversation=conversation.id))
        assert response.conversation.id == conversation.id
        items = [strictly(item) for item in client.conversations.items.list(conversation.id, limit=2, order="asc")]
        assert [item.content[0].text for item in items] == ["hello", "there", "You said there."]
        assert strictly(client.conversations.items.retrieve(items[0].id, conversation_id=conversation.id)) == items[0]
        added = strictly(
            client.conversations.items.create(conversation.id, items=[{"role": "user", "content": "more"}])
        )
        assert added.data[0].content[0].text == "more"
        assert client.conversations.items.delete(items[0].id, conversation_id=conversation.id).id == conversation.id
        assert strictly(client.conversations.update(conversation.id, metadata={"c": "d"})).metadata == {"c": "d"}
        assert strictly(client.conversations.retrieve(conversation.id)).metadata == {"c": "d"}
        assert len(list(client.conversations.items.list(conversation.id))) == 3
        assert strictly(client.conversations.delete(conversation.id)).deleted

    await trio.to_thread.run_sync(use)


async def test_a_response_is_compacted(client: Any) -> None:
    def use() -> None:
        # Its types know no user's message in an output, which is where the API puts those that are left.
        compacted = client.responses.with_raw_response.compact(model="test", input="Remember blue.")
        assert compacted.parse().output[-1].type == "compaction"
        given = [*compacted.http_response.json()["output"], {"role": "user", "content": "so"}]
        assert client.responses.create(input=given).output_text == "You said so."

    await trio.to_thread.run_sync(use)
