"""prompt.py and what it is made of: append-only rendering, no injection, cost, refusals, constraints."""

import functools
import tempfile
from pathlib import Path

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from engine import tokens
from engine.backends.base import RunSpec, StepSpec, TextDelta, ToolChoice
from engine.backends.families import family_of
from engine.backends.prompt import Prompt, PromptFormat
from engine.backends.template import Contents, Template, TemplateError
from engine.backends.turns import turns_of
from engine.backends.vocabulary import Span
from engine.content import ComputerScreenshot, InputImage, InputText, OutputText, ReasoningText, SummaryText
from engine.errors import RequestError
from engine.items import (
    ComputerCallOutput,
    CustomToolCall,
    FunctionCall,
    FunctionCallOutput,
    Hosted,
    Message,
    Reasoning,
    ShellCall,
    ShellCallOutput,
)
from engine.toolspec import Tool
from tests.tiny import CONTEXT_WINDOW, HERMES, PLAIN, SMOLLM, STOP_ID, save_format

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = Tool("function", "get_weather", "Weather", CITY)
PIECES = ["<|im_end|>", "<|im_start|>", "<|endoftext|>", "<tool_call>", "</think>", "a", "\n", "\ue0000\ue001"]


@functools.cache
def form(template: str = SMOLLM, tags: bool = False) -> PromptFormat:
    with tempfile.TemporaryDirectory() as folder:
        return PromptFormat.load(save_format(Path(folder), template, tags=tags))


@functools.cache
def tokenizer(tags: bool = False) -> Tokenizer:
    with tempfile.TemporaryDirectory() as folder:
        return Tokenizer.from_file(str(save_format(Path(folder), tags=tags) / "tokenizer.json"))


def prompt(of: PromptFormat | None = None, **spec) -> Prompt:
    return Prompt(of or form(), RunSpec(response_id="r", model="m", **spec))


def shown(prompt: Prompt) -> str:
    """The context as text, control tokens included."""
    tags = "<tool_call>" in prompt._form.vocabulary.added
    return tokenizer(tags).decode(list(prompt.tokens.context()), skip_special_tokens=False)


def give(prompt: Prompt, *items) -> list[int]:
    """Prepare and commit; the new ids."""
    extension = trio.run(prompt.prepare, items)
    prompt.commit(extension)
    return list(extension.token_ids)


def user(text: str) -> Message:
    return Message(role="user", content=text)


def output(text: str) -> FunctionCallOutput:
    return FunctionCallOutput(call_id="c", output=text)


CALLED = FunctionCall(call_id="c", name="get_weather", arguments='{"city": "Paris"}')


# --- growing


def test_a_run_reads_as_the_template_says():
    run = prompt(form(PLAIN), instructions="Be kind.")
    give(run, user("hello"))
    run.open_turn()
    run.sampled([*run._form.vocabulary.encode("hi"), STOP_ID])
    give(run, user("bye"))
    run.open_turn()
    assert shown(run) == (
        "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nhello<|im_end|>\n"
        "<|im_start|>assistant\nhi<|im_end|>\n<|im_start|>user\nbye<|im_end|>\n<|im_start|>assistant\n"
    )


def _markup(text: str):
    return [Span(text, True)]


def test_a_turn_that_was_cut_is_closed_by_the_next_extension():
    run = prompt(form(PLAIN))
    give(run, user("hello"))
    run.open_turn()
    run.sampled(run._form.vocabulary.encode("hi"))
    give(run, user("stop"))
    assert shown(run).endswith("assistant\nhi<|im_end|>\n<|im_start|>user\nstop<|im_end|>\n")


def test_a_cut_turn_goes_on_when_it_is_opened_again():
    run = prompt()
    give(run, user("hello"))
    assert run.open_turn() == run._form.header_ids
    run.sampled(run._form.vocabulary.encode("hi"))
    assert run.open_turn() == []


def test_a_turn_needs_something_before_it():
    with pytest.raises(ValueError, match="committed"):
        prompt().open_turn()


def test_outputs_that_come_one_by_one_leave_no_empty_turns():
    run = prompt(tools=[WEATHER])
    give(run, user("weather?"))
    run.open_turn()
    run.sampled([5, STOP_ID])
    give(run, output("one"))
    give(run, output("two"))
    run.open_turn()
    assert shown(run).count("<|im_start|>assistant") == 2


@given(st.lists(st.text(max_size=20).map(user) | st.text(max_size=20).map(output), min_size=1, max_size=6), st.data())
def test_one_by_one_or_together_makes_no_difference(items, data):
    cut = data.draw(st.integers(0, len(items)))
    together, apart = prompt(tools=[WEATHER]), prompt(tools=[WEATHER])
    for run in (together, apart):
        give(run, user("go"))
    give(together, *items)
    give(apart, *items[:cut])
    give(apart, *items[cut:])
    assert together.tokens.context() == apart.tokens.context()


def test_a_commit_after_the_context_moved_changes_nothing():
    run = prompt()
    first, second = (trio.run(run.prepare, [user(text)]) for text in "ab")
    run.commit(first)
    before = list(run.tokens.context())
    with pytest.raises(ValueError, match="prepared at 0"):
        run.commit(second)
    assert list(run.tokens.context()) == before


def test_what_has_no_text_for_the_model_adds_nothing():
    run = prompt()
    give(run, user("hello"))
    assert give(run, Reasoning(encrypted_content="x")) == []


# --- another context

ROUNDS = st.lists(
    st.tuples(
        st.lists(st.text(max_size=9).map(user) | st.text(max_size=9).map(output), max_size=3),
        st.lists(st.integers(0, 280), max_size=4),
        st.booleans(),
    ),
    min_size=1,
    max_size=5,
)


def play(run: Prompt, rounds) -> list[tokens.Span]:
    """Each round gives items, opens a turn, samples ids, and begins a new segment when it says so."""
    for number, (items, ids, restarts) in enumerate(rounds):
        if restarts and number:
            run.restart()
            give(run, user("what was said"))
        give(run, *items) if items else None
        if run.tokens.context():
            run.open_turn()
            run.sampled(ids)
    return list(run.tokens.since(0))


@given(ROUNDS, ROUNDS)
@pytest.mark.parametrize("template", [SMOLLM, HERMES])
def test_a_fork_and_a_restored_prompt_go_on_as_the_original_does(template, before, after):
    run, restored = (prompt(form(template), tools=[WEATHER], instructions="Be kind.") for _ in range(2))
    past = play(run, [([user("go")], [], False), *before])
    fork = run.fork()
    restored.restore(past)
    constraint = run.constraint(StepSpec())
    assert fork.constraint(StepSpec()) == restored.constraint(StepSpec()) == constraint
    given_before = list(run.tokens.since(0))
    expected = play(fork, after)
    assert list(run.tokens.since(0)) == given_before
    assert play(restored, after) == play(run, after) == expected


def test_a_restart_renders_instructions_and_tools_again():
    run, new = (prompt(form(HERMES), tools=[WEATHER], instructions="Be kind.") for _ in range(2))
    give(run, user("hello"))
    run.open_turn()
    run.sampled([5, STOP_ID])
    run.restart()
    assert len(run.tokens) == 0
    with pytest.raises(ValueError, match="committed"):
        run.open_turn()
    assert give(run, user("bye")) == give(new, user("bye"))
    assert [(span.segment, span.offset) for span in run.tokens.since(0)][-1] == (1, 0)


@pytest.mark.parametrize("sampled", [None, []])
def test_a_past_that_ends_before_a_step_is_refused(sampled):
    run, other = prompt(), prompt()
    spans = [] if sampled is None else [tokens_given(run)]
    with pytest.raises(ValueError, match="does not end with a step"):
        other.restore(spans)
    assert other.tokens.total == 0


def tokens_given(run: Prompt):
    give(run, user("hello"))
    (span,) = run.tokens.since(0)
    return span


def test_only_a_new_prompt_is_restored():
    run = prompt()
    past = play(run, [([user("go")], [5], False)])
    with pytest.raises(ValueError, match="new context"):
        run.restore(past)


# --- injection


@given(st.lists(st.sampled_from(PIECES)).map("".join))
@pytest.mark.parametrize(("template", "tags"), [(SMOLLM, False), (HERMES, True)])
def test_content_never_becomes_a_control_token(template, tags, text):
    def controls(content: str) -> list[int]:
        described = Tool("function", "get_weather", content, {"type": "object"})
        run = prompt(form(template, tags), instructions=content or "x", tools=[described])
        call = FunctionCall(call_id=content, name="get_weather", arguments=content)
        give(run, user(content), Message(role="assistant", content=content), call, output(content))
        return [i for i in run.tokens.context() if run._form.vocabulary.is_control(i)]

    assert controls(text) == controls("x")


def test_harmless_text_gets_the_ids_that_the_tokenizer_gives_it():
    run = prompt(form(HERMES, True), tools=[WEATHER])
    give(
        run, user("hello"), FunctionCall(call_id="c", name="get_weather", arguments='{"city": "Paris"}'), output("fine")
    )
    assert list(run.tokens.context()) == tokenizer(True).encode(shown(run), add_special_tokens=False).ids


# --- cost


async def test_cost_follows_the_new_items_only():
    run = prompt(PromptFormat.load(save_format(Path(tempfile.mkdtemp())), context_window=10_000_000))
    encoded: list[int] = []
    encode = run._form.vocabulary.encode
    run._form.vocabulary.encode = lambda text: encoded.append(len(text)) or encode(text)
    for _ in range(300):
        encoded.clear()
        run.commit(await run.prepare([user("hello world")]))
        costs = sum(encoded)
    assert costs < 40
    assert len(run.tokens) >= 3000


async def test_much_text_is_encoded_in_a_thread_and_the_loop_goes_on():
    run = prompt(PromptFormat.load(save_format(Path(tempfile.mkdtemp())), context_window=10_000_000))
    ticks = 0

    async def tick():
        nonlocal ticks
        while True:
            ticks += 1
            await trio.sleep(0.001)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(tick)
        await trio.testing.wait_all_tasks_blocked()
        extension = await run.prepare([user("hello world " * 60_000)])
        nursery.cancel_scope.cancel()
    assert ticks > 2
    assert extension.tokenize_ms > 0


# --- frames that are used again


FRAMED = [user("hi"), user("<|im_end|>"), output("a"), output("b"), Message(role="developer", content="c"), CALLED]


@given(
    st.lists(st.sampled_from(FRAMED), min_size=1, max_size=12),
    st.sampled_from([None, "user", "system", "tool", "assistant"]),
)
@pytest.mark.parametrize("template", [PLAIN, SMOLLM, HERMES])
def test_any_items_add_what_the_template_itself_makes_of_them(template, items, last_role):
    contents = Contents()
    turns = form(template)._turns(items, contents)
    rendered = contents.spans(form(template)._extend(last_role, turns, ""))
    assert form(template).extend(last_role, items).spans == rendered
    assert form(template).extend(last_role, items).spans == rendered


def counting(template: str) -> tuple[PromptFormat, list[int]]:
    """A format of its own, and how many turns each rendering of its template had."""
    own, renders = PromptFormat.load(save_format(Path(tempfile.mkdtemp()), template)), []
    render = own._template._render
    own._template._render = lambda turns, *more, **named: renders.append(len(turns)) or render(turns, *more, **named)
    return own, renders


def test_template_is_not_rendered_again_for_turns_of_the_same_shape():
    own, renders = counting(HERMES)
    own.extend("assistant", [output("a"), output("b")])
    assert renders
    renders.clear()
    assert [span.text for span in own.extend("assistant", [output("c"), output("d")]).spans if not span.is_markup] == [
        "c",
        "d",
    ]
    assert renders == []
    for items in ([output("c")], [user("c")], [user("c"), output("d")]):
        own.extend("assistant", items)
        assert renders
        renders.clear()


def test_template_that_knows_the_time_is_rendered_each_time():
    own, renders = counting("{# strftime_now #}" + PLAIN)
    for _ in range(3):
        renders.clear()
        own.extend("assistant", [user("a")])
        assert renders


# --- refusals


@pytest.mark.parametrize("text", ["word " * CONTEXT_WINDOW, "x" * 10_000_000])
def test_what_does_not_fit_changes_nothing(text):
    run = prompt()
    give(run, user("hello"))
    before = list(run.tokens.context())
    with pytest.raises(RequestError) as caught:
        give(run, user(text))
    assert caught.value.code == "context_length_exceeded"
    assert list(run.tokens.context()) == before
    give(run, user("shorter"))


def test_hopeless_text_is_refused_without_encoding_it(monkeypatch):
    run = prompt()
    monkeypatch.setattr(run._form, "encode", lambda spans: pytest.fail("encoded"))
    with pytest.raises(RequestError):
        give(run, user("x" * 10_000_000))


@pytest.mark.parametrize(
    ("item", "param"),
    [
        (Message(role="user", content=[InputText(text="a"), InputImage(image_url="x")]), "[1].content[1]"),
        (FunctionCallOutput(call_id="c", output=[InputImage(image_url="x")]), "[1].output[0]"),
        (ComputerCallOutput(call_id="c", output=ComputerScreenshot()), "[1].output"),
    ],
)
def test_what_is_not_text_is_refused_by_its_place(item, param):
    with pytest.raises(RequestError) as caught:
        give(prompt(), user("a"), item)
    assert caught.value.param == param


@pytest.mark.parametrize("template", [SMOLLM, HERMES])
def test_every_kind_of_item_is_shown(template):
    run = prompt(form(template, True), tools=[WEATHER])
    give(
        run,
        user("u1"),
        Message(role="developer", content="d1"),
        Reasoning(content=[ReasoningText(text="r1")]),
        Message(role="assistant", content=[OutputText(text="a1")]),
        FunctionCall(call_id="c", name="get_weather", arguments='{"city": "f1"}'),
        CustomToolCall(call_id="c", name="python", input='p"1'),
        ShellCall(call_id="c", action={"commands": ["s1"]}),
        output("o1"),
        ShellCallOutput(call_id="c", output=[{"stdout": "o2"}]),
        Hosted("web_search_call", {"type": "web_search_call", "id": "ws", "action": {"query": "h1"}}),
    )
    text = shown(run)
    places = [text.index(part) for part in ("u1", "d1", "a1", "f1", 'p\\"1', "s1", "o1", "o2", "h1")]
    assert places == sorted(places)


@pytest.mark.parametrize(
    ("reasoning", "thought"),
    [
        (Reasoning(content=[ReasoningText(text="r1"), ReasoningText(text="r2")]), "r1r2"),
        (Reasoning(content=[ReasoningText(text="r1")], summary=[SummaryText(text="s1")]), "r1"),
        (Reasoning(summary=[SummaryText(text="s1")]), "s1"),
    ],
)
def test_thoughts_are_shown_in_full_or_by_their_summary(reasoning, thought):
    contents = Contents()
    turn, *others = turns_of(
        [reasoning, Message(role="assistant", content="a1")], family_of(HERMES), contents, form(HERMES).manners
    )
    assert others == []
    assert [span.text for span in contents.spans(turn["reasoning_content"])] == [thought]


def test_a_template_that_rewrites_earlier_turns_is_refused_at_load():
    backwards = "{% for message in messages | reverse %}{{ message.content }}{% endfor %}"
    with pytest.raises(TemplateError, match=r"change"):
        form(backwards)


def test_a_template_that_cannot_be_read_says_so():
    with pytest.raises(TemplateError, match="cannot be read"):
        Template("{% if %}", {})


# --- constraints


def constraint(choice: ToolChoice, template: str = SMOLLM, tags: bool = False, **spec):
    spec = {"tools": [WEATHER]} | spec
    return prompt(form(template, tags), **spec).constraint(StepSpec(choice))


def test_no_choice_no_constraint():
    assert constraint(ToolChoice("none")) is None
    assert constraint(ToolChoice(), tools=[]) is None


def test_a_summary_is_free_whatever_else_is_asked_for():
    run = prompt(tools=[WEATHER], text_format={"type": "json_object"})
    assert run.constraint(StepSpec(ToolChoice("required"), is_summary=True)) is None
    call = '<tool_call>{"name": "get_weather", "arguments": {}}</tool_call>'
    parser = run.new_parser(StepSpec(is_summary=True))
    assert parser.feed(run._form.vocabulary.encode(call)) == [TextDelta(call)]


def test_required_holds_from_the_first_token():
    assert constraint(ToolChoice("required")).mode == "always"
    with pytest.raises(RequestError) as caught:
        constraint(ToolChoice("required", frozenset({"other"})))
    assert caught.value.param == "tool_choice"


def test_auto_decides_or_waits_for_the_trigger_or_spans_the_turn():
    decided = constraint(ToolChoice())
    opening = form().vocabulary.encode(form().family.calls.open)
    assert (decided.mode, [decided.trigger_id, decided.second_id]) == ("decide", opening[:2])
    triggered = constraint(ToolChoice(), HERMES, True)
    assert (triggered.mode, triggered.trigger_id) == ("on_trigger", form(HERMES, True).vocabulary.added["<tool_call>"])
    assert constraint(ToolChoice(), HERMES, False).mode == "always"  # as long as it does not call, it says anything


def test_the_threshold_behind_an_output_is_another_one():
    run = prompt(tools=[WEATHER])
    give(run, user("go"))
    before = run.constraint(StepSpec()).threshold
    give(run, output("done"))
    assert run.constraint(StepSpec()).threshold == run._form.family.auto.after_output != before
    give(run, user("and now?"))
    assert run.constraint(StepSpec()).threshold == before


def test_a_text_format_always_holds_and_may_stand_beside_calls():
    schema = {
        "type": "json_schema",
        "name": "x",
        "schema": {"type": "object", "properties": {"n": {"type": "integer"}}},
    }
    assert "start: answer" in constraint(ToolChoice(), tools=[], text_format=schema).grammar
    assert "start: calls | answer" in constraint(ToolChoice(), text_format={"type": "json_object"}).grammar


def test_grammars_are_built_once():
    first, second = prompt(tools=[WEATHER]), prompt(tools=[WEATHER])
    give(first, user("go"))
    assert first.constraint(StepSpec()).grammar is second.constraint(StepSpec()).grammar


def test_a_bad_schema_is_refused_by_its_place():
    bad = Tool("function", "bad", "", {"type": "strin"})
    with pytest.raises(RequestError) as caught:
        prompt(tools=[WEATHER, bad])
    assert caught.value.param == "tools[1].parameters.type"
    with pytest.raises(RequestError) as caught:
        prompt(text_format={"type": "json_schema", "schema": {"type": "strin"}})
    assert caught.value.param == "text.format.schema.type"


@pytest.mark.parametrize(("template", "tags"), [(SMOLLM, False), (HERMES, True)])
@pytest.mark.parametrize("parallel", [True, False])
def test_a_grammar_accepts_the_calls_that_the_parser_reads(template, tags, parallel):
    llguidance = pytest.importorskip("llguidance")
    of = form(template, tags)
    run = prompt(of, tools=[WEATHER], parallel_tool_calls=parallel)
    grammar = run.constraint(StepSpec(ToolChoice("required"))).grammar
    matcher = llguidance.LLMatcher(llguidance.LLTokenizer(tokenizer(tags).to_str(), eos_token=STOP_ID), grammar)
    call = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
    ids = of.encode(_markup(call))
    assert matcher.validate_tokens(ids) == len(ids)
    twice = of.encode(_markup(call + "\n" + call))
    assert (matcher.validate_tokens(twice) == len(twice)) is parallel
    extra = of.encode(_markup(call.replace('"Paris"', '"Paris", "b": 1')))
    assert matcher.validate_tokens(extra) < len(extra)


def foresee(run: Prompt, outputs: list[FunctionCallOutput]) -> list[int]:
    return trio.run(run.foresee, outputs)


@pytest.mark.parametrize("template", [HERMES, SMOLLM, PLAIN])
def test_what_is_foreseen_of_outputs_is_what_they_come_to(template):
    run = prompt(form(template))
    assert foresee(run, [output("21")]) == []
    give(run, user("Weather?"))
    assert foresee(run, [output("21")]) == []
    run.open_turn()
    run.sampled([100, 101, STOP_ID])
    first, second = "a first output of some words", "a second one that\ngrows and grows " * 20
    stages = [
        [output(first[:9])],
        [output(first)],
        [output(first), output(second[:18])],
        [output(first), output(second)],
    ]
    foreseen = [foresee(run, items) for items in stages]
    whole = list(trio.run(run.prepare, stages[-1]).token_ids)
    assert [ids == whole[: len(ids)] for ids in foreseen] == [True] * 4
    assert [len(ids) for ids in foreseen] == sorted({len(ids) for ids in foreseen})
    assert len(foreseen[-1]) > 0.8 * len(whole)
    assert foresee(run.fork(), stages[-1]) == foreseen[-1]


def test_much_that_is_foreseen_is_encoded_in_a_thread():
    run = prompt()
    give(run, user("Weather?"))
    run.open_turn()
    run.sampled([100, STOP_ID])
    ids = foresee(run, [output("some words " * 10_000)])
    assert len(ids) > 10_000
