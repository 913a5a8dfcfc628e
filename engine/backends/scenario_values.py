"""What a loaded scenario is made of. The format that people write is described in `scenario.py`."""

import re
from typing import Any, Literal

import msgspec

from engine.backends.base import ReasoningDelta, TextDelta

CallKind = Literal[
    "function", "custom", "local_shell", "shell", "apply_patch", "computer", "tool_search", "mcp_approval"
]
EndReason = Literal["stop", "max_output_tokens", "content_filter"]


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """`ttft_ms`: milliseconds to the first token; `tokens_per_second`: 0 for no limit."""

    ttft_ms: float = 0.0
    tokens_per_second: float = 0.0


class Speech(msgspec.Struct, frozen=True, kw_only=True):
    """Text or reasoning. Cut into deltas once when loaded, unless it has placeholders: then `template` is set."""

    make: type[TextDelta] | type[ReasoningDelta]
    deltas: tuple[TextDelta | ReasoningDelta, ...] = ()
    template: str | None = None


class ScriptedCall(msgspec.Struct, frozen=True, kw_only=True):
    """A tool call. `name` None means the first tool offered, `kind` None the kind of the tool that is found.

    `arguments` None means made up from the schema; `where` is the field's path in the scenario.
    """

    where: str
    name: str | None = None
    kind: CallKind | None = None
    arguments: Any = None
    namespace: str | None = None
    server_label: str | None = None


class Wait(msgspec.Struct, frozen=True, kw_only=True):
    """`seconds` may be infinite."""

    seconds: float


class Fail(msgspec.Struct, frozen=True, kw_only=True):
    """A BackendError, here or (`after_tokens`) when the step has so many tokens."""

    message: str = "The scenario fails here on purpose."
    code: str = "server_error"
    status: int = 500
    after_tokens: int | None = None


ScenarioPart = Speech | ScriptedCall | Wait | Fail


class ScriptedUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Counts to report; None means what was counted."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None


class ScriptedStep(msgspec.Struct, frozen=True, kw_only=True):
    """One sampling step."""

    parts: tuple[ScenarioPart, ...] = ()
    pace: Pace = Pace()
    usage: ScriptedUsage = ScriptedUsage()
    end: EndReason = "stop"


class Conditions(msgspec.Struct, frozen=True, kw_only=True):
    """All that are not None must hold. `tool_offered`: a name, or whether any tool is offered."""

    last_output_contains: str | None = None
    last_output_matches: re.Pattern[str] | None = None
    last_user_contains: str | None = None
    last_user_matches: re.Pattern[str] | None = None
    tool_offered: str | bool | None = None


class Repeat(msgspec.Struct, frozen=True, kw_only=True):
    times: int
    entries: tuple["Entry", ...]


class Case(msgspec.Struct, frozen=True, kw_only=True):
    when: Conditions
    entries: tuple["Entry", ...]


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    cases: tuple[Case, ...]


Entry = ScriptedStep | Repeat | Choice


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """A whole scenario. `model` begins with `script:`. `at_end` is the extra step, `repeat` or `stop`.

    `summary` is played when a summary is asked for; it is none of the steps.
    """

    model: str
    entries: tuple[Entry, ...]
    summary: ScriptedStep
    at_end: ScriptedStep | Literal["repeat", "stop"] = "repeat"
    context_window: int | None = None
