"""Scenarios: what the script backend plays instead of inferring. The format and its loader.

    model: weather                       # shown as `script:weather`; default: the file's name
    pace: {ttft_ms: 200, tokens_per_second: 50}   # default 0 and 0: as fast as possible
    context_window: 8192                 # tokens; default: no limit
    at_end: repeat                       # after the last step: repeat (default) | stop | a step
    summary: They asked for the weather. # said when a summary is asked for; default: a sentence that says it is none
    steps:
      - reasoning: Two cities, so two calls.
        calls:
          - {name: get_weather, arguments: {city: Paris}}
          - {name: get_weather, arguments: {city: Oslo}}
      - text: "It is {last_output}."

An entry of `steps` is one of
- a step: an object, or a list of objects read one after the other (so that a key can come twice). Keys that make
  output or time pass, played in the order written:
    reasoning, text  a text, or filler of a length: {words: N} | {tokens: N}
    call, calls      {name | tool: first, arguments | input, type, namespace, server_label}; see below
    delay_ms         more time before the next token
    stall            the same in seconds, or `forever`
    fail             {after_tokens, code, message, status}: the step breaks here, or after that many of its tokens
  and options of the whole step: `pace` (what it leaves out is the scenario's), `usage: {input_tokens, output_tokens,
  cached_tokens, reasoning_tokens}` (reported exactly; what is left out is counted), `end: max_output_tokens |
  content_filter`.
- {repeat: {times: N, steps: [...]}}, also inside each other
- {cases: [{when: {...}, steps: [...]}, ...]}: the first case whose conditions all hold; without `when`, always.
  Conditions: last_output_contains, last_output_matches, last_user_contains, last_user_matches (regular expressions,
  searched), tool_offered (a tool's name, or true / false for any / none).

A call names a tool that the client offers, or takes `tool: first`, the first one offered (of `type`, when given).
`arguments` is an object, or a text that is sent as it stands; left out, they are made up from the tool's schema.
`input` is a custom tool's free text. `type`: function | custom | local_shell | shell | apply_patch | computer |
tool_search, by default the offered tool's kind; or mcp_approval, which needs `name` and `server_label` and no tool.

Placeholders in texts, inputs and the strings of arguments: {last_output}, {outputs} (all since the last step, one a
line), {last_user}, {items} (how many were given so far), {turn}, {step}, {index} (of the innermost repeat), all counted
from 1. {last_output:80} limits the characters (1000 without). {{turn}} is the text {turn}; other braces mean nothing.

A run starts at step 1, and a run that outlives the script does what `at_end` says. Steps that a run's history
already shows (assistant turns in its input) are passed over, so the stateless and chained designs play the same, and a
run tried again after a failure meets that failure again. A summary is no step: the run goes on as if it had not been.
Unknown keys are errors. All of it is deterministic.
"""

import re
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from engine.backends.base import ReasoningDelta, TextDelta
from engine.backends.pieces import (
    PLACEHOLDERS,
    filler_pieces,
    filler_words,
    has_braces_to_fill,
    placeholders,
    split_pieces,
)
from engine.backends.scenario_fields import Field, ScenarioError, read_fields
from engine.backends.scenario_values import (
    Case,
    Choice,
    Conditions,
    Entry,
    Fail,
    Pace,
    Repeat,
    Scenario,
    ScenarioPart,
    ScriptedCall,
    ScriptedStep,
    ScriptedUsage,
    Speech,
    Wait,
)

__all__ = ["Scenario", "ScenarioError", "load_scenario", "parse_scenario", "resolve_scenario"]

SHIPPED: Final = Path(__file__).parent.parent / "scenarios"
PREFIX: Final = "script:"
_NO_SUMMARY: Final = "A summary of the {items} items so far would stand here; nothing was inferred."

# --- loading -----------------------------------------------------------------------------------------------------


def resolve_scenario(name_or_path: str) -> Scenario:
    """A shipped scenario by its name (`demo`, `script:demo`) or one from a file. Raises ScenarioError."""
    name = name_or_path.removeprefix(PREFIX)
    shipped = {path.stem: path for path in SHIPPED.glob("*.yaml")}
    path = Path(name)
    if not path.suffix and not path.is_file():
        if name not in shipped:
            raise ScenarioError(name, 0, 0, "", f"no such scenario; shipped are: {', '.join(sorted(shipped))}")
        path = shipped[name]
    return load_scenario(path)


def load_scenario(path: Path) -> Scenario:
    """The scenario in a YAML or JSON file. Raises ScenarioError."""
    try:
        source = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise ScenarioError(str(path), 0, 0, "", str(reason)) from error
    return parse_scenario(source, str(path))


def parse_scenario(source: str, file: str = "scenario.yaml") -> Scenario:
    """The scenario in a text; `file` is what errors call it and what gives the model its name."""
    fields = dict(read_fields(source, file).pairs({"model", "pace", "context_window", "at_end", "summary", "steps"}))
    if "steps" not in fields:
        raise read_fields(source, file).error("needs `steps`")
    pace = _pace(fields["pace"], Pace()) if "pace" in fields else Pace()
    name = fields["model"].text() if "model" in fields else Path(file).stem
    window = fields["context_window"].integer(1) if "context_window" in fields else None
    return Scenario(
        model=PREFIX + name.removeprefix(PREFIX),
        entries=_entries(fields["steps"], pace),
        summary=_summary(fields.get("summary"), pace),
        at_end=_at_end(fields["at_end"], pace) if "at_end" in fields else "repeat",
        context_window=window,
    )


def _at_end(field: Field, pace: Pace) -> ScriptedStep | Literal["repeat", "stop"]:
    if field.kind != "text":
        return _step(field, pace)
    return "stop" if field.choice("repeat", "stop") == "stop" else "repeat"


def _summary(field: Field | None, pace: Pace) -> ScriptedStep:
    speech = _speech(field, TextDelta) if field else Speech(make=TextDelta, template=_NO_SUMMARY)
    return ScriptedStep(parts=(speech,), pace=pace)


def _pace(field: Field, default: Pace) -> Pace:
    given = {key: value.number() for key, value in field.pairs({"ttft_ms", "tokens_per_second"})}
    return msgspec.structs.replace(default, **given)


def _entries(field: Field, pace: Pace) -> tuple[Entry, ...]:
    entries = tuple(_entry(element, pace) for element in field.elements())
    if not entries:
        raise field.error("needs at least one step")
    return entries


def _entry(field: Field, pace: Pace) -> Entry:
    keys = [key for key, _ in field.pairs()] if field.kind == "an object" else []
    if "repeat" in keys:
        return _repeat(dict(field.pairs({"repeat"}))["repeat"], pace)
    if "cases" in keys:
        return _choice(dict(field.pairs({"cases"}))["cases"], pace)
    return _step(field, pace)


def _repeat(field: Field, pace: Pace) -> Repeat:
    fields = dict(field.pairs({"times", "steps"}))
    if len(fields) < 2:
        raise field.error("needs `times` and `steps`")
    return Repeat(times=fields["times"].integer(1), entries=_entries(fields["steps"], pace))


def _choice(field: Field, pace: Pace) -> Choice:
    cases = []
    for element in field.elements():
        fields = dict(element.pairs({"when", "steps"}))
        if "steps" not in fields:
            raise element.error("needs `steps`")
        when = _conditions(fields["when"]) if "when" in fields else Conditions()
        cases.append(Case(when=when, entries=_entries(fields["steps"], pace)))
    return Choice(cases=tuple(cases))


def _conditions(field: Field) -> Conditions:
    given: dict[str, Any] = {}
    for key, value in field.pairs(Conditions.__struct_fields__):
        if key == "tool_offered" and value.kind == "true or false":
            given[key] = value.json()
        elif key.endswith("_matches"):
            given[key] = _pattern(value)
        else:
            given[key] = value.text()
    if not given:
        raise field.error("needs at least one condition")
    return Conditions(**given)


def _pattern(field: Field) -> re.Pattern[str]:
    try:
        return re.compile(field.text())
    except re.error as error:
        raise field.error(f"not a regular expression: {error}") from error


# --- steps -------------------------------------------------------------------------------------------------------

_STEP_KEYS: Final = frozenset(
    {"reasoning", "text", "call", "calls", "delay_ms", "stall", "fail", "pace", "usage", "end"}
)


def _step(field: Field, pace: Pace) -> ScriptedStep:
    parts: list[ScenarioPart] = []
    options: dict[str, Any] = {}
    for element in field.elements() if field.kind == "a list" else [field]:
        for key, value in element.pairs(_STEP_KEYS):
            if key in options:
                raise value.error("given twice in one step")
            if key in ("pace", "usage", "end"):
                options[key] = _option(key, value, pace)
            else:
                parts += _parts(key, value)
    return ScriptedStep(parts=tuple(parts), **({"pace": pace} | options))


def _option(key: str, field: Field, pace: Pace) -> Any:
    match key:
        case "pace":
            return _pace(field, pace)
        case "usage":
            counts = {name: value.integer() for name, value in field.pairs(ScriptedUsage.__struct_fields__)}
            return ScriptedUsage(**counts)
        case _:
            return field.choice("max_output_tokens", "content_filter")


def _parts(key: str, field: Field) -> list[ScenarioPart]:
    match key:
        case "reasoning":
            return [_speech(field, ReasoningDelta)]
        case "text":
            return [_speech(field, TextDelta)]
        case "call":
            return [_call(field)]
        case "calls":
            return [_call(element) for element in field.elements()]
        case "delay_ms":
            return [Wait(seconds=field.number() / 1000)]
        case "stall":
            return [Wait(seconds=float("inf") if field.kind == "text" and field.choice("forever") else field.number())]
        case _:
            return [_fail(field)]


def _speech(field: Field, make: type[TextDelta] | type[ReasoningDelta]) -> Speech:
    if field.kind == "an object":
        pieces = _filler(field)
    else:
        text = _template(field)
        if has_braces_to_fill(text):
            return Speech(make=make, template=text)
        pieces = split_pieces(text)
    once = {piece: make(piece) for piece in pieces}  # equal pieces of a long filler share one delta
    return Speech(make=make, deltas=tuple(map(once.__getitem__, pieces)))


def _filler(field: Field) -> list[str]:
    fields = field.pairs({"words", "tokens"})
    if len(fields) != 1:
        raise field.error("needs `words` or `tokens`")
    key, value = fields[0]
    return filler_words(value.integer(1)) if key == "words" else filler_pieces(value.integer(1))


def _template(field: Field) -> str:
    text = field.text()
    _check_placeholders(field, text)
    return text


def _check_placeholders(field: Field, text: str) -> None:
    if unknown := sorted(placeholders(text) - PLACEHOLDERS):
        raise field.error(
            f"unknown placeholder {{{unknown[0]}}}; known are {', '.join(sorted(PLACEHOLDERS))}; "
            f"{{{{{unknown[0]}}}}} stands for the text itself"
        )


def _fail(field: Field) -> Fail:
    given: dict[str, Any] = {}
    for key, value in field.pairs(Fail.__struct_fields__):
        given[key] = value.text() if key in ("message", "code") else value.integer(400 if key == "status" else 0)
    return Fail(**given)


# --- calls -------------------------------------------------------------------------------------------------------

_CALL_KEYS: Final = frozenset({"name", "tool", "type", "arguments", "input", "namespace", "server_label"})
_CALL_KINDS: Final = (
    "function",
    "custom",
    "local_shell",
    "shell",
    "apply_patch",
    "computer",
    "tool_search",
    "mcp_approval",
)


def _call(field: Field) -> ScriptedCall:
    fields = dict(field.pairs(_CALL_KEYS))
    given: dict[str, Any] = {key: fields[key].text() for key in ("name", "namespace", "server_label") if key in fields}
    if "type" in fields:
        given["kind"] = fields["type"].choice(*_CALL_KINDS)
    if "tool" in fields:
        fields["tool"].choice("first")
    _check_call(field, fields, given.get("kind"))
    if "input" in fields:
        given |= {"kind": "custom", "arguments": _template(fields["input"])}
    elif "arguments" in fields:
        given["arguments"] = _arguments(fields["arguments"])
    return ScriptedCall(where=field.path, **given)


def _check_call(field: Field, fields: dict[str, Field], kind: str | None) -> None:
    # The built-in kinds have one tool each, so their type names it.
    is_named = "name" in fields or kind not in (None, "function", "custom", "mcp_approval")
    if is_named == ("tool" in fields):
        raise field.error("needs either `name` or `tool: first`")
    if kind == "mcp_approval" and ("server_label" not in fields or "name" not in fields):
        raise field.error("an mcp_approval needs `name` and `server_label`")
    if "arguments" in fields and ("input" in fields or kind == "custom"):
        raise fields["arguments"].error("a custom tool takes `input`, free text")
    if "input" in fields and kind not in (None, "custom"):
        raise fields["input"].error("only a custom tool takes `input`")


def _arguments(field: Field) -> Any:
    if field.kind == "text":
        return _template(field)
    if field.kind != "an object":
        raise field.error("expected an object")
    _check_strings(field)
    return field.json()


def _check_strings(field: Field) -> None:
    match field.kind:
        case "an object":
            for _, value in field.pairs():
                _check_strings(value)
        case "a list":
            for element in field.elements():
                _check_strings(element)
        case "text":
            _check_placeholders(field, field.text())
