"""What the server and a classifier's worker say to each other, in the frames of backends/frames.py."""

import msgspec

from engine.backends.frames import Failed, FrameReader, Loading


class _Frame(msgspec.Struct, frozen=True, array_like=True):
    """Base of all frames: immutable, encoded as an array, told apart by its tag."""


class Score(_Frame, frozen=True, tag="score"):
    """A text to score, under a number that is never used twice."""

    number: int
    text: str


class Forget(_Frame, frozen=True, tag="forget"):
    """Nobody waits for this any more. One that has been scored already is no error."""

    number: int


Command = Score | Forget


class Up(_Frame, frozen=True, tag="up"):
    """The model is loaded; these are its labels."""

    labels: list[str]


class Scored(_Frame, frozen=True, tag="scored"):
    """The score of each label from 0 to 1; None for a text that the model could not take."""

    number: int
    scores: dict[str, float] | None


Report = Loading | Failed | Up | Scored


def command_reader() -> FrameReader[Command]:
    """The worker's end."""
    return FrameReader(msgspec.msgpack.Decoder(Command))


def report_reader() -> FrameReader[Report]:
    """The server's end."""
    return FrameReader(msgspec.msgpack.Decoder(Report))
