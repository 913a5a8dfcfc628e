"""A server for the client's tests: a scripted run over memory streams, with connections that break where told.

It keeps the wire's rules that a client depends on (a numbered log, resume, answers taken twice, early answers) and
nothing else. `FakeServer` is a `Connector`; its `sample` must run in a task of its own, since a run outlives
connections.
"""

import itertools
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import msgspec
import trio
import trio.testing
import trio_websocket

from engine.client_wire import WebSocketFrames

Frame = dict[str, Any]


@dataclass(frozen=True)
class Say:
    """The model writes a message."""

    text: str


@dataclass(frozen=True)
class Call:
    """The model calls a function, or with another `type` another kind of tool."""

    call_id: str
    name: str
    arguments: str = "{}"
    type: str = "function_call"


@dataclass(frozen=True)
class AwaitAnswer:
    """Sampling stalls until this call is answered, which only an early answer can do."""

    call_id: str


@dataclass(frozen=True)
class Think:
    """Sampling goes on for a while."""

    seconds: float


@dataclass(frozen=True)
class Fail:
    """The run fails."""

    code: str
    message: str


Act = Fail | Say | Call | AwaitAnswer | Think


class FakeServer:
    """One run of scripted steps.

    received: the client's frames, in order; outputs and texts: what they brought. cuts: how many frames each
    connection carries to the client before it breaks; connections beyond the list hold. refusals: for a frame type,
    the errors that its next frames get. losses: for a frame type, the connection breaks at its next frames, before
    (False) or after (True) the server took them in.
    """

    def __init__(
        self,
        steps: list[list[Act]],
        *,
        cuts: list[int] | None = None,
        refusals: dict[str, list[Frame]] | None = None,
        losses: dict[str, list[bool]] | None = None,
        is_kept_open: bool = False,
    ) -> None:
        self.received: list[Frame] = []
        self.outputs: dict[str, str] = {}
        self.num_connections = 0
        self._steps = steps
        self._cuts = iter(cuts or [])
        self._refusals = refusals or {}
        self._losses = losses or {}
        self._is_kept_open = is_kept_open
        self._log: list[Frame] = []
        self._items: list[Frame] = []
        self._pending: list[str] = []
        self.texts: list[str] = []
        self._is_created = False
        self._status = "in_progress"
        self._is_cancelled = False
        self._changed = trio.Event()

    def sent(self, kind: str) -> list[Frame]:
        """The client's frames of one type."""
        return [frame for frame in self.received if frame["type"] == kind]

    # --- the run ---

    async def sample(self) -> None:
        """Play the script, then end the run."""
        await self._wait(lambda: self._is_created)
        with trio.CancelScope() as self._sampling:
            for step in self._steps:
                await self._step(step)
            self._status = "completed"
            self._emit("response.completed", response=self._response("completed"))
        if self._is_cancelled:
            details = {"reason": "cancelled"}
            self._emit("response.incomplete", response=self._response("incomplete") | {"incomplete_details": details})

    async def _step(self, step: list[Act]) -> None:
        num_messages = len(self.texts)
        for act in step:
            await trio.lowlevel.checkpoint()
            match act:
                case AwaitAnswer(key):
                    await self._wait(lambda key=key: key not in self._pending)
                case Fail(code, message):
                    error = {"code": code, "message": message}
                    self._emit("response.failed", response=self._response("failed") | {"error": error})
                    await trio.sleep_forever()
                case Think(seconds):
                    await trio.sleep(seconds)
                case Say(text):
                    self._emit("response.output_text.delta", delta=text)
                    self._add({"type": "message", "content": [{"type": "output_text", "text": text}]})
                case Call():
                    self._pending.append(act.call_id)
                    written = "input" if act.type == "custom_tool_call" else "arguments"
                    self._add({"type": act.type, "call_id": act.call_id, "name": act.name, written: act.arguments})
        waits_for_user = self._is_kept_open and not any(isinstance(act, Call) for act in step)
        if self._pending or waits_for_user:
            pending = [{"answer_key": key} for key in self._pending]
            self._status = "paused"
            self._emit("response.done", response=self._response("in_progress") | {"pending": pending})
            await self._wait(lambda: not self._pending and (not waits_for_user or len(self.texts) > num_messages))
            self._status = "in_progress"

    def _add(self, item: Frame) -> None:
        item = {"id": f"item_{len(self._items)}", **item}
        self._items.append(item)
        self._emit("response.output_item.done", output_index=len(self._items) - 1, item=item)

    def _response(self, status: str) -> Frame:
        usage = {"input_tokens": 10, "output_tokens": 2, "total_tokens": 12}
        return {"id": "resp_fake", "status": status, "usage": usage, "run_usage": usage}

    def _emit(self, kind: str, **fields: Any) -> None:
        self._log.append({"type": kind, "sequence_number": len(self._log), **fields})
        self._change()

    def _change(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    async def _wait(self, condition: Any) -> None:
        while not condition():
            await self._changed.wait()

    # --- connections ---

    @asynccontextmanager
    async def open(self) -> AsyncIterator[WebSocketFrames]:
        """The client's end of a new connection."""
        client_end, server_end = trio.testing.memory_stream_pair()
        self.num_connections += 1
        held: Exception | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._serve, server_end, next(self._cuts, None))
            websocket = await trio_websocket.wrap_client_stream(nursery, client_end, "fake", "/")
            try:
                yield WebSocketFrames(websocket)
            except Exception as error:
                held = error
            nursery.cancel_scope.cancel()
        if held is not None:
            raise held

    async def _serve(self, stream: trio.abc.Stream, cut: int | None) -> None:
        budget = iter(range(cut)) if cut is not None else None
        async with trio.open_nursery() as nursery:
            request = await trio_websocket.wrap_server_stream(nursery, stream)
            websocket = await request.accept()
            try:
                await self._read(nursery, websocket, stream, budget)
            except trio_websocket.ConnectionClosed:
                nursery.cancel_scope.cancel()

    async def _read(self, nursery: trio.Nursery, websocket: Any, stream: trio.abc.Stream, budget: Any) -> None:
        cursor: list[int] = []
        while True:
            frame = msgspec.json.decode(await websocket.get_message())
            if losses := self._losses.get(frame["type"]):
                if losses.pop(0):
                    self._handle(frame)
                await stream.aclose()
                nursery.cancel_scope.cancel()
                return
            self.received.append(frame)
            replies, start = self._handle(frame)
            for reply in replies:
                await self._send(nursery, websocket, stream, budget, reply)
            if start is not None and not cursor:
                cursor.append(start)
                nursery.start_soon(self._pump, nursery, websocket, stream, budget, start)

    async def _pump(self, nursery: Any, websocket: Any, stream: Any, budget: Any, cursor: int) -> None:
        for index in itertools.count(cursor):
            await self._wait(lambda index=index: index < len(self._log))
            await self._send(nursery, websocket, stream, budget, self._log[index])

    async def _send(
        self, nursery: Any, websocket: Any, stream: Any, budget: Iterator[int] | None, frame: Frame
    ) -> None:
        if budget is not None and next(budget, None) is None:
            await stream.aclose()
            nursery.cancel_scope.cancel()
            return
        await websocket.send_message(msgspec.json.encode(frame).decode())

    def _handle(self, frame: Frame) -> tuple[list[Frame], int | None]:
        """The immediate answers to a frame, and where in the log the connection starts to read, if it does."""
        if refusals := self._refusals.get(frame["type"]):
            return [refusals.pop(0)], None
        match frame["type"]:
            case "response.create":
                if not self._is_created:
                    self._is_created = True
                    self._emit("response.created", response=self._response("in_progress"))
                return [], 0
            case "response.resume":
                accepted = {"type": "response.resume.accepted", "status": self._status}
                return [accepted | {"last_sequence_number": len(self._log) - 1}], frame["starting_after"] + 1
            case "response.append" if self._status == "completed":
                return [refusal("response_not_found", status=404)], None
            case "response.append":
                return [self._append(frame["input"])], None
            case _:
                self._is_cancelled = True
                self._sampling.cancel()
                return [], None

    def _append(self, items: list[Frame]) -> Frame:
        answered = []
        for item in items:
            if item["type"] == "message":
                self.texts.append(item["content"][0]["text"])
                continue
            if item["type"] == "mcp_approval_response":
                continue
            key, start = item["call_id"], item.get("offset", 0)
            self.outputs[key] = self.outputs.get(key, "")[:start] + item["output"]
            if item.get("status", "completed") == "completed" and key in self._pending:
                self._pending.remove(key)
                answered.append(key)
        self._change()
        return {"type": "response.append.accepted", "answered": answered, "still_pending": self._pending}


def refusal(code: str, *, status: int = 400, message: str = "No.", param: str | None = None) -> Frame:
    """An error frame."""
    error = {"type": "invalid_request_error", "code": code, "message": message, "param": param}
    return {"type": "error", "status": status, "error": error}
