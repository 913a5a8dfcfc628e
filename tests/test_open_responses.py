"""What the suite of Open Responses asks of a server, each test under its name there, with the schema in full.

Written from the behaviours it checks; the requests and the types are ours.
"""

import base64
from typing import Any

from tests.kept import open_kept
from tests.open_responses import Compacted, Response, SocketEvent, StreamEvent
from tests.served import Client, Served, open_served

SAYING = "model: test\nsteps:\n  - text: Hello to you.\n"
CALLING = """
model: test
steps:
  - calls: [{name: get_weather, arguments: {location: "San Francisco, CA"}}]
  - text: "It is {last_output}."
"""
WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather of a place.",
    "parameters": {"type": "object", "properties": {"location": {"type": "string"}}, "required": ["location"]},
}
DOT = base64.b64encode(b"\x89PNG\r\n\x1a\n").decode()
TERMINAL = {"response.completed", "response.failed", "response.incomplete"}


def said(role: str, text: str, **fields: Any) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": text} | fields


async def post(server: Served, **body: Any) -> Response:
    """A response that is whole, completed and not empty."""
    reply = await server.http().create(**body)
    assert reply.status == 200
    assert reply.headers["content-type"] == "application/json"
    return check(reply.json)


def check(response: dict[str, Any]) -> Response:
    parsed = Response.model_validate(response)
    assert parsed.status == "completed"
    assert parsed.output
    return parsed


async def turn(client: Client, **fields: Any) -> dict[str, Any]:
    """The last frame of a turn on a socket; each fits the schema."""
    await client.send("response.create", **({"model": "test"} | fields))
    frames = await client.step()
    for frame in frames:
        SocketEvent.validate_python(frame)
    assert [frame["type"] in TERMINAL | {"error"} for frame in frames].index(True) == len(frames) - 1
    return frames[-1]


async def good_turn(client: Client, **fields: Any) -> Response:
    last = await turn(client, **fields)
    assert last["type"] == "response.completed", last
    return check(last["response"])


# --- HTTP --------------------------------------------------------------------------------------------------------


async def test_basic_response() -> None:
    async with open_served(SAYING) as server:
        await post(server, model="test", input=[said("user", "Say hello in three words.")])


async def test_assistant_phase() -> None:
    async with open_served(SAYING) as server:
        commentary = said("assistant", "Let me think.", phase="commentary")
        answer = said("assistant", "Four.", phase="final_answer")
        await post(server, input=[said("user", "2 + 2?"), commentary, answer, said("user", "And 3 + 3?")])


async def test_streaming_response() -> None:
    async with open_served(SAYING) as server:
        events = await server.http().events(model="test", input=[said("user", "Count to five.")])
    for event in events:
        StreamEvent.validate_python(event)
    check(events[-1]["response"])


async def test_system_prompt() -> None:
    async with open_served(SAYING) as server:
        await post(server, input=[said("system", "Talk like a pirate."), said("user", "Say hello.")])


async def test_tool_calling() -> None:
    async with open_served(CALLING) as server:
        response = await post(server, input=[said("user", "Weather?")], tools=[WEATHER], tool_choice="auto")
    assert [item.type for item in response.output] == ["function_call"]


async def test_tool_calling_streaming() -> None:
    async with open_served(CALLING) as server:
        events = await server.http().events(input=[said("user", "Weather?")], tools=[WEATHER])
    types = [StreamEvent.validate_python(event).type for event in events]
    first_delta = types.index("response.function_call_arguments.delta")
    assert first_delta < types.index("response.function_call_arguments.done")
    check(events[-1]["response"])


async def test_function_call_roundtrip() -> None:
    async with open_kept(CALLING) as server:
        choice = {"type": "function", "name": "get_weather"}
        first = await post(server, input=[said("user", "Weather?")], tools=[WEATHER], tool_choice=choice)
        (call,) = first.output
        output = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
        second = await post(server, input=[output], tools=[WEATHER], previous_response_id=first.id)
    assert [item.type for item in second.output] == ["message"]


async def test_previous_response_id() -> None:
    async with open_kept(SAYING) as server:
        first = await post(server, input=[said("user", "Remember 7.")])
        second = await post(server, input=[said("user", "Which?")], previous_response_id=first.id)
    assert second.previous_response_id == first.id


async def test_image_input() -> None:
    async with open_served(SAYING) as server:
        image = {"type": "input_image", "image_url": f"data:image/png;base64,{DOT}"}
        content = [{"type": "input_text", "text": "What is it?"}, image]
        await post(server, input=[{"type": "message", "role": "user", "content": content}])


async def test_file_input() -> None:
    async with open_served(SAYING) as server:
        file = {"type": "input_file", "filename": "a.pdf", "file_data": f"data:application/pdf;base64,{DOT}"}
        content = [{"type": "input_text", "text": "What is it?"}, file]
        await post(server, input=[{"type": "message", "role": "user", "content": content}])


async def test_multi_turn() -> None:
    async with open_served(SAYING) as server:
        history = [said("user", "My name is Alice."), said("assistant", "Hello, Alice."), said("user", "My name?")]
        await post(server, input=history)


# --- WebSocket ---------------------------------------------------------------------------------------------------


async def test_websocket_response() -> None:
    async with open_served(SAYING, lifecycle="chain") as server, server.connect() as client:
        await good_turn(client, input=[said("user", "Count to three.")])


async def test_websocket_sequential_responses() -> None:
    async with open_served(SAYING, lifecycle="chain") as server, server.connect() as client:
        first = await good_turn(client, input="One.", store=False)
        second = await good_turn(client, input="Two.", store=False)
    assert first.id != second.id


async def test_websocket_continuation() -> None:
    async with open_served(SAYING, lifecycle="chain") as server, server.connect() as client:
        first = await good_turn(client, input="Remember 7.", store=False)
        second = await good_turn(client, input="Which?", store=False, previous_response_id=first.id)
    assert second.previous_response_id == first.id


async def test_websocket_reconnect_store_false_recovery() -> None:
    async with open_served(SAYING, lifecycle="chain") as server:
        async with server.connect() as client:
            first = await good_turn(client, input="Remember 7.", store=False)
        async with server.connect() as client:
            error = await turn(client, input="Which?", store=False, previous_response_id=first.id)
            assert error["error"]["code"] == "previous_response_not_found"
            await good_turn(client, input=[said("user", "Remember 7."), said("user", "Which?")], store=False)


async def test_websocket_previous_response_not_found() -> None:
    async with open_served(SAYING, lifecycle="chain") as server, server.connect() as client:
        error = await turn(client, input="Which?", store=False, previous_response_id="resp_made_up")
    assert error["error"]["code"] == "previous_response_not_found"


async def test_websocket_failed_continuation_evicts_cache() -> None:
    async with open_served(SAYING, lifecycle="chain") as server, server.connect() as client:
        first = await good_turn(client, input="Remember 7.", store=False)
        stray = {"type": "function_call_output", "call_id": "call_unknown", "output": "x"}
        failed = await turn(client, input=[stray], store=False, previous_response_id=first.id)
        assert failed["type"] == "error"
        error = await turn(client, input="Which?", store=False, previous_response_id=first.id)
    assert error["error"]["code"] == "previous_response_not_found"


async def test_websocket_compact_new_chain() -> None:
    async with open_served(SAYING, lifecycle="chain") as server, server.connect() as client:
        reply = await server.http().post("/v1/responses/compact", model="test", input=[said("user", "Remember blue.")])
        assert reply.status == 200
        compacted = Compacted.model_validate(reply.json)
        window = [item.model_dump(exclude_unset=True) for item in compacted.output]
        await good_turn(client, input=[*window, said("user", "Which colour?")], tools=[], store=False)


# --- compacting --------------------------------------------------------------------------------------------------


async def test_compact_response() -> None:
    async with open_served(SAYING) as server:
        given = [said("user", "My name is Ada."), said("assistant", "Hello, Ada."), said("user", "Who am I?")]
        reply = await server.http().post("/v1/responses/compact", model="test", input=given, prompt_cache_key="key")
        assert reply.status == 200
        compacted = Compacted.model_validate(reply.json)
        assert any(item.type == "compaction" for item in compacted.output)


async def test_compact_missing_model() -> None:
    async with open_served(SAYING) as server:
        assert (await server.http().post("/v1/responses/compact", input="x")).status in (400, 422)
