"""The client's state machine alone: what it says on the wire, what it makes of events, over connections that break."""

from typing import Any

import pytest

from engine.client_state import DropCalls, EndTurn, Fail, Phase, Reconnect, RunState, Show, StartCall, message_text
from engine.client_wire import Event
from tests.client_events import CREATE, FUNCTION, created, done, error, event, item_done, sent

USAGE = {"input_tokens": 10, "output_tokens": 2, "total_tokens": 12}


def running(**create: Any) -> RunState:
    """A run that the server has created."""
    state = RunState(CREATE | create)
    state.connected()
    sent(state)
    state.receive(created())
    return state


def waiting() -> RunState:
    """A run that waits for the next message."""
    state = running()
    state.receive(done(1))
    return state


# --- what it says ------------------------------------------------------------------------------------------------


def test_first_connection_starts_with_the_create_and_says_nothing_before_created():
    state = RunState(CREATE)
    state.connected()
    state.outbox.finish("c0", FUNCTION, "early")
    state.cancel()
    assert sent(state) == [{"type": "response.create", **CREATE}]
    state.receive(created())
    assert [frame["type"] for frame in sent(state)] == ["response.cancel", "response.append"]
    assert sent(state) == []


def test_every_frame_of_a_lane_names_it():
    state = running(stream_id="a")
    state.outbox.finish("c0", FUNCTION, "x")
    state.cancel()
    frames = sent(state)
    state.connected()
    frames += sent(state)
    assert [(frame["type"], frame["stream_id"]) for frame in frames] == [
        ("response.cancel", "a"),
        ("response.append", "a"),
        ("response.resume", "a"),
    ]


def test_default_lane_is_not_named():
    assert all("stream_id" not in frame for frame in sent(RunState(CREATE)))


def test_ended_run_says_nothing():
    state = running()
    state.outbox.finish("c0", FUNCTION, "x")
    state.receive(event("completed", 1, response={"id": "resp_1", "status": "completed"}))
    state.connected()
    assert sent(state) == []
    state.fail()
    assert (state.phase, state.can_reconnect) == (Phase.ENDED, False)


def test_cancel_is_said_once_a_connection():
    state = running()
    state.cancel()
    state.cancel()
    assert [frame["type"] for frame in sent(state)] == ["response.cancel"]
    state.connected()
    assert [frame["type"] for frame in sent(state)] == ["response.resume"]
    state.receive(event("resume.accepted", status="in_progress", last_sequence_number=0))
    assert [frame["type"] for frame in sent(state)] == ["response.cancel"]


def test_message_is_said_while_the_run_waits_only():
    with pytest.raises(ValueError, match="resp_1 is running"):
        running().say("hi")
    state = waiting()
    state.say("hi")
    (frame,) = sent(state)
    assert frame["input"][0]["content"] == [{"type": "input_text", "text": "hi"}]
    assert state.phase is Phase.RUNNING


# --- what it makes of events -------------------------------------------------------------------------------------


def test_event_is_shown_once_and_in_order():
    state = running()
    assert state.receive(created()) == []
    assert state.receive(event("output_text.delta", 5, delta="x")) == [Show(event("output_text.delta", 5, delta="x"))]
    assert state.receive(event("output_text.delta", 4, delta="old")) == []


def test_event_without_a_number_is_shown_and_means_nothing():
    unknown = event("something", None, x=1)
    assert running().receive(unknown) == [Show(unknown)]


@pytest.mark.parametrize(
    ("kind", "fields", "is_call"),
    [
        ("function_call", {}, True),
        ("custom_tool_call", {}, True),
        ("function_call", {"status": "completed"}, True),
        ("function_call", {"status": "incomplete", "arguments": "{}"}, False),  # P29
        ("custom_tool_call", {"status": "incomplete", "input": "DELETE FROM a"}, False),
        ("mcp_approval_request", {}, True),
        ("tool_search_call", {}, True),
        ("tool_search_call", {"execution": "server"}, False),
        ("message", {"content": []}, False),
        ("web_search_call", {}, False),
    ],
)
def test_call_of_the_clients_starts_its_tool(kind, fields, is_call):
    state = running()
    effects = state.receive(item_done(1, kind=kind, **fields))
    assert isinstance(effects[0], Show)
    assert [isinstance(effect, StartCall) for effect in effects[1:]] == [True] * is_call
    assert [item.type for item in state.output] == [kind]


def test_pause_for_calls_ends_no_turn():
    state = running()
    assert [type(effect) for effect in state.receive(done(1, "c0"))] == [Show]
    assert state.phase is Phase.RUNNING


def test_pause_for_nothing_ends_the_turn():
    _, end = running().receive(done(1))
    assert isinstance(end, EndTurn)
    assert (end.result.status, end.result.id) == ("in_progress", "resp_1")


def test_result_has_the_turns_text_and_the_runs_output_and_figures():
    state = running()
    hello = {"content": [{"type": "output_text", "text": "hel"}, {"type": "refusal", "refusal": "lo"}]}
    state.receive(item_done(1, kind="message", **hello))
    state.receive(done(2))
    state.say("more")
    response = {
        "id": "resp_1",
        "status": "incomplete",
        "usage": USAGE,
        "timing": {"step": {"sampling_ms": 1.5}, "run": {"sampling_ms": 4.0}},
        "incomplete_details": {"reason": "cancelled"},
    }
    _, end = state.receive(event("incomplete", 3, response=response))
    assert isinstance(end, EndTurn)
    result = end.result
    assert (result.status, result.reason, result.text) == ("incomplete", "cancelled", "")  # of this turn
    assert message_text(result.output) == "hello"
    assert (result.usage.total_tokens, result.run_usage.total_tokens) == (12, 12)  # no run_usage: the step's
    assert (result.timing.sampling_ms, result.run_timing.sampling_ms) == (1.5, 4.0)
    assert state.receive(event("output_text.delta", 4, delta="late")) == []


@pytest.mark.parametrize(
    ("said", "code", "status", "message"),
    [
        ({"code": "model_error", "message": "Bad."}, "model_error", 500, "Bad."),
        (None, "server_error", 500, "the run failed"),
    ],
)
def test_failed_run_fails_with_the_servers_words(said, code, status, message):
    _, effect = running().receive(event("failed", 1, response={"error": said}))
    assert isinstance(effect, Fail)
    assert (effect.error.status, effect.error.message) == (status, message)
    assert effect.error.code == code or said is None


# --- refusals ----------------------------------------------------------------------------------------------------


def test_error_frame_fails_the_run():
    state = RunState(CREATE)
    state.connected()
    sent(state)
    (effect,) = state.receive(error("invalid_value", 422))
    assert isinstance(effect, Fail)
    assert (effect.error.code, effect.error.status, effect.error.param) == ("invalid_value", 422, "p")
    assert state.phase is Phase.ENDED


def test_connection_limit_asks_for_another_connection():
    state = running()
    (effect,) = state.receive(error("websocket_connection_limit_reached"))
    assert isinstance(effect, Reconnect)
    assert (state.phase, state.can_reconnect) == (Phase.RUNNING, True)


def test_output_that_does_not_fit_is_shortened_once():
    state = running()
    state.outbox.finish("c0", FUNCTION, "x" * 5000)
    sent(state)
    assert state.receive(error("context_length_exceeded")) == []
    (frame,) = sent(state)
    assert "5000 characters" in frame["input"][0]["output"]
    assert state.receive(error("context_length_exceeded")) == []
    assert [frame["type"] for frame in sent(state)] == ["response.cancel"]


def ended(kind: str) -> dict[str, Any]:
    return event(kind, 1, response={"id": "resp_1", "status": kind, "error": {"message": "x"}, "output": []})


@pytest.mark.parametrize(
    "last",
    [ended("incomplete"), ended("completed"), ended("failed"), error("response_not_found", 400), error("gone", 500)],
)
def test_a_run_whose_outputs_are_refused_is_cancelled_and_its_end_told_as_that(last: dict[str, Any]):
    state = running()
    state.outbox.finish("c0", FUNCTION, "x")
    sent(state)
    assert state.receive(error("invalid_prompt")) == []
    state.outbox.finish("c1", FUNCTION, "y")
    assert [frame["type"] for frame in sent(state)] == ["response.cancel"]
    effect = state.receive(last)[-1]
    assert isinstance(effect, Fail)
    assert (effect.error.code, state.phase) == ("invalid_prompt", Phase.ENDED)
    assert sent(state) == []


def test_a_run_that_is_gone_when_it_is_answered_has_failed():
    state = running()
    state.outbox.finish("c0", FUNCTION, "x")
    sent(state)
    (effect,) = state.receive(error("response_not_found", 404))
    assert isinstance(effect, Fail)


def test_cancel_of_a_run_that_has_just_ended_is_no_failure():
    state = running()
    state.cancel()
    sent(state)
    assert state.receive(error("response_not_found", 404)) == []
    assert state.phase is Phase.RUNNING  # how it ended is still to come


@pytest.mark.parametrize(
    ("is_created", "is_resumable", "can"), [(False, False, True), (True, False, False), (True, True, True)]
)
def test_another_connection_helps_before_created_and_resumable_runs(is_created, is_resumable, can):
    state = RunState({"resumable": is_resumable})
    state.connected()
    sent(state)
    if is_created:
        state.receive(created())
    assert state.can_reconnect is can


# --- a server that was started anew ------------------------------------------------------------------------------


def answered() -> RunState:
    """A run of a stored response whose first call is answered, and whose next step has called twice."""
    state = RunState(CREATE)
    state.connected()
    sent(state)
    state.receive(created(store=True))
    state.receive(item_done(1))
    state.receive(done(2, "c0"))
    state.outbox.finish("c0", FUNCTION, "x")
    sent(state)
    state.receive(event("append.accepted", None))
    state.receive(item_done(3, "c1"))
    state.outbox.add_piece("c1", FUNCTION, "a part")
    sent(state)
    state.receive(item_done(4, "c2"))
    state.connected()
    sent(state)
    return state


def revived(last: int, *pending: str, status: str = "paused", name: str = "rev_1") -> Event:
    return event(
        "resume.accepted",
        None,
        status=status,
        starting_after=last,
        last_sequence_number=last,
        revival=name,
        still_pending=list(pending),
    )


def test_what_never_was_is_dropped_and_what_is_still_waited_for_is_given_again():
    state = answered()
    accepted = revived(2, "c0")
    assert state.receive(accepted) == [Show(accepted), DropCalls(frozenset({"c1", "c2"}))]
    (frame,) = sent(state)
    assert [(item["call_id"], item["output"]) for item in frame["input"]] == [("c0", "x")]
    assert [item.call_id for item in state.output] == ["c0"]
    assert state.receive(item_done(3, "c9")) != []  # the number counts anew
    assert [item.call_id for item in state.output] == ["c0", "c9"]


def test_growing_output_begins_anew_where_the_server_lacks_it():
    state = answered()
    state.receive(revived(4, "c1", "c2"))
    (frame,) = sent(state)
    assert [(item["call_id"], item["output"], item["offset"]) for item in frame["input"]] == [("c1", "a part", 0)]
    assert [item.call_id for item in state.output] == ["c0", "c1", "c2"]


def test_what_the_server_has_is_not_given_again():
    state = answered()
    state.receive(revived(4, status="in_progress"))
    assert sent(state) == []


def test_a_revival_that_is_known_changes_nothing_and_is_named():
    state = answered()
    state.receive(revived(2, "c0"))
    state.connected()
    assert sent(state) == [
        {"type": "response.resume", "response_id": "resp_1", "starting_after": 2, "revival": "rev_1"}
    ]
    assert state.receive(revived(2, "c0")) == []
    assert [frame["type"] for frame in sent(state)] == ["response.append"]
    state.connected()
    sent(state)
    assert state.receive(revived(2, "c0", name="rev_2")) != []


def test_a_message_that_was_lost_is_said_again_once():
    for is_sent in (True, False):
        state = waiting()
        state.say("hi")
        if is_sent:
            sent(state)
        state.connected()
        sent(state)
        state.receive(revived(1))
        (frame,) = sent(state)
        assert [item["content"][0]["text"] for item in frame["input"]] == ["hi"]
        state.receive(event("append.accepted", None))
        assert sent(state) == []


@pytest.mark.parametrize(("status", "pending"), [("in_progress", []), ("paused", ["c1"])])
def test_a_message_that_was_taken_is_not_said_again(status, pending):
    state = waiting()
    state.say("hi")
    sent(state)
    state.receive(event("append.accepted", None))
    state.receive(item_done(2, "c1"))
    state.connected()
    sent(state)
    state.receive(revived(2, *pending, status=status))
    assert sent(state) == []


def test_a_turn_that_was_over_cannot_be_taken_back():
    state = waiting()
    state.connected()
    sent(state)
    (failed,) = state.receive(revived(0))
    assert isinstance(failed, Fail)
    assert (failed.error.code, state.phase) == ("turn_lost", Phase.ENDED)


@pytest.mark.parametrize(("status", "code"), [(503, "server_is_overloaded"), (429, "rate_limit_exceeded")])
def test_a_server_that_cannot_take_the_run_up_now_is_asked_again(status, code):
    state = running()
    state.connected()
    sent(state)
    (effect,) = state.receive(error(code, status))
    assert isinstance(effect, Reconnect)
    assert state.phase is Phase.RUNNING


# --- what was in flight when a connection broke -------------------------------------------------------------------


def in_doubt() -> RunState:
    """A run whose answer was in flight when its connection broke; the next one has opened."""
    state = running()
    state.receive(item_done(1))
    state.outbox.finish("c0", FUNCTION, "x")
    sent(state)
    state.connected()
    assert sent(state) == [{"type": "response.resume", "response_id": "resp_1", "starting_after": 1}]
    return state


def resumed(status: str, last: int) -> Event:
    return event("resume.accepted", None, status=status, last_sequence_number=last)


def test_answer_in_doubt_is_sent_again_while_the_run_waits():
    state = in_doubt()
    state.receive(resumed("paused", 1))
    assert [frame["input"][0]["call_id"] for frame in sent(state)] == ["c0"]


def test_answer_in_doubt_waits_for_the_end_of_a_step_and_so_does_all_else():
    state = in_doubt()
    state.receive(resumed("in_progress", 1))
    state.outbox.finish("c1", FUNCTION, "later")
    assert sent(state) == []
    state.receive(done(2, "c0", "c1"))
    assert [frame["input"][0]["call_id"] for frame in sent(state)] == ["c0", "c1"]


def test_answer_that_the_server_no_longer_waits_for_has_arrived():
    state = in_doubt()
    state.receive(resumed("in_progress", 1))
    state.receive(done(2, "c9"))
    assert sent(state) == []


def test_resent_answer_that_meets_an_ended_run_is_no_failure():
    state = in_doubt()
    state.receive(resumed("paused", 1))
    sent(state)
    assert state.receive(error("response_not_found", 404)) == []


@pytest.mark.parametrize(
    ("status", "last", "is_resent"), [("paused", 1, True), ("paused", 9, False), ("in_progress", 1, False)]
)
def test_message_in_doubt_is_sent_again_only_if_nothing_came_of_it(status, last, is_resent):
    state = waiting()
    state.say("hi")
    sent(state)
    state.connected()
    sent(state)
    state.receive(resumed(status, last))
    assert [frame["type"] for frame in sent(state)] == ["response.append"] * is_resent
