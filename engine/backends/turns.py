"""Items to the turns of a chat template.

Neighbouring items of the model's side (reasoning, text, calls) are one turn, as they were when they were sampled. Every
output is a turn of its own. All texts that came from somewhere else are put aside in `Contents`.
"""

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from engine.backends.families import Family
from engine.backends.manners import Manners
from engine.backends.template import Contents, Turn, to_json
from engine.backends.toolset import label_of
from engine.content import ComputerScreenshot, Content, InputFile, InputImage, Refusal
from engine.errors import RequestError
from engine.items import (
    ApplyPatchCall,
    ApplyPatchCallOutput,
    Call,
    ComputerCall,
    ComputerCallOutput,
    CustomToolCall,
    CustomToolCallOutput,
    FunctionCall,
    FunctionCallOutput,
    Hosted,
    Item,
    LocalShellCall,
    LocalShellCallOutput,
    McpApprovalRequest,
    McpApprovalResponse,
    Message,
    Reasoning,
    ShellCall,
    ShellCallOutput,
    ToolSearchCall,
    ToolSearchOutput,
    type_of,
)

_MAX_NOTE_CHARS: Final = 4000  # of a hosted item's note: enough for search results, short of filling a small context


def turns_of(
    items: Sequence[Item], family: Family, contents: Contents, manners: Manners, labels: Iterable[str] = ()
) -> list[Turn]:
    """The turns of `items`, as the model's template wants them.

    labels: of the calls that were made before these items, and that their first outputs answer, in order. Raises
    RequestError with a path such as `[2].content[0]` for content that is not text.
    """
    builder = _Builder(family, contents, manners, labels)
    for index, item in enumerate(items):
        try:
            builder.add(item)
        except RequestError as error:
            raise error.at(f"[{index}]") from error
    return builder.finish()


class _Builder:
    def __init__(self, family: Family, contents: Contents, manners: Manners, labels: Iterable[str]) -> None:
        self._family = family
        self._contents = contents
        self._manners = manners
        self._labels = iter(labels)
        self._called: dict[str, str] = {}  # labels by call_id
        self._turns: list[Turn] = []
        self._own: _OwnTurn | None = None

    def add(self, item: Item) -> None:
        match item:
            case Message(role="assistant"):
                self._own_turn().texts.append(text_only(item.content, "content"))
            case Message(role="user"):
                self._turn("user", text_only(item.content, "content"))
            case Message():
                self._turn(self._manners.system_role, text_only(item.content, "content"))
            case Reasoning():
                # The summary is what is left where nothing else is.
                self._own_turn().thoughts += [part.text for part in item.content or item.summary]
            case Hosted():
                self._turn(self._manners.system_role, hosted_note(item))
            case _ if isinstance(item, Call):
                self._own_turn().calls.append(item)
                self._called[_id_of(item)] = call_label(item)
            case _:
                self._output(output_text(item), _id_of(item))

    def finish(self) -> list[Turn]:
        self._end_own_turn()
        return self._turns

    def _turn(self, role: str, text: str) -> None:
        self._end_own_turn()
        self._turns.append({"role": role, "content": self._contents.put(text)})

    def _output(self, text: str, call_id: str) -> None:
        self._end_own_turn()
        content = self._contents.put(text)
        family = self._family
        if not family.shows_calls:
            turn = {"role": family.output_role, "content": f"{family.output_open}\n{content}\n{family.output_close}"}
            self._turns.append(turn)
            return
        turn = {
            "role": "tool",
            "content": content,
            "tool_call_id": _template_id(call_id, self._manners, self._contents),
        }
        label = self._called.get(call_id) or next(self._labels, None)
        self._turns.append(turn | ({"name": self._contents.put(label)} if label else {}))

    def _own_turn(self) -> "_OwnTurn":
        self._own = self._own or _OwnTurn()
        return self._own

    def _end_own_turn(self) -> None:
        own, self._own = self._own, None
        if own and (own.texts or own.calls):
            # Thoughts alone make no turn: templates drop those of earlier turns, and most models never see them again.
            self._turns += own.turns(self._family, self._contents, self._manners)


class _OwnTurn:
    """What the model once wrote in one turn."""

    def __init__(self) -> None:
        self.thoughts: list[str] = []
        self.texts: list[str] = []
        self.calls: list[Call] = []

    def turns(self, family: Family, contents: Contents, manners: Manners) -> list[Turn]:
        text = contents.put("\n\n".join(self.texts)) if self.texts else ""
        if not family.shows_calls:
            lines = [text, *(_written(call, family, contents) for call in self.calls)]
            return [{"role": "assistant", "content": "\n".join(filter(None, lines))}]
        turn: dict[str, Any] = {"role": "assistant", "content": text}
        thoughts = contents.put("".join(self.thoughts)) if self.thoughts else ""
        if thoughts and (family.reasoning or family.is_harmony):
            turn |= {"reasoning_content": thoughts, "thinking": thoughts}
        if not self.calls:
            return [turn]
        calls = [_structured(call, contents, manners) for call in self.calls]
        if family.is_harmony:
            return _apart(turn, [[call] for call in calls], manners)
        if text and not manners.mixes:
            return _apart(turn, [calls], manners)
        return [turn | {"content": text or manners.empty_content, "tool_calls": calls}]


def _apart(said: dict[str, Any], calls: Iterable[list[Any]], manners: Manners) -> list[Turn]:
    """The same in turns that each hold text or calls, for templates that show only one of them."""
    turns: list[Turn] = []
    if said["content"]:
        turns.append({"role": "assistant", "content": said["content"]})
    thoughts = {name: said[name] for name in ("reasoning_content", "thinking") if name in said}
    for group in calls:
        turns.append({"role": "assistant", "content": manners.empty_content, "tool_calls": group} | thoughts)
        thoughts = {}
    return turns


def _written(call: Call, family: Family, contents: Contents) -> str:
    parts = family.calls.write(call_label(call), call_arguments(call))
    return "".join(text if is_markup else contents.put(text) for text, is_markup in parts)


def _structured(call: Call, contents: Contents, manners: Manners) -> dict[str, Any]:
    text = call_arguments(call)
    try:
        value: Any = msgspec.json.decode(text)
    except msgspec.DecodeError:
        value = None
    arguments = contents.put(text) if manners.arguments_as_text else contents.put_json(value, text)
    function = {"name": contents.put(call_label(call)), "arguments": arguments}
    return {"type": "function", "id": _template_id(_id_of(call), manners, contents), "function": function}


def _id_of(item: Item) -> str:
    return str(getattr(item, "call_id", "") or "")


def _template_id(call_id: str, manners: Manners, contents: Contents) -> str:
    """The id as a template takes it; nine letters and digits for one that takes nothing else."""
    return hashlib.sha256(call_id.encode()).hexdigest()[:9] if manners.short_ids else contents.put(call_id)


# --- texts -------------------------------------------------------------------------------------------------------


def text_only(content: Content, field: str) -> str:
    """The text of a content. Raises RequestError naming `field[j]` for a part that is not text."""
    if isinstance(content, str):
        return content
    texts = []
    for index, part in enumerate(content):
        if isinstance(part, InputImage | InputFile | ComputerScreenshot):
            kind = part.__struct_config__.tag
            raise RequestError(f"This model takes text only, not '{kind}'.", param=f"{field}[{index}]")
        texts.append(part.refusal if isinstance(part, Refusal) else part.text)
    return "".join(texts)


def call_label(call: Call) -> str:
    """The name by which the model made this call."""
    match call:
        case FunctionCall() | CustomToolCall():
            return label_of(call.name, call.namespace or None)
        case McpApprovalRequest():
            return label_of(call.name, call.server_label or None)
        case _:
            return str(call.__struct_config__.tag).removesuffix("_call")


def call_arguments(call: Call) -> str:
    """The arguments of a call as the JSON text that the model wrote, or would have written."""
    match call:
        case FunctionCall() | McpApprovalRequest():
            return call.arguments
        case CustomToolCall():
            return to_json({"input": call.input})
        case LocalShellCall() | ShellCall():
            return to_json(call.action)
        case ApplyPatchCall():
            return to_json(call.operation)
        case ComputerCall():
            return to_json(call.action or {"actions": call.actions or []})
        case ToolSearchCall():
            return call.arguments if isinstance(call.arguments, str) else to_json(call.arguments)


def output_text(item: Item) -> str:
    """What a call's answer tells the model. Raises RequestError naming `output…` for what is not text."""
    match item:
        case FunctionCallOutput() | CustomToolCallOutput():
            return text_only(item.output, "output")
        case LocalShellCallOutput():
            return item.output
        case ShellCallOutput():
            return to_json(item.output)
        case ApplyPatchCallOutput():
            return "\n".join(filter(None, [item.status, item.output or ""]))
        case ToolSearchOutput():
            return to_json(item.tools)
        case McpApprovalResponse():
            return "\n".join(filter(None, ["approved" if item.approve else "denied", item.reason or ""]))
        case ComputerCallOutput():
            raise RequestError("This model takes text only, not 'computer_screenshot'.", param="output")
        case _:
            raise RequestError(f"Items of type '{type_of(item)}' cannot be given to a model.", param="type")


def hosted_note(item: Hosted) -> str:
    """A hosted tool's item in a line or two: what was done, with what, and what came out."""
    data = item.data
    what = " ".join(str(data[key]) for key in ("server_label", "name") if data.get(key))
    asked = data.get("arguments") or data.get("action") or data.get("queries") or data.get("code")
    came = data.get("output") or data.get("results") or data.get("outputs") or data.get("error")
    lines = [f"[{item.type}{': ' + what if what else ''}]"]
    lines += [_readable(part) for part in (asked, came) if part]
    if len(lines) == 1:
        rest = {key: value for key, value in data.items() if key not in _NOISE}
        lines += [to_json(rest)] if rest else []
    return "\n".join(lines)[:_MAX_NOTE_CHARS]


_NOISE: Final = frozenset({"type", "id", "status", "encrypted_content", "result"})


def _readable(value: Any) -> str:
    return value if isinstance(value, str) else to_json(value)
