"""Rules of grammars as llguidance reads them, and whether it can."""

import json
from collections.abc import Iterable
from typing import Any, Final

try:
    from llguidance import LLMatcher
except ImportError:  # the extra `local` is not installed: nobody will obey a grammar, so nobody needs to check it
    LLMatcher = None

# One way to write white space, or a small model pads for ever.
_COMPACT: Final = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


def json_rule(schema: dict[str, Any], *, is_strict: bool = False) -> str:
    """A JSON value of this schema. What a grammar cannot express loosens it, or is an error where it is strict."""
    return "%json " + json.dumps(schema | {"x-guidance": _COMPACT | {"lenient": not is_strict}})


def error_of(rules: Iterable[str]) -> str | None:
    """Why these cannot hold a model, in llguidance's words; None when they can, or when it is not installed."""
    lines = [f"rule_{index}: {rule}" for index, rule in enumerate(rules)]
    if LLMatcher is None or not lines:
        return None
    start = " ".join(f"rule_{index}" for index in range(len(lines)))
    failed, messages = LLMatcher.validate_grammar_with_warnings("\n".join([f"start: {start}", *lines]), None)
    return str(messages[0]) if failed else None
