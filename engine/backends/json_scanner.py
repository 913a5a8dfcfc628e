"""Where a JSON object ends, found piece by piece without parsing it."""

import re
from typing import Final

_OUTSIDE: Final = re.compile(r'["{}\[\]]')
_INSIDE: Final = re.compile(r'["\\]')


class ObjectScanner:
    """Follows brackets and strings of one JSON value that begins with `{`."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._skips_next = False  # the last piece ended behind a backslash

    def scan(self, text: str) -> int | None:
        """Where in the next piece of text the object ends (index behind its last bracket); None: not yet."""
        at = 1 if self._skips_next and text else 0
        self._skips_next = self._skips_next and not text
        while found := (_INSIDE if self._in_string else _OUTSIDE).search(text, at):
            at = found.end()
            match found[0]:
                case '"':
                    self._in_string = not self._in_string
                case "\\":
                    self._skips_next = at == len(text)
                    at += 1
                case "{" | "[":
                    self._depth += 1
                case _:
                    self._depth -= 1
                    if self._depth == 0:
                        return at
        return None
