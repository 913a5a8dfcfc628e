"""What begins a turn of the model: by the turn before it, and by how much the model is to think."""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, get_args

from engine.backends.manners import USER, Manners, output_turn
from engine.backends.template import NONE, Template, TemplateError, Turn, Variables
from engine.backends.thinking import Thinking, ways_to_say

_USUAL: Final = "user"


class Header(NamedTuple):
    """As text and as ids."""

    text: str
    ids: list[int]


class Headers:
    """All of one template; made once."""

    def __init__(self, template: Template, manners: Manners, encode: Callable[[str], list[int]]) -> None:
        """encode: of text whose control tokens mean themselves. Raises TemplateError."""
        before: dict[str, list[Turn]] = {_USUAL: [USER]}
        if manners.shows_calls:
            before["tool"] = [USER, manners.call_turn(), output_turn()]
        self._variables = {thinking: _taken(template, thinking) for thinking in get_args(Thinking)}
        self._headers = {}
        for thinking, variables in self._variables.items():
            for role, turns in before.items():
                text = _header(template, turns, variables)
                self._headers[role, thinking] = Header(text, encode(text))
        self.longest = max(len(header.ids) for header in self._headers.values())

    def variables(self, thinking: Thinking) -> Variables:
        """How the template is told."""
        return self._variables[thinking]

    def after(self, role: str | None, thinking: Thinking = "") -> Header:
        """Behind a turn of this role."""
        return self._headers.get((role or "", thinking), self._headers[_USUAL, thinking])

    def are_last(self, ids: Sequence[int]) -> bool:
        """Whether ids end with one."""
        return any(list(ids[len(ids) - len(header.ids) :]) == header.ids for header in self._headers.values())


def _taken(template: Template, thinking: Thinking) -> Variables:
    """The first way to say it that the template takes."""
    for variables in ways_to_say(thinking):
        try:
            template.header([USER], variables)
        except TemplateError:
            continue
        return variables
    return NONE


def _header(template: Template, before: Sequence[Turn], variables: Variables) -> str:
    try:
        return template.header(before, variables)
    except TemplateError:
        return template.header([USER], variables)
