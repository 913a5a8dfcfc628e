"""Which step of a scenario comes next: loops, cases, ends, and a history that already shows some steps."""

import pytest

from engine import items
from engine.backends.playback import Playback, answer_text, is_later_part
from engine.backends.scenario import parse_scenario
from engine.backends.scenario_values import Fail, ScriptedCall, ScriptedStep
from engine.content import ComputerScreenshot, InputImage, InputText, OutputText
from engine.items import FunctionCallOutput, Message
from engine.toolspec import Tool

LOOK = Tool("function", "look")


def playback(steps: str, *tools: Tool, more: str = "", parallel_calls: bool = True) -> Playback:
    return Playback(parse_scenario(f"steps: [{steps}]\n{more}"), tools, parallel_calls=parallel_calls)


def said(step: ScriptedStep) -> str:
    """The step's first text; `!` and the message for a failure, `name()` for a call."""
    if not step.parts:
        return ""
    part = step.parts[0]
    if isinstance(part, Fail):
        return "!" + part.message
    if isinstance(part, ScriptedCall):
        return f"{part.name}()"
    return part.template or "".join(delta.text for delta in part.deltas)


def play(played: Playback, count: int) -> list[str]:
    return [said(played.next_step()[0]) for _ in range(count)]


def user(text: str) -> Message:
    return Message(role="user", content=text)


def assistant(text: str) -> Message:
    return Message(role="assistant", content=[OutputText(text=text)])


def function_call(key: str = "c") -> items.FunctionCall:
    return items.FunctionCall(call_id=key, name="look", arguments="{}")


def output(text: str, key: str = "c", **fields: object) -> FunctionCallOutput:
    return FunctionCallOutput(call_id=key, output=text, **fields)  # type: ignore[arg-type]


# --- loops and ends ----------------------------------------------------------------------------------------------


def test_steps_come_in_order_and_the_script_starts_over():
    assert play(playback("{text: a}, {text: b}"), 5) == ["a", "b", "a", "b", "a"]


def test_at_end_stop_says_nothing_more():
    assert play(playback("{text: a}", more="at_end: stop"), 3) == ["a", "", ""]


def test_at_end_a_step_is_said_again_and_again():
    assert play(playback("{text: a}", more="at_end: {text: z}"), 3) == ["a", "z", "z"]


def test_a_repeat_plays_its_steps_so_many_times():
    assert play(playback("{repeat: {times: 2, steps: [{text: a}, {text: b}]}}, {text: c}"), 6) == list("ababca")


def test_nested_repeats_multiply_and_index_is_the_inner_one():
    inner = "{repeat: {times: 3, steps: [{text: i}]}}"
    played = playback(f"{{repeat: {{times: 2, steps: [{{text: o}}, {inner}]}}}}")
    indices = [(said(step), values["index"]) for step, values in (played.next_step() for _ in range(8))]
    assert indices == [("o", "1"), ("i", "1"), ("i", "2"), ("i", "3"), ("o", "2"), ("i", "1"), ("i", "2"), ("i", "3")]


def test_a_thousand_steps_are_counted():
    played = playback("{repeat: {times: 1000, steps: [{text: a}]}}, {text: end}")
    values = [played.next_step()[1] for _ in range(1000)]
    assert [value["step"] for value in values] == [str(number) for number in range(1, 1001)]
    assert values[-1]["index"] == "1000"
    assert play(played, 1) == ["end"]


def test_a_script_in_which_no_step_applies_fails_and_does_not_hang():
    played = playback(
        "{repeat: {times: 1000000000, steps: [{cases: [{when: {tool_offered: x}, steps: [{text: a}]}]}]}}"
    )
    assert play(played, 1) == ["!No step of the scenario applies to what has been said."]


def test_without_parallel_calls_each_call_is_a_step_of_its_own():
    played = playback("{text: t, calls: [{name: a}, {name: b}], end: content_filter}, {text: u}", parallel_calls=False)
    first, second, third = (played.next_step()[0] for _ in range(3))
    assert [type(part).__name__ for part in first.parts] == ["Speech", "ScriptedCall"]
    assert (said(second), said(third)) == ("b()", "u")
    assert (first.end, second.end) == ("stop", "content_filter")


def test_a_fork_stands_at_the_same_place_and_goes_on_by_itself():
    inner = (
        "{repeat: {times: 2, steps: [{text: i}, {cases: [{when: {last_output_contains: sun}, steps: [{text: s}]}]}]}}"
    )
    played = playback(f"{{text: a}}, {inner}, {{text: '{{outputs}} {{items}}'}}")
    played.give([user("go")])
    play(played, 2)
    played.give([output("sun")])
    fork, other = played.fork(), played.fork()
    other.give([output("rain", "d")])
    values = fork.values()
    assert play(other, 3) == ["i", "{outputs} {items}", "a"]
    assert fork.values() == played.values() == values
    assert values | {"outputs": "sun", "items": "2", "step": "2", "index": "1"} == values
    assert play(fork, 4) == play(played, 4) == ["s", "i", "s", "{outputs} {items}"]


# --- conditions --------------------------------------------------------------------------------------------------

CASES = """{cases: [
  {when: {last_output_contains: sun}, steps: [{text: contains}]},
  {when: {last_output_matches: "^r.in$"}, steps: [{text: matches}]},
  {when: {last_user_contains: stop}, steps: [{text: user}]},
  {when: {last_user_matches: "(?i)BYE"}, steps: [{text: bye}]},
  {when: {tool_offered: look, last_output_contains: both}, steps: [{text: tool}]},
  {when: {tool_offered: false, last_output_contains: both}, steps: [{text: none}]},
  {steps: [{text: else}]}]}"""


@pytest.mark.parametrize(
    ("given", "tools", "expected"),
    [
        (output("the sun"), (), "contains"),
        (output("ruin"), (), "matches"),
        (output("ruins"), (), "else"),
        (user("please stop"), (), "user"),
        (user("Bye."), (), "bye"),
        (output("both"), (LOOK,), "tool"),
        (output("both"), (), "none"),
        (output("both"), (Tool("function", "other"),), "else"),
    ],
)
def test_the_first_case_that_holds_is_played(given, tools, expected):
    played = playback(CASES, *tools)
    played.give([given])
    assert play(played, 1) == [expected]


def test_a_case_inside_a_repeat_is_decided_each_time_and_keeps_the_index():
    choice = '{cases: [{when: {last_output_contains: b}, steps: [{text: "{index}"}]}]}'
    played = playback(f"{{repeat: {{times: 2, steps: [{{text: a}}, {choice}]}}}}")
    assert play(played, 1) == ["a"]
    assert play(played, 1) == ["a"]
    played.give([output("b")])
    step, values = played.next_step()
    assert (said(step), values["index"]) == ("{index}", "2")


# --- placeholders ------------------------------------------------------------------------------------------------


def test_values_tell_what_was_said_since_the_last_step():
    played = playback("{text: a}")
    played.give([user("hello"), Message(role="developer", content="d"), user("again")])
    assert played.next_step()[1] == {
        "last_output": "", "outputs": "", "last_user": "again", "items": "3", "turn": "1", "step": "1", "index": "1"
    }  # fmt: skip
    played.give([output("x", "1"), output("y", "2")])
    values = played.next_step()[1]
    assert (values["last_output"], values["outputs"], values["turn"]) == ("y", "x\ny", "1")
    played.give([user("next")])
    values = played.next_step()[1]
    assert (values["last_output"], values["outputs"], values["turn"]) == ("y", "", "2")


def test_parts_of_a_streamed_output_are_joined():
    played = playback("{text: a}")
    played.give([output("ab", "1", status="in_progress", offset=0), output("z", "2")])
    played.give([output("cd", "1", status="completed", offset=2)])
    values = played.next_step()[1]
    assert (values["last_output"], values["outputs"]) == ("abcd", "abcd\nz")
    assert not is_later_part(output("x")) and is_later_part(output("x", offset=1))


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (output("a"), "a"),
        (FunctionCallOutput(call_id="c", output=[InputText(text="b"), InputImage(image_url="i")]), "b"),
        (items.CustomToolCallOutput(call_id="c", output="a"), "a"),
        (items.LocalShellCallOutput(call_id="c", output="a"), "a"),
        (items.ShellCallOutput(call_id="c", output=[{"stdout": "o", "stderr": "e"}, "odd"]), "oe"),
        (items.ApplyPatchCallOutput(call_id="c", status="failed"), "failed"),
        (items.ApplyPatchCallOutput(call_id="c", status="failed", output="why"), "why"),
        (items.ComputerCallOutput(call_id="c", output=ComputerScreenshot(image_url="i")), ""),
        (items.ToolSearchOutput(call_id="c", tools=[{"name": "a"}, {"name": "b"}]), "a, b"),
        (items.McpApprovalResponse(approval_request_id="c", approve=True), "approved"),
        (items.McpApprovalResponse(approval_request_id="c", approve=False), "declined"),
    ],
)
def test_every_kind_of_answer_has_a_text(answer, text):
    assert answer_text(answer) == text


# --- a history ---------------------------------------------------------------------------------------------------

STEPS = "{text: one}, {text: two}, {text: three}"
REASONING = items.Reasoning()
HOSTED = items.Hosted("mcp_call", {"type": "mcp_call"})


@pytest.mark.parametrize(
    ("history", "following"),
    [
        ([user("u")], "one"),
        ([user("u"), assistant("a"), user("u")], "two"),
        ([user("u"), REASONING, assistant("a"), function_call(), function_call("d"), output("o")], "two"),
        ([user("u"), function_call(), output("o"), function_call(), output("o")], "three"),
        ([user("u"), function_call(), output("o"), output("p"), assistant("a"), user("v")], "three"),
        ([user("u"), REASONING, HOSTED, HOSTED, assistant("a"), user("u")], "three"),
        ([user("u"), HOSTED, function_call(), output("o")], "three"),
        ([user("u"), items.Hosted("compaction", {}), user("u")], "one"),
        ([user("u"), assistant("a"), Message(role="developer", content="d"), assistant("b"), user("u")], "three"),
    ],
)
def test_steps_that_the_history_shows_are_passed_over(history, following):
    played = playback(STEPS)
    played.give(history)
    assert play(played, 1) == [following]


def test_a_history_takes_the_cases_that_the_run_took():
    steps = """{call: {name: look}},
      {cases: [{when: {last_output_contains: "4"}, steps: [{text: four}, {text: more}]}, {steps: [{text: other}]}]}"""
    played = playback(steps)
    played.give([user("u"), function_call(), output("4"), assistant("four"), user("v")])
    assert play(played, 4) == ["more", "look()", "four", "more"]
