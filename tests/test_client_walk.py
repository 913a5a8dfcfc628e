"""Random walks of the client's state machine over connections that break, against a peer of a few lines."""

from collections import Counter, deque
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.client_state import EndTurn, Fail, Phase, RunState, Show, StartCall
from engine.client_wire import Event
from tests.client_events import CREATE, FUNCTION, created, done, error, event, item_done, sent


class Peer:
    """A server in a few lines: a log, what it waits for, what it was given. `steps`: calls or a message each."""

    def __init__(self, steps: list[list[str]], *, is_kept_open: bool) -> None:
        self._steps = steps
        self._is_kept_open = is_kept_open
        self.is_created = False

    def create(self) -> None:
        self.is_created = True
        self.log = [created()]
        self.status = "in_progress"
        self.to_sample = deque(map(deque, self._steps))
        self.pending: list[str] = []
        self.outputs: dict[str, str] = {}
        self.texts: list[str] = []

    def sample(self) -> None:
        """The next thing that the model does."""
        if not self.is_created or self.status != "in_progress":
            return
        if not self.to_sample:
            self._end("completed", "completed")
        elif self.to_sample[0]:
            key = self.to_sample[0].popleft()
            self.pending.append(key)
            self.log.append(item_done(len(self.log), call_id=key))
        else:
            self.to_sample.popleft()
            was_message = not self.step_had_calls
            if self.pending or (was_message and self._is_kept_open and self.to_sample):
                self.log.append(done(len(self.log), *self.pending))
                self.status = "paused"

    @property
    def step_had_calls(self) -> bool:
        return bool(self._steps[len(self._steps) - len(self.to_sample) - 1])

    def _end(self, kind: str, status: str) -> None:
        self.status = status
        self.log.append(event(kind, len(self.log), response={"id": "resp_1", "status": status}))

    def take(self, frame: dict[str, Any]) -> tuple[list[Event], int | None]:
        """The immediate answers, and from where the connection reads the log from now on."""
        match frame["type"]:
            case "response.create":
                self.create()
                return [], 0
            case "response.resume":
                accepted = event("resume.accepted", status=self.status, last_sequence_number=len(self.log) - 1)
                return [accepted], frame["starting_after"] + 1
            case _ if self.status == "completed":
                return [error("response_not_found", 404)], None
            case _:
                before = (len(self.pending), len(self.texts))
                for item in frame["input"]:
                    self._give(item)
                is_new = (len(self.pending), len(self.texts)) != before  # what was given before changes nothing
                if self.status == "paused" and not self.pending and is_new:
                    self.status = "in_progress"
                return [event("append.accepted")], None

    def _give(self, item: dict[str, Any]) -> None:
        if item["type"] == "message":
            self.texts.append(item["content"][0]["text"])
            return
        key, start = item["call_id"], item.get("offset", 0)
        assert len(self.outputs.get(key, "")) >= start, "a gap"
        self.outputs[key] = self.outputs.get(key, "")[:start] + item["output"]
        if item.get("status") != "in_progress" and key in self.pending:
            self.pending.remove(key)


class Walk:
    """A client's state and a peer, with a connection between them that loses what is on its way when it is cut."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.state = RunState(CREATE)
        self.shown: list[int] = []
        self.started: list[str] = []
        self.running: list[str] = []
        self.pieces: Counter[str] = Counter()
        self.texts: list[str] = []
        self.ends: list[str] = []
        self.connect()

    def connect(self) -> None:
        self.up: deque[dict[str, Any]] = deque()
        self.down: deque[Event] = deque()
        self.cursor: int | None = None
        self.state.connected()

    def flush(self) -> None:
        self.up += sent(self.state)

    def arrive(self) -> None:
        if self.up:
            replies, start = self.peer.take(self.up.popleft())
            self.down += replies
            self.cursor = start if start is not None else self.cursor

    def push(self) -> None:
        """The server sends the next event of its log."""
        if self.cursor is not None and self.cursor < len(self.peer.log):
            self.down.append(self.peer.log[self.cursor])
            self.cursor += 1

    def receive(self) -> None:
        for effect in self.state.receive(self.down.popleft()) if self.down else []:
            match effect:
                case Show(seen) if "sequence_number" in seen:
                    self.shown.append(seen.sequence_number)
                case StartCall(item):
                    self.started.append(item["call_id"])
                    self.running.append(item["call_id"])
                case EndTurn(result):
                    self.ends.append(result.status)
                case Fail(failure):
                    raise failure

    def piece(self) -> None:
        if self.running:
            self.pieces[self.running[0]] += 1
            self.state.outbox.add_piece(self.running[0], FUNCTION, "part ")

    def answer(self) -> None:
        if self.running:
            key = self.running.pop(0)
            self.state.outbox.finish(key, FUNCTION, "part " * self.pieces[key])

    def say(self) -> None:
        if self.state.phase is Phase.WAITING:
            self.texts.append(f"text {len(self.texts)}")
            self.state.say(self.texts[-1])

    def sample(self) -> None:
        self.peer.sample()

    def flow(self) -> None:
        for move in (self.flush, self.arrive, self.sample, self.push, self.receive, self.say):
            move()

    def lose_what_was_said(self) -> None:
        for move in (self.answer, self.say, self.flush, self.connect):
            move()

    def lose_the_reply(self) -> None:
        for move in (self.answer, self.say, self.flush, self.arrive, *[self.sample] * 4, self.connect):
            move()

    def finish(self) -> None:
        """Everything goes its way, without further losses, until the run has ended."""
        for _ in range(400):
            if self.state.phase is Phase.ENDED:
                return
            self.flow()
            self.answer()
        pytest.fail(f"stuck in {self.state.phase}")


# Often enough everything moves on a bit, or a walk would hardly leave the door.
MOVES = ["flow"] * 8 + ["flush", "arrive", "sample", "push", "receive", "piece", "answer", "say", "connect"]
MOVES += ["lose_what_was_said", "lose_the_reply"]
STEPS = [[], ["a", "b"], [], ["c"], [], ["d"], []]


@given(st.lists(st.sampled_from(MOVES), min_size=30, max_size=120), st.booleans())
def test_walk_over_breaking_connections_shows_and_gives_everything_once(moves: list[str], is_kept_open: bool) -> None:
    walk = Walk(Peer(STEPS, is_kept_open=is_kept_open))
    for move in moves:
        getattr(walk, move)()
    walk.finish()
    assert walk.shown == list(range(len(walk.peer.log)))
    assert sorted(walk.started) == list("abcd")
    assert walk.peer.outputs == {key: "part " * walk.pieces[key] for key in "abcd"}
    assert walk.peer.texts == walk.texts
    assert walk.ends[-1] == "completed"
