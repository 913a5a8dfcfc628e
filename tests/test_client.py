"""open_run against a scripted server: tools, early answers, lost connections, failures, cancellation."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing

from engine.client import ConnectionLost, Event, FunctionTool, Result, Retry, Run, RunFailed, custom_tool, open_run
from engine.client_fake import AwaitAnswer, Call, Fail, FakeServer, Say, Think, refusal
from engine.client_wire import NoServer, endpoint_url


async def look(n: int = 0) -> str:
    """Look at something."""
    return f"seen {n}"


def calling(*ids: str, name: str = "look") -> list[Any]:
    return [Call(key, name, f'{{"n": {index}}}') for index, key in enumerate(ids)]


@asynccontextmanager
async def run_on(server: FakeServer, **options: Any) -> AsyncIterator[Run]:
    """A run on a fake server, within a minute of (virtual) time; exceptions come out bare."""
    defaults = {"model": "m", "input": "go", "tools": [look], "connector": server}
    held: BaseException | None = None
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.sample)
            try:
                async with open_run("ws://fake", **(defaults | options)) as run:
                    yield run
            except (Exception, KeyboardInterrupt) as error:
                held = error
            nursery.cancel_scope.cancel()
    if held is not None:
        raise held


async def result_on(server: FakeServer, **options: Any) -> Result:
    async with run_on(server, **options) as run:
        return await run.result()


# --- the usual run -----------------------------------------------------------------------------------------------


async def test_run_without_tools_gives_its_text(autojump_clock):
    server = FakeServer([[Say("hello")]])
    result = await result_on(server, tools=[], instructions="be brief", temperature=0.5)
    assert (result.text, result.status, result.id) == ("hello", "completed", "resp_fake")
    assert result.usage.total_tokens == 12
    create = server.received[0]
    assert create["instructions"] == "be brief"
    assert create["temperature"] == 0.5
    assert "tools" not in create


async def test_tool_is_offered_called_and_answered(autojump_clock):
    server = FakeServer([calling("c0"), [Say("done")]])
    result = await result_on(server)
    assert result.text == "done"
    assert server.received[0]["tools"][0]["name"] == "look"
    assert server.outputs == {"c0": "seen 0"}
    assert [item.type for item in result.output] == ["function_call", "message"]


async def test_events_are_numbered_without_gap_and_end_with_the_terminal(autojump_clock):
    seen: list[Event] = []
    async with run_on(FakeServer([calling("c0"), [Say("x")]]), on_event=seen.append) as run:
        events = [event async for event in run]
    assert events == seen
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[-1].type == "response.completed"
    assert events[-1].response.status == "completed"


async def test_call_is_answered_while_the_model_still_samples(autojump_clock):
    server = FakeServer([[*calling("c0"), AwaitAnswer("c0"), Say("more")], [Say("end")]])
    async with run_on(server) as run:
        kinds = [event.type async for event in run]
    assert "response.done" not in kinds


async def test_outputs_that_are_ready_together_go_out_in_one_append(autojump_clock):
    async def wait(n: int) -> str:
        await trio.sleep(1)
        return str(n)

    server = FakeServer([calling("a", "b", "c", name="wait"), [Say("ok")]])
    await result_on(server, tools=[wait])
    assert [len(frame["input"]) for frame in server.sent("response.append")] == [3]


async def test_sync_tool_runs_in_a_thread():
    def where() -> bool:
        return trio.from_thread.run_sync(lambda: True)

    server = FakeServer([[Call("c0", "where")], [Say("ok")]])
    await result_on(server, tools=[where])
    assert server.outputs == {"c0": "true"}


async def test_observers_hear_of_every_call(autojump_clock):
    calls, outcomes = [], []

    async def nap(n: int) -> str:
        await trio.sleep(2)
        return "rested"

    server = FakeServer([calling("c0", name="nap"), [Say("ok")]])
    await result_on(server, tools=[nap], on_tool_call=calls.append, on_tool_output=outcomes.append)
    assert [(call.key, call.name, call.arguments) for call in calls] == [("c0", "nap", '{"n": 0}')]
    assert [(one.output, one.is_error, one.duration_s) for one in outcomes] == [("rested", False, pytest.approx(2))]


# --- tools that go wrong -----------------------------------------------------------------------------------------


async def boom(n: int) -> str:
    raise LookupError("no such place")


@pytest.mark.parametrize("is_sync", [False, True])
async def test_failure_of_a_tool_is_logged_with_its_own_frames_only(caplog, is_sync):
    def burst(n: int) -> str:
        raise LookupError("no such place")

    server = FakeServer([calling("c0", name="burst" if is_sync else "boom"), [Say("ok")]])
    await result_on(server, tools=[burst if is_sync else boom])
    (said,) = [record.getMessage() for record in caplog.records if record.name == "engine.client_tools"]
    assert "failed: LookupError: no such place" in said
    assert said.count("File ") == 1
    assert 'raise LookupError("no such place")' in said
    assert not any(record.exc_info for record in caplog.records)


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (Call("c0", "boom", '{"n": 1}'), "boom failed: LookupError: no such place"),
        (Call("c0", "boom", '{"n": "x"}'), "Invalid arguments for boom: n: Input should be a valid integer"),
        (Call("c0", "boom", "{"), "Invalid arguments for boom: Invalid JSON"),
        (Call("c0", "bomb", "{}"), "There is no tool named 'bomb'. Tools: boom."),
    ],
)
async def test_failure_of_a_call_becomes_its_output(autojump_clock, caplog, call, expected):
    server = FakeServer([[call], [Say("sorry")]])
    result = await result_on(server, tools=[boom])
    assert result.text == "sorry"
    assert server.outputs["c0"].startswith(expected)


@pytest.mark.parametrize("own", [True, False])
async def test_call_over_its_deadline_is_cancelled_and_reported(autojump_clock, own):
    async def hang() -> str:
        await trio.sleep_forever()
        return ""

    tools: list[Any] = [FunctionTool(hang, deadline_s=3)] if own else [hang]
    server = FakeServer([[Call("c0", "hang")], [Say("ok")]])
    await result_on(server, tools=tools, tool_deadline_s=None if own else 3)
    assert server.outputs == {"c0": "hang did not finish within 3 s."}


async def test_custom_call_gets_the_models_text_and_a_custom_output(autojump_clock):
    @custom_tool
    async def patch(text: str) -> str:
        return f"applied {text}"

    server = FakeServer([[Call("c0", "patch", "*** Begin", type="custom_tool_call")], [Say("ok")]])
    await result_on(server, tools=[look, patch])
    assert [tool["type"] for tool in server.received[0]["tools"]] == ["function", "custom"]
    assert server.sent("response.append")[0]["input"][0]["type"] == "custom_tool_call_output"
    assert server.outputs == {"c0": "applied *** Begin"}


async def test_approval_that_nobody_gives_is_refused(autojump_clock):
    server = FakeServer([[Call("r1", "pay", type="mcp_approval_request")], [Say("ok")]])
    async with run_on(server) as run:
        async for event in run:
            if event.type == "response.done":
                run.cancel()
    answer = server.sent("response.append")[0]["input"][0]
    assert (answer["type"], answer["approve"]) == ("mcp_approval_response", False)


async def test_exception_of_a_tools_observer_ends_the_run(autojump_clock):
    def complain(call: Any) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await result_on(FakeServer([calling("c0"), [Say("x")]]), on_tool_call=complain)


async def test_lone_surrogates_of_a_tool_do_not_break_the_run(autojump_clock):
    async def odd() -> str:
        return "a\udc80b"

    server = FakeServer([[Call("c0", "odd")], [Say("ok")]])
    await result_on(server, tools=[odd])
    assert server.outputs == {"c0": "a?b"}


async def test_output_that_does_not_fit_the_context_is_replaced_by_a_short_one(autojump_clock):
    async def long() -> str:
        return "x" * 5000

    refusals = {"response.append": [refusal("context_length_exceeded")]}
    server = FakeServer([[Call("c0", "long")], [Say("ok")]], refusals=refusals)
    await result_on(server, tools=[long])
    assert "5000 characters" in server.outputs["c0"]


async def test_exception_of_a_callback_ends_the_run_and_is_raised(autojump_clock):
    def complain(event: Event) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await result_on(FakeServer([[Say("x")]]), on_event=complain)


# --- streamed outputs --------------------------------------------------------------------------------------------


async def test_pieces_of_a_generator_are_sent_while_it_runs(autojump_clock):
    async def count() -> AsyncIterator[str]:
        for word in ("one ", "two ", "three"):
            yield word
            await trio.sleep(1)

    server = FakeServer([[Call("c0", "count")], [Say("ok")]])
    await result_on(server, tools=[count])
    parts = [frame["input"][0] for frame in server.sent("response.append")]
    assert [(part["offset"], part["output"], part["status"]) for part in parts] == [
        (0, "one ", "in_progress"),
        (4, "two ", "in_progress"),
        (8, "three", "in_progress"),
        (13, "", "completed"),
    ]
    assert server.outputs == {"c0": "one two three"}


async def test_generator_that_fails_half_way_ends_its_output_with_the_error(autojump_clock, caplog):
    async def half() -> AsyncIterator[str]:
        yield "begun"
        await trio.sleep(1)
        raise LookupError("gone")

    server = FakeServer([[Call("c0", "half")], [Say("ok")]])
    await result_on(server, tools=[half])
    assert server.outputs == {"c0": "begun\nhalf failed: LookupError: gone"}


async def test_sync_generator_is_streamed_too():
    def lines() -> Any:
        yield "a"
        yield "b"

    server = FakeServer([[Call("c0", "lines")], [Say("ok")]])
    await result_on(server, tools=[lines])
    assert server.outputs == {"c0": "ab"}


# --- lost connections --------------------------------------------------------------------------------------------

LONG_RUN = [[*calling("c0", "c1"), Say("both")], calling("c2"), [Say("the end")]]
NUM_FRAMES = 14


@pytest.mark.parametrize("cut", range(NUM_FRAMES))
async def test_run_survives_a_cut_after_any_frame(autojump_clock, cut):
    starts: list[str] = []

    def note(call: Any) -> None:
        starts.append(call.key)

    server = FakeServer(LONG_RUN, cuts=[cut])
    async with run_on(server, on_tool_call=note) as run:
        numbers = [event.sequence_number async for event in run]
        result = await run.result()
    assert result.text == "the end"
    assert numbers == list(range(len(numbers)))
    assert sorted(starts) == ["c0", "c1", "c2"]
    assert server.outputs == {"c0": "seen 0", "c1": "seen 1", "c2": "seen 0"}


async def test_run_survives_a_cut_after_every_single_event(autojump_clock):
    retries: list[Retry] = []
    server = FakeServer(LONG_RUN, cuts=[1] + [2] * 40)
    async with run_on(server, on_retry=retries.append) as run:
        numbers = [event.sequence_number async for event in run]
    assert numbers == list(range(len(numbers)))
    assert len(retries) > 5
    assert {retry.attempt for retry in retries} <= {1, 2}


@pytest.mark.parametrize("cut", range(2, 9))
async def test_streamed_output_survives_a_cut_after_any_frame(autojump_clock, cut):
    async def count() -> AsyncIterator[str]:
        for word in ("one ", "two ", "three"):
            yield word
            await trio.sleep(0.1)

    server = FakeServer([[Call("c0", "count")], [Say("ok")]], cuts=[cut])
    await result_on(server, tools=[count])
    assert server.outputs == {"c0": "one two three"}


@pytest.mark.parametrize("cut", range(12))
async def test_user_message_is_given_exactly_once_whatever_is_cut(autojump_clock, cut):
    server = FakeServer([[Say("hi")], [Say("yes")], [Say("bye")]], cuts=[cut], is_kept_open=True)
    async with run_on(server, tools=[], keep_open=True) as run:
        await run.send("one")
        await run.send("two")
        assert (await run.result()).text == "bye"
    assert server.texts == ["one", "two"]


@pytest.mark.parametrize("has_arrived", [False, True])
@pytest.mark.parametrize("is_early", [False, True])
@pytest.mark.parametrize("is_last", [False, True])
async def test_answer_that_was_in_flight_when_the_connection_broke_counts_once(
    autojump_clock, has_arrived, is_early, is_last
):
    first: list[Any] = [*calling("c0"), Think(5)] if is_early else calling("c0")
    steps = [first, [Say("end")]] if is_last else [first, calling("c1"), [Say("end")]]
    server = FakeServer(steps, losses={"response.append": [has_arrived]})
    async with run_on(server) as run:
        numbers = [event.sequence_number async for event in run]
        assert (await run.result()).text == "end"
    assert numbers == list(range(len(numbers)))
    assert server.outputs == {"c0": "seen 0"} if is_last else {"c0": "seen 0", "c1": "seen 0"}


@pytest.mark.parametrize("has_arrived", [False, True])
async def test_message_that_was_in_flight_when_the_connection_broke_counts_once(autojump_clock, has_arrived):
    server = FakeServer([[Say("hi")], [Say("bye")]], losses={"response.append": [has_arrived]}, is_kept_open=True)
    async with run_on(server, tools=[], keep_open=True) as run:
        await run.send("one")
        assert (await run.result()).text == "bye"
    assert server.texts == ["one"]


async def test_unread_events_are_bounded_and_none_is_lost(autojump_clock, monkeypatch):
    monkeypatch.setattr("engine.client_driver.MAX_UNREAD_EVENTS", 3)
    heard: list[Event] = []
    async with run_on(FakeServer([[Say(str(n)) for n in range(20)]]), on_event=heard.append) as run:
        for num_read in range(10):
            await trio.testing.wait_all_tasks_blocked()
            assert len(heard) == num_read + 3
            await anext(run)
        assert (await run.result()).text == "19"


async def test_no_event_before_created_means_a_new_create(autojump_clock):
    server = FakeServer([[Say("x")]], cuts=[0])
    assert (await result_on(server)).text == "x"
    assert len(server.sent("response.create")) == 2


class Mute:
    """A connector to a peer that takes everything and says nothing, not even a pong."""

    num_connections = 0

    @asynccontextmanager
    async def open(self) -> AsyncIterator["Mute"]:
        self.num_connections += 1
        yield self

    async def send(self, text: str) -> None:
        await trio.lowlevel.checkpoint()

    async def receive(self) -> str:
        await trio.sleep_forever()
        return ""

    async def ping(self) -> None:
        await trio.sleep_forever()


async def test_peer_that_answers_no_ping_counts_as_lost(autojump_clock):
    mute = Mute()
    with trio.fail_after(300), pytest.raises(ConnectionLost, match="ping"):
        async with open_run("ws://mute", input="x", connector=mute, max_retries=1) as run:
            await run.result()
    assert mute.num_connections == 2


async def test_failure_of_the_connector_itself_counts_as_lost(autojump_clock, caplog):
    class Odd(Mute):
        async def receive(self) -> str:
            raise ZeroDivisionError

    with trio.fail_after(60), pytest.raises(ConnectionLost, match="connection failed"):
        async with open_run("ws://odd", input="x", connector=Odd(), max_retries=1) as run:
            await run.result()


async def test_connections_that_bring_nothing_are_given_up(autojump_clock):
    retries: list[Retry] = []
    server = FakeServer([calling("c0"), [Say("x")]], cuts=[2] + [0] * 20)
    with pytest.raises(ConnectionLost):
        await result_on(server, on_retry=retries.append, max_retries=3)
    assert [retry.attempt for retry in retries] == [1, 2, 3]
    assert retries[0].delay_s < retries[1].delay_s < retries[2].delay_s


@pytest.mark.parametrize(("good", "num_tries"), [(0, 1), (1, 4)])
async def test_server_that_is_not_there_at_first_is_not_waited_for(autojump_clock, good, num_tries):
    class Gone(FakeServer):
        num_tries = 0

        @asynccontextmanager
        async def open(self):
            if self.num_connections >= good:
                self.num_tries += 1
                raise NoServer("cannot connect")
            async with super().open() as connection:
                yield connection

    server = Gone([calling("c0"), [Say("x")]], cuts=[2])
    with pytest.raises(NoServer):
        await result_on(server, max_retries=4)
    assert server.num_tries == num_tries


async def test_run_that_is_not_resumable_ends_with_its_connection(autojump_clock):
    """diegosouzapw/OmniRoute#12737: a close before the terminal passed for the end, and the answer was cut."""
    server = FakeServer([calling("c0"), [Say("x")]], cuts=[2])
    with pytest.raises(ConnectionLost):
        await result_on(server, resumable=False)
    assert server.num_connections == 1


async def test_connection_limit_of_the_server_moves_the_run_to_a_new_connection(autojump_clock):
    refusals = {"response.append": [refusal("websocket_connection_limit_reached")]}
    server = FakeServer([calling("c0"), [Say("x")]], refusals=refusals)
    assert (await result_on(server)).text == "x"
    assert server.num_connections == 2


# --- failures ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("frame", ["response.create", "response.append"])
async def test_error_frame_fails_the_run_with_all_its_fields(autojump_clock, frame):
    error = refusal("invalid_value", status=422, message="Bad input.", param="input[0]")
    server = FakeServer([calling("c0"), [Say("x")]], refusals={frame: [error]})
    with pytest.raises(RunFailed) as caught:
        await result_on(server)
    failure = caught.value
    assert (failure.status, failure.code, failure.message, failure.param) == (
        422,
        "invalid_value",
        "Bad input.",
        "input[0]",
    )


async def test_failed_run_raises_with_the_servers_words(autojump_clock):
    server = FakeServer([[Fail("server_error", "The model failed.")]])
    with pytest.raises(RunFailed, match="The model failed") as caught:
        await result_on(server)
    assert (caught.value.code, caught.value.status) == ("server_error", 500)


async def test_run_that_is_gone_at_resume_fails(autojump_clock):
    refusals = {"response.resume": [refusal("response_not_found", status=404)]}
    server = FakeServer([calling("c0"), [Say("x")]], cuts=[2], refusals=refusals)
    with pytest.raises(RunFailed, match="No") as caught:
        await result_on(server)
    assert caught.value.code == "response_not_found"


async def test_failure_that_nobody_looked_at_is_raised_at_the_end_of_the_block(autojump_clock):
    server = FakeServer([], refusals={"response.create": [refusal("bad")]})
    with pytest.raises(RunFailed):
        async with run_on(server):
            await trio.testing.wait_all_tasks_blocked()


# --- cancellation ------------------------------------------------------------------------------------------------


async def hang() -> str:
    """Never answer."""
    await trio.sleep_forever()
    return ""


async def test_cancel_ends_the_run_and_its_tools(autojump_clock):
    server = FakeServer([[Call("c0", "hang")], [Say("never")]])
    async with run_on(server, tools=[hang]) as run:
        async for event in run:
            if event.type == "response.done":
                run.cancel()
        result = await run.result()
    assert (result.status, result.reason) == ("incomplete", "cancelled")
    assert server.outputs == {}


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
async def test_block_that_is_left_by_an_exception_cancels_the_run(autojump_clock, error):
    server = FakeServer([[Call("c0", "hang")], [Say("never")]])
    with pytest.raises(error):
        async with run_on(server, tools=[hang]) as run:
            async for event in run:
                if event.type == "response.done":
                    raise error
    assert server.received[-1] == {"type": "response.cancel", "response_id": "resp_fake"}


async def test_cancelled_block_still_cancels_the_run_on_the_server(autojump_clock):
    server = FakeServer([[Call("c0", "hang")], [Say("never")]])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.sample)
        with trio.move_on_after(5) as scope:
            async with open_run("ws://fake", model="m", input="go", tools=[hang], connector=server) as run:
                await run.result()
        nursery.cancel_scope.cancel()
    assert scope.cancelled_caught
    assert server.received[-1]["type"] == "response.cancel"
    assert trio.current_time() < 5 + 2.1


# --- kept open ---------------------------------------------------------------------------------------------------


async def test_kept_open_run_takes_message_after_message(autojump_clock):
    server = FakeServer([[Say("hi")], calling("c0"), [Say("yes")]], is_kept_open=True)
    async with run_on(server, keep_open=True) as run:
        first = [event.type async for event in run]
        assert first[-1] == "response.done"
        assert (await run.result()).text == "hi"
        await run.send("look")
        result = await run.result()
        assert (result.text, result.status) == ("yes", "in_progress")
    assert server.texts == ["look"]
    assert server.received[-1]["type"] == "response.cancel"


async def test_message_to_an_ended_run_is_refused(autojump_clock):
    async with run_on(FakeServer([[Say("x")]])) as run:
        with pytest.raises(RunFailed, match="has ended"):
            await run.send("more")


async def test_second_reader_is_refused(autojump_clock):
    server = FakeServer([[Call("c0", "hang")]])
    async with run_on(server, tools=[hang]) as run, trio.open_nursery() as nursery:
        nursery.start_soon(run.result)
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(trio.BusyResourceError):
            await run.result()
        nursery.cancel_scope.cancel()


# --- small things ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://h:1", "ws://h:1/v1/responses?lifecycle=append"),
        ("h:1", "ws://h:1/v1/responses?lifecycle=append"),
        ("https://h/api/v1/", "wss://h/api/v1/responses?lifecycle=append"),
        ("ws://h/v1/responses?lifecycle=append&a=b", "ws://h/v1/responses?lifecycle=append&a=b"),
    ],
)
def test_endpoint_url(url, expected):
    assert endpoint_url(url) == expected


@pytest.mark.parametrize("url", ["ftp://h", "http://"])
def test_endpoint_url_refuses_what_is_no_server(url):
    with pytest.raises(ValueError, match="not a server's URL"):
        endpoint_url(url)


def test_endpoint_url_refuses_a_lifecycle_that_the_client_does_not_speak():
    with pytest.raises(ValueError, match="append lifecycle, not 'chain'"):
        endpoint_url("ws://h/v1/responses?lifecycle=chain")
