"""Items that stand for others, replaced by what a model can be given: references, sealed reasoning, compactions.

References first, since a run's input is checked with the items they name; what is sealed is opened only if it is new to
the run. A compaction takes the place of everything before it in the input: what it holds is what is left of that,
whether or not the client has dropped the items themselves.
"""

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from engine.content import ReasoningText
from engine.errors import NotFound, RequestError
from engine.items import Compaction, CompactionTrigger, Item, ItemReference, Reasoning, decode_item, encode_item
from engine.sealing import Sealer

FindItem = Callable[[str], Item | None]

_REASONING: Final = "reasoning"
_WINDOW: Final = "compaction"
_RAWS: Final = msgspec.json.Decoder(list[msgspec.Raw])


def seal_reasoning(text: str, sealer: Sealer) -> str:
    """The `encrypted_content` of a reasoning item."""
    return sealer.seal(_REASONING, text.encode("utf-8", "surrogatepass"))


def seal_window(items: Sequence[Item], sealer: Sealer) -> str:
    """The `encrypted_content` of a compaction item that leaves these items of a context."""
    return sealer.seal(_WINDOW, b"[%s]" % b",".join(map(encode_item, items)))


def look_up_items(items: Sequence[Item], find: FindItem) -> list[Item]:
    """The items with each reference replaced by what it names.

    Raises NotFound with a path from `input` on for a reference that leads nowhere.
    """
    found = list(items)
    for index, item in enumerate(items):
        if isinstance(item, ItemReference):
            whole = find(item.id)
            if whole is None:
                raise NotFound(
                    f"Item with id '{item.id}' not found. Items are kept only while their response is stored.",
                    param=f"input[{index}].id",
                    code="item_not_found",
                )
            found[index] = whole
    return found


def open_items(items: Sequence[Item], sealer: Sealer) -> list[Item]:
    """The items as a model is to see them; those that hide nothing are the same objects.

    Raises RequestError with a path from `[i]` on for what this server has not sealed.
    """
    opened: list[Item] = []
    for index, item in enumerate(items):
        try:
            if isinstance(item, Compaction):
                opened = open_window(item, sealer)
            elif isinstance(item, CompactionTrigger):
                raise RequestError("This server compacts when it has to.", param="type", code="unsupported_item")
            else:
                opened.append(_opened(item, sealer))
        except RequestError as error:
            raise error.at(f"[{index}]") from error
    return opened


def _opened(item: Item, sealer: Sealer) -> Item:
    """Reasoning with the text that was sealed, verbatim. What the client sent in the clear it may have changed."""
    if not isinstance(item, Reasoning) or item.encrypted_content is msgspec.UNSET or item.content:
        return item
    assert item.encrypted_content is not None  # nulls are absent
    text = sealer.unseal(_REASONING, item.encrypted_content).decode("utf-8", "surrogatepass")
    return msgspec.structs.replace(item, content=[ReasoningText(text=text)], encrypted_content=msgspec.UNSET)


def open_window(compaction: Compaction, sealer: Sealer) -> list[Item]:
    """The items that it leaves of a context. Raises RequestError when this server has not sealed it."""
    return [decode_item(raw) for raw in _RAWS.decode(sealer.unseal(_WINDOW, compaction.encrypted_content))]
