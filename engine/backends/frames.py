"""What the server and a model worker say to each other, and how it is cut into frames.

The server owns the tokens, the worker only holds copies of them with their KV. A *sequence* is a context in the
worker, named by a number that the server chooses; a *job* is one sampling step on a sequence, also numbered by the
server and never used twice, so that reports of a job that was stopped can be told from those of the next.

Every command of one sequence takes effect in the order it was sent. `Extend` says at which length the new ids begin
and cuts off whatever the worker has beyond it; that is how both sides agree again after a stopped job, of which the
worker may have sampled more than the server took.

A frame is 4 bytes length (big-endian, without themselves) and a msgpack array whose first element is the tag.
"""

from collections.abc import Iterator
from typing import Generic, Literal, TypeVar

import msgspec

from engine.backends.chance import Chance
from engine.backends.constraint import Constraint

T = TypeVar("T")
_HEAD_BYTES = 4


class _Frame(msgspec.Struct, frozen=True, array_like=True):
    """Base of all frames: immutable, encoded as an array, told apart by its tag."""


# --- server to worker --------------------------------------------------------------------------------------------


class Extend(_Frame, frozen=True, tag="extend"):
    """Cut the sequence to `base` ids and append `ids`; base 0 makes it if need be."""

    seq: int
    base: int
    ids: list[int]


class Adopt(_Frame, frozen=True, tag="adopt"):
    """Make `seq` from the first `keep` ids of `source` and their KV. `move` ends the source, else it is copied."""

    seq: int
    source: int
    keep: int
    move: bool


class Sample(_Frame, frozen=True, tag="sample"):
    """Begin a job: take what has no KV yet through the model, then sample until an end.

    `num_sampled` ids at the end of the context already belong to this job (it goes on after a worker died):
    grammar and penalties count them. `max_tokens` is what may still be added. Temperature 0 is greedy. `top_logprobs`:
    say with each id how likely it was, and so many of the likeliest; then a grammar forces nothing at once, since each
    id needs a row of its own.
    """

    seq: int
    job: int
    max_tokens: int
    stop_ids: list[int]
    seed: int
    temperature: float = 1.0
    top_p: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    num_sampled: int = 0
    constraint: Constraint | None = None
    top_logprobs: int | None = None


class Stop(_Frame, frozen=True, tag="stop"):
    """End a job without a report; the sequence stays. A job that has ended already is no error."""

    seq: int
    job: int


class Drop(_Frame, frozen=True, tag="drop"):
    """Forget a sequence, its ids and its KV."""

    seq: int


Command = Extend | Adopt | Sample | Stop | Drop


# --- worker to server --------------------------------------------------------------------------------------------


class Loading(_Frame, frozen=True, tag="loading"):
    """A stage of the start: `done` of `total` units (tensors, or 0 of 1)."""

    stage: str
    done: int
    total: int


class Ready(_Frame, frozen=True, tag="ready"):
    """The model is loaded. `load_ms` counts from the process's first line."""

    kv_bytes_per_token: int
    vocab_size: int
    load_ms: float


class Begun(_Frame, frozen=True, tag="begun"):
    """A job has begun; the KV of `reused` ids was there."""

    seq: int
    job: int
    reused: int


class Sampled(_Frame, frozen=True, tag="sampled"):
    """Ids that a job drew or its grammar forced, in order, at least one; with a chance each where they are wanted."""

    seq: int
    job: int
    ids: list[int]
    chances: list[Chance] | None = None


class Finished(_Frame, frozen=True, tag="finished"):
    """A job's end. `stop`: the last id is a stop id. `length`: `max_tokens` are there.

    `reused` ids had their KV from before, `prefilled` went through the model for this job before its first draw (some
    perhaps before it began); together they are the context at the job's start. `prefill_ms`: from the job's start.
    """

    seq: int
    job: int
    reason: Literal["stop", "length", "content_filter"]
    reused: int
    prefilled: int
    queue_ms: float
    prefill_ms: float
    sampling_ms: float


class Failed(_Frame, frozen=True, tag="failed"):
    """A job could not go on (job 0: the model could not be loaded).

    is_lost: the worker lacks the sequence. by_grammar: nothing may follow, or the grammar is too complex to tell.
    """

    seq: int
    job: int
    message: str
    is_lost: bool = False
    by_grammar: bool = False


Report = Loading | Ready | Begun | Sampled | Finished | Failed


# --- framing -----------------------------------------------------------------------------------------------------

_encoder = msgspec.msgpack.Encoder()


def encode(frame: msgspec.Struct) -> bytes:
    """The frame, a Command or a Report here or another worker's, with its length in front."""
    body = _encoder.encode(frame)
    return len(body).to_bytes(_HEAD_BYTES, "big") + body


class Cutter:
    """Cuts a byte stream into frame bodies; holds what has arrived of the next one."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes | bytearray) -> Iterator[bytes]:
        """Bodies that are whole now. Use it up: what is not taken from the iterator waits for the next call."""
        self._buffer += data
        while len(self._buffer) >= _HEAD_BYTES:
            end = _HEAD_BYTES + int.from_bytes(self._buffer[:_HEAD_BYTES], "big")
            if len(self._buffer) < end:
                return
            body = bytes(self._buffer[_HEAD_BYTES:end])
            del self._buffer[:end]
            yield body


class FrameReader(Generic[T]):
    """Bytes in, frames out."""

    def __init__(self, decoder: msgspec.msgpack.Decoder[T]) -> None:
        """decoder: of the union of the frames that may come."""
        self._cutter = Cutter()
        self._decoder = decoder

    def feed(self, data: bytes | bytearray) -> list[T]:
        """Frames that are whole now. Raises msgspec.DecodeError for a frame that is none."""
        return [self._decoder.decode(body) for body in self._cutter.feed(data)]


class CommandReader(FrameReader[Command]):
    """The worker's end."""

    def __init__(self) -> None:
        super().__init__(msgspec.msgpack.Decoder(Command))


class ReportReader(FrameReader[Report]):
    """The server's end."""

    def __init__(self) -> None:
        super().__init__(msgspec.msgpack.Decoder(Report))
