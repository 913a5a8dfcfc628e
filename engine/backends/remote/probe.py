"""What a service really does of what this project takes it to do, point by point, by asking it.

For whoever has a key: nothing here was ever run against the live Cerebras API. Each point is a request or two of a few
tokens. What one service has and another has not is looked at only where it is expected.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import msgspec

from engine.backends.remote.chat_chunks import DECODER, CallPart, Chunk, Counts
from engine.backends.remote.chat_request import ChatName
from engine.backends.remote.dialect import Ask, Dialect
from engine.backends.remote.dialects import dialect_of
from engine.backends.remote.encoding import PLAIN, Encoding
from engine.backends.remote.errors import UpstreamError, error_chunk
from engine.backends.remote.link import Line, Link

_TOOL: Final = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
_SCHEMA: Final = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
_QUESTION: Final = {"role": "user", "content": "What is the weather in Paris?"}
_LONG: Final = "The quick brown fox jumps over the lazy dog. " * 120  # more than a block of the prompt cache
_IDS: Final = list(range(100, 116))  # in every vocabulary
_MAX_TOKENS: Final = 256  # room for some reasoning before what is asked for


class Point(msgspec.Struct, frozen=True):
    """told: what was seen, or what was not."""

    name: str
    is_met: bool
    told: str


class _Missed(Exception):
    """A point is not met, and why."""


class _Asked:
    """A `link.Turn` whose events are kept as they are; `read` says whether the answer has its end with one."""

    def __init__(self, path: str, fields: dict[str, Any], read: Callable[[bytes], bool]) -> None:
        self.path = path
        self.events: list[bytes] = []
        self.is_answered = False
        self._fields = fields
        self._read = read

    @property
    def num_taken(self) -> int:
        return len(self.events)

    @property
    def can_repeat(self) -> bool:
        return not self.events  # a kept connection may have been closed meanwhile

    async def body(self, encoding: Encoding) -> bytes:
        return encoding.encode(self._fields)

    def take(self, events: Sequence[bytes]) -> bool:
        for event in events:
            self.events.append(event)
            self.is_answered = self._read(event)
        return self.is_answered


class Probe:
    """Looks at one service. `report` is called with each point as it is known."""

    def __init__(self, link: Link, name: ChatName, model: str, report: Callable[[Point], None]) -> None:
        self._config = msgspec.structs.replace(link.config, encoding=PLAIN, retries=1)
        self._name: ChatName = name
        self._model = model
        self._report = report
        self._link = Link(self._config)
        self._line = self._link.new_line()

    async def run(self) -> None:
        """All points, one after the other."""
        try:
            for name, look in self._points():
                await self._look(name, look)
        finally:
            await self._line.aclose()

    def _points(self) -> list[tuple[str, Callable[[], Awaitable[str]]]]:
        points: list[tuple[str, Callable[[], Awaitable[str]]]] = [("models are listed", self._models)]
        if self._name == "cerebras":
            points.append(("a connection can be warmed", self._warm))
        points += [
            ("chat: an answer is streamed", self._streamed),
            ("chat: a call comes", self._call),
            ("chat: its output is taken", self._output),
            ("chat: an answer is held to a schema", self._schema),
            ("a long prompt is cached", self._cached),
        ]
        if self._name == "cerebras":
            points += [
                ("bodies: gzip", lambda: self._encoded(Encoding(gzip=True))),
                ("bodies: msgpack", lambda: self._encoded(Encoding(msgpack=True))),
                ("bodies: msgpack and gzip", lambda: self._encoded(Encoding(msgpack=True, gzip=True))),
            ]
        if (dialect := dialect_of(self._name)) is not None:
            points.append(("ids: they are taken and given", lambda: self._ids(dialect)))
            points.append(("ids: an answer can be gone on with", lambda: self._going_on(dialect)))
        points.append(("a model that is not there is a 404", self._no_model))
        if self._config.key:
            points.append(("a wrong key is a 401", self._wrong_key))
        if self._name == "cerebras":
            points.append(("rate limits are told", self._limits))
        return points

    async def _look(self, name: str, look: Callable[[], Awaitable[str]]) -> None:
        try:
            self._report(Point(name, True, await look()))
        except _Missed as missed:
            self._report(Point(name, False, str(missed)))
        except UpstreamError as error:
            self._report(Point(name, False, error.detail or error.message))
        except (msgspec.DecodeError, LookupError, TypeError) as error:
            self._report(Point(name, False, f"what came cannot be read: {error}"))

    # --- both routes

    async def _models(self) -> str:
        listed = msgspec.json.decode(await self._line.get("/models"))["data"]
        names = [model["id"] for model in listed]
        if self._model not in names and self._name != "llamacpp":
            raise _Missed(f"'{self._model}' is not among {', '.join(names)}")
        return f"{len(names)}, '{self._model}' among them"

    async def _warm(self) -> str:
        await self._line.get("/tcp_warming")
        return ""

    async def _no_model(self) -> str:
        if self._name == "llamacpp":
            return "it takes any name"
        return await self._refused(self._line, 404, {"model": "no-such-model"})

    async def _wrong_key(self) -> str:
        line = Link(msgspec.structs.replace(self._config, key="wrong")).new_line()
        try:
            return await self._refused(line, 401)
        finally:
            await line.aclose()

    async def _refused(self, line: Line, status: int, fields: dict[str, Any] | None = None) -> str:
        try:
            await line.converse(_chat_turn(self._chat_fields([_QUESTION]) | (fields or {})))
        except UpstreamError as error:
            if error.upstream_status == status:
                return error.detail
            raise
        raise _Missed("it answered")

    async def _limits(self) -> str:
        limits = self._link.rate_limits
        if not limits:
            raise _Missed("no x-ratelimit headers")
        return ", ".join(f"{limit.name} {limit.remaining:g} of {limit.limit:g}" for limit in limits)

    async def _encoded(self, encoding: Encoding) -> str:
        link = Link(msgspec.structs.replace(self._config, encoding=encoding))
        line = link.new_line()
        try:
            await line.converse(_chat_turn(self._chat_fields([_QUESTION])))
        finally:
            await line.aclose()
        if link.encoding != encoding:
            raise _Missed("only taken in a simpler form")
        return ""

    # --- the chat route

    def _chat_fields(self, messages: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
        limit = "max_tokens" if self._name == "llamacpp" else "max_completion_tokens"
        common = {"model": self._model, "messages": messages, "stream": True, limit: _MAX_TOKENS}
        return common | {"stream_options": {"include_usage": True}} | fields

    async def _chat(self, messages: list[dict[str, Any]], **fields: Any) -> list[Chunk]:
        turn = _chat_turn(self._chat_fields(messages, **fields))
        await self._line.converse(turn)
        return [DECODER.decode(event) for event in turn.events if event != b"[DONE]"]

    async def _streamed(self) -> str:
        chunks = await self._chat([{"role": "user", "content": "Say hello."}])
        counts = _counts_of(chunks)
        finish = next((c.finish_reason for chunk in chunks for c in chunk.choices or () if c.finish_reason), None)
        if finish is None:
            raise _Missed("no finish_reason")
        if counts is None or counts.prompt_tokens is None:
            raise _Missed("no usage")
        deltas = [choice.delta for chunk in chunks for choice in chunk.choices or () if choice.delta]
        seen = [f"{len(chunks)} chunks", f"finish_reason {finish}", "usage"]
        for field in ("reasoning", "reasoning_content"):
            seen += [field] if any(getattr(delta, field) for delta in deltas) else []
        has_times = any(chunk.time_info for chunk in chunks)
        if self._name == "cerebras" and not has_times:
            raise _Missed("no time_info")
        seen += ["time_info"] if has_times else []
        seen += ["timings"] if any(chunk.timings for chunk in chunks) else []
        return ", ".join(seen)

    async def _parts(self) -> list[CallPart]:
        chunks = await self._chat([_QUESTION], tools=[_TOOL], tool_choice="required", temperature=0)
        choices = [choice for chunk in chunks for choice in chunk.choices or ()]
        return [part for choice in choices if choice.delta for part in choice.delta.tool_calls or ()]

    async def _call(self) -> str:
        parts = await self._parts()
        if not parts:
            raise _Missed("no tool_calls")
        arguments = "".join(str(part.function.arguments or "") for part in parts if part.function)
        msgspec.json.decode(arguments, type=dict[str, Any])
        shape = "one chunk" if len(parts) == 1 else f"{len(parts)} chunks"
        named = [name for name in ("index", "id") if getattr(parts[0], name) is not None]
        return f"{shape}, with {' and '.join(named) or 'neither index nor id'}"

    async def _output(self) -> str:
        function = {"name": "get_weather", "arguments": '{"city":"Paris"}'}
        call = {"id": "call_1", "type": "function", "function": function}
        made = {"role": "assistant", "content": None, "tool_calls": [call]}
        output = {"role": "tool", "tool_call_id": "call_1", "content": "Rain"}
        await self._chat([_QUESTION, made, output], tools=[_TOOL], tool_choice="none")
        return ""

    async def _schema(self) -> str:
        schema = {"name": "place", "schema": _SCHEMA, "strict": True}
        answer = {"type": "json_schema", "json_schema": schema}
        chunks = await self._chat([{"role": "user", "content": "Name a city."}], response_format=answer)
        choices = [choice for chunk in chunks for choice in chunk.choices or ()]
        text = "".join(choice.delta.content or "" for choice in choices if choice.delta)
        if "city" not in msgspec.json.decode(text, type=dict[str, Any]):
            raise _Missed(text)
        return " ".join(text.split())

    async def _cached(self) -> str:
        cached: int | None = None
        for _ in range(2):
            chunks = await self._chat([{"role": "user", "content": f"{_LONG}\nSay hello."}])
            counts = _counts_of(chunks)
            details = counts.prompt_tokens_details if counts else None
            cached = details.cached_tokens if details else None
            cached = next((chunk.timings.cache_n for chunk in chunks if chunk.timings), cached)
        if not cached:
            raise _Missed("cached_tokens is not told" if cached is None else "cached_tokens is 0 the second time")
        return f"{cached} tokens the second time"

    # --- the raw route

    async def _ids_after(self, dialect: Dialect, prompt: list[int], num_tokens: int) -> list[int]:
        ask = Ask(model=self._model, max_tokens=num_tokens, temperature=0.0)
        chunks = []

        def read(event: bytes) -> bool:
            chunks.append(dialect.read(event))
            return chunks[-1].is_last

        await self._line.converse(_Asked(dialect.path, dialect.fields(ask) | {"prompt": prompt}, read))
        return [token_id for chunk in chunks for token_id in chunk.ids]

    async def _ids(self, dialect: Dialect) -> str:
        ids = await self._ids_after(dialect, _IDS, 8)
        if not ids:
            raise _Missed(f"no ids, though {dialect.wants_ids_by} asked for them")
        return f"{len(ids)} of 8"

    async def _going_on(self, dialect: Dialect) -> str:
        whole = await self._ids_after(dialect, _IDS, 8)
        rest = await self._ids_after(dialect, [*_IDS, *whole[:4]], max(len(whole) - 4, 1))
        if whole[4:] != rest[: len(whole) - 4]:
            raise _Missed(f"greedy {whole} but after four of them {rest}")
        return "the same ids"


def _chat_turn(fields: dict[str, Any]) -> _Asked:
    def read(event: bytes) -> bool:
        if event == b"[DONE]":
            return True
        if DECODER.decode(event).is_error and (error := error_chunk(msgspec.json.decode(event))):
            raise error
        return False

    return _Asked("/chat/completions", fields, read)


def _counts_of(chunks: list[Chunk]) -> Counts | None:
    return next((chunk.usage for chunk in reversed(chunks) if chunk.usage), None)
