"""frames.py: every frame survives the trip, however the bytes are cut."""

import msgspec
import pytest

from engine.backends.chance import Chance
from engine.backends.constraint import Constraint
from engine.backends.frames import (
    Adopt,
    Begun,
    CommandReader,
    Drop,
    Extend,
    Failed,
    Finished,
    Loading,
    Ready,
    ReportReader,
    Sample,
    Sampled,
    Stop,
    encode,
)

COMMANDS = [
    Extend(1, 0, [5, 70_000, 2]),
    Extend(1, 3, []),
    Adopt(2, 1, 17, move=True),
    Sample(1, 9, 100, [2], 2**63 - 1, 0.0, 0.9, 0.5, -0.5, 3, Constraint('start: "a"', "decide", 7, -3.5), 20),
    Sample(1, 10, 1, [], 0),
    Stop(1, 9),
    Drop(1),
]
REPORTS = [
    Loading("weights", 3, 7),
    Ready(23_040, 49_152, 3_400.5),
    Begun(1, 9, 100),
    Sampled(1, 9, [44, 2]),
    Sampled(1, 9, [44], [Chance(-0.25, [(44, -0.25), (5, -3.5)])]),
    Finished(1, 9, "stop", 100, 20, 0.5, 90.25, 26.0),
    Failed(1, 9, "no grammar"),
    Failed(0, 0, "no such folder", is_lost=True),
]


def test_commands_survive_the_trip_byte_by_byte():
    reader = CommandReader()
    data = b"".join(map(encode, COMMANDS))
    assert [frame for byte in data for frame in reader.feed(bytes([byte]))] == COMMANDS


def test_reports_survive_the_trip_at_every_split_point():
    data = b"".join(map(encode, REPORTS))
    for at in range(len(data) + 1):
        reader = ReportReader()
        assert reader.feed(data[:at]) + reader.feed(data[at:]) == REPORTS


def test_a_frame_says_its_length_in_four_bytes():
    data = encode(Drop(1))
    assert int.from_bytes(data[:4], "big") == len(data) - 4


def test_a_report_is_no_command():
    with pytest.raises(msgspec.DecodeError):
        CommandReader().feed(encode(Loading("weights", 0, 1)))
