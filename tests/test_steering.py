"""`response.steer`: what the user says while a response of a chain is sampled."""

import pytest
import trio

from tests.served import open_served

LONG = """
model: test
pace: {tokens_per_second: 100}
steps:
  - text: {words: 10000}
  - text: "You said {last_user}."
  - text: "Then {last_user}."
"""
CALLS = """
model: test
pace: {tokens_per_second: 100}
steps:
  - text: I look.
    calls: [{name: look, arguments: {n: 1}}]
  - text: "After {last_output} and {last_user}."
"""


async def steer(client, response_id, said="stop", **fields):
    await client.send("response.steer", previous_response_id=response_id, input=said, **fields)


async def test_a_steer_stops_the_response_and_a_successor_goes_on_with_it(autojump_clock):  # P51
    async with open_served(LONG, lifecycle="chain") as server, server.connect() as client:
        await client.create(tools=[])
        frames = await client.until("response.output_text.delta")
        first = frames[0]["response"]["id"]
        await steer(client, first)
        accepted = (await client.until("response.steer.accepted"))[-1]
        assert accepted["steer"]["previous_response_id"] == first
        ended = (await client.step())[-1]
        assert ended["type"] == "response.incomplete"
        assert ended["response"]["incomplete_details"] == {"reason": "steered"}
        assert ended["response"]["output"][-1]["status"] == "incomplete"
        frames = await client.step()
        assert frames[0]["type"] == "response.created"
        assert frames[0]["response"]["previous_response_id"] == first
        assert frames[-1]["response"]["output"][0]["content"][0]["text"] == "You said stop."


async def test_a_steer_does_not_wait_for_the_first_token(autojump_clock):  # P51
    slow = "model: t\npace: {ttft_ms: 60000}\nsteps: [{text: Hi.}, {text: Ho.}]"
    async with open_served(slow, lifecycle="chain") as server, server.connect() as client:
        await client.create(tools=[])
        await client.receive()
        await steer(client, (await client.receive())["response"]["id"])
        with trio.fail_after(1):
            assert (await client.step())[-1]["response"]["output"] == []


async def test_several_steers_go_on_together(autojump_clock):  # P51, P52
    async with open_served(CALLS, lifecycle="chain") as server, server.connect() as client:
        await client.create(stream_id="a")
        frames = await client.until("response.function_call_arguments.delta")
        first = frames[0]["response"]["id"]
        await steer(client, first, "one")
        await steer(client, first, [{"role": "user", "content": "two"}])
        frames = await client.step()
        accepted = [frame for frame in frames if frame["type"] == "response.steer.accepted"]
        assert len({frame["steer"]["id"] for frame in accepted}) == 2
        pending = [await client.receive() for _ in accepted]
        assert [frame["steer"] for frame in pending] == [frame["steer"] for frame in accepted]
        assert all(frame["stream_id"] == "a" for frame in frames + pending)
        filled = [pending[0]["required_input"][0] | {"output": "a"}]
        await client.create(previous_response_id=first, input=filled, stream_id="a")
        response = (await client.step())[-1]["response"]
        assert response["output"][0]["content"][0]["text"] == "After a and two."
        assert response["timing"]["step"]["items_new"] == 3


async def test_a_response_that_stops_for_a_tool_lets_the_steer_wait_for_the_output(autojump_clock):  # P52
    async with open_served(CALLS, lifecycle="chain") as server, server.connect() as client:
        await client.create()
        frames = await client.until("response.function_call_arguments.delta")
        first = frames[0]["response"]["id"]
        await steer(client, first, "hurry")
        frames = await client.step()
        assert frames[-1]["type"] == "response.completed"
        key = frames[-1]["response"]["output"][-1]["call_id"]
        pending = await client.receive()
        assert pending["type"] == "response.steer.pending"
        assert pending["reason"] == "waiting_for_required_input"
        assert pending["required_input"] == [{"type": "function_call_output", "call_id": key}]
        filled = [pending["required_input"][0] | {"output": "a"}]
        await client.create(previous_response_id=first, input=filled)
        text = (await client.step())[-1]["response"]["output"][0]["content"][0]["text"]
        assert text == "After a and hurry."


async def test_a_steer_that_waits_fails_when_another_response_is_begun(autojump_clock):  # P52
    async with open_served(CALLS, lifecycle="chain") as server, server.connect() as client:
        await client.create()
        frames = await client.until("response.function_call_arguments.delta")
        await steer(client, frames[0]["response"]["id"], "hurry")
        await client.until("response.steer.pending")
        await client.create(input="something else")
        failed = await client.receive()
        assert failed["type"] == "response.steer.failed"
        assert failed["error"]["code"] == "response_not_active"
        assert failed["steer"]["input"] == "hurry"


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ([], "invalid_input"),
        ([{"role": "assistant", "content": "x"}], "invalid_input"),
        ([{"type": "nonsense"}], "invalid_input"),
    ],
)
async def test_what_is_no_user_message_does_not_steer(said, code, autojump_clock):  # P51
    async with open_served(LONG, lifecycle="chain") as server, server.connect() as client:
        await client.create(tools=[])
        first = (await client.receive())["response"]["id"]
        await steer(client, first, said)
        failed = (await client.until("response.steer.failed"))[-1]
        assert failed["error"]["code"] == code
        assert failed["steer"] == {"previous_response_id": first, "input": said}


async def test_an_unknown_and_an_ended_response_are_not_steered():  # P51
    async with open_served("model: t\nsteps: [{text: Hi.}]", lifecycle="chain") as server, server.connect() as client:
        await steer(client, "resp_x")
        assert (await client.receive())["error"]["code"] == "response_not_found"
        await client.create(tools=[])
        first = (await client.step())[-1]["response"]["id"]
        await steer(client, first)
        assert (await client.receive())["error"]["code"] == "response_already_completed"


async def test_too_many_steers_are_refused(autojump_clock):  # P51
    async with open_served(CALLS, lifecycle="chain", max_steers=1) as server, server.connect() as client:
        await client.create()
        frames = await client.until("response.function_call_arguments.delta")
        await steer(client, frames[0]["response"]["id"])
        await steer(client, frames[0]["response"]["id"])
        failed = (await client.until("response.steer.failed"))[-1]
        assert failed["error"]["code"] == "too_many_pending_steers"


async def test_the_other_lifecycles_are_not_steered():  # P51
    async with open_served(LONG, lifecycle="append") as server, server.connect() as client:
        await steer(client, "resp_x")
        assert (await client.receive())["error"]["code"] == "steering_not_supported"


async def test_a_cancelled_response_takes_its_steers_along(autojump_clock):  # P52
    async with open_served(CALLS, lifecycle="chain") as server, server.connect() as client:
        await client.create()
        frames = await client.until("response.function_call_arguments.delta")
        await steer(client, frames[0]["response"]["id"])
        await client.send("response.cancel")
        assert (await client.step())[-1]["response"]["incomplete_details"] == {"reason": "cancelled"}
        assert (await client.receive())["error"]["code"] == "response_not_active"


async def test_a_successor_comes_before_what_waits(autojump_clock):  # P51
    async with open_served(LONG, lifecycle="chain") as server, server.connect() as client:
        await client.create(tools=[])
        first = (await client.receive())["response"]["id"]
        await client.create(input="queued", tools=[])
        await steer(client, first)
        await client.step()
        assert (await client.receive())["response"]["previous_response_id"] == first
