"""Which of a request's tools this server hosts, by its settings alone; the rest is the client's, or skipped."""

from pathlib import Path
from typing import Any, Final

import msgspec

from engine.hosted.base import Definition
from engine.settings import Settings

WEB_SEARCH_TYPES: Final = (
    "web_search", "web_search_2025_08_26", "web_search_preview", "web_search_preview_2025_03_11",
)  # fmt: skip


def hosted_types(settings: Settings) -> frozenset[str]:
    """The wire types of the tools that are hosted under these settings."""
    types = {
        "mcp": bool(settings.tools or settings.mcp_hosts),
        "code_interpreter": settings.code_interpreter,
        "file_search": settings.file_search,
        **dict.fromkeys(WEB_SEARCH_TYPES, bool(settings.web_search_url)),
    }
    return frozenset(type_ for type_, is_hosted in types.items() if is_hosted)


class _Head(msgspec.Struct):
    type: str = ""


def definitions_of(raws: list[msgspec.Raw], settings: Settings) -> list[Definition]:
    """The hosted ones among a request's tools, and those that are offered without being asked for."""
    types, head = hosted_types(settings), msgspec.json.Decoder(_Head)
    found: list[dict[str, Any]] = []
    definitions = []
    for index, raw in enumerate(raws):
        if head.decode(raw).type in types:
            fields = msgspec.json.decode(raw, type=dict[str, Any])
            definitions.append(Definition(index, fields))
            found.append(fields)
    if settings.offer_tools:
        asked = {fields.get("server_label") for fields in found}
        missing = [label for label in map(label_of, settings.tools) if label not in asked]
        definitions += [
            Definition(len(raws) + number, {"type": "mcp", "server_label": label})
            for number, label in enumerate(missing)
        ]
    return definitions


def label_of(name: str) -> str:
    """The label of a module or file of functions."""
    return Path(name).stem if name.endswith(".py") else name.rpartition(".")[2]
