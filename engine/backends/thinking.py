"""How much a run is to think, in the words of chat templates."""

from collections.abc import Iterator
from typing import Final, Literal

from engine.backends.template import NONE, Variables

Thinking = Literal["", "off", "low", "medium", "high"]  # empty: as the template has it when nobody says anything

_OF_EFFORT: Final[dict[str, Thinking]] = {
    "none": "off",
    "minimal": "low",
    "low": "low",
    "medium": "medium",
    "high": "high",
    "xhigh": "high",
    "max": "high",
}
_EFFORTS: Final[dict[Thinking, tuple[str, ...]]] = {
    "off": ("low", "no_think"),
    "low": ("low",),
    "medium": ("medium",),
    "high": ("high", "xhigh"),
}


def thinking_of(effort: str | None) -> Thinking:
    """What an `effort` of the API comes to."""
    return _OF_EFFORT.get(effort or "", "")


def ways_to_say(thinking: Thinking) -> Iterator[Variables]:
    """Variables for a template, the first of which it takes: some refuse a word that they do not know.

    Qwen 3 and GLM read `enable_thinking`, DeepSeek `thinking`, gpt-oss `reasoning_effort`.
    """
    if thinking:
        switch = {"enable_thinking": thinking != "off", "thinking": thinking != "off"}
        yield from (switch | {"reasoning_effort": word} for word in _EFFORTS[thinking])
        yield switch
    yield NONE
