"""What was measured, a line of JSON for each run, written as it is done: a stopped comparison goes on from there."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from engine.compare.plan import Case, Job
from engine.compare.played import Played
from engine.compare.work import TOKENS_PER_STEP, Work, without_ids

_FILE: Final = "measurements.jsonl"


class OtherWork(Exception):
    """The folder holds what was measured on other work, or on another machine."""


class RunsDiffer(Exception):
    """Two designs did not come out the same; the message says where. No figure may be shown."""


class Header(msgspec.Struct, frozen=True, tag="header", tag_field="line"):
    """What was fixed before the first measurement."""

    work: Work
    machine: dict[str, Any]
    tokens_per_step: int = TOKENS_PER_STEP


class Measurement(msgspec.Struct, frozen=True, tag="run", tag_field="line"):
    """One run. Times are milliseconds, as in Played. items_digest: of the model's items without their ids."""

    job: Job
    wall_ms: float
    tool_ms: float
    ttft_ms: list[float]
    phases_ms: dict[str, float]
    counts: dict[str, int]
    num_trips: int
    bytes_up: int
    bytes_down: int
    cpu_ms: float
    num_items: int
    items_digest: str

    @property
    def case(self) -> Case:
        """What was measured."""
        return self.job.case


def measurement(job: Job, played: Played) -> Measurement:
    """A run as it is kept."""
    fields = {name: getattr(played, name) for name in Measurement.__struct_fields__ if hasattr(played, name)}
    return Measurement(job=job, num_items=len(played.items), items_digest=digest(played.items), **_rounded(fields))


def _rounded(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: round(value, 3) if isinstance(value, float) else value for name, value in fields.items()}


def digest(items: Iterable[Mapping[str, Any]]) -> str:
    """Equal for runs whose items are equal but for their ids."""
    text = json.dumps(without_ids(items), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def check_equal(measured: Iterable[Measurement]) -> None:
    """Raises RunsDiffer unless all runs of the same script made the same items, whatever their design."""
    firsts: dict[str, Measurement] = {}
    for one in measured:
        first = firsts.setdefault(one.case.point.model, one)
        if one.items_digest != first.items_digest:
            raise RunsDiffer(
                f"{one.case.point.model}: {one.case.design} made {one.num_items} items that are not those of "
                f"{first.case.design}, which made {first.num_items}"
            )


def first_difference(expected: Iterable[Mapping[str, Any]], found: Iterable[Mapping[str, Any]]) -> str | None:
    """Where two runs' items differ, in words; None when they do not."""
    one, two = without_ids(expected), without_ids(found)
    for index, (left, right) in enumerate(zip(one, two, strict=False)):
        if left != right:
            return f"item {index} is {left} in one and {right} in the other"
    return None if len(one) == len(two) else f"one has {len(one)} items and the other {len(two)}"


class Results:
    """A folder's measurements."""

    def __init__(self, folder: Path, header: Header, measured: list[Measurement]) -> None:
        self.folder = folder
        self.header = header
        self.measured = measured

    @property
    def done(self) -> set[Job]:
        """What need not be measured again."""
        return {one.job for one in self.measured}

    def add(self, one: Measurement) -> None:
        """Keep a run."""
        self.measured.append(one)
        _append(self.folder, one)


def begin(folder: Path, header: Header) -> Results:
    """An empty set of measurements; what the folder held is gone."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _FILE).unlink(missing_ok=True)
    _append(folder, header)
    return Results(folder, header, [])


def resume(folder: Path, machine: Mapping[str, Any]) -> Results | None:
    """What the folder holds; None when it holds nothing. Raises OtherWork.

    A last line that was cut short when the comparison was stopped is taken away.
    """
    file = folder / _FILE
    if not file.is_file():
        return None
    lines = file.read_bytes().split(b"\n")
    if lines[-1]:
        file.write_bytes(b"".join(line + b"\n" for line in lines[:-1]))
    try:
        header, *measured = [_LINE.decode(line) for line in lines[:-1]]
    except (msgspec.DecodeError, ValueError) as error:
        raise OtherWork(f"{file} was written by another version ({error}).") from error
    if not isinstance(header, Header) or header.machine != machine or header.tokens_per_step != TOKENS_PER_STEP:
        raise OtherWork(f"{file} was measured on another machine, or with other versions.")
    return Results(folder, header, [one for one in measured if isinstance(one, Measurement)])


_LINE: Final = msgspec.json.Decoder(Header | Measurement)
_ENCODER: Final = msgspec.json.Encoder()


def _append(folder: Path, line: Header | Measurement) -> None:
    with (folder / _FILE).open("ab") as file:
        file.write(_ENCODER.encode(line) + b"\n")
