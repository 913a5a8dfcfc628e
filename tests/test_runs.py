"""server/runs.py, server/reader.py: runs over HTTP, answered whole, as events, or left to go on by themselves."""

from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from engine.backends.prompt_format import PromptFormat
from engine.backends.scenario import parse_scenario
from engine.backends.script import ScriptBackend
from engine.backends.script_context import EstimatedContext
from engine.backends.script_prompt import PromptContext
from engine.store_fake import MemoryStore
from tests.kept import open_kept
from tests.served import FUNCTION, Served, open_served, pending
from tests.tiny import save_format

HELLO = "model: test\nsteps:\n  - text: Hello there.\n"
SLOW = "model: test\npace: {tokens_per_second: 10}\nsteps:\n  - text: {words: 1000}\n"
STALLED = "model: test\nsteps:\n  - [{text: a}, {stall: 20}, {text: b}]\n"
UNREADY = "model: test\npace: {ttft_ms: 60000}\nsteps:\n  - text: Late.\n"
FAST = "model: test\nsteps:\n  - text: {words: 20000}\n"
FAILING = "model: test\nsteps:\n  - [{text: a}, {fail: {message: Broken.}}]\n"
CALLING = "model: test\nsteps:\n  - calls: [{name: look, arguments: {n: 1}}]\n"


def text_of(response: dict[str, Any]) -> str:
    (message,) = (item for item in response["output"] if item["type"] == "message")
    text: str = message["content"][0]["text"]
    return text


def only_run(server: Served) -> Any:
    (live,) = server.app.responses.runs.lives.values()
    return live


# --- whole -------------------------------------------------------------------------------------------------------


async def test_a_post_is_answered_by_the_whole_response() -> None:  # P64
    async with open_kept(HELLO) as server:
        reply = await server.http().create(metadata={"a": "b"})
    assert reply.status == 200
    assert reply.headers["content-type"] == "application/json"
    response = reply.json
    assert response["object"] == "response"
    assert (response["status"], response["error"], response["incomplete_details"]) == ("completed", None, None)
    assert response["completed_at"] >= response["created_at"]
    assert response["metadata"] == {"a": "b"}
    assert text_of(response) == "Hello there."
    assert response["usage"]["output_tokens"] > 0


async def test_a_call_of_a_clients_tool_completes_the_response() -> None:  # P64
    async with open_kept(CALLING) as server:
        reply = await server.http().create(tools=[FUNCTION])
    assert reply.json["status"] == "completed"
    (call,) = reply.json["output"]
    assert (call["type"], call["name"], call["arguments"]) == ("function_call", "look", '{"n": 1}')


async def test_a_response_that_fails_is_answered_by_200_and_says_so() -> None:  # P64
    async with open_kept(FAILING) as server:
        reply = await server.http().create()
    assert reply.status == 200
    assert reply.json["status"] == "failed"
    assert reply.json["error"] == {"code": "server_error", "message": "Broken."}


async def test_a_response_that_is_cut_is_answered_by_200_and_says_so() -> None:  # P64
    async with open_kept(HELLO) as server:
        reply = await server.http().create(max_output_tokens=1)
    assert (reply.status, reply.json["status"]) == (200, "incomplete")
    assert reply.json["incomplete_details"] == {"reason": "max_output_tokens"}


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize(
    ("fields", "status", "code", "param"),
    [
        ({"input": None}, 400, "missing_required_parameter", "input"),
        ({"input": [{"role": "user"}]}, 400, "missing_required_parameter", "input[0].content"),
        ({"temperature": 3}, 400, "invalid_value", "temperature"),
        ({"generate": False}, 400, "unsupported_parameter", "generate"),
        ({"model": "other"}, 404, "model_not_found", "model"),
        ({"previous_response_id": "resp_x"}, 400, "previous_response_not_found", "previous_response_id"),
        ({"background": True, "store": False}, 400, "invalid_value", "background"),
    ],
)
async def test_what_is_wrong_with_a_request_is_its_status_before_anything_starts(
    fields: dict[str, Any], status: int, code: str, param: str, is_streamed: bool
) -> None:  # P62
    async with open_kept(HELLO) as server:
        reply = await server.http().create(stream=is_streamed, **fields)
        assert not server.app.responses.runs.lives
    assert (reply.status, reply.error["code"], reply.error["param"]) == (status, code, param)


async def test_a_body_that_is_no_json_is_refused() -> None:
    async with open_kept(HELLO, max_json_depth=4) as server:
        assert (await server.http().ask("POST", "/v1/responses")).error["code"] == "invalid_json"
        assert (await server.http().create(metadata={"a": [[[[1]]]]})).error["code"] == "json_too_deep"


async def test_a_draining_server_takes_no_run(autojump_clock: MockClock) -> None:
    async with open_kept(HELLO) as server:
        await server.app.responses.drain()
        reply = await server.http().create()
    assert (reply.status, reply.error["code"]) == (503, "server_is_overloaded")


@pytest.mark.parametrize("scenario", [SLOW, UNREADY])
async def test_a_client_that_leaves_ends_its_run(scenario: str, autojump_clock: MockClock) -> None:  # P63
    async with open_kept(scenario) as server:
        with trio.move_on_after(3):
            await server.http().create()
        await wait_all_tasks_blocked()
        assert not server.app.responses.runs.lives


async def test_a_response_takes_as_long_as_it_takes_without_a_reader_of_its_events(autojump_clock: MockClock) -> None:
    async with open_kept(SLOW, high_water_events=4, stall_s=1) as server:
        reply = await server.http().create()
    assert reply.json["status"] == "completed"
    assert trio.current_time() >= 90


COUNTED: list[dict[str, Any]] = [
    {"input": "How is the weather?"},
    {"input": "Hi", "instructions": "Be brief.", "tools": [FUNCTION]},
    {
        "input": [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "b"},
            {"role": "user", "content": "c"},
        ]
    },
]


@pytest.mark.parametrize("fields", COUNTED)
@pytest.mark.parametrize("has_tokenizer", [False, True])
async def test_input_tokens_are_those_that_the_run_reports(
    fields: dict[str, Any], has_tokenizer: bool, tmp_path: Path
) -> None:  # P70
    open_context: Any = EstimatedContext
    if has_tokenizer:
        open_context = partial(PromptContext, PromptFormat.load(save_format(tmp_path)))
    async with open_kept(backend=ScriptBackend([parse_scenario(HELLO)], open_context)) as server:
        counted = await server.http().post("/v1/responses/input_tokens", **fields)
        assert not server.app.responses.runs.lives
        usage = (await server.http().create(**fields)).json["usage"]
    assert counted.json == {"object": "response.input_tokens", "input_tokens": usage["input_tokens"]}


async def test_input_tokens_of_what_cannot_be_a_run_are_refused() -> None:  # P70
    async with open_kept(HELLO) as server:
        for fields, param in (({}, "input"), ({"input": "x", "model": "other"}, "model")):
            reply = await server.http().post("/v1/responses/input_tokens", **fields)
            assert reply.error["param"] == param
        reply = await server.http().post("/v1/responses/input_tokens", instructions="Be brief.")
        assert reply.json["input_tokens"] > 0


# --- as events ---------------------------------------------------------------------------------------------------


async def test_a_stream_is_the_runs_events_and_then_done() -> None:  # P65
    async with (
        open_kept(HELLO) as server,
        server.http().stream("POST", "/v1/responses", input="go", stream=True) as stream,
    ):
        assert stream.headers["content-type"] == "text/event-stream"
        events = await stream.rest()
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert [events[0]["type"], events[1]["type"]] == ["response.created", "response.in_progress"]
    assert events[-1]["type"] == "response.completed"
    assert text_of(events[-1]["response"]) == "Hello there."
    assert "".join(event.get("delta", "") for event in events) == "Hello there."
    assert not any("stream_id" in event for event in events)


async def test_silence_is_broken_by_comments(autojump_clock: MockClock) -> None:  # P65
    async with (
        open_kept(STALLED, sse_keep_alive_s=6) as server,
        server.http().stream("POST", "/v1/responses", input="go", stream=True) as stream,
    ):
        await stream.rest()
    assert stream.chunks.count(": keep-alive\n\n") == 3


async def test_a_failure_is_an_error_event_in_both_forms_and_then_the_failed_response() -> None:  # P66
    async with open_kept(FAILING) as server:
        *before, error, failed = await server.http().events()
    nested = {"type": "server_error", "code": "server_error", "message": "Broken.", "param": None}
    number = before[-1]["sequence_number"]
    assert error == nested | {"type": "error", "error": nested, "sequence_number": number}
    assert (failed["type"], failed["sequence_number"]) == ("response.failed", number + 1)
    assert failed["response"]["error"] == {"code": "server_error", "message": "Broken."}


@pytest.mark.parametrize("scenario", [SLOW, UNREADY])
async def test_a_reader_that_leaves_ends_its_run(scenario: str, autojump_clock: MockClock) -> None:  # P63
    async with open_kept(scenario) as server:
        async with server.http().stream("POST", "/v1/responses", input="go", stream=True) as stream:
            await stream.until("response.in_progress")
            live = only_run(server)
        await wait_all_tasks_blocked()
        assert live.response.status.value == "incomplete"
        assert not server.app.responses.runs.lives


async def test_a_reader_that_stalls_is_dropped_and_the_run_goes_on(autojump_clock: MockClock) -> None:  # P37
    async with open_kept(FAST, high_water_events=64, stall_s=3, send_timeout_s=60) as server:
        stream = server.stream(lockstep=True)
        body = b'{"input": "go", "stream": true, "background": true}'
        head = b"POST /v1/responses HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body)
        await stream.send_all(head + body)
        await wait_all_tasks_blocked()
        live = only_run(server)
        assert live.response.log.next < 5000  # sampling waits for the reader
        await trio.sleep(10)
        assert live.response.status.value == "completed"
        wire = b""
        while part := await stream.receive_some():
            wire += part
        assert b"response.in_progress" in wire
        assert b"response.completed" not in wire
        assert not wire.endswith(b"0\r\n\r\n")
        await stream.aclose()


# --- in the background -------------------------------------------------------------------------------------------


async def test_a_run_in_the_background_is_answered_at_once_and_goes_on(autojump_clock: MockClock) -> None:  # P67
    async with open_kept(STALLED) as server:
        http = server.http()
        begun = (await http.create(background=True)).json
        assert (begun["status"], begun["background"], begun["output"]) == ("in_progress", True, [])
        path = f"/v1/responses/{begun['id']}"
        assert (await http.get(path)).json["status"] == "in_progress"
        await trio.sleep(30)
        ended = (await http.get(path)).json
        assert (ended["status"], text_of(ended)) == ("completed", "ab")
        assert ended["completed_at"] is not None


async def test_a_stream_in_the_background_may_be_left_and_taken_up(autojump_clock: MockClock) -> None:  # P67, P68
    async with open_kept(STALLED) as server:
        http = server.http()
        async with http.stream("POST", "/v1/responses", input="go", stream=True, background=True) as stream:
            first = await stream.until("response.output_text.delta")
        await trio.sleep(1)
        path = f"/v1/responses/{first[0]['response']['id']}?stream=true"
        async with http.stream("GET", f"{path}&starting_after={first[-1]['sequence_number']}") as stream:
            rest = await stream.rest()
        async with http.stream("GET", path) as stream:
            assert await stream.rest() == first + rest
        assert rest[-1]["type"] == "response.completed"
        assert [event["sequence_number"] for event in first + rest] == list(range(len(first + rest)))


async def test_cancel_ends_a_run_in_the_background_once(autojump_clock: MockClock) -> None:  # P69
    async with open_kept(SLOW) as server:
        http = server.http()
        async with http.stream("POST", "/v1/responses", input="go", stream=True, background=True) as stream:
            first = await stream.until("response.output_text.delta")
            path = f"/v1/responses/{first[0]['response']['id']}"
            reply = await http.post(f"{path}/cancel")
            last = (await stream.rest())[-1]
        assert (reply.status, reply.json["status"]) == (200, "cancelled")
        assert (last["type"], last["response"]) == ("response.incomplete", reply.json)
        assert (await http.post(f"{path}/cancel")).json == reply.json
        assert (await http.get(path)).json == reply.json


async def test_cancel_of_a_run_that_has_ended_shows_how(autojump_clock: MockClock) -> None:  # P69
    async with open_kept(HELLO) as server:
        begun = (await server.http().create(background=True)).json
        await trio.sleep(1)
        reply = await server.http().post(f"/v1/responses/{begun['id']}/cancel")
        assert (reply.status, reply.json["status"]) == (200, "completed")


async def test_only_a_run_in_the_background_can_be_cancelled(autojump_clock: MockClock) -> None:  # P69
    async with (
        open_kept(SLOW) as server,
        server.http().stream("POST", "/v1/responses", input="go", stream=True) as stream,
    ):
        (created,) = await stream.until("response.created")
        reply = await server.http().post(f"/v1/responses/{created['response']['id']}/cancel")
        assert only_run(server).response.is_open
    assert (reply.status, reply.error["param"]) == (400, "background")


@pytest.mark.parametrize(("store", "code"), [(None, "invalid_value"), (MemoryStore(), "invalid_value")])
async def test_what_cannot_be_stored_cannot_be_in_the_background(store: MemoryStore | None, code: str) -> None:  # P67
    async with open_served(HELLO, store=store) as server:
        reply = await server.http().create(background=True, **({"store": False} if store else {}))
        assert not server.app.responses.runs.lives
    assert (reply.status, reply.error["code"], reply.error["param"]) == (400, code, "background")


# --- reading -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "rest"), [("GET", ""), ("GET", "?stream=true"), ("POST", "/cancel")])
async def test_an_id_that_is_unknown_or_somebody_elses_is_404(
    method: str, rest: str, autojump_clock: MockClock
) -> None:  # P4
    async with open_kept(SLOW) as server:
        begun = (await server.http("mine").create(background=True)).json
        for key, id_ in (("theirs", begun["id"]), (None, begun["id"]), ("mine", "resp_x")):
            reply = await server.http(key).ask(method, f"/v1/responses/{id_}{rest}")
            assert (reply.status, reply.error["code"]) == (404, "response_not_found")
            assert reply.error["message"] == f"Response with id '{id_}' not found."
        assert (await server.http("mine").get(f"/v1/responses/{begun['id']}")).status == 200


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("stream=maybe", "stream"),
        ("stream=true&starting_after=x", "starting_after"),
        ("stream=true&starting_after=-2", "starting_after"),
        ("stream=true&starting_after=1&starting_after=2", "starting_after"),
        ("stream=true&starting_after=5000", "starting_after"),
    ],
)
async def test_a_query_that_is_wrong_is_refused_by_name(query: str, param: str, autojump_clock: MockClock) -> None:
    async with open_kept(SLOW) as server:
        begun = (await server.http().create(background=True)).json
        reply = await server.http().get(f"/v1/responses/{begun['id']}?{query}")
    assert (reply.status, reply.error["param"]) == (400, param)


async def test_a_run_of_a_socket_is_read_through_its_pauses(autojump_clock: MockClock) -> None:  # P68
    async with open_kept() as server, server.connect() as client:
        await client.create(resumable=True)
        frames = await client.step()
        id_ = frames[0]["response"]["id"]
        async with server.http().stream("GET", f"/v1/responses/{id_}?stream=true&include_obfuscation=false") as stream:
            assert await stream.until("response.done") == frames
            paused = (await server.http().get(f"/v1/responses/{id_}")).json
            assert (paused["status"], len(paused["output"])) == ("in_progress", 3)
            await client.answer(*((key, "x") for key in pending(frames)))
            frames = [frame for frame in await client.step() if "sequence_number" in frame]
            assert await stream.rest() == frames


@pytest.mark.parametrize("fields", [{}, {"resumable": True}])
async def test_a_reader_that_found_a_run_neither_ends_nor_keeps_it(
    fields: dict[str, Any], autojump_clock: MockClock
) -> None:  # P63
    async with open_served(lease_s=30) as server, AsyncExitStack() as readers:
        async with server.connect() as client:
            await client.create(**fields)
            path = f"/v1/responses/{(await client.step())[0]['response']['id']}"
            async with server.http().stream("GET", f"{path}?stream=true") as stream:
                await stream.until("response.done")
            await wait_all_tasks_blocked()
            assert (await server.http().get(path)).json["status"] == "in_progress"
            stream = await readers.enter_async_context(server.http().stream("GET", f"{path}?stream=true"))
            await stream.until("response.done")
        left_at = trio.current_time()
        last = (await stream.rest())[-1]
    assert last["response"]["incomplete_details"] == {"reason": "connection_lost"}
    assert trio.current_time() - left_at == pytest.approx(30 if fields else 0)


async def test_a_client_that_leaves_ends_its_run_though_another_reads_it(autojump_clock: MockClock) -> None:  # P63
    async with open_served(SLOW) as server, AsyncExitStack() as readers:
        async with server.http().stream("POST", "/v1/responses", input="go", stream=True) as stream:
            (created,) = await stream.until("response.created")
            path = f"/v1/responses/{created['response']['id']}?stream=true"
            other = await readers.enter_async_context(server.http().stream("GET", path))
            await other.until("response.created")
        last = (await other.rest())[-1]
    assert last["response"]["incomplete_details"] == {"reason": "connection_lost"}


async def test_a_reader_learns_how_a_pause_ended(autojump_clock: MockClock) -> None:  # P68
    async with open_kept(pause_ttl_s=30) as server, server.connect() as client:
        await client.create(resumable=True)
        id_ = (await client.step())[0]["response"]["id"]
        async with server.http().stream("GET", f"/v1/responses/{id_}?stream=true") as stream:
            last = (await stream.rest())[-1]
    assert last["type"] == "response.incomplete"
    assert last["response"]["incomplete_details"] == {"reason": "append_timeout"}
