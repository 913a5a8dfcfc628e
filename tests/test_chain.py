"""The chain and inject lifecycles over one connection: what is kept, what is let go, and what is new per turn."""

import pytest

from engine.store_fake import MemoryStore
from tests.served import FUNCTION, open_served

STEPS = """
model: test
steps:
  - text: One.
    calls: [{name: look, arguments: {n: 1}}, {name: look, arguments: {n: 2}}]
  - text: "Two after {last_output}."
  - text: "Three, you said {last_user}."
  - text: Four.
"""


def outputs(*pairs):
    return [{"type": "function_call_output", "call_id": key, "output": output} for key, output in pairs]


def calls_of(frames):
    assert frames[-1]["type"] == "response.completed", frames[-1]
    return [item["call_id"] for item in frames[-1]["response"]["output"] if item["type"] == "function_call"]


def id_of(frames):
    return frames[-1]["response"]["id"]


def texts_of(frames):
    output = frames[-1]["response"]["output"]
    return [item["content"][0]["text"] for item in output if item["type"] == "message"]


async def first_turn(client, **fields):
    await client.create(store=False, **fields)
    frames = await client.step()
    keys = calls_of(frames)
    return id_of(frames), keys


async def test_a_call_completes_the_response_and_the_next_one_goes_on_from_it():  # P43
    async with open_served(STEPS, lifecycle="chain") as server, server.connect() as client:
        first, keys = await first_turn(client)
        await client.create(previous_response_id=first, input=outputs((keys[0], "a"), (keys[1], "b")), store=False)
        frames = await client.step()
        assert frames[-1]["response"]["previous_response_id"] == first
        assert id_of(frames) != first
        assert texts_of(frames) == ["Two after b."]
        assert [frame["sequence_number"] for frame in frames] == list(range(len(frames)))
        await client.create(previous_response_id=id_of(frames), input="hello", store=False)
        assert texts_of(await client.step()) == ["Three, you said hello."]


async def test_each_turn_touches_only_what_is_new():  # P44
    async with open_served(STEPS, lifecycle="chain") as server, server.connect() as client:
        first, keys = await first_turn(client, input=[{"role": "user", "content": "word " * 400}])
        await client.create(previous_response_id=first, input=outputs((keys[0], "a"), (keys[1], "b")))
        timing = (await client.step())[-1]["response"]["timing"]["step"]
        assert timing["items_new"] == 2
        assert timing["tokens_new"] < 20
        assert timing["tokens_reused"] > 400


async def test_other_settings_render_the_history_anew_and_nothing_of_it_is_lost():  # P44
    async with open_served(STEPS, lifecycle="chain") as server, server.connect() as client:
        first, keys = await first_turn(client)
        given = outputs((keys[0], "a"), (keys[1], "b"))
        await client.create(previous_response_id=first, input=given, instructions="Be brief.")
        frames = await client.step()
        assert frames[-1]["type"] == "response.completed"
        # go, One., two calls and their two outputs
        assert frames[-1]["response"]["timing"]["step"]["items_new"] == 6


async def test_outputs_are_put_into_the_order_of_the_calls():  # P45
    async with open_served(STEPS, lifecycle="chain") as server, server.connect() as client:
        first, keys = await first_turn(client)
        await client.create(previous_response_id=first, input=outputs((keys[1], "b"), (keys[0], "a")))
        assert texts_of(await client.step()) == ["Two after b."]


@pytest.mark.parametrize(
    ("answers", "message", "param"),
    [
        ([], "No tool output found for function call {0}.", "input"),
        (["0"], "No tool output found for function call {1}.", "input"),
        (["0", "1", "x"], "No tool call found for function call output with call_id x.", "input[2].call_id"),
    ],
)
async def test_an_input_that_does_not_fit_the_calls_is_refused_and_evicts(answers, message, param):  # P45, P46
    async with open_served(STEPS, lifecycle="chain") as server, server.connect() as client:
        first, keys = await first_turn(client)
        names = {"0": keys[0], "1": keys[1], "x": "x"}
        given = outputs(*((names[name], "out") for name in answers))
        await client.create(previous_response_id=first, input=given or "and now?", store=False)
        error = (await client.step())[-1]
        assert error["status"] == 400
        assert error["error"]["message"] == message.format(*keys)
        assert error["error"]["param"] == param
        await client.create(previous_response_id=first, input=outputs((keys[0], "a"), (keys[1], "b")), store=False)
        error = (await client.step())[-1]
        assert error["error"] == {
            "type": "invalid_request_error",
            "code": "previous_response_not_found",
            "message": f"Previous response with id '{first}' not found.",
            "param": "previous_response_id",
        }
        await client.create(store=False)  # everything again, on the same socket
        assert calls_of(await client.step())


async def test_the_servers_own_items_that_come_back_are_not_taken_twice():  # P45
    async with open_served(STEPS, lifecycle="chain") as server, server.connect() as client:
        await client.create()
        frames = await client.step()
        keys = calls_of(frames)
        given = frames[-1]["response"]["output"] + outputs((keys[0], "a"), (keys[1], "b"))
        await client.create(previous_response_id=id_of(frames), input=given)
        timing = (await client.step())[-1]["response"]["timing"]["step"]
        assert timing["items_new"] == 2


async def test_only_the_latest_response_of_a_lane_is_kept():  # P46
    async with open_served(STEPS, lifecycle="chain") as server, server.connect() as client:
        first, keys = await first_turn(client)
        await client.create(previous_response_id=first, input=outputs((keys[0], "a"), (keys[1], "b")), store=False)
        second = id_of(await client.step())
        await client.create(previous_response_id=first, input=outputs((keys[0], "a"), (keys[1], "b")), store=False)
        assert (await client.step())[-1]["error"]["code"] == "previous_response_not_found"
        await client.create(previous_response_id=second, input="still there?", store=False)
        assert (await client.step())[-1]["type"] == "response.completed"


async def test_a_lane_forks_from_another_and_both_go_on():  # P47
    async with open_served(STEPS, lifecycle="chain") as server, server.connect() as client:
        first, keys = await first_turn(client, stream_id="a")
        given = outputs((keys[0], "a"), (keys[1], "b"))
        await client.create(previous_response_id=first, input=given, store=False, stream_id="b")
        assert texts_of(await client.step()) == ["Two after b."]
        await client.create(previous_response_id=first, input="no outputs", store=False, stream_id="c")
        assert (await client.step())[-1]["status"] == 400  # a fork that fails harms nobody
        await client.create(previous_response_id=first, input=given, store=False, stream_id="a")
        assert texts_of(await client.step()) == ["Two after b."]


async def test_a_warm_up_says_nothing_and_is_gone_on_from():  # P48
    async with open_served(STEPS, lifecycle="chain") as server, server.connect() as client:
        await client.create(generate=False, input=[])
        frames = await client.step()
        assert [frame["type"] for frame in frames if frame["type"] != "response.in_progress"] == [
            "response.created",
            "response.completed",
        ]
        assert frames[-1]["response"]["output"] == []
        assert frames[-1]["response"]["usage"]["output_tokens"] == 0
        await client.create(previous_response_id=id_of(frames), input="go")
        assert calls_of(await client.step())


async def test_an_unknown_id_is_refused_and_the_socket_stays():  # P46
    async with open_served(STEPS, lifecycle="chain") as server, server.connect() as client:
        await client.create(previous_response_id="resp_x", input="hi")
        error = (await client.step())[-1]
        assert (error["status"], error["error"]["code"]) == (400, "previous_response_not_found")
        await client.create()
        assert calls_of(await client.step())


async def test_an_id_lives_on_the_connection_that_made_it():  # P46
    async with open_served(STEPS, lifecycle="chain") as server:
        async with server.connect() as client:
            first, _ = await first_turn(client)
        async with server.connect() as other:
            await other.create(previous_response_id=first, input="hi", store=False)
            assert (await other.step())[-1]["error"]["code"] == "previous_response_not_found"


async def test_a_fresh_create_on_a_lane_begins_anew():  # P44
    async with open_served(STEPS, lifecycle="chain") as server, server.connect() as client:
        await first_turn(client)
        await client.create(input="anew")
        frames = await client.step()
        assert frames[-1]["response"]["timing"]["step"]["items_new"] == 1


@pytest.mark.parametrize(("lifecycle", "frame"), [("chain", "append"), ("inject", "append"), ("append", "inject")])
async def test_a_frame_of_another_lifecycle_is_refused_by_name(lifecycle, frame):  # P43, P49
    async with open_served(STEPS, lifecycle=lifecycle) as server, server.connect() as client:
        await client.send(f"response.{frame}", input=[], response_id="resp_x")
        error = await client.receive()
        assert (error["error"]["code"], error["error"]["param"]) == ("wrong_lifecycle", "type")


async def test_instructions_are_not_inherited():  # P44
    async with open_served(STEPS, lifecycle="chain") as server, server.connect() as client:
        first, keys = await first_turn(client, instructions="Be brief.")
        await client.create(previous_response_id=first, input=outputs((keys[0], "a"), (keys[1], "b")))
        assert (await client.step())[-1]["response"]["instructions"] is None


SMALL = """
model: small
context_window: 60
steps:
  - text: Ok.
"""
NEVER_FITS = [{"role": "user", "content": "word " * 100}]


async def test_truncation_leaves_out_the_oldest_items_of_what_does_not_fit():  # P53
    said = [{"role": "user", "content": f"{number} " + "word " * 15} for number in range(6)]
    async with open_served(SMALL, lifecycle="chain") as server, server.connect() as client:
        await client.create(input=said, tools=[], instructions="Be brief.")
        assert (await client.step())[-1]["error"]["code"] == "context_length_exceeded"
        await client.create(input=said, tools=[], instructions="Be brief.", truncation="auto")
        response = (await client.step())[-1]["response"]
        assert response["truncation"] == "auto"
        assert response["timing"]["step"]["items_new"] == 2
        assert response["status"] == "completed"
        await client.create(previous_response_id=response["id"], input=said[:2], tools=[], truncation="auto")
        assert (await client.step())[-1]["response"]["timing"]["step"]["items_new"] < 9
        await client.create(input=NEVER_FITS, tools=[], truncation="auto")
        assert (await client.step())[-1]["error"]["code"] == "context_length_exceeded"


# --- inject ------------------------------------------------------------------------------------------------------


async def inject(client, response_id, *pairs):
    await client.send("response.inject", response_id=response_id, input=outputs(*pairs))


async def until_calls(client, count):
    frames, keys = [], []
    while len(keys) < count:
        frames.append(await client.receive())
        if frames[-1]["type"] == "response.output_item.done" and frames[-1]["item"]["type"] == "function_call":
            keys.append(frames[-1]["item"]["call_id"])
    return frames, keys


async def test_an_injected_output_resumes_the_run_without_a_terminal():  # P49
    async with open_served(STEPS, lifecycle="inject") as server, server.connect() as client:
        await client.create(input=[{"role": "user", "content": "go"}], tools=[FUNCTION])
        frames, keys = await until_calls(client, 2)
        response_id = frames[0]["response"]["id"]
        await inject(client, response_id, (keys[0], "a"))
        frames.append(await client.receive())
        assert frames[-1] == {
            "type": "response.inject.created",
            "response_id": response_id,
            "sequence_number": len(frames) - 1,
        }
        await inject(client, response_id, (keys[1], "b"))
        frames += await client.step()
        assert frames[-1]["type"] == "response.completed"
        assert [frame["sequence_number"] for frame in frames] == list(range(len(frames)))
        assert {frame["type"] for frame in frames}.isdisjoint({"response.done"})
        assert texts_of(frames) == ["One.", "Two after b."]


@pytest.mark.parametrize("when", ["ended", "never"])
async def test_what_cannot_be_injected_comes_back_with_the_reason(when):  # P50
    async with open_served("model: t\nsteps: [{text: Hi.}]", lifecycle="inject") as server, server.connect() as client:
        await client.create(tools=[])
        response_id = id_of(await client.step()) if when == "ended" else "resp_x"
        if when == "never":
            await client.step()
        await inject(client, response_id, ("c", "a"))
        failed = await client.receive()
        assert failed["type"] == "response.inject.failed"
        assert failed["response_id"] == response_id
        assert failed["input"] == outputs(("c", "a"))
        expected = {"ended": "response_already_completed", "never": "response_not_found"}[when]
        assert failed["error"]["code"] == expected


async def test_the_message_that_is_the_answer_says_so():
    async with open_served(STEPS, lifecycle="inject") as server, server.connect() as client:
        await client.create(multi_agent={"enabled": True})
        frames = await client.until("response.output_item.done")
        assert (frames[-1]["item"]["phase"], frames[-1]["item"]["agent"]) == ("commentary", {"agent_name": "/root"})
        keys = [(await client.until("response.output_item.done"))[-1]["item"]["call_id"] for _ in range(2)]
        await inject(client, frames[0]["response"]["id"], (keys[0], "a"), (keys[1], "b"))
        ended = await client.step()
        assert [item.get("phase") for item in ended[-1]["response"]["output"]] == [
            "commentary", None, None, "final_answer",
        ]  # fmt: skip


async def test_a_bad_injection_loses_nothing():  # P50
    async with open_served(STEPS, lifecycle="inject") as server, server.connect() as client:
        await client.create()
        frames, keys = await until_calls(client, 2)
        await inject(client, frames[0]["response"]["id"], ("unknown", "a"))
        failed = await client.receive()
        assert failed["error"]["param"] == "input[0].call_id"
        await inject(client, frames[0]["response"]["id"], (keys[0], "a"), (keys[1], "b"))
        assert texts_of(await client.step()) == ["One.", "Two after b."]


async def test_a_chains_open_calls_count_for_an_append_elsewhere():  # P45
    async with open_served(STEPS, store=MemoryStore()) as server, server.connect("?lifecycle=chain") as client:
        await client.create()
        frames = await client.step()
        keys = calls_of(frames)
        async with server.connect("?lifecycle=append") as other:
            await other.send("response.resume", response_id=id_of(frames))
            await other.step()
            await other.send("response.append", input=outputs((keys[0], "a")))
            assert (await other.receive())["error"]["message"].startswith("No tool output found")
