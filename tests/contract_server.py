"""A server that answers as the remote APIs say they do, with what a test lets its model say.

Three dialects: Cerebras (`/v1/completions` with ids, `/v1/chat/completions`, msgpack, gzip, `time_info`), vLLM and
llama.cpp's server. What the API refuses is refused here: unknown fields, encodings, models, keys. It keeps what it was
sent. Over memory streams (`stream`), or a socket for clients that open their own (`open_contract_server`).
"""

import gzip
import itertools
import json
import math
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import h11
import msgspec
import trio
from trio.testing import memory_stream_pair

from tests.contract_answers import (
    CREATED,
    Answer,
    ChatShape,
    CompletionShape,
    Dialect,
    Json,
    LlamaShape,
    Shape,
    error_body,
    problem,
)

MSGPACK: Final = "application/vnd.msgpack"


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# The fields of the published API (the SDK's parameter types, see test_contract_server.py).
CHAT_FIELDS: Final = _words(
    "messages model clear_thinking disable_reasoning frequency_penalty logit_bias logprobs max_completion_tokens "
    "max_tokens min_completion_tokens min_tokens model_parameters n parallel_tool_calls prediction presence_penalty "
    "prompt_cache_key reasoning_effort reasoning_format response_format seed service_tier stop stream stream_options "
    "temperature tool_choice tools top_logprobs top_p user"
)
COMPLETION_FIELDS: Final = _words(
    "model prompt best_of echo frequency_penalty grammar_root logit_bias logprobs max_tokens min_tokens n "
    "presence_penalty prompt_cache_key reasoning_format return_raw_tokens seed stop stream stream_options suffix "
    "temperature top_p user"
)
MESSAGE_FIELDS: Final[dict[str, frozenset[str]]] = {
    "system": frozenset(("role", "content", "name")),
    "developer": frozenset(("role", "content", "name")),
    "user": frozenset(("role", "content", "name")),
    "assistant": frozenset(("role", "content", "name", "reasoning", "tool_calls")),
    "tool": frozenset(("role", "content", "name", "tool_call_id")),
}
_SHAPES: Final[dict[str, type[Shape]]] = {
    "/v1/chat/completions": ChatShape,
    "/v1/completions": CompletionShape,
    "/completion": LlamaShape,
}


@dataclass
class Sent:
    """A request: what it said, and what became of its answer."""

    connection: int
    method: str
    path: str
    headers: dict[str, str]
    raw: bytes
    body: Any = None
    num_answered_bytes: int = 0
    is_aborted: bool = False
    ended: trio.Event = field(default_factory=trio.Event)


Answers = Iterable[Answer] | Callable[[Sent], Answer]


class _Refused(Exception):
    def __init__(self, status: int, error: Json, headers: dict[str, str] | None = None) -> None:
        self.status, self.error, self.headers = status, error, headers or {}


class ContractServer:
    """`answers`: one for each completion asked for, in order, or what makes one. `sent`: all requests so far.

    api_key: None lets everybody in. encodings: what bodies may come in besides JSON. headers: on every answer.
    """

    def __init__(
        self,
        answers: Answers = (),
        *,
        dialect: Dialect = "cerebras",
        api_key: str | None = None,
        models: tuple[str, ...] = ("test-model",),
        encodings: Iterable[str] = ("msgpack", "gzip"),
        headers: dict[str, str] | None = None,
        context_window: int = 131_072,
    ) -> None:
        self._next = answers if callable(answers) else _in_order(answers)
        self.dialect: Dialect = dialect
        self.api_key = api_key
        self.models = models
        self.encodings = set(encodings) if dialect == "cerebras" else set()
        self.headers = headers or {}
        self.context_window = context_window
        self.sent: list[Sent] = []
        self._connections = itertools.count(1)
        self._nursery: trio.Nursery | None = None
        self._open: set[trio.abc.Stream] = set()

    @property
    def asked(self) -> list[Sent]:
        """The requests for completions."""
        return [sent for sent in self.sent if sent.path in _SHAPES]

    @property
    def num_connections(self) -> int:
        """How many connections have sent a request."""
        return len({sent.connection for sent in self.sent})

    @asynccontextmanager
    async def running(self) -> AsyncIterator["ContractServer"]:
        """Serves what `stream` and `connect` give until the block is left."""
        async with trio.open_nursery() as self._nursery:
            yield self
            self._nursery.cancel_scope.cancel()

    def stream(self) -> trio.abc.HalfCloseableStream:
        """A client's end of a connection without sockets."""
        assert self._nursery is not None, "not running"
        ours, theirs = memory_stream_pair()
        self._nursery.start_soon(self.serve_stream, theirs)
        return ours

    async def drop_all(self) -> None:
        """End every connection there is, as a server that is killed does."""
        for stream in list(self._open):
            await trio.aclose_forcefully(stream)

    async def serve_stream(self, stream: trio.abc.Stream) -> None:
        """Serve one connection to its end."""
        self._open.add(stream)
        try:
            await _Connection(self, stream, next(self._connections)).serve()
        except* (_Dropped, trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        finally:
            self._open.discard(stream)
            await trio.aclose_forcefully(stream)

    # --- what it answers ---

    def answer_to(self, sent: Sent) -> tuple[Answer, Shape]:
        """The model's answer, shaped. Raises _Refused for what the API refuses."""
        sent.body = self._decoded(sent)
        if sent.path not in _SHAPES or (sent.path == "/completion" and self.dialect != "llamacpp"):
            raise _not_found(sent)
        self._check(sent)
        answer = self._next(sent)
        if answer.status >= 400:
            raise _Refused(answer.status, answer.error or problem("failed", "failed"), answer.headers)
        return answer, _SHAPES[sent.path](answer, self.dialect, sent.body, _num_prompt_tokens(sent))

    def answer_get(self, sent: Sent) -> Json:
        """The body of a GET."""
        match sent.path:
            case "/v1/models":
                return {"object": "list", "data": [self._model(name) for name in self.models]}
            case "/v1/tcp_warming" if self.dialect == "cerebras":
                return {}
            case "/props" if self.dialect == "llamacpp":
                return {"default_generation_settings": {"n_ctx": self.context_window}, "total_slots": 4}
            case "/health" if self.dialect != "cerebras":
                return {"status": "ok"}
        raise _not_found(sent)

    def check_key(self, sent: Sent) -> None:
        """Raises _Refused when the key is not the one."""
        if self.api_key is not None and sent.headers.get("authorization") != f"Bearer {self.api_key}":
            raise _Refused(401, problem("Wrong API Key", "wrong_api_key", param="api_key"))

    def _model(self, name: str) -> Json:
        model: Json = {"id": name, "object": "model", "created": CREATED, "owned_by": self.dialect}
        if self.dialect == "vllm":
            return model | {"max_model_len": self.context_window}
        if self.dialect == "llamacpp":
            return model | {"meta": {"n_ctx": self.context_window, "n_ctx_train": self.context_window}}
        return model

    def _decoded(self, sent: Sent) -> Any:
        kind, coding = sent.headers.get("content-type"), sent.headers.get("content-encoding")
        if coding not in (None, *self.encodings):
            raise _Refused(415, problem(f"Content-Encoding {coding} is not supported.", "unsupported_media_type"))
        raw = gzip.decompress(sent.raw) if coding == "gzip" else sent.raw
        try:
            if kind == MSGPACK and "msgpack" in self.encodings:
                return msgspec.msgpack.decode(raw)
            if kind == "application/json":
                return json.loads(raw)
        except ValueError as error:
            raise _Refused(400, problem(str(error), "wrong_api_format")) from error
        raise _Refused(415, problem(f"Content-Type {kind} is not supported.", "unsupported_media_type"))

    def _check(self, sent: Sent) -> None:
        body = sent.body
        if sent.path != "/completion" and body.get("model") not in self.models:
            message = f"Model {body.get('model')} does not exist or you do not have access to it."
            raise _Refused(404, problem(message, "model_not_found", kind="not_found_error", param="model"))
        if self.dialect == "cerebras":
            is_chat = sent.path == "/v1/chat/completions"
            _refuse_unknown("body", body, CHAT_FIELDS if is_chat else COMPLETION_FIELDS)
            for index, message in enumerate(body["messages"] if is_chat else ()):
                role = message["role"]
                _refuse_unknown(f"messages.{index}.{role}", message, MESSAGE_FIELDS.get(role, frozenset()))
        num_tokens = _num_prompt_tokens(sent)
        if num_tokens >= self.context_window:
            message = f"Please reduce the length of the messages or completion. Current length is {num_tokens} while "
            message += f"limit is {self.context_window}"
            raise _Refused(400, problem(message, "context_length_exceeded", param="messages"))


def _not_found(sent: Sent) -> _Refused:
    return _Refused(404, problem(f"{sent.path} not found", "not_found", kind="not_found_error"))


def _in_order(answers: Iterable[Answer]) -> Callable[[Sent], Answer]:
    remaining = iter(answers)

    def take(sent: Sent) -> Answer:
        answer = next(remaining, None)
        assert answer is not None, f"one more request than answers: {sent.body}"
        return answer

    return take


def _refuse_unknown(where: str, given: Json, known: frozenset[str]) -> None:
    if unknown := sorted(given.keys() - known):
        message = "\n".join(f"{where}.{name}: property '{where}.{name}' is unsupported" for name in unknown)
        raise _Refused(400, problem(message, "wrong_api_format", param="validation_error"))


def _num_prompt_tokens(sent: Sent) -> int:
    prompt = sent.body.get("prompt")
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], int):
        return len(prompt)
    return len(json.dumps(prompt or sent.body.get("messages"))) // 4


# --- bytes --------------------------------------------------------------------------------------------------------


class _Dropped(Exception):
    """The answer was to be cut here."""


class _Connection:
    def __init__(self, server: ContractServer, stream: trio.abc.Stream, number: int) -> None:
        self._server = server
        self._stream = stream
        self._number = number
        self._h11 = h11.Connection(h11.SERVER)
        self._cut_after: int | None = None
        self._slice_bytes: int | None = None

    async def serve(self) -> None:
        while (sent := await self._next_request()) is not None:
            self._server.sent.append(sent)
            self._cut_after = self._slice_bytes = None
            try:
                await self._answer(sent)
            finally:
                sent.ended.set()
            if self._h11.our_state is not h11.DONE or self._h11.their_state is not h11.DONE:
                return
            self._h11.start_next_cycle()

    async def _next_request(self) -> Sent | None:
        sent: Sent | None = None
        while not isinstance(event := await self._next_event(), h11.EndOfMessage | h11.ConnectionClosed):
            if isinstance(event, h11.Request):
                headers = {name.decode(): value.decode() for name, value in event.headers}
                sent = Sent(self._number, event.method.decode(), event.target.decode(), headers, b"")
            elif isinstance(event, h11.Data):
                assert sent is not None
                sent.raw += bytes(event.data)
        return sent if isinstance(event, h11.EndOfMessage) else None

    async def _next_event(self) -> h11.Event:
        while True:
            event = self._h11.next_event()
            if isinstance(event, h11.Event):
                return event
            self._h11.receive_data(bytes(await self._stream.receive_some()))

    async def _answer(self, sent: Sent) -> None:
        try:
            self._server.check_key(sent)
            if sent.method == "GET":
                await self._send_whole(sent, 200, self._server.answer_get(sent))
                return
            answer, shape = self._server.answer_to(sent)
        except _Refused as refused:
            body = error_body(refused.error, self._server.dialect, refused.status)
            await self._send_whole(sent, refused.status, body, refused.headers)
            return
        self._cut_after, self._slice_bytes = answer.cut_after, answer.slice_bytes
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch, sent, nursery.cancel_scope)
            if sent.body.get("stream"):
                await self._send_stream(sent, answer, shape)
            else:
                await _sleep(answer.first_after_s)
                await self._send_whole(sent, 200, shape.whole(), answer.headers)
            nursery.cancel_scope.cancel()
        if sent.is_aborted:
            raise _Dropped

    async def _watch(self, sent: Sent, scope: trio.CancelScope) -> None:
        """Notice when the client leaves before the answer is whole."""
        try:
            data = bytes(await self._stream.receive_some())
        except trio.BrokenResourceError:
            data = b""
        self._h11.receive_data(data)
        if not data:
            sent.is_aborted = True
            scope.cancel()

    async def _send_stream(self, sent: Sent, answer: Answer, shape: Shape) -> None:
        await _sleep(answer.first_after_s)
        headers = [*self._server.headers.items(), *answer.headers.items(), ("content-type", "text/event-stream")]
        await self._send(sent, h11.Response(status_code=200, headers=[*headers, ("transfer-encoding", "chunked")]))
        for number, chunk in enumerate(shape.chunks()):
            if number:
                await _sleep(answer.between_s)
            await self._send_event(sent, json.dumps(chunk, separators=(",", ":")))
        if answer.has_end and answer.error is None and sent.path != "/completion":
            await self._send_event(sent, "[DONE]")
        await self._send(sent, h11.EndOfMessage())

    async def _send_event(self, sent: Sent, data: str) -> None:
        await self._send(sent, h11.Data(data=f"data: {data}\n\n".encode()))

    async def _send_whole(self, sent: Sent, status: int, body: Json, headers: dict[str, str] | None = None) -> None:
        raw = json.dumps(body).encode()
        lines = [*self._server.headers.items(), *(headers or {}).items(), ("content-type", "application/json")]
        head = h11.Response(status_code=status, headers=[*lines, ("content-length", str(len(raw)))])
        for event in (head, h11.Data(data=raw), h11.EndOfMessage()):
            await self._send(sent, event)

    async def _send(self, sent: Sent, event: h11.Event) -> None:
        data = self._h11.send(event) or b""
        room = math.inf if self._cut_after is None else self._cut_after - sent.num_answered_bytes
        is_cut = len(data) > room
        if is_cut:
            data = data[: int(room)]
        step = self._slice_bytes or len(data) or 1
        for start in range(0, len(data), step):
            try:
                await self._stream.send_all(data[start : start + step])
            except trio.BrokenResourceError:
                sent.is_aborted = True
                raise
        sent.num_answered_bytes += len(data)
        if is_cut:
            raise _Dropped


async def _sleep(seconds: float) -> None:
    if seconds == math.inf:
        await trio.sleep_forever()
    await trio.sleep(seconds)


@asynccontextmanager
async def open_contract_server(server: ContractServer, port: int = 0) -> AsyncIterator[str]:
    """Let it serve on a port of this machine; its URL, without `/v1`."""
    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(trio.serve_tcp, server.serve_stream, port)
        yield f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}"
        nursery.cancel_scope.cancel()
