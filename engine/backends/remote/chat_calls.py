"""Which call a part of a streamed call belongs to. Services name calls by index, by id, by both or not at all.

A part goes on with the call that its id names (and its index, for services that give every call the same id), then
with the newest one that its index names, then with the newest of all. What says that it is a new call all the same:
another id, or a name where that call is whole already or has another name (services that give every call the index 0,
and whole calls with neither index nor id). A name alone, again after a whole call, may be either: what comes next
tells.
"""

from typing import Any

from engine.backends.json_scanner import ObjectScanner
from engine.backends.remote.chat_chunks import CallPart
from engine.backends.template import to_json


class OpenCall:
    """A call whose parts still come. `is_whole`: its arguments are a JSON object from the first to the last bracket."""

    def __init__(self, index: int | None, call_id: str) -> None:
        self.index = index
        self.id = call_id
        self.name = ""
        self.is_whole = False
        self._arguments: list[str] = []
        self._scanner = ObjectScanner()
        self._was_named_again = False

    @property
    def arguments(self) -> str:
        """As far as they have come."""
        return "".join(self._arguments)

    def take(self, part: CallPart) -> str:
        """A part of it; the arguments that this adds. The name counts once: some services repeat it in each part."""
        self.id = self.id or part.id or ""
        self.name = self.name or name_in(part)
        arguments = "" if self.is_whole else arguments_in(part)  # what follows is white space, or says it all again
        if (end := self._scanner.scan(arguments)) is not None:
            self.is_whole, arguments = True, arguments[:end]
        if arguments:
            self._arguments.append(arguments)
        return arguments

    def goes_on_with(self, part: CallPart) -> bool:
        """Whether a part that is named like this call is one of it."""
        if part.id and self.id:
            return part.id == self.id
        name = name_in(part)
        if name and self.name and name != self.name:
            return False
        if not self.is_whole:
            return True
        begins = bool(part.id or arguments_in(part).strip())
        if name == self.name and not begins:
            self._was_named_again = True
        return not (begins and (name or self._was_named_again))


class CallTable:
    """The calls of one step, in order."""

    def __init__(self) -> None:
        self.calls: list[OpenCall] = []

    def call_of(self, part: CallPart) -> OpenCall:
        """The call that a part belongs to, which may begin with it."""
        named = self._named_by(part)
        if named is not None and named.goes_on_with(part):
            return named
        call = OpenCall(part.index, part.id or "")
        if named is not None and not part.id and not name_in(part):
            call.name = named.name  # said before, when it could have been the earlier call's
        self.calls.append(call)
        return call

    def _named_by(self, part: CallPart) -> OpenCall | None:
        newest_first = self.calls[::-1]
        for call in newest_first:
            if part.id and call.id == part.id and (part.index is None or call.index in (None, part.index)):
                return call
        if part.index is None:
            return newest_first[0] if newest_first else None
        return next((call for call in newest_first if call.index == part.index), None)


def name_in(part: CallPart) -> str:
    """The name that a part gives."""
    return (part.function.name if part.function else None) or ""


def arguments_in(part: CallPart) -> str:
    """The arguments that a part gives, as text."""
    given: Any = part.function.arguments if part.function else None
    return given or "" if isinstance(given, str | None) else to_json(given)
