"""One WebSocket connection: frames to commands, runs to frames. The only user of trio-websocket.

Three tasks: the reader acts on frames, the writer (the only one that sends) sends what the others put and then what
every lane's cursor reads, the clock pings and ends the connection at its age limit or when the server stops. Whichever
of them ends first ends the connection. Runs are not ours: we detach, and the run decides.

Rule kept here: after a lane's terminal frame nothing of its run goes out until the client speaks. The state machine
gives one terminal per step, and a cursor that waits at a pause never sees what is logged as unsolicited.
"""

import logging
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import msgspec
import trio
from trio_websocket import ConnectionClosed, WebSocketConnection, wrap_server_stream

from engine.answers import Appended
from engine.clock import now_ms
from engine.errors import EngineError, NotFound, RequestError, ServerError
from engine.events import encode_event
from engine.frames import Append, Inject, Resume
from engine.items import Answer, answer_key
from engine.live import Live
from engine.outgoing import encode_frame, with_lane
from engine.request import read_append, read_create, read_input
from engine.response import Response
from engine.responses import Responses
from engine.server.access import Admission
from engine.server.frame_stream import FrameStream
from engine.server.heartbeat import Ending, Heart, Pulse
from engine.server.lane_writer import LaneWriter
from engine.server.lanes import Lanes, resume_accepted
from engine.server.rate_limits import LimitsReport
from engine.server.steering import Steering
from engine.server.timing import timing_frame
from engine.session import (
    AppendTo,
    CancelRun,
    Command,
    ContinueFrom,
    InjectInto,
    Nothing,
    ResumeRun,
    Session,
    StartRun,
    SteerRun,
)
from engine.settings import Settings

log = logging.getLogger(__name__)

_RECEIVE_BUFFER = 1 << 16
_CLOSE_CODES = {Ending.STOPPING: 1012, Ending.TOO_OLD: 1001, Ending.SILENT: 1011}


async def serve_websocket(
    stream: trio.abc.Stream, admission: Admission, responses: Responses, settings: Settings, heart: Heart
) -> None:
    """Serve one upgraded connection to its end. Raises only Cancelled."""
    try:
        async with trio.open_nursery() as nursery:
            frames = FrameStream(stream)
            ws = await _accept(nursery, frames, admission, settings)
            await Connection(ws, frames, admission, responses, settings, heart).run()
            nursery.cancel_scope.cancel()
    # One boundary per connection: a handler error must not take the server down. trio-websocket's own reader may
    # raise LocalProtocolError when a ping arrives during our close (python-trio/trio-websocket#184).
    except* (ConnectionClosed, trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError):
        pass
    except* Exception:
        log.exception("connection failed")


async def _accept(
    nursery: trio.Nursery, stream: FrameStream, admission: Admission, settings: Settings
) -> WebSocketConnection:
    with trio.fail_after(settings.handshake_timeout_s):
        request = await wrap_server_stream(
            nursery, stream, max_message_size=settings.max_frame_bytes, receive_buffer_size=_RECEIVE_BUFFER
        )
        return await request.accept(extra_headers=[(b"x-request-id", admission.request_id.encode())])


class Connection:
    """The tasks and the lanes of one connection."""

    def __init__(
        self,
        ws: WebSocketConnection,
        stream: FrameStream,
        admission: Admission,
        responses: Responses,
        settings: Settings,
        heart: Heart,
    ) -> None:
        self._ws = ws
        self._stream = stream
        self._admission = admission
        self._responses = responses
        self._settings = settings
        self._heart = heart
        self._session = Session(settings, admission.lifecycle)
        self._writer = LaneWriter(stream, settings, self._check_open, self._finish_step)
        self._lanes = Lanes(self._session, responses, admission.principal, self._writer.wake)
        self._steering = Steering(self._session, self._lanes, responses, settings, self._send)
        self._limits = LimitsReport(responses.backend)
        self._close_code = (1000, "")

    async def run(self) -> None:
        """Serve until either side closes. Every run is detached from, whatever happens."""
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                nursery.start_soon(self._until_closed, partial(self._writer.run, self._lanes))
                number = self._heart.add(self._pulse())
                try:
                    await self._until_closed(self._read)
                finally:
                    self._heart.discard(number)
        finally:
            self._lanes.let_go()
            with trio.move_on_after(self._settings.close_timeout_s, shield=True):
                await self._ws.aclose(*self._close_code)

    async def _until_closed(self, task: Callable[[], Awaitable[None]]) -> None:
        try:
            await task()
        except ConnectionClosed:
            pass
        except trio.TooSlowError:
            # The last frame may be torn, so this stream is done for; the runs are not.
            self._close_code = (1013, "slow reader")
        self._nursery.cancel_scope.cancel("the connection is over")

    def _check_open(self) -> None:
        if reason := self._ws.closed:
            raise ConnectionClosed(reason)

    # --- reading ---

    async def _read(self) -> None:
        while True:
            message = await self._ws.get_message()
            received_ms = now_ms()
            if isinstance(message, bytes):
                self._refuse(RequestError("Frames are text, one JSON object each.", code="invalid_frame"), None)
                continue
            await self._act_on(message.encode("utf-8", "surrogatepass"), received_ms)

    async def _act_on(self, data: bytes, received_ms: float) -> None:
        """Carry out one frame; whatever is wrong with it becomes an error frame on its lane."""
        stream_id: str | None = None
        try:
            stream_id, command = self._session.receive(data, received_ms)
            await self._carry_out(stream_id, command, received_ms)
        except EngineError as error:
            if stream_id is None and isinstance(error, RequestError):
                stream_id = error.stream_id
            self._refuse(error, stream_id)
            self._free(stream_id)
        except Exception:
            log.exception("frame failed")
            self._refuse(ServerError("The server had an error while processing the frame."), stream_id)
            self._free(stream_id)

    def _free(self, stream_id: str | None) -> None:
        """A frame of this lane came to nothing: others may use its place."""
        self._session.forget_unused(stream_id)
        self._start_waiting()

    async def _carry_out(self, stream_id: str | None, command: Command, received_ms: float) -> None:
        match command:
            case StartRun():
                await self._start(stream_id, command)
            case AppendTo(_, frame):
                await self._append(stream_id, frame, received_ms)
            case InjectInto(response, frame):
                await self._inject(stream_id, response, frame, received_ms)
            case ContinueFrom(_, frame):
                await self._continue(stream_id, frame)
            case SteerRun(frame):
                await self._steering.take(frame)
            case CancelRun(frame, response):
                response_id = response.id if response else frame.response_id
                self._responses.cancel(response_id or "", self._admission.principal)
            case ResumeRun(frame):
                await self._resume(frame)
            case Nothing():
                pass

    def _refuse(self, error: EngineError, stream_id: str | None) -> None:
        frame = {"type": "error", "status": error.status, "error": error.body()}
        self._send(frame, stream_id)

    def _send(self, frame: dict[str, Any], stream_id: str | None) -> None:
        self._stream.put_text(with_lane(encode_frame(frame), stream_id))
        self._writer.wake()

    # --- commands ---

    async def _start(self, stream_id: str | None, command: StartRun) -> None:
        try:
            await self._start_run(stream_id, command)
        except EngineError:
            previous_id = command.frame.previous_response_id
            if previous_id is not None and self._admission.lifecycle != "append":  # the prototype has no such rule
                self._lanes.forget(stream_id, previous_id)
            raise

    async def _start_run(self, stream_id: str | None, command: StartRun) -> None:
        started_ms = now_ms()
        request = read_create(
            command.frame,
            default_model=self._responses.default_model(),
            settings=self._settings,
            lifecycle=self._admission.lifecycle,
        )
        validate_ms = now_ms() - started_ms
        previous_id = request.previous_response_id
        whole = None if previous_id else self._lanes.with_left_out(stream_id, request.items)
        said = self._steering.waiting_items(stream_id, previous_id)
        request = msgspec.structs.replace(request, items=[*(whole.items if whole else request.items), *said])
        lane = self._session.lanes[stream_id]
        lane.is_starting = True
        try:
            before = await self._lanes.before(stream_id, previous_id)
            with whole.telling_own_places() if whole else nullcontext():
                live = await self._responses.create(request, self._admission.principal, before)
        finally:
            lane.is_starting = False
        live.queue_ms, live.validate_ms = started_ms - command.received_ms, validate_ms
        if command.supersedes is not None:
            self._lanes.live(stream_id).cancel("superseded")
        lane.steers.clear()
        self._lanes.adopt(stream_id, live, 0)

    async def _append(self, stream_id: str | None, frame: Append, received_ms: float) -> None:
        live = self._lanes.live(stream_id)
        items, choice = read_append(frame, live.response.request.tools, self._settings)
        done = await self._responses.append(live, items, choice, received_ms)
        self._accept(stream_id, live, done)

    def _accept(self, stream_id: str | None, live: Live, done: Appended) -> None:
        """Acknowledge an append, behind `response.created` however fast it came."""
        cursor = self._lanes.cursor(stream_id)
        if cursor is not None and cursor.next == 0 and not cursor.is_dropped:
            self._writer.put_first(stream_id, cursor)
        frame = {"type": "response.append.accepted", "response_id": live.response.id}
        self._send(frame | {"answered": done.answered, "still_pending": done.still_pending}, stream_id)

    async def _inject(
        self, stream_id: str | None, response: Response | None, frame: Inject, received_ms: float
    ) -> None:
        """Append, acknowledged in the run's own log; what is wrong is told by an event of its own."""
        try:
            if response is None:
                raise NotFound(f"Response with id '{frame.response_id}' not found.", param="response_id")
            if not response.is_open:
                raise NotFound(f"Response '{response.id}' has ended.", code="response_already_completed")
            live = self._lanes.live(stream_id)
            await self._responses.append(live, read_input(frame.input, self._settings), None, received_ms)
            live.notify()
        except RequestError as error:
            failed = {"response_id": frame.response_id, "input": frame.input, "error": error.body()}
            self._send({"type": "response.inject.failed"} | failed, stream_id)

    async def _continue(self, stream_id: str | None, frame: Append) -> None:
        """Go on from a completed run, as Codex before 0.100 expects: a new run with everything of the old one."""
        previous = self._lanes.live(stream_id)
        items, choice = read_append(frame, previous.response.request.tools, self._settings)
        new_items = previous.response.new_items(items)
        if not new_items:  # a resend: everything in it has arrived before
            self._accept(
                stream_id, previous, Appended([answer_key(item) for item in items if isinstance(item, Answer)], [])
            )
            return
        lane = self._session.lanes[stream_id]
        lane.is_starting = True
        try:
            live = await self._responses.continue_from(previous, new_items, choice, "append")
        finally:
            lane.is_starting = False
        self._accept(stream_id, live, Appended([], []))
        self._lanes.adopt(stream_id, live, 0)

    async def _resume(self, frame: Resume) -> None:
        owner = self._admission.principal
        # Looked at before it is taken up: a run that cannot be answered here rests on.
        self._session.check_lifecycle((await self._responses.watch(frame.response_id, owner)).response)
        live = await self._responses.recall(frame.response_id, owner)
        self._session.check_resume(frame)  # again: reading it may have taken its time
        first = live.first_missed(frame.last_seen, frame.revival)
        self._lanes.adopt(frame.stream_id, live, first)
        self._send(resume_accepted(live, first), frame.stream_id)

    # --- terminals ---

    def _finish_step(self, stream_id: str | None, event: Any) -> None:
        if self._admission.wants_timing:
            self._stream.put_text(with_lane(timing_frame(event), stream_id))
        if self._admission.wants_limits and (news := self._limits.news(self._lanes.live(stream_id).response)):
            self._stream.put_text(with_lane(news, stream_id))
        self._stream.put_text(with_lane(encode_event(event), stream_id))
        if self._steering.wants_successor(stream_id):
            self._session.lanes[stream_id].is_starting = True
            self._nursery.start_soon(self._start_successor, stream_id)
        self._start_waiting()

    def _start_waiting(self) -> None:
        """Start the queued creates that can start now."""
        for stream_id in list(self._session.lanes):
            if start := self._session.next_start(stream_id):
                self._session.lanes[stream_id].is_starting = True
                self._nursery.start_soon(self._start_queued, stream_id, start)

    async def _start_successor(self, stream_id: str | None) -> None:
        """Go on with what the user said meanwhile, before anything that waits."""
        lane = self._session.lanes[stream_id]
        try:
            live = await self._steering.start_successor(stream_id)
        except EngineError:
            self._start_waiting()
            return
        finally:
            lane.is_starting = False
        self._lanes.adopt(stream_id, live, 0)

    async def _start_queued(self, stream_id: str | None, start: StartRun) -> None:
        try:
            await self._start(stream_id, start)
        except EngineError as error:
            self._refuse(error, stream_id)
            self._free(stream_id)
        except Exception:
            log.exception("queued create failed")
            self._refuse(ServerError("The server had an error while processing the frame."), stream_id)
            self._free(stream_id)

    # --- the end ---

    def _pulse(self) -> Pulse:
        def end(ending: Ending) -> None:
            self._nursery.start_soon(self._until_closed, partial(self._end, ending))

        return Pulse(
            self._stream,
            self._writer.wake,
            lambda: self._session.has_paused,
            end,
            self._settings,
            trio.current_time(),
        )

    async def _end(self, ending: Ending) -> None:
        """Tell the client what it may still be told; then the connection is over."""
        self._close_code = (_CLOSE_CODES[ending], ending.value)
        if ending is Ending.SILENT:
            return
        if ending is Ending.TOO_OLD:
            self._refuse_sampling_lanes()
        with trio.move_on_after(self._settings.send_timeout_s):
            await self._writer.wait_written()

    def _refuse_sampling_lanes(self) -> None:
        """Tell lanes that sample; the others learn it from the close, since nothing may follow their terminal."""
        minutes = self._settings.connection_age_s / 60
        error = RequestError(
            f"Responses websocket connection limit reached ({minutes:g} minutes). "
            "Create a new websocket connection to continue.",
            code="websocket_connection_limit_reached",
        )
        for stream_id, lane in self._session.lanes.items():
            if lane.is_sampling:
                self._refuse(error, stream_id)
                # The error is the lane's last frame, so nobody reads the run here any more.
                self._lanes.stop_reading(stream_id)
