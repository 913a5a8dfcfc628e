"""What `truncation: "auto"` leaves out of an input that does not fit: its oldest items, as few as will do.

System and developer messages stay, since they say how to answer, and so does the newest item. A call goes with its
output, because neither can be rendered without the other.
"""

from collections.abc import Sequence

from engine.items import Answer, Call, Item, Message, answer_key, call_key


def droppable_units(items: Sequence[Item]) -> list[list[int]]:
    """Indices that can be left out, oldest unit first; each unit is an item, or a call and its output."""
    units: list[list[int]] = []
    calls: dict[str, list[int]] = {}
    for index, item in enumerate(items[:-1]):
        if isinstance(item, Message) and item.role in ("system", "developer"):
            continue
        if isinstance(item, Answer) and (unit := calls.get(answer_key(item))) is not None:
            unit.append(index)
            continue
        units.append([index])
        if isinstance(item, Call):
            calls[call_key(item)] = units[-1]
    newest = items[-1] if items else None
    if isinstance(newest, Answer) and (unit := calls.get(answer_key(newest))) is not None:
        units.remove(unit)
    return units


def without_oldest(items: Sequence[Item], units: Sequence[list[int]], num_units: int) -> list[Item]:
    """The items but for those of the first `num_units` units."""
    dropped = {index for unit in units[:num_units] for index in unit}
    return [item for index, item in enumerate(items) if index not in dropped]
