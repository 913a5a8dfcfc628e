"""How a family of models writes tool calls, as values that the parser, the grammars and the prompt all go by.

    open begin CALL (between CALL)* end close       CALL = before_name NAME before_arguments ARGUMENTS after_arguments

`open` and `close` are tags, often tokens of their own. Arguments are a JSON object, or pairs of a name and a value,
each between tags. White space in a syntax is what models were taught; readers are lenient about it.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from engine.backends.template import to_json

_TAG: Final = re.compile(r"<[^<>\s]+>|\[/?[A-Z_]+\]")


class Pairs(msgspec.Struct, frozen=True):
    """Arguments as pairs: `before_name NAME before_value VALUE after_value`, as often as there are arguments.

    A text is written as it is, anything else as JSON.
    """

    before_name: str
    before_value: str
    after_value: str


class CallSyntax(msgspec.Struct, frozen=True, kw_only=True):
    """See the module. `between` is None where a block holds one call; blocks are then parted by `between_blocks`.

    begins_turn: there is no tag that opens a call; a turn that begins with one is one, as is what follows it.
    names_in_json: the name is written inside a JSON string. pairs: None for a JSON object.
    """

    open: str
    begin: str = ""
    before_name: str = ""
    before_arguments: str = ""
    after_arguments: str = ""
    between: str | None = None
    end: str = ""
    close: str = ""
    between_blocks: str = "\n"
    begins_turn: bool = False
    names_in_json: bool = True
    pairs: Pairs | None = None

    @property
    def is_json(self) -> bool:
        """Whether a call is one JSON object, in which other orders of keys are worth a try."""
        return self.before_name.startswith("{")

    @property
    def has_tail(self) -> bool:
        """Whether anything has to follow a call's arguments."""
        return bool(self.after_arguments or self.end or self.close)

    @property
    def tags(self) -> tuple[str, ...]:
        """The tags in it, each once."""
        texts = [self.open, self.begin, self.before_name, self.before_arguments, self.after_arguments]
        texts += [self.between or "", self.end, self.close]
        if self.pairs:
            texts += [self.pairs.before_name, self.pairs.before_value, self.pairs.after_value]
        return tuple(dict.fromkeys(_TAG.findall(" ".join(texts))))

    @property
    def arguments_key(self) -> str:
        """The key of the arguments in a call that is one JSON object."""
        return self.before_arguments.split('"')[-2]

    def written_name(self, label: str) -> str:
        """A tool's label as it is written in a call."""
        return to_json(label)[1:-1] if self.names_in_json else label

    def write(self, label: str, arguments: str, value: Mapping[str, Any] | None = None) -> Iterator[tuple[str, bool]]:
        """One call in a block of its own: texts, and whether each is markup.

        arguments: JSON text; value: the same as a value, for those that write pairs (read from the text if None).
        """
        yield self.open + self.begin + self.before_name, True
        yield self.written_name(label), False
        yield self.before_arguments, True
        if self.pairs is None:
            yield arguments, False
        else:
            yield from self._written_pairs(self.pairs, _object_of(arguments) if value is None else value)
        yield self.after_arguments + self.end + self.close, True

    @staticmethod
    def _written_pairs(pairs: Pairs, value: Mapping[str, Any]) -> Iterator[tuple[str, bool]]:
        for name, one in value.items():
            yield pairs.before_name, True
            yield name, False
            yield pairs.before_value, True
            yield one if isinstance(one, str) else to_json(one), False
            yield pairs.after_value, True

    def example(self) -> str:
        """A call as it is described to a model."""
        arguments = {"<argument-name>": "<argument-value>"}
        return "".join(text for text, _ in self.write("<function-name>", "<args-json-object>", arguments))


def _object_of(arguments: str) -> dict[str, Any]:
    """The arguments as an object; what is none is one argument without a name."""
    try:
        return msgspec.json.decode(arguments, type=dict[str, Any])
    except msgspec.DecodeError:
        return {"": arguments} if arguments.strip() else {}


HERMES_CALLS: Final = CallSyntax(
    open="<tool_call>",
    begin="\n",
    before_name='{"name": "',
    before_arguments='", "arguments": ',
    after_arguments="}",
    end="\n",
    close="</tool_call>",
)
QWEN_CODER_CALLS: Final = CallSyntax(
    open="<tool_call>",
    begin="\n",
    before_name="<function=",
    before_arguments=">\n",
    after_arguments="</function>",
    end="\n",
    close="</tool_call>",
    names_in_json=False,
    pairs=Pairs("<parameter=", ">\n", "\n</parameter>\n"),
)
GLM_CALLS: Final = CallSyntax(
    open="<tool_call>",
    before_arguments="\n",
    close="</tool_call>",
    names_in_json=False,
    pairs=Pairs("<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>\n"),
)
LLAMA_CALLS: Final = CallSyntax(
    open="",
    before_name='{"name": "',
    before_arguments='", "parameters": ',
    after_arguments="}",
    between_blocks="; ",
    begins_turn=True,
)
MISTRAL_CALLS: Final = CallSyntax(
    open="[TOOL_CALLS]",
    begin="[",
    before_name='{"name": "',
    before_arguments='", "arguments": ',
    after_arguments="}",
    between=", ",
    end="]",
)
MISTRAL_ARGS_CALLS: Final = CallSyntax(
    open="[TOOL_CALLS]", before_arguments="[ARGS]", between_blocks="", names_in_json=False
)
DEEPSEEK_CALLS: Final = CallSyntax(
    open="<｜tool▁calls▁begin｜>",
    before_name="<｜tool▁call▁begin｜>",
    before_arguments="<｜tool▁sep｜>",
    after_arguments="<｜tool▁call▁end｜>",
    between="",
    close="<｜tool▁calls▁end｜>",
    names_in_json=False,
)
DEEPSEEK_FENCED_CALLS: Final = CallSyntax(
    open="<｜tool▁calls▁begin｜>",
    before_name="<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
    before_arguments="\n```json\n",
    after_arguments="\n```<｜tool▁call▁end｜>",
    between="\n",
    close="<｜tool▁calls▁end｜>",
    names_in_json=False,
)
# A call is a message of its own to another recipient; what parts two of them belongs to the messages (harmony.py).
HARMONY_CALLS: Final = CallSyntax(
    open="<|channel|>commentary",
    before_name=" to=functions.",
    before_arguments=" <|constrain|>json<|message|>",
    close="<|call|>",
    between_blocks="<|start|>assistant",
    names_in_json=False,
)
