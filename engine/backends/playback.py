"""A scenario being played: which step is next.

The cursor stands before the next step. Two things move it: a step being sampled, and a step that the given history
already shows (a run of the model's own items), so that a run that starts from a history goes on where that one was.
Conditions are decided when the cursor passes them, by what had been said up to there.
"""

import copy
from collections.abc import Sequence as ListOf
from typing import Any, Final, assert_never

import msgspec

from engine import items
from engine.backends.scenario_values import (
    Choice,
    Conditions,
    Entry,
    Fail,
    Repeat,
    Scenario,
    ScriptedCall,
    ScriptedStep,
)
from engine.content import text_of
from engine.toolspec import Tool

MAX_IDLE_MOVES: Final = 10_000  # moves without finding a step; more means that no case ever applies


class _Frame(msgspec.Struct):
    """A list of entries being walked: `round` of `times`; `index` is the innermost repeat's round."""

    entries: ListOf[Entry]
    index: int = 1
    round: int = 1
    times: int = 1
    at: int = 0


class Playback:
    """Where one run stands in its scenario, and what it has heard so far."""

    def __init__(self, scenario: Scenario, tools: ListOf[Tool], *, parallel_calls: bool = True) -> None:
        self._scenario = scenario
        self._parallel_calls = parallel_calls
        self._tools = tools
        self._frames = [_Frame(scenario.entries)]
        self._rest: ScriptedStep | None = None
        self._replays = False
        self._replayed_hosted = False
        self._user_spoke = False
        self._last_user = ""
        self._outputs: dict[str, str] = {}
        self._last_output = ""
        self._num_items = 0
        self._num_turns = 0
        self._num_steps = 0

    def fork(self) -> "Playback":
        """Another one that stands at the same place."""
        twin = copy.copy(self)
        twin._frames = list(map(copy.copy, self._frames))
        twin._outputs = self._outputs.copy()
        return twin

    # --- what it hears -----------------------------------------------------------------------------------------

    def give(self, given: ListOf[items.Item]) -> None:
        """Take in items of the run's input, in order."""
        self._num_items += len(given)
        for item in given:
            if isinstance(item, items.Message):
                self._hear_message(item)
            elif isinstance(item, items.Reasoning | items.Call):
                self._replay(is_hosted=False)
            elif isinstance(item, items.Hosted):
                if item.type.endswith("_call"):
                    self._replay(is_hosted=True)
            elif isinstance(item, items.Answer):
                self._hear_output(item)

    def _hear_message(self, message: items.Message) -> None:
        if message.role == "assistant":
            self._replay(is_hosted=False)
            return
        self._replays = False
        if message.role == "user":
            self._num_turns += not self._user_spoke
            self._user_spoke = True
            self._last_user = text_of(message.content)

    def _replay(self, *, is_hosted: bool) -> None:
        # A hosted call holds its own output, so what the model made after it belongs to the next step.
        is_new_step = not self._replays or (self._replayed_hosted and not is_hosted)
        if is_new_step:
            self.next_step()
        self._replays, self._replayed_hosted = True, is_hosted

    def _hear_output(self, answer: items.Answer) -> None:
        self._replays = False
        key, text = items.answer_key(answer), answer_text(answer)
        if is_later_part(answer):
            text = self._outputs.get(key, "") + text
        self._outputs[key] = self._last_output = text

    def values(self) -> dict[str, str]:
        """What the placeholders of the present step stand for."""
        return {
            "last_output": self._last_output,
            "outputs": "\n".join(self._outputs.values()),
            "last_user": self._last_user,
            "items": str(self._num_items),
            "turn": str(max(self._num_turns, 1)),
            "step": str(self._num_steps),
            "index": str(self._frames[-1].index),
        }

    # --- where it goes -----------------------------------------------------------------------------------------

    def next_step(self) -> tuple[ScriptedStep, dict[str, str]]:
        """Move over the next step; the step and its placeholders' values."""
        step = self._rest or self._find_step()
        self._rest = None
        if not self._parallel_calls:
            step, self._rest = _split_calls(step)
        self._num_steps += 1
        values = self.values()
        self._outputs.clear()
        self._user_spoke = self._replays = False
        return step, values

    def _find_step(self) -> ScriptedStep:
        for _ in range(MAX_IDLE_MOVES):
            frame = self._frames[-1]
            if frame.at == len(frame.entries):
                if step := self._leave(frame):
                    return step
                continue
            entry = frame.entries[frame.at]
            frame.at += 1
            if isinstance(entry, ScriptedStep):
                return entry
            self._enter(entry, frame.index)
        return ScriptedStep(parts=(Fail(message="No step of the scenario applies to what has been said."),))

    def _leave(self, frame: _Frame) -> ScriptedStep | None:
        """Go on after the last entry of a list: its next round, the list around it, or the end of the script."""
        if len(self._frames) == 1:
            if self._scenario.at_end == "stop":
                return ScriptedStep()
            if self._scenario.at_end != "repeat":
                return self._scenario.at_end
            frame.at = 0
        elif frame.round < frame.times:
            frame.round += 1
            frame.index, frame.at = frame.round, 0
        else:
            self._frames.pop()
        return None

    def _enter(self, entry: Repeat | Choice, index: int) -> None:
        match entry:
            case Repeat():
                self._frames.append(_Frame(entry.entries, times=entry.times))
            case Choice():
                chosen = next((case for case in entry.cases if self._holds(case.when)), None)
                if chosen:
                    self._frames.append(_Frame(chosen.entries, index=index))
            case _:
                assert_never(entry)

    def _holds(self, when: Conditions) -> bool:
        return (
            (when.last_output_contains is None or when.last_output_contains in self._last_output)
            and (when.last_output_matches is None or when.last_output_matches.search(self._last_output) is not None)
            and (when.last_user_contains is None or when.last_user_contains in self._last_user)
            and (when.last_user_matches is None or when.last_user_matches.search(self._last_user) is not None)
            and (when.tool_offered is None or self._offers(when.tool_offered))
        )

    def _offers(self, wanted: str | bool) -> bool:
        if isinstance(wanted, bool):
            return bool(self._tools) is wanted
        return any(tool.name == wanted for tool in self._tools)


def _split_calls(step: ScriptedStep) -> tuple[ScriptedStep, ScriptedStep | None]:
    """The step up to its second call, and what is left for the next one (a run without parallel calls)."""
    calls = [index for index, part in enumerate(step.parts) if isinstance(part, ScriptedCall)]
    if len(calls) < 2:
        return step, None
    first = msgspec.structs.replace(step, parts=step.parts[: calls[1]], end="stop")
    return first, msgspec.structs.replace(step, parts=step.parts[calls[1] :])


# --- what an answer says -----------------------------------------------------------------------------------------


def is_later_part(answer: items.Answer) -> bool:
    """Whether this is a later part of an output that is given in parts (streamed append)."""
    return isinstance(answer, items.FunctionCallOutput | items.CustomToolCallOutput) and bool(answer.offset or 0)


def answer_text(answer: items.Answer) -> str:
    """The text of a client's answer, of whatever kind."""
    match answer:
        case items.FunctionCallOutput() | items.CustomToolCallOutput():
            return text_of(answer.output)
        case items.LocalShellCallOutput():
            return answer.output
        case items.ShellCallOutput():
            return "".join(_streams(entry) for entry in answer.output)
        case items.ApplyPatchCallOutput():
            return answer.output or answer.status
        case items.ComputerCallOutput():
            return ""
        case items.ToolSearchOutput():
            return ", ".join(str(tool.get("name")) for tool in answer.tools if isinstance(tool, dict))
        case items.McpApprovalResponse():
            return "approved" if answer.approve else "declined"
        case _:
            assert_never(answer)


def _streams(entry: Any) -> str:
    return f"{entry.get('stdout', '')}{entry.get('stderr', '')}" if isinstance(entry, dict) else ""
