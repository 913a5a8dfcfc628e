"""Patterns looked for in a text that grows: what of its end is undecided, whether one has been found.

Linear time whatever the pattern and the text (RE2), since both may come from somebody who wants a server to stand
still. Each new piece is searched together with the undecided end of what came before, which is shorter than the longest
match. So it makes no difference where a text was cut.
"""

from collections.abc import Sequence

import msgspec

from engine.encodable import encodable
from engine.safety.expression import Expression, compile_source


class Scan(msgspec.Struct, frozen=True, gc=False):
    """What is remembered of a text so far: its undecided end, and `num_before` characters before that.

    The one before tells whether a word begins.
    """

    tail: str = ""
    num_before: int = 0
    is_found: bool = False

    @property
    def num_undecided(self) -> int:
        """Characters at the end that could still become part of a match."""
        return len(self.tail) - self.num_before


class Patterns:
    """Several patterns as one. `longest`: characters that it takes at most to know whether there is a match.

    Raises ValueError when together they are too large for RE2.
    """

    def __init__(self, expressions: Sequence[Expression], *, ignore_case: bool = False) -> None:
        self._has_boundary = any(expression.has_boundary for expression in expressions)
        self.longest = max(expression.longest for expression in expressions) + self._has_boundary
        self._whole = compile_source("|".join(one.source for one in expressions), ignore_case=ignore_case)
        beginnings = "|".join(one.beginnings for one in expressions)
        self._beginning = compile_source(rf"(?:{beginnings})\z", ignore_case=ignore_case)

    def scan(self, before: Scan, text: str, *, is_last: bool) -> Scan:
        """What is known with this text behind it; `is_last`: nothing comes after it. A match ends the search."""
        if before.is_found:
            return before
        buffer = before.tail + encodable(text)
        found = self._whole.search(buffer, before.num_before)
        if found is not None and (is_last or found.end() < len(buffer) or not self._has_boundary):
            return Scan(is_found=True)
        if is_last:
            return Scan()
        # A match that touches the end may still turn out to be none, and is a beginning, too.
        start = max(before.num_before, len(buffer) - self.longest + 1)
        undecided_from = self._beginning.search(buffer, start).start()  # the empty end is one
        kept_from = max(undecided_from - 1, 0)
        return Scan(buffer[kept_from:], undecided_from - kept_from)
