"""One connection end to end over memory streams: frames in, frames out, the clock mocked."""

import json

import pytest
import trio
import trio.testing
from trio_websocket import ConnectionClosed

from engine.backends.scenario import parse_scenario
from engine.backends.script import ScriptBackend, ScriptSequence
from engine.backends.script_context import EstimatedContext
from tests.http_peer import HANDSHAKE
from tests.served import FUNCTION, TWO_CALLS, open_served, pending

ENDLESS = """
model: endless
pace: {tokens_per_second: 100}
steps:
  - text: {words: 100000}
"""
KEPT_OPEN = """
model: talk
steps:
  - text: "You said {last_user}."
"""


async def test_a_run_is_one_response_over_all_its_steps():  # P16, P27
    async with open_served() as server, server.connect() as client:
        await client.create()
        first = await client.step()
        keys = pending(first)
        assert len(keys) == 2
        await client.answer((keys[0], "a"), (keys[1], "b"))
        second = await client.step()
        assert second[0] == {
            "type": "response.append.accepted",
            "response_id": first[0]["response"]["id"],
            "answered": keys,
            "still_pending": [],
        }
        events = first + second[1:]
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        assert events[-1]["type"] == "response.completed"
        assert events[-1]["response"]["id"] == events[0]["response"]["id"]
        assert [item["type"] for item in events[-1]["response"]["output"]] == [
            "message",
            "function_call",
            "function_call",
            "message",
        ]
        assert events[-1]["response"]["output"][-1]["content"][0]["text"] == "Done with b."


async def test_outputs_may_come_one_by_one_in_any_order():  # P17
    async with open_served() as server, server.connect() as client:
        await client.create()
        keys = pending(await client.step())
        await client.answer((keys[1], "second"))
        ack = await client.receive()
        assert (ack["answered"], ack["still_pending"]) == ([keys[1]], [keys[0]])
        await client.answer((keys[0], "first"))
        frames = await client.step()
        # Rendered in the order of the calls, so the last output is the second call's.
        assert frames[-1]["response"]["output"][-1]["content"][0]["text"] == "Done with second."


async def test_an_early_append_leaves_no_pause(autojump_clock):  # P18
    scenario = """
model: slow
steps:
  - calls: [{name: look, arguments: {}}]
    text: and I keep talking for a while
    pace: {tokens_per_second: 10}
  - text: end
"""
    async with open_served(scenario) as server, server.connect() as client:
        await client.create()
        frames = await client.until("response.output_item.done")
        while frames[-1]["item"]["type"] != "function_call":
            frames += await client.until("response.output_item.done")
        await client.answer((frames[-1]["item"]["call_id"], "early"))
        rest = await client.step()
        assert "response.done" not in [frame["type"] for frame in rest]
        assert rest[-1]["type"] == "response.completed"


@pytest.mark.parametrize(
    ("frame", "code", "param"),
    [
        ({"type": "response.append", "input": [{"type": "function_call_output", "call_id": "call_x", "output": ""}]},
         "invalid_value", "input[0].call_id"),
        ({"type": "response.append", "input": [{"type": "function_call_output", "call_id": "call_x"}]},
         "missing_required_parameter", "input[0].output"),
        ({"type": "response.append", "input": "hello"}, "invalid_value", "input"),
        ({"type": "response.append"}, "missing_required_parameter", "input"),
        ({"type": "nonsense"}, "unknown_event_type", "type"),
        ({"type": "response.append", "input": [], "tool_choice": {"type": "function", "name": "other"}},
         "invalid_value", "tool_choice.name"),
    ],
)  # fmt: skip
async def test_bad_input_at_a_pause_loses_nothing(frame, code, param):  # P13, P14, P33
    async with open_served() as server, server.connect() as client:
        await client.create()
        keys = pending(await client.step())
        await client.send(frame["type"], **{key: value for key, value in frame.items() if key != "type"})
        error = await client.receive()
        assert (error["type"], error["status"]) == ("error", 400)
        assert (error["error"]["code"], error["error"]["param"]) == (code, param)
        await client.answer((keys[0], "a"), (keys[1], "b"))
        assert (await client.step())[-1]["type"] == "response.completed"


async def test_an_append_without_a_run_is_not_found():  # P15
    async with open_served() as server, server.connect() as client:
        await client.answer(("call_1", "x"))
        error = await client.receive()
        assert (error["status"], error["error"]["code"]) == (404, "response_not_found")


async def test_a_late_append_is_not_found_and_a_full_create_works(autojump_clock):  # P15, P28, P34
    async with open_served(pause_ttl_s=5) as server, server.connect() as client:
        await client.create()
        keys = pending(await client.step())
        await trio.sleep(6)
        await client.answer((keys[0], "late"))
        # Nothing was sent at the expiry itself: the error is the next frame after the pause.
        error = await client.receive()
        assert (error["status"], error["error"]["code"]) == (404, "response_not_found")
        await client.create()
        assert (await client.step())[-1]["type"] == "response.done"


async def test_a_create_on_a_paused_lane_supersedes_silently():  # P10
    async with open_served() as server, server.connect() as client:
        await client.create()
        await client.step()
        await client.create()
        frames = await client.step()
        assert frames[0]["type"] == "response.created"
        assert frames[-1]["type"] == "response.done"


async def test_a_create_on_a_sampling_lane_waits(autojump_clock):  # P10
    scenario = "model: m\nsteps:\n  - text: {words: 20}\n    pace: {tokens_per_second: 10}\n"
    async with open_served(scenario) as server, server.connect() as client:
        await client.create()
        await client.create()
        first, second = await client.step(), await client.step()
        assert first[-1]["response"]["id"] != second[0]["response"]["id"]
        assert second[0]["type"] == "response.created"
        assert second[-1]["type"] == "response.completed"


async def test_cancel_ends_a_paused_and_a_sampling_run(autojump_clock):  # P25
    async with open_served(ENDLESS) as server, server.connect() as client:
        await client.create()
        await client.until("response.output_text.delta")
        await client.send("response.cancel")
        last = (await client.step())[-1]
        assert (last["type"], last["response"]["incomplete_details"]) == (
            "response.incomplete",
            {"reason": "cancelled"},
        )
    async with open_served() as server, server.connect() as client:
        await client.create()
        await client.step()
        await client.send("response.cancel")
        assert (await client.receive())["response"]["incomplete_details"] == {"reason": "cancelled"}
        await client.send("response.cancel")
        assert (await client.receive())["error"]["code"] == "response_not_found"


async def test_lanes_run_side_by_side_and_are_named_on_every_frame(autojump_clock):  # P7
    scenario = "model: m\nsteps:\n  - text: {words: 20}\n    pace: {tokens_per_second: 10}\n"
    async with open_served(scenario) as server, server.connect() as client:
        await client.create(stream_id="a")
        await client.create(stream_id="b")
        await client.create()
        ends, seen = 0, set()
        while ends < 3:
            frame = await client.receive()
            seen.add(frame.get("stream_id"))
            ends += frame["type"] == "response.completed"
        assert seen == {"a", "b", None}
        assert trio.current_time() < 5  # side by side, not one after the other


async def test_kept_open_takes_the_next_user_message():  # P19
    async with open_served(KEPT_OPEN) as server, server.connect() as client:
        await client.create(input="one", keep_open=True)
        first = await client.step()
        assert pending(first) == []
        await client.send("response.append", input="two")
        second = await client.step()
        assert second[-1]["type"] == "response.done"
        deltas = "".join(frame["delta"] for frame in second if frame["type"] == "response.output_text.delta")
        assert deltas == "You said two."


async def test_resume_on_another_connection_replays_what_was_missed(autojump_clock):  # P26, P42
    async with open_served() as server:
        async with server.connect() as client:
            await client.create(resumable=True)
            first = await client.step()
            response_id = first[0]["response"]["id"]
        async with server.connect() as client:
            await client.send("response.resume", response_id=response_id, starting_after=3)
            ack, *again = await client.step()
            assert ack == {
                "type": "response.resume.accepted",
                "response_id": response_id,
                "starting_after": 3,
                "status": "paused",
                "last_sequence_number": first[-1]["sequence_number"],
            }
            assert again == first[4:]
            keys = pending(again)
            await client.answer((keys[0], "a"), (keys[1], "b"))
            assert (await client.step())[-1]["type"] == "response.completed"


async def test_a_lease_that_runs_out_ends_the_run(autojump_clock):  # P42
    async with open_served(lease_s=5) as server:
        async with server.connect() as client:
            await client.create(resumable=True)
            response_id = (await client.step())[0]["response"]["id"]
        await trio.sleep(6)
        async with server.connect() as client:
            await client.send("response.resume", response_id=response_id, starting_after=-1)
            frames = await client.step()
            while frames[-1]["type"] == "response.done":
                frames = await client.step()
            assert frames[-1]["response"]["incomplete_details"] == {"reason": "connection_lost"}


async def test_a_dropped_connection_cancels_a_run_that_is_not_resumable(autojump_clock):  # P41
    async with open_served(ENDLESS) as server:
        async with server.connect() as client:
            await client.create()
            response_id = (await client.until("response.output_text.delta"))[0]["response"]["id"]
        await trio.testing.wait_all_tasks_blocked()
        async with server.connect() as client:
            await client.send("response.resume", response_id=response_id)
            assert (await client.receive())["error"]["code"] == "response_not_found"


async def test_another_key_does_not_find_the_run():  # P4
    async with open_served() as server, server.connect() as client:
        await client.create(resumable=True)
        response_id = (await client.step())[0]["response"]["id"]
        async with server.connect(headers=[(b"Authorization", b"Bearer other")]) as other:
            await other.send("response.resume", response_id=response_id)
            assert (await other.receive())["error"]["code"] == "response_not_found"


async def test_a_handshake_is_answered_with_its_request_id():
    async with open_served() as server:
        async with server.connect(headers=[(b"X-Request-Id", b"mine")]) as client:
            assert dict(client.ws.handshake_headers)[b"x-request-id"] == b"mine"
        async with server.connect() as client:
            assert dict(client.ws.handshake_headers)[b"x-request-id"].startswith(b"req_")


async def test_binary_frames_are_refused_and_nothing_is_lost():  # P5
    async with open_served() as server, server.connect() as client:
        await client.create()
        keys = pending(await client.step())
        await client.ws.send_message(b"\x00\x01")
        assert (await client.receive())["error"]["code"] == "invalid_frame"
        await client.answer((keys[0], "a"), (keys[1], "b"))
        assert (await client.step())[-1]["type"] == "response.completed"


async def _heard_from(stream: trio.abc.Stream, data: bytes, seconds: float) -> bytes:
    """What the server sends within this time to a peer that says `data` after its handshake and then nothing."""
    await stream.send_all(HANDSHAKE)
    heard = await stream.receive_some()
    await stream.send_all(data)
    with trio.move_on_after(seconds):
        while part := await stream.receive_some():
            heard += part
    return heard.partition(b"\r\n\r\n")[2]


async def test_a_silent_peer_is_dropped(autojump_clock):  # P35
    async with open_served(ping_every_s=20, pong_timeout_s=5, close_timeout_s=1) as server:
        heard = await _heard_from(server.stream(), b"", 1000)
        assert heard == b"\x89\x00" + b"\x88\x09" + (1011).to_bytes(2, "big") + b"no pong"
        assert trio.current_time() == pytest.approx(26, abs=0.1)


async def test_a_silent_peer_with_a_paused_run_is_pinged_but_not_dropped(autojump_clock):  # P35
    create = json.dumps({"type": "response.create", "input": "hi", "tools": [FUNCTION]}).encode()
    frame = b"\x81\xfe" + len(create).to_bytes(2, "big") + b"\0\0\0\0" + create
    async with open_served(ping_every_s=20, pong_timeout_s=5) as server:
        stream = server.stream()
        heard = await _heard_from(stream, frame, 110)
        assert heard.count(b"\x89\x00") == 5
        assert b"no pong" not in heard
        await stream.aclose()


async def test_a_peer_that_answers_pings_stays(autojump_clock):  # P35
    async with open_served(ping_every_s=20, pong_timeout_s=5) as server, server.connect() as client:
        await trio.sleep(1000)
        await client.create()
        assert (await client.step())[-1]["type"] == "response.done"


async def test_the_age_limit_tells_sampling_lanes_and_closes(autojump_clock):  # P36
    async with open_served(ENDLESS, connection_age_s=30) as server, server.connect() as client:
        await client.create()
        with pytest.raises(ConnectionClosed) as closed:
            while True:
                last = await client.receive()
        assert (last["status"], last["error"]["code"]) == (400, "websocket_connection_limit_reached")
        assert closed.value.reason is not None
        assert closed.value.reason.code == 1001


async def test_the_age_limit_says_nothing_on_a_paused_lane(autojump_clock):  # P36, P28
    async with open_served(connection_age_s=30) as server, server.connect() as client:
        await client.create()
        await client.step()
        with pytest.raises(ConnectionClosed) as closed:
            await client.ws.get_message()
        assert closed.value.reason is not None
        assert closed.value.reason.reason == "websocket_connection_limit_reached"


async def test_draining_ends_paused_runs_refuses_new_ones_and_closes(autojump_clock):  # P38
    async with open_served() as server, server.connect() as client, trio.open_nursery() as nursery:
        await client.create()
        await client.step()
        nursery.start_soon(server.app.drain)
        with pytest.raises(ConnectionClosed) as closed:
            await client.ws.get_message()
        assert closed.value.reason is not None
        assert closed.value.reason.code == 1012


async def test_draining_lets_a_step_finish(autojump_clock):  # P38
    scenario = "model: m\nsteps:\n  - text: {words: 20}\n    pace: {tokens_per_second: 10}\n"
    async with open_served(scenario) as server, server.connect() as client, trio.open_nursery() as nursery:
        await client.create()
        await client.until("response.output_text.delta")
        nursery.start_soon(server.app.drain)
        assert (await client.step())[-1]["type"] == "response.completed"


async def test_draining_cuts_what_takes_too_long(autojump_clock):
    async with open_served(ENDLESS, drain_s=3) as server, server.connect() as client, trio.open_nursery() as nursery:
        await client.create()
        await client.until("response.output_text.delta")
        nursery.start_soon(server.app.drain)
        last = (await client.step())[-1]
        assert last["response"]["incomplete_details"] == {"reason": "server_shutdown"}


async def test_token_events_hold_only_what_is_new():
    async with open_served() as server, server.connect() as client:
        await client.create(include=["response.tokens"], tools=[FUNCTION])
        keys = pending(await client.step())
        await client.answer((keys[0], "a"), (keys[1], "b"))
        assert (await client.step())[-1]["type"] == "response.completed"


async def test_generate_false_prepares_a_run_that_an_append_goes_on_from():  # P12
    async with open_served(KEPT_OPEN) as server, server.connect() as client:
        await client.create(input="hello", generate=False)
        frames = await client.step()
        assert [frame["type"] for frame in frames] == ["response.created", "response.in_progress", "response.completed"]
        assert frames[-1]["response"]["output"] == []
        await client.send("response.append", input="again")
        assert (await client.step())[-1]["response"]["output"][0]["content"][0]["text"] == "You said again."


async def test_an_append_after_completion_goes_on_with_everything_kept():  # P21, P22
    async with open_served(KEPT_OPEN) as server, server.connect() as client:
        await client.create(input="one")
        first = (await client.step())[-1]["response"]
        echoed = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "You said one."}]}
        await client.send("response.append", input=[echoed, {"role": "user", "content": "two"}])
        second = (await client.step())[-1]["response"]
        assert second["previous_response_id"] == first["id"]
        assert second["output"][0]["content"][0]["text"] == "You said two."
        assert second["usage"]["input_tokens"] > first["usage"]["input_tokens"]


async def test_an_error_goes_out_on_the_lane_of_its_frame():  # P7
    async with open_served(max_in_flight=1, max_queued=1) as server, server.connect() as client:
        await client.answer(("call_1", "x"), stream_id="a")
        assert (await client.receive())["stream_id"] == "a"
        await client.create(stream_id="a", input=[{"role": "user"}])
        assert (await client.receive())["stream_id"] == "a"


async def test_frames_that_fail_use_up_no_lane():  # P8, P9
    async with open_served(max_lanes=1) as server, server.connect() as client:
        await client.send("response.resume", response_id="resp_x", stream_id="a")
        assert (await client.receive())["error"]["code"] == "response_not_found"
        await client.create(stream_id="b", input=5)
        assert (await client.receive())["error"]["param"] == "input"
        await client.create(stream_id="c", model="unknown")
        assert (await client.receive())["error"]["code"] == "model_not_found"
        await client.create(stream_id="d")
        assert (await client.step())[-1]["type"] == "response.done"


async def test_a_queued_create_that_fails_lets_the_next_one_start(autojump_clock):
    scenario = "model: m\nsteps:\n  - text: {words: 20}\n    pace: {tokens_per_second: 10}\n"
    async with open_served(scenario) as server, server.connect() as client:
        await client.create()
        await client.create(model="unknown")
        await client.create()
        assert (await client.step())[-1]["type"] == "response.completed"
        assert (await client.step())[-1]["error"]["code"] == "model_not_found"
        assert (await client.step())[-1]["type"] == "response.completed"


async def test_cancel_of_an_ended_run_is_not_found():  # P25
    async with open_served(KEPT_OPEN) as server, server.connect() as client:
        await client.create(resumable=True)
        response_id = (await client.step())[-1]["response"]["id"]
        async with server.connect() as other:
            await other.send("response.cancel", response_id=response_id)
            assert (await other.receive())["error"]["code"] == "response_not_found"


async def test_resume_from_what_has_not_happened_is_refused():  # P26
    async with open_served() as server, server.connect() as client:
        await client.create(resumable=True)
        frames = await client.step()
        async with server.connect() as other:
            await other.send("response.resume", response_id=frames[0]["response"]["id"], starting_after=9999)
            error = (await other.receive())["error"]
            assert (error["code"], error["param"]) == ("invalid_value", "starting_after")


class SlowSequence(ScriptSequence):
    """Takes a second to prepare, as a long output does."""

    async def prepare(self, items):
        await trio.sleep(1)
        return await super().prepare(items)


class SlowBackend(ScriptBackend):
    """Its sequences are slow to prepare."""

    def open_sequence(self, spec):
        return SlowSequence(self._scenarios["script:test"], spec, EstimatedContext(spec))


async def test_two_connections_that_answer_at_once_lose_no_output(autojump_clock):
    backend = SlowBackend([parse_scenario(TWO_CALLS.replace("{last_output}", "{outputs}"))])
    async with open_served(backend=backend) as server, server.connect() as client, server.connect() as other:
        await client.create(resumable=True)
        frames = await client.step()
        keys, response_id = pending(frames), frames[0]["response"]["id"]
        await other.send("response.resume", response_id=response_id, starting_after=frames[-2]["sequence_number"])
        await other.step()
        await client.answer((keys[0], "from one"))
        await other.answer((keys[1], "from the other"))
        text = (await other.step())[-1]["response"]["output"][-1]["content"][0]["text"]
        assert "from one" in text
        assert "from the other" in text


async def test_a_growing_output_is_taken_in_parts():  # P20
    async with open_served() as server, server.connect() as client:
        await client.create()
        keys = pending(await client.step())
        await client.answer((keys[0], "whole"))
        await client.receive()
        for offset, part, status in ((0, "ab", "in_progress"), (1, "bcd", "in_progress"), (4, "e", "completed")):
            item = {"type": "function_call_output", "call_id": keys[1], "output": part, "status": status}
            await client.send("response.append", input=[item | {"offset": offset}])
        frames = await client.step()
        assert [frame["still_pending"] for frame in frames[:3]] == [[keys[1]], [keys[1]], []]
        assert frames[-1]["response"]["output"][-1]["content"][0]["text"] == "Done with abcde."


class ForeseeingSequence(ScriptSequence):
    """Writes down what it is told early."""

    async def foresee(self, outputs):
        self.foreseen.append([output.output for output in outputs])
        await super().foresee(outputs)


class ForeseeingBackend(ScriptBackend):
    """Keeps its sequences' notes."""

    def __init__(self, scenarios):
        super().__init__(scenarios)
        self.foreseen = []

    def open_sequence(self, spec):
        sequence = ForeseeingSequence(self._scenarios["script:test"], spec, EstimatedContext(spec))
        sequence.foreseen = self.foreseen
        return sequence


async def test_the_backend_may_compute_what_is_known_of_outputs_in_call_order():  # P20
    backend = ForeseeingBackend([parse_scenario(TWO_CALLS)])
    async with open_served(backend=backend) as server, server.connect() as client:
        await client.create()
        keys = pending(await client.step())
        for key, part in [(keys[1], "whole"), (keys[0], "ab"), (keys[0], "cd"), (keys[0], None)]:
            offset = {} if part in ("whole", None) else {"offset": 0 if part == "ab" else 2, "status": "in_progress"}
            item = {"type": "function_call_output", "call_id": key, "output": part or "abcd"}
            await client.send("response.append", input=[item | offset])
            await client.receive()
            await trio.testing.wait_all_tasks_blocked()
        assert backend.foreseen == [["ab"], ["abcd"]]
        assert (await client.step())[-1]["type"] == "response.completed"


async def test_an_append_that_does_not_fit_leaves_the_run_waiting():  # P23
    scenario = TWO_CALLS.replace("model: test", "model: test\ncontext_window: 300")
    async with open_served(scenario) as server, server.connect() as client:
        await client.create()
        keys = pending(await client.step())
        await client.answer((keys[0], "a"), (keys[1], "long " * 1000))
        error = await client.receive()
        assert (error["status"], error["error"]["code"]) == (400, "context_length_exceeded")
        await client.answer((keys[0], "a"), (keys[1], "short"))
        assert (await client.step())[-1]["type"] == "response.completed"


async def test_timing_frames_come_only_when_asked_for_and_before_the_terminal():  # P32
    header = [(b"x-responsesapi-include-timing-metrics", b"true")]
    async with open_served() as server, server.connect(headers=header) as client:
        await client.create(stream_id="a")
        frames = await client.step()
        assert frames[-2]["type"] == "responsesapi.websocket_timing"
        assert frames[-2]["stream_id"] == "a"
        assert set(frames[-1]["response"]["timing"]) == {"step", "run"}
    async with open_served() as server, server.connect() as client:
        await client.create()
        assert "responsesapi.websocket_timing" not in [frame["type"] for frame in await client.step()]


async def test_a_create_waits_until_the_run_before_has_been_told_to_its_end():  # P10, P28
    async with open_served("model: m\nsteps:\n  - text: {tokens: 3000}\n") as server, server.connect() as client:
        for _ in range(3):
            await client.create()  # the runs are over long before their events have gone out
        for _ in range(3):
            frames = await client.step()
            assert frames[0]["type"] == "response.created"
            assert frames[-1]["type"] == "response.completed"
            assert [frame["sequence_number"] for frame in frames] == list(range(len(frames)))


async def test_a_refused_append_leaves_a_completed_run_to_go_on_from():  # P13, P22
    scenario = KEPT_OPEN.replace("model: talk", "model: talk\ncontext_window: 200")
    async with open_served(scenario) as server, server.connect() as client:
        await client.create(input="one")
        await client.step()
        await client.send("response.append", input="long " * 1000)
        assert (await client.receive())["error"]["code"] == "context_length_exceeded"
        await client.send("response.append", input=[{"type": "function_call_output", "call_id": "no", "output": ""}])
        assert (await client.receive())["error"]["param"] == "input[0].call_id"
        await client.send("response.append", input="two")
        ack, *frames = await client.step()
        assert ack["type"] == "response.append.accepted"
        assert ack["response_id"] == frames[0]["response"]["id"]
        assert frames[-1]["type"] == "response.completed"


async def test_a_completed_run_is_continued_once():  # P22
    async with open_served(KEPT_OPEN) as server, server.connect() as client, server.connect() as other:
        await client.create(input="one", resumable=True)
        response_id = (await client.step())[-1]["response"]["id"]
        await other.send("response.resume", response_id=response_id)
        await other.step()
        await client.send("response.append", input="two")
        assert (await client.step())[-1]["type"] == "response.completed"
        await other.send("response.append", input="three")
        error = await other.receive()
        assert (error["status"], error["error"]["code"]) == (404, "response_not_found")


async def test_a_completed_run_is_continued_after_its_readers_have_come_and_gone():  # P22, P42
    async with open_served(KEPT_OPEN) as server:
        async with server.connect() as client:
            await client.create(input="one", resumable=True)
            response_id = (await client.step())[-1]["response"]["id"]
        async with server.connect() as client:
            await client.send("response.resume", response_id=response_id)
            await client.step()
            await client.send("response.append", input="two")
            assert (await client.step())[-1]["response"]["output"][0]["content"][0]["text"] == "You said two."


async def test_a_resend_after_completion_starts_nothing():  # P14
    async with open_served() as server, server.connect() as client:
        await client.create()
        keys = pending(await client.step())
        await client.answer((keys[0], "a"), (keys[1], "b"))
        await client.step()
        for _ in range(2):
            await client.answer((keys[0], "a"), (keys[1], "b"))
            assert (await client.receive())["answered"] == keys
        await client.send("response.append", input=[])
        assert (await client.receive())["answered"] == []
        await client.create()
        assert (await client.step())[0]["type"] == "response.created"


async def test_an_early_output_that_no_longer_fits_ends_the_run_as_incomplete(autojump_clock):  # P23
    scenario = """
model: m
context_window: 200
pace: {tokens_per_second: 10}
steps:
  - [{call: {name: look, arguments: {}}}, {text: {tokens: 60}}]
  - text: end
"""
    async with open_served(scenario) as server, server.connect() as client:
        await client.create()
        frames = await client.until("response.output_item.done")
        await client.answer((frames[-1]["item"]["call_id"], "long " * 110))
        assert (await client.receive())["type"] == "response.append.accepted"
        last = (await client.step())[-1]
        assert last["response"]["incomplete_details"] == {"reason": "context_length_exceeded"}


async def test_parts_keep_a_pause_alive(autojump_clock):  # P34
    async with open_served(pause_ttl_s=5) as server, server.connect() as client:
        await client.create()
        keys = pending(await client.step())
        await client.answer((keys[0], "whole"))
        await client.receive()
        for offset in range(5):
            await trio.sleep(3)
            item = {"type": "function_call_output", "call_id": keys[1], "output": "x", "offset": offset}
            await client.send("response.append", input=[item | {"status": "in_progress"}])
            assert (await client.receive())["type"] == "response.append.accepted"
        await client.answer((keys[1], "done"))
        assert (await client.step())[-1]["type"] == "response.completed"


async def test_a_lane_with_a_queue_takes_no_resume(autojump_clock):  # P26
    async with open_served(ENDLESS, max_in_flight=1) as server, server.connect() as client:
        await client.create(stream_id="a", resumable=True)
        response_id = (await client.receive())["response"]["id"]
        await client.create(stream_id="b")
        await client.send("response.resume", response_id=response_id, stream_id="b")
        frames = await client.until("error")
        assert frames[-1]["error"]["code"] == "lane_is_busy"


async def test_a_terminal_that_ends_no_step_repeats_no_usage():  # P31
    async with open_served() as server, server.connect() as client:
        await client.create()
        done = (await client.step())[-1]["response"]
        await client.send("response.cancel")
        ended = (await client.receive())["response"]
        assert ended["usage"] is None
        assert "timing" not in ended
        assert ended["run_usage"] == done["run_usage"]


async def test_a_run_taken_up_again_on_its_own_lane_is_let_go_of_in_the_end(autojump_clock):
    async with open_served(ended_ttl_s=5) as server:
        async with server.connect() as client:
            await client.create(resumable=True)
            response_id = (await client.step())[0]["response"]["id"]
            live = server.app.responses.records.find(response_id, "local")
            await client.send("response.resume", response_id=response_id)
            await client.step()
            await client.send("response.cancel")
            await client.step()
        await trio.sleep(6)
        assert live.sequence._is_closed


@pytest.mark.parametrize(("made", "other"), [("append", "inject"), ("append", "chain"), ("inject", "append")])
async def test_an_open_run_is_not_taken_up_where_it_could_not_be_answered(made, other):  # P26
    async with open_served() as server, server.connect(f"?lifecycle={made}") as client:
        await client.create()
        response_id = (await client.receive())["response"]["id"]
        key = (await client.until("response.output_item.done"))[-1]["item"].get("call_id")
        async with server.connect(f"?lifecycle={other}") as stranger:
            await stranger.send("response.resume", response_id=response_id)
            error = (await stranger.receive())["error"]
            assert (error["code"], error["param"]) == ("wrong_lifecycle", "response_id")
        assert key is None  # the message; the run goes on for its own client
        await client.until("response.output_item.done")
