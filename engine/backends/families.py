"""What differs between model families, as values: how a call is written, how tools are shown, when `auto` calls.

A family is chosen from a model's chat template. The template itself says how turns look; what it cannot say is here.
"""

from collections.abc import Sequence
from typing import Final, Literal

import msgspec

from engine.backends.call_syntax import (
    DEEPSEEK_CALLS,
    DEEPSEEK_FENCED_CALLS,
    GLM_CALLS,
    HARMONY_CALLS,
    HERMES_CALLS,
    LLAMA_CALLS,
    MISTRAL_ARGS_CALLS,
    MISTRAL_CALLS,
    QWEN_CODER_CALLS,
    CallSyntax,
)
from engine.errors import RequestError


class AutoPolicy(msgspec.Struct, frozen=True):
    """How tool_choice `auto` becomes calls.

    - `decide`: the log-probability of a call's first two tokens, at the beginning of the turn, against `threshold`
      (`after_output` where the turn answers a tool's output). For models that write no valid call by themselves.
    - `on_trigger`: the model decides by sampling the call's opening token, where that is a single token; where it is
      not, calls are free text that the parser recognises.
    """

    mode: Literal["decide", "on_trigger"] = "on_trigger"
    threshold: float = 0.0
    after_output: float = 0.0


class Family(msgspec.Struct, frozen=True, kw_only=True):
    """One family's facts.

    `reasoning` holds the tags around thoughts. `shows_tools` and `shows_calls` say whether the chat template presents
    tools, and calls with their outputs; what it does not is written into the text of ordinary turns. `is_harmony`:
    a turn is a sequence of messages on channels (see harmony.py). `knows_calls`: false where only transformers can read
    what the model writes, and nothing can hold it. `text_stop`, `call_stop`: what the model stops at
    behind a text and behind its calls, where it is not what its template ends a turn with.
    """

    name: str
    calls: CallSyntax = HERMES_CALLS
    output_open: str = "<tool_response>"
    output_close: str = "</tool_response>"
    reasoning: tuple[str, str] | None = ("<think>", "</think>")
    shows_tools: bool = True
    shows_calls: bool = True
    output_role: str = "tool"
    default_instructions: str | None = None
    max_parallel_calls: int = 16
    is_harmony: bool = False
    knows_calls: bool = True
    text_stop: str = ""
    call_stop: str = ""
    auto: AutoPolicy = AutoPolicy()

    @property
    def markup(self) -> tuple[str, ...]:
        """The tags that content must not be able to write as tokens."""
        harmony = HARMONY_TAGS if self.is_harmony else ()
        return (
            *self.calls.tags, *harmony, self.output_open, self.output_close, "<tools>", "</tools>",
            *(self.reasoning or ()),
        )  # fmt: skip


HARMONY_TAGS: Final = ("<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|return|>", "<|call|>")

HERMES: Final = Family(name="hermes")
QWEN_CODER: Final = Family(name="qwen-coder", calls=QWEN_CODER_CALLS)
GLM: Final = Family(name="glm", calls=GLM_CALLS, text_stop="<|user|>", call_stop="<|observation|>")
LLAMA: Final = Family(name="llama", calls=LLAMA_CALLS, reasoning=None)
MISTRAL: Final = Family(name="mistral", calls=MISTRAL_CALLS, reasoning=("[THINK]", "[/THINK]"))
MISTRAL_ARGS: Final = Family(name="mistral-args", calls=MISTRAL_ARGS_CALLS, reasoning=("[THINK]", "[/THINK]"))
DEEPSEEK: Final = Family(name="deepseek", calls=DEEPSEEK_CALLS)
DEEPSEEK_FENCED: Final = Family(name="deepseek-fenced", calls=DEEPSEEK_FENCED_CALLS)
HARMONY: Final = Family(
    name="harmony",
    calls=HARMONY_CALLS,
    reasoning=None,
    is_harmony=True,
    text_stop="<|return|>",
    call_stop="<|call|>",
)

# The syntax of hermes for models whose template knows no tools, or writes calls in a way that we do not parse.
HERMES_IN_TEXT: Final = Family(name="hermes-in-text", shows_tools=False, shows_calls=False, output_role="user")

# SmolLM2-135M-Instruct, Q4_1. Figures: `demos/auto_threshold.py`, 44 questions that need a tool, 42 that need none with
# each of 5 tool sets. Thresholds were chosen on every second probe; the other half says what to expect. The first two
# tokens of a call, `<` and `tool`, say it best (AUC 0.93 on the half that chose, 0.93 on the other): after the first
# alone (0.87, 0.80) many other things can come, and the rest of the opening adds nothing (0.92, 0.91).
#     threshold   chosen on: called, wrongly     held out: called, wrongly
#       -6.11          20/22       17/105            15/22       12/105       best balanced accuracy
#       -6.50          20/22       18/105            18/22       14/105       used: a missed call costs more
# (No question that needs a tool lies between -6.11 and -7.75 in the half that chooses, so the bound may as well be
# lower; the held-out counts had been seen by then.) Who must have a call sets `required`.
# Behind a tool's output the sign says nothing (AUC 0.59 and 0.33 on 29 probes), so there it never calls by itself:
# two tools for one question are two calls of one turn, and the run ends in text.
# Outputs as a user's words, because it goes on from those: of 17 outputs it repeated the fact in plain text after 13;
# as <tool_response> in a tool turn after 3 (five forms tried on the same 17, so 13 flatters the best a little).
SMOLLM2: Final = Family(
    name="smollm2",
    reasoning=None,
    shows_tools=False,
    shows_calls=False,
    output_role="user",
    output_open="The function returned:",
    output_close="Now answer my question in plain words.",
    default_instructions="You are a helpful AI assistant named SmolLM, trained by Hugging Face",
    max_parallel_calls=4,
    auto=AutoPolicy("decide", threshold=-6.5, after_output=1.0),  # no log-probability reaches 1: never
)


# Any other model whose folder tells transformers how to read its answers (`response_template`).
BY_TRANSFORMERS: Final = Family(name="transformers", reasoning=None, knows_calls=False)

FAMILIES: Final = {
    family.name: family
    for family in (
        SMOLLM2, HERMES, HERMES_IN_TEXT, QWEN_CODER, GLM, LLAMA, MISTRAL, MISTRAL_ARGS, DEEPSEEK, DEEPSEEK_FENCED,
        HARMONY,
    )
}  # fmt: skip

# What gives a family away: each of these stands in its templates. The first that fits is it.
_MARKS: Final[tuple[tuple[Family, tuple[str, ...]], ...]] = (
    (HARMONY, ("<|channel|>", "<|call|>")),
    (DEEPSEEK_FENCED, ("<｜tool▁call▁begin｜>", "```json")),
    (DEEPSEEK, ("<｜tool▁call▁begin｜>",)),
    (MISTRAL_ARGS, ("[TOOL_CALLS]", "[ARGS]")),
    (MISTRAL, ("[TOOL_CALLS]",)),
    (GLM, ("<tool_call>", "<arg_key>")),
    (QWEN_CODER, ("<tool_call>", "<function=", "<parameter=")),
    (HERMES, ("<tool_call>", "tools")),
    (LLAMA, ("<|start_header_id|>", '"parameters"', "tools")),
)


def family_of(template: str) -> Family:
    """The family of a model with this chat template (Jinja source)."""
    if "named SmolLM" in template and "tools" not in template and "<think>" not in template:  # SmolLM3 thinks
        return SMOLLM2
    return next((family for family, marks in _MARKS if all(mark in template for mark in marks)), HERMES_IN_TEXT)


def family_named(name: str) -> Family:
    """The family of this name. Raises RequestError naming those there are."""
    if name not in FAMILIES:
        raise RequestError(f"There is no family '{name}'. Known: {', '.join(FAMILIES)}.", param="family")
    return FAMILIES[name]


TOOL_INSTRUCTIONS: Final = """\
# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{tools}
</tools>

{how}
{example}"""

# SmolLM2's figures above were measured with these words.
_HOW_IN_TAGS: Final = (
    "For each function call, return a json object with function name and arguments within {} XML tags:"
)
_HOW: Final = "To call a function, answer in exactly this form:"


def describe_tools(family: Family, tools: Sequence[str]) -> str:
    """The part of the system prompt that shows tools to a model whose template does not.

    tools: one JSON text a tool, in the form `{"type": "function", "function": {...}}`.
    """
    calls = family.calls
    is_hermes = calls.is_json and bool(calls.close)
    how = _HOW_IN_TAGS.format(calls.open + calls.close) if is_hermes else _HOW
    return TOOL_INSTRUCTIONS.format(tools="\n".join(tools), how=how, example=_example(calls))


def _example(calls: CallSyntax) -> str:
    return calls.example().replace('"<function-name>"', "<function-name>")  # as models were shown it
