"""What a chat template takes and shows, found out by trying it on made-up conversations when it is loaded.

Templates differ in what they want calls to look like, and in what they write again once a conversation goes on. Some
drop a turn's thoughts when it is no longer the last one (Qwen 3, GLM, gpt-oss), end the last turn by another token than
earlier ones (gpt-oss), or move the system prompt and the tools to the last user's turn (Mistral). A run's context only
grows at its end, so here the rule is: **what is in the context stays as it was sampled or given; a new turn is written
as the template writes it behind a turn of that kind.** `rewrites` says that a template has to be held to it.
"""

import re
from collections.abc import Iterator
from itertools import product
from typing import Any, Final

import msgspec

from engine.backends.families import Family
from engine.backends.template import MARK, Template, TemplateError, Turn

USER: Final[dict[str, Any]] = {"role": "user", "content": "Hello"}
MODEL: Final[dict[str, Any]] = {"role": "assistant", "content": "Hi"}
SYSTEM: Final[dict[str, Any]] = {"role": "system", "content": "Be brief."}
_NAME: Final = "look_around"
_ID: Final = "call00000"  # nine characters: Mistral's templates refuse ids of another length
_LONG_ID: Final = "call_0123456789"
_TOOL: Final = {
    "type": "function",
    "function": {
        "name": _NAME,
        "description": "Look.",
        "parameters": {"type": "object", "properties": {"where": {"type": "string"}}, "required": ["where"]},
    },
}
_CONTROL: Final = re.compile(r"<[^<>\s]+>|\[/?[A-Z_]+\]")


class Manners(msgspec.Struct, frozen=True, kw_only=True):
    """See the module.

    system_role: what a system message in the middle of a conversation becomes. arguments_as_text, empty_content,
    short_ids: what the template wants of a call's turn. mixes: it shows text beside calls. closing: what ends a turn
    of the model that others follow. ends: control tokens that end a turn of the model, a call's first.
    """

    shows_tools: bool
    shows_calls: bool
    system_role: str = "system"
    arguments_as_text: bool = False
    empty_content: str | None = ""
    short_ids: bool = False
    mixes: bool = False
    closing: str = ""
    ends: tuple[str, ...] = ()
    rewrites: bool = False

    def call_turn(self, name: str = _NAME) -> dict[str, Any]:
        """A made-up turn of the model with a call, whose argument holds the mark."""
        arguments: Any = {"where": MARK}
        if self.arguments_as_text:
            arguments = f'{{"where": "{MARK}"}}'
        call = {"type": "function", "id": _ID, "function": {"name": name, "arguments": arguments}}
        return {
            "role": "assistant",
            "content": self.empty_content,
            "tool_calls": [call],
        }

    def before(self, role: str, name: str = _NAME) -> list[Turn]:
        """A short conversation that ends with a turn of this role (`call`: of the model, with one), marked."""
        match role:
            case "user":
                return [USER | {"content": MARK}]
            case "system":
                return [USER, MODEL, SYSTEM | {"content": MARK}]
            case "tool":
                return [USER, self.call_turn(name), output_turn(name)]
            case "call":
                return [USER, self.call_turn(name)]
            case _:
                return [USER, MODEL | {"content": MARK}]


def output_turn(name: str = _NAME, content: str = MARK) -> Turn:
    """A made-up output."""
    return {"role": "tool", "name": name, "content": content, "tool_call_id": _ID}


def manners_of(template: Template, family: Family) -> Manners:
    """Raises TemplateError for a template that cannot be extended at all: it shows new turns before earlier ones."""
    _expect_growth(template)
    manners = _with_calls(template, family)
    closing_last = template.behind_mark(manners.before("assistant"))
    ends = [_first_control(closing_last)]
    if manners.shows_calls:
        call_end = _first_control(template.behind_mark(manners.before("call")), last=True)
        if family.is_harmony or call_end not in family.calls.tags:
            ends.insert(0, call_end)
    return msgspec.structs.replace(
        manners,
        shows_tools=family.shows_tools and _shows_tools(template),
        short_ids=manners.shows_calls and _needs_short_ids(template, manners),
        mixes=manners.shows_calls and _mixes(template, manners),
        system_role=_system_role(template, manners),
        closing=template.closing(manners.before("assistant"), [USER]),
        ends=tuple(dict.fromkeys(filter(None, ends))),
        rewrites=_rewrites(template),
    )


def _expect_growth(template: Template) -> None:
    again = template.extend([USER, MODEL | {"content": MARK}], [USER | {"content": "Hello again"}])
    if "Hello again" not in again:
        raise TemplateError("This chat template cannot be extended at its end: later turns change earlier ones.")


def _rewrites(template: Template) -> bool:
    """Whether the template writes a conversation's earlier turns otherwise once it has gone on."""
    history = [USER, MODEL, USER, MODEL | {"reasoning_content": "Hm", "thinking": "Hm"}]
    tools = [_TOOL]
    opening = [SYSTEM, USER]
    try:
        grown = template.start([*history, USER]).startswith(template.start(history))
        later = template.start([*opening, MODEL, USER | {"content": "Hello again"}], tools)
        return not (grown and later.startswith(template.start(opening, tools)))
    except TemplateError:
        return False


def _with_calls(template: Template, family: Family) -> Manners:
    """How the template wants calls, in the first way in which it shows one and its output."""
    if family.shows_calls:
        for manners in _ways():
            if _shows_call(template, manners):
                return manners
    return Manners(shows_tools=False, shows_calls=False)


def _ways() -> Iterator[Manners]:
    for as_text, empty in product((False, True), ("", None)):
        yield Manners(shows_tools=True, shows_calls=True, arguments_as_text=as_text, empty_content=empty)


def _shows_call(template: Template, manners: Manners) -> bool:
    try:
        rendered = template.start([*manners.before("call"), output_turn(_NAME, "a wall")])
    except TemplateError:
        return False
    # An argument must not be shown as a text within a text.
    return all(part in rendered for part in (_NAME, MARK, "a wall")) and f'\\"{MARK}' not in rendered


def _mixes(template: Template, manners: Manners) -> bool:
    try:
        before, mark, _ = template.start([USER, manners.call_turn() | {"content": "I look."}]).rpartition(MARK)
    except TemplateError:
        return False
    return bool(mark) and "I look." in before


def _shows_tools(template: Template) -> bool:
    try:
        return _NAME in template.start([USER], [_TOOL])
    except TemplateError:
        return False


def _system_role(template: Template, manners: Manners) -> str:
    try:
        is_shown = str(SYSTEM["content"]) in template.extend(manners.before("assistant"), [SYSTEM])
    except TemplateError:
        is_shown = False
    return "system" if is_shown else "user"


def _needs_short_ids(template: Template, manners: Manners) -> bool:
    """Whether the template refuses the ids that calls have here."""
    (call,) = manners.call_turn()["tool_calls"]
    turn = manners.call_turn() | {"tool_calls": [call | {"id": _LONG_ID}]}
    try:
        template.start([USER, turn])
    except TemplateError:
        return True
    return False


def _first_control(text: str, *, last: bool = False) -> str:
    found = _CONTROL.findall(text)
    return found[-1 if last else 0] if found else ""
