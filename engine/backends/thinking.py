"""How much a run is to think, in the words of chat templates."""

from typing import Final, Literal

from engine.backends.template import Variables

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


def thinking_of(effort: str | None) -> Thinking:
    """What an `effort` of the API comes to."""
    return _OF_EFFORT.get(effort or "", "")


def variables_of(thinking: Thinking) -> Variables:
    """Qwen 3 and GLM read `enable_thinking`, DeepSeek `thinking`, gpt-oss `reasoning_effort`."""
    if not thinking:
        return {}
    if thinking == "off":
        return {"enable_thinking": False, "thinking": False, "reasoning_effort": "low"}
    return {"enable_thinking": True, "thinking": True, "reasoning_effort": thinking}
