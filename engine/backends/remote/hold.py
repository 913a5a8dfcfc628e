"""How a step is held to a call or a JSON answer where the service obeys no grammar of ours.

What must stand at the beginning is put there by us (`lead`), as a grammar would force it; then the model goes on. Where
the service can hold an answer to a JSON schema, the one that is left is handed to it, and what has to follow the JSON
(`tail`) is ours again. Elsewhere the tool's name is certain, and the arguments are the model's own.
"""

from collections.abc import Mapping
from typing import Any

from engine.backends.constraint import Constraint
from engine.backends.families import Family
from engine.backends.toolset import call_schema, held_parameters_of
from engine.toolspec import Tool


class Hold(Constraint, frozen=True, kw_only=True):
    """A constraint in these terms; its `grammar` is empty. The mode is `always` where all of the step is held.

    lead, tail: texts in which the family's tags are meant. opening: what a call begins with, where the model may call
    as well as answer; only an answer is held to the schema then.
    """

    lead: str = ""
    schema: dict[str, Any] | None = None
    tail: str = ""
    opening: str = ""


def hold_to_answer(schema: dict[str, Any], opening: str = "") -> Hold:
    """The whole text follows the schema, unless it begins with this."""
    return Hold(grammar="", mode="on_trigger" if opening else "always", schema=schema, opening=opening)


def hold_to_call(tools: Mapping[str, Tool], family: Family, *, has_schemas: bool) -> Hold:
    """The step begins with a call of one of these (at least one), by label.

    Arguments are held to their schema where the service can do that and the family writes them as JSON.
    """
    calls = family.calls
    opening, closing = calls.open + calls.begin, calls.after_arguments + calls.end + calls.close
    if len(tools) == 1:
        ((label, tool),) = tools.items()
        lead = opening + calls.before_name + calls.written_name(label) + calls.before_arguments
        if has_schemas and calls.pairs is None:
            return Hold(grammar="", lead=lead, schema=held_parameters_of(tool), tail=closing)
        return Hold(grammar="", mode="on_trigger", lead=lead)
    if has_schemas and calls.is_json:
        schemas = [call_schema(label, tool, calls.arguments_key) for label, tool in tools.items()]
        tail = closing.removeprefix("}")  # the schema's own
        return Hold(grammar="", lead=opening, schema={"anyOf": schemas}, tail=tail)
    return Hold(grammar="", mode="on_trigger", lead=opening + calls.before_name)
