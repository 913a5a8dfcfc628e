"""A model's Jinja chat template, used so that a context only ever grows at its end.

A template renders whole conversations. To append turns we render a short made-up conversation with and without them
and take what they add behind its last turn; the history is never rendered again. What a template would write otherwise
in earlier turns, now that others follow, does not matter for that (see manners.py).

Content never goes through Jinja: the template sees a stand-in of two private-use characters around a number, and
afterwards the content takes its place as a Span that cannot hold control tokens.
"""

import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

from engine.backends.vocabulary import Span

Turn = Mapping[str, Any]
Variables = Mapping[str, Any]  # that a template reads besides the turns
NONE: Final[Variables] = {}

_OPEN, _CLOSE = "\ue000", "\ue001"
MARK: Final = "\ue002"  # stands where a made-up turn ends, to find out what a template writes behind it
_CONTROL: Final = re.compile(r"<[^<>\s]+>|\[/?[A-Z_]+\]")
_LAST_CONTROL: Final = re.compile(rf"(?:{_CONTROL.pattern})\s*$")
_STAND_IN: Final = re.compile(f"{_OPEN}(\\d+){_CLOSE}")

# Every control token in use has one of these; other strings stay, since templates compare them (`type == "string"`).
_RISKY: Final = re.compile(f"[<\\[{_OPEN}{_CLOSE}]")


class TemplateError(ValueError):
    """The template refused these turns, or cannot be extended by them without changing what came before."""


class Contents:
    """The texts of one rendering that stand outside the template."""

    def __init__(self) -> None:
        self._texts: list[str] = []

    def put(self, text: str) -> str:
        """A stand-in for `text`, to be used as a string in a turn."""
        self._texts.append(text)
        return f"{_OPEN}{len(self._texts) - 1}{_CLOSE}"

    def put_json(self, value: Any, text: str) -> Any:
        """A stand-in for a JSON value: `value` to a template that looks inside, `text` to one that writes it out."""
        stand_in = self.put(text)
        return _JsonObject(self._safe(value), stand_in) if isinstance(value, dict) else _JsonText(stand_in)

    def _safe(self, value: Any) -> Any:
        """`value` with stand-ins for the strings in it that could spell a control token."""
        match value:
            case dict():
                return {self._safe(key): self._safe(part) for key, part in value.items()}
            case list():
                return [self._safe(part) for part in value]
            case str() if _RISKY.search(value):
                return self.put(value)
            case _:
                return value

    def spans(self, rendered: str) -> list[Span]:
        """Rendered text with every stand-in replaced by its content."""
        parts = _STAND_IN.split(rendered)
        return [
            Span(self._texts[int(part)], False) if index % 2 else Span(part, True)
            for index, part in enumerate(parts)
            if part
        ]


class _JsonObject(dict[str, Any]):
    """A mapping that `tojson` writes as its stand-in."""

    def __init__(self, value: dict[str, Any], stand_in: str) -> None:
        super().__init__(value)
        self.stand_in = stand_in


class _JsonText(str):
    """A stand-in string that `tojson` leaves alone."""

    __slots__ = ()


class Template:
    """A compiled chat template. Immutable; rendering is safe from several threads."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        """special_tokens: `bos_token` and the like, as the template's variables."""
        self.source = source
        self.is_timeless = "strftime_now" not in source  # what the same turns add is always the same
        self._variables = dict(special_tokens)
        try:
            self._template = _environment().from_string(source)
        except jinja2.TemplateError as error:
            raise TemplateError(f"The chat template cannot be read: {error}") from error
        self._no_tools: Sequence[Any] | None = None
        self._end = ""  # what ends a conversation, not a turn: Phi's do that
        self._look()

    def _look(self) -> None:
        """Find out what the template takes for no tools, and what it writes at the end of what is to go on."""
        turns = [{"role": "user", "content": "Hello"}]
        try:
            self._render(turns, NONE)
        except TemplateError:
            self._no_tools = []  # it goes through them without asking
        try:
            whole, open_ = self._render(turns, NONE), self._render(turns, NONE, add_generation_prompt=True)
        except TemplateError:
            return  # it says why when it is used
        end = _LAST_CONTROL.search(whole)
        if end and not open_.startswith(whole) and open_.startswith(whole[: end.start()]):
            self._end = end[0]

    def start(self, turns: Sequence[Turn], tools: Sequence[Any] = (), variables: Variables = NONE) -> str:
        """A new conversation. Raises TemplateError when the template refuses it."""
        return self._render(turns, variables, tools=list(tools) or None)

    def extend(self, before: Sequence[Turn], turns: Sequence[Turn], variables: Variables = NONE) -> str:
        """What `turns` add to a conversation that ends like `before`, whose last turn holds the mark.

        Raises TemplateError.
        """
        return self._split(before, turns, variables)[1]

    def closing(self, before: Sequence[Turn], turns: Sequence[Turn]) -> str:
        """What ends the last turn of `before`, which holds the mark, once `turns` follow. Raises TemplateError."""
        return self._split(before, turns, NONE)[0]

    def behind_mark(self, turns: Sequence[Turn], variables: Variables = NONE) -> str:
        """What is rendered behind the mark. Raises TemplateError when the template does not show it."""
        _, mark, behind = self._render(turns, variables).rpartition(MARK)
        if not mark:
            raise TemplateError("The chat template does not show a turn's content.")
        return behind

    def _split(self, before: Sequence[Turn], turns: Sequence[Turn], variables: Variables) -> tuple[str, str]:
        closing, whole = self.behind_mark(before, variables), self.behind_mark([*before, *turns], variables)
        if whole.startswith(closing):
            return closing, whole[len(closing) :]
        # Some end a turn that others follow by another token: gpt-oss has <|end|> in place of <|return|>.
        last, inner = _CONTROL.match(closing), _CONTROL.match(whole)
        if last and inner and whole.startswith(closing[last.end() :], inner.end()):
            end = inner.end() + len(closing) - last.end()
            return whole[:end], whole[end:]
        raise TemplateError("The chat template changes earlier turns when new ones follow.")

    def header(self, before: Sequence[Turn], variables: Variables = NONE) -> str:
        """What begins the model's turn behind a conversation that ends like `before`. Raises TemplateError."""
        prefix = self._render(before, variables)
        whole = self._render(before, variables, add_generation_prompt=True)
        if not whole.startswith(prefix):
            raise TemplateError("The chat template changes earlier turns when the model's turn begins.")
        return whole[len(prefix) :]

    def _render(self, turns: Sequence[Turn], variables: Variables, **more: Any) -> str:
        more = {"add_generation_prompt": False, "documents": None} | more
        more["tools"] = more.get("tools") or self._no_tools
        try:
            rendered = self._template.render(messages=list(turns), **self._variables, **variables, **more)
        except jinja2.TemplateError as error:
            raise TemplateError(f"The chat template refused the turns: {error.message}") from error
        except (TypeError, ValueError, KeyError, AttributeError, IndexError) as error:
            raise TemplateError(f"The chat template failed on the turns: {error}") from error
        return rendered if more["add_generation_prompt"] else rendered.removesuffix(self._end)


class _Generation(jinja2.ext.Extension):
    """`{% generation %}…{% endgeneration %}` marks the model's own text for training; here it is just its body."""

    tags = {"generation"}  # noqa: RUF012  jinja2 declares it as a plain set

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> jinja2.Environment:
    """Jinja as Hugging Face sets it up for chat templates (transformers' `_compile_jinja_template`)."""
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _to_json(value: Any, **options: Any) -> str:
    if isinstance(value, _JsonText):
        return str(value)
    if isinstance(value, _JsonObject):
        return value.stand_in
    return to_json(value)


def _raise(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)  # local time: a template asks for the date the user lives in


def to_json(value: Any) -> str:
    """JSON as models were trained on it: Python's separators, no escapes for what is not ASCII."""
    return json.dumps(value, ensure_ascii=False)
