"""Runs without a server, for tests of the pure machines: a Response, ids that count, and a record of what was live."""

import copy
import gc
import sys
from array import array
from collections import Counter, deque
from enum import Enum
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import msgspec

from engine.backends.base import CallDelta, CallEnd, CallStart, CallType, Delta, StepEnd, TextDelta
from engine.events import encode_event
from engine.frames import Create, decode_frame
from engine.items import Item, decode_item
from engine.request import Lifecycle, RunRequest, read_create
from engine.response import Response
from engine.sealing import KEY_BYTES, Sealer
from engine.settings import Settings
from engine.usage import Timing, count_usage

SETTINGS = Settings()
SEALER = Sealer(bytes(KEY_BYTES))
NOW = 1_700_000_000.5
WEATHER = {"type": "function", "name": "weather", "parameters": {"type": "object", "properties": {}}}
NOTE = {"type": "custom", "name": "note"}


def counting_ids() -> Any:
    """A mint of ids that say how many of their kind there were: msg_0, msg_1, call_0."""
    counts: Counter[str] = Counter()

    def mint(prefix: str) -> str:
        counts[prefix] += 1
        return f"{prefix}_{counts[prefix] - 1}"

    return mint


def create(**fields: Any) -> Create:
    """A create frame as the wire gives it."""
    data = msgspec.json.encode({"type": "response.create", "input": "hi", **fields})
    frame = decode_frame(data, max_depth=SETTINGS.max_json_depth)
    assert isinstance(frame, Create)
    return frame


def request(settings: Settings = SETTINGS, *, lifecycle: Lifecycle = "append", **fields: Any) -> RunRequest:
    """The run that such a frame asks for."""
    return read_create(create(**fields), default_model="toy", settings=settings, lifecycle=lifecycle)


def item(**fields: Any) -> Item:
    """An item as the wire gives it."""
    return decode_item(msgspec.json.encode(fields))


def output(key: str, text: Any = "done", **fields: Any) -> Item:
    """A function's output."""
    return item(type="function_call_output", call_id=key, output=text, **fields)


def call_item(key: str, name: str = "weather") -> Item:
    """A call that the client has in its history."""
    return item(type="function_call", call_id=key, name=name, arguments="{}")


def user(text: str = "and now?") -> Item:
    """A user message."""
    return item(type="message", role="user", content=text)


def call(arguments: str = "{}", *, name: str = "weather", kind: CallType = "function_call") -> list[Delta]:
    """The deltas of one call."""
    return [CallStart(kind, name), CallDelta(arguments), CallEnd()]


def stop(reason: Any = "stop", *, given: int = 10, sampled: int = 3, cached: int = 4) -> StepEnd:
    """The end of a step."""
    return StepEnd(reason, count_usage(given, sampled, cached_tokens=cached), Timing(prefill_ms=1.0, sampling_ms=2.0))


class Run:
    """A Response that has started, and every event's JSON as it was when it was logged (`live`)."""

    def __init__(self, *, settings: Settings = SETTINGS, mint_id: Any = None, **fields: Any) -> None:
        asked = request(settings, **fields)
        self.response = Response("resp_0", asked, settings, mint_id or counting_ids(), NOW, sealer=SEALER)
        self.live: list[bytes] = []
        self._decoded: list[dict[str, Any]] = []
        self.listen()
        self.response.start()

    def listen(self) -> None:
        """Keep what the response logs from now on."""
        append = self.response.log.append

        def record(event: Any) -> None:
            append(event)
            self.live.append(encode_event(event))

        self.response.log.append = record  # type: ignore[method-assign]  # the machine keeps no hook for tests

    def step(self, *deltas: Delta | str | list[Delta], end: StepEnd | None = None) -> "Run":
        """One whole sampling step; a string is text, a list is what `call` gives."""
        self.feed(*deltas)
        self.response.end_step(end or stop(), Timing(), NOW + 1)
        return self

    def feed(self, *deltas: Delta | str | list[Delta]) -> "Run":
        """A part of a step."""
        for delta in deltas:
            for one in delta if isinstance(delta, list) else [delta]:
                self.response.feed(TextDelta(one) if isinstance(one, str) else one)
        return self

    def append(self, *items: Item, choice: Any = None) -> bool:
        """Check and commit, as the server does. True when the paused run goes on."""
        return self.response.commit(self.response.check(list(items)), choice)

    @property
    def events(self) -> list[dict[str, Any]]:
        """Everything that was logged, in the form clients read."""
        self._decoded += [msgspec.json.decode(data) for data in self.live[len(self._decoded) :]]
        return self._decoded

    @property
    def types(self) -> list[str]:
        """The events' types without `response.`."""
        return [event["type"].removeprefix("response.") for event in self.events]

    @property
    def last(self) -> dict[str, Any]:
        """The newest event."""
        return self.events[-1]

    def replayed(self) -> list[bytes]:
        """What a reader that comes late gets."""
        log = self.response.log
        return [encode_event(log.read(seq)) for seq in range(log.oldest, log.next)]


def json_paths_of_null(value: Any, path: str = "") -> list[str]:
    """Where a decoded JSON value holds null."""
    if value is None:
        return [path]
    if isinstance(value, dict):
        return [found for key, inner in value.items() for found in json_paths_of_null(inner, f"{path}.{key}")]
    if isinstance(value, list):
        return [found for i, inner in enumerate(value) for found in json_paths_of_null(inner, f"{path}[{i}]")]
    return []


def frozen(value: Any) -> Any:
    """All that an object holds, however deep, as something that can be compared later. Functions are left out."""
    if isinstance(value, dict):
        return [(key, frozen(inner)) for key, inner in value.items() if not callable(inner)]
    if isinstance(value, set | frozenset):
        return sorted(map(repr, value))
    if isinstance(value, list | tuple | deque):
        return [frozen(inner) for inner in value]
    if value is None or isinstance(value, str | bytes | int | float | Enum | array | bytearray):
        return copy.copy(value)
    if isinstance(value, msgspec.Raw):
        return bytes(value)
    if isinstance(value, msgspec.Struct):
        return type(value).__name__, [frozen(getattr(value, name)) for name in value.__struct_fields__]
    slots = getattr(type(value), "__slots__", None)
    fields = {name: getattr(value, name) for name in slots} if slots else getattr(value, "__dict__", repr(value))
    return type(value).__name__, frozen(fields)


def num_bytes_held(*roots: Any, shared: Any = ()) -> int:
    """Memory of everything reachable from `roots` but not from `shared`, types and functions aside.

    Counted object by object: tracemalloc would also count what the interpreter keeps in its free lists.
    """
    seen: dict[int, Any] = {}

    def walk(start: Any) -> int:
        total, todo = 0, list(start)
        while todo:
            value = todo.pop()
            if id(value) in seen or isinstance(value, type | ModuleType | FunctionType | BuiltinFunctionType):
                continue
            seen[id(value)] = value
            total += sys.getsizeof(value)
            todo += gc.get_referents(value)
        return total

    walk(shared)
    return walk(roots)
