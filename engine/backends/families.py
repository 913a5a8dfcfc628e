"""What differs between model families, as values: how a call is written, how tools are shown, when `auto` calls.

A family is chosen from a model's chat template. The template itself says how turns look; what it cannot say is here.
"""

from collections.abc import Sequence
from typing import Final, Literal

import msgspec


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

    A call is `{call_open}\\n{"name": …, "arguments": {…}}\\n{call_close}`, several are parted by a newline.
    `reasoning` holds the tags around thoughts. `shows_tools` says whether the chat template presents tools, calls and
    outputs itself; otherwise they are written into the text of ordinary turns.
    """

    name: str
    call_open: str = "<tool_call>"
    call_close: str = "</tool_call>"
    output_open: str = "<tool_response>"
    output_close: str = "</tool_response>"
    reasoning: tuple[str, str] | None = ("<think>", "</think>")
    shows_tools: bool = True
    output_role: str = "tool"
    default_instructions: str | None = None
    max_parallel_calls: int = 16
    auto: AutoPolicy = AutoPolicy()

    @property
    def markup(self) -> tuple[str, ...]:
        """The tags that content must not be able to write as tokens."""
        return (
            self.call_open, self.call_close, self.output_open, self.output_close, "<tools>", "</tools>",
            *(self.reasoning or ()),
        )  # fmt: skip


HERMES: Final = Family(name="hermes")

# The same syntax for models whose template knows no tools, or writes calls in a way that we do not parse.
HERMES_IN_TEXT: Final = Family(name="hermes-in-text", shows_tools=False, output_role="user")

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
    output_role="user",
    output_open="The function returned:",
    output_close="Now answer my question in plain words.",
    default_instructions="You are a helpful AI assistant named SmolLM, trained by Hugging Face",
    max_parallel_calls=4,
    auto=AutoPolicy("decide", threshold=-6.5, after_output=1.0),  # no log-probability reaches 1: never
)


def family_of(template: str) -> Family:
    """The family of a model with this chat template (Jinja source)."""
    if "named SmolLM" in template and "tools" not in template:
        return SMOLLM2
    if "tools" in template and HERMES.call_open in template:
        return HERMES
    return HERMES_IN_TEXT


TOOL_INSTRUCTIONS: Final = """\
# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{tools}
</tools>

For each function call, return a json object with function name and arguments within {call_open}{call_close} XML tags:
{call_open}
{{"name": <function-name>, "arguments": <args-json-object>}}
{call_close}"""


def describe_tools(family: Family, tools: Sequence[str]) -> str:
    """The part of the system prompt that shows tools to a model whose template does not.

    tools: one JSON text a tool, in the form `{"type": "function", "function": {...}}`.
    """
    return TOOL_INSTRUCTIONS.format(tools="\n".join(tools), call_open=family.call_open, call_close=family.call_close)
