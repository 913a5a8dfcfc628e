"""session.py: what each frame means on a lane in each state, the limits, and that lanes do not touch."""

import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import NotFound, RequestError
from engine.frames import FrameError
from engine.session import AppendTo, CancelRun, Command, ContinueFrom, Nothing, ResumeRun, Session, StartRun
from engine.settings import Settings
from engine.status import Status
from tests.machines import NOW, SETTINGS, WEATHER, Run, call, frozen, output, stop

MS = 5.0


def new_run(status: Status | None = Status.IN_PROGRESS, id_: str = "resp_0") -> Any:
    """A Response in that state."""
    run = Run(tools=[WEATHER])
    run.response.id = id_
    match status:
        case Status.PAUSED:
            run.step(call())
        case Status.COMPLETED:
            run.step("t")
        case Status.INCOMPLETE:
            run.step("t", end=stop("max_output_tokens"))
        case Status.FAILED:
            run.response.end("cancelled", NOW)
            run.response.progress.status = Status.FAILED
        case _:
            pass
    return run.response


class Peer:
    """A session with the driver's part played by hand: it starts what it is told to start."""

    def __init__(self, settings: Settings = SETTINGS) -> None:
        self.session = Session(settings)
        self.num_runs = 0

    def send(self, type_: str, lane: str | None = None, **fields: Any) -> Command:
        frame = {"type": f"response.{type_}"} | fields
        if lane is not None:
            frame["stream_id"] = lane
        if type_ == "append":
            frame.setdefault("input", [])
        stream_id, command = self.session.receive(json.dumps(frame).encode(), MS)
        assert stream_id == lane
        return command

    def put(self, status: Status | None, lane: str | None = None, *, is_starting: bool = False) -> Any:
        """Give the lane a run in that state."""
        entry = self.session._lane(lane)
        entry.is_starting = is_starting
        if status is not None:
            self.num_runs += 1
            entry.response = new_run(status, f"resp_{self.num_runs}")
        return entry.response

    def refuses(self, type_: str, lane: str | None = None, **fields: Any) -> RequestError:
        before = frozen(self.session.lanes)
        with pytest.raises(RequestError) as caught:
            self.send(type_, lane, **fields)
        assert frozen(self.session.lanes) == before
        return caught.value


# --- frame x state -----------------------------------------------------------------------------------------------

STATES: dict[str, tuple[Status | None, bool]] = {
    "none": (None, False),
    "starting": (None, True),
    "starting over a paused run": (Status.PAUSED, True),
    "starting after a completed run": (Status.COMPLETED, True),
    "in progress": (Status.IN_PROGRESS, False),
    "paused": (Status.PAUSED, False),
    "completed": (Status.COMPLETED, False),
    "incomplete": (Status.INCOMPLETE, False),
    "failed": (Status.FAILED, False),
}
S, Q, N, B = StartRun, Nothing, NotFound, RequestError
TABLE: dict[str, tuple[type, type, type, type]] = {
    # state: create, append, cancel, resume
    "none": (S, N, N, ResumeRun),
    "starting": (Q, N, N, B),
    "starting over a paused run": (Q, N, N, B),
    "starting after a completed run": (Q, N, N, B),
    "in progress": (Q, AppendTo, CancelRun, B),
    "paused": (S, AppendTo, CancelRun, B),
    "completed": (S, ContinueFrom, N, ResumeRun),
    "incomplete": (S, N, N, ResumeRun),
    "failed": (S, N, N, ResumeRun),
}


@pytest.mark.parametrize("lane", [None, "a"])
@pytest.mark.parametrize("frame", ["create", "append", "cancel", "resume"])
@pytest.mark.parametrize("state", TABLE)
def test_frame_in_state(state: str, frame: str, lane: str | None) -> None:
    peer, (status, is_starting) = Peer(), STATES[state]
    response = peer.put(status, lane, is_starting=is_starting)
    expected = TABLE[state][["create", "append", "cancel", "resume"].index(frame)]
    fields = {"response_id": "resp_other"} if frame == "resume" else {}
    if issubclass(expected, RequestError):
        error = peer.refuses(frame, lane, **fields)
        if expected is NotFound:
            assert (error.status, error.code) == (404, "response_not_found")
        else:
            assert (error.status, error.code, error.param) == (400, "lane_is_busy", "stream_id")
        return
    command = peer.send(frame, lane, **fields)
    assert type(command) is expected
    if isinstance(command, StartRun):
        assert command.supersedes is (response if status is Status.PAUSED else None)
        assert command.received_ms == MS
    if isinstance(command, AppendTo | ContinueFrom | CancelRun):
        assert command.response is response


@pytest.mark.parametrize("state", STATES)
def test_processed_means_nothing(state: str) -> None:
    peer, (status, is_starting) = Peer(), STATES[state]
    peer.put(status, is_starting=is_starting)
    assert peer.send("processed") == Nothing()


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("frame", ["append", "resume", "cancel"])
def test_response_id_must_be_the_lanes_run(state: str, frame: str) -> None:
    peer, (status, is_starting) = Peer(), STATES[state]
    response = peer.put(status, is_starting=is_starting)
    if frame == "append":
        assert isinstance(peer.refuses("append", response_id="resp_other"), NotFound)
    if frame == "cancel":
        command = peer.send("cancel", response_id="resp_other")
        assert command == CancelRun(command.frame, None)  # type: ignore[union-attr]
    if frame == "resume" and response is not None and not is_starting:
        assert isinstance(peer.send("resume", response_id=response.id), ResumeRun)
    if response is not None and frame == "append" and response.is_open and not is_starting:
        assert isinstance(peer.send("append", response_id=response.id), AppendTo)


def test_not_found_says_which_response() -> None:
    error = Peer().refuses("append", response_id="resp_x")
    assert (error.message, error.param) == ("Response with id 'resp_x' not found.", "response_id")
    assert "no open response" in Peer().refuses("append").message


def test_append_does_not_overtake_a_create_that_waits() -> None:
    peer = Peer(Settings(max_in_flight=1))
    peer.put(Status.COMPLETED)
    peer.put(Status.IN_PROGRESS, "a")
    assert peer.send("create") == Nothing()
    assert isinstance(peer.refuses("append"), NotFound)


def test_malformed_frame_is_refused_and_changes_nothing() -> None:
    peer = Peer()
    for data in (b"{", b"[]", b'{"type":"response.create","stream_id":"a","temperature":9}'):
        with pytest.raises(FrameError):
            peer.session.receive(data, MS)
    assert peer.session.lanes == {}
    assert peer.refuses("nonsense").code == "unknown_event_type"


# --- limits ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("frame", ["create", "resume"])
def test_max_lanes_is_reached_and_does_not_count_the_default_lane(frame: str) -> None:  # P8
    peer = Peer(Settings(max_lanes=2))
    fields = {"response_id": "r"} if frame == "resume" else {}
    for lane in ("a", "b", None):
        peer.send("create", lane)
    error = peer.refuses(frame, "c", **fields)
    assert (error.code, error.status, error.param) == ("websocket_stream_limit_reached", 400, "stream_id")
    assert error.message == (
        "This WebSocket connection has reached its maximum number of distinct stream IDs (2). "
        "Reuse an existing stream_id or open a new WebSocket connection."
    )
    peer.send("create", "a")


@pytest.mark.parametrize("frame", ["append", "cancel", "processed"])
def test_frames_that_start_nothing_make_no_lane(frame: str) -> None:
    peer = Peer(Settings(max_lanes=1))
    for lane in ("a", "b", "c"):
        if frame == "processed":
            peer.send(frame, lane)
        else:
            peer.refuses(frame, lane)
    assert peer.session.lanes == {}


def test_max_json_depth_is_reached() -> None:
    peer = Peer(Settings(max_json_depth=4))
    peer.send("create", metadata=None, prompt={"a": {"b": {}}})
    assert peer.refuses("create", text={"format": {"a": {"b": {}}}}).code == "json_too_deep"


def test_max_in_flight_is_reached_and_a_free_place_lets_the_next_one_start() -> None:  # P11
    peer = Peer(Settings(max_in_flight=2))
    runs = [peer.put(Status.IN_PROGRESS, lane) for lane in "ab"]
    assert peer.session.num_sampling == 2
    assert peer.send("create", "c") == Nothing()
    assert peer.session.next_start("c") is None
    runs[0].end("cancelled", NOW)
    start = peer.session.next_start("c")
    assert isinstance(start, StartRun)
    assert start.received_ms == MS
    assert peer.session.next_start("c") is None


def test_starting_runs_count_and_paused_ones_do_not() -> None:
    peer = Peer(Settings(max_in_flight=1))
    peer.put(Status.PAUSED, "a")
    assert (peer.session.num_sampling, peer.session.has_paused) == (0, True)
    assert isinstance(peer.send("create", "b"), StartRun)
    peer.session.lanes["b"].is_starting = True
    assert (peer.session.num_sampling, peer.session.has_paused) == (1, True)
    assert peer.send("create", "c") == Nothing()


def test_max_queued_is_reached_over_all_lanes_and_takes_no_lane() -> None:  # P11
    peer = Peer(Settings(max_in_flight=1, max_queued=2, max_lanes=3))
    peer.put(Status.IN_PROGRESS, "a")
    peer.send("create", "a")
    peer.send("create", "b")
    for lane in ("a", "b", "c"):
        error = peer.refuses("create", lane)
        assert (error.code, error.status) == ("rate_limit_exceeded", 429)
    assert "c" not in peer.session.lanes


def test_creates_of_one_lane_start_first_in_first_out() -> None:
    peer = Peer()
    run = peer.put(Status.IN_PROGRESS)
    for name in ("first", "second", "third"):
        assert peer.send("create", model=name) == Nothing()
    started = []
    while True:
        run.end("cancelled", NOW)
        start = peer.session.next_start(None)
        if start is None:
            break
        started.append(start.frame.model)
        run = peer.put(Status.IN_PROGRESS)
    assert started == ["first", "second", "third"]


def test_queued_create_supersedes_the_run_that_has_paused_meanwhile() -> None:  # P10
    peer = Peer()
    run = Run(tools=[WEATHER])
    peer.session._lane(None).response = run.response
    assert peer.send("create") == Nothing()
    run.step(call())
    start = peer.session.next_start(None)
    assert isinstance(start, StartRun)
    assert start.supersedes is run.response


def test_new_create_does_not_overtake_those_that_wait() -> None:
    peer = Peer()
    run = peer.put(Status.IN_PROGRESS)
    peer.send("create", model="first")
    run.end("cancelled", NOW)
    assert peer.send("create", model="second") == Nothing()
    start = peer.session.next_start(None)
    assert isinstance(start, StartRun)
    assert start.frame.model == "first"


def test_waiting_creates_of_several_lanes_start_in_the_order_they_came() -> None:
    peer = Peer(Settings(max_in_flight=1))
    run = peer.put(Status.IN_PROGRESS, "z")
    order = ["b", "a", "b", "c", "a", "z"]
    for lane in order:
        assert peer.send("create", lane) == Nothing()
    started = []
    while True:
        run.end("cancelled", NOW)
        before = len(started)
        for lane in list(peer.session.lanes):
            if peer.session.next_start(lane):
                started.append(lane)
                run = peer.put(Status.IN_PROGRESS, lane)
        if len(started) == before:
            break
    assert started == order


def test_several_free_places_are_all_taken_in_one_round_over_the_lanes() -> None:
    peer = Peer(Settings(max_in_flight=2))
    runs = [peer.put(Status.IN_PROGRESS, lane) for lane in "xy"]
    for lane in "dcba":
        peer.send("create", lane)
    for run in runs:
        run.end("cancelled", NOW)
    assert peer.send("create", "e") == Nothing()  # no place is left for who comes last
    started = []
    for lane in sorted(filter(None, peer.session.lanes)):
        if peer.session.next_start(lane):
            peer.session.lanes[lane].is_starting = True
            started.append(lane)
    assert started == ["c", "d"]


# --- a walk over several lanes -----------------------------------------------------------------------------------

LANES: list[str | None] = [None, "a", "b", "c"]


@given(seed=st.integers(0, 2**32), num_moves=st.integers(1, 50))
def test_any_walk_keeps_lanes_apart_and_limits(seed: int, num_moves: int) -> None:  # P7
    chance = random.Random(seed)
    settings = Settings(max_in_flight=2, max_queued=3, max_lanes=3)
    peer = Peer(settings)
    session = peer.session
    runs: dict[str | None, Run] = {}
    owner: dict[str, str | None] = {}
    asked: dict[str | None, list[str]] = {lane: [] for lane in LANES}
    began: dict[str | None, list[str]] = {lane: [] for lane in LANES}
    num_runs = 0

    def start(lane: str | None, command: StartRun) -> None:
        nonlocal num_runs
        if command.supersedes is not None:
            assert owner[command.supersedes.id] == lane
            command.supersedes.end("superseded", NOW)
        num_runs += 1
        runs[lane] = Run(tools=[WEATHER])
        runs[lane].response.id = f"resp_{num_runs}"
        owner[f"resp_{num_runs}"] = lane
        began[lane].append(command.frame.model or "")
        session.lanes[lane].response = runs[lane].response

    for number in range(num_moves):
        lane = chance.choice(LANES)
        run = runs.get(lane)
        others = {other: frozen(one.response) for other, one in runs.items() if other != lane}
        match chance.choice(["create", "create", "append", "cancel", "step", "end", "pump"]):
            case "create":
                try:
                    command = peer.send("create", lane, model=f"{number}")
                except RequestError as error:
                    assert error.status == 429
                    assert sum(len(one.queue) for one in session.lanes.values()) == settings.max_queued
                else:
                    asked[lane].append(f"{number}")
                    if isinstance(command, StartRun):
                        start(lane, command)
            case "append":
                try:
                    command = peer.send("append", lane)
                except NotFound:
                    continue
                assert isinstance(command, AppendTo | ContinueFrom)
                assert owner[command.response.id] == lane
                if isinstance(command, AppendTo) and command.response.status is Status.PAUSED:
                    assert run is not None
                    pending = run.response.still_pending()
                    if run.append(*(output(key) for key in pending)):
                        run.response.take_new_items()
            case "cancel":
                try:
                    command = peer.send("cancel", lane)
                except NotFound:
                    continue
                assert isinstance(command, CancelRun) and command.response is not None
                assert owner[command.response.id] == lane
                command.response.end("cancelled", NOW)
            case "step" if run is not None and run.response.status is Status.IN_PROGRESS:
                run.step(call())
            case "end" if run is not None and run.response.status is Status.IN_PROGRESS:
                run.step("t")
            case "pump":
                for waiting in list(session.lanes):
                    if begin := session.next_start(waiting):
                        others.pop(waiting, None)
                        start(waiting, begin)
            case _:
                pass
        for other, before in others.items():
            assert frozen(runs[other].response) == before
        assert all(began[one] == asked[one][: len(began[one])] for one in LANES)
        assert sum(len(one.queue) for one in session.lanes.values()) <= settings.max_queued
