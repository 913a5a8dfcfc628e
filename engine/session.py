"""The state machine of one connection: client frames in, commands out.

A connection has lanes (`stream_id`; the default lane has none). Each lane has at most one open run, remembers its last
one, and queues creates while that one samples. What a frame means depends on where the lane's run stands:

| frame  | no run, or ended                         | starting  | IN_PROGRESS     | PAUSED                  |
|--------|------------------------------------------|-----------|-----------------|-------------------------|
| create | start                                    | queue     | queue           | supersede, then start   |
| append | go on from a completed run, or not found | not found | append (early)  | append                  |
| inject | not found                                | not found | append (early)  | append                  |
| cancel | not found                                | not found | cancel          | cancel                  |
| resume | read                                     | refuse    | refuse, unless it is that run             ||

When a place is free, the create that came first over all lanes that could start takes it.
Appends belong to the append lifecycle, injects to the inject lifecycle. In the chain lifecycle no run ever pauses; its
creates name the run that they go on from, which each lane remembers until another takes its place (`remembered`).

Nothing here waits and nothing here sends; the driver (server/websocket.py) does.
"""

from dataclasses import dataclass, field
from typing import Protocol, assert_never

from engine.errors import NotFound, RequestError
from engine.frames import Append, Cancel, ClientFrame, Create, Inject, Processed, Resume, Steer, decode_frame
from engine.items import Item
from engine.parameters import Input
from engine.response import Response
from engine.settings import LifecycleName, Settings
from engine.status import Status


@dataclass(frozen=True)
class StartRun:
    """Start a run on the lane; `supersedes` is the paused run that ends by it."""

    frame: Create
    received_ms: float
    supersedes: Response | None = None


@dataclass(frozen=True)
class AppendTo:
    """Append to the lane's open run."""

    response: Response
    frame: Append


@dataclass(frozen=True)
class InjectInto:
    """Append to the run that the frame names, None when it has ended or is not here."""

    response: Response | None
    frame: Inject


@dataclass(frozen=True)
class ContinueFrom:
    """Start a run that goes on from the lane's completed one."""

    response: Response
    frame: Append


@dataclass(frozen=True)
class CancelRun:
    """End a run because its client wants that."""

    frame: Cancel
    response: Response | None


@dataclass(frozen=True)
class ResumeRun:
    """Read a run on this lane from where the client lost it."""

    frame: Resume


@dataclass(frozen=True)
class Nothing:
    """The frame was taken in; there is nothing to do now."""


@dataclass(frozen=True)
class SteerRun:
    """Let a response that is sampled know of something the user said."""

    frame: Steer


Command = StartRun | AppendTo | InjectInto | ContinueFrom | SteerRun | CancelRun | ResumeRun | Nothing


@dataclass(frozen=True)
class Waiting:
    """A create in a queue; `number` counts those that ever waited on the connection."""

    number: int
    frame: Create
    received_ms: float


@dataclass(frozen=True)
class HeldSteer:
    """An accepted `response.steer`: for which response, what it said, and the same as items."""

    id: str
    response_id: str
    input: Input
    items: list[Item]


class Reader(Protocol):
    """Whoever sends the events of a lane's run."""

    @property
    def has_unsent(self) -> bool:
        """Whether there are events it has not sent."""


@dataclass(slots=True)
class Lane:
    """One lane: its open or last run, and the creates that wait for it."""

    response: Response | None = None
    reader: Reader | None = None
    is_starting: bool = False
    steers: list[HeldSteer] = field(default_factory=list)
    queue: list[Waiting] = field(default_factory=list)  # not a deque, which takes 700 bytes to hold nothing

    @property
    def is_sampling(self) -> bool:
        """Whether a create on this lane has to wait: for the run, or for the client to be told how it stands."""
        is_running = self.response is not None and self.response.status is Status.IN_PROGRESS
        return self.is_starting or is_running or self.has_unread

    @property
    def has_unread(self) -> bool:
        """Whether events of the lane's run have yet to go out; another run must not take their place."""
        return self.reader is not None and self.reader.has_unsent

    @property
    def can_start(self) -> bool:
        """Whether a create waits for nothing but a place."""
        return bool(self.queue) and not self.is_sampling

    @property
    def paused(self) -> Response | None:
        """The lane's run if it waits for the client."""
        return self.response if self.response is not None and self.response.status is Status.PAUSED else None


class Session:
    """The lanes of one connection and what its client may do with them."""

    def __init__(self, settings: Settings, lifecycle: LifecycleName = "append") -> None:
        self.lifecycle = lifecycle
        self.lanes: dict[str | None, Lane] = {}
        self._settings = settings
        self._num_waited = 0

    @property
    def num_sampling(self) -> int:
        """Runs of this connection that sample now."""
        return sum(lane.is_sampling for lane in self.lanes.values())

    @property
    def has_paused(self) -> bool:
        """Whether some run waits for the client."""
        return any(lane.paused for lane in self.lanes.values())

    def receive(self, data: bytes, received_ms: float) -> tuple[str | None, Command]:
        """The lane and the command that a frame means. Raises RequestError, which knows the lane; nothing changed."""
        frame = decode_frame(data, max_depth=self._settings.max_json_depth)
        try:
            return frame.stream_id, self._command(frame, received_ms)
        except RequestError as error:
            error.stream_id = frame.stream_id
            raise

    def _command(self, frame: ClientFrame, received_ms: float) -> Command:
        match frame:
            case Create():
                return self._create(frame, received_ms)
            case Append():
                return self._append(frame)
            case Inject():
                return self._inject(frame)
            case Steer():
                return SteerRun(frame)
            case Cancel():
                return self._cancel(frame)
            case Resume():
                return self._resume(frame)
            case Processed():
                return Nothing()
            case _:
                assert_never(frame)

    def remembered(self, response_id: str) -> list[str | None]:
        """The lanes whose last run this is."""
        return [name for name, lane in self.lanes.items() if lane.response and lane.response.id == response_id]

    def forget(self, stream_id: str | None) -> None:
        """A run that went on from the lane's last one has failed: nothing may go on from that any more."""
        lane = self.lanes[stream_id]
        lane.response = lane.reader = None

    def forget_unused(self, stream_id: str | None) -> None:
        """Drop a lane that has nothing on it, so that a frame which failed uses up none."""
        lane = self.lanes.get(stream_id)
        if lane is not None and lane.response is None and not lane.is_starting and not lane.queue:
            del self.lanes[stream_id]

    def next_start(self, stream_id: str | None) -> StartRun | None:
        """The lane's next queued create, if it can start now."""
        lane = self.lanes[stream_id]
        if not lane.can_start:
            return None
        first = lane.queue[0]
        num_earlier = sum(other.can_start and other.queue[0].number < first.number for other in self.lanes.values())
        if num_earlier >= self._num_free:
            return None
        del lane.queue[0]
        return StartRun(first.frame, first.received_ms, lane.paused)

    @property
    def _num_free(self) -> int:
        return self._settings.max_in_flight - self.num_sampling

    def _create(self, frame: Create, received_ms: float) -> Command:
        lane = self.lanes.get(frame.stream_id)
        is_busy = lane is not None and (lane.queue or lane.is_sampling)
        num_before = sum(other.can_start for other in self.lanes.values())
        if not is_busy and num_before < self._num_free:
            return StartRun(frame, received_ms, self._lane(frame.stream_id).paused)
        num_queued = sum(len(other.queue) for other in self.lanes.values())
        if num_queued >= self._settings.max_queued:
            raise RequestError(
                f"More than {self._settings.max_queued} requests wait on this connection.",
                code="rate_limit_exceeded",
                status=429,
            )
        self._lane(frame.stream_id).queue.append(Waiting(self._num_waited, frame, received_ms))
        self._num_waited += 1
        return Nothing()

    def _append(self, frame: Append) -> Command:
        self._expect_lifecycle("append", "response.append")
        response = self._current(frame.stream_id, frame.response_id)
        if response.is_open:
            return AppendTo(response, frame)
        lane = self.lanes[frame.stream_id]
        if response.status is Status.COMPLETED and not lane.queue and not lane.has_unread:
            return ContinueFrom(response, frame)
        raise _not_found(response.id)

    def _inject(self, frame: Inject) -> Command:
        self._expect_lifecycle("inject", "response.inject")
        lane = self.lanes.get(frame.stream_id)
        response = lane.response if lane else None
        is_there = response is not None and response.id == frame.response_id
        return InjectInto(response if is_there else None, frame)

    def check_lifecycle(self, response: Response) -> None:
        """Raises RequestError for an open run that could not be answered on this connection once it pauses."""
        lifecycle = response.request.lifecycle
        if response.is_open and lifecycle in ("append", "inject") and lifecycle != self.lifecycle:
            raise RequestError(
                f"This response is one of the lifecycle {lifecycle}; this connection speaks {self.lifecycle}.",
                param="response_id",
                code="wrong_lifecycle",
            )

    def _expect_lifecycle(self, lifecycle: LifecycleName, frame_type: str) -> None:
        if self.lifecycle != lifecycle:
            raise RequestError(
                f"'{frame_type}' belongs to the lifecycle {lifecycle}; this connection speaks {self.lifecycle}.",
                param="type",
                code="wrong_lifecycle",
            )

    def _cancel(self, frame: Cancel) -> Command:
        lane = self.lanes.get(frame.stream_id)
        response = lane.response if lane else None
        if frame.response_id is not None and (response is None or response.id != frame.response_id):
            return CancelRun(frame, None)
        response = self._current(frame.stream_id, frame.response_id)
        if not response.is_open:
            raise _not_found(response.id)
        return CancelRun(frame, response)

    def _resume(self, frame: Resume) -> Command:
        self.check_resume(frame)
        return ResumeRun(frame)

    def check_resume(self, frame: Resume) -> None:
        """Raises RequestError when the lane has something else to do than to read this run."""
        lane = self._lane(frame.stream_id)
        response = lane.response
        has_other = response is not None and response.is_open and response.id != frame.response_id
        if lane.is_starting or lane.queue or has_other:
            raise RequestError("This lane has an open response.", param="stream_id", code="lane_is_busy")

    def _lane(self, stream_id: str | None) -> Lane:
        """The lane, made when it is new. Raises RequestError when there are too many."""
        if lane := self.lanes.get(stream_id):
            return lane
        num_named = len(self.lanes) - (None in self.lanes)
        if stream_id is not None and num_named >= self._settings.max_lanes:
            raise RequestError(
                "This WebSocket connection has reached its maximum number of distinct stream IDs "
                f"({self._settings.max_lanes}). Reuse an existing stream_id or open a new WebSocket connection.",
                param="stream_id",
                code="websocket_stream_limit_reached",
            )
        lane = self.lanes[stream_id] = Lane()
        return lane

    def _current(self, stream_id: str | None, response_id: str | None) -> Response:
        """The lane's open or last run. Raises NotFound, also while another one is being started."""
        lane = self.lanes.get(stream_id)
        if lane is None or lane.response is None or lane.is_starting:
            raise _not_found(response_id)
        if response_id is not None and lane.response.id != response_id:
            raise _not_found(response_id)
        return lane.response


def _not_found(response_id: str | None) -> NotFound:
    if response_id is None:
        return NotFound("There is no open response on this lane.")
    return NotFound(f"Response with id '{response_id}' not found.", param="response_id")
