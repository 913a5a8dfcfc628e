"""Runs through the chat templates of every family: what a turn adds, that nothing given is markup, that they resume."""

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from engine.backends.base import CallDelta, CallEnd, CallStart, RunSpec, StepSpec
from engine.backends.families import FAMILIES, family_of
from engine.backends.prompt import Prompt
from engine.backends.prompt_format import PromptFormat
from engine.backends.remote.hold import hold_to_call
from engine.backends.thinking import thinking_of
from engine.backends.vocabulary import Span
from engine.commands.backend import choose_backend
from engine.content import ReasoningText
from engine.errors import RequestError
from engine.items import FunctionCall, FunctionCallOutput, Message, Reasoning
from engine.settings import Settings
from engine.toolspec import Tool
from tests.family_formats import NAMES, family_format, save_family, source
from tests.tiny import PLAIN, STOP_ID, save_format

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = Tool("function", "get_weather", "Weather", CITY)


def user(text: str) -> Message:
    return Message(role="user", content=text)


def shown(prompt: Prompt, ids) -> str:
    return b"".join(map(prompt._form.vocabulary.bytes_of, ids)).decode()


def give(prompt: Prompt, *items) -> str:
    extension = trio.run(prompt.prepare, items)
    prompt.commit(extension)
    return shown(prompt, extension.token_ids)


def new_prompt(name: str, **spec) -> Prompt:
    return Prompt(family_format(name), RunSpec(response_id="r", model="m", tools=[WEATHER], **spec))


def call_ids(prompt: Prompt) -> list[int]:
    """A call as the model writes it, to its stop token."""
    form = prompt._form
    parts = form.family.calls.write("get_weather", '{"city": "Paris"}')
    ids = form.vocabulary.encode_spans([Span(text, True) for text, _ in parts])
    stop = form.vocabulary.added.get("<|observation|>", form.call_stop_id)  # GLM stops where the output begins
    return ids if ids[-1:] == [stop] else [*ids, stop]


def text_ids(prompt: Prompt, text: str) -> list[int]:
    form = prompt._form
    stop = form.vocabulary.added.get("<|user|>") if "<|user|>" in form._template.source else form.stops_in_order[0]
    return [*form.vocabulary.encode(text), stop]


# What a turn that calls begins with; what its output adds; what the answer begins with; what the next question adds.
RUNS = {
    "qwen2.5": (
        "<|im_start|>assistant\n",
        "\n<|im_start|>user\n<tool_response>\nsun\n</tool_response><|im_end|>\n",
        "<|im_start|>assistant\n",
        "\n<|im_start|>user\nWhy?<|im_end|>\n",
    ),
    "qwen3": (
        "<|im_start|>assistant\n",
        "\n<|im_start|>user\n<tool_response>\nsun\n</tool_response><|im_end|>\n",
        "<|im_start|>assistant\n",
        "\n<|im_start|>user\nWhy?<|im_end|>\n",
    ),
    "qwen3-coder": (
        "<|im_start|>assistant\n",
        "\n<|im_start|>user\n<tool_response>\nsun\n</tool_response>\n<|im_end|>\n",
        "<|im_start|>assistant\n",
        "\n<|im_start|>user\nWhy?<|im_end|>\n",
    ),
    "llama-3": (
        "<|start_header_id|>assistant<|end_header_id|>\n\n",
        '<|start_header_id|>ipython<|end_header_id|>\n\n"sun"<|eot_id|>',
        "<|start_header_id|>assistant<|end_header_id|>\n\n",
        "<|start_header_id|>user<|end_header_id|>\n\nWhy?<|eot_id|>",
    ),
    "mistral-nemo": (
        "",
        '[TOOL_RESULTS]{"content": sun, "call_id": "d0f631ca1"}[/TOOL_RESULTS]',
        "",
        "[INST]Why?[/INST]",
    ),
    "mistral-small-3.2": (
        "",
        "[TOOL_RESULTS]d0f631ca1[TOOL_CONTENT]sun[/TOOL_RESULTS]",
        "",
        "[INST]Why?[/INST]",
    ),
    "gpt-oss": (
        "<|start|>assistant",
        '<|start|>functions.get_weather to=assistant<|channel|>commentary<|message|>"sun"<|end|>',
        "<|start|>assistant",
        "<|start|>user<|message|>Why?<|end|>",
    ),
    "glm-4.6": (
        "<|assistant|>",
        "\n<tool_response>\nsun\n</tool_response>",  # the model has begun it with its stop token
        "<|assistant|>",
        "\nWhy?",
    ),
    "deepseek-v3.1": (
        "<｜Assistant｜><think></think>",
        "<｜tool▁output▁begin｜>sun<｜tool▁output▁end｜>",
        "",
        "<｜User｜>Why?",
    ),
    "deepseek-r1-distill": (
        "<｜Assistant｜><think>\n",
        "<｜tool▁outputs▁begin｜><｜tool▁output▁begin｜>sun<｜tool▁output▁end｜><｜tool▁outputs▁end｜>",
        "",
        "<｜User｜>Why?",
    ),
}

FAMILY = {
    "qwen2.5": "hermes",
    "qwen3": "hermes",
    "qwen3-coder": "qwen-coder",
    "llama-3": "llama",
    "mistral-nemo": "mistral",
    "mistral-small-3.2": "mistral-args",
    "gpt-oss": "harmony",
    "glm-4.6": "glm",
    "deepseek-v3.1": "deepseek",
    "deepseek-r1-distill": "deepseek-fenced",
}


def test_every_template_is_tried():
    assert set(NAMES) == set(RUNS) == set(FAMILY)


@pytest.mark.parametrize("name", NAMES)
def test_the_template_tells_the_family(name):
    assert family_of(source(name)).name == FAMILY[name]


@pytest.mark.parametrize("name", NAMES)
def test_a_run_adds_what_the_template_writes(name):
    call_header, output, text_header, question = RUNS[name]
    run = new_prompt(name, instructions="Be kind.")
    start = give(run, user("Weather?"))
    assert start.count("Be kind.") == 1 and "get_weather" in start and "Weather?" in start
    assert shown(run, run.open_turn()) == call_header
    parser, ids = run.new_parser(StepSpec()), call_ids(run)
    if run._form.begins_in_thought("user"):
        ids = [*run._form.encode([Span("Hm.\n</think>\n\n", True)]), *ids]
    deltas = parser.feed(ids) + parser.close()
    assert deltas[-3:] == [CallStart("function_call", "get_weather"), CallDelta('{"city": "Paris"}'), CallEnd()]
    run.sampled(ids)
    assert give(run, FunctionCallOutput(call_id="c1", output="sun")) == output
    assert shown(run, run.open_turn()) == text_header
    run.sampled(text_ids(run, "It is sunny."))
    assert give(run, user("Why?")) == question


@pytest.mark.parametrize("name", NAMES)
def test_a_context_is_the_same_when_it_is_restored_after_a_call(name):
    run, other = new_prompt(name), new_prompt(name)
    give(run, user("Weather?"))
    run.open_turn()
    run.new_parser(StepSpec())
    run._parser.feed(call_ids(run))
    run.sampled(call_ids(run))
    other.restore(list(run.tokens.since(0)))
    for prompt in (run, other):
        give(prompt, FunctionCallOutput(call_id="c1", output="sun"))
        prompt.open_turn()
    assert other.tokens.context() == run.tokens.context()


HISTORY = [
    user("u1"),
    Message(role="assistant", content="a1"),
    user("u2"),
    Reasoning(content=[ReasoningText(text="r1")]),
    FunctionCall(call_id="c1", name="get_weather", arguments='{"city": "f1"}'),
    FunctionCallOutput(call_id="c1", output="o1"),
    Message(role="assistant", content="a2"),
    Message(role="developer", content="d1"),
    user("u3"),
]


@pytest.mark.parametrize("name", NAMES)
def test_a_history_is_shown_whole_and_in_order(name):
    text = give(new_prompt(name, instructions="i1"), *HISTORY)
    places = [text.index(part) for part in ("u1", "a1", "u2", "f1", "o1", "a2", "d1", "u3")]
    assert places == sorted(places)
    assert "i1" in text


@pytest.mark.parametrize("name", NAMES)
def test_text_beside_a_call_is_not_dropped(name):
    said, output = Message(role="assistant", content="a1"), FunctionCallOutput(call_id="c1", output="o1")
    call = FunctionCall(call_id="c1", name="get_weather", arguments='{"city": "f1"}')
    text = give(new_prompt(name), user("u1"), said, call, output)
    assert text.index("a1") < text.index("f1") < text.index("o1")


PIECES = ["<|im_end|>", "<|user|>", "<|call|>", "</s>", "[INST]", "<｜User｜>", "<tool_call>", "a", '"', "\ue000"]


@given(st.lists(st.sampled_from(PIECES)).map("".join))
@pytest.mark.parametrize("name", NAMES)
def test_content_never_becomes_a_control_token(name, text):
    def controls(content: str) -> list[int]:
        tools = [Tool("function", "get_weather", content, CITY)]
        spec = RunSpec(response_id="r", model="m", tools=tools, instructions="x" + content)
        run = Prompt(family_format(name), spec)
        call = FunctionCall(call_id=content, name="get_weather", arguments='{"city": "Paris"}')
        give(run, user(content), call, FunctionCallOutput(call_id=content, output=content), user(content))
        return [token for token in run.tokens.context() if run._form.vocabulary.is_control(token)]

    assert controls(text) == controls("x")


@given(st.lists(st.sampled_from(["u", "o", "call", "text", "cut"]), max_size=8), st.data())
@pytest.mark.parametrize("name", NAMES)
def test_a_walk_only_ever_grows_and_forks_go_on_alike(name, moves, data):
    run = new_prompt(name)
    give(run, user("go"))
    fork_at = data.draw(st.integers(0, 8))
    fork = None
    for number, move in enumerate(moves):
        if number == fork_at:
            fork = run.fork()
        for prompt in filter(None, (run, fork)):
            before = list(prompt.tokens.context())
            match move:
                case "u":
                    give(prompt, user("hm"), Message(role="developer", content="d"))
                case "o":
                    give(prompt, FunctionCallOutput(call_id="c", output="out"))
                case _:
                    prompt.open_turn()
                    prompt.new_parser(StepSpec())
                    ids = call_ids(prompt) if move == "call" else text_ids(prompt, "hi")
                    prompt._parser.feed(ids)
                    prompt.sampled(ids[:-1] if move == "cut" else ids)
            assert list(prompt.tokens.context())[: len(before)] == before
    assert fork is None or fork.tokens.context() == run.tokens.context()


@pytest.mark.parametrize(
    ("name", "effort", "begins", "header"),
    [
        ("qwen3", None, "<|im_start|>user\nwhy?<|im_end|>\n", "<|im_start|>assistant\n"),
        ("qwen3", "none", "why?<|im_end|>\n", "<|im_start|>assistant\n<think>\n\n</think>\n\n"),
        ("qwen3", "high", "why?<|im_end|>\n", "<|im_start|>assistant\n"),
        ("glm-4.6", "none", "<|user|>\nwhy?/nothink", "<|assistant|>\n<think></think>"),
        ("glm-4.6", "low", "<|user|>\nwhy?", "<|assistant|>"),
        ("deepseek-v3.1", None, "<｜User｜>why?", "<｜Assistant｜><think></think>"),
        ("deepseek-v3.1", "medium", "<｜User｜>why?", "<｜Assistant｜><think>"),
        ("gpt-oss", None, "Reasoning: medium\n", "<|start|>assistant"),
        ("gpt-oss", "xhigh", "Reasoning: high\n", "<|start|>assistant"),
        ("gpt-oss", "none", "Reasoning: low\n", "<|start|>assistant"),
        ("qwen2.5", "high", "why?<|im_end|>\n", "<|im_start|>assistant\n"),
    ],
)
def test_effort_is_told_in_the_templates_words(name, effort, begins, header):
    run = Prompt(family_format(name), RunSpec(response_id="r", model="m", reasoning_effort=effort))
    assert begins in give(run, user("why?"))
    assert shown(run, run.open_turn()) == header
    run.sampled(text_ids(run, "so"))
    other = Prompt(family_format(name), RunSpec(response_id="r", model="m", reasoning_effort=effort))
    other.restore(list(run.tokens.since(0)))
    assert give(other, user("how?")) == give(run, user("how?"))
    assert other.open_turn() == run.open_turn()
    assert run._form.begins_in_thought("user", thinking_of(effort)) == header.endswith("<think>")


THOUGHTS = {
    "qwen3": "<think>\nhm\n</think>\n\nHi",
    "glm-4.6": "\n<think>hm</think>\nHi",
    "deepseek-r1-distill": "hm\n</think>\n\nHi",
    "gpt-oss": "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>Hi",
}


@pytest.mark.parametrize("name", THOUGHTS)
def test_thoughts_are_counted_in_every_family(name):
    run = new_prompt(name)
    give(run, user("go"))
    parser, ids = run.new_parser(StepSpec()), run._form.encode([Span(THOUGHTS[name], True)])
    deltas = parser.feed(ids) + parser.close()
    assert ["hm" in delta.text for delta in deltas] == [True, False]
    # The thoughts and their tags; a little more or less where tokens do not end with them.
    inside = THOUGHTS[name].partition("Hi")[0].partition("<|start|>")[0].partition("analysis")
    expected = len(run._form.encode([Span(inside[2] or inside[0], True)]))
    assert abs(parser.num_reasoning - expected) <= 2


# Ways of other models' templates, each with what one has to do about it.
ENDS_TWICE = PLAIN.replace(
    "{% if add_gen", "{% if not add_generation_prompt %}{{ '<|endoftext|>' }}{% endif %}{% if add_gen"
)
WANTS_TOOLS = "{% for tool in tools %}{{ tool.name }}{% endfor %}" + PLAIN
KNOWS_WORDS = (
    "{% if reasoning_effort is defined and reasoning_effort not in ['low', 'xhigh'] %}"
    "{{ raise_exception('unknown effort') }}{% endif %}{{ reasoning_effort }}" + PLAIN
)


@pytest.mark.parametrize("template", [ENDS_TWICE, WANTS_TOOLS, KNOWS_WORDS])
def test_ways_of_other_templates_are_met(tmp_path, template):
    form = PromptFormat.load(save_format(tmp_path, template))
    run = Prompt(form, RunSpec(response_id="r", model="m"))
    assert give(run, user("a")) == "<|im_start|>user\na<|im_end|>\n"
    run.open_turn()
    run.sampled([*form.vocabulary.encode("b"), STOP_ID])
    assert give(run, user("c")) == "\n<|im_start|>user\nc<|im_end|>\n"
    assert shown(run, run.open_turn()) == "<|im_start|>assistant\n"


def test_a_template_is_told_in_a_word_that_it_takes(tmp_path):
    form = PromptFormat.load(save_format(tmp_path, KNOWS_WORDS))
    for effort, word in [("none", "low"), ("low", "low"), ("medium", ""), ("high", "xhigh")]:
        run = Prompt(form, RunSpec(response_id="r", model="m", reasoning_effort=effort))
        assert give(run, user("a")).startswith(word + "<|im_start|>user")


def test_templates_that_rewrite_earlier_turns_are_noticed():
    assert {name for name in NAMES if family_format(name).manners.rewrites} == {
        "qwen3", "gpt-oss", "glm-4.6", "mistral-nemo", "mistral-small-3.2"
    }  # fmt: skip


def test_a_family_can_be_chosen_by_name(tmp_path):
    folder = save_family(tmp_path, "qwen2.5")
    assert PromptFormat.load(folder, family="glm").family.calls is FAMILIES["glm"].calls
    with pytest.raises(RequestError, match="Known: smollm2, hermes"):
        PromptFormat.load(folder, family="nope")


def test_a_family_that_nobody_knows_is_refused_at_the_start(tmp_path):
    settings = Settings(backend="script:demo", tokenizer=str(save_family(tmp_path, "qwen2.5")), family="nope")
    with pytest.raises(RequestError, match="There is no family 'nope'"):
        choose_backend(settings, lambda what, fraction: None)


# --- a call that is begun for a service's model


@pytest.mark.parametrize("has_schemas", [True, False])
@pytest.mark.parametrize("family", FAMILIES.values(), ids=lambda family: family.name)
def test_what_is_put_there_and_the_rest_make_a_call(family, has_schemas):
    tool = {"get_weather": WEATHER}
    hold = hold_to_call(tool, family, has_schemas=has_schemas)
    written = "".join(text for text, _ in family.calls.write("get_weather", '{"city": "Paris"}'))
    assert written.startswith(hold.lead)
    if hold.schema is None:
        assert hold.mode == "on_trigger" and not (has_schemas and family.calls.pairs is None)
    else:
        assert written == hold.lead + '{"city": "Paris"}' + hold.tail
    either = hold_to_call(tool | {"other": WEATHER}, family, has_schemas=has_schemas)
    assert written.startswith(either.lead)
    if either.schema is not None:
        key = family.calls.arguments_key
        assert written == either.lead + f'{{"name": "get_weather", "{key}": {{"city": "Paris"}}}}' + either.tail
