"""What runs cost: a record when one starts, one for each segment that is sampled, one when it ends.

A segment is what a model samples in one go: a step of a run, or the summary that shortens its context. Records carry
numbers and names, never content, so they are kept of every run, also of those that are not stored. Each can be written
any number of times: of a segment, known by its response and number, the first record counts.

A record's line is for the ledger's journal (ledger_journal.py): a checksum, JSON, a line break. A line that was cut
anywhere, or damaged, is told from a whole one.
"""

from typing import Final, Literal, Protocol
from zlib import crc32

import msgspec

from engine.backends.base import Reason
from engine.errors import RequestError, ServerError
from engine.usage import Timing, Usage

SegmentReason = Literal[Reason, "prepared", "summary", "cut"]


class LedgerUnusable(ServerError):
    """The ledger cannot be opened; the message says what to do about it."""

    code = "ledger_unusable"


class QuotaExceeded(RequestError):
    """There are no tokens left for another run."""

    status = 429
    code = "insufficient_quota"
    kind = "insufficient_quota"


class Started(msgspec.Struct, frozen=True, tag="started", tag_field="type"):
    """A run starts, or goes on in another life of the server. `reserved`: tokens set aside for it. `at`: epoch, ms."""

    response_id: str
    principal: str
    model: str
    at: int
    reserved: int


class Segment(msgspec.Struct, frozen=True, tag="segment", tag_field="type"):
    """What was sampled in one go. `at`: when it was over, epoch in ms.

    reason: why it was over, or `prepared` (nothing was to be sampled), `summary`, `cut` (the run ended while it was
    sampled; its counts are what the server knew then, and nothing is known to have been cached).
    """

    response_id: str
    segment: int
    principal: str
    model: str
    at: int
    reason: SegmentReason
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    reasoning_tokens: int
    queue_ms: float
    prefill_ms: float
    sampling_ms: float
    client_wait_ms: float

    @property
    def num_computed(self) -> int:
        """What counts towards a budget: tokens that went through the model. Those in its KV cache did not."""
        if self.reason == "prepared":
            return 0
        return self.input_tokens - self.cached_tokens + self.output_tokens


class Ended(msgspec.Struct, frozen=True, tag="ended", tag_field="type"):
    """A run has ended. `status` as in the response."""

    response_id: str
    at: int
    status: str


Record = Started | Segment | Ended


def to_ms(seconds: float) -> int:
    """Seconds since the epoch as the records have them."""
    return int(seconds * 1000)


def make_segment(run: Started, number: int, reason: SegmentReason, usage: Usage, timing: Timing, now: float) -> Segment:
    """The record of a segment of a run that has just been sampled. now: seconds since the epoch."""
    return Segment(
        response_id=run.response_id,
        segment=number,
        principal=run.principal,
        model=run.model,
        at=to_ms(now),
        reason=reason,
        input_tokens=usage.input_tokens,
        cached_tokens=usage.input_tokens_details.cached_tokens,
        output_tokens=usage.output_tokens,
        reasoning_tokens=usage.output_tokens_details.reasoning_tokens,
        queue_ms=round(timing.queue_ms, 3),
        prefill_ms=round(timing.prefill_ms, 3),
        sampling_ms=round(timing.sampling_ms, 3),
        client_wait_ms=round(timing.client_wait_ms, 3),
    )


# --- lines ---------------------------------------------------------------------------------------------------------

_ENCODER: Final = msgspec.json.Encoder()
_DECODER: Final = msgspec.json.Decoder(Record)
_SUM_CHARS: Final = 8


def encode_line(record: Record) -> bytes:
    """The record as a line of the journal."""
    text = _ENCODER.encode(record)
    return b"%08x %b\n" % (crc32(text), text)


def decode_lines(data: bytes) -> tuple[list[Record], int]:
    """The records of all whole lines, and how many of the others there are, a cut one at the end included.

    Empty ones are none: they end lines of which nothing was written.
    """
    lines = data.split(b"\n")
    rest = lines.pop()  # empty, or cut
    records = [_decode_line(line) for line in lines if line]
    whole = [record for record in records if record is not None]
    return whole, len(records) - len(whole) + bool(rest)


def _decode_line(line: bytes) -> Record | None:
    text = line[_SUM_CHARS + 1 :]
    if line[: _SUM_CHARS + 1] != b"%08x " % crc32(text):
        return None
    try:
        record: Record = _DECODER.decode(text)
    except msgspec.DecodeError:
        return None
    return record


# --- the seam ------------------------------------------------------------------------------------------------------


class Bill(Protocol):
    """One run's account."""

    def settle(self, reason: SegmentReason, usage: Usage, timing: Timing, now: float) -> None:
        """The run's next segment has been sampled. Never waits and never fails; see Ledger."""

    def close(self, status: str, now: float) -> None:
        """The run has ended, with this status: what is still reserved is free again."""


class Ledger(Protocol):
    """Keeps the records. One that was taken is not lost when the server is killed; it is on disk a little later.

    What cannot be written is in the log, whole. Times are seconds since the epoch.
    """

    @property
    def failure(self) -> str | None:
        """Why nothing can be recorded now; None as far as all is well. Goes away when that works again."""

    def check(self, principal: str, now: float) -> None:
        """Raises QuotaExceeded when nothing is left for another run of this principal."""

    def open_bill(
        self, response_id: str, principal: str, model: str, num_tokens: int, now: float, first_segment: int = 0
    ) -> Bill:
        """Start a run's account, with `num_tokens` set aside. Raises QuotaExceeded when they are not there.

        first_segment: of a run that goes on from what another life of the server has kept of it.
        """

    async def next_segment(self, response_id: str) -> int:
        """The number that no segment of this response has had. Raises ServerError when the disk fails."""

    async def wait_durable(self) -> None:
        """Wait until all that was taken so far is on disk, or in the log."""
