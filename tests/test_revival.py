"""revival.py: a run read back is the run that was written, whatever it has been through."""

import json
import random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from engine.backends.base import ReasoningDelta, StepEnd, StepSpec, TextDelta, ToolChoice
from engine.backends.scenario import parse_scenario
from engine.backends.script import ScriptBackend
from engine.content import TokenLogprob
from engine.errors import NotFound, RequestError, ServerError
from engine.events import encode_event
from engine.history import Round
from engine.items import Item, Message, type_of
from engine.journal import FORMAT, Journal, encode_start
from engine.response import Response
from engine.revival import past_of, read
from engine.settings import Settings
from engine.status import Status
from engine.tokens import TokenLog
from engine.usage import Timing, Usage
from tests.journaled import JournaledRun, ids_of, state_of
from tests.machines import NOTE, NOW, SEALER, SETTINGS, WEATHER, call, counting_ids, item, output, request, stop, user
from tests.served import FUNCTION, TWO_CALLS
from tests.test_response import Walk

TOOLS = [WEATHER, NOTE]


class JournaledWalk(Walk):
    """A random walk whose run is written down; one that dies goes on with a new machine after each record."""

    def __init__(self, seed: int, *, keep_open: bool, settings: Settings, dies: bool) -> None:
        super().__init__(random.Random(seed), keep_open)
        self.settings, self.dies = settings, dies
        tools = [*TOOLS, {"type": "shell"}]
        self.run: JournaledRun = JournaledRun(
            tools=tools, keep_open=keep_open, include=["response.tokens"], settings=settings
        )

    def move(self) -> None:
        num_records = len(self.run.records)
        super().move()
        if self.dies and len(self.run.records) > num_records:
            self.die()

    def die(self) -> None:
        """Everything is lost but the records, which were written in this very move."""
        before, is_taken = self.run.response, self.run.journal._taken
        revived = self.run.revived(self.settings, self.run.mint_id)
        taken = revived.take_new_items() if is_taken else []
        assert taken == is_taken
        assert state_of(revived) == state_of(before)
        self.run.replace(revived)
        self.run.journal.took(taken)


@given(seed=st.integers(0, 2**32), num_moves=st.integers(1, 60), keep_open=st.booleans(), is_long=st.booleans())
def test_run_that_dies_at_every_record_goes_on_as_one_that_never_does(
    seed: int, num_moves: int, keep_open: bool, is_long: bool
) -> None:
    settings = SETTINGS if is_long else Settings(max_log_events=25, high_water_events=5)
    walks = [JournaledWalk(seed, keep_open=keep_open, settings=settings, dies=dies) for dies in (False, True)]
    for _ in range(num_moves):
        for walk in walks:
            walk.move()
    one, other = (walk.run for walk in walks)
    assert other.live == one.live
    assert state_of(other.response) == state_of(one.response)
    assert (other.start, other.records) == (one.start, one.records)
    past = past_of([one.recorded()], SEALER)
    log = TokenLog()
    log.extend(past.spans)
    assert list(log.since(0)) == list(one.tokens.since(0))


def test_walks_die_often_and_everywhere() -> None:
    """The walk above is only worth something if it dies at pauses, on the way and at every kind of end."""
    seen: set[str] = set()
    for seed in range(20):
        walk = JournaledWalk(seed, keep_open=bool(seed % 2), settings=SETTINGS, dies=True)
        die = walk.die

        def note(walk: JournaledWalk = walk, die: Any = die) -> None:
            seen.add(walk.status.value)
            seen.update(kind for kind in ("taken",) if walk.run.journal._taken)
            seen.update("early" for entry in walk.run.response.answers.open.values() if entry.answer)
            seen.update("part" for entry in walk.run.response.answers.open.values() if entry.text)
            die()

        walk.die = note  # type: ignore[method-assign]
        for _ in range(60):
            walk.move()
    assert seen == {"in_progress", "paused", "completed", "incomplete", "failed", "taken", "early", "part"}


def asked(text: str) -> Item:
    """What an input that is a string stands for."""
    return item(role="user", content=[{"type": "input_text", "text": text}])


# --- one by one --------------------------------------------------------------------------------------------------


def refused(response: Response, *items: Item) -> RequestError:
    with pytest.raises(RequestError) as caught:
        response.check(list(items))
    return caught.value


def test_paused_run_waits_for_the_same_calls() -> None:
    run = JournaledRun(tools=TOOLS).feed("t", call(), call())
    run.append(output("call_0"))
    revived = run.step().revived()
    assert (revived.status, revived.still_pending()) == (Status.PAUSED, ["call_1"])
    assert revived.check([output("call_0")]).repeated == ["call_0"]
    assert "answered already" in refused(revived, output("call_0", "other")).message
    assert revived.commit(revived.check([output("call_1")]))
    assert revived.take_new_items() == [output("call_0"), output("call_1")]


@pytest.mark.parametrize(
    "fields",
    [
        {"include": ["reasoning.encrypted_content"]},
        {"include": ["reasoning.encrypted_content"], "reasoning": {"summary": "auto"}},
        {"include": ["message.output_text.logprobs"], "top_logprobs": 0},
        {"lifecycle": "inject"},
    ],
)
def test_run_is_shown_as_its_client_asked_before_and_after(fields: dict[str, Any]) -> None:
    run = JournaledRun(tools=TOOLS, **fields)
    said = [ReasoningDelta("hm"), TextDelta("Hi", (TokenLogprob("Hi", [72, 105], -0.5),))]
    run.step(*said, call())
    live = list(run.live)
    run.replace(run.revived())
    assert run.replayed() == live
    assert run.append(output("call_0"))
    run.response.take_new_items()
    run.step(*said)
    first, second = ([one for one in run.response.output if type_of(one) == kind] for kind in ("reasoning", "message"))
    for before, after in (first, second):
        changes = {"id": before.id} | ({"phase": after.phase} if isinstance(after, Message) else {})
        assert msgspec.structs.replace(before, **changes) == msgspec.structs.replace(after, **changes)


def test_answers_since_the_last_record_are_due_again_and_a_half_step_is_gone() -> None:
    run = JournaledRun(tools=TOOLS).step(call())
    paused = state_of(run.response)
    run.append(output("call_0"))
    assert state_of(run.revived()) == paused
    run.response.take_new_items()
    run.feed("half a st")
    assert state_of(run.revived()) == paused
    run.step()
    assert run.revived().status is Status.COMPLETED


def test_run_that_has_all_its_answers_goes_on_without_its_client() -> None:
    run = JournaledRun(tools=TOOLS).feed(call())
    run.append(output("call_0"), choice=ToolChoice("none"))
    revived = run.step().revived()
    assert (revived.status, revived.still_pending()) == (Status.IN_PROGRESS, [])
    assert revived.take_new_items() == [output("call_0")]
    assert revived.step_spec().tool_choice == ToolChoice("none")


def test_run_whose_first_step_never_ended_has_failed() -> None:
    run = JournaledRun().feed("half a st")
    revived = run.revived()
    assert (revived.status, revived.log.next) == (Status.FAILED, 3)
    event = msgspec.json.decode(encode_event(revived.log.read(2)))
    assert event["response"]["error"]["code"] == "server_error"
    assert event["response"]["output"] == []


def test_what_nobody_asked_for_stays_unsolicited() -> None:
    run = JournaledRun(tools=TOOLS).step(call())
    run.response.end("append_timeout", NOW)
    revived = run.revived()
    assert (revived.status, revived.progress.unsolicited_from) == (Status.INCOMPLETE, revived.log.next - 1)
    with pytest.raises(NotFound):
        revived.check([output("call_0")])


def test_forced_choice_is_spent_by_a_call_and_stays_spent() -> None:
    run = JournaledRun(tools=TOOLS, tool_choice="required")
    assert run.step(call()).revived().step_spec().tool_choice == ToolChoice("auto")


def test_run_that_was_only_prepared_has_completed() -> None:
    run = JournaledRun(generate=False)
    run.response.complete_without_sampling(Usage(), Timing(), NOW)
    assert state_of(run.revived()) == state_of(run.response)


def test_steered_step_is_incomplete() -> None:
    run = JournaledRun(lifecycle="chain").feed("so f")
    run.response.end_step(stop(), Timing(), NOW, is_steered=True)
    assert state_of(run.revived()) == state_of(run.response)


def test_injections_keep_their_place_among_the_events() -> None:
    run = JournaledRun(tools=TOOLS, lifecycle="inject").feed(call(), "in the ")
    run.append(output("call_0"))
    run.feed("middle").step(call())
    assert "inject.created" in run.types
    run.append(output("call_1"))
    run.response.take_new_items()
    run.step("end")
    revived = run.revived()
    assert [encode_event(revived.log.read(seq)) for seq in range(revived.log.next)] == run.live
    assert state_of(revived) == state_of(run.response)


# --- runs that go on from others ---------------------------------------------------------------------------------


def chained(before: Response | None, *items: Item, **fields: Any) -> tuple[Response, bytes]:
    """A run of a chain that has started, and its first record."""
    asked = msgspec.structs.replace(request(tools=TOOLS, lifecycle="chain", **fields), items=list(items))
    response = Response("resp_1", asked, SETTINGS, counting_ids(), NOW, before)
    if before is not None:
        response.answers.answered({"call_0": items[0]})  # type: ignore[dict-item]  # an output
    start = encode_start(response, "me", goes_on=before is not None)
    response.start()
    return response, start


def test_run_of_a_chain_knows_what_was_before() -> None:
    first = JournaledRun(tools=TOOLS, lifecycle="chain").step("t", call())
    second, start = chained(first.response, output("call_0"))
    revived = read(start, []).revive(SETTINGS, counting_ids(), NOW, first.revived())
    assert revived.answers.has_answer("call_0", output("call_0"))  # type: ignore[arg-type]  # an output
    assert revived.answers.made_id("msg_0")
    assert isinstance(revived.round, Round) and isinstance(second.round, Round)
    assert revived.round.items() == second.round.items() == [asked("hi"), *first.response.output, output("call_0")]


def test_context_is_what_was_given_and_made() -> None:
    run = JournaledRun(tools=TOOLS).step("t", call())
    run.append(output("call_0"))
    run.response.take_new_items()
    run.step("u")
    first, called, last = run.response.output
    assert run.recorded().context([user()], SEALER) == [user(), asked("hi"), first, called, output("call_0"), last]


# --- what a backend is to be given -------------------------------------------------------------------------------


def test_past_has_a_round_for_each_step() -> None:
    run = JournaledRun(tools=TOOLS).step(call())
    run.append(output("call_0"))
    run.response.take_new_items()
    past = past_of([run.step(call()).recorded()], SEALER)
    assert past.rounds == [[asked("hi")], [output("call_0")]]
    assert ids_of(past.spans) == ids_of(list(run.tokens.since(0)))
    assert past.num_tokens == len(run.tokens)
    assert past.items == [asked("hi"), run.response.output[0], output("call_0"), run.response.output[1]]


def test_past_of_a_continued_sequence_begins_with_the_earlier_run() -> None:
    first = JournaledRun(tools=TOOLS).step("t")
    second = JournaledRun(tools=TOOLS, input="and", goes_on=first).step(call())
    past = past_of([first.recorded(), second.recorded()], SEALER)
    assert past.rounds == [[asked("hi")], [asked("and")]]
    assert past.items == [asked("hi"), *first.response.output, asked("and"), *second.response.output]
    assert ids_of(past.spans) == ids_of(list(second.tokens.since(0)))


def test_past_of_a_new_sequence_begins_with_all_that_was_before() -> None:
    first = JournaledRun(tools=TOOLS).step("t")
    second = JournaledRun(input="and").step(call())
    past = past_of([first.recorded(), second.recorded()], SEALER)
    assert past.rounds == [[asked("hi"), *first.response.output, asked("and")]]
    assert ids_of(past.spans) == ids_of(list(second.tokens.since(0)))


def test_past_of_a_sequence_that_was_not_given_the_oldest_lacks_that() -> None:
    first = JournaledRun(tools=TOOLS).step("t")
    second = JournaledRun(input="and", num_cut=1).step(call())
    past = past_of([first.recorded(), second.recorded()], SEALER)
    assert past.rounds == [[*first.response.output, asked("and")]]
    assert past.items == [*past.rounds[0], *second.response.output]


def test_what_was_prepared_and_not_sampled_from_is_part_of_the_next_round() -> None:
    first = JournaledRun(generate=False)
    first.response.complete_without_sampling(Usage(), Timing(), NOW)
    assert past_of([first.recorded()], SEALER).rounds == [[asked("hi")]]
    second = JournaledRun(input="and", goes_on=first).step("t")
    assert past_of([first.recorded(), second.recorded()], SEALER).rounds == [[asked("hi"), asked("and")]]


async def play(sequence: Any, items: list[Item]) -> list[Any]:
    """The deltas of a step that is given these items."""
    sequence.commit(await sequence.prepare(items))
    sequence.start_step(StepSpec())
    deltas = await sequence.next_deltas()
    while not isinstance(deltas[-1], StepEnd):
        deltas += await sequence.next_deltas()
    return deltas


async def test_sequence_that_is_given_the_past_goes_on_as_the_one_that_was_lost(autojump_clock: MockClock) -> None:
    backend = ScriptBackend([parse_scenario(TWO_CALLS)])
    wanted = request(tools=[FUNCTION], model="script:test")
    response = Response("resp_0", wanted, SETTINGS, counting_ids(), NOW)
    start = encode_start(response, "me")
    response.start()
    journal, sequence = Journal(response, 0), backend.open_sequence(wanted.spec("resp_0"))
    *deltas, end = await play(sequence, wanted.items)
    for delta in deltas:
        response.feed(delta)
    response.end_step(end, end.timing, NOW)
    _, record = journal.record(sequence.tokens, sequence.num_context_tokens)
    revived = backend.open_sequence(wanted.spec("resp_0"))
    revived.restore(past_of([read(start, [record])], SEALER))
    outputs = [output("call_0", "one"), output("call_1", "two")]
    assert revived.num_context_tokens == sequence.num_context_tokens
    assert await play(revived, outputs) == await play(sequence, outputs)


# --- to the letter -----------------------------------------------------------------------------------------------


def test_request_comes_back_to_the_letter() -> None:
    tool = msgspec.Raw(b'{ "type" : "function", "name":"weather",\n "parameters": {"x": 1e2, "\\u00e9": 1} }')
    choice = msgspec.Raw(b'{"name" : "weather", "type": "function"}')
    run = JournaledRun(
        tools=[tool], tool_choice=choice, lifecycle="inject",
        temperature=0.5, top_p=1, seed=7, metadata={"b": "1", "a": "2"}, reasoning={"effort": "low"},
        text={"format": {"type": "json_schema", "name": "n", "schema": {"z": 10**30, "a": 1.0}}},
    )  # fmt: skip
    run.step("t")
    revived = run.revived()
    assert [encode_event(revived.log.read(seq)) for seq in range(revived.log.next)] == run.live
    for name in run.response.request.__struct_fields__:
        if name != "echo":
            assert getattr(revived.request, name) == getattr(run.response.request, name), name


def test_any_item_comes_back() -> None:
    items = [
        {"type": "web_search_call", "id": "ws_1", "action": {"n": 10**30, "x": 1.0, "é": None}},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "😀"}]},
        {"type": "reasoning", "summary": [], "encrypted_content": "x"},
        {"role": "user", "content": "hi"},
    ]
    run = JournaledRun(input=items)
    assert run.recorded().request.items == [item(**one) for one in items]


# --- what cannot be read -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["start", "step"])
@pytest.mark.parametrize(
    "damage",
    [
        lambda blob: b"",
        lambda blob: blob[:-20],
        lambda blob: b"[]",
        lambda blob: blob.replace(b'"completed"', b'"finished"').replace(b'"auto"', b'"perhaps"'),
        lambda blob: blob.replace(b'"log":[0', b'"log":[7').replace(b'"echo"', b'"ecco"'),
        lambda blob: blob.replace(b'"type":"message"', b'"type":"massage"'),
    ],
)
def test_damaged_record_is_an_error_of_ours(where: str, damage: Any) -> None:
    run = JournaledRun().step("t")
    start, steps = run.start, run.records
    if where == "start":
        start = damage(start)
    else:
        steps = [damage(blob) for blob in steps]
    assert (start, steps) != (run.start, run.records)
    with pytest.raises(ServerError, match="cannot be read"):
        read(start, steps)


def test_record_whose_parts_do_not_fit_is_an_error_of_ours() -> None:
    run = JournaledRun(tools=[{"type": "shell"}]).feed("t", call('{"commands":[]}', name="shell", kind="shell_call"))
    (record,) = run.step().records
    for damage in (
        (b'"type":"folded"', b'"type":"message","role":"user","content":"x"'),
        (b'"log":[0,', b'"log":[1,'),
    ):
        assert damage[0] in record
        with pytest.raises(ServerError, match="cannot be read"):
            read(run.start, [record.replace(*damage)])


def test_record_of_a_newer_server_is_refused() -> None:
    newer = {**json.loads(JournaledRun().start), "format": FORMAT + 1}
    with pytest.raises(ServerError, match="newer version"):
        read(json.dumps(newer).encode(), [])


def test_machines_of_the_same_records_share_nothing_that_changes() -> None:
    run = JournaledRun(tools=TOOLS, keep_open=True).feed(call(), call())
    run.append(output("call_0"), user())
    recorded = run.step().recorded()
    one, two = (recorded.revive(SETTINGS, counting_ids(), NOW) for _ in range(2))
    before = state_of(two)
    one.commit(one.check([output("call_1"), user("more")]))
    one.take_new_items()
    one.feed(ReasoningDelta("hm"))
    one.end_step(StepEnd("stop"), Timing(), NOW)
    assert state_of(two) == before
