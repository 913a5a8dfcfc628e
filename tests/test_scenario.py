"""The scenario format: what it reads, and the exact place and reason of what it refuses."""

import json
import math
from pathlib import Path

import pytest

from engine.backends.base import ReasoningDelta, TextDelta
from engine.backends.pieces import fill, filler_pieces, filler_words, split_pieces
from engine.backends.scenario import SHIPPED, load_scenario, parse_scenario, resolve_scenario
from engine.backends.scenario_fields import ScenarioError
from engine.backends.scenario_values import (
    Case,
    Choice,
    Conditions,
    Fail,
    Pace,
    Repeat,
    ScriptedCall,
    ScriptedStep,
    ScriptedUsage,
    Speech,
    Wait,
)


def step(source: str) -> ScriptedStep:
    """The only step of a scenario with this one entry, in flow style."""
    (entry,) = parse_scenario(f"steps: [{source}]").entries
    assert isinstance(entry, ScriptedStep)
    return entry


def call(**fields: object) -> ScriptedCall:
    return ScriptedCall(where="steps[0].call", **fields)  # type: ignore[arg-type]  # checked by msgspec's equality


# --- what it reads -----------------------------------------------------------------------------------------------


def test_a_scenario_has_a_model_a_pace_a_window_and_an_end():
    scenario = parse_scenario(
        "model: weather\npace: {ttft_ms: 200}\ncontext_window: 100\nat_end: stop\nsteps: [{text: hi}]", "x.yaml"
    )
    assert scenario.model == "script:weather"
    assert scenario.context_window == 100
    assert scenario.at_end == "stop"
    assert scenario.entries[0].pace == Pace(ttft_ms=200.0)


def test_without_a_model_the_file_gives_the_name():
    scenario = parse_scenario("steps: [{text: hi}]", "some/where/long.yaml")
    assert (scenario.model, scenario.at_end, scenario.context_window) == ("script:long", "repeat", None)


def test_a_pace_in_a_step_changes_only_what_it_names():
    scenario = parse_scenario(
        "pace: {ttft_ms: 5, tokens_per_second: 9}\nsteps: [{text: a, pace: {ttft_ms: 0}}]\nat_end: {text: bye}"
    )
    assert scenario.entries[0].pace == Pace(ttft_ms=0.0, tokens_per_second=9.0)
    assert scenario.at_end.pace == Pace(ttft_ms=5.0, tokens_per_second=9.0)


def test_a_summary_is_a_text_at_the_pace_of_the_scenario():
    scenario = parse_scenario("pace: {ttft_ms: 5}\nsummary: 'So far {items}'\nsteps: [{text: a}]")
    speech = Speech(make=TextDelta, template="So far {items}")
    assert scenario.summary == ScriptedStep(parts=(speech,), pace=Pace(ttft_ms=5.0))
    assert parse_scenario("steps: [{text: a}]\nsummary: {words: 1}").summary.parts[0].deltas == (TextDelta("The"),)


def test_without_a_summary_there_is_one_that_says_so():
    (speech,) = parse_scenario("steps: [{text: a}]").summary.parts
    assert fill(speech.template, {"items": "7"}) == (
        "A summary of the 7 items so far would stand here; nothing was inferred."
    )


def test_text_is_cut_into_deltas_when_loaded():
    speech = Speech(make=TextDelta, deltas=tuple(map(TextDelta, ["It", " is", " sunny", "."])))
    assert step("{text: It is sunny.}").parts == (speech,)


def test_text_with_placeholders_is_kept_as_a_template():
    assert step('{reasoning: "I saw {last_output:9}"}').parts == (
        Speech(make=ReasoningDelta, template="I saw {last_output:9}"),
    )


def test_braces_that_are_no_placeholder_mean_nothing():
    assert "".join(delta.text for delta in step("""{text: '{"a": {}} { b }'}""").parts[0].deltas) == '{"a": {}} { b }'


@pytest.mark.parametrize("count", [1, 2, 100, 1000])
def test_filler_has_exactly_so_many_tokens_or_words(count):
    assert len(step(f"{{text: {{tokens: {count}}}}}").parts[0].deltas) == count
    words = "".join(delta.text for delta in step(f"{{text: {{words: {count}}}}}").parts[0].deltas)
    assert len(words.split()) == count


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{name: a}", call(name="a")),
        ("{tool: first}", call()),
        ("{tool: first, type: custom}", call(kind="custom")),
        (
            "{name: a, arguments: {b: [1, 2.5, true, null, x]}}",
            call(name="a", arguments={"b": [1, 2.5, True, None, "x"]}),
        ),
        ("{name: a, arguments: 'not json'}", call(name="a", arguments="not json")),
        ("{name: a, input: free}", call(name="a", kind="custom", arguments="free")),
        ("{name: a, namespace: n}", call(name="a", namespace="n")),
        ("{type: local_shell, arguments: {command: [ls]}}", call(kind="local_shell", arguments={"command": ["ls"]})),
        (
            "{type: mcp_approval, name: a, server_label: s}",
            call(kind="mcp_approval", name="a", server_label="s"),
        ),
    ],
)
def test_a_call_is_read(source, expected):
    assert step(f"{{call: {source}}}").parts == (expected,)


def test_several_calls_are_parts_in_order():
    parts = step("{calls: [{name: a}, {name: b}]}").parts
    assert [(part.name, part.where) for part in parts] == [("a", "steps[0].calls[0]"), ("b", "steps[0].calls[1]")]


def test_parts_keep_the_order_written_and_a_list_allows_a_key_twice():
    read = step("[{text: a, delay_ms: 5}, {stall: forever}, {text: b, end: content_filter}]")
    kinds = [Speech, Wait, Wait, Speech]
    assert [type(part) for part in read.parts] == kinds
    assert [part.seconds for part in read.parts if isinstance(part, Wait)] == [0.005, math.inf]
    assert read.end == "content_filter"


def test_a_failure_and_a_usage_are_read():
    read = step(
        "{stall: 2, fail: {after_tokens: 3, code: rate_limit_exceeded, message: slow, status: 429},"
        " usage: {input_tokens: 7}}"
    )
    assert read.parts == (
        Wait(seconds=2.0),
        Fail(after_tokens=3, code="rate_limit_exceeded", message="slow", status=429),
    )
    assert read.usage == ScriptedUsage(input_tokens=7)


def test_repeats_and_cases_nest():
    (repeat,) = parse_scenario(
        "steps: [{repeat: {times: 3, steps: [{cases: [{when: {tool_offered: true}, steps: [{text: a}]}]}]}}]"
    ).entries
    assert isinstance(repeat, Repeat) and repeat.times == 3
    (choice,) = repeat.entries
    assert isinstance(choice, Choice)
    assert choice.cases == (Case(when=Conditions(tool_offered=True), entries=choice.cases[0].entries),)


def test_json_is_read_with_tabs_and_surrogate_pairs(tmp_path):
    file = tmp_path / "smile.json"
    file.write_text(json.dumps({"steps": [{"text": "a\U0001f600"}]}, indent="\t"))
    assert "".join(delta.text for delta in load_scenario(file).entries[0].parts[0].deltas) == "a\U0001f600"


@pytest.mark.parametrize("name", ["demo", "script:demo", str(SHIPPED / "demo.yaml")])
def test_a_scenario_is_found_by_name_or_path(name):
    assert resolve_scenario(name).model == "script:demo"


def test_every_shipped_scenario_is_valid():
    assert all(load_scenario(path).entries for path in SHIPPED.iterdir())


# --- what it refuses ---------------------------------------------------------------------------------------------

BAD = [
    ("", "x.yaml:1:1: the file is empty"),
    ("steps: [", "x.yaml:1:9: expected the node content, but found '<stream end>'"),
    ("a: 1\nb: \x01", "x.yaml:2:4: special characters are not allowed"),
    ("- text: a", "x.yaml:1:1: expected an object, got a list"),
    ("model: a", "x.yaml:1:1: needs `steps`"),
    ("steps: []", "x.yaml:1:8: steps: needs at least one step"),
    ("steps: {text: a}", "x.yaml:1:8: steps: expected a list, got an object"),
    ("model: 5\nsteps: [{text: a}]", "x.yaml:1:8: model: expected text, got an integer"),
    ("steps: [{text: a}]\nat_end: again", "x.yaml:2:9: at_end: expected one of repeat, stop"),
    (
        "steps: [{text: a}]\npace: {ttft: 1}",
        "x.yaml:2:8: pace.ttft: unknown key; known here: tokens_per_second, ttft_ms",
    ),
    ("steps: [{text: a}]\npace: {ttft_ms: -1}", "x.yaml:2:17: pace.ttft_ms: must be at least 0"),
    ("steps: [{text: a}]\npace: {ttft_ms: .inf}", "x.yaml:2:17: pace.ttft_ms: must be at least 0"),
    ("steps: [{text: a}]\npace: {ttft_ms: true}", "x.yaml:2:17: pace.ttft_ms: expected a number, got true or false"),
    ("steps: [{text: a}]\ncontext_window: 0", "x.yaml:2:17: context_window: must be at least 1"),
    (
        "steps:\n- text: a\n- tex: b",
        "x.yaml:3:3: steps[1].tex: unknown key; known here: call, calls, delay_ms, end, fail…",
    ),
    ("steps:\n- text: a\n  text: b", "x.yaml:3:3: steps[0].text: given twice"),
    (
        "steps:\n- - end: content_filter\n  - end: content_filter",
        "x.yaml:3:10: steps[0][1].end: given twice in one step",
    ),
    ("steps: [{text: }]", "x.yaml:1:15: steps[0].text: expected text, got nothing"),
    ("steps: [{text: yes}]", "x.yaml:1:16: steps[0].text: expected text, got true or false"),
    ("steps: [{text: !mine a}]", "x.yaml:1:16: steps[0].text: unknown tag !mine"),
    ('steps: [{text: "\\ud800"}]', "x.yaml:1:16: steps[0].text: half of a surrogate pair"),
    ("steps: [{text: {}}]", "x.yaml:1:16: steps[0].text: needs `words` or `tokens`"),
    ("steps: [{text: {words: 0}}]", "x.yaml:1:24: steps[0].text.words: must be at least 1"),
    ("steps: [{text: 'a {outptu}'}]", "x.yaml:1:16: steps[0].text: unknown placeholder {outptu}; known are…"),
    ("steps: [{end: stop}]", "x.yaml:1:15: steps[0].end: expected one of max_output_tokens, content_filter"),
    ("steps: [{stall: soon}]", "x.yaml:1:17: steps[0].stall: expected one of forever"),
    (
        "steps: [{fail: {after_tokens: 1.5}}]",
        "x.yaml:1:31: steps[0].fail.after_tokens: expected an integer, got a number",
    ),
    ("steps: [{fail: {status: 200}}]", "x.yaml:1:25: steps[0].fail.status: must be at least 400"),
    ("steps: [{usage: {tokens: 1}}]", "x.yaml:1:18: steps[0].usage.tokens: unknown key; known here: cached_tokens…"),
    ("steps: [{repeat: {times: 1}}]", "x.yaml:1:18: steps[0].repeat: needs `times` and `steps`"),
    ("steps: [{repeat: {times: 0, steps: [{text: a}]}}]", "x.yaml:1:26: steps[0].repeat.times: must be at least 1"),
    ("steps: [{repeat: {}, text: a}]", "x.yaml:1:22: steps[0].text: unknown key; known here: repeat"),
    ("steps: [{cases: [{when: {}}]}]", "x.yaml:1:18: steps[0].cases[0]: needs `steps`"),
    (
        "steps: [{cases: [{when: {}, steps: [{text: a}]}]}]",
        "x.yaml:1:25: steps[0].cases[0].when: needs at least one condition",
    ),
    (
        "steps: [{cases: [{when: {last_output_matches: '('}, steps: [{text: a}]}]}]",
        "x.yaml:1:47: steps[0].cases[0].when.last_output_matches: not a regular expression…",
    ),
    (
        "steps:\n- text: a\n- text: b\n- call:\n    name: x\n    arguments: [1]",
        "x.yaml:6:16: steps[2].call.arguments: expected an object",
    ),
    ("steps: [{call: {}}]", "x.yaml:1:16: steps[0].call: needs either `name` or `tool: first`"),
    ("steps: [{call: {name: a, tool: first}}]", "x.yaml:1:16: steps[0].call: needs either `name` or `tool: first`"),
    ("steps: [{call: {type: shell, tool: first}}]", "x.yaml:1:16: steps[0].call: needs either `name` or `tool: first`"),
    ("steps: [{call: {tool: last}}]", "x.yaml:1:23: steps[0].call.tool: expected one of first"),
    (
        "steps: [{call: {type: mcp_approval, name: a}}]",
        "x.yaml:1:16: steps[0].call: an mcp_approval needs `name` and `server_label`",
    ),
    (
        "steps: [{call: {name: a, input: b, arguments: {}}}]",
        "x.yaml:1:47: steps[0].call.arguments: a custom tool takes `input`, free text",
    ),
    (
        "steps: [{call: {name: a, input: b, type: function}}]",
        "x.yaml:1:33: steps[0].call.input: only a custom tool takes `input`",
    ),
    (
        "steps: [{call: {name: a, arguments: {b: ['{c}']}}}]",
        "x.yaml:1:42: steps[0].call.arguments.b[0]: unknown placeholder {c}; known are…",
    ),
    (
        "steps: [{call: {name: a, arguments: {1: b}}}]",
        "x.yaml:1:38: steps[0].call.arguments: expected text, got an integer",
    ),
]


@pytest.mark.parametrize(("source", "message"), BAD)
def test_an_error_names_file_line_column_and_field(source, message):
    with pytest.raises(ScenarioError) as error:
        parse_scenario(source, "x.yaml")
    beginning = message.removesuffix("…")
    assert str(error.value).startswith(beginning)
    assert "…" in message or str(error.value) == message


def test_a_scenario_inside_itself_is_refused():
    with pytest.raises(ScenarioError, match="nested deeper than 64 levels"):
        parse_scenario("steps: &a [{repeat: {times: 1, steps: *a}}]")
    with pytest.raises(ScenarioError, match="nested too deeply"):
        parse_scenario("steps: " + "[" * 3000)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("nope", "nope: no such scenario; shipped are: demo"),
        ("/no/such/file.yaml", "/no/such/file.yaml: No such file or directory"),
    ],
)
def test_a_missing_scenario_is_named(name, reason):
    with pytest.raises(ScenarioError) as error:
        resolve_scenario(name)
    assert (str(error.value), error.value.line) == (reason, 0)


def test_a_file_that_is_not_text_is_refused(tmp_path: Path):
    (tmp_path / "a.yaml").write_bytes(b"\xff\xfe\xfa")
    with pytest.raises(ScenarioError, match="not UTF-8"):
        load_scenario(tmp_path / "a.yaml")


# --- pieces ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", ["", " ", "a", "  a\n\nb ", "internationalisation at scale", "日本語のテキスト", "{}\t"]
)
def test_pieces_joined_are_the_text(text):
    assert "".join(split_pieces(text)) == text


def test_fillers_are_the_same_every_time():
    assert filler_pieces(77) == filler_pieces(77)
    assert "".join(filler_words(3)) == "The run stays"
    assert filler_pieces(0) == []


def test_fill_limits_and_escapes():
    values = {"last_output": "x" * 2000, "turn": "2"}
    assert fill("{turn} {{turn}} {{turn:3}} {last_output:3}", values) == "2 {turn} {turn:3} xxx"
    assert len(fill("{last_output}", values)) == 1000
