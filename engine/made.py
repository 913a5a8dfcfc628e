"""A run's finished items as they are kept: folded if they streamed, whole if not, and those of hosted calls.

A hosted call is two things. The client has its item (`mcp_call`, `web_search_call`, …), which may hold less than the
model was told, or more. The model's context has a function call and its output, so that is what is rendered when the
context is built anew, by whatever backend. Their call ids are the server's own and never shown.
"""

from typing import Any, Final

import msgspec

from engine.folded import FoldedItem
from engine.items import Call, FunctionCall, FunctionCallOutput, Hosted, Item


class HostedItem(msgspec.Struct, frozen=True, tag="hosted", omit_defaults=True):
    """A finished item of a hosted tool; `data` is as clients have it.

    call: as the model made it; None when it made none (a list of tools), or the call was its approval request.
    """

    data: dict[str, Any]
    call: FunctionCall | None = None


Made = FoldedItem | Call | HostedItem

HOSTED_PREFIX: Final = "hc"  # of the call ids that only the model's context has
_INTERNAL: Final = (f"{HOSTED_PREFIX}_", "mcpr_")


def shown(made: Made) -> Item:
    """The item as clients have it."""
    match made:
        case HostedItem(data=data):
            return Hosted(data["type"], data)
        case FoldedItem():
            return made.item()
        case _:
            return made


def in_context(made: Made) -> list[Item]:
    """What the model's context has of it."""
    if isinstance(made, HostedItem):
        return [] if made.call is None else [made.call]
    return [shown(made)]


def is_internal(item: Item) -> bool:
    """Whether it is a hosted call or its output as the model has it, which clients are not shown."""
    return isinstance(item, FunctionCall | FunctionCallOutput) and item.call_id.startswith(_INTERNAL)
