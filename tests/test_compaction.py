"""A context that has grown too long is summed up, in the stream and on request."""

import pytest

from engine.compaction import window_of
from engine.items import FunctionCallOutput, Item, Message
from tests.served import open_served

STEPS = """
model: test
summary: They look at things.
steps:
  - text: I look.
    calls: [{name: look, arguments: {n: 1}}]
  - text: Seen.
  - text: "You said {last_user}."
"""
THRESHOLD = [{"type": "compaction", "compact_threshold": 1000}]
LONG = "word " * 1000
ORPHAN = {"type": "function_call_output", "call_id": "c", "output": ""}


def user(text: str) -> Item:
    return Message(role="user", content=text)


def texts(items: list[Item]) -> list[str]:
    return [item.content for item in items if isinstance(item, Message) and isinstance(item.content, str)]


@pytest.mark.parametrize(
    ("max_chars", "kept"),
    [(100, ["aaaa", "bbbb", "cccc"]), (8, ["bbbb", "cccc"]), (7, ["cccc"]), (1, ["cccc"])],
)
def test_a_window_is_the_newest_user_messages_and_the_summary(max_chars: int, kept: list[str]) -> None:
    items = [user("aaaa"), user("bbbb"), FunctionCallOutput(call_id="c", output="x" * 50), user("cccc")]
    *said, summary = window_of(items, "What happened.", max_chars)
    assert texts(said) == kept
    assert isinstance(summary, Message)
    assert (summary.role, summary.content) == ("developer", texts([summary])[0])
    assert texts([summary])[0].endswith("What happened.")


def test_a_window_of_nothing_is_the_summary() -> None:
    assert len(window_of([], "Nothing.", 10)) == 1


async def call(client, **fields):
    await client.create(context_management=THRESHOLD, **fields)
    return await client.step()


async def test_a_context_over_the_threshold_is_compacted_before_the_step_goes_on():  # P54
    async with open_served(STEPS, lifecycle="chain") as server, server.connect() as client:
        first = await call(client, input="go", store=False)
        key = first[-1]["response"]["output"][-1]["call_id"]
        output = {"type": "function_call_output", "call_id": key, "output": LONG}
        frames = await call(client, previous_response_id=first[-1]["response"]["id"], input=[output], store=False)
        kinds = [frame["type"] for frame in frames[2:6]]
        assert kinds == [
            "response.output_item.added",
            "response.compaction.compacting",
            "response.output_item.done",
            "response.output_item.added",
        ]
        compaction, message = frames[-1]["response"]["output"]
        assert compaction["type"] == "compaction"
        assert "word" not in compaction["encrypted_content"]
        assert message["content"][0]["text"] == "Seen."
        assert frames[-1]["response"]["usage"]["input_tokens"] < 200  # of the step that went on
        # and the chain goes on from the short context
        frames = await call(client, previous_response_id=frames[-1]["response"]["id"], input="more", store=False)
        assert frames[-1]["response"]["output"][0]["content"][0]["text"] == "You said more."
        assert frames[-1]["response"]["usage"]["input_tokens"] < 200


async def test_below_the_threshold_nothing_is_compacted():  # P54
    async with open_served(STEPS, lifecycle="chain") as server, server.connect() as client:
        frames = await call(client, input="go")
        assert "compaction" not in [item["type"] for item in frames[-1]["response"]["output"]]


async def test_a_long_lived_run_compacts_itself_and_its_tokens_begin_a_new_segment():  # P54
    async with open_served(STEPS) as server, server.connect() as client:
        await client.create(context_management=THRESHOLD)
        key = (await client.step())[-1]["response"]["pending"][0]["answer_key"]
        await client.answer((key, LONG))
        frames = await client.step()
        output = frames[-1]["response"]["output"]
        assert [item["type"] for item in output] == ["message", "function_call", "compaction", "message"]
        assert frames[-1]["response"]["usage"]["input_tokens"] < 200


async def test_what_was_compacted_comes_back_as_the_client_carries_it():  # P55
    async with open_served(STEPS, lifecycle="chain") as server, server.connect() as client:
        frames = await call(client, input=[user_item("the question"), user_item(LONG)], store=False)
        compaction = frames[-1]["response"]["output"][0]
        assert compaction["type"] == "compaction"
        await client.create(input=[compaction, user_item("hello")], store=False)
        response = (await client.step())[-1]["response"]
        # two messages that still fitted, the summary, and what is new
        assert response["timing"]["step"]["items_new"] == 4


def user_item(text):
    return {"role": "user", "content": text}


async def test_a_trigger_compacts_at_once_and_as_the_last_item_does_nothing_else():  # P55
    async with open_served(STEPS, lifecycle="chain") as server, server.connect() as client:
        await client.create(input=[user_item("go"), {"type": "compaction_trigger"}])
        response = (await client.step())[-1]["response"]
        assert [item["type"] for item in response["output"]] == ["compaction"]
        assert response["status"] == "completed"
        await client.create(input=[{"type": "compaction_trigger"}, user_item("go")])
        response = (await client.step())[-1]["response"]
        assert [item["type"] for item in response["output"]] == ["compaction", "message", "function_call"]


async def test_a_changed_compaction_is_refused_by_name():  # P55
    async with open_served(STEPS, lifecycle="chain") as server, server.connect() as client:
        await client.create(input=[{"type": "compaction", "encrypted_content": "lls1.AAAA"}, user_item("go")])
        error = (await client.step())[-1]["error"]
        assert error["param"] == "input[0].encrypted_content"


# --- POST /v1/responses/compact ----------------------------------------------------------------------------------


async def test_a_context_is_compacted_without_a_response():  # P56
    async with open_served(STEPS) as server:
        reply = await server.http().post(
            "/v1/responses/compact",
            model="test",
            input=[user_item("one"), {"role": "assistant", "content": "said"}, user_item("two")],
        )
        assert reply.status == 200
        body = reply.json
        assert body["object"] == "response.compaction"
        assert [item["type"] for item in body["output"]] == ["message", "message", "compaction"]
        assert body["output"][0]["content"] == [{"type": "input_text", "text": "one"}]
        assert len({item["id"] for item in body["output"]}) == 3
        assert body["usage"]["output_tokens"] > 0


async def test_a_chain_begins_with_what_was_compacted():  # P56
    async with open_served(STEPS, lifecycle="chain") as server, server.connect() as client:
        reply = await server.http().post("/v1/responses/compact", model="test", input="the task")
        await client.create(input=[*reply.json["output"], user_item("go on")])
        timing = (await client.step())[-1]["response"]["timing"]["step"]
        assert timing["items_new"] == 3  # the task, the summary and what is new


async def test_what_is_too_long_to_be_read_is_compacted_without_its_oldest_items():  # P56
    small = "model: small\ncontext_window: 300\nsummary: Short.\nsteps: [{text: Ok.}]"
    said = [user_item(f"{number} " + "word " * 60) for number in range(20)]
    async with open_served(small) as server:
        reply = await server.http().post("/v1/responses/compact", model="small", input=said)
        assert reply.status == 200
        assert reply.json["output"][-2]["content"][0]["text"].startswith("19 ")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": "x"}, "model"),
        (
            {"model": "test", "input": [{"type": "function_call_output", "call_id": "c", "output": ""}]},
            "input[0].call_id",
        ),
        ({"model": "test", "input": "x", "previous_response_id": "resp_x"}, "previous_response_id"),
    ],
)
async def test_what_cannot_be_compacted_is_refused_by_name(body, param):  # P56
    async with open_served(STEPS) as server:
        reply = await server.http().post("/v1/responses/compact", **body)
        assert (reply.status, reply.json["error"]["param"]) == (400, param)
