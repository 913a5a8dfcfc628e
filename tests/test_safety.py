"""Policies over the wire: what is refused, what is held back, what is recorded, in every lifecycle."""

import json
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from engine.backends.prompt_format import PromptFormat
from engine.backends.scenario import parse_scenario
from engine.backends.script import ScriptBackend
from engine.backends.script_prompt import PromptContext
from engine.safety.fake import FakeJudge
from engine.store_fake import MemoryStore
from tests.served import Client, Served, open_served, pending
from tests.tiny import save_format

SECRET = "§k-0123456789"  # begins with what no id and no seal has
KEYS = {"name": "keys", "kind": "patterns", "patterns": ["§k-[0-9]{10}"]}
FLAG = KEYS | {"action": "flag"}
MODEL = {"name": "tone", "kind": "model", "model": "m", "labels": {"toxic": 0.5}}
FILTERED = {"reason": "content_filter", "policy": "keys", "place": "output"}
BAD, GOOD = {"toxic": 0.9}, {"toxic": 0.1}

LEAK = f"model: test\nsteps:\n  - text: The key is {SECRET}, and so on.\n"
THINKING = f"model: test\nsteps:\n  - [{{reasoning: It is {SECRET}.}}, {{text: Done.}}]\n"
CALLING = f"""
model: test
steps:
  - text: I look.
    calls: [{{name: look, arguments: {{n: 1}}}}, {{name: look, arguments: {{key: "{SECRET}"}}}}]
"""
TWO_STEPS = """
model: test
steps:
  - {call: {name: look, arguments: {n: 1}}}
  - text: "Seen {last_output}."
"""
SLOW = "model: test\npace: {ttft_ms: 1000, tokens_per_second: 10}\nsteps: [{text: One two three.}, {text: Next.}]\n"


def watching(*policies: dict[str, Any], scenario: str = TWO_STEPS, **settings: Any) -> Any:
    return open_served(scenario, policies=list(policies), **settings)


def kinds(frames: Iterable[dict[str, Any]]) -> list[str]:
    return [frame["type"].removeprefix("response.") for frame in frames]


def assert_nothing_of_it(frames: Iterable[dict[str, Any]]) -> None:
    """Not even the first characters, which nothing else here has."""
    assert "§" not in json.dumps(list(frames), ensure_ascii=False)


async def ask(client: Client, **fields: Any) -> list[dict[str, Any]]:
    await client.create(**fields)
    return await client.step()


# --- summaries ---


def summing_up(summary: str) -> str:
    return f"{{model: test, summary: {summary}, steps: [{{text: Hello.}}, {{text: Next.}}]}}"


SHORTENED = {"input": "word " * 1200, "context_management": [{"type": "compaction", "compact_threshold": 1000}]}


@pytest.mark.parametrize("lifecycle", ["append", "chain"])
async def test_summary_that_is_blocked_ends_the_run(lifecycle: str, tmp_path: Path) -> None:
    """P93: it is made by the model, and its tokens would be in the log."""
    scenario = parse_scenario(summing_up(f"It is {SECRET}."))
    backend = ScriptBackend([scenario], partial(PromptContext, PromptFormat.load(save_format(tmp_path))))
    async with watching(KEYS, backend=backend, lifecycle=lifecycle) as server, server.connect() as client:
        frames = await ask(client, **SHORTENED, include=["response.tokens"], resumable=True)
        assert kinds(frames)[-2:] == ["compaction.compacting", "incomplete"]
        ended = frames[-1]["response"]
        assert ended["incomplete_details"] == FILTERED
        assert ended["safety"] == [{"policy": "keys", "place": "output", "outcome": "blocked", "count": 1}]
        tokens = await server.http().get(f"/v1/responses/{ended['id']}/tokens")
        assert [(span["segment"], span["sampled"]) for span in tokens.json["data"]] == [(0, False)]


async def test_summary_waits_for_its_verdict() -> None:
    """P93"""
    judge = FakeJudge()
    scenario = summing_up("It is long.")
    policy = MODEL | {"on": ["output"]}
    async with watching(policy, judges={"m": judge}, scenario=scenario) as server, server.connect() as client:
        for verdict, last in [(BAD, "incomplete"), (GOOD, "completed")]:
            await client.create(**SHORTENED, stream_id=last)
            frames = await client.until("response.compaction.compacting")
            await wait_all_tasks_blocked()
            assert list(judge.open.values()) == ["It is long."]
            judge.answer(verdict)
            if verdict == GOOD:
                await client.until("response.output_item.done")
                await wait_all_tasks_blocked()
                judge.answer(GOOD)
            frames = await client.step()
            assert kinds(frames)[-1] == last


async def test_what_is_compacted_on_request_is_looked_at() -> None:
    """P91, P93"""
    scenario = summing_up(f"It is {SECRET}.")
    async with watching(KEYS, scenario=scenario) as server:
        reply = await server.http().post("/v1/responses/compact", model="test", input=f"use {SECRET}")
        assert (reply.status, reply.error["code"], reply.error["param"]) == (400, "invalid_prompt", "input[0]")
        reply = await server.http().post("/v1/responses/compact", model="test", input="use it")
        assert (reply.status, reply.error["code"]) == (400, "invalid_prompt")


# --- what comes in -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": f"use {SECRET}"}, "input[0]"),
        ({"input": [{"role": "user", "content": "hi"}, {"role": "developer", "content": SECRET}]}, "input[1]"),
        ({"instructions": f"Say {SECRET}."}, "instructions"),
    ],
)
async def test_input_that_is_blocked_at_once_starts_nothing(fields: dict[str, Any], param: str) -> None:  # P91
    async with watching(KEYS) as server, server.connect() as client:
        (error,) = await ask(client, **fields)
        assert (error["type"], error["status"]) == ("error", 400)
        assert (error["error"]["code"], error["error"]["param"]) == ("invalid_prompt", param)
        assert not server.app.responses.has_open
        assert (await ask(client, input="go"))[-1]["type"] == "response.done"


async def test_over_http_too() -> None:  # P91
    async with watching(KEYS) as server:
        reply = await server.http().create(input=SECRET)
        assert (reply.status, reply.error["code"], reply.error["param"]) == (400, "invalid_prompt", "input[0]")


async def test_an_append_that_is_blocked_at_once_changes_nothing(autojump_clock: Any) -> None:  # P91
    async with watching(KEYS) as server, server.connect() as client:
        (key,) = pending(await ask(client))
        await client.answer((key, f"found {SECRET}"))
        error = await client.receive()
        assert (error["error"]["code"], error["error"]["param"]) == ("invalid_prompt", "input[0]")
        assert error["error"]["message"] == "A tool's output was refused by the policy 'keys'."
        await client.answer((key, "nothing"))
        assert (await client.step())[-1]["response"]["output"][-1]["content"][0]["text"] == "Seen nothing."


async def test_an_injection_that_is_blocked_comes_back() -> None:  # P91
    async with watching(KEYS, lifecycle="inject") as server, server.connect() as client:
        await client.create()
        item = (await client.until("response.output_item.done"))[-1]["item"]
        await wait_all_tasks_blocked()
        output = {"type": "function_call_output", "call_id": item["call_id"], "output": SECRET}
        response_id = server_run(server).response.id
        await client.send("response.inject", response_id=response_id, input=[output])
        failed = await client.receive()
        assert (failed["type"], failed["error"]["code"]) == ("response.inject.failed", "invalid_prompt")


def server_run(server: Served) -> Any:
    (live,) = server.app.responses.runs.lives.values()
    return live


async def test_an_output_in_parts_is_looked_at_as_a_whole() -> None:  # P90
    async with watching(KEYS) as server, server.connect() as client:
        (key,) = pending(await ask(client))
        part = {"type": "function_call_output", "call_id": key}
        first = part | {"output": SECRET[:5], "status": "in_progress", "offset": 0}
        await client.send("response.append", input=[first])
        assert (await client.receive())["type"] == "response.append.accepted"
        await client.send("response.append", input=[part | {"output": SECRET[5:], "status": "completed", "offset": 5}])
        assert (await client.receive())["error"]["code"] == "invalid_prompt"


async def test_what_is_flagged_goes_on_and_is_recorded() -> None:  # P95
    async with watching(FLAG) as server, server.connect() as client:
        (key,) = pending(await ask(client, input=f"{SECRET} and {SECRET}"))
        await client.answer((key, SECRET))
        final = (await client.step())[-1]["response"]
        assert final["status"] == "completed"
        assert final["safety"] == [
            {"policy": "keys", "place": "input", "outcome": "flagged", "count": 1},
            {"policy": "keys", "place": "tool_output", "outcome": "flagged", "count": 1},
            {"policy": "keys", "place": "output", "outcome": "flagged", "count": 1},
        ]
        assert "safety" not in (await ask(client, input="go", tools=[]))[-1].get("response", {})


# --- verdicts that take time ---------------------------------------------------------------------------------------


async def test_sampling_does_not_wait_for_the_verdict_but_the_client_does(autojump_clock: Any) -> None:  # P92
    judge, policy = FakeJudge(), MODEL | {"on": ["input"]}
    async with watching(policy, scenario=SLOW, judges={"m": judge}) as server, server.connect() as client:
        await client.create()
        assert kinds([await client.receive(), await client.receive()]) == ["created", "in_progress"]
        with trio.move_on_after(4):
            await client.receive()
            pytest.fail("an event came before the verdict")
        judge.answer(GOOD)
        before = trio.current_time()
        final = (await client.step())[-1]
        assert trio.current_time() == before  # all of it was there
        assert final["type"] == "response.completed"
        assert final["response"]["timing"]["step"]["classify_ms"] > 0


async def test_input_that_is_blocked_later_fails_the_run(autojump_clock: Any) -> None:  # P92
    judge = FakeJudge()
    async with watching(MODEL, scenario=SLOW, judges={"m": judge}) as server, server.connect() as client:
        await client.create()
        await client.until("response.in_progress")
        judge.answer(BAD)
        (failed,) = await client.step()
        assert failed["type"] == "response.failed"
        error = {"code": "invalid_prompt", "message": "The input was refused by the policy 'tone'."}
        error |= {"type": "invalid_request_error"}
        assert (failed["response"]["error"], failed["response"]["output"]) == (error, [])
        assert failed["response"]["safety"][0]["outcome"] == "blocked"


async def test_preparing_alone_waits_for_the_verdict_too() -> None:  # P92
    """Or a run that goes on from it would have been given what nobody has looked at."""
    judge = FakeJudge()
    async with watching(MODEL, judges={"m": judge}) as server, server.connect() as client:
        await client.create(generate=False)
        await client.until("response.in_progress")
        await wait_all_tasks_blocked()
        judge.answer(BAD)
        assert (await client.step())[-1]["response"]["error"]["code"] == "invalid_prompt"


async def test_a_run_cut_short_before_its_verdict_leaves_nothing_that_was_not_looked_at() -> None:  # P90
    judge = FakeJudge()
    async with (
        watching(MODEL, scenario=SLOW, judges={"m": judge}, lifecycle="chain") as server,
        server.connect() as client,
    ):
        await client.create(input="ugly", instructions="Be brief.")
        previous = (await client.until("response.in_progress"))[0]["response"]["id"]
        await client.send("response.cancel")
        assert (await client.step())[-1]["type"] == "response.incomplete"
        assert judge.withdrawn == ["Be brief.", "ugly"]
        await client.create(input="nice", instructions="Be brief.", previous_response_id=previous)
        await client.until("response.in_progress")
        assert list(judge.open.values()) == ["Be brief.", "ugly", "nice"]


async def test_only_what_is_new_is_looked_at() -> None:  # P90
    judge, policy = FakeJudge(), MODEL | {"on": ["input", "tool_output"]}
    async with watching(policy, judges={"m": judge}, lifecycle="chain") as server, server.connect() as client:
        await client.create(input="one", instructions="Be brief.")
        for text in ("Be brief.", "one"):
            await wait_all_tasks_blocked()
            assert next(iter(judge.open.values())) == text
            judge.answer(GOOD)
        final = (await client.step())[-1]["response"]
        output = {"type": "function_call_output", "call_id": final["output"][-1]["call_id"], "output": "two"}
        await client.create(input=[output], instructions="Be brief.", previous_response_id=final["id"])
        await wait_all_tasks_blocked()
        assert list(judge.open.values()) == ["two"]


async def test_unless_the_history_is_to_be_looked_at_each_time() -> None:
    judge, policy = FakeJudge(), MODEL | {"on": ["input", "tool_output"]}
    async with watching(policy, judges={"m": judge}, safety_history=True) as server, server.connect() as client:
        await client.create(input="one")
        await wait_all_tasks_blocked()
        judge.answer(GOOD)
        (key,) = pending(await client.step())
        await client.answer((key, "two"))
        await wait_all_tasks_blocked()
        assert list(judge.open.values()) == ["one", '{"n": 1}', "two"]


# --- what goes out -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lifecycle", ["append", "chain", "inject"])
async def test_output_that_is_blocked_ends_the_run_before_the_match(lifecycle: str) -> None:  # P93
    async with watching(KEYS, scenario=LEAK, lifecycle=lifecycle) as server, server.connect() as client:
        frames = await ask(client, include=["response.tokens"])
        assert_nothing_of_it(frames)
        final = frames[-1]
        assert final["type"] == "response.incomplete"
        response = final["response"]
        assert response["incomplete_details"] == FILTERED
        (message,) = response["output"]
        assert (message["status"], message["content"][0]["text"]) == ("incomplete", "The key is ")
        assert response["safety"] == [{"policy": "keys", "place": "output", "outcome": "blocked", "count": 1}]
        assert response["usage"]["output_tokens"] > 0


async def test_nothing_of_it_is_in_what_can_be_read_later() -> None:  # P93
    async with watching(KEYS, scenario=LEAK, store=MemoryStore()) as server:
        http = server.http()
        events = await http.events(input="go", include=["response.tokens"], store=True)
        assert_nothing_of_it(events)
        response_id = events[-1]["response"]["id"]
        for path in ("", "?stream=true", "/input_items"):
            if path == "?stream=true":
                async with http.stream("GET", f"/v1/responses/{response_id}?stream=true") as stream:
                    assert_nothing_of_it(await stream.rest())
            else:
                assert_nothing_of_it([(await http.get(f"/v1/responses/{response_id}{path}")).json])


async def test_nothing_of_it_is_in_the_token_log(tmp_path: Path) -> None:  # P93
    form = PromptFormat.load(save_format(tmp_path))
    backend = ScriptBackend([parse_scenario(LEAK)], partial(PromptContext, form))
    store = MemoryStore()
    async with watching(KEYS, backend=backend, store=store) as server, server.connect() as client:
        events = await ask(client, include=["response.tokens"], store=True, resumable=True)
        (told,) = (event["spans"] for event in events if event["type"] == "response.tokens")
        read = (await server.http().get(f"/v1/responses/{events[-1]['response']['id']}/tokens")).json["data"]
        assert told == read
        assert not any(span["sampled"] for span in read)
        assert read[0]["ids"]
        (stored,) = await store.load_chain(events[-1]["response"]["id"], server_run(server).principal)
        assert stored.steps
        assert b'"sampled":true' not in b"".join(stored.steps)


@pytest.mark.parametrize("lifecycle", ["append", "chain"])
async def test_reasoning_is_output(lifecycle: str) -> None:  # P93
    async with watching(KEYS, scenario=THINKING, lifecycle=lifecycle) as server, server.connect() as client:
        frames = await ask(client, include=["reasoning.encrypted_content"])
        assert_nothing_of_it(frames)
        assert frames[-1]["response"]["incomplete_details"] == FILTERED
        assert [item["type"] for item in frames[-1]["response"]["output"]] == ["reasoning"]


async def test_a_call_is_told_when_its_arguments_are_cleared_and_one_with_a_match_never() -> None:  # P94
    async with watching(KEYS, scenario=CALLING) as server, server.connect() as client:
        frames = await ask(client)
        assert_nothing_of_it(frames)
        done = [frame["item"] for frame in frames if frame["type"] == "response.output_item.done"]
        assert [(item["type"], item["status"]) for item in done] == [
            ("message", "completed"),
            ("function_call", "completed"),
            ("function_call", "incomplete"),
        ]
        assert (done[1]["arguments"], done[2]["arguments"]) == ('{"n": 1}', "")
        assert kinds(frames)[-1] == "incomplete"
        await client.answer((done[2]["call_id"], "x"))
        assert (await client.receive())["error"]["code"] == "response_not_found"


async def test_arguments_that_take_long_are_no_model_that_gives_nothing(autojump_clock: Any) -> None:
    scenario = f"""
model: test
pace: {{tokens_per_second: 1}}
steps: [{{call: {{name: look, arguments: {{text: "{"word " * 20}"}}}}}}]
"""
    async with watching(KEYS, scenario=scenario, step_timeout_s=3) as server, server.connect() as client:
        await client.create()
        await client.until("response.output_item.added")
        with trio.fail_after(60):
            frames = [json.loads(await client.ws.get_message()) for _ in range(2)]
        assert trio.current_time() > 10
        assert kinds(frames) == ["function_call_arguments.delta"] * 2


async def test_a_run_that_goes_on_from_a_blocked_one_has_seen_what_its_client_has() -> None:  # P97
    scenario = LEAK + '  - text: "After {last_user}."\n'
    async with watching(KEYS, scenario=scenario, lifecycle="chain") as server, server.connect() as client:
        blocked = (await ask(client, input="go"))[-1]["response"]
        frames = await ask(client, input="on", previous_response_id=blocked["id"])
        assert frames[-1]["response"]["output"][0]["content"][0]["text"] == "After on."
        assert frames[-1]["response"]["timing"]["step"]["tokens_reused"] == 0


async def test_text_that_is_blocked_in_a_later_step_ends_an_appended_run() -> None:  # P93
    scenario = TWO_STEPS + f"  - text: {SECRET}\n"
    async with watching(KEYS, scenario=scenario, keep_open=True) as server, server.connect() as client:
        (key,) = pending(await ask(client))
        await client.answer((key, "x"))
        assert pending(await client.step()) == []
        await client.send("response.append", input="more")
        frames = await client.step()
        assert_nothing_of_it(frames)
        assert frames[-1]["response"]["incomplete_details"] == FILTERED


# --- classifiers that fail -------------------------------------------------------------------------------------------


async def test_a_classifier_that_hangs_fails_the_run_after_its_time(autojump_clock: Any) -> None:  # P96
    judge = FakeJudge()
    async with (
        watching(MODEL, scenario=SLOW, judges={"m": judge}, safety_timeout_s=2) as server,
        server.connect() as client,
    ):
        started = trio.current_time()
        failed = (await ask(client))[-1]
        assert trio.current_time() - started == pytest.approx(2)
        assert failed["response"]["error"] == {
            "code": "server_error",
            "message": "A safety check could not be made.",
        }
        assert failed["response"]["safety"][0]["outcome"] == "failed"


async def test_or_is_passed_by_where_that_is_set(autojump_clock: Any) -> None:  # P96
    async with (
        watching(MODEL, scenario=SLOW, judges={"m": FakeJudge()}, safety_timeout_s=2, safety_fails="open") as server,
        server.connect() as client,
    ):
        final = (await ask(client))[-1]["response"]
        assert final["status"] == "completed"
        assert [(found["place"], found["outcome"]) for found in final["safety"]] == [
            ("input", "failed"),
            ("output", "failed"),
        ]


async def test_a_classifier_that_could_not_be_loaded_refuses_the_run_and_the_server_says_so() -> None:  # P96
    async with watching(MODEL, judges={"m": FakeJudge("no such model")}) as server, server.connect() as client:
        (error,) = await ask(client)
        assert (error["status"], error["error"]["code"]) == (500, "server_error")
        ready = await server.http().get("/readyz")
        assert (ready.status, ready.error["message"]) == (503, "Not ready: a classifier is loading")


async def test_a_steer_that_is_blocked_changes_nothing(autojump_clock: Any) -> None:
    """P91: the response is not stopped for it, and another steer still counts."""
    async with watching(KEYS, scenario=SLOW, lifecycle="chain") as server, server.connect() as client:
        await client.create(tools=[])
        response_id = (await client.until("response.output_text.delta"))[0]["response"]["id"]
        await client.send("response.steer", previous_response_id=response_id, input=f"use {SECRET}")
        failed = (await client.until("response.steer.failed"))[-1]
        assert (failed["error"]["code"], failed["error"]["param"]) == ("invalid_prompt", "input[0]")
        assert (await client.step())[-1]["type"] == "response.completed"


async def test_a_steer_waits_for_what_is_held_back(autojump_clock: Any) -> None:
    judge, policy = FakeJudge(), MODEL | {"on": ["output"]}
    async with (
        watching(policy, scenario=SLOW, judges={"m": judge}, lifecycle="chain") as server,
        server.connect() as client,
    ):
        await client.create(input="go")
        created = (await client.until("response.in_progress"))[0]
        await trio.sleep(1.15)
        await client.send("response.steer", previous_response_id=created["response"]["id"], input="stop")
        assert (await client.receive())["type"] == "response.steer.accepted"
        await wait_all_tasks_blocked()
        assert len(judge.open) == 1
        judge.answer(GOOD)
        final = (await client.step())[-1]["response"]
        assert final["incomplete_details"] == {"reason": "steered"}
        assert final["output"][0]["content"][0]["text"] != ""


async def test_what_is_in_a_conversation_is_looked_at_once() -> None:  # P90
    scenario = f"model: test\nsteps: [{{text: It is {SECRET}.}}, {{text: Next.}}]\n"
    async with watching(FLAG | {"on": ["input"]}, scenario=scenario, store=MemoryStore()) as server:
        http = server.http()
        conversation = (await http.post("/v1/conversations", items=[])).json["id"]
        found = [
            (await http.create(input=text, conversation=conversation)).json.get("safety", [])
            for text in (f"My key: {SECRET}.", "and now?", "and then?")
        ]
    assert [[each["count"] for each in findings] for findings in found] == [[1], [], []]
